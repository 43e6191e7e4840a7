"""What must be there before a JVM starts: the inputs' root, the cluster's
configuration, a ticket, an image.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cmsspark.base.errors import SettingsError, UsageError
from cmsspark.settings import kerberos
from cmsspark.settings.settings import Settings
from cmsspark.store.own_jobs import Job
from cmsspark.submit.cluster_checks import check_configuration
from cmsspark.submit.command import Command
from cmsspark.submit.host import Host
from cmsspark.submit.spark_options import cluster_defaults


def check_root(options: Mapping[str, Any], settings: Settings, job: Job | None) -> None:
    """Raise UsageError (2) where a job without Java would read the production folders,
    which are on HDFS.
    """
    if job is None or "root" not in options or options["root"] or options["source"]:
        return
    if settings.root or settings.sources:
        return
    raise UsageError(
        "name the root of the inputs",
        where=f"run_spark {job.name}",
        found="no --root: then the inputs are the production folders on HDFS, which needs Java, and there is none",
        next_step="give --root DIR with the inputs on this host, or install Java (cmsspark doctor)",
    )


def check_yarn(command: Command, host: Host) -> None:
    """Raise SettingsError (78) where nothing names the YARN cluster, and as
    :func:`cmsspark.submit.cluster_checks.check_configuration`.
    """
    if command.options.get("spark.master") != "yarn":
        return
    environ = host.environ
    check_configuration(environ)
    folder = environ.get("SPARK_CONF_DIR") or str(host.spark.home / "conf")
    if (
        environ.get("HADOOP_CONF_DIR")
        or environ.get("YARN_CONF_DIR")
        or Path(folder, "spark-env.sh").is_file()
    ):
        return
    raise SettingsError(
        "nothing names the YARN cluster",
        found="neither HADOOP_CONF_DIR nor YARN_CONF_DIR",
        next_step="set HADOOP_CONF_DIR to the folder with the cluster's core-site.xml and yarn-site.xml",
    )


def check_kerberos(command: Command, host: Host) -> None:
    """Raise NotAllowed (77) at once where YARN wants Kerberos and there is neither a
    ticket nor a keytab.
    """
    if command.options.get("spark.master") == "yarn":
        defaults = cluster_defaults(host.spark.home, host.environ)
        names = ("spark.kerberos.principal", "spark.kerberos.keytab")
        principal, keytab = (command.options.get(name) or defaults.get(name) for name in names)
        kerberos.check(host.environ, principal, keytab)


def check_kubernetes(command: Command, host: Host) -> None:
    """Raise SettingsError (78) where nothing names the image of the driver or the executors."""
    if not (command.options.get("spark.master") or "").startswith("k8s:"):
        return
    defaults = cluster_defaults(host.spark.home, host.environ)
    needed = ["executor"] if command.mode == "client" else ["driver", "executor"]
    for role in needed:
        names = ["spark.kubernetes.container.image", f"spark.kubernetes.{role}.container.image"]
        if not any(command.options.get(name) or defaults.get(name) for name in names):
            raise SettingsError(
                f"no image for the {role} on Kubernetes",
                where=f"profile {command.profile}",
                found=f"no {names[0]}",
                next_step=f"add --conf {names[0]}=REGISTRY/IMAGE:TAG, or the option to `spark` in the settings",
            )
