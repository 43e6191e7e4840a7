"""A made-up machine and installation, so that command lines are the same everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from cmsspark.settings.settings import Settings
from cmsspark.store.own_jobs import Job, find_job
from cmsspark.submit.arguments import Request, split
from cmsspark.submit.command import Command, InstallPaths, build
from cmsspark.submit.host import Host, Spark

GIB = 1 << 30
HOST = Host(
    cores=8,
    memory=32 * GIB,
    python="/venv/bin/python",
    spark=Spark(Path("/spark"), "4.3.0", "2.13"),
    package=Path("/code/cmsspark"),
    environ={},
)
PLACES = InstallPaths(
    launcher="/code/cmsspark/submit/launch.py",
    log4j="/code/etc/log4j2.properties",
    ship=lambda: "/cache/package/cmsspark.zip",
    key=lambda: "/state/pseudonym.key",
    events="file:///state/monitor/events",
)
SETTINGS = Settings(root=None, store=None, state_dir=Path("/state"), cache_dir=Path("/cache"))

#: What the built-in jobs take in these tests: option → takes a value.
OF_A_JOB = {
    "--date": True,
    "--fout": True,
    "--settings": True,
    "--debug": False,
    "--verbose": False,
}


def requested(*words: str) -> Request:
    """The request of a command line; names without a slash are built-in jobs with the
    options above.
    """
    return split(words, lambda name: None if "/" in name else OF_A_JOB)


def command(
    *words: str,
    environ: Mapping[str, str] | None = None,
    settings: Settings = SETTINGS,
    host: Host = HOST,
    places: InstallPaths = PLACES,
) -> Command:
    """The command that these words make on the made-up machine."""
    request = requested(*words)
    assert request.job is not None
    job: Job | None = None if "/" in request.job else find_job(request.job)
    return build(request, settings, replace(host, environ=environ or {}), places, job)
