"""Pages as users ask them: several filters, order and pages of tables, two periods,
conditions, errors, pictures.
"""

from __future__ import annotations

import csv
import io
import re
import urllib.error
import urllib.request
from collections import defaultdict
from datetime import date, timedelta
from typing import Any
from urllib.parse import urlencode
from xml.etree import ElementTree

import duckdb
import pytest

from cmsspark.apps.dashboard import downloads, use, widgets
from cmsspark.apps.dashboard.downloads import arranged
from cmsspark.apps.dashboard.pages import datasets
from cmsspark.apps.dashboard.pages.popularity import in_mode
from cmsspark.apps.dashboard.run_index import without_paths
from cmsspark.apps.dashboard.widgets import Chart, Column, Content, Section, Table
from cmsspark.base.errors import UsageError
from tests.apps.dashboard.conftest import Running
from tests.apps.dashboard.stores import (
    DATASETS,
    LAST,
    ONLY_JOBS,
    ORDINARY,
    pair_rows,
    partial_rows,
)

ACCESSES = ("aaa", "eos", "cmssw", "crab")


def get(dashboard: Running, page: str, /, **parameters: Any) -> tuple[int, str, Any]:
    query = f"?{urlencode(parameters, doseq=True)}" if parameters else ""
    try:
        with urllib.request.urlopen(f"{dashboard.base}/{page}{query}") as answer:
            return answer.status, answer.read().decode(), answer.headers
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(), error.headers


def rows_of(dashboard: Running, page: str, table: str, **parameters: Any) -> list[dict[str, str]]:
    status, text, _ = get(dashboard, page, download=table, format="csv", **parameters)
    assert status == 200, text[:500]
    return list(csv.DictReader(io.StringIO(text)))


def stored(first: date, last: date) -> list[dict[str, Any]]:
    """The rows of the store's days."""
    every = (LAST - timedelta(days=back) for back in range(45) if back != 5)
    return [row for day in every if first <= day <= last for row in partial_rows(day)]


def sums(rows: list[dict[str, Any]], key: str) -> dict[str, int]:
    found: dict[str, int] = defaultdict(int)
    for row in rows:
        found[row[key]] += row["nacc"]
    return dict(found)


@pytest.mark.parametrize(
    ("filters", "streams"),
    [
        ({"stream": ["aaa", "eos"]}, ("aaa", "eos")),
        ({"stream": ["aaa", "eos"], "site_tier": ["T1", "T3"]}, ("aaa", "eos")),
        ({"stream": ["aaa", "condor"]}, ("aaa",)),
        ({"data_tier": ["AOD", "NANOAOD"], "campaign": ["Run2018A", "Run2017B"]}, ACCESSES),
    ],
    ids=str,
)
@pytest.mark.parametrize("first", [date(2026, 1, 1), date(2025, 12, 20)], ids=str)
def test_filters_with_several_values_take_each_of_them(
    dashboard: Running, filters: dict[str, list[str]], streams: tuple[str, ...], first: date
) -> None:
    rows = [
        row
        for row in stored(first, LAST)
        if row["stream"] in streams
        and row["site_name"].split("_")[0]
        in filters.get("site_tier", [row["site_name"].split("_")[0]])
        and all(
            part in filters.get(name, [part])
            for name, part in (
                ("data_tier", (row["dataset_name"].split("/") + [""] * 3)[3]),
                ("campaign", (row["dataset_name"].split("/") + [""] * 3)[2].split("-")[0]),
            )
        )
    ]
    found = rows_of(dashboard, "popularity", "datasets", **{"from": first, "to": LAST}, **filters)
    expected = sums(rows, "dataset_name")
    assert {
        row["dataset_name"].lstrip("'"): int(row["nacc"]) for row in found if row["nacc"]
    } == expected
    users = defaultdict(set)
    for row in rows:
        users[row["dataset_name"]] |= {row["user"]} - {None}
    assert {
        row["dataset_name"].lstrip("'"): int(row["distinct_users"]) for row in found if row["nacc"]
    } == {name: len(users[name]) for name in expected}


@pytest.mark.parametrize("by", ["dataset_name", "site_name", "stream"])
def test_two_periods_are_compared_group_by_group(dashboard: Running, by: str) -> None:
    now, before = (date(2026, 1, 6), LAST), (date(2025, 12, 27), date(2026, 1, 5))
    found = rows_of(dashboard, "compare", "compare", **{"from": now[0], "to": now[1]}, by=by)
    a, b = (
        sums([row for row in stored(*ends) if row["stream"] in ACCESSES], by)
        for ends in (now, before)
    )
    assert {row[by].lstrip("'"): (int(row["now"]), int(row["before"])) for row in found} == {
        name: (a.get(name, 0), b.get(name, 0)) for name in a.keys() | b.keys()
    }
    assert {row[by].lstrip("'") for row in found if row["is_in"] == "new"} == a.keys() - b.keys()
    assert {row[by].lstrip("'") for row in found if row["is_in"] == "gone"} == b.keys() - a.keys()
    differences = [abs(int(row["difference"])) for row in found]
    assert differences == sorted(differences, reverse=True)
    shares = [float(row["share_now"]) for row in found]
    assert sum(shares) == pytest.approx(1)


