"""What ``run_spark --k8s`` and ``etc/k8s`` give a cluster, judged by a real API server."""

from __future__ import annotations

import base64
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from cmsspark.settings.settings import Settings
from cmsspark.submit.host import this_host
from tests.kubernetes import ADMIN, NOBODY, KubeServer
from tests.submit.hosts import PLACES, command

pytestmark = pytest.mark.long
TOP = Path(__file__).resolve().parents[3]
#: Without the template of Spark's pods, and what all pods of a training have.
MANIFESTS = sorted(
    set((TOP / "etc/k8s").glob("*.yaml")) - {TOP / "etc/k8s/pod.yaml", TOP / "etc/k8s/train.yaml"}
)


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


# The key of the pseudonyms, on the way from run_spark to the driver.

RUN_SPARK = "from cmsspark.submit.wrapper import main; main()"
KEY = "ab" * 32 + "\n"


@dataclass
class Submission:
    """A run_spark that submits a job to a namespace of its own."""

    kube: KubeServer
    folder: Path
    namespace: str
    runs: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def kill(self, run: subprocess.Popen[bytes]) -> None:
        """End a run and all below it, as nothing that they could handle."""
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(run.pid).children(recursive=True):
                child.kill()
        run.kill()
        run.wait(60)

    def words(self, *more: str) -> list[str]:
        confs = {
            "spark.kubernetes.container.image": "registry/x:1",
            "spark.kubernetes.file.upload.path": f"file://{self.folder}/upload",
            "spark.kubernetes.namespace": self.namespace,
        }
        options = [word for name, value in confs.items() for word in ("--conf", f"{name}={value}")]
        day = ("--date", "20260115", "--fout", "hdfs:///x", "--root", "hdfs:///x")
        words = ["dbs_eos", "--k8s", "--master", f"k8s://{self.kube.url}", *options, *more, *day]
        return [sys.executable, "-c", RUN_SPARK, *words]

    def environ(self, token: str = ADMIN) -> dict[str, str]:
        return {
            **os.environ,
            "KUBECONFIG": str(self.kube.kubeconfig(token)),
            "CMSSPARK_STATE_DIR": str(self.folder / "state"),
            "CMSSPARK_CACHE_DIR": str(self.folder / "cache"),
            "HADOOP_CONF_DIR": "",
        }

    def start(self, *more: str, token: str = ADMIN) -> subprocess.Popen[bytes]:
        with (self.folder / "stderr").open("ab") as log:
            run = subprocess.Popen(self.words(*more), env=self.environ(token), stderr=log)
        self.runs.append(run)
        return run

    @property
    def said(self) -> str:
        return (self.folder / "stderr").read_text()

    def refused(
        self, *more: str, token: str = ADMIN, **environ: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.words(*more),
            env={**self.environ(token), **environ},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    def secrets(self) -> list[Any]:
        return list(self.kube.core().list_namespaced_secret(self.namespace).items)

    def driver(self) -> Any:
        """The driver's pod, once there is one."""

        def found() -> Any:
            pods = self.kube.core().list_namespaced_pod(
                self.namespace, label_selector="spark-role=driver"
            )
            return pods.items[0] if pods.items else None

        return waited_for(found)

    def set_phase(self, phase: str) -> None:
        name = self.driver().metadata.name
        ended = {"exitCode": 0} if phase == "Succeeded" else None
        state = {"terminated": ended} if ended else {"running": {}}
        container = {
            "name": "spark",
            "image": "x",
            "imageID": "",
            "ready": False,
            "restartCount": 0,
            "state": state,
        }
        status = {"phase": phase, "containerStatuses": [container]}
        self.kube.core().patch_namespaced_pod_status(name, self.namespace, {"status": status})


def waited_for(look: Callable[[], Any], seconds: float = 240) -> Any:
    """What ``look`` returns once it is true."""
    end = time.monotonic() + seconds
    while not (value := look()):
        assert time.monotonic() < end, "not in time"
        time.sleep(0.2)
    return value


@pytest.fixture
def submission(kube: KubeServer, tmp_path: Path) -> Iterator[Submission]:
    """A namespace of the restricted standard, a key, and a folder that all may read."""
    namespace = f"run-{secrets.token_hex(4)}"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    kube.core().create_namespace({"metadata": {"name": namespace, "labels": labels}})
    (tmp_path / "upload").mkdir()
    (tmp_path / "state").mkdir(mode=0o700)
    key = tmp_path / "state/pseudonym.key"
    key.write_text(KEY)
    key.chmod(0o600)
    made = Submission(kube, tmp_path, namespace)
    yield made
    for run in made.runs:
        made.kill(run)


def test_the_key_is_a_secret_from_the_submission_to_the_drivers_start(
    submission: Submission,
) -> None:
    run = submission.start()
    driver = submission.driver()
    (secret,) = submission.secrets()
    assert base64.b64decode(secret.data["pseudonym.key"]).decode() == KEY
    (variable,) = (
        each for each in driver.spec.containers[0].env if each.name == "CMSSPARK_PSEUDONYM_KEY"
    )
    reference = variable.value_from.secret_key_ref
    assert (reference.name, reference.key) == (secret.metadata.name, "pseudonym.key")
    owners = waited_for(lambda: submission.secrets()[0].metadata.owner_references)
    assert owners[0].uid == driver.metadata.uid
    submission.set_phase("Running")
    waited_for(lambda: not submission.secrets())
    assert run.poll() is None
    submission.set_phase("Succeeded")
    assert run.wait(120) == 0, submission.said
    uploaded = [file for file in (submission.folder / "upload").rglob("*") if file.is_file()]
    assert {file.suffix for file in uploaded} >= {".zip", ".py"}
    assert not any(KEY.strip().encode() in file.read_bytes() for file in uploaded)


def test_no_secret_outlives_an_interrupted_run(submission: Submission) -> None:
    run = submission.start()
    submission.driver()
    run.terminate()
    assert run.wait(120) == 75
    assert submission.secrets() == []


def test_a_killed_run_leaves_a_secret_of_its_pod_which_the_next_run_deletes(
    submission: Submission,
) -> None:
    run = submission.start()
    driver = submission.driver()
    owners = waited_for(lambda: submission.secrets()[0].metadata.owner_references)
    assert (owners[0].kind, owners[0].uid) == ("Pod", driver.metadata.uid)
    (killed,) = submission.secrets()
    submission.kill(run)
    submission.set_phase("Succeeded")
    second = submission.start()
    names = waited_for(
        lambda: {each.metadata.name for each in submission.secrets()} - {killed.metadata.name}
    )
    assert len(names) == 1
    assert {each.metadata.name for each in submission.secrets()} == names
    second.terminate()
    assert second.wait(120) == 75 and submission.secrets() == []


def test_a_user_without_rights_is_77_in_one_message_and_nothing_is_started(
    submission: Submission,
) -> None:
    run = submission.refused(token=NOBODY)
    assert run.returncode == 77, run.stderr
    assert "cannot create resource" in run.stderr and "etc/k8s/submit-role.yaml" in run.stderr
    assert "Exception" not in run.stderr and submission.secrets() == []


def test_a_right_that_only_the_driver_lacks_is_77_and_leaves_no_secret(
    submission: Submission,
) -> None:
    from kubernetes import client

    rbac = client.RbacAuthorizationV1Api(submission.kube.api())
    rule = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create", "list", "delete"]}
    rbac.create_namespaced_role(
        submission.namespace, {"metadata": {"name": "some"}, "rules": [rule]}
    )
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "some"}
    user = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "nobody"}
    rbac.create_namespaced_role_binding(
        submission.namespace,
        {"metadata": {"name": "some"}, "roleRef": role, "subjects": [user]},
    )
    run = submission.refused(token=NOBODY)
    assert run.returncode == 77, run.stderr
    assert "starting the driver on Kubernetes is forbidden" in run.stderr
    assert "Exception" not in run.stderr and "\tat " not in run.stderr
    assert submission.secrets() == []


