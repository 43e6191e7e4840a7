"""Datasets: all of them with use, size and replicas in one table; any columns,
conditions, order and page.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from datetime import date
from decimal import Decimal
from functools import partial
from typing import Any, Final

import pyarrow as pa

from cmsspark.apps.dashboard.dataset_ranking import users_of_datasets
from cmsspark.apps.dashboard.page import Page
from cmsspark.apps.dashboard.page_request import PageDefinition, PageRequest
from cmsspark.apps.dashboard.rollup_query import sum_table
from cmsspark.apps.dashboard.segment import part_sql
from cmsspark.apps.dashboard.selection import Selection
from cmsspark.apps.dashboard.snapshot import Snapshot
from cmsspark.apps.dashboard.use import is_counted, use_columns
from cmsspark.apps.dashboard.widgets import ArrowRows, Column, Content, Table, shown
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
_PARTS: Final = ("data_tier", "campaign")
_SHOWN: Final = (
    *("dataset_name", "nacc", "distinct_users", "read_bytes", "last_day"),
    *("dataset_bytes", "disk_bytes", "tape_bytes"),
)
_BY_NAME: Final = {column.name: column for column in COLUMNS}
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
#: Facts of a dataset, as the newest stored day has them: tables, of which one has it, and
#: the query.
_FACTS: Final[Mapping[tuple[str, ...], str]] = {
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
    conditions = [parse_condition(part) for part in text.split(",") if part.strip()]
    # Cutting all names takes long.
    parts = [name for name in _PARTS if name in names or name in text]
    rows, widen = _rows(page, chosen, parts), partial(_widen, request.snapshot, chosen)
    if "distinct_users" in text:
        # Counting those of all datasets takes long.
        rows = widen(rows, ["dataset", "place", *_BY_NAME])
    if conditions:
        where = " AND ".join(sql for sql, _ in conditions)
        values = [value for _, own_values in conditions for value in own_values]
        sql = f"SELECT * FROM rows WHERE {where} ORDER BY place"
        rows = request.snapshot.arrow(sql, values, {"rows": rows})
    table = Table(
        "datasets",
        [_BY_NAME[name] for name in names],
        ArrowRows(rows, widen),
        "Datasets that are used, in DBS or at a site",
        "No dataset meets these conditions.",
        limit=_PAGE,
    )
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


def _rows(page: Page, chosen: Selection, parts: Sequence[str]) -> pa.Table:
    """Return all datasets that are used, in DBS or at a site, the most used first, with
    their ``place``, and their number, ``dataset``, if they are used in the selection.
    Other ``parts`` of names than these are null.
    """
    snapshot = page.request.snapshot
    tables = {
        f"facts_{number}": page.optional(names[0], partial(_newest, page, names, sql))
        for number, (names, sql) in enumerate(_FACTS.items())
    }
    facts = {name: table for name, table in tables.items() if table is not None}
    streams = {"nacc": ACCESS_STREAMS, "job_count": STREAMS_OF_JOBS}
    # Where accesses were counted, a dataset that no record has was read 0 times.
    counted = [name for name, names in streams.items() if is_counted(snapshot, chosen, names)]
    zeros = [f"coalesce({name}, 0) AS {name}" for name in counted]
    # Use of a stream or site tier has no dataset that is not used.
    join = "LEFT" if chosen.values("stream") or chosen.values("site_tier") else "FULL"
    joins = "".join(f" {join} JOIN {name} USING (dataset_name)" for name in facts)
    condition, parameters = chosen.only(*_PARTS).where(
        {name: f"{part_sql(name)} IN ({{}})" for name in _PARTS}, days_too=False
    )
    cut = "".join(f", {part_sql(name)} AS {name}" for name in parts)
    rows = snapshot.arrow(
        f"""
        WITH used AS (SELECT dataset_name, uses.* FROM uses JOIN datasets USING (dataset)
          WHERE nacc IS NOT NULL OR job_count IS NOT NULL),
        rows AS (SELECT *{cut}
          FROM used{joins} LEFT JOIN (SELECT dataset_name, last_day FROM datasets)
          USING (dataset_name) WHERE dataset_name IS NOT NULL AND {condition})
        SELECT * {f"REPLACE ({', '.join(zeros)})" if zeros else ""} FROM rows
        ORDER BY dataset IS NULL, rows.nacc DESC NULLS LAST, rows.job_count DESC NULLS LAST,
          dataset_name
        """,
        parameters,
        {"uses": sum_table(snapshot, chosen, "dataset", _SUMS), **facts},
    )
    rows = rows.append_column("place", pa.array(range(rows.num_rows), pa.int64()))
    for column in COLUMNS:
        if column.name not in (*rows.column_names, "distinct_users"):
            kind = pa.string() if column.kind == "text" else pa.int64()
            rows = rows.append_column(column.name, pa.nulls(rows.num_rows, kind))
    return rows


def _newest(page: Page, tables: Sequence[str], sql: str) -> pa.Table | None:
    newest = page.request.database.newest(tables)
    if newest is None:
        job = tables[0]
        page.note(f"No {_DAYS[job]} is stored. Run: run_spark {job} --date DAY")
        return None
    day, table = newest
    return page.request.database.query(sql.format(table), [day]).table


def _widen(
    snapshot: Snapshot, chosen: Selection, rows: pa.Table, names: Collection[str]
) -> pa.Table:
    """Return some columns of rows, also their distinct users: 0 of a dataset without any
    use, if accesses were counted.
    """
    if "distinct_users" in names and "distinct_users" not in rows.column_names:
        numbers = rows["dataset"]
        counts = iter(users_of_datasets(snapshot, chosen, numbers.drop_null().to_numpy()))
        nobody = 0 if is_counted(snapshot, chosen, ACCESS_STREAMS) else None
        users = [next(counts) if is_used else nobody for is_used in numbers.is_valid().to_pylist()]
        rows = rows.append_column("distinct_users", pa.array(users, pa.int64()))
    return rows.select(list(names))


def parse_condition(text: str) -> tuple[str, list[Any]]:
    """Return a condition such as ``nacc<10`` in SQL, and its values. Raises UsageError (2).

    Example:
        >>> parse_condition("nacc<1k")
        ('nacc < ?', [1000])
    """
    match = _CONDITION.fullmatch(text)
    if match is None or match[1] not in _BY_NAME or not match[3]:
        raise UsageError(
            "a condition is a column, one of < <= = != >= > ~, and a value",
            found=shown(text[:80]),
            next_step=f"columns: {', '.join(_BY_NAME)}",
        )
    name, sign, texts = match[1], match[2], [part.strip() for part in match[3].split("|")]
    if sign == "~":
        contained = f"contains(lower(coalesce({name}::VARCHAR, '')), lower(?))"
        return f"({' OR '.join([contained] * len(texts))})", texts
    values = [_value(_BY_NAME[name], value) for value in texts]
    if sign in ("=", "!="):
        # A name without such a part has an empty text.
        column = f"nullif({name}, '')" if _BY_NAME[name].kind == "text" else name
        limits = [value for value in values if value is not None]
        tests = (
            [f"coalesce({column} IN ({', '.join('?' * len(limits))}), false)"] if limits else []
        )
        tests += [f"{column} IS NULL"] if None in values else []
        return f"({' OR '.join(tests)}) = {str(sign == '=').lower()}", limits
    if values[0] is None or len(values) > 1:
        raise UsageError(f"{sign} takes one value", found=shown(text[:80]))
    # What is not known is neither below nor above anything.
    return f"{name} {sign} ?", values


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
    factor = _PREFIXES[match[2]] * (3_600_000 if column.kind == "ms" else 1)
    number = Decimal(match[1]) * factor
    return int(number) if number == int(number) else float(number)


PAGE = PageDefinition(
    "Datasets", "All datasets: use, size, replicas and last access, with conditions.", view
)
