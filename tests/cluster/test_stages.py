"""Executors that are lost while logs are read or rows are merged: the same cells, and named in the manifest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import World, assert_same, executors, kill, reading

pytestmark = pytest.mark.cluster

JOB = "data_aggregation"
#: Two executors, so that one goes on.
TWO = [f"spark.dynamicAllocation.{which}Executors=2" for which in ("min", "initial", "max")]


def confs(*options: str) -> list[str]:
    return [word for option in options for word in ("--conf", option)]


def events(world: World, folder: str) -> list[dict[str, Any]]:
    """What the manifest says befell the run, whose cells are those of this host."""
    manifest = assert_same(world, JOB, world.fetched(folder))
    found: list[dict[str, Any]] = manifest.get("cluster_events", [])
    return found


def test_a_run_without_a_fault_names_no_event(world: World) -> None:
    assert world.run(*world.on_yarn(JOB, "hdfs:///cms/stages/plain")).code == 0
    assert events(world, "/cms/stages/plain") == []


@pytest.mark.parametrize("stage", ["read", "merged"])
def test_an_executor_that_is_lost_in_a_stage_is_named_and_changes_no_cell(world: World, stage: str) -> None:
    folder = f"/cms/stages/{stage}"
    before = shuffled(world)
    running = world.start(*world.on_yarn(JOB, f"hdfs://{folder}", *confs(*TWO)))
    world.until(running, lambda: bool(reading(world)), "a task")
    if stage == "merged":
        world.until(running, lambda: bool(shuffled(world) - before), "rows to merge")
    kill(executors(world)[:1])
    assert world.end(running).code == 0
    lost = [event for event in events(world, folder) if event["event"] == "executor_lost"]
    assert len(lost) == 1 and lost[0]["host"] and lost[0]["reason"], lost


def shuffled(world: World) -> set[Path]:
    """The files with rows that tasks have written for the merge."""
    pattern = "data/nodemanager*/local/usercache/*/appcache/*/blockmgr-*/*/shuffle_*.index"
    return set(world.cluster.folder.glob(pattern))
