"""The Kubernetes objects of one attempt, as typed models of the official client.

An indexed Job owns all of it: a pod for each worker, a headless Service by which pods find each other, a ConfigMap with
the programs, and a Secret with the credentials. What a Job owns goes with it, and a Job that ended goes after an hour:
so nothing stays where the launcher is lost.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cmsspark.apps.training import pod_worker, script_check, worker
from cmsspark.apps.training.shipped_files import K8S_BYTES, pack_files
from cmsspark.apps.training.spec import TrainingRun

#: The port of each worker's framework, and of the program that serves its output. A pod has an address of its own.
WORKER_PORT: Final = 2222
SERVE_PORT: Final = 2223
#: Seconds after which a Job that ended is removed where the launcher did not.
TTL_SECONDS: Final = 3600
#: Seconds that a pod waits for the launcher to fetch its output.
SERVE_SECONDS: Final = 1800
SCRIPT: Final = "script.py"
GPU: Final = "nvidia.com/gpu"
#: The user of pods where a template names none.
USER: Final = {"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 1000}
RUN_LABEL: Final = "cmsspark.cern.ch/run"
_LABELS: Final = {"app.kubernetes.io/name": "cmsspark", "app.kubernetes.io/managed-by": "cmsspark-train"}


@dataclass(frozen=True)
class Volume:
    """A PersistentVolumeClaim that the namespace has, and its folder in pods."""

    claim: str
    path: str
    read_only: bool = False


@dataclass
class Cluster:
    """What a site sets: the image of the workers, the namespace, a claim for the output, and a limit of time.

    ``volumes``: claims with the folder of each in pods; ``template``: a Pod to which ours is added. ``start_seconds``:
    until all pods have to run; ``poll_seconds``: between two looks at them.
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
    """Return the name of an attempt's objects: each has its own, because those of the last may still be on their way
    out.
    """
    return run.name if attempt == 1 else f"{run.name}-r{attempt}"


def owner(name: str, uid: str) -> Any:
    """Return a reference to the Job, which makes it the owner."""
    from kubernetes import client

    return client.V1OwnerReference(api_version="batch/v1", kind="Job", name=name, uid=uid, block_owner_deletion=False)


def owned(run: TrainingRun, cluster: Cluster, attempt: int, source: str, token: str, owners: list[Any]) -> list[Any]:
    """Return the objects of an attempt beside its Job."""
    return [
        *secrets(run, cluster, attempt, token, owners),
        config_map(run, cluster, attempt, source, owners),
        service(run, cluster, attempt, owners),
    ]


def _metadata(run: TrainingRun, cluster: Cluster, name: str, owners: list[Any] | None = None) -> Any:
    from kubernetes import client

    return client.V1ObjectMeta(name=name, namespace=cluster.namespace, labels=labels(run), owner_references=owners)


def job(run: TrainingRun, cluster: Cluster, attempt: int) -> Any:
    """Return the Job: all workers at once, none started again, removed some time after its end."""
    from kubernetes import client

    name = object_name(run, attempt)
    template = pod_template(run, cluster, attempt)
    spec = client.V1JobSpec(
        completions=run.workers,
        parallelism=run.workers,
        completion_mode="Indexed",
        # Whether a failed training is tried again is the launcher's: all workers have to start anew.
        backoff_limit=0,
        active_deadline_seconds=cluster.max_seconds,
        ttl_seconds_after_finished=TTL_SECONDS,
        template=template,
    )
    return client.V1Job(api_version="batch/v1", kind="Job", metadata=_metadata(run, cluster, name), spec=spec)


def pod_template(run: TrainingRun, cluster: Cluster, attempt: int) -> dict[str, Any]:
    """Return metadata and spec of the pods: ours, added to those of the site's template."""
    from kubernetes import client

    spec = _pod(run, cluster, object_name(run, attempt))
    pod_spec: dict[str, Any] = client.ApiClient().sanitize_for_serialization(spec)
    security = cluster.template.get("spec", {}).get("securityContext") or {}
    # An image's own user is often root, which restricted namespaces refuse; a template may have another user.
    pod_spec["securityContext"] = {**USER, **security, **pod_spec["securityContext"]}
    pod: dict[str, Any] = merged(cluster.template, {"metadata": {"labels": labels(run)}, "spec": pod_spec})
    return {"metadata": pod["metadata"], "spec": pod["spec"]}


