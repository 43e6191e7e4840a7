"""Errors: each says what was wanted and knows its exit code; one place turns them into output."""

from __future__ import annotations

import errno
import os
import pickle
import subprocess
import sys
from pathlib import Path

import click
import pytest

from cmsspark.base import errors, reporting
from cmsspark.base.errors import CmssparkError, Exit

KINDS = {
    errors.UsageError: 2,
    errors.DocumentsQuarantined: 3,
    errors.DataError: 65,
    errors.InputMissing: 66,
    errors.OutputError: 73,
    errors.NotReady: 75,
    errors.NotAllowed: 77,
    errors.SettingsError: 78,
}


def test_every_kind_has_its_exit_code() -> None:
    assert set(KINDS) == set(CmssparkError.__subclasses__())
    for kind, code in KINDS.items():
        assert kind("x").exit_code == code
    assert (int(Exit.DONE), int(Exit.BUG)) == (0, 70)


def test_a_message_has_a_line_for_each_thing_that_is_known() -> None:
    error = errors.DataError("no such file", where="/x", found="nothing", next_step="look")
    assert (
        str(error) == error.text() == "no such file\n  where: /x\n  found: nothing\n  next: look"
    )
    assert str(errors.DataError("no such file")) == "no such file"


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_crosses_processes_whole(kind: type[CmssparkError]) -> None:
    error = pickle.loads(pickle.dumps(kind("wanted", where="/x", found=5, next_step="look")))
    assert type(error) is kind
    assert (error.problem, error.where, error.found, error.next_step) == (
        "wanted",
        "/x",
        5,
        "look",
    )


def test_our_errors_are_reported_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert reporting.report(errors.InputMissing("a day is wanted", where="/x")) == 66
    told = capsys.readouterr()
    usual = "check the name; if the input has not arrived yet, run it again when it has"
    assert told.err == f"cmsspark: a day is wanted\n  where: /x\n  next: {usual}\n"
    assert told.out == ""


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {errors.UsageError}, key=KINDS.__getitem__))
def test_an_error_without_a_next_step_is_printed_with_the_usual_one(
    kind: type[CmssparkError], capsys: pytest.CaptureFixture[str]
) -> None:
    reporting.report(kind("wanted", next_step="do this"))
    assert capsys.readouterr().err == "cmsspark: wanted\n  next: do this\n"
    reporting.report(kind("wanted"))
    steps = [line for line in capsys.readouterr().err.splitlines() if line.startswith("  next: ")]
    assert len(steps) == (kind is not errors.DocumentsQuarantined)


def test_a_bug_is_reported_in_one_line_and_an_interrupt_is_not_ready(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert reporting.report(ZeroDivisionError("a\nb" + "x" * 1000)) == 70
    told = capsys.readouterr().err
    assert "a bug in cmsspark: ZeroDivisionError: a bxx" in told
    assert "--debug" in told
    assert len(told) < 600
    assert reporting.report(KeyboardInterrupt()) == 75


def test_a_traceback_is_shown_when_debugging(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for value, shown in (("1", True), ("0", False), ("", False)):
        monkeypatch.setenv("CMSSPARK_DEBUG", value)
        reporting.report(errors.DataError("x"))
        assert ("DataError" in capsys.readouterr().err) is shown


@click.command("try")
@click.option(
    "--how",
    type=click.Choice(["number", "nothing", "ours", "abort", "bug", "exit"]),
    required=True,
)
def command(how: str) -> int | None:
    match how:
        case "number":
            return 3
        case "ours":
            raise errors.NotAllowed("a key is wanted")
        case "abort":
            raise click.Abort
        case "bug":
            raise ValueError("oh")
        case "exit":
            click.get_current_context().exit(5)
    return None


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--how", "number"], 3),
        (["--how", "nothing"], 0),
        (["--how", "ours"], 77),
        (["--how", "abort"], 75),
        (["--how", "bug"], 70),
        (["--how", "exit"], 5),
        (["--how", "x"], 2),
        ([], 2),
        (["--nothing"], 2),
        (["--help"], 0),
    ],
)
def test_a_commands_end_is_the_process_exit_code(arguments: list[str], code: int) -> None:
    with pytest.raises(SystemExit) as ended:
        reporting.run_and_exit(lambda: reporting.run_click(command, "try", arguments))
    assert ended.value.code == code


def test_an_output_whose_reader_has_gone_is_73(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def command() -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, getattr(sys, name))  # click replaces them
    assert reporting.run_click(command, "try", []) == Exit.NO_OUTPUT


def test_an_interrupt_while_a_dataclass_is_made_is_75_too(tmp_path: Path) -> None:
    (tmp_path / "interrupted.py").write_text(
        "from cmsspark.base import reporting\nreporting.run_and_exit(lambda: exec('raise KeyboardInterrupt'))\n"
    )
    environ = {**os.environ, "PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"}
    done = subprocess.run(
        [sys.executable, "-m", "interrupted"], capture_output=True, check=False, env=environ
    )
    assert (done.returncode, done.stderr.count(b"interrupted;")) == (75, 1)


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.ENOSPC, 73),
        (errno.EDQUOT, 73),
        (errno.EROFS, 73),
        (errno.EACCES, 77),
        (errno.EIO, 65),
        (errno.ESTALE, 75),
        (errno.EBADF, 70),
    ],
)
def test_a_full_disk_or_a_missing_permission_is_no_bug_of_ours(
    number: int, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reporting.report(OSError(number, os.strerror(number), "/full/x")) == code
    said = capsys.readouterr().err
    assert os.strerror(number) in said
    assert ("a bug in cmsspark" in said) == (code == 70)


def test_errors_begin_with_the_program_that_people_started(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporting, "_program", "cmsspark")
    reporting.set_program("run_spark")
    for error in (errors.UsageError("no day"), KeyboardInterrupt(), ZeroDivisionError("x")):
        reporting.report(error)
        assert capsys.readouterr().err.startswith("run_spark: ")
