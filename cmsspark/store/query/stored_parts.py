"""The current part files of every stored table, and what is known of each stored day and period.

A run is immutable, so what was once read of a run stays valid: a refresh reads each
``CURRENT`` again, and a manifest only if another run became current. An interval
whose files are damaged or gone stands in the index with its error, which only a query
that needs this interval gets.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import date, timedelta
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from cmsspark.base import dates
from cmsspark.base.errors import CmssparkError, DataError, InputMissing
from cmsspark.base.manifests import InputEntry, Manifest, TableEntry
from cmsspark.base.periods import Interval, Period, first_day, named
from cmsspark.base.schemas import Table, stored_table
from cmsspark.filesystems.storage import Files, join
from cmsspark.store import results
from cmsspark.store.own_jobs import JOBS, Job
from cmsspark.store.part_files import StoredPart, stored_parts
from cmsspark.store.results import CurrentTable
from cmsspark.store.stored_days import partial_reasons

if TYPE_CHECKING:
    pass


#: A day lacks a stream where a day at most so many days before or after it has that stream.
_AROUND_DAYS: Final = 7


class StoredInterval(msgspec.Struct, frozen=True):
    """The current result of one table of a job for one day or period.

    ``rows`` and ``bytes`` as its manifest says. ``partial_reason``: empty, or why the
    result is partial. ``fault``: the error of a query that needs it, where the store is
    damaged. ``streams``: the log streams that its run counted.
    """

    table: str
    job: str
    interval: Interval
    run: str
    rows: int = 0
    bytes: int = 0
    fmt: str = "parquet"
    has_own_schema: bool = False
    parts: tuple[StoredPart, ...] = ()
    partial_reason: str = ""
    fault: CmssparkError | None = None
    streams: tuple[str, ...] = ()

    @property
    def is_converted(self) -> bool:
        """Whether its files are given as others than they are: CSV, and columns of
        another version of the schema.
        """
        return self.fault is None and (self.fmt != "parquet" or self.has_own_schema)

    @property
    def first_day(self) -> date:
        """Its first day."""
        return first_day(self.interval)

    @property
    def last_day(self) -> date:
        """Its last day, included."""
        return self.interval.last if isinstance(self.interval, Period) else self.interval

    @property
    def made_ms(self) -> int | None:
        """When its run began, UTC ms; None if the run's id does not say."""
        try:
            return dates.run_began_ms(self.run)
        except ValueError:
            return None


class _SlimInput(msgspec.Struct):
    """What a run read, without its files."""

    is_tmp: bool | None = None


class _SlimManifest(msgspec.Struct):
    """The parts of a manifest that say where its tables are and whether it is partial.
    A day's may list 10,000 files: decoding these alone is ten times as fast.
    """

    run: str = ""
    job: str = ""
    tables: dict[str, TableEntry] = {}
    streams: tuple[str, ...] | None = None
    missing_streams: tuple[str, ...] | None = None
    partial: bool | None = None
    damaged: list[msgspec.Raw] | None = None
    inputs: list[_SlimInput] | None = None


_SLIM: Final = msgspec.json.Decoder(_SlimManifest)


class _StoredRun(msgspec.Struct):
    """What was read of a job's current run of one interval: a slim manifest, and its tables."""

    run: str
    manifest: Manifest
    tables: dict[str, StoredInterval]

    @property
    def faults(self) -> list[str]:
        """What is wrong with its tables. Only such a run is read again: files may be put back."""
        return [entry.fault.text() for entry in self.tables.values() if entry.fault is not None]


