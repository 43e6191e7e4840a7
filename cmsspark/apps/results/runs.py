"""``cmsspark runs``: the history of runs. Local stores need no JVM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from typing import Final

import click
from msgspec.structs import asdict

from cmsspark.base import dates
from cmsspark.base.manifests import Manifest
from cmsspark.base.text.readable import json_text
from cmsspark.base.text.terminal import Coloured, echo_table, pluralize
from cmsspark.cli.options import DayType, require_store, store_options
from cmsspark.filesystems.storage import is_local
from cmsspark.run.run_context import from_manifest
from cmsspark.settings.settings import Settings, load_settings
from cmsspark.store import results, run_history
from cmsspark.store.deliveries import Delivery, deliveries
from cmsspark.store.own_jobs import JOBS, find_job
from cmsspark.store.run_history import Run, RunHistory, State
from cmsspark.store.stored_columns import open_store

#: Colours of the states.
COLOURS: Final = {
    State.DONE: "green",
    State.RUNNING: "blue",
    State.FAILED: "red",
    State.INTERRUPTED: "yellow",
}


@contextmanager
def load_history(
    settings: Settings, fout: str | None, *, rebuild: bool = False
) -> Iterator[RunHistory]:
    """Open the run history. One that does not know the store yet is filled from the
    manifests of the store.

    Stores that are not local are read only with ``rebuild``, as that takes a JVM.
    """
    notes: list[str] = []
    store = fout or settings.store
    with run_history.open_history(settings.state_dir, notes) as history:
        history.sweep()
        if rebuild:
            store = require_store(fout, settings)
        if store and (rebuild or (is_local(store) and not history.knows_store(store))):
            added = history.rebuild(store, stored_runs(store, settings))
            if rebuild or added:
                notes.append(
                    f"{pluralize(added, 'run was', 'runs were')} added from the manifests in {store}"
                )
        for note in notes:
            click.echo(note, err=True)
        yield history


def stored_runs(store: str, settings: Settings | None = None) -> Iterator[Run]:
    """Yield the runs in the manifests of a store."""
    files = open_store(store, "cmsspark runs", settings)
    for manifest in results.manifests(files, store):
        try:
            yield from_manifest(Manifest.from_dict(manifest), store)
        except ValueError:
            click.echo(
                f"skipped a manifest of an unknown format: run {manifest.get('run')}", err=True
            )


@click.command("runs")
@click.option("--job", "job_name", metavar="JOB", help="Only runs of this job.")
@click.option("--date", "day", type=DayType(), help="Only runs of this day.")
@click.option(
    "--state",
    type=click.Choice([state.value for state in State], case_sensitive=False),
    help="Only this state.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=30,
    show_default=True,
    help="Maximum number of runs.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one run a line.")
@click.option("--rebuild", is_flag=True, help="First add the runs in the manifests of the store.")
@store_options
def command(
    job_name: str | None,
    day: date | None,
    state: str | None,
    limit: int,
    as_json: bool,
    rebuild: bool,
    fout: str | None,
    settings_file: str | None,
) -> None:
    """List runs of jobs, the latest first, with their state, start, duration and rows.

    Runs of all stores; with --fout those of this store.
    """
    settings = load_settings(settings_file)
    job = find_job(job_name).name if job_name else None
    with load_history(settings, fout, rebuild=rebuild) as history:
        only_state = State(state.upper()) if state else None
        runs = history.runs(
            job=job, first=day, last=day, state=only_state, store=fout, limit=limit
        )
        at = run_deliveries(runs, history, settings)
    if as_json:
        for run in runs:
            documents = [asdict(delivery) for delivery in at.get(run.run, ())]
            more = {"destinations": documents} if documents else {}
            click.echo(json_text({**run.as_dict(), **more}))
        return
    if not runs:
        click.echo(f"no such run is recorded{f' of the store {fout}' if fout else ''}", err=True)
        return
    headings = ("run", "job", "day", "state", "started (UTC)", "seconds", "rows", "")
    echo_table(
        headings,
        [_row(run, at.get(run.run, ())) for run in runs],
        texts=(0, 1, 2, 3, 4, 7),
        full=(0, 2, 3, 4),
        optional=(5, 4),
    )


def run_deliveries(
    runs: Sequence[Run], history: RunHistory, settings: Settings
) -> dict[str, list[Delivery]]:
    """Return the state of the documents of each run at each destination: of runs that
    were published, and of the latest of a day.
    """
    days = [run.day for run in runs if run.stored_run]
    if not days:
        return {}
    published = history.published(min(days), max(days))
    target = None
    if settings.publishing:
        # Not at import: sinks take a fifth of the time of `show`.
        from cmsspark.publish.publication import settings_target

        target, _ = settings_target(settings)
    at: dict[str, list[Delivery]] = {}
    latest: set[tuple[str, date]] = set()
    for run in runs:
        is_latest = run.state is State.DONE and (run.job, run.day) not in latest
        latest |= {(run.job, run.day)} if is_latest else set()
        sent = [
            entry
            for entry in published
            if run.stored_run and (entry.job, entry.stored_run) == (run.job, run.stored_run)
        ]
        public = JOBS[run.job].public_tables if run.job in JOBS else ()
        if sent or (target and is_latest and public):
            tables = set(public) & set(run.details.tables) or set(public[:1])
            at[run.run] = deliveries(sent, tables, target)
    return at


def _row(run: Run, at: Sequence[Delivery]) -> tuple[object, ...]:
    notes = [*(["partial"] if run.is_partial else []), *(delivery.text() for delivery in at)]
    return (
        *(run.run, run.job, run.interval, Coloured(run.state.value, COLOURS[run.state])),
        *(
            dates.to_second(run.began_ms),
            *("" if n is None else n for n in (run.seconds, run.rows)),
        ),
        run.failure[:84] or "; ".join(notes),
    )
