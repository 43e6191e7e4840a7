"""Jobs on replicas without options of their own: the tables of DBS that each reads, and
how its rows are made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click
from msgspec.structs import replace

from cmsspark.cli.options import listed
from cmsspark.dumps.event_sums import DBS, month_sums, summed
from cmsspark.run.dump_day import DumpJob
from cmsspark.settings.settings import EVENT_COUNTS_WITHOUT, Settings

if TYPE_CHECKING:
    import polars as pl

    from cmsspark.dumps.dump_frames import Frames


_FILES: Final = (
    "logical_file_name",
    "file_id",
    "dataset_id",
    "is_file_valid",
    "event_count",
    "file_size",
)
#: Access types of datasets that are not valid.
_NOT_VALID: Final = ("INVALID", "DEPRECATED", "DELETED")


def _with_facts(frames: Frames, day: date) -> pl.DataFrame:
    """Return each replica with the facts of DBS. Joins go to tables with each dataset
    once and keep every row.
    """
    from cmsspark.dumps import dump_frames

    return (
        frames["dataset_replicas"]
        .join(dump_frames.attributes(frames), "dataset_name", "left")
        .join(
            frames["contents"].rename({"file_count": "dataset_file_count"}), "dataset_name", "left"
        )
        .join(dump_frames.releases(frames), "dataset_name", "left")
        .sort("dataset_name", "site_name", "kind")
    )


def _leftovers(frames: Frames, day: date) -> pl.DataFrame:
    """Return datasets with replicas that DBS does not want, and valid ones without any
    replica (rule 40).
    """
    import polars as pl

    from cmsspark.dumps import dump_frames

    replicas = dump_frames.by_dataset(frames["dataset_replicas"])
    of_dbs = dump_frames.attributes(frames).with_columns(in_dbs=pl.lit(value=True))
    rows = replicas.join(of_dbs, "dataset_name", "full", coalesce=True).join(
        frames["contents"], "dataset_name", "left"
    )
    is_there, access_type = pl.col("site_count").is_not_null(), pl.col("access_type")
    not_valid = access_type.is_in(_NOT_VALID) | (access_type.is_null() & ~pl.col("is_valid"))
    has_valid_file = pl.col("file_count") > pl.col("invalid_file_count")
    state = (
        pl.when(is_there & pl.col("in_dbs").is_null())
        .then(pl.lit("orphan"))
        .when(is_there & not_valid)
        .then(pl.lit("not_valid"))
        .when(~is_there & (access_type == "VALID") & pl.col("is_valid") & has_valid_file)
        .then(pl.lit("missing"))
    )
    chosen = (
        rows.with_columns(state=state)
        .filter(pl.col("state").is_not_null())
        .sort("state", "dataset_name")
    )
    named = dump_frames.with_derived(chosen, ("data_tier", "campaign"))
    return named.with_columns(
        pl.col("data_tier", "campaign").fill_null(""),
        *(pl.col(name).fill_null(0) for name in ("site_count", "disk_bytes", "tape_bytes")),
        pl.col("present_file_count").fill_null(0).alias("file_count"),
        pl.col("file_count").alias("dbs_file_count"),
        pl.col("dataset_bytes").alias("dbs_bytes"),
    )


#: The replica snapshot of a day per site, kind of storage and dataset; the days make the history.
PHEDEX: Final = DumpJob(
    "phedex",
    {},
    replicas=True,
    by_dataset=True,
    build=lambda frames, day: frames["dataset_replicas"].sort("dataset_name", "site_name", "kind"),
    about="The replica snapshot of a day by site and dataset",
).declare(__name__)
#: Replicas by dataset, site and kind of storage, with the facts of DBS about the dataset.
DBS_PHEDEX: Final = DumpJob(
    "dbs_phedex",
    {
        "DATASETS": (
            "dataset_id",
            "dataset",
            "is_dataset_valid",
            "dataset_access_type_id",
            "acquisition_era_id",
        ),
        "FILES": (*_FILES, "block_id"),
        "BLOCKS": ("block_name", "dataset_id", "block_id"),
        "DATASET_ACCESS_TYPES": ("dataset_access_type_id", "dataset_access_type"),
        "ACQUISITION_ERAS": ("acquisition_era_id", "acquisition_era_name"),
        "DATASET_OUTPUT_MOD_CONFIGS": ("dataset_id", "output_mod_config_id"),
        "OUTPUT_MODULE_CONFIGS": ("output_mod_config_id", "release_version_id"),
        "RELEASE_VERSIONS": ("release_version_id", "release_version"),
    },
    replicas=True,
    build=_with_facts,
    by_dataset=True,
    about="Replicas: datasets by site and kind of storage",
).declare(__name__)
#: The same of Rucio's replicas only. ``dbs_phedex`` reads Rucio, too, on the days that
#: Rucio serves.
DBS_RUCIO: Final = replace(
    DBS_PHEDEX,
    name="dbs_rucio",
    is_of_rucio=True,
    about="Replicas by Rucio: datasets by site and kind of storage",
).declare(__name__)
LEFTOVERS: Final = DumpJob(
    "leftovers",
    {
        "DATASETS": ("dataset_id", "dataset", "is_dataset_valid", "dataset_access_type_id"),
        "FILES": _FILES,
        "DATASET_ACCESS_TYPES": ("dataset_access_type_id", "dataset_access_type"),
    },
    replicas=True,
    build=_leftovers,
    about="Replicas of datasets that are not valid in DBS, and valid datasets without replicas",
).declare(__name__)
#: Files and bytes at each RSE by dataset: what is there, new, accessed (rule 34).
RUCIO_DAILY: Final = DumpJob(
    "rucio_daily",
    {},
    replicas=True,
    rucio_frames=("rse_sums",),
    build=lambda frames, day: frames["rse_sums"].sort("rse", "dataset_name"),
    about="Files at each storage element of Rucio by dataset: there, new, accessed",
).declare(__name__)
#: Rucio's files, blocks and sizes beside those of DBS (rule 27).
CATALOGUE_CHECK: Final = DumpJob(
    "catalogue_check",
    {
        "DATASETS": ("dataset_id", "dataset"),
        "BLOCKS": ("block_id", "block_name"),
        "FILES": (
            "logical_file_name",
            "file_id",
            "dataset_id",
            "block_id",
            "is_file_valid",
            "file_size",
        ),
    },
    replicas=True,
    build=lambda frames, day: frames["differences"].sort("difference", "dataset_name"),
    rucio_frames=("rse_sums", "differences"),
    about="Files, blocks and sizes of Rucio beside those of DBS",
).declare(__name__)


# ``event_counts``: blocks, files, events and bytes by month of the block, tier and
# campaign (rule 39).

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
