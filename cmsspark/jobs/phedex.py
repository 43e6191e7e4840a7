"""``phedex``: the replica snapshot of a day per site, kind of storage and dataset; the days make the history."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Final

from cmsspark import days
from cmsspark.columns import derived
from cmsspark.jobs.on_dumps import DumpJob, Tables
from cmsspark.schemas import stored_table
from cmsspark.transforms import replicas

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def build(tables: Tables, day: date) -> DataFrame:
    """``schemas/tables/phedex.yaml``."""
    from pyspark.sql import functions as F

    made = {
        "day": F.lit(day),
        "site_tier": derived("site_tier"),
        "data_tier": derived("data_tier"),
        "timestamp": F.lit(days.start_ms(day)).cast("long"),
    }
    rows = replicas.presence(tables["replicas"])
    return rows.select(*(made.get(name, F.col(name)).alias(name) for name in stored_table("phedex").names))


JOB: Final = DumpJob("phedex", {}, replicas=True, build=build)
command = JOB.command()
