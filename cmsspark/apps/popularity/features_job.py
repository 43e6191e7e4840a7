"""``popularity_features``: what models of popularity learn from, one row for each dataset and week."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from typing import TYPE_CHECKING, Any, Final

import click

from cmsspark.apps.popularity.label_options import label_of, label_options
from cmsspark.apps.popularity.stored_run import stored_run
from cmsspark.base.text.plurals import number_of
from cmsspark.cli.job_output import output_options, print_outcome
from cmsspark.cli.options import date_option, settings_of, store_of, store_options
from cmsspark.store import results
from cmsspark.store.job_index import JOBS

if TYPE_CHECKING:
    from cmsspark.apps.popularity.training import Label
    from cmsspark.settings.settings import Settings

NAME: Final = "popularity_features"


def build_command(name: str, run_job: Callable[..., results.CurrentTable]) -> click.Command:
    """Return the command of a job that stores features, whose ``run`` is ``run_job``."""

    @click.command(name, help=f"{JOBS[name].about}. Exit codes: cmsspark help exit-codes.")
    @date_option
    @click.option(
        "--last", type=click.IntRange(1), help="Only the last so many weeks before --date, and that from it on."
    )
    @label_options
    @store_options
    @output_options
    def command(
        day: date, last: int | None, fout: str | None, settings_file: str | None, as_json: bool, **label: Any,
    ) -> None:  # fmt: skip
        settings = settings_of(settings_file)
        store, wanted = store_of(fout, settings), label_of(**label)
        print_outcome(name, day, as_json, lambda: run_job(day, store, settings, label=wanted, last=last))

    return command


def run(
    day: date, fout: str, settings: Settings, *, label: Label, last: int | None = None,
    log: Callable[[str], None] | None = None, name: str = NAME, by_site: bool = False,
) -> results.CurrentTable:  # fmt: skip
    """Store the features of the weeks that begin ``day``, or 7, 14 … days before it, with the labels that are known; on
    any failure the previous result stays. ``name``: of the job and its table; ``by_site``: of datasets at sites.

    Raises InputMissing (66) where no week has a day before it, DataError (65) where a day is damaged, NotReady (75),
    OutputError (73).
    """
    from cmsspark.apps.popularity.feature_tables import week_rows

    with stored_run(name, day, fout, settings, log) as stored:
        rows = week_rows(stored.series(by_site=by_site), day, label, last)
        return stored.store(
            {name: rows}, {"label": label.text_of(by_site=by_site), "last": last}, number_of(rows.height, "row")
        )


command = build_command(NAME, run)
