"""What a process of a Spark run is: its role, from its command line and the role of its parent."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

JAVA_DRIVER, JAVA_EXECUTOR, JAVA = "java_driver", "java_executor", "java"
PYTHON_DRIVER, PYTHON_DAEMON, PYTHON_WORKER, PYTHON = (
    "python_driver",
    "python_daemon",
    "python_worker",
    "python",
)
YARN_LAUNCHER, YARN_NODE_MANAGER = "yarn_launcher", "yarn_nodemanager"
OTHER = "other"
#: Role → what it is, in the order of reports. What is before the underscore is its
#: kind: Java, Python or YARN.
ROLES: Final = {
    JAVA_DRIVER: "JVM of the driver",
    JAVA_EXECUTOR: "JVM of an executor",
    PYTHON_DRIVER: "Python of the driver; in a run by processes the one that leads",
    PYTHON_DAEMON: "Python process that forks the workers of an executor",
    PYTHON_WORKER: "Python worker of a task",
    YARN_LAUNCHER: "what starts others: scripts of containers, Spark's launcher, YARN's client and master",
    YARN_NODE_MANAGER: "YARN's NodeManager",
    JAVA: "another JVM",
    PYTHON: "another Python process",
    OTHER: "anything else",
}
_CONTAINER: Final = re.compile(r"container_(?:e\d+_)?\d{10,}_\d{4,}_\d{2,}_\d{6,}")
#: Main class → role.
_CLASSES: Final = (
    # It only makes the command line of what its further words name.
    ("org.apache.spark.launcher.Main", YARN_LAUNCHER),
    ("KubernetesExecutorBackend", JAVA_EXECUTOR),
    ("org.apache.spark.deploy.worker.DriverWrapper", JAVA_DRIVER),
    ("CoarseGrainedExecutorBackend", JAVA_EXECUTOR),
    ("org.apache.spark.deploy.yarn.ExecutorLauncher", YARN_LAUNCHER),
    ("org.apache.spark.deploy.yarn.ApplicationMaster", JAVA_DRIVER),
    ("org.apache.hadoop.yarn.server.nodemanager.NodeManager", YARN_NODE_MANAGER),
    ("org.apache.hadoop.yarn.server.nodemanager.containermanager", YARN_LAUNCHER),
)
_SUBMIT: Final = "org.apache.spark.deploy.SparkSubmit"
#: Main classes that are known by their end: YARN and Kubernetes have their own before it.
_BACKENDS: Final = ("CoarseGrainedExecutorBackend", "KubernetesExecutorBackend")
_LAUNCHERS: Final = (
    *(
        "default_container_executor",
        "launch_container.sh",
        "container-executor",
        "spark-submit",
        "spark-class",
    ),
    "/opt/entrypoint.sh",
)
_SHELLS: Final = ("sh", "bash", "dash", "tini")
#: Modules that fork the workers of an executor.
DAEMONS: Final = ("pyspark.daemon", "cmsspark.engines.quiet_daemon", "pyspark/daemon.py")


def find_role(name: str, words: Sequence[str], parent: str | None) -> str:
    """Return the role of a process. ``name``: its executable's; ``words``: its command line.

    ``parent``: the role of its parent; None for the root of the tree.
    """
    program = (words[0].rpartition("/")[2] if words else "") or name
    if program == "java" or name == "java":
        role = _java(words)
        # A child that is just being started is a copy of the JVM until it executes its program.
        return OTHER if role == parent and role in (JAVA_DRIVER, JAVA_EXECUTOR) else role
    # An interpreter of another name may run a Python file.
    is_script = len(words) > 1 and words[1].endswith(".py")
    if is_script or program.startswith(("python", "pypy")) or name.startswith(("python", "pypy")):
        return _python(words, parent)
    if program in _SHELLS or "container-executor" in program:
        text = " ".join(words)
        if _CONTAINER.search(text) or any(word in text for word in _LAUNCHERS):
            return YARN_LAUNCHER
    return OTHER


def find_container(words: Sequence[str], folder: str | None) -> str | None:
    """Return the id of the YARN container that a command line or a working folder
    names, else None.
    """
    for text in (*words, folder or ""):
        if match := _CONTAINER.search(text):
            return match[0]
    return None


def _java(words: Sequence[str]) -> str:
    for word in words[1:]:
        # Main classes are words of their own; the class path is one word with many names.
        if "/" in word or word.startswith("-"):
            continue
        if word == _SUBMIT:
            return YARN_LAUNCHER if _mode(words) == "cluster" else JAVA_DRIVER
        for name, role in _CLASSES:
            if word == name or (name in _BACKENDS and word.endswith(name)):
                return role
    return JAVA


def _mode(words: Sequence[str]) -> str:
    for position, word in enumerate(words):
        if word == "--deploy-mode" and position + 1 < len(words):
            return words[position + 1]
        if word.startswith("spark.submit.deployMode="):
            return word.partition("=")[2]
    return "client"


def _python(words: Sequence[str], parent: str | None) -> str:
    text = " ".join(words[:8])
    if parent == PYTHON_DAEMON:
        return PYTHON_WORKER
    if any(daemon in text for daemon in DAEMONS):
        return PYTHON_DAEMON
    if "pyspark.worker" in text or "pyspark/worker.py" in text:
        return PYTHON_WORKER
    if parent in (PYTHON_DRIVER, PYTHON_WORKER):
        return PYTHON_WORKER
    if parent in (None, JAVA_DRIVER, YARN_LAUNCHER):
        return PYTHON_DRIVER
    return PYTHON
