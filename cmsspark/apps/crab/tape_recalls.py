"""``tape_recalls``: how long data that CRAB asks for takes to come from tape, a row for
each rule (rule 78).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
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

ACTIVITY: Final = "Analysis TapeRecall"
_STATES: Final = {
    "W": "waiting",
    "R": "replicating",
    "I": "replicating",
    "O": "ok",
    "S": "stuck",
    "U": "suspended",
}
_DATASET: Final = re.compile(r"/[^/#]+/[^/#]+/[^/#]+")
_COMMENT: Final = re.compile(r"dataset: ([^ ]*)")


def find_dataset(scope: str | None, name: str | None, comments: str | None) -> str | None:
    """Return the dataset that a rule recalls, by its own name or by its comments.

    Example:
        >>> find_dataset("cms", "/a/b/C#1", None)
        '/a/b/C'
        >>> find_dataset("user.ann", "/TapeRecall/t/USER", "Recall for user: ann dataset: /a/b/C x")
        '/a/b/C'
    """
    plain = (name or "").partition("#")[0]
    if (scope or "").strip().lower() == "cms" and _DATASET.fullmatch(plain):
        return plain
    match = _COMMENT.search(comments or "")
    return (match[1] or None) if match else None


def is_recall(row: Mapping[str, Any]) -> bool:
    """Return whether a rule is a recall from tape for analysis."""
    return bool(row["ACTIVITY"] == ACTIVITY)


def choose_recalls(rows: Rows) -> dict[str, pa.Table]:
    """Return the rules that are recalls, the ids of rules that tasks wait for, and
    accounts as they are.
    """
    import pyarrow as pa

    from cmsspark.dumps.row_tables import pass_rows
    from cmsspark.sources.rucio_tables import ROW_TABLES, RULES_BEFORE

    tables = pass_rows({name: of_table for name, of_table in rows.items() if name == "ACCOUNTS"})
    for name in ("RULES", RULES_BEFORE, "RULES_HISTORY"):
        column = list(ROW_TABLES[name].columns).index("ACTIVITY")
        recalls = [row for row in rows.get(name, ()) if row[column] == ACTIVITY]
        if recalls:
            tables |= pass_rows({name: recalls})
    column = list(ROW_TABLES["TASKS"].columns).index("TM_DDM_REQID")
    waited_for = [row[column].strip().lower() for row in rows.get("TASKS", ()) if row[column]]
    tables["waited_for"] = pa.table({"rule_id": pa.array(waited_for, pa.string())})
    return tables


def _recall(
    rule: str, of_rules: list[dict[str, Any]], of_history: list[dict[str, Any]], t0_ms: int
) -> dict[str, Any]:
    """Return the row of a rule. ``of_rules``: its row in RULES, if there is one."""
    rows = [*of_rules, *of_history]
    # Of several in the history the last one describes the rule.
    newest = max(of_rules or of_history, key=lambda row: row["UPDATED_AT"] or -1)
    ended = "ended_ok" if any(row["STATE"] == "O" for row in rows) else "ended_open"
    state = _STATES[newest["STATE"]] if of_rules else ended
    times = [
        [row["CREATED_AT"] for row in of_table if row["CREATED_AT"] is not None]
        for of_table in (of_rules, of_history)
    ]
    created = min(times[0] or times[1], default=None)
    expires = max(
        (row["EXPIRES_AT"] for row in rows if row["EXPIRES_AT"] is not None), default=None
    )
    ok_ms = min(
        (
            row["UPDATED_AT"]
            for row in rows
            if row["STATE"] == "O" and row["UPDATED_AT"] is not None
        ),
        default=None,
    )
    end = ok_ms if ok_ms is not None else min(t0_ms, t0_ms if expires is None else expires)
    datasets = (
        find_dataset(row["SCOPE"], row["NAME"], row["COMMENTS"]) for row in (newest, *rows)
    )
    return {
        "rule_id": rule,
        "account": newest["ACCOUNT"],
        "dataset_name": next((name for name in datasets if name), None),
        "state": state,
        "created_ms": created,
        "expires_ms": expires,
        "ok_ms": ok_ms,
        "days": None if created is None else max(0, -(-(end - created) // DAY_MS)),
        "is_upper_bound": ok_ms is not None,
    }


def build(inputs: RowInputs) -> dict[str, list[Made]]:
    """Return ``schemas/tables/tape_recalls.yaml``."""
    from cmsspark.sources.rucio_tables import RULES_BEFORE

    readings = ("RULES", RULES_BEFORE, "RULES_HISTORY", "ACCOUNTS", "TASKS")
    tables = inputs.read(readings, choose_recalls, {"RULES_HISTORY": is_recall})
    names = AccountNames(account_types(tables), inputs.pseudonyms)
    by_rule: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for reading in ("RULES", "RULES_HISTORY"):
        for row in listed_rows(tables, reading):
            if row["ID"] is not None:
                by_rule.setdefault(row["ID"], {}).setdefault(reading, []).append(row)
    task_counts: dict[str, int] = {}
    for row in listed_rows(tables, "waited_for"):
        rule = row["rule_id"].replace("-", "")
        task_counts[rule] = task_counts.get(rule, 0) + 1
    was_open = {row["ID"] for row in listed_rows(tables, RULES_BEFORE) if row["STATE"] != "O"}
    # Seen to become ok between two dumps: on the day before that of the later one.
    ok_day = datetime.fromtimestamp(inputs.t0_ms / 1000, UTC).date() - timedelta(days=1)
    recalls = []
    for rule, rows in by_rule.items():
        recall = _recall(rule, rows.get("RULES", []), rows.get("RULES_HISTORY", []), inputs.t0_ms)
        recall["account"], recall["account_class"] = names.describe(recall["account"])
        recall["task_count"] = task_counts.get(rule, 0)
        recall["ok_day"] = ok_day if rule in was_open and recall["state"] == "ok" else None
        recalls.append(recall)
    return {"tape_recalls": recalls}


JOB: Final = RowJob(
    "tape_recalls",
    "How long data that CRAB asks for takes to come from tape, a row for each rule",
    build,
    rucio=("RULES", "RULES_HISTORY"),
    optional=("ACCOUNTS",),
    before=("RULES",),
    reads_tasks=True,
).declare(__name__)
