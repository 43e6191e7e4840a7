"""How good a classifier is: ROC curves, their areas, the confusion matrix,
distributions of scores, and the files that show them beside a model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from markupsafe import Markup

from cmsspark import __version__
from cmsspark.apps.events.layout import ABOUT, NETWORKS, EventLayout, layout_in, read_description
from cmsspark.apps.events.root_files import event_groups, sample_parts
from cmsspark.apps.events.scalers import Scalers
from cmsspark.base import dates
from cmsspark.base.arrays import Array
from cmsspark.base.errors import DataError, OutputError, UsageError
from cmsspark.pages import layout as page_kit
from cmsspark.pages.charts import Line, cell, plot
from cmsspark.pages.svg import WIDTH, Axis, Chart, png, standalone, text

#: Points of a stored ROC curve, and bins of a distribution of scores.
CURVE_POINTS: Final = 200
SCORE_BINS: Final = 25
_SMALLEST: Final = 1e-15


@dataclass(frozen=True)
class RocCurve:
    """A class against all others: its share above a threshold, for each share of the
    others; ``auc``: the area.
    """

    false_positive: Array
    true_positive: Array
    auc: float


@dataclass(frozen=True)
class Evaluation:
    """``confusion``: events by (true class, most probable class); ``scores``: by (class
    of the score, true class) the numbers of events in bins of the score from 0 to 1.
    With weights these are sums of weights.

    ``classes``: names and titles; ``score_means``: by (class of the score, true class)
    the mean score.
    """

    classes: tuple[tuple[str, str], ...]
    events: int
    accuracy: float
    log_loss: float
    curves: tuple[RocCurve, ...]
    confusion: Array
    scores: Array
    score_means: Array

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the classes."""
        return tuple(name for name, _ in self.classes)

    @property
    def titles(self) -> tuple[str, ...]:
        """The titles of the classes."""
        return tuple(title for _, title in self.classes)

    @property
    def auc_by_class(self) -> dict[str, float]:
        """The area of each class."""
        return {name: curve.auc for name, curve in zip(self.names, self.curves, strict=True)}

    @property
    def auc(self) -> float:
        """The mean of the areas of all classes."""
        return float(np.mean([curve.auc for curve in self.curves]))

    @property
    def diagonal(self) -> float:
        """The mean over classes of the share of events that are recognized."""
        return float(np.mean(np.diag(shares(self.confusion))))

    def as_dict(self) -> dict[str, Any]:
        """Return the content of ``metrics.json``."""
        return {
            "events": self.events,
            "accuracy": self.accuracy,
            "auc": self.auc,
            "auc_by_class": self.auc_by_class,
            "diagonal": self.diagonal,
            "log_loss": self.log_loss,
            "classes": list(self.names),
            "confusion": self.confusion.tolist(),
            "roc": {
                name: {
                    "false_positive": curve.false_positive.tolist(),
                    "true_positive": curve.true_positive.tolist(),
                }
                for name, curve in zip(self.names, self.curves, strict=True)
            },
        }


def shares(counts: Array) -> Array:
    """Return the parts of each row of its sum; zeros where that is not above 0."""
    totals = counts.sum(axis=-1, keepdims=True)
    return np.asarray(counts / np.where(totals > 0, totals, np.inf))


