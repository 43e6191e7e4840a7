"""The publisher sends the open batches of an outbox to a sink until all are confirmed
or a deadline ends the run.
"""

from __future__ import annotations

import hashlib
import os
import random
import re
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from datetime import date
from pathlib import Path
from typing import Final

import msgspec

from cmsspark.base.dates import Clock, SystemClock
from cmsspark.base.errors import CmssparkError, DataError, NotReady
from cmsspark.base.private_folders import make_private
from cmsspark.publish.batch_log import (
    FILE_NAME,
    OPEN,
    Batch,
    BatchLog,
    BatchState,
    disk_errors,
    split,
)
from cmsspark.publish.outbox import Outbox
from cmsspark.publish.sink import ForbiddenError, RejectedError, RetryableError, SendError, Sink

_SENDABLE: Final = (BatchState.READY, BatchState.IN_DOUBT)
#: A destination that refuses more single documents than this and accepts nothing
#: refuses everything.
MAX_REFUSED_WITHOUT_SUCCESS: Final = 5


class RetryPolicy(msgspec.Struct, frozen=True):
    """When to give up. ``patience``: seconds without any confirmed batch. ``attempts``:
    of one batch in one run.

    ``max_refused``: single documents refused in a row, and ``max_refused_share`` of all
    documents decided in this run (where more than ``max_refused`` were refused): beyond
    one of them the destination is wrong, and no document.

    ``first_pause`` and ``longest_pause`` (seconds) bound the back-off; the longest
    stays below 30 s, so that a broker that is back is found within 30 s.
    """

    patience: float = 300.0
    attempts: int = 10
    first_pause: float = 1.0
    longest_pause: float = 25.0
    max_refused: int = 20
    max_refused_share: float = 0.1


