"""The Spark session: made from what ``run_spark`` configured, with sane local defaults for notebooks and tests."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from cmsspark import errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: What correct numbers depend on: set here as well as in the profiles, so that no way in forgets them.
NEEDED = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.sources.partitionOverwriteMode": "static",
}


def session(app: str, **conf: str) -> SparkSession:
    """The session of a job: the running one, or one with the options that spark-submit was given."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("TZ", "UTC")
    builder = SparkSession.builder.appName(app)
    for name, value in {**NEEDED, **conf}.items():
        builder = builder.config(name, value)
    if "SPARK_ENV_LOADED" not in os.environ and "PYSPARK_GATEWAY_PORT" not in os.environ:
        # Started by import, not by spark-submit: a laptop's defaults.
        for name, value in {
            "spark.master": "local[*]",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "8",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
        }.items():
            if name not in conf:
                builder = builder.config(name, value)
    return builder.getOrCreate()


def cause_of(error: Exception) -> Exception:
    """The error of ours that a task raised, taken out of what Spark wraps around it; else ``error`` itself."""
    text = str(error)
    for kind in (errors.DataError, errors.NotAllowed, errors.InputMissing):
        marker = f"{kind.__module__}.{kind.__name__}: "
        if marker in text:
            wanted, *rest = text.split(marker, 1)[1].splitlines()
            told: dict[str, str] = {}
            for line in rest[:3]:
                name, colon, value = line.strip().partition(": ")
                if not (colon and line.startswith("  ")):
                    break
                told[name] = value
            return kind(wanted, where=told.get("where"), found=told.get("found"), next_step=told.get("next"))
    return error


def small_session(app: str) -> SparkSession:
    """A session for looking at a file system only."""
    return session(app, **{"spark.master": "local[1]", "spark.ui.enabled": "false"})
