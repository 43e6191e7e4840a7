"""What a day by Spark costs: its jobs, stages, tasks and files are counted. A change
that adds one fails here.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import fastavro
import pytest
from msgspec.structs import replace

from cmsspark.apps.demo.make import make
from cmsspark.apps.replicas import dataset_last_access, dbs_events, replica_jobs, site_tier_usage
from cmsspark.apps.replicas.replica_jobs import (
    CATALOGUE_CHECK,
    DBS_PHEDEX,
    DBS_RUCIO,
    LEFTOVERS,
    PHEDEX,
    RUCIO_DAILY,
)
from cmsspark.dumps import dump_plan
from cmsspark.engines.tasks import StreamFiles, total_weight
from cmsspark.filesystems.storage import LocalFiles
from cmsspark.run import dump_day, log_day
from cmsspark.run import spark as spark_runner
from cmsspark.run.dump_day import DumpJob
from cmsspark.run.request import DayRequest, JobRequest
from cmsspark.settings.settings import load_settings
from cmsspark.store import results, staged_runs
from tests.corpus.json_lines import aaa
from tests.run.places import Place, write_streams

#: Of the PhEDEx snapshots: later replicas are those of Rucio.
DAY = date(2019, 6, 15)
RUCIO_DAY = date(2026, 1, 15)
STREAMS = ("aaa", "eos", "cmssw", "crab")


@dataclass
class Jobs:
    """The Spark jobs of a piece of work: of each job its stages, and of each stage that
    ran its tasks.
    """

    jobs: list[list[int]] = field(default_factory=list)

    @property
    def stages(self) -> int:
        return sum(map(len, self.jobs))

    @property
    def stages_that_ran(self) -> int:
        return sum(1 for tasks in self.tasks if tasks)

    @property
    def tasks(self) -> list[int]:
        return [tasks for job in self.jobs for tasks in job]


def jobs_of(spark: Any, work: Callable[[], object]) -> Jobs:
    tracker = spark.sparkContext.statusTracker()
    before = set(tracker.getJobIdsForGroup())
    work()
    # Spark enters the ends of tasks and stages into its status some time after the work is done.
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(300_000)
    found = Jobs()
    for job in sorted(set(tracker.getJobIdsForGroup()) - before):
        # The stages of a job come from a hash set: in another order where their ids
        # cross a multiple of its size.
        stages = [
            tracker.getStageInfo(stage) for stage in sorted(tracker.getJobInfo(job).stageIds)
        ]
        found.jobs.append([info.numCompletedTasks if info else 0 for info in stages])
    return found


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(tmp_path)
    write_streams(made.tree)
    return made


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("dumps")
    make(root, DAY, records=20, files=2_000, datasets=40, seed=5)
    return root


#: Streams whose rows are accesses as they are read.
OF_ACCESSES = tuple(name for name in STREAMS if name != "crab")


def count_day(place: Place, feed: str = "auto", streams: tuple[str, ...] = OF_ACCESSES) -> None:
    tables = ("data_aggregation", "partials")
    request = place.request(streams=streams, tables=tables, engine="spark", feed=feed)
    log_day.run(replace(request, job="data_aggregation"))


@pytest.mark.parametrize(
    ("driver_rows", "feed", "jobs", "streams"),
    [
        (spark_runner.DRIVER_ROWS, "direct", 1, OF_ACCESSES),
        (0, "direct", 3, OF_ACCESSES),
        (spark_runner.DRIVER_ROWS, "spark", 1, OF_ACCESSES),
        (spark_runner.DRIVER_ROWS, "direct", 1, STREAMS),
    ],
)
def test_a_day_takes_a_job_that_reads_and_one_for_each_large_table_and_a_file_for_each_table(
    spark: Any,
    place: Place,
    monkeypatch: pytest.MonkeyPatch,
    driver_rows: int,
    feed: str,
    jobs: int,
    streams: tuple[str, ...],
) -> None:
    monkeypatch.setattr(spark_runner, "DRIVER_ROWS", driver_rows)
    found = jobs_of(spark, lambda: count_day(place, feed, streams))
    assert len(found.jobs) == jobs
    # Rows of one CRAB job meet before they are merged.
    assert found.stages == (3 if "crab" in streams else 2) * jobs
    # The scan has a task for each stream or file, the merge one: these logs are small.
    # Later jobs read what is kept.
    merges = 2 if "crab" in streams else 1
    assert [sum(job[merges:]) for job in found.jobs] == [1] * jobs
    assert [job[0] for job in found.jobs[1:]] == [0] * (jobs - 1)
    assert found.jobs[0][0] <= 8
    for table in ("data_aggregation", "partials"):
        assert place.manifest(table)["tables"][table]["files"] == 1
    assert len(place.rows("partials")) > 4


@pytest.mark.parametrize("driver_rows", [0, 24, spark_runner.DRIVER_ROWS])
def test_a_large_table_is_some_files_in_order_with_the_same_cells(
    spark: Any, place: Place, monkeypatch: pytest.MonkeyPatch, driver_rows: int
) -> None:
    import pyarrow.parquet as pq

    count_day(place)
    wanted = {table: place.rows(table) for table in ("data_aggregation", "partials")}
    monkeypatch.setattr(spark_runner, "DRIVER_ROWS", driver_rows)
    monkeypatch.setattr(spark_runner, "MERGE_BYTES", 500)
    monkeypatch.setattr(staged_runs, "FILE_ROWS", 6)
    count_day(place)
    for table, rows in wanted.items():
        assert place.rows(table) == rows
        assert place.manifest(table)["tables"][table]["files"] == -(-len(rows) // 6)
    for part in Path(place.fout).rglob("part-*.parquet"):
        keys = [
            tuple(row[name] for name in spark_runner.KEYS)
            for row in pq.read_table(part).to_pylist()
        ]
        assert keys == sorted(keys)


def test_the_partitions_of_a_merge_follow_the_bytes_of_the_logs_and_small_tables_are_one_file(
    spark: Any, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    count_day(place)
    wanted = place.rows("partials")
    monkeypatch.setattr(spark_runner, "MERGE_BYTES", 500)
    found = jobs_of(spark, lambda: count_day(place))
    files = [
        (path, size)
        for one in place.manifest("partials")["inputs"]
        for path, size, _ in one["files"]
    ]
    assert found.jobs[0][1] == -(-total_weight([StreamFiles("", "", tuple(files))]) // 500) > 3
    assert place.manifest("partials")["tables"]["partials"]["files"] == 1
    assert place.rows("partials") == wanted


@pytest.mark.parametrize(
    ("fmt", "jobs", "stages"), [("parquet", [2, 1], [5, 3]), ("csv", [4, 3], [7, 5])]
)
def test_a_day_with_jobs_of_htcondor_takes_at_most_four_jobs_and_eight_stages(
    spark: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fmt: str,
    jobs: list[int],
    stages: list[int],
) -> None:
    day = date(2026, 1, 15)
    make(tmp_path / "root", day, records=2_000, files=900, datasets=20, people=20)
    written = tmp_path / "cmsspark.yaml"
    written.write_text(f"state_dir: {tmp_path}/state\ncache_dir: {tmp_path}/cache\n")
    settings = load_settings(str(written))
    tables = ("data_aggregation", "partials", "crab_partials", "condor_ids")
    costs, manifests = [], []
    for size in (spark_runner.MERGE_BYTES, 100_000):
        monkeypatch.setattr(spark_runner, "MERGE_BYTES", size)
        fout = str(tmp_path / str(size))
        request = DayRequest(
            "data_aggregation",
            day,
            fout,
            settings,
            root=str(tmp_path / "root"),
            tables=tables,
            engine="spark",
            fmt=fmt,
        )
        costs.append(jobs_of(spark, lambda request=request: log_day.run(request)))
        manifest = results.current(
            LocalFiles(), fout, "data_aggregation", "partials", day
        ).manifest
        manifests.append({table: manifest.tables[table].rows for table in tables})
    # The first run makes the index, too: Rucio's replicas take a job of their own.
    assert [len(cost.jobs) for cost in costs] == jobs
    assert [cost.stages_that_ran for cost in costs] == stages
    assert sum(costs[1].tasks) > sum(costs[0].tasks), "several partitions"
    assert manifests[0] == manifests[1] and manifests[0]["condor_ids"] > 10


#: Of each job on dumps: jobs and stages in Spark. One job for the small tables, one for
#: the large ones, which merges: sums of blocks twice. With several keys the sums of
#: datasets move once more.
DUMP_COSTS = (
    pytest.param(dbs_events.JOB, 2, 3, 1, id="dbs_events"),
    pytest.param(site_tier_usage.JOB, 2, 3, 1, id="site_tier_usage"),
    pytest.param(PHEDEX, 1, 2, 1, id="phedex"),
    pytest.param(DBS_PHEDEX, 2, 3, 1, id="dbs_phedex"),
    pytest.param(DBS_PHEDEX, 2, 4, 4, id="dbs_phedex, several keys"),
    pytest.param(replica_jobs.JOB, 2, 4, 1, id="event_counts"),
    pytest.param(replica_jobs.JOB, 2, 5, 4, id="event_counts, several keys"),
)


@pytest.mark.parametrize(("job", "jobs", "stages", "keys"), DUMP_COSTS)
def test_a_job_on_dumps_takes_few_jobs_and_a_file(
    spark: Any,
    dumps: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    job: DumpJob,
    jobs: int,
    stages: int,
    keys: int,
) -> None:
    monkeypatch.setattr(dump_plan, "key_count", lambda *_: keys)
    written = tmp_path / "cmsspark.yaml"
    written.write_text(f"state_dir: {tmp_path}/state\ncache_dir: {tmp_path}/cache\n")
    request = JobRequest(
        job.name,
        DAY,
        str(tmp_path / "out"),
        load_settings(str(written)),
        str(dumps),
        engine="spark",
    )
    found = jobs_of(spark, lambda: dump_day.run(job, request, lambda _: None))
    assert (len(found.jobs), found.stages) == (jobs, stages)
    assert sum(found.tasks) <= 40, found
    (table,) = results.current(
        LocalFiles(), request.fout, job.name, job.name, DAY
    ).manifest.tables.values()
    assert table.files == 1 and table.rows > 3
    csv = replace(request, fmt="csv")
    # Tasks write the table, and nobody counts it with Spark.
    assert len(jobs_of(spark, lambda: dump_day.run(job, csv, lambda _: None)).jobs) == jobs + 1


#: On a day of Rucio: files meet by name, and their sums by dataset. Sums that several
#: keys have of DBS's datasets move once more.
RUCIO_COSTS = (
    pytest.param(RUCIO_DAILY, 1, 3, 1, id="rucio_daily"),
    pytest.param(PHEDEX, 1, 3, 1, id="phedex"),
    pytest.param(dataset_last_access.JOB, 1, 3, 4, id="dataset_last_access, several keys"),
    pytest.param(LEFTOVERS, 2, 4, 1, id="leftovers"),
    pytest.param(site_tier_usage.JOB, 2, 5, 4, id="site_tier_usage, several keys"),
    pytest.param(DBS_RUCIO, 2, 4, 1, id="dbs_rucio"),
    pytest.param(CATALOGUE_CHECK, 2, 4, 1, id="catalogue_check"),
    pytest.param(CATALOGUE_CHECK, 2, 5, 4, id="catalogue_check, several keys"),
)


@pytest.fixture(scope="module")
def rucio_dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("rucio")
    make(root, RUCIO_DAY, records=20, files=900, datasets=20, seed=5)
    return root


@pytest.mark.parametrize(("job", "jobs", "stages", "keys"), RUCIO_COSTS)
def test_a_job_on_rucio_reads_each_table_once_in_two_jobs(
    spark: Any,
    rucio_dumps: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    job: DumpJob,
    jobs: int,
    stages: int,
    keys: int,
) -> None:
    monkeypatch.setattr(dump_plan, "key_count", lambda *_: keys)
    written = tmp_path / "cmsspark.yaml"
    written.write_text(f"state_dir: {tmp_path}/state\ncache_dir: {tmp_path}/cache\n")
    settings = load_settings(str(written))
    request = JobRequest(
        job.name, RUCIO_DAY, str(tmp_path / "out"), settings, str(rucio_dumps), engine="spark"
    )
    found = jobs_of(spark, lambda: dump_day.run(job, request, lambda _: None))
    assert (len(found.jobs), found.stages) == (jobs, stages)
    # A task for each range of a file and each file of DBS, and one for each key.
    assert sum(found.tasks) <= 20 + 4 * keys
    manifest = results.current(LocalFiles(), request.fout, job.name, job.name, RUCIO_DAY).manifest
    tables = manifest.document["rucio"]["tables"]
    for table in ("CONTENTS", "REPLICAS"):
        # Rows of a table that is read twice count twice.
        assert tables[table]["rows"] == rows_of_avro(rucio_dumps, table), table
    # The demo leaves nothing over.
    assert (manifest.tables[job.name].rows > 0) == (job.name != "leftovers")


def rows_of_avro(root: Path, table: str) -> int:
    (folder,) = (root / "project/awg/cms/rucio").glob(f"*/{table.lower()}")
    return sum(
        1 for part in folder.glob("[!._]*") for _ in fastavro.reader(io.BytesIO(part.read_bytes()))
    )


@pytest.mark.parametrize("join", ["index", "shuffle"])
def test_the_replicas_of_a_log_day_of_rucio_take_one_job_more(
    spark: Any, rucio_dumps: Path, tmp_path: Path, join: str
) -> None:
    written = tmp_path / "cmsspark.yaml"
    written.write_text(f"state_dir: {tmp_path}/state\ncache_dir: {tmp_path}/cache\n")
    request = DayRequest(
        "data_aggregation",
        RUCIO_DAY,
        str(tmp_path / "out"),
        load_settings(str(written)),
        root=str(rucio_dumps),
        streams=("cmssw",),
        tables=("data_aggregation", "partials"),
        engine="spark",
        join=join,
    )
    first, again = (
        jobs_of(spark, lambda: log_day.run(replace(request, recount=True))) for _ in range(2)
    )
    if join == "index":
        assert len(first.jobs) == 2 and first.stages == 4
        # The index is in the cache.
        assert len(again.jobs) == 1 and again.stages == 2
    else:
        # Adaptive execution runs a job for each exchange of the join.
        assert len(first.jobs) == len(again.jobs)
        assert len([job for job in first.jobs if len(job) <= 2]) >= 1


def test_many_small_files_are_few_tasks_and_no_job_lists_them(spark: Any, place: Place) -> None:
    for number in range(60):
        place.tree.write("aaa enr", f"part-9{number:03}.json", aaa() + b"\n")
    found = jobs_of(spark, lambda: count_day(place, "spark"))
    assert len(found.jobs) == 1
    assert found.jobs[0][0] <= 12
