"""Answers about use, from partials: who reads a dataset, what is read at a site. People
are counted, never named.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

import msgspec
from msgspec.structs import replace

from cmsspark.base.errors import CmssparkError, InputMissing
from cmsspark.base.periods import spans
from cmsspark.base.text.terminal import pluralize, volume
from cmsspark.filesystems.storage import Files
from cmsspark.sources import registry
from cmsspark.sources.registry import STREAMS_OF_JOBS
from cmsspark.store.results import CurrentTable
from cmsspark.store.stored_columns import newest_replicas, table_rows
from cmsspark.store.stored_days import StoredDays

if TYPE_CHECKING:
    import polars as pl

_MEASURES: Final = ("nacc", "distinct_users", "day_count", "remote_nacc", "read_bytes")
#: Of jobs, which are not accesses and are counted apart.
_OF_JOBS: Final = ("nacc", "distinct_users", "cpu_time")
#: Headings of the columns.
HEADINGS: Final = {
    "nacc": "accesses",
    "distinct_users": "users",
    "day_count": "days",
    "remote_nacc": "remote",
    "read_bytes": "read",
    "site_count": "sites",
    "dataset_count": "datasets",
    "dataset_name": "dataset",
    "site_name": "site",
    "app": "app",
    "data_tier": "data tier",
    "replica_bytes": "bytes",
    "present_bytes": "bytes",
    "deletable_bytes": "may go",
    "freed_bytes": "sum",
    "only_copy_bytes": "nowhere else",
    "only_disk_bytes": "on no other disk",
    "bytes": "bytes",
    "lock_state": "locked",
    "rse": "storage element",
    "block_count": "blocks",
    "expires_at": "until",
    "account_class": "class",
    "rule_id": "rule",
    "replica_file_count": "files",
    "present_file_count": "files",
    "replica_events": "replica events",
    "newest_replica": "newest replica",
    "nacc_elsewhere": "read elsewhere",
    "job_count": "jobs",
    "jobs_elsewhere": "jobs elsewhere",
    "site_tier": "tier",
    "kind": "kind",
    "events": "events",
    "replica_count": "replicas",
    "unread_everywhere": "not read at any site",
    "last_access_day": "last access",
    "state": "use",
    "probability": "popular",
    "last_week_nacc": "last week",
    "expected_nacc": "expected reads",
    "nacc_p10": "10 % quantile",
    "nacc_p90": "90 % quantile",
    "nacc_before": "before",
    "nacc_after": "after",
    "job_count_before": "jobs before",
    "job_count_after": "jobs after",
    "wasted": "wasted core h",
    "efficiency": "CPU eff.",
    "core_hours": "core h",
    "lost": "failed, removed",
    "allocated_efficiency": "allocated eff.",
    "evicted": "evicted core h",
    "idle": "idle thread h",
    "thread_hours": "thread h",
    "failed_steps": "failed",
    "peak_bytes": "peak memory",
    "write_bytes": "written",
    "failed_share": "share",
    "host": "agent",
}
_TEXTS: Final = (
    *("dataset_name", "site_name", "app", "data_tier", "site_tier"),
    *("kind", "newest_replica", "last_access_day", "state", "stratum"),
    *("lock_state", "rse", "expires_at", "account_class", "account", "rule_id"),
    *("workflow", "site", "request", "host", "stream"),
)
#: What may stand in place of a name.
_PATTERN_HINTS: Final = {
    "dataset_name": ", or a pattern in quotes: '/ZMM*/*/AOD'",
    "site_name": ", or a pattern in quotes: 'T2_US_*'",
}
_BYTES: Final = (
    *("read_bytes", "replica_bytes", "present_bytes", "disk_bytes", "tape_bytes", "bytes"),
    *("deletable_bytes", "freed_bytes", "only_copy_bytes", "only_disk_bytes"),
    *("peak_bytes", "write_bytes"),
)
_SHARES: Final = ("efficiency", "allocated_efficiency", "failed_share")


class Part(msgspec.Struct, frozen=True):
    """A table of an answer. Names are the last columns, as they are long."""

    title: str
    name: str
    rows: list[dict[str, Any]]
    columns: tuple[str, ...]

    @classmethod
    def from_frame(cls, title: str, name: str, frame: pl.DataFrame) -> Part:
        """Return the rows of a frame. Jobs are a column of the table only where there are any."""
        columns = [name for name in frame.columns if name != "job_count" or frame[name].count()]
        return cls(title, name, frame.to_dicts(), tuple(columns))

    @property
    def headings(self) -> list[str]:
        return [HEADINGS.get(name, name) for name in self.columns]

    @property
    def text_columns(self) -> list[int]:
        """Positions of the text columns."""
        return [i for i, name in enumerate(self.columns) if name in _TEXTS]

    def shown(self, top: int) -> list[list[object]]:
        """Return the first rows, with volumes as text."""
        return [[_shown(name, row[name]) for name in self.columns] for row in self.rows[:top]]


def _shown(name: str, value: Any) -> object:
    if name in _BYTES:
        return volume(value)
    if name in _SHARES and value is not None:
        return f"{value:.1%}"
    if isinstance(value, float):
        return f"{value:.3f}" if name == "probability" else f"{value:,.0f}"
    return value


class Answer(msgspec.Struct, frozen=True):
    """An answer: a headline, facts and tables; ``summary`` has the values of the
    headline and facts for JSON.
    """

    headline: str
    facts: list[str]
    parts: list[Part]
    summary: dict[str, Any]
    warnings: list[str] = msgspec.field(default_factory=list)
    #: The address of the page of ``cmsspark dashboard`` that shows the same, without a host.
    page: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the answer as JSON, with days as dates."""
        page = {"page": self.page} if self.page else {}
        return {**self.summary, **page, **{part.name: part.rows for part in self.parts}}


