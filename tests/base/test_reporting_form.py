"""Errors have one form, name what was meant, and can be typed as printed."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import pytest

from cmsspark.base.errors import UsageError, as_ours
from cmsspark.base.reporting import as_typed, check_pasted, run_click


@click.command("status")
@click.option("--date")
@click.option("--days", type=int)
def status(date: str | None, days: int | None) -> None:
    """Show nothing."""


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (
            ["--DATE", "1"],
            ["cmsspark: cmsspark has no option '--DATE'", "found: did you mean --date?"],
        ),
        (["--days", "x"], ["cmsspark: invalid value for '--days'", "next: cmsspark --help"]),
        (["–days", "3"], ["'–days' begins with a long dash", "next: type --days"]),
        (["more"], ["cmsspark: got unexpected extra argument (more)", "next: cmsspark --help"]),
    ],
)
def test_errors_of_click_have_the_form_of_ours(
    words: list[str], lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = run_click(status, "cmsspark", words)
    except UsageError as error:
        told, code = error.text(), 2
    else:
        told = capsys.readouterr().err
    assert code == 2
    for line in lines:
        assert line in told
    assert "Usage:" not in told and "Error:" not in told


def test_quotes_of_word_processors_and_blanks_around_equals_are_named() -> None:
    for words in (["--reason", "“the", "logs”"], ["--date", "=", "20260115"]):
        with pytest.raises(UsageError):
            check_pasted(words)
    check_pasted(["--reason", "a – b", "--", "–x"])


def test_commands_of_a_checkout_are_printed_as_they_can_be_typed(tmp_path: Path) -> None:
    (tmp_path / "setup").touch()
    environ = {"CMSSPARK_BIN": str(tmp_path)}
    text = "cmsspark runs --rebuild; run_spark --list names the jobs of cmsspark"
    assert as_typed(text, environ) == (
        f"{tmp_path}/cmsspark runs --rebuild; {tmp_path}/run_spark --list names the jobs of cmsspark"
    )
    assert as_typed("pip install 'cmsspark[sql]'", environ) == (
        f"{tmp_path}/setup without-spark,sql"
    )
    assert as_typed("pip install 'pyspark>=3.5,<5'", environ) == f"{tmp_path}/setup spark"
    assert as_typed(text, {}) == text
    # No advice to a folder that has no such scripts.
    assert as_typed(text, {"CMSSPARK_BIN": str(tmp_path / "other")}) == text


def test_hints_are_of_the_environment_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an installed package in an environment that is not active; of a checkout that
    made the environment; as they are where the environment is active.
    """
    scripts = tmp_path / "env" / "bin"
    scripts.mkdir(parents=True)
    (scripts / "cmsspark").touch(mode=0o755)
    monkeypatch.setattr(sys, "prefix", str(scripts.parent))
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    text = "type cmsspark sql, after pip install 'cmsspark[sql]'"
    assert as_typed(text, {"PATH": "/usr/bin"}) == (
        f"type {scripts}/cmsspark sql, after {sys.executable} -m pip install 'cmsspark[sql]'"
    )
    assert as_typed(text, {"PATH": str(scripts)}) == text
    checkout = Path(__file__).resolve().parents[2]
    environ = {"PATH": "/usr/bin", "CMSSPARK_VENV": str(scripts.parent)}
    assert as_typed(text, environ) == (
        f"type {scripts}/cmsspark sql, after {checkout}/bin/setup without-spark,sql"
    )
    environ["PATH"] = str(scripts)
    assert as_typed(text, environ) == (
        f"type cmsspark sql, after {checkout}/bin/setup without-spark,sql"
    )


def test_spark_without_java_is_no_bug() -> None:
    text = "[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number."
    error = as_ours(RuntimeError(text))
    assert error is not None and error.exit_code == 78
    assert "install Java 17 or set JAVA_HOME" in str(error.next_step)


def test_what_needs_pyspark_without_it_ends_with_78_and_what_to_install() -> None:
    error = as_ours(ModuleNotFoundError("No module named 'pyspark'", name="pyspark.sql"))
    assert error is not None and error.exit_code == 78
    assert "pip install 'pyspark" in str(error.next_step)
    assert as_ours(ModuleNotFoundError("No module named 'x'", name="x")) is None
