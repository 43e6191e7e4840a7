"""Dumps with every null, repetition and spelling that a column allows: processes and
Spark make the same rows.
"""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq
import pytest

from cmsspark.apps.replicas import dbs_events, site_tier_usage
from cmsspark.apps.replicas.replica_jobs import DBS_PHEDEX, PHEDEX
from cmsspark.base.schemas import Column, input_table, stored_table
from cmsspark.dumps import dump_frames
from cmsspark.dumps.dump_plan import Transport, read_dumps
from cmsspark.dumps.process_transport import ProcessTransport
from cmsspark.dumps.spark_transport import SparkTransport
from cmsspark.filesystems.storage import LocalFiles
from cmsspark.run import dump_day
from cmsspark.run.dump_day import DumpJob
from cmsspark.run.dump_table import dump_sources
from cmsspark.run.request import JobRequest
from cmsspark.settings.settings import Settings, load_settings
from cmsspark.sources.folders import Layout
from tests.corpus import tables
from tests.corpus.tree import AWG

DAY: Final = date(2015, 1, 15)
JOBS: Final = (DBS_PHEDEX, site_tier_usage.JOB, dbs_events.JOB, PHEDEX)
DATASETS: Final = [
    "/a/x-v1/RAW",
    "/a/y-v1/AOD",
    "/b/ü-v1/AOD",
    "/only-primary",
    "no slash",
    '/"q",\\/n\nl/T',
    "",
    "/a",
]
_LFNS: Final = [*tables.NASTY_LFNS, "/store/a", "/store/b", "/store/ü", "\\0", "0", ""]
_NODES: Final = [
    *(
        "T1_US_FNAL_Disk",
        "T1_US_FNAL_MSS",
        "T1_US_FNAL_Buffer",
        "T1_US_FNAL_Export",
        "T1_US_FNAL",
        "T2_X",
        "T2_X_Disk",
    ),
    *("T3_é_Disk_Disk", "_MSS", "X", ""),
]
_TEXTS: Final = {
    "dataset": DATASETS,
    "dataset_name": DATASETS,
    "logical_file_name": _LFNS,
    "node_name": _NODES,
    "block_name": [f"{name}#{number}" for name in DATASETS[:5] for number in range(3)],
    "release_version": ["CMSSW_9", "CMSSW_10", "", "ü", "a,b"],
}
_NUMBERS: Final = {
    "file_id": ["1", "2", "3", "-7", "1100000000", "4.0"],
    "is_file_valid": ["0", "1", "1"],
    "event_count": ["0", "5", "17", "-3", "9007199254740993", "1e3"],
    "file_size": ["0", "1000", "1000.0", "2.71828E9", "123456789012345677", "9007199254740993"],
    "creation_date": ["1420070400", "1420070400.0005", "1.7E9", "0.0005", "-1.5", "1e300", "9e15"],
    "replica_time_create": ["1420070400", "1420070400.25", "1e300", "0.4995"],
    "block_files": ["1", "2"],
    "block_bytes": ["10", "20"],
    "br_node_files": ["0", "1", "2", "3", "-1"],
    "br_node_bytes": ["0", "10", "20", "-5"],
    "processing_version": ["1", "2.9", "-2.9", "1e30"],
}


def field(column: Column, rng: random.Random) -> str:
    """Any value that the column allows."""
    if rng.random() < 0.12:
        return "null"
    if column.type == "string":
        return rng.choice(_TEXTS.get(column.name, ["some text", "with,comma", 'and "quote"', ""]))
    if column.name.startswith("is_") and column.name not in _NUMBERS:
        return rng.choice(["0", "1"])
    return rng.choice(_NUMBERS.get(column.name, ["1", "2", "3", "4", "5"]))


