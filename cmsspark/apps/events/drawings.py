"""Charts of an evaluation (ROC curves, confusion matrix, distributions of scores, learning curves), and histograms of
features by class, with weights: as pictures and as a ROOT file that other programs read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from cmsspark.apps.events.evaluation import Evaluation, shares
from cmsspark.apps.events.layout import EventLayout, layout_in
from cmsspark.apps.events.parts import event_groups, sample_parts
from cmsspark.base.arrays import Array
from cmsspark.base.errors import OutputError, UsageError
from cmsspark.pages.charts import Line, cell, plot
from cmsspark.pages.png import png
from cmsspark.pages.svg import WIDTH, Axis, Chart, standalone, text

_HEIGHT: Final = 300
#: Shares below this are drawn as this: on a logarithmic scale those of one per cent are visible.
_LEAST_SHARE: Final = 1e-4


def roc(evaluation: Evaluation) -> Chart:
    """Draw a curve for each class against all others, with its area."""
    curves = [
        Line(f"{name}, AUC {curve.auc:.3f}", _points(curve.false_positive, curve.true_positive))
        for name, curve in zip(evaluation.titles, evaluation.curves, strict=True)
    ]
    x, y = Axis(0, 1, "other classes taken for it", _percent), Axis(0, 1, "share of the class that is found", _percent)
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
    diagonal = "; ".join(f"{name} {100 * of_class[i, i]:.1f} %" for i, name in enumerate(evaluation.titles))
    return Chart("".join(parts), 40 + size * high, f"Recognized of each true class (rows): {diagonal}")


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
    y = Axis(_LEAST_SHARE, 1, "share of the true class", lambda share: f"{100 * share:g} %", is_log=True)
    return plot(lines, x, y, about=f"Probability of {evaluation.titles[label]}: {summary}", height=_HEIGHT)


def learning_curves(history: Sequence[Mapping[str, float]]) -> Chart:
    """Draw the loss by epoch or round; ``history``: rows with ``train_loss`` and ``validation_loss``."""
    lines, finite = [], []
    for name in ("train_loss", "validation_loss"):
        points = [(number, float(row.get(name, np.nan))) for number, row in enumerate(history, 1)]
        finite += [loss for _, loss in points if np.isfinite(loss)]
        lines.append(Line(name.replace("_", " "), [(x, loss if np.isfinite(loss) else None) for x, loss in points]))
    low, high = min(finite, default=0.0), max(finite, default=1.0)
    x, y = Axis(1, max(len(history), 2), "epochs or rounds", "{:g}".format), Axis(low, high, "loss", "{:.3g}".format)
    about = f"Loss over {len(history)} epochs or rounds: between {low:.3g} and {high:.3g}"
    return plot(
        [line for line in lines if any(y is not None for _, y in line.points)], x, y, about=about, height=_HEIGHT
    )


def histogram(name: str, edges: Array, series: Mapping[str, tuple[Array, Array]]) -> Chart:
    """Draw sums of weights by bin, which may be negative; ``series``: by title, values and errors."""
    low = min(0.0, *(float((values - errors).min()) for values, errors in series.values()))
    high = max(1e-300, *(float((values + errors).max()) for values, errors in series.values()))
    middles = (edges[1:] + edges[:-1]) / 2
    lines = [
        Line(title, _steps(edges, values), errors=[
            (float(middle), float(value - error), float(value + error))
            for middle, value, error in zip(middles, values, errors, strict=True) if error > 0
        ])
        for title, (values, errors) in series.items()
    ]  # fmt: skip
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


HISTOGRAMS_FILE: Final = "histograms.root"
DEFAULT_BINS: Final = 50


def fill_histograms(
    folder: Path, features: Sequence[str], bins: int = DEFAULT_BINS,
    ranges: Mapping[str, tuple[float, float]] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return a `hist.Hist` for each feature: an axis of classes, and one of the feature, with sums of squared weights.

    ``folder``: parts of prepared events, or of a sample. ``ranges``: of features; without one it is that of all events.
    Values beyond a range are in the underflow or overflow. Raises UsageError (2) for unknown features, and
    for a range of another one.
    """
    import hist

    layout = layout_in(folder.parent)
    names = list(features) or list(layout.feature_names)
    if unknown := [name for name in names if name not in layout.feature_names]:
        raise UsageError(
            f"there is no feature {unknown[0]}", where=folder,
            next_step=f"use one of: {', '.join(layout.feature_names)}",
        )  # fmt: skip
    if unused := [name for name in ranges or {} if name not in names]:
        raise UsageError(f"no histogram of {unused[0]} is drawn", found=f"a range of {unused[0]}; {', '.join(names)}")
    columns = [layout.feature_names.index(name) for name in names]
    limits = _limits(folder, layout, names, columns, ranges or {})
    histograms = {
        name: hist.Hist(
            hist.axis.StrCategory(layout.class_names, name="class"),
            hist.axis.Regular(bins, *limits[name], name=name, label=_title(layout, name)),
            storage=hist.storage.Weight(),
        )
        for name in names
    }
    for part in sample_parts(folder):
        for events in event_groups(part, layout, low_level=False):
            classes = np.array(layout.class_names)[events.labels]
            for name, column in zip(names, columns, strict=True):
                histograms[name].fill(classes, events.hlf[:, column], weight=events.weights)
    return histograms


