"""``catalogue_check``: Rucio's files, blocks and sizes beside those of DBS (rule 27)."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Final

from cmsspark.run.dump_day import DumpJob

if TYPE_CHECKING:
    import polars as pl

    from cmsspark.dumps.dump_frames import Frames

DBS: Final = {
    "DATASETS": ("dataset_id", "dataset"),
    "BLOCKS": ("block_id", "block_name"),
    "FILES": ("logical_file_name", "file_id", "dataset_id", "block_id", "is_file_valid", "file_size"),
}


def build(frames: Frames, day: date) -> pl.DataFrame:
    """Return ``schemas/tables/catalogue_check.yaml``."""
    from cmsspark.dumps import dump_frames

    return dump_frames.as_table(frames["differences"].sort("difference", "dataset_name"), JOB.name, day)


JOB: Final = DumpJob("catalogue_check", DBS, replicas=True, build=build, rucio_frames=("rse_sums", "differences"))
command = JOB.command()
