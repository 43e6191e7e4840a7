"""``dataset_last_access``: when each dataset with replicas was last used, by Rucio and
by the logs (rule 35).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click
from msgspec.structs import replace

from cmsspark.base import dates
from cmsspark.base.schemas import stored_table
from cmsspark.run.dump_day import DumpJob
from cmsspark.settings.settings import Settings
from cmsspark.store.own_jobs import JOBS

if TYPE_CHECKING:
    import polars as pl

    from cmsspark.dumps.dump_frames import Frames
    from cmsspark.filesystems.storage import Files
    from cmsspark.run.request import JobRequest

MONTHS: Final = 12
_COPIES: Final = "dataset_rses"


def build(frames: Frames, day: date, months: int = MONTHS) -> pl.DataFrame:
    """``schemas/tables/dataset_last_access.yaml``. A dataset is a candidate for
    deletion where nobody read it since ``months`` before the day, no replica is newer
    and, where ``dataset_rses`` of the day is stored, something of it may go.
    """
    import polars as pl

    from cmsspark.dumps import dump_frames

    cutoff = dates.months_before(day, months)
    rows = (
        dump_frames.by_dataset(frames["dataset_replicas"])
        .join(frames["last_access"], "dataset_name", "left")
        .join(frames["log_last_access"], "dataset_name", "left")
        .sort("dataset_name")
    )
    of_rucio = dump_frames.date_of_ms("rucio_last_access_ms")
    dated = rows.with_columns(last_access_day=pl.max_horizontal(of_rucio, "log_last_access_day"))
    last, newest = pl.col("last_access_day"), pl.col("newest_replica_ms")
    state = (
        pl.when(last.is_null()).then(pl.lit("never")).when(last < cutoff).then(pl.lit("unread"))
    )
    named = dump_frames.with_derived(
        dated.with_columns(state=state.otherwise(pl.lit("read"))), ("data_tier",)
    )
    is_old = newest.is_null() | (newest < dates.start_ms(cutoff))
    free = pl.col("deletable_bytes")
    if "deletable" in frames:
        # A dataset that the locks have no row of has nothing to go.
        named = named.join(
            frames["deletable"], "dataset_name", "left", maintain_order="left"
        ).with_columns(free.fill_null(0))
    else:
        named = named.with_columns(deletable_bytes=pl.lit(None, pl.Int64))
    return named.with_columns(
        pl.col("data_tier").fill_null(""),
        is_candidate=(pl.col("state") != "read") & is_old & (free.is_null() | (free > 0)),
    )


def _more(files: Files, request: JobRequest) -> dict[str, pl.DataFrame]:
    return log_last_access(files, request) | deletable_bytes(files, request)


def _entries(frames: Frames) -> dict[str, Any]:
    """Return a warning where the locks of the day are not known."""
    if "deletable" in frames:
        return {}
    text = (
        f"{_COPIES} of this day is not stored: deletable_bytes is null, and is_candidate ignores"
        f" rules and last copies; run_spark {_COPIES}, then this job again"
    )
    return {"warnings": [text]}


def deletable_bytes(files: Files, request: JobRequest) -> dict[str, pl.DataFrame]:
    """Return how much of each dataset may go, by ``dataset_rses`` of the day; no frame
    where it is not stored.
    """
    import polars as pl

    from cmsspark.dumps.dump_frames import exact_sum, in_64_bits
    from cmsspark.store import results
    from cmsspark.store.stored_columns import stored_days, table_rows

    if request.day not in stored_days(files, request.fout, _COPIES):
        return {}
    current = results.current(files, request.fout, _COPIES, _COPIES, request.day)
    columns = ["dataset_name", "deletable_bytes"]
    stored = pl.from_arrow(table_rows(files, current, _COPIES, columns))
    assert isinstance(stored, pl.DataFrame)
    sums = stored.group_by("dataset_name").agg(exact_sum("deletable_bytes"))
    return {"deletable": in_64_bits(sums)}


def log_last_access(files: Files, request: JobRequest) -> dict[str, pl.DataFrame]:
    """Return the last stored day with an access to each dataset."""
    return log_last_accesses(files, request, ("dataset_name",))


def log_last_accesses(
    files: Files, request: JobRequest, keys: Sequence[str]
) -> dict[str, pl.DataFrame]:
    """Return the last stored day, up to the request's, on which a log of any stream has
    an access by ``keys``: to each dataset, or to each at each site.
    """
    import polars as pl

    from cmsspark.store import results
    from cmsspark.store.stored_columns import stored_days, table_rows

    last_access = pl.DataFrame(
        schema={**dict.fromkeys(keys, pl.String), "log_last_access_day": pl.Date}
    )
    tables = [job.tables[0] for job in JOBS.values() if job.streams]
    tables = [table for table in tables if {*keys, "nacc"} <= set(stored_table(table).names)]
    stored = [(day, table) for table in tables for day in stored_days(files, request.fout, table)]
    for day, table in stored:
        if day > request.day:
            continue
        current = results.current(files, request.fout, table, table, day)
        read = pl.from_arrow(table_rows(files, current, table, [*keys, "nacc"]))
        assert isinstance(read, pl.DataFrame)
        names = read.filter(pl.col("nacc") > 0).select(keys).drop_nulls().unique()
        of_day = names.with_columns(log_last_access_day=pl.lit(day))
        last_access = (
            pl.concat([last_access, of_day])
            .group_by(keys)
            .agg(pl.col("log_last_access_day").max())
        )
    return {"log_last_access": last_access}


def configured(options: Mapping[str, Any], settings: Settings) -> DumpJob:
    """Return the job for its options."""
    del settings
    return replace(JOB, build=partial(build, months=options["months"]))


JOB: Final = DumpJob(
    "dataset_last_access",
    {},
    replicas=True,
    build=build,
    rucio=("DIDS",),
    rucio_frames=("rse_sums", "last_access"),
    more=_more,
    manifest=_entries,
    after=("data_aggregation", _COPIES),
    options=(
        click.option(
            "--months",
            type=click.IntRange(1, 1200),
            default=MONTHS,
            show_default=True,
            help="Datasets that nobody read for so many months are candidates for deletion.",
        ),
    ),
    configured=configured,
    about="When each dataset was last used, and which could be deleted",
).declare(__name__)
