"""Draining: the open batches of an outbox into a sink, one after another, until all are confirmed or a deadline ends
it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from cmsspark.errors import DataError, NotReady
from cmsspark.publish.ledger import Batch, State
from cmsspark.publish.outbox import Outbox
from cmsspark.publish.sink import Clock, Refused, Sink, SystemClock, Unconfirmed
from cmsspark.publish.spool import split

#: A destination that refuses this many single documents, and accepts nothing, refuses everything: no document's fault.
MAX_REFUSED: Final = 5


@dataclass(frozen=True)
class Policy:
    """How long to go on, in seconds. ``patience``: without any confirmed batch; ``attempts``: of one batch in one run.

    ``longest_pause`` stays below 30 s, so that a broker that is back is found within 30 s.
    """

    patience: float = 300.0
    attempts: int = 10
    first_pause: float = 1.0
    longest_pause: float = 25.0


class Drain:
    """Sends what is open. Every state is on the disk before the step that it announces."""

    def __init__(
        self,
        outbox: Outbox,
        sink: Sink,
        policy: Policy | None = None,
        clock: Clock | None = None,
        *,
        told: Callable[[str], None] = lambda text: None,
        progress: Callable[[int], None] = lambda documents: None,
        jitter: Callable[[float, float], float] = random.uniform,
    ) -> None:
        """``told``: hears of trouble; ``progress``: hears how many documents were confirmed just now."""
        self._outbox = outbox
        self._sink = sink
        self._policy = policy or Policy()
        self._clock = clock or SystemClock()
        self._told = told
        self._progress = progress
        self._jitter = jitter
        self._connected = False
        self._accepted = 0
        self._refused = 0
        self._failures = 0
        self._last_good = 0.0
        #: Confirmed, and not yet entered: that goes into one transaction with the next batch's SENDING.
        self._done: Batch | None = None
        self._ahead: tuple[int, list[bytes]] | None = None
        self._after = 0

    def run(self) -> None:
        """Send until nothing is open, or only STALLED batches are.

        Raises NotReady (75) when the policy's patience ends, NotAllowed (77) from the sink, DataError (65) for a
        damaged spool. Whatever it raises, the same command later goes on from there.
        """
        ledger = self._outbox.ledger
        ledger.release()
        self._last_good = self._clock.monotonic()
        try:
            while (batch := ledger.first((State.READY, State.IN_DOUBT), self._after)) is not None:
                if not self._send(batch):
                    self._after = batch.number
        finally:
            self._settle()
            self._sink.close()

    def _send(self, batch: Batch) -> bool:
        """One attempt. False when the batch is to be left for another run."""
        documents = self._documents(batch)
        try:
            self._connect()
            self._attempt(batch, documents)
        except Refused as error:
            self._disconnect()
            self._refuse(batch, documents, error)
        except Unconfirmed as error:
            self._disconnect()
            return self._again(batch, error)
        else:
            self._accepted += batch.count
            self._failures = 0
            self._last_good = self._clock.monotonic()
            self._progress(batch.count)
        return True

    def _documents(self, batch: Batch) -> list[bytes]:
        ahead, self._ahead = self._ahead, None
        return ahead[1] if ahead is not None and ahead[0] == batch.number else self._outbox.spool.read(batch)

    def _connect(self) -> None:
        if not self._connected:
            self._settle()
            self._sink.open()
            self._connected = True

    def _disconnect(self) -> None:
        self._settle()
        self._sink.close()
        self._connected = False

    def _settle(self) -> None:
        """Enter what was confirmed last."""
        done, self._done = self._done, None
        if done is not None:
            self._outbox.ledger.mark(done, State.ACKED)

    def _attempt(self, batch: Batch, documents: list[bytes]) -> None:
        ledger = self._outbox.ledger
        ledger.turn(self._done, batch)
        self._done = None
        try:
            self._sink.send(batch, documents, self._stage_next)
        except Unconfirmed as error:
            doubtful = batch.doubtful or error.in_doubt
            ledger.mark(batch, State.IN_DOUBT if doubtful else State.READY, error.reason)
            raise
        except BaseException:
            # Interrupted, or forbidden: whether the commit was out is not known here.
            ledger.mark(batch, State.IN_DOUBT, "interrupted while sending")
            raise
        self._done = batch

    def _stage_next(self) -> None:
        """Write the next batch ahead while the receipt of this one is on its way. It is committed on its own turn."""
        coming = self._outbox.ledger.first((State.READY, State.IN_DOUBT), self._after)
        if coming is None:
            return
        try:
            documents = self._outbox.spool.read(coming)
        except DataError:
            return  # told when its turn comes
        self._ahead = (coming.number, documents)
        self._sink.stage(coming, documents)

    def _again(self, batch: Batch, error: Unconfirmed) -> bool:
        """Wait before the next attempt; STALLED when there were enough of this batch."""
        self._failures += 1
        waited = self._clock.monotonic() - self._last_good
        if waited >= self._policy.patience:
            raise NotReady(
                f"nothing was confirmed for {waited:.0f} seconds",
                where=self._sink.where,
                found=error.reason,
                next_step="the rest is in the outbox; the same command with --resume goes on from there",
            )
        current = self._current(batch)
        if current.attempts >= self._policy.attempts:
            self._outbox.ledger.mark(current, State.STALLED, error.reason)
            self._told(f"batch {batch.number} was tried {current.attempts} times and is left for later: {error.reason}")
            return False
        most = min(self._policy.longest_pause, self._policy.first_pause * 2 ** min(self._failures - 1, 10))
        pause = min(max(self._jitter(0.0, most), error.retry_after), self._policy.patience - waited)
        self._told(f"{error.reason}; trying again in {pause:.1f} s")
        self._clock.sleep(pause)
        return True

    def _current(self, batch: Batch) -> Batch:
        found = self._outbox.ledger.first(State, batch.number - 1)
        assert found is not None
        return found

    def _refuse(self, batch: Batch, documents: list[bytes], error: Refused) -> None:
        """The broker does not take this batch: halve it until the document that it means stands alone."""
        current = self._current(batch)
        if batch.count > 1:
            self._told(f"batch {batch.number} of {batch.count} documents was refused ({error.reason}): halving it")
            self._outbox.ledger.split(batch, split(current, documents), error.reason)
            return
        if current.attempts < 2:
            return  # once may be chance
        self._refused += 1
        if self._refused > MAX_REFUSED and not self._accepted:
            raise NotReady(
                "the destination refuses every document", where=self._sink.where, found=error.reason,
                next_step="ask who runs it; the rest is in the outbox, and --resume goes on from there",
            )  # fmt: skip
        self._outbox.ledger.mark(current, State.QUARANTINED, error.reason)
        self._told(f"one document was refused and is kept aside: {error.reason}")
