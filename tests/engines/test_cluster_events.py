"""What befell executors and tasks, from Spark's status: only what was lost or repeated is named."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from cmsspark.engines.session import cluster_events

#: What a task says that found no room on its node.
FULL = "No space left on device"


class Sequence:
    """A sequence of Scala."""

    def __init__(self, *entries: Any) -> None:
        self.entries = entries

    def size(self) -> int:
        return len(self.entries)

    def apply(self, number: int) -> Any:
        return self.entries[number]

    def toSeq(self) -> Sequence:  # as Scala calls it
        return self


def option(value: str | None) -> Any:
    return SimpleNamespace(isDefined=lambda: value is not None, get=lambda: value)


def executor(name: str, reason: str | None, *, active: bool = False) -> Any:
    return SimpleNamespace(
        id=lambda: name,
        hostPort=lambda: "node-1:4040",
        isActive=lambda: active,
        removeReason=lambda: option(reason),
    )


def stage(
    number: int, failed: int = 0, killed: dict[str, int] | None = None, reason: str | None = None
) -> Any:
    pairs = [
        SimpleNamespace(_1=lambda k=k: k, _2=lambda v=v: v) for k, v in (killed or {}).items()
    ]
    return SimpleNamespace(
        stageId=lambda: number,
        attemptId=lambda: 0,
        numFailedTasks=lambda: failed,
        failureReason=lambda: option(reason),
        killedTasksSummary=lambda: Sequence(*pairs),
    )


class Store:
    """Spark's status store."""

    def __init__(self, executors: Sequence, stages: Sequence) -> None:
        self.executors, self.stages = executors, stages

    def executorList(self, active_only: bool) -> Sequence:
        assert not active_only
        return self.executors

    def stageList(self, *arguments: Any) -> Sequence:
        assert arguments == (None, False, False, "default 4", "default 5")
        return self.stages

    def taskList(self, stage_id: int, attempt: int, *page: Any) -> Sequence:
        assert (attempt, page) == (0, (0, 1, "ID", ["FAILED"]))
        text = f"org.apache.spark.SparkException: of {stage_id}\nCaused by: java.io.IOException: {FULL}\n\tat …"
        return Sequence(SimpleNamespace(errorMessage=lambda: option(text)))

    def __getattr__(self, name: str) -> Any:
        assert name.startswith("stageList$default$")
        return lambda: f"default {name[-1]}"


def session(store: Any, master: str = "yarn") -> Any:
    names = SimpleNamespace(
        TaskSorting=SimpleNamespace(ID="ID"), TaskStatus=SimpleNamespace(FAILED="FAILED")
    )
    spark = SimpleNamespace(status=SimpleNamespace(api=SimpleNamespace(v1=names)))
    jvm = SimpleNamespace(org=SimpleNamespace(apache=SimpleNamespace(spark=spark)))
    java_context = SimpleNamespace(sc=lambda: SimpleNamespace(statusStore=lambda: store))
    context = SimpleNamespace(master=master, _jsc=java_context, _jvm=jvm)
    return SimpleNamespace(sparkContext=context)


def test_lost_executors_repeated_stages_and_copies_are_named_and_executors_let_go_are_not() -> (
    None
):
    executors = Sequence(
        executor("driver", None, active=True),
        executor(
            "1",
            "Container from a bad node: container_1 on host: node-1. Exit status: 137.\n killed",
        ),
        executor("2", "Executor killed by driver."),
        executor("3", "Container container_3 on host: node-1 was preempted."),
        executor("4", "Command exited with code 0"),
    )
    stages = Sequence(
        stage(1, killed={"another attempt succeeded": 2, "Stage cancelled": 7}),
        stage(0, failed=2),
        stage(0, failed=1, reason="FetchFailed(BlockManagerId(1, node-1), shuffleId=0)"),
        stage(2),
    )
    assert cluster_events(session(Store(executors, stages))) == [
        {
            "event": "executor_lost",
            "executor": "1",
            "host": "node-1",
            "reason": "Container from a bad node: container_1 on host: node-1. Exit status: 137. killed",
        },
        {
            "event": "executor_lost",
            "executor": "3",
            "host": "node-1",
            "reason": "Container container_3 on host: node-1 was preempted.",
        },
        {
            "event": "stage_repeated",
            "stage": 0,
            "attempts": 2,
            "reason": "FetchFailed(BlockManagerId(1, node-1), shuffleId=0)",
        },
        {
            "event": "tasks_repeated",
            "stage": 0,
            "tasks": 3,
            "reason": f"java.io.IOException: {FULL}",
        },
        {"event": "speculative_copies", "stage": 1, "tasks": 2},
    ]


def test_a_run_to_which_nothing_happened_or_on_one_host_has_no_events() -> None:
    store = Store(Sequence(executor("1", None, active=True)), Sequence(stage(0), stage(1)))
    assert cluster_events(session(store)) == []
    assert cluster_events(session(None, "local[2]")) == []
