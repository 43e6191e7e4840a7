"""``dbs_events``: events, files and bytes of each dataset in DBS."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Final

from cmsspark import days
from cmsspark.columns import derived
from cmsspark.jobs.on_dumps import DumpJob, Tables
from cmsspark.schemas import stored_table
from cmsspark.transforms import datasets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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
    "FILES": ("logical_file_name", "file_id", "dataset_id", "is_file_valid", "event_count", "file_size"),
    "DATASET_ACCESS_TYPES": ("dataset_access_type_id", "dataset_access_type"),
    "ACQUISITION_ERAS": ("acquisition_era_id", "acquisition_era_name"),
    "PROCESSING_ERAS": ("processing_era_id", "processing_version"),
    "PHYSICS_GROUPS": ("physics_group_id", "physics_group_name"),
    "DATASET_OUTPUT_MOD_CONFIGS": ("dataset_id", "output_mod_config_id"),
    "OUTPUT_MODULE_CONFIGS": ("output_mod_config_id", "release_version_id"),
    "RELEASE_VERSIONS": ("release_version_id", "release_version"),
}


def build(tables: Tables, day: date) -> DataFrame:
    """``schemas/tables/dbs_events.yaml``: one row for each dataset name; datasets without files have counts of 0."""
    from pyspark.sql import functions as F

    known = datasets.identities(tables["DATASETS"])
    rows = (
        datasets.attributes(tables)
        .join(datasets.contents(tables["FILES"], known), "dataset_name", "left")
        .join(datasets.releases(tables, known), "dataset_name", "left")
    )
    made = {
        "day": F.lit(day),
        "primary_name": derived("primary_name"),
        "processing_name": derived("processing_name"),
        "data_tier": derived("data_tier"),
        "timestamp": F.lit(days.start_ms(day)).cast("long"),
    }
    return rows.select(*(made.get(name, F.col(name)).alias(name) for name in stored_table("dbs_events").names))


JOB: Final = DumpJob("dbs_events", DBS, replicas=False, build=build)
command = JOB.command()
