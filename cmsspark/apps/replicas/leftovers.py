"""``leftovers``: datasets with replicas that DBS does not want, and valid ones without any replica (rule 40)."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Final

from cmsspark.run.dump_day import DumpJob

if TYPE_CHECKING:
    import polars as pl

    from cmsspark.dumps.dump_frames import Frames

DBS: Final = {
    "DATASETS": ("dataset_id", "dataset", "is_dataset_valid", "dataset_access_type_id"),
    "FILES": ("logical_file_name", "file_id", "dataset_id", "is_file_valid", "event_count", "file_size"),
    "DATASET_ACCESS_TYPES": ("dataset_access_type_id", "dataset_access_type"),
}
#: Access types of datasets that are not valid.
_NOT_VALID: Final = ("INVALID", "DEPRECATED", "DELETED")


def build(frames: Frames, day: date) -> pl.DataFrame:
    """Return ``schemas/tables/leftovers.yaml``."""
    import polars as pl

    from cmsspark.dumps import dump_frames

    replicas = dump_frames.by_dataset(frames["dataset_replicas"])
    of_dbs = dump_frames.attributes(frames).with_columns(in_dbs=pl.lit(value=True))
    rows = replicas.join(of_dbs, "dataset_name", "full", coalesce=True).join(frames["contents"], "dataset_name", "left")
    is_there, access_type = pl.col("site_count").is_not_null(), pl.col("access_type")
    not_valid = access_type.is_in(_NOT_VALID) | (access_type.is_null() & ~pl.col("is_valid"))
    has_valid_file = pl.col("file_count") > pl.col("invalid_file_count")
    state = (
        pl.when(is_there & pl.col("in_dbs").is_null()).then(pl.lit("orphan"))
        .when(is_there & not_valid).then(pl.lit("not_valid"))
        .when(~is_there & (access_type == "VALID") & pl.col("is_valid") & has_valid_file).then(pl.lit("missing"))
    )  # fmt: skip
    chosen = rows.with_columns(state=state).filter(pl.col("state").is_not_null()).sort("state", "dataset_name")
    named = dump_frames.with_derived(chosen, ("data_tier", "campaign"))
    rows = named.with_columns(
        pl.col("data_tier", "campaign").fill_null(""),
        *(pl.col(name).fill_null(0) for name in ("site_count", "disk_bytes", "tape_bytes")),
        pl.col("present_file_count").fill_null(0).alias("file_count"),
        pl.col("file_count").alias("dbs_file_count"),
        pl.col("dataset_bytes").alias("dbs_bytes"),
    )
    return dump_frames.as_table(rows, JOB.name, day)


JOB: Final = DumpJob("leftovers", DBS, replicas=True, build=build)
command = JOB.command()
