"""Users' jobs: where they are found, and what is known of them without running their files.

They come from folders of the settings (``jobs: {folders: […]}``), from installed
packages (entry points of the group ``cmsspark.jobs``), and from files that
``run_spark FILE`` has run. What a file declares is kept in ``own_jobs.json`` in the
state directory, with its size and time: a file is imported again only when it changed.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import asdict, replace

from cmsspark.base import entry_points, schemas
from cmsspark.base.errors import CmssparkError, SettingsError, UsageError, as_ours
from cmsspark.base.resources import read_text
from cmsspark.base.schemas import Column, Table, stored_table
from cmsspark.base.text.spelling import suggestion
from cmsspark.settings import settings as settings_module
from cmsspark.sources.registry import JOB_TABLES, STREAMS, STREAMS_BY_NAME, Stream

if TYPE_CHECKING:
    from datetime import date

    import click

    from cmsspark.filesystems.storage import Files
    from cmsspark.settings.settings import Settings
    from cmsspark.sources.folders import Dump, Layout


#: The entry points of packages with jobs.
GROUP: Final = "cmsspark.jobs"
#: The file in the state directory.
FILE_NAME: Final = "own_jobs.json"
#: The folder of this package, which travels anyway.
_PACKAGE: Final = Path(__file__).parents[1]
#: Seconds until files are looked at again.
_FRESH_S: Final = 1.0
_VERSION: Final = 1


class OwnJob(msgspec.Struct, frozen=True):
    """A user's job: its entry as in the list of built-in jobs, its table, and the file
    or package that declares it.
    """

    entry: Mapping[str, Any]
    table: Table
    where: str

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.entry["name"])

    @property
    def files(self) -> list[str]:
        """What it needs beside its file."""
        return list(self.entry.get("files", ()))

    def with_files(self, more: list[str]) -> OwnJob:
        """Return the job with more files that it needs."""
        files = list(dict.fromkeys([*self.files, *more]))
        return replace(self, entry={**self.entry, "files": files}) if files else self

    def as_dict(self) -> dict[str, Any]:
        """Return it as the file of the state directory has it."""
        return {"entry": dict(self.entry), "table": msgspec.to_builtins(self.table)}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any], where: str) -> OwnJob:
        """Return a job as it was kept. Raises KeyError and TypeError for another format."""
        table = dict(document["table"])
        table["columns"] = tuple(Column(**column) for column in table["columns"])
        table["keys"] = tuple(table["keys"])
        return cls(document["entry"], Table(**table), where)


class Source(msgspec.Struct):
    """A file or an entry point: what it declares, or why it cannot be imported.

    ``stamp``: size and time of a file, the version of a package. ``is_named``: a file
    that was run by its path, and lies in no folder of the settings.
    """

    stamp: list[Any]
    jobs: list[OwnJob] = msgspec.field(default_factory=list)
    error: str = ""
    is_named: bool = False


#: What files and modules that are imported in this process declare.
_REGISTERED: Final[dict[str, list[OwnJob]]] = {}
#: Files that are imported as files of jobs.
_FILES: Final[set[str]] = set()


def find_source(code_file: str, module: str) -> str:
    """Return where a job is declared: in a file, or in a module of a package."""
    return code_file if code_file in _FILES else module


def register(job: OwnJob) -> None:
    """Note a job that a file declares while it is imported.

    Raises SettingsError (78) if the same file has declared another one of its name.
    """
    if job.where not in _FILES:
        # A cell of a notebook, or a module, may be run again.
        _REGISTERED[job.where] = [
            entry for entry in _REGISTERED.get(job.where, []) if entry.name != job.name
        ]
    jobs = _REGISTERED.setdefault(job.where, [])
    if any(entry.name == job.name for entry in jobs):
        raise SettingsError(f"the job {job.name} is declared twice", where=job.where)
    jobs.append(job)
    _forget()


def load_file(path: Path) -> ModuleType:
    """Import a file with jobs. Its module has the name of the file, so that workers of
    Spark can import it too.

    Raises SettingsError (78) with the line for whatever its code raises.
    """
    where = str(path.absolute())
    _REGISTERED.pop(where, None)
    if not path.is_file():
        raise SettingsError(
            "the file of a job is gone",
            where=where,
            next_step="put it back, or run it once where it is now: run_spark FILE.py. Its tables can be read",
        )
    _FILES.add(where)
    name = path.stem if _is_free(path.stem, where) else f"cmsspark_job_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, where)
    if spec is None or spec.loader is None:
        raise SettingsError("the name of a file with jobs does not end in .py", where=where)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    folder = str(path.absolute().parent)
    # Behind all others: a file beside it replaces no module of ours.
    if folder not in sys.path:
        sys.path.append(folder)
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        sys.modules.pop(name, None)
        _REGISTERED.pop(where, None)
        if isinstance(error, Exception | SystemExit):
            raise broken(error, where) from None
        raise
    imported = modules_beside(where)
    _REGISTERED[where] = [job.with_files(imported) for job in _REGISTERED.get(where, [])]
    return module


def modules_beside(where: str) -> list[str]:
    """Return the modules and packages that lie beside a file and are imported: they
    travel with it. Tests and other files of jobs are left out.
    """
    folder = Path(where).parent
    paths = []
    for name, module in list(sys.modules.items()):
        path = Path(getattr(module, "__file__", None) or "/")
        path = path.parent if path.name == "__init__.py" else path
        is_own = path.parent == folder and str(path) not in _FILES and path != _PACKAGE
        if is_own and "." not in name and not name.startswith(("test_", "conftest")):
            paths.append(str(path))
    return sorted(paths)


def _is_free(name: str, where: str) -> bool:
    loaded = sys.modules.get(name)
    if loaded is not None:
        return getattr(loaded, "__file__", None) == where
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return False
    return spec is None or spec.origin == where


def broken(error: BaseException, where: str) -> CmssparkError:
    """Return the error (78) for what a user's code has raised, with its file and line."""
    if isinstance(error, CmssparkError):
        return error
    if isinstance(error, SyntaxError) and error.filename:
        return SettingsError(
            "the file of a job is no valid Python",
            where=f"{error.filename}, line {error.lineno}",
            found=error.msg,
            next_step="correct the line, then run it again",
        )
    if isinstance(error, MemoryError | OSError) and (ours := as_ours(error)) is not None:
        return ours
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == where
    ]
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return SettingsError(
        "the code of a job raised an error",
        where=f"{where}, line {lines[-1]}" if lines else where,
        found=text[:300],
        next_step="correct it there, then run it again; --debug shows the traceback",
    )


