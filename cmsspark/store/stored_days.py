"""The stored days of a period: which exist, whether they may be combined, and the rows
of their partials.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from datetime import date
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from cmsspark.base.errors import DataError, InputMissing
from cmsspark.base.manifests import Manifest
from cmsspark.base.periods import Period, not_stored, spans
from cmsspark.base.schemas import stored_table
from cmsspark.base.text.progress_line import ProgressLine
from cmsspark.base.text.terminal import pluralize
from cmsspark.filesystems.storage import Files, is_local, join
from cmsspark.sources.registry import ACCESS_STREAMS, STORAGE_APP, STREAMS_BY_NAME
from cmsspark.store import results
from cmsspark.store.part_files import stored_parts
from cmsspark.store.results import CurrentTable
from cmsspark.store.stored_columns import part_rows, row_groups, table_rows

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

#: The job and the table of the partials.
JOB: Final = "data_aggregation"
TABLE: Final = "partials"
#: Rows that are read together: a hundred bytes each.
BATCH_ROWS: Final = 2_000_000
#: A day or a period.
When = TypeVar("When")


class StoredDays(msgspec.Struct, frozen=True):
    """The stored days of a period: each day's partials, the missing days, and the
    reasons why some are partial.
    """

    period: Period
    files: Files
    fout: str
    partials: dict[date, CurrentTable]
    missing: tuple[date, ...]
    partial: dict[date, str] = msgspec.field(default_factory=dict)

    @property
    def is_partial(self) -> bool:
        """Whether anything of the period is left out."""
        return bool(self.missing or self.partial)

    @property
    def warnings(self) -> list[str]:
        """Warnings about days that are missing or partial, or counted by earlier rules."""
        warnings = []
        if self.missing:
            warnings.append(
                f"{len(self.missing)} of {len(self.period.days)} days are left out: {spans(self.missing)}"
            )
        by_reason: dict[str, list[date]] = {}
        for day, reason in self.partial.items():
            by_reason.setdefault(reason, []).append(day)
        warnings += [f"partial ({reason}): {spans(days)}" for reason, days in by_reason.items()]
        manifests = {day: table.manifest for day, table in self.partials.items()}
        earlier = [day for day, manifest in manifests.items() if manifest.has_earlier_rules]
        if earlier and len({manifest.rules for manifest in manifests.values()}) > 1:
            warnings.append(f"counted by earlier rules than the other days: {spans(earlier)}")
        return warnings

    @property
    def jobs(self) -> tuple[str, ...]:
        """The jobs that store the days."""
        return (JOB,)

    @property
    def content(self) -> str:
        """What the days have, for messages; empty if days of accesses need no word for it."""
        return ""

    @property
    def next_step(self) -> str:
        """The command that stores the missing days."""
        return f"cmsspark daily --from {min(self.missing)} --to {max(self.missing)} --fout {self.fout}"

    def check(self, *, allow_missing: bool) -> None:
        """Raise InputMissing (66) with the missing days, unless they may be left out
        and some are stored.
        """
        if not self.missing or (allow_missing and self.partials):
            return
        stored = f"{pluralize(len(self.partials), 'day')}: {spans(list(self.partials))}"
        other_step = (
            "; or --allow-missing, which marks the result partial" if self.partials else ""
        )
        raise InputMissing(
            (f"{self.content} of " if self.content else "")
            + not_stored(self.missing, self.period),
            where=" or ".join(join(self.fout, job) for job in self.jobs),
            found=stored if self.partials else "none of its days",
            next_step=self.next_step + other_step,
        )

    def key_id(self) -> str | None:
        """Return the id of the key that all its pseudonyms were made with.

        Raises DataError (65) if there are several: one person would count as two.
        """
        keys: dict[str, list[date]] = {}
        for day, table in self.partials.items():
            if table.manifest.pseudonym_key_id is not None:
                keys.setdefault(table.manifest.pseudonym_key_id, []).append(day)
        if len(keys) > 1:
            raise _two_keys(
                self.period, "; ".join(f"{key}: {spans(days)}" for key, days in keys.items())
            )
        return next(iter(keys), None)

    def check_users(self, users: Sequence[Any]) -> None:
        """Raise DataError (65) if the pseudonyms themselves name several keys,
        whatever the manifests say.
        """
        keys = sorted({str(user).partition(":")[0] for user in users if user is not None})
        if len(keys) > 1:
            raise _two_keys(self.period, f"pseudonyms of {', '.join(keys[:5])}")

    def batches(self, columns: Sequence[str]) -> Iterator[list[tuple[date, pa.Table]]]:
        """Yield the partials' rows, some days at a time.

        Raises DataError (65) if a day's are damaged or not all there.
        """
        with ProgressLine(f"reading {self.period}", len(self.partials), "days") as line:
            for batch in self._batches():
                yield self._read(batch, columns)
                line.add(len(batch))

    def accesses(self, columns: Sequence[str]) -> Iterator[tuple[date, pl.DataFrame]]:
        """Yield each day's partials of streams of accesses, without jobs and what storage
        does for itself; rows of one key may be there more than once.

        Raises as :meth:`batches`.
        """
        import polars as pl

        is_read = pl.col("stream").is_in(ACCESS_STREAMS) & (pl.col("app") != STORAGE_APP)
        texts = pl.col(pl.Categorical, pl.Enum).cast(pl.String)
        for batch in self.batches(list(dict.fromkeys(("stream", "app", *columns)))):
            by_day: dict[date, list[pl.DataFrame]] = {}
            for day, rows in batch:
                frame = pl.DataFrame(pl.from_arrow(rows)).with_columns(texts)
                by_day.setdefault(day, []).append(frame.filter(is_read).select(columns))
            for day, frames in by_day.items():
                yield day, pl.concat(frames)

    def pieces(self, columns: Sequence[str]) -> Iterator[list[tuple[date, pa.Table]]]:
        """Yield the partials' rows as :meth:`batches`; of a day of more than
        :data:`BATCH_ROWS` a row group at a time.

        Raises DataError (65) if a day's are damaged or not all there.
        """
        with ProgressLine(f"reading {self.period}", len(self.partials), "days") as line:
            for batch in self._batches():
                day, table = batch[0]
                if len(batch) == 1 and table.manifest.tables[TABLE].rows > BATCH_ROWS:
                    yield from ([(day, rows)] for rows in self._read_groups(day, table, columns))
                else:
                    yield self._read(batch, columns)
                line.add(len(batch))

    def _read_groups(
        self, day: date, table: CurrentTable, columns: Sequence[str]
    ) -> Iterator[pa.Table]:
        count = 0
        for part in stored_parts(self.files, table, TABLE):
            for rows in row_groups(self.files, part, stored_table(TABLE), columns):
                count += rows.num_rows
                yield rows
        _check_count(day, table, count)

    def _batches(self) -> Iterator[list[tuple[date, CurrentTable]]]:
        batch: list[tuple[date, CurrentTable]] = []
        rows = 0
        for day, table in self.partials.items():
            count = table.manifest.tables[TABLE].rows
            if batch and rows + count > BATCH_ROWS:
                yield batch
                batch, rows = [], 0
            batch.append((day, table))
            rows += count
        if batch:
            yield batch

    def _read(
        self, batch: list[tuple[date, CurrentTable]], columns: Sequence[str]
    ) -> list[tuple[date, pa.Table]]:
        with ExitStack() as stack:
            schema = stored_table(TABLE)
            parts = [
                (day, part)
                for day, table in batch
                for part in stored_parts(self.files, table, TABLE)
            ]
            if is_local(self.fout):
                pool = stack.enter_context(ThreadPoolExecutor(4))
                read = list(
                    pool.map(lambda part: part_rows(self.files, part[1], schema, columns), parts)
                )
            else:
                read = [part_rows(self.files, part, schema, columns) for _, part in parts]
        by_day = [(day, rows) for (day, _), rows in zip(parts, read, strict=True)]
        for day, table in batch:
            _check_count(
                day, table, sum(rows.num_rows for part_day, rows in by_day if part_day == day)
            )
        return by_day


def _check_count(day: date, table: CurrentTable, count: int) -> None:
    """Raises DataError (65) if a day has not as many rows as its manifest says."""
    expected = table.manifest.tables[TABLE].rows
    if count != expected:
        raise DataError(
            f"the {TABLE} of {day} have another number of rows than their manifest says",
            where=table.path,
            found=f"{pluralize(count, 'row')} where {expected:,} were written",
            next_step=f"run {JOB} again for {day}",
        )


def find_days(files: Files, fout: str, period: Period) -> StoredDays:
    """Return the stored days of the period. Raises DataError (65) if a day's result is damaged."""
    stored: dict[date, CurrentTable] = {}
    missing = []
    for day in period.days:
        try:
            stored[day] = results.current(files, fout, JOB, TABLE, day)
        except InputMissing:
            missing.append(day)
    manifests = {day: table.manifest for day, table in stored.items()}
    return StoredDays(period, files, fout, stored, tuple(missing), partial_reasons(manifests))


