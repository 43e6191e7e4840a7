"""The jobs of popularity, each for datasets and for datasets at sites: features, models, evaluations, forecasts."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from cmsspark.apps.popularity.label_options import label_options, model_option, seed_option
from cmsspark.apps.popularity.stored_run import StoredRun, stored_run
from cmsspark.base.text.plurals import number_of
from cmsspark.cli.job_output import output_options, print_outcome
from cmsspark.cli.options import date_option, settings_of, store_of, store_options
from cmsspark.filesystems.storage import join
from cmsspark.store.job_index import Job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cmsspark.apps.popularity.series import Series
    from cmsspark.apps.popularity.training import Label
    from cmsspark.settings.settings import Settings
    from cmsspark.store.results import CurrentTable, StagedRun

#: The page beside the table of an evaluation.
PAGE: Final = "popularity.html"
#: The folder of a run with the saved model: ``cmsspark popularity predict --model`` takes it.
FOLDER: Final = "models"
_EVALUATED: Final = ("average", "blend")


def run(
    name: str, day: date, fout: str, settings: Settings, *, label: Label | None = None,
    log: Callable[[str], None] | None = None, **options: Any,
) -> CurrentTable:  # fmt: skip
    """Run a job on the stored days before ``day``; on any failure the previous result stays. ``label``: what popular
    means, by default more than 10 accesses in one week; ``options``: those of the job.

    Raises InputMissing (66) where the day before is not stored or there are too few days, DataError (65) where a day
    is damaged, a feature knows its week, or the days lack what the label is made of, UsageError (2) for an unknown
    model, NotReady (75), OutputError (73).
    """
    from cmsspark.apps.popularity.training import Label

    with stored_run(name, day, fout, settings, log) as stored:
        return _kind(name).store(stored, stored.series(by_site="_site_" in name), label or Label(), **options)


def make_command(job: Job) -> click.Command:
    """Return the click command of a job."""
    kind = _kind(job.name)

    def command(day: date, fout: str | None, settings_file: str | None, as_json: bool, **options: Any) -> None:
        settings = settings_of(settings_file)
        store = store_of(fout, settings)
        if kind.is_on_spark:
            from cmsspark.engines.session import session

            options["spark"] = session(f"cmsspark {job.name}")
        print_outcome(job.name, day, as_json, lambda: run(job.name, day, store, settings, **options), kind.folder)

    decorators = (output_options, store_options, label_options, *reversed(kind.options), date_option)
    decorated: Callable[..., Any] = reduce(lambda function, decorate: decorate(function), decorators, command)
    about = f"{job.about}.{' Needs cmsspark[popularity].' if kind.needs_extra else ''}"
    return click.command(job.name, help=f"{about} Exit codes: cmsspark help exit-codes.")(decorated)


def _store_features(stored: StoredRun, series: Series, label: Label, *, last: int | None = None) -> CurrentTable:
    """Store the features of the weeks that begin on the day, or 7, 14 … days before it, with the labels so far."""
    from cmsspark.apps.popularity.feature_tables import week_rows

    rows = week_rows(series, stored.day, label, last)
    return stored.store({stored.name: rows}, series, label, {"last": last}, number_of(rows.height, "row"))


def _store_forecast(
    stored: StoredRun, series: Series, label: Label, *, model: str = "blend", weeks: int = 4, top: int = 2000,
    seed: int = 0,
) -> CurrentTable:  # fmt: skip
    """Store the forecast for the weeks from the day on; ``top``: the ranks that can be published."""
    from cmsspark.apps.popularity.baselines import warnings
    from cmsspark.apps.popularity.forecast import predictions, quality, table_name
    from cmsspark.apps.popularity.training import Weeks

    label.check(series)
    known_weeks = Weeks(series, label)
    rows = predictions(known_weeks, stored.day, model, seed=seed)
    judged = quality(known_weeks, stored.day, model, weeks, seed=seed)
    tables = {"forecast": rows.head(top), "quality": judged, "predictions": rows}
    options = {"model": model, "weeks": weeks, "top": top, "seed": seed}
    options |= {"threshold": label.least_accesses, "horizon": label.weeks}
    texts = warnings(judged.filter(stratum="all").to_dicts(), model)
    named = {table_name(name, series): table for name, table in tables.items()}
    return stored.store(named, series, label, options, series.size_text, warnings=texts)


def _store_model(
    stored: StoredRun, series: Series, label: Label, *, model: str = "blend", judged: int = 4, seed: int = 0
) -> CurrentTable:
    """Train the model and store it as a version in the folder ``models`` of the run."""
    from cmsspark.apps.popularity import saved
    from cmsspark.apps.popularity.baselines import warnings, with_baselines
    from cmsspark.apps.popularity.evaluate import evaluate
    from cmsspark.apps.popularity.forecast import model_row, table_name
    from cmsspark.apps.popularity.training import Weeks

    with tempfile.TemporaryDirectory(prefix="cmsspark-") as aside:
        metrics = evaluate(series, label, with_baselines([model]), weeks=judged, seed=seed)
        weeks = Weeks(series, label)
        version = saved.save(Path(aside), weeks, saved.train(weeks, model, seed=seed), metrics, seed)
        tables = {table_name("models", series): model_row(stored.day, version.name, saved.load(str(version)).card)}

        def write(staged: StagedRun) -> dict[str, Any]:
            folder = join(staged.folder, FOLDER)
            stored.files.make_dirs(join(folder, version.name))
            for path in sorted(version.iterdir()):
                stored.files.put(path, join(folder, version.name, path.name))
            stored.files.write_bytes(join(folder, "LATEST"), f"{version.name}\n".encode())
            return {"folders": {FOLDER: {}}}

        options, texts = {"model": model, "judged": judged, "seed": seed}, warnings(metrics, model)
        return stored.store(tables, series, label, options, f"model {version.name}", write, warnings=texts)


def _store_evaluation(
    stored: StoredRun, series: Series, label: Label, *, models: tuple[str, ...] = (), last: int | None = None,
    seed: int = 0, spark: SparkSession | None = None,
) -> CurrentTable:  # fmt: skip
    """Judge the models on the weeks before the day, and store the table and the page of the last model. Each forecast
    is a Spark task; without ``spark`` they are made in this process.
    """
    from cmsspark.apps.popularity.baselines import warnings, with_baselines
    from cmsspark.apps.popularity.evaluate import forecast_and_judge
    from cmsspark.apps.popularity.forecast import quality_rows, table_name
    from cmsspark.apps.popularity.report import evaluation_page
    from cmsspark.apps.popularity.training import Weeks

    models = models or _EVALUATED
    weeks, compared = Weeks(series, label), with_baselines(models)
    forecasts, judged = forecast_and_judge(weeks, compared, last=last, seed=seed, spark=spark)
    table = table_name("evaluation", series)
    rows = quality_rows(judged, stored.day, table)
    page = evaluation_page(weeks, models[-1], forecasts, judged, seed)

    def write(staged: StagedRun) -> dict[str, Any]:
        stored.files.write_bytes(join(staged.folder, PAGE), page.encode())
        return {}

    options = {"models": list(models), "last": last, "seed": seed}
    texts = [text for name in compared for text in warnings(judged, name)]
    summary = f"{number_of(rows.height, 'row')} and {PAGE}"
    return stored.store({table: rows}, series, label, options, summary, write, warnings=texts)


@dataclass(frozen=True)
class _Kind:
    """A kind of job: what it stores, its options, and the folder of its run that the command prints."""

    store: Callable[..., CurrentTable]
    options: tuple[Callable[..., Any], ...]
    folder: str | None = None
    needs_extra: bool = False
    is_on_spark: bool = False


def _kind(name: str) -> _Kind:
    return _KINDS[name.rpartition("_")[2]]


_LAST_HELP: Final = "Only the last so many weeks before --date"
_MODELS_HELP: Final = f"Beside baselines; repeatable. [default: {', '.join(_EVALUATED)}]"
_CARD_HELP: Final = "Past weeks for the model card."
#: The last part of a job's name → its kind.
_KINDS: Final[Mapping[str, _Kind]] = {
    "features": _Kind(
        _store_features, (click.option("--last", type=click.IntRange(1), help=f"{_LAST_HELP}, and that from it on."),)
    ),
    "forecast": _Kind(
        _store_forecast,
        (
            model_option,
            click.option(
                "--judged", "weeks", type=click.IntRange(0), default=4, show_default=True, help="Past weeks to judge."
            ),
            click.option(
                "--top", type=click.IntRange(1), default=2000, show_default=True, help="Ranks that can be published."
            ),
            seed_option,
        ),
    ),
    "train": _Kind(
        _store_model,
        (
            model_option,
            click.option("--judged", type=click.IntRange(1), default=4, show_default=True, help=_CARD_HELP),
            seed_option,
        ),
        folder=FOLDER,
        needs_extra=True,
    ),
    "evaluate": _Kind(
        _store_evaluation,
        (
            click.option("--model", "models", multiple=True, help=_MODELS_HELP),
            click.option("--last", type=click.IntRange(1), help=f"{_LAST_HELP}."),
            seed_option,
        ),
        needs_extra=True,
        is_on_spark=True,
    ),
}
