"""The HLF network, really trained by the launcher: on processes of this host and in
barrier tasks of Spark.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cmsspark.apps.events import networks
from cmsspark.apps.training.launch import WorkerFailed, brought_back
from cmsspark.apps.training.script_check import TrainingRun
from cmsspark.apps.training.spark_backend import SparkBackend
from cmsspark.base.errors import UsageError
from tests.apps.events.samples import events, write_sample
from tests.apps.training.scripts import (
    FAILS,
    HELLO,
    LEAVES_ORPHANS,
    USES_FILES,
    children,
    is_running,
    launched,
    run_of,
    with_files,
)

SCRIPT = Path(__file__).resolve().parents[3] / "etc/training/train_events.py"
#: Kills worker 1 in its first attempt, once there is a checkpoint.
KILLED_ONCE = """
import os, pathlib, signal, sys, threading, time
if os.environ["RANK"] == "0" and os.environ["CMSSPARK_TRAIN_ATTEMPT"] == "1":
    def kill():
        while not list(pathlib.Path(os.environ["CMSSPARK_TRAIN_OUTPUT"]).glob("checkpoints/round-*.npz")):
            time.sleep(0.005)
        os.kill(os.getpid(), signal.SIGKILL)
    threading.Thread(target=kill, daemon=True).start()
from cmsspark.apps.events.train_script import main
main()
"""


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sample(tmp_path_factory.mktemp("sample"), 26_000)


def run_on(sample: Path, workers: int, **values: Any) -> TrainingRun:
    arguments = (
        str(sample),
        "--model",
        "hlf",
        "--epochs",
        "5",
        "--batch",
        "128",
        "--learning-rate",
        "0.001",
    )
    return TrainingRun("hlf", SCRIPT, arguments, workers, **values)


@pytest.fixture(scope="module")
def by_two(sample: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of a run on two processes of this host."""
    folder, lines = launched(tmp_path_factory.mktemp("two"), run_on(sample, 2))
    assert "worker-0/model/model.json" in map(str, brought_back(folder)), lines
    return folder.output


def accuracy(folder: Path) -> float:
    hlf, _, label, _ = events(5_000, 99)
    return float((networks.load(folder).predict(hlf).argmax(axis=1) == label).mean())


def test_one_and_two_workers_agree_in_accuracy(sample: Path, by_two: Path, tmp_path: Path) -> None:
    folder, _ = launched(tmp_path, run_on(sample, 1))
    models = {1: folder.output / "worker-0/model", 2: by_two / "worker-0/model"}
    found = {workers: accuracy(model) for workers, model in models.items()}
    assert {
        workers: networks.load(model).parameters["workers"] for workers, model in models.items()
    } == {1: 1, 2: 2}
    assert min(found.values()) > 0.8
    assert abs(found[1] - found[2]) < 0.03


def test_the_example_of_jax_meets_by_the_launchers_variables(tmp_path: Path) -> None:
    example = SCRIPT.parents[1] / "examples/training/jax_mean.py"
    _, lines = launched(tmp_path, TrainingRun("mean", example, (), 2))
    said = sorted(line.partition(" | ")[2] for line in lines if "mean" in line)
    assert said == ["worker 0 of 2: mean 0.5", "worker 1 of 2: mean 0.5"]


def test_barrier_tasks_of_spark_train_the_model_of_processes(
    spark: Any, sample: Path, by_two: Path, tmp_path: Path
) -> None:
    folder, _ = launched(tmp_path, run_on(sample, 2, backend="spark"), SparkBackend(session=spark))
    weights = [
        networks.load(output / "worker-0/model").weights for output in (folder.output, by_two)
    ]
    for name, value in weights[0].items():
        assert np.allclose(value, weights[1][name], atol=1e-4), name
    assert folder.state().workers == ["done", "done"]


def test_training_goes_on_from_the_checkpoint_of_a_killed_worker(
    sample: Path, tmp_path: Path
) -> None:
    script = tmp_path / "killed.py"
    script.write_text(KILLED_ONCE)
    run = replace(run_on(sample, 2, retries=1), script=script)
    folder, lines = launched(tmp_path, run)
    assert any(
        "was killed by SIGKILL" in line and line.endswith("attempt 2 of 2") for line in lines
    )
    assert any("goes on after round" in line for line in lines)
    assert accuracy(folder.output / "worker-0/model") > 0.8