def test_nothing_is_known_of_a_period_without_stored_days(dashboard: Running) -> None:
    found = rows_of(dashboard, "compare", "compare", from2="2020-01-01", to2="2020-01-31")
    assert found and {(row["before"], row["difference"], row["is_in"]) for row in found} == {
        ("", "", "")
    }
    assert (
        "nothing is known of that period"
        in get(dashboard, "compare", from2="2020-01-01", to2="2020-01-31")[1]
    )


def test_links_of_a_comparison_lead_to_the_period_of_its_numbers(dashboard: Running) -> None:
    text = get(dashboard, "compare", by="site_name")[1]
    assert 'href="/sites?site=T2_CH_CERN&amp;from=2025-12-25&amp;to=2026-01-15"' in text


def test_a_comparison_begins_with_two_periods_that_are_stored(dashboard: Running) -> None:
    text = get(dashboard, "compare")[1]
    assert "2025-12-25 to 2026-01-15 against 2025-12-03 to 2025-12-24" in text
    assert "not stored: 2026-01-10." in text and "is known of that period" not in text


def test_all_datasets_meet_conditions_on_any_column(dashboard: Running) -> None:
    every = {
        row["dataset_name"].lstrip("'"): row for row in rows_of(dashboard, "datasets", "datasets")
    }
    assert every.keys() >= {*DATASETS, ONLY_JOBS, "/Never/Read-v1/AOD"}
    never = every["/Never/Read-v1/AOD"]
    assert (never["nacc"], never["read_bytes"], never["last_day"]) == ("0", "", "")
    assert int(never["disk_bytes"] or never["tape_bytes"]) > 0
    wanted = {
        name
        for name, row in every.items()
        if row["disk_bytes"] and int(row["disk_bytes"]) >= 10**14
    }
    found = rows_of(dashboard, "datasets", "datasets", where="disk_bytes>=100TB")
    assert (
        0 < len(wanted) < len(every)
        and {row["dataset_name"].lstrip("'") for row in found} == wanted
    )
    found = rows_of(
        dashboard, "datasets", "datasets", where="data_tier=NANOAOD|GEN-SIM-RAW, dataset_name~qcd"
    )
    assert {row["dataset_name"] for row in found} == {
        name for name in ORDINARY if "QCD" in name and name.endswith(("/NANOAOD", "/GEN-SIM-RAW"))
    }
    # What is not known is not below a limit; what no record of a counted day has was
    # read 0 times, by nobody.
    for where, is_in in (
        ("read_bytes<10", False),
        ("read_bytes=none", True),
        ("nacc<10", True),
        ("nacc=0", True),
        ("distinct_users<1", True),
        ("job_count<1", True),
        ("nacc=none", False),
    ):
        found = rows_of(dashboard, "datasets", "datasets", where=where)
        assert ("/Never/Read-v1/AOD" in {row["dataset_name"] for row in found}) == is_in, where


def test_a_condition_finds_names_without_a_part() -> None:
    for where, tiers in (
        ("data_tier=none", [""]),
        ("data_tier!=none", ["AOD"]),
        ("data_tier=none|AOD", ["", "AOD"]),
    ):
        condition, values = datasets.parse_condition(where)
        sql = f"SELECT data_tier FROM (VALUES (''), ('AOD')) t(data_tier) WHERE {condition}"
        rows = duckdb.execute(f"{sql} ORDER BY 1", values).fetchall()
        assert [tier for (tier,) in rows] == tiers, where


def test_the_list_of_columns_has_the_names_that_conditions_take(dashboard: Running) -> None:
    text = get(dashboard, "datasets")[1]
    names = re.findall(r'name="columns" [^>]*value="(\w+)"[^>]*>[^<(]*\(\1\)', text)
    assert names == [column.name for column in datasets.COLUMNS[1:]]
    for name in names:
        assert get(dashboard, "datasets", where=f"{name}=none")[0] == 200, name


@pytest.mark.parametrize(
    "where",
    ["nacc", "nobody<3", "nacc<", "last_day<soon", "read_bytes>many", "nacc<1|2", "; DROP"],
)
def test_a_wrong_condition_is_refused_and_the_form_keeps_it(
    dashboard: Running, where: str
) -> None:
    status, text, _ = get(dashboard, "datasets", where=where)
    assert status == 400 and f'value="{where.replace("<", "&lt;").replace(">", "&gt;")}"' in text


