"""The outbox: a day's documents spooled, entered in the ledger, and drained into a sink that confirms.

``<state dir>/outbox/<destination>/<table>/<day>/`` holds the lock, the ledger and the generations of the spool.
Whatever is killed at whatever moment, what was confirmed stays confirmed, and at most the batch on the way is sent
twice, with the same ids.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cmsspark import clock
from cmsspark.errors import NotReady
from cmsspark.publish.changes import Changes
from cmsspark.publish.completeness import Whole, completeness, completeness_id, digest_of
from cmsspark.publish.documents import MAX_BYTES, BadDocument, Shape, canonical, document, gone
from cmsspark.publish.ledger import OPEN, Batch, Ledger, LedgerDamaged, State
from cmsspark.publish.prune import CONFIRMED, prune, replaced_by
from cmsspark.publish.spool import Spool, SpoolWriter, sync_folder, writing
from cmsspark.publish.validate import validator_for


@dataclass(frozen=True)
class Spooled:
    """What spooling a day came to. ``generation`` is None where nothing has changed since it was published."""

    generation: int | None
    documents: int = 0
    unchanged: int = 0
    gone: int = 0
    quarantined: int = 0
    resumed: bool = False


@dataclass(frozen=True)
class Totals:
    """Documents of one or all generations by what became of them."""

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
        self.table = table
        self.period = period
        self.spool = Spool(self.folder)
        self.notes: list[str] = []
        self._ledger: Ledger | None = None

    @property
    def ledger(self) -> Ledger:
        """The open ledger."""
        assert self._ledger is not None, "use the outbox inside `with outbox.held():`"
        return self._ledger

    @contextmanager
    def held(self) -> Iterator[Outbox]:
        """The outbox, locked for this process, its ledger open, and what a crash left in order.

        Raises NotReady (75) that names the holder when another process has it.
        """
        with writing(self.folder):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(self.folder / "lock"):
            self._ledger = self._open_ledger()
            try:
                yield self
            finally:
                self._ledger.close()
                self._ledger = None

    def _open_ledger(self) -> Ledger:
        path = self.folder / "ledger.sqlite"
        if not path.exists():
            return self._rebuilt(path, "the ledger was gone")
        try:
            ledger = Ledger(path)
            ledger.check()
        except LedgerDamaged as error:
            if "another version" in error.wanted:
                raise
            return self._rebuilt(path, f"the ledger was damaged ({error.found})")
        replaced_by(self.spool, ledger)
        for generation in sorted(set(self.spool.generations()) - ledger.generations()):
            # Spooled whole, and the process ended before the ledger knew: none of it was ever sent.
            ledger.add(generation, self.spool.batches(generation))
        ledger.recover()
        return ledger

    def rebuild(self) -> None:
        """Make the ledger anew from the spool: what is not known to be confirmed is in doubt."""
        self.ledger.close()
        self._ledger = self._rebuilt(self.folder / "ledger.sqlite", "a new ledger was asked for")

    def _rebuilt(self, path: Path, why: str) -> Ledger:
        stamp = clock.stamp()
        for old in _files(path):
            old.rename(old.with_name(f"{old.name}.damaged-{stamp}"))
        # Made aside: of what half a ledger does not know it would be said that it was never sent.
        aside = path.with_suffix(".new")
        for old in _files(aside):
            old.unlink()
        with closing(Ledger(aside)) as ledger:
            replaced_by(self.spool, ledger)
            generations = [found for found in self.spool.generations() if found not in ledger.generations()]
            for generation in generations:
                known = (self.spool.folder(generation) / CONFIRMED).exists()
                state = State.ACKED if known else State.IN_DOUBT
                ledger.add(generation, (_with_state(batch, state) for batch in self.spool.batches(generation)))
        for made in reversed(_files(aside)):  # the database last, as what counts
            made.rename(path.with_name(made.name.replace(aside.name, path.name)))
        if generations:
            self.notes.append(f"{why}; it was rebuilt from the spool, and what may have been sent is sent again")
        return Ledger(path)

    # -- filling -----------------------------------------------------------------------------------------------

    def fill(
        self,
        shape: Shape,
        rows: Iterable[Mapping[str, Any]],
        manifest: Mapping[str, Any],
        *,
        source: str,
        limit: int | None = None,
    ) -> Spooled:
        """Spool what of the day's documents has changed since its destination was last given them.

        ``manifest``: of the stored run; ``source`` names what the documents are made from: when the newest generation
        has the same and is not all sent, that one goes on. ``limit``: only so many rows, without a word on what is
        missing.
        """
        unfinished = self.unfinished()
        if unfinished is not None and self.spool.manifest(unfinished).get("source") == source:
            found = self.spool.manifest(unfinished)
            return Spooled(unfinished, **{name: found[name] for name in _COUNTS}, resumed=True)
        generation = max([0, *self.spool.generations(), *self.ledger.generations()]) + 1
        writer = SpoolWriter(self.folder, generation)
        try:
            changes = Changes(writer.folder / "changes.sqlite", completeness_id(shape))
            try:
                changes.load(self.ledger, self.spool)
                spooled = self._write(writer, changes, shape, rows, manifest, limit)
            finally:
                changes.close()
            (writer.folder / "changes.sqlite").unlink()
            if not writer.parts and not writer.quarantined:
                writer.abandon()
                return Spooled(None, unchanged=spooled["unchanged"])
            whole = writer.finish(
                {
                    "table": self.table,
                    "period": self.period,
                    "source": source,
                    "store_run": manifest.get("run"),
                    "completeness_id": completeness_id(shape),
                    "spooled_at": clock.iso(),
                    **spooled,
                }
            )
        except BaseException:
            writer.abandon()
            raise
        self.ledger.add(generation, self.spool.batches(generation))
        return Spooled(generation, **{name: whole[name] for name in _COUNTS})

    def _write(
        self,
        writer: SpoolWriter,
        changes: Changes,
        shape: Shape,
        rows: Iterable[Mapping[str, Any]],
        manifest: Mapping[str, Any],
        limit: int | None,
    ) -> dict[str, int]:
        counts = {"documents": 0, "unchanged": 0, "gone": 0}
        validator = validator_for(self.table)
        for position, row in enumerate(rows):
            if limit is not None and position >= limit:
                break
            try:
                made = document(shape, row)
                validator.check(made)
                body = canonical(made)
                _check_size(body)
            except BadDocument as error:
                writer.refuse(position, str(error), row)
                continue
            if changes.is_new(made["metadata"]["_id"], body):
                writer.add(body)
                counts["documents"] += 1
            else:
                counts["unchanged"] += 1
        if limit is None:
            counts["gone"] = self._write_end(writer, changes, shape, manifest)
            counts["documents"] += counts["gone"]
        return counts

    def _write_end(self, writer: SpoolWriter, changes: Changes, shape: Shape, manifest: Mapping[str, Any]) -> int:
        """What vanished, once more with zero measures, and the completeness document where it says something new."""
        vanished = 0
        for former in changes.vanished():
            body = self.spool.piece(former.generation, former.part, former.offset, former.length)
            writer.add(canonical(gone(shape, json.loads(body))))
            vanished += 1
        present = 0

        def counted() -> Iterator[tuple[bytes, bytes]]:
            nonlocal present
            for pair in changes.present():
                present += 1
                yield pair

        digest = digest_of(counted())
        gone_count, listed = changes.gone()
        last = completeness(shape, Whole(present, digest, listed, gone_count, writer.quarantined), manifest)
        validator_for("completeness").check(last)
        body = canonical(last)
        if changes.is_last_word(body):
            writer.add(body)
        return vanished

    # -- what there is -----------------------------------------------------------------------------------------

    def unfinished(self) -> int | None:
        """The newest generation, where some of it is still to be confirmed."""
        batch = self.ledger.first(OPEN)
        return None if batch is None else batch.generation

    def totals(self, generation: int | None = None) -> Totals:
        """Documents by what became of them, of one generation or of all."""
        return totals_of(self.ledger, generation)

    def prune(self) -> bool:
        """Put one generation in the place of many that were confirmed. True when it did."""
        return prune(self.spool, self.ledger)

    def note_confirmed(self, generation: int) -> None:
        """Leave a mark in the spool that all of a generation was confirmed, should the ledger ever be lost."""
        mark = self.spool.folder(generation) / CONFIRMED
        if mark.exists() or self.ledger.first((*OPEN, State.QUARANTINED)) is not None:
            return
        with writing(mark):
            mark.write_text(json.dumps({"confirmed_at": clock.iso()}))
            sync_folder(mark.parent)


_COUNTS: Final = ("documents", "unchanged", "gone", "quarantined")


def _files(ledger: Path) -> list[Path]:
    """What there is of a ledger: the database, its log, its index."""
    names = (ledger.with_name(ledger.name + suffix) for suffix in ("", "-wal", "-shm"))
    return [found for found in names if found.exists()]


def _with_state(batch: Batch, state: State) -> Batch:
    return Batch(
        0, batch.generation, batch.part, batch.offset, batch.length, batch.count, batch.sha256, state,
        doubtful=state == State.IN_DOUBT,
    )  # fmt: skip


def _check_size(body: bytes) -> None:
    if len(body) > MAX_BYTES:
        raise BadDocument(f"the document has {len(body)} bytes, more than {MAX_BYTES}")


def totals_of(ledger: Ledger, generation: int | None = None) -> Totals:
    """Documents of a ledger by what became of them, of one generation or of all."""
    counts = ledger.counts(generation)

    def documents(*states: State) -> int:
        return sum(counts.get(state, (0, 0))[1] for state in states)

    return Totals(
        confirmed=documents(State.ACKED),
        in_doubt=documents(State.IN_DOUBT, State.SENDING),
        waiting=documents(State.READY),
        stalled=documents(State.STALLED),
        refused=documents(State.QUARANTINED),
    )


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """An advisory lock that ends with its process, however that ends."""
    with writing(path):
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(handle, 200, 0).decode(errors="replace").strip() or "another process"
            raise NotReady(
                "another publisher works on this day",
                where=path.parent,
                found=holder,
                next_step="wait for it to end, then run the same command again",
            ) from None
        os.ftruncate(handle, 0)
        now = clock.iso()
        os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()} since {now}\n".encode(), 0)
        yield
    finally:
        os.close(handle)
