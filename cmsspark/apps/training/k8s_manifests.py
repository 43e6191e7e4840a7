"""The Kubernetes objects of one attempt.

An indexed Job owns all of it: a pod for each worker, a headless Service by which pods
find each other, a ConfigMap with the programs, and a Secret with the credentials. What
a Job owns goes with it, and a Job that ended goes after an hour: so nothing stays where
the launcher is lost.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

from cmsspark.apps.training import pod_worker, script_check, worker
from cmsspark.apps.training.script_check import K8S_BYTES, TrainingRun, pack_files
from cmsspark.base.resources import resource

#: The port of each worker's framework, and of the program that serves its output, as in
#: etc/k8s/train.yaml. A pod has an address of its own.
WORKER_PORT: Final = 2222
SERVE_PORT: Final = 2223
#: Seconds that a pod waits for the launcher to fetch its output.
SERVE_SECONDS: Final = 1800
SCRIPT: Final = "script.py"
GPU: Final = "nvidia.com/gpu"
#: The user of pods where a template names none.
USER: Final = {"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 1000}
RUN_LABEL: Final = "cmsspark.cern.ch/run"
_LABELS: Final = {
    "app.kubernetes.io/name": "cmsspark",
    "app.kubernetes.io/managed-by": "cmsspark-train",
}


@dataclass(frozen=True)
class Volume:
    """A PersistentVolumeClaim that the namespace has, and its folder in pods."""

    claim: str
    path: str
    read_only: bool = False


@dataclass
class Cluster:
    """What a site sets: the image of the workers, the namespace, a claim for the
    output, and a limit of time.

    ``volumes``: claims with the folder of each in pods; ``template``: a Pod to which
    ours is added. ``start_seconds``: until all pods have to run; ``poll_seconds``:
    between two looks at them.
    """

    image: str
    namespace: str | None = None
    claim: str | None = None
    max_seconds: int = 86_400
    volumes: tuple[Volume, ...] = ()
    node_selector: Mapping[str, str] = field(default_factory=dict)
    pull_secrets: tuple[str, ...] = ()
    template: Mapping[str, Any] = field(default_factory=dict)
    start_seconds: float = 900.0
    poll_seconds: float = 1.0


def labels(run: TrainingRun) -> dict[str, str]:
    """Return the labels of all objects of a run."""
    return {**_LABELS, RUN_LABEL: run.name}


def object_name(run: TrainingRun, attempt: int) -> str:
    """Return the name of an attempt's objects: those of the last may still be on their way out."""
    return run.name if attempt == 1 else f"{run.name}-r{attempt}"


def owner(name: str, uid: str) -> dict[str, Any]:
    """Return a reference to the Job, which makes it the owner."""
    return {
        "apiVersion": "batch/v1",
        "blockOwnerDeletion": False,
        "kind": "Job",
        "name": name,
        "uid": uid,
    }


def owned(
    run: TrainingRun, cluster: Cluster, attempt: int, source: str, token: str, owners: list[Any]
) -> list[Any]:
    """Return the objects of an attempt beside its Job."""
    return [
        *secrets(run, cluster, attempt, token, owners),
        config_map(run, cluster, attempt, source, owners),
        service(run, cluster, attempt, owners),
    ]


def _object(
    kind: str,
    run: TrainingRun,
    cluster: Cluster,
    name: str,
    owners: list[Any] | None = None,
    **fields: Any,
) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "labels": labels(run),
        "name": name,
        "namespace": cluster.namespace,
    }
    if owners is not None:
        metadata["ownerReferences"] = owners
    return {
        "apiVersion": "batch/v1" if kind == "Job" else "v1",
        "kind": kind,
        "metadata": metadata,
        **fields,
    }


def job(run: TrainingRun, cluster: Cluster, attempt: int) -> dict[str, Any]:
    """Return the Job: all workers at once, none started again, removed some time after its end."""
    spec = {
        **_common()["job"],
        "activeDeadlineSeconds": cluster.max_seconds,
        "completions": run.workers,
        "parallelism": run.workers,
        "template": pod_template(run, cluster, attempt),
    }
    return _object("Job", run, cluster, object_name(run, attempt), spec=spec)


def pod_template(run: TrainingRun, cluster: Cluster, attempt: int) -> dict[str, Any]:
    """Return metadata and spec of the pods: ours, added to those of the site's template."""
    pod_spec = _pod(run, cluster, object_name(run, attempt))
    security = cluster.template.get("spec", {}).get("securityContext") or {}
    # An image's own user is often root, which restricted namespaces refuse; a template
    # may have another user.
    pod_spec["securityContext"] = {**USER, **security, **pod_spec["securityContext"]}
    pod: dict[str, Any] = merged(
        cluster.template, {"metadata": {"labels": labels(run)}, "spec": pod_spec}
    )
    return {"metadata": pod["metadata"], "spec": pod["spec"]}


def merged(template: Any, overrides: Any) -> Any:
    """Return ``overrides`` added to a template: mappings by key, lists of named things
    by name; else ours stands.
    """
    if isinstance(template, Mapping) and isinstance(overrides, Mapping):
        both = {
            name: merged(template[name], overrides[name]) for name in overrides if name in template
        }
        return {**template, **overrides, **both}
    if not (isinstance(template, list) and isinstance(overrides, list)):
        return overrides
    if not all(
        isinstance(entry, Mapping) and "name" in entry for entry in (*template, *overrides)
    ):
        return [*template, *(entry for entry in overrides if entry not in template)]
    by_name = {entry["name"]: entry for entry in template}
    changed = {
        entry["name"]: merged(by_name[entry["name"]], entry) if entry["name"] in by_name else entry
        for entry in overrides
    }
    return [*(changed.pop(entry["name"], entry) for entry in template), *changed.values()]


