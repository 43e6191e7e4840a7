"""The day on a real YARN over HDFS with as few submits as may be: the tests of the
cluster that CI runs.

A submit takes as long as some hundred other tests, so each of these runs stands for
several: the one in cluster mode loses an executor, and the one in client mode follows a
driver that was killed.
"""

from __future__ import annotations

import re
from pathlib import Path

import polars as pl
import pytest

from cmsspark.filesystems.hdfs import CLIENT_KEY
from tests.cluster.conftest import (
    DAY,
    READABLE,
    World,
    application,
    assert_cheap,
    assert_same,
    cells,
    executors,
    kill,
    reading,
)
from tests.cluster.conftest import current as local_current

pytestmark = [pytest.mark.cluster, pytest.mark.lean]

JOB = "data_aggregation"
#: Results lie in another namespace than the logs.
NAMENODE, FOLDER = "namenode-2", "/cms/lean"


@pytest.fixture(scope="module")
def counted(world: World) -> str:
    """The day is counted in cluster mode, by a run that loses an executor; the run that
    its CURRENT names.

    Spark's JVM reads the logs, as without the extra for HDFS.
    """
    java = ("--conf", f"{CLIENT_KEY}=java")
    running = world.start(
        *world.on_yarn(JOB, fout(world), "--deploy-mode", "cluster", *java, *READABLE)
    )
    with application(world) as found:
        world.until(running, lambda: bool(reading(world)), "a task")
        lost = reading(world)[:1]
        kill(lost)
        ended = world.end(running)
    assert ended.code == 0
    assert re.search(r"run_spark: application_\d+_\d+ succeeded\n", ended.err)
    assert not set(lost) & set(executors(world))
    # It makes the index, which takes a job; a lost executor takes stages again, no job.
    assert found[0].jobs == 2
    return current(world)


def fout(world: World) -> str:
    return f"{world.cluster.uri(NAMENODE)}{FOLDER}"


def current(world: World) -> str:
    return (
        world.cluster.hdfs_of(NAMENODE).read(f"{FOLDER}/{JOB}/{DAY.isoformat()}/CURRENT").decode()
    )


def stored(world: World) -> Path:
    """The results, copied to this host."""
    return world.fetched(FOLDER, NAMENODE)


def test_in_cluster_mode_the_loss_of_an_executor_changes_no_cell(
    world: World, counted: str
) -> None:
    assert_same(world, JOB, stored(world))
    assert current(world) == counted


def test_in_client_mode_a_killed_driver_leaves_the_result_and_the_next_run_clears_up(
    world: World, counted: str
) -> None:
    world.kill_while_staging(JOB, fout(world), NAMENODE)
    assert current(world) == counted
    assert_same(world, JOB, stored(world))
    with application(world) as found:
        again = world.run(*world.on_yarn(JOB, fout(world), *READABLE))
    assert again.code == 0 and "removed leftovers of a killed run" in again.err
    assert re.search(r"run_spark: submitted to YARN as application_\d+_\d+\n", again.err)
    assert re.search(r"run_spark: follow it at http://\S+/proxy/application_\d+_\d+/\n", again.err)
    assert current(world) != counted
    manifest = assert_same(world, JOB, stored(world))
    assert manifest["join"] == "index"
    # The killed run has made the index.
    assert_cheap(found[0], manifest, may_build_index=False)
    assert manifest["inputs"][0]["base"].startswith(world.cluster.uri("namenode"))


#: A job of a user with a module and a table beside it.
OWN_JOB = """
import cmsspark as cms
from own_shares import shared


@cms.job(
    frames="spark",
    reads={
        "accesses": cms.Accesses(),
        "datasets": cms.DumpTable("dbs/DATASETS", ["dataset", "is_dataset_valid"]),
        "sites": cms.Folder("sites.csv", {"site_name": "string", "share": "long"}, "csv"),
    },
    columns={"site_name": "string", "share": "long", "accesses": "long not null"},
    keys=["site_name"],
)
def own_sites(accesses, datasets, sites):
    "Accesses to datasets of DBS by site."
    names = datasets.select(datasets.dataset.alias("dataset_name")).distinct()
    counts = accesses.join(names, "dataset_name").groupBy("site_name").count()
    rows = counts.withColumnRenamed("count", "accesses").join(sites, "site_name", "left")
    return shared(rows)
"""
OWN_MODULE = """
from pyspark.sql import functions as F


def _doubled(batches):
    for batch in batches:
        yield batch.set_column(1, "share", double(batch["share"]))


def double(values):
    import pyarrow.compute as pc

    return pc.multiply(values, 2)


def shared(rows):
    "By Python on the nodes, which need this module."
    columns = rows.select("site_name", "share", F.col("accesses"))
    return columns.mapInArrow(_doubled, columns.schema)
"""


def test_a_job_of_a_user_runs_there_with_what_lies_beside_its_file(
    world: World, tmp_path: Path
) -> None:
    job = tmp_path / "own_sites.py"
    job.write_text(OWN_JOB)
    (tmp_path / "own_shares.py").write_text(OWN_MODULE)
    run, _ = local_current(world.here(JOB), JOB)
    counted = cells(run, JOB).filter(pl.col("stream") != "condor")
    expected = counted.group_by("site_name").agg(accesses=pl.col("nacc").sum())
    (tmp_path / "sites.csv").write_text(
        "site_name,share\n" + "".join(f"{name},21\n" for name in expected["site_name"])
    )
    words = world.on_yarn(str(job), fout(world), "--deploy-mode", "cluster")
    assert world.run(*words).code == 0
    run, manifest = local_current(stored(world), "own_sites")
    rows = cells(run, "own_sites")
    assert set(rows["share"]) == {42} and manifest["tables"]["own_sites"]["rows"] == rows.height
    assert sorted(rows.select("site_name", "accesses").rows()) == sorted(expected.rows())
