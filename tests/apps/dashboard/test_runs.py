"""The page of runs: days that the daily run skips show it, with who said so and why."""

from __future__ import annotations

import urllib.request
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from cmsspark.apps.dashboard import cli as dashboard_command
from cmsspark.main import command
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
    def skipped() -> dict[tuple[object, str], str]:
        return dict(dashboard_command._skipped(tmp_path / "state", "store"))

    with serving(store, tmp_path, skipped=skipped) as running:
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


def test_without_skipped_days_nothing_is_said_of_them(store: Path, tmp_path: Path) -> None:
    with serving(store, tmp_path) as running:
        page = text_of(running.base)
        assert "skips" not in page and "the &lt;b&gt;" not in page


def test_a_damaged_state_is_a_note_and_no_failure(store: Path, tmp_path: Path) -> None:
    (tmp_path / "state" / "daily.json").write_text("{")
    assert dashboard_command._skipped(tmp_path / "state", "store") == {}
