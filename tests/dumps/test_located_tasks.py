"""Tasks that prefer hosts: each row is a task of its own, and Spark knows its hosts."""

from __future__ import annotations

from typing import Any

from cmsspark.dumps.rucio_scan import place_tasks


def test_each_row_is_a_task_with_its_own_hosts_also_behind_a_map(spark: Any) -> None:
    rows = place_tasks(spark, [("node-1", "node-2"), ("node-3",), ()])
    assert [row.number for row in rows.collect()] == [0, 1, 2]
    mapped = rows.mapInArrow(lambda batches: batches, "number int").unionAll(rows)
    plan = mapped._jdf.queryExecution().toRdd()
    context = spark.sparkContext._jsc.sc()
    hosts = [str(context.getPreferredLocs(plan, task)) for task in range(6)]
    assert hosts == 2 * ["List(node-1, node-2)", "List(node-3)", "List()"]


def test_no_rows_are_no_tasks_to_place(spark: Any) -> None:
    assert place_tasks(spark, []).collect() == []
