"""Events of DBS by month and data tier: the sums of blocks of valid datasets (rules 39 and 59)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import polars as pl

    from cmsspark.dumps.dump_frames import Frames

#: The columns of DBS that the sums need.
DBS: Final = {
    "DATASETS": ("dataset_id", "dataset", "is_dataset_valid"),
    "BLOCKS": ("block_id", "block_name", "dataset_id", "creation_date"),
    "FILES": (
        *(
            "logical_file_name",
            "file_id",
            "dataset_id",
            "block_id",
            "is_file_valid",
            "event_count",
            "file_size",
        ),
    ),
}


def summed(rows: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """Return the sums of some keys, sorted. Raises DataError (65) if one does not fit 64 bits."""
    import polars as pl

    from cmsspark.dumps import dump_frames

    sums = (
        dump_frames.exact_sum(name) for name in ("block_count", "file_count", "events", "bytes")
    )
    counts = [pl.col(name).fill_null(0) for name in ("file_count", "bytes")]
    return dump_frames.in_64_bits(rows.group_by(keys).agg(*sums)).with_columns(counts).sort(keys)


def month_sums(frames: Frames, without: Sequence[str], skims: Sequence[str] = ()) -> pl.DataFrame:
    """Return the sums of blocks of valid datasets by dataset and month, and whether
    their names have a word of ``without``. The data tier of a dataset whose processed
    name has ``-SKIM-`` is ``TIER/SKIM``, for the first of ``skims`` (rule 59).
    """
    import polars as pl

    from cmsspark.dumps import dump_frames

    datasets = dump_frames.attributes(frames).filter(pl.col("is_valid"))
    name = pl.col("dataset_name").str.to_lowercase()
    is_left_out = pl.any_horizontal(
        pl.lit(value=False), *(name.str.contains(word.lower(), literal=True) for word in without)
    )
    rows = (
        frames["block_sums"]
        .join(dump_frames.identities(frames["DATASETS"]), "dataset_id")
        .join(datasets.select("dataset_name"), "dataset_name")
    )
    named = dump_frames.with_derived(rows, ("data_tier", "processing_name", "campaign"))
    tier = pl.col("data_tier").fill_null("")
    with_skim = tier
    for skim in reversed(skims):
        has_skim = pl.col("processing_name").str.contains(f"-{skim}-", literal=True)
        with_skim = (
            pl.when(has_skim.fill_null(value=False)).then(tier + f"/{skim}").otherwise(with_skim)
        )
    return named.with_columns(
        with_skim.alias("data_tier"),
        pl.col("campaign").fill_null(""),
        is_left_out.alias("is_left_out"),
    )
