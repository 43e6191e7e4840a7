"""The folder of a result: metrics, pictures, the report as a page, and the model card,
beside the model itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from markupsafe import Markup

from cmsspark import __version__
from cmsspark.apps.events import evaluation as events_evaluation
from cmsspark.apps.events.evaluation import Evaluation
from cmsspark.apps.events.layout import layout_in
from cmsspark.apps.events.models import ABOUT, NETWORKS, read_description
from cmsspark.apps.events.scalers import Scalers
from cmsspark.base import dates
from cmsspark.base.errors import OutputError
from cmsspark.pages import layout
from cmsspark.pages.svg import Chart, png, standalone

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
        facts = {**facts, "not known": _sentinels(folder)}
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
        "roc": ("ROC curves", "Each class against all others.", events_evaluation.roc(evaluation)),
        "confusion": (
            "Confusion matrix",
            "Each row is a true class; its events by their most probable class.",
            events_evaluation.confusion(evaluation),
        ),
    }
    for label, (name, title) in enumerate(evaluation.classes):
        about = (
            "How probable the model finds the class, for events of each true class; logarithmic."
        )
        chart = events_evaluation.score_distribution(evaluation, label)
        pictures[f"scores_{name}"] = (f"Probability of {title}", about, chart)
    if history:
        about = "Loss on the events to learn from, and on those that are held out."
        pictures["learning"] = ("Learning", about, events_evaluation.learning_curves(history))
    return pictures


def _sentinels(folder: Path) -> str:
    """Name the features of which values stand for "not known", and how many events have them."""
    scalers, names = Scalers.load(folder), layout_in(folder).feature_names
    return (
        ", ".join(
            f"{names[number]} {curve.sentinel:g} ({100 * curve.sentinel_share:.1f} %)"
            for number, curve in scalers.sentinels.items()
        )
        or "no feature has a value for it"
    )


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
        layout.picture(name, heading, about, chart)
        for name, (heading, about, chart) in pictures.items()
    ]
    parts = [
        layout.table((), card.items(), (0, 1)),
        layout.section("Classes", layout.table(("class", "AUC", counted), classes)),
        layout.section("Use", layout.items(uses)),
        Markup('<div class="pictures">{}</div>').format(Markup("").join(drawn)),
    ]
    return layout.document(title, parts)
