"""The completeness document ends each publication: how many documents the day has,
their digest, the reconciliation.

It names no dataset, site or person. A reader of the dashboards can tell from it whether
the whole day was delivered.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from cmsspark.base.access import JOB_BINS, UNMATCHED_BINS, UNMATCHED_JOB_BINS
from cmsspark.publish.documents import DocumentSpec, document_id
from cmsspark.sources.registry import STREAMS, STREAMS_BY_NAME, STREAMS_OF_JOBS

#: Added to the table's type: completeness documents have an index of their own kind.
SUFFIX: Final = "_completeness"
#: The document stays well under MONIT's sizes; ``gone_count`` is the whole number.
MAX_GONE_LISTED: Final = 1_000
#: The bins of a stream of accesses, and of a stream of jobs, beside the parts of ``unmatched``.
BINS: Final = ("read", "matched", "malformed", "out_of_day", "write_only")
BINS_OF_JOBS: Final = ("read", "matched", "malformed", "out_of_day", *JOB_BINS)


@dataclass(frozen=True)
class DaySummary:
    """The totals of a day's documents. Counts are of documents. ``left_out``: rows,
    None if none are left out.
    """

    documents: int
    digest: str
    gone: tuple[str, ...]
    gone_count: int
    quarantined: int
    left_out: int | None = None


def completeness_id(spec: DocumentSpec) -> str:
    """Return the ``_id`` of the day's completeness document."""
    return document_id(spec.table.name + SUFFIX, spec.period, [])


def completeness(
    spec: DocumentSpec, summary: DaySummary, manifest: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the completeness document, a pure function of the day's documents and of
    the stored run's manifest.
    """
    body: dict[str, Any] = {
        "table": spec.table.name,
        "period": spec.period,
        "document_count": summary.documents,
        "digest": summary.digest,
        "gone_count": summary.gone_count,
        "gone_ids": list(summary.gone),
        "quarantined_count": summary.quarantined,
        "is_partial": bool(manifest.get("partial")),
        # How many, and no names: a path may hold one.
        "damaged_file_count": len(manifest.get("damaged") or ()),
        "timestamp": spec.timestamp,
        "metadata": {**spec.metadata(completeness_id(spec)), "type": spec.type + SUFFIX},
    }
    if summary.left_out is not None:
        body["left_out_count"] = summary.left_out
    bins = _reconciliation(manifest.get("reconciliation"))
    if bins:
        body["reconciliation"] = bins
    return body


def select_bins(stream: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the bins of a stream, and the parts of ``unmatched``."""
    if stream in STREAMS_OF_JOBS:
        return BINS_OF_JOBS, UNMATCHED_JOB_BINS
    return (*BINS, *STREAMS_BY_NAME[stream].bins), UNMATCHED_BINS


def digest_pairs(pairs: Iterable[tuple[bytes, bytes]]) -> tuple[int, str]:
    """Return the number of documents and their digest: sha256 over their ids and
    digests, in the order of ids.
    """
    total, count = hashlib.sha256(), 0
    for identity, digest in pairs:
        total.update(identity)
        total.update(digest)
        count += 1
    return count, total.hexdigest()


def _reconciliation(streams: Any) -> dict[str, Any]:
    """Return only the numbers with known names: a manifest may hold more than may be published."""
    result: dict[str, Any] = {}
    if not isinstance(streams, Mapping):
        return result
    for stream in STREAMS:
        bins = streams.get(stream)
        if not isinstance(bins, Mapping):
            continue
        unmatched = bins.get("unmatched")
        names, parts = select_bins(stream)
        result[stream] = {name: bins[name] for name in names if type(bins.get(name)) is int}
        if isinstance(unmatched, Mapping):
            result[stream]["unmatched"] = {
                name: unmatched[name] for name in parts if type(unmatched.get(name)) is int
            }
    return result
