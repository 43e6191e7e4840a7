"""The page of runs: the states and reasons of ``cmsspark status``, by its one table."""

from __future__ import annotations

import csv
import io
import json
import urllib.request
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cmsspark.main import command
from cmsspark.settings.settings import load_settings
from cmsspark.store.silent_sites import silent_lines
from tests.apps.dashboard import stores
from tests.apps.dashboard.conftest import serving
from tests.apps.dashboard.stores import LAST

GAP = LAST - timedelta(days=1)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three days, the one in the middle missing and skipped; the last one is skipped
    although it has a result.
    """
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    Path("cmsspark.yaml").write_text(f"state_dir: {tmp_path}/state\ncache_dir: {tmp_path}/cache\n")
    for day in (LAST, LAST - timedelta(days=2)):
        stores.store_day(tmp_path / "store", day, stores.partial_rows(day, count=20))
    for day in (LAST, GAP):
        words = [
            "daily",
            "skip",
            str(day),
            "data_aggregation",
            "--reason",
            "the <b>disk</b> was gone",
            "--fout",
            "store",
        ]
        result = CliRunner().invoke(command, words, catch_exceptions=False)
        assert result.exit_code == 0, result.output
    return tmp_path / "store"


def text_of(base: str, query: str = "") -> str:
    with urllib.request.urlopen(f"{base}/runs{query}") as answer:
        return str(answer.read().decode())


def test_a_skipped_day_is_shown_with_its_reason(store: Path, tmp_path: Path) -> None:
    with serving(store, tmp_path) as running:
        page = text_of(running.base)
        assert (
            page.count("<span>skipped</span>") == 1
            and "the &lt;b&gt;disk&lt;/b&gt; was gone" in page
        )
        assert "<b>disk</b>" not in page
        assert "What needs a look" in page
        one = text_of(running.base, f"?job=data_aggregation&day={GAP}")
        assert (
            f"data_aggregation of {GAP} is skipped by" in one
            and "There is no run of this day." in one
        )
        # A result that is there is shown, as `cmsspark status` does.
        assert f"{LAST}: data_aggregation: done" in page


def test_a_damaged_state_is_no_failure(store: Path, tmp_path: Path) -> None:
    (tmp_path / "state" / "daily.json").write_text("{")
    with serving(store, tmp_path) as running:
        page = text_of(running.base)
    assert f"{LAST}: data_aggregation: done" in page and "skipped" not in page


def rows_of(base: str, table: str) -> list[dict[str, str]]:
    with urllib.request.urlopen(f"{base}/runs?download={table}&format=csv") as answer:
        return list(csv.DictReader(io.StringIO(answer.read().decode())))


def test_stored_days_have_their_state_at_the_destination_of_the_settings(
    store: Path, tmp_path: Path
) -> None:
    settings_file = tmp_path / "cmsspark.yaml"
    text = settings_file.read_text()
    settings_file.write_text(f"{text}publishing: {{sink: file}}\ndaily: {{days: 900}}\n")

    def states() -> tuple[dict[tuple[str, str], str], str, Any]:
        with serving(store, tmp_path, settings=load_settings(None)) as running:
            rows = rows_of(running.base, "destinations")
            page = text_of(running.base)
        told = CliRunner().invoke(
            command, ["status", "--json", "--fout", "store", "--to", str(LAST)]
        )
        at = {(row["day"], row["is_configured"]): row["state"] for row in rows}
        return at, page, json.loads(told.stdout)

    days = [str(LAST), str(LAST - timedelta(days=2))]
    result = CliRunner().invoke(command, ["runs", "--rebuild", "--fout", "store"])
    assert result.exit_code == 0, result.output
    at, page, told = states()
    assert at == {(day, "true"): "not sent" for day in days}
    assert page.count("<span>unsent</span>") == 2 and "3 days not sent" not in page
    assert {told[day]["data_aggregation"] for day in days} == {"unsent"}
    words = ["publish", "--date", days[0], "--fout", "store"]
    result = CliRunner().invoke(command, words)
    # Three documents with hostile names are refused.
    assert result.exit_code == 1, result.output
    at, page, told = states()
    assert at == {(days[0], "true"): "refused", (days[1], "true"): "not sent"}
    assert "1 day refused" in page
    assert told[days[0]]["data_aggregation"] == "published"
    # Another destination of the settings has nothing of what this one has.
    settings_file.write_text(
        f"{text}publishing: {{sink: file, spool: {tmp_path}/other}}\ndaily: {{days: 900}}\n"
    )
    at, page, told = states()
    assert at == {
        (days[0], "true"): "not sent",
        (days[0], "false"): "refused",
        (days[1], "true"): "not sent",
    }
    assert {told[day]["data_aggregation"] for day in days} == {"unsent"}
    assert page.count("<span>unsent</span>") == 2


def test_a_destination_that_cannot_be_used_is_a_note(store: Path, tmp_path: Path) -> None:
    settings_file = tmp_path / "cmsspark.yaml"
    settings_file.write_text(
        f"{settings_file.read_text()}publishing: {{sink: stomp, amq: {tmp_path}/none.json}}\n"
    )
    with serving(store, tmp_path, settings=load_settings(None)) as running:
        page = text_of(running.base)
    assert "the destination of the settings cannot be used" in page


def test_sites_that_fell_silent_are_named(tmp_path: Path) -> None:
    for back in range(15):
        day = LAST - timedelta(days=back)
        rows = [row for row in stores.partial_rows(day) if row["stream"] == "aaa"]
        gone = back == 0
        rows = [row for row in rows if not gone or row["site_name"] != "T1_US_FNAL"]
        stores.store_day(tmp_path / "store", day, rows)
    with serving(tmp_path / "store", tmp_path) as running:
        page = text_of(running.base)
    (line,) = silent_lines(str(tmp_path / "store"), "data_aggregation", LAST)
    assert "T1_US_FNAL" in line and line in page
