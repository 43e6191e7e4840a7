"""Makes a snapshot of a day in the spool: the documents that changed since the
destination was last sent the day.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from cmsspark.base import clock
from cmsspark.publish.batch_log import BatchLog
from cmsspark.publish.changes import Changes, open_changes
from cmsspark.publish.completeness import DaySummary, completeness, completeness_id, digest_pairs
from cmsspark.publish.documents import BadDocument, DocumentSpec, canonical, gone
from cmsspark.publish.spool import Spool, SpoolWriter
from cmsspark.publish.validate import valid_document, validator_for


@dataclass(frozen=True)
class SpoolResult:
    """What spooling a day came to, counts of documents. ``snapshot_no`` is None where
    nothing has changed.
    """

    snapshot_no: int | None
    documents: int = 0
    unchanged: int = 0
    gone: int = 0
    quarantined: int = 0
    left_out: int = 0
    resumed: bool = False

    @classmethod
    def from_manifest(
        cls, snapshot_no: int, manifest: Mapping[str, Any], *, resumed: bool = False
    ) -> SpoolResult:
        """Return the counts of a snapshot's manifest."""
        counts = {name: manifest.get(name, 0) for name in _COUNTS}
        return cls(snapshot_no, **counts, resumed=resumed)


_COUNTS: Final = ("documents", "unchanged", "gone", "quarantined", "left_out")


def spool_day(
    spool: Spool,
    log: BatchLog,
    spec: DocumentSpec,
    rows: Iterable[Mapping[str, Any]],
    manifest: Mapping[str, Any],
    *,
    source: str,
    limit: int | None = None,
    resend_all: bool = False,
) -> SpoolResult:
    """Write a new snapshot. Arguments and errors are those of
    :meth:`cmsspark.publish.outbox.Outbox.fill`.
    """
    snapshot_no = max([0, *spool.snapshots(), *log.snapshots()]) + 1
    writer = SpoolWriter(spool.day_folder, snapshot_no)
    try:
        with open_changes(writer.folder, completeness_id(spec), log, spool) as changes:
            counts = _write(writer, changes, spec, rows, manifest, limit, resend_all)
        if not writer.parts and not writer.quarantined:
            writer.abandon()
            return SpoolResult(None, unchanged=counts["unchanged"], left_out=counts["left_out"])
        complete = writer.finish(
            {
                "table": spec.table.name,
                "period": spec.period,
                "source": source,
                "store_run": manifest.get("rows_of") or manifest.get("run"),
                "completeness_id": completeness_id(spec),
                "spooled_at": clock.iso(),
                **counts,
            }
        )
    except BaseException:
        writer.abandon()
        raise
    return SpoolResult.from_manifest(snapshot_no, complete)


def _write(
    writer: SpoolWriter,
    changes: Changes,
    spec: DocumentSpec,
    rows: Iterable[Mapping[str, Any]],
    manifest: Mapping[str, Any],
    limit: int | None,
    resend_all: bool,
) -> dict[str, int]:
    counts = {"documents": 0, "unchanged": 0, "gone": 0, "left_out": 0}
    for position, row in enumerate(islice(rows, limit)):
        if spec.leaves_out(row):
            counts["left_out"] += 1
            continue
        try:
            fields, body = valid_document(spec, row)
        except BadDocument as error:
            writer.quarantine(position, str(error), row)
            continue
        if changes.is_new(fields["metadata"]["_id"], body) or resend_all:
            writer.add(body)
            counts["documents"] += 1
        else:
            counts["unchanged"] += 1
    if limit is None:
        counts["gone"] = _write_end(
            writer, changes, spec, manifest, resend_all, counts["left_out"]
        )
        counts["documents"] += counts["gone"]
    return counts


def _write_end(
    writer: SpoolWriter,
    changes: Changes,
    spec: DocumentSpec,
    manifest: Mapping[str, Any],
    resend_all: bool,
    left_out: int,
) -> int:
    """Write vanished documents once more with zero measures, and the completeness
    document if it changed.

    Returns the number of vanished documents.
    """
    vanished = 0
    for body in changes.vanished(resend_all):
        writer.add(canonical(gone(spec, json.loads(body))))
        vanished += 1
    present, digest = digest_pairs(changes.present())
    gone_count, gone_ids = changes.gone()
    shown = None if spec.has_user_datasets else left_out
    summary = DaySummary(present, digest, gone_ids, gone_count, writer.quarantined, shown)
    last = completeness(spec, summary, manifest)
    validator_for("completeness").check(last)
    body = canonical(last)
    if changes.is_new_completeness(body) or resend_all:
        writer.add(body)
    return vanished
