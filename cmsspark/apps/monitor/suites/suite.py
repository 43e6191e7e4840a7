"""Suites: YAML files with named steps that are run and watched, sizes of their input,
and limits to keep.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final

import msgspec

from cmsspark.apps.monitor.processes.sampler import ROLES
from cmsspark.base import config_files
from cmsspark.base.config_files import ConfigFile, nearest
from cmsspark.base.errors import InputMissing

#: Names of suites and steps: they are also names of files and words of marks.
_NAME: Final = re.compile(r"[\w.\-]{1,60}")
#: Ten years; infinity has no place in a poll, an option or a database.
_Seconds = Annotated[float, msgspec.Meta(gt=0, le=315_360_000)]
#: No run breaks a limit that is no number.
_Most = Annotated[float, msgspec.Meta(ge=0)]
#: What commands may contain; each is replaced by its value.
PLACEHOLDERS: Final = ("{size}", "{run}", "{folder}", "{suite_folder}", "{python}")
#: What the command that starts a node's monitor may contain in addition.
NODE_PLACEHOLDERS: Final = ("{host}", "{collector}", "{ttl}")
#: All roles together.
ALL: Final = "all"
#: Measures of a step and role.
MEASURES: Final = ("cpu_percent", "virtual_bytes", "rss_bytes")


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A step: a command line that must end with one of ``exit_codes`` before ``timeout_seconds``.

    It runs ``repeat`` times, which shows how much its figures vary.
    Placeholders are replaced in ``command`` and in the values of ``env``.
    """

    name: str
    command: Annotated[list[str], msgspec.Meta(min_length=1)]
    timeout_seconds: _Seconds = 3600.0
    env: dict[str, str] = {}
    exit_codes: Annotated[list[int], msgspec.Meta(min_length=1)] = msgspec.field(
        default_factory=lambda: [0]
    )
    repeat: Annotated[int, msgspec.Meta(ge=1, le=100)] = 1


class Limit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a step may use at most; ``role``: of the processes, all together by default."""

    step: str
    role: str = ALL
    rss_bytes: Annotated[int, msgspec.Meta(ge=0)] | None = None
    virtual_bytes: Annotated[int, msgspec.Meta(ge=0)] | None = None
    cpu_percent: _Most | None = None
    seconds: _Most | None = None


class Nodes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nodes that are watched meanwhile. ``start``: the command that starts ``cmsspark
    monitor node`` on ``{host}``.

    ``listen``: the address of the collector on this host; an address of the network
    needs ``tls_cert``, or ``without_tls: true``.
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

    suite: str
    steps: Annotated[list[Step], msgspec.Meta(min_length=1)]
    about: str = ""
    interval_seconds: Annotated[float, msgspec.Meta(ge=0.1, le=3600)] = 1.0
    sizes: list[Annotated[float, msgspec.Meta(gt=0, le=1e18)]] = []
    nodes: Nodes | None = None
    limits: list[Limit] = []


def read_suite(path: Path) -> Suite:
    """Return the suite of a file. Raises InputMissing (66) for none, SettingsError (78)
    with file and line.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputMissing("the suite cannot be read", where=path, found=error.strerror) from None
    file = config_files.parse(content, str(path))
    suite = file.convert(Suite)
    _check_name(file, suite.suite, "suite")
    _check_steps(file, suite)
    _check_limits(file, suite)
    for number, size in enumerate(suite.sizes):
        if size in suite.sizes[:number]:
            raise file.error("each input size is named once", "sizes", str(number), found=size)
    if suite.nodes is not None:
        for number, host in enumerate(suite.nodes.hosts):
            key = ("nodes", "hosts", str(number))
            # ssh would take a name that begins with a dash for an option.
            if not re.fullmatch(r"[^\s\-\0][^\s\0]*", host):
                raise file.error(
                    "a host has a name without blanks that does not begin with a dash",
                    *key,
                    found=host,
                )
            if host in suite.nodes.hosts[:number]:
                raise file.error("each host is named once", *key, found=host)
        _check_words(
            file, suite.nodes.start, (*PLACEHOLDERS, *NODE_PLACEHOLDERS), "nodes", "start"
        )
    return suite


