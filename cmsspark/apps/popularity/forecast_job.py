"""``popularity_forecast``: which datasets will be popular in the week from a day on, from the stored days before it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from typing import TYPE_CHECKING, Any, Final

import click

from cmsspark.apps.popularity.label_options import label_of, label_options
from cmsspark.apps.popularity.stored_run import stored_run
from cmsspark.cli.job_output import output_options, print_outcome
from cmsspark.cli.options import date_option, settings_of, store_of, store_options
from cmsspark.store import results
from cmsspark.store.job_index import JOBS

if TYPE_CHECKING:
    import polars as pl

    from cmsspark.apps.popularity.series import Series
    from cmsspark.apps.popularity.training import Label
    from cmsspark.settings.settings import Settings

NAME: Final = "popularity_forecast"
#: Options that decide what a forecast says, as its manifest has them.
_DEFAULTS: Final = {"model": "blend", "weeks": 4, "top": 2000, "seed": 0}


def build_command(name: str, run_job: Callable[..., results.CurrentTable]) -> click.Command:
    """Return the command of a job that stores a forecast, whose ``run`` is ``run_job``."""

    @click.command(name, help=f"{JOBS[name].about}. Exit codes: cmsspark help exit-codes.")
    @date_option
    @click.option("--model", default="blend", show_default=True, help="Model; cmsspark popularity models lists them.")
    @click.option("--judged", type=click.IntRange(0), default=4, show_default=True, help="Past weeks to judge.")
    @click.option("--top", type=click.IntRange(1), default=2000, show_default=True, help="Ranks that can be published.")
    @click.option("--seed", type=int, default=0, show_default=True, help="Seed of models and intervals.")
    @label_options
    @store_options
    @output_options
    def command(
        day: date, model: str, judged: int, top: int, seed: int, fout: str | None, settings_file: str | None,
        as_json: bool, **label: Any,
    ) -> None:  # fmt: skip
        settings = settings_of(settings_file)
        store, wanted = store_of(fout, settings), label_of(**label)

        def forecast() -> results.CurrentTable:
            return run_job(day, store, settings, label=wanted, model=model, weeks=judged, top=top, seed=seed)

        print_outcome(name, day, as_json, forecast)

    return command


def run(
    day: date, fout: str, settings: Settings, *, label: Label | None = None,
    log: Callable[[str], None] | None = None, name: str = NAME, by_site: bool = False, **options: Any,
) -> results.CurrentTable:  # fmt: skip
    """Make the tables of a forecast for the weeks from ``day`` on, and store them under that day; on any failure the
    previous result stays. ``label``: what popular means, by default more than 10 accesses in one week. ``name``: of the
    job; ``by_site``: of datasets at sites.

    Raises InputMissing (66) where the day before is not stored or there are too few days, DataError (65) where a day
    is damaged, a feature knows its week, or the days lack what the label is made of, NotReady (75), OutputError (73).
    """
    from cmsspark.apps.popularity.baselines import warnings
    from cmsspark.apps.popularity.forecast import table_name
    from cmsspark.apps.popularity.training import Label

    label = label or Label()
    chosen = {**_DEFAULTS, **options}
    with stored_run(name, day, fout, settings, log) as stored:
        series = stored.series(by_site=by_site)
        tables = dict(build(series, day, label, chosen))
        judged = tables[table_name("quality", series)].filter(stratum="all").to_dicts()
        summary = series.size_text
        about = {"label": label.text_of(by_site=by_site), "threshold": label.least_accesses, "horizon": label.weeks}
        return stored.store(tables, {**chosen, **about}, summary, warnings=warnings(judged, chosen["model"]))


def build(series: Series, day: date, label: Label, options: dict[str, Any]) -> list[tuple[str, pl.DataFrame]]:
    """(name, rows) of the tables."""
    from cmsspark.apps.popularity.forecast import tables_of

    sizes = {name: options[name] for name in ("weeks", "top", "seed")}
    return list(tables_of(series, day, label, options["model"], **sizes))


command = build_command(NAME, run)
