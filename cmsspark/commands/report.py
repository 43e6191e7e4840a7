"""``cmsspark report``: where every record of a stored day went; for people, as JSON, and as a page beside the run."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import click

from cmsspark.daily.state import DailyState
from cmsspark.errors import Exit, InputMissing, OutputError
from cmsspark.file_systems import files_for
from cmsspark.pipeline.job_index import job_of_table
from cmsspark.pipeline.options import date_option, settings_of, store_of, store_options
from cmsspark.pipeline.run_report import of_run
from cmsspark.reports.page import page
from cmsspark.reports.text import text
from cmsspark.runners.session import small_session
from cmsspark.storage import Files, LocalFiles, is_local
from cmsspark.store import results


@click.command("report")
@click.argument("table", default="data_aggregation")
@date_option
@click.option("--run", "run", metavar="RUN", help="A run of the day that counts no more; the begin of its id will do.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@click.option("--html", "html", metavar="FILE", type=click.Path(dir_okay=False), help="Write it as a page.")
@store_options
def command(
    table: str,
    day: date,
    run: str | None,
    as_json: bool,
    html: str | None,
    fout: str | None,
    settings_file: str | None,
) -> int:
    """Show where every record of TABLE's day went: bins, joins, inputs, what is unlike the days before.

    Ends with 65 where rows of a join were lost or doubled.
    """
    job = job_of_table(table)
    settings = settings_of(settings_file)
    place = store_of(fout, settings)
    files = _files(place)
    name = job.name if table in job.aliases else table
    try:
        found = (
            results.run_table(files, place, job.name, name, day, run)
            if run
            else results.current(files, place, job.name, name, day)
        )
    except InputMissing as error:
        skipped = DailyState(settings.state_dir, place).record(day, job.name).skipped
        if skipped is None:
            raise
        raise InputMissing(
            error.wanted, where=error.where, found=f"the day was skipped by {skipped.user}: {skipped.reason}"
        ) from None
    told = of_run(files, place, job, found.manifest, found.path.rsplit("/", 1)[0])
    if html is not None:
        _write(Path(html), page(told))
    if as_json:
        click.echo(json.dumps(told, indent=1, ensure_ascii=False))
    elif html is None:
        click.echo(text(told))
    return 0 if all(one["is_right"] for one in told["joins"]) else int(Exit.DATA)


def _files(place: str) -> Files:
    return LocalFiles() if is_local(place) else files_for(place, small_session("cmsspark report"))


def _write(path: Path, content: str) -> None:
    try:
        path.write_text(content, encoding="utf-8")
    except OSError as error:
        raise OutputError("the page cannot be written", where=path, found=error.strerror) from None
