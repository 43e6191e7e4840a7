"""``cmsspark status``: the state of each day and job, from the run history and a local store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import click
from msgspec.structs import replace

from cmsspark.apps.results.runs import load_history
from cmsspark.base import dates
from cmsspark.base.errors import Exit
from cmsspark.base.periods import spans
from cmsspark.base.reporting import as_typed
from cmsspark.base.text.readable import json_text
from cmsspark.base.text.terminal import Coloured, echo_table, pluralize
from cmsspark.cli.options import DayType, store_options
from cmsspark.filesystems.storage import is_local, local_path
from cmsspark.run import run_report
from cmsspark.settings.settings import load_settings
from cmsspark.store.daily_state import DailyState, DayRecord, split_key
from cmsspark.store.day_states import (
    NO_RESULT,
    STORED,
    WORDS,
    Cell,
    before_window,
    delivery_lines,
    run_step,
    surroundings,
    table,
)
from cmsspark.store.own_jobs import JOBS
from cmsspark.store.run_history import Check, Run, State
from cmsspark.store.silent_sites import newest_stored, silent_lines


@click.command("status")
@click.option(
    "--days",
    "count",
    type=click.IntRange(1, 4000),
    default=14,
    show_default=True,
    help="Number of days.",
)
@click.option(
    "--to",
    "last",
    type=DayType(),
    help="Last day. [default: yesterday, or the last stored day where none would be shown]",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print JSON: the state by day and job, and under `reasons` why.",
)
@store_options
def command(
    count: int, last: date | None, as_json: bool, fout: str | None, settings_file: str | None
) -> int:
    """Show which days of which jobs are stored, published, failed or missing, and why.

    Ends with 66 where the store of recorded days is not there, with 75 where it was not
    looked at and nothing is known of the days.
    """
    settings = load_settings(settings_file)
    store = fout or settings.store
    is_there = store is not None and (not is_local(store) or Path(local_path(store)).is_dir())
    # A run into another store says nothing about this one. Where there is no store, all
    # that is known is shown.
    own_store = store if is_there else None
    with load_history(settings, fout) as history:
        stored = history.stored_days(own_store)
        until = last or _last_day(stored, count)
        span = [until - timedelta(days=back) for back in range(count - 1, -1, -1)]
        # Runs of periods have no single day: cmsspark period --list lists them.
        runs = [
            run
            for run in history.runs(first=span[0], last=until, store=own_store)
            if not run.details.period
        ]
        published = history.published(span[0], until)
        checks = history.checks(own_store) if own_store else {}
        is_lost_store = bool(store) and not is_there and bool(history.runs(store=store, limit=1))
        is_looked_at = store is not None and (
            not is_lost_store if is_local(store) else history.knows_store(store)
        )
    notes = _store_notes(store, is_looked_at=is_looked_at, has_runs=bool(runs))
    state = DailyState(settings.state_dir, store).read()
    records = {split_key(key): record for key, record in state.days.items()}
    around = replace(surroundings(settings, state), is_looked_at=is_looked_at)
    jobs = [name for name in JOBS if any(run.job == name for run in runs)]
    jobs += [job for job in JOBS if job not in jobs and any(name == job for _, name in records)]
    target = None
    if settings.publishing:
        # Not at import: sinks take long to load.
        from cmsspark.publish.publication import settings_target

        target, problem = settings_target(settings)
        notes += [problem] if problem else []
    jobs = jobs or ["data_aggregation"]
    damaged = {check.stored_run for check in checks.values() if check.error}
    cells = table(span, jobs, runs, published, damaged, target, around)
    silent = []
    if store and is_there and is_local(store):
        newest = {job: newest_stored(store, job, span) for job in jobs}
        for job, day in newest.items():
            silent += silent_lines(store, job, day) if day is not None else []
    unseen = all(cell.word == "not looked at" for cell in cells.values())
    code = int(Exit.NO_INPUT if is_lost_store else Exit.NOT_READY if store and unseen else 0)
    if as_json:
        click.echo(json_text(_document(span, jobs, cells, silent, notes), indent=1))
        return code
    for note in notes:
        click.echo(as_typed(note), err=True)
    _print(span, jobs, cells, checks)
    for paragraph in (
        reasons(runs, cells, settings.state_dir),
        earlier_rules(runs, cells),
        silent,
        [f"destination {line}" for line in delivery_lines(cells)],
        outside(stored, span),
        remarks(records, span),
    ):
        if paragraph:
            click.echo("\n" + as_typed("\n".join(paragraph)))
    return code


def _document(
    span: Sequence[date],
    jobs: Sequence[str],
    cells: Mapping[tuple[date, str], Cell],
    silent: Sequence[str],
    notes: Sequence[str],
) -> dict[str, Any]:
    """Return what ``--json`` prints: day → job → word, and under ``reasons`` the reason
    of each; under ``notes`` what is not of a day.
    """
    document: dict[str, Any] = {
        day.isoformat(): {job: cells[day, job].word for job in jobs} for day in span
    }
    whys = {
        f"{day} {job}": cell.as_dict()
        for (day, job), cell in cells.items()
        if cell.needs_a_line or cell.deliveries
    }
    if whys:
        document["reasons"] = whys
    if silent or notes:
        document["notes"] = {"silent_sites": list(silent), "store": list(notes)}
    return document


def _last_day(stored: Mapping[str, Sequence[date]], count: int) -> date:
    """Return yesterday, or the last stored day where no stored day is among the
    ``count`` days up to yesterday.
    """
    yesterday = dates.today() - timedelta(days=1)
    of_days = [days for job, days in stored.items() if job in JOBS and not JOBS[job].of_periods]
    newest = max((day for days in of_days for day in days), default=yesterday)
    return newest if newest <= yesterday - timedelta(days=count) else yesterday


def _store_notes(store: str | None, *, is_looked_at: bool, has_runs: bool) -> list[str]:
    """Return what there is to say where no store is named, none is at that place, or it
    was not looked at.
    """
    if not store:
        text = "no store is named: give --fout URI, or `store: URI` in cmsspark.yaml"
        return [] if has_runs else [text]
    if is_local(store) and not Path(local_path(store)).is_dir():
        text = (
            f"there is no store in {store}; what follows is this host's run history, of all stores"
        )
        return [text]
    if not is_looked_at:
        text = f"{store} was not looked at; what follows is this host's run history"
        return [f"{text}. cmsspark runs --rebuild --fout {store} reads the store"]
    return []


def outside(stored: Mapping[str, Sequence[date]], span: Sequence[date]) -> list[str]:
    """Return a line for each job with stored days outside the window, with the option
    that shows the last of them.
    """
    lines = []
    for job, stored_days in stored.items():
        if (
            job in JOBS
            and not JOBS[job].of_periods
            and (outer := [day for day in stored_days if day not in span])
        ):
            count = pluralize(len(outer), "day")
            lines.append(
                f"{job}: also stored: {count}, {spans(outer)}; --to {outer[-1]} shows the last"
            )
    return lines


def reasons(
    runs: Iterable[Run], cells: Mapping[tuple[date, str], Cell], state_dir: Path
) -> list[str]:
    """Return a line for each state that has a reason, and the page that says more of a
    failure.
    """
    pages = {
        run.run: page for run in runs if (page := run_report.page_path(state_dir, run)).is_file()
    }
    # Days of one reason are one line: a broker that is down concerns all of them.
    alike: dict[tuple[str, Cell], list[date]] = {}
    for (day, job), cell in sorted(cells.items()):
        if cell.needs_a_line:
            one_reason = replace(cell, since_ms=None, deliveries=())
            key = one_reason if cell.word == "unsent" else cell
            alike.setdefault((job, key), []).append(day)
    return [
        f"{spans(days)} {job}: {cell.text()}"
        + (f"\n  {pages[cell.run]}" if cell.run in pages else "")
        for (job, cell), days in alike.items()
    ]


def earlier_rules(runs: Iterable[Run], cells: Mapping[tuple[date, str], Cell]) -> list[str]:
    """Return a line for each job with days that were counted by earlier rules."""
    days: dict[str, list[date]] = {}
    seen = set()
    for run in runs:  # the latest start first
        key = run.day, run.job
        if key in seen or key not in cells or run.state is not State.DONE:
            continue
        seen.add(key)
        if run.details.has_earlier_rules and cells[key].word not in NO_RESULT:
            days.setdefault(run.job, []).append(run.day)
    return [
        f"{job}: counted by earlier rules: {spans(sorted(of_job))}; "
        f"run_spark {job} --date {max(of_job)} counts a day by today's"
        for job, of_job in days.items()
    ]


def remarks(records: Mapping[tuple[date, str], DayRecord], span: Sequence[date]) -> list[str]:
    """Return a line for each day that was acknowledged, and for each before the window
    that is not done.
    """
    lines = []
    for (day, job), record in sorted(records.items()):
        if record.skipped is not None:
            if day < span[0]:
                note = record.skipped
                noted_at = dates.to_minute(note.at_ms)
                lines.append(f"{day} {job}: skipped by {note.user}, {noted_at}: {note.reason}")
        elif record.acknowledged is not None and record.is_acknowledged and day <= span[-1]:
            note = record.acknowledged
            noted_at = dates.to_minute(note.at_ms)
            lines.append(f"{day} {job}: acknowledged: {note.reason} ({note.user}, {noted_at})")
        elif day < span[0] and record.word:
            text = before_window(record).text()
            lines.append(f"{day} {job}: not done: {text}. Only {run_step(day, job)} tries it")
    return lines


def _print(
    span: list[date],
    jobs: list[str],
    cells: Mapping[tuple[date, str], Cell],
    checks: Mapping[tuple[str, str], Check],
) -> None:
    rows = [
        [
            day.isoformat(),
            *(
                Coloured(
                    cell.word + (f" ({cell.refused:,} refused)" if cell.refused else ""),
                    WORDS[cell.word][0],
                )
                for cell in (cells[day, job] for job in jobs)
            ),
            _verified(day, [job for job in jobs if cells[day, job].word in STORED], checks),
        ]
        for day in span
    ]
    echo_table(["day", *jobs, "verified"], rows, texts=range(len(jobs) + 2), full=(0,))
    click.echo()
    used = {cell.word for cell in cells.values()}
    for word, (colour, meaning) in WORDS.items():
        if word in used:
            click.echo(f"{click.style(f'{word:<12}', fg=colour)} {meaning}")


def _verified(day: date, jobs: Sequence[str], checks: Mapping[tuple[str, str], Check]) -> str:
    """Return the day on which the bytes of the results were compared with their
    manifests: of several jobs the earliest, ``never`` where one never was, ``-``
    without results.
    """
    if not jobs:
        return "-"
    notes = [checks.get((job, day.isoformat())) for job in jobs]
    times = [note.at_ms for note in notes if note and note.part_count]
    return dates.utc(min(times)).date().isoformat() if len(times) == len(notes) else "never"