def evaluate(
    labels: Array,
    probabilities: Array,
    classes: tuple[tuple[str, str], ...],
    weights: Array | None = None,
) -> Evaluation:
    """Judge probabilities ``(n, classes)`` by the true ``labels``; ``weights`` may be negative.

    Raises DataError (65) where probabilities are none: not finite, or not one for each
    class and event; and where a class has no events, or no weight above 0, as its curve
    does not exist.
    """
    probabilities = np.asarray(probabilities, np.float64)
    labels = np.asarray(labels, np.int64)
    count = len(classes)
    if probabilities.shape != (len(labels), count) or not np.isfinite(probabilities).all():
        raise DataError(
            f"{len(labels)} events need {count} finite probabilities each",
            found=probabilities.shape,
        )
    is_weighted = weights is not None and not (weights == 1).all()
    weight = np.asarray(weights, np.float64) if is_weighted else np.ones(len(labels), np.int64)
    of_class = _sums(labels, weight, count)
    if len(of_class) != count or not (of_class > 0).all():
        raise DataError(
            "the evaluation needs events of all classes, with weights that add up to more than 0",
            found=", ".join(
                f"{number:,} {name}" for (name, _), number in zip(classes, of_class, strict=False)
            ),
            next_step="take a larger sample",
        )
    guesses = probabilities.argmax(axis=1)
    confusion = _sums(labels * count + guesses, weight, count * count).reshape(count, count)
    of_label = probabilities[np.arange(len(labels)), labels]
    bins = np.clip((probabilities * SCORE_BINS).astype(np.int64), 0, SCORE_BINS - 1)
    scores = np.array(
        [
            [
                _sums(bins[labels == true, of], weight[labels == true], SCORE_BINS)
                for true in range(count)
            ]
            for of in range(count)
        ]
    )
    return Evaluation(
        classes,
        len(labels),
        float(np.average(guesses == labels, weights=weight)),
        float(-np.average(np.log(np.clip(of_label, _SMALLEST, 1)), weights=weight)),
        tuple(
            roc_curve(labels == label, probabilities[:, label], weight) for label in range(count)
        ),
        confusion,
        scores,
        np.stack(
            [np.bincount(labels, weight * score, count) / of_class for score in probabilities.T]
        ),
    )


def _sums(bins: Array, weight: Array, size: int) -> Array:
    """Return the sums of weights by place: whole numbers where events are counted."""
    sums = np.bincount(bins, weight, minlength=size)
    return sums if weight.dtype.kind == "f" else sums.astype(np.int64)


def roc_curve(is_signal: Array, scores: Array, weights: Array | None = None) -> RocCurve:
    """Return the ROC curve of some scores; equal scores are one step, so ties count
    half in the area.

    With negative weights a curve may go back in places; its area is the sum with these signs.

    Example:
        >>> import numpy as np
        >>> roc_curve(np.array([False, True, False, True]), np.array([0.1, 0.9, 0.4, 0.4])).auc
        0.875
    """
    order = np.argsort(-scores, kind="stable")
    ordered, signal = scores[order], is_signal[order]
    weight = np.ones(len(scores)) if weights is None else weights[order].astype(np.float64)
    ends = np.append(np.flatnonzero(np.diff(ordered)), len(ordered) - 1)
    of_signal, of_others = weight * signal, weight * ~signal
    true_positive = np.concatenate(([0.0], np.cumsum(of_signal)[ends] / of_signal.sum()))
    false_positive = np.concatenate(([0.0], np.cumsum(of_others)[ends] / of_others.sum()))
    steps = np.diff(false_positive)
    auc = float((steps * (true_positive[1:] + true_positive[:-1]) / 2).sum())
    # Of thousands of points a curve needs some hundred, where it is steep and where it is flat.
    length = np.concatenate(([0.0], np.cumsum(np.abs(steps) + np.abs(np.diff(true_positive)))))
    chosen = np.unique(
        np.searchsorted(length, np.linspace(0, length[-1], CURVE_POINTS)).clip(0, len(length) - 1)
    )
    return RocCurve(false_positive[chosen], true_positive[chosen], auc)


# Charts of an evaluation: ROC curves, confusion matrix, distributions of scores,
# learning curves.

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


# Histograms of features by class, with weights: as pictures and as a ROOT file that
# other programs read.

HISTOGRAMS_FILE: Final = "histograms.root"
WEIGHT_SUMS: Final = "weight_sums"
DEFAULT_BINS: Final = 50


