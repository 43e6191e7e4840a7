"""What a manifest says of a run's inputs and versions, and the check that the inputs stayed as they were."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from cmsspark import __version__
from cmsspark.errors import DataError
from cmsspark.sources import folders
from cmsspark.sources.folders import DayInput, Dump, Layout
from cmsspark.storage import Files, is_local
from cmsspark.store.results import STORE_VERSION


def is_all_local(layout: Layout, sources: Iterable[str], fout: str) -> bool:
    """Whether the inputs and the store lie on the local disk, so that they are found without a JVM."""
    locations = [place.folder for source in sources for place in layout.locations[source]]
    return all(is_local(location) for location in (*locations, fout))


def check_unchanged(files: Files, inputs: Iterable[DayInput | Dump]) -> None:
    """Raises DataError (65) that tells what changed since the list of files was fixed."""
    told = folders.changed(files, inputs)
    if told:
        raise DataError(
            "the input changed while it was read",
            found="; ".join(told[:5]) + (f" and {len(told) - 5} more" if len(told) > 5 else ""),
            next_step="run it again when nothing writes there any more",
        )


def dumps_summary(dumps: Iterable[Dump]) -> dict[str, dict[str, Any]]:
    """The dumps that were chosen, by kind; ``day`` is null for the legacy ``current`` folder."""
    return {
        dump.kind: {
            "folder": dump.folder,
            "day": dump.day.isoformat() if dump.day else None,
            "distance_days": dump.distance_days,
            "fingerprint": dump.fingerprint(),
        }
        for dump in dumps
    }


def input_summary(one: DayInput) -> dict[str, Any]:
    """A stream's input as manifests have it."""
    return {
        "stream": one.stream,
        "form": one.format_name,
        "folder": one.folder,
        "is_tmp": one.is_tmp,
        "files": [[file.path, file.size, file.mtime_ms] for file in one.files],
    }


def versions() -> dict[str, Any]:
    """Of code, store, Python and Spark."""
    return {
        "cmsspark": __version__,
        "store": STORE_VERSION,
        "python": sys.version.split()[0],
        "pyspark": _pyspark(),
    }


def _pyspark() -> str:
    # Not at import: it takes longer than all else that `run_spark` imports from here.
    from importlib import metadata

    try:
        return metadata.version("pyspark")
    except metadata.PackageNotFoundError:
        # In YARN's cluster mode Spark brings its Python part along as a zip, without metadata.
        from pyspark.version import __version__ as found

        return str(found)
