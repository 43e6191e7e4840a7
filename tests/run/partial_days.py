"""Stored days with partials, and periods counted from them in plain Python: one access
after another, no tricks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cmsspark.base.names import DERIVED
from cmsspark.base.schemas import stored_table

KEY = "0badc0de"
#: The columns of a partial, as the tests write them.
Row = dict[str, Any]
KINDS = {
    "date": pa.date32(),
    "string": pa.string(),
    "long": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
}


def user(number: int, key: str = KEY) -> str:
    """A pseudonym."""
    return f"{key}:{number:032x}"


def partial(day: date, **other: Any) -> Row:
    """A row of partials."""
    return {
        "day": day,
        "stream": "aaa",
        "dataset_name": "/ZMM/Run2026A-v1/AOD",
        "site_name": "T2_CH_CERN",
        "app": "crab",
        "user": user(1),
        "nacc": 1,
        "remote_nacc": None,
        "read_bytes": 100,
        "cpu_time": None,
        "wc_time": None,
        **other,
    }


def store_table(
    store: Path,
    job: str,
    table: str,
    day: date,
    rows: Sequence[Row],
    *,
    run: str = "r1",
    parts: int = 2,
    **told: Any,
) -> None:
    """``rows`` as the current result of a job's table for ``day``, in so many part files."""
    columns = stored_table(table).columns
    schema = pa.schema([(column.name, KINDS[column.type]) for column in columns])
    folder = store / job / day.isoformat()
    place = folder / "runs" / run / table
    place.mkdir(parents=True)
    for number in range(parts):
        pq.write_table(
            pa.Table.from_pylist(list(rows[number::parts]), schema),
            place / f"part-{number:05d}.parquet",
        )
    manifest = {
        "run": run,
        "job": job,
        "day": day.isoformat(),
        "tables": {table: {"rows": len(rows)}},
        **told,
    }
    (place.parent / "manifest.json").write_text(json.dumps(manifest))
    (folder / "CURRENT").write_text(json.dumps({"run": run}))


def store_partials(store: Path, day: date, rows: Sequence[Row], **told: Any) -> None:
    """``rows`` as the day's partials."""
    words: dict[str, Any] = {
        "pseudonym_key_id": KEY,
        "streams": ["aaa", "eos", "cmssw", "crab"],
        **told,
    }
    store_table(store, "data_aggregation", "partials", day, rows, **words)


def derived(row: Mapping[str, Any]) -> Row:
    """The row with all that follows from its columns; columns that were added since by
    their description.
    """
    parts = row["dataset_name"].split("/") + [None] * 4
    site = row["site_name"].split("_")[0]
    names = {
        "site_tier": site,
        "primary_name": parts[1],
        "processing_name": parts[2],
        "data_tier": parts[3],
        "campaign": None if parts[2] is None else parts[2].split("-")[0],
    }
    added = {name: rule for name, rule in DERIVED.items() if name not in names}
    return {
        **row,
        **names,
        **{name: rule.derive(row[rule.source]) for name, rule in added.items()},
    }


def counted(
    rows: Iterable[Row],
    keys: Sequence[str],
    measures: Sequence[str],
    fits: Callable[[Row], bool] = lambda row: True,
) -> dict[tuple[Any, ...], Row]:
    """What a right count finds: group → measures."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in map(derived, rows):
        if fits(row):
            groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return {
        group: {name: _measure(name, members) for name in measures}
        for group, members in groups.items()
    }


def _measure(name: str, rows: list[Row]) -> Any:
    counts = {
        "distinct_users": "user",
        "day_count": "day",
        "dataset_count": "dataset_name",
        "site_count": "site_name",
    }
    if name in counts:
        return len({row[counts[name]] for row in rows} - {None})
    known = [row[name] for row in rows if row[name] is not None]
    if not known:
        return None
    if name in ("cpu_time", "wc_time"):
        # To the millisecond, exactly.
        return float(sum(Fraction(round(value * 1000), 1000) for value in known))
    return sum(known)
