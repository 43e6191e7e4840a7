"""The report of an evaluation: a model card, weekly numbers, a reliability curve and a gain curve, as one HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from markupsafe import Markup

from cmsspark.apps.popularity.baselines import BASELINES, warnings
from cmsspark.apps.popularity.evaluate import WeekForecast
from cmsspark.apps.popularity.models import ABOUT
from cmsspark.apps.popularity.report_sections import sections
from cmsspark.apps.popularity.scores import format_score
from cmsspark.apps.popularity.training import Weeks
from cmsspark.base.arrays import Array
from cmsspark.pages import layout
from cmsspark.pages.charts import Line, plot
from cmsspark.pages.svg import Axis, Chart

_RELIABILITY: Final = (
    "Reliability: of the datasets with a predicted probability near x, the share that became popular. On the line, "
    "predictions are right."
)
_GAIN: Final = (
    "Gain: the share of the popular datasets that are among the first x by probability. The line is guessing."
)


def evaluation_page(
    weeks: Weeks, model: str, forecasts: Sequence[WeekForecast], rows: Sequence[Mapping[str, Any]], seed: int
) -> str:
    """Return the page of an evaluation of ``model`` beside the baselines, from its forecasts and their rows."""
    series, label = weeks.series, weeks.label
    judged = [forecast for forecast in forecasts if forecast.model == model]
    scores = np.concatenate([forecast.scores for forecast in judged])
    has_entered = ~np.isnan(scores)
    labels = np.concatenate([label.mark(series, forecast.day) for forecast in judged])[has_entered]
    scores = scores[has_entered]
    card = {
        "popular": label.describe(by_site=series.by_site),
        "model": f"{model}: {ABOUT[model]}",
        "data": f"{series.size_text}, {series.days[0]} to {series.days[-1]}",
        "learned from": "for each week, all earlier days whose horizon is over on its Monday",
        "guards": "later days deleted: features and population the same; no column tells more than the past; "
        "shuffled labels: as guessing",
        "baselines": "; ".join(f"{name}: {ABOUT[name]}" for name in BASELINES),
        "seed": str(seed),
    }
    where = ", and at which sites" if series.by_site else ""
    warned = [f"{warning}." for warning in warnings(rows, model)]
    reliability = _plot(_reliability(labels, scores), "predicted probability", "became popular")
    gain = _plot(_gain(labels, scores), "share of datasets, by probability", "share of the popular ones")
    parts = [
        layout.table((), card.items(), (0, 1)),
        *([layout.section("Warnings", layout.items(warned), kind="warnings")] if warned else []),
        layout.section("Week by week", _table(rows)),
        Markup('<div class="pictures">{}{}</div>').format(
            layout.picture("reliability", "Can the probabilities be believed?", _RELIABILITY, reliability),
            layout.picture("gain", "How many of the popular ones come first?", _GAIN, gain),
        ),
        *sections(weeks, model, judged[-1].day, judged[-1].scores, rows, seed),
    ]
    return layout.document(f"Which datasets become popular{where}: {model}", parts)


def _table(rows: Sequence[Mapping[str, Any]]) -> Markup:
    headings = ("week", "model", "popular", "average precision", "90 % interval", "AUC", "Brier", "TPR", "TNR")
    lines = []
    for row in rows:
        interval = row["average_precision_interval"]
        spread = f"{interval[0]:.2f}–{interval[1]:.2f}" if interval else "–"
        scores = [format_score(row[name]) for name in ("auc", "brier", "tpr", "tnr")]
        precision = format_score(row["average_precision"])
        lines.append((row["week"], row["model"], _share(row["positives"]), precision, spread, *scores))
    return layout.table(headings, lines, (0, 1))


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


def _reliability(labels: Array, scores: Array) -> list[tuple[float, float]]:
    """Tenths of the probability that hold at least five datasets: mean prediction, share of popular ones."""
    bins = np.minimum((scores * 10).astype(int), 9)
    filled = [number for number in range(10) if (bins == number).sum() >= 5]
    return [(float(scores[bins == number].mean()), float(labels[bins == number].mean())) for number in filled]


def _gain(labels: Array, scores: Array) -> list[tuple[float, float]]:
    if not labels.any():
        return []
    reached = np.concatenate([[0], np.cumsum(labels[np.argsort(-scores, kind="stable")]) / labels.sum()])
    chosen = np.unique(np.linspace(0, len(labels), 60).astype(int))
    return [(number / len(labels), float(reached[number])) for number in chosen.tolist()]


def _plot(points: Sequence[tuple[float, float]], across: str, up: str) -> Chart:
    """Draw shares against shares, with the line of those that are equal."""
    x, y = (Axis(0, 1, title, lambda share: f"{share:.0%}") for title in (across, up))
    lines = [Line("", [(0, 0), (1, 1)], "rule"), Line("", points, "c1", has_dots=len(points) < 15)]
    return plot(lines, x, y, about=f"{up} against {across}", height=300)
