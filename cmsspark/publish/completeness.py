"""The document that ends each publication: how many documents the day has, their digest, and how records became them.

It names no dataset, site or person. A reader of the dashboards can tell from it whether all of a day has arrived.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from cmsspark.access import UNMATCHED_BINS
from cmsspark.publish.documents import Shape, document_id
from cmsspark.sources.registry import STREAMS

#: Added to the table's type: completeness documents have an index of their own kind.
SUFFIX: Final = "_completeness"
#: The document stays well under MONIT's sizes; ``gone_count`` is the whole number.
MAX_GONE_LISTED: Final = 1_000
#: The bins of a stream that are told, beside the parts of ``unmatched``.
BINS: Final = ("read", "matched", "malformed", "out_of_day", "write_only")


@dataclass(frozen=True)
class Whole:
    """What a day's documents are, all together. Counts are of documents."""

    documents: int
    digest: str
    gone: tuple[str, ...]
    gone_count: int
    quarantined: int


def completeness_id(shape: Shape) -> str:
    """The ``_id`` of the day's completeness document."""
    return document_id(shape.table.name + SUFFIX, shape.period, [])


def completeness(shape: Shape, whole: Whole, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The completeness document, a pure function of the day's documents and of the stored run's manifest."""
    body: dict[str, Any] = {
        "table": shape.table.name,
        "period": shape.period,
        "document_count": whole.documents,
        "digest": whole.digest,
        "gone_count": whole.gone_count,
        "gone_ids": list(whole.gone),
        "quarantined_count": whole.quarantined,
        "is_partial": bool(manifest.get("partial")),
        # How many, and no names: a path may hold one.
        "damaged_file_count": len(manifest.get("damaged") or ()),
        "timestamp": shape.timestamp,
        "metadata": {**shape.metadata(completeness_id(shape)), "type": shape.type + SUFFIX},
    }
    bins = _reconciliation(manifest.get("reconciliation"))
    if bins:
        body["reconciliation"] = bins
    return body


def digest_of(pairs: Iterable[tuple[bytes, bytes]]) -> str:
    """The digest of a set of documents: sha256 over their ids and digests, in the order of ids."""
    total = hashlib.sha256()
    for identity, digest in pairs:
        total.update(identity)
        total.update(digest)
    return total.hexdigest()


def _reconciliation(found: Any) -> dict[str, Any]:
    """Only the numbers that are known by name: a manifest may carry more than should leave."""
    result: dict[str, Any] = {}
    if not isinstance(found, Mapping):
        return result
    for stream in STREAMS:
        bins = found.get(stream)
        if not isinstance(bins, Mapping):
            continue
        unmatched = bins.get("unmatched")
        result[stream] = {name: bins[name] for name in BINS if type(bins.get(name)) is int}
        if isinstance(unmatched, Mapping):
            result[stream]["unmatched"] = {
                name: unmatched[name] for name in UNMATCHED_BINS if type(unmatched.get(name)) is int
            }
    return result
