"""``dbs_phedex``: replicas by dataset, site and kind of storage, with the facts of DBS about the dataset."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Final

from cmsspark.run.dump_day import DumpJob

if TYPE_CHECKING:
    import polars as pl

    from cmsspark.dumps.dump_frames import Frames

DBS: Final = {
    "DATASETS": ("dataset_id", "dataset", "is_dataset_valid", "dataset_access_type_id", "acquisition_era_id"),
    "FILES": ("logical_file_name", "file_id", "dataset_id", "is_file_valid", "event_count", "file_size"),
    "BLOCKS": ("block_name", "dataset_id"),
    "DATASET_ACCESS_TYPES": ("dataset_access_type_id", "dataset_access_type"),
    "ACQUISITION_ERAS": ("acquisition_era_id", "acquisition_era_name"),
    "DATASET_OUTPUT_MOD_CONFIGS": ("dataset_id", "output_mod_config_id"),
    "OUTPUT_MODULE_CONFIGS": ("output_mod_config_id", "release_version_id"),
    "RELEASE_VERSIONS": ("release_version_id", "release_version"),
}


def build(frames: Frames, day: date) -> pl.DataFrame:
    """``schemas/tables/dbs_phedex.yaml``. Joins go to tables with each dataset once and keep every replica row."""
    from cmsspark.dumps import dump_frames

    rows = (
        frames["dataset_replicas"]
        .join(dump_frames.attributes(frames), "dataset_name", "left")
        .join(frames["contents"].rename({"file_count": "dataset_file_count"}), "dataset_name", "left")
        .join(dump_frames.releases(frames), "dataset_name", "left")
        .sort("dataset_name", "site_name", "kind")
    )
    return dump_frames.as_table(rows, JOB.name, day)


JOB: Final = DumpJob("dbs_phedex", DBS, replicas=True, build=build, by_dataset=True)
command = JOB.command()
