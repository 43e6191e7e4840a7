"""The publisher sends the open batches of an outbox to a sink until all are confirmed or a deadline ends the run."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from cmsspark.errors import DataError, NotReady
from cmsspark.publish.batch_log import Batch, BatchState
from cmsspark.publish.outbox import Outbox
from cmsspark.publish.sink import Clock, ForbiddenError, RejectedError, RetryableError, Sink, SystemClock
from cmsspark.publish.spool import split

#: A destination that rejects this many single documents and accepts nothing rejects everything: no document's fault.
MAX_REJECTED: Final = 5


@dataclass(frozen=True)
class RetryPolicy:
    """How long to go on. ``patience``: seconds without any confirmed batch; ``attempts``: of one batch in one run.

    ``first_pause`` and ``longest_pause`` (seconds) bound the back-off; the longest stays below 30 s, so that a broker
    that is back is found within 30 s.
    """

    patience: float = 300.0
    attempts: int = 10
    first_pause: float = 1.0
    longest_pause: float = 25.0


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
        """``log`` receives a line for each problem, ``progress`` the number of documents just confirmed."""
        self._outbox = outbox
        self._sink = sink
        self._policy = policy or RetryPolicy()
        self._clock = clock or SystemClock()
        self._log = log
        self._progress = progress
        self._jitter = jitter
        self._connected = False
        self._accepted = 0
        self._rejected = 0
        self._failures = 0
        self._last_confirmed = 0.0
        #: Confirmed and not entered yet: that shares a transaction with the next batch's SENDING.
        self._confirmed: Batch | None = None
        self._staged: tuple[int, list[bytes]] | None = None
        self._after = 0

    def run(self) -> None:
        """Send until nothing is open, or only STALLED batches are.

        Raises NotReady (75) when the policy's patience ends, NotAllowed (77) from the sink, DataError (65) for a
        damaged spool. Whatever it raises, the same command later continues from there.
        """
        log = self._outbox.batch_log
        log.release()
        self._last_confirmed = self._clock.monotonic()
        try:
            while (batch := log.first((BatchState.READY, BatchState.IN_DOUBT), self._after)) is not None:
                if not self._send(batch):
                    self._after = batch.number
        finally:
            self._record_acks()
            self._sink.close()

    def _send(self, batch: Batch) -> bool:
        """One attempt. False when the batch has to be left for another run."""
        documents = self._documents(batch)
        try:
            self._connect()
            self._attempt(batch, documents)
        except RejectedError as error:
            self._disconnect()
            self._reject(batch, documents, error)
        except RetryableError as error:
            self._disconnect()
            return self._retry(batch, error)
        else:
            self._accepted += batch.count
            self._failures = 0
            self._last_confirmed = self._clock.monotonic()
            self._progress(batch.count)
        return True

    def _documents(self, batch: Batch) -> list[bytes]:
        staged, self._staged = self._staged, None
        return staged[1] if staged is not None and staged[0] == batch.number else self._outbox.spool.read(batch)

    def _connect(self) -> None:
        if not self._connected:
            self._record_acks()
            self._sink.open()
            self._connected = True

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
        except RetryableError as error:
            doubtful = batch.doubtful or error.in_doubt
            log.mark(batch, BatchState.IN_DOUBT if doubtful else BatchState.READY, error.reason)
            raise
        except ForbiddenError as error:
            doubtful = batch.doubtful or error.in_doubt
            log.mark(batch, BatchState.IN_DOUBT if doubtful else BatchState.READY, str(error.found or error.wanted))
            raise
        except BaseException:
            # Interrupted: whether the COMMIT was written is unknown here.
            log.mark(batch, BatchState.IN_DOUBT, "interrupted while sending")
            raise
        self._confirmed = batch

    def _stage_next(self) -> None:
        """Write the next batch ahead while this one's receipt is awaited. Its COMMIT comes when it is next in line."""
        batch = self._outbox.batch_log.first((BatchState.READY, BatchState.IN_DOUBT), self._after)
        if batch is None:
            return
        try:
            documents = self._outbox.spool.read(batch)
        except DataError:
            return  # raised again when the batch is next in line
        self._staged = (batch.number, documents)
        self._sink.stage(batch, documents)

    def _retry(self, batch: Batch, error: RetryableError) -> bool:
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
            self._log(f"batch {batch.number} failed {current.attempts} times and is left for later: {error.reason}")
            return False
        longest = min(self._policy.longest_pause, self._policy.first_pause * 2 ** min(self._failures - 1, 10))
        pause = min(max(self._jitter(0.0, longest), error.retry_after), self._policy.patience - waited)
        self._log(f"{error.reason}; trying again in {pause:.1f} s")
        self._clock.sleep(pause)
        return True

    def _reject(self, batch: Batch, documents: list[bytes], error: RejectedError) -> None:
        """The destination rejects this batch: halve it until the rejected document stands alone."""
        current = self._outbox.batch_log.get(batch.number)
        if batch.count > 1:
            self._log(f"batch {batch.number} of {batch.count} documents was refused ({error.reason}): halving it")
            self._outbox.batch_log.split(batch, split(current, documents), error.reason)
            return
        if current.attempts < 2:
            return  # the first refusal may be chance
        self._rejected += 1
        if self._rejected > MAX_REJECTED and not self._accepted:
            raise NotReady(
                "the destination refuses every document", where=self._sink.where, found=error.reason,
                next_step="ask who runs it; the rest is in the outbox, and --resume continues from there",
            )  # fmt: skip
        self._outbox.batch_log.mark(current, BatchState.QUARANTINED, error.reason)
        self._log(f"one document was refused and is kept aside: {error.reason}")
