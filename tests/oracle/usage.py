"""Rules 64, 65 and 68 to 72: tables of Rucio and CRAB about locks, rules, usage and
tasks, row by row in plain Python. Each function has a table's rows by their keys.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fastavro

from tests.oracle.rucio import Damaged, identifier, number, site_and_kind, text

DAY = 86_400_000
Row = dict[str, Any]
LETTERS = {
    "LOCKS": {"R": "REPLICATING", "O": "OK", "S": "STUCK"},
    "REPLICAS": {
        "A": "AVAILABLE",
        "U": "UNAVAILABLE",
        "C": "COPYING",
        "B": "BEING_DELETED",
        "D": "BAD",
        "T": "TEMPORARY_UNAVAILABLE",
    },
}
LETTERS["RULES"] = LETTERS["RULES_HISTORY"] = {
    **LETTERS["LOCKS"],
    "U": "SUSPENDED",
    "W": "WAITING_APPROVAL",
    "I": "INJECT",
}
KEYS = {
    "LOCKS": ("SCOPE", "NAME", "RULE_ID", "RSE_ID"),
    "REPLICAS": ("SCOPE", "NAME", "RSE_ID"),
    "RULES": ("ID",),
    "ACCOUNTS": ("ACCOUNT",),
    "ACCOUNT_LIMITS": ("ACCOUNT", "RSE_ID"),
    "RSE_USAGE": ("RSE_ID", "SOURCE"),
    "RSE_ATTR_MAP": ("RSE_ID", "KEY"),
    "TASKS": ("TM_TASKNAME",),
    "RULES_HISTORY": (),
    "RSES": (),
}
OTHERS = {
    "LOCKS": ("ACCOUNT", "STATE", "BYTES"),
    "REPLICAS": ("BYTES", "STATE", "LOCK_CNT", "TOMBSTONE"),
    "RULES": (
        *("SCOPE", "NAME", "STATE", "ERROR", "RSE_EXPRESSION", "COPIES", "EXPIRES_AT"),
        *("LOCKS_OK_CNT", "LOCKS_REPLICATING_CNT", "LOCKS_STUCK_CNT", "ACTIVITY", "STUCK_AT"),
        *("COMMENTS", "CREATED_AT", "ACCOUNT"),
    ),
    "ACCOUNTS": ("ACCOUNT_TYPE",),
    "ACCOUNT_LIMITS": ("BYTES",),
    "RSE_USAGE": ("USED", "FREE", "FILES"),
    "RSE_ATTR_MAP": ("VALUE",),
    "TASKS": (
        *("TM_START_TIME", "TM_TASK_STATUS", "TM_SPLIT_ALGO", "TM_JOB_TYPE", "TM_USERNAME"),
        *("TM_USER_ROLE", "TM_IGNORE_LOCALITY", "TM_SCRIPTEXE", "TM_USER_CONFIG", "TM_NUM_JOBS"),
        "TM_DDM_REQID",
    ),
    "RULES_HISTORY": (
        *("ID", "SCOPE", "NAME", "ACCOUNT", "STATE", "EXPIRES_AT", "ACTIVITY", "COMMENTS"),
        "CREATED_AT",
    ),
    "RSES": ("ID", "RSE", "RSE_TYPE", "DELETED_AT"),
}
IDS = {"ID", "RSE_ID", "RULE_ID"}
NUMBERS = re.compile(
    "BYTES|COPIES|.*_(AT|CNT)|USED|FREE|FILES|TOMBSTONE|TM_START_TIME|TM_NUM_JOBS"
)


def checked(table: str, name: str, value: Any) -> Any:
    """Rule 64: a value of a column."""
    if name in IDS:
        return identifier(value)
    if NUMBERS.fullmatch(name):
        is_none = table == "ACCOUNT_LIMITS" and value in (-1, "-1")
        return -1 if is_none else number(value)
    found = text(value)
    if name == "STATE":
        word = (found or "").strip().upper().split(".")[-1]
        for letter, full in LETTERS[table].items():
            if word in (letter, full):
                return letter
        raise Damaged
    return found


def place(value: Any) -> Any:
    """Where a value stands in an order, null first, texts by their bytes."""
    return (0,) if value is None else (1, value.encode() if isinstance(value, str) else value)


def rows(folder: Path, table: str) -> list[Row]:
    """The rows of a table that are not damaged, each key once."""
    best: dict[Any, Row] = {}
    listed: list[Row] = []
    for file in sorted(folder.glob("*.avro")):
        with file.open("rb") as stream:
            for record in fastavro.reader(stream):
                raw = {name.upper(): value for name, value in record.items()}  # type: ignore[union-attr]
                names = (*KEYS[table], *OTHERS[table], "UPDATED_AT")
                try:
                    listed.append({name: checked(table, name, raw.get(name)) for name in names})
                except Damaged:
                    continue
    if not KEYS[table]:
        return listed
    for row in listed:
        key = tuple(row[name] for name in KEYS[table])
        order = [place(row[name]) for name in ("UPDATED_AT", *OTHERS[table])]
        if None not in key and (
            key not in best
            or order > [place(best[key][name]) for name in ("UPDATED_AT", *OTHERS[table])]
        ):
            best[key] = row
    return list(best.values())


class World:
    """A dump: its tables by name, the start of its day, and a function for pseudonyms."""

    def __init__(self, folder: Path, t0: int, pseudonym: Callable[[str], str]) -> None:
        self.folder, self.t0, self.pseudonym = folder, t0, pseudonym
        self.rse: dict[str, Row] = {}
        for row in self.of("RSES"):
            if row["DELETED_AT"] is None:
                found = site_and_kind(row["RSE"], row["RSE_TYPE"], {})
                self.rse[row["ID"]] = {"rse": row["RSE"], "place": found}
        self.types = {row["ACCOUNT"]: row["ACCOUNT_TYPE"] for row in self.of("ACCOUNTS")}

    def of(self, table: str) -> list[Row]:
        """The rows of a table; none where the dump lacks it."""
        return rows(self.folder / table.lower(), table)

    def known(self, rse_id: str) -> str | None:
        """The name of an RSE that counts."""
        found = self.rse.get(rse_id)
        return found["rse"] if found and found["place"] else None

    def class_of(self, account: str | None) -> str:
        """Rule 65."""
        name = account or ""
        if name.startswith("sync_"):
            return "sync"
        production = "transfer_ops wma_prod wmcore_output wmcore_pileup wmcore_transferor"
        if name in (*production.split(), "crab_tape_recall", "crab_input"):
            return "production"
        kind = (self.types.get(name) or "").lower()
        return kind if kind in ("user", "group", "service") else "unknown"

    def called(self, account: str | None) -> str:
        """How an account is called in results."""
        if not account:
            return "unknown"
        hidden = self.class_of(account) in ("user", "unknown")
        return self.pseudonym(account) if hidden else account


def scope_class(scope: str | None) -> str:
    """Rule 64's class of a scope."""
    match = re.match(r"(cms$|user\.|group\.)", (scope or "").strip().lower())
    return match[1].rstrip(".") if match else "other"