def declared_in(path: Path) -> list[OwnJob]:
    """Return the jobs of a file that ``run_spark`` is given, and remember them.

    Raises SettingsError (78) if the file is broken or a name is another one's too.
    """
    where = str(path.absolute())
    current = _sources().get(where)
    jobs = current.jobs if current else []
    if current is None or current.error or current.stamp != _stamp(path, jobs):
        jobs = load_named(path)
    for job in jobs:
        find(job.name)
    return jobs


def load_named(path: Path) -> list[OwnJob]:
    """Import a file that a command names, and remember its jobs: here, and on a cluster
    in the folder of the driver.

    Raises SettingsError (78) if the file is broken.
    """
    load_file(path)
    where = str(path.absolute())
    jobs = _REGISTERED.get(where, [])
    current = Source(_stamp(path, jobs), jobs, is_named=True)
    if current.jobs:
        names = {job.name for job in current.jobs}
        stored = {
            key: source
            for key, source in _sources().items()
            # A file that was moved or copied is run at its new place.
            if not (source.is_named and names & {job.name for job in source.jobs})
        }
        _write({**stored, where: current}, settings_module.latest())
    return current.jobs


def names() -> dict[str, list[OwnJob]]:
    """Return all users' jobs by name; a name that two have is an error once it is used."""
    by_name: dict[str, list[OwnJob]] = {}
    for source in _sources().values():
        for job in source.jobs:
            by_name.setdefault(job.name, []).append(job)
    return by_name


def errors() -> dict[str, str]:
    """Return why files or packages with jobs cannot be imported."""
    return {where: source.error for where, source in _sources().items() if source.error}


