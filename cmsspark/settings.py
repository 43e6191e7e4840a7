"""Settings: one YAML file and a few environment variables, read once at the edge.

The file is found in this order: ``--settings`` > ``CMSSPARK_SETTINGS`` > ``./cmsspark.yaml`` >
``~/.config/cmsspark/cmsspark.yaml`` (``XDG_CONFIG_HOME``) > built-in values. ``CMSSPARK_ROOT``,
``CMSSPARK_STATE_DIR`` and ``CMSSPARK_CACHE_DIR`` come before the file. ``etc/cmsspark.example.yaml`` shows every key.
No password belongs in it: credentials have files of their own, which others cannot read.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import yaml

from cmsspark.errors import NotAllowed, SettingsError

FILE_NAME: Final = "cmsspark.yaml"
_TEXT_KEYS: Final = ("root", "store", "state_dir", "cache_dir", "profile", "jars", "environment", "views")
_MAP_KEYS: Final = ("sources", "publishing", "daily", "spark")
_NUMBER_KEYS: Final = ("max_line_bytes",)
_MAX_BYTES: Final = 1_000_000
#: Bytes of a line of a log, at least and at most: memory holds some of them at once.
_LINE_BYTES: Final = (1024 * 1024, 1024 * 1024 * 1024)

#: Where a key stands: its path in the file → its 1-based line.
Lines = Mapping[tuple[str, ...], int]


def _nothing() -> Mapping[str, Any]:
    return MappingProxyType({})


@dataclass(frozen=True)
class Settings:
    """What holds for every command on this host. Paths are absolute; ``None`` means "not set".

    ``root``: URI put before every default input folder. ``store``: default of ``--fout``. ``state_dir``: outbox,
    ledger, keys. ``cache_dir``: what can be made again. ``sources``: overrides of ``etc/sources.yaml``.
    ``publishing``: defaults of ``cmsspark publish``. ``daily``: of ``cmsspark daily``. ``spark``: Spark options
    laid over the profile. ``profile``: default profile of ``run_spark``. ``jars``: folder with a cluster's own jars
    (spark-avro). ``environment``: packed Python environment for executors. ``views``: a file of one's own named views.
    ``max_line_bytes``: bytes of a line of a log at most; a longer one is a malformed record.
    ``origin``: the file they came from.
    """

    root: str | None
    store: str | None
    state_dir: Path
    cache_dir: Path
    sources: Mapping[str, Any] = field(default_factory=_nothing)
    publishing: Mapping[str, Any] = field(default_factory=_nothing)
    daily: Mapping[str, Any] = field(default_factory=_nothing)
    spark: Mapping[str, str] = field(default_factory=_nothing)
    origin: str | None = None
    profile: str | None = None
    jars: str | None = None
    environment: str | None = None
    views: str | None = None
    max_line_bytes: int = 64 * 1024 * 1024
    lines: Lines = field(default_factory=dict, repr=False, compare=False)

    def where(self, *key: str) -> str:
        """``file, line N`` of a key, for messages: the nearest enclosing key that has a line."""
        for length in range(len(key), 0, -1):
            if key[:length] in self.lines:
                return f"{self.origin}, line {self.lines[key[:length]]}"
        return self.origin or "built-in settings"


def load_settings(path: str | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """The settings that hold, from the file that ``path`` or the search order gives.

    Raises SettingsError (78) for a file that is named but not there, for what is not plain YAML, for unknown keys
    and wrong types, each with file and line; NotAllowed (77) for a file that may not be read.
    """
    env = os.environ if environ is None else environ
    file = _find(path, env)
    values, lines = ({}, {}) if file is None else _read(file)
    home = _home(env)
    base = Path.cwd() if file is None else file.parent

    def place(key: str, default: Path) -> Path:
        given = env.get(f"CMSSPARK_{key.upper()}")
        if given:
            return Path(given).absolute()
        return Path(_located(values[key], base, home)) if values.get(key) else default

    def text(key: str) -> str | None:
        return _located(values[key], base, home) if values.get(key) else None

    return Settings(
        root=env.get("CMSSPARK_ROOT") or text("root"),
        store=text("store"),
        state_dir=place("state_dir", _xdg(env, "XDG_STATE_HOME", home / ".local" / "state") / "cmsspark"),
        cache_dir=place("cache_dir", _xdg(env, "XDG_CACHE_HOME", home / ".cache") / "cmsspark"),
        sources=MappingProxyType(values.get("sources") or {}),
        publishing=MappingProxyType(values.get("publishing") or {}),
        daily=MappingProxyType(values.get("daily") or {}),
        spark=MappingProxyType(values.get("spark") or {}),
        origin=None if file is None else str(file),
        profile=values.get("profile"),
        jars=text("jars"),
        environment=text("environment"),
        views=text("views"),
        max_line_bytes=values.get("max_line_bytes") or Settings.max_line_bytes,
        lines=lines,
    )


def _find(path: str | None, env: Mapping[str, str]) -> Path | None:
    for wanted, by in ((path, "--settings"), (env.get("CMSSPARK_SETTINGS"), "CMSSPARK_SETTINGS")):
        if wanted:
            file = Path(wanted).expanduser().absolute()
            if not file.is_file():
                there = "a folder" if file.is_dir() else "no file of that name"
                raise SettingsError(f"the settings file that {by} names is wanted", where=file, found=there)
            return file
    home = _home(env)
    for file in (Path(FILE_NAME).absolute(), _xdg(env, "XDG_CONFIG_HOME", home / ".config") / "cmsspark" / FILE_NAME):
        if file.is_file():
            return file
    return None


def _home(env: Mapping[str, str]) -> Path:
    # cron and daemons may have no HOME: then the user database knows it.
    return Path(env["HOME"]) if env.get("HOME") else Path(pwd.getpwuid(os.getuid()).pw_dir)


def _xdg(env: Mapping[str, str], name: str, default: Path) -> Path:
    # The XDG specification: a relative path there is to be ignored.
    given = env.get(name, "")
    return Path(given) if given.startswith("/") else default


def _located(text: str, base: Path, home: Path) -> str:
    """A location of the file: URIs as they are, ``~`` the home, relative paths from the file's folder."""
    if "://" in text or text.startswith(("/", "file:")):
        return text
    if text == "~" or text.startswith("~/"):
        return str(home / text[2:])
    return str(base / text)


