"""``cmsspark show``: a stored table or a run: its details, its path, its manifest.
Local stores need no JVM.
"""

from __future__ import annotations

import glob
from contextlib import suppress
from pathlib import Path

import click
from msgspec.structs import asdict

from cmsspark.apps.monitor.measured_runs import find_latest
from cmsspark.apps.monitor.run_report import echo_comparison, echo_measured, only_measured
from cmsspark.apps.results.runs import COLOURS, load_history, run_deliveries
from cmsspark.base import dates
from cmsspark.base.errors import CmssparkError, UsageError
from cmsspark.base.periods import Interval
from cmsspark.base.text.readable import json_text
from cmsspark.base.text.terminal import volume
from cmsspark.cli.options import require_store, store_options
from cmsspark.cli.period_options import optional_when_options
from cmsspark.filesystems.storage import Files, LocalFiles, disk_rate, is_local, local_path
from cmsspark.pages.day_report import bins_table
from cmsspark.run import run_report
from cmsspark.run.run_context import from_manifest
from cmsspark.run.run_report import PAGE
from cmsspark.settings.settings import Settings, load_settings
from cmsspark.store.own_jobs import JOBS, find_job, job_of_table
from cmsspark.store.part_files import check_table
from cmsspark.store.results import CurrentTable, current, read_manifest
from cmsspark.store.run_history import Run, RunHistory, describe
from cmsspark.store.stored_columns import open_store

_DAY_STEP = "give --date, or one of --week, --month, --from … --to"


def find(
    table: str, day: Interval, fout: str | None, settings_file: str | None
) -> tuple[Files, CurrentTable]:
    """Return the file system and the current result of ``table``. Local stores need no
    JVM; others start one.
    """
    job = job_of_table(table)
    settings = load_settings(settings_file)
    store = require_store(fout, settings)
    files = open_store(store, "cmsspark show", settings)
    return files, current(files, store, job.name, table if table in job.tables else job.name, day)


@click.command("show")
@click.argument("name", metavar="TABLE|RUN")
@optional_when_options
@click.option(
    "--path",
    "form",
    flag_value="path",
    help="Print only the URI of the table, for pandas, DuckDB or Spark.",
)
@click.option("--glob", "form", flag_value="glob", help="Print only a pattern of its part files.")
@click.option(
    "--manifest", "form", flag_value="manifest", help="Print only its manifest, as JSON."
)
@click.option("--json", "form", flag_value="json", help="Print the details as JSON.")
@click.option(
    "--trace",
    "form",
    flag_value="trace",
    help="Print only the exception that ended the run, as a whole.",
)
@click.option(
    "--against",
    metavar="RUN",
    help="Compare RUN with an earlier one: options, stages, memory, findings.",
)
@store_options
def command(
    name: str,
    when: Interval | None,
    form: str | None,
    against: str | None,
    fout: str | None,
    settings_file: str | None,
) -> None:
    """Show the current result of TABLE for a day or period, or RUN: its exception,
    inputs, counts, use and findings.

    RUN is the beginning of an id that run_spark or cmsspark runs prints, the file name
    of a script or the name of a job (its latest run), or latest.
    """
    if when is None and form in ("path", "glob", "manifest"):
        raise UsageError(f"--{form} needs a day or a period", next_step=_DAY_STEP)
    if when is not None and form == "trace":
        raise UsageError(
            "--trace is of a run, not of a day",
            next_step="leave out the day: cmsspark show RUN --trace",
        )
    settings = load_settings(settings_file)
    if against is not None:
        if when is not None or form not in (None, "json"):
            raise UsageError(
                "--against compares two runs", next_step="cmsspark show RUN --against RUN [--json]"
            )
        echo_comparison(settings.state_dir, name, against, as_json=form == "json")
        return
    if when is None:
        _show_run(name, form, fout, settings)
        return
    files, stored = find(name, when, fout, settings_file)
    if form in ("path", "glob"):
        check_table(files, stored, stored.path.rpartition("/")[2])
    if form == "path":
        click.echo(files.uri(stored.path))
    elif form == "glob":
        fmt = stored.manifest.tables[stored.path.rpartition("/")[2]].format
        # A name with a character of patterns stays a plain path, in which that character is escaped.
        folder = glob.escape(stored.path) if is_local(stored.path) else files.uri(stored.path)
        click.echo(f"{folder}/part-*.{fmt}")
    elif form == "manifest":
        click.echo(json_text(stored.manifest.document, indent=1))
    else:
        # Print the run of a stored table; where the run history lacks it, as its
        # manifest describes it.
        as_json = form == "json"
        with load_history(settings, fout) as history:
            try:
                record = history.find(stored.manifest.run)
            except UsageError:
                record = from_manifest(stored.manifest, require_store(fout, settings))
            _print_run(record, history, as_json, settings, path=files.uri(stored.path))


