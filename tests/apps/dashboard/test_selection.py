"""No part of a selection is left out: each page by each grouping with each filter has
the numbers of plain SQL over the stored Parquet files.
"""

from __future__ import annotations

import html
import io
import json
import random
import re
import urllib.request
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import duckdb
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from cmsspark.apps.dashboard import site_use, use
from cmsspark.apps.dashboard.selection import Selection, UnusedPartError
from cmsspark.main import command
from tests.apps.dashboard import test_storage_page as storage_page
from tests.apps.dashboard.conftest import Running
from tests.apps.dashboard.stores import LAST, ORDINARY

#: A period that cuts the month before the newest one, and the one before it.
PERIOD = (date(2025, 12, 21), date(2026, 1, 12))
BEFORE = (date(2025, 12, 3), date(2025, 12, 20))
GROUPS = ("stream", "data_tier", "site_tier", "campaign")
MEASURES = {
    "nacc": "sum(nacc) FILTER (stream <> 'condor')",
    "read_bytes": "sum(read_bytes) FILTER (stream <> 'condor')",
    "job_count": "sum(nacc) FILTER (stream = 'condor')",
    "job_read_bytes": "sum(read_bytes) FILTER (stream = 'condor')",
    "cpu_ms": "sum(round(cpu_time * 1000)::HUGEINT)",
}
FILTERS: list[dict[str, list[str]]] = [
    {},
    {"stream": ["aaa"]},
    {"stream": ["crab", "condor"]},
    {"data_tier": ["AOD"]},
    {"data_tier": ["-"]},
    {"site_tier": ["T2", "T3"]},
    {"campaign": ["Run2018A"]},
    {"data_tier": ["AOD", "NANOAOD"], "site_tier": ["T1"]},
    {"stream": ["eos", "aaa"], "campaign": ["Run2018A", "Run2017B"], "site_tier": ["T2"]},
    {"stream": ["condor"], "data_tier": ["AOD"], "campaign": ["Run2018A"], "site_tier": ["T2"]},
    {"site_tier": ["T9"], "data_tier": ["AOD"]},
]


