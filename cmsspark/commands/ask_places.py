"""Answers about what lies where, from the jobs on dumps: how much at the sites of a tier, and what nobody reads."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any, Final

from cmsspark.commands.ask_use import Answer, Part, nearest, window_told
from cmsspark.errors import InputMissing, UsageError
from cmsspark.pipeline.stored_columns import newest, table_rows
from cmsspark.pipeline.stored_days import StoredDays
from cmsspark.reports.terminal import volume
from cmsspark.storage import Files

if TYPE_CHECKING:
    import polars as pl

_SUMS: Final = ("replica_bytes", "replica_file_count", "replica_events", "events", "dataset_count", "site_count")


@dataclass(frozen=True)
class Choice:
    """What is asked for; None is all. ``site`` may be a pattern."""

    tier: str | None = None
    site: str | None = None
    data_tier: str | None = None
    kind: str | None = None

    def words(self) -> str:
        """For a headline."""
        place = self.site or (f"{self.tier} sites" if self.tier else "all sites")
        what = " ".join(word for word in (self.data_tier, f"on {self.kind}" if self.kind else "") if word)
        return f"{what} at {place}" if what else f"at {place}"

    def told(self) -> dict[str, Any]:
        """As JSON tells it."""
        return {"tier": self.tier, "site": self.site, "data_tier": self.data_tier, "kind": self.kind}

    def of(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The rows that fit. Raises InputMissing (66) with what there is where a name is not known."""
        from cmsspark.kernel.rollup import matches

        given = {"site_tier": self.tier, "site_name": self.site, "data_tier": self.data_tier, "kind": self.kind}
        for column, wanted in given.items():
            if wanted is None or column not in rows.columns:
                continue
            names = [name for name in rows[column].unique().to_list() if name is not None]
            fitting = [name for name in names if matches(name, [wanted])]
            if not fitting and column != "kind":
                near = nearest(wanted, names) or sorted(names)[:10]
                raise InputMissing(f"there is no {column.replace('_', ' ')} {wanted}", found=", ".join(near) or "none")
            rows = rows.filter(rows[column].is_in(fitting))
        return rows


def what_lies_at(files: Files, fout: str, choice: Choice, day: date | None) -> Answer:
    """How much lies there, by kind of storage and data tier.

    Tiers of sites come from ``site_tier_usage``, single sites from ``dbs_phedex``. Raises InputMissing (66) where that
    is not stored, or a name is not known.
    """
    import polars as pl

    if choice.tier is None and choice.site is None:
        raise UsageError("a tier or a site is wanted", next_step="give --tier T2, or --site T2_CH_CERN")
    table = "dbs_phedex" if choice.site else "site_tier_usage"
    of, stored = newest(files, fout, table, day)
    if choice.site:
        columns = ["site_name", "site_tier", "kind", "data_tier", "dataset_name", "present_bytes", "present_file_count"]
        rows = choice.of(_frame(files, stored, table, columns))
        rows = rows.filter((pl.col("present_bytes") > 0) | (pl.col("present_file_count") > 0))
        frame = rows.group_by("kind", "data_tier").agg(
            pl.col("present_bytes").cast(pl.Int128).sum().alias("replica_bytes"),
            pl.col("present_file_count").sum().alias("replica_file_count"),
            pl.col("dataset_name").n_unique().cast(pl.Int64).alias("dataset_count"),
            pl.col("site_name").n_unique().cast(pl.Int64).alias("site_count"),
        )
    else:
        frame = choice.of(_frame(files, stored, table, ["site_tier", "kind", "data_tier", *_SUMS])).drop("site_tier")
    frame = frame.sort("replica_bytes", "kind", "data_tier", descending=[True, False, False], nulls_last=True)
    total = _total(frame["replica_bytes"])
    facts = [f"{volume(total)} in {int(frame['replica_file_count'].sum()):,} files, replicas counted each"]
    told = {**choice.told(), "day": of.isoformat(), "table": table, "total_bytes": total}
    places = [name for name in (*_SUMS, "kind", "data_tier") if name in frame.columns]
    part = Part.of("by kind of storage and data tier", "rows", frame.select(places))
    return Answer(f"{choice.words()}, as of {of}", facts, [part], told)