def write_hostile(folder: Path, table: str, rows: int, rng: random.Random) -> None:
    """A table in five parts: each spelled in another way, one of them packed, one empty."""
    folder.mkdir(parents=True)
    columns = input_table(table).columns
    spellings: list[Callable[[list[list[str]]], bytes]] = [
        tables.plain_csv,
        tables.quoted_csv,
        tables.escaped_csv,
    ]
    for part in range(4):
        made = [[field(column, rng) for column in columns] for _ in range(rows)]
        if part == 3:
            # Plain throughout: what compiled code reads.
            made = [["x" if set(text) & set(',"\\\n') else text for text in row] for row in made]
        content = spellings[part % 3](made)
        name = f"part-{part}" + (".gz" if part == 1 else "")
        (folder / name).write_bytes(gzip.compress(content, mtime=0) if part == 1 else content)
    (folder / "part-4").write_bytes(b"")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("hostile")
    rng = random.Random(20260115)
    for table in sorted(dbs_events.DBS.keys() | DBS_PHEDEX.dbs.keys()):
        rows = 120 if table == "FILES" else 12
        write_hostile(
            place / AWG / "dbs/PROD_GLOBAL/2015-01-16" / table, f"dbs/{table}", rows, rng
        )
    snapshots = place / AWG / "phedex/block-replicas-snapshots/csv"
    write_hostile(snapshots / "time=2015-01-16_03h07m09s", "phedex/block_replicas", 150, rng)
    return place


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    written = tmp_path / "cmsspark.yaml"
    written.write_text(f"state_dir: {tmp_path}/state\ncache_dir: {tmp_path}/cache\n")
    return load_settings(str(written))


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_processes_and_spark_make_the_same_rows(
    spark: Any, root: Path, job: DumpJob, settings: Settings, tmp_path: Path
) -> None:
    found = {}
    for engine in ("processes", "spark"):
        out = str(tmp_path / engine)
        done = dump_day.run(
            job, JobRequest(job.name, DAY, out, settings, str(root), engine=engine), lambda _: None
        )
        found[engine] = pq.read_table(Path(done.path) / job.name)
    types = {
        engine: dict(zip(table.schema.names, table.schema.types, strict=True))
        for engine, table in found.items()
    }
    assert types["processes"] == types["spark"]
    rows = {engine: sorted(map(repr, table.to_pylist())) for engine, table in found.items()}
    assert rows["processes"] == rows["spark"]
    assert len(rows["spark"]) > 3


def built(job: DumpJob, root: Path, transport: Transport, keys: int) -> list[str]:
    """Return the rows that a job makes of dumps which a transport reads, in a certain order."""
    dumps = job.choose(LocalFiles(), Layout.load({}, str(root)), DAY)
    frames = read_dumps(transport, dump_sources(job, transport, dumps), keys=keys).frames
    table = dump_frames.as_table(job.build(frames, DAY), job.name, DAY)
    rows = dump_frames.to_arrow(table, stored_table(job.name).arrow()).to_pylist()
    return sorted(map(repr, rows))


@pytest.fixture(scope="module")
def by_processes(root: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The rows of each job by processes, which have another number of keys than Spark."""
    transport = ProcessTransport(tmp_path_factory.mktemp("spill"))
    return {job.name: built(job, root, transport, 4) for job in JOBS}


#: Each job with both feeds, with one key and with many; --all adds the other pairs of them.
_ONE_AND_MANY: Final = ([("direct", 1), ("spark", 16)], [("spark", 1), ("direct", 64)])
READS: Final = [
    pytest.param(
        job,
        feed,
        keys,
        marks=[pytest.mark.long] * (number % 2 != half),
        id=f"{job.name}-{feed}-{keys}",
    )
    for number, job in enumerate(JOBS)
    for half, pairs in enumerate(_ONE_AND_MANY)
    for feed, keys in pairs
]


@pytest.mark.parametrize(("job", "feed", "keys"), READS)
def test_rows_do_not_depend_on_who_reads_and_how_many_keys_divide_them(
    spark: Any, root: Path, by_processes: dict[str, list[str]], job: DumpJob, feed: str, keys: int
) -> None:
    rows = built(job, root, SparkTransport(spark, feed), keys)
    assert rows == by_processes[job.name] and len(rows) > 3
