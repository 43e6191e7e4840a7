"""``cmsspark path`` and ``cmsspark manifest``: the location and the manifest of a stored result."""

from __future__ import annotations

import glob

import click

from cmsspark.base.periods import Interval
from cmsspark.base.text.readable import json_text
from cmsspark.cli.options import settings_of, store_of, store_options
from cmsspark.cli.period_options import when_options
from cmsspark.filesystems.storage import Files, is_local
from cmsspark.store.job_index import job_of_table
from cmsspark.store.part_checks import check_table
from cmsspark.store.results import CurrentTable, current
from cmsspark.store.stored_columns import files_of


def find(table: str, day: Interval, fout: str | None, settings_file: str | None) -> tuple[Files, CurrentTable]:
    """The file system and the current result of ``table``. Local stores need no JVM; others start one."""
    job = job_of_table(table)
    settings = settings_of(settings_file)
    store = store_of(fout, settings)
    files = files_of(store, "cmsspark path", settings)
    return files, current(files, store, job.name, table if table in job.tables else job.name, day)


@click.command("path")
@click.argument("table")
@when_options
@click.option("--glob", "as_glob", is_flag=True, help="Print a pattern of its part files, for readers that want files.")
@store_options
def path_command(table: str, when: Interval, as_glob: bool, fout: str | None, settings_file: str | None) -> None:
    """Print the URI of the current result of TABLE, for pandas, DuckDB or Spark."""
    files, stored = find(table, when, fout, settings_file)
    name = stored.path.rpartition("/")[2]
    check_table(files, stored, name)
    if not as_glob:
        click.echo(files.uri(stored.path))
        return
    fmt = stored.manifest.tables[name].format
    # A name with a character of patterns stays a plain path, in which that character is escaped.
    folder = glob.escape(stored.path) if is_local(stored.path) else files.uri(stored.path)
    click.echo(f"{folder}/part-*.{fmt}")


@click.command("manifest")
@click.argument("table")
@when_options
@store_options
def manifest_command(table: str, when: Interval, fout: str | None, settings_file: str | None) -> None:
    """Print the manifest of the current result of TABLE as JSON: inputs, dumps, rows, counts, versions."""
    _, stored = find(table, when, fout, settings_file)
    click.echo(json_text(stored.manifest.document, indent=1))
