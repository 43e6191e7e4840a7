"""Charts of an evaluation: ROC curves, confusion matrix, distributions of scores, learning curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

import numpy as np

from cmsspark.apps.events.evaluation import Evaluation, shares
from cmsspark.pages.charts import COLOURS, SERIES, WIDTH, Chart

Array = np.ndarray[Any, Any]

_LEFT, _HEIGHT, _TOP = 46, 300, 8
_PLOT: Final = WIDTH - _LEFT - 8
_DECADES: Final = ("0.01 %", "0.1 %", "1 %", "10 %", "100 %")
#: Dashes beside colours: lines that cross differ without colour, too.
_DASHES: Final = ("", ' stroke-dasharray="7 3"', ' stroke-dasharray="2 3"', ' stroke-dasharray="9 3 2 3"')
#: Lines of a legend beside each other.
_LEGEND_COLUMNS: Final = 3


def roc(evaluation: Evaluation) -> Chart:
    """Draw a curve for each class against all others, with its area."""
    parts = [_axes("other classes taken for it", "share of the class that is found"), _diagonal()]
    for place, curve in enumerate(evaluation.curves):
        parts.append(_line(curve.false_positive, curve.true_positive, place))
    names = [f"{name}, AUC {curve.auc:.3f}" for name, curve in zip(evaluation.titles, evaluation.curves, strict=True)]
    for place, name in enumerate(names):
        high = _TOP + _HEIGHT - 20 * (len(names) - place) - 2
        parts.append(_legend_line(name, place, _LEFT + _PLOT - 150, high))
    return Chart("".join(parts), _HEIGHT + 52, "ROC curves: " + "; ".join(names))


def confusion(evaluation: Evaluation) -> Chart:
    """Draw the shares of each true class by the most probable class; rows add up to 100 %."""
    counts, of_class = evaluation.confusion, shares(evaluation.confusion)
    size = len(counts)
    left, side, high = 90, (WIDTH - 98) / size, 74
    parts = [f'<text class="soft mid" x="{left + size * side / 2:.0f}" y="12">most probable class</text>']
    for place, name in enumerate(evaluation.titles):
        x, y = left + side * (place + 0.5), 40 + high * (place + 0.5)
        parts.append(f'<text class="name mid" x="{x:.1f}" y="32">{escape(name)}</text>')
        parts.append(f'<text class="name end" x="{left - 8}" y="{y + 4:.1f}">{escape(name)}</text>')
    for row in range(size):
        for column in range(size):
            x, y, share = left + side * column, 40 + high * row, float(of_class[row, column])
            shade = min(6, max(0, round(6 * share)))
            kind = "mid on" if shade > 3 else "mid"
            parts.append(
                f'<rect class="h{shade}" x="{x:.1f}" y="{y}" width="{side - 2:.1f}" height="{high - 2}" rx="3"/>'
                f'<text class="{kind}" x="{x + side / 2:.1f}" y="{y + 34}">{100 * share:.1f} %</text>'
                f'<text class="{kind} name" x="{x + side / 2:.1f}" y="{y + 51}">{counts[row, column]:,.10g}</text>'
            )
    said = "; ".join(f"{name} {100 * of_class[i, i]:.1f} %" for i, name in enumerate(evaluation.titles))
    return Chart("".join(parts), 40 + size * high, f"Recognized of each true class (rows): {said}")


def score_distribution(evaluation: Evaluation, label: int) -> Chart:
    """Draw the distribution of one class's probability, for events of each true class."""
    of_class = shares(evaluation.scores[label])
    # Shares of one per cent and less are visible on a logarithmic scale.
    least = 1e-4
    heights = np.log10(np.clip(of_class, least, 1) / least) / -np.log10(least)
    parts = [
        _axes(
            f"probability of {evaluation.titles[label]}",
            "share of the true class",
            ("0.01 %", "0.1 %", "1 %", "10 %", "100 %"),
        )
    ]
    edges = np.linspace(0, 1, of_class.shape[1] + 1)
    for place, name in enumerate(evaluation.titles):
        parts.append(_line(np.repeat(edges, 2)[1:-1], np.repeat(heights[place], 2), place))
        parts.append(_legend_line(f"true {name}", place, *_legend_place(place)))
    middles = (edges[1:] + edges[:-1]) / 2
    means = of_class @ middles
    said = "; ".join(f"mean {mean:.2f} of true {name}" for name, mean in zip(evaluation.titles, means, strict=True))
    return Chart("".join(parts), _HEIGHT + 52, f"Probability of {evaluation.titles[label]}: {said}")


def learning_curves(history: Sequence[Mapping[str, float]]) -> Chart:
    """Loss by epoch or round; ``history``: rows with ``train_loss`` and ``validation_loss``."""
    names = ("train_loss", "validation_loss")
    marks = [f"{len(history) * place / 4:g}" for place in range(5)]
    values = {name: np.array([row.get(name, np.nan) for row in history], float) for name in names}
    finite = np.concatenate([series[np.isfinite(series)] for series in values.values()])
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    span = high - low or 1.0
    parts = [_axes("epochs or rounds", "loss", [f"{low + span * tick / 4:.3g}" for tick in range(5)], marks)]
    for place, (name, series) in enumerate(values.items()):
        known = np.isfinite(series)
        if known.any():
            across = np.arange(1, len(series) + 1) / len(series)
            parts.append(_line(across[known], (series[known] - low) / span, place))
            parts.append(_legend_line(name.replace("_", " "), place, _LEFT + 12 + 150 * place, _TOP + 14))
    return Chart("".join(parts), _HEIGHT + 52, f"Loss over {len(history)} epochs or rounds: {high:.3g} to {low:.3g}")


