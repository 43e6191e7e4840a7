"""The names of the engines that run a job: processes of this host, or Spark."""

from __future__ import annotations

from typing import Final

AUTO: Final = "auto"
PROCESSES: Final = "processes"
SPARK: Final = "spark"
ENGINES: Final = (AUTO, PROCESSES, SPARK)
