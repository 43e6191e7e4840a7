"""``phedex``: the replica snapshot of a day per site, kind of storage and dataset; the days make the history."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Final

from cmsspark.pipeline.dump_day import DumpJob, Tables
from cmsspark.runners import replicas
from cmsspark.runners.spark_columns import as_table

if TYPE_CHECKING:
    import polars as pl
    from pyspark.sql import DataFrame

    from cmsspark.kernel.dump_frames import Frames


def build(frames: Frames, day: date) -> pl.DataFrame:
    """``schemas/tables/phedex.yaml``."""
    from cmsspark.kernel import dump_frames

    rows = frames["presence"].sort("dataset_name", "site_name", "kind")
    return dump_frames.as_table(rows, JOB.name, day)


def build_in_spark(tables: Tables, day: date) -> DataFrame:
    """The same rows as a DataFrame, where the dumps are a cluster's."""
    return as_table(replicas.presence(tables["replicas"]), JOB.name, day)


JOB: Final = DumpJob("phedex", {}, replicas=True, build=build, build_in_spark=build_in_spark)
command = JOB.command()
