"""Dumps on HDFS: Python's workers read the files and ranges of large ones themselves,
and Spark's JVM none of them.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import fastavro
import pytest

from cmsspark.dumps.rucio_scan import RANGE_BYTES, TABLES
from tests.cluster.conftest import READABLE, World, application, assert_same, cells, current

pytestmark = pytest.mark.cluster

JOB = "rucio_daily"
#: Below it is the dump on HDFS.
ROOT = "/large"


@pytest.fixture(scope="module")
def dump(world: World) -> Iterator[Path]:
    """The root of a copy of the world's dump whose REPLICAS are one file of two ranges
    and ten blocks of HDFS.
    """
    (original,) = (world.local / "project/awg/cms/rucio").iterdir()
    root = world.folder / "large"
    copy = root / original.relative_to(world.local)
    shutil.copytree(original, copy, ignore=shutil.ignore_patterns("replicas"))
    (copy / "replicas").mkdir()
    rows: list[dict[str, Any]] = []
    for part in sorted((original / "replicas").glob("*.avro")):
        with part.open("rb") as stream:
            reader = fastavro.reader(stream)
            schema = reader.writer_schema
            rows += cast("list[dict[str, Any]]", list(reader))
    # No job reads PATH: the file gets large, and its rows stay few.
    path = "/" * int(1.1 * RANGE_BYTES / len(rows))
    with (copy / "replicas" / "part-m-00000.avro").open("wb") as target:
        fastavro.writer(target, schema, ({**row, "PATH": path} for row in rows), codec="null")
    world.cluster.hdfs.put_tree(root, ROOT)
    yield root
    shutil.rmtree(root)


def test_executors_read_ranges_of_a_large_file_and_count_the_cells_of_here(
    world: World, dump: Path
) -> None:
    here, fout = world.folder / "local-large", "/cms/large"
    words = (JOB, "--date", "20260115")
    by_processes = world.run(
        *(*words, "--root", str(dump), "--fout", str(here), "--local"),
        CMSSPARK_SETTINGS=str(world.folder / "empty.yaml"),
    )
    assert by_processes.code == 0
    wanted_run, wanted = current(here, JOB)
    read = [name for name in TABLES if name in wanted["rucio"]["tables"]]
    sizes = [file.stat().st_size for name in read for file in dump.rglob(f"{name.lower()}/*.avro")]
    ranges = sum(-(-size // RANGE_BYTES) for size in sizes)
    assert ranges == len(sizes) + 1
    with application(world) as found:
        on_yarn = world.run(
            *words, "--root", f"hdfs://{ROOT}", "--fout", f"hdfs://{fout}", "--yarn", *READABLE
        )
    assert on_yarn.code == 0
    assert (found[0].stage_tasks[0], found[0].input_bytes) == (ranges, 0)
    # The only node stores all blocks, and Spark knows it of each range.
    assert found[0].first_localities == {"NODE_LOCAL": ranges}
    run, manifest = current(world.fetched(fout), JOB)
    # The counts of rows that are read, ignored and damaged.
    assert manifest["rucio"] == wanted["rucio"]
    rows = cells(run, JOB)
    assert rows.height > 100 and rows.equals(cells(wanted_run, JOB))


def test_executors_read_the_tables_of_dbs_and_count_the_cells_of_here(world: World) -> None:
    with application(world) as found:
        ended = world.run(*world.on_yarn("dbs_events", "hdfs:///cms/dumps", *READABLE))
    assert ended.code == 0
    # One job for the small tables, one for the large ones, as in
    # tests/apps/usage/test_spark_costs.py.
    assert (found[0].jobs, found[0].stages, found[0].input_bytes) == (2, 3, 0)
    assert_same(world, "dbs_events", world.fetched("/cms/dumps"))