def test_an_error_keeps_the_form_with_what_was_chosen(dashboard: Running) -> None:
    status, text, _ = get(
        dashboard, "popularity", **{"from": "2026-02-01", "to": "2026-01-01", "stream": "aaa"}
    )
    assert status == 400 and "<h1>The period begins on 2026-02-01" in text
    assert 'value="2026-02-01"' in text and 'value="aaa" checked' in text


def test_an_unknown_dataset_is_not_found(dashboard: Running) -> None:
    status, text, _ = get(dashboard, "dataset", name="/No/Such-v1/AOD")
    assert status == 404 and 'value="/No/Such-v1/AOD"' in text
    assert get(dashboard, "dataset", name="/Never/Read-v1/AOD")[0] == 200


def test_an_empty_selection_says_so_once(dashboard: Running) -> None:
    status, text, _ = get(dashboard, "popularity", data_tier="RAW-NONE")
    assert (
        status == 200
        and text.count("Nothing was read") >= 1
        and "figures" not in text.partition("<main")[2]
    )


def test_downloads_are_named_for_what_they_hold(dashboard: Running) -> None:
    _, _, headers = get(
        dashboard, "sites", site="T2_CH_CERN", download="datasets", **{"from": "2026-01-01"}
    )
    name = "cmsspark-sites-T2_CH_CERN-2026-01-01-2026-01-15-datasets.csv"
    assert headers["Content-Disposition"] == f'attachment; filename="{name}"'


def test_every_column_of_a_table_sorts_it_on_the_server(dashboard: Running) -> None:
    table = Table(
        "t",
        [Column("a", "A"), Column("n", "N", "count")],
        [("b", 1), ("A", None), ("c", 3)],
        "",
        limit=2,
    )
    content = Content("", [Section("", [table])])

    def shown(**parameters: str) -> list[Any]:
        return list(arranged(content, parameters).sections[0].items[0].visible)

    assert shown() == [("b", 1), ("A", None)]
    assert shown(sort="t.a") == [("A", None), ("b", 1)]
    assert shown(sort="t.-n") == [("c", 3), ("b", 1)] and shown(sort="t.-n", page="t.2") == [
        ("A", None)
    ]
    assert shown(sort="other.x", page="other.9") == shown()
    for wrong in ({"sort": "t.x"}, {"page": "t.3"}, {"page": "t.0"}, {"page": "t.x"}):
        with pytest.raises(UsageError):
            shown(**wrong)
    status, text, _ = get(dashboard, "popularity", sort="datasets.remote_share", page="datasets.2")
    assert status == 200 and "page 2 of" in text


def test_a_name_has_its_colour_whatever_stands_beside_it() -> None:
    assert widgets.colours(["eos", "aaa"]) == widgets.colours(["aaa", "eos"])[::-1]
    names = ["RunIIAutumn18", "Run2018A", "eos", "other"]
    assert len(set(widgets.colours(names))) == len(names)


def test_tiers_above_one_percent_and_nanoaod_have_series_of_their_own() -> None:
    tiers = {f"TIER{number:02}": 100 for number in range(12)} | {"NANOAOD": 1, "SMALL": 2}
    assert set(use.named_groups(tiers)) == {*tiers} - {"SMALL"}


def test_shares_of_each_step_add_up_to_all_and_unknown_stays_unknown() -> None:
    chart = Chart(
        "c",
        "t",
        "stack",
        ["1", "2", "3"],
        {"a": [1, None, 0], "b": [3, None, 0]},
        y_title="Accesses per day",
    )
    shares = in_mode(chart, "share")
    assert (
        dict(shares.series) == {"a": [25.0, None, None], "b": [75.0, None, None]}
        and shares.unit == "%"
    )
    of_cpu = in_mode(
        Chart("c", "t", "stack", ["1"], {"a": [1]}, y_title="CPU hours per day"), "share"
    )
    assert (shares.y_title, of_cpu.y_title) == (
        "Share of accesses per day",
        "Share of CPU hours per day",
    )
    lines = in_mode(chart, "line")
    assert lines.kind == "line" and lines.drawn["a"] == [1, None, 0], (
        "a line has a gap where nothing was counted"
    )
    flat = Chart("c", "t", "stack", ["1", "2", "3"], {"a": [1, None, None], "b": [3, 2, None]})
    assert flat.drawn == {"a": [1, 0, None], "b": [3, 2, None]}, (
        "a stack has no holes below what was counted"
    )


