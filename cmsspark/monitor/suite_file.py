"""Suites: YAML files with named steps that are run and watched, sizes of their input, and limits to keep."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Final

import msgspec

from cmsspark import config_files
from cmsspark.config_files import ConfigFile
from cmsspark.errors import InputMissing
from cmsspark.monitor.processes_roles import ROLES

_Name = Annotated[str, msgspec.Meta(pattern=r"\A[\w.\-]{1,60}\Z")]
_Seconds = Annotated[float, msgspec.Meta(gt=0)]
#: What commands may contain; each is replaced by its value.
PLACEHOLDERS: Final = {
    "{size}": "the input size of this run",
    "{run}": "the id of this run",
    "{folder}": "a new folder for the run, deleted afterwards",
    "{suite_folder}": "the folder of the suite's file",
    "{python}": "the Python that runs cmsspark",
}
#: What the command that starts a node's monitor may contain in addition.
NODE_PLACEHOLDERS: Final = {"{host}": "the node", "{collector}": "the address of the collector", "{ttl}": "seconds"}
#: All roles together.
ALL: Final = "all"
_MEASURES: Final = ("rss_bytes", "virtual_bytes", "cpu_percent", "seconds")


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A step: a command line that must end with one of ``exit_codes`` before ``timeout_seconds``."""

    name: _Name
    command: Annotated[list[str], msgspec.Meta(min_length=1)]
    timeout_seconds: _Seconds = 3600.0
    env: dict[str, str] = {}
    exit_codes: Annotated[list[int], msgspec.Meta(min_length=1)] = msgspec.field(default_factory=lambda: [0])


class Limit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a step may use at most; ``role``: of the processes, all together by default."""

    step: str
    role: str = ALL
    rss_bytes: int | None = None
    virtual_bytes: int | None = None
    cpu_percent: float | None = None
    seconds: float | None = None


class Nodes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nodes that are watched meanwhile. ``start``: the command that starts ``cmsspark monitor node`` on ``{host}``.

    ``listen``: the address of the collector on this host; an address of the network needs ``tls_cert``, or
    ``without_tls: true``.
    """

    hosts: Annotated[list[str], msgspec.Meta(min_length=1)]
    start: Annotated[list[str], msgspec.Meta(min_length=1)]
    token_file: str
    listen: str = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65_535)] = 0
    ttl_seconds: _Seconds = 86_400.0
    tls_cert: str | None = None
    tls_key: str | None = None
    without_tls: bool = False


class Suite(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A suite. ``sizes``: input sizes; the steps run once for each, with ``{size}`` replaced."""

    suite: _Name
    steps: Annotated[list[Step], msgspec.Meta(min_length=1)]
    about: str = ""
    interval_seconds: Annotated[float, msgspec.Meta(ge=0.1)] = 1.0
    sizes: list[Annotated[float, msgspec.Meta(gt=0)]] = []
    nodes: Nodes | None = None
    limits: list[Limit] = []


def read_suite(path: Path) -> Suite:
    """The suite of a file. Raises InputMissing (66) for none, SettingsError (78) with file and line."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputMissing("a suite is wanted", where=path, found=error.strerror) from None
    file = config_files.parse(content, str(path))
    suite = file.convert(Suite)
    _check(file, suite)
    return suite


def _check(file: ConfigFile, suite: Suite) -> None:
    names = [step.name for step in suite.steps]
    for number, step in enumerate(suite.steps):
        key = ("steps", str(number))
        if step.name in names[:number]:
            raise file.error("each step has a name of its own", *key, "name", found=step.name)
        _check_words(file, step.command, PLACEHOLDERS, *key, "command")
        if not suite.sizes and any("{size}" in word for word in step.command):
            raise file.error("{size} needs `sizes`", *key, "command", found="no sizes")
    for number, limit in enumerate(suite.limits):
        key = ("limits", str(number))
        if limit.step not in names:
            raise file.error("a limit names a step", *key, "step", found=limit.step, next_step=f"one of {names}")
        if limit.role != ALL and limit.role not in ROLES:
            known = ", ".join((ALL, *ROLES))
            raise file.error("a limit names a role", *key, "role", found=limit.role, next_step=f"one of {known}")
        if all(getattr(limit, name) is None for name in _MEASURES):
            raise file.error(f"a limit has one of {', '.join(_MEASURES)}", *key)
    if suite.nodes is not None:
        _check_words(file, suite.nodes.start, {**PLACEHOLDERS, **NODE_PLACEHOLDERS}, "nodes", "start")


def _check_words(file: ConfigFile, words: list[str], known: dict[str, str], *key: str) -> None:

    for number, word in enumerate(words):
        for found in re.findall(r"\{[a-z_]+\}", word):
            if found not in known:
                raise file.error("a placeholder is one of " + ", ".join(known), *key, str(number), found=found)


def filled(words: list[str], values: dict[str, str]) -> list[str]:
    """The words with placeholders replaced."""
    result = []
    for word in words:
        for name, value in values.items():
            word = word.replace(name, value)
        result.append(word)
    return result
