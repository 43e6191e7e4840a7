"""A forecast as tables: each dataset's probability for the coming week, and how good
such forecasts were before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any, Final

import numpy as np
import polars as pl

from cmsspark.apps.popularity.baselines import with_baselines
from cmsspark.apps.popularity.evaluate import forecasts, judge, strata
from cmsspark.apps.popularity.explanations import bases, reasons
from cmsspark.apps.popularity.fitting import calibrated, fit, of_population
from cmsspark.apps.popularity.models import check_model
from cmsspark.apps.popularity.quantities import QUANTITIES, expected
from cmsspark.apps.popularity.scores import mean
from cmsspark.apps.popularity.series import Series
from cmsspark.apps.popularity.training import FIRST_DAY, PERSISTENCE, Label, Weeks
from cmsspark.base.arrays import Array
from cmsspark.base.errors import InputMissing
from cmsspark.base.periods import start_ms
from cmsspark.base.schemas import stored_table

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
    rows = {
        "raw_probability": raw[entered],
        "probability": probability[entered],
        "basis": bases(series),
        "reasons": reasons(weeks.columns, moved) or [None] * len(entered),
        **_quantities(weeks, len(series.days), entered, seed),
    }
    return _table(weeks, series, day, model_name, rows)


def _quantities(weeks: Weeks, number: int, entered: Array, seed: int) -> dict[str, Any]:
    """Return the expected accesses and bytes, and their quantiles, by column; null
    where nothing can tell them.
    """
    columns: dict[str, Any] = {}
    for name, measure in QUANTITIES.items():
        try:
            amounts = expected(weeks, number, measure, seed=seed)
        except InputMissing:
            # A saved model predicts from a series that is too short to learn from.
            amounts = None
        values = [None] * 4 if amounts is None else [amounts.mean, *amounts.quantiles.T]
        for column, of_column in zip(
            (f"expected_{name}", *(f"{name}_p{q}" for q in (10, 50, 90))), values, strict=True
        ):
            columns[column] = [None] * len(entered) if of_column is None else of_column[entered]
    return columns


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
    judged = forecasts(weeks, starts, with_baselines([model_name]), seed=seed) if starts else []
    return quality_rows([judge(weeks, forecast) for forecast in judged], day, "popularity_quality")


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


def model_row(day: date, version: str, card: Mapping[str, Any]) -> pl.DataFrame:
    """``schemas/tables/popularity_models.yaml``: one row, of the model card of a saved
    version.
    """
    weeks = [week for week in card["weeks"] if week["model"] == card["model"]]
    baseline = [week for week in card["weeks"] if week["model"] == PERSISTENCE]
    label = Label(**card["label"]).describe()
    row = {
        "day": day,
        "version": version,
        "model": card["model"],
        "label": label,
        "learned_from": date.fromisoformat(card["learned_from"]),
        "learned_until": date.fromisoformat(card["learned_until"]),
        "dataset_count": card["datasets"],
        "row_count": card["rows"],
        "row_count_before_sampling": card["rows_before_sampling"],
        "column_count": len(card["columns"]),
        "seed": card["seed"],
        "judged_week_count": len(weeks),
        "average_precision": mean(week["average_precision"] for week in weeks),
        "brier": mean(week["brier"] for week in weeks),
        "persistence_average_precision": mean(week["average_precision"] for week in baseline),
        "model_sha256": card["model_sha256"],
        "columns_sha256": card["columns_sha256"],
        "timestamp": start_ms(day),
    }
    table = stored_table(f"{_TABLE}models")
    return pl.DataFrame([row], schema=pl.Schema(table.arrow())).select(table.names)


def _with_day(frame: pl.DataFrame, day: date, table: str, **constants: Any) -> pl.DataFrame:
    added = {"day": pl.lit(day), "timestamp": pl.lit(start_ms(day), pl.Int64)}
    texts = {name: pl.lit(value) for name, value in constants.items()}
    return frame.with_columns(**added, **texts).select(stored_table(table).names)
