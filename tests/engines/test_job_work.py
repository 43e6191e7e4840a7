"""The records of jobs on disk, while a run merges them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from cmsspark.counting.htcondor_jobs import JOB, JOB_COLUMNS
from cmsspark.counting.pre_aggregate import record_batch
from cmsspark.engines.job_work import JobSpool


def test_records_that_a_killed_run_left_go_when_another_run_has_many(tmp_path: Path) -> None:
    left, recent = tmp_path / "jobs-killed", tmp_path / "jobs-running"
    for folder in (left, recent):
        folder.mkdir()
        (folder / "7").write_bytes(b"a name")
    os.utime(left, (0, 0))
    row: dict[str, Any] = {"kind": JOB, "id_hash": 7, "record": b"a record"}
    spool = JobSpool(str(tmp_path), held_bytes=0)
    spool.add(record_batch({name: [row.get(name)] for name, _ in JOB_COLUMNS}, JOB_COLUMNS))
    assert not left.exists() and recent.exists() and len(list(tmp_path.iterdir())) == 2
    assert list(spool.partitions()) == [[b"a record"]]
    spool.close()
    assert list(tmp_path.iterdir()) == [recent]
