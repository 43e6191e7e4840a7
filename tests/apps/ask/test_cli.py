"""``cmsspark ask``: who reads what, what lies where, what nobody reads. Numbers as a
plain count has them, no names.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cmsspark.apps.ask import use
from cmsspark.base.errors import CmssparkError, DataError, InputMissing, UsageError
from cmsspark.filesystems.storage import LocalFiles
from cmsspark.main import command
from cmsspark.store import stored_days as stored
from tests.apps.usage.periods import OF_WEEK, WEEK
from tests.run.partial_days import KEY, Row, counted, partial, store_partials, store_table, user

TOTALS = (*use._MEASURES, "dataset_count", "site_count")
MS = 1_766_966_400_000
ROWS = [
    *(partial(day, user=user(day.day % 3), remote_nacc=1) for day in WEEK.days),
    partial(
        WEEK.first,
        user=None,
        nacc=5,
        site_name="T1_DE_KIT",
        app="wmagent",
        dataset_name="/ZMM_x/b/AOD",
    ),
    partial(WEEK.last, site_name="unknown", dataset_name="/ttH/c/AOD", user=user(9)),
    partial(WEEK.last, site_name="unknown", dataset_name="/ttH/c/AOD", user=user(9), stream="eos"),
]


def lying(dataset: str, site: str, kind: str = "disk", size: int = 1_000, **other: Any) -> Row:
    """A row of dbs_phedex."""
    return {
        "day": WEEK.last,
        "dataset_name": dataset,
        "site_name": site,
        "kind": kind,
        "site_tier": site[:2],
        "data_tier": dataset.split("/")[-1],
        "present_bytes": size,
        "present_file_count": size // 100,
        "present_block_count": 1,
        "is_complete": True,
        "newest_replica_ms": MS,
        "timestamp": MS,
        **other,
    }


LYING = [
    lying("/ZMM/Run2026A-v1/AOD", "T2_CH_CERN"),
    lying("/ZMM/Run2026A-v1/AOD", "T2_US_MIT", size=500),
    lying("/ZMM/Run2026A-v1/AOD", "T2_CH_CERN", "tape", 9_000),
    lying("/nobody/reads/MINIAOD", "T2_CH_CERN", size=7_000, newest_replica_ms=None),
    lying("/nobody/reads/MINIAOD", "T1_DE_KIT", size=300),
    lying("/gone/x/AOD", "T2_US_MIT", size=0),
    lying("/ttH/c/AOD", "T2_US_MIT", size=200, data_tier=None),
]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for day in WEEK.days:
        store_partials(tmp_path, day, [row for row in ROWS if row["day"] == day])
    store_table(tmp_path, "dbs_phedex", "dbs_phedex", WEEK.last, LYING)
    tier = {
        "site_tier": "T2",
        "site_count": 2,
        "dataset_count": 3,
        "unknown_dataset_count": 0,
        "timestamp": MS,
    }
    sums = {
        "day": WEEK.last,
        "events": 5,
        "replica_events": None,
        "replica_bytes": 10**15,
        "replica_file_count": 10,
    }
    tiers = [
        {**tier, **sums, "kind": kind, "data_tier": data}
        for kind, data in (("disk", "AOD"), ("tape", "RAW"))
    ]
    store_table(
        tmp_path,
        "site_tier_usage",
        "site_tier_usage",
        WEEK.last,
        [*tiers, {**tiers[0], "site_tier": "T1"}],
    )
    return tmp_path


def output_of(place: Path, *arguments: str) -> str:
    result = CliRunner().invoke(
        command, ["ask", *arguments, "--fout", str(place)], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    return result.stdout


def json_of(place: Path, *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(output_of(place, *arguments, "--json"))
    return found


def fails(kind: type[CmssparkError], place: Path, *arguments: str) -> str:
    with pytest.raises(kind) as error:
        output_of(place, *arguments)
    return error.value.text()


def wanted(key: str, fits: Callable[[Row], bool], rows: list[Row] = ROWS) -> dict[str, Row]:
    return {group[0]: row for group, row in counted(rows, (key,), use._MEASURES, fits).items()}


def by(rows: list[Row], key: str) -> dict[str, Row]:
    return {
        row[key]: {name: value for name, value in row.items() if name not in (key, "job_count")}
        for row in rows
    }


def without_jobs(totals: Row) -> Row:
    jobs = totals["jobs"]
    assert jobs == {"job_count": 0, "distinct_users": 0, "cpu_time": None}
    return {name: value for name, value in totals.items() if name != "jobs"}


def test_who_reads_a_dataset_is_reported_by_site_and_application(place: Path) -> None:
    found = json_of(place, "who-reads", "/ZMM/Run2026A-v1/AOD")

    def fits(row: Row) -> bool:
        return bool(row["dataset_name"] == "/ZMM/Run2026A-v1/AOD")

    assert without_jobs(found["totals"]) == counted(ROWS, (), TOTALS, fits)[()]
    assert by(found["by_site"], "site_name") == wanted("site_name", fits)
    assert by(found["by_app"], "app") == wanted("app", fits)
    assert (found["first_day"], found["last_day"], found["days_stored"]) == (
        "2025-12-08",
        "2026-01-04",
        7,
    )
    assert "by_dataset" not in found


@settings(
    deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(rows=st.lists(OF_WEEK, max_size=25).map(lambda rows: [partial(WEEK.first), *rows]))
def test_any_days_give_what_a_plain_count_gives(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Row]
) -> None:
    folder = tmp_path_factory.mktemp("store")
    for day in WEEK.days:
        store_partials(folder, day, [row for row in rows if row["day"] == day])
    answer = use.who_reads(
        stored.find_days(LocalFiles(), str(folder), WEEK), "/*", "T2_*"
    ).as_dict()

    def fits(row: Row) -> bool:
        return bool(row["dataset_name"].startswith("/") and row["site_name"].startswith("T2_"))

    assert without_jobs(answer["totals"]) == counted(rows, (), TOTALS, fits)[()]
    for name, key in (("by_site", "site_name"), ("by_app", "app"), ("by_dataset", "dataset_name")):
        assert by(answer[name], key) == wanted(key, fits, rows)


def jobs_of(day: date, count: int, **other: Any) -> Row:
    return partial(
        day, stream="condor", nacc=count, cpu_time=1_800.0 * count, wc_time=2.0, **other
    )


@pytest.fixture
def with_jobs(tmp_path: Path) -> Path:
    """One access, thousands of jobs: of the same dataset at two sites, and of one that
    nobody else reads.
    """
    rows = [
        partial(WEEK.last, nacc=3),
        jobs_of(WEEK.last, 1_000, user=user(2), remote_nacc=7),
        jobs_of(WEEK.last, 200, site_name="T2_US_MIT", user=user(3), app="wmagent"),
        jobs_of(
            WEEK.first,
            4_000,
            dataset_name="/jobs/only/MINIAOD",
            site_name="T2_DE_DESY",
            user=user(3),
        ),
    ]
    for day in WEEK.days:
        store_partials(tmp_path, day, [row for row in rows if row["day"] == day])
    lying_here = [
        lying("/ZMM/Run2026A-v1/AOD", "T2_US_MIT"),
        lying("/ZMM/Run2026A-v1/AOD", "T1_DE_KIT", size=10),
        lying("/jobs/only/MINIAOD", "T2_US_MIT", size=500),
        lying("/jobs/only/MINIAOD", "T2_DE_DESY"),
    ]
    store_table(tmp_path, "dbs_phedex", "dbs_phedex", WEEK.last, lying_here)
    return tmp_path


def test_jobs_are_not_accesses_and_are_counted_beside_them(with_jobs: Path) -> None:
    found = json_of(with_jobs, "who-reads", "/ZMM*/*/AOD", "--week", "2026-W01")
    totals = found["totals"]
    assert (
        totals["nacc"],
        totals["distinct_users"],
        totals["read_bytes"],
        totals["remote_nacc"],
    ) == (3, 1, 100, None)
    assert totals["jobs"] == {"job_count": 1_200, "distinct_users": 2, "cpu_time": 2_160_000.0}
    sites = {row["site_name"]: (row["nacc"], row["job_count"]) for row in found["by_site"]}
    assert sites == {"T2_CH_CERN": (3, 1_000), "T2_US_MIT": (0, 200)}
    text = output_of(with_jobs, "who-reads", "/ZMM*/*/AOD", "--week", "2026-W01")
    assert (
        "3 accesses by 1 person" in text
        and "1,200 jobs by 2 people, 600 CPU hours (not accesses)" in text
    )
    assert " jobs " in text and " jobs " not in output_of(
        with_jobs, "who-reads", "/ZMM*/*/AOD", "--week", "2026-W01", "--site", "T1_*"
    )


def test_a_dataset_that_only_jobs_use_is_known_and_has_no_accesses(with_jobs: Path) -> None:
    found = json_of(with_jobs, "who-reads", "/jobs/only/MINIAOD", "--week", "2026-W01")
    assert found["totals"]["nacc"] == 0 and found["totals"]["jobs"]["job_count"] == 4_000
    text = output_of(with_jobs, "reads", "T2_DE_DESY", "--week", "2026-W01")
    assert (
        "nobody read it" in text
        and "4,000 jobs by 1 person" in text
        and "/jobs/only/MINIAOD" in text
    )


def test_what_a_job_used_is_not_unused(with_jobs: Path) -> None:
    found = json_of(with_jobs, "unused", "--weeks", "1")
    rows = [
        (row["site_name"], row["nacc_elsewhere"], row["jobs_elsewhere"]) for row in found["rows"]
    ]
    assert rows == [("T2_US_MIT", 0, 4_000), ("T1_DE_KIT", 3, 1_200)]
    assert all(row["unread_everywhere"] == 0 for row in found["by_site"])


def test_a_pattern_is_one_answer_with_its_datasets(place: Path) -> None:
    found = json_of(place, "who-reads", "/ZMM*/*/AOD", "--week", "2026-W01")
    assert set(by(found["by_dataset"], "dataset_name")) == {"/ZMM/Run2026A-v1/AOD", "/ZMM_x/b/AOD"}
    assert (found["totals"]["distinct_users"], found["totals"]["nacc"]) == (3, 12)
    assert json_of(place, "who-reads", "/ZMM*/*/AOD", "--site", "T1_*")["totals"]["nacc"] == 5


def test_people_are_counted_and_never_named(place: Path) -> None:
    for words in (("who-reads", "/*"), ("reads", "*"), ("unused", "--week", "2026-W01")):
        assert KEY not in output_of(place, *words) + json.dumps(json_of(place, *words))
    assert "accesses by 4 people" in output_of(place, "who-reads", "/*")
    assert "by no known user" in output_of(place, "who-reads", "/ZMM_x/*")


def test_what_is_read_at_a_site_is_reported_by_data_tier_and_dataset(place: Path) -> None:
    found = json_of(place, "reads", "unknown", "--week", "2026-W01")
    assert found["totals"]["distinct_users"] == 1 and found["totals"]["nacc"] == 2
    assert [row["data_tier"] for row in found["by_data_tier"]] == ["AOD"]
    assert [row["dataset_name"] for row in found["by_dataset"]] == ["/ttH/c/AOD"]
    assert len(json_of(place, "reads", "T*")["by_site"]) == 2


def test_what_is_known_and_not_read_is_an_answer(place: Path) -> None:
    assert "nobody read it" in output_of(place, "who-reads", "/nobody/reads/MINIAOD")
    assert "nobody read it" in output_of(place, "reads", "T2_US_MIT")
    assert json_of(place, "who-reads", "/nobody/*/*")["totals"]["nacc"] == 0


def test_what_nobody_knows_is_refused_with_the_nearest_names(place: Path) -> None:
    assert "nearest names: /ZMM/Run2026A-v1/AOD" in fails(
        InputMissing, place, "who-reads", "/ZMM/Run2026B-v1/AOD"
    )
    assert "T2_CH_CERN" in fails(InputMissing, place, "reads", "T2_CH_CERM")
    assert "T2_CH_CERN" in fails(
        InputMissing, place, "who-reads", "/ZMM/*/AOD", "--site", "T2_CH_CER"
    )
    assert "nearest names: /ZMM/Run2026A-v1/AOD" in fails(
        InputMissing, place, "who-reads", "run2026a"
    )
    assert "nearest names: T2_CH_CERN" in fails(InputMissing, place, "reads", "CERN")
    told = fails(InputMissing, place, "holdings", "--tier", "T9")
    assert "T2" in told and "site_tier_usage of 20" in told and str(place) in told
    assert "there is no site ''" in fails(
        InputMissing, place, "holdings", "--site", "", "--tier", "T2"
    )
    assert "AOD" in fails(InputMissing, place, "holdings", "--tier", "T2", "--data-tier", "AODD")
    assert "/ZMM/Run2026A-v1/AOD" in fails(InputMissing, place, "who-reads", "/qqqqqqq/*")


def test_a_store_without_days_says_what_to_run(tmp_path: Path) -> None:
    assert "run_spark data_aggregation" in fails(InputMissing, tmp_path, "who-reads", "/a/b/c")
    assert "run_spark site_tier_usage" in fails(InputMissing, tmp_path, "holdings", "--tier", "T2")
    store_partials(tmp_path, WEEK.last, [])
    assert "run_spark dbs_phedex" in fails(InputMissing, tmp_path, "unused", "--from", "20260104")


def test_what_lies_at_a_tier_comes_from_site_tier_usage_and_at_a_site_from_dbs_phedex(
    place: Path,
) -> None:
    found = json_of(place, "holdings", "--tier", "T2", "--data-tier", "AOD")
    assert (found["table"], found["total_bytes"], len(found["rows"])) == (
        "site_tier_usage",
        10**15,
        1,
    )
    assert "1.0 PB in 10 files" in output_of(place, "holdings", "--tier", "T2", "--kind", "tape")
    assert json_of(place, "holdings", "--tier", "T2", "--kind", "buffer")["total_bytes"] == 0
    site = json_of(place, "holdings", "--site", "T2_CH_CERN", "--kind", "disk")
    assert [
        (row["data_tier"], row["replica_bytes"], row["dataset_count"]) for row in site["rows"]
    ] == [("MINIAOD", 7_000, 1), ("AOD", 1_000, 1)]
    assert "site_tier" not in found["rows"][0]
    tiers = json_of(place, "holdings", "--tier", "T*", "--kind", "disk")["rows"]
    assert [(row["site_tier"], row["dataset_count"]) for row in tiers] == [("T1", 3), ("T2", 3)]
    both = json_of(place, "holdings", "--site", "T2_*", "--data-tier", "AOD", "--kind", "disk")
    assert [
        (row["site_count"], row["dataset_count"], row["replica_bytes"]) for row in both["rows"]
    ] == [(2, 1, 1_500)]
    with pytest.raises(UsageError):
        output_of(place, "holdings")
    with pytest.raises(UsageError):
        output_of(place, "who-reads", "/*", "--weeks", "1", "--week", "2026-W01")


def test_what_lay_there_on_an_earlier_day_is_found(place: Path) -> None:
    store_table(place, "dbs_phedex", "dbs_phedex", WEEK.first, LYING[:1])
    day = WEEK.first + timedelta(days=2)
    found = json_of(place, "holdings", "--site", "T2_CH_CERN", "--date", str(day))
    assert (found["day"], found["total_bytes"]) == (str(WEEK.first), 1_000)
    assert "no day of dbs_phedex is stored up to 2020-01-01" in fails(
        InputMissing, place, "holdings", "--site", "T2_CH_CERN", "--date", "20200101"
    )


def test_unused_is_what_no_access_read_at_that_site(place: Path) -> None:
    found = json_of(place, "unused", "--weeks", "1")
    rows = [
        (row["dataset_name"], row["site_name"], row["present_bytes"], row["nacc_elsewhere"])
        for row in found["rows"]
    ]
    assert rows == [
        ("/nobody/reads/MINIAOD", "T2_CH_CERN", 7_000, 0),
        ("/ZMM/Run2026A-v1/AOD", "T2_US_MIT", 500, 7),
        ("/nobody/reads/MINIAOD", "T1_DE_KIT", 300, 0),
        ("/ttH/c/AOD", "T2_US_MIT", 200, 2),
    ]
    assert (
        found["rows"][0]["newest_replica"] is None
        and found["rows"][1]["newest_replica"] == "2025-12-29"
    )
    assert {
        row["site_name"]: (row["replica_count"], row["unread_everywhere"])
        for row in found["by_site"]
    } == {"T2_CH_CERN": (1, 1), "T2_US_MIT": (2, 0), "T1_DE_KIT": (1, 1)}
    assert "4 of 5 datasets at sites, 8.0 kB of 9.0 kB" in output_of(
        place, "unused", "--weeks", "1"
    )
    assert json_of(place, "unused", "--weeks", "1", "--tier", "T1")["replica_count"] == 1
    assert json_of(place, "unused", "--weeks", "1", "--kind", "tape")["replica_count"] == 0
    assert "the largest" in output_of(place, "unused", "--weeks", "1", "--top", "2")


def test_unused_wants_every_day_as_it_may_have_been_read_on_one_that_is_missing(
    place: Path,
) -> None:
    assert "21 of the 28 days" in fails(InputMissing, place, "unused")
    found = json_of(place, "unused", "--weeks", "4", "--allow-missing")
    assert len(found["missing_days"]) == 21 and found["replica_count"] == 4


def test_people_under_two_keys_are_refused(place: Path) -> None:
    store_partials(place, WEEK.last, [], run="r2", pseudonym_key_id="feedface")
    assert "two pseudonym keys" in fails(DataError, place, "who-reads", "/*")
    assert json_of(place, "unused", "--weeks", "1")["replica_count"] == 3 + 1


def test_what_would_write_elsewhere_on_a_terminal_is_escaped(place: Path) -> None:
    store_partials(place, WEEK.last, [partial(WEEK.last, site_name="T2_\x1b[2J")], run="r2")
    assert "T2_\\x1b[2J" in output_of(place, "who-reads", "/ZMM/*", "--week", "2026-W01")


def test_the_nearest_of_many_names_are_found() -> None:
    names = [f"/Primary{number}/Run2026A-v{number}/AOD" for number in range(20_000)]
    assert "/Primary777/Run2026A-v777/AOD" in use.nearest("/Primary777/Run2026A-v778/AOD", names)
    assert use.nearest("x", []) == []


def used(dataset: str, last: date | None, *, is_candidate: bool, state: str = "unread") -> Row:
    """A row of dataset_last_access."""
    return {
        "day": WEEK.last,
        "dataset_name": dataset,
        "data_tier": "AOD",
        "site_count": 1,
        "site_names": "T2_X",
        "disk_bytes": 1,
        "tape_bytes": 0,
        "last_access_day": last,
        "state": state,
        "is_candidate": is_candidate,
        "timestamp": MS,
    }


def test_what_could_go_are_candidates_at_the_site_the_largest_first(place: Path) -> None:
    assert "run_spark dataset_last_access" in fails(InputMissing, place, "deletable", "T2_CH_CERN")
    rows = [
        used("/ZMM/Run2026A-v1/AOD", date(2024, 5, 6), is_candidate=True),
        used("/ttH/c/AOD", None, is_candidate=False),
        used("/nobody/reads/MINIAOD", None, is_candidate=True, state="never"),
    ]
    store_table(place, "dataset_last_access", "dataset_last_access", WEEK.last, rows)
    found = json_of(place, "deletable", "T2_*")
    assert [
        (row["dataset_name"], row["site_name"], row["present_bytes"], row["last_access_day"])
        for row in found["rows"]
    ] == [
        ("/nobody/reads/MINIAOD", "T2_CH_CERN", 7_000, None),
        ("/ZMM/Run2026A-v1/AOD", "T2_CH_CERN", 1_000, "2024-05-06"),
        ("/ZMM/Run2026A-v1/AOD", "T2_US_MIT", 500, "2024-05-06"),
    ]
    assert (found["total_bytes"], found["replica_count"]) == (8_500, 3)
    assert [
        row["present_bytes"]
        for row in json_of(place, "deletable", "T2_CH_CERN", "--kind", "tape")["rows"]
    ] == [9_000]
    assert "T2_CH_CERN" in fails(InputMissing, place, "deletable", "T2_CH_CENR")
    unread = json_of(place, "unused", "--weeks", "1")["rows"]
    assert {row["dataset_name"]: row["last_access_day"] for row in unread} == {
        "/nobody/reads/MINIAOD": None,
        "/ZMM/Run2026A-v1/AOD": "2024-05-06",
        "/ttH/c/AOD": None,
    }


def test_replicas_come_from_rucio_where_its_table_is_newer(place: Path) -> None:
    newer = {**LYING[0], "day": WEEK.last + timedelta(days=1), "present_bytes": 77}
    store_table(place, "dbs_rucio", "dbs_rucio", newer["day"], [newer])
    found = json_of(place, "holdings", "--site", "T2_CH_CERN")
    assert (found["table"], found["total_bytes"]) == ("dbs_rucio", 77)


@pytest.mark.parametrize("newest", [253_402_300_800_000, 2**63 - 1])
def test_replicas_from_after_the_year_9999_have_its_last_day(place: Path, newest: int) -> None:
    rows = [lying("/nobody/reads/MINIAOD", "T2_X", newest_replica_ms=newest)]
    store_table(place, "dbs_phedex", "dbs_phedex", WEEK.last, rows, run="r2")
    candidates = [used("/nobody/reads/MINIAOD", None, is_candidate=True)]
    store_table(place, "dataset_last_access", "dataset_last_access", WEEK.last, candidates)
    for question in (("deletable", "T2_X"), ("unused", "--weeks", "1")):
        assert [row["newest_replica"] for row in json_of(place, *question)["rows"]] == [
            "9999-12-31"
        ], question
