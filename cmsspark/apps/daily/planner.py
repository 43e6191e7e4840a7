"""Plans what a day and a job need: nothing, a run because the result is missing or
stale, or only publishing.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import date, timedelta
from typing import Annotated, Any, Final

import msgspec

from cmsspark import __version__
from cmsspark.base import dates
from cmsspark.base.errors import CmssparkError, DataError, InputMissing, NotReady
from cmsspark.base.manifests import Manifest
from cmsspark.base.schemas import stored_table
from cmsspark.base.text.terminal import pluralize
from cmsspark.counting.reconciliation import TRAILING_DAYS
from cmsspark.filesystems.storage import Files
from cmsspark.run.job_modules import load_declaration
from cmsspark.sources import folders
from cmsspark.sources.folders import DayInput, Dump, Layout
from cmsspark.sources.registry import DUMPS, STREAMS_NEEDING_REPLICAS
from cmsspark.store import day_states, results
from cmsspark.store.deliveries import Target, deliveries, is_delivered
from cmsspark.store.own_jobs import Job
from cmsspark.store.run_history import Published

# Whether a day's inputs are ready to read, judged from listings alone: complete,
# unchanged, and as large as usual.

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 60 * MINUTE_MS
#: Earlier days that are needed to know the usual size.
USUAL_DAYS: Final = 3
#: The number of missing parts that a warning names.
_NAMED_GAPS: Final = 5
_PART: Final = re.compile(r"part-(?:[mr]-)?([0-9]{1,9})(?![0-9])", re.ASCII)


_NotNegative = Annotated[float, msgspec.Meta(ge=0)]


class Rules(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """``quiet_minutes``: so long nothing was written. ``smallest_share``: of the usual
    bytes. ``patience_hours``: after the day's end, small days and better dumps are no
    longer waited for. ``dump_wait_days``: for the dump after the day.
    """

    quiet_minutes: _NotNegative = 10
    smallest_share: _NotNegative = 0.5
    patience_hours: _NotNegative = day_states.PATIENCE_HOURS
    dump_wait_days: _NotNegative = 2


class Listing(msgspec.Struct, frozen=True):
    """A source's files of a day: sizes in bytes and the latest mtime in UTC ms."""

    source: str
    sizes: tuple[int, ...]
    newest_ms: int


class Readiness(msgspec.Struct, frozen=True):
    """``reasons`` not to read yet, none when ready; ``warnings`` in any case."""

    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    #: UTC ms of the next check, where there are reasons.
    retry_ms: int | None = None

    @property
    def is_ready(self) -> bool:
        """Whether there are no reasons to wait."""
        return not self.reasons


def together(parts: Iterable[Readiness]) -> Readiness:
    """Return all reasons and warnings; the next check is when the last reason may be gone."""
    every = list(parts)
    retries = [part.retry_ms for part in every if part.retry_ms is not None]
    return Readiness(
        tuple(reason for part in every for reason in part.reasons),
        tuple(warning for part in every for warning in part.warnings),
        max(retries, default=None),
    )


def judge_stream(
    listing: Listing, before: Sequence[Sequence[int]], day: date, now_ms: int, rules: Rules
) -> Readiness:
    """Return whether a source's files are complete. ``before``: sizes of the files of
    each trailing day.

    Empty parts are ignored: Spark and sqoop write them.
    """
    writing = judge_writing(f"{listing.source}: the last file", listing.newest_ms, now_ms, rules)
    if not writing.is_ready:
        return writing
    usual = [sum(sizes) for sizes in before if sum(sizes)]
    if len(usual) < USUAL_DAYS:
        return Readiness()
    median, total = statistics.median(usual), sum(listing.sizes)
    if total < rules.smallest_share * median:
        text = f"{listing.source}: {total:,} bytes, the median of {pluralize(len(usual), 'day')} before is {int(median):,}"
        if now_ms < _patience_ends(day, rules):
            return Readiness((text,), (), min(now_ms + HOUR_MS, _patience_ends(day, rules)))
        return Readiness((), (f"{text}; the time to wait for it is over",))
    parts, usual_parts = (
        len(listing.sizes),
        statistics.median(len(sizes) for sizes in before if sum(sizes)),
    )
    if parts < rules.smallest_share * usual_parts:
        return Readiness(
            (),
            (
                f"{listing.source}: {pluralize(parts, 'file')}, the median of days before is {usual_parts:g}",
            ),
        )
    return Readiness()


def judge_parts(source: str, names: Iterable[str], before: Sequence[Iterable[str]]) -> Readiness:
    """Return a warning where part numbers are missing and none was on the days
    ``before``: a part may be lost.

    No warning where numbers are usually missing: Spark and sqoop write no file for an empty part.
    """
    usual = [numbers for numbers in map(_numbers, before) if numbers]
    numbers = _numbers(names)
    gaps = _gaps(numbers)
    if not gaps or len(usual) < USUAL_DAYS or any(map(_gaps, usual)):
        return Readiness()
    present = set(numbers)
    missing_numbers = (str(number) for number in range(numbers[-1]) if number not in present)
    first = list(itertools.islice(missing_numbers, _NAMED_GAPS))
    gap_list = ", ".join(first) + (f" and {gaps - len(first)} more" if gaps > len(first) else "")
    warning = f"{source}: no part {gap_list} of 0 to {numbers[-1]}; the {pluralize(len(usual), 'day')} before left out none"
    return Readiness((), (warning,))


def _numbers(names: Iterable[str]) -> list[int]:
    """Return the numbers of part files, in order."""
    return sorted({int(match[1]) for match in map(_PART.match, names) if match})


