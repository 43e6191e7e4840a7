"""The run history: every run of every job, in one SQLite file of the state directory.

It informs people and ``cmsspark daily``; the results are in the store, and a run
history that is missing or damaged is rebuilt from the manifests there. The file is
private: it contains the messages of failed runs.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from datetime import date
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple, Self

import msgspec
from msgspec.structs import asdict, fields, replace

from cmsspark.base import dates, private_folders
from cmsspark.base.errors import CmssparkError, DataError, Exit, OutputError, UsageError
from cmsspark.base.manifests import Manifest
from cmsspark.base.text.spelling import suggestion
from cmsspark.base.text.terminal import pluralize, volume
from cmsspark.filesystems.storage import absolute, is_same_place
from cmsspark.store import lease
from cmsspark.store.own_jobs import JOBS
from cmsspark.store.run_metrics import RunMetrics

# A SQLite file of the state directory: opened, checked and guarded, so that its errors
# say which file is concerned.


def make_private(path: Path, label: str) -> None:
    """Make the file where there is none, before SQLite opens it, which would make it
    readable by all.

    A file that exists is not opened: closing it again would take away the locks that
    another connection of this process has on it, and two writers would damage it.
    Raises OutputError (73) if it cannot be made.
    """
    try:
        private_folders.make_private(path.parent)
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except OSError as error:
        raise OutputError(f"{label} cannot be written", where=path, found=str(error)) from None


def sqlite_files(path: Path) -> list[Path]:
    """Return the files of a SQLite database that exist: the database, its log, its index."""
    names = (path.with_name(path.name + suffix) for suffix in ("", "-wal", "-shm"))
    return [name for name in names if name.exists()]


def set_aside(path: Path, label: str) -> str:
    """Rename the files of a damaged database; return its new name. Raises OutputError (73)."""
    ending = f".damaged-{dates.stamp()}"
    # The database last: until then other processes find it damaged.
    for file in reversed(sqlite_files(path)):
        try:
            file.rename(file.with_name(file.name + ending))
        except OSError as error:
            raise OutputError(
                f"{label} cannot be set aside", where=file, found=error.strerror
            ) from None
    return path.name + ending


class StateDatabase:
    """A SQLite file. A subclass says what the file is, which tables it has, and how it
    is repaired.

    Raises ``damaged`` (65) for a file that is no database, ``other_version`` for one of
    another version, OutputError (73) where the file cannot be written.
    """

    #: As messages name it.
    label: ClassVar[str]
    version: ClassVar[int] = 1
    tables: ClassVar[str]
    repair: ClassVar[str]
    damaged: ClassVar[type[DataError]]
    other_version: ClassVar[type[CmssparkError]]

    def __init__(self, path: Path) -> None:
        self.path = path
        make_private(path, self.label)
        with self._guard():
            self._db = sqlite3.connect(path, isolation_level=None, timeout=10)
            try:
                self._prepare()
            except BaseException:
                self._db.close()
                raise

    @classmethod
    @contextmanager
    def opened(cls, path: Path, notes: list[str] | None = None) -> Iterator[Self]:
        """Yield the database, made where there is none; a damaged one is set aside, with a note.

        Raises OutputError (73) if it cannot be written.
        """
        try:
            database = cls(path)
        except cls.damaged:
            database = cls._replaced(path, notes)
        with closing(database):
            yield database

    @classmethod
    def _replaced(cls, path: Path, notes: list[str] | None) -> Self:
        """Set a damaged database aside and return a new one; the one of a process that
        has done so meanwhile.
        """
        lock_file = path.with_name(f"{path.name}.lock")
        make_private(lock_file, cls.label)
        with lock_file.open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                return cls(path)
            except cls.damaged as error:
                copy = set_aside(path, cls.label)
                if notes is not None:
                    notes.append(
                        f"{cls.label} was damaged ({error.found}) and is kept as {copy}; a new one was created"
                    )
                return cls(path)

    @classmethod
    @contextmanager
    def to_read(cls, path: Path) -> Iterator[Self | None]:
        """Yield the database, to which nothing can be written; None if there is
        none. Raises ``damaged`` (65).
        """
        if not path.is_file():
            yield None
            return
        database = cls.__new__(cls)
        database.path = path
        with database._guard():
            database._db = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=5
            )
        with closing(database):
            yield database

    def _prepare(self) -> None:
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, self.version):
            actual = f"version {version} instead of {self.version}"
            raise self.other_version(
                f"{self.label} has another version", where=self.path, found=actual
            )
        self._db.executescript(self.tables)
        self._db.execute(f"PRAGMA user_version={self.version}")

    def close(self) -> None:
        """Close the database; what was committed stays."""
        self._db.close()

    def check(self) -> None:
        """Raise ``damaged`` (65), and close the database, where SQLite finds an
        inconsistency in the file.
        """
        with self._guard():
            (status,) = self._db.execute("PRAGMA quick_check(1)").fetchone()
        if status != "ok":
            self._db.close()
            raise self._damaged(status)

    def _damaged(self, status: str) -> DataError:
        return self.damaged(
            f"{self.label} is damaged", where=self.path, found=status, next_step=self.repair
        )

    @contextmanager
    def _guard(self) -> Iterator[None]:
        """Turn SQLite's errors into ours."""
        try:
            yield
        except sqlite3.OperationalError as error:
            raise OutputError(
                f"{self.label} cannot be written", where=self.path, found=str(error)
            ) from None
        except sqlite3.DatabaseError as error:
            raise self._damaged(str(error)) from None

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Yield all statements of the block, or none."""
        with self._guard():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")


FILE: Final = "runs.sqlite"
#: A run on another host is taken for ended after this time.
SILENT_MS: Final = 2 * 86_400_000


class State(StrEnum):
    """The states of a run."""

    RUNNING = "RUNNING"
    DONE = "DONE"
    FAILED = "FAILED"
    INTERRUPTED = "INTERRUPTED"


class Run(msgspec.Struct, frozen=True):
    """One run. ``stored_run`` is its id in the store, None before it is stored; times are UTC ms.

    ``fingerprint`` is a digest of its inputs' files, ``rows`` of its report;
    ``details`` hold the part of the manifest with versions, tables, bins, dumps,
    warnings and missing streams. ``exit_code`` and ``error`` are those of a run that
    failed.
    """

    run: str
    job: str
    day: date
    state: State
    store: str
    began_ms: int
    stored_run: str | None = None
    ended_ms: int | None = None
    seconds: float | None = None
    rows: int | None = None
    is_partial: bool = False
    fingerprint: str | None = None
    exit_code: int | None = None
    error: str | None = None
    process: Mapping[str, Any] = msgspec.field(default_factory=dict)
    details: Manifest = msgspec.field(default_factory=lambda: Manifest.from_dict({}))

    @property
    def interval(self) -> str:
        """The day that the run is of, or its period's name."""
        return self.details.period or self.day.isoformat()

    @property
    def failure(self) -> str:
        """The exit code and the first line of the error; an empty text without one."""
        line = (self.error or "").partition("\n")[0]
        return f"{self.exit_code}: {line}" if self.exit_code and line else ""

    def as_dict(self) -> dict[str, Any]:
        """Return the run as ``--json`` prints it."""
        day, details = self.day.isoformat(), self.details.document
        return {**asdict(self), "day": day, "state": self.state.value, "details": details}


