"""Datasets: all of them with use, size and replicas in one table; any columns,
conditions, order and page.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cmsspark.apps.dashboard import dataset_ranking
from cmsspark.apps.dashboard.dataset_ranking import last_access, to_integers
from cmsspark.apps.dashboard.downloads import to_arrow
from cmsspark.apps.dashboard.page import Page
from cmsspark.apps.dashboard.page_request import PageDefinition, PageRequest
from cmsspark.apps.dashboard.rollup_query import sums_of_datasets
from cmsspark.apps.dashboard.segment import derive_part
from cmsspark.apps.dashboard.selection import Selection
from cmsspark.apps.dashboard.snapshot import Snapshot, to_day
from cmsspark.apps.dashboard.use import is_counted, use_columns
from cmsspark.apps.dashboard.widgets import (
    Cell,
    Column,
    Content,
    Table,
    loader,
    shown,
)
from cmsspark.base.errors import UsageError
from cmsspark.sources.registry import ACCESS_STREAMS, STREAMS_OF_JOBS
from cmsspark.store.stored_columns import REPLICA_TABLES

_SUMS: Final = ("nacc", "read_bytes", "job_count", "job_read_bytes", "cpu_ms")
COLUMNS: Final = (
    Column("dataset_name", "Dataset"),
    Column("data_tier", "Data tier"),
    Column("campaign", "Campaign"),
    *use_columns("nacc"),
    Column("distinct_users", "Users", "count", "distinct people of the period, each once"),
    *use_columns("read_bytes", "job_count", "job_read_bytes", "cpu_ms"),
    Column("last_day", "Last access", "day", "or last job, on any stored day"),
    Column("dataset_bytes", "Size", "bytes", "in DBS"),
    Column("events", "Events", "count", "in DBS"),
    Column("access_type", "State", "text", "in DBS"),
    Column("disk_bytes", "On disk", "bytes", "over all sites"),
    Column("disk_sites", "Disk sites", "count"),
    Column("tape_bytes", "On tape", "bytes", "over all sites"),
    Column("locked_bytes", "Locked", "bytes", "copies that a rule of Rucio holds, over all sites"),
    Column("rule_count", "Rules", "count", "added over storage elements"),
    Column("deletable_bytes", "Deletable", "bytes", "copies that may go, all of them together"),
    Column("only_copy_bytes", "Only copies", "bytes", "of files that are nowhere else"),
)
_SHOWN: Final = (
    *("dataset_name", "nacc", "distinct_users", "read_bytes", "last_day"),
    *("dataset_bytes", "disk_bytes", "tape_bytes"),
)
_BY_NAME: Final = {column.name: column for column in COLUMNS}
_COMPARISONS: Final = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_CONDITION: Final = re.compile(r"\s*(\w+)\s*(<=|>=|!=|<|>|=|~)\s*(.*?)\s*")
_NUMBER: Final = re.compile(r"(-?\d+(?:\.\d+)?)\s*([kMGTPE]?)B?")
_PREFIXES: Final = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
    "E": 10**18,
}
_PAGE: Final = 25
#: Stored table of another job → what its days have.
_DAYS: Final = {
    "dbs_events": "day of sizes, events and states in DBS",
    "dbs_phedex": "day of replicas",
    "dataset_rses": "day of what rules hold",
}
_HELP: Final = (
    "Conditions, with commas between them: nacc<10, disk_bytes>5TB, last_day<2025-06-01, data_tier=NANOAOD|MINIAOD, "
    "dataset_name~Run2018, events=none. Values of one condition are separated by |; none is a value that is not known."
)
#: A row: column → value.
Row = Mapping[str, Any]


def view(request: PageRequest) -> Content:
    """Return the page for a period, columns and conditions.

    Raises UsageError (2) for a condition that cannot be read.
    """
    chosen, page = request.chosen, Page(request)
    names = _chosen_columns(request)
    page.period(chosen, with_step=False)
    page.filters(chosen)
    # With the names that conditions take.
    choices = {column.name: f"{column.heading} ({column.name})" for column in COLUMNS[1:]}
    page.many("columns", "Columns", choices, [name for name in names if name in choices])
    text = page.text("where", "Conditions", "search", wide=True)
    page.notes += request.use_notes(chosen)
    tests = [parse_condition(part) for part in text.split(",") if part.strip()]
    rows = _rows(page, chosen)
    # Counting the users of all datasets takes a second: only where they decide what is shown.
    needed = f"{text} {request.parameters.get('sort', '')}"
    if "distinct_users" in needed or (
        request.parameters.get("download") and "distinct_users" in names
    ):
        rows = _with_users(request, chosen, rows)
    for test in tests:
        rows = [row for row in rows if test(row)]
    table = _table(request, chosen, rows, [_BY_NAME[name] for name in names])
    page.section("All datasets", table, about=_HELP)
    about = "use of the period beside size, replicas and last access."
    return page.content("Datasets", f"{chosen.first} to {chosen.last}: {about}")


def _chosen_columns(request: PageRequest) -> list[str]:
    columns = request.parameters.get("columns") or ()
    names = [
        name
        for text in ((columns,) if isinstance(columns, str) else columns)
        for name in text.split(",")
        if name
    ]
    unknown = [name for name in names if name not in _BY_NAME]
    if unknown:
        raise UsageError(f"there is no column {unknown[0][:80]!r}", found=", ".join(_BY_NAME))
    return [name for name in _BY_NAME if name == "dataset_name" or name in (names or _SHOWN)]


def _rows(page: Page, chosen: Selection) -> list[Row]:
    """Return all datasets that are used, in DBS or at a site, the most used first."""
    snapshot = page.request.snapshot
    # Not kept, as the rows of each selection take 15 MB; their sums are.
    uses = _uses(page.request, chosen)
    facts = _facts(page)
    tiers, campaigns = chosen.values("data_tier"), chosen.values("campaign")
    rows = [{**use, **facts[name]} if name in facts else use for name, use in uses.items()]
    is_filtered = bool(chosen.values("stream") or chosen.values("site_tier"))
    # Where accesses were counted, a dataset that no record has was read 0 times, by nobody.
    zeros = _zeros(snapshot, chosen)
    unused = zeros | ({"distinct_users": 0} if "nacc" in zeros else {})
    for name in (name for name in facts if name not in uses) if not is_filtered else ():
        parts = {column: derive_part(column, name) for column in ("data_tier", "campaign")}
        if (not tiers or parts["data_tier"] in tiers) and (
            not campaigns or parts["campaign"] in campaigns
        ):
            last = last_access(snapshot, name)
            rows.append({"dataset_name": name, **parts, **unused, "last_day": last, **facts[name]})
    return rows


def _zeros(snapshot: Snapshot, chosen: Selection) -> dict[str, int]:
    """Return 0 for the counts, of accesses and of jobs, of which the period has a
    stored day that counted them.
    """
    streams = {"nacc": ACCESS_STREAMS, "job_count": STREAMS_OF_JOBS}
    return {name: 0 for name, names in streams.items() if is_counted(snapshot, chosen, names)}


def _uses(request: PageRequest, chosen: Selection) -> dict[str, Row]:
    """Dataset → its use in the period, the most used first."""
    datasets = request.snapshot.datasets
    rows = sums_of_datasets(request.snapshot, chosen, _SUMS)
    rows = rows.append_column("code", pa.array(datasets.codes[rows["dataset"].to_numpy()]))
    rows = rows.filter(pc.or_(rows["nacc"].is_valid(), rows["job_count"].is_valid()))
    order = [("nacc", "descending"), ("job_count", "descending"), ("code", "ascending")]
    rows = rows.sort_by(order)
    codes = rows["code"].to_numpy()
    columns = {"dataset_name": [datasets.names[code] for code in codes]}
    columns |= {name: parts[codes].tolist() for name, parts in datasets.parts.items()}
    last = datasets.last_days[codes].tolist()
    days = {number: None if number < 0 else to_day(number) for number in set(last)}
    columns["last_day"] = [days[number] for number in last]
    columns |= {name: to_integers(rows[name]) for name in _SUMS}
    for name, zero in _zeros(request.snapshot, chosen).items():
        columns[name] = [zero if value is None else value for value in columns[name]]
    cells = zip(*columns.values(), strict=True)
    return {row[0]: dict(zip(columns, row, strict=True)) for row in cells}


def _facts(page: Page) -> dict[str, dict[str, Any]]:
    """Dataset → size, events and state in DBS, and its replicas, as the newest stored
    days have them.
    """
    facts: dict[str, dict[str, Any]] = {}
    queries = {
        (
            "dbs_events",
        ): "SELECT dataset_name, dataset_bytes, events, access_type FROM {} WHERE day = ?",
        REPLICA_TABLES: (
            "SELECT dataset_name, sum(present_bytes) FILTER (kind = 'disk') AS disk_bytes, "
            "count(DISTINCT site_name) FILTER (kind = 'disk' AND present_bytes > 0) AS disk_sites, "
            "sum(present_bytes) FILTER (kind = 'tape') AS tape_bytes FROM {} WHERE day = ? GROUP BY 1"
        ),
        ("dataset_rses",): (
            "SELECT dataset_name, sum(locked_bytes)::BIGINT AS locked_bytes, "
            "sum(rule_count)::BIGINT AS rule_count, "
            "sum(deletable_bytes)::BIGINT AS deletable_bytes, "
            "sum(only_copy_bytes)::BIGINT AS only_copy_bytes FROM {} WHERE day = ? GROUP BY 1"
        ),
    }
    for tables, sql in queries.items():
        for row in page.optional(tables[0], partial(_newest, page, tables, sql)) or ():
            facts.setdefault(row.pop("dataset_name"), {}).update(row)
    facts.pop(None, None)  # type: ignore[call-overload]
    return facts


def _newest(page: Page, tables: Sequence[str], sql: str) -> list[dict[str, Any]]:
    newest = page.request.database.newest(tables)
    if newest is None:
        job = tables[0]
        page.note(f"No {_DAYS[job]} is stored. Run: run_spark {job} --date DAY")
        return []
    day, table = newest
    return page.request.database.query(sql.format(table), [day]).dicts


def parse_condition(text: str) -> Callable[[Row], bool]:
    """Return what tests a row by a condition such as ``nacc<10``. Raises UsageError (2)."""
    match = _CONDITION.fullmatch(text)
    if match is None or match[1] not in _BY_NAME or not match[3]:
        raise UsageError(
            "a condition is a column, one of < <= = != >= > ~, and a value",
            found=shown(text[:80]),
            next_step=f"columns: {', '.join(_BY_NAME)}",
        )
    column, sign, values = (
        _BY_NAME[match[1]],
        match[2],
        [part.strip() for part in match[3].split("|")],
    )
    name = column.name
    if sign == "~":
        words = [value.lower() for value in values]
        return lambda row: any(word in str(row.get(name) or "").lower() for word in words)
    limits = [_value(column, value) for value in values]
    if sign in ("=", "!="):
        # A name without such a part has an empty text.
        return lambda row: (
            ((None if row.get(name) == "" else row.get(name)) in limits) == (sign == "=")
        )
    limit = limits[0]
    if limit is None or len(limits) > 1:
        raise UsageError(f"{sign} takes one value", found=shown(text[:80]))
    compare = _COMPARISONS[sign]
    # What is not known is neither below nor above anything.
    return lambda row: row.get(name) is not None and compare(row[name], limit)


def _value(column: Column, text: str) -> Any:
    """Return a value of a condition as the column has it; None for ``none``."""
    if text == "none":
        return None
    if column.kind == "day":
        try:
            return date.fromisoformat(text)
        except ValueError:
            raise UsageError(
                f"{column.name} is a day, such as 2026-01-15", found=shown(text[:80])
            ) from None
    if column.kind == "text":
        return text
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise UsageError(f"{column.name} is a number, such as 10 or 2.5TB", found=shown(text[:80]))
    number = float(match[1]) * _PREFIXES[match[2]]
    return number * 3_600_000 if column.kind == "ms" else number


def _with_users(request: PageRequest, chosen: Selection, rows: Sequence[Row]) -> list[Row]:
    """Return the rows with their distinct users; None of a dataset without any use in
    the selection.
    """
    used = [row["dataset_name"] for row in rows if "nacc" in row and "distinct_users" not in row]
    positions = request.snapshot.datasets.positions
    codes = np.array([positions[name] for name in used], np.int64)
    counts = dataset_ranking.users_of_datasets(request.snapshot, chosen, codes)
    users = dict(zip(used, counts, strict=True))
    return [{"distinct_users": users.get(row["dataset_name"]), **row} for row in rows]


def _table(
    request: PageRequest, chosen: Selection, rows: Sequence[Row], columns: Sequence[Column]
) -> Table:
    def cells(part: Sequence[Row]) -> list[tuple[Any, ...]]:
        if any(column.name == "distinct_users" for column in columns):
            part = _with_users(request, chosen, part)
        return [
            (
                Cell(row["dataset_name"], request.dataset_link(row["dataset_name"])),
                *(row.get(column.name) for column in columns[1:]),
            )
            for row in part
        ]

    def download() -> pa.Table:
        every = [tuple(row.get(column.name) for column in columns) for row in rows]
        return to_arrow(Table("datasets", columns, every, ""))

    caption = "Datasets that are used, in DBS or at a site"
    empty = "No dataset meets these conditions."
    return Table(
        "datasets",
        columns,
        (),
        caption,
        download,
        len(rows),
        empty,
        limit=_PAGE,
        load=loader(rows, cells, lambda name: [row.get(name) for row in rows]),
    )


PAGE = PageDefinition(
    "Datasets", "All datasets: use, size, replicas and last access, with conditions.", view
)
