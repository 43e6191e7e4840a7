"""``rules_day``: rules of Rucio that are new, stuck, expiring or without end, by account
and activity; ``rules_stuck`` names those that are stuck, for operators (rule 74).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from cmsspark.base.dates import DAY_MS
from cmsspark.run.row_job import (
    AccountNames,
    Made,
    RowInputs,
    RowJob,
    account_types,
    listed_rows,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from cmsspark.dumps.row_tables import Rows

UNKNOWN: Final = "unknown"
#: Rules that end within so many days are expiring.
_EXPIRING_DAYS: Final = 14
#: Code points of a reason.
_REASON: Final = 80
_ENDLESS: Final = "endless"
#: Classes of accounts whose rules should end.
_ENDING: Final = ("user", "group", "unknown")
_STATES: Final = {"S": "stuck", "U": "suspended", "W": "waiting"}
_KEYS: Final = ("event", "account", "activity", "did_scope", "reason")
_SUMS: Final = ("rule_count", "lock_ok", "lock_replicating", "lock_stuck", "copies")
_STUCK: Final = {
    "rule_id": "ID",
    "account": "ACCOUNT",
    "name": "NAME",
    "rse_expression": "RSE_EXPRESSION",
    "error": "ERROR",
    "stuck_ms": "STUCK_AT",
}


def find_reason(error: str | None) -> str:
    """Return what an error is about: its text before the first colon.

    Example:
        >>> find_reason(" No space: RSE T2_X is full"), find_reason(None), find_reason(" : x")
        ('No space', 'none', 'none')
    """
    return (error or "").partition(":")[0].strip()[:_REASON] or "none"


def list_events(rule: dict[str, Any], t0_ms: int) -> Iterator[tuple[str, str]]:
    """Yield the events of a rule, with their reason. ``endless`` is that of some classes
    of accounts only.
    """
    created, expires = rule["CREATED_AT"], rule["EXPIRES_AT"]
    if created is not None and t0_ms - DAY_MS <= created < t0_ms:
        yield "new", "-"
    if expires is None:
        yield _ENDLESS, "-"
    elif expires < t0_ms:
        yield "overdue", "-"
    elif expires < t0_ms + _EXPIRING_DAYS * DAY_MS:
        yield "expiring", "-"
    event = _STATES.get(rule["STATE"])
    if event is not None:
        yield event, "-" if event == "waiting" else find_reason(rule["ERROR"])


def sum_rules(t0_ms: int, rows: Rows) -> dict[str, pa.Table]:
    """Return sums of rules by event, the rules that are stuck, and accounts as they are."""
    import pyarrow as pa

    from cmsspark.dumps.row_tables import pass_rows
    from cmsspark.sources.rucio_tables import ROW_TABLES, scope_class

    names = list(ROW_TABLES["RULES"].columns)
    sums: dict[tuple[Any, ...], list[Any]] = {}
    stuck = []
    for row in rows.get("RULES", ()):
        rule = dict(zip(names, row, strict=True))
        locks = [rule[f"LOCKS_{name}_CNT"] or 0 for name in ("OK", "REPLICATING", "STUCK")]
        for event, reason in list_events(rule, t0_ms):
            key = (
                *(event, rule["ACCOUNT"], rule["ACTIVITY"] or UNKNOWN),
                *(scope_class(rule["SCOPE"]), reason),
            )
            *sums_so_far, oldest = sums.get(key, (*[0] * len(_SUMS), None))
            added = (1, *locks, rule["COPIES"] or 0)
            times = [time for time in (oldest, rule["CREATED_AT"]) if time is not None]
            sums[key] = [
                *(first + addend for first, addend in zip(sums_so_far, added, strict=True)),
                min(times, default=None),
            ]
        if rule["STATE"] in ("S", "U"):
            stuck.append(
                {name: rule[column] for name, column in _STUCK.items()}
                | {"state": rule["STATE"], "locks": sum(locks)}
            )
    columns = [*_KEYS, *_SUMS, "oldest_ms"]
    summed = [dict(zip(columns, (*key, *values), strict=True)) for key, values in sums.items()]
    kinds = {name: pa.string() for name in _KEYS}
    schema = pa.schema([(name, kinds.get(name, pa.int64())) for name in columns])
    numbers = ("stuck_ms", "locks")
    of_stuck = pa.schema(
        [
            (name, pa.int64() if name in numbers else pa.string())
            for name in (*_STUCK, "state", "locks")
        ]
    )
    return {
        "sums": pa.Table.from_pylist(summed, schema),
        "stuck": pa.Table.from_pylist(stuck, of_stuck),
        **pass_rows({name: of_table for name, of_table in rows.items() if name != "RULES"}),
    }


def build(inputs: RowInputs) -> dict[str, list[Made]]:
    """Return both tables on rules."""
    tables = inputs.read(("RULES", "ACCOUNTS"), partial(sum_rules, inputs.t0_ms))
    names = AccountNames(account_types(tables), inputs.pseudonyms)
    cells: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in listed_rows(tables, "sums"):
        row["account"], row["account_class"] = names.describe(row["account"])
        if row["event"] == _ENDLESS and row["account_class"] not in _ENDING:
            continue
        key = (*(row[name] for name in _KEYS), row["account_class"])
        cell = cells.get(key)
        if cell is None:
            cells[key] = row
            continue
        for name in _SUMS:
            cell[name] += row[name]
        times = [time for time in (cell["oldest_ms"], row["oldest_ms"]) if time is not None]
        cell["oldest_ms"] = min(times, default=None)
    return {"rules_day": list(cells.values()), "rules_stuck": listed_rows(tables, "stuck")}


JOB: Final = RowJob(
    "rules_day",
    "Rules of Rucio that are new, stuck, expiring or without end, by account and activity",
    build,
    tables=("rules_day", "rules_stuck"),
    rucio=("RULES", "ACCOUNTS"),
).declare(__name__)