def _read(file: Path) -> tuple[dict[str, Any], Lines]:
    try:
        content = file.read_bytes()
    except OSError as error:
        raise NotAllowed("the settings file cannot be read", where=file, found=error.strerror) from None
    if len(content) > _MAX_BYTES:
        raise SettingsError("a settings file is small", where=file, found=f"{len(content)} bytes")
    return parse(content, str(file))


def parse(content: bytes, name: str) -> tuple[dict[str, Any], Lines]:
    """The checked top-level keys of a settings file, and the line of every key.

    Raises SettingsError (78) with ``name`` and line.
    """
    values, lines = plain(content, name)
    return _checked(values, lines, name), lines


def plain(content: bytes, name: str) -> tuple[dict[str, Any], Lines]:
    """The mapping that a file of plain YAML holds, and the line of every key.

    Raises SettingsError (78) with ``name`` and line.
    """
    lines: dict[tuple[str, ...], int] = {}
    try:
        text = content.decode("utf-8")
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            _refuse_tricks(event, name)
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except UnicodeDecodeError as error:
        raise SettingsError("settings are UTF-8 text", where=name, found=f"byte {error.start} is none") from None
    except yaml.YAMLError as error:
        raise _not_yaml(error, name) from None
    except RecursionError:
        raise SettingsError("settings are nested a few levels deep", where=name, found="far more levels") from None
    if node is None or (isinstance(node, yaml.ScalarNode) and node.tag.endswith(":null")):
        return {}, lines
    if not isinstance(node, yaml.MappingNode):
        raise SettingsError("settings are `key: value` lines", where=_at(name, node), found=f"a {_kind(node)}")
    return _plain(node, (), lines, name), lines


def _not_yaml(error: yaml.YAMLError, name: str) -> SettingsError:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    if "end of stream" in problem:  # what was never closed is at fault, not the file's end
        mark = getattr(error, "context_mark", None) or mark
    where = name if mark is None else f"{name}, line {mark.line + 1}"
    return SettingsError("settings are plain YAML", where=where, found=problem)