def find(name: str) -> OwnJob:
    """Return the job of a name. Raises KeyError for none, SettingsError (78) where two
    have it.
    """
    jobs = names()[name]
    if len(jobs) > 1:
        raise SettingsError(
            f"two jobs have the name {name}",
            where=" and ".join(job.where for job in jobs),
            next_step="give one of them another name",
        )
    return jobs[0]


def find_table(name: str) -> Table | None:
    """Return the table of a user's job; None if there is none."""
    jobs = names().get(name)
    return jobs[0].table if jobs else None


schemas.TABLE_FINDERS.append(find_table)


#: The sources of the settings that were looked at last, and when.
_looked: tuple[object, float, dict[str, Source]] | None = None


def _sources() -> dict[str, Source]:
    """Return all sources by file or module, those that are new or changed imported; the
    same for a second.
    """
    global _looked
    settings = settings_module.latest()
    key = (settings.state_dir, settings.job_folders)
    if _looked is None or _looked[0] != key or time.monotonic() - _looked[1] > _FRESH_S:
        if settings.stream_folders:
            from cmsspark.sources import own_streams

            own_streams.load(settings)
        stored, current = _read(settings), {}
        for folder in settings.job_folders:
            if not Path(folder).is_dir():
                current[folder] = Source([], error=f"the folder of jobs is not there: {folder}")
        for folder in settings.job_folders:
            for path in sorted(path.absolute() for path in Path(folder).glob("*.py")):
                if not path.name.startswith(("_", "test_", "conftest")):
                    current[str(path)] = _look_at(stored.get(str(path)), path)
        for where, source in stored.items():
            path = Path(where)
            # On a cluster the folders of the settings are not there.
            is_elsewhere = path.is_absolute() and not path.parent.is_dir()
            if where not in current and (source.is_named or is_elsewhere):
                # Of a file that is gone the stored tables can still be read.
                current[where] = _look_at(source, path) if path.is_file() else source
        current |= dict(_packages(stored))
        for where, jobs in _REGISTERED.items():
            if where not in current and where not in _FILES:
                current[where] = Source([], jobs)
        if _documents(current) != _documents(stored):
            _write(current, settings)
        _looked = (key, time.monotonic(), current)
    return _looked[2]


def _forget() -> None:
    global _looked
    _looked = None


def _look_at(stored: Source | None, path: Path) -> Source:
    """Return what a file declares: as it was kept, or by importing it."""
    if stored is not None and stored.stamp == _stamp(path, stored.jobs):
        return stored
    is_named = stored is not None and stored.is_named
    try:
        load_file(path)
    except CmssparkError as error:
        return Source(_stamp(path, []), error=_one_line(error), is_named=is_named)
    jobs = _REGISTERED.get(str(path.absolute()), [])
    return Source(_stamp(path, jobs), jobs, is_named=is_named)


def _packages(stored: Mapping[str, Source]) -> Iterator[tuple[str, Source]]:
    for entry in entry_points.of_group(GROUP):
        where = entry.value.partition(":")[0]
        stamp = [entry.dist.version if entry.dist else ""]
        source = stored.get(where)
        if source is None or source.stamp != stamp:
            source = Source(stamp)
            try:
                importlib.import_module(where)
                source.jobs = _REGISTERED.get(where, [])
            except Exception as error:  # whatever a package raises
                source.error = _one_line(broken(error, where))
        yield where, source


def _one_line(error: CmssparkError) -> str:
    where = f" ({error.where})" if error.where is not None else ""
    return f"{error.problem}{where}: {error.found}" if error.found else f"{error.problem}{where}"


def _stamp(path: Path, jobs: list[OwnJob]) -> list[Any]:
    """Return the size of a file, and its time with those of what its jobs need beside it,
    which may change alone.
    """
    try:
        status = path.stat()
        files = sorted({file for job in jobs for file in job.files})
        times = [os.stat(file).st_mtime_ns for file in files]
    except OSError:
        return []
    return [status.st_size, status.st_mtime_ns, *times]


