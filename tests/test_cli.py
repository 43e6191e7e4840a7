"""The ``cmsspark`` command: help without a JVM, commands loaded when they are used."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from cmsspark import __version__
from cmsspark.cli import COMMANDS, command


def run(*arguments: str) -> str:
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_help_names_every_command_with_a_line() -> None:
    for flag in ("--help", "-h"):
        told = run(flag)
        for name, (_, _, about) in COMMANDS.items():
            assert name in told
            assert about.split()[0] in told


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_help(name: str) -> None:
    assert "Usage:" in run(name, "--help")


def test_the_version_is_told() -> None:
    assert __version__ in run("--version")


def test_a_command_of_no_known_name_ends_in_2() -> None:
    result = CliRunner().invoke(command, ["nothing"])
    assert result.exit_code == 2
    assert "nothing" in result.output


def test_help_imports_neither_pyspark_nor_any_job() -> None:
    told = "sys.exit(any(m.split('.')[0] == 'pyspark' or m.startswith('cmsspark.jobs.') for m in sys.modules))"
    code = f"import sys; from cmsspark.cli import command; command.main(['--help'], standalone_mode=False); {told}"
    assert subprocess.run([sys.executable, "-c", code], check=False, stdout=subprocess.DEVNULL).returncode == 0


def test_every_command_is_a_click_command() -> None:
    context = click.Context(command)
    assert all(isinstance(command.get_command(context, name), click.Command) for name in COMMANDS)