def _refuse_tricks(event: yaml.Event, name: str) -> None:
    """Aliases, anchors and tags make a file say something else than it seems to."""
    what = None
    if isinstance(event, yaml.AliasEvent):
        what = f"the alias *{event.anchor}"
    elif isinstance(event, yaml.NodeEvent) and event.anchor:
        what = f"the anchor &{event.anchor}"
    elif isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent) and event.tag:
        what = f"the tag {event.tag}"
    if what:
        line = event.start_mark.line + 1 if event.start_mark else "unknown"
        raise SettingsError(
            "settings have no aliases, anchors or tags",
            where=f"{name}, line {line}",
            found=what,
            next_step="write the value out",
        )


def _plain(
    node: yaml.MappingNode, path: tuple[str, ...], lines: dict[tuple[str, ...], int], name: str
) -> dict[str, Any]:
    """A mapping as a dict, the line of each key noted; a key that stands twice is refused."""
    result: dict[str, Any] = {}
    for key_node, value_node in node.value:
        if not isinstance(key_node, yaml.ScalarNode):
            raise SettingsError("a key is one word", where=_at(name, key_node), found=f"a {_kind(key_node)}")
        key = str(key_node.value)
        if key in result:
            raise SettingsError("a key stands once", where=_at(name, key_node), found=f"{key!r} again")
        lines[*path, key] = key_node.start_mark.line + 1
        result[key] = _value(value_node, (*path, key), lines, name)
    return result


def _value(node: yaml.Node, path: tuple[str, ...], lines: dict[tuple[str, ...], int], name: str) -> Any:
    if isinstance(node, yaml.MappingNode):
        return _plain(node, path, lines, name)
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, path, lines, name) for item in node.value]
    if path[0] == "spark" and node.tag.rsplit(":", 1)[-1] in ("int", "float", "timestamp"):
        return node.value  # Spark reads its values itself: 010 is no 8, and 1_000 no number
    loader = yaml.SafeLoader("")
    try:
        return loader.construct_object(node)
    except (yaml.YAMLError, ValueError) as error:
        raise SettingsError("a plain value is wanted", where=_at(name, node), found=str(error)) from None
    finally:
        loader.dispose()


def _checked(values: dict[str, Any], lines: Lines, name: str) -> dict[str, Any]:
    for key, value in values.items():
        where = f"{name}, line {lines[(key,)]}"
        if key not in _TEXT_KEYS + _MAP_KEYS + _NUMBER_KEYS:
            known = ", ".join(_TEXT_KEYS + _MAP_KEYS + _NUMBER_KEYS)
            raise SettingsError(f"there is no setting {key!r}", where=where, next_step=f"use one of: {known}")
        if value is None:
            continue
        if key in _TEXT_KEYS and not isinstance(value, str):
            raise SettingsError(f"{key} is a text", where=where, found=repr(value), next_step="put it in quotes")
        if key in _MAP_KEYS and not isinstance(value, dict):
            raise SettingsError(f"{key} has `key: value` lines below it", where=where, found=repr(value))
        if key in _NUMBER_KEYS and (type(value) is not int or not _LINE_BYTES[0] <= value <= _LINE_BYTES[1]):
            wanted = f"{key} is a number from {_LINE_BYTES[0]} to {_LINE_BYTES[1]}"
            raise SettingsError(wanted, where=where, found=repr(value))
    if values.get("spark"):
        values["spark"] = spark_options(values["spark"], lambda key: f"{name}, line {lines[('spark', key)]}")
    return values


def spark_options(values: Mapping[str, Any], where: Any) -> dict[str, str]:
    """Spark options of a YAML mapping as texts: ``true`` and ``false`` in lower case, numbers as written.

    ``where(key)`` tells a key's place. Raises SettingsError (78) for names that are not Spark's and for other values.
    """
    result: dict[str, str] = {}
    for key, value in values.items():
        if not key.startswith("spark."):
            raise SettingsError("a Spark option begins with `spark.`", where=where(key), found=repr(key))
        if isinstance(value, bool):
            result[key] = "true" if value else "false"
        elif isinstance(value, str | int | float):
            result[key] = str(value)
        else:
            raise SettingsError(f"{key} has one plain value", where=where(key), found=repr(value))
    return result


def _at(name: str, node: yaml.Node) -> str:
    return f"{name}, line {node.start_mark.line + 1}"


def _kind(node: yaml.Node) -> str:
    return {"MappingNode": "mapping", "SequenceNode": "list"}.get(type(node).__name__, "single value")
