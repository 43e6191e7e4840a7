"""The environment of what a command starts: on this host, and of a driver and executors
that start elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from cmsspark.settings.settings import Settings
from cmsspark.store.job_index import Job
from cmsspark.submit.arguments import Request
from cmsspark.submit.host import NO_SPARK, Host
from cmsspark.submit.spark_options import BUILT_IN, Options

Mode = Literal["python", "client", "cluster"]


def add_driver_environment(
    options: Options, request: Request, settings: Settings, host: Host, master: str
) -> None:
    """Add what a driver that starts elsewhere takes from its environment. The shipped
    files are in its folder.
    """
    start = (
        "spark.kubernetes.driverEnv." if master.startswith("k8s:") else "spark.yarn.appMasterEnv."
    )
    values = {
        "CMSSPARK_ROOT": host.environ.get("CMSSPARK_ROOT"),
        "CMSSPARK_DEBUG": "1" if request.has("--debug") else None,
        "CMSSPARK_SETTINGS": settings.origin and settings.origin.rpartition("/")[2],
        "CMSSPARK_STATE_DIR": ".",
        "CMSSPARK_CACHE_DIR": "cache",
        **same_everywhere(host),
    }
    add_environment(options, start, values)


def same_everywhere(host: Host) -> dict[str, str | None]:
    """Return what must be the same in every process of a job."""
    return {"CMSSPARK_COMPILED": host.environ.get("CMSSPARK_COMPILED")}


def add_environment(options: Options, start: str, values: Mapping[str, str | None]) -> None:
    """Set the options ``start`` + name of all values that there are; options that are
    set already stay.
    """
    for name, value in values.items():
        if value and options.get(start + name) is None:
            options.set_option(start + name, value, BUILT_IN)


def command_environment(
    request: Request, host: Host, job: Job | None, mode: Mode
) -> dict[str, str]:
    """Return what the command needs in its environment beyond what is there."""
    env = {}
    if mode != "python" and host.spark != NO_SPARK:
        env["SPARK_HOME"] = str(host.spark.home)
    if mode != "cluster":
        paths = [
            path
            for path in host.environ.get("PYTHONPATH", "").split(":")
            if path and path != host.code_root
        ]
        env["PYTHONPATH"] = ":".join(
            [host.code_root, *paths] if job is not None else [*paths, host.code_root]
        )
        if job is not None:
            # The launcher's folder is no place to import from: its files have names
            # like `phedex` and `demo`.
            env["PYTHONSAFEPATH"] = "1"
        settings = request.last("--settings")
        if settings:
            env["CMSSPARK_SETTINGS"] = settings
        if request.has("--debug"):
            env["CMSSPARK_DEBUG"] = "1"
    return env
