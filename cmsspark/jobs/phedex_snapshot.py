"""``phedex``: the replica snapshot of a day per site, kind of storage and dataset; the days make the history."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Final

from cmsspark import days
from cmsspark.pipeline.dump_day import DumpJob, Tables
from cmsspark.runners import replicas
from cmsspark.runners.spark_columns import derived
from cmsspark.schemas import stored_table

if TYPE_CHECKING:
    import polars as pl
    from pyspark.sql import DataFrame

    from cmsspark.kernel.dump_frames import Frames


def build(frames: Frames, day: date) -> pl.DataFrame:
    """``schemas/tables/phedex.yaml``."""
    import polars as pl

    from cmsspark.kernel import dump_frames

    rows = frames["presence"].sort("dataset_name", "site_name", "kind")
    made = dump_frames.with_derived(rows, "site_tier", "primary_name", "processing_name", "data_tier")
    return made.with_columns(day=pl.lit(day), timestamp=pl.lit(days.start_ms(day), pl.Int64))


def build_in_spark(tables: Tables, day: date) -> DataFrame:
    """The same rows as a DataFrame, where the dumps are a cluster's."""
    from pyspark.sql import functions as F

    made = {
        "day": F.lit(day),
        "site_tier": derived("site_tier"),
        "data_tier": derived("data_tier"),
        "timestamp": F.lit(days.start_ms(day)).cast("long"),
    }
    rows = replicas.presence(tables["replicas"])
    return rows.select(*(made.get(name, F.col(name)).alias(name) for name in stored_table("phedex").names))


JOB: Final = DumpJob("phedex", {}, replicas=True, build=build, build_in_spark=build_in_spark, by_dataset=True)
command = JOB.command()
