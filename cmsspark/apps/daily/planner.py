"""Plans what a day and a job need: nothing, a run because the result is missing or
stale, or only publishing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import Any, Final

from cmsspark import __version__
from cmsspark.apps.daily import readiness
from cmsspark.apps.daily.readiness import Listing, Readiness, Rules
from cmsspark.base.errors import CmssparkError, DataError, InputMissing, NotReady
from cmsspark.base.manifests import Manifest
from cmsspark.base.schemas import stored_table
from cmsspark.counting.reconciliation import TRAILING_DAYS
from cmsspark.filesystems.storage import Files
from cmsspark.run.job_modules import load_declaration
from cmsspark.sources import folders
from cmsspark.sources.folders import DayInput, Dump, Layout
from cmsspark.sources.registry import DUMPS, STREAMS_NEEDING_REPLICAS
from cmsspark.store import results
from cmsspark.store.deliveries import Target, deliveries, is_delivered
from cmsspark.store.job_index import Job
from cmsspark.store.run_history import Published

#: The policies of a source: wait for it, count without it, or read its ``.tmp`` folder.
POLICIES: Final = ("require", "partial", "tmp")


@dataclass(frozen=True)
class PlannedTask:
    """A task of a day. ``reason``: missing, damaged, stale (with what changed),
    unpublished.
    ``runs`` is False where the result only needs publishing; ``options`` go to the job;
    ``error`` is set where planning failed.
    """

    day: date
    job: Job
    reason: str
    runs: bool = True
    options: tuple[str, ...] = ()
    readiness: Readiness = field(default_factory=Readiness)
    error: CmssparkError | None = None
    #: A digest of the inputs, of this code's version, and of the options; empty where
    #: nothing is run.
    fingerprint: str = ""


@dataclass(frozen=True)
class Planner:
    """Plans tasks. ``published``: the publications in the run history; None where
    publishing is off. ``target`` returns the destination that the settings name.
    """

    files: Files
    layout: Layout
    fout: str
    rules: Rules
    policies: Mapping[str, str]
    published: Sequence[Published] | None
    now_ms: int
    #: The stored runs that a verification found damaged.
    damaged: Collection[str] = ()
    target: Callable[[], Target | None] = lambda: None

    def task(self, job: Job, day: date, *, force: bool = False) -> PlannedTask | None:
        """Return what is to be done, or None. ``force``: a run in any case."""
        try:
            manifest = self._manifest(job, day)
            reason = "missing" if manifest is None else self._stale(job, day, manifest)
            if manifest is not None and manifest.run in self.damaged:
                reason = "damaged"
            if reason or force:
                ready, options = self._ready(job, day, manifest)
                digest = self._fingerprint(job, day, options)
                return PlannedTask(
                    day, job, reason or "forced", True, options, ready, fingerprint=digest
                )
            if manifest and not self._is_published(job, day, manifest):
                return PlannedTask(day, job, "unpublished", runs=False)
        except CmssparkError as error:
            return PlannedTask(day, job, "cannot be checked", error=error)
        return None

    def is_complete(self, job: Job, day: date) -> bool:
        """Return whether the day's inputs are all there and ready to be read, whatever
        is stored of it.
        """
        try:
            return self._ready(job, day, None)[0].is_ready
        except CmssparkError:
            return False

    def _manifest(self, job: Job, day: date) -> Manifest | None:
        try:
            return results.current(self.files, self.fout, job.name, job.tables[0], day).manifest
        except (InputMissing, DataError):
            return None  # missing or damaged: the day is run again

    def _stale(self, job: Job, day: date, manifest: Manifest) -> str:
        """Return the change since the day was counted: of a schema or a log, never only
        a better dump. Else empty.
        """
        for table, entry in manifest.tables.items():
            if table in job.tables and entry.schema not in ("", stored_table(table).fingerprint()):
                return f"stale: the schema of {table} has changed"
        for stream in self._sources(job, day):
            try:
                now = self._resolve(stream, day)
            except (InputMissing, NotReady):
                continue  # logs are deleted after a while; the result stays
            read = manifest.find_input(stream)
            if read is None:
                return f"stale: {stream} has arrived"
            if _file_keys(read.files) != _file_keys(
                [[f.path, f.size, f.mtime_ms] for f in now.files]
            ):
                return f"stale: the files of {stream} have changed"
            if read.is_tmp and not now.is_tmp:
                return f"stale: {stream} is final now"
            # The entry of a feed has a name of its own.
            earlier = manifest.earlier_jobs
            day_before = next(iter(earlier.values()), None) if job.feed else earlier.get(stream)
            if day_before and (reason := self._stale_earlier(stream, day_before)):
                return reason
        return ""

    def _stale_earlier(self, stream: str, entry: Mapping[str, Any]) -> str:
        """Return the change of the day before, whose jobs must not be counted again
        (rule 31). Else empty.
        """
        before = date.fromisoformat(entry["day"])
        is_allowed = self.policies.get(stream) == "tmp"
        try:
            # As where the day before was read: its source may be that of an earlier epoch.
            now = folders.resolve_day(
                self.files, self.layout, stream, before, allow_tmp=is_allowed, any_epoch=True
            )
        except (InputMissing, NotReady):
            return ""
        sums = now.file_sums()
        if not readiness.judge_writing(
            stream, sums["newest_ms"], self.now_ms, self.rules
        ).is_ready:
            return ""
        if entry["folder"] is None:
            return f"stale: {stream} of {before}, whose jobs may be counted twice, has arrived"
        # Manifests of earlier versions have no sums.
        if "file_count" in entry and {**entry, **sums} != entry:
            return (
                f"stale: the files of {stream} of {before}, whose jobs are left out, have changed"
            )
        return ""

    def _fingerprint(self, job: Job, day: date, options: tuple[str, ...]) -> str:
        """Return a digest of what a run would read: the same inputs fail in the same way."""
        streams, inputs = [], []
        for stream in self._sources(job, day):
            with suppress(InputMissing, NotReady):
                inputs.append(
                    _file_keys(
                        [[f.path, f.size, f.mtime_ms] for f in self._resolve(stream, day).files]
                    )
                )
                streams.append(stream)
        dumps = []
        with suppress(InputMissing, NotReady):
            dumps = [(dump.kind, str(dump.day)) for dump in self._dumps(job, day, streams)]
        return hashlib.sha256(
            repr((__version__, options, streams, inputs, dumps)).encode()
        ).hexdigest()[:16]

    def _sources(self, job: Job, day: date) -> tuple[str, ...]:
        """Return the streams that the job reads of a day, or its feed."""
        return (job.feed,) if job.feed else self.layout.epochs.streams_of_day(day, job.streams)

    def _resolve(self, stream: str, day: date) -> DayInput:
        is_allowed = self.policies.get(stream) == "tmp"
        return folders.resolve_day(self.files, self.layout, stream, day, allow_tmp=is_allowed)

    def _ready(
        self, job: Job, day: date, manifest: Manifest | None
    ) -> tuple[Readiness, tuple[str, ...]]:
        parts, options = [], set()
        sources = []
        has_days = bool(job.streams or job.feed)
        before = (
            results.history(self.files, self.fout, job.name, day, TRAILING_DAYS)
            if has_days
            else []
        )
        streams = self._sources(job, day)
        for stream in streams:
            try:
                source = self._resolve(stream, day)
            except (InputMissing, NotReady) as error:
                if self.policies.get(stream) == "partial":
                    parts.append(Readiness(warnings=(f"{stream} is left out: {error.problem}",)))
                    options.add("--allow-missing")
                else:
                    parts.append(
                        readiness.missing(self._missing_text(stream, day, error), self.now_ms)
                    )
                continue
            sources.append(source)
            options |= {"--allow-tmp"} if source.is_tmp else set()
            sizes = [[size or 0 for _, size, _ in _files(earlier, stream)] for earlier in before]
            newest = max((file.mtime_ms for file in source.files), default=0)
            listing = Listing(stream, tuple(file.size for file in source.files), newest)
            parts.append(readiness.judge_stream(listing, sizes, day, self.now_ms, self.rules))
            names = [_names(path for path, _, _ in _files(earlier, stream)) for earlier in before]
            parts.append(
                readiness.judge_parts(stream, _names(file.path for file in source.files), names)
            )
        if job.streams and not sources and all(part.is_ready for part in parts):
            # Each may be left out, but not all.
            parts.append(readiness.missing(f"none of {', '.join(streams)} is there", self.now_ms))
        # A day that was counted keeps its dumps.
        if manifest is None:
            parts += self._dumps_ready(job, day, [source.stream for source in sources])
        return readiness.together(parts), tuple(sorted(options))

    def _missing_text(self, stream: str, day: date, error: CmssparkError) -> str:
        try:
            still_open = folders.resolve_day(self.files, self.layout, stream, day, allow_tmp=True)
        except (InputMissing, NotReady):
            return _one_line(error)
        return f"{stream}: {still_open.folder} is not final yet"

    def _dumps_ready(self, job: Job, day: date, streams: Sequence[str]) -> list[Readiness]:
        try:
            dumps = self._dumps(job, day, streams)
        except (InputMissing, NotReady) as error:
            return [readiness.missing(_one_line(error), self.now_ms)]
        parts = [
            readiness.judge_dump(dump.kind, dump.day, day, self.now_ms, self.rules)
            for dump in dumps
        ]
        for dump in (dump for dump in dumps if dump.kind == "rucio"):
            newest = max(file.mtime_ms for files in dump.tables.values() for file in files)
            # Its tables are written one by one.
            subject = f"{dump.kind}: the last file of the dump"
            parts.append(readiness.judge_writing(subject, newest, self.now_ms, self.rules))
        return parts

    def _dumps(self, job: Job, day: date, streams: Sequence[str]) -> list[Dump]:
        if job.feed:
            return []
        if not job.streams:
            # A job on stored results reads no dump, and says itself which result it needs.
            choose = load_declaration(job).choose_dumps if job.reads_dumps else None
            return [] if choose is None else choose(self.files, self.layout, day)
        dumps = [folders.choose_dbs_dump(self.files, self.layout, day, DUMPS["dbs"].for_streams)]
        if set(streams) & set(STREAMS_NEEDING_REPLICAS):
            dumps.append(folders.choose_replica_dump(self.files, self.layout, day))
        return dumps

    def _is_published(self, job: Job, day: date, manifest: Manifest) -> bool:
        if self.published is None:
            return True
        tables = set(job.public_tables) & set(manifest.tables)
        if not tables:
            return True
        published = (
            entry
            for entry in self.published
            if entry.stored_run == manifest.rows_run and entry.day == day
        )
        return is_delivered(deliveries(published, tables, self.target()))


def _file_keys(files: Sequence[Sequence[Any]]) -> list[tuple[str, int, int]]:
    """Names, sizes and times; without folders, as the root may be spelled differently
    and ``.tmp`` disappears.
    """
    return sorted((str(path).rsplit("/", 1)[-1], size, mtime_ms) for path, size, mtime_ms in files)


def _files(manifest: Manifest, stream: str) -> Sequence[tuple[str, int | None, int | None]]:
    entry = manifest.find_input(stream)
    return entry.files if entry else ()


def _names(paths: Iterable[str]) -> list[str]:
    return [path.rsplit("/", 1)[-1] for path in paths]


def _one_line(error: CmssparkError) -> str:
    return error.problem if error.found is None else f"{error.problem} ({error.found})"


#: Days that are looked at, the newest first.
LOOKED_AT: Final = 31


def latest_day(planner: Planner, jobs: Sequence[Job], until: date) -> date:
    """Return the newest day up to ``until`` that all ``jobs`` could be run for now;
    whether it was run does not matter.

    Raises NotReady (75) where none of the last 31 days is complete.
    """
    for back in range(LOOKED_AT):
        day = until - timedelta(days=back)
        if all(planner.is_complete(job, day) for job in jobs):
            return day
    raise NotReady(
        f"no day has complete inputs for {', '.join(job.name for job in jobs)}",
        found=f"none from {until - timedelta(days=LOOKED_AT - 1)} to {until}",
        next_step=f"cmsspark daily --dry-run --date {until} lists what is missing",
    )
