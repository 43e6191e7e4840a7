"""Charts of an evaluation: ROC curves, confusion matrix, distributions of scores, learning curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from cmsspark.apps.events.evaluation import Evaluation, shares
from cmsspark.base.arrays import Array
from cmsspark.pages.charts import Line, cell, plot
from cmsspark.pages.svg import WIDTH, Axis, Chart, text

_HEIGHT: Final = 300
#: Shares below this are drawn as this: on a logarithmic scale those of one per cent are visible.
_LEAST_SHARE: Final = 1e-4


def roc(evaluation: Evaluation) -> Chart:
    """Draw a curve for each class against all others, with its area."""
    curves = [
        Line(f"{name}, AUC {curve.auc:.3f}", _points(curve.false_positive, curve.true_positive))
        for name, curve in zip(evaluation.titles, evaluation.curves, strict=True)
    ]
    x, y = (
        Axis(0, 1, "other classes taken for it", _percent),
        Axis(0, 1, "share of the class that is found", _percent),
    )
    guess = Line("guessing", [(0, 0), (1, 1)], "rule")
    about = "ROC curves: " + "; ".join(curve.name for curve in curves)
    return plot([*curves, guess], x, y, about=about, height=_HEIGHT)


def confusion(evaluation: Evaluation) -> Chart:
    """Draw the shares of each true class by the most probable class; rows add up to 100 %."""
    counts, of_class = evaluation.confusion, shares(evaluation.confusion)
    size = len(counts)
    margin, side, high = 90, (WIDTH - 98) / size, 74
    parts = [text(margin + size * side / 2, 12, "most probable class", "soft mid")]
    for number, name in enumerate(evaluation.titles):
        parts.append(text(margin + side * (number + 0.5), 32, name, "name mid"))
        parts.append(text(margin - 8, 44 + high * (number + 0.5), name, "name end"))
    for row, column in np.ndindex(size, size):
        share = float(of_class[row, column])
        labels = [f"{100 * share:.1f} %", f"{counts[row, column]:,.10g}"]
        box = (margin + side * column, 40 + high * row, side - 2, high - 2)
        words = f"true {evaluation.titles[row]}, taken for {evaluation.titles[column]}: {', '.join(labels)}"
        parts.append(cell(box, min(6, max(0, round(6 * share))), words, labels))
    diagonal = "; ".join(
        f"{name} {100 * of_class[i, i]:.1f} %" for i, name in enumerate(evaluation.titles)
    )
    return Chart(
        "".join(parts), 40 + size * high, f"Recognized of each true class (rows): {diagonal}"
    )


def score_distribution(evaluation: Evaluation, label: int) -> Chart:
    """Draw the distribution of one class's probability, for events of each true class."""
    of_class = shares(evaluation.scores[label])
    edges = np.linspace(0, 1, of_class.shape[1] + 1)
    lines = [
        Line(f"true {name}", _steps(edges, np.maximum(of_class[number], _LEAST_SHARE)))
        for number, name in enumerate(evaluation.titles)
    ]
    means = zip(evaluation.titles, evaluation.score_means[label], strict=True)
    summary = "; ".join(f"mean {mean:.2f} of true {name}" for name, mean in means)
    x = Axis(0, 1, f"probability of {evaluation.titles[label]}", "{:g}".format)
    y = Axis(
        _LEAST_SHARE, 1, "share of the true class", lambda share: f"{100 * share:g} %", is_log=True
    )
    return plot(
        lines, x, y, about=f"Probability of {evaluation.titles[label]}: {summary}", height=_HEIGHT
    )


def learning_curves(history: Sequence[Mapping[str, float]]) -> Chart:
    """Draw the loss by epoch or round; ``history``: rows with ``train_loss`` and
    ``validation_loss``.
    """
    lines, finite = [], []
    for name in ("train_loss", "validation_loss"):
        points = [(number, float(row.get(name, np.nan))) for number, row in enumerate(history, 1)]
        finite += [loss for _, loss in points if np.isfinite(loss)]
        lines.append(
            Line(
                name.replace("_", " "),
                [(x, loss if np.isfinite(loss) else None) for x, loss in points],
            )
        )
    low, high = min(finite, default=0.0), max(finite, default=1.0)
    x, y = (
        Axis(1, max(len(history), 2), "epochs or rounds", "{:g}".format),
        Axis(low, high, "loss", "{:.3g}".format),
    )
    about = f"Loss over {len(history)} epochs or rounds: between {low:.3g} and {high:.3g}"
    return plot(
        [line for line in lines if any(y is not None for _, y in line.points)],
        x,
        y,
        about=about,
        height=_HEIGHT,
    )


def histogram(name: str, edges: Array, series: Mapping[str, tuple[Array, Array]]) -> Chart:
    """Draw sums of weights by bin, which may be negative; ``series``: by title, values and errors."""
    low = min(0.0, *(float((values - errors).min()) for values, errors in series.values()))
    high = max(1e-300, *(float((values + errors).max()) for values, errors in series.values()))
    middles = (edges[1:] + edges[:-1]) / 2
    lines = [
        Line(
            title,
            _steps(edges, values),
            errors=[
                (float(middle), float(value - error), float(value + error))
                for middle, value, error in zip(middles, values, errors, strict=True)
                if error > 0
            ],
        )
        for title, (values, errors) in series.items()
    ]
    summary = "; ".join(f"{title} {values.sum():.4g}" for title, (values, _) in series.items())
    x = Axis(float(edges[0]), float(edges[-1]), name, "{:.4g}".format)
    y = Axis(low, high, "sum of weights", "{:.3g}".format)
    about = f"{name}, sums of weights from {edges[0]:.4g} to {edges[-1]:.4g}: {summary}"
    return plot(lines, x, y, about=about, height=_HEIGHT)


def _points(across: Array, up: Array) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in zip(across, up, strict=True)]


def _steps(edges: Array, heights: Array) -> list[tuple[float, float]]:
    """Return the outline of a histogram."""
    return _points(np.repeat(edges, 2)[1:-1], np.repeat(heights, 2))


def _percent(share: float) -> str:
    return f"{share:.0%}"
