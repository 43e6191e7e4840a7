"""Settings: one YAML file and a few environment variables, read once by each command.

The file is searched in this order: ``--settings`` > ``CMSSPARK_SETTINGS`` >
``./cmsspark.yaml`` > ``~/.config/cmsspark/cmsspark.yaml`` (``XDG_CONFIG_HOME``) >
built-in values. ``CMSSPARK_ROOT``, ``CMSSPARK_STATE_DIR`` and ``CMSSPARK_CACHE_DIR``
come before the file. ``etc/cmsspark.example.yaml`` shows every key. A file that is not
named must belong to this user or root, and not be writable by all (77). No password
belongs in it: credentials have files of their own, which others cannot read.
"""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, TypeVar

import msgspec

from cmsspark.base import config_files
from cmsspark.base.config_files import ConfigFile, Lines
from cmsspark.base.errors import NotAllowed, SettingsError

FILE_NAME: Final = "cmsspark.yaml"
_MAX_BYTES: Final = 1_000_000
#: Words in the names of datasets that ``event_counts`` leaves out (rule 39).
EVENT_COUNTS_WITHOUT: Final = ("test", "backfill", "jobrobot", "sam", "bunnies", "penguins")
DEFAULT_LINE_BYTES: Final = 64 * 1024 * 1024
DEFAULT_RECHECK_HOURS: Final = 24
#: Bytes of a log line. The bounds limit memory, as several lines are in memory at once.
_LineBytes = Annotated[int, msgspec.Meta(ge=1024 * 1024, le=1024 * 1024 * 1024)]
_T = TypeVar("_T")


class MetricsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Live metrics of Spark's runs. ``host`` and ``port``: a Graphite receiver, which
    asks for no password; without ``host`` nothing is sent. ``period_seconds``: between
    two reports. ``prefix``: the first part of each name. ``prometheus``: whether
    Spark's pages show metrics for Prometheus, too.
    """

    host: str | None = None
    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)] = 2003
    period_seconds: Annotated[int, msgspec.Meta(ge=1, le=3_600)] = 10
    prefix: Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_\-]{1,60}\Z")] = "cmsspark"
    prometheus: bool = False


class JobsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where users' jobs are. ``folders``: each Python file in them may declare jobs."""

    folders: tuple[str, ...] = ()


class StreamsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where users' streams are. ``folders``: each YAML file in them describes one."""

    folders: tuple[str, ...] = ()


class SettingsFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The keys of a settings file; null means "not set". :class:`Settings` describes each."""

    root: str | None = None
    store: str | None = None
    state_dir: str | None = None
    cache_dir: str | None = None
    profile: str | None = None
    jars: str | None = None
    environment: str | None = None
    views: str | None = None
    rses: str | None = None
    sites: str | None = None
    hpc_sites: str | None = None
    event_counts_without: list[str] | None = None
    max_line_bytes: _LineBytes | None = None
    recheck_hours: Annotated[int, msgspec.Meta(ge=0, le=8_760)] | None = None
    sources: dict[str, Any] | None = None
    publishing: dict[str, Any] | None = None
    daily: dict[str, Any] | None = None
    spark: dict[str, Any] | None = None
    monitor: bool | None = None
    metrics: MetricsSettings | None = None
    jobs: JobsSettings | None = None
    streams: StreamsSettings | None = None


def _nothing() -> Mapping[str, Any]:
    return MappingProxyType({})


class Settings(msgspec.Struct, frozen=True):
    """The settings of every command on this host. Paths are absolute; ``None`` means "not set".

    ``root``: URI put before every default input folder. ``store``: default of
    ``--fout``. ``state_dir``: outbox, run history, keys. ``cache_dir``: files that can
    be regenerated. ``sources``: overrides of ``etc/sources.yaml``. ``publishing``:
    defaults of ``cmsspark publish``. ``daily``: of ``cmsspark daily``. ``spark``: Spark
    options that override the profile. ``profile``: default profile of ``run_spark``.
    ``jars``: folder with a cluster's own jars (spark-avro). ``environment``: packed
    Python environment for executors. ``views``: a file of custom named views. ``rses``:
    a file of exceptions to the sites of Rucio's storage elements, in the form of
    ``etc/rses.yaml``. ``sites``: a file of the sites whose jobs have their data
    elsewhere, in the form of ``etc/sites.yaml``. ``hpc_sites``: a file that replaces the table of HPC sites, in
    the form of ``etc/hpc_sites.yaml``. ``event_counts_without``: words (case aside);
    ``event_counts`` leaves out datasets whose names have one of them.
    ``max_line_bytes``: maximum bytes of a log line; a longer line is a malformed
    record. ``recheck_hours``: for so long a stored part that was found intact is not read
    as a whole again. ``monitor``: whether the processes of runs are watched. ``metrics``: where
    Spark's live metrics go. ``job_folders`` and ``stream_folders``: folders with
    jobs and streams of users. ``origin``: the file that was read.
    """

    root: str | None
    store: str | None
    state_dir: Path
    cache_dir: Path
    sources: Mapping[str, Any] = msgspec.field(default_factory=_nothing)
    publishing: Mapping[str, Any] = msgspec.field(default_factory=_nothing)
    daily: Mapping[str, Any] = msgspec.field(default_factory=_nothing)
    spark: Mapping[str, str] = msgspec.field(default_factory=_nothing)
    origin: str | None = None
    profile: str | None = None
    jars: str | None = None
    environment: str | None = None
    views: str | None = None
    rses: str | None = None
    sites: str | None = None
    hpc_sites: str | None = None
    event_counts_without: tuple[str, ...] = EVENT_COUNTS_WITHOUT
    max_line_bytes: int = DEFAULT_LINE_BYTES
    recheck_hours: int = DEFAULT_RECHECK_HOURS
    monitor: bool = True
    metrics: MetricsSettings = msgspec.field(default_factory=MetricsSettings)
    job_folders: tuple[str, ...] = ()
    stream_folders: tuple[str, ...] = ()
    lines: Lines = msgspec.field(default_factory=dict)

    def where(self, *key: str) -> str:
        """Return ``file, line N`` of a key, for messages: the nearest enclosing key
        that has a line.
        """
        return self._file.where(*key)

    def section(self, kind: type[_T], name: str) -> _T:
        """Return the keys under ``name``, one of ``sources, publishing, daily``, as a struct.

        Raises SettingsError (78) with the line of the wrong value.
        """
        return self._file.convert(kind, name)

    @property
    def folder(self) -> Path:
        """The base folder of relative paths in the settings."""
        return Path(self.origin).parent if self.origin else Path.cwd()

    @property
    def _file(self) -> ConfigFile:
        sections = {"sources": self.sources, "publishing": self.publishing, "daily": self.daily}
        values = {name: dict(section) for name, section in sections.items()}
        return ConfigFile(self.origin or "built-in settings", values, self.lines)


def load_settings(path: str | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """Return the effective settings, from the file at ``path`` or the first one in the
    search order.

    Raises SettingsError (78) for a named file that does not exist, for invalid YAML,
    unknown keys and wrong types, each with file and line; NotAllowed (77) for a file
    without read permission.

    Example:
        >>> settings = load_settings("etc/cmsspark.example.yaml", environ={"HOME": "/home/me"})
        >>> settings.cache_dir
        PosixPath('/home/me/.cache/cmsspark')
    """
    env = os.environ if environ is None else environ
    file = _find(path, env)
    is_named = bool(path or env.get("CMSSPARK_SETTINGS"))
    values, lines = (SettingsFile(), {}) if file is None else _read(file, is_named)
    home = _home(env)
    base = home if file is None else file.parent

    def folder(key: str, default: Path) -> Path:
        variable = env.get(f"CMSSPARK_{key.upper()}")
        if variable:
            return Path(variable).absolute()
        setting = location(key)
        return Path(setting) if setting else default

    def location(key: str) -> str | None:
        setting: str | None = getattr(values, key)
        return _resolved(setting, base, home) if setting else None

    settings = Settings(
        root=env.get("CMSSPARK_ROOT") or location("root"),
        store=location("store"),
        state_dir=folder(
            "state_dir", _xdg(env, "XDG_STATE_HOME", home / ".local" / "state") / "cmsspark"
        ),
        cache_dir=folder("cache_dir", _xdg(env, "XDG_CACHE_HOME", home / ".cache") / "cmsspark"),
        sources=MappingProxyType(values.sources or {}),
        publishing=MappingProxyType(values.publishing or {}),
        daily=MappingProxyType(values.daily or {}),
        spark=MappingProxyType(values.spark or {}),
        origin=None if file is None else str(file),
        profile=values.profile,
        jars=location("jars"),
        environment=location("environment"),
        views=location("views"),
        rses=location("rses"),
        sites=location("sites"),
        hpc_sites=location("hpc_sites"),
        event_counts_without=EVENT_COUNTS_WITHOUT
        if values.event_counts_without is None
        else tuple(values.event_counts_without),
        max_line_bytes=values.max_line_bytes or DEFAULT_LINE_BYTES,
        recheck_hours=DEFAULT_RECHECK_HOURS
        if values.recheck_hours is None
        else values.recheck_hours,
        monitor=values.monitor is not False,
        metrics=values.metrics or MetricsSettings(),
        job_folders=tuple(
            _resolved(folder, base, home) for folder in (values.jobs or JobsSettings()).folders
        ),
        stream_folders=tuple(
            _resolved(folder, base, home)
            for folder in (values.streams or StreamsSettings()).folders
        ),
        lines=lines,
    )
    global _latest
    rank = 2 if path else int(is_named)
    if _latest is None or rank >= _latest[0]:
        _latest = (rank, settings)
    return settings


def load_typed_settings(argv: Sequence[str], environ: Mapping[str, str]) -> None:
    """Load the settings that a line names before its job is looked for: they name the
    folders of users' jobs, and where those are noted.
    """
    for word, following in zip(argv, [*argv, ""][1:], strict=True):
        name, _, value = word.partition("=")
        if name == "--settings" and (value or following):
            load_settings(value or following, environ)


#: The settings that were loaded last in this process; those of a named file stay before
#: what code that knows no file loads.
_latest: tuple[int, Settings] | None = None


def latest() -> Settings:
    """Return the settings that this process has loaded last, else those of the search order.

    For what is looked up by name in any command, such as users' jobs.
    """
    return _latest[1] if _latest is not None else load_settings()


def _find(path: str | None, env: Mapping[str, str]) -> Path | None:
    for name, option in (
        (path, "--settings"),
        (env.get("CMSSPARK_SETTINGS"), "CMSSPARK_SETTINGS"),
    ):
        if name:
            file = Path(name).expanduser().absolute()
            if not file.is_file():
                actual = "a folder" if file.is_dir() else "no file of that name"
                raise SettingsError(
                    f"{option} names a settings file that cannot be read",
                    where=file,
                    found=actual,
                    next_step=f"correct the path, or leave {option} out: etc/cmsspark.example.yaml is an example",
                )
            return file
    home = _home(env)
    for file in (
        *_in_working_folder(),
        _xdg(env, "XDG_CONFIG_HOME", home / ".config") / "cmsspark" / FILE_NAME,
    ):
        if file.is_file():
            return file
    return None


def _in_working_folder() -> list[Path]:
    try:
        return [Path(FILE_NAME).absolute()]
    except FileNotFoundError:
        return []  # the folder was deleted: nothing is in it


def _home(env: Mapping[str, str]) -> Path:
    # HOME may be unset under cron and in daemons; the user database is the fallback.
    return Path(env["HOME"]) if env.get("HOME") else Path(pwd.getpwuid(os.getuid()).pw_dir)


def _xdg(env: Mapping[str, str], name: str, default: Path) -> Path:
    # The XDG specification says to ignore a relative path.
    value = env.get(name, "")
    return Path(value) if value.startswith("/") else default


def _resolved(text: str, base: Path, home: Path) -> str:
    """Return a location in the settings: URIs unchanged, ``~`` as the home, relative
    paths from the file's folder.
    """
    if "://" in text or text.startswith(("/", "file:")):
        return text
    if text == "~" or text.startswith("~/"):
        return str(home / text[2:])
    return str(base / text)


def _read(file: Path, is_named: bool) -> tuple[SettingsFile, Lines]:
    try:
        with open(file, "rb") as stream:
            if not is_named:
                _check_owner(file, os.fstat(stream.fileno()))
            content = stream.read(_MAX_BYTES + 1)
    except OSError as error:
        raise NotAllowed(
            "the settings file cannot be read", where=file, found=error.strerror
        ) from None
    if len(content) > _MAX_BYTES:
        raise SettingsError(
            f"a settings file has at most {_MAX_BYTES:,} bytes", where=file, found="a larger file"
        )
    return parse(content, str(file))


def _check_owner(file: Path, status: os.stat_result) -> None:
    """Raise NotAllowed (77) for a file that somebody else wrote: settings start
    programs and say where data go.

    A file that is named is obeyed, whoever owns it; one that only lies in the current
    folder must be the user's own.
    """
    is_open = bool(status.st_mode & stat.S_IWOTH)
    if status.st_uid in (os.geteuid(), 0) and not is_open:
        return
    raise NotAllowed(
        "the settings file found in the search order must be your own or root's, and not writable by all",
        where=file,
        found="it is writable by all" if is_open else f"it belongs to {_user_name(status.st_uid)}",
        next_step=f"check it; if you trust it: --settings {file}",
    )


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def parse(content: bytes, name: str) -> tuple[SettingsFile, Lines]:
    """Parse a settings file; returns it and the line of every key. Raises SettingsError
    (78) with ``name`` and line.
    """
    # Spark parses its values: they must stay as written, 010 and 1_000 for example.
    file = config_files.parse(content, name, is_text=lambda key: key[0] == "spark")
    values = file.convert(SettingsFile)
    if values.spark:
        options = spark_options(values.spark, lambda key: file.where("spark", key))
        values = msgspec.structs.replace(values, spark=options)
    return values, file.lines


def spark_options(values: Mapping[str, Any], where: Callable[[str], str]) -> dict[str, str]:
    """Return Spark options of a YAML mapping as texts: ``true`` and ``false`` in lower
    case, numbers as written.

    ``where(key)`` is the location of a key. Raises SettingsError (78) for names without
    the prefix ``spark.`` and for lists and mappings.
    """
    result: dict[str, str] = {}
    for key, value in values.items():
        if not key.startswith("spark."):
            raise SettingsError(
                "an option of Spark does not begin with `spark.`",
                where=where(key),
                found=repr(key),
            )
        if isinstance(value, bool):
            result[key] = "true" if value else "false"
        elif isinstance(value, str | int | float):
            result[key] = str(value)
        else:
            raise SettingsError(
                f"{key} must be a single value", where=where(key), found=repr(value)
            )
    return result
