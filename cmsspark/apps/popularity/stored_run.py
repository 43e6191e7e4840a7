"""Runs on the stored days before a day: what each job of popularity makes of them and stores."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from cmsspark.apps.popularity import saved
from cmsspark.apps.popularity.baselines import warnings, with_baselines
from cmsspark.apps.popularity.evaluate import forecast_and_judge
from cmsspark.apps.popularity.features import BASE_COLUMNS, STORE_COLUMNS, Names, features
from cmsspark.apps.popularity.forecast import model_row, predictions, quality, quality_rows
from cmsspark.apps.popularity.label_options import EVALUATED, FOLDER
from cmsspark.apps.popularity.report import evaluation_page
from cmsspark.apps.popularity.series import Series
from cmsspark.apps.popularity.training import FIRST_DAY, Label, Weeks
from cmsspark.base.errors import InputMissing
from cmsspark.base.names import DERIVED
from cmsspark.base.periods import between, start_ms
from cmsspark.base.schemas import stored_table
from cmsspark.base.text.terminal import pluralize
from cmsspark.filesystems.storage import Files, join
from cmsspark.run.period_run import describe_days, store_tables
from cmsspark.run.run_context import RunContext, running
from cmsspark.settings.settings import Settings
from cmsspark.store import stored_days
from cmsspark.store.results import CurrentTable
from cmsspark.store.staged_runs import StagedRun
from cmsspark.store.stored_columns import open_store
from cmsspark.store.stored_days import StoredDays

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Features as tables, one row for each dataset and week: for a file, and for the store.

TABLE: Final = "popularity_features"


def file_rows(series: Series, number: int, label: Label, last: int = 0) -> pl.DataFrame:
    """Return all features of each dataset on day ``number``, and on the days 7, 14 …
    before it, ``last`` of them: columns ``first_day``, ``dataset``, the features, and ``is_popular``, null where the weeks from that
    day on are not over.

    Days without a day before them are left out. Raises DataError (65) where the series
    lacks what the label is made of.
    """
    if last:
        label.check(series)
    # Datasets that only later days have make no tier or campaign common.
    names = Names(series.datasets, series.until(number).is_known)
    frames = []
    for start in sorted(start for start in range(number, number - 7 * last - 1, -7) if start > 0):
        columns, rows = features(series.until(start), names)
        first = series.days[0] + timedelta(days=start)
        entered = series.until(number).population(start)
        frames.append(
            pl.DataFrame(
                {
                    "first_day": [first] * len(rows),
                    "dataset": series.datasets,
                    **{name: rows[:, index] for index, name in enumerate(columns)},
                    "is_popular": _labels(series, start, label),
                },
                schema_overrides={"dataset": pl.String, "is_popular": pl.Boolean},
            ).filter(pl.Series(entered))
        )
    return pl.concat(frames)


def _labels(series: Series, start: int, label: Label) -> list[bool | None]:
    """Return whether each dataset was popular in the weeks from that day on; nulls
    where they are not over.
    """
    if start + label.days > len(series.days):
        return [None] * len(series.datasets)
    popular: list[bool | None] = (label.mark(series, start) > 0).tolist()
    return popular


def week_rows(series: Series, day: date, label: Label, last: int | None = None) -> pl.DataFrame:
    """``schemas/tables/popularity_features.yaml``: the weeks that begin on ``day`` and 7, 14 … days
    before it, each with at least a week of days before it; ``last``: that of ``day``
    and so many before it.

    Raises InputMissing (66) where there is none, DataError (65) where the series lacks
    what the label is made of.
    """
    label.check(series)
    end = (day - series.days[0]).days
    starts = list(range(end, FIRST_DAY - 1, -7))[: last + 1 if last else None]
    if not starts:
        raise InputMissing(
            "no week has a week of days before it",
            found=f"{pluralize(max(end, 0), 'day')} before {day}",
            next_step=f"store at least the {FIRST_DAY} days before it",
        )
    names = Names(series.datasets)
    rules = DERIVED["data_tier"], DERIVED["campaign"]
    tiers, campaigns = ([rule.derive(name) for name in series.datasets] for rule in rules)
    schema = pl.Schema(stored_table(TABLE).arrow())
    frames = []
    for start in sorted(starts):
        columns, rows = features(series.until(start), names)
        first = series.days[0] + timedelta(days=start)
        features_of_week = {name: rows[:, index] for index, name in enumerate(columns)}
        # Tables that the store has not are null.
        unknown = [None] * len(tiers)
        values = {
            "day": [day] * len(tiers),
            "first_day": [first] * len(tiers),
            "dataset_name": series.datasets,
            "data_tier": tiers,
            "campaign": campaigns,
            **{
                name: features_of_week.get(name, unknown)
                for name in (*BASE_COLUMNS, *STORE_COLUMNS)
            },
            "is_popular": _labels(series, start, label),
            "timestamp": [start_ms(day)] * len(tiers),
        }
        rows_of_week = pl.DataFrame({name: values[name] for name in schema}, schema=schema)
        frames.append(rows_of_week.filter(pl.Series(series.population(start))))
    return pl.concat(frames)


#: The page beside the table of an evaluation.
PAGE: Final = "popularity.html"
#: Days that are read: half a year, the longest window of the features.
DAYS: Final = 182


@dataclass(frozen=True)
class StoredRun:
    """A run for ``day`` on the stored ``days`` before it. :meth:`store` ends it."""

    day: date
    days: StoredDays
    files: Files
    run_context: RunContext

    @property
    def name(self) -> str:
        """The name of the job."""
        return self.run_context.job

    def store(
        self,
        tables: Mapping[str, pl.DataFrame],
        series: Series,
        label: Label,
        options: Mapping[str, Any],
        summary: str,
        write: Callable[[StagedRun], Mapping[str, Any]] = lambda staged: {},
        *,
        warnings: Sequence[str] = (),
    ) -> CurrentTable:
        """Store the tables, the first one as the job's own, with what ``write`` adds to
        the folder of the run; what it returns goes into the manifest. ``warnings``:
        beside those of the days. Raises OutputError (73).
        """
        days = describe_days(self.days)
        manifest = {
            **days,
            "forecast": {**options, "label": label.describe()},
            "dataset_tables": {name: dict(runs) for name, runs in series.inputs["tables"].items()},
            "warnings": [*days["warnings"], *warnings],
        }
        return store_tables(self.run_context, self.files, tables, manifest, summary, write)


@contextmanager
def stored_run(
    name: str, day: date, fout: str, settings: Settings, log: Callable[[str], None] | None = None
) -> Iterator[StoredRun]:
    """Yield a run of the job ``name`` on the stored days before ``day``, at most
    :data:`DAYS`; on any failure the previous result stays.

    Raises InputMissing (66) where no day or not the day before is stored, DataError
    (65), NotReady (75).
    """
    with running(settings, fout, name, day, log) as run_context:
        files = open_store(fout, f"cmsspark {name}")
        run_context.lock(files)
        last = day - timedelta(days=1)
        days = _without_first_gap(
            stored_days.find_days(files, fout, between(day - timedelta(days=DAYS), last))
        )
        days.check(allow_missing=True)
        if last not in days.partials:
            raise InputMissing(
                f"the day before {day} is not stored: the forecast would begin later",
                found=f"days up to {max(days.partials)}",
                next_step=f"cmsspark daily --date {last}",
            )
        yield StoredRun(day, days, files, run_context)


def _without_first_gap(days: StoredDays) -> StoredDays:
    """Return the days from the first stored one on: a store that begins later lacks nothing."""
    if not days.partials:
        return days
    first = min(days.partials)
    missing = tuple(day for day in days.missing if day > first)
    return replace(days, period=between(first, days.period.last), missing=missing)


def store_features(
    stored: StoredRun, series: Series, label: Label, *, last: int | None = None
) -> CurrentTable:
    """Store the features of the weeks that begin on the day, or 7, 14 … days before it,
    with the labels so far.
    """
    rows = week_rows(series, stored.day, label, last)
    return stored.store(
        {stored.name: rows}, series, label, {"last": last}, pluralize(rows.height, "row")
    )


def store_forecast(
    stored: StoredRun,
    series: Series,
    label: Label,
    *,
    model: str = "blend",
    weeks: int = 4,
    top: int = 2000,
    seed: int = 0,
) -> CurrentTable:
    """Store the forecast for the weeks from the day on; ``top``: the ranks that can be published."""
    label.check(series)
    known_weeks = Weeks(series, label)
    rows = predictions(known_weeks, stored.day, model, seed=seed)
    judged = quality(known_weeks, stored.day, model, weeks, seed=seed)
    tables = {"forecast": rows.head(top), "quality": judged, "predictions": rows}
    used = label.model_on(series, len(series.days), model)
    options = {"model": used, "weeks": weeks, "top": top, "seed": seed}
    options |= {"threshold": label.least_accesses, "horizon": label.weeks}
    texts = warnings(judged.filter(stratum="all").to_dicts(), model)
    if used != model:
        texts.append(label.rule(series, model))
    named = {f"popularity_{name}": table for name, table in tables.items()}
    return stored.store(named, series, label, options, series.size_text, warnings=texts)


def store_model(
    stored: StoredRun,
    series: Series,
    label: Label,
    *,
    model: str = "blend",
    judged: int = 4,
    seed: int = 0,
) -> CurrentTable:
    """Train the model and store it as a version in the folder ``models`` of the run."""
    with tempfile.TemporaryDirectory(prefix="cmsspark-") as aside:
        weeks = Weeks(series, label)
        _, metrics = forecast_and_judge(weeks, with_baselines([model]), last=judged, seed=seed)
        version = saved.train(Path(aside), weeks, model, metrics, seed)
        tables = {
            "popularity_models": model_row(stored.day, version.name, saved.load(str(version)).card)
        }

        def write(staged: StagedRun) -> dict[str, Any]:
            folder = join(staged.folder, FOLDER)
            stored.files.make_dirs(join(folder, version.name))
            for path in sorted(version.iterdir()):
                stored.files.put(path, join(folder, version.name, path.name))
            stored.files.write_bytes(join(folder, "LATEST"), f"{version.name}\n".encode())
            return {"folders": {FOLDER: {}}}

        options, texts = {"model": model, "judged": judged, "seed": seed}, warnings(metrics, model)
        return stored.store(
            tables, series, label, options, f"model {version.name}", write, warnings=texts
        )


def store_evaluation(
    stored: StoredRun,
    series: Series,
    label: Label,
    *,
    models: tuple[str, ...] = (),
    last: int | None = None,
    seed: int = 0,
    spark: SparkSession | None = None,
) -> CurrentTable:
    """Judge the models on the weeks before the day, and store the table and the page of
    the last model. Each forecast is a Spark task; without ``spark`` they are made in
    this process.
    """
    models = models or EVALUATED
    weeks, compared = Weeks(series, label), with_baselines(models)
    forecasts, judged = forecast_and_judge(weeks, compared, last=last, seed=seed, spark=spark)
    table = "popularity_evaluation"
    rows = quality_rows(judged, stored.day, table)
    page = evaluation_page(weeks, models[-1], forecasts, judged, seed)

    def write(staged: StagedRun) -> dict[str, Any]:
        stored.files.write_bytes(join(staged.folder, PAGE), page.encode())
        return {}

    options = {"models": list(models), "last": last, "seed": seed}
    texts = [text for name in compared for text in warnings(judged, name)]
    summary = f"{pluralize(rows.height, 'row')} and {PAGE}"
    return stored.store({table: rows}, series, label, options, summary, write, warnings=texts)


#: Kind of job, the last part of its name → what stores its tables.
STORE: Final[Mapping[str, Callable[..., CurrentTable]]] = {
    "features": store_features,
    "forecast": store_forecast,
    "train": store_model,
    "evaluate": store_evaluation,
}
