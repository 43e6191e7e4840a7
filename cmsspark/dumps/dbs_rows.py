"""Rows of DBS as DataFrames, for joins that Spark does: each key once, so that no join multiplies rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def one_each(rows: DataFrame, key: str, *values: str) -> DataFrame:
    """Return ``rows`` with each ``key`` once and no null key. Of several rows the largest values win, in any order."""
    from pyspark.sql import functions as F

    largest = rows.where(F.col(key).isNotNull()).groupBy(key).agg(F.max(F.struct(*values)).alias("largest"))
    return largest.select(key, *(F.col(f"largest.{value}").alias(value) for value in values))


def identities(datasets: DataFrame) -> DataFrame:
    """Return ``dataset_id`` (unique), ``dataset_name`` of the rows of DATASETS that have both."""
    from pyspark.sql import functions as F

    named = datasets.where(F.col("dataset").isNotNull())
    return one_each(named, "dataset_id", "dataset").withColumnRenamed("dataset", "dataset_name")


def block_sums(files: DataFrame, blocks: DataFrame, datasets: DataFrame, *, is_valid_only: bool) -> DataFrame:
    """Return what blocks hold by ``dataset_id`` and ``month``, as :func:`cmsspark.dumps.block_contents.sums_by_month`.

    The sums are decimals, which do not wrap. ``datasets``: :func:`identities`.
    """
    from pyspark.sql import functions as F

    from cmsspark.dumps.dump_frames import TIMES

    of_blocks = one_each(blocks, "block_id", "block_name", "dataset_id", "creation_date")
    seconds = F.col("creation_date")
    is_time = seconds.between(*TIMES)
    created = F.date_from_unix_date(F.floor(F.when(is_time, seconds) / 86_400).cast("int"))
    month = F.format_string("%04d-%02d", F.year(created), F.month(created))
    sums = [F.sum(name).cast("decimal(38,0)").alias(name) for name in ("file_count", "events", "bytes")]
    return (
        of_blocks.join(F.broadcast(datasets.select("dataset_id")), "dataset_id", "left_semi")
        .select("block_id", "dataset_id", F.when(created.isNotNull(), month).alias("month"))
        .join(_contents(files, datasets, is_valid_only=is_valid_only), "block_id", "left")
        .groupBy("dataset_id", "month")
        .agg(F.count(F.lit(1)).alias("block_count"), *sums)
    )


def _contents(files: DataFrame, datasets: DataFrame, *, is_valid_only: bool) -> DataFrame:
    """Return ``block_id`` (unique), ``file_count``, ``events`` (null where no file says), ``bytes`` of FILES.

    Files whose dataset is not in ``datasets`` do not count. Of one name the row with the larger file_id counts (rule
    18), and then, with ``is_valid_only``, only if it is valid.
    """
    from pyspark.sql import functions as F

    of_datasets = files.join(F.broadcast(datasets.select("dataset_id")), "dataset_id", "left_semi")
    # A file without a name counts: its id identifies it.
    name = F.coalesce("logical_file_name", F.concat(F.lit("\0"), F.col("file_id").cast("string")))
    facts = F.struct("file_id", "block_id", "is_file_valid", "event_count", "file_size")
    unique = of_datasets.groupBy(name.alias("name")).agg(F.max(facts).alias("file")).select("file.*")
    counting = unique.where(F.col("is_file_valid").eqNullSafe(F.lit(1))) if is_valid_only else unique
    return counting.groupBy("block_id").agg(
        F.count(F.lit(1)).cast("decimal(20,0)").alias("file_count"),
        F.sum(F.col("event_count").cast("decimal(20,0)")).alias("events"),
        F.sum(F.col("file_size").cast("decimal(20,0)")).alias("bytes"),
    )
