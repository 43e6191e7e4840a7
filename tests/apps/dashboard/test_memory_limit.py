"""A query that asks for more memory than queries may take fails alone, whatever the server has reserved."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import resource, sys
from cmsspark.apps.dashboard.memory_limit import memory_limit
from cmsspark.base.errors import UsageError
from cmsspark.store.query.database import Database

before = resource.getrlimit(resource.RLIMIT_DATA)
with memory_limit(1_500_000_000):
    with Database(sys.argv[1], memory="250MB", threads=1) as database:
        try:
            database.query("SELECT repeat('a', 2000000000)")
        except UsageError as error:
            print(error.text())
        print(database.query("SELECT 42").rows)
print(resource.getrlimit(resource.RLIMIT_DATA) == before)
"""


def test_a_query_beyond_the_limit_is_refused_and_the_next_one_answered(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, check=True)
    refused, (answered, is_as_before) = done.stdout.splitlines()[0], done.stdout.splitlines()[-2:]
    assert "the query needs more memory than it may use" in refused
    assert answered == "[(42,)]"
    assert is_as_before == "True"


#: Reserves 5 GB as allocators do, without using them. A second block in the first must not lift its limit.
RESERVED = """
import mmap, resource, threading
from cmsspark.apps.dashboard.memory_limit import memory_limit

def private(size):
    return mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

reserved = private(5 << 30)
before = resource.getrlimit(resource.RLIMIT_DATA)
first, second = memory_limit(1 << 30), memory_limit(4 << 30)
first.__enter__()
second.__enter__()
thread = threading.Thread(target=bytearray, args=(100_000_000,))
thread.start()
thread.join()
first.__exit__(None, None, None)
try:
    private(2 << 30)
except OSError as error:
    print(error.strerror)
second.__exit__(None, None, None)
print(resource.getrlimit(resource.RLIMIT_DATA) == before, len(private(2 << 30)))
resource.setrlimit(resource.RLIMIT_DATA, (6 << 30, before[1]))
with memory_limit(9 << 30):
    print(resource.getrlimit(resource.RLIMIT_DATA)[0] == 6 << 30)
"""


def test_what_is_reserved_does_not_count_and_queries_at_once_share_one_limit() -> None:
    done = subprocess.run([sys.executable, "-c", RESERVED], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["Cannot allocate memory", f"True {2 << 30}", "True"]
