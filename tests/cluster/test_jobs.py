"""The jobs on a real YARN over HDFS: in both deploy modes the same cells as on this host."""

from __future__ import annotations

import os
import re
import subprocess

import pytest

from cmsspark.store.own_jobs import JOBS
from tests.cluster.configuration import user
from tests.cluster.conftest import (
    READABLE,
    World,
    application,
    assert_cheap,
    assert_same,
)

pytestmark = pytest.mark.cluster

OTHERS = sorted(
    job.name
    for job in JOBS.values()
    if job.tables and job.name not in ("data_aggregation", "period")
)


def test_in_client_mode_the_day_has_the_same_cells_as_here_and_lies_in_another_namespace(
    world: World,
) -> None:
    fout = f"{world.cluster.uri('namenode-2')}/cms/popularity"
    with application(world) as found:
        ended = world.run(*world.on_yarn("data_aggregation.py", fout, *READABLE))
    assert ended.code == 0
    assert re.search(r"run_spark: submitted to YARN as application_\d+_\d+\n", ended.err)
    assert re.search(r"run_spark: follow it at http://\S+/proxy/application_\d+_\d+/\n", ended.err)
    manifest = assert_same(
        world, "data_aggregation", world.fetched("/cms/popularity", "namenode-2")
    )
    assert manifest["join"] == "index"
    assert_cheap(found[0], manifest, may_build_index=True)
    assert manifest["inputs"][0]["base"].startswith(world.cluster.uri("namenode"))


def test_in_cluster_mode_the_day_has_the_same_cells_as_here(world: World) -> None:
    ended = world.run(
        *world.on_yarn("data_aggregation", "hdfs:///cms/cluster", "--deploy-mode", "cluster")
    )
    assert ended.code == 0
    assert re.search(r"run_spark: application_\d+_\d+ succeeded\n", ended.err)
    assert_same(world, "data_aggregation", world.fetched("/cms/cluster"))


def test_a_shared_index_is_on_hdfs_once(world: World) -> None:
    fout, index = "hdfs:///cms/shared", f"/user/{user()}/.cmsspark/snapshots"
    words = world.on_yarn("data_aggregation", fout, "--conf", "spark.cmsspark.sharedIndexBytes=1")
    assert world.run(*words).code == 0
    # The index of files, that of replicas, and that of the inputs of jobs.
    archives = world.cluster.hdfs.names(index)
    assert len(archives) == 3 and all(name.endswith(".tar") for name in archives)


def test_in_cluster_mode_the_jobs_own_error_and_exit_code_come_back(world: World) -> None:
    words = ("data_aggregation", "--date", "20260220", "--fout", "hdfs:///cms/none", "--yarn")
    ended = world.run(*words, "--deploy-mode", "cluster")
    assert ended.code == 66
    assert "_000001 wrote:\n  run_spark: " in ended.err
    assert "2026-01-15" in ended.err, "the days that are there"
    assert "Exception in thread" not in ended.err and "\tat " not in ended.err
    # What the message names works where Hadoop's commands are, as on an edge node.
    (command,) = re.findall(r"^run_spark: all it wrote: (yarn logs .*)$", ended.err, re.MULTILINE)
    environ = world.environ(PATH=f"{world.cluster.folder}/bin:{os.environ['PATH']}")
    wrote = subprocess.run(
        command, shell=True, env=environ, capture_output=True, text=True, check=True
    )
    assert "run_spark: " in wrote.stdout


@pytest.mark.parametrize("mode", ["client", "cluster"])
@pytest.mark.parametrize("job", OTHERS)
def test_every_other_job_has_the_same_cells_as_here(world: World, job: str, mode: str) -> None:
    fout = f"/cms/{mode}"
    ended = world.run(*world.on_yarn(job, f"hdfs://{fout}", "--deploy-mode", mode))
    assert ended.code == 0
    assert_same(world, job, world.fetched(fout))
