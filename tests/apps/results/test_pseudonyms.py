"""``cmsspark lab pseudonyms``: which key is for which days, and what a rotation says."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import sys
from datetime import date, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cmsspark.apps.results.pseudonyms import command
from cmsspark.base import dates, errors
from cmsspark.settings import pseudonyms
from tests.run.places import Place, write_streams

FORGET = ("forget", "--before", "2026-01-01", "--yes")


@pytest.fixture
def state(tmp_path: Path) -> Path:
    (tmp_path / "cmsspark.yaml").write_text("state_dir: state\n")
    return tmp_path / "state"


def run(state: Path, *words: str) -> Result:
    settings = str(state.parent / "cmsspark.yaml")
    return CliRunner().invoke(command, [*words, "--settings", settings])


def test_a_new_key_is_for_the_next_month_unless_a_day_is_given(state: Path) -> None:
    before = pseudonyms.load(state / "pseudonym.key").current
    assert run(state, "rotate").exit_code == 0
    keys = pseudonyms.load(state / "pseudonym.key")
    today = dates.today()
    first = (today.replace(day=1) + timedelta(days=32)).replace(day=1)
    assert keys.of_day(today) == before
    assert keys.of_day(first) == keys.current != before
    shown = run(state, "list").output
    assert shown.split("\n")[1].split() == [keys.current.key_id, first.isoformat(), "–"]
    assert keys.current.key.hex() not in shown
    assert stat.S_IMODE((state / "pseudonym.key").stat().st_mode) == 0o600


def test_a_rotation_that_drops_keys_asks_for_yes(state: Path) -> None:
    run(state, "rotate", "--from", "2026-02-01")
    kept = pseudonyms.load(state / "pseudonym.key")
    refused = run(state, "rotate", "--from", "2026-01-01")
    assert isinstance(refused.exception, errors.UsageError)
    assert kept.current.key_id in str(refused.exception)
    assert pseudonyms.load(state / "pseudonym.key") == kept
    assert run(state, "rotate", "--from", "2026-01-01", "--yes").exit_code == 0
    assert pseudonyms.load(state / "pseudonym.key").of_day(date(2026, 2, 1)) not in (
        kept.current,
        kept.older[0][1],
    )


def test_forgetting_needs_yes_and_names_the_keys(state: Path) -> None:
    first = pseudonyms.load(state / "pseudonym.key").current
    run(state, "rotate", "--from", "2026-02-01")
    assert first.key_id in run(state, "forget", "--before", "2026-02-01").output
    assert len(pseudonyms.load(state / "pseudonym.key").older) == 1
    assert run(state, "forget", "--before", "2026-02-01", "--yes").exit_code == 0
    assert pseudonyms.load(state / "pseudonym.key").older == ()


#: Audited operations of files, which happen after their event.
_OPERATIONS = ("open", "os.rename", "os.remove", "os.link", "os.mkdir", "fcntl.flock")


def killed(state: Path, step: int, *words: str) -> tuple[bool, str]:
    """Run a command that is killed before its operation ``step`` on a file of the state
    directory; return whether it ended before, and what it had said.
    """
    said = state.parent / "said"
    child = os.fork()
    if child == 0:
        try:
            count = 0

            def die_at_step(event: str, values: tuple[object, ...]) -> None:
                nonlocal count
                named = any(str(state) in os.fsdecode(v) for v in values if isinstance(v, str))
                if event in _OPERATIONS and (named or event == "fcntl.flock"):
                    count += 1
                    if count == step:
                        os.kill(os.getpid(), signal.SIGKILL)

            fsync = os.fsync

            def audited_fsync(handle: int) -> None:
                die_at_step("os.link", (str(state),))
                fsync(handle)
                die_at_step("os.link", (str(state),))

            os.fsync = audited_fsync
            sys.addaudithook(die_at_step)
            result = run(state, *words)
            said.write_text(result.output)
            os._exit(result.exit_code)
        finally:
            os._exit(99)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return False, ""
    assert os.WEXITSTATUS(status) == 0
    return True, said.read_text()


def hex_in_files(state: Path, key: pseudonyms.Pseudonyms) -> list[Path]:
    files = [path for path in state.rglob("*") if path.is_file()]
    return [path for path in files if key.key.hex() in path.read_text(errors="replace")]


@pytest.mark.parametrize("words", [("rotate", "--from", "2026-03-01"), FORGET])
def test_after_a_kill_at_any_operation_keys_are_whole_and_a_forgotten_one_is_nowhere(
    words: tuple[str, ...], state: Path
) -> None:
    file, step, is_over = state / "pseudonym.key", 0, False
    changes = set()
    while not is_over:
        step += 1
        shutil.rmtree(state, ignore_errors=True)
        oldest = pseudonyms.load(file).current
        run(state, "rotate", "--from", "2026-01-01")
        run(state, "rotate", "--from", "2026-02-01")
        before = pseudonyms.load(file)
        is_over, said = killed(state, step, *words)
        after = pseudonyms.load(file)
        changes.add(after != before)
        if after != before and words[0] == "rotate":
            assert after.older == ((date(2026, 3, 1), before.current), *before.older)
        elif after != before:
            assert after == before.without(date(2026, 1, 1))
        if is_over:
            assert (after != before and after.current.key_id in said) or oldest.key_id in said
        # No lock stays, and nothing of the killed process.
        assert run(state, *FORGET).exit_code == 0
        assert hex_in_files(state, oldest) == []
        assert [path.name for path in state.iterdir()] == ["pseudonym.key"]
        assert run(state, "rotate", "--from", "2026-04-01").exit_code == 0
    assert step > 8 and changes == {False, True}


def test_after_a_kill_at_any_operation_of_the_first_use_there_is_one_key_that_can_be_forgotten(
    state: Path,
) -> None:
    step, is_over = 0, False
    while not is_over:
        step += 1
        shutil.rmtree(state, ignore_errors=True)
        is_over, _ = killed(state, step, "forget", "--before", "2020-01-01")
        first = pseudonyms.load(state / "pseudonym.key").current
        assert stat.S_IMODE(state.stat().st_mode) == 0o700
        assert run(state, "rotate", "--from", "2026-01-01").exit_code == 0
        assert run(state, *FORGET).exit_code == 0
        assert hex_in_files(state, first) == []
    assert step > 5


def test_what_changes_at_once_is_refused_and_nothing_is_said_to_have_happened(
    state: Path,
) -> None:
    pseudonyms.load(state / "pseudonym.key")
    run(state, "rotate", "--from", "2026-01-01")
    kept = pseudonyms.load(state / "pseudonym.key")
    with pseudonyms.changing(state / "pseudonym.key"):
        refused = run(state, *FORGET)
    assert isinstance(refused.exception, errors.NotReady) and "forgotten" not in refused.output
    assert pseudonyms.load(state / "pseudonym.key") == kept


def test_keys_that_a_disk_did_not_confirm_are_said_to_be_changed(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = pseudonyms.load(state / "pseudonym.key")

    def failing(path: Path) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(pseudonyms, "_sync_folder", failing)
    failed = run(state, "rotate", "--from", "2026-01-01")
    assert isinstance(failed.exception, errors.OutputError)
    assert "were changed, but" in str(failed.exception)
    assert pseudonyms.load(state / "pseudonym.key") != before


def test_without_a_key_there_is_nothing_to_list(state: Path) -> None:
    assert isinstance(run(state, "list").exception, errors.InputMissing)
    assert not state.exists()


def test_a_day_counted_again_after_a_rotation_keeps_its_pseudonyms_unless_the_new_key_is_for_it(
    tmp_path: Path,
) -> None:
    place = Place(tmp_path)
    write_streams(place.tree)

    def count() -> tuple[str, set[str]]:
        assert place.run("data_aggregation", "--engine", "processes") == 0
        users = {str(row["user"]) for row in place.rows("partials") if row["user"]}
        return place.manifest("partials")["pseudonym_key_id"], users

    first_id, first = count()
    assert first and all(user.startswith(f"{first_id}:") for user in first)
    words = ("--settings", str(place.settings), "--fout", place.fout)
    said = CliRunner().invoke(command, ["rotate", "--from", "2026-01-01", *words]).output
    assert "earlier key" not in said
    assert count() == (first_id, first)
    said = CliRunner().invoke(command, ["rotate", "--from", "2019-06-01", "--yes", *words]).output
    assert "stored with an earlier key: 2019-06-15" in said
    assert "cmsspark daily --force --from 2019-06-15 --to 2019-06-15" in said
    second_id, second = count()
    assert second_id != first_id and len(second) == len(first) and not first & second
