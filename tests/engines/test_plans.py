"""The physical plans of a day: the logs are read once, rows move once, and nothing is
joined without keys.
"""

from __future__ import annotations

import re
from datetime import date
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from cmsspark.engines import shuffle_join
from cmsspark.engines.merge_task import partition_numbers
from cmsspark.engines.scan import scan
from cmsspark.engines.tasks import StreamFiles, TaskContext
from cmsspark.run.spark import merged
from cmsspark.settings.pseudonyms import Pseudonyms
from cmsspark.sources.reader import Reader
from tests.counting.catalogues import opened, opened_replicas

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
    text = str(
        rows._jdf.queryExecution().executedPlan().toString()
    )  # no public API gives the plan as text
    lines: list[str] = []
    for line in text.splitlines():
        if "InMemoryRelation" in line:
            break
        lines.append(line)
    return "\n".join(lines)


def count(plan: str, node: str) -> int:
    return len(re.findall(rf"^[\s:+\-*()\d]*{node}\b", plan, re.MULTILINE))


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> TaskContext:
    folder = tmp_path_factory.mktemp("snapshots")
    opened(folder / "catalogue", [("/store/a", 1, 1, 1)], [(1, "/x/y/RAW")])
    opened_replicas(folder / "replicas", [(1, "/x/y/RAW#1")], [("/x/y/RAW#1", "T2_X")])
    return TaskContext(
        DAY, str(folder / "catalogue"), str(folder / "replicas"), Pseudonyms(b"k" * 32), Reader
    )


def check_has_no_waste(plan: str) -> None:
    for node in (
        "CartesianProduct",
        "BroadcastNestedLoopJoin",
        "Sort",
        "SortAggregate",
        "Window",
        "BatchEvalPython",
        "ArrowEvalPython",
    ):
        assert count(plan, node) == 0, plan


def test_the_logs_are_read_by_one_python_stage_and_rows_move_once(
    spark: SparkSession, context: TaskContext
) -> None:
    packing = replace(context, part_numbers=partition_numbers(7))
    plan = plan_of(merged(scan(spark, STREAMS, packing), 7, DAY))
    # The scan, and the merge.
    assert count(plan, "MapInArrow") == 2, plan
    assert count(plan, "Exchange") == 1, plan
    assert "hashpartitioning(part" in plan and ", 7)" in plan
    assert count(plan, "HashAggregate") == 0, plan
    check_has_no_waste(plan)


def test_the_shuffle_join_has_keys_and_folds_files_before_it_joins(
    spark: SparkSession, context: TaskContext
) -> None:
    hashed = scan(spark, STREAMS, TaskContext(DAY, None, None, context.pseudonyms, Reader))
    attached = shuffle_join.attach(
        hashed,
        spark.createDataFrame([], f"{shuffle_join.HASHED_FILES}, unused string"),
        spark.createDataFrame([], "dataset_id bigint, dataset_name string, unused string"),
        spark.createDataFrame([], f"{shuffle_join.HASHED_BLOCKS}, unused string"),
        spark.createDataFrame([], f"{shuffle_join.DISK_REPLICAS}, unused string"),
    )
    plan = plan_of(merged(attached, 2, DAY))
    for node in (
        "CartesianProduct",
        "BroadcastNestedLoopJoin",
        "Window",
        "BatchEvalPython",
        "ArrowEvalPython",
    ):
        assert count(plan, node) == 0, plan
    # The logs, and the merge.
    assert count(plan, "MapInArrow") == 2, plan
    assert "unused" not in plan.split("MapInArrow")[1]
