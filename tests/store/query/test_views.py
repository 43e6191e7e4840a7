"""Views: accesses and jobs apart, a view for each table of each job, meanings and
units, a store that is gone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pytest
from click.testing import CliRunner

from cmsspark.base.errors import InputMissing, UsageError
from cmsspark.base.schemas import stored_table
from cmsspark.main import command
from cmsspark.store.query.database import Database
from cmsspark.store.query.stored_parts import tables
from tests.run.partial_days import partial, store_table
from tests.store.query.stores import make_store

DAY = date(2026, 1, 5)


def crab_row(day: date, job_count: int) -> dict[str, object]:
    return {
        **{column.name: None for column in stored_table("crab_partials").columns},
        **{
            "day": day,
            "input": "dataset",
            "dataset_name": "/A/B/AOD",
            "is_analysis": True,
            "job_count": job_count,
        },
        **{"failed_job_count": 0, "removed_job_count": 0, "first_ms": 1, "last_ms": 2},
    }


@pytest.fixture
def mixed(tmp_path: Path) -> Iterator[Database]:
    """A store with accesses and jobs of one dataset, and CRAB's jobs as two jobs stored them."""
    rows = [
        partial(DAY, nacc=3, read_bytes=30, remote_nacc=1),
        partial(DAY, stream="eos", nacc=4, read_bytes=None),
        partial(DAY, stream="condor", nacc=100, read_bytes=7_000, remote_nacc=50),
    ]
    store_table(tmp_path, "data_aggregation", "partials", DAY, rows)
    store_table(
        tmp_path, "dbs_condor", "crab_partials", DAY, [crab_row(DAY, 5), crab_row(DAY, 6)], parts=1
    )
    second = date(2026, 1, 6)
    store_table(
        tmp_path, "data_aggregation", "crab_partials", second, [crab_row(second, 7)], parts=1
    )
    with Database(str(tmp_path)) as database:
        yield database


def test_plain_sums_over_all_streams_add_no_jobs_to_accesses(mixed: Database) -> None:
    sums = "sum(accesses), sum(jobs), sum(read_bytes), sum(job_read_bytes), sum(remote_nacc)"
    assert mixed.query(f"select {sums} from partials").rows == [(7, 100, 30, 7_000, 1)]


def test_a_count_of_the_other_kind_is_unknown_and_not_0(mixed: Database) -> None:
    rows = mixed.query(
        "select stream, accesses, jobs, read_bytes, job_read_bytes from partials order by stream"
    ).rows
    assert rows == [
        ("aaa", 3, None, 30, None),
        ("condor", None, 100, None, 7_000),
        ("eos", 4, None, None, None),
    ]
    assert mixed.query("select sum(jobs) from partials where stream = 'aaa'").rows == [(None,)]


def test_a_table_of_several_jobs_has_all_their_rows_and_says_whose_they_are(
    mixed: Database,
) -> None:
    by_job = mixed.query(
        "select job, day, sum(job_count) from crab_partials group by all order by job"
    ).rows
    assert by_job == [("data_aggregation", date(2026, 1, 6), 7), ("dbs_condor", DAY, 11)]
    assert mixed.query("select count(*) from crab_partials").rows == [(3,)]


def test_each_table_of_each_job_has_a_view(mixed: Database) -> None:
    assert mixed.query("select sum(job_count) from dbs_condor.crab_partials").rows == [(11,)]
    assert mixed.query("select sum(job_count) from data_aggregation.crab_partials").rows == [(7,)]
    assert mixed.query("select sum(accesses) from data_aggregation.partials").rows == [(7,)]
    for name, jobs in tables().items():
        for job in jobs:
            assert mixed.query(f"select * from {job.name}.{name} limit 0").names


def test_the_stored_days_of_a_table_of_several_jobs_are_all_known(mixed: Database) -> None:
    sql = "select job, day, row_count from stored_days where table_name = 'crab_partials' order by day"
    assert mixed.query(sql).rows == [
        ("dbs_condor", DAY, 2),
        ("data_aggregation", date(2026, 1, 6), 1),
    ]
    assert [interval.job for interval in mixed.stored("dbs_condor.crab_partials")] == [
        "dbs_condor"
    ]


