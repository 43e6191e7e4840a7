"""``phedex``: the replica snapshot of a day per site, kind of storage and dataset; the days make the history."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Final

from cmsspark.run.dump_day import DumpJob

if TYPE_CHECKING:
    import polars as pl

    from cmsspark.dumps.dump_frames import Frames


def build(frames: Frames, day: date) -> pl.DataFrame:
    """Return ``schemas/tables/phedex.yaml``."""
    from cmsspark.dumps import dump_frames

    rows = frames["dataset_replicas"].sort("dataset_name", "site_name", "kind")
    return dump_frames.as_table(rows, JOB.name, day)


JOB: Final = DumpJob("phedex", {}, replicas=True, build=build, by_dataset=True)
command = JOB.command()