def _documents(sources: Mapping[str, Source]) -> dict[str, Any]:
    return {
        where: {
            "stamp": source.stamp,
            "jobs": [job.as_dict() for job in source.jobs],
            "error": source.error,
            "is_named": source.is_named,
        }
        for where, source in sources.items()
    }


def _read(settings: Settings) -> dict[str, Source]:
    """Return what is kept; nothing if the file is not there or of another version."""
    try:
        document = json.loads((settings.state_dir / FILE_NAME).read_bytes())
        if document["version"] != _VERSION:
            return {}
        return {
            where: Source(
                source["stamp"],
                [OwnJob.from_dict(job, where) for job in source["jobs"]],
                source["error"],
                source["is_named"],
            )
            for where, source in document["sources"].items()
        }
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _write(sources: Mapping[str, Source], settings: Settings) -> None:
    """Keep what is known. A state directory that cannot be written costs time only."""
    target = settings.state_dir / FILE_NAME
    aside = target.with_suffix(f".{os.getpid()}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        document = {"version": _VERSION, "sources": _documents(sources)}
        aside.write_text(json.dumps(document, default=list), encoding="utf-8")
        os.replace(aside, target)
    except OSError:
        aside.unlink(missing_ok=True)
    _forget()


# The index of jobs: what is known of a job before its module is imported.

#: The generated list of the built-in jobs.
INDEX_FILE: Final = "schemas/jobs.json"
#: Stands in the list for all streams of the registry.
_ALL_STREAMS: Final = "*"
_APPS: Final = "cmsspark.apps."
#: The module that reports on single streams.
_LOG_JOB: Final = f"{_APPS}usage.log_job"


class Job(msgspec.Struct, frozen=True):
    """What ``run_spark`` and the store know of a job: its tables, a line for
    ``run_spark --list``, and the module that declares it.
    """

    name: str
    about: str
    tables: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    #: Needs a Spark session. A job without one runs in plain Python.
    needs_spark: bool = True
    #: Processes of this host can run it without Spark. So they can every job on log streams.
    runs_in_processes: bool = False
    #: The log streams that it reads by default.
    streams: tuple[str, ...] = ()
    #: A feed with folders of days that is no stream, by its name in ``etc/sources.yaml``.
    feed: str = ""
    #: The module that declares it.
    module: str = ""
    #: It chooses dumps by itself: :attr:`Declaration.choose_dumps`.
    reads_dumps: bool = False
    #: Its results are of weeks, months or other ranges, not of days.
    of_periods: bool = False
    #: The job whose stored days its periods are made of.
    of_days: str = ""
    #: It reads no day: its --date only names the result, and is today by default.
    is_day_optional: bool = False
    #: Jobs whose stored result of the same day it reads, so that they run before it.
    after: tuple[str, ...] = ()
    #: The file of a user's job; empty for a built-in job and one of a package.
    file: str = ""
    #: What a user's job needs beside its file: modules that it imports from the same
    #: folder, the YAML of its columns, its own files.
    files: tuple[str, ...] = ()

    @property
    def subsystem(self) -> str:
        """The subsystem that it belongs to; empty for a user's job."""
        inside = self.module.removeprefix(_APPS)
        return inside.partition(".")[0] if inside != self.module else ""

    @property
    def is_own(self) -> bool:
        """Whether a user wrote it."""
        return not self.subsystem

    @property
    def word(self) -> str:
        """What names it on a command line: its name, and of a user's job its file, too."""
        return f"{self.file}:{self.name}" if self.file else self.name

    @property
    def public_tables(self) -> tuple[str, ...]:
        """The tables that are published: those without rows of single people."""
        return tuple(table for table in self.tables if stored_table(table).is_published)

    def as_entry(self) -> dict[str, Any]:
        """Return the job as the list of built-in jobs has it, without defaults."""
        values = asdict(self)
        if self.streams == STREAMS:
            values["streams"] = (_ALL_STREAMS,)
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
            if value != getattr(_DEFAULTS, name)
        }

    @classmethod
    def from_entry(cls, entry: Mapping[str, Any]) -> Job:
        """Return the job of an entry of the list."""
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in entry.items()
        }
        if values.get("streams") == (_ALL_STREAMS,):
            values["streams"] = STREAMS
        return cls(**values)