def test_a_certificate_that_nobody_known_signed_is_77_and_leaves_no_secret(
    submission: Submission, tmp_path: Path
) -> None:
    config = yaml.safe_load(submission.kube.kubeconfig().read_text())
    for cluster in config["clusters"]:
        del cluster["cluster"]["certificate-authority"]
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
    run = submission.refused(KUBECONFIG=str(tmp_path / "kubeconfig"))
    assert run.returncode == 77, run.stderr
    assert "certificate" in run.stderr and "Traceback" not in run.stderr
    assert submission.secrets() == []


@pytest.mark.parametrize(
    ("conf", "code", "words"),
    [
        ("spark.kubernetes.file.upload.path=", 78, "no folder from which a driver on Kubernetes"),
        ("spark.kubernetes.namespace=not-there", 78, "not-there"),
    ],
)
def test_what_lacks_is_told_before_a_secret_is_made(
    submission: Submission, conf: str, code: int, words: str
) -> None:
    run = submission.refused("--conf", conf)
    assert run.returncode == code and words in run.stderr, run.stderr
    assert "Traceback" not in run.stderr and submission.secrets() == []


def test_a_server_that_is_silent_while_the_driver_is_made_ends_the_run_in_75(
    submission: Submission,
) -> None:
    submission.kube.pause(is_paused=True)
    try:
        run = submission.refused()
    finally:
        submission.kube.pause(is_paused=False)
    assert run.returncode == 75 and "does not answer" in run.stderr, run.stderr
    waited_for(lambda: not submission.secrets())


def test_the_role_of_those_who_submit_is_enough(submission: Submission) -> None:
    from kubernetes import utils

    text = (TOP / "etc/k8s/submit-role.yaml").read_text(encoding="utf-8")
    for document in yaml.safe_load_all(text):
        if document["metadata"]["name"] == "cmsspark-submit" and document["kind"] == "RoleBinding":
            document["subjects"] = [{**document["subjects"][0], "kind": "User", "name": "nobody"}]
        utils.create_from_dict(submission.kube.api(), document, namespace=submission.namespace)
    conf = "spark.kubernetes.authenticate.driver.serviceAccountName=cmsspark-driver"
    run = submission.start("--conf", conf, token=NOBODY)
    assert submission.driver().spec.service_account_name == "cmsspark-driver"
    waited_for(lambda: submission.secrets()[0].metadata.owner_references)
    submission.set_phase("Running")
    waited_for(lambda: not submission.secrets())
    submission.set_phase("Succeeded")
    assert run.wait(120) == 0, submission.said


def test_the_pod_template_alone_is_a_pod_of_the_restricted_standard(
    submission: Submission,
) -> None:
    pod = yaml.safe_load((TOP / "etc/k8s/pod.yaml").read_text(encoding="utf-8"))
    submission.kube.core().create_namespaced_pod(submission.namespace, pod, dry_run="All")
