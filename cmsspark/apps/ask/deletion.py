"""Answers about what could be deleted: datasets that nobody used for long, by size and
last use; what would be lost with a storage element; and which rules hold a dataset.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from itertools import accumulate
from typing import TYPE_CHECKING

from cmsspark.apps.ask.forecast import LIKELY, StoredForecast, forecast_or_none
from cmsspark.apps.ask.use import Answer, Part, matching_names, page_address, read_frame
from cmsspark.base.errors import InputMissing
from cmsspark.base.text.terminal import pluralize, volume
from cmsspark.filesystems.storage import Files
from cmsspark.settings.settings import Settings
from cmsspark.store.stored_columns import newest, newest_replicas

if TYPE_CHECKING:
    import polars as pl

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
