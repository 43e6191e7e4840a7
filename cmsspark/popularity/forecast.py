"""A forecast as tables: each dataset's probability for the coming week, and how good such forecasts were before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from cmsspark.periods import start_ms
from cmsspark.popularity.baselines import with_baselines
from cmsspark.popularity.evaluate import forecasts, judged, strata
from cmsspark.popularity.fitting import fit, of_population
from cmsspark.popularity.series import Series
from cmsspark.popularity.training import FIRST_DAY, Label, Weeks
from cmsspark.schemas import stored_table

if TYPE_CHECKING:
    import polars as pl

Array = np.ndarray[Any, Any]

#: What the names of tables begin with: of datasets, and of datasets at sites.
_TABLE: Final = "popularity_"
_SITE_TABLE: Final = "popularity_site_"
_BASELINE: Final = "persistence"
_METRICS: Final = ("average_precision", "auc", "brier", "tpr", "tnr")


def predictions(weeks: Weeks, day: date, model_name: str, *, seed: int = 0) -> pl.DataFrame:
    """``schemas/tables/popularity_predictions.yaml``, of a series by site ``popularity_site_predictions.yaml``, for the
    weeks from ``day`` on, the day after the series.
    """
    number = len(weeks.series.days)
    fitted = fit(weeks, number, model_name, seed=seed)
    raw = of_population(weeks, number, fitted.raw)
    return predictions_of(weeks, day, model_name, raw, fitted.calibrated(raw))


def predictions_of(weeks: Weeks, day: date, model_name: str, raw: Array, probability: Array) -> pl.DataFrame:
    """Return the same from probabilities that there are; NaN for datasets that have not entered, which have no row."""
    import polars as pl

    number = len(weeks.series.days)
    entered = np.nonzero(~np.isnan(raw))[0]
    series, raw, probability = weeks.series.only(entered), raw[entered], probability[entered]
    names = np.empty(len(series.datasets), object)
    for stratum, where in strata(series, number).items():
        names[where] = stratum
    # Of equal probability the raw one decides, then the name.
    order = np.lexsort((np.arange(len(raw)), -raw, -probability))
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(1, len(order) + 1)
    parts = [name.split("/") for name in series.datasets]
    last_week = series.accesses[max(number - 7, 0) :].sum(0).astype(np.int64)
    frame = pl.DataFrame({
        "rank": rank,
        "dataset_name": series.datasets,
        **({} if series.sites is None else {"site_name": series.sites}),
        "data_tier": [part[3] if len(part) > 3 else None for part in parts],
        "probability": probability,
        "raw_probability": raw,
        "stratum": names.tolist(),
        "last_week_nacc": last_week,
    }, schema_overrides={"data_tier": pl.String, "stratum": pl.String, "dataset_name": pl.String})  # fmt: skip
    label = weeks.label
    text = label.text_of(by_site=series.by_site)
    constants = {"model": model_name, "threshold": label.least_accesses, "label": text}
    return _with_day(frame, day, table_name("predictions", series), **constants).sort("rank")


def table_name(name: str, series: Series) -> str:
    """The stored table ``name`` (forecast, quality …) of datasets, or of datasets at sites."""
    return f"{_SITE_TABLE if series.by_site else _TABLE}{name}"


def quality(weeks: Weeks, day: date, model_name: str, count: int, *, seed: int = 0) -> pl.DataFrame:
    """``schemas/tables/popularity_quality.yaml``, of a series by site ``popularity_site_quality.yaml``: the last
    ``count`` weeks of seven days that are over, for the model and the baseline; none where the series is too short.
    Raises DataError (65) where a guard fails.
    """
    series, label = weeks.series, weeks.label
    starts = [len(series.days) - label.days - 7 * back for back in range(count)]
    starts = sorted(start for start in starts if start >= FIRST_DAY + label.days)
    made = forecasts(weeks, starts, with_baselines([model_name]), seed=seed) if starts else []
    return quality_rows([judged(series, label, forecast) for forecast in made], day, table_name("quality", series))


def quality_rows(rows: Sequence[Mapping[str, Any]], day: date, table: str) -> pl.DataFrame:
    """Rows of :func:`cmsspark.popularity.evaluate.evaluate` as the stored ``table``, one for each week, model and
    stratum.
    """
    import polars as pl

    stored = []
    for row in rows:
        for stratum, found in {"all": row, **row["strata"]}.items():
            low, high = found["average_precision_interval"] or (None, None)
            stored.append({
                "first_day": row["week"], "model": row["model"], "stratum": stratum,
                "dataset_count": found["rows"], "popular_share": found["positives"],
                "average_precision_low": low, "average_precision_high": high,
                **{metric: found[metric] for metric in _METRICS},
            })  # fmt: skip
    schema = pl.Schema(stored_table(table).arrow())
    frame = pl.DataFrame(stored, schema={name: schema[name] for name in schema if name not in ("day", "timestamp")})
    return _with_day(frame, day, table)


def model_row(day: date, version: str, card: Mapping[str, Any]) -> pl.DataFrame:
    """``schemas/tables/popularity_models.yaml``, of a model of datasets at sites ``popularity_site_models.yaml``: one
    row, of the model card of a saved version.
    """
    import polars as pl

    own = [week for week in card["weeks"] if week["model"] == card["model"]]
    baseline = [week for week in card["weeks"] if week["model"] == _BASELINE]
    label = Label(**card["label"]).text_of(by_site=card["by_site"])
    row = {
        "day": day, "version": version, "model": card["model"], "label": label,
        "learned_from": date.fromisoformat(card["learned_from"]),
        "learned_until": date.fromisoformat(card["learned_until"]),
        "dataset_count": card["datasets"], "row_count": card["rows"],
        "row_count_before_sampling": card["rows_before_sampling"], "column_count": len(card["columns"]),
        "seed": card["seed"], "judged_week_count": len(own),
        "average_precision": _mean(own, "average_precision"), "brier": _mean(own, "brier"),
        "persistence_average_precision": _mean(baseline, "average_precision"),
        "model_sha256": card["model_sha256"], "columns_sha256": card["columns_sha256"], "timestamp": start_ms(day),
    }  # fmt: skip
    table = stored_table(f"{_SITE_TABLE if card['by_site'] else _TABLE}models")
    return pl.DataFrame([row], schema=pl.Schema(table.arrow())).select(table.names)


def _mean(weeks: Sequence[Mapping[str, Any]], name: str) -> float | None:
    values = [week[name] for week in weeks if week[name] is not None]
    return float(np.mean(values)) if values else None


def last_days(series: Series, day: date) -> Series:
    """The series up to the day before ``day``."""
    return series.until(max((day - series.days[0]).days, 0))


def _with_day(frame: pl.DataFrame, day: date, table: str, **constants: Any) -> pl.DataFrame:
    import polars as pl

    added = {"day": pl.lit(day), "timestamp": pl.lit(start_ms(day), pl.Int64)}
    texts = {name: pl.lit(value) for name, value in constants.items()}
    return frame.with_columns(**added, **texts).select(stored_table(table).names)


def tables_of(
    series: Series, day: date, label: Label, model_name: str, *, weeks: int = 4, top: int = 2000, seed: int = 0
) -> Sequence[tuple[str, pl.DataFrame]]:
    """(name, rows) of the three tables of a forecast; ``top``: the ranks of the published one."""
    label.check(series)
    every = Weeks(last_days(series, day), label)
    rows = predictions(every, day, model_name, seed=seed)
    judged = quality(every, day, model_name, weeks, seed=seed)
    tables = {"forecast": rows.head(top), "quality": judged, "predictions": rows}
    return [(table_name(name, series), table) for name, table in tables.items()]
