"""Every number of a page equals a direct count over the stored partials, written here
in plain Python.
"""

from __future__ import annotations

import csv
import functools
import io
import urllib.parse
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterable
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.apps.dashboard.conftest import Running
from tests.apps.dashboard.stores import HOSTILE, LAST, ONLY_JOBS, ORDINARY

FIRST = LAST - timedelta(days=44)
Row = dict[str, Any]


@pytest.fixture(scope="module")
def rows(store: Path) -> list[Row]:
    """All stored partials, with the derived parts of their names."""
    found = []
    for file in sorted((store / "data_aggregation").glob("*/runs/*/partials/*.parquet")):
        for row in pq.read_table(file, partitioning=None).to_pylist():
            parts = row["dataset_name"].split("/")
            row["data_tier"] = parts[3] if len(parts) > 3 else ""
            row["campaign"] = parts[2].split("-")[0] if len(parts) > 2 else ""
            row["site_tier"] = row["site_name"].split("_")[0]
            # Jobs are not accesses.
            is_job = row["stream"] == "condor"
            row |= {
                "job_count": row["nacc"] if is_job else None,
                "job_read_bytes": row["read_bytes"] if is_job else None,
            }
            if is_job:
                row |= dict.fromkeys(("nacc", "remote_nacc", "read_bytes"))
            found.append(row)
    assert len(found) > 10_000
    return found


def total(rows: Iterable[Row], name: str) -> int | None:
    values = [row[name] for row in rows if row[name] is not None]
    if name in ("cpu_time", "wc_time"):
        return sum(round(value * 1000) for value in values) if values else None
    return sum(values) if values else None


def readers(rows: Iterable[Row], selection: dict[str, str] | None = None) -> int:
    """Distinct people of accesses; of jobs only where these are chosen."""
    is_of_jobs = (selection or {}).get("stream") == "condor"
    return len(
        {
            row["user"]
            for row in rows
            if row["user"] is not None and is_of_jobs == (row["stream"] == "condor")
        }
    )