class Published(msgspec.Struct, frozen=True):
    """What became of the documents of a stored run's table at a destination, when it
    was last published.

    ``destination`` names it for people. ``outbox`` is the name of its folder in the
    outbox, which stays the same where a broker moves; it is empty for publications of
    earlier versions, and if no outbox could be made. ``reason``: why documents wait
    or were refused, in the destination's words.
    """

    job: str
    table: str
    day: date
    stored_run: str
    destination: str
    at_ms: int
    confirmed: int
    waiting: int
    refused: int
    outbox: str = ""
    reason: str = ""


class Check(msgspec.Struct, frozen=True):
    """The last verification of the current result of a day or period, named as its
    folder; ``error`` is empty if all bytes are those of its manifest. ``part_count`` is 0
    where its manifest has no checksums.
    """

    job: str
    interval: str
    stored_run: str
    at_ms: int
    part_count: int
    error: str = ""


def describe(run: Run) -> Iterator[tuple[str, str]]:
    """Yield what is known of a run as labels and texts; every command and page that
    shows a run renders these.
    """
    yield "run", run.run
    if run.stored_run:
        yield "stored as", run.stored_run
    yield "store", run.store
    yield "started", f"{dates.to_second(run.began_ms)} UTC"
    if run.seconds is not None:
        yield "took", f"{run.seconds:,.1f} s"
    if run.process:
        yield "by", f"process {run.process.get('pid')} on {run.process.get('host')}"
    if run.fingerprint:
        yield "inputs", run.fingerprint[:16]
    yield from describe_result(run.details)


