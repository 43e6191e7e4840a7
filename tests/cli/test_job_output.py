"""What a job prints on stdout: the URI of its result, or its outcome as JSON, of
success and of failure.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest

from cmsspark.base.errors import InputMissing
from cmsspark.base.manifests import Manifest
from cmsspark.base.periods import week
from cmsspark.cli.options import print_outcome
from cmsspark.store.results import CurrentTable

DAY = date(2026, 1, 15)


def stored(path: str) -> CurrentTable:
    tables = {"data_aggregation": {"rows": 3, "bytes": 10}, "partials": {"rows": 5, "bytes": 20}}
    return CurrentTable(
        path,
        Manifest.from_dict({"run": "r1", "tables": tables, "partial": True, "warnings": ["w"]}),
    )


def test_stdout_is_the_uri_of_the_first_table_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    print_outcome("data_aggregation", DAY, False, lambda: stored(str(tmp_path)))
    assert capsys.readouterr().out == f"file://{tmp_path}/data_aggregation\n"
    print_outcome("data_aggregation", DAY, False, lambda: stored("hdfs:///cms/run"))
    assert capsys.readouterr().out == "hdfs:///cms/run/data_aggregation\n"


def test_a_stored_result_is_done_where_nobody_reads_its_uri() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    text = (
        "from cmsspark.cli.options import print_outcome; from tests.cli.test_job_output import DAY, stored; "
        "print_outcome('data_aggregation', DAY, False, lambda: stored('/x'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", text],
        stdout=writer,
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


def test_the_outcome_is_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_outcome("data_aggregation", DAY, True, lambda: stored(str(tmp_path)))
    assert json.loads(capsys.readouterr().out) == {
        "job": "data_aggregation",
        "day": "2026-01-15",
        "state": "done",
        "exit_code": 0,
        "run": "r1",
        "uri": f"file://{tmp_path}/data_aggregation",
        "tables": {
            "data_aggregation": {
                "uri": f"file://{tmp_path}/data_aggregation",
                "rows": 3,
                "bytes": 10,
            },
            "partials": {"uri": f"file://{tmp_path}/partials", "rows": 5, "bytes": 20},
        },
        "is_partial": True,
        "warnings": ["w"],
        "seconds": None,
    }


def test_the_outcome_of_a_failure_is_json_and_the_error_goes_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fails() -> CurrentTable:
        raise InputMissing("a day is wanted", where="/x", found="none", next_step="try another")

    with pytest.raises(InputMissing):
        print_outcome("period", week("2026-W03", date(2026, 3, 1)), True, fails)
    assert json.loads(capsys.readouterr().out) == {
        "job": "period",
        "period": "2026-W03",
        "state": "failed",
        "exit_code": 66,
        "error": {
            "wanted": "a day is wanted",
            "where": "/x",
            "found": "none",
            "next": "try another",
        },
    }
    with pytest.raises(InputMissing):
        print_outcome("dbs_aaa", DAY, False, fails)
    assert capsys.readouterr().out == ""


def test_a_bug_has_its_code_too(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError):
        print_outcome("dbs_aaa", DAY, True, lambda: stored(str(1 // 0)))
    assert json.loads(capsys.readouterr().out)["exit_code"] == 70
