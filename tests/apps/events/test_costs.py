"""What the jobs on events cost in Spark: their jobs and tasks are counted. A change
that adds one fails here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from cmsspark.apps.events import prepare, sample, score_files, train
from cmsspark.apps.events.demo_run import write_files
from cmsspark.apps.events.prepare import OPEN_BYTES, TASK_BYTES, task_count
from cmsspark.apps.events.runs import EventRequest
from tests.apps.events.events import CLASSES, DELPHES
from tests.apps.events.test_jobs import request_in
from tests.apps.usage.test_spark_costs import Jobs, jobs_of

#: Of each class. Each file is an entry range and a part, which hold so few events that
#: a core takes many of them.
FILES = 8


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("many")
    write_files(folder, 60, files=FILES)
    return folder


def tasks_of(found: Jobs) -> list[list[int]]:
    """The tasks of each job's stages that ran."""
    return [[tasks for tasks in job if tasks] for job in found.jobs]


def prepared(spark: Any, files: Path, request: EventRequest) -> Jobs:
    inputs = [f"{name}={files}/{name}_*.root" for name in CLASSES]
    return jobs_of(spark, lambda: prepare.run(request, prepare.PrepareOptions(inputs)))


def test_tasks_follow_bytes_and_cores(spark: Any) -> None:
    assert task_count(spark, 1, 10 * TASK_BYTES) == 1
    assert task_count(spark, 0, 0) == 1
    # Two cores.
    assert task_count(spark, 8, 1_000) == 2
    # Whole rounds of all cores.
    assert task_count(spark, 10, 2 * TASK_BYTES) == 4
    assert task_count(spark, 1_000, 0) == -(-1_000 * OPEN_BYTES // TASK_BYTES) == 32
    assert task_count(spark, 1_000, 100 * TASK_BYTES) == 132
    assert task_count(spark, 50, 100 * TASK_BYTES) == 50


def test_each_job_reads_many_small_files_in_a_task_for_each_core(
    spark: Any, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = request_in(tmp_path)
    assert tasks_of(prepared(spark, files, request)) == [[2], [2]]
    (parts,) = tmp_path.glob("store/events_prepare/*/runs/*/events")
    assert len(list(parts.glob("part-*"))) == 3 * FILES
    # So few rows a part that the sample has some.
    monkeypatch.setitem(sample.PART_ROWS, False, 40)
    found = jobs_of(spark, lambda: sample.run(request, sample.SampleOptions(small=5)))
    # Keys move once and are kept; adaptive execution makes each exchange a job. Then
    # rows move to their parts.
    assert all(tasks <= 2 for job in tasks_of(found)[:-1] for tasks in job)
    assert len(found.jobs) <= 6
    (test,) = tmp_path.glob("store/events_sample/*/runs/*/test")
    (learn,) = tmp_path.glob("store/events_sample/*/runs/*/train")
    sizes = [len(list(folder.glob("part-*"))) for folder in (learn, test)]
    assert tasks_of(found)[-1] == [2, sum(sizes)] and min(sizes) > 2
    found = jobs_of(spark, lambda: train.run(request, train.TrainOptions(("xgboost",))))
    assert tasks_of(found) == [[2]]
    (model,) = tmp_path.glob("store/events_train/*/runs/*/models/xgboost")
    scoring = score_files.ScoreRequest(model, DELPHES)
    output = str(tmp_path / "scores")
    found = jobs_of(spark, lambda: score_files.score_files(spark, [str(files)], scoring, output))
    assert tasks_of(found) == [[2], [2]]
    events = sum(pq.ParquetFile(part).metadata.num_rows for part in parts.glob("part-*"))
    assert pq.read_table(output).num_rows == events > 1_000


def test_large_files_are_a_task_each(
    spark: Any, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare, "TASK_BYTES", OPEN_BYTES)
    assert tasks_of(prepared(spark, files, request_in(tmp_path))) == [[3 * FILES], [3 * FILES]]
