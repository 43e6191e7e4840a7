"""The CMS that stands before anyone reads from it: datasets, blocks, files, where they
lie, and who uses them.

Dataset names, sizes and popularity come from ``datasets.csv.gz`` (public data; see
``compress.py``); what that table lacks is drawn from the distribution of what it has.
"""

from __future__ import annotations

import csv
import gzip
from functools import cache
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from cmsspark.base.resources import resource

# Who and where: made-up people with believable grid certificates, and the names of CMS
# sites.

GIVEN: Final = (
    "Anna",
    "Bruno",
    "Chiara",
    "Dmitri",
    "Elena",
    "Farid",
    "Greta",
    "Haruki",
    "Ines",
    "Jorge",
    "Katarzyna",
    "Lukas",
    "Mei",
    "Nikhil",
    "Olga",
    "Pedro",
    "Qiang",
    "Rosa",
    "Stefan",
    "Tanvi",
    "Ursula",
    "Viktor",
    "Wei",
    "Ximena",
    "Yusuf",
    "Zofia",
    "José",
    "Zoë",
)
FAMILY: Final = (
    "Abendroth",
    "Bellavista",
    "Castellane",
    "Dobrowski",
    "Eisenbart",
    "Fairweather",
    "Gandolfini",
    "Hollowell",
    "Iwamoto",
    "Jankovich",
    "Kirchhofer",
    "Lindqvarn",
    "Marchetto",
    "Nordheim",
    "Okonwe",
    "Pellegrand",
    "Quintavalle",
    "Ravindra",
    "Saltmarsh",
    "Tannenwald",
    "Umberhill",
    "Vasquero",
    "Wintergreen",
    "Yamazuki",
    "Zelenkov",
    "de la Vega",
)

T1: Final = (
    "T1_US_FNAL",
    "T1_DE_KIT",
    "T1_ES_PIC",
    "T1_FR_CCIN2P3",
    "T1_IT_CNAF",
    "T1_RU_JINR",
    "T1_UK_RAL",
)
T2: Final = (
    "T2_CH_CERN",
    "T2_CH_CERN_HLT",
    "T2_US_MIT",
    "T2_US_Nebraska",
    "T2_US_Wisconsin",
    "T2_US_Purdue",
    "T2_US_Florida",
    "T2_US_UCSD",
    "T2_US_Caltech",
    "T2_US_Vanderbilt",
    "T2_DE_DESY",
    "T2_DE_RWTH",
    "T2_IT_Bari",
    "T2_IT_Legnaro",
    "T2_IT_Pisa",
    "T2_IT_Rome",
    "T2_FR_GRIF_LLR",
    "T2_FR_IPHC",
    "T2_ES_CIEMAT",
    "T2_UK_London_IC",
    "T2_UK_SGrid_RALPP",
    "T2_BE_IIHE",
    "T2_BE_UCL",
    "T2_CH_CSCS",
    "T2_EE_Estonia",
    "T2_FI_HIP",
    "T2_HU_Budapest",
    "T2_PL_Swierk",
    "T2_PT_NCG_Lisbon",
    "T2_AT_Vienna",
    "T2_BR_SPRACE",
    "T2_KR_KISTI",
    "T2_TW_NCHC",
    "T2_IN_TIFR",
    "T2_UA_KIPT",
)
#: Sites that run jobs and hold no replicas.
T3: Final = ("T3_US_Colorado", "T3_US_UMD", "T3_IT_Trieste", "T3_KR_KNU", "T3_UK_London_QMUL")

_DOMAINS: Final = {
    "US": "fnal.gov",
    "DE": "desy.de",
    "ES": "pic.es",
    "FR": "in2p3.fr",
    "IT": "infn.it",
    "RU": "jinr.ru",
    "UK": "rl.ac.uk",
    "CH": "cern.ch",
}


class Person(msgspec.Struct, frozen=True):
    """One made-up user: full ``name``, ``login``, the certificate's ``dn`` and its
    forms as logs show them.
    """

    name: str
    login: str
    dn: str
    #: As issued, twice with parts of proxies, once with what follows ``&``: one person
    #: all the same.
    dn_forms: tuple[str, str, str, str]


def domain(site: str | None) -> str:
    """Return an internet domain for the hosts of ``site``."""
    parts = (site or "").split("_")
    return _DOMAINS.get(parts[1], "grid.example.org") if len(parts) > 1 else "example.org"


def make_people(count: int, rng: np.random.Generator) -> list[Person]:
    """``count`` people with distinct logins; a name comes twice once all combinations are used up."""
    order = rng.permutation(len(GIVEN) * len(FAMILY))
    serials = rng.integers(400_000, 899_999, count)
    proxies = rng.integers(100_000_000, 2_100_000_000, (count, 2))
    people = []
    for i in range(count):
        first_name, family = divmod(int(order[i % len(order)]), len(FAMILY))
        name = f"{GIVEN[first_name]} {FAMILY[family]}"
        plain = (GIVEN[first_name][0] + FAMILY[family]).lower().replace(" ", "")
        login = plain if i < len(order) else f"{plain}{i // len(order) + 1}"
        dn = _dn(i, name, login, int(serials[i]))
        first, second = (int(value) for value in proxies[i])
        forms = (
            dn,
            f"{dn}/CN={first}/CN={second}",
            f"{dn}/CN=proxy",
            f"{dn}&issuer=/DC=ch/DC=cern/CN=Grid CA",
        )
        people.append(Person(name, login, dn, forms))
    return people


