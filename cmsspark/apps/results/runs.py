"""``cmsspark runs`` and ``cmsspark show``: the history of runs. Local stores need no JVM."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import date
from pathlib import Path
from typing import Final

import click

from cmsspark.apps.monitor.show_measured import echo_measured, latest_of, only_measured
from cmsspark.base import clock
from cmsspark.base.errors import UsageError
from cmsspark.base.manifests import Manifest
from cmsspark.base.text.plurals import number_of
from cmsspark.base.text.readable import json_text
from cmsspark.base.text.terminal import Coloured, echo_table
from cmsspark.cli.options import DayType, settings_of, store_of, store_options
from cmsspark.filesystems.storage import is_local, local_path
from cmsspark.pages import reconciliation_table
from cmsspark.run import failure_report
from cmsspark.run.run_context import from_manifest
from cmsspark.run.run_report import PAGE
from cmsspark.settings.settings import Settings
from cmsspark.store import contents, run_history
from cmsspark.store.job_index import find_job
from cmsspark.store.run_history import Run, RunHistory, State
from cmsspark.store.stored_columns import files_of

#: Colours of the states.
COLOURS: Final = {State.DONE: "green", State.RUNNING: "blue", State.FAILED: "red", State.INTERRUPTED: "yellow"}


@contextmanager
def history_of(settings: Settings, fout: str | None, *, rebuild: bool = False) -> Iterator[RunHistory]:
    """The run history. A history that does not know the store yet is filled from the manifests of the store.

    Stores that are not local are read only with ``rebuild``, as that takes a JVM.
    """
    notes: list[str] = []
    store = fout or settings.store
    with run_history.open_history(settings.state_dir, notes) as history:
        history.sweep()
        if rebuild:
            store = store_of(fout, settings)
        if store and (rebuild or (is_local(store) and not history.knows_store(store))):
            added = history.rebuild(store, stored_runs(store, settings))
            if rebuild or added:
                notes.append(f"{added} runs were added from the manifests in {store}")
        for note in notes:
            click.echo(note, err=True)
        yield history


def stored_runs(store: str, settings: Settings | None = None) -> Iterator[Run]:
    """The runs in the manifests of a store."""
    files = files_of(store, "cmsspark runs", settings)
    for manifest in contents.manifests(files, store):
        try:
            yield from_manifest(Manifest.of(manifest), store)
        except ValueError:
            click.echo(f"skipped a manifest of an unknown format: run {manifest.get('run')}", err=True)


@click.command("runs")
@click.option("--job", "job_name", metavar="JOB", help="Only runs of this job.")
@click.option("--date", "day", type=DayType(), help="Only runs of this day.")
@click.option(
    "--state",
    type=click.Choice([state.value for state in State], case_sensitive=False),
    help="Only this state.",
)
@click.option("--limit", type=click.IntRange(min=1), default=30, show_default=True, help="Maximum number of runs.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one run a line.")
@click.option("--rebuild", is_flag=True, help="First add the runs in the manifests of the store.")
@store_options
def runs_command(
    job_name: str | None, day: date | None, state: str | None, limit: int, as_json: bool, rebuild: bool,
    fout: str | None, settings_file: str | None,
) -> None:  # fmt: skip
    """List runs of jobs, the latest first, with their state, start, duration and rows."""
    settings = settings_of(settings_file)
    job = find_job(job_name).name if job_name else None
    with history_of(settings, fout, rebuild=rebuild) as history:
        wanted = State(state.upper()) if state else None
        runs = history.runs(job=job, first=day, last=day, state=wanted, limit=limit)
    if as_json:
        for run in runs:
            click.echo(json_text(run.as_dict()))
        return
    headings = ("run", "job", "day", "state", "started (UTC)", "seconds", "rows", "")
    echo_table(headings, [_row(run) for run in runs], left=(0, 1, 2, 3, 4, 7), whole=(0, 2, 3, 4), optional=(5, 4))


def _row(run: Run) -> tuple[object, ...]:
    lines = (run.error or "").splitlines()[:1]
    note = f"{run.exit_code}: {lines[0][:80]}" if run.exit_code and lines else "partial" if run.is_partial else ""
    state = Coloured(run.state.value, COLOURS[run.state])
    started = clock.to_second(run.began_ms)
    seconds = "" if run.seconds is None else run.seconds
    return (run.run, run.job, of(run), state, started, seconds, "" if run.rows is None else run.rows, note)


def of(run: Run) -> str:
    """The day that a run is of, or its period's name."""
    return run.details.period or str(run.day)