def page_address(page: str, **parameters: Any) -> str:
    """Return the address of a page of the dashboard. Parameters that are None, and
    patterns, which pages do not take, are left out.

    Example:
        >>> page_address("sites", site="T2_CH_CERN", weeks=None)
        '/sites?site=T2_CH_CERN'
        >>> page_address("sites", site="T2_US_*")
        '/sites'
    """
    values = {
        name: value
        for name, value in parameters.items()
        if value is not None and not is_pattern(str(value))
    }
    return f"/{page}" + (f"?{urlencode(values)}" if values else "")


def who_reads(days: StoredDays, dataset: str, site: str | None) -> Answer:
    """Return who reads the matching datasets, by site, application and dataset.

    Raises InputMissing (66) with similar names for an unknown dataset or site.
    """
    from cmsspark.counting.rollup import is_pattern

    filters = {"dataset_name": (dataset,)} | ({"site_name": (site,)} if site else {})
    total, by_site, by_app, by_dataset = _rolled(
        days, filters, ("site_name", "app", "dataset_name")
    )
    if not total["nacc"] and not total["jobs"]["job_count"]:
        _check_known(days, "dataset_name", dataset)
        if site:
            _check_known(days, "site_name", site)
    parts = [
        Part.from_frame("by site", "by_site", by_site),
        Part.from_frame("by application", "by_app", by_app),
    ]
    if is_pattern(dataset):
        parts.append(Part.from_frame("by dataset", "by_dataset", by_dataset))
    about = f"{dataset} at {site}" if site else dataset
    answer = _answer(days, about, {"dataset": dataset, "site": site}, total, parts)
    return replace(answer, page=_page(days, "dataset", name=dataset))


def reads(days: StoredDays, site: str) -> Answer:
    """Return what is read at the matching sites, by dataset and data tier. Raises as
    :func:`who_reads`.
    """
    from cmsspark.counting.rollup import is_pattern

    total, by_site, by_tier, by_dataset = _rolled(
        days, {"site_name": (site,)}, ("site_name", "data_tier", "dataset_name")
    )
    if not total["nacc"] and not total["jobs"]["job_count"]:
        _check_known(days, "site_name", site)
    parts = [
        Part.from_frame("by data tier", "by_data_tier", by_tier),
        Part.from_frame("by dataset", "by_dataset", by_dataset),
    ]
    if is_pattern(site):
        parts.insert(0, Part.from_frame("by site", "by_site", by_site))
    answer = _answer(days, f"read at {site}", {"site": site}, total, parts)
    return replace(answer, page=_page(days, "sites", site=site))


def _page(days: StoredDays, page: str, **parameters: str | None) -> str:
    return page_address(page, **parameters, **{"from": days.period.first, "to": days.period.last})


