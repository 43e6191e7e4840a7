"""``dataset_rses``: datasets at storage elements of Rucio: how complete they are, which
rules hold them, what is a last copy, and what may go (rules 66, 67 and 76).
"""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Any, Final

from cmsspark.apps.replicas.dataset_last_access import log_last_accesses
from cmsspark.base.errors import DataError
from cmsspark.run.dump_day import DumpJob

if TYPE_CHECKING:
    import polars as pl

    from cmsspark.dumps.dump_frames import Frames
    from cmsspark.filesystems.storage import Files
    from cmsspark.run.request import JobRequest


def build(frames: Frames, day: date) -> pl.DataFrame:
    """Return ``schemas/tables/dataset_rses.yaml``."""
    import polars as pl

    from cmsspark.dumps import dump_frames

    present, expected = pl.col("dbs_present_count"), pl.col("dbs_file_count")
    lock_blocks, blocks = pl.col("lock_blocks"), pl.col("dataset_block_count")
    state = (
        pl.when((lock_blocks == 0) & (pl.col("locked_file_count") == 0))
        .then(pl.lit("none"))
        .when((blocks > 0) & (lock_blocks >= blocks))
        .then(pl.lit("full"))
        .otherwise(pl.lit("partial"))
    )
    rows = frames["copies"].with_columns(
        is_complete=pl.when(expected > 0).then(present == expected), lock_state=state
    )
    read = frames["log_last_access"].rename({"log_last_access_day": "log_last_access"})
    named = dump_frames.with_derived(rows, ("data_tier",)).with_columns(
        pl.col("data_tier").fill_null("")
    )
    return named.join(read, ["dataset_name", "site_name"], "left").sort("rse", "dataset_name")


def checks(frames: Frames) -> dict[str, Any]:
    """Return the checks of rule 76 for the manifest. Raises DataError (65) where one of
    them does not hold.
    """
    import polars as pl

    copies, by_rse = frames["copies"], frames["copies_by_rse"]
    counts = frames["copy_checks"].row(0, named=True)
    size = pl.col("bytes")
    sums = copies.group_by("rse").agg(
        pl.col("file_count").sum().alias("row_file_count"),
        size.cast(pl.Int128).sum().alias("row_bytes"),
    )
    # Elements that have locks alone have no file.
    compared = by_rse.join(sums, "rse", "left").with_columns(
        pl.col("row_file_count", "row_bytes").fill_null(0)
    )
    differs = compared.filter(
        (pl.col("row_file_count") + pl.col("loose_file_count") != pl.col("file_count"))
        | (pl.col("row_bytes") + pl.col("loose_bytes") != size)
    )
    free = size - pl.col("locked_bytes")
    failed = {
        "rses_with_other_sums": differs.height,
        "rows_locked_beyond_bytes": copies.filter(free < 0).height,
        "rows_deletable_beyond_bytes": copies.filter(
            (pl.col("deletable_bytes") > free) | (pl.col("deletable_disk_bytes") > free)
        ).height,
        "files_lost": counts["lost"],
        "last_copies_deletable": counts["only_and_deletable"],
    }
    failures = [f"{name} {count:,}" for name, count in failed.items() if count]
    if failures:
        raise DataError(
            "dataset_rses: what may go and what is there do not add up",
            found=", ".join(failures),
            next_step="report it with the dump's day; nothing is stored",
        )
    no_block = by_rse.select(
        pl.col("loose_file_count").sum().alias("file_count"),
        pl.col("loose_bytes").cast(pl.Int128).sum().alias("bytes"),
    )
    in_no_block = {name: int(value) for name, value in no_block.row(0, named=True).items()}
    return {
        "checks": failed
        | {
            "files_with_copy": counts["files"],
            "files_in_no_block": in_no_block,
            "locks": counts["locks"],
            "locks_without_rule": counts["without_rule"],
        }
    }


def log_last_access(files: Files, request: JobRequest) -> dict[str, pl.DataFrame]:
    """Return the last stored day with an access to each dataset at each site."""
    return log_last_accesses(files, request, ("dataset_name", "site_name"))


JOB: Final = DumpJob(
    "dataset_rses",
    {
        "DATASETS": ("dataset_id", "dataset"),
        "FILES": ("logical_file_name", "file_id", "dataset_id", "is_file_valid"),
    },
    replicas=True,
    build=build,
    rucio=("DATASET_LOCKS", "RULES"),
    rucio_frames=("copies",),
    more=log_last_access,
    manifest=checks,
    by_dataset=True,
    after=("data_aggregation",),
    about="Datasets at storage elements: how complete, what rules hold, what may go",
).declare(__name__)
