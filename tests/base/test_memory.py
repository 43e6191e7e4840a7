"""Memory that a process no longer needs."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCATTERED = """
from cmsspark.base.memory import trim

def held():
    return int(next(line for line in open("/proc/self/status") if line.startswith("RssAnon:")).split()[1])

blocks = [bytearray(4_000) for _ in range(20_000)]
kept = blocks[::50]
del blocks
before = held()
trim()
print(before - held())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="of the GNU C library")
def test_scattered_free_memory_goes_back_to_the_system() -> None:
    told = subprocess.run(
        [sys.executable, "-c", SCATTERED], capture_output=True, text=True, check=True
    )
    assert int(told.stdout) > 40_000, "KB of 80,000"