def changed(after: StoredDays, before: StoredDays, column: str) -> Answer:
    """Return what changed between two periods by a column of partials: accesses of both,
    their difference, and jobs; the largest difference of accesses first.
    """
    import polars as pl

    sides = [_rolled(days, {}, (column,)) for days in (before, after)]
    totals = [total for total, _ in sides]
    columns = [
        rows.select(column, pl.col("nacc").alias(f"nacc_{side}"), f"job_count_{side}")
        for side, rows in (
            (side, rows.rename({"job_count": f"job_count_{side}"}))
            for side, (_, rows) in zip(("before", "after"), sides, strict=True)
        )
    ]
    rows = columns[0].join(
        columns[1], on=column, how="full", coalesce=True, nulls_equal=True, validate="1:1"
    )
    counts = ("nacc_before", "nacc_after")
    rows = rows.with_columns(pl.col(*counts).fill_null(0)).with_columns(
        difference=pl.col("nacc_after") - pl.col("nacc_before")
    )
    rows = rows.sort(
        pl.col("difference").abs(), column, descending=[True, False], nulls_last=True
    ).select("difference", *counts, "job_count_before", "job_count_after", column)
    news = [
        rows.filter((pl.col(missing) == 0) & (pl.col(present) > 0)).height
        for missing, present in (counts, reversed(counts))
    ]
    nacc = [total["nacc"] for total in totals]
    change = f" ({nacc[1] / nacc[0] - 1:+.1%})" if nacc[0] else ""
    facts = [
        f"{nacc[1]:,} accesses, before {nacc[0]:,}{change}",
        f"{news[0]:,} of {pluralize(rows.height, HEADINGS.get(column, column))} are new, {news[1]:,} are gone",
    ]
    lengths = [len(days.partials) for days in (before, after)]
    warnings = [f"of the earlier period: {text}" for text in before.warnings]
    if lengths[0] != lengths[1]:
        warnings.append(f"{lengths[0]} stored days are compared with {lengths[1]}")
    later, earlier = after.period, before.period
    summary = {
        **window_dict(after),
        "before": window_dict(before),
        "nacc": nacc[1],
        "nacc_before": nacc[0],
    }
    return Answer(
        f"changed by {HEADINGS.get(column, column)}, {later.first} to {later.last} against "
        f"{earlier.first} to {earlier.last}",
        facts,
        [Part.from_frame("the largest difference first", "rows", rows)],
        summary,
        [*after.warnings, *warnings],
        # The page compares no applications.
        _page(
            after,
            "compare",
            by=None if column == "app" else column,
            from2=str(earlier.first),
            to2=str(earlier.last),
        ),
    )


def _rolled(
    days: StoredDays, filters: Mapping[str, tuple[str, ...]], keys: Sequence[str]
) -> tuple[Any, ...]:
    """Return the sums over all matching rows as a dict, then a frame for each key, most
    accesses first.

    Jobs are beside them: in ``job_count`` of the frames, in ``jobs`` of the dict.
    """
    from cmsspark.counting.rollup import Rollup, roll_all_up

    days.key_id()
    of_accesses, of_jobs = registry.of_accesses(filters), {**filters, "stream": STREAMS_OF_JOBS}
    rollups = [Rollup((), (*_MEASURES, "dataset_count", "site_count"), of_accesses)]
    rollups += [Rollup((key,), _MEASURES, of_accesses) for key in keys]
    rollups += [
        Rollup((), _OF_JOBS, of_jobs),
        *(Rollup((key,), ("nacc",), of_jobs) for key in keys),
    ]
    columns = sorted({name for rollup in rollups for name in rollup.columns})
    results = roll_all_up(rollups, days.pieces(columns))
    count = len(keys) + 1
    days.check_users([*results[0].users, *results[count].users])
    frames = [result.rows() for result in results]
    ordered = [
        _beside_jobs(frame, jobs, key)
        for frame, jobs, key in zip(frames[1:count], frames[count + 1 :], keys, strict=True)
    ]
    total, jobs = frames[0].to_dicts()[0], frames[count].to_dicts()[0]
    jobs = {
        "job_count": jobs["nacc"] or 0,
        "distinct_users": jobs["distinct_users"],
        "cpu_time": jobs["cpu_time"],
    }
    return ({**total, "nacc": total["nacc"] or 0, "jobs": jobs}, *ordered)


def _beside_jobs(accesses: pl.DataFrame, jobs: pl.DataFrame, key: str) -> pl.DataFrame:
    """Accesses with the number of jobs of the same key, the most accesses first; null
    where there are no jobs.
    """
    import polars as pl

    counted = jobs.select(key, pl.col("nacc").alias("job_count"))
    rows = accesses.join(
        counted, on=key, how="full", coalesce=True, nulls_equal=True, validate="1:1"
    )
    return (
        rows.with_columns(pl.col("nacc", "distinct_users", "day_count").fill_null(0))
        .sort("nacc", "job_count", key, descending=[True, True, False], nulls_last=True)
        .select(*_MEASURES, "job_count", key)
    )


