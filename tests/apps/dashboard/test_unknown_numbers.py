"""What no log said is not 0: days that lack a stream, steps that are cut, a measure of
the other kind, a store gone.
"""

from __future__ import annotations

import csv
import io
import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import date, timedelta
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from cmsspark.apps.dashboard import use
from cmsspark.apps.dashboard.cli import command
from cmsspark.apps.dashboard.selection import Selection
from cmsspark.base.errors import InputMissing
from tests.apps.dashboard.conftest import Running, serving
from tests.apps.dashboard.stores import store_day, store_table

#: A Wednesday; day 2 lacks cmssw, day 3 is not stored, and no access of eos comes on day 1.
FIRST = date(2026, 1, 7)
STREAMS = ["aaa", "eos", "cmssw", "condor"]
DAYS = [FIRST + timedelta(days=number) for number in range(12)]


def row(day: date, stream: str, count: int) -> dict[str, Any]:
    return {
        "day": day,
        "stream": stream,
        "dataset_name": "/ZMM/Run2018A-v1/AOD",
        "site_name": "T2_CH_CERN",
        "app": "crab",
        "user": f"key1:{1:032x}",
        "nacc": count,
        "remote_nacc": None,
        "read_bytes": 10 * count,
        "cpu_time": None,
        "wc_time": None,
    }


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("unknown") / "store"
    for number, day in enumerate(DAYS):
        if number == 3:
            continue
        streams = [stream for stream in STREAMS if (number, stream) != (2, "cmssw")]
        rows = [row(day, stream, 5) for stream in streams if (number, stream) != (1, "eos")]
        missing = {"missing_streams": ["cmssw"], "partial": True} if number == 2 else {}
        store_day(store, day, rows, streams=streams, **missing)
    return store


