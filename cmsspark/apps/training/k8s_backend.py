"""``--on k8s``: workers as pods of an indexed Job, by the official client."""

from __future__ import annotations

import json
import os
import secrets
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from cmsspark.apps.training import k8s_manifests as manifests
from cmsspark.apps.training import pod_worker
from cmsspark.apps.training.k8s_manifests import SERVE_PORT
from cmsspark.apps.training.launch import Attempt, WorkerFailure, describe_exit
from cmsspark.apps.training.pod_worker import TOKEN_HEADER
from cmsspark.apps.training.script_check import K8S_BYTES, TrainingRun, is_object_name, pack_files
from cmsspark.base import extras
from cmsspark.base.errors import (
    CmssparkError,
    InputMissing,
    NotAllowed,
    NotReady,
    SettingsError,
    UsageError,
)
from cmsspark.settings.secrets import safe_text

# What an API server answers, as errors of ours with the next step.

#: What is in refusals by admission, which have the status of a missing right.
_ADMISSION = (
    "violates PodSecurity",
    "admission webhook",
    "denied the request",
    "usage per Container",
    "usage per Pod",
    "ValidatingAdmissionPolicy",
    "must specify",
    "PriorityClass",
)


class ApiAway(NotReady):
    """The API server does not answer, or not now (75)."""


#: What a status says of an action, and what helps.
_REFUSALS: Final[dict[int, tuple[type[CmssparkError], str, str | None]]] = {
    401: (
        NotAllowed,
        ": the API server does not know this user",
        "renew the kubeconfig's token",
    ),
    403: (NotAllowed, " is forbidden", None),
    404: (InputMissing, ": it does not exist", None),
    409: (UsageError, ": the name is taken", "choose another --name"),
    **dict.fromkeys((400, 413, 422), (SettingsError, ": the API server refuses it", None)),
}

#: What helps a user who lacks a right of those who train.
_ROLE: Final = (
    "ask for the role in etc/k8s/train-role.yaml: kubectl apply -f etc/k8s/train-role.yaml"
)


@contextmanager
def api_errors(action: str, where: str, role_step: str = _ROLE) -> Iterator[None]:
    """Turn errors of the client inside into errors of ours: ``action`` was requested of
    the API server ``where``. ``role_step``: what helps a user without the right to it.
    """
    import urllib3
    from kubernetes.client.exceptions import ApiException

    try:
        yield
    except ApiException as error:
        raise translated(
            error.status or 0, read_message(error), action, where, role_step
        ) from None
    except (urllib3.exceptions.HTTPError, OSError) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, urllib3.exceptions.SSLError):
            raise tls_error(str(reason), where) from None
        raise ApiAway(
            "the API server does not answer",
            where=where,
            found=safe_text(str(error)),
            next_step="check the address in the kubeconfig and the network, then run it again",
        ) from None


def tls_error(text: str, where: str) -> CmssparkError:
    """Return what it means that there is no TLS connection with the API server: no later
    try helps.
    """
    if "certif" in text.lower():
        return NotAllowed(
            "the certificate of the API server is not trusted",
            where=where,
            found=safe_text(text),
            next_step="fetch the kubeconfig of this cluster again: it names the authority that signed it",
        )
    return SettingsError(
        "what answers is no API server of Kubernetes",
        where=where,
        found=safe_text(text),
        next_step="check scheme and port of the address: kubectl cluster-info prints it",
    )


def read_message(error: Exception) -> str:
    """Return what the API server says, or the client's own reason."""
    body = getattr(error, "body", None)
    try:
        return safe_text(str(json.loads(body or "")["message"]), limit=600)
    except (ValueError, KeyError, TypeError):
        return safe_text(str(getattr(error, "reason", None) or error), limit=600)


def translated(
    status: int, message: str, action: str, where: str, role_step: str = _ROLE
) -> CmssparkError:
    """Return the error for an HTTP status and the API server's message."""
    kind, text, next_step = _REFUSALS.get(status, (ApiAway, " failed", None))
    if status == 403 and ("exceeded quota" in message or "status unknown for quota" in message):
        kind, text = NotReady, ": the quota of the namespace is used up"
        next_step = "take fewer or smaller workers, or wait until others end"
    elif status == 403 and any(sign in message for sign in _ADMISSION):
        # Said of a limit, of pod security, or by a webhook: no role would help.
        kind, text = SettingsError, ": admission refuses it"
        next_step = "change --cpus, --memory or --pod-template as the message says, or ask the administrators"
    elif status == 403:
        next_step = role_step
    elif status == 404 and message.startswith("namespaces "):
        kind, text = SettingsError, ": there is no such namespace"
        next_step = "correct its name, or ask the administrators for it"
    answer = f"{status} {message}" if kind is ApiAway else message
    return kind(f"{action}{text}", where=where, found=answer, next_step=next_step)


