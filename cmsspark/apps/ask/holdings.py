"""Answers about replicas, from the jobs on dumps: how much the sites of a tier hold,
and what nobody reads.
"""

from __future__ import annotations

from datetime import date
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from cmsspark.apps.ask.forecast import LIKELY, StoredForecast, forecast_or_none
from cmsspark.apps.ask.use import (
    Answer,
    Part,
    matching_names,
    page_address,
    read_frame,
    window_dict,
)
from cmsspark.base.errors import InputMissing, UsageError
from cmsspark.base.text.terminal import pluralize, volume
from cmsspark.filesystems.storage import Files
from cmsspark.settings.settings import Settings
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


class Choice(msgspec.Struct, frozen=True):
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


# Datasets that nobody used for long, by size and last use; what would be lost with a
# storage element; and which rules hold a dataset.

_TABLE = "dataset_last_access"
_COPIES = "dataset_rses"


def last_use(files: Files, fout: str, day: date | None) -> pl.DataFrame | None:
    """``dataset_name``, ``last_access_day`` of the newest stored
    ``dataset_last_access``; None where none is stored.
    """
    try:
        _, stored = newest(files, fout, _TABLE, day)
    except InputMissing:
        return None
    return read_frame(files, stored, _TABLE, ["dataset_name", "last_access_day"])


def deletable(
    files: Files, fout: str, site: str, kind: str, day: date | None, free: int | None = None
) -> Answer:
    """Return what may be deleted at matching sites, of datasets that are candidates, the
    largest first, with a running sum; where a forecast is stored, without those that
    are likely to be popular. ``free``: bytes to be freed, for which the first rows that
    give them are enough.

    By ``dataset_rses`` all rows may go together and each file keeps a copy. Without it
    locks are not known, and whole replicas are listed. A dataset's last use is that of
    all sites. Raises InputMissing (66) where ``dataset_last_access``, or all tables of
    replicas, are not stored, and with similar names for an unknown site.
    """
    import polars as pl

    used_on, of_use = newest(files, fout, _TABLE, day)
    as_of, present, warnings = _present(files, fout, site, kind, day)
    candidates = read_frame(
        files, of_use, _TABLE, ["dataset_name", "state", "last_access_day", "is_candidate"]
    )
    forecast = forecast_or_none(files, fout, day)
    candidates, about_forecast = _unlikely(candidates.filter("is_candidate"), forecast)
    rows = (
        present.filter(pl.col("deletable_bytes") > 0)
        .join(candidates, "dataset_name")
        .sort(
            "deletable_bytes",
            "last_access_day",
            "dataset_name",
            "site_name",
            descending=[True, False, False, False],
        )
    )
    freed = list(accumulate(rows["deletable_bytes"].to_list()))
    rows = rows.with_columns(freed_bytes=pl.Series(freed, dtype=pl.Int128))
    if free is not None:
        rows = rows.head(sum(freed_so_far < free for freed_so_far in freed) + 1)
    total = freed[rows.height - 1] if rows.height else 0
    all_bytes = int(present["present_bytes"].cast(pl.Int128).sum())
    count = rows["dataset_name"].n_unique()
    facts = [
        f"these {pluralize(count, 'dataset')} free {volume(total)} at {site}",
        f"{rows.height:,} of {pluralize(present.height, 'dataset')} at sites, {volume(total)} of {volume(all_bytes)}",
        f"last use as of {used_on}, over all sites; replicas as of {as_of}",
        *about_forecast,
    ]
    if free is not None and total < free:
        facts.append(f"{volume(free)} cannot be freed: no more may go")
    by_state = (
        rows.group_by("state")
        .agg(
            pl.col("deletable_bytes").cast(pl.Int128).sum(),
            pl.len().cast(pl.Int64).alias("replica_count"),
        )
        .sort("deletable_bytes", "state", descending=[True, False])
        .select("deletable_bytes", "replica_count", "state")
    )
    columns = [
        *("deletable_bytes", "freed_bytes", "present_bytes", "last_access_day", "newest_replica"),
        *("state", "lock_state", "site_name", "rse", "dataset_name"),
    ]
    summary = {
        "site": site,
        "kind": kind,
        "last_use_as_of": used_on,
        "replicas_as_of": as_of,
        "total_bytes": total,
        "dataset_count": count,
        "replica_count": rows.height,
        "forecast": None if forecast is None else forecast.summary(),
    }
    parts = [
        Part.from_frame("by use", "by_use", by_state),
        Part.from_frame(
            "the largest", "rows", rows.select([name for name in columns if name in rows.columns])
        ),
    ]
    return Answer(
        f"could go from {kind} at {site}, as of {as_of}",
        facts,
        parts,
        summary,
        warnings,
        page_address("sites", site=site, kind=kind),
    )


def _present(
    files: Files, fout: str, site: str, kind: str, day: date | None
) -> tuple[date, pl.DataFrame, list[str]]:
    """Return what lies at matching sites and how much of it may go, its day, and
    warnings.
    """
    import polars as pl

    from cmsspark.dumps.dump_frames import date_of_ms

    warnings = []
    try:
        as_of, stored = newest(files, fout, _COPIES, day)
    except InputMissing:
        as_of, stored, table = newest_replicas(files, fout, day)
        names = ["dataset_name", "site_name", "kind", "present_bytes", "newest_replica_ms"]
        copies = read_frame(files, stored, table, names).with_columns(
            deletable_bytes="present_bytes"
        )
        warnings = [
            "no day of dataset_rses is stored: what rules hold and what is a last copy is not left out"
        ]
    else:
        table = _COPIES
        names = ["dataset_name", "site_name", "rse", "kind", "bytes", "lock_state"]
        copies = read_frame(files, stored, table, [*names, "created_ms", "deletable_bytes"])
        copies = copies.rename({"bytes": "present_bytes", "created_ms": "newest_replica_ms"})
    sites = matching_names(
        site, copies["site_name"].unique(), "site_name", f"{fout}, {table} of {as_of}"
    )
    is_present = (
        pl.col("site_name").is_in(sites) & (pl.col("kind") == kind) & (pl.col("present_bytes") > 0)
    )
    newest_replica = date_of_ms("newest_replica_ms").alias("newest_replica")
    return as_of, copies.filter(is_present).with_columns(newest_replica), warnings


