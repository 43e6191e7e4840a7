"""The records of jobs on disk, while a run merges them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cmsspark.base.private_folders import locked_folder
from cmsspark.counting.htcondor_jobs import JOB, JOB_COLUMNS
from cmsspark.counting.pre_aggregate import record_batch
from cmsspark.engines.job_work import JobSpool


def test_records_that_a_killed_run_left_go_when_another_run_has_many(tmp_path: Path) -> None:
    row: dict[str, Any] = {"kind": JOB, "id_hash": 7, "record": b"a record"}
    left = tmp_path / "jobs-killed"
    with locked_folder(tmp_path, "jobs-") as running:
        left.mkdir()
        for name in ("7", "lock"):
            (left / name).write_bytes(b"a name")
        spool = JobSpool(str(tmp_path), held_bytes=0)
        spool.add(record_batch({name: [row.get(name)] for name, _ in JOB_COLUMNS}, JOB_COLUMNS))
        assert not left.exists() and running.exists()
        (own,) = set(tmp_path.iterdir()) - {running}
        assert own.stat().st_mode & 0o777 == 0o700
        assert list(spool.partitions()) == [[b"a record"]]
        spool.close()
        assert list(tmp_path.iterdir()) == [running]
