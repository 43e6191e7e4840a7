"""One attempt of a training on Kubernetes: its objects are made, watched until all
scripts ended, and removed.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from cmsspark.apps.training import k8s_manifests as manifests
from cmsspark.apps.training.backend import Attempt, WorkerFailure, describe_exit
from cmsspark.apps.training.k8s_errors import ApiAway, api_errors, read_message, translated
from cmsspark.apps.training.k8s_output import PodOutput
from cmsspark.apps.training.k8s_pods import (
    find_failure,
    is_ready,
    read_rank,
    waits_for_config,
    why_pending,
)
from cmsspark.base.errors import CmssparkError, NotReady

#: Seconds that the API server may be away while workers run, and that a pod may lack a Secret.
_AWAY_SECONDS: Final = 300.0
_CONFIG_SECONDS: Final = 60.0
_TIMEOUT: Final = (10, 60)


class JobAttempt:
    """The objects of one attempt in the cluster: made at the begin, watched, removed at the end."""

    def __init__(self, cluster: manifests.Cluster, attempt: Attempt, api: Any) -> None:
        from kubernetes import client

        self._cluster, self._attempt, self._run = cluster, attempt, attempt.run
        self._core, self._batch = client.CoreV1Api(api), client.BatchV1Api(api)
        self._where = str(api.configuration.host)
        self._namespace = str(cluster.namespace)
        self._name = manifests.object_name(self._run, attempt.number)
        self._token = secrets.token_hex(32)
        self._output = PodOutput(self._core, self._namespace, self._token)
        self._created: list[tuple[Callable[..., Any], str]] = []
        self._logs: dict[int, threading.Thread] = {}
        self._seen: dict[int, str] = {}
        self._done: set[int] = set()
        self._reported: set[str] = set()
        self._began = time.monotonic()

    def __enter__(self) -> JobAttempt:
        try:
            self._create(dry_run=True)
            self._create(dry_run=False)
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *ignored: object) -> None:
        self._remove()

    def _create(self, *, dry_run: bool) -> None:
        """Make all objects, or have the API server check all of them first."""
        cluster, run, number = self._cluster, self._run, self._attempt.number
        source = run.script.read_text(encoding="utf-8-sig")
        if dry_run:
            self._check_admission()
        # The Job comes first, so that it owns all others: its pods wait for them, or
        # end at its deadline.
        job = self._put(manifests.job(run, cluster, number), dry_run=dry_run)
        owners = [] if dry_run else [manifests.owner(self._name, job.metadata.uid)]
        for manifest in manifests.owned(run, cluster, number, source, self._token, owners):
            self._put(manifest, dry_run=dry_run)

    def _check_admission(self) -> None:
        """Have the API server admit a pod: a Job is taken whose pods are refused, which
        only events tell later.
        """
        from kubernetes.client.exceptions import ApiException

        template = manifests.pod_template(self._run, self._cluster, self._attempt.number)
        metadata = {**template["metadata"], "name": f"{self._name}-check"}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
        with api_errors(f"admitting the pods of {self._name} in {self._namespace}", self._where):
            try:
                self._core.create_namespaced_pod(
                    self._namespace, pod, dry_run="All", _request_timeout=_TIMEOUT
                )
            except ApiException as error:
                # A role of an earlier version: the Job's own events tell what admission says.
                if error.status != 403 or "cannot create resource" not in read_message(error):
                    raise

    def _put(self, manifest: dict[str, Any], *, dry_run: bool) -> Any:
        """Create one object and note how it is deleted; the API server's answer."""
        core, kind, name = self._core, manifest["kind"], manifest["metadata"]["name"]
        create, delete = {
            "Job": (self._batch.create_namespaced_job, self._batch.delete_namespaced_job),
            "Secret": (core.create_namespaced_secret, core.delete_namespaced_secret),
            "ConfigMap": (core.create_namespaced_config_map, core.delete_namespaced_config_map),
            "Service": (core.create_namespaced_service, core.delete_namespaced_service),
        }[kind]
        entry = (delete, name)
        if not dry_run:
            # Before the call: where it is interrupted, the object may be there all the same.
            self._created.append(entry)
        options = {"dry_run": "All"} if dry_run else {}
        with api_errors(f"creating the {kind} {name} in {self._namespace}", self._where):
            try:
                return create(self._namespace, manifest, _request_timeout=_TIMEOUT, **options)
            except Exception as error:
                if getattr(error, "status", None) == 409 and not dry_run:
                    self._created.remove(entry)  # it is another run's
                raise

    def wait(self) -> WorkerFailure | None:
        """Look at the pods until all scripts ended and their output is here; the first failure."""
        for rank in range(self._run.workers):
            self._attempt.on_state(rank, "pending")
        answered = time.monotonic()
        while True:
            try:
                failure = self._look()
                answered = time.monotonic()
            except ApiAway as error:
                # Workers go on while the API server is away.
                self._report_once(f"{error.problem}: {error.found}; trying again")
                if time.monotonic() - answered > _AWAY_SECONDS:
                    raise
                failure = None
            if failure is not None:
                return failure
            if len(self._done) == self._run.workers:
                return None
            time.sleep(self._cluster.poll_seconds)

    def _look(self) -> WorkerFailure | None:
        with api_errors(f"listing the pods of {self._name}", self._where):
            selector = f"batch.kubernetes.io/job-name={self._name}"
            pods = self._core.list_namespaced_pod(
                self._namespace, label_selector=selector, _request_timeout=_TIMEOUT
            ).items
        by_rank = {read_rank(pod): pod for pod in pods}
        for rank in sorted(by_rank):
            if failure := self._worker(rank, by_rank[rank]):
                return failure
        for rank in sorted(self._seen.keys() - by_rank.keys() - self._done):
            return self._attempt.failure(rank, "is gone: its pod was deleted, or its node is lost")
        return self._job_failure(len(by_rank))

    def _worker(self, rank: int, pod: Any) -> WorkerFailure | None:
        """Return what became of a worker since the last look."""
        if rank in self._done:
            return None
        self._seen[rank] = pod.metadata.name
        if pod.status.phase == "Running" or pod.status.phase in ("Succeeded", "Failed"):
            self._follow(rank, pod.metadata.name)
        if (reason := find_failure(pod)) is not None:
            return self._failed(rank, reason)
        if pod.status.phase == "Succeeded":
            self._attempt.log(f"worker {rank} ended before its output was fetched")
            return self._finished(rank, 0, pod, has_output=False)
        if is_ready(pod):
            code = self._output.code(pod.metadata.name)
            return self._finished(rank, code, pod, has_output=True) if code is not None else None
        if pod.status.phase == "Running":
            self._attempt.on_state(rank, "running")
            return None
        late = time.monotonic() - self._began
        if (missing := waits_for_config(pod)) is not None and late > min(
            _CONFIG_SECONDS, self._cluster.start_seconds
        ):
            return self._failed(rank, missing)
        if (pending := why_pending(pod)) is not None:
            self._report_once(f"worker {rank} waits for a node: {pending}")
        if late > self._cluster.start_seconds:
            raise NotReady(
                f"the pods of {self._run.name} did not start in {self._cluster.start_seconds:.0f} s",
                where=self._namespace,
                found=pending or pod.status.phase,
                next_step="take fewer or smaller workers, or wait until the cluster has room",
            )
        return None

    def _finished(
        self, rank: int, code: int, pod: Any, *, has_output: bool
    ) -> WorkerFailure | None:
        if has_output:
            try:
                self._output.fetch(pod.metadata.name, self._attempt.folder(rank))
            except NotReady as error:
                if code == 0:
                    raise
                self._attempt.log(str(error))
            finally:
                self._output.release(pod.metadata.name)
        if code != 0:
            return self._failed(rank, describe_exit(code))
        self._join_log(rank)
        self._attempt.on_state(rank, "done")
        self._done.add(rank)
        return None

    def _failed(self, rank: int, reason: str) -> WorkerFailure:
        self._join_log(rank)
        return self._attempt.failure(rank, reason)

    def _job_failure(self, pods: int) -> WorkerFailure | None:
        """Return what is wrong with the Job itself: its deadline, or pods that its
        controller may not make.
        """
        if pods == self._run.workers:
            return None
        with api_errors(f"reading the Job {self._name}", self._where):
            job = self._batch.read_namespaced_job(
                self._name, self._namespace, _request_timeout=_TIMEOUT
            )
        for condition in job.status.conditions or []:
            if condition.type == "Failed" and condition.status == "True":
                return self._attempt.failure(
                    min(set(range(self._run.workers)) - self._done),
                    f"was ended: {condition.reason}: {condition.message}",
                )
        refusals = self._refusals()
        if refusals:
            status = 403 if "forbidden" in refusals[-1] else 422
            raise translated(
                status, refusals[-1][:600], f"creating the pods of {self._name}", self._where
            ) from None
        return None

    def _refusals(self) -> list[str]:
        """Return why the Job's controller could not make pods, by its events; nothing
        where they are not readable.
        """
        chosen = f"involvedObject.name={self._name},involvedObject.kind=Job,reason=FailedCreate"
        with suppress(CmssparkError), api_errors("reading events", self._where):
            events = self._core.list_namespaced_event(
                self._namespace, field_selector=chosen, _request_timeout=_TIMEOUT
            ).items
            return [event.message or "" for event in events]
        return []

    def _follow(self, rank: int, pod: str) -> None:
        """Pass the lines of a pod on, from a thread."""
        if rank in self._logs:
            return

        def follow() -> None:
            with suppress(Exception):  # a log that breaks off is no reason to end a training
                stream = self._core.read_namespaced_pod_log(
                    pod, self._namespace, container="worker", follow=True, _preload_content=False
                )
                partial_line = b""
                for chunk in stream.stream(65_536):
                    *lines, partial_line = (partial_line + chunk).split(b"\n")
                    for line in lines:
                        self._attempt.line(rank, line.decode("utf-8", "replace"))
                if partial_line:
                    self._attempt.line(rank, partial_line.decode("utf-8", "replace"))

        self._logs[rank] = threading.Thread(target=follow, daemon=True)
        self._logs[rank].start()

    def _join_log(self, rank: int) -> None:
        if rank in self._logs:
            self._logs[rank].join(3)

    def _report_once(self, text: str) -> None:
        """Log something once."""
        if text not in self._reported:
            self._reported.add(text)
            self._attempt.log(text)

    def _remove(self) -> None:
        """Delete all that was made. What cannot be deleted now goes with the Job, by
        its owner references.
        """
        from kubernetes.client import V1DeleteOptions
        from kubernetes.client.exceptions import ApiException

        remaining = []
        for delete, name in self._created:
            try:
                options = V1DeleteOptions(propagation_policy="Background")
                delete(name, self._namespace, body=options, _request_timeout=_TIMEOUT)
            except ApiException as error:
                if error.status != 404:
                    remaining.append(name)
            except Exception:  # whatever keeps it from being deleted: the others are tried, too
                remaining.append(name)
        with suppress(Exception):
            selector = f"batch.kubernetes.io/job-name={self._name}"
            self._core.delete_collection_namespaced_pod(
                self._namespace, label_selector=selector, _request_timeout=_TIMEOUT
            )
        if remaining:
            self._attempt.log(
                f"not removed from {self._namespace}: {', '.join(sorted(set(remaining)))}; "
                f"kubectl -n {self._namespace} delete job {self._name} removes all of it, as does its end"
            )
        self._created = []