@cache
def _common() -> Any:
    """Return what the objects of all runs have."""
    return yaml.safe_load(resource("etc/k8s/train.yaml").read_text(encoding="utf-8"))


def _pod(run: TrainingRun, cluster: Cluster, name: str) -> dict[str, Any]:
    output = (
        {"emptyDir": {}}
        if cluster.claim is None
        else {"persistentVolumeClaim": {"claimName": cluster.claim}}
    )
    volumes: list[dict[str, Any]] = [
        {"name": "job", "configMap": {"name": name}},
        _secret_volume("token", name),
        {"name": "output", **output},
    ]
    mounts: list[dict[str, Any]] = []
    for number, volume in enumerate(cluster.volumes):
        claim = {"claimName": volume.claim, "readOnly": volume.read_only}
        volumes.append({"name": f"volume-{number}", "persistentVolumeClaim": claim})
        mount = {"name": f"volume-{number}", "mountPath": volume.path}
        mounts.append(mount | ({"readOnly": True} if volume.read_only else {}))
    for number, secret in enumerate(run.secrets):
        stored = secret.name if secret.values is None else secret_name(name, number)
        volumes.append(_secret_volume(f"secret-{number}", stored))
        path = f"{pod_worker.FOLDER}/secrets/{secret.name}"
        mounts.append({"name": f"secret-{number}", "mountPath": path, "readOnly": True})
    resources = {"cpu": str(run.cpus), "memory": str(run.memory)}
    if run.gpus:
        resources[GPU] = str(run.gpus)
    container = {
        "name": "worker",
        "image": cluster.image,
        # Requests equal to limits: such pods are evicted last.
        "resources": {"limits": dict(resources), "requests": resources},
        "volumeMounts": mounts,
    }
    pod = {
        "containers": [container],
        "imagePullSecrets": [{"name": name} for name in cluster.pull_secrets],
        "nodeSelector": dict(cluster.node_selector),
        # Pods find each other as NAME-RANK.NAME.
        "subdomain": name,
        "terminationGracePeriodSeconds": int(run.grace) + 20,
        "volumes": volumes,
    }
    own_fields = {field: value for field, value in pod.items() if value not in ([], {})}
    spec: dict[str, Any] = merged(_common()["pod"], own_fields)
    return spec


def _secret_volume(volume: str, secret: str) -> dict[str, Any]:
    return {"name": volume, "secret": {"defaultMode": 0o440, "secretName": secret}}


def secret_name(name: str, number: int) -> str:
    """Return the name of the Secret that is made of a run's own credentials."""
    return f"{name}-secret-{number}"


def secrets(
    run: TrainingRun, cluster: Cluster, attempt: int, token: str, owners: list[Any]
) -> list[Any]:
    """Return the Secrets of an attempt: the token by which output is fetched, and
    credentials of this host.
    """
    name = object_name(run, attempt)

    def make_secret(secret: str, values: dict[str, str]) -> dict[str, Any]:
        return _object(
            "Secret",
            run,
            cluster,
            secret,
            owners,
            immutable=True,
            stringData=values,
            type="Opaque",
        )

    manifests = [
        make_secret(secret_name(name, number), dict(secret.values))
        for number, secret in enumerate(run.secrets)
        if secret.values is not None
    ]
    return [make_secret(name, {"token": token}), *manifests]


def config_map(
    run: TrainingRun, cluster: Cluster, attempt: int, source: str, owners: list[Any]
) -> dict[str, Any]:
    """Return the ConfigMap with the script, the programs beside it, and the job without
    anything secret.
    """
    name = object_name(run, attempt)
    addresses = [
        f"{name}-{rank}.{name}.{cluster.namespace}.svc:{WORKER_PORT}"
        for rank in range(run.workers)
    ]
    document = run.job(0, addresses, "", attempt) | {
        "script": SCRIPT,
        "files": None,
        "secrets": {},
        "port": SERVE_PORT,
        "serve_seconds": SERVE_SECONDS,
    }
    programs = {
        Path(str(module.__file__)).name: module for module in (pod_worker, worker, script_check)
    }
    data = {
        file: Path(str(module.__file__)).read_text(encoding="utf-8")
        for file, module in programs.items()
    }
    data |= {SCRIPT: source, "job.json": json.dumps(document)}
    # In pods the files are where the archive is unpacked.
    binary = {}
    if run.files is not None:
        content = pack_files(run.files, K8S_BYTES)
        binary = {"binaryData": {pod_worker.FILES: base64.b64encode(content).decode()}}
    return _object("ConfigMap", run, cluster, name, owners, **binary, data=data, immutable=True)


def service(run: TrainingRun, cluster: Cluster, attempt: int, owners: list[Any]) -> dict[str, Any]:
    """Return the headless Service that gives pods names, also before their end, when
    they are ready.
    """
    name = object_name(run, attempt)
    spec = {**_common()["service"], "selector": {"batch.kubernetes.io/job-name": name}}
    return _object("Service", run, cluster, name, owners, spec=spec)
