"""From the tables of DBS to one row for each dataset, in Spark. Join keys are unique, so no join multiplies rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cmsspark.runners.spark_columns import milliseconds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Tables = Mapping[str, "DataFrame"]


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


def contents(files: DataFrame, datasets: DataFrame) -> DataFrame:
    """Return the files, events and bytes of each dataset of ``datasets`` (:func:`identities`), from FILES.

    Columns: ``dataset_name`` (unique), ``file_count`` and ``invalid_file_count`` (0 where there are no files),
    ``events`` and ``dataset_bytes`` (null where no file has a value). Files of other datasets are not counted. A
    repeated lfn counts once, with the larger file_id (rule 18).
    """
    from pyspark.sql import functions as F

    # A million ids fit any executor. The files, two hundred times as many, are then shuffled once, by name.
    of_datasets = files.join(F.broadcast(datasets.select("dataset_id")), "dataset_id", "left_semi")
    # A file without a name counts: its id identifies it.
    name = F.coalesce("logical_file_name", F.concat(F.lit("\0"), F.col("file_id").cast("string")))
    facts = F.struct("file_id", "dataset_id", "is_file_valid", "event_count", "file_size")
    unique = of_datasets.groupBy(name.alias("name")).agg(F.max(facts).alias("file")).select("file.*")
    summed = unique.groupBy("dataset_id").agg(
        F.count(F.lit(1)).alias("file_count"),
        F.count_if(~F.col("is_file_valid").eqNullSafe(F.lit(1))).alias("invalid_file_count"),
        F.sum("event_count").alias("events"),
        F.sum(F.col("file_size").cast("long")).alias("dataset_bytes"),
    )
    named = datasets.join(summed, "dataset_id", "left")
    return named.groupBy("dataset_name").agg(
        *(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in ("file_count", "invalid_file_count")),
        *(F.sum(name).alias(name) for name in ("events", "dataset_bytes")),
    )


def block_contents(files: DataFrame, blocks: DataFrame, datasets: DataFrame, is_valid_only: bool) -> DataFrame:
    """Return ``block_id`` (unique, those of BLOCKS), ``file_count``, ``events`` (null where no file says), ``bytes``.

    Files whose dataset is not in ``datasets`` (:func:`identities`) do not count. Of one name the row with the larger
    file_id counts (rule 18), and then, with ``is_valid_only``, only if it is valid.
    """
    from pyspark.sql import functions as F

    of_datasets = files.join(F.broadcast(datasets.select("dataset_id")), "dataset_id", "left_semi")
    name = F.coalesce("logical_file_name", F.concat(F.lit("\0"), F.col("file_id").cast("string")))
    facts = F.struct("file_id", "block_id", "is_file_valid", "event_count", "file_size")
    unique = of_datasets.groupBy(name.alias("name")).agg(F.max(facts).alias("file")).select("file.*")
    counting = unique.where(F.col("is_file_valid").eqNullSafe(F.lit(1))) if is_valid_only else unique
    summed = counting.groupBy("block_id").agg(
        F.count(F.lit(1)).alias("file_count"),
        F.sum("event_count").alias("events"),
        F.sum(F.col("file_size").cast("long")).alias("bytes"),
    )
    ids = blocks.where(F.col("block_id").isNotNull()).select("block_id").distinct()
    counts = [F.coalesce(F.col(name), F.lit(0)).alias(name) for name in ("file_count", "bytes")]
    return ids.join(summed, "block_id", "left").select("block_id", counts[0], "events", counts[1])


def named_blocks(blocks: DataFrame, datasets: DataFrame) -> DataFrame:
    """Return ``dataset_name``, ``block_name`` of each row of BLOCKS that has both; not unique."""
    from pyspark.sql import functions as F

    named = blocks.where(F.col("block_name").isNotNull())
    return named.join(datasets, "dataset_id", "inner").select("dataset_name", "block_name")


def releases(tables: Tables, datasets: DataFrame) -> DataFrame:
    """Return ``dataset_name`` (unique), ``release_versions``: the releases that made it, sorted, joined by commas."""
    from pyspark.sql import functions as F

    modules = one_each(tables["OUTPUT_MODULE_CONFIGS"], "output_mod_config_id", "release_version_id")
    versions = one_each(tables["RELEASE_VERSIONS"], "release_version_id", "release_version")
    made = (
        tables["DATASET_OUTPUT_MOD_CONFIGS"]
        .join(datasets, "dataset_id", "inner")
        .join(F.broadcast(modules), "output_mod_config_id", "inner")
        .join(F.broadcast(versions), "release_version_id", "inner")
    )
    texts = F.array_join(F.array_sort(F.collect_set("release_version")), ",")
    return made.groupBy("dataset_name").agg(F.nullif(texts, F.lit("")).alias("release_versions"))


def attributes(tables: Tables) -> DataFrame:
    """Return the attributes of each dataset, from DATASETS. Of two rows with one name the larger dataset_id counts.

    Columns: ``dataset_name`` (unique), ``is_valid``, ``access_type``, ``acquisition_era``, ``processing_version``,
    ``physics_group``, ``created_ms``. A table that the job did not read has no column.
    """
    from pyspark.sql import functions as F

    rows = tables["DATASETS"].where(F.col("dataset_id").isNotNull())
    facts = [name for name in rows.columns if name not in ("dataset", "dataset_id")]
    rows = one_each(rows, "dataset", "dataset_id", *facts).withColumnRenamed("dataset", "dataset_name")
    columns = {"dataset_name": F.col("dataset_name"), "is_valid": F.col("is_dataset_valid") == 1}
    for table, key, value, name in (
        ("DATASET_ACCESS_TYPES", "dataset_access_type_id", "dataset_access_type", "access_type"),
        ("ACQUISITION_ERAS", "acquisition_era_id", "acquisition_era_name", "acquisition_era"),
        ("PROCESSING_ERAS", "processing_era_id", "processing_version", "processing_version"),
        ("PHYSICS_GROUPS", "physics_group_id", "physics_group_name", "physics_group"),
    ):
        if table in tables:
            rows = rows.join(F.broadcast(one_each(tables[table], key, value)), key, "left")
            columns[name] = F.col(value)
    if "processing_version" in columns:
        columns["processing_version"] = F.expr("try_cast(processing_version AS BIGINT)")
    if "creation_date" in rows.columns:
        columns["created_ms"] = milliseconds("creation_date")
    return rows.select(*(column.alias(name) for name, column in columns.items()))
