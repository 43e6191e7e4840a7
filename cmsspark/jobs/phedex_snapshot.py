"""``phedex``: the replica snapshot of a day per site, kind of storage and dataset; the days make the history."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Final

from cmsspark import days
from cmsspark.pipeline.dump_day import DumpJob

if TYPE_CHECKING:
    import polars as pl

    from cmsspark.kernel.dump_frames import Frames


def build(frames: Frames, day: date) -> pl.DataFrame:
    """``schemas/tables/phedex.yaml``."""
    import polars as pl

    from cmsspark.kernel import dump_frames

    rows = frames["presence"].sort("dataset_name", "site_name", "kind")
    made = dump_frames.with_derived(rows, "site_tier", "primary_name", "processing_name", "data_tier")
    return made.with_columns(day=pl.lit(day), timestamp=pl.lit(days.start_ms(day), pl.Int64))


JOB: Final = DumpJob("phedex", {}, replicas=True, build=build)
command = JOB.command()
