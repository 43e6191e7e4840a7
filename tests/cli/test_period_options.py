"""Options that name a period, and folders of sources: what they mean, and what they refuse."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from cmsspark.base.errors import InputMissing, UsageError
from cmsspark.base.periods import Period, between
from cmsspark.cli.options import SourceType
from cmsspark.cli.period_options import load_days, period_options
from tests.run.partial_days import partial, store_partials

FIRST, LAST = date(2026, 1, 5), date(2026, 1, 11)


@click.command()
@period_options
def command(period: Period | None) -> None:
    """Print the period."""
    click.echo("none" if period is None else period.isoformat())


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("", "none"),
        ("--week 2026-W02", "2026-W02"),
        ("--month 2026-01", "2026-01"),
        ("--from 20260105 --to 20260111", "2026-W02"),
        ("--from 20260105 --to 20260106", "2026-01-05--2026-01-06"),
        ("--from 20260105", "2026-01-05--2026-01-05"),
    ],
)
def test_a_period_has_one_name_whatever_options_name_it(words: str, name: str) -> None:
    done = CliRunner().invoke(command, words.split())
    assert (done.exit_code, done.stdout) == (0, f"{name}\n")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("--to 20260111", "--to is the last day of a range"),
        ("--week 2026-W02 --month 2026-01", "--week, --month exclude each other"),
        ("--week 2026-W02 --to 20260111", "--week, --to exclude each other"),
        ("--week 2026-W02 --from 20260105", "--week, --from exclude each other"),
    ],
)
def test_options_that_name_no_period_or_two_are_refused(words: str, problem: str) -> None:
    error = CliRunner().invoke(command, words.split()).exception
    assert isinstance(error, UsageError)
    assert error.problem == problem


def test_days_that_are_not_stored_are_named_and_a_period_without_any_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    period = between(FIRST, LAST)
    with pytest.raises(InputMissing):
        load_days(str(tmp_path), period, "cmsspark test")
    store_partials(tmp_path, FIRST, [partial(FIRST)])
    assert list(load_days(str(tmp_path), period, "cmsspark test").partials) == [FIRST]
    assert capsys.readouterr().err.startswith("warning: ")


def test_a_folder_of_a_source_is_named_by_source_and_location() -> None:
    kind = SourceType()
    assert kind.convert("aaa.aaa-ng=/logs=1", None, None) == ("aaa", "aaa-ng", "/logs=1")
    for text in ("aaa=/logs", "nobody.enr=/logs", "aaa.enr="):
        with pytest.raises(click.BadParameter):
            kind.convert(text, None, None)
