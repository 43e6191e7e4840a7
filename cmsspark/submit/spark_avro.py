"""spark-avro for users' own jobs: the one jar that fits the running Spark and its Scala.

Our own jobs read Avro without it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from cmsspark.submit.host import Spark

_DECLARED = re.compile(r"^#\s*run_spark:\s*--avro\s*$", re.MULTILINE)
_HEAD = 4_000


@dataclass(frozen=True)
class Located:
    """Where spark-avro comes from: the Spark option that adds it (None: Spark has it already), its value, a note."""

    option: str | None
    value: str
    note: str


def coordinate(spark: Spark) -> str:
    """spark-avro's Maven coordinate: its version must be Spark's own."""
    return f"org.apache.spark:spark-avro_{spark.scala}:{spark.version}"


def locate(spark: Spark, jars: str | None) -> Located:
    """spark-avro among Spark's own jars, else in the folder ``jars`` of the settings, else by its coordinate."""
    name = f"spark-avro_{spark.scala}-{spark.version}.jar"
    if (spark.home / "jars" / name).is_file():
        return Located(None, "", f"spark-avro: among Spark's own jars ({name})")
    if jars and (Path(jars) / name).is_file():
        jar = str(Path(jars) / name)
        return Located("spark.jars", jar, f"spark-avro: {jar}")
    maven = coordinate(spark)
    return Located("spark.jars.packages", maven, f"spark-avro: {maven}, fetched from Maven at submit")


def declares_avro(script: Path) -> bool:
    """True when a script says ``# run_spark: --avro`` in its first lines."""
    try:
        with script.open(encoding="utf-8", errors="replace") as stream:
            return _DECLARED.search(stream.read(_HEAD)) is not None
    except OSError:
        return False