def _dn(i: int, name: str, login: str, serial: int) -> str:
    if i % 5 < 3:
        return f"/DC=ch/DC=cern/OU=Organic Units/OU=Users/CN={login}/CN={serial}/CN={name}"
    if i % 10 == 3:
        return f"/C=DE/O=GermanGrid/OU=DESY/CN={name}"
    if i % 10 == 4:
        return f"/C=IT/O=INFN/OU=Personal Certificate/L=Pisa/CN={name}"
    return f"/DC=org/DC=doegrids/OU=People/CN={name} {serial}"


Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

#: Ids begin where a grown DBS would be, so that nothing relies on small numbers.
DATASET_ID, BLOCK_ID, FILE_ID = 13_000_000, 21_000_000, 1_100_000_000


class Replica(msgspec.Struct, frozen=True):
    """A block at a node: how many of its files and bytes are really there."""

    block: int
    node: str
    files: int
    bytes: int


class World(msgspec.Struct, frozen=True):
    """Columns by dataset (``dataset_*``, ``popularity``), by block (``block_*``) and by
    file (``file_*``, ``lfns``).

    Files of a dataset, and of a block, stand next to each other: ``dataset_start[i] :
    dataset_start[i + 1]``.
    """

    names: list[str]
    popularity: Floats
    dataset_start: Ints
    block_names: list[str]
    block_dataset: Ints
    block_files: Ints
    block_bytes: Ints
    file_dataset: Ints
    file_block: Ints
    file_bytes: Ints
    file_events: Ints
    lfns: list[str]
    replicas: list[Replica]
    #: Disk sites by dataset: where its jobs usually run.
    sites: list[list[str]]
    people: list[Person]


@cache
def _named_datasets() -> list[dict[str, str]]:
    packed = resource("apps/demo/datasets.csv.gz").read_bytes()
    return list(csv.DictReader(gzip.decompress(packed).decode().splitlines()))


