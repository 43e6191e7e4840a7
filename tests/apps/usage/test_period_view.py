"""Named views: strict to read, the same cells as a plain count, made for any period,
their time told.
"""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner

from cmsspark.apps.usage import period_views as view_command
from cmsspark.apps.usage.period_views import load_views, parse_views
from cmsspark.base.errors import (
    CmssparkError,
    DataError,
    InputMissing,
    NotReady,
    OutputError,
    SettingsError,
    UsageError,
)
from cmsspark.base.periods import Period
from cmsspark.main import command
from cmsspark.sources.registry import STORAGE_APP
from tests.apps.usage.periods import WEEK
from tests.run.partial_days import counted, partial, store_partials, user

OWN = """
mine:
  about: What T2 sites analyse
  keys: [data_tier, day]
  measures: [distinct_users, nacc]
  filter: {site_name: "T2_*", app: [crab, cmsrun]}
  period: month
  sort: day
"""
ROWS = [
    *(partial(day, user=user(day.day % 3), nacc=day.day) for day in WEEK.days),
    partial(WEEK.first, user=None, site_name="T1_DE_KIT", app="cmsrun"),
    partial(WEEK.first, app="other"),
    partial(WEEK.last, dataset_name="/Z/x/MINIAOD", app="cmsrun", read_bytes=None),
    # Jobs, which are not accesses: of a dataset that is read, and of one that only jobs have.
    partial(WEEK.last, stream="condor", nacc=1_000, user=user(7), cpu_time=3.5, wc_time=4.0),
    partial(
        WEEK.first,
        stream="condor",
        nacc=500,
        dataset_name="/only/jobs/MINIAOD",
        app="crab",
        remote_nacc=9,
    ),
]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.yaml").write_text(OWN)
    for day in WEEK.days:
        store_partials(tmp_path / "store", day, [row for row in ROWS if row["day"] == day])
    return tmp_path


def output_of(*arguments: str) -> str:
    result = CliRunner().invoke(
        command, ["period", "--view", *arguments, "--fout", "store"], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    return result.stdout


def fails(kind: type[CmssparkError], *arguments: str) -> str:
    with pytest.raises(kind) as error:
        output_of(*arguments)
    return error.value.text()


def test_every_built_in_view_can_be_made_and_is_listed() -> None:
    views = load_views(None)
    listed = output_of()
    for name, view in views.items():
        assert name in listed and view.about and view.about in listed
        if view.job != "data_aggregation":
            continue  # views of costs: tests/apps/jobs_cost/test_cost_commands.py
        found = json.loads(output_of(name, "--week", "2026-W01", "--json"))
        keys, measures = view.rollup.keys, view.rollup.measures
        patterns = dict(view.rollup.filters)
        wanted = counted(
            ROWS,
            keys,
            measures,
            lambda row, patterns=patterns: all(
                row[key] in texts or (texts == (f"!{STORAGE_APP}",) and row[key] != STORAGE_APP)
                for key, texts in patterns.items()
            ),
        )
        assert name in ("jobs", "days", "transfers") or patterns["stream"] == (
            "aaa",
            "eos",
            "cmssw",
            "crab",
        )
        groups = {
            tuple(_day(row[key]) for key in keys): {name: row[name] for name in measures}
            for row in found["rows"]
        }
        assert groups == wanted


def test_a_view_counts_jobs_only_where_it_names_the_stream() -> None:
    own = Path("streams.yaml")
    measures = "measures: [nacc, distinct_users]"
    own.write_text(
        f"plain: {{keys: [dataset_name], {measures}}}\n"
        f"every: {{keys: [dataset_name], {measures}, filter: {{stream: '*'}}}}\n"
        f"streams: {{keys: [dataset_name, stream], {measures}}}\n"
    )

    def rows(name: str) -> list[dict[str, Any]]:
        return list(
            json.loads(output_of(name, "--views", str(own), "--week", "2026-W01", "--json"))[
                "rows"
            ]
        )

    assert {row["dataset_name"]: row["nacc"] for row in rows("plain")} == {
        "/ZMM/Run2026A-v1/AOD": sum(day.day for day in WEEK.days) + 2,
        "/Z/x/MINIAOD": 1,
    }
    assert {row["dataset_name"]: row["nacc"] for row in rows("every")}["/only/jobs/MINIAOD"] == 500
    assert {row["stream"] for row in rows("streams")} == {"aaa", "condor"}


def _day(value: str) -> Any:
    return date.fromisoformat(value) if value.startswith("20") else value


def test_one_s_own_view_filters_by_patterns_and_keeps_its_order() -> None:
    found = json.loads(output_of("mine", "--views", "own.yaml", "--week", "2026-W01", "--json"))
    assert found["period"] == "2026-W01"
    assert [row["day"] for row in found["rows"]] == [str(day) for day in (*WEEK.days, WEEK.last)]
    assert {row["data_tier"] for row in found["rows"]} == {"AOD", "MINIAOD"}


def test_the_settings_may_name_the_file_of_views(home: Path) -> None:
    (home / "cmsspark.yaml").write_text("views: own.yaml\n")
    assert "mine " in output_of()


def test_people_see_the_largest_first_and_how_long_it_took() -> None:
    result = CliRunner().invoke(
        command,
        ["period", "--view", "datasets", "--week", "2026-W01", "--top", "1", "--fout", "store"],
    )
    lines = result.stdout.splitlines()
    assert lines[0].split() == [
        "nacc",
        "distinct_users",
        "site_count",
        "day_count",
        "read_bytes",
        "cpu_time",
        "dataset_name",
    ]
    assert lines[1].endswith("/ZMM/Run2026A-v1/AOD") and lines[2].startswith("  and 1 more")
    assert "datasets of 2026-W01: 2 rows from 7 days in " in result.stderr


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl"])
def test_all_rows_can_be_written_to_a_file(home: Path, suffix: str) -> None:
    assert output_of("sites", "--week", "2026-W01", "--out", f"x.{suffix}") == ""
    read = {"parquet": pl.read_parquet, "csv": pl.read_csv, "jsonl": pl.read_ndjson}[suffix]
    assert read(home / f"x.{suffix}").height == 2
    assert [path.name for path in home.glob(".x*")] == []


def test_without_a_period_it_is_of_the_last_week_or_month() -> None:
    views = load_views("own.yaml")
    assert views["datasets"].last(date(2026, 1, 5)) == WEEK
    assert views["mine"].last(date(2026, 1, 5)) == Period(date(2025, 12, 1), date(2026, 1, 1))


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        ("a: 1", 1, "lines below it"),
        ("a:\n  keys: [stream]\n  measures: [nacc]\n  colour: red", 4, "colour"),
        ("a:\n  measures: [nacc]", 1, "needs `keys`"),
        ("a:\n  keys: stream\n  measures: [nacc]", 2, "a list"),
        ("a:\n  keys: []\n  measures: [nacc]", 2, "a list"),
        ("a:\n  keys: [stream, stream]\n  measures: [nacc]", 2, "repeat"),
        ("a:\n  keys: [user]\n  measures: [nacc]", 2, "single people"),
        ("a:\n  keys: [stream]\n  measures: [users]", 3, "'users'"),
        ("a:\n  keys: [1]\n  measures: [nacc]", 2, "one of a.keys is not a text"),
        ("a:\n  keys: [stream]\n  measures: [nacc]\n  period: year", 4, "week, month"),
        ("a:\n  keys: [stream]\n  measures: [nacc]\n  sort: site_name", 4, "sorted"),
        ("a:\n  keys: [stream]\n  measures: [nacc]\n  about: [x]", 4, "a text"),
        ("a:\n  keys: [stream]\n  measures: [nacc]\n  filter: x", 4, "lines below it"),
        ("a:\n  keys: [stream]\n  measures: [nacc]\n  filter:\n    user: x", 5, "'user'"),
        ("a:\n  keys: [stream]\n  measures: [nacc]\n  filter:\n    app: yes", 5, "quotes"),
        ("a:\n  keys: [stream]\n  measures: [nacc]\n  filter:\n    app: []", 5, "quotes"),
        ("a:\n  keys: [stream]\n  measures: [nacc]\na:\n  keys: [stream]", 4, "again"),
        ("a: [", 1, "YAML"),
    ],
)
def test_what_is_wrong_is_named_with_file_and_line(text: str, line: int, told: str) -> None:
    with pytest.raises(SettingsError) as error:
        parse_views(text.encode(), "v.yaml")
    assert f"v.yaml, line {line}" in error.value.text()
    assert told in error.value.text()


