"""The report of an evaluation: a model card, weekly numbers, a reliability curve and a gain curve, as one HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

import numpy as np

from cmsspark.apps.popularity.baselines import BASELINES, warnings
from cmsspark.apps.popularity.evaluate import WeekForecast
from cmsspark.apps.popularity.models import ABOUT
from cmsspark.apps.popularity.report_sections import sections
from cmsspark.apps.popularity.training import Weeks
from cmsspark.base.resources import read_text

Array = np.ndarray[Any, Any]

_SIDE: Final = 300
_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
{style}
.scroll {{ overflow-x: auto }}
.pair {{ display: flex; flex-wrap: wrap; gap: 2rem }}
svg {{ width: 366px; max-width: 100%; height: auto }}
svg text {{ font: 12px sans-serif; fill: currentColor }}
td, th {{ text-align: left }}
h2 {{ margin-top: 2rem }}
figure {{ margin: 0; max-width: 366px }}
.card td {{ white-space: normal }}
</style>
</head>
<body>
<main>
<h1>{title}</h1>
{card}
<h2>Week by week</h2>
<div class="scroll">{table}</div>
<h2>Can the probabilities be believed?</h2>
<div class="pair">
<figure>{reliability}<figcaption>Reliability: of the datasets with a predicted probability near x, the share that became
popular. On the line, predictions are right.</figcaption></figure>
<figure>{gain}<figcaption>Gain: the share of the popular datasets that are among the first x by probability. The line is
guessing.</figcaption></figure>
</div>
{more}
</main>
</body>
</html>
"""


def evaluation_page(
    weeks: Weeks, model: str, forecasts: Sequence[WeekForecast], rows: Sequence[Mapping[str, Any]], seed: int
) -> str:
    """Return the page of an evaluation of ``model`` beside the baselines, from its forecasts and their rows."""
    series, label = weeks.series, weeks.label
    own = [forecast for forecast in forecasts if forecast.model == model]
    entered = [~np.isnan(forecast.scores) for forecast in own]
    labels = np.concatenate(
        [label.of(series, forecast.day)[there] for forecast, there in zip(own, entered, strict=True)]
    )
    scores = np.concatenate([forecast.scores[there] for forecast, there in zip(own, entered, strict=True)])
    card = {
        "popular": label.text_of(by_site=series.by_site),
        "model": f"{model}: {ABOUT[model]}",
        "data": f"{series.size_text}, {series.days[0]} to {series.days[-1]}",
        "learned from": "for each week, all earlier days whose horizon is over on its Monday",
        "guards": "later days deleted: features and population the same; no column tells more than the past; "
        "shuffled labels: as guessing",
        "baselines": "; ".join(f"{name}: {ABOUT[name]}" for name in BASELINES),
        "seed": str(seed),
    }
    where = ", and at which sites" if series.by_site else ""
    more = "".join(f"<p>Warning: {escape(text)}.</p>" for text in warnings(rows, model))
    more += sections(weeks, model, own[-1].day, own[-1].scores, rows, seed)
    return page(f"Which datasets become popular{where}: {model}", card, rows, (labels, scores), more)


def page(
    title: str, card: Mapping[str, str], rows: Sequence[Mapping[str, Any]], judged: tuple[Array, Array], more: str
) -> str:
    """Return the page. ``card``: what the model is, in pairs; ``rows`` of
    :func:`cmsspark.apps.popularity.evaluate.evaluate`; ``judged``: labels and scores of the model, all weeks together;
    ``more``: further sections.
    """
    labels, scores = judged
    pairs = "".join(
        f"<tr><th scope='row'>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in card.items()
    )
    return _PAGE.format(
        title=escape(title),
        style=read_text("etc/report.css"),
        card=f"<table class='card'><tbody>{pairs}</tbody></table>",
        table=_table(rows),
        more=more,
        reliability=_plot(_reliability(labels, scores), "predicted probability", "became popular"),
        gain=_plot(_gain(labels, scores), "share of datasets, by probability", "share of the popular ones"),
    )


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    headings = ("week", "model", "popular", "average precision", "90 % interval", "AUC", "Brier", "TPR", "TNR")
    body = []
    for row in rows:
        interval = row["average_precision_interval"]
        cells = (
            str(row["week"]),
            row["model"],
            _share(row["positives"]),
            _number(row["average_precision"]),
            f"{interval[0]:.2f}–{interval[1]:.2f}" if interval else "–",
            _number(row["auc"]),
            _number(row["brier"]),
            _number(row["tpr"]),
            _number(row["tnr"]),
        )
        body.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    head = "".join(f"<th scope='col'>{escape(text)}</th>" for text in headings)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


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


def _plot(points: Sequence[tuple[float, float]], across: str, up: str) -> str:
    left, top = 46, 10
    places = [(left + _SIDE * x, top + _SIDE * (1 - y)) for x, y in points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    dots = (
        "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="#0072b2"/>' for x, y in places)
        if len(points) < 15
        else ""
    )
    ticks = "".join(
        f'<text x="{left + _SIDE * tick / 4}" y="{top + _SIDE + 16}" text-anchor="middle">{tick * 25} %</text>'
        f'<text x="{left - 6}" y="{top + _SIDE * (1 - tick / 4) + 4}" text-anchor="end">{tick * 25} %</text>'
        for tick in range(5)
    )
    return (
        f'<svg viewBox="0 0 {left + _SIDE + 20} {top + _SIDE + 44}" width="366" role="img" '
        f'aria-label="{escape(up)} against {escape(across)}">'
        f'<rect x="{left}" y="{top}" width="{_SIDE}" height="{_SIDE}" fill="none" stroke="currentColor" opacity=".3"/>'
        f'<line x1="{left}" y1="{top + _SIDE}" x2="{left + _SIDE}" y2="{top}" stroke="currentColor" opacity=".4" '
        'stroke-dasharray="4 4"/>'
        f'<polyline points="{path}" fill="none" stroke="#0072b2" stroke-width="2"/>{dots}{ticks}'
        f'<text x="{left + _SIDE / 2}" y="{top + _SIDE + 36}" text-anchor="middle">{escape(across)}</text></svg>'
    )
