"""PySpark's worker daemon, with workers that sample what their CPU time goes into.

Sent to executors by ``python -m bench.cluster --profile``
(``spark.python.daemon.module``). Each 10 ms of CPU time the stack of a worker names a
part. A sample in compiled code counts for the Python function that called it. Each
worker keeps its counts in a file of the folder ``BENCH_PROFILE``. Before a fork it
imports what the daemon of our jobs does.
"""

from __future__ import annotations

import mmap
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final

EVERY_S: Final = 0.01
#: The part by what the file of a frame ends with or holds; the innermost frame that has
#: one counts.
_PARTS: Final = (
    ("importlib._bootstrap", "imports"),
    ("zipimport", "imports"),
    ("hdfs_native/", "read"),
    ("/filesystems/", "read"),
    ("/sources/", "decode"),
    ("/counting/", "aggregate"),
    ("/engines/", "aggregate"),
    ("/pyspark/", "exchange with the JVM"),
)
PARTS: Final = ("imports", "read", "decode", "aggregate", "exchange with the JVM", "other")
_BYTES: Final = 8


def part_of(files: Iterator[str]) -> str:
    """Return the part of a stack, by the files of its frames from the innermost outwards."""
    for file in files:
        for text, part in _PARTS:
            if text in file:
                return part
    return PARTS[-1]


def counts(folder: Path) -> dict[str, float]:
    """Return CPU seconds by part, of all workers that left a file."""
    sums = dict.fromkeys(PARTS, 0.0)
    for path in folder.iterdir():
        data = path.read_bytes()
        for number, part in enumerate(PARTS):
            sums[part] += EVERY_S * int.from_bytes(
                data[_BYTES * number : _BYTES * (number + 1)], "little"
            )
    return sums


def _files(frame: FrameType | None) -> Iterator[str]:
    while frame is not None:
        yield frame.f_code.co_filename
        frame = frame.f_back


def _start() -> None:
    """Sample this process from now on. The system keeps what is mapped when the process is killed."""
    size = _BYTES * len(PARTS)
    path = Path(os.environ["BENCH_PROFILE"], str(os.getpid()))
    if path.exists():
        return  # a worker is used again
    path.write_bytes(bytes(size))
    with path.open("r+b") as file:
        shared = mmap.mmap(file.fileno(), size)

    def sample(number: int, frame: FrameType | None) -> None:
        start = _BYTES * PARTS.index(part_of(_files(frame)))
        count = int.from_bytes(shared[start : start + _BYTES], "little") + 1
        shared[start : start + _BYTES] = count.to_bytes(_BYTES, "little")

    signal.signal(signal.SIGPROF, sample)
    signal.siginterrupt(signal.SIGPROF, False)
    signal.setitimer(signal.ITIMER_PROF, EVERY_S, EVERY_S)


def main() -> None:
    """Run PySpark's daemon."""
    from pyspark import daemon

    from cmsspark.engines.quiet_daemon import import_for_tasks

    import_for_tasks()
    work: Any = daemon.worker

    def worker(*arguments: Any) -> Any:
        _start()
        return work(*arguments)

    daemon.worker = worker
    daemon.manager()


if __name__ == "__main__":
    main()