def histogram(name: str, edges: Array, series: Mapping[str, tuple[Array, Array]]) -> Chart:
    """Draw sums of weights by bin, which may be negative; ``series``: by title, values and errors."""
    tops = np.concatenate([values + errors for values, errors in series.values()])
    bottoms = np.concatenate([values - errors for values, errors in series.values()])
    low, high = min(0.0, float(bottoms.min())), max(float(tops.max()), 1e-300)
    span = high - low
    ticks = [f"{low + span * tick / 4:.3g}" for tick in range(5)]
    first, last = float(edges[0]), float(edges[-1])
    marks = [f"{first + (last - first) * place / 4:.4g}" for place in range(5)]
    parts = [_axes(name, "sum of weights", ticks, marks)]
    places = (edges - first) / (last - first)
    middles = (places[1:] + places[:-1]) / 2
    for place, (title, (values, errors)) in enumerate(series.items()):
        heights = (values - low) / span
        parts.append(_line(np.repeat(places, 2)[1:-1], np.repeat(heights, 2), place))
        for middle, height, error in zip(middles, heights, errors / span, strict=True):
            if error > 0:
                parts.append(_line(np.array([middle, middle]), np.array([height - error, height + error]), place, 1))
        parts.append(_legend_line(title, place, *_legend_place(place)))
    said = "; ".join(f"{title} {values.sum():.4g}" for title, (values, _) in series.items())
    return Chart("".join(parts), _HEIGHT + 52, f"{name}, sums of weights: {said}")


def _axes(
    across: str, up: str, ticks: Sequence[str] = ("0", "25 %", "50 %", "75 %", "100 %"),
    marks: Sequence[str] = ("0", "0.25", "0.5", "0.75", "1"),
) -> str:  # fmt: skip
    """Draw the frame with its ticks, and the marks below it from left to right."""
    bottom = _TOP + _HEIGHT
    parts = [f'<rect x="{_LEFT}" y="{_TOP}" width="{_PLOT}" height="{_HEIGHT}" fill="none" stroke="#9aa5b1"/>']
    for place, text in enumerate(ticks):
        y = bottom - _HEIGHT * place / 4
        parts.append(f'<text class="soft end" x="{_LEFT - 5}" y="{y + 4:.1f}">{escape(text)}</text>')
        parts.append(
            f'<line x1="{_LEFT}" x2="{_LEFT + _PLOT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#9aa5b1" opacity=".3"/>'
        )
    for place, text in enumerate(marks):
        x = _LEFT + _PLOT * place / 4
        parts.append(f'<text class="soft mid" x="{x:.1f}" y="{bottom + 16}">{escape(text)}</text>')
    parts.append(f'<text class="soft mid" x="{_LEFT + _PLOT / 2:.0f}" y="{bottom + 36}">{escape(across)}</text>')
    middle = _TOP + _HEIGHT / 2
    parts.append(f'<text class="soft mid" transform="translate(9 {middle:.0f}) rotate(-90)">{escape(up)}</text>')
    return "".join(parts)


def _diagonal() -> str:
    return (
        f'<line x1="{_LEFT}" y1="{_TOP + _HEIGHT}" x2="{_LEFT + _PLOT}" y2="{_TOP}" stroke="#9aa5b1" '
        'stroke-dasharray="4 4"/>'
    )


def _line(across: Array, up: Array, place: int, width: int = 2) -> str:
    points = " ".join(
        f"{_LEFT + _PLOT * x:.1f},{_TOP + _HEIGHT * (1 - y):.1f}" for x, y in zip(across, up, strict=True)
    )
    return f'<polyline points="{points}" fill="none" {_stroke(place)} stroke-width="{width}"/>'


def _legend_line(name: str, place: int, x: float, y: float) -> str:
    return (
        f'<line x1="{x}" x2="{x + 22}" y1="{y - 4}" y2="{y - 4}" {_stroke(place)} stroke-width="2.5"/>'
        f'<text class="soft" x="{x + 28}" y="{y}">{escape(name)}</text>'
    )


def _stroke(place: int) -> str:
    """Return colour and dashes of a series: other dashes where colours come again."""
    dashes = _DASHES[(place + place // len(SERIES)) % len(_DASHES)]
    return f'stroke="{COLOURS[SERIES[place % len(SERIES)]]}"{dashes}'


def _legend_place(place: int) -> tuple[float, float]:
    """Return where a line of a legend begins at the top of a picture."""
    return _LEFT + 12 + 130 * (place % _LEGEND_COLUMNS), _TOP + 14 + 16 * (place // _LEGEND_COLUMNS)
