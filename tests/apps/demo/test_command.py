"""``cmsspark demo``, from nothing to documents."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from cmsspark.apps.demo import cli
from cmsspark.apps.demo.cli import WIDTH, command, load_made, save_made
from cmsspark.base.errors import OutputError
from cmsspark.base.reporting import run_click
from cmsspark.main import command as cmsspark


def demo(out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = "from cmsspark.main import main; main()"
    # A terminal's colours and width are none of the test's business.
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("CMSSPARK_SETTINGS", "CMSSPARK_ROOT")
    }
    return subprocess.run(
        [sys.executable, "-c", program, "demo", "--out", str(out), *arguments],
        env={
            **environment,
            "PYTHONPATH": str(Path(__file__).parents[3]),
            "CMSSPARK_STATE_DIR": str(out.parent / "state of a person"),
        },
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


def test_a_folder_with_other_files_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(OutputError) as refused:
        run_click(command, "cmsspark demo", ["--out", str(tmp_path)])
    assert refused.value.exit_code == 73
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    "wrong",
    [["--records", "10"], ["--seed", "-1"], ["--date", "2026-02-30"], ["--date", "2999-01-01"]],
)
def test_arguments_that_make_no_sense_are_a_usage_error(tmp_path: Path, wrong: list[str]) -> None:
    assert run_click(command, "cmsspark demo", ["--out", str(tmp_path / "new"), *wrong]) == 2
    assert not (tmp_path / "new").exists()


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    out = tmp_path_factory.mktemp("demo") / "demo cms"
    ended = demo(out, "--records", "6000")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return out, ended.stdout


def test_the_demo_finds_every_bin_as_it_was_made(shown: tuple[Path, str]) -> None:
    assert "every count equals that of the simulated records" in shown[1]


def test_the_demo_shows_the_ten_most_used_datasets_and_where_everything_lies(
    shown: tuple[Path, str],
) -> None:
    out, text = shown
    after = text.split("The ten most used datasets\n")[1].splitlines()
    assert [line.split()[-1][0] for line in after[1:11]] == ["/"] * 10
    assert not after[11]
    assert str(out / "store") in text and str(out / "documents") in text


def test_the_demo_prints_a_screen_and_three_commands_that_work_from_any_folder(
    shown: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = shown[1].rstrip().splitlines()
    assert len(lines) <= 45
    assert [line[:2] for line in lines[-3:]] == ["  "] * 3 and "Three commands" in lines[-4]
    monkeypatch.chdir(tmp_path)
    for line in lines[-3:]:
        words = shlex.split(line)
        start = next(
            number for number, word in enumerate(words) if word in ("report", "show", "ask")
        )
        ended = CliRunner().invoke(cmsspark, words[start:], catch_exceptions=False)
        assert ended.exit_code == 0, ended.output
    assert (shown[0] / "report.html").stat().st_size > 10_000


def test_the_state_directory_of_a_person_is_left_alone(shown: tuple[Path, str]) -> None:
    assert (shown[0] / "state" / "runs.sqlite").is_file()
    assert not (shown[0].parent / "state of a person").exists()


def test_tables_fit_in_100_columns(shown: tuple[Path, str]) -> None:
    results = shown[1].split("Every record is counted")[1].split("All is in")[0]
    assert max(len(line) for line in results.splitlines()) <= WIDTH


def test_the_demo_leaves_documents_that_are_the_stored_rows(shown: tuple[Path, str]) -> None:
    documents = [
        json.loads(line)
        for path in (shown[0] / "documents").rglob("*.jsonl")
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    assert sum(document.get("nacc", 0) for document in documents) > 4_000


@pytest.mark.long
def test_the_demo_runs_again_on_what_it_kept(shown: tuple[Path, str]) -> None:
    again = demo(shown[0], "--records", "6000", "--keep")
    assert again.returncode == 0, again.stdout + again.stderr
    assert "reused from the last run" in again.stdout


def test_logs_and_dumps_are_reused_until_something_changes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, marker, options = tmp_path / "cms", tmp_path / "demo.json", {"records": 6_000}
    (root / "project").mkdir(parents=True)
    log = root / "project" / "log.json"
    log.write_text("{}")
    save_made(marker, options, root, {"aaa": {"read": 1}})

    def found(**changed: int) -> tuple[bool, bool]:
        """Whether they are reused, and whether --keep reuses them."""
        asked = {**options, **changed}
        results = [load_made(marker, asked, root, is_changed_too=keep) for keep in (False, True)]
        assert all(result in (None, {"aaa": {"read": 1}}) for result in results)
        return results[0] is not None, results[1] is not None

    assert found() == (True, True)
    assert found(records=7_000) == (False, False)
    (root / "project" / "more.json").touch()
    assert found() == (False, True)
    (root / "project" / "more.json").unlink()
    assert found() == (True, True)
    os.utime(log, ns=(1, 1))
    assert found() == (False, True), "the same size at another time"
    save_made(marker, options, root, {"aaa": {"read": 1}})
    monkeypatch.setattr(cli, "_WRITERS", ("numpy",))
    assert found() == (False, True), "another writer may write other bytes"
    for text in ("", "{}", "[]", '{"asked": {"records": 6000}}'):
        marker.write_text(text)
        assert found() == (False, False)
