"""An ordinary day: seeded, small, every source and every generation of its format, in
about real proportions.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.corpus.avro_files import CMSSW_FIELDS, CRAB_FIELDS, container
from tests.corpus.json_lines import ABSENT, G1, g1, line
from tests.corpus.tables import plain_csv
from tests.corpus.tree import Tree, write_table

SITES = (
    "T1_US_FNAL",
    "T1_DE_KIT",
    "T1_IT_CNAF",
    "T2_US_MIT",
    "T2_CH_CERN",
    "T2_CH_CERN_HLT",
    "T2_DE_DESY",
    "T3_US_UMD",
)
TIERS = ("MINIAOD", "MINIAODSIM", "AOD", "AODSIM", "NANOAODSIM", "RAW")
AAA_APPS = (
    "1:u:crab:JetHT_0",
    "2_https://glidein.cern.ch/2/9:x:crab:y",
    "wmagent_job_7",
    "cmsRun",
    "xrdcp",
    "",
    None,
    "root.exe",
)
EOS_APPS = (
    *("fuse", "eoscp", "xrootd", "", "crab_x", "fuse::lxplus"),
    *("tpc", "eos/converter?x", "-", "deletion", "rm"),
)
TOOLS = ("crab3", "crab3", "wmagent", "", None, "unknown")
FIRST_NAMES = ("Ada", "Bruno", "Chiara", "Dmitri", "Élodie", "Fumiko", "Göran", "Hana")
LAST_NAMES = ("Rossi", "Müller", "O'Neill", "Garcia Lopez", "Nowak", "Sato")


@dataclass
class World:
    """Datasets with their blocks, files and replicas, and people."""

    rng: random.Random
    datasets: list[list[str]] = field(default_factory=list)
    blocks: list[list[str]] = field(default_factory=list)
    files: list[list[str]] = field(default_factory=list)
    replicas: list[list[str]] = field(default_factory=list)
    lfns: list[str] = field(default_factory=list)
    people: list[str] = field(default_factory=list)

    def lfn(self) -> str:
        """A name from the catalogue, the first ones far more often than the last;
        sometimes one of no dataset.
        """
        if self.rng.random() < 0.12:
            return self.rng.choice(
                (
                    "/store/user/bob/x.root",
                    "/store/group/y.root",
                    "/store/unmerged/z.root",
                    "/store/temp/t.root",
                    "/store/data/gone.root",
                    "/store/mc/gone.root",
                )
            )
        return self.lfns[int(len(self.lfns) * self.rng.random() ** 2)]

    def written_lfn(self) -> str:
        """A name as logs write it."""
        name = self.lfn()
        way = self.rng.random()
        if way < 0.7:
            return name
        return (
            self.rng.choice(
                ("/eos/cms", "file:", "root://xrootd.cern.ch:1094/", "root://host//", "/")
            )
            + name
        )

    def dn(self) -> str | None:
        """A certificate's subject, also of a proxy, a robot, or none."""
        person = self.rng.choice(self.people)
        login, number = person.split()[0].lower(), self.rng.choice(("718748", "650001"))
        base = f"/DC=ch/DC=cern/OU=Organic Units/OU=Users/CN={login}/CN={number}/CN={person}"
        return self.rng.choice(
            (
                base,
                base,
                base,
                f"{base}/CN=proxy",
                f"{base}/CN=12345/CN=67890",
                f"{base}&x=1",
                f"/DC=org/DC=doegrids/OU=People/CN={person}",
                login,
                "",
                None,
            )
        )


def world(seed: int, datasets: int = 50, files: int = 300) -> World:
    """A small CMS with identifiers from 10,000 on."""
    made = World(random.Random(seed))
    rng = made.rng
    made.people = [f"{first} {last}" for first in FIRST_NAMES for last in LAST_NAMES]
    audit = ["1540000000", '/DC=ch/CN=Ops, "Data"', "1540000001", "null"]
    for number in range(datasets):
        tier = rng.choice(TIERS)
        name = f"/Primary{number % 20}/Run2018{rng.choice('ABCD')}-v{number}/{tier}"
        made.datasets.append(
            [
                str(10_000 + number),
                name,
                "1",
                "1",
                "1",
                "1",
                "1",
                "1",
                "1",
                "null",
                "null",
                "null",
                *audit,
            ]
        )
        for block in range(rng.randint(1, 3)):
            _add_block(made, number, name, 10_000 + number * 10 + block, audit)
    for number in range(files):
        block = rng.choice(made.blocks)
        lfn = f"/store/data/{uuid.UUID(int=rng.getrandbits(128))}/{number}.root"
        made.lfns.append(lfn)
        made.files.append(
            [
                str(10_000 + number),
                lfn,
                "1",
                block[2],
                block[0],
                "1",
                "x",
                "100",
                "2e9",
                "null",
                "null",
                "null",
                "null",
                *audit,
            ]
        )
    return made


