"""Answers about what could be deleted: datasets that nobody used for long, by size and last use."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING

from cmsspark.apps.ask.forecast import LIKELY, forecast_or_none
from cmsspark.apps.ask.use import Answer, Part, matching_names, read_frame
from cmsspark.base.errors import InputMissing
from cmsspark.base.text.terminal import pluralize, volume
from cmsspark.filesystems.storage import Files
from cmsspark.store.stored_columns import newest, newest_replicas

if TYPE_CHECKING:
    import polars as pl

_TABLE = "dataset_last_access"


def last_use(files: Files, fout: str, day: date | None) -> pl.DataFrame | None:
    """``dataset_name``, ``last_access_day`` of the newest stored
    ``dataset_last_access``; None where none is stored.
    """
    try:
        _, stored = newest(files, fout, _TABLE, day)
    except InputMissing:
        return None
    return read_frame(files, stored, _TABLE, ["dataset_name", "last_access_day"])


def deletable(files: Files, fout: str, site: str, kind: str, day: date | None) -> Answer:
    """Return the replicas at matching sites of datasets that are candidates for
    deletion, the largest first; where a forecast is stored, without those that are
    likely to be popular.

    A dataset's last use is that of all sites. Raises InputMissing (66) where
    ``dataset_last_access``, or both of ``dbs_rucio`` and ``dbs_phedex``, are not
    stored, and with similar names for an unknown site.
    """
    import polars as pl

    from cmsspark.dumps.dump_frames import date_of_ms

    used_on, of_use = newest(files, fout, _TABLE, day)
    as_of, stored, table = newest_replicas(files, fout, day)
    replicas = read_frame(
        files,
        stored,
        table,
        ["dataset_name", "site_name", "kind", "present_bytes", "newest_replica_ms"],
    )
    sites = matching_names(
        site, replicas["site_name"].unique(), "site_name", f"{fout}, {table} of {as_of}"
    )
    is_present = (
        pl.col("site_name").is_in(sites) & (pl.col("kind") == kind) & (pl.col("present_bytes") > 0)
    )
    present = replicas.filter(is_present)
    candidates = read_frame(
        files, of_use, _TABLE, ["dataset_name", "state", "last_access_day", "is_candidate"]
    )
    candidates = candidates.filter("is_candidate")
    forecast = forecast_or_none(files, fout, day)
    about_forecast: list[str] = []
    if forecast is not None:
        likely = forecast.rows.filter(pl.col("probability") >= LIKELY).select("dataset_name")
        unlikely = candidates.join(likely, "dataset_name", "anti")
        count = candidates.height - unlikely.height
        about_forecast = [
            f"{count:,} candidates are left out: likely to be popular from {forecast.day} on"
        ]
        about_forecast += forecast.facts()
        candidates = unlikely
    rows = (
        present.join(candidates, "dataset_name")
        .with_columns(date_of_ms("newest_replica_ms").alias("newest_replica"))
        .sort(
            "present_bytes",
            "last_access_day",
            "dataset_name",
            "site_name",
            descending=[True, False, False, False],
        )
    )
    total, all_bytes = (
        int(frame["present_bytes"].cast(pl.Int128).sum()) for frame in (rows, present)
    )
    facts = [
        f"{rows.height:,} of {pluralize(present.height, 'dataset')} at sites, {volume(total)} of {volume(all_bytes)}",
        f"last use as of {used_on}, over all sites; replicas as of {as_of}",
        *about_forecast,
    ]
    by_state = (
        rows.group_by("state")
        .agg(
            pl.col("present_bytes").cast(pl.Int128).sum(),
            pl.len().cast(pl.Int64).alias("replica_count"),
        )
        .sort("present_bytes", "state", descending=[True, False])
        .select("present_bytes", "replica_count", "state")
    )
    shown = rows.select(
        "present_bytes", "last_access_day", "newest_replica", "state", "site_name", "dataset_name"
    )
    summary = {
        "site": site,
        "kind": kind,
        "last_use_as_of": used_on,
        "replicas_as_of": as_of,
        "total_bytes": total,
        "replica_count": rows.height,
        "forecast": None if forecast is None else forecast.summary(),
    }
    parts = [
        Part.from_frame("by use", "by_use", by_state),
        Part.from_frame("the largest", "rows", shown),
    ]
    return Answer(f"could go from {kind} at {site}, as of {as_of}", facts, parts, summary)
