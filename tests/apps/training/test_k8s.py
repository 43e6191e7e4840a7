"""Training on Kubernetes, against a real API server: manifests, a run to its end,
faults, and that nothing is left.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cmsspark.apps.training import k8s_manifests as manifests
from cmsspark.apps.training.k8s_backend import K8sBackend, parse_volume
from cmsspark.apps.training.launch import RunFolder, WorkerFailed
from cmsspark.apps.training.script_check import Secret, TrainingRun
from cmsspark.base.errors import CmssparkError, NotAllowed, NotReady, SettingsError, UsageError
from tests.apps.training.cluster import Cluster, Fate, container, key, really_runs, runs
from tests.apps.training.scripts import USES_FILES, launched, run_of, with_files
from tests.kubernetes import NOBODY, Kubelet, KubeServer
from tests.ports import free_port

pytestmark = pytest.mark.long
TOP = Path(__file__).resolve().parents[3]


@pytest.fixture
def namespace() -> str:
    return f"t-{uuid.uuid4().hex[:8]}"


def backend(
    server: KubeServer, namespace: str, token: str | None = None, **values: Any
) -> K8sBackend:
    api = server.api(token) if token else server.api()
    return K8sBackend("registry/x:1", namespace, api=api, poll_seconds=0.2, **values)


def run_to_end(
    cluster: Cluster, folder: Path, text: str = "pass", token: str | None = None, **values: Any
) -> list[str]:
    """The merged lines of a run on the cluster; it leaves nothing there, however it ends."""
    options = {
        name: values.pop(name) for name in ("start_seconds", "claim", "image") if name in values
    }
    lines: list[str] = []
    try:
        launched(
            folder,
            run_of(folder, text, backend="k8s", **values),
            backend(cluster.server, cluster.namespace, token, **options),
            lines,
        )
    finally:
        assert cluster.left() == []
    return lines


def fate_of(cluster: Cluster, folder: Path, fate: Fate | None, **values: Any) -> CmssparkError:
    """The error that a run ends with where its pods have this fate."""
    cluster.fate = fate
    with cluster, pytest.raises(CmssparkError) as error:
        run_to_end(cluster, folder, workers=2, **values)
    return error.value


@pytest.fixture
def cluster(kube: KubeServer, kubelet: Kubelet, namespace: str) -> Iterator[Cluster]:
    yield Cluster(kube, kubelet, namespace, runs)


@pytest.mark.parametrize("claim", [None, "my-claim"])
def test_the_api_server_takes_every_manifest_as_it_is(
    kube: KubeServer, tmp_path: Path, claim: str | None
) -> None:
    from kubernetes import utils

    run = run_of(
        tmp_path,
        "x = 1",
        workers=3,
        backend="k8s",
        secrets=(Secret("a.b", {"K.e-y_1": "v"}), Secret("c")),
        cpus=2,
    )
    text = backend(kube, "default", claim=claim).yaml(run, "x = 1")
    documents = list(yaml.safe_load_all(text))
    assert [each["kind"] for each in documents] == [
        "Job",
        "Secret",
        "Secret",
        "ConfigMap",
        "Service",
    ]
    for document in documents:
        utils.create_from_dict(kube.api(), document, dry_run="All")
    assert "v" not in [
        value
        for each in documents
        if each["kind"] == "Secret"
        for value in each["stringData"].values()
    ]


def test_the_api_server_refuses_what_a_manifest_may_not_have(
    kube: KubeServer, cluster: Cluster, tmp_path: Path
) -> None:
    broken = TrainingRun("Wrong_Name", tmp_path / "script.py", backend="k8s")
    (tmp_path / "script.py").write_text("")
    with pytest.raises(SettingsError, match="the API server refuses it"):
        launched(tmp_path, broken, backend(kube, cluster.namespace))
    assert cluster.left() == []


def test_a_run_goes_to_its_end_and_brings_back_what_its_pod_left(
    cluster: Cluster, tmp_path: Path
) -> None:
    text = (
        "import os, pathlib, sys\nout = pathlib.Path(os.environ['CMSSPARK_TRAIN_OUTPUT'])\n"
        "(out / 'events').mkdir()\n(out / 'events/log').write_text('e')\n"
        "(out / 'model').write_bytes(bytes(range(256)) * 4000)\n"
        "print('argv', sys.argv[1:], os.environ['RANK'], os.environ['JAX_COORDINATOR_ADDRESS'])\n"
        "print('token', os.environ['TOKEN'], len(os.environ['TOKEN']))"
    )
    cluster.fate = really_runs(tmp_path / "pod")
    with cluster:
        secret = Secret("s3", {"TOKEN": "a-secret-value"})
        lines = run_to_end(cluster, tmp_path, text, secrets=(secret,), arguments=("a b", "--c"))
    assert (
        f"worker 0 | argv ['a b', '--c'] 0 test-run-0.test-run.{cluster.namespace}.svc:2222"
        in lines
    )
    assert "worker 0 | token *** 14" in lines
    folder = RunFolder.find(tmp_path / "training", "test-run")
    assert (folder.output / "worker-0/model").read_bytes() == bytes(range(256)) * 4000
    assert (folder.output / "worker-0/events/log").read_text() == "e"
    assert folder.state().state == "done"


def test_a_script_that_fails_in_its_pod_is_reported_with_its_last_lines_and_its_output(
    cluster: Cluster, tmp_path: Path
) -> None:
    text = (
        "import os, pathlib, sys\npathlib.Path(os.environ['CMSSPARK_TRAIN_OUTPUT'], 'part').write_text('p')\n"
        "print('it breaks')\nsys.exit(3)"
    )
    cluster.fate = really_runs(tmp_path / "pod")
    with (
        cluster,
        pytest.raises(WorkerFailed, match="worker 0 of test-run ended with exit code 3") as error,
    ):
        run_to_end(cluster, tmp_path, text)
    assert "it breaks" in str(error.value)
    assert (tmp_path / "training/test-run/output/worker-0/part").read_text() == "p"


def test_an_image_that_lacks_a_module_is_reported(cluster: Cluster, tmp_path: Path) -> None:
    cluster.fate = really_runs(tmp_path / "pod")
    with cluster, pytest.raises(WorkerFailed, match="exit code 78") as error:
        run_to_end(cluster, tmp_path, "import no_such_module")
    assert "no_such_module (line 1)" in str(error.value)


def ends(phase: str = "Failed", **status: Any) -> Fate:
    """The fate of pods of which worker 1 ends so, and the others run."""

    def fate(cluster: Cluster, pod: Any, rank: int) -> None:
        runs(cluster, pod, rank)
        if rank == 1:
            cluster.kubelet.ended.add(key(pod))
            cluster.set_status(pod, phase, **status)

    return fate


OOM_KILLED = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
NO_IMAGE = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}


@pytest.mark.parametrize(
    ("fate", "reason"),
    [
        (
            ends(containerStatuses=container({"terminated": {"exitCode": 3}})),
            "ended with exit code 3",
        ),
        (
            ends(containerStatuses=container({"terminated": {"exitCode": 137}})),
            "was killed by SIGKILL",
        ),
        (ends(containerStatuses=container(OOM_KILLED)), "more than its --memory"),
        (
            ends(reason="Evicted", message="The node was low on resource: memory."),
            "Evicted: The node was low",
        ),
        (
            ends("Pending", containerStatuses=container(NO_IMAGE)),
            "ImagePullBackOff: no such image",
        ),
    ],
)
def test_a_worker_that_the_cluster_ends_is_reported_at_once(
    cluster: Cluster, tmp_path: Path, fate: Fate, reason: str
) -> None:
    began = time.monotonic()
    error = fate_of(cluster, tmp_path, fate)
    assert (
        isinstance(error, WorkerFailed)
        and "worker 1 of test-run" in str(error)
        and reason in str(error)
    )
    assert time.monotonic() - began < 300
    if "exit code" in reason:
        assert "line of 1" in str(error)


def test_a_pod_that_somebody_deletes_is_reported(cluster: Cluster, tmp_path: Path) -> None:
    def fate(cluster: Cluster, pod: Any, rank: int) -> None:
        runs(cluster, pod, rank)
        if rank == 1:
            time.sleep(2)
            cluster.core.delete_namespaced_pod(
                pod.metadata.name, cluster.namespace, grace_period_seconds=0
            )

    assert "worker 1 of test-run is gone: its pod was deleted" in str(
        fate_of(cluster, tmp_path, fate)
    )


def test_pods_that_no_node_takes_are_reported_with_the_schedulers_reason(
    cluster: Cluster, tmp_path: Path
) -> None:
    def fate(cluster: Cluster, pod: Any, rank: int) -> None:
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/1 nodes: cpu",
        }
        cluster.set_status(pod, "Pending", conditions=[condition])

    error = fate_of(cluster, tmp_path, fate, start_seconds=2.0)
    assert isinstance(error, NotReady) and "0/1 nodes: cpu" in str(error)
    assert (
        "waits for a node: 0/1 nodes: cpu"
        in (tmp_path / "training/test-run/logs/merged.log").read_text()
    )


def test_pods_that_the_quota_does_not_allow_are_reported(cluster: Cluster, tmp_path: Path) -> None:
    def no_pods() -> None:
        while not cluster.jobs:
            time.sleep(0.05)
        job = cluster.jobs[0]
        cluster.core.create_namespaced_event(
            cluster.namespace,
            {
                "metadata": {"name": "e1"},
                "reason": "FailedCreate",
                "type": "Warning",
                "message": 'Error creating: pods "x" is forbidden: exceeded quota: q, requested: cpu=1, used: cpu=4',
                "involvedObject": {
                    "kind": "Job",
                    "name": job.metadata.name,
                    "namespace": cluster.namespace,
                    "uid": job.metadata.uid,
                },
            },
        )

    import threading

    threading.Thread(target=no_pods, daemon=True).start()
    error = fate_of(cluster, tmp_path, None)
    assert isinstance(error, NotReady) and "exceeded quota: q" in str(error)


def test_a_quota_that_is_used_up_ends_it_before_anything_is_made(
    cluster: Cluster, tmp_path: Path
) -> None:
    quota = {"metadata": {"name": "q"}, "spec": {"hard": {"count/configmaps": "0"}}}
    cluster.core.create_namespaced_resource_quota(cluster.namespace, quota)
    status = {"status": {"hard": {"count/configmaps": "0"}, "used": {"count/configmaps": "0"}}}
    cluster.core.patch_namespaced_resource_quota_status("q", cluster.namespace, status)
    error = fate_of(cluster, tmp_path, runs)
    assert isinstance(error, NotReady) and "quota of the namespace is used up" in str(error)
    assert cluster.jobs == []


def test_a_user_without_rights_gets_the_name_of_the_missing_right(
    cluster: Cluster, tmp_path: Path
) -> None:
    error = fate_of(cluster, tmp_path, runs, token=NOBODY)
    assert (
        isinstance(error, NotAllowed)
        and "is forbidden" in str(error)
        and "train-role.yaml" in str(error)
    )
    assert isinstance(
        fate_of(
            Cluster(cluster.server, cluster.kubelet, cluster.namespace + "x", runs),
            tmp_path / "training",
            runs,
            token="wrong",
        ),
        NotAllowed,
    )


def test_the_role_that_is_named_is_enough(cluster: Cluster, tmp_path: Path) -> None:
    from kubernetes import utils

    for document in yaml.safe_load_all((TOP / "etc/k8s/train-role.yaml").read_text()):
        document["metadata"]["namespace"] = cluster.namespace
        if document["kind"] == "RoleBinding":
            document["subjects"] = [
                {"kind": "User", "name": "nobody", "apiGroup": "rbac.authorization.k8s.io"}
            ]
        utils.create_from_dict(cluster.server.api(), document, namespace=cluster.namespace)
    cluster.fate = really_runs(tmp_path / "pod")
    with cluster:
        assert "worker 0 | hello" in run_to_end(cluster, tmp_path, "print('hello')", token=NOBODY)


def test_a_name_that_is_taken_is_refused_and_its_owner_keeps_all(
    kube: KubeServer, cluster: Cluster, tmp_path: Path
) -> None:
    from kubernetes import client

    other = run_of(tmp_path, "pass", backend="k8s")
    there = manifests.job(other, manifests.Cluster("x", cluster.namespace), 1)
    client.BatchV1Api(kube.api()).create_namespaced_job(cluster.namespace, there)
    with pytest.raises(UsageError, match="the name is taken"):
        launched(tmp_path, other, backend(kube, cluster.namespace))
    assert cluster.left() == ["job test-run"]


def test_an_api_server_that_is_not_there_is_75(kube: KubeServer, tmp_path: Path) -> None:
    api = kube.api()
    api.configuration.host = f"https://127.0.0.1:{free_port()}"
    with pytest.raises(NotReady, match="does not answer"):
        launched(
            tmp_path, run_of(tmp_path, "pass", backend="k8s"), K8sBackend("x", "default", api=api)
        )


def test_an_interrupted_run_leaves_nothing_and_all_it_made_was_the_jobs(
    cluster: Cluster, tmp_path: Path
) -> None:
    found: list[Any] = []

    def fate(inner: Cluster, pod: Any, rank: int) -> None:
        for _ in range(100):
            found[:] = [
                *inner.core.list_namespaced_secret(inner.namespace).items,
                *inner.core.list_namespaced_config_map(
                    inner.namespace, label_selector=manifests.RUN_LABEL
                ).items,
                *inner.core.list_namespaced_service(
                    inner.namespace, label_selector=manifests.RUN_LABEL
                ).items,
            ]
            if len(found) == 4:
                break
            time.sleep(0.1)
        runs(inner, pod, rank)

    run = run_of(tmp_path, "pass", backend="k8s", secrets=(Secret("s3", {"K": "a-secret-value"}),))
    folder = RunFolder.create(tmp_path / "training", run)

    def echo(line: str) -> None:
        raise AssertionError(line)

    from cmsspark.apps.training.launch import Attempt

    def on_state(rank: int, state: str) -> None:
        if state == "running":
            raise KeyboardInterrupt

    cluster.fate = fate
    attempt = Attempt(run, 1, folder.output, lambda rank, text: None, on_state)
    with cluster, pytest.raises(KeyboardInterrupt):
        backend(cluster.server, cluster.namespace).attempt(attempt)
    assert cluster.left() == []
    assert len(found) == 4
    owners = {
        (each.metadata.owner_references[0].kind, each.metadata.owner_references[0].uid)
        for each in found
    }
    assert owners == {("Job", cluster.jobs[0].metadata.uid)}
    assert (
        cluster.jobs[0].spec.ttl_seconds_after_finished
        and cluster.jobs[0].spec.active_deadline_seconds
    )
    plain = [
        cluster.server.api().sanitize_for_serialization(each)
        for each in [*found, *cluster.jobs]
        if each.kind != "Secret"
    ]
    without_secrets = [each for each in plain if "type" not in each or each["type"] != "Opaque"]
    assert "a-secret-value" not in json.dumps(without_secrets)


def test_stop_removes_what_a_lost_launcher_left(
    kube: KubeServer, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    from click.testing import CliRunner
    from kubernetes import client

    from cmsspark.apps.training.run_command import command

    run = run_of(tmp_path, "pass", backend="k8s")
    job = manifests.job(run, manifests.Cluster("x", cluster.namespace), 1)
    client.BatchV1Api(kube.api()).create_namespaced_job(cluster.namespace, job)
    folder = RunFolder.create(tmp_path / "state/training", run, cluster.namespace)
    record = json.loads((folder.path / "run.json").read_text())
    (folder.path / "run.json").write_text(
        json.dumps(record | {"process": os.getpid(), "process_began": 1})
    )
    monkeypatch.setenv("KUBECONFIG", str(kube.kubeconfig()))
    monkeypatch.setenv("CMSSPARK_STATE_DIR", str(tmp_path / "state"))
    said = CliRunner().invoke(command, ["stop", "test-run"], catch_exceptions=False).stdout
    assert said == f"test-run: stopped; removed from {cluster.namespace}: test-run\n"
    assert cluster.left() == []


def test_workers_go_on_while_the_api_server_is_away(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cmsspark.apps.training import k8s_backend

    monkeypatch.setattr(k8s_backend, "_TIMEOUT", (1, 1))

    def fate(inner: Cluster, pod: Any, rank: int) -> None:
        runs(inner, pod, rank)
        inner.server.pause(is_paused=True)
        time.sleep(4)
        inner.server.pause(is_paused=False)
        inner.kubelet.ended.add(key(pod))
        for _ in range(50):
            try:
                inner.set_status(
                    pod, "Succeeded", containerStatuses=container({"terminated": {"exitCode": 0}})
                )
                return
            except Exception:
                time.sleep(0.2)

    cluster.fate = fate
    with cluster:
        lines = run_to_end(cluster, tmp_path)
    assert any("does not answer" in line and "trying again" in line for line in lines)


@pytest.fixture
def restricted(kube: KubeServer, namespace: str) -> str:
    """A namespace that enforces the restricted pod security standard."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    kube.core().create_namespace({"metadata": {"name": namespace, "labels": labels}})
    return namespace