def unused(found: StoredDays, choice: Choice, day: date | None) -> Answer:
    """Replicas of datasets at sites where no access of these days read them, the largest first.

    An access counts at the site that its log names; one at an ``unknown`` site may have read any replica and is among
    those elsewhere. Raises InputMissing (66) where ``dbs_phedex`` is not stored, or a name is not known.
    """
    import polars as pl

    of, stored = newest(found.files, found.fout, "dbs_phedex", day)
    columns = ["dataset_name", "site_name", "kind", "site_tier", "data_tier", "present_bytes", "newest_replica_ms"]
    lying = choice.of(_frame(found.files, stored, "dbs_phedex", columns)).filter(pl.col("present_bytes") > 0)
    read = _read(found)
    rows = (
        lying.join(read, on=["dataset_name", "site_name"], how="anti")
        .join(
            read.group_by("dataset_name").agg(pl.col("nacc").sum().alias("nacc_elsewhere")),
            on="dataset_name",
            how="left",
        )
        .with_columns(
            pl.col("nacc_elsewhere").fill_null(0),
            pl.from_epoch("newest_replica_ms", "ms").dt.date().alias("newest_replica"),
        )
        .sort("present_bytes", "dataset_name", "site_name", "kind", descending=[True, False, False, False])
    )
    by_site = (
        rows.group_by("site_name")
        .agg(
            pl.col("present_bytes").cast(pl.Int128).sum(),
            pl.len().cast(pl.Int64).alias("replica_count"),
            (pl.col("nacc_elsewhere") == 0).sum().cast(pl.Int64).alias("unread_everywhere"),
        )
        .sort("present_bytes", "site_name", descending=[True, False])
        .select("present_bytes", "replica_count", "unread_everywhere", "site_name")
    )
    shown = rows.select("present_bytes", "newest_replica", "nacc_elsewhere", "site_name", "dataset_name")
    total, nowhere = _total(rows["present_bytes"]), rows.filter(pl.col("nacc_elsewhere") == 0)
    facts = [
        f"{rows.height:,} of {lying.height:,} datasets at sites, {_bytes(rows)} of {_bytes(lying)}",
        f"{nowhere.height:,} of them, {_bytes(nowhere)}, were read nowhere else either",
    ]
    window = f"not read there from {found.period.first} to {found.period.last}, {len(found.there)} days stored"
    told = {
        **choice.told(),
        **window_told(found),
        "replicas_as_of": of.isoformat(),
        "total_bytes": total,
        "replica_count": rows.height,
    }
    parts = [Part.of("by site", "by_site", by_site), Part.of("the largest", "rows", shown)]
    return Answer(f"{choice.words()} as of {of}, {window}", facts, parts, told, found.warnings)


def _bytes(rows: pl.DataFrame) -> str | None:
    return volume(_total(rows["present_bytes"]))


def _total(sizes: pl.Series) -> int:
    """Their sum, whatever it is: 64 bits would wrap around."""
    import polars as pl

    return int(sizes.cast(pl.Int128).sum())


def _read(found: StoredDays) -> pl.DataFrame:
    """Accesses of each dataset at each site."""
    from cmsspark.kernel.rollup import Rollup, roll_up

    asked = Rollup(("dataset_name", "site_name"), ("nacc",))
    return roll_up(asked, found.batches(asked.columns))[0]


def _frame(files: Files, stored: Any, table: str, columns: list[str]) -> pl.DataFrame:
    import polars as pl

    rows = pl.from_arrow(table_rows(files, stored, table, columns))
    assert isinstance(rows, pl.DataFrame)
    return rows
