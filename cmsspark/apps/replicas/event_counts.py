"""``event_counts``: blocks, files, events and bytes by the month in which DBS got the block, tier and campaign (rule
39).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from cmsspark.run.dump_day import DumpJob
from cmsspark.settings.settings import EVENT_COUNTS_WITHOUT, Settings

if TYPE_CHECKING:
    import polars as pl

    from cmsspark.dumps.dump_frames import Frames

DBS: Final = {
    "DATASETS": ("dataset_id", "dataset", "is_dataset_valid"),
    "BLOCKS": ("block_id", "block_name", "dataset_id", "creation_date"),
    "FILES": (
        *("logical_file_name", "file_id", "dataset_id", "block_id", "is_file_valid", "event_count", "file_size"),
    ),
}
_KEYS: Final = ("month", "data_tier", "campaign")


def build(frames: Frames, day: date) -> pl.DataFrame:
    """``schemas/tables/event_counts.yaml``."""
    import polars as pl

    from cmsspark.dumps import dump_frames

    rows = month_sums(frames).filter(~pl.col("is_left_out"))
    summed = dump_frames.in_64_bits(
        rows.group_by(_KEYS).agg(
            *(dump_frames.exact_sum(name) for name in ("block_count", "file_count", "events", "bytes")),
        )
    )
    counts = [pl.col(name).fill_null(0) for name in ("file_count", "bytes")]
    return dump_frames.as_table(summed.with_columns(counts).sort(_KEYS), JOB.name, day)


def month_sums(frames: Frames) -> pl.DataFrame:
    """The sums of blocks of valid datasets by dataset and month, and whether words in their names leave them out."""
    import polars as pl

    from cmsspark.dumps import dump_frames

    without = frames["without"]["word"].to_list()
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
    named = dump_frames.with_derived(rows, ("data_tier", "processing_name"))
    return named.with_columns(
        pl.col("data_tier").fill_null(""),
        dump_frames.campaign(),
        is_left_out.alias("is_left_out"),
    )


def _manifest(frames: Frames) -> dict[str, Any]:
    """How many blocks the words leave out."""
    left_out = int(month_sums(frames).filter("is_left_out")["block_count"].sum())
    return {"event_counts": {"without": frames["without"]["word"].to_list(), "blocks_left_out": left_out}}


def _more(words: Sequence[str], *_: Any) -> dict[str, pl.DataFrame]:
    import polars as pl

    return {"without": pl.DataFrame({"word": list(words)}, schema={"word": pl.String})}


def configured(options: Mapping[str, Any], settings: Settings) -> DumpJob:
    """The job for its options and the settings."""
    return replace(
        JOB,
        block_contents="valid" if options["valid_files"] else "all",
        more=partial(_more, settings.event_counts_without),
    )


JOB: Final = DumpJob(
    "event_counts",
    DBS,
    replicas=False,
    build=build,
    block_contents="all",
    more=partial(_more, EVENT_COUNTS_WITHOUT),
    manifest=_manifest,
    options=(click.option("--valid-files", is_flag=True, help="Count only files that are valid."),),
    configured=configured,
)
command = JOB.command()
