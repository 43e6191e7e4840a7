"""Roles from command lines as Spark 3.5 and 4.x, YARN and our own runs write them."""

from __future__ import annotations

import pytest

from cmsspark.apps.monitor.processes.sampler import find_container, find_role

CONTAINER = "container_e17_1700000000000_0042_01_000003"
BACKEND = "org.apache.spark.executor.YarnCoarseGrainedExecutorBackend"
LAUNCH = ["/bin/bash", "-c", f"/usr/bin/java -server {BACKEND} 1>/logs/{CONTAINER}/stdout"]
SUBMIT = [
    "/usr/bin/java",
    "-cp",
    "/spark/conf/:/spark/jars/*",
    "-Xmx1g",
    "org.apache.spark.deploy.SparkSubmit",
]


@pytest.mark.parametrize(
    ("words", "parent", "role"),
    [
        ([*SUBMIT, "--master", "local[*]", "job.py"], None, "java_driver"),
        ([*SUBMIT, "--deploy-mode", "client", "job.py"], None, "java_driver"),
        (
            [*SUBMIT, "--master", "yarn", "--deploy-mode", "cluster", "job.py"],
            None,
            "yarn_launcher",
        ),
        ([*SUBMIT, "--conf", "spark.submit.deployMode=cluster", "job.py"], None, "yarn_launcher"),
        (
            ["java", "-cp", "x", "org.apache.spark.deploy.yarn.ExecutorLauncher"],
            "yarn_launcher",
            "yarn_launcher",
        ),
        (
            ["java", "-cp", "x", "org.apache.spark.deploy.yarn.ApplicationMaster"],
            "yarn_launcher",
            "java_driver",
        ),
        (
            ["java", "-server", BACKEND, "--driver-url", "spark://x"],
            "yarn_launcher",
            "java_executor",
        ),
        (
            ["java", "org.apache.spark.executor.CoarseGrainedExecutorBackend"],
            None,
            "java_executor",
        ),
        (
            ["java", "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"],
            None,
            "java_executor",
        ),
        (
            ["java", "-cp", "x", "org.apache.spark.launcher.Main", SUBMIT[-1], "job.py"],
            None,
            "yarn_launcher",
        ),
        (["bash", "/opt/entrypoint.sh", "executor"], None, "yarn_launcher"),
        (["/usr/bin/tini", "-s", "--", "/opt/entrypoint.sh", "executor"], None, "yarn_launcher"),
        (["bash", "/spark/bin/spark-class", SUBMIT[-1]], None, "yarn_launcher"),
        ([*SUBMIT, "job.py"], "java_driver", "other"),
        (["java", "-server", BACKEND], "java_executor", "other"),
        (["java", "-server", BACKEND], "java_driver", "java_executor"),
        (
            ["java", "org.apache.hadoop.yarn.server.nodemanager.NodeManager"],
            None,
            "yarn_nodemanager",
        ),
        (
            ["java", "-cp", "org.apache.spark.deploy.SparkSubmit.jar", "org.example.Main"],
            None,
            "java",
        ),
        (LAUNCH, "yarn_nodemanager", "yarn_launcher"),
        (
            ["bash", f"/local/{CONTAINER}/default_container_executor.sh"],
            "yarn_nodemanager",
            "yarn_launcher",
        ),
        (["bash", "/opt/spark/bin/spark-submit", "job.py"], None, "yarn_launcher"),
        (["python3", "/home/me/job.py"], "java_driver", "python_driver"),
        (
            ["/venv/bin/python", "-m", "cmsspark.submit.launch", "data_aggregation"],
            None,
            "python_driver",
        ),
        (
            ["/venv/bin/python", "-c", "from multiprocessing.spawn import x"],
            "python_driver",
            "python_worker",
        ),
        (["python3", "-m", "pyspark.daemon"], "java_driver", "python_daemon"),
        (["python3", "-m", "pyspark.daemon", "pyspark.worker"], "java_executor", "python_daemon"),
        (["python3", "-m", "cmsspark.engines.quiet_daemon"], "java_driver", "python_daemon"),
        (["python3", "-m", "pyspark.daemon", "pyspark.worker"], "python_daemon", "python_worker"),
        (["python3", "-m", "pyspark.worker"], "java_executor", "python_worker"),
        (["python3", "tool.py"], "other", "python"),
        (["bash", "-c", "sleep 1"], "java_driver", "other"),
        (["gzip", "-d", "x"], "python_driver", "other"),
    ],
)
def test_a_role_follows_from_the_command_line_and_the_parent(
    words: list[str], parent: str | None, role: str
) -> None:
    assert find_role(words[0].rpartition("/")[2], words, parent) == role


def test_a_container_is_read_from_the_command_line_or_the_working_folder() -> None:
    assert find_container(LAUNCH, None) == CONTAINER
    assert (
        find_container(["python3", "-m", "pyspark.daemon"], f"/local/usercache/me/{CONTAINER}")
        == CONTAINER
    )
    assert find_container(["python3"], "/home/me") is None
