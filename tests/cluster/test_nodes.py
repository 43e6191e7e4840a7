"""What nodes give to a job: data that lie on them, memory, executors that come and go."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cmsspark.base.compiled import compiled
from tests.cluster.conftest import ROOT, Ended, World
from tests.cluster.daemons import until

pytestmark = pytest.mark.cluster

IDLES = Path(__file__).with_name("scripts") / "idles.py"
LOOKS = Path(__file__).with_name("scripts") / "looks.py"
MAPPED = Path(__file__).with_name("scripts") / "mapped.py"


@pytest.mark.usefixtures("two_nodes")
def test_tasks_run_where_their_data_lie_and_the_share_is_reported(world: World) -> None:
    one = ("--num-executors", "1", "--conf", "spark.dynamicAllocation.maxExecutors=1")
    ended = world.run(*world.on_yarn("data_aggregation", "hdfs:///cms/near", *one))
    assert ended.code == 0
    told = re.search(
        r"(\d+) of (\d+) tasks that read files ran on a host that stores them \(\d+%\)", ended.err
    )
    assert told is not None
    # The files lie on the first node: with one executor they are near to all of its
    # tasks, or to none.
    assert int(told[2]) >= 4 and int(told[1]) in (0, int(told[2]))


@pytest.fixture(scope="module")
def looked(world: World) -> Ended:
    """A script that has looked at this checkout's setup.py from an executor."""
    ended = world.run(str(LOOKS), "--yarn", str(ROOT / "setup.py"))
    assert ended.code == 0
    return ended


def test_nodes_need_no_file_that_only_the_submitting_host_has(world: World, looked: Ended) -> None:
    assert f"is {'not seen' if world.cluster.hides else 'seen'};" in looked.out
    if world.cluster.hides:
        assert re.search(r"package from \S+\.zip/cmsspark/__init__.py", looked.out)
    assert f"compiled: {compiled('hashed') is not None}\n" in looked.out, (
        "what is compiled here travels in the package"
    )


def test_executors_go_when_they_idle_and_what_they_shuffled_stays(world: World) -> None:
    ended = world.run(
        str(IDLES), "--yarn", "--conf", "spark.dynamicAllocation.executorIdleTimeout=1s"
    )
    assert ended.code == 0
    # Four tasks that shuffle, three that count, three that add up: the four are not run again.
    assert ended.out == f"7 groups, no executor, then {sum(range(1000))} by 10 tasks\n"


def test_the_history_server_shows_the_run(world: World, looked: Ended) -> None:
    world.cluster.start("history")
    (application,) = set(re.findall(r"application_\d+_\d+", looked.err))
    base = (
        f"http://127.0.0.1:{world.cluster.ports['history-http']}/api/v1/applications/{application}"
    )
    until(lambda: bool(asked(base)), "the history server")
    assert [one["status"] for one in asked(f"{base}/jobs")] == ["SUCCEEDED"]


def asked(url: str) -> Any:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)
    except OSError:
        return None


def test_with_room_for_the_catalogue_once_for_each_core_no_container_is_ended_for_it(
    world: World, tmp_path: Path
) -> None:
    folder = tmp_path / "a-catalogue"
    folder.mkdir()
    np.save(folder / "hashes.npy", np.ones(40_000_000, np.uint64))
    small = (
        "--executor-memory",
        "512m",
        "--executor-cores",
        "3",
        "--conf",
        "spark.executor.memoryOverhead=1500m",
    )
    words = (
        str(MAPPED),
        "--yarn",
        *small,
        "--num-executors",
        "1",
        "--conf",
        "spark.dynamicAllocation.maxExecutors=1",
    )
    ended = world.run(*words, str(folder), "40")
    assert ended.code == 0
    told = re.search(r"3 workers, (\d+) MB resident", ended.out)
    assert told is not None and int(told[1]) > 1024, "each worker has all of its pages"