@pytest.fixture(scope="module")
def stored(store: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """The stored partials as the table ``use``."""
    with duckdb.connect() as con:
        files = str(store / "data_aggregation/*/runs/*/partials/*.parquet")
        con.execute(
            "CREATE TABLE use AS SELECT *, split_part(dataset_name, '/', 4) AS data_tier, "
            "split_part(split_part(dataset_name, '/', 3), '-', 1) AS campaign, "
            "split_part(site_name, '_', 1) AS site_tier "
            f"FROM read_parquet('{files}', hive_partitioning = false)"
        )
        yield con


def in_sql(filters: dict[str, list[str]], period: tuple[date, date]) -> str:
    conditions = [f"day BETWEEN '{period[0]}' AND '{period[1]}'"]
    for name, values in filters.items():
        texts = ", ".join("''" if value == "-" else f"'{value}'" for value in values)
        conditions.append(f"{name} IN ({texts})")
    return " AND ".join(conditions)


def users_sql(filters: dict[str, list[str]]) -> str:
    """Count people of accesses; those of jobs only where all streams are of jobs."""
    sign = "=" if filters.get("stream") == ["condor"] else "<>"
    return f"count(DISTINCT \"user\") FILTER (stream {sign} 'condor')"


def download(dashboard: Running, page: str, table: str, **parameters: Any) -> list[dict[str, Any]]:
    query = {"from": PERIOD[0], "to": PERIOD[1], **parameters, "download": table}
    address = f"{dashboard.base}/{page}?{urlencode(query, doseq=True)}&format=parquet"
    with urllib.request.urlopen(address) as answer:
        rows: list[dict[str, Any]] = pq.read_table(io.BytesIO(answer.read())).to_pylist()
    return rows


def grouped(
    stored: duckdb.DuckDBPyConnection, keys: str, value: str, where: str
) -> dict[Any, int]:
    rows = stored.execute(f"SELECT {keys}, {value} FROM use WHERE {where} GROUP BY ALL").fetchall()
    return {row[0] if len(row) == 2 else row[:-1]: int(row[-1]) for row in rows if row[-1]}


@pytest.mark.parametrize("filters", FILTERS, ids=str)
@pytest.mark.parametrize("by", ["dataset_name", "site_name", *GROUPS])
def test_compare(
    dashboard: Running, stored: duckdb.DuckDBPyConnection, by: str, filters: dict[str, list[str]]
) -> None:
    ends = {"from2": BEFORE[0], "to2": BEFORE[1]}
    for measure, value in MEASURES.items():
        rows = download(dashboard, "compare", "compare", by=by, measure=measure, **ends, **filters)
        for column, period in (("now", PERIOD), ("before", BEFORE)):
            shown = {row[by] or "": row[column] for row in rows if row[column]}
            assert shown == grouped(stored, by, value, in_sql(filters, period)), (measure, column)


@pytest.mark.parametrize("filters", FILTERS, ids=str)
@pytest.mark.parametrize("by", ["none", *GROUPS])
def test_values_over_time(
    dashboard: Running, stored: duckdb.DuckDBPyConnection, by: str, filters: dict[str, list[str]]
) -> None:
    where, key = in_sql(filters, PERIOD), "''" if by == "none" else by
    pages = [("popularity", "over_time", {"by": by, "measure": name}) for name in MEASURES]
    pages += [("popularity", "over_time", {"by": by, "measure": "users"})]
    pages += [("users", "users", {"by": by})]
    pages += [("users", "cpu", {"cpu_by": by})] if by not in ("none", "stream") else []
    for page, table, parameters in pages:
        measure = parameters.get("measure", "cpu_ms" if table == "cpu" else "users")
        if filters.get("stream") == ["condor"]:
            # A stream of jobs has no accesses, and its page shows jobs instead.
            measure = {"nacc": "job_count", "read_bytes": "job_read_bytes"}.get(measure, measure)
        elif len(filters.get("stream", ())) == 1:
            measure = measure.removeprefix("job_").replace("count", "nacc")
        rows = download(dashboard, page, table, step="month", **parameters, **filters)
        value = users_sql(filters) if measure == "users" else MEASURES[measure]
        cells = grouped(stored, f"strftime(day, '%Y-%m'), {key}", value, where)
        names = [name for name in rows[0] if name.startswith(f"{measure}_") or name == measure]
        for row in rows:
            for name in (name for name in names if name != f"{measure}_other"):
                group = name.removeprefix(measure).removeprefix("_")
                expected = cells.get((row["month"], "" if group == "-" else group), 0)
                assert (row[name] or 0) == expected, (page, measure, row["month"], name)
            if measure != "users":
                total = sum(count for cell, count in cells.items() if cell[0] == row["month"])
                assert sum(row[name] or 0 for name in names) == total, (page, measure)


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_tables_of_datasets(
    dashboard: Running, stored: duckdb.DuckDBPyConnection, filters: dict[str, list[str]]
) -> None:
    where = in_sql(filters, PERIOD)
    people = grouped(stored, "dataset_name", users_sql(filters), where)
    for measure, value in MEASURES.items():
        expected = grouped(stored, "dataset_name", value, where)
        # Datasets of accesses are there, or of jobs where these are asked for.
        rows = download(dashboard, "popularity", "datasets", measure=measure, **filters)
        of_rows = {row["dataset_name"]: row[measure] for row in rows if row[measure]}
        assert of_rows.items() <= expected.items() and (
            measure == "cpu_ms" or of_rows == expected or len(filters.get("stream", ())) == 1
        )
        assert all(
            (row["distinct_users"] or 0) == people.get(row["dataset_name"], 0) for row in rows
        )
        rows = download(
            dashboard, "datasets", "datasets", columns=[measure, "distinct_users"], **filters
        )
        assert {row["dataset_name"]: row[measure] for row in rows if row[measure]} == expected
        shown = {row["dataset_name"]: row["distinct_users"] for row in rows}
        assert {name: count for name, count in shown.items() if count} == people


@pytest.mark.parametrize("streams", [[], ["aaa"], ["crab", "condor"], ["condor"]], ids=str)
def test_pages_of_sites_and_of_one_dataset(
    dashboard: Running, stored: duckdb.DuckDBPyConnection, streams: list[str]
) -> None:
    filters = {"stream": streams} if streams else {}
    where = in_sql(filters, PERIOD)
    site, name = "T2_CH_CERN", ORDINARY[0]
    at_site = f"{where} AND site_name = '{site}'"
    of_dataset = f"{where} AND dataset_name = '{name}'"
    tables = [
        ("sites", "sites", "site_name", where, {}),
        ("sites", "datasets", "dataset_name", at_site, {"site": site}),
        ("sites", "by_data_tier", "data_tier", at_site, {"site": site}),
        ("sites", "by_app", "app", at_site, {"site": site}),
        ("dataset", "by_site", "site_name", of_dataset, {"name": name}),
        ("dataset", "by_app", "app", of_dataset, {"name": name}),
    ]
    for page, table, key, condition, parameters in tables:
        rows = download(dashboard, page, table, **parameters, **filters)
        for measure in ("nacc", "read_bytes", "job_count", "cpu_ms"):
            shown = {row[key] or "": row[measure] for row in rows if row[measure]}
            shown = {"" if name == "none" else name: value for name, value in shown.items()}
            expected = grouped(stored, key, MEASURES[measure], condition)
            assert shown == expected, (page, table, measure)
    rows = download(dashboard, "sites", "sites", **filters)
    people = grouped(stored, "site_name", users_sql(filters), where)
    assert {
        row["site_name"]: row["distinct_users"] for row in rows if row["distinct_users"]
    } == people


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_people_with_one_data_tier_but_not_another(
    dashboard: Running, stored: duckdb.DuckDBPyConnection, filters: dict[str, list[str]]
) -> None:
    rows = download(dashboard, "users", "two_tiers", tier="AOD", other_tier="NANOAOD", **filters)
    others = {name: values for name, values in filters.items() if name != "data_tier"}
    sign = "=" if filters.get("stream") == ["condor"] else "<>"
    sets = [
        f'SELECT DISTINCT "user" FROM use WHERE {in_sql(others, PERIOD)} AND "user" IS NOT NULL '
        f"AND stream {sign} 'condor' AND data_tier = '{tier}'"
        for tier in ("AOD", "NANOAOD")
    ]
    expected = []
    for sql in (
        f"{sets[0]} EXCEPT {sets[1]}",
        f"{sets[0]} INTERSECT {sets[1]}",
        f"{sets[1]} EXCEPT {sets[0]}",
    ):
        expected += stored.execute(f"SELECT count(*) FROM ({sql})").fetchall()
    assert [row["users"] or 0 for row in rows] == [row[0] for row in expected]


def test_what_the_largest_unused_replicas_win_together(
    dashboard: Running, store: Path, stored: duckdb.DuckDBPyConnection
) -> None:
    rows = download(dashboard, "sites", "unused", site="T1_US_FNAL", weeks=1, kind="disk")
    files = str(store / "dbs_phedex/*/runs/*/dbs_phedex/*.parquet")
    expected = stored.execute(
        "SELECT dataset_name, sum(present_bytes) OVER (ORDER BY present_bytes DESC, dataset_name)::BIGINT "
        f"FROM read_parquet('{files}', hive_partitioning = false) WHERE site_name = 'T1_US_FNAL' "
        "AND kind = 'disk' AND dataset_name NOT IN (SELECT dataset_name FROM use "
        f"WHERE site_name = 'T1_US_FNAL' AND day > '{LAST - timedelta(days=7)}') ORDER BY 2"
    ).fetchall()
    assert [(row["dataset_name"], row["running_bytes"]) for row in rows] == expected
    half = expected[-1][1] // 2 // 10**12
    count = sum(size < half * 10**12 for _, size in expected) + 1
    address = f"{dashboard.base}/sites?site=T1_US_FNAL&weeks=1&win={half}"
    with urllib.request.urlopen(address) as answer:
        text = answer.read().decode()
    assert f"<b>{count} datasets</b>" in text


@pytest.mark.parametrize("by", ["data_tier", "campaign"])
@pytest.mark.parametrize("tiers", [[], ["T1", "T2"]], ids=str)
def test_what_replicas_are_worth(
    dashboard: Running,
    store: Path,
    stored: duckdb.DuckDBPyConnection,
    by: str,
    tiers: list[str],
) -> None:
    rows = download(dashboard, "data", "worth", weeks=2, by=by, kind="disk", site_tier=tiers)
    weeks = (LAST - timedelta(days=13), LAST)
    use_sql = in_sql({"site_tier": tiers} if tiers else {}, weeks)
    there_sql = use_sql.partition(" AND ")[2].partition(" AND ")[2]
    files = str(store / "dbs_phedex/*/runs/*/dbs_phedex/*.parquet")
    sums = ", ".join(f"({sql})::DOUBLE AS {name}" for name, sql in MEASURES.items())
    key = {
        "data_tier": "split_part(dataset_name, '/', 4)",
        "campaign": "split_part(split_part(dataset_name, '/', 3), '-', 1)",
    }[by]
    expected = stored.execute(
        f"WITH used AS (SELECT {by} AS key, {sums} FROM use WHERE {use_sql} GROUP BY 1), "
        f"there AS (SELECT {key} AS key, count(*) AS n, sum(present_bytes)::DOUBLE AS size "
        f"FROM read_parquet('{files}', hive_partitioning = false) "
        f"WHERE kind = 'disk' AND {there_sql or 'true'} GROUP BY 1) "
        "SELECT coalesce(used.key, there.key), coalesce(n, 0), coalesce(size, 0), nacc / n, "
        "read_bytes / size, read_bytes / nacc, cpu_ms / job_count "
        "FROM used FULL JOIN there USING (key)"
    ).fetchall()
    names = (
        *("replica_count", "replica_bytes", "accesses_per_replica"),
        *("read_per_byte", "bytes_per_access", "cpu_ms_per_job"),
    )
    shown = {row[by]: tuple(row[name] for name in names) for row in rows}
    assert shown.keys() == {row[0] for row in expected} and len(shown) > 4
    for row in expected:
        assert shown[row[0]] == pytest.approx(row[1:]), row[0]


@pytest.mark.parametrize(
    "filters",
    [
        {"site_tier": ["T3"]},
        {"campaign": ["Run2018A"]},
        {"stream": ["crab", "condor"], "site_tier": ["T3"]},
    ],
    ids=str,
)
def test_unusual_days_and_the_sites_behind_them(
    dashboard: Running, stored: duckdb.DuckDBPyConnection, filters: dict[str, list[str]]
) -> None:
    rows = download(dashboard, "popularity", "unusual", **filters)
    streams = filters.get("stream", ["aaa", "eos", "cmssw", "crab", "condor"])
    others = {name: values for name, values in filters.items() if name != "stream"}
    condition = in_sql(others, (date(2020, 1, 1), LAST))

    def usual(key: str) -> str:
        """Numbers of each day, stream and key, beside the median of four weeks before."""
        return f"""
        WITH days AS (SELECT DISTINCT day, unnest({streams}) AS stream FROM use),
        -- The partial day was counted without a stream.
        counted AS (SELECT * FROM days WHERE NOT (day = '{LAST - timedelta(days=3)}' AND stream = 'eos')),
        keys AS (SELECT DISTINCT {key} AS key FROM use WHERE {condition}),
        counts AS (SELECT c.day, c.stream, keys.key, coalesce(sum(nacc), 0)::BIGINT AS n
          FROM counted c CROSS JOIN keys LEFT JOIN (SELECT * FROM use WHERE {condition}) u
          ON u.day = c.day AND u.stream = c.stream AND ({key}) = keys.key GROUP BY ALL),
        medians AS (SELECT a.day, a.stream, a.key, a.n, median(b.n) AS usual, count(*) AS weeks
          FROM counts a JOIN counts b ON a.stream = b.stream AND a.key = b.key
          AND a.day - b.day IN (7, 14, 21, 28) GROUP BY ALL)"""

    expected = stored.execute(
        f"{usual('1')} SELECT day::VARCHAR, stream, n, usual FROM medians WHERE weeks > 1 "
        f"AND (2 * n < usual OR n > 2 * usual) AND usual > 0 AND day BETWEEN '{PERIOD[0]}' AND '{PERIOD[1]}' "
        "ORDER BY abs(n - usual) DESC, day, stream"
    ).fetchall()
    names = ("day", "stream", "count", "usual")
    assert len(expected) > 1
    assert [tuple(row[name] for name in names) for row in rows] == [
        (*row[:3], round(row[3])) for row in expected
    ]
    behind = {
        row[:2]: row[2:]
        for row in stored.execute(
            f"{usual('site_name')} SELECT day::VARCHAR, stream, key, n, usual FROM medians "
            "QUALIFY row_number() OVER (PARTITION BY day, stream ORDER BY abs(n - usual) DESC, key) = 1"
        ).fetchall()
    }
    is_by_site = "campaign" not in filters and "data_tier" not in filters
    for number, row in enumerate(rows):
        own = (row["site_name"], row["site_count"], row["site_usual"])
        site, count, median = behind[row["day"], row["stream"]]
        expected_site = (site, count, round(median)) if is_by_site and number < 20 else (None,) * 3
        assert own == expected_site, row


def test_the_totals_of_source_sites_are_of_all_their_readers(
    dashboard: Running, store: Path, stored: duckdb.DuckDBPyConnection
) -> None:
    rows = download(dashboard, "sites", "source_sites")
    files = str(store / "data_aggregation/*/runs/*/site_pairs/*.parquet")
    expected = stored.execute(
        "SELECT coalesce(source_site, 'not named in the log'), sum(nacc)::BIGINT, "
        f"sum(read_bytes)::BIGINT FROM read_parquet('{files}', hive_partitioning = false) "
        f"WHERE day BETWEEN '{PERIOD[0]}' AND '{PERIOD[1]}' GROUP BY 1"
    ).fetchall()
    assert {tuple(row.values()) for row in rows} == {*expected}


@pytest.mark.parametrize(
    ("page", "unused"),
    [
        ("sites", "campaign=Run2018A"),
        ("sites?site=T2_CH_CERN", "data_tier=AOD"),
        (f"dataset?name={ORDINARY[0]}", "site_tier=T2"),
        ("popularity", "site=T2_CH_CERN"),
        ("data", "stream=aaa"),
    ],
)
def test_a_filter_that_a_page_lacks_is_named_and_changes_nothing(
    dashboard: Running, page: str, unused: str
) -> None:
    def read(address: str) -> str:
        with urllib.request.urlopen(f"{dashboard.base}/{address}") as answer:
            return str(answer.read().decode())

    text = read(f"{page}{'&' if '?' in page else '?'}{unused}")
    name = unused.partition("=")[0]
    assert f"has no such choice, and the address is shown without it: {name}" in text
    for number in ("<b>", "<td"):
        assert text.count(number) == read(page).count(number)


def test_data_at_sites_take_several_tiers(dashboard: Running, store: Path) -> None:
    (part,) = (store / "site_tier_usage" / LAST.isoformat()).glob(
        "runs/*/site_tier_usage/*.parquet"
    )
    rows = pq.read_table(part, partitioning=None).to_pylist()
    shown = download(dashboard, "data", "data_by_tier", site_tier=["T1", "T2"])
    assert sum(row["replica_bytes"] for row in shown) == sum(
        row["replica_bytes"] for row in rows if row["site_tier"] in ("T1", "T2")
    )


def ask(store: Path, *words: str) -> dict[str, Any]:
    """Return the answer of ``cmsspark ask`` for the period."""
    period = ("--from", str(PERIOD[0]), "--to", str(PERIOD[1]), "--json", "--fout", str(store))
    done = CliRunner().invoke(command, ["ask", *words, *period])
    assert done.exit_code == 0, done.output
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.mark.parametrize("by", ["dataset", "site", "app", *GROUPS])
def test_what_ask_says_that_changed(
    dashboard: Running, store: Path, stored: duckdb.DuckDBPyConnection, by: str
) -> None:
    against = ("--against-from", str(BEFORE[0]), "--against-to", str(BEFORE[1]))
    answer = ask(store, "changed", "--by", by, *against)
    column = f"{by}_name" if by in ("dataset", "site") else by
    for measure in ("nacc", "job_count"):
        for name, period in (("after", PERIOD), ("before", BEFORE)):
            expected = grouped(stored, column, MEASURES[measure], in_sql({}, period))
            cells = ((row[column] or "", row[f"{measure}_{name}"]) for row in answer["rows"])
            assert {key: count for key, count in cells if count} == expected
    if by != "app":
        # Its page has these numbers, too.
        address = f"{dashboard.base}{answer['page']}&download=compare&format=parquet"
        with urllib.request.urlopen(address) as page:
            rows = pq.read_table(io.BytesIO(page.read())).to_pylist()
        assert {(row[column] or "", row["now"], row["before"]) for row in rows if row["now"]} == {
            (row[column] or "", row["nacc_after"], row["nacc_before"])
            for row in answer["rows"]
            if row["nacc_after"]
        }


@pytest.mark.parametrize(
    ("words", "where"),
    [
        (("reads", "T2_CH_CERN"), "site_name = 'T2_CH_CERN'"),
        (("reads", "T2_*"), "starts_with(site_name, 'T2_')"),
        (("who-reads", ORDINARY[0]), f"dataset_name = '{ORDINARY[0]}'"),
        (
            ("who-reads", "/ZMM/*", "--site", "T2_*"),
            "starts_with(dataset_name, '/ZMM/') AND starts_with(site_name, 'T2_')",
        ),
    ],
    ids=str,
)
def test_what_ask_says_of_reads(
    store: Path, stored: duckdb.DuckDBPyConnection, words: tuple[str, ...], where: str
) -> None:
    answer, where = ask(store, *words), f"{in_sql({}, PERIOD)} AND {where}"
    tables = [name for name in answer if name.startswith("by_")]
    assert len(tables) > 1
    for table in tables:
        keys = {"by_dataset": "dataset_name", "by_site": "site_name"}
        column = keys.get(table, table.removeprefix("by_"))
        for measure in ("nacc", "read_bytes", "job_count", "distinct_users"):
            value = users_sql({}) if measure == "distinct_users" else MEASURES[measure]
            cells = ((row[column] or "", row[measure]) for row in answer[table])
            shown = {key: count for key, count in cells if count}
            assert shown == grouped(stored, column, value, where), (table, measure)
    ((accesses, people, jobs, job_people),) = stored.execute(
        f"SELECT {MEASURES['nacc']}, {users_sql({})}, {MEASURES['job_count']}, "
        f"{users_sql({'stream': ['condor']})} FROM use WHERE {where}"
    ).fetchall()
    totals = answer["totals"]
    assert (totals["nacc"], totals["distinct_users"]) == (accesses, people)
    of_jobs = totals["jobs"]
    assert (of_jobs["job_count"], of_jobs["distinct_users"]) == (jobs, job_people)


def test_the_query_that_the_page_sql_begins_with(
    dashboard: Running, stored: duckdb.DuckDBPyConnection
) -> None:
    with urllib.request.urlopen(f"{dashboard.base}/sql") as answer:
        text = re.search(r"<textarea[^>]*>(.*?)</textarea>", answer.read().decode(), re.DOTALL)
    assert text is not None
    query = {"q": html.unescape(text[1]), "download": "query", "format": "parquet"}
    with urllib.request.urlopen(f"{dashboard.base}/sql?{urlencode(query)}") as answer:
        rows = pq.read_table(io.BytesIO(answer.read())).to_pylist()
    sums = ", ".join(MEASURES[name] for name in ("nacc", "read_bytes", "job_count"))
    expected = stored.execute(
        f"SELECT data_tier, {sums} FROM use WHERE day = '{LAST}' GROUP BY 1"
    ).fetchall()
    assert {(row["data_tier"] or "", *[*row.values()][1:]) for row in rows} == {*expected}


def test_storage_of_each_day(tmp_path: Path) -> None:
    rng = random.Random(7)
    names = [f"T{number % 3}_XX_S{number}" for number in range(9)]

    def sizes(*columns: str) -> dict[str, int]:
        return {name: rng.randrange(10**15) for name in columns}

    usage = [
        {
            **{"rse": rse, "kind": rng.choice(("disk", "tape")), "is_test": rng.random() < 0.2},
            **sizes("static_bytes", "rucio_bytes", "free_bytes", "locked_bytes", "expired_bytes"),
        }
        for rse in names
    ]
    accounts = [
        {
            **{"rse": rse, "account": f"a{number}", "account_class": kind},
            **{"limit_kind": "limit" if number % 2 else "none"},
            **sizes("lock_bytes", "stuck_bytes", *(("limit_bytes",) if number % 2 else ())),
        }
        for rse in names
        for number, kind in enumerate(("user", "user", "unknown", "production", "group"))
    ]
    going = [
        {"rse": rse, "dataset_name": f"/a/b-{number}/AOD", **sizes("deletable_bytes")}
        for rse in names[:6]
        for number in range(3)
    ]
    rules = [
        {
            **{"event": event, "reason": f"r{number % 2}", "activity": f"a{number % 3}"},
            **{"account": f"x{number}", "rule_count": number, "lock_stuck": 2 * number},
            "oldest_ms": rng.randrange(10**12),
        }
        for event in ("stuck", "suspended", "new")
        for number in range(1, 9)
    ]
    stored = {"rse_usage": usage, "account_usage": accounts, "dataset_rses": going}
    for table, entries in (stored | {"rules_day": rules}).items():
        storage_page.store(tmp_path, table, entries)
    content = storage_page.view(tmp_path)

    def plain(table: str, sql: str) -> list[tuple[Any, ...]]:
        path = tmp_path / table / "*" / "runs" / "*" / table / "*.parquet"
        source = f"read_parquet('{path}', hive_partitioning = false)"
        return duckdb.sql(sql.replace(" t ", f" {source} ")).fetchall()

    free = dict(plain("dataset_rses", "SELECT rse, sum(deletable_bytes) FROM t GROUP BY 1"))
    elements = plain(
        "rse_usage",
        "SELECT rse, kind, static_bytes, rucio_bytes, free_bytes, rucio_bytes / static_bytes, "
        "locked_bytes, expired_bytes, is_stale FROM t WHERE NOT is_test",
    )
    assert sorted(storage_page.rows(content, "elements")) == sorted(
        (*row[:8], free.get(row[0]), row[8]) for row in elements
    )
    of_accounts = plain(
        "account_usage",
        "SELECT if(account_class IN ('user', 'unknown'), 'all of class ' || account_class, account), "
        "count(DISTINCT rse), sum(lock_bytes), sum(stuck_bytes), sum(limit_bytes), "
        "sum(limit_bytes) - sum(lock_bytes) FILTER (limit_bytes IS NOT NULL) FROM t GROUP BY 1",
    )
    assert sorted(storage_page.rows(content, "account_usage"), key=str) == sorted(
        of_accounts, key=str
    )
    of_rules = plain(
        "rules_day",
        "SELECT event, reason, activity, sum(rule_count), sum(lock_stuck), min(oldest_ms) "
        "FROM t WHERE event <> 'new' GROUP BY ALL",
    )
    assert sorted(storage_page.rows(content, "rules_day")) == sorted(of_rules)


def test_a_query_that_cannot_use_a_part_of_a_selection_fails(dashboard: Running) -> None:
    snapshot = dashboard.snapshot
    with pytest.raises(UnusedPartError, match="campaign, data_tier"):
        chosen = Selection(*PERIOD, (("data_tier", "AOD"), ("campaign", "Run2018A")))
        site_use.count_users(snapshot, chosen)
    with pytest.raises(UnusedPartError, match="by site_name"):
        use.series(snapshot, Selection(*PERIOD, measure="nacc", by="site_name"))
    with pytest.raises(UnusedPartError, match="measure nacc"):
        use.totals(snapshot, Selection(*PERIOD, measure="nacc"))
    with pytest.raises(UnusedPartError, match="app"):
        use.totals(snapshot, Selection(*PERIOD).with_values("app", "crab"))
    with pytest.raises(UnusedPartError, match="site_tier"):
        Selection(*PERIOD, (("site_tier", "T2"),)).where(("stream",))