class Publisher:
    """Sends what is open. Every state is on the disk before the step that it announces."""

    def __init__(
        self,
        outbox: Outbox,
        sink: Sink,
        policy: RetryPolicy | None = None,
        clock: Clock | None = None,
        *,
        log: Callable[[str], None] = lambda text: None,
        progress: Callable[[int], None] = lambda documents: None,
        jitter: Callable[[float, float], float] = random.uniform,
    ) -> None:
        """``log`` receives a line for each problem, ``progress`` the number of
        documents just confirmed.
        """
        self._outbox = outbox
        self._sink = sink
        self._policy = policy or RetryPolicy()
        self._clock = clock or SystemClock()
        self._log = log
        self._progress = progress
        self._jitter = jitter
        self._connected = False
        self._accepted = 0
        #: Quarantined in this run: batch numbers by snapshot.
        self._refused: dict[int, list[int]] = {}
        self._refused_count = self._refused_in_a_row = 0
        self._failures = 0
        self._last_confirmed = 0.0
        #: Confirmed and not entered yet: that shares a transaction with the next batch's SENDING.
        self._confirmed: Batch | None = None
        self._staged: tuple[int, list[bytes]] | None = None
        #: Halves of a refused batch, the next one last: they come before all others.
        self._halves: list[int] = []

    def run(self) -> None:
        """Send until nothing is open, or only STALLED batches are.

        Raises NotReady (75) when the policy's patience ends, or when the destination
        refuses too much: then nothing is quarantined for it, and split batches are
        joined again. Raises NotAllowed (77) from the sink, DataError (65) for a damaged
        spool. Whatever it raises, the same command later continues from there.
        """
        log = self._outbox.batch_log
        log.release()
        self._last_confirmed = self._clock.monotonic()
        try:
            while (batch := self._next()) is not None:
                # Make one attempt.
                staged, self._staged = self._staged, None
                documents = (
                    staged[1]
                    if staged is not None and staged[0] == batch.number
                    else self._outbox.spool.read(batch)
                )
                try:
                    if not self._connected:
                        self._record_acks()
                        self._sink.open()
                        self._connected = True
                    self._attempt(batch, documents)
                except RejectedError as error:
                    self._disconnect()
                    self._reject(batch, documents, error)
                except RetryableError as error:
                    self._disconnect()
                    self._retry(batch, error)
                else:
                    self._accepted += batch.count
                    self._failures = self._refused_in_a_row = 0
                    self._last_confirmed = self._clock.monotonic()
                    self._progress(batch.count)
        finally:
            self._record_acks()
            self._sink.close()

    def _next(self) -> Batch | None:
        """Return the batch to send next. Halves come first, so that a wrong destination
        shows before all is split.
        """
        while self._halves:
            half = self._outbox.batch_log.get(self._halves[-1])
            if half.state in _SENDABLE:
                return half
            self._halves.pop()
        return self._outbox.batch_log.first(_SENDABLE)

    def _disconnect(self) -> None:
        self._record_acks()
        self._sink.close()
        self._connected = False

    def _record_acks(self) -> None:
        """Enter the batch that was confirmed last."""
        confirmed, self._confirmed = self._confirmed, None
        if confirmed is not None:
            self._outbox.batch_log.mark(confirmed, BatchState.ACKED)

    def _attempt(self, batch: Batch, documents: list[bytes]) -> None:
        log = self._outbox.batch_log
        log.advance(self._confirmed, batch)
        self._confirmed = None
        try:
            self._sink.send(batch, documents, self._stage_next)
        except SendError as error:
            doubtful = batch.doubtful or error.in_doubt
            log.mark(batch, BatchState.IN_DOUBT if doubtful else BatchState.READY, error.reason)
            raise
        except ForbiddenError as error:
            doubtful = batch.doubtful or error.in_doubt
            log.mark(
                batch,
                BatchState.IN_DOUBT if doubtful else BatchState.READY,
                str(error.found or error.problem),
            )
            raise
        except BaseException:
            # Interrupted: whether the COMMIT was written is unknown here.
            log.mark(batch, BatchState.IN_DOUBT, "interrupted while sending")
            raise
        self._confirmed = batch

    def _stage_next(self) -> None:
        """Write the next batch ahead while this one's receipt is awaited. Its COMMIT
        comes when it is next in line.
        """
        batch = self._next()
        if batch is None:
            return
        try:
            documents = self._outbox.spool.read(batch)
        except DataError:
            return  # raised again when the batch is next in line
        self._staged = (batch.number, documents)
        self._sink.stage(batch, documents)

    def _retry(self, batch: Batch, error: RetryableError) -> None:
        """Wait before the next attempt; mark the batch STALLED after too many."""
        self._failures += 1
        waited = self._clock.monotonic() - self._last_confirmed
        if waited >= self._policy.patience:
            raise NotReady(
                f"nothing was confirmed for {waited:.0f} seconds",
                where=self._sink.where,
                found=error.reason,
                next_step="the rest is in the outbox; the same command with --resume continues from there",
            )
        current = self._outbox.batch_log.get(batch.number)
        if current.attempts >= self._policy.attempts:
            self._outbox.batch_log.mark(current, BatchState.STALLED, error.reason)
            self._log(
                f"batch {batch.number} failed {current.attempts} times and is left for later: {error.reason}"
            )
            return
        longest = min(
            self._policy.longest_pause, self._policy.first_pause * 2 ** min(self._failures - 1, 10)
        )
        pause = min(
            max(self._jitter(0.0, longest), error.retry_after), self._policy.patience - waited
        )
        self._halves.append(batch.number)
        remaining = self._policy.patience - waited
        self._log(f"{error.reason}; trying again in {pause:.1f} s, for {remaining:.0f} s at most")
        self._clock.sleep(pause)

    def _reject(self, batch: Batch, documents: list[bytes], error: RejectedError) -> None:
        """Halve a batch that the destination rejects until the rejected document stands alone."""
        current = self._outbox.batch_log.get(batch.number)
        if batch.count > 1:
            self._log(
                f"batch {batch.number} of {batch.count} documents was refused ({error.reason}): halving it"
            )
            self._halves += reversed(
                self._outbox.batch_log.split(batch, split(current, documents), error.reason)
            )
            return
        if current.attempts < 2:
            self._halves.append(batch.number)
            return  # the first refusal may be chance
        self._outbox.batch_log.mark(current, BatchState.QUARANTINED, error.reason)
        self._refused.setdefault(batch.snapshot_no, []).append(batch.number)
        self._refused_count += 1
        self._refused_in_a_row += 1
        if refusal := self._refuses_too_much():
            # Take back what this run quarantined.
            for snapshot_no, numbers in self._refused.items():
                self._outbox.batch_log.reopen_quarantined(snapshot_no, numbers)
            self._refused.clear()
            self._halves.clear()
            raise NotReady(
                f"the destination refuses {refusal}: nothing is quarantined for it",
                where=self._sink.where,
                found=error.reason,
                next_step="check topic or path, or ask who runs it; everything unsent is in the outbox, and --resume "
                "continues from there. If the documents are at fault: `max_refused` under publishing",
            )
        self._log(f"one document was refused and is kept aside: {error.reason}")

    def _refuses_too_much(self) -> str | None:
        """Return what shows that the destination is wrong, and not a document; None
        if nothing does.
        """
        limit, decided = self._policy.max_refused, self._accepted + self._refused_count
        if self._refused_count > MAX_REFUSED_WITHOUT_SUCCESS and not self._accepted:
            return "every document"
        if self._refused_in_a_row > limit:
            return f"{self._refused_in_a_row} documents in a row"
        if self._refused_count > max(limit, self._policy.max_refused_share * decided):
            return f"{self._refused_count:,} of {decided:,} documents"
        return None


