"""Compaction: one snapshot of a day's spool replaces many old ones that were confirmed completely.

The spool is the record of what a destination was sent, so nothing is simply deleted: the last form of each document is
written to a snapshot of its own, which counts as confirmed from the moment it exists. Where anything is not confirmed,
every snapshot stays.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from typing import Final

from cmsspark.base import clock
from cmsspark.base.errors import DataError
from cmsspark.publish.batch_log import OPEN, BatchLog, BatchState
from cmsspark.publish.changes import open_changes
from cmsspark.publish.spool import Spool, SpoolWriter, disk_errors

#: The name of the file that marks a snapshot as confirmed completely.
CONFIRMED: Final = "confirmed.json"
#: The manifest's key that says that the snapshot replaces all before it.
REPLACES: Final = "replaces_older"
#: Snapshots of a day that are kept one by one.
KEPT: Final = 5


def compact(spool: Spool, log: BatchLog, limit: int = KEPT) -> bool:
    """Replace the snapshots of a day by one where there are more than ``kept``. True when it did.

    Does nothing while any document is unconfirmed, was refused, or may have been delivered in another form.
    """
    snapshots = spool.snapshots()
    if len(snapshots) <= limit or log.first((*OPEN, BatchState.QUARANTINED)) is not None:
        return False
    if spool.manifest(snapshots[-1]).get("quarantined"):
        return False  # somebody has yet to look at these rows
    snapshot_no = max([*snapshots, *log.snapshots()]) + 1
    writer = SpoolWriter(spool.day_folder, snapshot_no)
    try:
        if not _write(writer, spool, log):
            writer.abandon()
            return False
    except BaseException:
        writer.abandon()
        raise
    finish_compaction(spool, log)
    return True


def _write(writer: SpoolWriter, spool: Spool, log: BatchLog) -> bool:
    newest = spool.manifest(spool.snapshots()[-1])
    with open_changes(writer.folder, newest.get("completeness_id", ""), log, spool) as changes:
        if not changes.knows_all():
            return False
        for body in changes.sent():
            writer.add(body)
        if changes.last_completeness is not None:
            writer.add(changes.last_completeness)
    counts = {"documents": sum(part["count"] for part in writer.parts), "unchanged": 0, "gone": 0}
    about = ("table", "period", "source", "store_run", "completeness_id")
    # The mark comes first: any process that sees this snapshot knows that nothing of it has to be sent.
    mark = writer.folder / CONFIRMED
    with disk_errors(mark):
        mark.write_text(json.dumps({"confirmed_at": clock.iso()}))
    writer.finish({**{key: newest.get(key) for key in about}, "spooled_at": clock.iso(), **counts, REPLACES: True})
    return True


def finish_compaction(spool: Spool, log: BatchLog) -> None:
    """Complete a compaction that was interrupted: the newest replacing snapshot takes the place of all before it."""
    replacing = [snapshot_no for snapshot_no in spool.snapshots() if _replaces(spool, snapshot_no)]
    if not replacing:
        return
    newest = replacing[-1]
    if newest not in log.snapshots():
        log.replace(newest, (replace(batch, state=BatchState.ACKED) for batch in spool.batches(newest)))
    for folder in spool.day_folder.glob("g[0-9]*"):
        if folder.name[1:].isdigit() and int(folder.name[1:]) < newest:
            # A folder without its manifest is no snapshot; if this is interrupted, the next call continues.
            (folder / "manifest.json").unlink(missing_ok=True)
            shutil.rmtree(folder, ignore_errors=True)


def _replaces(spool: Spool, snapshot_no: int) -> bool:
    try:
        return bool(spool.manifest(snapshot_no).get(REPLACES))
    except DataError:
        return False  # reported when something of the snapshot is needed
