"""The physical plans of a day: the logs are read once, rows move once, and nothing is joined without keys."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date
from typing import TYPE_CHECKING

import pytest

from cmsspark.pseudonyms import Pseudonyms
from cmsspark.sources.reader import Reader
from cmsspark.transforms import aggregate, shuffle
from cmsspark.transforms.scan import Kit, StreamFiles, scan
from tests.transforms.catalogues import opened, opened_replicas

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DAY = date(2019, 6, 15)
STREAMS = [
    StreamFiles("aaa", "enr", (("/nowhere/a", 10), ("/nowhere/b.gz", 10))),
    StreamFiles("eos", "eos", (("/nowhere/c", 10),)),
    StreamFiles("crab", "avro", (("/nowhere/d", 10),)),
]


def plan_of(rows: DataFrame) -> str:
    """The plan that runs, without what a cached DataFrame was made by."""
    text = str(rows._jdf.queryExecution().executedPlan().toString())  # no public API gives the plan as text
    lines: list[str] = []
    for line in text.splitlines():
        if "InMemoryRelation" in line:
            break
        lines.append(line)
    return "\n".join(lines)


def count(plan: str, node: str) -> int:
    return len(re.findall(rf"^[\s:+\-*()\d]*{node}\b", plan, re.MULTILINE))


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Kit:
    folder = tmp_path_factory.mktemp("snapshots")
    opened(folder / "catalogue", [("/store/a", 1, 1, 1)], [(1, "/x/y/RAW")])
    opened_replicas(folder / "replicas", [(1, "/x/y/RAW#1")], [("/x/y/RAW#1", "T2_X")])
    return Kit(DAY, str(folder / "catalogue"), str(folder / "replicas"), Pseudonyms(b"k" * 32), Reader)


@pytest.fixture(scope="module")
def folded(spark: SparkSession, kit: Kit) -> DataFrame:
    return aggregate.fold_tasks(scan(spark, STREAMS, kit), 2)


@pytest.fixture(scope="module")
def kept(spark: SparkSession, kit: Kit, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DataFrame]:
    """Kept rows as a run has them when it writes its tables: counted once, for the bins."""
    part = tmp_path_factory.mktemp("logs") / "part-0"
    part.write_bytes(b'{"data":{"file_lfn":"/store/a","read_bytes":5}}\n')
    cached = aggregate.fold_tasks(scan(spark, [StreamFiles("aaa", "enr", ((str(part), 10),))], kit), 2).persist()
    assert cached.where("kind = 'access'").count() == 1
    yield cached
    cached.unpersist()


def check_has_no_waste(plan: str) -> None:
    for node in ("CartesianProduct", "BroadcastNestedLoopJoin", "Sort", "SortAggregate", "Window", "BatchEvalPython",
                 "ArrowEvalPython"):  # fmt: skip
        assert count(plan, node) == 0, plan


def test_the_logs_are_read_by_one_python_stage_and_rows_move_once(folded: DataFrame) -> None:
    plan = plan_of(folded)
    assert count(plan, "MapInArrow") == 1, plan
    assert count(plan, "Exchange") == 1, plan
    assert count(plan, "HashAggregate") >= 1, plan
    assert "hashpartitioning(stream" in plan
    check_has_no_waste(plan)


@pytest.mark.parametrize("table", [aggregate.partials, aggregate.report])
def test_the_tables_come_from_the_kept_rows_and_move_nothing(kept: DataFrame, table: object) -> None:
    assert callable(table)
    rows = table(kept, DAY)
    assert len(rows.collect()) == 1
    plan = plan_of(rows)
    assert "isFinalPlan=true" in plan
    assert count(plan, "InMemoryTableScan") == 1, plan
    assert count(plan, "Exchange") == 0, plan
    assert count(plan, "MapInArrow") == 0, plan
    check_has_no_waste(plan)


def test_a_table_takes_only_its_columns_from_the_kept_rows(kept: DataFrame) -> None:
    plan = plan_of(aggregate.report(kept, DAY))
    scanned = re.search(r"InMemoryTableScan \[([^\]]*)\]", plan)
    assert scanned is not None, plan
    taken = {name.strip().split("#")[0] for name in scanned[1].split(",")}
    assert "detail" not in taken
    assert {"dataset_name", "nacc", "user"} <= taken


def test_the_shuffle_join_has_keys_and_folds_files_before_it_joins(spark: SparkSession, kit: Kit) -> None:
    hashed = scan(spark, STREAMS, Kit(DAY, None, None, kit.pseudonyms, Reader))
    attached = shuffle.attach(
        hashed,
        spark.createDataFrame([], "lfn string, block_id bigint, dataset_id bigint, file_id bigint, unused string"),
        spark.createDataFrame([], "dataset_id bigint, dataset_name string, unused string"),
        spark.createDataFrame([], "block_id bigint, block_name string, unused string"),
        spark.createDataFrame([], "block_name string, site string, unused string"),
    )
    plan = plan_of(aggregate.fold_tasks(attached, 2))
    for node in ("CartesianProduct", "BroadcastNestedLoopJoin", "Window", "BatchEvalPython", "ArrowEvalPython"):
        assert count(plan, node) == 0, plan
    # The logs, and the names of files.
    assert count(plan, "MapInArrow") == 2, plan
    assert "unused" not in plan.split("MapInArrow")[0]
