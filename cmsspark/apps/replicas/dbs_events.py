"""``dbs_events``: events, files and bytes of each dataset in DBS."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Final

from cmsspark.run.dump_day import DumpJob

if TYPE_CHECKING:
    import polars as pl

    from cmsspark.dumps.dump_frames import Frames

DBS: Final = {
    "DATASETS": (
        "dataset_id",
        "dataset",
        "is_dataset_valid",
        "dataset_access_type_id",
        "acquisition_era_id",
        "processing_era_id",
        "physics_group_id",
        "creation_date",
    ),
    "FILES": (
        "logical_file_name",
        "file_id",
        "dataset_id",
        "is_file_valid",
        "event_count",
        "file_size",
    ),
    "DATASET_ACCESS_TYPES": ("dataset_access_type_id", "dataset_access_type"),
    "ACQUISITION_ERAS": ("acquisition_era_id", "acquisition_era_name"),
    "PROCESSING_ERAS": ("processing_era_id", "processing_version"),
    "PHYSICS_GROUPS": ("physics_group_id", "physics_group_name"),
    "DATASET_OUTPUT_MOD_CONFIGS": ("dataset_id", "output_mod_config_id"),
    "OUTPUT_MODULE_CONFIGS": ("output_mod_config_id", "release_version_id"),
    "RELEASE_VERSIONS": ("release_version_id", "release_version"),
}


def build(frames: Frames, day: date) -> pl.DataFrame:
    """``schemas/tables/dbs_events.yaml``: one row for each dataset name; datasets
    without files have counts of 0.
    """
    from cmsspark.dumps import dump_frames

    return (
        dump_frames.attributes(frames)
        .join(frames["contents"], "dataset_name", "left")
        .join(dump_frames.releases(frames), "dataset_name", "left")
        .sort("dataset_name")
    )


JOB: Final = DumpJob(
    "dbs_events",
    DBS,
    replicas=False,
    build=build,
    by_dataset=True,
    about="Events, files and bytes of each dataset",
).declare(__name__)
