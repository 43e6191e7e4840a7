"""From folded rows to the tables of a day, with Spark's built-in functions alone."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Final

from cmsspark import days

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: What one row of the report is about, beside the day.
KEYS: Final = ("stream", "dataset_name", "site_name", "app")
SUMS: Final = ("nacc", "remote_nacc", "read_bytes", "cpu_ms", "wall_ms")


def fold_tasks(scanned: DataFrame, partitions: int) -> DataFrame:
    """The rows of all tasks, with each key once: accesses summed, bins summed, quarantined records as they are.

    Rows are laid out by the report's keys, so that neither the partials nor the report moves them again.
    """
    from pyspark.sql import functions as F

    laid_out = scanned.repartition(partitions, *KEYS)
    return laid_out.groupBy("kind", *KEYS, "user", "detail").agg(*(F.sum(name).alias(name) for name in SUMS))


def partials(folded: DataFrame, day: date) -> DataFrame:
    """``schemas/tables/partials.yaml``: one row for each (day, stream, dataset, site, app, user)."""
    from pyspark.sql import functions as F

    accesses = folded.where(F.col("kind") == "access")
    return accesses.select(
        F.lit(day).alias("day"),
        *KEYS,
        "user",
        "nacc",
        "remote_nacc",
        "read_bytes",
        seconds("cpu_ms").alias("cpu_time"),
        seconds("wall_ms").alias("wc_time"),
    )


def report(folded: DataFrame, day: date) -> DataFrame:
    """``schemas/tables/data_aggregation.yaml``: one row for each (day, stream, dataset, site, app)."""
    from pyspark.sql import functions as F

    accesses = folded.where(F.col("kind") == "access")
    # Each user has one row for a key: counting those that are not null counts people.
    summed = accesses.groupBy(*KEYS).agg(
        *(F.sum(name).alias(name) for name in SUMS), F.count("user").alias("distinct_users")
    )
    parts = F.split("dataset_name", "/")
    return summed.select(
        F.lit(day).alias("day"),
        *KEYS,
        "nacc",
        "distinct_users",
        "remote_nacc",
        "read_bytes",
        seconds("cpu_ms").alias("cpu_time"),
        seconds("wall_ms").alias("wc_time"),
        F.substring_index("site_name", "_", 1).alias("site_tier"),
        F.get(parts, 1).alias("primary_name"),
        F.get(parts, 2).alias("processing_name"),
        F.get(parts, 3).alias("data_tier"),
        F.lit(days.start_ms(day)).cast("long").alias("timestamp"),
    )


def seconds(milliseconds: str) -> Column:
    """A column of milliseconds as seconds."""
    from pyspark.sql import functions as F

    return F.col(milliseconds) / F.lit(1000.0)
