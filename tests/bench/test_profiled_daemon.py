"""What the CPU time of Python's workers goes into, by their stacks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.profiled_daemon import counts, part_of

#: Its end stops the samples: Python takes its handlers away before the process ends,
#: unlike the workers' end.
SPIN = """
import signal
import time
from bench import profiled_daemon
for task in range(2):
    profiled_daemon._start()
    end = time.process_time() + 0.2
    while time.process_time() < end:
        sum(range(1000))
signal.setitimer(signal.ITIMER_PROF, 0)
"""


@pytest.mark.parametrize(
    ("files", "part"),
    [
        (["/x/cmsspark.zip/cmsspark/sources/cmssw.py", "/x/pyspark/worker.py"], "decode"),
        (["<frozen zipimport>", "/x/cmsspark/sources/cmssw.py"], "imports"),
        (
            ["/lib/json/decoder.py", "/x/cmsspark/counting/merge.py", "/x/pyspark/worker.py"],
            "aggregate",
        ),
        (["/x/pyspark/serializers.py"], "exchange with the JVM"),
        (["/lib/threading.py"], "other"),
    ],
)
def test_the_innermost_frame_that_has_a_part_counts(files: list[str], part: str) -> None:
    assert part_of(iter(files)) == part


def test_a_worker_that_is_used_again_keeps_its_counts(tmp_path: Path) -> None:
    environ = {**os.environ, "BENCH_PROFILE": str(tmp_path)}
    subprocess.run(
        [sys.executable, "-c", SPIN], env=environ, cwd=Path(__file__).parents[2], check=True
    )
    # The kernel joins samples on a busy machine; a file that begins anew for each task
    # has half of them at most.
    assert counts(tmp_path)["other"] > 0.25