def make_world(rng: np.random.Generator, *, datasets: int, files: int, people: int) -> World:
    """Return a CMS of about ``files`` files; as many datasets as asked for, fewer where
    the table or the files run out.
    """
    named = _named_datasets()
    count = max(1, min(datasets, len(named), files // 3))
    chosen = [named[i] for i in np.sort(rng.choice(len(named), count, replace=False))]
    # Mean and sigma of the logarithms, here and below, are those of the public table.
    # What is read more is larger.
    size = 5.15 + 0.5 * (np.log1p(np.nan_to_num(_column(chosen, "accesses"))) - 10.4)
    counts = _filled(rng, _column(chosen, "files"), size, 1.2)
    scaled: Floats = np.maximum(1, np.round(counts * (files / counts.sum())))
    per_dataset = scaled.astype(np.int64)
    start = np.concatenate([[0], np.cumsum(per_dataset)]).astype(np.int64)
    file_dataset = np.repeat(np.arange(count), per_dataset)
    file_bytes, file_events = _file_sizes(rng, chosen, file_dataset)
    file_block, block_dataset = _blocks(rng, per_dataset)
    names = [row["dataset"] for row in chosen]
    block_files = np.bincount(file_block).astype(np.int64)
    # Float sums would round: add the integers.
    block_bytes = np.add.reduceat(file_bytes, np.concatenate([[0], np.cumsum(block_files)[:-1]]))
    uuids = guids(rng, len(block_dataset))
    block_names = [
        f"{names[d]}#{uuid}" for d, uuid in zip(block_dataset.tolist(), uuids, strict=True)
    ]
    # Heavy-tailed chances of being read, the sum 1; a third of the datasets rest.
    seen = _column(chosen, "accesses")
    drawn = rng.lognormal(7.5 + 0.6 * (np.log(per_dataset) - np.log(per_dataset).mean()), 1.6)
    # None may outdo the most popular dataset that was really seen.
    drawn = np.minimum(
        drawn, np.nanmax(seen, initial=500_000.0) * rng.uniform(0.3, 1.0, len(chosen))
    )
    weights = np.where(np.isnan(seen), drawn, seen)
    weights[rng.random(len(chosen)) < 0.35] = 0.0
    if not weights.sum():
        weights[:] = 1.0
    popularity = np.asarray(weights / weights.sum(), dtype=np.float64)
    replicas, sites = _replicas(rng, popularity, block_dataset, block_files, block_bytes)
    return World(
        names=names,
        popularity=popularity,
        dataset_start=start,
        block_names=block_names,
        block_dataset=block_dataset,
        block_files=block_files,
        block_bytes=block_bytes,
        file_dataset=file_dataset,
        file_block=file_block,
        file_bytes=file_bytes,
        file_events=file_events,
        lfns=_lfns(rng, names, file_dataset, start),
        replicas=replicas,
        sites=sites,
        people=make_people(people, rng),
    )


def guids(rng: np.random.Generator, count: int) -> list[str]:
    """``count`` random identifiers of the form 8-4-4-4-12."""
    text = rng.bytes(16 * count).hex()
    parts = [text[i : i + 32] for i in range(0, 32 * count, 32)]
    return [
        f"{hexes[:8]}-{hexes[8:12]}-{hexes[12:16]}-{hexes[16:20]}-{hexes[20:]}" for hexes in parts
    ]


def _column(rows: list[dict[str, str]], name: str) -> Floats:
    return np.array([float(row[name]) if row[name] else np.nan for row in rows])


def _filled(
    rng: np.random.Generator, values: Floats, mean: float | Floats, sigma: float
) -> Floats:
    """``values`` with the gaps drawn from a log-normal distribution."""
    drawn = rng.lognormal(mean, sigma, len(values))
    return np.where(np.isnan(values), drawn, values)


def _file_sizes(
    rng: np.random.Generator, rows: list[dict[str, str]], file_dataset: Ints
) -> tuple[Ints, Ints]:
    size = _filled(rng, _column(rows, "bytes") / _column(rows, "files"), 21.6, 0.65)
    events = _filled(rng, _column(rows, "events") / _column(rows, "files"), 9.9, 0.9)
    jitter = rng.lognormal(0, 0.25, len(file_dataset))
    return (
        np.maximum(1_000, size[file_dataset] * jitter).astype(np.int64),
        np.maximum(0, events[file_dataset] * jitter).astype(np.int64),
    )


def _blocks(rng: np.random.Generator, per_dataset: Ints) -> tuple[Ints, Ints]:
    """Return the block of each file and the dataset of each block."""
    block_of: list[Ints] = []
    dataset_of: list[int] = []
    for dataset, (count, size) in enumerate(
        zip(per_dataset, rng.integers(5, 40, len(per_dataset)), strict=True)
    ):
        block_of.append(np.arange(count) // size + len(dataset_of))
        dataset_of.extend([dataset] * int(-(-count // size)))
    return np.concatenate(block_of), np.array(dataset_of, dtype=np.int64)


def _lfns(
    rng: np.random.Generator, names: list[str], file_dataset: Ints, start: Ints
) -> list[str]:
    folders = []
    for name in names:
        _, primary, processed, tier = name.split("/")
        era, _, version = processed.partition("-")
        area = (
            "hidata"
            if era.startswith("HIRun")
            else "data"
            if "Run20" in era or era.startswith("Comm")
            else "mc"
        )
        folders.append(f"/store/{area}/{era}/{primary}/{tier}/{version or 'v1'}")
    within = np.arange(len(file_dataset)) - start[file_dataset]
    unique = guids(rng, len(file_dataset))
    return [
        f"{folders[dataset]}/{10_000 * (1 + number // 1_000)}/{guid.upper()}.root"
        for dataset, number, guid in zip(
            file_dataset.tolist(), within.tolist(), unique, strict=True
        )
    ]


def _replicas(
    rng: np.random.Generator,
    popularity: Floats,
    block_dataset: Ints,
    block_files: Ints,
    block_bytes: Ints,
) -> tuple[list[Replica], list[list[str]]]:
    nodes = [_nodes(rng, chance > 0) for chance in popularity]
    sites = [
        [n.removesuffix("_Disk") for n in at if not n.endswith(("_MSS", "_Buffer"))]
        for at in nodes
    ]
    replicas = []
    for block, dataset in enumerate(block_dataset.tolist()):
        files, size = int(block_files[block]), int(block_bytes[block])
        for node, luck in zip(
            nodes[dataset], rng.random(len(nodes[dataset])).tolist(), strict=True
        ):
            if luck < 0.03:
                continue
            # A few are still on their way: some of the files, or none yet.
            present = 0 if luck < 0.04 else files * 2 // 3 if luck < 0.08 else files
            replicas.append(
                Replica(
                    block, node, present, size if present == files else size * present // files
                )
            )
    return replicas, sites


def _nodes(rng: np.random.Generator, is_used: bool) -> list[str]:
    """Return where one dataset is meant to be: tape, disk at a T1, some T2s (more of
    them where it is used).
    """
    luck = rng.random(4)
    tape, disk = (T1[i] for i in rng.integers(0, len(T1), 2))
    nodes = []
    if luck[0] < 0.85:
        nodes.append(f"{tape}_MSS")
        if luck[0] < 0.12:
            nodes.append(f"{tape}_Buffer")
    if luck[1] < 0.55 or luck[0] >= 0.85:
        nodes.append(f"{disk}_Disk")
    # CERN holds more than its share, its trigger farm a little.
    if luck[2] < 0.45:
        nodes.append("T2_CH_CERN")
    if luck[3] < 0.04:
        nodes.append("T2_CH_CERN_HLT")
    copies = int(rng.integers(1, 6)) if is_used else int(rng.integers(0, 2))
    nodes.extend(T2[i] for i in np.sort(rng.choice(np.arange(2, len(T2)), copies, replace=False)))
    return nodes
