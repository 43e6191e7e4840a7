"""Density: how many records of a log count for each megabyte of its text, compared with the days before.

A loss that no count of lines shows, such as many records in one line, makes a log less dense.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from cmsspark.base.manifests import Manifest
from cmsspark.counting.drift import ENOUGH
from cmsspark.counting.reconciliation import TRAILING_DAYS_NEEDED

#: The usual range: from this share of the least density of the days before to this multiple of the largest.
LEAST_SHARE: Final = 0.8
LARGEST_FACTOR: Final = 1.25
#: What the entries of a manifest's ``drift`` call it.
FIELD: Final = "counted records for each MB"
CHANGE: Final = "unusual"

#: The entry ``files_read`` of a manifest: by stream, the records of each file.
FilesRead = Mapping[str, Sequence[Mapping[str, Any]]]


def measure_density(files: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the counted records for each MB of text; None for a log of few records."""
    size = sum(file["content_bytes"] for file in files)
    if not size or sum(file["records_read"] for file in files) < ENOUGH:
        return None
    return float(sum(file["records_counted"] for file in files) / size * 1e6)


def unusual(
    files_read: FilesRead, formats: Mapping[str, str], before: Sequence[Manifest]
) -> tuple[dict[str, list[dict[str, Any]]], list[str]]:
    """Return entries for ``drift`` of the manifest, by stream, and warnings. ``formats``: of each stream of the day.

    A stream is compared with the days before on which it had the same format; fewer than three say nothing.
    """
    entries, warnings = {}, []
    for stream, files in files_read.items():
        now = measure_density(files)
        earlier = _earlier(stream, formats.get(stream), before)
        if now is None or len(earlier) < TRAILING_DAYS_NEEDED:
            continue
        least, largest = min(earlier), max(earlier)
        if LEAST_SHARE * least <= now <= LARGEST_FACTOR * largest:
            continue
        text = f"{now:,.1f}, {least:,.1f} to {largest:,.1f} on the {len(earlier)} days before"
        records = sum(file["records_counted"] for file in files)
        entries[stream] = [
            {"field": FIELD, "form": formats.get(stream, ""), "change": CHANGE, "example": text, "records": records}
        ]
        warnings.append(f"{stream}: {FIELD} of text: {text}; are records missing, or several in a line?")
    return entries, warnings


def _earlier(stream: str, format_name: str | None, before: Sequence[Manifest]) -> list[float]:
    densities = []
    for manifest in before:
        source = manifest.find_input(stream)
        files = (manifest.document.get("files_read") or {}).get(stream, ())
        if source is not None and source.format_name == format_name and (density := measure_density(files)) is not None:
            densities.append(density)
    return densities