def _check_name(file: ConfigFile, name: str, *key: str) -> None:
    if not _NAME.fullmatch(name):
        rule = "a name has letters, digits and _.-, at least 1 and at most 60"
        near = re.sub(r"[^\w.\-]+", "_", name)[:60]
        hint = f"such as {near!r}" if _NAME.fullmatch(near) else None
        raise file.error(rule, *key, found=name, next_step=hint)


def _check_steps(file: ConfigFile, suite: Suite) -> None:
    names = [step.name for step in suite.steps]
    for number, step in enumerate(suite.steps):
        key = ("steps", str(number))
        _check_name(file, step.name, *key, "name")
        if step.name in names[:number]:
            raise file.error("each step has a name of its own", *key, "name", found=step.name)
        _check_words(file, step.command, PLACEHOLDERS, *key, "command")
        for name, value in step.env.items():
            if not name or "=" in name or "\0" in name or not _is_text(name):
                raise file.error(
                    "a variable of the environment has a name without =", *key, "env", found=name
                )
            _check_word(file, value, PLACEHOLDERS, *key, "env", name)
        if not suite.sizes and any(
            "{size}" in word for word in (*step.command, *step.env.values())
        ):
            raise file.error("{size} needs `sizes`", *key, "command", found="no sizes")


def _check_limits(file: ConfigFile, suite: Suite) -> None:
    names = [step.name for step in suite.steps]
    for number, limit in enumerate(suite.limits):
        key = ("limits", str(number))
        if limit.step not in names:
            raise file.error(
                "a limit names a step",
                *key,
                "step",
                found=limit.step,
                next_step=nearest(limit.step, names),
            )
        if limit.role != ALL and limit.role not in ROLES:
            hint = nearest(limit.role, (ALL, *ROLES))
            raise file.error(
                "a limit names a role", *key, "role", found=limit.role, next_step=hint
            )
        measures = ("seconds", *MEASURES)
        if all(getattr(limit, name) is None for name in measures):
            raise file.error(f"a limit has one of {', '.join(measures)}", *key)


def _check_words(
    file: ConfigFile, words: list[str], placeholders: Collection[str], *key: str
) -> None:
    if not words[0]:
        raise file.error("a command begins with a program", *key, "0", found=words[0])
    for number, word in enumerate(words):
        _check_word(file, word, placeholders, *key, str(number))


def _check_word(file: ConfigFile, word: str, placeholders: Collection[str], *key: str) -> None:
    if "\0" in word or not _is_text(word):
        rule = "a word of a command and a value of the environment have no NUL and no half of a character"
        raise file.error(rule, *key, found=word)
    for placeholder in re.findall(r"\{[a-z_]+\}", word):
        if placeholder not in placeholders:
            hint = (
                f"{nearest(placeholder, placeholders)}; other braces need a blank inside of them"
            )
            raise file.error(
                "a placeholder is one of the known names", *key, found=placeholder, next_step=hint
            )


def _is_text(word: str) -> bool:
    """Return whether UTF-8 has the word: half of a surrogate pair is no character."""
    with suppress(UnicodeEncodeError):
        return bool(word.encode()) or not word
    return False


def filled(words: list[str], values: dict[str, str]) -> list[str]:
    """Return the words with placeholders replaced; a value that looks like a
    placeholder stays as it is.
    """
    placeholders = re.compile("|".join(map(re.escape, values)))
    return [placeholders.sub(lambda match: values[match[0]], word) for word in words]


def size_text(size: float) -> str:
    """Return an input size with all of its digits: ``10000000``, ``0.5``."""
    return str(int(size)) if size == int(size) else repr(size)