class JobDays(StoredDays, frozen=True):
    """The stored days of a period of one ``job`` that stores sums, such as what jobs cost."""

    job: str = ""

    @property
    def jobs(self) -> tuple[str, ...]:
        """The jobs that store the days."""
        return (self.job,)

    @property
    def content(self) -> str:
        """What the days have, for messages."""
        return self.job

    @property
    def next_step(self) -> str:
        """The command that stores the first of the missing days."""
        return f"run_spark {self.job} --date {min(self.missing)} --fout {self.fout}"

    def rows(self, table: str, columns: Sequence[str]) -> Iterator[tuple[date, pa.Table]]:
        """Yield the rows of a table of each day. Raises DataError (65) if they are
        damaged, or of days that were stored with other columns.
        """
        schema = stored_table(table)
        for day, current in self.partials.items():
            entry = current.manifest.tables[table]
            if entry.schema and entry.schema != schema.fingerprint():
                raise DataError(
                    f"{table} of {day} was stored with other columns",
                    where=current.path,
                    next_step=f"run_spark {self.job} --date {day} --fout {self.fout} counts the day again",
                )
            # The tables of a run lie beside each other.
            current_table = replace(current, path=join(current.path.rpartition("/")[0], table))
            yield day, table_rows(self.files, current_table, table, columns)


