"""The days before the demo's day, with what happens in a real week: a quiet day, a late
log and a rerun.
"""

from __future__ import annotations

import gc
import importlib.util
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from cmsspark.base import dates
from cmsspark.base.reporting import as_typed
from cmsspark.base.schemas import stored_table
from cmsspark.filesystems.storage import LocalFiles, join
from cmsspark.run.provenance import versions
from cmsspark.settings.pseudonyms import Pseudonyms
from cmsspark.sources.layout import Epochs
from cmsspark.store import results, staged_runs
from cmsspark.store.stored_columns import table_rows

if TYPE_CHECKING:
    import pyarrow as pa

    from cmsspark.apps.demo.history_2015 import ResampledPast
    from cmsspark.base.schemas import Table


# Work of the demo in forked processes, which inherit what it needs: it is never copied
# through a pipe.

_inherited: list[Callable[[Any], Any]] = []


def forked_map(
    function: Callable[[Any], Any], items: Sequence[Any], processes: int
) -> Iterator[Any]:
    """Yield what a function returns for each item, in their order; one process is this one."""
    if processes <= 1:
        yield from map(function, items)
        return
    with multiprocessing.get_context("fork").Pool(processes, _inherit, (function,)) as pool:
        yield from pool.imap(_call, items)


def _inherit(function: Callable[[Any], Any]) -> None:
    _inherited[:] = [function]
    # Millions of objects that stay: looking through them again and again would copy their pages.
    gc.freeze()


def _call(item: Any) -> Any:
    return _inherited[0](item)


# A made-up past in a store: days with partials and reports, laid out as the daily job
# leaves them.

JOB = "data_aggregation"
#: Called with the number of days made and of all days.
Progress = Callable[[int, int], None]


class Past(Protocol):
    """What makes the partials of a day, with texts plain or as dictionaries."""

    def partials(self, day: date, schema: Table) -> pa.Table: ...


def store_history(
    history: Past,
    fout: str,
    chosen: Iterable[date],
    key_id: str,
    *,
    processes: int = 1,
    progress: Progress | None = None,
) -> int:
    """Store the days that are not there yet, in a store on the local disk. Returns how
    many were made.

    With more ``processes``, which are forked, each makes days of its own; a caller that
    runs threads keeps to one. ``progress(made, all)`` is called after each day.
    """
    files = LocalFiles()
    missing = [
        day for day in chosen if files.stat(join(fout, JOB, day.isoformat(), "CURRENT")) is None
    ]
    make = partial(store_day, history, fout, key_id)
    is_forked = len(missing) >= 2 * processes
    for number, _ in enumerate(forked_map(make, missing, processes if is_forked else 1), 1):
        if progress:
            progress(number, len(missing))
    return len(missing)


def store_day(
    history: Past,
    fout: str,
    key_id: str,
    day: date,
    partials: pa.Table | None = None,
    began_ms: int | None = None,
    **manifest: Any,
) -> results.CurrentTable:
    """Store one day, by default with the history's partials, and make it current.

    ``began_ms``: when its run began, by default now. ``manifest``: what differs in it.
    """
    partials = history.partials(day, stored_table("partials")) if partials is None else partials
    run = staged_runs.stage(LocalFiles(), fout, JOB, day, began_ms=began_ms)
    try:
        run.write_arrow(report(partials, day), JOB)
        run.write_arrow(partials, "partials")
        streams = served_streams(day)
        return run.commit(
            {
                "streams": list(streams),
                "epochs": Epochs.load().of_day(day, streams),
                "missing_streams": [],
                "partial": False,
                "warnings": ["simulated results"],
                "pseudonym_key_id": key_id,
                "versions": versions(),
                "timestamp": dates.start_ms(day),
            }
            | manifest
        )
    except BaseException:
        run.abandon()
        raise