class StoredParts(msgspec.Struct):
    """The index of a store. :meth:`refresh` brings jobs up to date; :meth:`of` gives a
    table's intervals, in order.

    Not thread-safe: :class:`cmsspark.store.query.database.Database` holds a lock around it.
    """

    files: Files
    fout: str
    _runs: dict[str, dict[Interval, _StoredRun]] = msgspec.field(default_factory=dict)

    def refresh(self, job: Job) -> bool:
        """Read which runs of the job are current. Returns whether anything changed."""
        before = self._runs.get(job.name)
        earlier = before or {}
        runs: dict[Interval, _StoredRun] = {}
        for interval, path in self._intervals(job):
            run = self._current_run(path)
            if run is None:
                continue
            old = earlier.get(interval)
            runs[interval] = (
                old
                if old and old.run == run and run and not old.faults
                else self._read(job, interval, run)
            )
            if old and old.faults and (old.run, old.faults) == (run, runs[interval].faults):
                runs[interval] = old
        is_same = (
            before is not None
            and runs.keys() == before.keys()
            and all(run is earlier[interval] for interval, run in runs.items())
        )
        if not is_same:
            self._runs[job.name] = _with_reasons(runs)
        return not is_same

    def intervals(self, job: Job, table: str) -> list[StoredInterval]:
        """Return the stored intervals of a table, oldest first, as the last refresh found them."""
        runs = self._runs.get(job.name, {})
        stored = (run.tables[table] for run in runs.values() if table in run.tables)
        return sorted(stored, key=lambda entry: (entry.first_day, entry.last_day))

    def forget(self, job: Job) -> None:
        """Read everything of a job again at its next refresh, for example after files
        of it were not found.
        """
        self._runs.pop(job.name, None)

    def _intervals(self, job: Job) -> Iterator[tuple[Interval, str]]:
        base = join(self.fout, job.name)
        try:
            entries = self.files.list_dir(base) if self.files.stat(base) is not None else []
        except InputMissing:
            return
        for entry in entries:
            try:
                interval = named(entry.name)
            except ValueError:
                continue
            if entry.is_dir and isinstance(interval, Period) == job.of_periods:
                yield interval, entry.path

    def _current_run(self, folder: str) -> str | None:
        """Return the run that ``CURRENT`` names; None if there is none yet, an empty
        text where it is damaged.
        """
        path = join(folder, "CURRENT")
        try:
            run = json.loads(self.files.read_bytes(path)).get("run")
        except InputMissing:
            return None
        except (ValueError, AttributeError):
            return ""
        return run if isinstance(run, str) else ""

    def _read(self, job: Job, interval: Interval, run: str) -> _StoredRun:
        tables: dict[str, StoredInterval] = {}
        folder = join(self.fout, job.name, interval.isoformat(), "runs", run)
        slim = self._slim_manifest(folder) if run else None
        for table in job.tables:
            path = join(folder, table)
            try:
                if slim is not None and table in slim.tables and self.files.stat(path) is not None:
                    current = CurrentTable(path, slim)
                else:
                    # Says what is wrong: no such table, or a damaged store.
                    current = results.current(self.files, self.fout, job.name, table, interval)
                tables[table] = self._table(current, stored_table(table), job, interval)
            except InputMissing:
                continue  # this run has no such table
            except CmssparkError as error:
                tables[table] = StoredInterval(table, job.name, interval, run, fault=error)
        return _StoredRun(run, slim or Manifest(document={}), tables)

    def _slim_manifest(self, folder: str) -> Manifest | None:
        """Return what the index needs of a run's manifest, without its lists of files;
        None if it cannot be read.
        """
        try:
            slim = _SLIM.decode(self.files.read_bytes(join(folder, "manifest.json")))
        except (CmssparkError, msgspec.MsgspecError, ValueError):
            return None
        return Manifest(
            document={},
            run=slim.run,
            job=slim.job,
            tables=slim.tables,
            streams=slim.streams or (),
            missing_streams=slim.missing_streams or (),
            partial=bool(slim.partial),
            damaged=({},) if slim.damaged else (),
            inputs=(InputEntry(is_tmp=True),)
            if any(source.is_tmp for source in slim.inputs or ())
            else (),
        )

    def _table(
        self, current: CurrentTable, schema: Table, job: Job, interval: Interval
    ) -> StoredInterval:
        manifest = current.manifest
        entry = manifest.tables[schema.name]
        fmt = entry.format
        parts = tuple(stored_parts(self.files, current, schema.name))
        stored = StoredInterval(
            schema.name,
            job.name,
            interval,
            manifest.run,
            entry.rows,
            sum(part.size for part in parts),
            fmt,
            bool(entry.schema) and entry.schema != schema.fingerprint(),
            parts,
            streams=tuple(
                stream for stream in manifest.streams if stream not in manifest.missing_streams
            ),
        )
        # An old run does not say how many files and bytes it wrote.
        expected = (
            entry.files or len(parts),
            stored.bytes if entry.bytes is None else entry.bytes,
        )
        if expected == (len(parts), stored.bytes):
            return stored
        fault = DataError(
            f"the part files of {schema.name} of {interval} are others than its manifest says",
            where=current.path,
            found=f"{len(parts)} files of {stored.bytes:,} bytes; {expected[0]} of {expected[1]:,} bytes were written",
            next_step=f"run {manifest.job} again for {interval}",
        )
        return replace(stored, fault=fault)


def tables() -> dict[str, tuple[Job, ...]]:
    """Return every stored table with the jobs that write it, in the order of ``run_spark --list``.

    Example:
        >>> list(tables())[:3]
        ['data_aggregation', 'partials', 'site_pairs']
        >>> [job.name for job in tables()["condor_ids"]]
        ['data_aggregation', 'dbs_condor']
    """
    writers: dict[str, tuple[Job, ...]] = {}
    for job in JOBS.values():
        for table in job.tables:
            writers[table] = (*writers.get(table, ()), job)
    return writers


def _with_reasons(runs: dict[Interval, _StoredRun]) -> dict[Interval, _StoredRun]:
    """Return the runs with the reasons why some are partial.

    A day is compared with the days around it, a period is not.
    """
    manifests = {interval: run.manifest for interval, run in runs.items()}
    marked = {}
    for interval, run in runs.items():
        near = interval if isinstance(interval, date) else None
        around = _around(near, manifests) if near else {interval: run.manifest}
        reason = partial_reasons(around).get(interval, "")
        stored = {
            name: replace(entry, partial_reason=reason) for name, entry in run.tables.items()
        }
        marked[interval] = _StoredRun(run.run, run.manifest, stored)
    return marked


def _around(day: date, manifests: Mapping[Interval, Manifest]) -> dict[Interval, Manifest]:
    near: list[Interval] = [
        day + timedelta(days=number) for number in range(-_AROUND_DAYS, _AROUND_DAYS + 1)
    ]
    return {interval: manifests[interval] for interval in near if interval in manifests}