def _unlikely(
    candidates: pl.DataFrame, forecast: StoredForecast | None
) -> tuple[pl.DataFrame, list[str]]:
    """Return the candidates that are not likely to be popular, and facts about the others."""
    import polars as pl

    if forecast is None:
        return candidates, []
    likely = forecast.rows.filter(pl.col("probability") >= LIKELY).select("dataset_name")
    unlikely = candidates.join(likely, "dataset_name", "anti")
    count = candidates.height - unlikely.height
    about = f"{count:,} candidates are left out: likely to be popular from {forecast.day} on"
    return unlikely, [about, *forecast.facts()]


def unique(files: Files, fout: str, rse: str, day: date | None) -> Answer:
    """Return what would be lost with matching storage elements, or those of matching
    sites, each by itself: files that are nowhere else, or on no other disk.

    Raises InputMissing (66) where ``dataset_rses`` is not stored, and with similar names
    for an unknown element.
    """
    import polars as pl

    as_of, stored = newest(files, fout, _COPIES, day)
    columns = ["rse", "site_name", "kind", "dataset_name", "file_count", "bytes"]
    copies = read_frame(
        files, stored, _COPIES, [*columns, "only_copy_bytes", "only_disk_bytes", "lock_state"]
    )
    where = f"{fout}, {_COPIES} of {as_of}"
    # An element of this name, else all of a site's, else those that a pattern matches.
    is_asked = pl.col("rse") == rse
    if rse not in copies["rse"]:
        is_asked = pl.col("site_name") == rse
    if rse not in copies["rse"] and rse not in copies["site_name"]:
        is_asked = pl.col("rse").is_in(matching_names(rse, copies["rse"].unique(), "rse", where))
    at_rses = copies.filter(is_asked)
    lost = pl.col("only_copy_bytes")
    rows = at_rses.filter((lost > 0) | (pl.col("only_disk_bytes") > 0)).sort(
        "only_copy_bytes",
        "only_disk_bytes",
        "dataset_name",
        "rse",
        descending=[True, True, False, False],
    )
    sizes = ("bytes", "only_copy_bytes", "only_disk_bytes")
    totals = {name: int(at_rses[name].cast(pl.Int128).sum()) for name in sizes}
    elements = sorted(at_rses["rse"].unique())
    last = rows.filter(lost > 0)["dataset_name"].n_unique()
    facts = [
        f"{volume(totals['only_copy_bytes'])} of {volume(totals['bytes'])} are nowhere else, in "
        f"{pluralize(last, 'dataset')}; {volume(totals['only_disk_bytes'])} are on no other disk",
    ]
    if len(elements) > 1:
        facts.append(
            f"{len(elements):,} elements, each by itself: what is at two of them alone is not among these"
        )
    by_rse = (
        at_rses.group_by("rse")
        .agg(pl.col(name).cast(pl.Int128).sum() for name in sizes)
        .sort("only_copy_bytes", "rse", descending=[True, False])
        .select("only_copy_bytes", "only_disk_bytes", "bytes", "rse")
    )
    names = ["only_copy_bytes", "only_disk_bytes", "bytes", "lock_state", "rse", "dataset_name"]
    summary = {"rse": rse, "day": as_of, "dataset_count": last, **totals}
    parts = [
        Part.from_frame("by storage element", "by_rse", by_rse),
        Part.from_frame("the largest", "rows", rows.select(names)),
    ]
    return Answer(f"would be lost with {rse}, as of {as_of}", facts, parts, summary)


def holds(settings: Settings, root: str | None, dataset: str, day: date | None) -> Answer:
    """Return the rules that hold blocks of matching datasets: whose they are, where, and
    until when, by the dump of Rucio that belongs to a day.

    People are pseudonyms. Raises InputMissing (66) and NotReady (75) without such a
    dump, and InputMissing for a name that no lock has.
    """
    from cmsspark.base.dates import today
    from cmsspark.counting.rollup import matches
    from cmsspark.dumps.rucio_locks import read_rules
    from cmsspark.run.catalogue_snapshots import opened

    settings = replace(settings, root=root or settings.root)
    rows, dump = read_rules(
        settings, day or today(), opened, lambda name: matches(name, [dataset])
    )
    if not rows:
        raise InputMissing(
            f"no lock of a dataset {dataset!r}",
            where=dump.folder,
            found="locks of other datasets",
            next_step="cmsspark ask deletable SITE lists what no rule holds",
        )
    counts = {name: len({entry[name] for entry in rows}) for name in ("rule_id", "account", "rse")}
    facts = [
        f"{pluralize(counts['rule_id'], 'rule')} of {pluralize(counts['account'], 'account')} at "
        f"{pluralize(counts['rse'], 'storage element')}",
        f"dump of Rucio: {dump.folder}",
    ]
    if all(entry["expires_at"] is None for entry in rows):
        facts.append("when they end is not known: the dump has no RULES of them")
    summary = {"dataset": dataset, "dump": dump.folder, **counts}
    part = Part("rules", "rows", rows, tuple(rows[0]))
    return Answer(f"hold {dataset}", facts, [part], summary, list(dump.warnings))