def test_show_tables_says_what_is_stored_and_what_it_means(mixed: Database) -> None:
    rows = {row["table_name"]: row for row in mixed.query("SHOW TABLES;").dicts}
    assert rows["crab_partials"]["stored_count"] == 2
    assert (rows["crab_partials"]["first_day"], rows["crab_partials"]["last_day"]) == (
        DAY,
        date(2026, 1, 6),
    )
    assert rows["dbs_condor.crab_partials"]["stored_count"] == 1
    assert rows["dbs_eos"]["stored_count"] == 0 and rows["dbs_eos"]["first_day"] is None
    assert all(row["meaning"] for row in rows.values())
    for name in rows:
        assert mixed.query(f"describe {name}").note.startswith(f"{name}: ")
        assert mixed.query(f"select * from {name} limit 0").names == mixed.views[name].names


def test_describe_says_meaning_unit_and_stored_days(mixed: Database) -> None:
    described = mixed.query("describe partials")
    units = {row["column_name"]: row["unit"] for row in described.dicts}
    assert (
        units["accesses"] == "accesses"
        and units["jobs"] == "jobs"
        and units["job_read_bytes"] == "bytes"
    )
    assert units["cpu_time"] == "s" and units["dataset_name"] is None
    assert all(row["meaning"] for row in described.dicts)
    assert described.note.endswith("Stored: 1 day, 2026-01-05 to 2026-01-05.")
    assert mixed.query("describe dbs_eos").note.endswith("Nothing of it is stored.")
    of_job = mixed.query("describe data_aggregation.partials")
    assert of_job.dicts == described.dicts and "data_aggregation.partials" not in str(
        mixed.query("show tables").rows
    )
    assert mixed.query("describe select 1 as a").dicts[0]["column_name"] == "a"
    with pytest.raises(UsageError, match="Did you mean partials"):
        mixed.query("describe partial")


def test_a_column_of_bytes_times_or_counts_has_a_unit() -> None:
    endings = ("_bytes", "_ms", "_count", "_share")
    for name in tables():
        for column in stored_table(name).columns:
            if column.name.endswith(endings) or column.name in ("nacc", "cpu_time", "wc_time"):
                assert column.name == "nacc" or column.unit, (name, column.name)


def test_the_command_prints_the_description_above_its_table(tmp_path: Path) -> None:
    store = make_store(tmp_path, 1)
    shown = CliRunner().invoke(
        command, ["sql", "describe data_aggregation", "--fout", store], standalone_mode=False
    )
    assert "Stored: 1 day, 2026-01-05" in shown.stdout and "bytes read by jobs" in shown.stdout
    as_json = CliRunner().invoke(
        command, ["sql", "show tables", "--json", "--fout", store], standalone_mode=False
    )
    assert {"table_name", "meaning", "stored_count"} <= json.loads(as_json.stdout)[0].keys()


@pytest.mark.parametrize("is_mount_point", [False, True])
def test_a_store_that_is_gone_while_a_database_is_open_is_missing_and_not_empty(
    tmp_path: Path, is_mount_point: bool
) -> None:
    """What an unmounted disk leaves is no folder, or an empty one."""
    store = tmp_path / "store"
    make_store(store, 1)
    with Database(str(store)) as database:
        assert database.query("select count(*) from partials").rows == [(300,)]
        store.rename(tmp_path / "aside")
        if is_mount_point:
            store.mkdir()
        for _ in range(2):
            with pytest.raises(InputMissing, match="there is no store"):
                database.query("select count(*) from partials")
        with pytest.raises(InputMissing):
            database.query("show tables")
        if is_mount_point:
            store.rmdir()
        (tmp_path / "aside").rename(store)
        assert database.query("select count(*) from partials").rows == [(300,)]
