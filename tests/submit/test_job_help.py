"""Help and lists of jobs: by subject, usual options first, in 80 columns."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

import pytest

from cmsspark.store.own_jobs import JOBS
from cmsspark.submit.arguments import OPTIONS
from cmsspark.submit.job_help import job_help, job_list, load_command
from cmsspark.submit.wrapper import parse_typed


def test_the_list_has_each_job_once_under_a_heading() -> None:
    text = job_list()
    assert max(map(len, text.splitlines())) <= 80
    assert sorted(re.findall(r"^  (\w+) ", text, re.MULTILINE)) == sorted(JOBS.built_in)
    headings = re.findall(r"^(\S.*):$", text, re.MULTILINE)
    assert len(headings) == len(set(headings)) >= 5


@pytest.mark.parametrize("name", sorted(JOBS.built_in))
def test_the_help_of_a_job_has_every_option_once_the_usual_ones_first(name: str) -> None:
    text = job_help(name, JOBS[name])
    assert max(map(len, text.splitlines())) <= 80
    own = [
        option
        for option in load_command(JOBS[name]).params
        if not getattr(option, "hidden", False)
    ]
    shown = re.findall(r"^  (?:-\w, )?(--[\w-]+)", text, re.MULTILINE)
    expected = {option.opts[-1] for option in own} | {option.name for option in OPTIONS}
    assert set(shown) == expected
    assert len(shown) == len(set(shown))
    usual, _, advanced = text.partition("\nAdvanced ")
    assert "  --yarn" in usual and "  --fout" in usual and "  --conf" not in usual
    assert len(usual.splitlines()) <= 50 and "--executor-memory" in advanced


def test_examples_of_a_job_are_parsed_as_they_are_typed() -> None:
    for job in JOBS.built_in.values():
        text = job_help(job.name, job)
        lines = re.findall(r"^  (run_spark .*)$", text.partition("Examples:")[2], re.MULTILINE)
        assert lines or job.is_day_optional or "--fout" not in text
        for line in lines:
            parse_typed(shlex.split(line))


#: Prints which modules ``run_spark --help`` has loaded that only runs need.
_LOADED = """
import sys
from cmsspark.submit.wrapper import run_spark
run_spark(["--help"], {})
for name in ("numpy", "pyarrow", "psutil", "sqlite3", "ssl", "xml", "concurrent.futures"):
    if name in sys.modules:
        print("loaded:", name)
"""


def test_help_loads_nothing_that_only_runs_need() -> None:
    run = subprocess.run(
        [sys.executable, "-c", _LOADED], capture_output=True, text=True, check=True
    )
    assert "run_spark JOB" in run.stdout
    assert "loaded:" not in run.stdout
