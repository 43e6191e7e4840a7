"""DBS tables to one row for each dataset. Joins go over keys made unique first, so that none multiplies rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cmsspark.runners.spark_columns import milliseconds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Tables = Mapping[str, "DataFrame"]


def one_each(rows: DataFrame, key: str, *values: str) -> DataFrame:
    """``rows`` with each ``key`` once and no null key: of several rows the largest values win, whatever their order."""
    from pyspark.sql import functions as F

    kept = rows.where(F.col(key).isNotNull()).groupBy(key).agg(F.max(F.struct(*values)).alias("kept"))
    return kept.select(key, *(F.col(f"kept.{value}").alias(value) for value in values))


def identities(datasets: DataFrame) -> DataFrame:
    """``dataset_id`` (once each), ``dataset_name``: the rows of DATASETS that have both."""
    from pyspark.sql import functions as F

    named = datasets.where(F.col("dataset").isNotNull())
    return one_each(named, "dataset_id", "dataset").withColumnRenamed("dataset", "dataset_name")


def contents(files: DataFrame, known: DataFrame) -> DataFrame:
    """What FILES says of each dataset of ``known`` (:func:`identities`), valid files and others.

    Columns: ``dataset_name`` (once each), ``file_count`` and ``invalid_file_count`` (0 where there are no files),
    ``events`` and ``dataset_bytes`` (null where no file says). Rows of no known dataset count nowhere; one lfn twice
    counts once, with the larger file_id (rule 18).
    """
    from pyspark.sql import functions as F

    # A million ids fit any executor; the files, two hundred times as many, then move once, by their names.
    of_datasets = files.join(F.broadcast(known.select("dataset_id")), "dataset_id", "left_semi")
    # A file without a name is still a file: its id stands for it.
    name = F.coalesce("logical_file_name", F.concat(F.lit("\0"), F.col("file_id").cast("string")))
    facts = F.struct("file_id", "dataset_id", "is_file_valid", "event_count", "file_size")
    once = of_datasets.groupBy(name.alias("name")).agg(F.max(facts).alias("file")).select("file.*")
    summed = once.groupBy("dataset_id").agg(
        F.count(F.lit(1)).alias("file_count"),
        F.count_if(~F.col("is_file_valid").eqNullSafe(F.lit(1))).alias("invalid_file_count"),
        F.sum("event_count").alias("events"),
        F.sum(F.col("file_size").cast("long")).alias("dataset_bytes"),
    )
    named = known.join(summed, "dataset_id", "left")
    return named.groupBy("dataset_name").agg(
        *(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in ("file_count", "invalid_file_count")),
        *(F.sum(name).alias(name) for name in ("events", "dataset_bytes")),
    )


def named_blocks(blocks: DataFrame, known: DataFrame) -> DataFrame:
    """``dataset_name``, ``block_name``: the blocks that DBS names, as often as it does."""
    from pyspark.sql import functions as F

    named = blocks.where(F.col("block_name").isNotNull())
    return named.join(known, "dataset_id", "inner").select("dataset_name", "block_name")


def releases(tables: Tables, known: DataFrame) -> DataFrame:
    """``dataset_name`` (once each), ``release_versions``: releases that made it, sorted, joined by commas."""
    from pyspark.sql import functions as F

    modules = one_each(tables["OUTPUT_MODULE_CONFIGS"], "output_mod_config_id", "release_version_id")
    versions = one_each(tables["RELEASE_VERSIONS"], "release_version_id", "release_version")
    made = (
        tables["DATASET_OUTPUT_MOD_CONFIGS"]
        .join(known, "dataset_id", "inner")
        .join(F.broadcast(modules), "output_mod_config_id", "inner")
        .join(F.broadcast(versions), "release_version_id", "inner")
    )
    texts = F.array_join(F.array_sort(F.collect_set("release_version")), ",")
    return made.groupBy("dataset_name").agg(F.nullif(texts, F.lit("")).alias("release_versions"))


def attributes(tables: Tables) -> DataFrame:
    """What DATASETS says of each dataset; of two rows with one name, the larger dataset_id's.

    Columns: ``dataset_name`` (once each), ``is_valid``, ``access_type``, ``acquisition_era``, ``processing_version``,
    ``physics_group``, ``created_ms``. Tables that the job did not read give no column.
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
