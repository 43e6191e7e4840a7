"""Answers about replicas, from the jobs on dumps: how much the sites of a tier hold,
and what nobody reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any, Final

from cmsspark.apps.ask.deletion import last_use
from cmsspark.apps.ask.use import (
    Answer,
    Part,
    matching_names,
    page_address,
    read_frame,
    window_dict,
)
from cmsspark.base.errors import UsageError
from cmsspark.base.text.terminal import pluralize, volume
from cmsspark.filesystems.storage import Files
from cmsspark.sources.registry import STREAMS_OF_JOBS
from cmsspark.store.stored_columns import newest, newest_replicas
from cmsspark.store.stored_days import StoredDays

if TYPE_CHECKING:
    import polars as pl

_SUMS: Final = (
    "replica_bytes",
    "replica_file_count",
    "replica_events",
    "events",
    "dataset_count",
    "site_count",
)


@dataclass(frozen=True)
class Choice:
    """The replicas that a question is about; None means all. ``site`` may be a pattern."""

    tier: str | None = None
    site: str | None = None
    data_tier: str | None = None
    kind: str | None = None

    def headline(self) -> str:
        """Return its text in the headline of an answer."""
        where = self.site or (f"{self.tier} sites" if self.tier else "all sites")
        selected = " ".join(
            word for word in (self.data_tier, f"on {self.kind}" if self.kind else "") if word
        )
        return f"{selected} at {where}" if selected else f"at {where}"

    def as_dict(self) -> dict[str, Any]:
        """Return the choice as JSON."""
        return {
            "tier": self.tier,
            "site": self.site,
            "data_tier": self.data_tier,
            "kind": self.kind,
        }

    def filter(self, rows: pl.DataFrame, where: str) -> pl.DataFrame:
        """Return the rows that match.

        Raises InputMissing (66) with similar names for an unknown name; ``where`` they are.
        """
        criteria = {"site_tier": self.tier, "site_name": self.site, "data_tier": self.data_tier}
        for column, value in criteria.items():
            if value is not None and column in rows.columns:
                rows = rows.filter(
                    rows[column].is_in(matching_names(value, rows[column].unique(), column, where))
                )
        return rows if self.kind is None else rows.filter(rows["kind"] == self.kind)


def holdings(files: Files, fout: str, choice: Choice, day: date | None) -> Answer:
    """Return how much data the chosen sites hold, by kind of storage and data tier.

    Tiers of sites come from ``site_tier_usage``, single sites from ``dbs_phedex`` or
    ``dbs_rucio``. Raises InputMissing (66) where that table is not stored, or for an
    unknown name.
    """
    import polars as pl

    if choice.tier is None and choice.site is None:
        raise UsageError(
            "a tier or a site is needed", next_step="give --tier T2, or --site T2_CH_CERN"
        )
    if choice.site is not None:
        as_of, stored, table = newest_replicas(files, fout, day)
        columns = [
            "site_name",
            "site_tier",
            "kind",
            "data_tier",
            "dataset_name",
            "present_bytes",
            "present_file_count",
        ]
        rows = choice.filter(
            read_frame(files, stored, table, columns), f"{fout}, {table} of {as_of}"
        )
        rows = rows.filter((pl.col("present_bytes") > 0) | (pl.col("present_file_count") > 0))
        frame = rows.group_by("kind", "data_tier").agg(
            pl.col("present_bytes").cast(pl.Int128).sum().alias("replica_bytes"),
            pl.col("present_file_count").sum().alias("replica_file_count"),
            pl.col("dataset_name").n_unique().cast(pl.Int64).alias("dataset_count"),
            pl.col("site_name").n_unique().cast(pl.Int64).alias("site_count"),
        )
    else:
        table = "site_tier_usage"
        as_of, stored = newest(files, fout, table, day)
        rows = read_frame(files, stored, table, ["site_tier", "kind", "data_tier", *_SUMS])
        frame = choice.filter(rows, f"{fout}, {table} of {as_of}")
        # Datasets and events of several tiers do not add up.
        if frame["site_tier"].n_unique() < 2:
            frame = frame.drop("site_tier")
    keys = [name for name in ("site_tier", "kind", "data_tier") if name in frame.columns]
    frame = frame.sort(
        "replica_bytes", *keys, descending=[True, *(False for _ in keys)], nulls_last=True
    )
    total = _total(frame["replica_bytes"])
    facts = [
        f"{volume(total)} in {int(frame['replica_file_count'].sum()):,} files; every replica counts"
    ]
    summary = {**choice.as_dict(), "day": as_of, "table": table, "total_bytes": total}
    columns = [name for name in (*_SUMS, *keys) if name in frame.columns]
    title = f"by {'site tier, ' if 'site_tier' in keys else ''}kind of storage and data tier"
    part = Part.from_frame(title, "rows", frame.select(columns))
    page = (
        page_address("data", day=as_of, kind=choice.kind, site_tier=choice.tier)
        if choice.site is None
        else page_address("sites", site=choice.site)
    )
    return Answer(f"{choice.headline()}, as of {as_of}", facts, [part], summary, page=page)


def unused(days: StoredDays, choice: Choice, day: date | None) -> Answer:
    """Replicas of datasets at sites where no access and no job of these days read them,
    the largest first.

    An access or job counts at the site that its log names; one at an ``unknown`` site
    may have read any replica and is among those elsewhere. Where
    ``dataset_last_access`` is stored, each dataset has its last access, by Rucio or in
    any stored day. Raises InputMissing (66) where ``dbs_phedex`` and ``dbs_rucio`` are
    not stored, or for an unknown name.
    """
    import polars as pl

    from cmsspark.dumps.dump_frames import date_of_ms

    as_of, stored, table = newest_replicas(days.files, days.fout, day)
    columns = [
        "dataset_name",
        "site_name",
        "kind",
        "site_tier",
        "data_tier",
        "present_bytes",
        "newest_replica_ms",
    ]
    rows = read_frame(days.files, stored, table, columns)
    replicas = choice.filter(rows, f"{days.fout}, {table} of {as_of}").filter(
        pl.col("present_bytes") > 0
    )
    read = _read(days)
    rows = (
        replicas.join(read, on=["dataset_name", "site_name"], how="anti")
        .join(
            read.group_by("dataset_name").agg(
                pl.col("nacc").sum().alias("nacc_elsewhere"),
                pl.col("job_count").sum().alias("jobs_elsewhere"),
            ),
            on="dataset_name",
            how="left",
        )
        .with_columns(
            pl.col("nacc_elsewhere", "jobs_elsewhere").fill_null(0),
            date_of_ms("newest_replica_ms").alias("newest_replica"),
        )
        .sort(
            "present_bytes",
            "dataset_name",
            "site_name",
            "kind",
            descending=[True, False, False, False],
        )
    )
    by_site = _unused_by_site(rows)
    used = last_use(days.files, days.fout, day)
    named = [
        "present_bytes",
        "newest_replica",
        "nacc_elsewhere",
        "jobs_elsewhere",
        "site_name",
        "dataset_name",
    ]
    if used is not None:
        rows = rows.join(used, "dataset_name", "left", maintain_order="left")
        named.insert(2, "last_access_day")
    shown = rows.select(named)
    total, nowhere = _total(rows["present_bytes"]), rows.filter(_is_unread())
    sizes = [volume(_total(frame["present_bytes"])) for frame in (rows, replicas, nowhere)]
    facts = [
        f"{rows.height:,} of {pluralize(replicas.height, 'dataset')} at sites, {sizes[0]} of {sizes[1]}",
        f"{nowhere.height:,} of them, {sizes[2]}, were not read at any other site either",
    ]
    window = f"not read there from {days.period.first} to {days.period.last}, {pluralize(len(days.partials), 'day')} stored"
    summary = {
        **choice.as_dict(),
        **window_dict(days),
        "replicas_as_of": as_of,
        "total_bytes": total,
        "replica_count": rows.height,
    }
    parts = [
        Part.from_frame("by site", "by_site", by_site),
        Part.from_frame("the largest", "rows", shown),
    ]
    return Answer(
        f"{choice.headline()} as of {as_of}, {window}",
        facts,
        parts,
        summary,
        days.warnings,
        page_address(
            "sites", site=choice.site, weeks=-(-len(days.period.days) // 7), kind=choice.kind
        ),
    )


def _unused_by_site(rows: pl.DataFrame) -> pl.DataFrame:
    """Bytes and number of the unused replicas of each site, the largest first."""
    import polars as pl

    return (
        rows.group_by("site_name")
        .agg(
            pl.col("present_bytes").cast(pl.Int128).sum(),
            pl.len().cast(pl.Int64).alias("replica_count"),
            _is_unread().sum().cast(pl.Int64).alias("unread_everywhere"),
        )
        .sort("present_bytes", "site_name", descending=[True, False])
        .select("present_bytes", "replica_count", "unread_everywhere", "site_name")
    )


def _total(sizes: pl.Series) -> int:
    """Return the exact sum: 64 bits could overflow."""
    import polars as pl

    return int(sizes.cast(pl.Int128).sum())


def _read(days: StoredDays) -> pl.DataFrame:
    """Accesses and jobs of each dataset at each site that has any."""
    import polars as pl

    from cmsspark.counting.rollup import Rollup, roll_up

    rollup = Rollup(("dataset_name", "site_name", "stream"), ("nacc",))
    is_job = pl.col("stream").is_in(STREAMS_OF_JOBS)
    rows = roll_up(rollup, days.pieces(rollup.columns))[0]
    return rows.group_by("dataset_name", "site_name").agg(
        pl.col("nacc").filter(~is_job).sum(),
        pl.col("nacc").filter(is_job).sum().alias("job_count"),
    )


def _is_unread() -> pl.Expr:
    """Return whether neither an access nor a job elsewhere read it."""
    import polars as pl

    return (pl.col("nacc_elsewhere") == 0) & (pl.col("jobs_elsewhere") == 0)