def _gaps(numbers: Sequence[int]) -> int:
    """Return the number of missing numbers below the last."""
    return numbers[-1] + 1 - len(numbers) if numbers else 0


def judge_dump(
    kind: str, dump_day: date | None, day: date, now_ms: int, rules: Rules
) -> Readiness:
    """Return whether to wait for a better dump: the dump of a day is dated after it (rule 17).

    ``dump_day`` is None for the legacy folder without a date, which no better dump replaces.
    """
    if dump_day is None or dump_day > day:
        return Readiness()
    ends = dates.timestamp_ms_bounds(day)[1] + int(rules.dump_wait_days * dates.DAY_MS)
    if now_ms < ends:
        reason = f"{kind}: no complete dump dated after {day} yet, the best is of {dump_day}"
        return Readiness((reason,), (), min(now_ms + HOUR_MS, ends))
    return Readiness(
        (), (f"{kind}: the dump of {dump_day} is taken, none dated after {day} came in time",)
    )


def judge_writing(subject: str, newest_ms: int, now_ms: int, rules: Rules) -> Readiness:
    """Return whether files are still being written: the newest, which ``subject``
    names, is younger than ``quiet_minutes``.
    """
    quiet_ms = int(rules.quiet_minutes * MINUTE_MS)
    age_ms = now_ms - newest_ms
    # A file from the future means a wrong clock, not that it is being written.
    if not -quiet_ms < age_ms < quiet_ms:
        return Readiness()
    reason = f"{subject} was written {max(age_ms, 0) // MINUTE_MS} minutes ago"
    return Readiness((reason,), (), newest_ms + quiet_ms)


def missing(text: str, now_ms: int) -> Readiness:
    """Return a missing input, which ``text`` names."""
    return Readiness((text,), (), now_ms + HOUR_MS)


def is_overdue(day: date, now_ms: int, rules: Rules) -> bool:
    """Return whether a day that is still not ready should be reported."""
    return day_states.is_overdue(day, now_ms, rules.patience_hours)


def _patience_ends(day: date, rules: Rules) -> int:
    return day_states.patience_ends(day, rules.patience_hours)


#: The policies of a source: wait for it, count without it, or read its ``.tmp`` folder.
POLICIES: Final = ("require", "partial", "tmp")


class PlannedTask(msgspec.Struct, frozen=True):
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
    readiness: Readiness = msgspec.field(default_factory=Readiness)
    error: CmssparkError | None = None
    #: A digest of the inputs, of this code's version, and of the options; empty where
    #: nothing is run.
    fingerprint: str = ""


class Planner(msgspec.Struct, frozen=True):
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
            try:
                manifest = results.current(
                    self.files, self.fout, job.name, job.tables[0], day
                ).manifest
            except (InputMissing, DataError):
                manifest = None  # missing or damaged: the day is run again
            reason = "missing" if manifest is None else self._stale(job, day, manifest)
            if manifest is not None and manifest.run in self.damaged:
                reason = "damaged"
            if reason or force:
                ready, options = self._ready(job, day, manifest)
                # A digest of what a run would read: the same inputs fail in the same
                # way.
                streams, inputs = [], []
                for stream in self._sources(job, day):
                    with suppress(InputMissing, NotReady):
                        inputs.append(
                            _file_keys(
                                [
                                    [f.path, f.size, f.mtime_ms]
                                    for f in self._resolve(stream, day).files
                                ]
                            )
                        )
                        streams.append(stream)
                dumps = []
                with suppress(InputMissing, NotReady):
                    dumps = [(dump.kind, str(dump.day)) for dump in self._dumps(job, day, streams)]
                digest = hashlib.sha256(
                    repr((__version__, options, streams, inputs, dumps)).encode()
                ).hexdigest()[:16]
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
        if not judge_writing(stream, sums["newest_ms"], self.now_ms, self.rules).is_ready:
            return ""
        if entry["folder"] is None:
            return f"stale: {stream} of {before}, whose jobs may be counted twice, has arrived"
        # Manifests of earlier versions have no sums.
        if "file_count" in entry and {**entry, **sums} != entry:
            return (
                f"stale: the files of {stream} of {before}, whose jobs are left out, have changed"
            )
        return ""

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
                    parts.append(missing(self._missing_text(stream, day, error), self.now_ms))
                continue
            sources.append(source)
            options |= {"--allow-tmp"} if source.is_tmp else set()
            sizes = [[size or 0 for _, size, _ in _files(earlier, stream)] for earlier in before]
            newest = max((file.mtime_ms for file in source.files), default=0)
            listing = Listing(stream, tuple(file.size for file in source.files), newest)
            parts.append(judge_stream(listing, sizes, day, self.now_ms, self.rules))
            names = [_names(path for path, _, _ in _files(earlier, stream)) for earlier in before]
            parts.append(judge_parts(stream, _names(file.path for file in source.files), names))
        if job.streams and not sources and all(part.is_ready for part in parts):
            # Each may be left out, but not all.
            parts.append(missing(f"none of {', '.join(streams)} is there", self.now_ms))
        # A day that was counted keeps its dumps.
        if manifest is None:
            parts += self._dumps_ready(job, day, [source.stream for source in sources])
        return together(parts), tuple(sorted(options))

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
            return [missing(_one_line(error), self.now_ms)]
        parts = [judge_dump(dump.kind, dump.day, day, self.now_ms, self.rules) for dump in dumps]
        for dump in (dump for dump in dumps if dump.kind == "rucio"):
            newest = max(file.mtime_ms for files in dump.tables.values() for file in files)
            # Its tables are written one by one.
            subject = f"{dump.kind}: the last file of the dump"
            parts.append(judge_writing(subject, newest, self.now_ms, self.rules))
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