def _add_block(made: World, number: int, dataset: str, block: int, audit: list[str]) -> None:
    rng = made.rng
    name = f"{dataset}#{uuid.UUID(int=rng.getrandbits(128))}"
    made.blocks.append(
        [str(block), name, str(10_000 + number), "0", "T1_US_FNAL_Disk", "6e9", "3", *audit]
    )
    for site in rng.sample(SITES, rng.randint(0, 4)):
        ending = rng.choice(("_Disk", "_MSS", "_Buffer")) if site.startswith("T1") else ""
        present = rng.choice(("3", "3", "3", "1", "0"))
        made.replicas.append(
            [
                "1560600000.5",
                dataset,
                str(number),
                "n",
                "1",
                "1",
                name,
                str(block),
                "3",
                "6000",
                "n",
                "1",
                "1",
                site + ending,
                "1",
                "y",
                "3",
                "6000",
                "3",
                "6000",
                present,
                "6000",
                "0",
                "0",
                "n",
                "null",
                "1",
                "1",
            ]
        )


def write_tables(made: World, tree: Tree) -> None:
    """The world's dumps, beside what is there."""
    for name, rows in (
        ("FILES", made.files),
        ("BLOCKS", made.blocks),
        ("DATASETS", made.datasets),
    ):
        write_table(
            tree.dbs() / name,
            {"part-m-10000.gz": plain_csv(rows[::2]), "part-m-10001": plain_csv(rows[1::2])},
        )
    write_table(tree.phedex(), {"part-10000": plain_csv(made.replicas)})


def _metadata(made: World, start: int) -> dict[str, object]:
    at = start + made.rng.randrange(86_400)
    if made.rng.random() < 0.02:
        at += made.rng.choice((-86_400, 86_400))
    stamp: object = made.rng.choice(
        (at * 1000, at * 1000, at * 1000 + 999, at, at * 1_000_000, float(at * 1000))
    )
    return {"timestamp": stamp, "hostname": "monit-1", "topic": "xrootd_enr"}


def _read(made: World) -> dict[str, object]:
    so_far, at_close = (
        made.rng.randrange(3_000_000),
        made.rng.choice((0, None, made.rng.randrange(3_000_000))),
    )
    wrote = made.rng.choice((0, 0, 0, 0, None, 500))
    if made.rng.random() < 0.1:
        so_far, at_close = 0, 0
    return {
        "read_bytes": so_far,
        "read_bytes_at_close": at_close,
        "write_bytes": wrote,
        "write_bytes_at_close": wrote,
    }


def aaa_lines(made: World, records: int, start: int) -> Iterable[bytes]:
    """AAA, enriched; raw reads the same records without their sites."""
    for number in range(records):
        yield line(
            {
                "app_info": made.rng.choice(AAA_APPS),
                "client_domain": "cern.ch",
                "file_lfn": made.written_lfn(),
                "file_size": 2_000_000_000,
                "read_average": 3.25,
                "is_transfer": False,
                **_read(made),
                "unique_id": str(number),
                "user_dn": made.dn(),
                "user_fqan": None,
                "src_experiment_site": made.rng.choice((*SITES, None, "", "unknown")),
                "dst_experiment_site": made.rng.choice((*SITES, None)),
            },
            _metadata(made, start),
        )


def cmssw_lines(made: World, records: int, start: int) -> Iterable[bytes]:
    """CMSSW popularity as JSON."""
    for number in range(records):
        yield line(
            {
                "file_lfn": made.written_lfn(),
                "site_name": made.rng.choice((*SITES, None, "unknown")),
                "fallback": "-",
                "user_dn": made.dn(),
                "app_info": made.rng.choice(AAA_APPS),
                "unique_id": str(number),
                **made.rng.choice(READ_TYPES),
                **_read(made),
            },
            _metadata(made, start),
        )


#: What reports say of the type of their file; older ones say nothing.
READ_TYPES: tuple[dict[str, object], ...] = (
    {},
    {"read_type": "primary"},
    {"read_type": "secondary"},
    {"read_type": "embedded"},
)