_DEFAULTS: Final = Job("", "")


class Declaration(msgspec.Struct, frozen=True):
    """A job with what its module gives.

    ``make_command()`` returns its click command. ``make_request(options, settings,
    fout)`` returns the request of its parsed options, for the choice of the engine; None
    if it has no choice. ``choose_dumps(files, layout, day)`` returns the dumps that
    it reads; None if it reads none by itself.
    """

    job: Job
    make_command: Callable[[], click.Command]
    make_request: Callable[[Mapping[str, Any], Settings, str], Any] | None = None
    choose_dumps: Callable[[Files, Layout, date], list[Dump]] | None = None


#: The declarations of the modules that are imported, by the name of the job.
DECLARED: Final[dict[str, Declaration]] = {}


def declare(
    job: Job,
    make_command: Callable[[], click.Command],
    make_request: Callable[[Mapping[str, Any], Settings, str], Any] | None = None,
    choose_dumps: Callable[[Files, Layout, date], list[Dump]] | None = None,
) -> Job:
    """Declare a job, as :class:`Declaration` describes it; returns it. The last
    declaration of a name counts, as when a module is loaded again.
    """
    DECLARED[job.name] = Declaration(job, make_command, make_request, choose_dumps)
    return job


def stream_report(stream: Stream) -> Job:
    """Return the job that reports on a single stream."""
    return Job(
        stream.report,
        f"One day of {stream.title} per dataset, site and app",
        (stream.report, *(JOB_TABLES if stream.counts_jobs else ())),
        aliases=stream.report_aliases,
        streams=(stream.name,),
        module=_LOG_JOB,
    )


class JobIndex(Mapping[str, Job]):
    """All jobs by name, in the order of ``run_spark --list``: the built-in ones, then
    those of users, which are looked for only if no built-in job has the name.
    """

    @cached_property
    def built_in(self) -> dict[str, Job]:
        """The built-in jobs."""
        jobs = [Job.from_entry(entry) for entry in json.loads(read_text(INDEX_FILE))]
        # Behind the report of all streams.
        return {job.name: job for job in (*jobs[:1], *self.stream_reports, *jobs[1:])}

    @cached_property
    def stream_reports(self) -> list[Job]:
        """The reports of single streams."""
        return [stream_report(stream) for stream in STREAMS_BY_NAME.values() if stream.has_report]

    def __getitem__(self, name: str) -> Job:
        if name in self.built_in:
            return self.built_in[name]
        return Job.from_entry(find(name).entry)

    def __contains__(self, name: object) -> bool:
        return name in self.built_in or name in names()

    def __iter__(self) -> Iterator[str]:
        yield from self.built_in
        yield from (name for name in names() if name not in self.built_in)

    def __len__(self) -> int:
        return sum(1 for _ in self)


#: All jobs by name.
JOBS: Final = JobIndex()


def find_job(name: str) -> Job:
    """Return the job of that name or alias, with or without ``.py``.

    Raises UsageError (2) with the most similar name, or where two files declare it.
    """
    plain = name.removesuffix(".py")
    for job in JOBS.built_in.values():
        if plain in (job.name, *job.aliases):
            return job
    if plain in JOBS:
        return JOBS[plain]
    hint = suggestion(plain, [name for job in JOBS.values() for name in (job.name, *job.aliases)])
    next_step = "run_spark --list names the jobs"
    raise UsageError(
        f"there is no job {name!r}", next_step=f"{hint} {next_step}" if hint else next_step
    )


def job_of_table(table: str) -> Job:
    """Return the job that writes ``table``. Raises UsageError (2) with the names of all tables."""
    for job in JOBS.built_in.values():
        if table in (*job.tables, *job.aliases):
            return job
    for job in JOBS.values():
        if table in job.tables:
            return job
    tables = sorted({table for job in JOBS.values() for table in job.tables})
    hint = suggestion(table, tables)
    raise UsageError(
        f"there is no table {table!r}",
        found=", ".join(tables),
        next_step=hint or "name one of these tables",
    )