def grouped(rows: Iterable[Any], key: Callable[[Any], Any]) -> dict[Any, list[Any]]:
    groups: dict[Any, list[Any]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return groups


def download(dashboard: Running, page: str, table: str, **parameters: Any) -> list[Row]:
    """A table of a page, as Parquet; the CSV must have the same cells."""
    query = {"from": FIRST, "to": LAST, **parameters, "download": table}
    address = f"{dashboard.base}/{page}?{urllib.parse.urlencode(query)}"
    with urllib.request.urlopen(f"{address}&format=parquet") as answer:
        content = pq.read_table(io.BytesIO(answer.read())).to_pylist()
    with urllib.request.urlopen(f"{address}&format=csv") as answer:
        text = list(csv.reader(io.StringIO(answer.read().decode(), newline="")))
    assert len(text) == len(content) + 1
    return content


SELECTIONS: list[dict[str, str]] = [
    {},
    {"stream": "crab"},
    {"stream": "condor"},
    {"stream": "condor", "site_tier": "T1", "data_tier": "AOD"},
    {"site_tier": "T2", "stream": "aaa"},
    {"campaign": "Run2018A"},
    {"campaign": "RunIISummer15GS", "site_tier": "T2"},
    {"data_tier": "AOD", "campaign": "Run2017B", "stream": "eos"},
    {"data_tier": "-"},
]
PERIODS = [
    (FIRST, LAST),
    (date(2025, 12, 10), date(2026, 1, 8)),
    (date(2026, 1, 3), date(2026, 1, 3)),
]


def chosen(rows: list[Row], selection: dict[str, str], first: date, last: date) -> list[Row]:
    values = {name: "" if value == "-" else value for name, value in selection.items()}
    return [
        row
        for row in rows
        if first <= row["day"] <= last
        and all(row[name] == value for name, value in values.items())
    ]


@pytest.mark.parametrize("selection", SELECTIONS, ids=str)
@pytest.mark.parametrize(("first", "last"), PERIODS, ids=str)
def test_datasets_have_the_sums_and_people_of_the_partials(
    dashboard: Running, rows: list[Row], selection: dict[str, str], first: date, last: date
) -> None:
    found = download(
        dashboard, "popularity", "datasets", **{"from": first, "to": last}, **selection
    )
    counted = "job_count" if selection.get("stream") == "condor" else "nacc"
    wanted = grouped(chosen(rows, selection, first, last), lambda row: row["dataset_name"])
    sums = ("nacc", "read_bytes", "remote_nacc", "job_count", "job_read_bytes")
    assert {
        row["dataset_name"]: (*(row[name] for name in sums), row["cpu_ms"], row["distinct_users"])
        for row in found
    } == {
        name: (
            *(total(group, column) for column in sums),
            total(group, "cpu_time"),
            readers(group, selection),
        )
        for name, group in wanted.items()
        if total(group, counted) is not None
    }
    assert [row[counted] for row in found] == sorted((row[counted] for row in found), reverse=True)
    assert (ONLY_JOBS in {row["dataset_name"] for row in found}) <= (counted == "job_count")


@pytest.mark.parametrize("measure", ["job_count", "job_read_bytes"])
def test_datasets_of_jobs_are_ranked_by_their_jobs(
    dashboard: Running, rows: list[Row], measure: str
) -> None:
    found = download(dashboard, "popularity", "datasets", measure=measure)
    wanted = grouped(
        (row for row in rows if row["stream"] == "condor"), lambda row: row["dataset_name"]
    )
    assert {row["dataset_name"]: row[measure] for row in found} == {
        name: total(group, measure) for name, group in wanted.items()
    }
    assert (
        found[0]["dataset_name"] == ONLY_JOBS
        and found[0]["nacc"] is None
        and found[0]["distinct_users"] == 0
    )


@functools.cache
def bucket(day: date, step: str) -> str:
    if step == "month":
        return f"{day:%Y-%m}"
    return (day - timedelta(days=day.weekday()) if step == "week" else day).isoformat()


def held_by(measure: str, selection: dict[str, str]) -> str:
    """The measure that a file holds: a stream has accesses or jobs, whichever is asked for."""
    if selection.get("stream") == "condor":
        return {"nacc": "job_count", "read_bytes": "job_read_bytes"}.get(measure, measure)
    return {"job_count": "nacc"}.get(measure, measure) if selection.get("stream") else measure


@pytest.mark.parametrize("step", ["day", "week", "month"])
@pytest.mark.parametrize("by", ["stream", "site_tier", "data_tier", "campaign", "none"])
@pytest.mark.parametrize(
    "selection",
    [{}, {"stream": "aaa"}, {"stream": "condor"}, {"campaign": "Run2018A", "site_tier": "T2"}],
    ids=str,
)
def test_values_over_time_are_those_of_the_partials(
    dashboard: Running, rows: list[Row], step: str, by: str, selection: dict[str, str]
) -> None:
    own = chosen(rows, selection, FIRST, LAST)
    is_of_jobs = selection.get("stream") == "condor"
    columns = {
        "nacc": "nacc",
        "users": "user",
        "job_count": "job_count",
        "read_bytes": "read_bytes",
        "cpu_ms": "cpu_time",
    }
    if is_of_jobs:
        # A stream of jobs has no accesses: its jobs are shown instead.
        columns |= {"nacc": "job_count", "read_bytes": "job_read_bytes"}
    elif selection.get("stream"):
        columns |= {"job_count": "nacc"}
    cells = grouped(own, lambda row: (bucket(row["day"], step), "" if by == "none" else row[by]))
    cells_of = grouped(cells, lambda cell: cell[0])
    for measure, column in columns.items():
        found = download(
            dashboard, "popularity", "over_time", step=step, by=by, measure=measure, **selection
        )
        names = {
            name
            for (_, name), of in cells.items()
            if measure == "users" or total(of, column) is not None
        }
        held = held_by(measure, selection)
        found = [
            {
                name.removeprefix(f"{held}_").removeprefix("-"): value
                for name, value in line.items()
            }
            for line in found
        ]
        shown = [name for name in found[0] if name not in (step, "is_partial", "other")]
        others = names - {"" if by == "none" else name for name in shown}
        for line in found:
            for name in [*shown, *(["other"] if "other" in line else [])]:
                wanted = [
                    row
                    for cell in cells_of[line[step]]
                    for row in cells[cell]
                    if (cell[1] in others if name == "other" else by == "none" or cell[1] == name)
                ]
                value = readers(wanted, selection) if measure == "users" else total(wanted, column)
                assert (line[name] or 0) == (value or 0), (measure, line[step], name)


def test_the_page_shows_the_totals(dashboard: Running, rows: list[Row]) -> None:
    with urllib.request.urlopen(f"{dashboard.base}/popularity?from={FIRST}&to={LAST}") as answer:
        text = answer.read().decode()
    assert f"{total(rows, 'nacc'):,}" in text
    assert f"{total(rows, 'read_bytes'):,} B" in text
    assert (
        f"{total(rows, 'job_count'):,}" in text and f"{total(rows, 'job_read_bytes'):,} B" in text
    )
    assert f"<b>{readers(rows)}</b>" in text


def test_a_stream_of_jobs_has_jobs_where_accesses_are_asked_for_and_says_so(
    dashboard: Running,
) -> None:
    for page in ("popularity", f"dataset?name={urllib.parse.quote(ONLY_JOBS)}"):
        address = f"{dashboard.base}/{page}{'&' if '?' in page else '?'}stream=condor&measure=nacc"
        with urllib.request.urlopen(address) as answer:
            text = answer.read().decode()
        assert "The stream condor counts jobs, not accesses: this is its jobs." in text
        assert "Jobs over time" in text and '<option value="job_count" selected>' in text


@pytest.mark.parametrize("name", [ORDINARY[0], ONLY_JOBS, *HOSTILE])
def test_a_dataset_has_its_history_sites_apps_and_people(
    dashboard: Running, rows: list[Row], name: str
) -> None:
    own = [row for row in rows if row["dataset_name"] == name]
    for table, column in (("by_site", "site_name"), ("by_app", "app")):
        found = download(dashboard, "dataset", table, name=name)
        wanted = grouped(own, lambda row, column=column: row[column])
        sums = ("nacc", "read_bytes", "job_count")
        assert {row[column]: (*(row[name] for name in sums), row["cpu_ms"]) for row in found} == {
            key: (*(total(group, name) for name in sums), total(group, "cpu_time"))
            for key, group in wanted.items()
        }
    if own:
        weeks = download(dashboard, "dataset", "history", name=name, measure="users", step="week")
        by_week = grouped(own, lambda row: bucket(row["day"], "week"))
        assert [row["users"] for row in weeks] == [readers(by_week[row["week"]]) for row in weeks]


def test_sites_have_their_accesses_and_people(dashboard: Running, rows: list[Row]) -> None:
    found = download(dashboard, "sites", "sites")
    wanted = grouped(rows, lambda row: row["site_name"])
    assert {
        row["site_name"]: tuple(
            row[n] for n in ("nacc", "read_bytes", "job_count", "distinct_users")
        )
        for row in found
    } == {
        site: (
            *(total(group, name) for name in ("nacc", "read_bytes", "job_count")),
            readers(group),
        )
        for site, group in wanted.items()
    }
    known = [row for row in wanted["T2_CH_CERN"] if row["remote_nacc"] is not None]
    share = next(row["remote_share"] for row in found if row["site_name"] == "T2_CH_CERN")
    assert share == pytest.approx((total(known, "remote_nacc") or 0) / (total(known, "nacc") or 1))


@pytest.mark.parametrize(("first", "last"), PERIODS, ids=str)
def test_a_site_has_its_datasets_and_what_is_local(
    dashboard: Running, rows: list[Row], first: date, last: date
) -> None:
    own = chosen(rows, {}, first, last)
    at_site = [row for row in own if row["site_name"] == "T2_US_MIT"]
    found = download(
        dashboard, "sites", "datasets", site="T2_US_MIT", **{"from": first, "to": last}
    )
    wanted = grouped(at_site, lambda row: row["dataset_name"])
    assert {row["dataset_name"]: row["nacc"] for row in found} == {
        name: total(group, "nacc") for name, group in wanted.items()
    }
    time = download(
        dashboard,
        "sites",
        "local_remote",
        site="T2_US_MIT",
        step="month",
        **{"from": first, "to": last},
    )
    for line in time:
        month = [row for row in at_site if bucket(row["day"], "month") == line["month"]]
        known = [row for row in month if row["remote_nacc"] is not None]
        remote = total(known, "remote_nacc") or 0
        assert (line["nacc_remote"] or 0, line["nacc_local"] or 0) == (
            remote,
            (total(known, "nacc") or 0) - remote,
        )


@pytest.mark.parametrize("weeks", [1, 3])
def test_unused_replicas_are_those_that_nobody_read_there(
    dashboard: Running, rows: list[Row], store: Path, weeks: int
) -> None:
    (part,) = (store / "dbs_phedex" / LAST.isoformat()).glob("runs/*/dbs_phedex/*.parquet")
    replicas = [
        row
        for row in pq.read_table(part, partitioning=None).to_pylist()
        if row["site_name"] == "T1_US_FNAL" and row["kind"] == "disk"
    ]
    begin = LAST - timedelta(days=7 * weeks - 1)
    lately = [row for row in rows if row["day"] >= begin]
    read = {row["dataset_name"] for row in lately if row["site_name"] == "T1_US_FNAL"}
    wanted = {
        row["dataset_name"]: row["present_bytes"]
        for row in replicas
        if row["dataset_name"] not in read
    }
    found = download(dashboard, "sites", "unused", site="T1_US_FNAL", weeks=weeks)
    assert {row["dataset_name"]: row["present_bytes"] for row in found} == wanted
    elsewhere = grouped(lately, lambda row: row["dataset_name"])
    for row in found:
        assert row["nacc_elsewhere"] == (total(elsewhere[row["dataset_name"]], "nacc") or 0)
        assert row["jobs_elsewhere"] == (total(elsewhere[row["dataset_name"]], "job_count") or 0)


def test_data_at_sites_are_those_of_the_tables(dashboard: Running, store: Path) -> None:
    (part,) = (store / "site_tier_usage" / LAST.isoformat()).glob(
        "runs/*/site_tier_usage/*.parquet"
    )
    stored = pq.read_table(part, partitioning=None).to_pylist()
    found = download(dashboard, "data", "data_by_tier", site_tier="T2")
    wanted = {
        (row["kind"], row["data_tier"]): row["replica_bytes"]
        for row in stored
        if row["site_tier"] == "T2"
    }
    assert {(row["kind"], row["data_tier"]): row["replica_bytes"] for row in found} == wanted
    (part,) = (store / "dbs_phedex" / LAST.isoformat()).glob("runs/*/dbs_phedex/*.parquet")
    cells = grouped(
        pq.read_table(part, partitioning=None).to_pylist(),
        lambda row: (row["site_name"], row["data_tier"]),
    )
    heat = download(dashboard, "data", "site_by_data_tier")
    assert {(row["site_name"], row["data_tier"]): row["bytes"] for row in heat} == {
        key: total(group, "present_bytes") for key, group in cells.items()
    }


def test_the_concentration_is_the_share_of_the_largest(
    dashboard: Running, rows: list[Row]
) -> None:
    sizes = sorted(
        (
            total(group, "nacc") or 0
            for group in grouped(rows, lambda row: row["dataset_name"]).values()
        ),
        reverse=True,
    )
    for row in download(dashboard, "popularity", "concentration"):
        assert row["nacc"] == sum(sizes[: row["datasets"]])
        assert row["share"] == pytest.approx(row["nacc"] / sum(sizes))
