"""The report of an evaluation: a model card, weekly numbers, a reliability curve and a
gain curve, as one HTML page.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

import numpy as np
from markupsafe import Markup

from cmsspark.apps.popularity.baselines import BASELINES, warnings
from cmsspark.apps.popularity.evaluate import WeekForecast
from cmsspark.apps.popularity.fitting import fit
from cmsspark.apps.popularity.forecast import expected, importance, reasons
from cmsspark.apps.popularity.models import ABOUT
from cmsspark.apps.popularity.scores import format_score, mean
from cmsspark.apps.popularity.training import Weeks
from cmsspark.base.arrays import Array
from cmsspark.pages import layout
from cmsspark.pages.charts import Line, plot
from cmsspark.pages.svg import Axis, Chart

_RELIABILITY: Final = (
    "Reliability: of the datasets with a predicted probability near x, the share that became popular. On the line, "
    "predictions are right."
)
_GAIN: Final = "Gain: the share of the popular datasets that are among the first x by probability. The line is guessing."
_LIKELY: Final = 0.5
#: Rows of the lists of columns and of datasets.
_COLUMNS, _DATASETS = 20, 50


def evaluation_page(
    weeks: Weeks,
    model: str,
    forecasts: Sequence[WeekForecast],
    rows: Sequence[Mapping[str, Any]],
    seed: int,
) -> str:
    """Return the page of an evaluation of ``model`` beside the baselines, from its
    forecasts and their rows.
    """
    series, label = weeks.series, weeks.label
    judged = [forecast for forecast in forecasts if forecast.model == model]
    scores = np.concatenate([forecast.scores for forecast in judged])
    has_entered = ~np.isnan(scores)
    labels = np.concatenate([label.mark(series, forecast.day) for forecast in judged])[has_entered]
    scores = scores[has_entered]
    card = {
        "popular": label.describe(),
        "model": f"{model}: {ABOUT[model]}",
        "data": f"{series.size_text}, {series.days[0]} to {series.days[-1]}",
        "learned from": "for each week, all earlier days whose horizon is over on its Monday",
        "guards": "later days deleted: features and population the same; no column tells more than the past; "
        "shuffled labels: as guessing",
        "baselines": "; ".join(f"{name}: {ABOUT[name]}" for name in BASELINES),
        "seed": str(seed),
    }
    warned = [f"{warning}." for warning in warnings(rows, model)]
    reliability = _plot(_reliability(labels, scores), "predicted probability", "became popular")
    gain = _plot(
        gain_curve(labels, scores),
        "share of datasets, by probability",
        "share of the popular ones",
    )
    parts = [
        layout.table((), card.items(), (0, 1)),
        *([layout.section("Warnings", layout.items(warned), kind="warnings")] if warned else []),
        layout.section("Week by week", _table(rows)),
        Markup('<div class="pictures">{}{}</div>').format(
            layout.picture(
                "reliability", "Can the probabilities be believed?", _RELIABILITY, reliability
            ),
            layout.picture("gain", "How many of the popular ones come first?", _GAIN, gain),
        ),
        *_sections(weeks, model, judged[-1].day, judged[-1].scores, rows, seed),
    ]
    return layout.document(f"Which datasets become popular: {model}", parts)


def _table(rows: Sequence[Mapping[str, Any]]) -> Markup:
    headings = (
        "week",
        "model",
        "popular",
        "average precision",
        "90 % interval",
        "AUC",
        "Brier",
        "TPR",
        "TNR",
    )
    lines = []
    for row in rows:
        interval = row["average_precision_interval"]
        spread = f"{interval[0]:.2f}–{interval[1]:.2f}" if interval else "–"
        scores = [format_score(row[name]) for name in ("auc", "brier", "tpr", "tnr")]
        precision = format_score(row["average_precision"])
        lines.append(
            (row["week"], row["model"], _share(row["positives"]), precision, spread, *scores)
        )
    return layout.table(headings, lines, (0, 1))


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


def _reliability(labels: Array, scores: Array) -> list[tuple[float, float]]:
    """Tenths of the probability that hold at least five datasets: mean prediction,
    share of popular ones.
    """
    bins = np.minimum((scores * 10).astype(int), 9)
    filled = [number for number in range(10) if (bins == number).sum() >= 5]
    return [
        (float(scores[bins == number].mean()), float(labels[bins == number].mean()))
        for number in filled
    ]


def gain_curve(labels: Array, scores: Array) -> list[tuple[float, float]]:
    """Return up to 60 points of the gain; equal probabilities are taken together, as
    they have no order.
    """
    if not labels.any():
        return []
    order = np.argsort(-scores, kind="stable")
    reached = np.concatenate([[0], np.cumsum(labels[order]) / labels.sum()])
    ends = np.append(0, np.nonzero(np.diff(scores[order], append=np.nan))[0] + 1)
    chosen = ends[np.unique(np.linspace(0, len(ends) - 1, 60).astype(int))]
    return [(number / len(labels), float(reached[number])) for number in chosen.tolist()]


def _plot(points: Sequence[tuple[float, float]], across: str, up: str) -> Chart:
    """Draw shares against shares, with the line of those that are equal."""
    x, y = (Axis(0, 1, title, lambda share: f"{share:.0%}") for title in (across, up))
    lines = [Line("", [(0, 0), (1, 1)], "rule"), Line("", points, "c1", has_dots=len(points) < 15)]
    return plot(lines, x, y, about=f"{up} against {across}", height=300)


def _sections(
    weeks: Weeks, model: str, day: int, scores: Array, rows: Sequence[Mapping[str, Any]], seed: int
) -> Iterator[Markup]:
    """Yield the sections. ``day``: of the last judged week; ``scores``: what the model
    predicted for it; ``rows``: of
    :func:`cmsspark.apps.popularity.evaluate.judged`, of all weeks and models.
    """
    fitted = fit(weeks, day, model, seed=seed)
    before, entered = weeks.until(day), np.nonzero(~np.isnan(scores))[0]
    moved = fitted.model.contributions(before.rows(day)[entered])
    about = "Means of the weeks: active datasets were used in the week before, dormant ones before that."
    yield layout.section(
        "By stratum", _strata([row for row in rows if row["model"] == model]), about=about
    )
    funnel = _funnel(weeks, day, scores, len(fitted.training.rows), fitted.training.total)
    about = f"The last judged week, from {weeks.series.days[day]} on."
    yield layout.section("From accesses to forecasts", funnel, about=about)
    if moved is not None:
        lines = [
            (name, f"{value:.3f}") for name, value in importance(before.columns, moved)[:_COLUMNS]
        ]
        about = "The mean change of the logarithm of the odds by each column, in that week."
        yield layout.section(
            "Columns that matter", layout.table(("column", "mean change"), lines), about=about
        )
    about = "The most probable datasets of that week, and what happened."
    yield layout.section(
        "Datasets", _datasets(weeks, day, scores, entered, moved, seed), about=about
    )


def _strata(rows: Sequence[Mapping[str, Any]]) -> Markup:
    lines = []
    for stratum in ("active", "dormant", "new"):
        parts = [row["strata"][stratum] for row in rows]
        names = ("positives", "average_precision", "brier", "tpr", "tnr")
        means = [mean(part[name] for part in parts) for name in names]
        lines.append(
            (
                stratum,
                f"{np.mean([part['rows'] for part in parts]):,.0f}",
                *map(format_score, means),
            )
        )
    return layout.table(
        ("stratum", "datasets a week", "popular", "average precision", "Brier", "TPR", "TNR"),
        lines,
    )


def _funnel(weeks: Weeks, day: int, scores: Array, learned: int, total: int) -> Markup:
    series, entered = weeks.series, ~np.isnan(scores)
    labels = weeks.label.mark(series, day) > 0
    is_likely = np.nan_to_num(scores) >= _LIKELY
    steps = (
        ("accesses in the days before", int(series.accesses[:day].sum())),
        ("days of datasets with an access", int((series.accesses[:day] > 0).sum())),
        ("rows to learn from: a dataset on a day", total),
        ("rows that the model learned from", learned),
        ("datasets that had entered before the week", int(entered.sum())),
        (
            "of these used in the seven days before",
            int((series.accesses[max(day - 7, 0) : day, entered] > 0).any(0).sum()),
        ),
        ("predicted with a probability of 50 % and more", int(is_likely.sum())),
        ("of these popular", int((is_likely & labels).sum())),
        ("popular, of those that had entered", int((labels & entered).sum())),
        ("popular, but only entered in the week", int((labels & ~entered).sum())),
    )
    return layout.table(("step", "number"), [(name, f"{count:,}") for name, count in steps])


def _datasets(
    weeks: Weeks, day: int, scores: Array, entered: Array, moved: Array | None, seed: int
) -> Markup:
    series = weeks.series
    first = np.argsort(-scores[entered], kind="stable")[:_DATASETS]
    explanations = reasons(weeks.until(day).columns, None if moved is None else moved[first]) or [
        None
    ] * len(first)
    amounts = expected(weeks, day, "accesses", seed=seed)
    happened = series.accesses[day : day + weeks.label.days].sum(0)
    lines = []
    for number, reason in zip(entered[first].tolist(), explanations, strict=True):
        quantiles = (
            "–"
            if amounts is None
            else ", ".join(f"{value:,.0f}" for value in amounts.quantiles[number])
        )
        name = series.datasets[number]
        lines.append(
            (name, f"{scores[number]:.3f}", quantiles, f"{happened[number]:,.0f}", reason)
        )
    end = series.days[day] + timedelta(days=weeks.label.days - 1)
    headings = ("probability", "accesses: 10, 50, 90 %", f"accesses to {end}", "moved by")
    return layout.table(("dataset", *headings), lines, (0, 4))
