"""A run of ``run_spark`` whose samples its script can see: a state that lasts until it
was sampled is never missed.

Scripts call :func:`until_sampled` instead of sleeping. It reads the samples of the
measurement, which the run started by :data:`MAIN` writes to a file as it takes them.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: The variable with the file of the samples, one JSON object a line.
VARIABLE = "CMSSPARK_TEST_SAMPLES"
#: ``run_spark``, which also writes each sample to the file when the measurement has it.
MAIN = f"""
import os
import msgspec
from cmsspark.apps.monitor.processes.sampler import DriverSamples
from cmsspark.submit import main

taken = DriverSamples.take

def written(self, processes):
    sample = taken(self, processes)
    if sample is not None:
        with open(os.environ["{VARIABLE}"], "ab") as file:
            file.write(msgspec.json.encode(sample) + b"\\n")
    return sample

DriverSamples.take = written
main()
"""
#: Longer than the slowest machine needs: it only bounds how long a test hangs that
#: would fail anyway.
_PATIENCE_S = 300.0


def samples() -> list[dict[str, Any]]:
    """The samples until now; a line that is still being written is left out."""
    file = Path(os.environ[VARIABLE])
    lines = file.read_bytes().rpartition(b"\n")[0].splitlines() if file.exists() else []
    return [json.loads(line) for line in lines]


def until_sampled(holds: Callable[[dict[str, Any]], bool] = lambda sample: True) -> dict[str, Any]:
    """Wait for a sample that was begun after now and for which ``holds``; that sample."""
    now_ms, end = time.time_ns() // 1_000_000, time.monotonic() + _PATIENCE_S
    while time.monotonic() < end:
        for sample in samples():
            if sample["at_ms"] > now_ms and holds(sample):
                return sample
        time.sleep(0.05)
    raise TimeoutError(f"no such sample in {_PATIENCE_S:.0f} s; the last ones: {samples()[-3:]}")
