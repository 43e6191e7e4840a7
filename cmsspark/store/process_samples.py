"""The processes of watched runs: one SQLite file of the state directory with the tables
Runs, Log and ProcessMonitor.

Times are UTC milliseconds (``_ms``), memory and volumes bytes, CPU seconds. NULL is
"not measured". The file is private: command lines stand in it, with their secrets
removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from cmsspark.base.errors import DataError, OutputError, UsageError
from cmsspark.store.run_history import StateDatabase

FILE: Final = "processes.sqlite"
#: States of a run: while it is watched; its exit code was 0; it was another; its watch
#: ended without a code.
RUNNING, DONE, FAILED, ENDED = "RUNNING", "DONE", "FAILED", "ENDED"
#: Runs, and rows of ProcessMonitor, that are kept; the oldest runs go first.
MOST_RUNS: Final = 1_000
MOST_ROWS: Final = 2_000_000
_T = TypeVar("_T", bound=msgspec.Struct)


class WatchedRun(msgspec.Struct, omit_defaults=True):
    """A row of ``Runs``. ``suite``, ``release`` and ``input_size`` are those of a run
    of a suite, else None.

    ``job``: what was started. ``root_pid``: the process whose tree is watched, 0 for a
    run of a suite.
    """

    run: str
    start_ms: int
    host: str
    job: str = ""
    end_ms: int | None = None
    suite: str | None = None
    user: str | None = None
    status: str = RUNNING
    exit_code: int | None = None
    root_pid: int = 0
    release: str | None = None
    input_size: float | None = None


class LogEntry(msgspec.Struct):
    """A row of ``Log``. ``type``: ``mark`` for the begin and end of a step, ``clock``
    for a node with another time, ``info`` or ``error``.
    """

    run: str
    time_ms: int
    type: str
    message: str
    host: str = ""


class ProcessSample(msgspec.Struct):
    """A row of ``ProcessMonitor``: a process at a time.

    ``cpu_percent``: of one core, since the sample before. ``rss_bytes`` counts shared
    pages in each process, ``pss_bytes`` its share of them; ``pss_bytes``, ``uss_bytes``
    and ``mapped_bytes`` (resident pages of files) are measured in the third sample and
    when memory has changed. ``virtual_bytes``: addresses, not memory. ``read_bytes``,
    ``write_bytes``: of disks. ``container``: YARN's. ``long_command`` is stored with
    the first sample of a process only.
    """

    run: str
    time_ms: int
    host: str
    pid: int
    ppid: int
    create_ms: int
    role: str
    cpu_percent: float | None = None
    cpu_seconds: float | None = None
    elapsed_seconds: float | None = None
    rss_bytes: int | None = None
    pss_bytes: int | None = None
    uss_bytes: int | None = None
    shared_bytes: int | None = None
    mapped_bytes: int | None = None
    virtual_bytes: int | None = None
    read_bytes: int | None = None
    write_bytes: int | None = None
    fds: int | None = None
    threads: int | None = None
    container: str | None = None
    short_command: str = ""
    long_command: str | None = None


_TYPES: Final = {"str": "TEXT", "int": "INTEGER", "float": "REAL"}


def _table(name: str, kind: type[msgspec.Struct], extra: str = "") -> str:
    columns = []
    for field in msgspec.structs.fields(kind):
        text = getattr(field.type, "__name__", None) or str(field.type).partition(" ")[0]
        columns.append(
            f"{field.name} {_TYPES[text]}{'' if 'None' in str(field.type) else ' NOT NULL'}"
        )
    return f"CREATE TABLE IF NOT EXISTS {name} ({', '.join(columns)}{extra});\n"


_SCHEMA: Final = (
    _table("Runs", WatchedRun, ", PRIMARY KEY (run)")
    + _table("Log", LogEntry)
    + _table("ProcessMonitor", ProcessSample, ", UNIQUE (run, time_ms, host, pid)")
    + "CREATE INDEX IF NOT EXISTS Runs_by_start ON Runs (start_ms);\n"
    + "CREATE UNIQUE INDEX IF NOT EXISTS Log_once ON Log (run, time_ms, host, type, message);\n"
)


class ProcessesDamaged(DataError):
    """The file of watched processes is no database (65)."""


class ProcessDatabase(StateDatabase):
    """Watched runs and their processes; open it with :func:`open_processes` or
    :func:`read_processes`.
    """

    label = "the database of watched processes"
    tables = _SCHEMA
    repair = "delete the file: it holds measurements only"
    damaged = ProcessesDamaged
    other_version = OutputError

    def _prepare(self) -> None:
        super()._prepare()
        # A sample each second is not worth waiting for the disk; a crash of the host
        # loses the last ones.
        self._db.execute("PRAGMA synchronous=NORMAL")

    def put_run(self, run: WatchedRun) -> None:
        """Insert a run, or replace it."""
        self._insert("Runs", WatchedRun, [run], "REPLACE")

    def add(self, samples: Sequence[ProcessSample], entries: Sequence[LogEntry] = ()) -> None:
        """Store samples and log entries; those that are there already stay as they are."""
        with self._transaction():
            self._insert("ProcessMonitor", ProcessSample, samples, "IGNORE")
            self._insert("Log", LogEntry, entries, "IGNORE")

    def _insert(
        self, table: str, kind: type[msgspec.Struct], rows: Iterable[msgspec.Struct], conflict: str
    ) -> None:
        marks = ", ".join("?" * len(kind.__struct_fields__))
        names = ", ".join(kind.__struct_fields__)
        with self._guard():
            self._db.executemany(
                f"INSERT OR {conflict} INTO {table} ({names}) VALUES ({marks})",  # noqa: S608 -- names of ours
                (msgspec.structs.astuple(row) for row in rows),
            )

    def prune(self) -> int:
        """Delete the oldest runs beyond those that are kept. Returns their number."""
        with self._transaction() as db:
            runs = db.execute(
                "SELECT run, (SELECT count(*) FROM ProcessMonitor p WHERE p.run = r.run) FROM Runs r "
                "ORDER BY start_ms DESC"
            ).fetchall()
            rows, old = 0, []
            for number, (run, count) in enumerate(runs):
                rows += count
                if number and (number >= MOST_RUNS or rows > MOST_ROWS):
                    old.append((run,))
            for table in ("Runs", "Log", "ProcessMonitor"):
                db.executemany(f"DELETE FROM {table} WHERE run = ?", old)  # noqa: S608 -- a constant
        return len(old)

    def runs(self, *, suite: str | None = None, limit: int = -1) -> list[WatchedRun]:
        """Return runs, the latest first; with ``suite`` only its."""
        condition = "WHERE ? IS NULL OR suite = ? ORDER BY start_ms DESC, run DESC LIMIT ?"
        return self._select(WatchedRun, f"Runs {condition}", (suite, suite, limit))

    def find(self, name: str) -> WatchedRun:
        """Return the run whose id begins with ``name``. ``latest``: the one that began
        last. Raises UsageError (2).
        """
        runs = self.runs()
        matches = (
            runs[:1] if name == "latest" else [run for run in runs if run.run.startswith(name)]
        )
        if len(matches) == 1:
            return matches[0]
        ids = ", ".join(run.run for run in matches[:5]) or "none"
        raise UsageError(
            f"{'several watched runs have' if matches else 'no watched run has'} an id that begins"
            f" with {name!r}",
            found=ids,
            next_step="cmsspark monitor runs lists them",
        )

    def samples(self, run: str) -> list[ProcessSample]:
        """Return all samples of a run, in the order of their times."""
        return self._select(
            ProcessSample, "ProcessMonitor WHERE run = ? ORDER BY time_ms, host, pid", (run,)
        )

    def latest_samples(self) -> list[ProcessSample]:
        """Return the last sample of each host: of all its processes."""
        last = "SELECT host, max(time_ms) FROM ProcessMonitor GROUP BY host"
        return self._select(
            ProcessSample, f"ProcessMonitor WHERE (host, time_ms) IN ({last}) ORDER BY host, pid"
        )

    def log(self, run: str) -> list[LogEntry]:
        """Return the log of a run, in the order of its times."""
        return self._select(LogEntry, "Log WHERE run = ? ORDER BY time_ms, rowid", (run,))

    def _select(self, kind: type[_T], rest: str, parameters: Sequence[Any] = ()) -> list[_T]:
        """Return rows as structs. ``rest``: the query from its table on."""
        names = ", ".join(kind.__struct_fields__)
        return [kind(*row) for row in self.rows(f"SELECT {names} FROM {rest}", parameters)]  # noqa: S608 -- names of ours

    def rows(self, query: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query of ours."""
        with self._guard():
            return self._db.execute(query, tuple(parameters)).fetchall()


def open_processes(state_dir: Path) -> AbstractContextManager[ProcessDatabase]:
    """Yield the database of a state directory, made where there is none; a damaged one
    is set aside.

    Raises OutputError (73) if it cannot be written.
    """
    return ProcessDatabase.opened(state_dir / FILE)


def read_processes(state_dir: Path) -> AbstractContextManager[ProcessDatabase | None]:
    """Yield the database to read only; None if there is none yet. Raises ProcessesDamaged (65)."""
    return ProcessDatabase.to_read(state_dir / FILE)