# What a worker left in its pod, fetched through the API server while the pod waits for
# it.

_OUTPUT_TIMEOUT: Final = (10, 120)


class PodOutput:
    """The output of pods, by the API server's proxy to ``pod_worker``; ``token`` is the run's."""

    def __init__(self, core: Any, namespace: str, token: str) -> None:
        self._core, self._namespace = core, namespace
        self._headers = {TOKEN_HEADER: token}

    def code(self, pod: str) -> int | None:
        """Return the exit code of a pod's script; None where it cannot be had now."""
        try:
            answer = self._get(pod, "result")
            code = json.loads(answer.read())["code"]
        except Exception:  # the pod may be on its way out: the next look at it tells
            return None
        return None if code is None else int(code)

    def fetch(self, pod: str, folder: Path) -> None:
        """Unpack a pod's output into a folder. Raises NotReady (75) where it breaks off."""
        folder.mkdir(parents=True, exist_ok=True)
        try:
            answer = self._get(pod, "output")
            with tarfile.open(fileobj=answer, mode="r|gz") as archive:
                archive.extractall(folder, filter="data")
        except Exception as error:
            raise NotReady(
                "the output of a worker cannot be fetched", where=pod, found=str(error)[:300]
            ) from None

    def release(self, pod: str) -> None:
        """Let a pod end: its output is here."""
        with suppress(Exception):  # it ends by itself after a time
            self._core.connect_post_namespaced_pod_proxy_with_path(
                f"{pod}:{SERVE_PORT}",
                self._namespace,
                "done",
                _headers=self._headers,
                _request_timeout=_OUTPUT_TIMEOUT,
            )

    def _get(self, pod: str, path: str) -> Any:
        return self._core.connect_get_namespaced_pod_proxy_with_path(
            f"{pod}:{SERVE_PORT}",
            self._namespace,
            path,
            _headers=self._headers,
            _preload_content=False,
            _request_timeout=_OUTPUT_TIMEOUT,
        )


# What the states of pods mean for a training: which worker a pod is, and whether it
# failed, and why.

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
        from cmsspark.apps.training.launch import describe_exit

        return describe_exit(128 - code)
    return f"ended with exit code {code}"


# One attempt of a training on Kubernetes: its objects are made, watched until all
# scripts ended, and removed.

#: Seconds that the API server may be away while workers run, and that a pod may lack a Secret.
_AWAY_SECONDS: Final = 300.0
_CONFIG_SECONDS: Final = 60.0


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


_TIMEOUT: Final = (10, 60)