@pytest.mark.parametrize(
    ("chosen", "mode"),
    [
        ({"measure": "users"}, "line"),
        ({"by": "none", "mode": "share"}, "line"),
        ({"mode": "share"}, "share"),
    ],
)
def test_the_control_says_how_values_are_drawn(
    dashboard: Running, chosen: dict[str, str], mode: str
) -> None:
    text = get(dashboard, "popularity", **{"by": "data_tier", **chosen})[1]
    assert re.findall(r'<select[^>]* name="mode".*?value="(\w+)"[^>]*\bselected', text, re.S)[
        :1
    ] == [mode]


@pytest.mark.parametrize("kind", ["line", "stack", "bar", "columns"])
def test_the_picture_of_a_chart_is_an_svg_with_its_names_escaped(kind: Any) -> None:
    chart = Chart("c", "<t>", kind, ["1", "2", "3"], {"<a>": [1, None, 4], "b": [2, 3, None]}, "B")
    root = ElementTree.fromstring(downloads.svg(chart, "<about>"))
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"<t>", "<about>", "<a>", "b"} <= set(texts)


def test_texts_of_runs_name_no_folders_of_the_host() -> None:
    text = "file /home/me/store/data/part-0.parquet of /Prim/Proc-v1/AOD and hdfs:///user/x/y/z.json failed"
    assert (
        without_paths(text)
        == "file …/data/part-0.parquet of /Prim/Proc-v1/AOD and …/y/z.json failed"
    )


def test_the_calendar_shows_the_worst_state_of_each_day(dashboard: Running) -> None:
    text = get(dashboard, "runs")[1]
    about = "Numbers count the days of each job"
    assert about in text and about not in get(dashboard, "runs", job="data_aggregation")[1]
    partial = LAST - timedelta(days=3)
    assert f"{partial}: data_aggregation: partial" in text and "What needs a look" in text
    assert ">partial<" in text and "January 2026" in text
    day = get(dashboard, "runs", day=partial)[1]
    assert "data_aggregation" in day and "stored, but incomplete: without eos" in day


def test_sites_show_who_reads_from_whom(dashboard: Running) -> None:
    first = LAST - timedelta(days=9)
    period = {"from": str(first), "to": str(LAST)}
    pairs = [
        pair
        for back in range(10)
        if back != 5
        for pair in pair_rows(partial_rows(LAST - timedelta(days=back)))
    ]
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for pair in pairs:
        counts[pair["reader_site"] or "", pair["source_site"] or ""] += pair["nacc"]
    rows = rows_of(dashboard, "sites", "site_pairs", **period)
    assert {(row["reader_site"], row["source_site"]): int(row["accesses"]) for row in rows} == {
        pair: count for pair, count in counts.items() if all(pair)
    }
    for table, site, part in (("reads_from", "source_site", 0), ("is_read_by", "reader_site", 1)):
        rows = rows_of(dashboard, "sites", table, site="T2_US_MIT", **period)
        assert {row[site]: int(row["accesses"]) for row in rows} == {
            pair[1 - part] or "not named in the log": count
            for pair, count in counts.items()
            if pair[part] == "T2_US_MIT"
        }
    assert "Which site reads from which" in get(dashboard, "sites", **period)[1]


def test_a_sites_page_begins_with_what_lies_there_unread(dashboard: Running) -> None:
    text = get(dashboard, "sites", site="T2_CH_CERN", weeks=5)[1]
    assert text.index("Unread for 4 weeks") < text.index("Unread for 5 weeks")
    assert text.index("Unread for 5 weeks") < text.index("What is read there")
    assert "Replicas there that nobody read for 5 weeks" in text
    # No age is told that is longer than the stored days.
    text = get(dashboard, "sites", site="T2_CH_CERN", weeks=12)[1]
    oldest = LAST - timedelta(days=44)
    assert f"Unread since {oldest}" in text and "Unread for 12 weeks" not in text
    assert f"Replicas there that nobody read since {oldest}" in text
    assert f"Not read there from {oldest} to {LAST}" in text
    last = LAST - timedelta(days=27)
    read = {row["dataset_name"] for row in stored(last, LAST) if row["site_name"] == "T2_CH_CERN"}
    from tests.apps.dashboard.stores import replica_rows

    unread = sum(
        row["present_bytes"]
        for row in replica_rows()
        if row["site_name"] == "T2_CH_CERN"
        and row["kind"] == "disk"
        and row["dataset_name"] not in read
    )
    assert f"{unread:,} B" in text


def test_a_datasets_page_names_its_last_read_at_each_site(dashboard: Running) -> None:
    name = ORDINARY[0]
    last: dict[str, date] = {}
    for row in stored(date(2025, 1, 1), LAST):
        if row["dataset_name"] == name:
            last[row["site_name"]] = max(row["day"], last.get(row["site_name"], row["day"]))
    found = rows_of(dashboard, "dataset", "by_site", name=name)
    assert {row["site_name"]: row["last_day"] for row in found} == {
        site: str(day) for site, day in last.items()
    }
