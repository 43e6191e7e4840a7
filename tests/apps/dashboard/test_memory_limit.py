"""A query that asks for more memory than queries may take fails alone, whatever its
process has reserved.
"""

from __future__ import annotations

import subprocess
import sys

#: Reserves 5 GB as allocators do, without using them.
PROGRAM = """
import mmap, resource
from cmsspark.apps.dashboard.query_process import limit_memory

def private(size):
    return mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

reserved = private(5 << 30)
limit_memory(1 << 30)
print(len(private(100_000_000)))
try:
    private(2 << 30)
except OSError as error:
    print(error.strerror)
limit = resource.getrlimit(resource.RLIMIT_DATA)
limit_memory(9 << 30)
print(resource.getrlimit(resource.RLIMIT_DATA) == limit)
"""


def test_what_is_reserved_does_not_count_and_a_lower_limit_stays() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["100000000", "Cannot allocate memory", "True"]