def find_job_days(files: Files, fout: str, period: Period, job: str, table: str) -> JobDays:
    """Return the stored days of a period of a job with its first ``table``. Raises
    DataError (65) where a day's result is damaged.
    """
    stored = {}
    for day in period.days:
        with suppress(InputMissing):
            stored[day] = results.current(files, fout, job, table, day)
    missing = tuple(day for day in period.days if day not in stored)
    partial = {
        day: "something of it is left out"
        for day, current in stored.items()
        if current.manifest.partial
    }
    return JobDays(period, files, fout, stored, missing, partial, job)


def stored_periods(files: Files, fout: str, job: str) -> list[Period]:
    """Return the periods that a job has a result of, in order."""
    intervals = results.stored_intervals(files, fout, job)
    return sorted(interval for interval in intervals if isinstance(interval, Period))


def stale(manifest: Manifest, runs: Mapping[date, str]) -> list[str]:
    """Return the changes since a period's result was made: days that were run again,
    are new, or are gone.

    ``runs``: the current run of each stored day of the period.
    """
    sources = manifest.days
    again = [day for day, run in runs.items() if sources.get(day, run) != run]
    groups = (
        ("run again", again),
        ("new", runs.keys() - sources.keys()),
        ("gone", sources.keys() - runs.keys()),
    )
    return [f"{word}: {spans(list(days))}" for word, days in groups if days]


class CurrentRuns:
    """The current run of each day of a job, read once a day and without the manifest,
    which may be large.
    """

    def __init__(self, files: Files, fout: str, job: str = JOB) -> None:
        self._files = files
        self._base = join(fout, job)
        self._runs: dict[date, str | None] = {}

    def find(self, period: Period) -> dict[date, str]:
        """Return the days of a period that are stored, and their runs."""
        runs = {day: self._run(day) for day in period.days}
        return {day: run for day, run in runs.items() if run is not None}

    def _run(self, day: date) -> str | None:
        if day not in self._runs:
            path = join(self._base, day.isoformat(), "CURRENT")
            try:
                is_stored = self._files.stat(path) is not None
                self._runs[day] = _rows_path(self._files.read_bytes(path)) if is_stored else None
            except (ValueError, KeyError, TypeError):
                self._runs[day] = "damaged"
        return self._runs[day]


def _rows_path(pointer: bytes) -> str:
    """Return the run that made the rows of a day's current run.

    Raises ValueError, KeyError, TypeError for no CURRENT.
    """
    document = json.loads(pointer)
    return str(document.get(results.ROWS_OF) or document["run"])


def partial_reasons(manifests: Mapping[When, Manifest]) -> dict[When, str]:
    """Return the days that lack a stream of the other days, or whose manifest is
    partial, with the reason.

    A stream of another epoch is none that a day lacks: jobs are CRAB's or HTCondor's.
    """
    lacking = {day: set(manifest.missing_streams) for day, manifest in manifests.items()}
    streams = {day: set(manifest.streams) - lacking[day] for day, manifest in manifests.items()}
    every = set().union(*streams.values())
    partial = {}
    for day, manifest in manifests.items():
        roles = {_role(stream) for stream in streams[day]}
        missing_streams = {stream for stream in every - streams[day] if _role(stream) not in roles}
        without = sorted(missing_streams | lacking[day]) if streams[day] else []
        reasons = [f"without {', '.join(without)}"] if without else []
        if manifest.damaged:
            reasons.append("damaged files")
        if any(source.is_tmp for source in manifest.inputs):
            reasons.append("a folder that was still being written")
        if reasons or manifest.partial:
            partial[day] = "; ".join(reasons) or "as its manifest says"
    return partial


def _role(stream: str) -> str:
    """Return the role of a stream, or the stream itself."""
    entry = STREAMS_BY_NAME.get(stream)
    return entry.role if entry is not None and entry.role else stream


def _two_keys(period: Period, users: str) -> DataError:
    return DataError(
        f"{period} has users under two pseudonym keys: one person would count as two",
        found=users,
        next_step="ask for a period of one key (`cmsspark lab pseudonyms list` shows the days of each); or count days "
        "again whose key is not listed, if their logs are there",
    )
