"""``rucio_daily``: files and bytes at each RSE by dataset: what is there, new, accessed (rule 34)."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Final

from cmsspark.run.dump_day import DumpJob

if TYPE_CHECKING:
    import polars as pl

    from cmsspark.dumps.dump_frames import Frames


def build(frames: Frames, day: date) -> pl.DataFrame:
    """Return ``schemas/tables/rucio_daily.yaml``."""
    from cmsspark.dumps import dump_frames

    return dump_frames.as_table(frames["rse_sums"].sort("rse", "dataset_name"), JOB.name, day)


JOB: Final = DumpJob("rucio_daily", {}, replicas=True, build=build, rucio_frames=("rse_sums",))
command = JOB.command()
