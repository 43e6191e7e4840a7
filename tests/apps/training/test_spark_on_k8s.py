"""What ``run_spark --k8s`` and ``etc/k8s`` give a cluster, judged by a real API server."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from cmsspark.settings.settings import Settings
from cmsspark.submit.host import this_host
from tests.kubernetes import ADMIN, KubeServer
from tests.submit.hosts import PLACES, command

pytestmark = pytest.mark.long
TOP = Path(__file__).resolve().parents[3]
MANIFESTS = [file for file in sorted((TOP / "etc/k8s").glob("*.yaml")) if file.name != "pod.yaml"]


@pytest.mark.parametrize("file", MANIFESTS, ids=lambda file: file.name)
def test_the_api_server_takes_every_object_of_etc_k8s(kube: KubeServer, file: Path) -> None:
    from kubernetes import utils

    documents = list(yaml.safe_load_all(file.read_text(encoding="utf-8")))
    for document in documents:
        utils.create_from_dict(kube.api(), document, dry_run="All", namespace="default")
    assert {"Role", "RoleBinding"} <= {document["kind"] for document in documents}


def test_a_restricted_namespace_takes_the_pod_of_the_daily_run(kube: KubeServer) -> None:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    kube.core().create_namespace({"metadata": {"name": "daily-restricted", "labels": labels}})
    documents = list(yaml.safe_load_all((TOP / "etc/k8s/daily.yaml").read_text(encoding="utf-8")))
    cron = next(document for document in documents if document["kind"] == "CronJob")
    spec = cron["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    pod = {"metadata": {"name": "daily"}, "spec": spec}
    kube.core().create_namespaced_pod("daily-restricted", pod, dry_run="All")


def test_a_wrong_object_is_refused(kube: KubeServer) -> None:
    from kubernetes import utils

    documents = yaml.safe_load_all((TOP / "etc/k8s/daily.yaml").read_text(encoding="utf-8"))
    cron = next(document for document in documents if document["kind"] == "CronJob")
    cron["spec"]["schedule"] = "17 4-22/3 * *"
    with pytest.raises(utils.FailToCreateError, match="schedule"):
        utils.create_from_dict(kube.api(), cron, dry_run="All", namespace="default")


def test_names_in_the_daily_job_are_those_of_its_other_objects() -> None:
    documents = list(yaml.safe_load_all((TOP / "etc/k8s/daily.yaml").read_text(encoding="utf-8")))
    names = {(document["kind"], document["metadata"]["name"]) for document in documents}
    cron = next(document for document in documents if document["kind"] == "CronJob")
    pod = cron["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert ("ServiceAccount", pod["serviceAccountName"]) in names
    assert ("ConfigMap", volumes["settings"]["configMap"]["name"]) in names
    assert (
        "PersistentVolumeClaim",
        volumes["data"]["persistentVolumeClaim"]["claimName"],
    ) in names
    assert {mount["name"] for mount in pod["containers"][0]["volumeMounts"]} == volumes.keys()


def test_spark_submits_a_driver_with_our_pod_template(kube: KubeServer, tmp_path: Path) -> None:
    for name in ("cmsspark.zip", "launch.py", "pseudonym.key"):
        (tmp_path / name).write_text("# x")
    places = replace(
        PLACES,
        launcher=str(tmp_path / "launch.py"),
        ship=lambda: str(tmp_path / "cmsspark.zip"),
        key=lambda: str(tmp_path / "pseudonym.key"),
    )
    (tmp_path / "upload").mkdir()
    confs = {
        "spark.kubernetes.container.image": "registry/x:1",
        "spark.kubernetes.file.upload.path": f"file://{tmp_path}/upload",
        "spark.kubernetes.namespace": "default",
        "spark.kubernetes.submission.waitAppCompletion": "false",
    }
    words = (
        "dbs_eos",
        "--k8s",
        "--master",
        f"k8s://{kube.url}",
        "--name",
        "two words",
        "--date",
        "20260115",
    )
    options = [word for name, value in confs.items() for word in ("--conf", f"{name}={value}")]
    settings = Settings(root=None, store=None, state_dir=tmp_path, cache_dir=tmp_path)
    built = command(*words, *options, host=this_host({}), places=places, settings=settings)
    environ = {
        **os.environ,
        **built.env,
        "SPARK_SUBMIT_OPTS": "",
        "KUBECONFIG": str(kube.kubeconfig()),
    }
    run = subprocess.run(
        built.argv, capture_output=True, text=True, env=environ, check=False, timeout=500
    )
    assert run.returncode == 0, run.stderr[-3000:]
    core = kube.core()
    drivers = core.list_namespaced_pod("default", label_selector="spark-role=driver").items
    assert len(drivers) == 1
    driver, container = drivers[0], drivers[0].spec.containers[0]
    assert driver.metadata.labels["app.kubernetes.io/name"] == "cmsspark"
    assert driver.spec.restart_policy == "Never" and container.image == "registry/x:1"
    assert container.security_context.capabilities.drop == ["ALL"]
    assert container.security_context.allow_privilege_escalation is False
    assert ("TZ", "UTC") in {(each.name, each.value) for each in container.env}
    assert container.args[-3:] == ["dbs_eos", "--date", "20260115"]
    maps = core.list_namespaced_config_map("default").items
    owned = [
        each
        for each in maps
        if each.metadata.owner_references
        and each.metadata.owner_references[0].uid == driver.metadata.uid
    ]
    assert any("spark.properties" in (each.data or {}) for each in owned)
    everything = str([each.data for each in maps]) + str(driver.spec)
    assert ADMIN not in everything