def _show_run(name: str, form: str | None, fout: str | None, settings: Settings) -> None:
    """Print the run that ``name`` means: one of the run history, else a measured one.
    Raises UsageError (2).
    """
    with load_history(settings, fout) as history:
        try:
            record = _find_run(history, name, fout, settings)
        except UsageError:
            if only_measured(
                settings.state_dir, name, as_json=form == "json", trace=form == "trace"
            ):
                return
            if any(name in (*job.tables, *job.aliases) for job in JOBS.values()):
                step = f"{_DAY_STEP}; cmsspark status lists the days"
                raise UsageError(f"name a day or a period of {name}", next_step=step) from None
            raise
        if form == "trace":
            echo_measured(settings.state_dir, record, trace=True)
        else:
            _print_run(record, history, form == "json", settings)


def _find_run(history: RunHistory, name: str, fout: str | None, settings: Settings) -> Run:
    """Return the run of the run history that a name means; with ``fout`` the latest of
    this store. Raises UsageError (2) where it means none, or a script's.
    """
    if name == "latest":
        record = history.find(name, fout)
        script = None if fout else find_latest(settings.state_dir, name)
        # The measurement of a job begins before its run: what was measured later is a script's.
        if script is not None and script.began_ms > record.began_ms:
            raise UsageError("the latest run is a script's", found=script.run)
        return record
    with suppress(UsageError):
        runs = history.runs(job=find_job(name).name, store=fout, limit=1)
        if runs:
            return runs[0]
    return history.find(name)


def _print_run(
    record: Run, history: RunHistory, as_json: bool, settings: Settings, path: str = ""
) -> None:
    """Print the details of a run; ``path``: of the table that was asked for."""
    published = [
        entry
        for entry in history.published(record.day, record.day)
        if entry.stored_run == record.stored_run
    ]
    if as_json:
        documents = [{**asdict(entry), "day": entry.day.isoformat()} for entry in published]
        details = {**record.as_dict(), "published": documents}
        click.echo(json_text({**details, "path": path} if path else details, indent=1))
        return
    state = click.style(record.state.value, fg=COLOURS[record.state])
    click.echo(
        f"{record.job} of {record.interval}: {state}{', partial' if record.is_partial else ''}"
    )
    facts: list[tuple[str, object]] = [("path", path)] if path else []
    facts += [*describe(record), *(("warning", text) for text in record.details.warnings)]
    facts += [("read", rate)] if (rate := _reading_rate(record)) else []
    facts += [("report", page)] if (page := _stored_file(record, PAGE)) else []
    failed = run_report.page_path(settings.state_dir, record)
    facts += [("page", failed)] if failed.is_file() else []
    facts += [("error", f"{record.exit_code}: {record.error}")] if record.error else []
    for delivery in run_deliveries([record], history, settings).get(record.run, ()):
        sent_at = f", {dates.to_second(delivery.at_ms)} UTC" if delivery.at_ms else ""
        facts.append(("documents", f"{delivery.text()}{sent_at}"))
    for label, value in facts:
        click.echo(f"  {label:<12}" + str(value).replace("\n", "\n" + " " * 14))
    if bins := record.details.reconciliation:
        click.echo("\n" + bins_table(bins))
    echo_measured(settings.state_dir, record)


def _stored_file(run: Run, name: str) -> Path | None:
    """Return a file of the run in a local store, such as its report."""
    if not run.stored_run or not is_local(run.store):
        return None
    file = Path(local_path(run.store), run.job, run.day.isoformat(), "runs", run.stored_run, name)
    return file if file.is_file() else None


def _reading_rate(run: Run) -> str | None:
    """Return what the run read a second, and what the disk of its inputs gives now: no
    setting makes a run quicker than its disk. None if its manifest does not tell.
    """
    path = _stored_file(run, "manifest.json")
    if path is None or not run.seconds:
        return None
    try:
        manifest = read_manifest(LocalFiles(), str(path))
    except CmssparkError:
        return None
    size = sum(source.size for source in manifest.inputs)
    files = [file for source in manifest.inputs for file in source.files if is_local(file[0])]
    if not size or not files:
        return None
    text = f"{volume(size)}, {volume(size / run.seconds)}/s"
    largest, *_ = max(files, key=lambda file: file[1] or 0)
    disk = disk_rate(local_path(largest))
    return text if disk is None else f"{text}; the disk gives {volume(disk)}/s"
