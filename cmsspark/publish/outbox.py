"""The outbox: a day's documents spooled, entered in the batch log, and sent to a sink
that confirms.

``<state dir>/outbox/<destination>/<table>/<day>/`` holds the lock, the batch log and
the snapshots of the spool. Whenever a process is killed, what was confirmed stays
confirmed, and at most the batch on its way is sent twice, with the same ids.

The spool is the record of what a destination was sent. Where more snapshots of a day
are confirmed completely than are kept, one with the last form of each document takes
their place; it counts as confirmed from the moment it exists.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from cmsspark.base import dates
from cmsspark.base.errors import DataError, NotReady
from cmsspark.base.private_folders import make_private
from cmsspark.publish.batch_log import (
    FILE_NAME,
    OPEN,
    BatchLog,
    BatchLogDamaged,
    BatchState,
    Spool,
    SpoolWriter,
    disk_errors,
    sync_folder,
)
from cmsspark.publish.comparison import Changes, open_changes
from cmsspark.publish.document_schemas import valid_document, validator_for
from cmsspark.publish.documents import (
    BadDocument,
    DaySummary,
    DocumentSpec,
    canonical,
    completeness,
    completeness_id,
    digest_pairs,
    gone,
)
from cmsspark.settings.secrets import safe_text
from cmsspark.store.run_history import set_aside, sqlite_files

# Makes a snapshot of a day in the spool: the documents that changed since the
# destination was last sent the day.


class SpoolResult(msgspec.Struct, frozen=True):
    """What spooling a day came to, counts of documents. ``snapshot_no`` is None if
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
                "spooled_at": dates.iso(),
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
    for position, row in enumerate(islice(spec.published_rows(rows), limit)):
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


#: The name of the file that marks a snapshot as confirmed completely.
CONFIRMED: Final = "confirmed.json"
#: The manifest's key that says that the snapshot replaces all before it.
REPLACES: Final = "replaces_older"
#: Snapshots of a day that are kept one by one.
KEPT: Final = 5


class Totals(msgspec.Struct, frozen=True):
    """Documents of one or all snapshots by what became of them."""

    confirmed: int = 0
    in_doubt: int = 0
    waiting: int = 0
    stalled: int = 0
    refused: int = 0

    @property
    def open(self) -> int:
        """Documents that are still to be confirmed."""
        return self.in_doubt + self.waiting + self.stalled


