"""The Spark session: made from what ``run_spark`` configured, with sane local defaults for notebooks and tests."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

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


def small_session(app: str) -> SparkSession:
    """A session for looking at a file system only."""
    return session(app, **{"spark.master": "local[1]", "spark.ui.enabled": "false"})
