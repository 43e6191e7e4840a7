"""What the states of pods mean for a training: which worker a pod is, and whether it
failed, and why.
"""

from __future__ import annotations

from typing import Any, Final

_INDEX: Final = "batch.kubernetes.io/job-completion-index"
#: Reasons for which a container waits that do not pass by themselves.
_HOPELESS: Final = frozenset(
    {"ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "CreateContainerError"}
)
#: Reasons that pass once ConfigMap and Secrets are there.
CONFIG_ERROR: Final = "CreateContainerConfigError"


def read_rank(pod: Any) -> int:
    """Return the worker that a pod of an indexed Job is."""
    annotations, labels = pod.metadata.annotations or {}, pod.metadata.labels or {}
    return int(annotations.get(_INDEX) or labels.get(_INDEX) or -1)


def is_ready(pod: Any) -> bool:
    """Return whether its script ended, and its output can be fetched."""
    conditions = pod.status.conditions or []
    return any(
        condition.type == "Ready" and condition.status == "True" for condition in conditions
    )


def find_failure(pod: Any) -> str | None:
    """Return why the worker of a pod failed; None for one that did not."""
    state = _container_state(pod)
    if pod.status.phase == "Failed":
        if pod.status.reason:
            # Evicted, DeadlineExceeded, Preempting …: what the cluster did to it.
            message = " ".join((pod.status.message or "").split())[:300]
            return f"was ended by the cluster: {pod.status.reason}" + (
                f": {message}" if message else ""
            )
        if state is not None and state.terminated is not None:
            return _terminated(state.terminated)
        return "failed without a reason"
    if state is not None and state.terminated is not None and state.terminated.exit_code:
        return _terminated(state.terminated)
    if state is not None and state.waiting is not None and state.waiting.reason in _HOPELESS:
        message = " ".join((state.waiting.message or "").split())[:300]
        return f"cannot start: {state.waiting.reason}: {message}"
    return None


def waits_for_config(pod: Any) -> str | None:
    """Return what a pod lacks that should be there soon, such as a Secret; None where
    it lacks nothing.
    """
    state = _container_state(pod)
    if state is not None and state.waiting is not None and state.waiting.reason == CONFIG_ERROR:
        return f"cannot start: {' '.join((state.waiting.message or CONFIG_ERROR).split())[:300]}"
    return None


def why_pending(pod: Any) -> str | None:
    """Return why no node takes a pod; None where one does, or nobody looked yet."""
    for condition in pod.status.conditions or []:
        if condition.type == "PodScheduled" and condition.status == "False":
            return " ".join((condition.message or condition.reason or "").split())[:300]
    return None


def _container_state(pod: Any) -> Any:
    statuses = pod.status.container_statuses or []
    # A template may add other containers.
    return next((status.state for status in statuses if status.name == "worker"), None)


def _terminated(terminated: Any) -> str:
    if terminated.reason == "OOMKilled":
        return "was killed: it needed more than its --memory (OOMKilled)"
    code = terminated.exit_code
    if code > 128:
        from cmsspark.apps.training.backend import describe_exit

        return describe_exit(128 - code)
    return f"ended with exit code {code}"