@click.command("show")
@click.argument("run")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--trace", is_flag=True, help="Print only the exception that ended it, as a whole.")
@store_options
def show_command(run: str, as_json: bool, trace: bool, fout: str | None, settings_file: str | None) -> None:
    """Show the details of RUN: exception, inputs, counts, warnings, documents, what it used, findings.

    RUN is the beginning of an id that run_spark or cmsspark runs prints, the file name of a script or the name of a
    job (its latest run), or latest.
    """
    settings = settings_of(settings_file)
    with history_of(settings, fout) as history:
        try:
            record = _find(history, run, settings)
        except UsageError:
            if only_measured(settings.state_dir, run, as_json=as_json, trace=trace):
                return
            raise
        published = [
            entry for entry in history.published(record.day, record.day) if entry.stored_run == record.stored_run
        ]
    if trace:
        echo_measured(settings.state_dir, record, trace=True)
        return
    documents = [{**entry.__dict__, "day": entry.day.isoformat()} for entry in published]
    if as_json:
        click.echo(json_text({**record.as_dict(), "published": documents}, indent=1))
        return
    state = click.style(record.state.value, fg=COLOURS[record.state])
    click.echo(f"{record.job} of {of(record)}: {state}{', partial' if record.is_partial else ''}")
    for label, value in _facts(record):
        click.echo(f"  {label:<12}{value}")
    if (failed := failure_report.page_path(settings.state_dir, record)).is_file():
        click.echo(f"  {'page':<12}{failed}")
    if record.error:
        click.echo(f"  {'error':<12}{record.exit_code}: " + record.error.replace("\n", "\n" + " " * 14))
    for entry in published:
        counts = f"{entry.confirmed:,} confirmed, {entry.waiting:,} waiting, {entry.refused:,} refused"
        click.echo(f"  {'published':<12}{entry.table}: {counts}, {entry.destination}, {clock.to_second(entry.at_ms)}")
    if bins := record.details.reconciliation:
        click.echo("\n" + reconciliation_table.table(bins))
    echo_measured(settings.state_dir, record)


def _find(history: RunHistory, name: str, settings: Settings) -> Run:
    """Return the run of the run history that a name means. Raises UsageError (2) where it means none, or a script's."""
    if name == "latest":
        record = history.find(name)
        script = latest_of(settings.state_dir, name)
        # The measurement of a job begins before its run: what was measured later is a script's.
        if script is not None and script.began_ms > record.began_ms:
            raise UsageError("the latest run is a script's", found=script.run)
        return record
    with suppress(UsageError):
        runs = history.runs(job=find_job(name).name, limit=1)
        if runs:
            return runs[0]
    return history.find(name)


def _page(run: Run) -> Path | None:
    """The run's report in a local store."""
    if not run.stored_run or not is_local(run.store):
        return None
    page = Path(local_path(run.store), run.job, run.day.isoformat(), "runs", run.stored_run, PAGE)
    return page if page.is_file() else None


def _facts(run: Run) -> Iterator[tuple[str, object]]:
    details = run.details
    yield "run", run.run
    if run.stored_run:
        yield "stored as", run.stored_run
    yield "store", run.store
    yield "started", f"{clock.to_second(run.began_ms)} UTC"
    if run.seconds is not None:
        yield "took", f"{run.seconds:,.1f} s"
    if run.process:
        yield "by", f"process {run.process.get('pid')} on {run.process.get('host')}"
    if days := details.days:
        yield "days", f"{len(days)}, {min(days)} to {max(days)}"
    for table, entry in details.tables.items():
        yield "table", f"{table}: {number_of(entry.rows, 'row')}, {entry.bytes or 0:,} bytes"
    for kind, dump in details.dumps.items():
        yield "dump", f"{kind}: {dump.folder}"
    if page := _page(run):
        yield "report", page
    if details.missing_streams:
        yield "missing", ", ".join(details.missing_streams)
    if run.fingerprint:
        yield "inputs", run.fingerprint[:16]
    if details.versions:
        yield "versions", ", ".join(f"{name} {value}" for name, value in details.versions.items())
    for text in details.warnings:
        yield "warning", text
