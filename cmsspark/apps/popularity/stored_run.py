"""Runs on the stored days before a day: what each job of popularity makes of them and stores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any, Final

import msgspec
import polars as pl
from msgspec.structs import replace

from cmsspark.apps.popularity.evaluate import judge_last
from cmsspark.apps.popularity.features import Names, features
from cmsspark.apps.popularity.forecast import predictions, quality, quality_rows
from cmsspark.apps.popularity.scores import warnings, with_baselines
from cmsspark.apps.popularity.series import Series
from cmsspark.apps.popularity.training import FIRST_DAY, Label, Weeks
from cmsspark.base.errors import InputMissing
from cmsspark.base.names import DERIVED
from cmsspark.base.periods import between, start_ms
from cmsspark.base.schemas import stored_table
from cmsspark.base.text.terminal import pluralize
from cmsspark.filesystems.storage import Files
from cmsspark.run.period_run import describe_days, store_tables
from cmsspark.run.run_context import RunContext, running
from cmsspark.settings.settings import Settings
from cmsspark.store import stored_days
from cmsspark.store.results import CurrentTable
from cmsspark.store.stored_columns import open_store
from cmsspark.store.stored_days import StoredDays

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


TABLE: Final = "popularity_features"


def feature_rows(series: Series, starts: Sequence[int], label: Label) -> pl.DataFrame:
    """Return the features of each dataset that had entered on the days of these numbers,
    by what is known on the last of them: ``first_day``, ``dataset_name``, the features,
    and ``is_popular``, null where the weeks from that day on are not over.
    """
    last_known = series.until(max(starts))
    # Datasets that only later days have make no tier or campaign common.
    names = Names(series.datasets, last_known.is_known)
    frames = []
    for start in sorted(starts):
        columns, rows = features(series.until(start), names)
        is_over = start + label.days <= len(series.days)
        frame = pl.DataFrame(
            {
                "dataset_name": series.datasets,
                **{name: rows[:, index] for index, name in enumerate(columns)},
                "is_popular": label.mark(series, start) > 0 if is_over else [None] * len(rows),
            },
            schema_overrides={"dataset_name": pl.String, "is_popular": pl.Boolean},
        ).filter(pl.Series(last_known.population(start)))
        first_day = series.days[0] + timedelta(days=start)
        frames.append(frame.select(pl.lit(first_day).alias("first_day"), pl.all()))
    return pl.concat(frames)


def week_rows(series: Series, day: date, label: Label, last: int | None = None) -> pl.DataFrame:
    """``schemas/tables/popularity_features.yaml``: the weeks that begin on ``day`` and 7, 14 … days
    before it, each with at least a week of days before it; ``last``: that of ``day``
    and so many before it.

    Raises InputMissing (66) where there is none, DataError (65) where the series lacks
    what the label is made of.
    """
    label.check(series)
    end = (day - series.days[0]).days
    starts = range(end, FIRST_DAY - 1, -7)[: last + 1 if last else None]
    if not starts:
        raise InputMissing(
            "no week has a week of days before it",
            found=f"{pluralize(max(end, 0), 'day')} before {day}",
            next_step=f"store at least the {FIRST_DAY} days before it",
        )
    rows = feature_rows(series, starts, label)
    names = rows["dataset_name"].to_list()
    of_names = {
        name: pl.Series(map(DERIVED[name].derive, names), dtype=pl.String)
        for name in ("data_tier", "campaign")
    }
    # Tables that the store has not are null.
    table = stored_table(TABLE)
    schema = pl.Schema(table.arrow())
    columns: dict[str, Any] = {name: pl.lit(None) for name in schema if name not in rows.columns}
    columns |= {**of_names, "day": pl.lit(day), "timestamp": pl.lit(start_ms(day))}
    return rows.with_columns(**columns).select(table.names).cast(schema)


#: Days that are read: half a year, the longest window of the features.
DAYS: Final = 182


class StoredRun(msgspec.Struct, frozen=True):
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
        *,
        warnings: Sequence[str] = (),
    ) -> CurrentTable:
        """Store the tables, the first one as the job's own. ``warnings``: beside those of
        the days. Raises OutputError (73).
        """
        days = describe_days(self.days)
        manifest = {
            **days,
            "forecast": {**options, "label": label.describe()},
            "dataset_tables": {name: dict(runs) for name, runs in series.inputs["tables"].items()},
            "warnings": [*days["warnings"], *warnings],
        }
        return store_tables(self.run_context, self.files, tables, manifest, summary)


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
        days = stored_days.find_days(files, fout, between(day - timedelta(days=DAYS), last))
        if days.partials:
            # A store that begins later lacks nothing.
            first = min(days.partials)
            missing = tuple(missing_day for missing_day in days.missing if missing_day > first)
            days = replace(days, period=between(first, last), missing=missing)
        days.check(allow_missing=True)
        if last not in days.partials:
            raise InputMissing(
                f"the day before {day} is not stored: the forecast would begin later",
                found=f"days up to {max(days.partials)}",
                next_step=f"cmsspark daily --date {last}",
            )
        yield StoredRun(day, days, files, run_context)


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
        texts.append(label.rule(series.days[0], model))
    named = {f"popularity_{name}": table for name, table in tables.items()}
    return stored.store(named, series, label, options, series.size_text, warnings=texts)


def store_evaluation(
    stored: StoredRun,
    series: Series,
    label: Label,
    *,
    models: tuple[str, ...],
    last: int | None = None,
    seed: int = 0,
    spark: SparkSession | None = None,
) -> CurrentTable:
    """Judge the models on the weeks before the day. Each forecast is a Spark task;
    without ``spark`` they are made in this process.
    """
    compared, table = with_baselines(models), "popularity_evaluation"
    judged = judge_last(Weeks(series, label), compared, last=last, seed=seed, spark=spark)
    rows = quality_rows(judged, stored.day, table)
    options = {"models": list(models), "last": last, "seed": seed}
    texts = [text for name in compared for text in warnings(judged, name)]
    summary = pluralize(rows.height, "row")
    return stored.store({table: rows}, series, label, options, summary, warnings=texts)


#: Kind of job, the last part of its name → what stores its tables.
STORE: Final[Mapping[str, Callable[..., CurrentTable]]] = {
    "features": store_features,
    "forecast": store_forecast,
    "evaluate": store_evaluation,
}
