"""Completion of both commands."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from datetime import date
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from cmsspark.apps.demo.history_2015 import History
from cmsspark.apps.demo.narration import store_day
from cmsspark.main import command
from cmsspark.settings.pseudonyms import Pseudonyms

KEY = Pseudonyms(b"x" * 32)
TOP = Path(__file__).resolve().parents[2]


def completions(name: str, module: str, words: str) -> list[str]:
    """What a shell offers for the last of ``words``."""
    variable = f"_{name.upper()}_COMPLETE"
    line = words.split(" ")
    environ = {
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(line) - 1),
        variable: "bash_complete",
        "PYTHONPATH": str(TOP),
    }
    start = [sys.executable, "-c", f"from {module} import main; main()"]
    ended = subprocess.run(
        start, env={**os.environ, **environ}, capture_output=True, text=True, check=True
    )
    return [row.partition(",")[2] for row in ended.stdout.splitlines()]


def test_jobs_and_the_options_of_job_and_wrapper_are_completed() -> None:
    assert completions("run_spark", "cmsspark.submit", "run_spark dbs_e") == [
        "dbs_eos",
        "dbs_events",
    ]
    options = completions("run_spark", "cmsspark.submit", "run_spark dbs_phedex.py --")
    assert {"--antipatterns", "--fout", "--yarn", "--dry-run", "--conf"} <= set(options)
    assert completions("run_spark", "cmsspark.submit", "run_spark --engine s") == ["spark"]


def test_commands_of_cmsspark_are_completed() -> None:
    assert completions("cmsspark", "cmsspark.main", "cmsspark doc") == ["doctor"]


def test_datasets_and_sites_are_those_of_the_newest_stored_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CMSSPARK_CACHE_DIR", str(tmp_path / "cache"))
    store = tmp_path / "store"
    words = f"cmsspark ask who-reads --fout {store} /"
    assert completions("cmsspark", "cmsspark.main", words) == [""]
    history = History(KEY.pseudonym, rows=300, datasets=50, people=8)
    for day in (14, 15):
        store_day(history, str(store), KEY.key_id, date(2026, 1, day))
    rows = pq.read_table(
        str(next(store.glob("data_aggregation/2026-01-15/runs/*/data_aggregation")))
    ).to_pylist()
    for column, line in (
        ("dataset_name", words),
        ("site_name", f"cmsspark ask reads --fout {store} T2_"),
    ):
        start = line.rpartition(" ")[2]
        names = {row[column] for row in rows if (row[column] or "").startswith(start)}
        assert names and completions("cmsspark", "cmsspark.main", line) == sorted(names)[:1_000]
        assert completions("cmsspark", "cmsspark.main", line) == sorted(names)[:1_000], (
            "the cached names"
        )


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_completes_both(shell: str) -> None:
    shown = (
        CliRunner().invoke(command, ["lab", "completion", shell], catch_exceptions=False).output
    )
    assert "_CMSSPARK_COMPLETE" in shown and "_RUN_SPARK_COMPLETE" in shown
    if shutil.which(shell):
        checked = subprocess.run(
            [shell, "-n"], input=shown, text=True, capture_output=True, check=False
        )
        assert checked.returncode == 0, checked.stderr


def test_python_m_is_the_command() -> None:
    environ = {**os.environ, "PYTHONPATH": str(TOP)}
    ended = subprocess.run(
        [sys.executable, "-m", "cmsspark", "statu"],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2 and "Did you mean status?" in ended.stderr
