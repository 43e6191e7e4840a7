"""Publishing, measured against a real ActiveMQ: rate with the full guarantee over
fire-and-forget, memory, recovery.

``python bench/publish.py [--documents 20000] [--many 1000000]`` from the top of the
checkout; needs Debian's activemq, java and openssl.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cmsspark.publish.batch_log import Batch
from cmsspark.publish.credentials import read_broker
from cmsspark.publish.documents import canonical, document
from cmsspark.publish.publisher import Publisher
from cmsspark.publish.sinks.file import FileSink
from cmsspark.publish.sinks.stomp import StompSink
from tests.activemq import ActiveMQ, running
from tests.publish.days import MANIFEST, SPEC, outbox_in, row

#: Of measurements, each guaranteed against forgotten.
PAIRS = 7


def some_rows(count: int) -> Iterator[dict[str, Any]]:
    """Rows as wide as a day's, none kept."""
    return (row(number) for number in range(count))


def forget(sink: StompSink, documents: Sequence[bytes]) -> None:
    """What the predecessor does: write, and believe."""
    connection = sink._connection
    assert connection is not None
    for body in documents:
        connection.protocol.send(
            sink._broker.destination,
            body,
            content_type="application/json",
            headers=dict(sink._headers),
        )
        if connection.pending > 262_144:
            connection.flush(60)
    connection.flush(60)


def rates(
    broker: ActiveMQ, folder: Path, count: int, name: str, **broker_options: Any
) -> list[tuple[float, float]]:
    """Documents a second in pairs, one after the other: (guaranteed through outbox,
    ledger and receipts; fire and forget). The first pair warms the broker up and is
    left out.
    """
    documents = [canonical(document(SPEC, made)) for made in some_rows(count)]
    pairs = []
    for turn in range(PAIRS + 1):
        sink = StompSink(
            read_broker(
                broker.credentials(folder / "c.json", f"f.{name}.{turn}", **broker_options)
            ),
            "t",
            "p",
        )
        sink.open()
        started = time.monotonic()
        for start in range(0, count, 500):
            forget(sink, documents[start : start + 500])
        # The last receipt says that the broker has taken in all that was written before
        # it on this connection.
        sink.send(Batch(0, 1, "", 0, 0, 1, ""), documents[:1])
        loose = count / (time.monotonic() - started)
        sink.close()
        sink = StompSink(
            read_broker(
                broker.credentials(folder / "c.json", f"g.{name}.{turn}", **broker_options)
            ),
            "t",
            "p",
        )
        with outbox_in(folder / f"{name}-{turn}").held() as outbox:
            outbox.fill(SPEC, some_rows(count), MANIFEST, source="r1")
            started = time.monotonic()
            Publisher(outbox, sink).run()
            pairs.append((count / (time.monotonic() - started), loose))
        for queue in (f"f.{name}.{turn}", f"g.{name}.{turn}"):
            broker.consume(queue, quiet=0.5)
    return pairs[1:]


def memory(count: int) -> float:
    """Peak MB of a process that spools and publishes ``count`` documents to files."""
    done = subprocess.run(
        [sys.executable, __file__, "--child", str(count)],
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)


def child(count: int) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        with outbox_in(folder).held() as outbox:
            if count:
                outbox.fill(SPEC, some_rows(count), MANIFEST, source="r1")
                Publisher(outbox, FileSink(folder / "spool", "t", "d")).run()
    # Not ru_maxrss: that begins with what the parent had when it forked.
    peak = next(
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmHWM")
    )
    print(int(peak.split()[1]) / 1024)


def recovery(broker: ActiveMQ, folder: Path, down: float) -> float:
    """Seconds from the broker's return to the next confirmed batch, after ``down``
    seconds without it.
    """
    back = recovered_s = 0.0
    ended = False

    def watch(documents: int) -> None:
        nonlocal recovered_s, ended
        if not ended:
            broker.kill()
            ended = True
        elif back and not recovered_s:
            recovered_s = time.monotonic() - back

    class Clock:
        """Lets the broker return once it was away for long enough."""

        monotonic = staticmethod(time.monotonic)

        def sleep(self, seconds: float) -> None:
            nonlocal back
            time.sleep(seconds)
            if not back and time.monotonic() - started > down:
                broker.start()
                back = time.monotonic()

    started = time.monotonic()
    sink = StompSink(read_broker(broker.credentials(folder / "c.json", "recovery")), "t", "p")
    with outbox_in(folder / "recovery").held() as outbox:
        outbox.fill(SPEC, some_rows(3_000), MANIFEST, source="r1")
        Publisher(outbox, sink, clock=Clock(), progress=watch).run()
    return recovered_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument("--many", type=int, default=1_000_000)
    parser.add_argument("--child", type=int)
    chosen = parser.parse_args()
    if chosen.child is not None:
        child(chosen.child)
        return
    with tempfile.TemporaryDirectory() as place, running(Path(place) / "mq") as broker:
        folder = Path(place)
        tls = {"host_and_ports": f"localhost:{broker.tls}", "ca": broker.certificates["ca.pem"]}
        print(
            f"medians of {PAIRS} pairs, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start"
        )
        print(f"{'way':8}  {'guaranteed/s':>12}  {'forgotten/s':>12}  {'ratio of pairs':>14}")
        for name, broker_options in (("plain", {}), ("tls", tls)):
            pairs = rates(broker, folder, chosen.documents, name, **broker_options)
            sure, loose = (median(pair[n] for pair in pairs) for n in (0, 1))
            ratio = median(pair[0] / pair[1] for pair in pairs)
            print(f"{name:8}  {sure:12,.0f}  {loose:12,.0f}  {ratio:14.2f}", flush=True)
        print(
            f"recovery after 20 s without a broker: {recovery(broker, folder, 20):.1f} s",
            flush=True,
        )
    base = memory(0)
    for count in (10_000, chosen.many):
        print(
            f"memory at {count:,} documents: {memory(count) - base:.0f} MB above the {base:.0f} MB of none",
            flush=True,
        )


if __name__ == "__main__":
    main()
