"""``crab_popularity`` and ``crab_users`` of stored days, every cell against the oracle
(rules 37 and 38).
"""

from __future__ import annotations

from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from cmsspark.apps.crab.reports import BUILDERS, store_report
from cmsspark.apps.crab.tasks import store_jobs
from cmsspark.base.errors import InputMissing, NotReady
from cmsspark.base.periods import Period
from cmsspark.base.schemas import stored_table
from cmsspark.engines import session
from cmsspark.run.log_day import run
from cmsspark.run.request import DayRequest
from cmsspark.settings.settings import Settings
from cmsspark.sources.registry import JOB_TABLES
from cmsspark.store.own_jobs import JOBS
from cmsspark.submit.job_help import load_command
from tests.apps.replicas.usage_world import write_world
from tests.corpus import jobs
from tests.corpus.tree import Tree, write_case_tables
from tests.oracle.jobs import JobCount, count_day_of_jobs, popularity_rows

#: From Sunday to Wednesday, over the end of a week and of a month.
DAYS = [date(2019, 6, 30) + timedelta(days=number) for number in range(4)]
RANGE = Period(DAYS[0], DAYS[-1] + timedelta(days=1))
EPOCHS = {"epochs": {"jobs": {"condor": {"from": "always"}}}}


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("private")


def _settings(private: Path) -> Settings:
    return Settings(None, None, private / "state", private / "cache", sources=EPOCHS)