def describe_result(manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Yield what a manifest says of its result, as :func:`describe` does of the run."""
    if days := manifest.days:
        yield "days", f"{len(days)}, {min(days)} to {max(days)}"
    for name, entry in manifest.tables.items():
        yield "table", f"{name}: {pluralize(entry.rows, 'row')}, {volume(entry.bytes or 0)}"
    for kind, dump in manifest.dumps.items():
        yield "dump", f"{kind} of {dump.day or 'no date'}: {dump.folder}"
    if manifest.missing_streams:
        yield "missing", ", ".join(manifest.missing_streams)
    versions = [f"{name} {value}" for name, value in manifest.versions.items() if value]
    if versions:
        yield "versions", ", ".join(versions)


_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS runs (
    run TEXT PRIMARY KEY, job TEXT NOT NULL, day TEXT NOT NULL, state TEXT NOT NULL, store TEXT NOT NULL,
    began_ms INTEGER NOT NULL, stored_run TEXT, ended_ms INTEGER, seconds REAL, rows INTEGER,
    is_partial INTEGER NOT NULL DEFAULT 0, fingerprint TEXT, exit_code INTEGER, error TEXT,
    process TEXT NOT NULL DEFAULT '{}', details TEXT NOT NULL DEFAULT '{}'
);
CREATE INDEX IF NOT EXISTS runs_by_day ON runs (day, job, began_ms);
CREATE INDEX IF NOT EXISTS runs_by_stored_run ON runs (stored_run);
CREATE TABLE IF NOT EXISTS published (
    job TEXT NOT NULL, "table" TEXT NOT NULL, day TEXT NOT NULL, stored_run TEXT NOT NULL, destination TEXT NOT NULL,
    at_ms INTEGER NOT NULL, confirmed INTEGER NOT NULL, waiting INTEGER NOT NULL, refused INTEGER NOT NULL,
    PRIMARY KEY (day, job, "table", stored_run, destination)
);
CREATE TABLE IF NOT EXISTS destinations (
    job TEXT NOT NULL, "table" TEXT NOT NULL, day TEXT NOT NULL, stored_run TEXT NOT NULL, destination TEXT NOT NULL,
    outbox TEXT NOT NULL, reason TEXT NOT NULL,
    PRIMARY KEY (day, job, "table", stored_run, destination)
);
CREATE TABLE IF NOT EXISTS checks (
    store TEXT NOT NULL, job TEXT NOT NULL, interval TEXT NOT NULL, stored_run TEXT NOT NULL, at_ms INTEGER NOT NULL,
    part_count INTEGER NOT NULL, error TEXT NOT NULL, PRIMARY KEY (store, job, interval)
);
CREATE TABLE IF NOT EXISTS stores (store TEXT PRIMARY KEY, read_ms INTEGER NOT NULL);
"""
_COLUMNS: Final = ", ".join(field.name for field in fields(Run))


class RunHistoryDamaged(DataError):
    """The run history is no database (65); it can be rebuilt from the manifests."""


class RunHistory(StateDatabase):
    """The run history in ``path``; open it with :func:`open_history`."""

    label = "the run history"
    tables = _SCHEMA
    repair = "cmsspark runs --rebuild"
    damaged = RunHistoryDamaged
    other_version = OutputError

    def _prepare(self) -> None:
        super()._prepare()
        self.check()

    def put(self, run: Run) -> None:
        """Insert the run, or replace its earlier state."""
        values = run.as_dict()
        values |= {name: json.dumps(values[name]) for name in ("process", "details")}
        with self._guard():
            marks = ", ".join("?" * len(values))
            self._db.execute(
                f"INSERT OR REPLACE INTO runs ({_COLUMNS}) VALUES ({marks})",  # noqa: S608
                tuple(values.values()),
            )

    def sweep(self, now_ms: int | None = None) -> int:
        """Mark runs whose process has ended as INTERRUPTED. Returns their number."""
        now = dates.now_ms() if now_ms is None else now_ms
        ended = [run for run in self.runs(state=State.RUNNING) if _is_over(run, now)]
        for run in ended:
            reason = "the process was ended from outside"
            self.put(
                replace(run, state=State.INTERRUPTED, exit_code=int(Exit.NOT_READY), error=reason)
            )
        return len(ended)

    def runs(
        self,
        *,
        job: str | None = None,
        first: date | None = None,
        last: date | None = None,
        state: State | None = None,
        store: str | None = None,
        limit: int = -1,
    ) -> list[Run]:
        """Return runs of days from ``first`` to ``last`` (both included), the latest
        begun first; with ``store`` only those of this store.
        """
        locations = json.dumps(self._spellings(store))
        parameters = (
            job,
            job,
            first and first.isoformat(),
            last and last.isoformat(),
            state,
            state,
            locations,
            limit,
        )
        with self._guard():
            rows = self._db.execute(
                f"SELECT {_COLUMNS} FROM runs WHERE (? IS NULL OR job = ?) AND day >= coalesce(?, '') "  # noqa: S608 -- a constant
                "AND day <= coalesce(?, '9999-99-99') AND (? IS NULL OR state = ?) "
                "AND store IN (SELECT value FROM json_each(?)) "
                "ORDER BY began_ms DESC, run DESC LIMIT ?",
                parameters,
            ).fetchall()
        return [_run(row) for row in rows]

    def stored_days(self, store: str | None = None) -> dict[str, list[date]]:
        """Return the days with a result in the store by job, in order; without ``store``, in any.

        Periods are left out.
        """
        stored: dict[str, list[date]] = {}
        with self._guard():
            query = "SELECT DISTINCT job, day, store FROM runs WHERE state = ? ORDER BY job, day"
            rows = self._db.execute(query, (State.DONE,)).fetchall()
        stores = self._spellings(store)
        for job, day in dict.fromkeys(
            (job, day) for job, day, location in rows if location in stores
        ):
            stored.setdefault(job, []).append(date.fromisoformat(day))
        return stored

    def _spellings(self, store: str | None) -> list[str]:
        """Return the recorded locations that are this store; without ``store``, all."""
        with self._guard():
            rows = self._db.execute("SELECT DISTINCT store FROM runs").fetchall()
        return [
            location for (location,) in rows if store is None or is_same_place(location, store)
        ]

    def find(self, name: str, store: str | None = None) -> Run:
        """Return the run whose id, here or in the store, begins with ``name``.
        ``latest``: the run that began last, of ``store`` where it is given.

        Raises UsageError (2) for none or several.
        """
        if name == "latest":
            runs = self.runs(store=store, limit=1)
            if not runs:
                raise UsageError(
                    "no run is recorded yet", next_step="run_spark --list names the jobs"
                )
            return runs[0]
        pattern = name.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"
        with self._guard():
            rows = self._db.execute(
                f"SELECT {_COLUMNS} FROM runs WHERE run LIKE ? ESCAPE '\\' OR stored_run LIKE ? ESCAPE '\\' LIMIT 5",  # noqa: S608 -- a constant
                (pattern, pattern),
            ).fetchall()
        if len(rows) == 1:
            return _run(rows[0])
        ids = ", ".join(row[0] for row in rows)
        if ids:
            raise UsageError(
                f"several runs have an id that begins with {name!r}",
                found=ids,
                next_step="write more of the id",
            )
        names = sorted({name for job in JOBS.values() for name in (job.name, *job.tables)})
        hint = suggestion(name, names, cutoff=0.7)
        raise UsageError(
            f"there is no table {name!r}"
            if hint
            else f"no run has an id that begins with {name!r}",
            found=hint or None,
            next_step="run_spark --list names the jobs; cmsspark runs lists the ids of runs",
        )

    def note_published(self, published: Published) -> None:
        """Record the outcome of publishing a table."""
        values = {**asdict(published), "day": published.day.isoformat()}
        *counted, outbox, reason = values.values()
        with self._transaction() as db:
            db.execute(
                "INSERT OR REPLACE INTO published VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", counted
            )
            db.execute(
                "INSERT OR REPLACE INTO destinations VALUES (?, ?, ?, ?, ?, ?, ?)",
                (*counted[:5], outbox, reason),
            )

    def published(self, first: date | None = None, last: date | None = None) -> list[Published]:
        """Return publications of days from ``first`` to ``last`` (both included)."""
        with self._guard():
            # A file of an earlier version that is only read has no table of destinations.
            has_more = self._db.execute(
                "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'destinations'"
            ).fetchone()
            more = "coalesce(outbox, ''), coalesce(reason, '')" if has_more else "'', ''"
            join = (
                'LEFT JOIN destinations USING (job, "table", day, stored_run, destination)'
                if has_more
                else ""
            )
            rows = self._db.execute(
                'SELECT job, "table", day, stored_run, destination, at_ms, confirmed, waiting, '  # noqa: S608 -- constants
                f"refused, {more} FROM published {join} "
                "WHERE day >= coalesce(?, '') AND day <= coalesce(?, '9999-99-99')",
                (first and first.isoformat(), last and last.isoformat()),
            ).fetchall()
        return [Published(row[0], row[1], date.fromisoformat(row[2]), *row[3:]) for row in rows]

    def note_check(self, store: str, check: Check) -> None:
        """Record a verification in place of the one before."""
        with self._guard():
            self._db.execute(
                "INSERT OR REPLACE INTO checks VALUES (?, ?, ?, ?, ?, ?, ?)",
                (absolute(store), *asdict(check).values()),
            )

    def checks(self, store: str) -> dict[tuple[str, str], Check]:
        """Return the last verifications in a store by job and name of the interval."""
        with self._guard():
            rows = self._db.execute(
                "SELECT job, interval, stored_run, at_ms, part_count, error FROM checks WHERE store = ?",
                (absolute(store),),
            ).fetchall()
        return {(row[0], row[1]): Check(*row) for row in rows}

    def knows_store(self, store: str) -> bool:
        """Return whether the manifests of that store were read into this run history."""
        with self._guard():
            return (
                self._db.execute("SELECT 1 FROM stores WHERE store = ?", (store,)).fetchone()
                is not None
            )

    def rebuild(self, store: str, runs: Iterable[Run]) -> int:
        """Add the store's runs that are not recorded yet. Returns their number."""
        added = 0
        with self._transaction() as db:
            recorded = {
                row[0]
                for row in db.execute("SELECT stored_run FROM runs WHERE stored_run IS NOT NULL")
            }
            for run in runs:
                if run.stored_run not in recorded:
                    self.put(run)
                    added += 1
            db.execute("INSERT OR REPLACE INTO stores VALUES (?, ?)", (store, dates.now_ms()))
        return added


def read_history(state_dir: Path) -> AbstractContextManager[RunHistory | None]:
    """Yield the run history to read only; None if there is none yet. Raises
    RunHistoryDamaged (65).
    """
    return RunHistory.to_read(state_dir / FILE)


def as_of_now(run: Run, now_ms: int) -> Run:
    """Return the run; one whose process has ended meanwhile is INTERRUPTED, as
    :meth:`RunHistory.sweep` would write.
    """
    is_over = run.state is State.RUNNING and _is_over(run, now_ms)
    return replace(run, state=State.INTERRUPTED, exit_code=int(Exit.NOT_READY)) if is_over else run


def open_history(
    state_dir: Path, notes: list[str] | None = None
) -> AbstractContextManager[RunHistory]:
    """Yield the run history of a state directory, created where there is none; a
    damaged one is set aside, with a note.

    Raises OutputError (73) if it cannot be written.
    """
    return RunHistory.opened(state_dir / FILE, notes)


def _is_over(run: Run, now_ms: int) -> bool:
    alive = lease.lives(run.process)
    if alive is None:
        # Of another boot of this host, or of another host.
        is_ours = run.process.get("host") == lease.identity()["host"]
        return is_ours or now_ms - run.began_ms > SILENT_MS
    return not alive


def _run(row: tuple[Any, ...]) -> Run:
    values = dict(zip(_COLUMNS.split(", "), row, strict=True))
    try:
        process, details = (
            json.loads(values["process"]),
            Manifest.from_dict(json.loads(values["details"])),
        )
    except (ValueError, AttributeError) as wrong:
        raise RunHistoryDamaged(
            f"run {values['run']} of the run history is damaged",
            found=str(wrong),
            next_step=RunHistory.repair,
        ) from None
    typed = {"day": date.fromisoformat(values["day"]), "state": State(values["state"])}
    typed |= {"is_partial": bool(values["is_partial"]), "process": process, "details": details}
    return Run(**{**values, **typed})


# The exception that ended a run: of a task, else of the driver's Python.

#: What a trace of Python begins with.
TRACE: Final = "Traceback (most recent call last):"
_LONGEST_LINE: Final = 300


def exception_line(text: str) -> str:
    """Return the line of a text that names its error: after the frames of its last
    Python trace, else the first one.

    Example:
        >>> exception_line("Traceback (most recent call last):\\n  File …\\nValueError: no number\\n SQLSTATE: 3")
        'ValueError: no number'
    """
    lines = text.strip().splitlines() or [""]
    last = max((number for number, line in enumerate(lines) if TRACE in line), default=None)
    if last is None:
        return lines[0]
    return next((line for line in lines[last + 1 :] if line[:1].strip()), lines[0])


class RunException(NamedTuple):
    """An exception: the line that names it, how many tasks it ended (0 of the driver),
    and all that was written.
    """

    line: str
    tasks: int
    text: str

    @property
    def summary(self) -> str:
        """The line, and how many tasks the exception ended."""
        return f"{self.line} ({pluralize(self.tasks, 'task')})" if self.tasks else self.line


def find_exception(metrics: RunMetrics) -> RunException | None:
    """Return what ended a run that failed; of a run that went well after a failure,
    that failure. None without any.
    """
    counts = {
        line: count
        for line, count in metrics.failures.items()
        if line.startswith("ExceptionFailure") and count
    }
    if counts and (
        metrics.failed_jobs or metrics.state != "FAILED" or metrics.driver_trace is None
    ):
        line = max(counts, key=lambda text: counts[text])
        return RunException(
            line.partition(": ")[2] or line, counts[line], metrics.failure_texts.get(line, line)
        )
    if metrics.driver_trace is not None:
        return RunException(
            exception_line(metrics.driver_trace)[:_LONGEST_LINE], 0, metrics.driver_trace
        )
    if metrics.stage_failures:
        line = next(iter(metrics.stage_failures))
        return RunException(line, 0, line)
    return None


class TraceBuffer:
    """Keeps what the driver writes from its last traces on, at most 20,000 characters."""

    _MOST = 20_000

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._size = 0

    def take(self, line: str) -> None:
        """Take a line of the driver's log."""
        if not self._lines and TRACE not in line:
            return
        self._lines.append(line.rstrip("\n"))
        self._size += len(line)
        while self._size > self._MOST and len(self._lines) > 1:
            self._size -= len(self._lines.pop(0))

    def text(self) -> str | None:
        """Return the lines; None if no trace was written."""
        return "\n".join(self._lines)[-self._MOST :] if self._lines else None
