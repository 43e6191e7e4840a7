"""The interface of sinks: where a batch is sent, and how a sink reports what became of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from cmsspark.base.errors import NotAllowed
from cmsspark.publish.batch_log import Batch
from cmsspark.publish.publishing_settings import PublishingSettings


class SendError(Exception):
    """A batch or a connection failed.

    ``in_doubt``: the batch may have been delivered all the same; otherwise nothing of it was.
    """

    def __init__(self, reason: str, *, in_doubt: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.in_doubt = in_doubt


class RetryableError(SendError):
    """Another attempt may succeed. ``retry_after``: seconds that the destination asks us to wait."""

    def __init__(self, reason: str, *, in_doubt: bool = False, retry_after: float = 0.0) -> None:
        super().__init__(reason, in_doubt=in_doubt)
        self.retry_after = retry_after


class RejectedError(SendError):
    """The destination refuses the content of this batch: sending the same bytes again does not help."""


class ForbiddenError(NotAllowed):
    """The destination does not let us publish (77): no retry cures that. ``in_doubt`` as in SendError."""

    def __init__(
        self,
        problem: str,
        *,
        where: object = None,
        found: object = None,
        next_step: str | None = None,
        in_doubt: bool = False,
    ) -> None:
        super().__init__(problem, where=where, found=found, next_step=next_step)
        self.in_doubt = in_doubt


class Sink(Protocol):
    """A destination that confirms.

    ``outbox_name`` is the name of its folder in the outbox, ``where`` names it for people (without secrets). ``open``
    and ``send`` raise SendError, or ForbiddenError (77) for what no retry cures; ``send`` returns only when the
    whole batch is confirmed. While it waits for the confirmation it may call ``meanwhile``, which hands the next batch
    to ``stage``: the sink may write it ahead, uncommitted.
    """

    where: str

    def outbox_name(self, state_dir: Path) -> str: ...
    def open(self) -> None: ...
    def send(self, batch: Batch, documents: Sequence[bytes], meanwhile: Callable[[], None]) -> None: ...
    def stage(self, batch: Batch, documents: Sequence[bytes]) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class SinkOptions:
    """What a sink may need to know beside its credentials.

    ``spool``: the folder of the file sink; ``type`` and ``producer``: of the documents; ``settings``: the
    ``publishing`` part of the settings; ``log`` receives a line for each problem waited out.
    """

    table: str
    period: str
    producer: str
    type: str
    spool: Path
    settings: PublishingSettings = field(default_factory=PublishingSettings)
    log: Callable[[str], None] = lambda text: None
