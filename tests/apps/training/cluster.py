"""Plays what a cluster does beside its API server: the controller of Jobs, and nodes
that set the states of pods.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from cmsspark.apps.training import k8s_manifests
from tests.apps.training.scripts import with_path
from tests.kubernetes import NODE, Kubelet, KubeServer, own_address

#: What becomes of a pod: takes the cluster, the pod and its rank.
Fate = Callable[["Cluster", Any, int], None]
_KINDS = ("pod", "secret", "config_map", "service")


class Cluster:
    """A namespace of its own. While it is entered, each new Job gets its pods, and each
    pod its fate.
    """

    def __init__(
        self, server: KubeServer, kubelet: Kubelet, namespace: str, fate: Fate | None
    ) -> None:
        from kubernetes import client

        self.server, self.kubelet, self.namespace, self.fate = server, kubelet, namespace, fate
        self.core, self.batch = server.core(), client.BatchV1Api(server.api())
        self.core.create_namespace({"metadata": {"name": namespace}})
        self.jobs: list[Any] = []
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Cluster:
        thread = threading.Thread(target=self._work, daemon=True)
        self._threads.append(thread)
        thread.start()
        return self

    def __exit__(self, *ignored: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    def _work(self) -> None:
        seen = set()
        while not self._stop.wait(0.1):
            with suppress(Exception):  # the API server may be away in a test
                for job in self.batch.list_namespaced_job(self.namespace).items:
                    if job.metadata.uid not in seen:
                        seen.add(job.metadata.uid)
                        self.jobs.append(job)
                        self._make_pods(job)

    def _make_pods(self, job: Any) -> None:
        if self.fate is None:
            return
        for rank in range(job.spec.completions):
            template = self.server.api().sanitize_for_serialization(job.spec.template)
            index = {"batch.kubernetes.io/job-completion-index": str(rank)}
            labels = {
                **template["metadata"]["labels"],
                "batch.kubernetes.io/job-name": job.metadata.name,
                **index,
            }
            metadata = {
                "name": f"{job.metadata.name}-{rank}-abcde",
                "labels": labels,
                "annotations": index,
            }
            pod = self.core.create_namespaced_pod(
                self.namespace,
                {"metadata": metadata, "spec": {**template["spec"], "nodeName": NODE}},
            )
            thread = threading.Thread(target=self.fate, args=(self, pod, rank), daemon=True)
            self._threads.append(thread)
            thread.start()

    def set_status(self, pod: Any, phase: str, **status: Any) -> None:
        """Set the state of a pod, as its node would."""
        name = pod.metadata.name
        self.core.patch_namespaced_pod_status(
            name, self.namespace, {"status": {"phase": phase, **status}}
        )

    def left(self) -> list[str]:
        """All objects of runs that are in the namespace, but pods that are on their way out."""
        found = [
            f"job {job.metadata.name}"
            for job in self.batch.list_namespaced_job(self.namespace).items
        ]
        for kind in _KINDS:
            selector = "app.kubernetes.io/managed-by=cmsspark-train"
            objects = getattr(self.core, f"list_namespaced_{kind}")(
                self.namespace, label_selector=selector
            ).items
            found += [
                f"{kind} {each.metadata.name}"
                for each in objects
                if not each.metadata.deletion_timestamp
            ]
        return found


def key(pod: Any) -> str:
    """The name of a pod's log."""
    return f"{pod.metadata.namespace}/{pod.metadata.name}"


def container(state: dict[str, Any], *, ready: bool = False) -> list[dict[str, Any]]:
    """The status of a pod's container."""
    return [
        {
            "name": "worker",
            "image": "x",
            "imageID": "",
            "ready": ready,
            "restartCount": 0,
            "state": state,
        }
    ]


RUNNING = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}


def runs(cluster: Cluster, pod: Any, rank: int) -> None:
    """The fate of a pod that runs for ever, with a line in its log."""
    cluster.kubelet.logs[key(pod)] = [f"line of {rank}"]
    cluster.set_status(pod, "Running", containerStatuses=container(RUNNING))


def really_runs(folder: Path) -> Fate:
    """The fate of a pod whose program runs as a process of this host, with its volumes
    below ``folder``.
    """

    def fate(cluster: Cluster, pod: Any, rank: int) -> None:
        _mount(cluster, pod, folder)
        program = "import pathlib, sys; from cmsspark.apps.training.pod_worker import main\n"
        program += "sys.exit(main(pathlib.Path(sys.argv[1])))"
        environ = {**with_path(), "JOB_COMPLETION_INDEX": str(rank)}
        address = {"podIP": own_address(), "podIPs": [{"ip": own_address()}]}
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(folder)],
            env=environ,
            stdout=subprocess.PIPE,
            text=True,
        )
        log = cluster.kubelet.logs.setdefault(key(pod), [])
        cluster.set_status(pod, "Running", containerStatuses=container(RUNNING), **address)
        reader = threading.Thread(
            target=_log, args=(process.stdout, log, cluster, pod), daemon=True
        )
        reader.start()
        while process.poll() is None:
            if _is_served():
                conditions = [{"type": "Ready", "status": "True"}]
                cluster.set_status(
                    pod,
                    "Running",
                    containerStatuses=container(RUNNING, ready=True),
                    conditions=conditions,
                )
            time.sleep(0.1)
            with suppress(Exception):
                gone = cluster.core.read_namespaced_pod(
                    pod.metadata.name, cluster.namespace
                ).metadata.deletion_timestamp
                if gone:
                    process.terminate()
        reader.join()
        with suppress(Exception):
            cluster.set_status(pod, "Failed" if process.returncode else "Succeeded")

    return fate


def _log(stream: Any, log: list[str], cluster: Cluster, pod: Any) -> None:
    with stream:
        for line in stream:
            log.append(line.rstrip("\n"))
    cluster.kubelet.ended.add(key(pod))


def _is_served() -> bool:
    import urllib.request

    url = f"http://127.0.0.1:{k8s_manifests.SERVE_PORT}/ready"
    with suppress(OSError), urllib.request.urlopen(url, timeout=1) as answer:
        return bool(answer.status == 200)
    return False


def _mount(cluster: Cluster, pod: Any, folder: Path) -> None:
    """Write ConfigMaps and Secrets where the pod would have them, once they are there."""
    import base64

    for mount in pod.spec.containers[0].volume_mounts:
        volume = next(each for each in pod.spec.volumes if each.name == mount.name)
        target = folder / Path(mount.mount_path).relative_to("/cmsspark")
        target.mkdir(parents=True, exist_ok=True)
        for _ in range(200):
            try:
                if volume.config_map:
                    stored = cluster.core.read_namespaced_config_map(
                        volume.config_map.name, cluster.namespace
                    )
                    data = {name: text.encode() for name, text in stored.data.items()}
                    data |= {
                        name: base64.b64decode(text)
                        for name, text in (stored.binary_data or {}).items()
                    }
                elif volume.secret:
                    stored = cluster.core.read_namespaced_secret(
                        volume.secret.secret_name, cluster.namespace
                    ).data
                    data = {name: base64.b64decode(value) for name, value in stored.items()}
                else:
                    data = {}
                break
            except Exception:
                time.sleep(0.05)
        for name, content in data.items():
            (target / name).write_bytes(content)
