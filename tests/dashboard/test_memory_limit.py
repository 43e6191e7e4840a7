"""A query that asks for more memory than the server may take fails alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import resource, sys
from cmsspark.dashboard.server import memory_limit
from cmsspark.errors import UsageError
from cmsspark.query.database import Database

before = resource.getrlimit(resource.RLIMIT_DATA)
with memory_limit(1_500_000_000), memory_limit(3_000_000_000):  # a lower limit stays
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
