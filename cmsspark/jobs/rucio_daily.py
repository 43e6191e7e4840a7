"""``rucio_daily``: files and bytes at each RSE by dataset: what is there, new, accessed (rule 34)."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Final

from cmsspark import days
from cmsspark.pipeline.dump_day import DumpJob

if TYPE_CHECKING:
    import polars as pl

    from cmsspark.kernel.dump_frames import Frames


def build(frames: Frames, day: date) -> pl.DataFrame:
    """``schemas/tables/rucio_daily.yaml``."""
    import polars as pl

    rows = frames["rse_sums"].sort("rse", "dataset_name")
    return rows.with_columns(day=pl.lit(day), timestamp=pl.lit(days.start_ms(day), pl.Int64))


JOB: Final = DumpJob("rucio_daily", {}, replicas=True, build=build, rucio_frames=("rse_sums",))
command = JOB.command()