def create(kube: KubeServer, text: str) -> list[dict[str, Any]]:
    """Have the API server check manifests, and a pod of the Job; returns them."""
    from kubernetes import utils

    documents = list(yaml.safe_load_all(text))
    for document in documents:
        utils.create_from_dict(kube.api(), document, dry_run="All")
    job = documents[0]
    template = job["spec"]["template"]
    pod = {"metadata": {**template["metadata"], "name": "check"}, "spec": template["spec"]}
    kube.core().create_namespaced_pod(job["metadata"]["namespace"], pod, dry_run="All")
    return documents


def test_a_restricted_namespace_takes_the_pods_with_all_that_a_run_can_have(
    kube: KubeServer, restricted: str, tmp_path: Path
) -> None:
    template = {
        "metadata": {"annotations": {"team": "hep"}},
        "spec": {
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
            "securityContext": {"runAsUser": 2000},
            "containers": [
                {
                    "name": "worker",
                    "env": [{"name": "A", "value": "1"}],
                    "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
                }
            ],
            "volumes": [{"name": "tmp", "emptyDir": {}}],
        },
    }
    options: dict[str, Any] = {
        "volumes": (parse_volume("data:/data:ro"), parse_volume("scratch:/scratch")),
        "node_selector": {"pool": "gpu"},
        "pull_secrets": ("registry",),
        "template": template,
        "claim": "output",
    }
    run = run_of(
        tmp_path,
        USES_FILES,
        workers=2,
        backend="k8s",
        files=with_files(tmp_path / "files"),
        gpus=1,
    )
    job = create(kube, backend(kube, restricted, **options).yaml(run, USES_FILES))[0]
    pod = job["spec"]["template"]["spec"]
    container = pod["containers"][0]
    assert (
        len(pod["containers"]) == 1 and container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    )
    assert (
        pod["securityContext"]["runAsUser"] == 2000
        and pod["securityContext"]["runAsNonRoot"] is True
    )
    assert {"A", "HOME", "TZ"} <= {each["name"] for each in container["env"]}
    assert {"/tmp", "/data", "/scratch", "/cmsspark/output"} <= {
        each["mountPath"] for each in container["volumeMounts"]
    }
    assert pod["nodeSelector"] == {"pool": "gpu"} and pod["imagePullSecrets"] == [
        {"name": "registry"}
    ]
    assert job["spec"]["template"]["metadata"]["annotations"] == {"team": "hep"}