def _answer(
    days: StoredDays,
    about: str,
    question: dict[str, Any],
    total: dict[str, Any],
    parts: list[Part],
) -> Answer:
    window = (
        f"{days.period.first} to {days.period.last}, {pluralize(len(days.partials), 'day')} stored"
    )
    jobs = total["jobs"]
    facts = []
    if not total["nacc"]:
        facts.append(f"nobody read it in this period ({window})")
    else:
        remote = "unknown whether remote"
        if total["remote_nacc"] is not None:
            remote = f"{total['remote_nacc']:,} accesses of them remote"
        facts += [
            f"{total['nacc']:,} accesses by {_people(total['distinct_users'])}, on {total['day_count']} of these days",
            f"{pluralize(total['dataset_count'], 'dataset')} read from {pluralize(total['site_count'], 'site')}, "
            f"{volume(total['read_bytes']) or 'unknown bytes'} read, {remote}",
        ]
    if jobs["job_count"]:
        cpu = "" if jobs["cpu_time"] is None else f", {jobs['cpu_time'] / 3600:,.0f} CPU hours"
        facts.append(
            f"{pluralize(jobs['job_count'], 'job')} by {_people(jobs['distinct_users'])}{cpu} (not accesses)"
        )
    summary = {**question, **window_dict(days), "totals": total}
    is_used = total["nacc"] or jobs["job_count"]
    return Answer(f"{about}, {window}", facts, parts if is_used else [], summary, days.warnings)


def window_dict(days: StoredDays) -> dict[str, Any]:
    """Return the days that an answer covers, as JSON."""
    return {
        "first_day": days.period.first,
        "last_day": days.period.last,
        "days_stored": len(days.partials),
        "missing_days": days.missing,
        "partial_days": {day.isoformat(): reason for day, reason in days.partial.items()},
    }


def _people(count: int) -> str:
    return pluralize(count, "person", "people") if count else "no known user"


def _check_known(days: StoredDays, column: str, name: str) -> None:
    """Raises InputMissing (66) with similar names where no access and no replica has a
    matching name.
    """
    # The names in the accesses of these days, and in the replicas if they are stored.
    names: set[Any] = set()
    for batch in days.pieces([column]):
        for _, rows in batch:
            for chunk in rows.column(column).chunks:
                names.update(
                    chunk.to_pylist()
                    if not hasattr(chunk, "dictionary")
                    else chunk.dictionary.to_pylist()
                )
    try:
        _, replicas, table = newest_replicas(days.files, days.fout)
        names.update(
            table_rows(days.files, replicas, table, [column]).column(column).unique().to_pylist()
        )
    except CmssparkError:
        pass  # no replicas are stored: the names are those of the accesses alone
    matching_names(name, names - {None}, column, f"{days.fout}, {spans(list(days.partials))}")


def matching_names(value: str, names: Iterable[str | None], column: str, where: str) -> list[str]:
    """Return the names that ``value``, a name or a pattern, matches; ``column``: what
    they are names of.

    Raises InputMissing (66) with similar names where it matches none.
    """
    from cmsspark.counting.rollup import matches

    every = {name for name in names if name is not None}
    if matching := [name for name in every if matches(name, [value])]:
        return matching
    near = nearest(value, sorted(every))
    listed = ", ".join(near or sorted(every)) or "none"
    # Names that do not resemble the one that was typed are no help if there are many.
    is_short = bool(near) or len(every) <= 10
    hint = "" if is_pattern(value) else _PATTERN_HINTS.get(column, "")
    raise InputMissing(
        f"no {column.removesuffix('_name').replace('_', ' ')} matches {value!r}"
        if is_pattern(value)
        else f"there is no {column.removesuffix('_name').replace('_', ' ')} {value!r}",
        where=where,
        found=f"nearest names: {listed}"
        if near
        else (listed if is_short else f"{len(every):,} names, none of which is similar"),
        # A pattern was just typed: no advice to type one.
        next_step=f"name one of these{hint}" if is_short else f"try another name{hint}",
    )


def is_pattern(text: str) -> bool:
    """Return whether a text has a wildcard."""
    return any(letter in text for letter in "*?[")


def read_frame(
    files: Files, stored: CurrentTable, table: str, columns: Sequence[str]
) -> pl.DataFrame:
    """Return some columns of a stored table."""
    import polars as pl

    rows = pl.from_arrow(table_rows(files, stored, table, columns))
    assert isinstance(rows, pl.DataFrame)
    return rows


def nearest(text: str, names: Iterable[str]) -> list[str]:
    """Return up to three names that contain ``text``, or else those most similar to it.

    Only names with a similar first part are compared, as comparing is slow.
    """
    names = list(names)
    part = text.strip("/*?").casefold()
    containing = [name for name in names if len(part) > 2 and part in name.casefold()]
    if containing:
        return containing[:3]
    by_first: dict[str, list[str]] = {}
    for name in names:
        by_first.setdefault(_first(name), []).append(name)
    firsts = difflib.get_close_matches(_first(text), by_first, n=5, cutoff=0.6)
    near = sorted(name for first in firsts for name in by_first[first])[:5_000]
    return difflib.get_close_matches(text, near, n=3, cutoff=0.5) or near[:3]


def _first(name: str) -> str:
    return name.strip("/").partition("/")[0].casefold()
