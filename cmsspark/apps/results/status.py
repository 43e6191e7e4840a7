"""``cmsspark status``: the state of each day and job, from the run history and a local store."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, timedelta
from pathlib import Path

import click

from cmsspark.apps.results.runs import load_history
from cmsspark.base import clock, dates
from cmsspark.base.periods import spans
from cmsspark.base.text.terminal import Coloured, echo_table, pluralize, printable
from cmsspark.cli.options import DayType, store_options
from cmsspark.filesystems.storage import is_local, local_path
from cmsspark.run import failure_report
from cmsspark.settings.settings import load_settings
from cmsspark.store.daily_state import DailyState, DayRecord, split_key
from cmsspark.store.day_states import NO_RESULT, STORED, WORDS, Cell, table
from cmsspark.store.job_index import JOBS
from cmsspark.store.run_history import Check, Run, State


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
@click.option("--json", "as_json", is_flag=True, help="Print JSON: the state by day and job.")
@store_options
def command(
    count: int, last: date | None, as_json: bool, fout: str | None, settings_file: str | None
) -> None:
    """Show which days of which jobs are stored, published, failed or missing."""
    settings = load_settings(settings_file)
    store = fout or settings.store
    # A run into another store says nothing about this one. Where there is no store, all
    # that is known is shown.
    own_store = (
        store if store and not (is_local(store) and not Path(local_path(store)).is_dir()) else None
    )
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
    if (note := _store_note(store, has_runs=bool(runs))) is not None:
        click.echo(note, err=True)
    jobs = [name for name in JOBS if any(run.job == name for run in runs)] or ["data_aggregation"]
    records = DailyState(settings.state_dir, store).read().days
    jobs += [
        job for job in JOBS if job not in jobs and any(split_key(key)[1] == job for key in records)
    ]
    damaged = {check.stored_run for check in checks.values() if check.error}
    cells = table(span, jobs, runs, published, damaged)
    for key, record in records.items():
        if (
            record.skipped is not None
            and (at := split_key(key)) in cells
            and cells[at].word in NO_RESULT
        ):
            cells[at] = Cell("skipped")
    if as_json:
        states = {day.isoformat(): {job: cells[day, job].word for job in jobs} for day in span}
        click.echo(json.dumps(states, indent=1))
        return
    _print(span, jobs, cells, checks)
    for lines in (
        failures(runs, cells, settings.state_dir),
        earlier_rules(runs, cells),
        outside(stored, span),
        remarks(records, span),
    ):
        if lines:
            click.echo("\n" + "\n".join(lines))


def _last_day(stored: Mapping[str, Sequence[date]], count: int) -> date:
    """Return yesterday, or the last stored day where no stored day is among the
    ``count`` days up to yesterday.
    """
    yesterday = dates.today() - timedelta(days=1)
    of_days = [days for job, days in stored.items() if job in JOBS and not JOBS[job].of_periods]
    newest = max((day for days in of_days for day in days), default=yesterday)
    return newest if newest <= yesterday - timedelta(days=count) else yesterday


def _store_note(store: str | None, *, has_runs: bool) -> str | None:
    """Return what there is to say where no store is named, or where none is at that place."""
    if not store:
        return (
            None
            if has_runs
            else "no store is named: give --fout URI, or `store: URI` in cmsspark.yaml"
        )
    if is_local(store) and not Path(local_path(store)).is_dir():
        return (
            f"there is no store in {store}; what follows is this host's run history, of all stores"
        )
    return None


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


def failures(
    runs: Iterable[Run], cells: Mapping[tuple[date, str], Cell], state_dir: Path
) -> list[str]:
    """Return a line for each day whose last run failed: the code, the reason, and the
    page that says more.
    """
    lines, seen = [], set()
    for run in runs:  # the latest start first
        key = run.day, run.job
        if key in seen or key not in cells:
            continue
        seen.add(key)
        page = failure_report.page_path(state_dir, run)
        if run.state is State.FAILED and cells[key].word != "skipped" and page.is_file():
            reason = (run.error or "").partition("\n")[0]
            lines.append(f"{run.day} {run.job}: {run.exit_code}: {printable(reason)}\n  {page}")
    return lines


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


def remarks(records: Mapping[str, DayRecord], span: Sequence[date]) -> list[str]:
    """Return a line for each day that was skipped or acknowledged, and for each before
    the window that is not done.
    """
    lines = []
    for key, record in sorted(records.items()):
        day, _ = split_key(key)
        note, word = (
            (record.skipped, "skipped")
            if record.skipped
            else (record.acknowledged, "acknowledged")
        )
        is_noted = record.skipped is not None or record.is_acknowledged
        if note is not None and is_noted and day <= span[-1]:
            lines.append(
                f"{key}: {word}: {note.reason} ({note.user}, {clock.to_minute(note.at_ms)})"
            )
        elif day < span[0]:
            lines.append(f"{key}: not done: {record.word}: {record.text}")
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
            *(_shown(cells[day, job]) for job in jobs),
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
    manifests: of several jobs the earliest, ``-`` where one never was.
    """
    notes = [checks.get((job, day.isoformat())) for job in jobs]
    times = [note.at_ms for note in notes if note and note.part_count]
    return clock.utc(min(times)).date().isoformat() if times and len(times) == len(notes) else "-"


def _shown(state: Cell) -> Coloured:
    refused = f" ({state.refused:,} refused)" if state.refused else ""
    return Coloured(state.word + refused, WORDS[state.word][0])