@pytest.fixture(scope="module")
def dashboard(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(store, tmp_path_factory.mktemp("folders")) as running:
        yield running


def text_of(dashboard: Running, page: str, **parameters: Any) -> str:
    with urllib.request.urlopen(
        f"{dashboard.base}/{page}?{urlencode(parameters, doseq=True)}"
    ) as answer:
        return str(answer.read().decode())


def download(dashboard: Running, page: str, table: str, **parameters: Any) -> list[dict[str, str]]:
    text = text_of(dashboard, page, download=table, format="csv", **parameters)
    return list(csv.DictReader(io.StringIO(text, newline="")))


def labels(dashboard: Running, page: str, **parameters: Any) -> list[str]:
    """The labels of the first picture of a page."""
    found = re.search(
        r"data-chart=(['\"])(.*?)\1", text_of(dashboard, page, **parameters), re.DOTALL
    )
    assert found
    return list(json.loads(unescape(found[2]))["labels"])


def test_a_day_that_was_counted_without_a_stream_has_no_number_of_it(dashboard: Running) -> None:
    lines = download(dashboard, "popularity", "over_time", by="stream", measure="nacc")
    assert [line["nacc_cmssw"] for line in lines[:5]] == ["5", "5", "", "", "5"]
    assert [line["nacc_eos"] for line in lines[:5]] == ["5", "0", "5", "", "5"]


def test_a_stream_alone_and_a_dataset_have_no_number_either(dashboard: Running) -> None:
    lines = download(dashboard, "popularity", "over_time", by="none", stream="cmssw")
    assert [line["nacc"] for line in lines[:5]] == ["5", "5", "", "", "5"]
    lines = download(
        dashboard, "popularity", "over_time", by="data_tier", stream="cmssw", measure="users"
    )
    assert [line["users_AOD"] for line in lines[:5]] == ["1", "1", "", "", "1"]
    lines = download(dashboard, "dataset", "history", name="/ZMM/Run2018A-v1/AOD")
    assert [line["nacc_cmssw"] for line in lines[:5]] == ["5", "5", "", "", "5"]


def test_several_streams_that_were_not_counted_have_no_number(dashboard: Running) -> None:
    days = [(number, dashboard.snapshot.state.streams[DAYS[number]]) for number in (2, 4)]
    assert [(number, "cmssw" in streams) for number, streams in days] == [(2, False), (4, True)]
    lines = download(
        dashboard, "popularity", "over_time", by="data_tier", stream=["cmssw", "crab"]
    )
    assert [line["nacc_AOD"] for line in lines[:5]] == ["5", "5", "", "", "5"]


def test_a_stream_that_only_one_period_counted_is_not_new(dashboard: Running) -> None:
    periods = {"from": DAYS[4], "to": DAYS[4], "from2": DAYS[2], "to2": DAYS[2]}
    lines = download(dashboard, "compare", "compare", by="stream", **periods)
    cells = {
        line["stream"]: (line["now"], line["before"], line["difference"], line["is_in"])
        for line in lines
    }
    assert cells["cmssw"] == ("5", "", "", "") and cells["aaa"] == ("5", "5", "0", "both")
    assert "Only one of the periods has days that counted cmssw." in text_of(
        dashboard, "compare", **periods
    )
    assert "Only one of the periods" not in text_of(dashboard, "compare", **periods, stream="aaa")


@pytest.mark.parametrize("period", [{"to": "0001-01-01"}, {"to2": "0001-01-01"}], ids=str)
def test_a_period_before_all_days_has_no_numbers(
    dashboard: Running, period: dict[str, str]
) -> None:
    assert "nothing is known of that period" in text_of(dashboard, "compare", **period)


def test_a_total_is_0_only_where_something_was_counted(dashboard: Running) -> None:
    def total(number: int, stream: str) -> int | None:
        chosen = Selection(DAYS[number], DAYS[number], (("stream", stream),))
        return use.totals(dashboard.snapshot, chosen)["nacc"]

    assert (total(1, "eos"), total(2, "cmssw"), total(3, "aaa"), total(4, "cmssw")) == (
        0,
        None,
        None,
        5,
    )


def test_a_day_that_is_not_stored_has_no_users(dashboard: Running) -> None:
    for page, table in (("popularity", "over_time"), ("users", "users")):
        lines = download(dashboard, page, table, by="none", measure="users")
        assert [line["users"] for line in lines[:5]] == ["1", "1", "1", "", "1"]
    lines = download(dashboard, "dataset", "history", name="/ZMM/Run2018A-v1/AOD", measure="users")
    assert [line["users"] for line in lines[:5]] == ["1", "1", "1", "", "1"]


@pytest.mark.parametrize(
    ("step", "period", "partial"),
    [
        # 5 to 11 January begins before the first day; 12 to 18 is there; the range ends
        # on a Sunday.
        ("week", {}, ["2026-01-05"]),
        ("week", {"from": "2026-01-12", "to": "2026-01-16"}, ["2026-01-12"]),
        ("month", {}, ["2026-01"]),
        ("day", {}, ["2026-01-09", "2026-01-10"]),
        ("day", {"from": "2026-01-12"}, []),
    ],
)
def test_what_is_partly_counted_is_marked_in_pictures_and_downloads(
    dashboard: Running, step: str, period: dict[str, str], partial: list[str]
) -> None:
    for page, table, more in (
        ("popularity", "over_time", {}),
        ("users", "users", {}),
        ("dataset", "history", {"name": "/ZMM/Run2018A-v1/AOD"}),
        ("sites", "local_remote", {"site": "T2_CH_CERN"}),
    ):
        lines = download(dashboard, page, table, step=step, **period, **more)
        assert [line[step] for line in lines if line["is_partial"] == "true"] == partial, page
        shown = labels(dashboard, page, step=step, **period, **more)
        assert [
            label.removesuffix(" (partial)") for label in shown if label.endswith(" (partial)")
        ] == partial, page


@pytest.mark.parametrize(
    ("stream", "measure", "held"),
    [
        ("aaa", "job_read_bytes", "read_bytes"),
        ("condor", "nacc", "job_count"),
        ("condor", "read_bytes", "job_read_bytes"),
    ],
)
def test_a_file_names_the_measure_that_it_holds(
    dashboard: Running, stream: str, measure: str, held: str
) -> None:
    for by, column in (("none", held), ("stream", f"{held}_{stream}")):
        (line, *_) = download(
            dashboard, "popularity", "over_time", stream=stream, measure=measure, by=by
        )
        assert [*line] == ["day", "is_partial", column]


def test_a_store_that_is_not_there_is_missing(tmp_path: Path) -> None:
    with pytest.raises(InputMissing, match="there is no store"):
        command.main(["--fout", str(tmp_path / "store")], standalone_mode=False)


def test_sql_over_a_store_that_is_gone_says_so(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store_day(store, FIRST, [row(FIRST, "aaa", 5)], streams=STREAMS)
    with serving(store, tmp_path / "folders") as running:
        running.server.services.database._max_age_s = 0
        query = {"q": "SELECT count(*) AS n FROM data_aggregation"}
        assert ">1<" in text_of(running, "sql", **query)
        store.rename(tmp_path / "aside")
        text = text_of(running, "sql", **query)
        assert "there is no store" in text and str(store) in text
        with pytest.raises(urllib.error.HTTPError, match="404") as missing:
            text_of(running, "sql", **query, download="query")
        missing.value.close()
        # The other pages keep what they have, and say that they are behind.
        refresher = running.server.services.refresher
        refresher._wake.set()
        assert FIRST in refresher.snapshot().days


def test_columns_of_a_table_that_is_not_stored_say_which_job_stores_it(dashboard: Running) -> None:
    text = text_of(dashboard, "datasets")
    assert (
        "No day of sizes, events and states in DBS is stored. Run: run_spark dbs_events --date DAY"
        in text
    )
    assert "No day of replicas is stored. Run: run_spark dbs_phedex --date DAY" in text


def test_replicas_are_those_of_rucio_where_only_they_are_stored(tmp_path: Path) -> None:
    store, name, site = tmp_path / "store", "/ZMM/Run2018A-v1/AOD", "T1_US_FNAL"
    store_day(store, FIRST, [row(FIRST, "aaa", 5)], streams=STREAMS)
    replica = {
        "dataset_name": name,
        "site_name": site,
        "kind": "disk",
        "present_bytes": 7,
        "present_file_count": 1,
    }
    store_table(store, "dbs_rucio", FIRST, [replica])
    sums = dict.fromkeys(("locked_bytes", "deletable_bytes", "only_copy_bytes"), 0)
    copy = {"dataset_name": name, "site_name": site, "lock_state": "none", "rule_count": 1, **sums}
    copies = [
        {**copy, "rse": f"{site}_Disk", "bytes": 9, "locked_bytes": 4, "deletable_bytes": 3},
        {**copy, "rse": f"{site}_Tape", "bytes": 9, "only_copy_bytes": 2, "lock_state": "full"},
        {**copy, "rse": "T2_X", "site_name": "T2_X", "bytes": 1, "locked_bytes": 1},
    ]
    store_table(store, "dataset_rses", FIRST, copies)
    with serving(store, tmp_path / "folders") as running:
        assert [
            line["present_bytes"] for line in download(running, "dataset", "replicas", name=name)
        ] == ["7"]
        columns = (
            "disk_bytes",
            "locked_bytes",
            "rule_count",
            "deletable_bytes",
            "only_copy_bytes",
        )
        shown = download(running, "datasets", "datasets", columns=",".join(columns))
        assert [[line[column] for column in columns] for line in shown] == [list("75332")]
        copies = download(running, "sites", "copies", site=site)
        assert [list(line.values()) for line in copies] == [
            [f"{site}_Disk", "9", "4", "3", "0", "1", "1"],
            [f"{site}_Tape", "9", "0", "0", "2", "0", "1"],
        ]
        assert [
            line["present_bytes"] for line in download(running, "sites", "unused", site=site)
        ] == ["7"]
        assert [line["bytes"] for line in download(running, "data", "site_by_data_tier")] == ["7"]


def test_a_download_by_jobs_is_empty_where_no_jobs_are_stored(tmp_path: Path) -> None:
    store_day(tmp_path / "store", FIRST, [row(FIRST, "aaa", 5)], streams=["aaa"])
    with serving(tmp_path / "store", tmp_path) as running:
        for measure in ("job_count", "job_read_bytes"):
            assert download(running, "popularity", "datasets", measure=measure) == []
        assert len(download(running, "popularity", "datasets", measure="users")) == 1