def account_usage(world: World) -> dict[Any, Row]:
    """Rule 68."""
    locks: dict[Any, list[Row]] = defaultdict(list)
    for lock in world.of("LOCKS"):
        if world.known(lock["RSE_ID"]):
            locks[world.known(lock["RSE_ID"]), lock["ACCOUNT"]].append(lock)
    limits = {}
    for row in world.of("ACCOUNT_LIMITS"):
        if world.known(row["RSE_ID"]):
            limits[world.known(row["RSE_ID"]), row["ACCOUNT"]] = row["BYTES"]
    found = {}
    for cell in {*locks, *limits}:
        rse, account = cell
        sizes: dict[Any, int] = {}
        states = dict.fromkeys("ORS", 0)
        for lock in locks[cell]:
            key = lock["SCOPE"], lock["NAME"]
            sizes[key] = max(sizes.get(key, 0), lock["BYTES"] or 0)
            states[lock["STATE"]] += lock["BYTES"] or 0
        limit = limits.get(cell)
        kind = "none" if limit is None else "unlimited" if limit == -1 else "limit"
        found[rse, world.called(account)] = {
            "account_class": world.class_of(account),
            "lock_count": len(locks[cell]),
            "lock_bytes": sum(states.values()),
            "file_count": len(sizes),
            "bytes": sum(sizes.values()),
            "cms_bytes": sum(
                size for (scope, _), size in sizes.items() if scope_class(scope) == "cms"
            ),
            "ok_bytes": states["O"],
            "replicating_bytes": states["R"],
            "stuck_bytes": states["S"],
            "rule_count": len({lock["RULE_ID"] for lock in locks[cell]}),
            "limit_bytes": limit if kind == "limit" else None,
            "limit_kind": kind,
        }
    return found


