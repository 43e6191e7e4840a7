"""``cmsspark runs`` and ``cmsspark show``: what ran, when, on what, and how it ended. No JVM for local stores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any, Final

import click

from cmsspark import clock
from cmsspark.file_systems import files_for
from cmsspark.pipeline.job_index import find_job
from cmsspark.pipeline.options import DayType, settings_of, store_of, store_options
from cmsspark.pipeline.run_context import from_manifest
from cmsspark.pipeline.run_report import PAGE
from cmsspark.readable import json_text
from cmsspark.reports import reconciliation_table
from cmsspark.reports.terminal import Coloured, echo_table
from cmsspark.settings import Settings
from cmsspark.storage import LocalFiles, is_local, local_path
from cmsspark.store import contents, run_history
from cmsspark.store.run_history import Run, RunHistory, State

#: Of each state, for people who see colours.
COLOURS: Final = {State.DONE: "green", State.RUNNING: "blue", State.FAILED: "red", State.INTERRUPTED: "yellow"}


@contextmanager
def ledger_of(settings: Settings, fout: str | None, *, rebuild: bool = False) -> Iterator[RunHistory]:
    """The ledger; one that never saw the store, being new, gone or damaged, is made from its manifests.

    Stores that are not local are read only when ``rebuild`` asks for it, as that takes a JVM.
    """
    notes: list[str] = []
    place = fout or settings.store
    with run_history.open_history(settings.state_dir, notes) as book:
        book.sweep()
        if rebuild:
            place = store_of(fout, settings)
        if place and (rebuild or (is_local(place) and not book.knows_store(place))):
            added = book.rebuild(place, stored_runs(place))
            if rebuild or added:
                notes.append(f"{added} runs were entered from the manifests in {place}")
        for note in notes:
            click.echo(note, err=True)
        yield book


def stored_runs(place: str) -> Iterator[Run]:
    """The runs that the manifests of a store tell of."""
    if is_local(place):
        files: Any = LocalFiles()
    else:
        from cmsspark.runners.session import small_session

        files = files_for(place, small_session("cmsspark runs"))
    for manifest in contents.manifests(files, place):
        try:
            yield from_manifest(manifest, place)
        except (KeyError, ValueError, TypeError):
            click.echo(f"a manifest of another form is left out: run {manifest.get('run')}", err=True)


@click.command("runs")
@click.option("--job", "job_name", metavar="JOB", help="Only runs of this job.")
@click.option("--date", "day", type=DayType(), help="Only runs of this day.")
@click.option("--state", type=click.Choice([state.value for state in State], case_sensitive=False), help="Only such.")
@click.option("--limit", type=click.IntRange(min=1), default=30, show_default=True, help="So many at most.")
@click.option("--json", "as_json", is_flag=True, help="As JSON, one run a line.")
@click.option("--rebuild", is_flag=True, help="First enter the runs that the store's manifests tell of.")
@store_options
def runs_command(
    job_name: str | None, day: date | None, state: str | None, limit: int, as_json: bool, rebuild: bool,
    fout: str | None, settings_file: str | None,
) -> None:  # fmt: skip
    """List runs of jobs, the latest first: when they began, how they ended, how many rows they made."""
    settings = settings_of(settings_file)
    job = find_job(job_name).name if job_name else None
    with ledger_of(settings, fout, rebuild=rebuild) as book:
        wanted = State(state.upper()) if state else None
        found = book.runs(job=job, first=day, last=day, state=wanted, limit=limit)
    if as_json:
        for run in found:
            click.echo(json_text(run.as_dict()))
        return
    headings = ("run", "job", "day", "state", "began (UTC)", "seconds", "rows", "")
    echo_table(headings, [_row(run) for run in found], left=(0, 1, 2, 3, 4, 7), whole=(0, 2, 3, 4), optional=(5, 4))


def _row(run: Run) -> tuple[object, ...]:
    why = (run.error or "").splitlines()[:1]
    told = f"{run.exit_code}: {why[0][:80]}" if run.exit_code and why else "partial" if run.is_partial else ""
    state = Coloured(run.state.value, COLOURS[run.state])
    began = clock.to_second(run.began_ms)
    seconds = "" if run.seconds is None else run.seconds
    return (run.run, run.job, of(run), state, began, seconds, "" if run.rows is None else run.rows, told)


def of(run: Run) -> str:
    """The day that a run is of, or its period's name."""
    return str(run.details.get("period") or run.day)


@click.command("show")
@click.argument("run")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@store_options
def show_command(run: str, as_json: bool, fout: str | None, settings_file: str | None) -> None:
    """Show all that is known of RUN (the beginning of its id will do): inputs, bins, warnings, documents, error."""
    with ledger_of(settings_of(settings_file), fout) as book:
        found = book.find(run)
        published = [one for one in book.published(found.day, found.day) if one.stored_run == found.stored_run]
    documents = [{**one.__dict__, "day": one.day.isoformat()} for one in published]
    if as_json:
        click.echo(json_text({**found.as_dict(), "published": documents}, indent=1))
        return
    state = click.style(found.state.value, fg=COLOURS[found.state])
    click.echo(f"{found.job} of {of(found)}: {state}{', partial' if found.is_partial else ''}")
    for label, value in _facts(found):
        click.echo(f"  {label:<12}{value}")
    if found.error:
        click.echo(f"  {'error':<12}{found.exit_code}: " + found.error.replace("\n", "\n" + " " * 14))
    for one in published:
        told = f"{one.table}: {one.confirmed:,} confirmed, {one.waiting:,} waiting, {one.refused:,} refused"
        click.echo(f"  {'published':<12}{told}, {one.destination}, {clock.to_second(one.at_ms)}")
    if bins := found.details.get("reconciliation"):
        click.echo("\n" + reconciliation_table.table(bins))


def _page(run: Run) -> Path | None:
    """The run's report in a local store."""
    if not run.stored_run or not is_local(run.store):
        return None
    page = Path(local_path(run.store), run.job, run.day.isoformat(), "runs", run.stored_run, PAGE)
    return page if page.is_file() else None


def _facts(run: Run) -> Iterator[tuple[str, object]]:
    told = run.details
    yield "run", run.run
    if run.stored_run:
        yield "stored as", run.stored_run
    yield "store", run.store
    yield "began", f"{clock.to_second(run.began_ms)} UTC"
    if run.seconds is not None:
        yield "took", f"{run.seconds:,.1f} s"
    if run.process:
        yield "by", f"process {run.process.get('pid')} on {run.process.get('host')}"
    if days := told.get("days"):
        yield "days", f"{len(days)}, {min(days)} to {max(days)}"
    for table, one in (told.get("tables") or {}).items():
        yield "table", f"{table}: {one.get('rows', 0):,} rows, {one.get('bytes', 0):,} bytes"
    for kind, dump in (told.get("dumps") or {}).items():
        yield "dump", f"{kind}: {dump.get('folder')}"
    if page := _page(run):
        yield "report", page
    if told.get("missing_streams"):
        yield "missing", ", ".join(told["missing_streams"])
    if run.fingerprint:
        yield "inputs", run.fingerprint[:16]
    if told.get("versions"):
        yield "versions", ", ".join(f"{name} {value}" for name, value in told["versions"].items())
    for text in told.get("warnings") or ():
        yield "warning", text