def fill_histograms(
    folder: Path,
    features: Sequence[str],
    bins: int = DEFAULT_BINS,
    ranges: Mapping[str, tuple[float, float]] | None = None,
) -> dict[str, Any]:
    """Return a `hist.Hist` for each feature: an axis of classes, and one of the
    feature, with sums of squared weights.

    ``folder``: parts of prepared events, or of a sample. ``ranges``: of features;
    without one it is that of all events. Values beyond a range are in the underflow or
    overflow. Raises UsageError (2) for unknown features, and for a range of another
    one.
    """
    import hist

    layout = layout_in(folder.parent)
    names = list(features) or list(layout.feature_names)
    if unknown := [name for name in names if name not in layout.feature_names]:
        raise UsageError(
            f"there is no feature {unknown[0]}",
            where=folder,
            next_step=f"use one of: {', '.join(layout.feature_names)}",
        )
    if unused := [name for name in ranges or {} if name not in names]:
        raise UsageError(
            f"no histogram of {unused[0]} is drawn",
            found=f"a range of {unused[0]}; {', '.join(names)}",
        )
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
    folder: Path,
    layout: EventLayout,
    names: Sequence[str],
    columns: Sequence[int],
    ranges: Mapping[str, tuple[float, float]],
) -> dict[str, tuple[float, float]]:
    """Return the range of each feature: the given one, or that of all events, its upper
    end included.
    """
    low, high = np.full(layout.hlf_count, np.inf), np.full(layout.hlf_count, -np.inf)
    if set(names) - set(ranges):
        for part in sample_parts(folder):
            for events in event_groups(part, layout, low_level=False):
                low, high = (
                    np.minimum(low, events.hlf.min(axis=0)),
                    np.maximum(high, events.hlf.max(axis=0)),
                )
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
    """Write a picture of each feature, and all of them as TH1D ``feature/class`` into
    one ROOT file, with the sums of generator weights by class as ``weight_sums``.

    Raises OutputError (73) where the folder cannot be written.
    """
    import hist
    import uproot

    layout = layout_in(folder.parent)
    try:
        output.mkdir(parents=True, exist_ok=True)
        with uproot.recreate(output / HISTOGRAMS_FILE) as file:
            for name, counts in histograms.items():
                for class_name in layout.class_names:
                    file[f"{name}/{class_name}"] = counts[class_name, :]
            totals = {
                name: total
                for name, total in zip(layout.class_names, layout.weight_sums, strict=False)
                if total is not None
            }
            if totals:
                # What histograms are divided by, for a cross section.
                sums = hist.Hist(hist.axis.StrCategory([*totals], name="class"), storage="double")
                sums[:] = np.array([*totals.values()])
                file[WEIGHT_SUMS] = sums
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
            paths[-1].write_bytes(
                png(standalone(chart, heading, "Sum of weights by bin and class, with errors."))
            )
    except OSError as error:
        raise OutputError(
            "histograms cannot be written", where=output, found=error.strerror or str(error)
        ) from None
    return paths


# The folder of a result: metrics, pictures, the report as a page, and the model card,
# beside the model itself.

METRICS_FILE: Final = "metrics.json"
PAGE_FILE: Final = "report.html"
CARD_FILE: Final = "model_card.md"
HISTORY_FILE: Final = "history.json"
_USE: Final = (
    "Classifies collision events that pass the selection of the definition {definition} into {classes}.",
    "It says nothing of events outside of the selection, of other classes, or of data that are simulated otherwise.",
    "Scores are probabilities for classes of equal size, as in the sample; elsewhere weight them by the true shares.",
)


def write_result(folder: Path, evaluation: Evaluation, facts: Mapping[str, str]) -> None:
    """Write the evaluation of the model in ``folder`` beside it.

    ``facts``: what the model card says of the sample. Raises OutputError (73),
    UsageError (2) without the extra plot.
    """
    description = read_description(folder)
    if description["kind"] in NETWORKS:
        facts = {**facts, **_scaling(folder)}
    history = _history(folder)
    title = f"Classifier of events: {description['kind']}"
    pictures = _pictures(evaluation, history)
    card = _card(description, evaluation, facts)
    definition = (layout_in(folder).definition or {}).get("name", "delphes")
    uses = [
        text.format(definition=definition, classes=", ".join(evaluation.titles)) for text in _USE
    ]
    try:
        (folder / METRICS_FILE).write_text(
            json.dumps(evaluation.as_dict(), indent=1) + "\n", encoding="utf-8"
        )
        for name, (heading, about, chart) in pictures.items():
            (folder / f"{name}.png").write_bytes(png(standalone(chart, heading, about)))
        (folder / CARD_FILE).write_text(_card_text(title, card, uses), encoding="utf-8")
        (folder / PAGE_FILE).write_text(
            _page(title, card, evaluation, pictures, uses), encoding="utf-8"
        )
    except OSError as error:
        raise OutputError(
            "the result of a model cannot be written", where=folder, found=error.strerror
        ) from None


def write_history(folder: Path, history: Sequence[Mapping[str, float]]) -> None:
    """Write the losses of a training by round or epoch, for the report."""
    if history:
        (folder / HISTORY_FILE).write_text(
            json.dumps(list(history), indent=1) + "\n", encoding="utf-8"
        )


