"""What counts a day of logs: processes of this host, or Spark. Both have one kernel and give the same cells.

Processes need no JVM and are quicker where all lies on this host's disks. Spark is there for everything else: a
cluster, paths of Hadoop's, a catalogue too large for an index, one's own Spark options.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from cmsspark.errors import UsageError

if TYPE_CHECKING:
    from cmsspark.jobs.request import DayRequest

PROCESSES: Final = "processes"
SPARK: Final = "spark"
#: ``run_spark``'s words, where it started a job without Spark: the way back, if Spark is needed after all.
WORDS: Final = "CMSSPARK_WORDS"


def of(request: DayRequest, is_local: bool) -> str:
    """The engine for a request; ``is_local``: inputs and store lie on this host's disks.

    Raises UsageError (2) where processes are asked for what only Spark does.
    """
    more = {"--join shuffle": request.join == "shuffle", "--feed spark": request.feed == "spark"}
    return choose(request.engine, is_local, request.fmt, more)


def choose(engine: str, is_local: bool, fmt: str, only_spark: Mapping[str, bool] | None = None) -> str:
    """The engine where ``engine`` (auto, processes or spark) is asked for. ``only_spark``: options that only Spark has,
    and whether each is given. Raises UsageError (2) where processes are asked for what only Spark does.
    """
    asked = {
        "paths that are not on this host's disks": not is_local,
        **(only_spark or {}),
        f"--format {fmt}": fmt != "parquet",
    }
    needs_spark = [what for what, is_asked in asked.items() if is_asked]
    if engine == PROCESSES and needs_spark:
        raise UsageError("--engine processes cannot do that", found=", ".join(needs_spark), next_step="leave it out")
    if engine == SPARK or needs_spark:
        return SPARK
    # Started by spark-submit: its options were asked for.
    is_submitted = engine == "auto" and "PYSPARK_GATEWAY_PORT" in os.environ
    return SPARK if is_submitted else PROCESSES


def go_back_for_spark() -> None:
    """Become ``run_spark --engine spark`` with the same words, where it was ``run_spark`` that started this process."""
    words = os.environ.pop(WORDS, None)
    if words is None:
        return
    code = "from cmsspark.submit import main; main()"
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-c", code, "--engine", SPARK, *json.loads(words)])  # noqa: S606
