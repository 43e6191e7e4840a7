"""The inputs and versions of a run as its manifest has them, and the check that the
inputs did not change.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from cmsspark import __version__
from cmsspark.base.errors import DataError
from cmsspark.base.manifests import COUNTING_RULES
from cmsspark.filesystems.storage import Files, is_local
from cmsspark.settings.settings import Settings
from cmsspark.sources import folders
from cmsspark.sources.folders import DayInput, Dump, Layout
from cmsspark.sources.rses import load_sites, load_storage_sites
from cmsspark.store.staged_runs import STORE_VERSION


def is_all_local(layout: Layout, sources: Iterable[str], fout: str) -> bool:
    """Return whether the inputs and the store are on the local disk, where no JVM is
    needed to list them.
    """
    locations = [location.folder for source in sources for location in layout.locations[source]]
    return all(is_local(location) for location in (*locations, fout))


def check_unchanged(files: Files, inputs: Iterable[DayInput | Dump]) -> None:
    """Raise DataError (65) that names the files that changed since they were listed."""
    changes = folders.changed(files, inputs)
    if changes:
        raise DataError(
            "the input changed while it was read",
            found="; ".join(changes[:5])
            + (f" and {len(changes) - 5} more" if len(changes) > 5 else ""),
            next_step="run it again when no process writes there",
        )


def dumps_summary(dumps: Iterable[Dump]) -> dict[str, dict[str, Any]]:
    """Return the dumps that were chosen, by kind; ``day`` is null for the legacy
    ``current`` folder.
    """
    return {
        dump.kind: {
            "folder": dump.folder,
            "day": dump.day.isoformat() if dump.day else None,
            "distance_days": dump.distance_days,
            "fingerprint": dump.fingerprint(),
        }
        for dump in dumps
    }


def input_summary(source: DayInput) -> dict[str, Any]:
    """Return a stream's input as manifests have it."""
    return {
        "stream": source.stream,
        "form": source.format_name,
        "folder": source.folder,
        "is_tmp": source.is_tmp,
        "files": [[file.path, file.size, file.mtime_ms] for file in source.files],
    }


def settings_summary(settings: Settings, dumps: Iterable[Dump]) -> dict[str, Any]:
    """Return the settings that change counts: the maximum of bytes of a line, exceptions
    to the sites of RSEs, and if the jobs of a site have their data.
    """
    has_rses = any(dump.kind == "rucio" for dump in dumps)
    return {
        "max_line_bytes": settings.max_line_bytes,
        "rses": load_sites(settings.rses) if has_rses else {},
        **({"sites": sites} if (sites := load_storage_sites(settings.sites)) else {}),
    }


def versions() -> dict[str, Any]:
    """Return the versions of code, counting rules, store, Python and Spark (None if
    PySpark is not installed).
    """
    return {
        "cmsspark": __version__,
        "rules": COUNTING_RULES,
        "store": STORE_VERSION,
        "python": sys.version.split()[0],
        "pyspark": _pyspark(),
    }


def _pyspark() -> str | None:
    # Not at import: it takes longer than everything else that `run_spark` imports from here.
    from importlib import metadata

    try:
        return metadata.version("pyspark")
    except metadata.PackageNotFoundError:
        # In YARN's cluster mode Spark ships its Python part as a zip, without metadata.
        with suppress(ImportError):
            from pyspark.version import __version__ as version

            return str(version)
    return None