@dataclass
class K8sBackend(manifests.Cluster):
    """A namespace of a cluster. ``api``: a client of it; without it that of the
    kubeconfig, or of this pod.
    """

    context: str | None = None
    api: Any = None
    has_this_python: bool = False

    def check(self, run: TrainingRun) -> None:
        """Raises UsageError (2) without an image or the client, DataError (65) for too
        large files.

        The cluster is not asked.
        """
        extras.require("--on k8s needs", "kubernetes", extra="k8s")
        if not self.image or any(letter.isspace() for letter in self.image):
            raise UsageError(
                "--on k8s needs --image",
                found=repr(self.image),
                next_step="--image registry/image:tag",
            )
        if run.files is not None:
            pack_files(run.files, K8S_BYTES)

    def yaml(self, run: TrainingRun, source: str) -> str:
        """Return the manifests of a run as YAML; values of secrets are ``***``."""
        self.namespace = self.namespace or "default"
        owners = [manifests.owner(run.name, "UID-OF-THE-JOB")]
        objects = [
            manifests.job(run, self, 1),
            *manifests.owned(run, self, 1, source, "***", owners),
        ]
        for document in objects:
            if document["kind"] == "Secret":
                document["stringData"] = dict.fromkeys(document["stringData"], "***")
        return yaml.safe_dump_all(objects, sort_keys=False, default_flow_style=False)

    def attempt(self, attempt: Attempt) -> WorkerFailure | None:
        """As :meth:`Backend.attempt`."""
        with JobAttempt(self, attempt, self._connected()) as pods:
            return pods.wait()

    def connect(self) -> None:
        """Read the kubeconfig: afterwards ``namespace`` is known. The cluster is not asked."""
        extras.require("--on k8s needs", "kubernetes", extra="k8s")
        self.api = self._connected()

    def remove(self, names: list[str]) -> None:
        """Delete the Jobs of these names, with all that they own; those that are gone
        already are no error.
        """
        from kubernetes import client

        self.connect()
        for name in names:
            with (
                suppress(InputMissing),
                api_errors(f"deleting the Job {name}", str(self.api.configuration.host)),
            ):
                options = client.V1DeleteOptions(propagation_policy="Background")
                client.BatchV1Api(self.api).delete_namespaced_job(
                    name, str(self.namespace), body=options, _request_timeout=_TIMEOUT
                )

    def _connected(self) -> Any:
        """Return a client of the cluster. Raises UsageError (2) without a kubeconfig."""
        from kubernetes import client, config
        from kubernetes.config.config_exception import ConfigException

        if self.api is not None:
            self.namespace = self.namespace or "default"
            return self.api
        try:
            if self.context is None:
                with suppress(ConfigException):
                    config.load_incluster_config()
                    self.namespace = self.namespace or _own_namespace()
                    return client.ApiClient()
            # The client reads the variable only when it is imported.
            file = os.environ.get("KUBECONFIG")
            contexts, active = config.list_kube_config_contexts(file)
            chosen = next((entry for entry in contexts if entry["name"] == self.context), active)
            if self.context is not None and chosen["name"] != self.context:
                names = ", ".join(entry["name"] for entry in contexts)
                raise UsageError(
                    "--context is one of the kubeconfig",
                    found=self.context,
                    next_step=f"use one of: {names}",
                )
            self.namespace = self.namespace or chosen["context"].get("namespace") or "default"
            return config.new_client_from_config(file, chosen["name"])
        except (ConfigException, OSError, KeyError, TypeError) as error:
            raise UsageError(
                "no kubeconfig, as kubectl uses it",
                where="KUBECONFIG, or ~/.kube/config",
                found=str(error)[:300],
            ) from None


def parse_volume(text: str) -> manifests.Volume:
    """Return the volume ``CLAIM:/folder`` or ``CLAIM:/folder:ro``. Raises UsageError (2)."""
    claim, _, options = text.partition(":")
    path, _, mode = options.partition(":")
    if (
        not is_object_name(claim)
        or not path.startswith("/")
        or path == "/"
        or mode not in ("", "ro")
    ):
        raise UsageError(
            "--volume has the form CLAIM:/FOLDER or CLAIM:/FOLDER:ro", found=repr(text)
        )
    if path.rstrip("/") == str(pod_worker.FOLDER) or path.startswith(f"{pod_worker.FOLDER}/"):
        raise UsageError(
            f"--volume: {pod_worker.FOLDER} is the launcher's folder", found=repr(text)
        )
    return manifests.Volume(claim, path, mode == "ro")


def read_template(path: Path) -> dict[str, Any]:
    """Return a Pod from a YAML file. Raises InputMissing (66), SettingsError (78) for
    what is no Pod.
    """
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputMissing(
            "the pod template cannot be read", where=path, found=error.strerror
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SettingsError(
            "the pod template is not YAML", where=path, found=str(error)[:300]
        ) from None
    is_pod = (
        isinstance(document, dict)
        and document.get("kind") == "Pod"
        and isinstance(document.get("spec"), dict)
    )
    if not is_pod or not isinstance(document.get("metadata", {}), dict):
        raise SettingsError(
            "a pod template has `kind: Pod` and a spec",
            where=path,
            found=str(document)[:100],
            next_step="its container `worker` is merged with that of the launcher",
        )
    return {"metadata": document.get("metadata") or {}, "spec": document["spec"]}


def _own_namespace() -> str:
    with (
        suppress(OSError),
        open(
            "/var/run/secrets/kubernetes.io/serviceaccount/namespace", encoding="utf-8"
        ) as stream,
    ):
        return stream.read().strip()
    return "default"
