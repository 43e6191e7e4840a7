"""SQL over a store reaches nothing but stored tables; what is wrong is answered with
what is right.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cmsspark.base.errors import CmssparkError, NotAllowed, UsageError
from cmsspark.store.query.database import Database

HOSTILE = {
    "select * from read_csv('/etc/passwd')": NotAllowed,
    "select * from read_text('/etc/passwd')": NotAllowed,
    "select * from read_blob('/proc/self/environ')": NotAllowed,
    "select * from glob('/*')": NotAllowed,
    "select * from read_parquet('/etc/*.parquet')": NotAllowed,
    "select * from read_text('file:///etc/passwd')": NotAllowed,
    "select * from read_csv('https://example.org/x.csv')": CmssparkError,
    "select * from '/etc/passwd'": CmssparkError,
    "select * from 'cmsstore://partials/../../etc/passwd'": CmssparkError,
    "select * from sqlite_scan('/etc/passwd', 'x')": UsageError,
    "copy partials to '/tmp/stolen.csv'": UsageError,
    "copy (select 1) to '/tmp/stolen.csv'": UsageError,
    "explain analyze copy (select 1) to '/tmp/stolen.csv'": UsageError,
    "export database '/tmp/stolen'": UsageError,
    "attach '/tmp/other.db' as other": UsageError,
    "detach memory": UsageError,
    "use memory": UsageError,
    "install httpfs": UsageError,
    "load httpfs": UsageError,
    "update extensions": UsageError,
    "UPDATE EXTENSIONS (httpfs)": UsageError,
    "explain update extensions": UsageError,
    "set enable_external_access = true": UsageError,
    "set global lock_configuration = false": UsageError,
    "reset memory_limit": UsageError,
    "pragma enable_profiling": UsageError,
    "pragma threads = 64": UsageError,
    "call pragma_version()": UsageError,
    "create table mine as select 1": UsageError,
    "create or replace view partials as select 1": UsageError,
    "create macro f(x) as x": UsageError,
    "create secret s (type s3)": UsageError,
    "drop view partials": UsageError,
    "alter view partials rename to others": UsageError,
    "insert into partials values (1)": UsageError,
    "delete from partials": UsageError,
    "update partials set nacc = 0": UsageError,
    "with x as (insert into partials values (1) returning *) select * from x": UsageError,
    "prepare p as select 1": UsageError,
    "begin transaction": UsageError,
    "checkpoint": UsageError,
    "vacuum": UsageError,
    "select 1; select 2": UsageError,
    "select 1; copy (select 1) to '/tmp/stolen.csv'": UsageError,
    "": UsageError,
    ";": UsageError,
    "-- nothing": UsageError,
    "select": UsageError,
    "select nothing_of_that_name from partials": UsageError,
    "select * from no_such_table": UsageError,
    "select * from outside": UsageError,
    "select getenv('HOME')": UsageError,
    "select 1/'x'": UsageError,
    "select 'x'::date": UsageError,
}


@pytest.mark.parametrize("sql", HOSTILE)
def test_a_query_reaches_nothing_but_stored_tables(database: Database, sql: str) -> None:
    outside = [1, 2, 3]  # a Python variable that DuckDB would find by its name
    with pytest.raises(HOSTILE[sql]) as raised:
        database.query(sql)
    assert raised.value.exit_code in (2, 77, 65)
    assert outside and not Path("/tmp/stolen.csv").exists() and not Path("/tmp/stolen").exists()
    assert database.query("select count(*) from partials").rows == [(2100,)]


def test_names_that_lead_out_of_a_table_lead_nowhere(database: Database) -> None:
    for path in (
        "partials/../../../etc/passwd",
        "../etc/passwd",
        "partials/*/../../../../etc/passwd",
        "/etc/passwd",
    ):
        try:
            assert database.query(f"select * from read_text('cmsstore://{path}')").rows == []
        except CmssparkError as error:
            assert error.exit_code in (2, 77)


def test_a_wrong_name_gets_a_near_one(database: Database) -> None:
    with pytest.raises(UsageError) as wrong:
        database.query("select access from data_aggregation")
    assert '"accesses"' in str(wrong.value)
    with pytest.raises(UsageError) as wrong:
        database.query("select accesses from data_agregation")
    assert "Did you mean data_aggregation?" in str(wrong.value)
    with pytest.raises(UsageError) as wrong:
        database.query("select * from stored_dys")
    assert "Did you mean stored_days?" in str(wrong.value)
    with pytest.raises(UsageError) as wrong:
        database.query("select * from '/etc/passwd'")
    assert "mean" not in str(wrong.value), "no table of DuckDB's own"


@pytest.mark.parametrize("day", ["20260105", "'20260105'"])
def test_a_day_in_another_form_is_answered_with_the_right_one(
    database: Database, day: str
) -> None:
    with pytest.raises(UsageError) as wrong:
        database.query(f"select accesses from partials where day = {day}")
    assert wrong.value.next_step == "write the day as '2026-01-05'"
    assert database.query("select count(*) from partials where day = '2026-01-05'").rows == [
        (300,)
    ]


@pytest.mark.parametrize("day", ["latest", "2026-02-31", "99999999"])
def test_what_is_no_day_is_answered_with_how_days_are_written(
    database: Database, day: str
) -> None:
    with pytest.raises(UsageError) as wrong:
        database.query(f"select accesses from partials where day = '{day}'")
    assert str(wrong.value.next_step).startswith("write days as '2026-01-15'")