def report(partials: pa.Table, day: date) -> pa.Table:
    """``schemas/tables/data_aggregation.yaml`` from a day's partials."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from cmsspark.counting.merge import SECONDS, SUMS, USER_KEYS, merge
    from cmsspark.counting.pre_aggregate import ACCESS

    columns = {name: partials[name] for name in partials.column_names}
    columns |= {
        sums: pc.round(pc.multiply(columns[name], 1000.0)).cast(pa.int64())
        for name, sums in SECONDS.items()
    }
    columns["kind"] = pa.array([ACCESS]).take(pa.array([0] * partials.num_rows, pa.int64()))
    rows = pa.table({name: columns[name] for name in ("kind", *USER_KEYS, *SUMS)})
    return merge(rows.to_batches()).report(day, stored_table(JOB))


def served_streams(day: date) -> tuple[str, ...]:
    """Return the streams that serve a day."""
    return Epochs.load().streams_of_day(day)


#: A past of more days has as many partials a day as production, and no story.
STORY_DAYS: Final = 60
#: Rows of a day's partials in production.
PRODUCTION_ROWS: Final = 200_000
#: The stream whose log is late, and what is read on the quiet day.
LATE: Final = "cmssw"
_QUIET_SHARE: Final = 0.3
_HOUR_MS: Final = 3_600_000
#: What ``cmsspark sql`` imports beyond a bare install, and what installs it.
SQL_PACKAGES: Final = ("duckdb", "fsspec")
SQL_INSTALL: Final = "pip install 'cmsspark[sql]'"
#: Fewer days have no room for all events.
_FEWEST: Final = 6


class Story(msgspec.Struct, frozen=True):
    """What happened: the quiet day, the day that was run again when its log had arrived
    and its first run, and the day whose log is still late.
    """

    quiet: date | None = None
    again: date | None = None
    first_run: str = ""
    late: date | None = None


def store_past(
    store: str, day: date, count: int, seed: int, key: Pseudonyms, progress: Progress | None = None
) -> tuple[int, Story]:
    """Store ``count`` days before ``day``, which is stored. Returns how many were made,
    and their story.

    Up to ``STORY_DAYS`` days resemble ``day``. A longer past has ``PRODUCTION_ROWS``
    partials on each day, and on ``day`` itself as a newer run, so that its last day is
    no smaller than the others.
    """
    before = [day - timedelta(days=number) for number in range(count, 0, -1)]
    if count + 1 > STORY_DAYS:
        from cmsspark.apps.demo.history_2015 import History

        history = History(key.pseudonym, seed, PRODUCTION_ROWS)
        stored = store_history(
            history, store, before, key.key_id, processes=os.cpu_count() or 1, progress=progress
        )
        store_day(history, store, key.key_id, day)
        return stored, Story()
    return _store_story(store, day, before, seed, key, progress)


def _store_story(
    store: str,
    day: date,
    before: Sequence[date],
    seed: int,
    key: Pseudonyms,
    progress: Progress | None,
) -> tuple[int, Story]:
    from cmsspark.apps.demo.history_2015 import ResampledPast

    files = LocalFiles()
    current = results.current(files, store, JOB, "partials", day)
    schema = stored_table("partials")
    past = ResampledPast(table_rows(files, current, "partials", schema.names), day, seed)
    story = Story()
    if len(before) >= _FEWEST:
        quiet, again, late = before[-5], before[-3], before[-1]
        first = _store(store, past, key, again, hours=1, without=(LATE,))
        _store(store, past, key, again, hours=9)
        _store(store, past, key, late, hours=1, without=(LATE,))
        _store(store, past, key, quiet, hours=1, share=_QUIET_SHARE)
        story = Story(quiet, again, first, late)
    special = 3 if story.quiet else 0

    def progress_of_all(stored: int, total: int) -> None:
        if progress is not None:
            progress(stored + special, total + special)

    return store_history(
        past, store, before, key.key_id, progress=progress_of_all
    ) + special, story


def _store(
    store: str, past: ResampledPast, key: Pseudonyms, day: date, *, hours: int, **options: Any
) -> str:
    """Store a day ``hours`` after its end, and return its run."""
    without = list(options.get("without", ()))
    manifest = {"missing_streams": without, "partial": bool(without)} | (
        {"warnings": [f"left out: {LATE}, whose log was not there", "simulated results"]}
        if without
        else {}
    )
    partials = past.partials(day, stored_table("partials"), **options)
    began_ms = min(dates.start_ms(day + timedelta(days=1)) + hours * _HOUR_MS, dates.now_ms())
    streams = [stream for stream in served_streams(day) if stream not in without]
    done = store_day(
        past, store, key.key_id, day, partials, began_ms=began_ms, streams=streams, **manifest
    )
    return done.manifest.run


def sql_line(statement: str) -> tuple[str, str]:
    """Return the command that runs an SQL statement, and what it shows; where SQL is
    not installed, how to install it.
    """
    command = f'cmsspark sql "{statement}"'
    if all(importlib.util.find_spec(name) for name in SQL_PACKAGES):
        return command, "any question, in SQL"
    return as_typed(SQL_INSTALL), f"then any question, in SQL: {command}"


def next_lines(first: date, day: date, story: Story) -> list[str]:
    """Commands that show what happened in the past, with what each shows."""
    span = f"--from {first} --to {day}"
    count = (day - first).days + 1
    lines = [
        (
            f"cmsspark status --days {min(count, 31)} --to {day}",
            "which days are stored, which are partial",
        )
    ]
    if story.again and story.quiet:
        first_run = story.first_run.rpartition("-")[0]
        lines += [
            (
                f"cmsspark diff {story.again}@{first_run} {story.again}",
                f"what the late log of {LATE} added",
            ),
            (
                f"cmsspark diff {story.quiet - timedelta(days=1)} {story.quiet}",
                "the quiet day beside the one before",
            ),
        ]
    lines += [
        (f"cmsspark period --view datasets {span}", "the most read datasets of all days"),
        (f"cmsspark report {span} --html days.html", "the same in pictures"),
        ("cmsspark ask unused --weeks 1", "replicas that nobody read"),
        sql_line(
            "select day, sum(accesses), sum(jobs) from data_aggregation group by day order by day"
        ),
    ]
    return aligned(lines)


def aligned(lines: Sequence[tuple[str, str]]) -> list[str]:
    """Commands, with what each shows as a comment. The comments stand in one column,
    except after commands of 70 characters or more.
    """
    width = max(len(command) for command, _ in lines if len(command) < 70)
    return [f"  {command:<{width}}  # {about}" for command, about in lines]