def eos_lines(made: World, records: int, start: int) -> Iterable[bytes]:
    """EOS in its three generations, mixed."""
    for _ in range(records):
        rb, wb = (
            made.rng.choice((0, made.rng.randrange(2_000_000_000))),
            made.rng.choice((0, 0, 0, 700)),
        )
        path, info, app = made.written_lfn(), made.dn(), made.rng.choice(EOS_APPS)
        vectors = made.rng.choice((0, 0, made.rng.randrange(2_000_000_000)))
        metadata = _metadata(made, start)
        way = made.rng.choice(("G1", "G1 of 2017", "G2 first", "G2 second", "G3", "G3"))
        texts = {
            "path": path,
            "rb": str(rb),
            "wb": str(wb),
            "sec.info": info or "",
            "sec.app": app,
            **({} if way == "G1 of 2017" else {"rvb_sum": str(vectors)}),
        }
        if way.startswith("G1"):
            yield g1(texts, metadata=metadata)
        elif way == "G2 first":
            first = {f"eos.{key}": value for key, value in {**G1, **texts}.items()}
            yield line({**first, "raw": "log=x"}, metadata)
        elif way == "G2 second":
            second = {
                "eos_path": path,
                "rb": str(rb),
                "wb": str(wb),
                "sec_info": info,
                "sec_app": app or None,
                "rvb_sum": str(vectors),
                "raw": "x",
            }
            yield line({key: value for key, value in second.items() if value}, metadata)
        else:
            data = {
                "path": path,
                "rb": rb,
                "wb": wb,
                "rvb_sum": vectors,
                "rt": 1.5,
                "sec.info": info or ABSENT,
                "sec.app": app,
            }
            yield line(
                {key: value for key, value in data.items() if value is not ABSENT}, metadata
            )


def crab_records(made: World, records: int) -> list[dict[str, object]]:
    """CRAB's jobs: some rows are of the same jobs and files, some name no job."""
    rng = made.rng
    jobs, files = [f"job {number}" for number in range(12)], [made.lfn() for _ in range(4)]
    return [
        {
            "JobId": rng.choice((str(number), *jobs, None, "")),
            "FileName": rng.choice(("/", "")) + rng.choice((made.lfn(), *files)),
            "UserId": "1",
            "SiteName": rng.choice((*SITES, "unknown", None)),
            "GridName": rng.choice((*made.people, "", None)),
            "SubmissionTool": rng.choice(TOOLS),
            "WrapWC": rng.choice((str(rng.randrange(90_000)), "", None)),
            "WrapCPU": rng.choice(
                (f"{rng.random() * 9e4:.3f}", f"{rng.random() * 9e4:.5f}", "17", "", None)
            ),
            "FinishedTimeStamp": 1_560_000_000_000,
        }
        for number in range(records)
    ]


def cmssw_records(made: World, records: int) -> list[dict[str, object]]:
    """The legacy CMSSW popularity."""
    rng = made.rng
    return [
        {
            "FILE_LFN": made.written_lfn(),
            "FILE_SIZE": "5",
            "SITE_NAME": rng.choice((*SITES, None)),
            "USER_DN": made.dn(),
            "APP_INFO": rng.choice(AAA_APPS),
            "READ_BYTES": str(rng.randrange(10**9)),
            "READ_BYTES_AT_CLOSE": rng.choice(("0", None, "77", "-", "")),
        }
        for _ in range(records)
    ]


def write_day(
    tree: Tree, seed: int, records: int = 1000, *, legacy: bool = False, write_dumps: bool = True
) -> World:
    """A day of ``records`` in each stream; ``legacy``: AAA raw and the Avro of CMSSW
    instead of today's forms.
    """
    made = world(seed)
    start = (tree.day.toordinal() - 719_163) * 86_400
    if write_dumps:
        write_tables(made, tree)
    tree.write_lines("aaa raw" if legacy else "aaa enr", aaa_lines(made, records, start))
    tree.write_lines(tree.eos(), eos_lines(made, records, start), parts=4)
    if legacy:
        tree.write(
            "cmssw avro",
            "part-m-00000.avro",
            container(CMSSW_FIELDS, cmssw_records(made, records)),
        )
    else:
        tree.write_lines("cmssw json", cmssw_lines(made, records, start), parts=2)
    jobs, older = (
        crab_records(made, records),
        {key: kind for key, kind in CRAB_FIELDS.items() if key != "WrapCPU"},
    )
    tree.write("crab avro", "part-m-00000.avro", container(CRAB_FIELDS, jobs[: records // 2]))
    tree.write(
        "crab avro",
        "part-m-00001.avro",
        container(CRAB_FIELDS, jobs[records // 2 : -9], codec="deflate"),
    )
    tree.write("crab avro", "part-m-00002.avro", container(older, jobs[-9:], codec="null"))
    return made