def _history(folder: Path) -> list[dict[str, float]]:
    try:
        rows = json.loads((folder / HISTORY_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _pictures(
    evaluation: Evaluation, history: Sequence[Mapping[str, float]]
) -> dict[str, tuple[str, str, Chart]]:
    """By the name of a file: heading, what it shows, and the chart."""
    pictures = {
        "roc": ("ROC curves", "Each class against all others.", roc(evaluation)),
        "confusion": (
            "Confusion matrix",
            "Each row is a true class; its events by their most probable class.",
            confusion(evaluation),
        ),
    }
    for label, (name, title) in enumerate(evaluation.classes):
        about = (
            "How probable the model finds the class, for events of each true class; logarithmic."
        )
        chart = score_distribution(evaluation, label)
        pictures[f"scores_{name}"] = (f"Probability of {title}", about, chart)
    if history:
        about = "Loss on the events to learn from, and on those that are held out."
        pictures["learning"] = ("Learning", about, learning_curves(history))
    return pictures


def _scaling(folder: Path) -> dict[str, str]:
    """Name how features are scaled, of which values stand for "not known", and how many
    events have them.
    """
    scalers, names = Scalers.load(folder), layout_in(folder).feature_names
    by_shape: dict[str, list[str]] = {"a line": [], "quantiles": [], "nothing, as constant": []}
    for name, curve in zip(names, scalers.curves or (), strict=False):
        by_shape[curve.shape].append(name)
    sentinels = [
        f"{names[number]} {curve.sentinel:g} ({100 * curve.sentinel_share:.1f} %)"
        for number, curve in scalers.sentinels.items()
    ]
    return {
        **{f"scaled by {shape}": ", ".join(some) for shape, some in by_shape.items() if some},
        "not known": ", ".join(sentinels) or "no feature has a value for it",
    }


def _card(
    description: Mapping[str, Any], evaluation: Evaluation, facts: Mapping[str, str]
) -> dict[str, str]:
    parameters = ", ".join(
        f"{name} {value}" for name, value in description.get("parameters", {}).items()
    )
    areas = ", ".join(
        f"{name} {curve.auc:.4f}"
        for name, curve in zip(evaluation.titles, evaluation.curves, strict=True)
    )
    return {
        "model": f"{description['kind']}: {ABOUT[description['kind']]}",
        "reads": ", ".join(description.get("inputs", [])),
        "parameters": parameters or "none",
        "seed": str(description.get("seed", "")),
        **facts,
        "AUC": f"{evaluation.auc:.4f} (mean of {areas})",
        "accuracy": f"{100 * evaluation.accuracy:.2f} %",
        "recognized": f"{100 * evaluation.diagonal:.2f} % of each class on average",
        "log loss": f"{evaluation.log_loss:.4f}",
        "made by": f"cmsspark {__version__}, {dates.new_run_id()[:8]}",
    }


def _card_text(title: str, card: Mapping[str, str], uses: Sequence[str]) -> str:
    lines = [
        f"# {title}",
        "",
        "| | |",
        "| --- | --- |",
        *(f"| {name} | {text} |" for name, text in card.items()),
    ]
    return "\n".join([*lines, "", "## Use", "", *(f"- {text}" for text in uses)]) + "\n"


def _page(
    title: str,
    card: Mapping[str, str],
    evaluation: Evaluation,
    pictures: Mapping[str, tuple[str, str, Chart]],
    uses: Sequence[str],
) -> str:
    counts = evaluation.confusion.sum(axis=1)
    counted = "events" if counts.dtype.kind == "i" else "sum of weights"
    classes = [
        (name, f"{curve.auc:.4f}", f"{count:,.10g}")
        for name, curve, count in zip(evaluation.titles, evaluation.curves, counts, strict=True)
    ]
    drawn = [
        page_kit.picture(name, heading, about, chart)
        for name, (heading, about, chart) in pictures.items()
    ]
    parts = [
        page_kit.table((), card.items(), (0, 1)),
        page_kit.section("Classes", page_kit.table(("class", "AUC", counted), classes)),
        page_kit.section("Use", page_kit.items(uses)),
        Markup('<div class="pictures">{}</div>').format(Markup("").join(drawn)),
    ]
    return page_kit.document(title, parts)
