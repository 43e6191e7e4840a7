"""Part files, byte for byte the same for the same content: plain or gzip (no time
inside), and Avro.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal

from isal import isal_zlib

from cmsspark.apps.demo.world import BLOCK_ID, DATASET_ID, FILE_ID, World
from cmsspark.base.dates import start_ms

Compression = Literal["none", "all", "mixed"]


def gzip_bytes(content: bytes) -> bytes:
    """``content`` as one gzip member without name and time."""
    packer = isal_zlib.compressobj(1, wbits=31)
    return bytes(packer.compress(content) + packer.flush())


def write_part(
    folder: Path, number: int, content: bytes, compression: Compression, suffix: str = ""
) -> Path:
    """Return one part; of ``mixed`` ones each second is packed. Names are of the forms
    that production has.
    """
    packed = compression == "all" or (compression == "mixed" and number % 2 == 1)
    unique = hashlib.sha256(f"{folder.name}/{number}".encode()).hexdigest()
    name = f"part-{number:05d}"
    if packed:
        name += f"-{unique[:8]}-{unique[8:12]}-{unique[12:16]}-{unique[16:20]}-{unique[20:32]}{suffix}.gz"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_bytes(gzip_bytes(content) if packed else content)
    return path


def write_lines(
    folder: Path,
    lines: Sequence[str],
    *,
    per_part: int,
    compression: Compression,
    suffix: str = ".json",
    first_part: int = 0,
) -> int:
    """``lines`` as parts of ``per_part`` lines each, and a ``_SUCCESS`` that is no
    data. Returns the bytes on disk.
    """
    size = 0
    for number, first in enumerate(range(0, max(len(lines), 1), per_part), first_part):
        chunk = lines[first : first + per_part]
        content = ("\n".join(chunk) + "\n").encode() if chunk else b""
        size += write_part(folder, number, content, compression, suffix).stat().st_size
    (folder / "_SUCCESS").write_bytes(b"")
    return size


def write_avro(
    folder: Path,
    schema: Mapping[str, Any],
    records: Sequence[Mapping[str, Any]],
    *,
    per_part: int,
    codec: str,
    first_part: int = 0,
) -> int:
    """``records`` as Avro parts. The sync marker is a digest of the place, not random.
    Returns the bytes on disk.
    """
    import fastavro

    folder.mkdir(parents=True, exist_ok=True)
    parsed = fastavro.parse_schema(dict(schema))
    size = 0
    for number, first in enumerate(range(0, max(len(records), 1), per_part), first_part):
        path = folder / f"part-m-{number:05d}.avro"
        marker = hashlib.md5(f"{folder.name}/{number}".encode(), usedforsecurity=False).digest()
        with path.open("wb") as stream:
            fastavro.writer(
                stream, parsed, records[first : first + per_part], codec=codec, sync_marker=marker
            )
        size += path.stat().st_size
    return size


def csv_line(values: Iterable[object]) -> str:
    """Return one line as sqoop writes it: ``null``, backslash escapes, quotes around a
    text that needs them.
    """
    return ",".join([_csv_value(value) for value in values])


def _csv_value(value: object) -> str:
    if value is None:
        return "null"
    if not isinstance(value, str):
        return str(value)
    if "," in value or '"' in value or "\\" in value or "\n" in value:
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    return value


# The nightly dumps of the world: DBS tables and the PhEDEx block replica snapshot, as
# sqoop leaves them.

DbsLayout = Literal["dated", "current"]

ACCESS_TYPES = ("VALID", "PRODUCTION", "INVALID", "DEPRECATED", "DELETED")
GROUPS = (
    "NoGroup",
    "Higgs",
    "SUSY",
    "Top",
    "B2G",
    "Exotica",
    "SMP",
    "Heavy-Ions",
    "BPH",
    "Tracker-POG",
)
RELEASES = (
    "CMSSW_4_2_8",
    "CMSSW_5_3_32",
    "CMSSW_7_4_14",
    "CMSSW_7_6_3_patch2",
    "CMSSW_8_0_21",
    "CMSSW_10_6_25",
)
_MAKER = "/DC=ch/DC=cern/OU=Organic Units/OU=Users/CN=prodmgr/CN=700001/CN=Production Manager"

#: FILES rows whose dataset is in no DATASETS row, one in so many files; and names that
#: stand twice.
ORPHAN_EVERY, TWICE_EVERY = 5_000, 8_000


def orphan_lfns(world: World) -> list[str]:
    """Names that DBS FILES has, of a dataset that DBS DATASETS has not: they match nothing."""
    folder = "/store/mc/Lost/Orphan/GEN-SIM/v1/10000"
    return [
        f"{folder}/0000{i:04d}-0000-0000-0000-000000000000.root" for i in range(_orphans(world))
    ]


def _orphans(world: World) -> int:
    return max(1, len(world.lfns) // ORPHAN_EVERY)


def dbs_folder(root: Path, day: date, layout: DbsLayout) -> Path:
    """Return where the DBS dump of ``day`` lies under ``root``."""
    base = root / "project/awg/cms"
    return (
        base / "dbs/PROD_GLOBAL" / day.isoformat()
        if layout == "dated"
        else base / "CMS_DBS3_PROD_GLOBAL/current"
    )


def write_dbs_table(
    world: World, root: Path, day: date, *, layout: DbsLayout, compression: Compression, name: str
) -> None:
    """Write one of ``TABLES`` of a DBS dump of ``day`` under ``root``, a part in memory at a time."""
    rows = iter(_tables(world, start_ms(day) // 1000)[name])
    # The dated dumps are packed as a rule; a mixed one keeps a plain part.
    packed: Compression = "all" if compression == "mixed" else compression
    folder = dbs_folder(root, day, layout) / name
    if name in _LENGTHS:
        count = _LENGTHS[name](world)
    else:
        all_rows = list(rows)
        rows, count = iter(all_rows), len(all_rows)
    parts = _parts(count)
    for number in range(parts):
        size = (number + 1) * count // parts - number * count // parts
        lines = [csv_line(row) for row in islice(rows, size)]
        content = ("\n".join(lines) + "\n").encode()
        write_part(folder, number, content, packed if number == 0 else compression)


def _parts(lines: int) -> int:
    return 1 if lines <= 2_000 else max(4, -(-lines // 250_000))


def _tables(world: World, now: int) -> dict[str, Iterable[tuple[object, ...]]]:
    tiers = sorted({name.split("/")[3] for name in world.names})
    eras = sorted({_era(name) for name in world.names})
    return {
        "DATASETS": _datasets(world, now, tiers, eras),
        "BLOCKS": _blocks(world, now),
        "FILES": _files(world, now),
        "DATA_TIERS": [(i + 1, tier, now - 400_000_000, _MAKER) for i, tier in enumerate(tiers)],
        "DATASET_ACCESS_TYPES": [(i + 1, name) for i, name in enumerate(ACCESS_TYPES)],
        "PHYSICS_GROUPS": [(i + 1, name) for i, name in enumerate(GROUPS)],
        "ACQUISITION_ERAS": [
            (
                i + 1,
                era,
                now - 90_000_000,
                now,
                now - 90_000_000,
                _MAKER,
                f'data taking "{era}", or simulation for it',
            )
            for i, era in enumerate(eras)
        ],
        "PROCESSING_ERAS": [(i, i, now - 90_000_000, _MAKER, None) for i in range(1, 7)],
        "RELEASE_VERSIONS": [(i + 1, release) for i, release in enumerate(RELEASES)],
        "OUTPUT_MODULE_CONFIGS": [
            (
                i + 1,
                10 + i,
                i + 1,
                100 + i,
                "output",
                f"{70 + i}X_mcRun2_v{i}",
                "NOTSET",
                now - 80_000_000,
                _MAKER,
            )
            for i in range(len(RELEASES))
        ],
        "DATASET_OUTPUT_MOD_CONFIGS": _module_configs(world),
        "FILE_LUMIS": (
            (251_000 + i % 900, 1 + i % 1_500, FILE_ID + i) for i in range(len(world.lfns))
        ),
    }


#: The tables of the dump, those of most rows first.
TABLES: Final = (
    "FILES",
    "FILE_LUMIS",
    "BLOCKS",
    "DATASETS",
    "DATA_TIERS",
    "DATASET_ACCESS_TYPES",
    "PHYSICS_GROUPS",
    "ACQUISITION_ERAS",
    "PROCESSING_ERAS",
    "RELEASE_VERSIONS",
    "OUTPUT_MODULE_CONFIGS",
    "DATASET_OUTPUT_MOD_CONFIGS",
)
#: Rows of the tables that are too long to be held.
_LENGTHS: Final[dict[str, Callable[[World], int]]] = {
    "FILES": lambda world: len(world.lfns) + len(world.lfns) // TWICE_EVERY + _orphans(world),
    "FILE_LUMIS": lambda world: len(world.lfns),
    "BLOCKS": lambda world: len(world.block_names),
}


def _era(name: str) -> str:
    return name.split("/")[2].partition("-")[0]


def _datasets(
    world: World, now: int, tiers: list[str], eras: list[str]
) -> Iterable[tuple[object, ...]]:
    primaries = {
        name: i + 1 for i, name in enumerate(sorted({name.split("/")[1] for name in world.names}))
    }
    for i, name in enumerate(world.names):
        # Most are VALID; every access type is there.
        access = 1 if i % 12 else 1 + i // 12 % len(ACCESS_TYPES)
        valid = 0 if access in (3, 5) else 1
        added = now - 50_000_000 - 40_000 * (i % 900)
        _, primary, _, tier = name.split("/")
        ids = (
            primaries[primary],
            5_000_000 + i,
            tiers.index(tier) + 1,
            access,
            eras.index(_era(name)) + 1,
            1 + i % 6,
        )
        cross_section = None if i % 3 else 831.76
        prep_id = f"HIG-{_era(name)}-{i:05d}" if tier.endswith("SIM") else None
        audit = (added, _MAKER, added + 9_000, _MAKER)
        yield (
            DATASET_ID + i,
            name,
            valid,
            *ids,
            1 + i % len(GROUPS),
            cross_section,
            prep_id,
            *audit,
        )


def _blocks(world: World, now: int) -> Iterable[tuple[object, ...]]:
    columns = (world.block_dataset, world.block_bytes, world.block_files)
    for i, (dataset, size, files) in enumerate(
        zip(*(column.tolist() for column in columns), strict=True)
    ):
        added = now - 50_000_000 + 600 * (i % 30_000)
        origin = "cmseos.fnal.gov" if i % 4 else "UNKNOWN"
        audit = (added, _MAKER, added, _MAKER)
        yield (
            BLOCK_ID + i,
            world.block_names[i],
            DATASET_ID + dataset,
            0,
            origin,
            size,
            files,
            *audit,
        )


def _files(world: World, now: int) -> Iterable[tuple[object, ...]]:
    columns = (world.file_dataset, world.file_block, world.file_events, world.file_bytes)
    for i, (dataset, block, events, size) in enumerate(
        zip(*(column.tolist() for column in columns), strict=True)
    ):
        added = now - 50_000_000 + 60 * (i % 300_000)
        ids = (DATASET_ID + dataset, BLOCK_ID + block, 1)
        sums = (f"{i * 2654435761 % 2**32:08x}", "NOTSET", None)
        yield (
            FILE_ID + i,
            world.lfns[i],
            int(i % 200 != 7),
            *ids,
            str(i * 7919),
            events,
            size,
            None,
            *sums,
            added,
            _MAKER,
            added,
            _MAKER,
        )
        if i % TWICE_EVERY == TWICE_EVERY - 1:
            # The same name once more, under an older id.
            yield (
                FILE_ID - i,
                world.lfns[i],
                0,
                *ids,
                "0",
                events,
                size,
                None,
                "NOTSET",
                "NOTSET",
                None,
                added,
                _MAKER,
                None,
                None,
            )
    for i, lfn in enumerate(orphan_lfns(world)):
        yield (
            FILE_ID + len(world.lfns) + i,
            lfn,
            1,
            DATASET_ID - 1 - i,
            BLOCK_ID - 1,
            1,
            "0",
            0,
            1_000_000,
            None,
            "NOTSET",
            "NOTSET",
            None,
            now,
            _MAKER,
            None,
            None,
        )


def _module_configs(world: World) -> Iterable[tuple[object, ...]]:
    row = 0
    for i in range(len(world.names)):
        # Each fifth dataset was made with two releases.
        releases = [i % len(RELEASES)] + ([(i + 1) % len(RELEASES)] if i % 5 == 0 else [])
        for release in releases:
            row += 1
            yield (row, DATASET_ID + i, release + 1)


def write_phedex(world: World, root: Path, day: date, *, compression: Compression) -> Path:
    """Return the block replica snapshot taken early on ``day`` under ``root``; returns its folder."""
    time = datetime(day.year, day.month, day.day, 3, 7, 9, tzinfo=UTC)
    name = f"time={day.isoformat()}_{time:%Hh%Mm%Ss}"
    folder = root / "project/awg/cms/phedex/block-replicas-snapshots/csv" / name
    lines = [csv_line(row) for row in _replica_rows(world, time)]
    parts = _parts(len(lines))
    for number in range(parts):
        chunk = lines[number * len(lines) // parts : (number + 1) * len(lines) // parts]
        write_part(folder, number, ("\n".join(chunk) + "\n").encode(), compression, suffix=".csv")
    return folder


def _replica_rows(world: World, time: datetime) -> Iterable[tuple[object, ...]]:
    now = int(time.timestamp())
    nodes = {
        node: 1 + i for i, node in enumerate(sorted({replica.node for replica in world.replicas}))
    }
    for i, replica in enumerate(world.replicas):
        dataset = int(world.block_dataset[replica.block])
        files, size = int(world.block_files[replica.block]), int(world.block_bytes[replica.block])
        added = now - 40_000_000 + 60 * (i % 200_000)
        custodial = "y" if replica.node.endswith("_MSS") else "n"
        moving = 0 if replica.files == files else 1
        yield (
            now,
            world.names[dataset],
            90_000 + dataset,
            "n",
            added - 9_000,
            added,
            world.block_names[replica.block],
            700_000 + replica.block,
            files,
            size,
            "n",
            added - 9_000,
            added,
            replica.node,
            nodes[replica.node],
            "y",
            files,
            size,
            files,
            size,
            replica.files,
            replica.bytes,
            moving,
            moving * (size - replica.bytes) // 10,
            custodial,
            None if i % 11 == 0 else 1 + i % 40,
            added,
            added + 3_600,
        )
    yield from _forgotten(now)


def _forgotten(now: int) -> Iterable[tuple[object, ...]]:
    """Replicas of datasets that DBS no longer knows."""
    for i in range(3):
        name = f"/OldCosmics/Commissioning08-v{i + 1}/RAW"
        added = now - 300_000_000
        size = 7_000_000_000 * (i + 1)
        block = (f"{name}#0000000{i}-0000-0000-0000-000000000000", 600_000 + i, 9, size)
        yield (
            now,
            name,
            80_000 + i,
            "n",
            added,
            added,
            *block,
            "n",
            added,
            added,
            "T1_IT_CNAF_MSS",
            1,
            "y",
            9,
            size,
            9,
            size,
            9,
            size,
            0,
            0,
            "y",
            None,
            added,
            added,
        )
