"""Completion of both commands."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from cmsspark.main import command

TOP = Path(__file__).resolve().parents[2]


def completions(name: str, module: str, words: str) -> list[str]:
    """What a shell offers for the last of ``words``."""
    variable = f"_{name.upper()}_COMPLETE"
    line = words.split(" ")
    environ = {"COMP_WORDS": words, "COMP_CWORD": str(len(line) - 1), variable: "bash_complete", "PYTHONPATH": str(TOP)}
    start = [sys.executable, "-c", f"from {module} import main; main()"]
    ended = subprocess.run(start, env={**os.environ, **environ}, capture_output=True, text=True, check=True)
    return [row.partition(",")[2] for row in ended.stdout.splitlines()]


def test_jobs_and_the_options_of_job_and_wrapper_are_completed() -> None:
    assert completions("run_spark", "cmsspark.submit", "run_spark dbs_e") == ["dbs_eos", "dbs_events"]
    options = completions("run_spark", "cmsspark.submit", "run_spark dbs_phedex.py --")
    assert {"--antipatterns", "--fout", "--yarn", "--dry-run", "--conf"} <= set(options)
    assert completions("run_spark", "cmsspark.submit", "run_spark --engine s") == ["spark"]


def test_commands_of_cmsspark_are_completed() -> None:
    assert completions("cmsspark", "cmsspark.main", "cmsspark doc") == ["doctor"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_completes_both(shell: str) -> None:
    shown = CliRunner().invoke(command, ["lab", "completion", shell], catch_exceptions=False).output
    assert "_CMSSPARK_COMPLETE" in shown and "_RUN_SPARK_COMPLETE" in shown
    if shutil.which(shell):
        checked = subprocess.run([shell, "-n"], input=shown, text=True, capture_output=True, check=False)
        assert checked.returncode == 0, checked.stderr


def test_python_m_is_the_command() -> None:
    environ = {**os.environ, "PYTHONPATH": str(TOP)}
    ended = subprocess.run(
        [sys.executable, "-m", "cmsspark", "statu"], env=environ, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2 and "Did you mean status?" in ended.stderr
