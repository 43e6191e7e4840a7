"""``catalogue_check``: Rucio's files, blocks and sizes beside those of DBS (rule 27)."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Any, Final

from cmsspark import days
from cmsspark.pipeline.dump_day import DumpJob

if TYPE_CHECKING:
    import polars as pl

    from cmsspark.kernel.dump_frames import Frames

DBS: Final = {
    "DATASETS": ("dataset_id", "dataset"),
    "BLOCKS": ("block_id", "block_name"),
    "FILES": ("logical_file_name", "file_id", "dataset_id", "block_id", "is_file_valid", "file_size"),
}


def build(frames: Frames, day: date) -> pl.DataFrame:
    """``schemas/tables/catalogue_check.yaml``."""
    import polars as pl

    rows = frames["differences"].sort("difference", "dataset_name")
    return rows.with_columns(day=pl.lit(day), timestamp=pl.lit(days.start_ms(day), pl.Int64))


def _reads(*_: Any, **__: Any) -> dict[str, pl.DataFrame]:
    """No frame: both catalogues are compared on disk."""
    return {}


JOB: Final = DumpJob(
    "catalogue_check", DBS, replicas=True, build=build, reads=_reads, rucio_frames=("rse_sums", "differences")
)
command = JOB.command()
