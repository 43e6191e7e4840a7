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

from cmsspark.pipeline.dump_day import DumpJob
from cmsspark.settings import EVENT_COUNTS_WITHOUT, Settings

if TYPE_CHECKING:
    import polars as pl

    from cmsspark.kernel.dump_frames import Frames

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

    from cmsspark.kernel import dump_frames

    skims = frames["skims"]["word"].to_list()
    rows = month_sums(frames, frames["without"]["word"].to_list(), skims).filter(~pl.col("is_left_out"))
    return dump_frames.as_table(summed(rows, _KEYS), JOB.name, day)


def summed(rows: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """Return the sums of some keys, sorted. Raises DataError (65) where one does not fit 64 bits."""
    import polars as pl

    from cmsspark.kernel import dump_frames

    sums = (dump_frames.exact_sum(name) for name in ("block_count", "file_count", "events", "bytes"))
    counts = [pl.col(name).fill_null(0) for name in ("file_count", "bytes")]
    return dump_frames.in_64_bits(rows.group_by(keys).agg(*sums)).with_columns(counts).sort(keys)


def month_sums(frames: Frames, without: Sequence[str], skims: Sequence[str] = ()) -> pl.DataFrame:
    """Return the sums of blocks of valid datasets by dataset and month, and whether their names have a word of
    ``without``. The data tier of a dataset whose processed name has ``-SKIM-`` is ``TIER/SKIM``, for the first of
    ``skims`` (rule 59).
    """
    import polars as pl

    from cmsspark.kernel import dump_frames

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
    tier = pl.col("data_tier").fill_null("")
    with_skim = tier
    for skim in reversed(skims):
        has_skim = pl.col("processing_name").str.contains(f"-{skim}-", literal=True)
        with_skim = pl.when(has_skim.fill_null(value=False)).then(tier + f"/{skim}").otherwise(with_skim)
    return named.with_columns(
        with_skim.alias("data_tier"),
        dump_frames.campaign(),
        is_left_out.alias("is_left_out"),
    )


def _manifest(frames: Frames) -> dict[str, Any]:
    """How many blocks the words leave out."""
    without, skims = (frames[name]["word"].to_list() for name in ("without", "skims"))
    left_out = int(month_sums(frames, without).filter("is_left_out")["block_count"].sum())
    return {"event_counts": {"without": without, "skims": skims, "blocks_left_out": left_out}}


def _more(words: Sequence[str], skims: Sequence[str], *_: Any) -> dict[str, pl.DataFrame]:
    import polars as pl

    schema = {"word": pl.String}
    return {
        "without": pl.DataFrame({"word": list(words)}, schema=schema),
        "skims": pl.DataFrame({"word": list(skims)}, schema=schema),
    }


def listed(text: str | None) -> tuple[str, ...]:
    """Return the names of a list with commas, each once."""
    return tuple(dict.fromkeys(name.strip() for name in (text or "").split(",") if name.strip()))


def configured(options: Mapping[str, Any], settings: Settings) -> DumpJob:
    """The job for its options and the settings."""
    return replace(
        JOB,
        block_contents="valid" if options["valid_files"] else "all",
        more=partial(_more, settings.event_counts_without, listed(options.get("skims"))),
    )


JOB: Final = DumpJob(
    "event_counts",
    DBS,
    replicas=False,
    build=build,
    block_contents="all",
    more=partial(_more, EVENT_COUNTS_WITHOUT, ()),
    manifest=_manifest,
    options=(
        click.option("--valid-files", is_flag=True, help="Count only files that are valid."),
        click.option("--skims", metavar="LIST", help="Count datasets whose processed name has -SKIM- as TIER/SKIM."),
    ),
    configured=configured,
)
command = JOB.command()
