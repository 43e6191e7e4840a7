"""The interface of sinks: where a batch goes, and what may come of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from cmsspark.publish.ledger import Batch


class Unconfirmed(Exception):
    """A batch or a connection failed in a way that trying again may mend.

    ``in_doubt``: the batch may have arrived all the same; else nothing of it did. ``retry_after``: seconds that the
    other side asks us to wait for.
    """

    def __init__(self, reason: str, *, in_doubt: bool = False, retry_after: float = 0.0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.in_doubt = in_doubt
        self.retry_after = retry_after


class Refused(Unconfirmed):
    """The other side refuses this batch for what is in it: sending the same again will not help."""


class Sink(Protocol):
    """A destination that confirms.

    ``slug`` names it in paths, ``where`` for people (without secrets). ``open`` and ``send`` raise Unconfirmed, or
    NotAllowed (77) for what no retry mends; ``send`` returns only when all of the batch is confirmed. While it waits
    for that it may call ``meanwhile``, which hands the next batch to ``stage``: to be written ahead, uncommitted.
    """

    where: str

    @property
    def slug(self) -> str: ...
    def open(self) -> None: ...
    def send(self, batch: Batch, documents: Sequence[bytes], meanwhile: Callable[[], None]) -> None: ...
    def stage(self, batch: Batch, documents: Sequence[bytes]) -> None: ...
    def close(self) -> None: ...


class Clock(Protocol):
    """The time, as a seam: tests bring their own and do not sleep."""

    def monotonic(self) -> float: ...
    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The real time."""

    def monotonic(self) -> float:
        """Seconds that only grow."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)
