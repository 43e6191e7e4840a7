"""A publisher that is killed at a numbered step: run as ``python -m
tests.publish.killed_publisher FOLDER PORT STEP ROWS``.

The steps are what another order of things would break: before and after each durable
entry, each commit, the spool's renaming. STEP 0 is never reached: then the publisher
ends as it should.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cmsspark.publish import outbox as publish_outbox
from cmsspark.publish.batch_log import Batch, BatchLog
from cmsspark.publish.credentials import Broker
from cmsspark.publish.publisher import Publisher
from cmsspark.publish.sinks.stomp import StompSink
from tests.publish.days import fill, outbox_in, rows


class Steps:
    """Counts steps and ends the process at one of them, as kill -9 does."""

    def __init__(self, last: int) -> None:
        self.last = last
        self.count = 0

    def __call__(self) -> None:
        self.count += 1
        if self.count == self.last:
            os.kill(os.getpid(), signal.SIGKILL)


class SteppingLog:
    """A batch log with a step before and after each entry."""

    def __init__(self, log: BatchLog, step: Steps) -> None:
        self._log, self._step = log, step

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._log, name)
        if name not in ("add", "mark", "advance", "split", "release"):
            return attribute

        def entry(*arguments: Any, **named: Any) -> Any:
            self._step()
            result = attribute(*arguments, **named)
            self._step()
            return result

        return entry


class SteppingSink(StompSink):
    """A STOMP sink with a step before the documents, before the COMMIT and after its receipt."""

    step: Steps

    def _write(self, batch: Batch, documents: Sequence[bytes]) -> str:
        self.step()
        return super()._write(batch, documents)

    def _commit(self, transaction: str, meanwhile: Callable[[], None]) -> None:
        self.step()
        super()._commit(transaction, meanwhile)
        self.step()


def main() -> None:
    folder, port, last, count = (
        Path(sys.argv[1]),
        int(sys.argv[2]),
        int(sys.argv[3]),
        int(sys.argv[4]),
    )
    step = Steps(last)

    class SteppingWriter(publish_outbox.SpoolWriter):
        def finish(self, manifest: Any) -> dict[str, Any]:
            step()
            result = super().finish(manifest)
            step()
            return result

    publish_outbox.SpoolWriter = SteppingWriter  # type: ignore[misc]
    sink = SteppingSink(
        Broker((("127.0.0.1", port),), "/queue/test.killed"), "data_aggregation", "cms-test"
    )
    sink.step = step
    with outbox_in(folder).held() as outbox:
        outbox._batch_log = SteppingLog(outbox.batch_log, step)  # type: ignore[assignment]
        spooled = fill(outbox, rows(count))
        Publisher(outbox, sink).run()
        if spooled.snapshot_no is not None:
            step()
            outbox.note_confirmed(spooled.snapshot_no)


if __name__ == "__main__":
    main()