def account_activity_usage(world: World) -> dict[Any, Row]:
    """Rule 68, by activity."""
    activity = {rule["ID"]: rule["ACTIVITY"] for rule in world.of("RULES")}
    cells: dict[Any, dict[Any, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for lock in world.of("LOCKS"):
        if rse := world.known(lock["RSE_ID"]):
            cell = rse, lock["ACCOUNT"], activity.get(lock["RULE_ID"]) or "unknown"
            cells[cell][lock["SCOPE"], lock["NAME"]].append(lock)
    found = {}
    for (rse, account, of_activity), files in cells.items():
        largest = {file: max(lock["BYTES"] or 0 for lock in of) for file, of in files.items()}
        stuck = [file for file, of in files.items() if any(lock["STATE"] == "S" for lock in of)]
        found[rse, world.called(account), of_activity] = {
            "account_class": world.class_of(account),
            "file_count": len(files),
            "bytes": sum(largest.values()),
            "stuck_bytes": sum(largest[file] for file in stuck),
        }
    return found


def rse_usage(world: World) -> dict[Any, Row]:
    """Rule 69."""
    usage = {(row["RSE_ID"], row["SOURCE"]): row for row in world.of("RSE_USAGE")}
    attributes = {(row["RSE_ID"], row["KEY"]): row["VALUE"] for row in world.of("RSE_ATTR_MAP")}
    replicas: dict[str, list[Row]] = defaultdict(list)
    for row in world.of("REPLICAS"):
        replicas[row["RSE_ID"]].append(row)
    found = {}
    for rse_id, rse in world.rse.items():

        def used(source: str, column: str = "USED", rse_id: str = rse_id) -> int | None:
            value: int | None = usage.get((rse_id, source), {}).get(column)
            return value

        here = replicas[rse_id]

        def size(chosen: Iterable[Row]) -> int:
            return sum(row["BYTES"] or 0 for row in chosen)

        there = [row for row in here if row["STATE"] == "A"]
        times = [used(source, "UPDATED_AT") for source in ("static", "rucio", "expired")]
        oldest = min((time for time in times if time is not None), default=None)
        plain = re.sub("_(test|temp|mock)$", "", rse["rse"], flags=re.IGNORECASE)
        site, kind = rse["place"] or site_and_kind(plain, "DISK", {}) or ("", "")
        pledge, rucio = used("static"), used("rucio")
        found[(rse["rse"],)] = {
            "site_name": site,
            "kind": kind,
            "is_test": rse["place"] is None,
            **{key: attributes.get((rse_id, key)) for key in ("cms_type", "country", "tier")},
            "static_bytes": pledge,
            "storage_used_bytes": used("storage"),
            "storage_free_bytes": used("storage", "FREE"),
            "rucio_bytes": rucio,
            "rucio_files": used("rucio", "FILES"),
            "expired_bytes": used("expired"),
            "unavailable_bytes": used("unavailable"),
            "obsolete_bytes": used("obsolete"),
            "updated_ms": oldest,
            "replica_count": len(there),
            "replica_bytes": size(there),
            "other_bytes": size(row for row in here if row["STATE"] != "A"),
            "locked_bytes": size(row for row in there if (row["LOCK_CNT"] or 0) > 0),
            "own_expired_bytes": size(
                row
                for row in here
                if row["STATE"] in "AUD"
                and not row["LOCK_CNT"]
                and row["TOMBSTONE"] is not None
                and row["TOMBSTONE"] < world.t0
            ),
            "other_scope_bytes": size(row for row in there if scope_class(row["SCOPE"]) != "cms"),
            "free_bytes": None if pledge is None or rucio is None else pledge - rucio,
            "is_stale": oldest is None or oldest < world.t0 - 2 * DAY,
        }
    return found


def rules_day(world: World) -> dict[Any, Row]:
    """Rule 70."""
    cells: dict[Any, list[Row]] = defaultdict(list)
    for rule in world.of("RULES"):
        created, expires, state = rule["CREATED_AT"], rule["EXPIRES_AT"], rule["STATE"]
        error = ((rule["ERROR"] or "").split(":")[0]).strip()[:80]
        events = {
            "new": created is not None and world.t0 - DAY <= created < world.t0,
            "expiring": expires is not None and world.t0 <= expires < world.t0 + 14 * DAY,
            "overdue": expires is not None and expires < world.t0,
            "stuck": state == "S",
            "suspended": state == "U",
            "waiting": state == "W",
            "endless": expires is None
            and world.class_of(rule["ACCOUNT"]) in ("user", "group", "unknown"),
        }
        for event, holds in events.items():
            if holds:
                reason = (error or "none") if event in ("stuck", "suspended") else "-"
                activity, scope = rule["ACTIVITY"] or "unknown", scope_class(rule["SCOPE"])
                account = world.called(rule["ACCOUNT"])
                class_ = world.class_of(rule["ACCOUNT"])
                cells[event, account, class_, activity, scope, reason].append(rule)
    return {
        (event, account, *rest): {
            "account_class": class_,
            "rule_count": len(rules),
            "lock_ok": sum(rule["LOCKS_OK_CNT"] or 0 for rule in rules),
            "lock_replicating": sum(rule["LOCKS_REPLICATING_CNT"] or 0 for rule in rules),
            "lock_stuck": sum(rule["LOCKS_STUCK_CNT"] or 0 for rule in rules),
            "copies": sum(rule["COPIES"] or 0 for rule in rules),
            "oldest_ms": min(
                (rule["CREATED_AT"] for rule in rules if rule["CREATED_AT"] is not None),
                default=None,
            ),
        }
        for (event, account, class_, *rest), rules in cells.items()
    }


def rules_stuck(world: World) -> dict[Any, Row]:
    """Rule 70, for operators."""
    return {
        (rule["ID"],): {
            "account": rule["ACCOUNT"],
            "name": rule["NAME"],
            "rse_expression": rule["RSE_EXPRESSION"],
            "error": rule["ERROR"],
            "state": rule["STATE"],
            "stuck_ms": rule["STUCK_AT"],
            "locks": sum(
                rule[f"LOCKS_{kind}_CNT"] or 0 for kind in ("OK", "REPLICATING", "STUCK")
            ),
        }
        for rule in world.of("RULES")
        if rule["STATE"] in "SU"
    }


def config_says(config: str | None, member: str) -> bool | None:
    """Rule 71: a member of TM_USER_CONFIG."""
    try:
        found = json.loads(config) if config else None
    except ValueError:
        return None
    if not isinstance(found, dict):
        return None
    return {True: True, False: False, None: False}.get(found.get(member))  # type: ignore[call-overload, no-any-return]


def task_columns(task: Row) -> Row:
    """Rule 71: what a task is and asks for."""
    return {
        "status": (task["TM_TASK_STATUS"] or "unknown").upper()
        if task["TM_TASK_STATUS"]
        else "unknown",
        "job_type": task["TM_JOB_TYPE"] or "unknown",
        "split_algo": task["TM_SPLIT_ALGO"] or "unknown",
        "role": task["TM_USER_ROLE"] or None,
        "ignore_locality": {"T": True, "F": False}.get(task["TM_IGNORE_LOCALITY"]),
        "has_script": task["TM_SCRIPTEXE"] not in (None, "", "None"),
        "wants_gpu": config_says(task["TM_USER_CONFIG"], "requireaccelerator"),
        "partial_dataset": config_says(task["TM_USER_CONFIG"], "partialdataset"),
    }


def crab_tasks(
    tasks: list[Row], t0: int, pseudonym: Callable[[str], str], days: int = 90
) -> dict[Any, Row]:
    """Rule 71."""
    found: dict[Any, Row] = {}
    for task in tasks:
        start = task["TM_START_TIME"]
        if start is None or not t0 + DAY - days * DAY <= start <= t0 + DAY:
            continue
        login = task["TM_USERNAME"]
        user = pseudonym(login) if login else None
        day = datetime.fromtimestamp(start // 1000, UTC).date()
        cell = found.setdefault(
            (day, user, *task_columns(task).values()), {"task_count": 0, "job_count": 0}
        )
        cell["task_count"] += 1
        cell["job_count"] += task["TM_NUM_JOBS"] or 0
    return found


def tape_recalls(
    world: World, tasks: list[Row], before: Mapping[str, str], day_before: Any
) -> dict[Any, Row]:
    """Rule 72. ``before``: the states of the rules of the dump of the day before."""
    rules, history = (
        [row for row in world.of(table) if row["ACTIVITY"] == "Analysis TapeRecall"]
        for table in ("RULES", "RULES_HISTORY")
    )
    found = {}
    for rule_id in {row["ID"] for row in [*rules, *history]} - {None}:
        now = [row for row in rules if row["ID"] == rule_id]
        all_rows = now + [row for row in history if row["ID"] == rule_id]
        done = [row for row in all_rows if row["STATE"] == "O"]
        names = {"W": "waiting", "O": "ok", "S": "stuck", "U": "suspended"}
        state = (
            names.get(now[0]["STATE"], "replicating")
            if now
            else "ended_ok"
            if done
            else "ended_open"
        )
        ok = min(
            (row["UPDATED_AT"] for row in done if row["UPDATED_AT"] is not None), default=None
        )
        created = now[0]["CREATED_AT"] if now else None
        if created is None:
            known = [row["CREATED_AT"] for row in all_rows if row["CREATED_AT"] is not None]
            created = min(known) if known else None
        expires = max(
            (row["EXPIRES_AT"] for row in all_rows if row["EXPIRES_AT"] is not None), default=None
        )
        end = ok if ok is not None else world.t0 if expires is None else min(expires, world.t0)
        days = None
        if created is not None:
            days = 0
            while created + days * DAY < end:
                days += 1
        first = (now or all_rows)[0]
        match = re.fullmatch(r"(/[^/#]+/[^/#]+/[^/#]+)(#[\s\S]*)?", first["NAME"] or "")
        if match and scope_class(first["SCOPE"]) == "cms":
            dataset = match[1]
        else:
            dataset = (first["COMMENTS"] or "").partition("dataset: ")[2].split(" ")[0] or None
        found[(rule_id,)] = {
            "account": world.called(first["ACCOUNT"]),
            "account_class": world.class_of(first["ACCOUNT"]),
            "dataset_name": dataset,
            "state": state,
            "created_ms": created,
            "expires_ms": expires,
            "ok_ms": ok,
            "days": days,
            "is_upper_bound": ok is not None,
            "ok_day": day_before if state == "ok" and before.get(rule_id, "O") != "O" else None,
            "task_count": sum((task["TM_DDM_REQID"] or "").lower() == rule_id for task in tasks),
        }
    return found
