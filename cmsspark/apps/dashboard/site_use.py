"""The use of sites: what is read at each, what is local and remote, and what lies there unused."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any, Final

import numpy as np

from cmsspark.apps.dashboard import user_sets
from cmsspark.apps.dashboard.dataset_ranking import datasets
from cmsspark.apps.dashboard.segment import SUMS
from cmsspark.apps.dashboard.selection import Selection
from cmsspark.apps.dashboard.snapshot import Snapshot, day_number
from cmsspark.apps.dashboard.use import codes_of_users, integer
from cmsspark.store.query.database import Database
from cmsspark.store.stored_columns import REPLICA_TABLES

_SUMS: Final = ", ".join(f"sum({name}) AS {name}" for name in SUMS)
#: Groups of a site's accesses: the column of ``site_days``.
GROUPS: Final = ("data_tier", "app")
#: The most accesses first, then the most jobs.
_LARGEST: Final = "ORDER BY nacc DESC NULLS LAST, job_count DESC NULLS LAST, 1"


def all_sites(snapshot: Snapshot, chosen: Selection) -> list[tuple[Any, ...]]:
    """(site, sums as in ``SUMS`` …, distinct users) of all sites, those with the most
    accesses first.
    """

    def make() -> list[tuple[Any, ...]]:
        where, parameters = chosen.where(("stream",))
        rows = snapshot.query(
            f"SELECT site_name::VARCHAR, {_SUMS} FROM site_totals WHERE {where} GROUP BY 1 {_LARGEST}",
            parameters,
        )
        users = count_users(snapshot, chosen)
        return [(row[0], *map(integer, row[1:]), users.get(row[0], 0)) for row in rows]

    return snapshot.cached(("all_sites", chosen), make)


def over_time(snapshot: Snapshot, chosen: Selection, site: str) -> list[tuple[Any, ...]]:
    """(first day of the step, sums …) of a site."""
    where, parameters = chosen.where(("stream",))
    return snapshot.query(
        f"SELECT date_trunc('{chosen.step}', day)::DATE AS d, {_SUMS} FROM site_totals "
        f"WHERE site_name::VARCHAR = ? AND {where} GROUP BY 1 ORDER BY 1",
        [site, *parameters],
    )


def by_group(
    snapshot: Snapshot, chosen: Selection, site: str, column: str
) -> list[tuple[Any, ...]]:
    """(value of one of ``GROUPS``, sums …) of a site, the most accesses first."""

    def make() -> list[tuple[Any, ...]]:
        files = snapshot.files("site_days", chosen.first, chosen.last)
        where, parameters = chosen.where(("stream",))
        if not files:
            return []
        # The files are read once for all groups.
        sets = ", ".join(f"({name})" for name in GROUPS)
        marks = ", ".join(f"grouping({name})" for name in GROUPS)
        return snapshot.query(
            f"SELECT {marks}, coalesce({', '.join(GROUPS)}), {_SUMS} FROM read_parquet(?, union_by_name = true) "
            f"WHERE site_name = ? AND {where} GROUP BY GROUPING SETS ({sets}) "
            f"ORDER BY nacc DESC NULLS LAST, job_count DESC NULLS LAST, {len(GROUPS) + 1}",
            [files, site, *parameters],
        )

    at = GROUPS.index(column)
    rows = snapshot.cached(("site_by", chosen, site), make)
    return [row[len(GROUPS) :] for row in rows if row[at] == 0]


def last_days(snapshot: Snapshot, site: str) -> dict[str, date]:
    """Return the last stored day on which an access or a job read each dataset at a site."""

    def make() -> dict[str, date]:
        files = [segment.file("site_datasets") for segment in snapshot.segments]
        rows = snapshot.query(
            "SELECT dataset_name, max(last_day) FROM read_parquet(?, union_by_name = true) "
            "WHERE site_name = ? AND (nacc > 0 OR job_count > 0) GROUP BY 1",
            [files, site],
        )
        return dict(rows)

    return snapshot.cached(("last_days", site), make)


def top_datasets(snapshot: Snapshot, chosen: Selection, site: str) -> list[tuple[Any, ...]]:
    """(dataset, sums …) of a site, the most accesses first: whole segments by site, cut
    ones day by day.
    """

    def make() -> list[tuple[Any, ...]]:
        inside, cut = snapshot.split(chosen.first, chosen.last)
        stream, of_stream = chosen.where(("stream",), days_too=False)
        days, of_days = chosen.where(("stream",))
        parts: list[str] = []
        values: list[Any] = []
        select = f"SELECT dataset_name, {', '.join(SUMS)} FROM read_parquet(?, union_by_name = true) WHERE site_name = ?"
        if inside:
            parts.append(f"{select} AND {stream}")
            values += [
                [snapshot.segments[number].file("site_datasets") for number in inside],
                site,
                *of_stream,
            ]
        if cut:
            parts.append(f"{select} AND {days}")
            values += [[segment.file("detail") for segment in cut], site, *of_days]
        if not parts:
            return []
        return snapshot.query(
            f"SELECT dataset_name, {_SUMS} FROM ({' UNION ALL '.join(parts)}) GROUP BY 1 {_LARGEST}",
            values,
        )

    return snapshot.cached(("site_datasets", chosen, site), make)


def unused(
    snapshot: Snapshot, database: Database, site: str, weeks: int, kind: str
) -> tuple[date | None, int, int, list[tuple[Any, ...]]]:
    """Replicas at a site of datasets that no access and no job read there in the last
    weeks up to the newest day.

    Returns the day of the replica snapshot (None where none is stored), the bytes and
    number of all its replicas at the site, and for each unused one (dataset, bytes,
    newest replica ms, accesses elsewhere, jobs elsewhere), the largest first.
    """
    newest_replicas = database.newest(REPLICA_TABLES)
    if newest_replicas is None:
        return None, 0, 0, []
    as_of, table = newest_replicas
    replicas = database.query(
        f"SELECT dataset_name, present_bytes, newest_replica_ms FROM {table} "
        "WHERE day = ? AND site_name = ? AND kind = ? AND present_bytes > 0",
        [as_of, site, kind],
    ).table
    columns = [column.to_pylist() for column in replicas.columns]
    first, last = window(snapshot, weeks)
    read = {name for name, day in last_days(snapshot, site).items() if day >= first}
    elsewhere = snapshot.cached(("uses", first, last), lambda: _uses(snapshot, first, last))
    rows = [
        (name, size, newest, *elsewhere.get(name, (0, 0)))
        for name, size, newest in zip(*columns, strict=True)
        if name not in read
    ]
    rows.sort(key=lambda row: (-row[1], row[0] or ""))
    return as_of, sum(columns[1]), replicas.num_rows, rows


def window(snapshot: Snapshot, weeks: int) -> tuple[date, date]:
    """Return the first and the last of the N × 7 days up to the newest stored one."""
    last = snapshot.days[-1]
    return last - timedelta(days=7 * weeks - 1), last


def _uses(snapshot: Snapshot, first: date, last: date) -> dict[str, tuple[int, int]]:
    """Accesses and jobs of each dataset."""
    rankings = (datasets(snapshot, Selection(first, last), name) for name in ("nacc", "job_count"))
    accesses, jobs = (
        dict(zip(ranking.names(), ranking.counts, strict=True)) for ranking in rankings
    )
    return {name: (accesses.get(name) or 0, jobs.get(name) or 0) for name in accesses | jobs}


def count_users(snapshot: Snapshot, chosen: Selection) -> dict[str, int | None]:
    """Return the distinct users of each site over the period; None where its days have
    two pseudonym keys.
    """

    def make() -> dict[str, int | None]:
        names = snapshot.names["site_name"]
        if len(snapshot.find_keys(chosen.first, chosen.last)) > 1:
            return dict.fromkeys(names)
        counter = user_sets.DistinctCounter(max(1, len(names)), snapshot.pseudonyms)
        codes = {"stream": codes_of_users(snapshot, chosen)["stream"]}
        for table in snapshot.user_tables["site_users"]:
            rows = user_sets.chosen_rows(
                table, codes, day_number(chosen.first), day_number(chosen.last)
            )
            counter.add(table, rows, table.keys["site_name"][rows].astype(np.int32))
        return {name: int(count) for name, count in zip(names, counter.counts(), strict=False)}

    return snapshot.cached(("users_of_sites", chosen), make)
