"""Days of HTCondor through the job: every cell and bin against the oracle, by each engine."""

from __future__ import annotations

import json
import shutil
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from cmsspark.base.errors import DataError
from cmsspark.counting.htcondor_jobs import id_hashes
from cmsspark.engines.job_work import JobTables
from cmsspark.filesystems.storage import LocalFiles
from cmsspark.run import earlier_jobs
from cmsspark.run import spark as spark_runner
from cmsspark.run.log_day import run
from cmsspark.run.request import DayRequest
from cmsspark.settings.settings import Settings
from cmsspark.sources.registry import JOB_TABLES
from cmsspark.store import results
from tests.apps.usage.test_data_aggregation_cells import REPORT_KEY, _people, _same_rows
from tests.corpus import jobs
from tests.corpus.hostile import DAY
from tests.corpus.tree import Tree, write_case_tables
from tests.oracle.count import StreamCount, partial_rows, report_rows
from tests.oracle.jobs import JobCount, count_day_of_jobs, popularity_rows

#: The days of the cases are before HTCondor's epoch.
EPOCHS = {"epochs": {"jobs": {"condor": {"from": "always"}}}}
YESTERDAY = DAY - timedelta(days=1)
ENGINES = {
    "processes": ("processes", "index", "auto"),
    "spark by index": ("spark", "index", "auto"),
    "spark fed by Spark": ("spark", "index", "spark"),
    "spark by shuffle": ("spark", "shuffle", "auto"),
}


def _request(root: Path, private: Path, day: date = DAY, **options: Any) -> DayRequest:
    settings = Settings(None, None, private / "state", private / "cache", sources=EPOCHS)
    request = DayRequest(
        "dbs_condor",
        day,
        str(private / "store"),
        settings,
        root=str(root),
        streams=("condor",),
        tables=("dbs_condor", *JOB_TABLES),
        max_malformed="100%",
    )
    return replace(request, **options)


def _run(request: DayRequest) -> tuple[dict[str, list[dict[str, Any]]], dict[str, Any]]:
    done = run(request, log=lambda text: None)
    return {
        table: pq.read_table(Path(done.path) / table).to_pylist() for table in request.tables
    }, done.manifest.document


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("condor")
    tree = Tree(root, DAY)
    write_case_tables(tree.dbs(), tree.phedex())
    jobs.write_days(tree, seed=5, days=3)
    return root


@pytest.fixture(scope="module")
def wanted(world: Path) -> JobCount:
    return count_day_of_jobs(world, DAY)


def _streams(count: JobCount) -> dict[str, StreamCount]:
    return {
        "condor": StreamCount(
            accesses=[job.access() for job in count.jobs if job.dataset is not None]
        )
    }


def _check(
    tables: dict[str, list[dict[str, Any]]], manifest: dict[str, Any], wanted: JobCount
) -> None:
    assert manifest["reconciliation"] == {"condor": wanted.reconciliation()}
    assert manifest["unmatched_sites"] == {"condor": wanted.unmatched_sites()}
    assert manifest["out_of_day_by_day"] == {"condor": dict(wanted.other_days)}
    report = next(iter(tables.values()))
    _same_rows(report, report_rows(_streams(wanted), DAY), REPORT_KEY)
    assert [row["id_hash"] for row in tables["condor_ids"]] == sorted(
        id_hashes(list(wanted.ids)).tolist()
    )
    _check_crab(tables["crab_partials"], wanted)


def _check_crab(rows: list[dict[str, Any]], wanted: JobCount) -> None:
    """The rows, added up by dataset, are what the oracle says of the one day."""
    assert len({tuple(row.values())[:7] for row in rows}) == len(rows)
    for row in popularity_rows([wanted]):
        own = [
            one
            for one in rows
            if (one["input"], one["dataset_name"]) == (row["input"], row["dataset_name"])
        ]
        for name in ("job_count", "failed_job_count", "removed_job_count"):
            assert sum(one[name] for one in own) == row[name]
        assert len({one["block_name"] for one in own} - {None}) == row["block_count"]
        assert len({one["task"] for one in own} - {None}) == row["task_count"]
        assert len({one["user"] for one in own} - {None}) == row["distinct_users"]
        assert min(one["first_ms"] for one in own) == row["first_ms"]
        assert max(one["last_ms"] for one in own) == row["last_ms"]
        reads = [one["read_bytes"] for one in own if one["read_bytes"] is not None]
        assert (sum(reads) if reads else None) == row["read_bytes"]
        walls = [one["wall_ms"] for one in own if one["wall_ms"] is not None]
        assert sum(walls) / 1000 == row["wc_time"]
    assert {row["input"] for row in rows} == {"dataset", "no_input", "user_file", "not_in_dbs"}


