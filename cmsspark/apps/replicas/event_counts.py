"""``event_counts``: blocks, files, events and bytes by month of the block, tier and
campaign (rule 39).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from cmsspark.cli.options import listed
from cmsspark.dumps.event_sums import DBS, month_sums, summed
from cmsspark.run.dump_day import DumpJob
from cmsspark.settings.settings import EVENT_COUNTS_WITHOUT, Settings

if TYPE_CHECKING:
    import polars as pl

    from cmsspark.dumps.dump_frames import Frames

_KEYS: Final = ("month", "data_tier", "campaign")


def build(frames: Frames, day: date, without: Sequence[str], skims: Sequence[str]) -> pl.DataFrame:
    """Return ``schemas/tables/event_counts.yaml``."""
    import polars as pl

    return summed(month_sums(frames, without, skims).filter(~pl.col("is_left_out")), _KEYS)


def _manifest(frames: Frames, without: Sequence[str], skims: Sequence[str]) -> dict[str, Any]:
    """Return how many blocks the words leave out."""
    left_out = int(month_sums(frames, without).filter("is_left_out")["block_count"].sum())
    return {
        "event_counts": {
            "without": list(without),
            "skims": list(skims),
            "blocks_left_out": left_out,
        }
    }


def configured(options: Mapping[str, Any], settings: Settings) -> DumpJob:
    """Return the job for its options and the settings."""
    without, skims = settings.event_counts_without, listed(options.get("skims"))
    return replace(
        JOB,
        block_contents="valid" if options["valid_files"] else "all",
        build=partial(build, without=without, skims=skims),
        manifest=partial(_manifest, without=without, skims=skims),
    )


JOB: Final = DumpJob(
    "event_counts",
    DBS,
    replicas=False,
    build=partial(build, without=EVENT_COUNTS_WITHOUT, skims=()),
    block_contents="all",
    manifest=partial(_manifest, without=EVENT_COUNTS_WITHOUT, skims=()),
    options=(
        click.option("--valid-files", is_flag=True, help="Count only files that are valid."),
        click.option(
            "--skims",
            metavar="LIST",
            help="Count datasets whose processed name has -SKIM- as TIER/SKIM.",
        ),
    ),
    configured=configured,
    about="Blocks, files, events and bytes by month, data tier and campaign",
).declare(__name__)