def merged(template: Any, overrides: Any) -> Any:
    """Return ``overrides`` added to a template: mappings by key, lists of named things by name; else ours stands."""
    if isinstance(template, Mapping) and isinstance(overrides, Mapping):
        both = {name: merged(template[name], overrides[name]) for name in overrides if name in template}
        return {**template, **overrides, **both}
    if not (isinstance(template, list) and isinstance(overrides, list)):
        return overrides
    if not all(isinstance(entry, Mapping) and "name" in entry for entry in (*template, *overrides)):
        return [*template, *(entry for entry in overrides if entry not in template)]
    by_name = {entry["name"]: entry for entry in template}
    changed = {
        entry["name"]: merged(by_name[entry["name"]], entry) if entry["name"] in by_name else entry
        for entry in overrides
    }
    return [*(changed.pop(entry["name"], entry) for entry in template), *changed.values()]


def _pod(run: TrainingRun, cluster: Cluster, name: str) -> Any:
    from kubernetes import client

    folder = str(pod_worker.FOLDER)
    volumes = [
        client.V1Volume(name="job", config_map=client.V1ConfigMapVolumeSource(name=name)),
        client.V1Volume(name="token", secret=client.V1SecretVolumeSource(secret_name=name, default_mode=0o440)),
        _output_volume(cluster),
        client.V1Volume(name="files", empty_dir=client.V1EmptyDirVolumeSource()),
    ]
    mounts = [
        client.V1VolumeMount(name="job", mount_path=f"{folder}/job", read_only=True),
        client.V1VolumeMount(name="token", mount_path=f"{folder}/token", read_only=True, sub_path=None),
        client.V1VolumeMount(name="output", mount_path=f"{folder}/output"),
        client.V1VolumeMount(name="files", mount_path=f"{folder}/files"),
    ]
    for number, volume in enumerate(cluster.volumes):
        claim = client.V1PersistentVolumeClaimVolumeSource(claim_name=volume.claim, read_only=volume.read_only)
        volumes.append(client.V1Volume(name=f"volume-{number}", persistent_volume_claim=claim))
        is_read_only = volume.read_only or None
        mounts.append(client.V1VolumeMount(name=f"volume-{number}", mount_path=volume.path, read_only=is_read_only))
    for number, secret in enumerate(run.secrets):
        source = client.V1SecretVolumeSource(
            secret_name=secret.name if secret.values is None else secret_name(name, number), default_mode=0o440
        )
        volumes.append(client.V1Volume(name=f"secret-{number}", secret=source))
        path = f"{folder}/secrets/{secret.name}"
        mounts.append(client.V1VolumeMount(name=f"secret-{number}", mount_path=path, read_only=True))
    return client.V1PodSpec(
        restart_policy="Never",
        # Pods find each other as NAME-RANK.NAME.
        subdomain=name,
        # A script needs nothing of the cluster's API.
        automount_service_account_token=False,
        enable_service_links=False,
        termination_grace_period_seconds=int(run.grace) + 20,
        node_selector=dict(cluster.node_selector) or None,
        image_pull_secrets=[client.V1LocalObjectReference(name=name) for name in cluster.pull_secrets] or None,
        # What the restricted pod security standard asks for.
        security_context=client.V1PodSecurityContext(
            run_as_non_root=True, seccomp_profile=client.V1SeccompProfile(type="RuntimeDefault")
        ),
        containers=[_container(run, cluster, mounts)],
        volumes=volumes,
    )