class Outbox:
    """The outbox of one day of one table at one destination. Use it inside :meth:`held`."""

    def __init__(self, state_dir: Path, destination: str, table: str, period: str) -> None:
        self.folder = state_dir / "outbox" / destination / table / period
        self.destination = destination
        self.table = table
        self.period = period
        self.spool = Spool(self.folder)
        self.notes: list[str] = []
        self._batch_log: BatchLog | None = None

    @property
    def batch_log(self) -> BatchLog:
        """The open batch log."""
        assert self._batch_log is not None, "use the outbox inside `with outbox.held():`"
        return self._batch_log

    @contextmanager
    def held(self) -> Iterator[Outbox]:
        """Yield the outbox, locked for this process, with its batch log open and
        consistent after any crash.

        Raises NotReady (75) that names the holder when another process holds it.
        """
        with disk_errors(self.folder):
            make_private(self.folder)
        with _locked(self.folder / "lock"):
            self.spool.remove_leftovers()
            self._batch_log = self._open_log()
            try:
                yield self
            finally:
                self._batch_log.close()
                self._batch_log = None

    def move_to(self, target: Outbox) -> None:
        """Make this outbox that of another destination, which counts as sent what this
        one was sent.

        Raises DataError (65) if the other destination has documents of the day,
        NotReady (75) where one of the two is in use.
        """
        for folder in (self.folder, target.folder):
            with disk_errors(folder):
                make_private(folder)
        with _locked(self.folder / "lock"), _locked(target.folder / "lock"):
            if target.spool.snapshots():
                raise DataError(
                    "both destinations have documents of this day",
                    where=target.folder,
                    found=f"{len(target.spool.snapshots())} snapshots",
                    next_step="publish the day again, then cmsspark outbox discard for the old destination",
                )
            with disk_errors(target.folder):
                shutil.rmtree(target.folder)
                os.rename(self.folder, target.folder)

    def _open_log(self) -> BatchLog:
        path = self.folder / FILE_NAME
        if not path.exists():
            return self._rebuilt(path, "the batch log was missing")
        try:
            log = BatchLog(path)
            log.check()
        except BatchLogDamaged as error:
            if "another version" in error.problem:
                raise
            return self._rebuilt(path, f"the batch log was damaged ({error.found})")
        finish_compaction(self.spool, log)
        for snapshot_no in sorted(set(self.spool.snapshots()) - log.snapshots()):
            # Spooled completely, but the process ended before the log knew of it: none
            # of it was ever sent.
            log.add(snapshot_no, self.spool.batches(snapshot_no))
        log.recover()
        return log

    def rebuild(self) -> None:
        """Make the batch log anew from the spool: what is not known to be confirmed
        becomes in doubt.
        """
        self.batch_log.close()
        self._batch_log = self._rebuilt(self.folder / FILE_NAME, "a new batch log was requested")

    def _rebuilt(self, path: Path, reason: str) -> BatchLog:
        set_aside(path, BatchLog.label)
        # Written aside: what an incomplete log does not list would count as never sent.
        aside = path.with_suffix(".new")
        for old in sqlite_files(aside):
            old.unlink()
        with closing(BatchLog(aside)) as log:
            finish_compaction(self.spool, log)
            missing = [
                snapshot_no
                for snapshot_no in self.spool.snapshots()
                if snapshot_no not in log.snapshots()
            ]
            for snapshot_no in missing:
                confirmed = (self.spool.folder(snapshot_no) / CONFIRMED).exists()
                state = BatchState.ACKED if confirmed else BatchState.IN_DOUBT
                log.add(
                    snapshot_no,
                    (
                        replace(
                            batch,
                            number=0,
                            state=state,
                            attempts=0,
                            doubtful=state == BatchState.IN_DOUBT,
                        )
                        for batch in self.spool.batches(snapshot_no)
                    ),
                )
        for new in reversed(sqlite_files(aside)):  # the database last: its name is what counts
            new.rename(path.with_name(new.name.replace(aside.name, path.name)))
        if missing:
            self.notes.append(
                f"{reason}; it was rebuilt from the spool, and what may have been sent is sent again"
            )
        return BatchLog(path)

    def fill(
        self,
        spec: DocumentSpec,
        rows: Iterable[Mapping[str, Any]],
        manifest: Mapping[str, Any],
        *,
        source: str,
        limit: int | None = None,
        resend_all: bool = False,
    ) -> SpoolResult:
        """Spool the day's documents that changed since the destination was last sent them.

        ``manifest``: of the stored run. ``source`` names what the documents are made
        from: when the newest snapshot has the same source and is not completely sent,
        that snapshot is resumed. ``limit``: only so many rows, without any statement on
        what is missing. ``resend_all``: also the documents that have not changed.
        """
        unfinished = self.unfinished()
        if unfinished is not None and self.spool.manifest(unfinished).get("source") == source:
            return SpoolResult.from_manifest(
                unfinished, self.spool.manifest(unfinished), resumed=True
            )
        result = spool_day(
            self.spool,
            self.batch_log,
            spec,
            rows,
            manifest,
            source=source,
            limit=limit,
            resend_all=resend_all,
        )
        if result.snapshot_no is not None:
            self.batch_log.add(result.snapshot_no, self.spool.batches(result.snapshot_no))
        return result

    # -- what there is
    # -----------------------------------------------------------------------------------------

    def unfinished(self) -> int | None:
        """Return the newest snapshot, where some of it is still to be confirmed."""
        batch = self.batch_log.first(OPEN)
        return None if batch is None else batch.snapshot_no

    def reopen_refused(self) -> int:
        """Make documents that the destination refused ready again. Returns how many.

        Only those of the newest snapshot: it has taken the place of all others.
        """
        return self.batch_log.reopen_quarantined(max(self.batch_log.snapshots(), default=0))

    def totals(self, snapshot_no: int | None = None) -> Totals:
        """Return documents by what became of them, of one snapshot or of all."""
        return sum_totals(self.batch_log, snapshot_no)

    def last_reason(self) -> str:
        """Return why a batch waits or was refused, in the destination's words; empty
        if all are confirmed.
        """
        for state in (
            BatchState.STALLED,
            BatchState.IN_DOUBT,
            BatchState.READY,
            BatchState.QUARANTINED,
        ):
            if reasons := [reason for _, reason in self.batch_log.reasons(state) if reason]:
                return reasons[-1]
        return ""

    def note_confirmed(self, snapshot_no: int) -> None:
        """Leave a mark in the spool that a whole snapshot was confirmed, in case the
        batch log is ever lost.
        """
        folder = self.spool.folder(snapshot_no)
        if not (folder / CONFIRMED).exists() and self._is_all_confirmed():
            _mark_confirmed(folder)

    def _is_all_confirmed(self) -> bool:
        return self.batch_log.first((*OPEN, BatchState.QUARANTINED)) is None

    # -- compaction
    # --------------------------------------------------------------------------------------------

    def compact(self) -> bool:
        """Replace the snapshots of a day by one where there are more than :data:`KEPT`.
        True when it did.

        Does nothing while any document is unconfirmed, was refused, or may have been
        delivered in another form.
        """
        snapshots = self.spool.snapshots()
        if len(snapshots) <= KEPT or not self._is_all_confirmed():
            return False
        if self.spool.manifest(snapshots[-1]).get("quarantined"):
            return False  # somebody has yet to look at these rows
        writer = SpoolWriter(self.folder, max([*snapshots, *self.batch_log.snapshots()]) + 1)
        try:
            if not self._write_compacted(writer):
                writer.abandon()
                return False
        except BaseException:
            writer.abandon()
            raise
        finish_compaction(self.spool, self.batch_log)
        return True

    def _write_compacted(self, writer: SpoolWriter) -> bool:
        newest = self.spool.manifest(self.spool.snapshots()[-1])
        completeness_id = newest.get("completeness_id", "")
        with open_changes(writer.folder, completeness_id, self.batch_log, self.spool) as changes:
            if not changes.knows_all():
                return False
            for body in changes.sent():
                writer.add(body)
            if changes.last_completeness is not None:
                writer.add(changes.last_completeness)
        counts = {
            "documents": sum(part["count"] for part in writer.parts),
            "unchanged": 0,
            "gone": 0,
        }
        about = ("table", "period", "source", "store_run", "completeness_id")
        # The mark comes first: any process that sees this snapshot knows that nothing
        # of it has to be sent.
        _mark_confirmed(writer.folder)
        writer.finish(
            {
                **{key: newest.get(key) for key in about},
                "spooled_at": dates.iso(),
                **counts,
                REPLACES: True,
            }
        )
        return True