def _limits(
    folder: Path, layout: EventLayout, names: Sequence[str], columns: Sequence[int],
    ranges: Mapping[str, tuple[float, float]],
) -> dict[str, tuple[float, float]]:  # fmt: skip
    """Return the range of each feature: the given one, or that of all events, its upper end included."""
    low, high = np.full(layout.hlf_count, np.inf), np.full(layout.hlf_count, -np.inf)
    if set(names) - set(ranges):
        for part in sample_parts(folder):
            for events in event_groups(part, layout, low_level=False):
                low, high = np.minimum(low, events.hlf.min(axis=0)), np.maximum(high, events.hlf.max(axis=0))
    limits = {}
    for name, column in zip(names, columns, strict=True):
        least, most = float(low[column]), float(high[column])
        if not np.isfinite([least, most]).all():
            least, most = 0.0, 1.0
        # The largest value belongs to the last bin, not to the overflow.
        span = most - least
        limits[name] = ranges.get(name, (least, most + (span * 1e-6 if span > 0 else 1.0)))
    return limits


def _title(layout: EventLayout, name: str) -> str:
    unit = dict(layout.features)[name]
    return f"{name} [{unit}]" if unit else name


def write_histograms(folder: Path, output: Path, histograms: Mapping[str, Any]) -> list[Path]:
    """Write a picture of each feature, and all of them as TH1D ``feature/class`` into one ROOT file.

    Raises OutputError (73) where the folder cannot be written.
    """
    import uproot

    layout = layout_in(folder.parent)
    try:
        output.mkdir(parents=True, exist_ok=True)
        with uproot.recreate(output / HISTOGRAMS_FILE) as file:
            for name, counts in histograms.items():
                for class_name in layout.class_names:
                    file[f"{name}/{class_name}"] = counts[class_name, :]
        paths = [output / HISTOGRAMS_FILE]
        for name, counts in histograms.items():
            values = {title: counts[class_name, :] for class_name, title in layout.classes}
            heading = _title(layout, name)
            chart = histogram(
                heading,
                counts.axes[1].edges,
                {
                    title: (counts.values(), np.sqrt(np.maximum(0, counts.variances())))
                    for title, counts in values.items()
                },
            )
            paths.append(output / f"{name}.png")
            paths[-1].write_bytes(png(standalone(chart, heading, "Sum of weights by bin and class, with errors.")))
    except OSError as error:
        raise OutputError("histograms cannot be written", where=output, found=error.strerror or str(error)) from None
    return paths