def test_what_cannot_be_made_is_reported() -> None:
    assert "datasets, sites" in fails(UsageError, "nothing")
    assert "did you mean datasets?" in fails(UsageError, "datsets")
    assert ".parquet" in fails(UsageError, "sites", "--out", "x.xlsx")
    assert "no-such.yaml" in fails(SettingsError, "sites", "--views", "no-such.yaml")
    assert "2026-01-05" in fails(InputMissing, "sites", "--from", "20260104", "--to", "20260105")
    assert "cannot be written" in fails(
        OutputError, "sites", "--week", "2026-W01", "--out", "no/such/x.csv"
    )


def test_people_under_two_keys_are_refused_only_where_they_are_counted(home: Path) -> None:
    store_partials(home / "store", WEEK.last, [], run="r2", pseudonym_key_id="feedface")
    assert "feedface" in fails(DataError, "sites", "--week", "2026-W01")
    (home / "own.yaml").write_text("bytes:\n  keys: [stream]\n  measures: [read_bytes]\n")
    assert "aaa" in output_of("bytes", "--views", "own.yaml", "--week", "2026-W01")


def test_days_that_are_missing_are_counted_first_oldest_first(home: Path) -> None:
    began: list[date] = []

    def count(day: date) -> int:
        began.append(day)
        return 75 if day == WEEK.days[2] else 0

    with pytest.raises(NotReady, match="2025-12-31 cannot be counted"):
        view_command.count_days(tuple(WEEK.days), count)
    assert began == WEEK.days[:3]
    with pytest.raises(InputMissing):
        view_command.count_days((WEEK.last,), lambda day: 66)


def test_a_day_whose_logs_are_not_there_either_ends_the_view(home: Path) -> None:
    told = (
        "--from",
        "20260104",
        "--to",
        "20260105",
        "--run-missing",
        "--root",
        str(home / "nothing"),
    )
    assert "2026-01-05 cannot be counted" in fails(InputMissing, "sites", *told)