@pytest.mark.parametrize("engine", ["processes"])
def test_rules_29_to_33_every_cell_is_the_oracles_by_processes(
    engine: str, world: Path, wanted: JobCount, tmp_path: Path
) -> None:
    tables, manifest = _run(_request(world, tmp_path, engine=engine))
    _check(tables, manifest, wanted)
    assert manifest["earlier_jobs"]["condor"]["ids_from"] == "logs"
    assert wanted.bins["repeated"] > 100


@pytest.mark.parametrize("engine", [name for name in ENGINES if name != "processes"])
def test_rules_29_to_33_every_cell_is_the_oracles_in_spark(
    engine: str, world: Path, wanted: JobCount, tmp_path: Path, spark: object
) -> None:
    name, join, feed = ENGINES[engine]
    tables, manifest = _run(_request(world, tmp_path, engine=name, join=join, feed=feed))
    _check(tables, manifest, wanted)
    by_processes, _ = _run(
        _request(
            world,
            tmp_path,
            engine="processes",
            job="data_aggregation",
            recount=True,
            tables=("data_aggregation", *JOB_TABLES),
        )
    )
    assert [by_processes[table] for table in JOB_TABLES] == [tables[table] for table in JOB_TABLES]


def test_rule_31_ids_kept_from_the_day_before_serve_instead_of_its_logs(
    world: Path, wanted: JobCount, tmp_path: Path
) -> None:
    _, before = _run(_request(world, tmp_path, YESTERDAY))
    read: list[str] = []
    done = run(_request(world, tmp_path), log=read.append)
    manifest = done.manifest.document
    entry = manifest["earlier_jobs"]["condor"]
    assert (entry["ids_from"], entry["job"], entry["run"]) == (
        "stored",
        "dbs_condor",
        before["run"],
    )
    assert manifest["reconciliation"] == {"condor": wanted.reconciliation()}
    assert manifest["unmatched_sites"] == {"condor": wanted.unmatched_sites()}


def test_rule_31_many_ids_are_read_and_written_by_tasks_with_the_same_cells(
    world: Path,
    wanted: JobCount,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    spark: object,
) -> None:
    _run(_request(world, tmp_path, YESTERDAY))
    monkeypatch.setattr(spark_runner, "DRIVER_IDS", 0)
    monkeypatch.setattr(earlier_jobs, "SENT_IDS", 0)
    monkeypatch.setattr(earlier_jobs, "is_local", lambda path: False)

    def refuse(day: object, files: object) -> None:
        raise AssertionError("the driver reads the ids")

    monkeypatch.setattr(earlier_jobs.EarlierDay, "read_ids", refuse)
    monkeypatch.setattr(JobTables, "add_rows", _without_ids)
    tables, manifest = _run(_request(world, tmp_path, engine="spark", join="index"))
    _check(tables, manifest, wanted)
    assert manifest["earlier_jobs"]["condor"]["ids_from"] == "stored"


_add_rows = JobTables.add_rows


def _without_ids(tables: JobTables, table: str, rows: Any) -> None:
    assert table != "condor_ids", "the driver collects the ids"
    _add_rows(tables, table, rows)


