"""``popularity_evaluate``: how good forecasts of popularity would have been in past weeks, with a report."""

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
from cmsspark.filesystems.storage import join
from cmsspark.store import results
from cmsspark.store.job_index import JOBS

if TYPE_CHECKING:
    import polars as pl
    from pyspark.sql import SparkSession

    from cmsspark.apps.popularity.series import Series
    from cmsspark.apps.popularity.training import Label
    from cmsspark.settings.settings import Settings

NAME: Final = "popularity_evaluate"
#: The page beside the table.
PAGE: Final = "popularity.html"
_MODELS: Final = ("average", "blend")


def build_command(name: str, run_job: Callable[..., results.CurrentTable]) -> click.Command:
    """Return the command of a job that judges models, whose ``run`` is ``run_job``."""

    @click.command(name, help=f"{JOBS[name].about}. Needs cmsspark[popularity]. Exit codes: cmsspark help exit-codes.")
    @date_option
    @click.option(
        "--model", "models", multiple=True, help=f"Beside baselines; repeatable. [default: {', '.join(_MODELS)}]"
    )
    @click.option("--last", type=click.IntRange(1), help="Only the last so many weeks before --date.")
    @click.option("--seed", type=int, default=0, show_default=True, help="Seed of models and intervals.")
    @label_options
    @store_options
    @output_options
    def command(
        day: date, models: tuple[str, ...], last: int | None, seed: int, fout: str | None,
        settings_file: str | None, as_json: bool, **label: Any,
    ) -> None:  # fmt: skip
        from cmsspark.engines.session import session

        settings = settings_of(settings_file)
        store, wanted = store_of(fout, settings), label_of(**label)
        spark = session(f"cmsspark {name}")

        def judge() -> results.CurrentTable:
            return run_job(day, store, settings, spark, label=wanted, models=models or _MODELS, last=last, seed=seed)

        print_outcome(name, day, as_json, judge)

    return command


def run(
    day: date, fout: str, settings: Settings, spark: SparkSession | None, *, label: Label,
    models: tuple[str, ...] = _MODELS, last: int | None = None, seed: int = 0,
    log: Callable[[str], None] | None = None, name: str = NAME, by_site: bool = False,
) -> results.CurrentTable:  # fmt: skip
    """Judge the models on the weeks before ``day`` and store the table, and the page of the last model; on any failure
    the previous result stays. Each forecast is a Spark task; without ``spark`` they are made in this process. ``name``:
    of the job; ``by_site``: forecasts of datasets at sites.

    Raises InputMissing (66) where there are too few days, DataError (65) where a day is damaged or a feature knows its
    week, UsageError (2) for an unknown model, NotReady (75), OutputError (73).
    """
    with stored_run(name, day, fout, settings, log) as stored:
        table, rows, page, texts = build(stored.series(by_site=by_site), day, label, models, last, seed, spark)

        def write(staged: results.StagedRun) -> dict[str, Any]:
            stored.files.write_bytes(join(staged.folder, PAGE), page.encode())
            return {}

        text = label.text_of(by_site=by_site)
        options = {"label": text, "models": list(models), "last": last, "seed": seed}
        summary = f"{number_of(rows.height, 'row')} and {PAGE}"
        return stored.store({table: rows}, options, summary, write, warnings=texts)


def build(
    series: Series, day: date, label: Label, models: tuple[str, ...], last: int | None, seed: int,
    spark: SparkSession | None,
) -> tuple[str, pl.DataFrame, str, list[str]]:  # fmt: skip
    """Return the name and the rows of ``schemas/tables/popularity_evaluation.yaml``, of a series by site
    ``popularity_site_evaluation.yaml``, by week, model and stratum, the page of the last model, and warnings.
    """
    from cmsspark.apps.popularity.baselines import warnings, with_baselines
    from cmsspark.apps.popularity.evaluate import evaluated_days, forecasts, judged
    from cmsspark.apps.popularity.forecast import quality_rows, table_name
    from cmsspark.apps.popularity.report import evaluation_page
    from cmsspark.apps.popularity.training import Weeks

    compared, days = with_baselines(models), evaluated_days(series, label, last)
    weeks = Weeks(series, label)
    made = forecasts(weeks, days, compared, seed=seed, spark=spark)
    rows = [judged(series, label, forecast) for forecast in made]
    table = table_name("evaluation", series)
    page = evaluation_page(weeks, models[-1], made, rows, seed)
    texts = [text for name in compared for text in warnings(rows, name)]
    return table, quality_rows(rows, day, table), page, texts


command = build_command(NAME, run)
