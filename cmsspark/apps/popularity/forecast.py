"""A forecast as tables: each dataset's probability for the coming week, and how good
such forecasts were before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from importlib.util import find_spec
from typing import Any, Final

import numpy as np
import polars as pl

from cmsspark.apps.popularity.evaluate import (
    calibrated,
    fit,
    judge,
    of_population,
    past_days,
    strata,
)
from cmsspark.apps.popularity.features import Names
from cmsspark.apps.popularity.models import check_model, load_xgboost
from cmsspark.apps.popularity.scores import with_baselines
from cmsspark.apps.popularity.series import MEASURES, Series
from cmsspark.apps.popularity.training import FIRST_DAY, Weeks
from cmsspark.base.arrays import Array
from cmsspark.base.errors import InputMissing
from cmsspark.base.periods import start_ms
from cmsspark.base.schemas import stored_table

# Why a forecast is what it is: the columns that moved it, and what it rests on.

#: Columns that are named as reasons of a forecast, at most, and the least change of the
#: logarithm of the odds.
_REASONS: Final = 3
_LEAST: Final = 0.05
#: Columns of a name whose siblings say something of a new dataset.
_SIBLINGS: Final = ("primary", "processed", "campaign")


def reasons(columns: Sequence[str], moved: Array | None) -> list[str | None]:
    """Return for each row the columns that moved it most, as ``log_accesses_7d +1.2,
    log_recency_days -0.4``.

    None where the model cannot say. ``moved``: of
    :meth:`cmsspark.apps.popularity.models.Model.contributions`.
    """
    if moved is None:
        return []
    largest = np.argsort(-np.abs(moved), axis=1, kind="stable")[:, :_REASONS]
    texts: list[str | None] = []
    for row, chosen in zip(moved, largest.tolist(), strict=True):
        parts = [
            f"{columns[number]} {row[number]:+.1f}"
            for number in chosen
            if abs(row[number]) >= _LEAST
        ]
        texts.append(", ".join(parts) or None)
    return texts


def bases(series: Series) -> list[str]:
    """Return for each dataset what its forecast rests on, on the day after the series.

    ``use``: its own; of a dataset without any, ``siblings``: another dataset with its
    primary dataset, its processed dataset or its campaign has a row; ``creation``: only
    what DBS says of it; ``unknown``: nothing.
    """
    used, is_known = np.asarray((series.accesses > 0).any(0)), series.is_known
    groups = Names(series.datasets, is_known).groups
    has_siblings: Array = np.zeros(len(used), bool)
    for name in _SIBLINGS:
        counts = np.bincount(groups[name], is_known)
        has_siblings |= counts[groups[name]] - is_known > 0
    is_created = ~np.isnan(series.created_days(len(series.days)))
    texts = np.where(
        used,
        "use",
        np.where(has_siblings, "siblings", np.where(is_created, "creation", "unknown")),
    )
    names: list[str] = texts.tolist()
    return names


# Expected accesses and bytes of the coming weeks, with quantiles, by gradient boosting.

QUANTILES: Final = (0.1, 0.5, 0.9)
#: Measures of a series that are expected, by the names of stored columns.
QUANTITIES: Final = {"nacc": "accesses", "bytes": "bytes"}
#: The mean of what has these quantiles, by Swanson's rule: bursts count as far as one
#: in ten weeks has them.
_SWANSON: Final = np.array([0.3, 0.4, 0.3])
_MOST_ROWS: Final = 15_000
_OPTIONS: Final = {
    "objective": "reg:quantileerror",
    "quantile_alpha": list(QUANTILES),
    "tree_method": "hist",
    "max_depth": 4,
    "eta": 0.1,
    "subsample": 0.7,
    "colsample_bytree": 0.4,
    "min_child_weight": 20,
    "nthread": 1,
}
_ROUNDS: Final = 50


def expected(weeks: Weeks, day: int, measure: str, *, seed: int = 0) -> Array | None:
    """Return the 10, 50 and 90 % quantiles of what the datasets are expected to be used in
    the weeks from that day on, from what was known before it: float64 [datasets, 3], NaN
    where a dataset has not entered.

    The quantiles are widened, or narrowed, by what the same model would have needed in
    the last week that is over. None where the series has nothing of the measure, or
    xgboost is not installed. Raises as :meth:`Weeks.training`.
    """
    before = weeks.until(day)
    values = before.series.values[MEASURES.index(measure)]
    if not values.any() or find_spec("xgboost") is None:
        return None
    correction = np.zeros(2)
    for past in past_days(day, before.label)[:1]:
        logs = _log_quantiles(before, past, measure, seed)
        entered = ~np.isnan(logs[:, 0])
        happened = np.log1p(values[past : past + before.label.days].sum(0))[entered]
        low, high = logs[entered, 0], logs[entered, 2]
        if entered.any():
            correction = np.array([_shift(low - happened), _shift(happened - high)])
    logs = _log_quantiles(before, day, measure, seed)
    logs[:, 0] -= correction[0]
    logs[:, 2] += correction[1]
    logs[:, 0], logs[:, 2] = np.minimum(logs[:, 0], logs[:, 1]), np.maximum(logs[:, 2], logs[:, 1])
    return np.asarray(np.expm1(np.maximum(logs, 0)))


def _shift(excess: Array) -> float:
    """Return by how much a quantile was passed by more than a tenth; half of it, and at
    most a factor of e, as one week says little of the next.
    """
    return float(np.clip(np.quantile(excess, QUANTILES[2]) / 2, -1, 1))


def _log_quantiles(weeks: Weeks, day: int, measure: str, seed: int) -> Array:
    """Return float64 [datasets, 3]: quantiles of log(1 + x) by a model of what was
    known before that day.
    """
    before = weeks.until(day)
    training = before.training(day, seed=seed, most=_MOST_ROWS)
    values = before.series.values[MEASURES.index(measure)]
    target = np.empty(len(training.rows))
    for day_number in np.unique(training.days):
        where = training.days == day_number
        week = values[day_number : day_number + before.label.days].sum(0)
        target[where] = np.log1p(week[training.datasets[where]])
    base = before.columns.index(f"log_{measure}_decayed")
    xgboost = load_xgboost()
    residual = target - training.rows[:, base]
    matrix = xgboost.QuantileDMatrix(training.rows, residual, weight=training.weights)
    trees = xgboost.train({**_OPTIONS, "seed": seed}, matrix, _ROUNDS)

    def quantiles(number: int) -> Array:
        return of_population(
            before,
            day,
            lambda rows: trees.predict(xgboost.DMatrix(rows))[:, number] + rows[:, base],
        )

    logs = np.sort(
        np.stack([quantiles(number) for number in range(len(QUANTILES))], axis=1), axis=1
    )
    # Nothing is expected beyond what a dataset ever had.
    return np.asarray(np.minimum(logs, target.max()))


#: What the names of tables begin with.
_TABLE: Final = "popularity_"
#: What is null where nothing is known of a dataset.
_OF_KNOWN: Final = (
    *("probability", "raw_probability", "reasons"),
    *(
        column
        for name in QUANTITIES
        for column in (f"expected_{name}", *(f"{name}_p{q}" for q in (10, 50, 90)))
    ),
)
_METRICS: Final = ("average_precision", "auc", "brier", "tpr", "tnr")


def predictions(weeks: Weeks, day: date, model_name: str, *, seed: int = 0) -> pl.DataFrame:
    """Return ``schemas/tables/popularity_predictions.yaml``, for the weeks from ``day`` on, the day after
    the series: a row for each dataset that has entered. A short series is forecast by
    persistence.

    A new dataset of which neither siblings nor DBS say anything has no probability.
    """
    number = len(weeks.series.days)
    check_model(model_name)
    model_name = weeks.label.model_on(weeks.series, number, model_name)
    fitted = fit(weeks, number, model_name, seed=seed)
    raw = of_population(weeks, number, fitted.model.predict)
    moved = fitted.model.contributions(weeks.rows(number)[~np.isnan(raw)])
    scores = calibrated(raw, fitted.calibration), raw
    return tabulate_predictions(weeks, day, model_name, scores, moved, seed=seed)


def tabulate_predictions(
    weeks: Weeks,
    day: date,
    model_name: str,
    scores: tuple[Array, Array],
    moved: Array | None,
    *,
    seed: int = 0,
) -> pl.DataFrame:
    """Return the same from (calibrated, raw) probabilities, NaN where a dataset has not
    entered, and the contributions to those of the others.
    """
    probability, raw = scores
    entered = np.nonzero(~np.isnan(raw))[0]
    series = weeks.series.only(entered)
    # The expected accesses and bytes, and their quantiles, by column; null where
    # nothing can tell them.
    number = len(series.days)
    columns: dict[str, Any] = {}
    for name, measure in QUANTITIES.items():
        try:
            amounts = expected(weeks, number, measure, seed=seed)
        except InputMissing:
            # A saved model predicts from a series that is too short to learn from.
            amounts = None
        values = [None] * 4 if amounts is None else [amounts @ _SWANSON, *amounts.T]
        for column, of_column in zip(
            (f"expected_{name}", *(f"{name}_p{q}" for q in (10, 50, 90))), values, strict=True
        ):
            columns[column] = [None] * len(entered) if of_column is None else of_column[entered]
    rows = {
        "raw_probability": raw[entered],
        "probability": probability[entered],
        "basis": bases(series),
        "reasons": reasons(weeks.columns, moved) or [None] * len(entered),
        **columns,
    }
    return _table(weeks, series, day, model_name, rows)


def _table(
    weeks: Weeks, series: Series, day: date, model_name: str, rows: dict[str, Any]
) -> pl.DataFrame:
    names = np.empty(len(series.datasets), object)
    for stratum, where in strata(series, len(series.days)).items():
        names[where] = stratum
    parts = [name.split("/") for name in series.datasets]
    label, table = weeks.label, stored_table("popularity_predictions")
    schema = pl.Schema(table.arrow())
    columns = {
        **rows,
        "dataset_name": series.datasets,
        "data_tier": [part[3] if len(part) > 3 else None for part in parts],
        "stratum": names.tolist(),
        "last_week_nacc": series.accesses[max(len(series.days) - 7, 0) :].sum(0).astype(np.int64),
    }
    about = label.describe()
    constants = {"model": model_name, "threshold": label.least_accesses, "label": about}
    chosen = {name: kind for name, kind in schema.items() if name in columns}
    is_unknown = pl.col("basis") == "unknown"
    frame = pl.DataFrame({name: columns[name] for name in chosen}, schema=chosen).with_columns(
        pl.when(~is_unknown).then(pl.col(name)) for name in _OF_KNOWN if name in chosen
    )
    # Of equal probability the raw one decides, then what is expected, then the name.
    order = ("probability", "raw_probability", "expected_nacc")
    keys = [*(pl.col(name).fill_null(-1) for name in order), pl.col("dataset_name")]
    frame = frame.sort(
        keys, descending=[True, True, True, False], maintain_order=True
    ).with_row_index("rank", 1)
    return _with_day(frame.cast({"rank": pl.Int64}), day, table.name, **constants)


def quality(
    weeks: Weeks, day: date, model_name: str, count: int, *, seed: int = 0
) -> pl.DataFrame:
    """Return ``schemas/tables/popularity_quality.yaml``: the last ``count`` weeks of seven days that are
    over, for the model and the baseline; none where the series is too short. Raises
    DataError (65) where a guard fails.
    """
    series, label = weeks.series, weeks.label
    starts = [len(series.days) - label.days - 7 * back for back in range(count)]
    starts = sorted(start for start in starts if start >= FIRST_DAY)
    judged = judge(weeks, starts, with_baselines([model_name]), seed=seed) if starts else []
    return quality_rows(judged, day, "popularity_quality")


def quality_rows(rows: Sequence[Mapping[str, Any]], day: date, table: str) -> pl.DataFrame:
    """Rows of ``evaluate`` as the stored ``table``, one for each week, model and stratum."""
    stored = []
    for row in rows:
        for stratum, metrics in {"all": row, **row["strata"]}.items():
            low, high = metrics["average_precision_interval"] or (None, None)
            stored.append(
                {
                    "first_day": row["week"],
                    "model": row["model"],
                    "stratum": stratum,
                    "dataset_count": metrics["rows"],
                    "popular_share": metrics["positives"],
                    "average_precision_low": low,
                    "average_precision_high": high,
                    **{metric: metrics[metric] for metric in _METRICS},
                }
            )
    schema = pl.Schema(stored_table(table).arrow())
    frame = pl.DataFrame(
        stored, schema={name: schema[name] for name in schema if name not in ("day", "timestamp")}
    )
    return _with_day(frame, day, table)


def _with_day(frame: pl.DataFrame, day: date, table: str, **constants: Any) -> pl.DataFrame:
    added = {"day": pl.lit(day), "timestamp": pl.lit(start_ms(day), pl.Int64)}
    texts = {name: pl.lit(value) for name, value in constants.items()}
    return frame.with_columns(**added, **texts).select(stored_table(table).names)