def test_pods_that_admission_refuses_are_told_before_anything_is_made(
    kube: KubeServer, restricted: str, tmp_path: Path
) -> None:
    template = {"metadata": {}, "spec": {"hostNetwork": True, "containers": []}}
    with pytest.raises(SettingsError, match="admission refuses it") as error:
        launched(tmp_path, run_of(tmp_path, "pass"), backend(kube, restricted, template=template))
    assert "host namespaces" in str(error.value)
    limits = {"limits": [{"type": "Container", "max": {"memory": "1Gi"}}]}
    kube.core().create_namespaced_limit_range(
        restricted, {"metadata": {"name": "small"}, "spec": limits}
    )
    with pytest.raises(SettingsError, match="admission refuses it") as error:
        launched(tmp_path / "b", run_of(tmp_path, "pass"), backend(kube, restricted))
    assert "maximum memory usage per Container is 1Gi" in str(error.value)
    quota = {"hard": {"limits.cpu": "0", "requests.cpu": "0"}}
    kube.core().delete_namespaced_limit_range("small", restricted)
    kube.core().create_namespaced_resource_quota(
        restricted, {"metadata": {"name": "q"}, "spec": quota}
    )
    kube.core().patch_namespaced_resource_quota_status(
        "q", restricted, {"status": {**quota, "used": quota["hard"]}}
    )
    with pytest.raises(NotReady, match="quota of the namespace is used up") as error:
        launched(tmp_path / "c", run_of(tmp_path, "pass"), backend(kube, restricted))
    assert "limits.cpu" in str(error.value)
    assert kube.core().list_namespaced_secret(restricted).items == []


def test_files_of_a_run_are_in_its_pod(cluster: Cluster, tmp_path: Path) -> None:
    cluster.fate = really_runs(tmp_path / "pod")
    with cluster:
        lines = run_to_end(cluster, tmp_path, USES_FILES, files=with_files(tmp_path / "files"))
    assert "worker 0 | helped by data 7" in lines