# Which folder of the outbox belongs to a destination, whatever addresses it has today.

MARK: Final = "destination.json"


class Destination(msgspec.Struct, frozen=True):
    """What identifies a destination. ``target``: topic, queue or path. ``hosts``:
    names, without ports.
    """

    sink: str
    target: str
    producer: str
    hosts: tuple[str, ...]
    name: str | None = None

    def is_same(self, destination: Destination) -> bool:
        """Return whether both are one destination."""
        if self.sink != destination.sink:
            return False
        if self.name and destination.name:
            return self.name == destination.name
        is_equal = (self.target, self.producer) == (destination.target, destination.producer)
        return is_equal and not set(self.hosts).isdisjoint(destination.hosts)


class OutboxLocation(msgspec.Struct, frozen=True):
    """An outbox on the disk: a table's day at a destination, which is the name of a folder."""

    destination: str
    table: str
    period: str
    folder: Path

    def open_documents(self) -> int:
        """Return documents that are still to be confirmed; 0 where there is no readable batch log."""
        path = self.folder / FILE_NAME
        if path.exists():
            with suppress(CmssparkError), closing(BatchLog(path)) as log:
                return sum(
                    documents for state, (_, documents) in log.counts().items() if state in OPEN
                )
        return 0


def outbox_folder(state_dir: Path, destination: Destination, label: str, identity: str) -> str:
    """Return the name of the destination's folder in the outbox, and mark the folder as
    the destination's.

    A new one is named for the sink, a readable ``label`` and a digest of ``identity``.
    """
    root = state_dir / "outbox"
    for folder, marked in _marked(root, destination):
        hosts = tuple(sorted({*marked.hosts, *destination.hosts}))
        _mark(
            folder,
            msgspec.structs.replace(
                destination, hosts=hosts, name=destination.name or marked.name
            ),
        )
        return folder.name
    name = f"{destination.sink}-{re.sub(r'[^A-Za-z0-9.-]', '-', label)}-{_digest(identity)}"
    if _load(root / name / MARK) is not None:  # another destination's: of another name or producer
        name += f"-{_digest(f'{destination.name} {destination.producer}')}"
    _mark(root / name, destination)
    return name


def known_folder(state_dir: Path, destination: Destination) -> str | None:
    """Return the name of the destination's folder in the outbox; None if it has none yet."""
    return next((folder.name for folder, _ in _marked(state_dir / "outbox", destination)), None)


def _marked(root: Path, destination: Destination) -> Iterator[tuple[Path, Destination]]:
    for mark in sorted(root.glob(f"*/{MARK}")):
        marked = _load(mark)
        if marked is not None and marked.is_same(destination):
            yield mark.parent, marked


def locations(
    state_dir: Path, day: date | None = None, table: str | None = None, to: str | None = None
) -> Iterator[OutboxLocation]:
    """Yield the outboxes below the state directory, by destination, table and day.

    ``to``: only destinations whose folder's name begins so.
    """
    for folder in sorted((state_dir / "outbox").glob("*/*/*")):
        if not folder.is_dir():
            continue
        location = OutboxLocation(folder.parts[-3], folder.parts[-2], folder.name, folder)
        is_chosen = (day is None or location.period == day.isoformat()) and table in (
            None,
            location.table,
        )
        if is_chosen and location.destination.startswith(to or ""):
            yield location


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _load(mark: Path) -> Destination | None:
    try:
        return msgspec.json.decode(mark.read_bytes(), type=Destination)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None  # a damaged mark is none: it is written again


def _mark(folder: Path, destination: Destination) -> None:
    if _load(folder / MARK) == destination:
        return
    aside = folder / f".{MARK}.{os.getpid()}"
    with disk_errors(folder / MARK):
        make_private(folder)
        aside.write_bytes(msgspec.json.encode(destination))
        aside.replace(folder / MARK)