def test_rule_31_lost_ids_are_noticed_before_tasks_read_them(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = _request(world, tmp_path, YESTERDAY)
    run(request)
    done = results.current(LocalFiles(), request.fout, request.job, "condor_ids", YESTERDAY)
    monkeypatch.setattr(earlier_jobs, "SENT_IDS", 0)
    monkeypatch.setattr(earlier_jobs, "is_local", lambda path: False)
    entry = done.manifest.tables["condor_ids"]
    day = earlier_jobs.EarlierDay("condor", YESTERDAY, ids=done)
    assert len(day.id_paths(LocalFiles())) == entry.files
    lost = msgspec.structs.replace(
        done.manifest, tables={"condor_ids": msgspec.structs.replace(entry, rows=entry.rows + 1)}
    )
    damaged = earlier_jobs.EarlierDay("condor", YESTERDAY, ids=replace(done, manifest=lost))
    with pytest.raises(DataError, match="are not all there"):
        damaged.id_paths(LocalFiles())


def test_rule_31_kept_ids_of_other_files_do_not_serve(world: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    shutil.copytree(world, root)
    _run(_request(root, tmp_path, YESTERDAY))
    tree = Tree(root, YESTERDAY)
    more = jobs.job({"GlobalJobId": "job-1"}, None)
    tree.write("condor", "part-late", more + b"\n")
    tables, manifest = _run(_request(root, tmp_path))
    assert manifest["earlier_jobs"]["condor"]["ids_from"] == "logs"
    _check(tables, manifest, count_day_of_jobs(root, DAY))


def test_rule_31_without_the_folder_of_the_day_before_no_job_of_it_is_repeated_and_the_manifest_says_so(
    world: Path, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    shutil.copytree(world, root)
    _run(_request(root, tmp_path, YESTERDAY))
    shutil.rmtree(Tree(root, YESTERDAY).folder("condor"))
    tables, manifest = _run(_request(root, tmp_path))
    assert manifest["earlier_jobs"]["condor"] == {
        "day": "2019-06-14",
        "folder": None,
        "ids_from": None,
    }
    assert [text for text in manifest["warnings"] if "may count twice" in text]
    _check(tables, manifest, count_day_of_jobs(root, DAY))


def test_rule_29_the_day_before_may_have_an_unfinished_folder_only(
    world: Path, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    shutil.copytree(world, root)
    folder = Tree(root, YESTERDAY).folder("condor")
    folder.rename(folder.with_name(folder.name + ".tmp"))
    tables, manifest = _run(_request(root, tmp_path))
    assert manifest["earlier_jobs"]["condor"]["folder"].endswith(".tmp")
    _check(tables, manifest, count_day_of_jobs(root, DAY))


def test_a_day_of_jobs_needs_no_files_of_dbs(
    world: Path, wanted: JobCount, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    shutil.copytree(world, root)
    shutil.rmtree(Tree(root, DAY).dbs() / "FILES")
    tables, manifest = _run(_request(root, tmp_path))
    _check(tables, manifest, wanted)
    assert manifest["catalogue"] is None
    assert manifest["join"] == "index"


def test_people_of_jobs_are_pseudonyms_and_partials_are_the_oracles(
    world: Path, wanted: JobCount, tmp_path: Path
) -> None:
    request = _request(
        world,
        tmp_path,
        job="data_aggregation",
        tables=("data_aggregation", "partials", *JOB_TABLES),
    )
    tables, _ = _run(request)
    rows = partial_rows(_streams(wanted), DAY)
    people = _people(tables["partials"], rows)
    _same_rows(
        [{**row, "user": people[row["user"]]} for row in tables["partials"]],
        rows,
        (*REPORT_KEY, "user"),
    )
    stored = json.dumps(tables["crab_partials"], default=str)
    assert "alice" not in stored
    assert "Änne" not in stored


@pytest.mark.parametrize("streams", [("condor",), ("aaa", "condor")], ids="+".join)
def test_the_report_of_jobs_is_made_from_data_aggregation_without_the_logs(
    streams: tuple[str, ...], world: Path, wanted: JobCount, tmp_path: Path
) -> None:
    tables_of_day = ("data_aggregation", "partials", *JOB_TABLES)
    request = _request(
        world,
        tmp_path,
        job="data_aggregation",
        tables=tables_of_day,
        streams=streams,
        allow_missing=True,
    )
    _, counted = _run(request)
    tables, manifest = _run(_request(world, tmp_path))
    assert manifest["made_from"] == {"job": "data_aggregation", "run": counted["run"]}
    _check(tables, manifest, wanted)


def test_the_report_of_jobs_is_counted_where_the_logs_of_the_day_before_have_changed(
    world: Path, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    shutil.copytree(world, root)
    _run(
        _request(root, tmp_path, job="data_aggregation", tables=("data_aggregation", *JOB_TABLES))
    )
    Tree(root, YESTERDAY).write("condor", "part-9.json", b"")
    _, manifest = _run(_request(root, tmp_path))
    assert "made_from" not in manifest


def test_a_job_that_read_more_than_the_limit_is_quarantined(world: Path, tmp_path: Path) -> None:
    tables, manifest = _run(_request(world, tmp_path, quarantine_above=10**11))
    bins = manifest["reconciliation"]["condor"]
    assert manifest["oversized"]["condor"] > 10
    assert bins["read"] == sum(
        count for name, count in bins.items() if name not in ("read", "unmatched")
    ) + sum(bins["unmatched"].values())
    assert max(row["read_bytes"] or 0 for row in tables["dbs_condor"]) < 10**11
    assert manifest["partial"]


def test_a_sum_of_bytes_beyond_64_bits_names_the_job_record_and_what_to_do(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "root", DAY)
    write_case_tables(tree.dbs(), tree.phedex())
    huge = [
        jobs.job({"GlobalJobId": f"huge-{number}", "ChirpCMSSWReadBytes": 2**62 + number})
        for number in range(3)
    ]
    tree.write("condor", "part-0", b"".join(line + b"\n" for line in huge))
    with pytest.raises(DataError, match=r"condor.*a sum is beyond 2\^63-1") as error:
        _run(_request(tree.root, tmp_path))
    assert "line 3" in str(error.value.where)
    assert "--quarantine-above" in str(error.value.next_step)
