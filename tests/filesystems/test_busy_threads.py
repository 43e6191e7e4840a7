"""A process that ends waits for threads of libraries that still work, but not for ever."""

from __future__ import annotations

import subprocess
import sys
import time

_THREAD = """
import hashlib, os, threading
import pyarrow
from cmsspark.filesystems import storage
content = bytes({count})
def work():
    {loop}hashlib.sha256(content).digest()
    os.write(1, b"done")
threading.Thread(target=work, daemon=True).start()
"""


def _ended(count: int, loop: str = "") -> tuple[bytes, float]:
    """Return what a process wrote whose daemon thread, which needs no interpreter while it
    works, is busy when the main thread ends; and its seconds.
    """
    start = time.monotonic()
    code = _THREAD.format(count=count, loop=loop)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    return run.stdout, time.monotonic() - start


def test_a_busy_thread_ends_its_work_before_python_does() -> None:
    assert _ended(8_000_000)[0] == b"done"


def test_a_thread_that_never_rests_does_not_keep_the_process() -> None:
    written, seconds = _ended(100_000, "while True: ")
    assert written == b"" and seconds < 30
