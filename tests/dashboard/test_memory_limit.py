"""A query that asks for more memory than the server may take fails alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
from cmsspark.dashboard.server import limit_memory
from cmsspark.errors import UsageError
from cmsspark.query.database import Database

limit_memory(1_500_000_000)
limit_memory(3_000_000_000)  # a lower limit stays
with Database(sys.argv[1], memory="250MB", threads=1) as database:
    try:
        database.query("SELECT repeat('a', 2000000000)")
    except UsageError as error:
        print(error.text())
    print(database.query("SELECT 42").rows)
"""


def test_a_query_beyond_the_limit_is_refused_and_the_next_one_answered(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, check=True)
    refused, answered = done.stdout.splitlines()[0], done.stdout.splitlines()[-1]
    assert "the query needs more memory than it may use" in refused
    assert answered == "[(42,)]"