def _container(run: TrainingRun, cluster: Cluster, mounts: list[Any]) -> Any:
    from kubernetes import client

    resources = {"cpu": str(run.cpus), "memory": str(run.memory)}
    if run.gpus:
        resources[GPU] = str(run.gpus)
    # Users without an entry in the image's /etc/passwd have neither a name nor a home.
    variables = {"PYTHONDONTWRITEBYTECODE": "1", "TZ": "UTC", "HOME": f"{pod_worker.FOLDER}/files", "USER": "cmsspark"}
    ready = client.V1HTTPGetAction(path="/ready", port=SERVE_PORT)
    return client.V1Container(
        name="worker",
        image=cluster.image,
        command=["python3", f"{pod_worker.FOLDER}/job/pod_worker.py"],
        env=[client.V1EnvVar(name=name, value=value) for name, value in variables.items()],
        # Requests equal to limits: such pods are evicted last.
        resources=client.V1ResourceRequirements(requests=resources, limits=resources),
        ports=[client.V1ContainerPort(container_port=port) for port in (WORKER_PORT, SERVE_PORT)],
        # Ready means: the script ended, and its output can be fetched.
        readiness_probe=client.V1Probe(http_get=ready, period_seconds=2, failure_threshold=1),
        volume_mounts=mounts,
        security_context=client.V1SecurityContext(
            allow_privilege_escalation=False,
            capabilities=client.V1Capabilities(drop=["ALL"]),
            seccomp_profile=client.V1SeccompProfile(type="RuntimeDefault"),
        ),
    )


def _output_volume(cluster: Cluster) -> Any:
    from kubernetes import client

    if cluster.claim is None:
        return client.V1Volume(name="output", empty_dir=client.V1EmptyDirVolumeSource())
    claim = client.V1PersistentVolumeClaimVolumeSource(claim_name=cluster.claim)
    return client.V1Volume(name="output", persistent_volume_claim=claim)


def secret_name(name: str, number: int) -> str:
    """Return the name of the Secret that is made of a run's own credentials."""
    return f"{name}-secret-{number}"


def secrets(run: TrainingRun, cluster: Cluster, attempt: int, token: str, owners: list[Any]) -> list[Any]:
    """Return the Secrets of an attempt: the token by which output is fetched, and credentials that came from this host.
    """
    from kubernetes import client

    name = object_name(run, attempt)

    def make_secret(secret: str, values: dict[str, str]) -> Any:
        metadata = _metadata(run, cluster, secret, owners)
        return client.V1Secret(
            api_version="v1", kind="Secret", metadata=metadata, type="Opaque", string_data=values, immutable=True
        )

    manifests = [
        make_secret(secret_name(name, number), dict(secret.values))
        for number, secret in enumerate(run.secrets)
        if secret.values is not None
    ]
    return [make_secret(name, {"token": token}), *manifests]


def config_map(run: TrainingRun, cluster: Cluster, attempt: int, source: str, owners: list[Any]) -> Any:
    """Return the ConfigMap with the script, the programs beside it, and the job without anything secret."""
    from kubernetes import client

    name = object_name(run, attempt)
    addresses = [f"{name}-{rank}.{name}.{cluster.namespace}.svc:{WORKER_PORT}" for rank in range(run.workers)]
    document = run.job(0, addresses, "", attempt) | {
        "script": SCRIPT, "files": None, "secrets": {}, "port": SERVE_PORT, "serve_seconds": SERVE_SECONDS,
    }  # fmt: skip
    programs = {Path(str(module.__file__)).name: module for module in (pod_worker, worker, script_check)}
    data = {file: Path(str(module.__file__)).read_text(encoding="utf-8") for file, module in programs.items()}
    data |= {SCRIPT: source, "job.json": json.dumps(document)}
    # In pods the files are where the archive is unpacked.
    binary = None
    if run.files is not None:
        content = pack_files(run.files, K8S_BYTES)
        binary = {pod_worker.FILES: base64.b64encode(content).decode()}
    metadata = _metadata(run, cluster, name, owners)
    return client.V1ConfigMap(
        api_version="v1", kind="ConfigMap", metadata=metadata, data=data, binary_data=binary, immutable=True
    )


def service(run: TrainingRun, cluster: Cluster, attempt: int, owners: list[Any]) -> Any:
    """Return the headless Service that gives pods names; also before they are ready, which they are at their end only.
    """
    from kubernetes import client

    spec = client.V1ServiceSpec(
        cluster_ip="None",
        publish_not_ready_addresses=True,
        selector={"batch.kubernetes.io/job-name": object_name(run, attempt)},
        ports=[client.V1ServicePort(name="worker", port=WORKER_PORT)],
    )
    metadata = _metadata(run, cluster, object_name(run, attempt), owners)
    return client.V1Service(api_version="v1", kind="Service", metadata=metadata, spec=spec)
