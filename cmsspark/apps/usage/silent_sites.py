"""``silent_sites``: sites of which a stream has no record on a day, or hardly any (rule 73)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from typing import TYPE_CHECKING, Final

import click

from cmsspark.base.dates import start_ms
from cmsspark.base.text.terminal import pluralize
from cmsspark.cli.options import (
    date_option,
    output_options,
    print_outcome,
    require_store,
    store_options,
)
from cmsspark.run.period_run import store_tables
from cmsspark.run.run_context import running
from cmsspark.settings.settings import load_settings
from cmsspark.store import silent_sites
from cmsspark.store.own_jobs import Job, declare
from cmsspark.store.stored_columns import open_store

if TYPE_CHECKING:
    from cmsspark.settings.settings import Settings
    from cmsspark.store.results import CurrentTable

#: The job whose stored days are compared.
_OF: Final = "data_aggregation"
JOB: Final = Job(
    "silent_sites",
    "Sites of which a stream has no record on a day, or hardly any",
    ("silent_sites",),
    needs_spark=False,
    after=(_OF,),
    module=__name__,
)


def run(
    day: date, fout: str, settings: Settings, log: Callable[[str], None] | None = None
) -> CurrentTable:
    """Store the table of a day, by the stored days. Raises OutputError (73)."""
    import polars as pl

    from cmsspark.base.schemas import stored_table

    with running(settings, fout, JOB.name, day, log) as run_context:
        files = open_store(fout, f"cmsspark {JOB.name}", settings)
        run_context.lock(files)
        rows, note = silent_sites.silent_sites(fout, _OF, day, files)
        described = stored_table(JOB.name)
        added = {"day": day, "timestamp": start_ms(day)}
        table = pl.DataFrame(
            [{**row, **added} for row in rows], schema=pl.Schema(described.arrow())
        )
        manifest = {"day": day.isoformat(), "warnings": [note] if note else []}
        return store_tables(
            run_context, files, {JOB.name: table}, manifest, pluralize(len(rows), "site")
        )


def _command() -> click.Command:
    @click.command(JOB.name, help=f"{JOB.about}. Exit codes: cmsspark help exit-codes.")
    @date_option
    @store_options
    @output_options
    def command(settings_file: str | None, fout: str | None, as_json: bool, day: date) -> None:
        settings = load_settings(settings_file)
        store = require_store(fout, settings)
        print_outcome(JOB.name, day, as_json, lambda: run(day, store, settings))

    return command


declare(JOB, _command)
