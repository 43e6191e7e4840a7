"""Completion of both commands, and manual pages made from their help."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from cmsspark.main import COMMANDS, command
from cmsspark.store.job_index import JOBS

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
    shown = CliRunner().invoke(command, ["completion", shell], catch_exceptions=False).output
    assert "_CMSSPARK_COMPLETE" in shown and "_RUN_SPARK_COMPLETE" in shown
    if shutil.which(shell):
        checked = subprocess.run([shell, "-n"], input=shown, text=True, capture_output=True, check=False)
        assert checked.returncode == 0, checked.stderr


def test_each_command_and_job_has_a_manual_page_that_troff_reads(tmp_path: Path) -> None:
    CliRunner().invoke(command, ["man", str(tmp_path)], catch_exceptions=False)
    pages = {path.name: path for path in (tmp_path / "man1").iterdir()}
    wanted = {
        "cmsspark",
        "run_spark",
        *(f"cmsspark-{name}" for name in COMMANDS),
        *(f"run_spark-{job}" for job in JOBS),
    }
    assert {f"{name}.1" for name in wanted} <= set(pages)
    for path in pages.values():
        text = path.read_text(encoding="utf-8")
        assert text.startswith(".TH ") and ".SH NAME" in text and ".SH EXIT STATUS" in text
        # A line that begins with a dot and no macro of ours would be lost.
        assert {line.split()[0] for line in text.splitlines() if line.startswith(".")} <= {
            ".TH",
            ".SH",
            ".B",
            ".PP",
            ".TP",
        }
    assert r"\fB\-\-dry\-run" in pages["cmsspark-publish.1"].read_text(encoding="utf-8")


def test_the_manual_pages_say_where_they_cannot_be_written(tmp_path: Path) -> None:
    from cmsspark.base.errors import OutputError

    (tmp_path / "file").touch()
    with pytest.raises(OutputError):
        CliRunner().invoke(command, ["man", str(tmp_path / "file")], catch_exceptions=False)


def test_python_m_is_the_command() -> None:
    environ = {**os.environ, "PYTHONPATH": str(TOP)}
    ended = subprocess.run(
        [sys.executable, "-m", "cmsspark", "statu"], env=environ, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2 and "Did you mean status?" in ended.stderr