def test_spark_gives_workers_what_processes_get_and_brings_their_output_back(
    spark: Any, tmp_path: Path
) -> None:
    run = run_of(
        tmp_path, HELLO, workers=2, backend="spark", file="-c a.py", arguments=("--x", "$(y)")
    )
    folder, lines = launched(tmp_path, run, SparkBackend(session=spark))
    assert sum('"argv": ["--x", "$(y)"]' in line for line in lines) == 2
    assert (folder.output / "worker-1/model.txt").read_text() == "model of 1"


class OnOtherHosts(SparkBackend):
    """Tasks that cannot write into the folder of the run."""

    def shares_disk(self, spark: Any) -> bool:
        return False


def test_output_of_tasks_is_in_the_folder_of_the_run_while_they_run_where_they_can_write_there(
    spark: Any, tmp_path: Path
) -> None:
    """A driver that is killed would lose their checkpoints otherwise."""
    run = run_of(
        tmp_path, "import os\nprint(os.environ['CMSSPARK_TRAIN_OUTPUT'])", backend="spark"
    )
    folder, lines = launched(tmp_path, run, SparkBackend(session=spark))
    assert f"worker 0 | {folder.output}/worker-0" in lines
    folder, lines = launched(
        tmp_path / "far", run_of(tmp_path, HELLO, backend="spark"), OnOtherHosts(session=spark)
    )
    assert (folder.output / "worker-0/model.txt").read_text() == "model of 0"


def test_files_travel_to_tasks_of_spark(spark: Any, tmp_path: Path) -> None:
    run = run_of(
        tmp_path, USES_FILES, workers=2, backend="spark", files=with_files(tmp_path / "files")
    )
    _, lines = launched(tmp_path, run, SparkBackend(session=spark))
    assert sum("helped by data 7" in line for line in lines) == 2


def test_a_failed_worker_ends_the_barrier_stage_at_once_and_a_retry_has_its_output(
    spark: Any, tmp_path: Path
) -> None:
    with pytest.raises(WorkerFailed, match="worker 1 of test-run ended with exit code 7") as error:
        launched(tmp_path / "a", run_of(tmp_path, FAILS, workers=2), SparkBackend(session=spark))
    assert "about to fail" in str(error.value)
    text = (
        "import os, pathlib, sys\nkept = pathlib.Path(os.environ['CMSSPARK_TRAIN_OUTPUT'], 'n')\n"
        "print('found', kept.exists())\nkept.write_text('')\nsys.exit(os.environ['CMSSPARK_TRAIN_ATTEMPT'] == '1')"
    )
    for backend in (SparkBackend, OnOtherHosts):
        _, lines = launched(
            tmp_path / backend.__name__, run_of(tmp_path, text, retries=1), backend(session=spark)
        )
        assert [line for line in lines if "found" in line] == [
            "worker 0 | found False",
            "worker 0 | found True",
        ]


def test_an_interrupted_launcher_leaves_nothing_in_spark(spark: Any, tmp_path: Path) -> None:
    lines: list[str] = []

    class Interrupted(SparkBackend):
        def attempt(self, attempt: Any) -> Any:
            inner = attempt.on_line

            def on_line(rank: int, text: str) -> None:
                inner(rank, text)
                if text == "ready":
                    raise KeyboardInterrupt

            attempt.on_line = on_line
            return super().attempt(attempt)

    with pytest.raises(KeyboardInterrupt):
        run = run_of(tmp_path, LEAVES_ORPHANS, arguments=("wait",))
        launched(tmp_path, run, Interrupted(session=spark), lines)
    assert len(children(lines)) == 2
    assert not [pid for pid in children(lines) if is_running(pid)]
    # Spark enters the end of a stage into its status some time after the stage has ended.
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    assert spark.sparkContext.statusTracker().getActiveStageIds() == []


def test_more_workers_than_cores_are_refused(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="3 workers must run at once"):
        launched(tmp_path, run_of(tmp_path, HELLO, workers=3), SparkBackend(session=spark))