def finish_compaction(spool: Spool, log: BatchLog) -> None:
    """Complete a compaction that was interrupted: the newest replacing snapshot takes
    the place of all before it.
    """
    replacing = [snapshot_no for snapshot_no in spool.snapshots() if _replaces(spool, snapshot_no)]
    if not replacing:
        return
    newest = replacing[-1]
    if newest not in log.snapshots():
        log.replace(
            newest, (replace(batch, state=BatchState.ACKED) for batch in spool.batches(newest))
        )
    for folder in spool.day_folder.glob("g[0-9]*"):
        if folder.name[1:].isdigit() and int(folder.name[1:]) < newest:
            # A folder without its manifest is no snapshot; if this is interrupted, the
            # next call continues.
            (folder / "manifest.json").unlink(missing_ok=True)
            shutil.rmtree(folder, ignore_errors=True)


def _replaces(spool: Spool, snapshot_no: int) -> bool:
    try:
        return bool(spool.manifest(snapshot_no).get(REPLACES))
    except DataError:
        return False  # reported when something of the snapshot is needed


def _mark_confirmed(folder: Path) -> None:
    mark = folder / CONFIRMED
    with disk_errors(mark):
        mark.write_text(json.dumps({"confirmed_at": dates.iso()}))
        sync_folder(folder)


def sum_totals(log: BatchLog, snapshot_no: int | None = None) -> Totals:
    """Return documents of a batch log by what became of them, of one snapshot or of all."""
    counts = log.counts(snapshot_no)

    def documents(*states: BatchState) -> int:
        return sum(counts.get(state, (0, 0))[1] for state in states)

    return Totals(
        confirmed=documents(BatchState.ACKED),
        in_doubt=documents(BatchState.IN_DOUBT, BatchState.SENDING),
        waiting=documents(BatchState.READY),
        stalled=documents(BatchState.STALLED),
        refused=documents(BatchState.QUARANTINED),
    )


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Yield an advisory lock that ends with its process, however that ends."""
    with disk_errors(path):
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = (
                safe_text(os.pread(handle, 200, 0).decode(errors="replace")) or "another process"
            )
            raise NotReady(
                "another publisher works on this day",
                where=path.parent,
                found=holder,
                next_step="wait for it to end, then run the same command again",
            ) from None
        with disk_errors(path):
            os.ftruncate(handle, 0)
            now = dates.iso()
            os.pwrite(
                handle,
                f"process {os.getpid()} on {socket.gethostname()} since {now}\n".encode(),
                0,
            )
        yield
    finally:
        os.close(handle)
