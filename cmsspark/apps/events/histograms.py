"""Histograms of features by class, with weights: as pictures and as a ROOT file that
other programs read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from cmsspark.apps.events.drawings import histogram
from cmsspark.apps.events.layout import EventLayout, layout_in
from cmsspark.apps.events.parts import event_groups, sample_parts
from cmsspark.base.errors import OutputError, UsageError
from cmsspark.pages.png import png
from cmsspark.pages.svg import standalone

HISTOGRAMS_FILE: Final = "histograms.root"
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
    one ROOT file.

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
            paths[-1].write_bytes(
                png(standalone(chart, heading, "Sum of weights by bin and class, with errors."))
            )
    except OSError as error:
        raise OutputError(
            "histograms cannot be written", where=output, found=error.strerror or str(error)
        ) from None
    return paths