@pytest.fixture(scope="module")
def counted(private: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[date, JobCount]:
    """The days as the oracle counts them; the job has counted them, too."""
    root = tmp_path_factory.mktemp("root")
    tree = Tree(root, DAYS[-1])
    write_case_tables(tree.dbs(), tree.phedex())
    for number, day in enumerate(DAYS):
        Tree(root, day).write_lines("condor", jobs.lines_at_random(number, day, 700, 300))
    for day in DAYS:
        request = DayRequest(
            "dbs_condor",
            day,
            str(private / "store"),
            _settings(private),
            root=str(root),
            streams=("condor",),
            tables=("dbs_condor", *JOB_TABLES),
            max_malformed="100%",
        )
        run(request, log=lambda text: None)
    return {day: count_day_of_jobs(root, day) for day in DAYS}


def _rows(name: str, period: Period, private: Path, **options: Any) -> list[dict[str, Any]]:
    options = {"allow_missing": name == "crab_users", **options}
    done = store_report(
        name,
        period,
        str(private / "store"),
        _settings(private),
        BUILDERS[name],
        log=lambda text: None,
        **options,
    )
    table = pq.read_table(Path(done.path) / name)
    assert table.schema.names == stored_table(name).names
    return table.to_pylist()


def _key(row: dict[str, Any]) -> tuple[str, str]:
    return str(row["input"]), row["dataset_name"] or ""


def test_rule_37_every_cell_of_crab_popularity_is_the_oracles(
    counted: dict[date, JobCount], private: Path
) -> None:
    wanted = sorted(popularity_rows(counted.values()), key=_key)
    rows = _rows("crab_popularity", RANGE, private)
    assert [{name: row[name] for name in wanted[0]} for row in rows] == wanted
    assert {row["input"] for row in rows} == {"dataset", "no_input", "user_file", "not_in_dbs"}
    assert {(row["period"], row["first_day"], row["last_day"]) for row in rows} == {
        ("2019-06-30--2019-07-03", DAYS[0], DAYS[-1])
    }


def test_rule_38_every_cell_of_crab_users_is_the_oracles_by_week_and_month(
    counted: dict[date, JobCount], private: Path
) -> None:
    def row(kind: str, period: str, days: list[date]) -> dict[str, object]:
        of_days = [
            job.record
            for day in days
            for job in counted[day].jobs
            if job.record.app == "crab" and (job.record.type or "").lower() == "analysis"
        ]
        return {
            "period_kind": kind,
            "period": period,
            "distinct_users": len({job.user_name for job in of_days} - {None}),
            "job_count": len(of_days),
            "day_count": len(days),
            "is_complete": False,
        }

    rows = _rows("crab_users", RANGE, private)
    assert [{name: one[name] for name in one if name != "timestamp"} for one in rows] == [
        row("week", "2019-W26", DAYS[:1]),
        row("week", "2019-W27", DAYS[1:]),
        row("month", "2019-06", DAYS[:1]),
        row("month", "2019-07", DAYS[1:]),
    ]


def test_rule_38_a_week_has_one_row_which_says_how_many_of_its_days_are_stored(
    counted: dict[date, JobCount], private: Path
) -> None:
    week = Period(date(2019, 7, 1), date(2019, 7, 8))
    (row,) = _rows("crab_users", week, private)
    assert (row["period_kind"], row["period"], row["day_count"], row["is_complete"]) == (
        "week",
        "2019-W27",
        3,
        False,
    )


def test_every_cell_of_crab_task_jobs_is_the_oracles_and_each_job_counts_once(
    counted: dict[date, JobCount], private: Path, tmp_path: Path
) -> None:
    every = [job for count in counted.values() for job in count.jobs if job.record.app == "crab"]
    workflows = sorted({job.record.workflow for job in every if job.record.workflow})
    asked: dict[str | None, tuple[bool | None, bool | None]] = {}
    rows: list[dict[str, Any]] = [{"TM_TASKNAME": "of no job", "TM_IGNORE_LOCALITY": "T"}]
    for number, name in enumerate(workflows[1:]):
        flag, config = (
            "TFX"[number % 3],
            (None, "{}", '{"requireaccelerator": true}')[number % 2 + 1],
        )
        asked[name] = {"T": True, "F": False}.get(flag), config != "{}"
        rows.append({"TM_TASKNAME": name, "TM_IGNORE_LOCALITY": flag, "TM_USER_CONFIG": config})
        # A task that is there twice is one.
        rows += rows[-1:] if number % 4 == 0 else []
    write_world(tmp_path, {"TASKS": rows}, DAYS[-1] + timedelta(days=1), parts=2)
    cells: dict[Any, list[Any]] = {}
    for job in every:
        tier = None if job.dataset is None else job.dataset.split("/")[3]
        cells.setdefault((*asked.get(job.record.workflow, (None, None)), tier), []).append(job)
    expected = {}
    for key, of_cell in cells.items():
        row = popularity_rows(
            [JobCount(jobs=[replace(job, input="", dataset=None) for job in of_cell])]
        )
        expected[key] = {
            name: value
            for name, value in row[0].items()
            if name not in ("input", "dataset_name", "data_tier")
        }
    store, settings = str(private / "store"), _settings(private)
    done = store_jobs(RANGE, store, settings, str(tmp_path), log=lambda text: None)
    table = pq.read_table(Path(done.path) / "crab_task_jobs")
    assert table.schema.names == stored_table("crab_task_jobs").names
    keys = ("ignore_locality", "wants_gpu", "data_tier")
    others = ("period", "first_day", "last_day", "timestamp")
    found = {
        tuple(row[name] for name in keys): {
            name: value for name, value in row.items() if name not in (*keys, *others)
        }
        for row in table.to_pylist()
    }
    assert found == expected and len(found) > 5
    assert sum(row["job_count"] for row in found.values()) == len(every)
    assert done.manifest.document["tasks"] == {"of_jobs": len(workflows), "not_in_dump": 1}


def test_days_that_are_not_stored_are_named(counted: dict[date, JobCount], private: Path) -> None:
    week = Period(date(2019, 7, 1), date(2019, 7, 8))
    with pytest.raises(
        InputMissing, match="4 of the 7 days of 2019-W27 are not stored: 2019-07-04 to 2019-07-07"
    ):
        _rows("crab_popularity", week, private)
    assert _rows("crab_popularity", week, private, allow_missing=True)
    with pytest.raises(InputMissing, match="HTCondor's jobs of 7 of the 7 days"):
        _rows("crab_users", Period(date(2019, 8, 5), date(2019, 8, 12)), private)


@pytest.mark.parametrize("job", BUILDERS)
def test_the_commands_want_a_period(job: str, private: Path) -> None:
    found = CliRunner().invoke(load_command(JOBS[job]), ["--fout", str(private / "store")])
    assert "no period is given" in str(found.exception)


def test_a_store_on_hdfs_is_reached_with_the_settings_that_were_given(
    private: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(app: str, settings: Settings | None) -> None:
        raise NotReady(f"no session for {settings}")

    monkeypatch.setattr(session, "small_session", refuse)
    settings = _settings(private)
    with pytest.raises(NotReady) as told:
        build = BUILDERS["crab_users"]
        store_report(
            "crab_users",
            RANGE,
            "hdfs://n/store",
            settings,
            build,
            allow_missing=True,
            log=lambda _: None,
        )
    assert str(settings) in told.value.problem
