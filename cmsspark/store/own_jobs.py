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
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from cmsspark.base import entry_points, schemas
from cmsspark.base.errors import CmssparkError, SettingsError, as_ours
from cmsspark.base.schemas import Column, Table
from cmsspark.settings import settings as settings_module

if TYPE_CHECKING:
    from cmsspark.settings.settings import Settings

#: The entry points of packages with jobs.
GROUP: Final = "cmsspark.jobs"
#: The file in the state directory.
FILE_NAME: Final = "own_jobs.json"
#: The folder of this package, which travels anyway.
_PACKAGE: Final = Path(__file__).parents[1]
#: Seconds until files are looked at again.
_FRESH_S: Final = 1.0
_VERSION: Final = 1


@dataclass(frozen=True)
class OwnJob:
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
        return {"entry": dict(self.entry), "table": asdict(self.table)}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any], where: str) -> OwnJob:
        """Return a job as it was kept. Raises KeyError and TypeError for another format."""
        table = dict(document["table"])
        table["columns"] = tuple(Column(**column) for column in table["columns"])
        table["keys"] = tuple(table["keys"])
        return cls(document["entry"], Table(**table), where)


@dataclass
class Source:
    """A file or an entry point: what it declares, or why it cannot be imported.

    ``stamp``: size and time of a file, the version of a package. ``is_named``: a file
    that was run by its path, and lies in no folder of the settings.
    """

    stamp: list[Any]
    jobs: list[OwnJob] = field(default_factory=list)
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
        for path in files_of_jobs(settings):
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


def files_of_jobs(settings: Settings) -> list[Path]:
    """Return the files in the folders of the settings, without tests and private ones."""
    files: list[Path] = []
    for folder in settings.job_folders:
        files += sorted(
            path.absolute()
            for path in Path(folder).glob("*.py")
            if not path.name.startswith(("_", "test_", "conftest"))
        )
    return files


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
