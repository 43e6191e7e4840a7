"""A run that fails leaves a page that names what failed and the next step; status and
show lead to it.
"""

from __future__ import annotations

import os
import stat
from datetime import date
from pathlib import Path

import pytest
from click.testing import CliRunner

from cmsspark.base.errors import DataError, NotReady
from cmsspark.main import command
from cmsspark.run import run_report
from cmsspark.run.run_context import running
from cmsspark.settings.settings import load_settings

DAY = date(2026, 1, 15)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "cmsspark.yaml").write_text("store: store\nstate_dir: state\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(error: BaseException | None, log: list[str]) -> None:
    settings = load_settings()
    with running(settings, str(settings.store), "data_aggregation", DAY, log.append):
        if error is not None:
            raise error


def fails(error: BaseException) -> tuple[Path, str]:
    """The page that a failing run leaves, and its text."""
    before = set(Path.cwd().rglob("*.html"))
    with pytest.raises(type(error)):
        run(error, [])
    page = max(set(Path.cwd().rglob("*.html")) - before)
    return page, page.read_text()


def shown(*words: str) -> str:
    result = CliRunner().invoke(command, words, catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_the_page_has_the_parts_of_the_error_and_the_meaning_of_its_code(folder: Path) -> None:
    error = DataError(
        "a file is <damaged>",
        where="/logs/part-1\x1b[2J",
        found="half a block",
        next_step="fetch it again",
    )
    page, text = fails(error)
    assert page.parent == folder / "state" / "failed" / "data_aggregation" / "2026-01-15"
    assert (
        stat.S_IMODE(page.stat().st_mode) == 0o600
        and stat.S_IMODE(page.parent.stat().st_mode) == 0o700
    )
    for part in (
        "a file is &lt;damaged&gt;",
        "/logs/part-1\\x1b[2J",
        "half a block",
        "fetch it again",
        "failed with 65",
    ):
        assert part in text
    assert "beyond a tolerance" in text and "none is stored" in text
    assert "<script" not in text and "\x1b" not in text


def test_status_and_show_name_the_page_of_the_last_failed_run(folder: Path) -> None:
    fails(DataError("the first reason"))
    page, _ = fails(DataError("the second reason"))
    said = shown("status", "--to", "2026-01-15", "--days", "2")
    reason = f"failed (65): the second reason (run {page.stem})"
    assert f"2026-01-15 data_aggregation: {reason}\n  {page}\n" in said
    assert "first reason" not in said
    assert str(page) in shown("show", page.stem)


def test_a_bug_and_a_day_that_is_not_ready_leave_a_page_too_and_an_interruption_none(
    folder: Path,
) -> None:
    assert "ZeroDivisionError" in fails(ZeroDivisionError("x"))[1]
    assert "wait for it" in fails(NotReady("not yet", next_step="wait for it"))[1]
    count = len(list(folder.rglob("*.html")))
    with pytest.raises(KeyboardInterrupt):
        run(KeyboardInterrupt(), [])
    assert len(list(folder.rglob("*.html"))) == count


def test_pages_of_a_day_are_few_and_go_when_it_is_done(folder: Path) -> None:
    pages = []
    for number in range(7):
        pages.append(fails(DataError(f"reason {number}"))[0])
        # An hour between them.
        os.utime(pages[-1], times=(3600 * number, 3600 * number))
    assert set(pages[0].parent.iterdir()) == set(pages[-5:])
    run(None, [])
    assert not pages[0].parent.exists()


def test_a_full_state_disk_changes_nothing_of_the_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_text", refuse)
    with pytest.raises(DataError, match="the reason"):
        run(DataError("the reason"), [])
    assert not [file for file in (folder / "state" / "failed").rglob("*") if file.is_file()]


def test_a_run_of_another_day_keeps_its_page(folder: Path) -> None:
    page, _ = fails(DataError("x"))
    settings = load_settings()
    with running(
        settings, str(settings.store), "data_aggregation", date(2026, 1, 16), lambda text: None
    ):
        pass
    assert page.is_file()
    assert run_report.page_path(settings.state_dir, _run_of(page)).name == page.name


def _run_of(page: Path) -> run_report.Run:
    from cmsspark.store.run_history import State

    return run_report.Run(page.stem, "data_aggregation", DAY, State.FAILED, "store", 0)
