"""Dumps of Rucio and of CRAB's tasks for tests: tables of any rows, and worlds of chance
with every repetition, null and spelling that the tables allow.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Final

import fastavro

from cmsspark.base.dates import DAY_MS, start_ms

#: The day that is asked for, and that of its dumps.
DAY: Final = date(2026, 8, 20)
DUMP_DAY: Final = DAY + timedelta(days=1)
T0: Final = start_ms(DUMP_DAY)
AWG: Final = "project/awg/cms"
Row = dict[str, Any]
IDS: Final = {"ID", "RSE_ID", "RULE_ID"}
DATES: Final = {
    *("CREATED_AT", "UPDATED_AT", "EXPIRES_AT", "STUCK_AT", "DELETED_AT", "TOMBSTONE"),
    *("ACCESSED_AT", "TM_START_TIME"),
}
COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "RSES": ("ID", "RSE", "RSE_TYPE", "DELETED_AT"),
    "LOCKS": (
        *("SCOPE", "NAME", "RULE_ID", "RSE_ID", "BYTES", "ACCOUNT", "STATE", "CREATED_AT"),
        "UPDATED_AT",
    ),
    "RULES": (
        *("ID", "SUBSCRIPTION_ID", "ACCOUNT", "SCOPE", "NAME", "DID_TYPE", "STATE", "ERROR"),
        *("RSE_EXPRESSION", "COPIES", "EXPIRES_AT", "LOCKS_OK_CNT", "LOCKS_REPLICATING_CNT"),
        *("LOCKS_STUCK_CNT", "ACTIVITY", "STUCK_AT", "COMMENTS", "CREATED_AT", "UPDATED_AT"),
    ),
    "ACCOUNTS": ("ACCOUNT", "ACCOUNT_TYPE", "STATUS", "EMAIL", "DELETED_AT", "UPDATED_AT"),
    "ACCOUNT_LIMITS": ("ACCOUNT", "RSE_ID", "BYTES", "CREATED_AT", "UPDATED_AT"),
    "RSE_USAGE": ("RSE_ID", "SOURCE", "USED", "FREE", "FILES", "UPDATED_AT"),
    "RSE_ATTR_MAP": ("RSE_ID", "KEY", "VALUE", "UPDATED_AT"),
    "REPLICAS": (
        *("RSE_ID", "SCOPE", "NAME", "BYTES", "STATE", "LOCK_CNT", "ACCESSED_AT", "TOMBSTONE"),
        *("CREATED_AT", "UPDATED_AT"),
    ),
    "TASKS": (
        *("TM_TASKNAME", "TM_START_TIME", "TM_TASK_STATUS", "TM_SPLIT_ALGO", "TM_JOB_TYPE"),
        *("TM_USERNAME", "TM_USER_ROLE", "TM_IGNORE_LOCALITY", "TM_SCRIPTEXE", "TM_USER_CONFIG"),
        *("TM_NUM_JOBS", "TM_DDM_REQID"),
    ),
}
HISTORY: Final = "RULES_HISTORY"


def identity(name: str | int) -> bytes:
    """An id of 16 bytes."""
    return f"{name:>16}".encode()[:16]


def write(folder: Path, table: str, rows: Iterable[Row], parts: int = 1) -> None:
    """Write a table: ids as bytes, dates as long, all else as text."""
    columns = COLUMNS["RULES" if table == HISTORY else table]
    schema = {
        "type": "record",
        "name": table,
        "fields": [
            {
                "name": name,
                "type": [
                    "null",
                    "bytes" if name in IDS else "long" if name in DATES else "string",
                ],
            }
            for name in columns
        ],
    }
    folder.mkdir(parents=True, exist_ok=True)
    listed = [
        {
            name: str(row[name])
            if isinstance(row.get(name), int) and name not in DATES
            else row.get(name)
            for name in columns
        }
        for row in rows
    ]
    for part in range(parts):
        with (folder / f"part-m-{part:05}.avro").open("wb") as stream:
            fastavro.writer(stream, schema, listed[part::parts], codec="deflate")


def write_world(
    root: Path, tables: Mapping[str, list[Row]], day: date = DUMP_DAY, parts: int = 1
) -> Path:
    """Write a dump of Rucio, and of CRAB's tasks; returns the folder of Rucio's."""
    folder = root / AWG / "rucio" / day.isoformat()
    for table, rows in tables.items():
        if table == "TASKS":
            write(root / AWG / "crab/tasks" / day.isoformat(), table, rows, parts)
        else:
            write(folder / table.lower(), table, rows, parts)
    return folder


RSES: Final = (
    ("T1_US_FNAL_Disk", "DISK", None),
    ("T1_US_FNAL_Tape", None, None),
    ("T2_CH_CERN", "DISK", None),
    ("T2_CH_CERN_Test", "DISK", None),
    ("T2_DE_DESY_Temp", "DISK", None),
    ("T2_XX_Gone", "DISK", T0 - DAY_MS),
)
ACCOUNTS: Final = (
    "ann",
    "bob",
    "higgs",
    "probe",
    "wma_prod",
    "sync_t2_x",
    "nobody",
    "transfer_ops",
)
_TYPES: Final = {
    "ann": "USER",
    "bob": "user",
    "higgs": "GROUP",
    "probe": "SERVICE",
    "wma_prod": "SERVICE",
}
_STATES: Final = {
    "LOCKS": ("O", "R", "S", "o ", "STUCK", "LockState.OK"),
    "RULES": ("R", "O", "S", "U", "W", "I", "SUSPENDED", " inject", "O", "U"),
    "REPLICAS": ("A", "A", "U", "C", "B", "D", "T", "available"),
}
_SCOPES: Final = ("cms", "cms", "cms", "user.ann", "group.higgs", "mock")
_ERRORS: Final = (None, "", "No space: T2_X", " : x", "x" * 99, "no colon", "é" * 100 + ":")
_ACTIVITIES: Final = (None, "", "User Subscriptions", "Analysis TapeRecall", "Production")
#: Times at and beside the edges that the rules name.
EDGES: Final = tuple(
    T0 + days * DAY_MS + step for days in (-90, -89, -2, -1, 0, 1, 14, 15) for step in (-1, 0, 1)
)


def random_world(seed: int) -> dict[str, list[Row]]:
    """Tables of chance, with repeated keys in each."""
    rng = random.Random(seed)
    tables: dict[str, list[Row]] = {"RSES": []}
    for name, kind, deleted in RSES:
        tables["RSES"].append(
            {"ID": identity(name), "RSE": name, "RSE_TYPE": kind, "DELETED_AT": deleted}
        )
    rse_ids = [identity(name) for name, _, _ in RSES] + [identity("no such rse")]

    def time() -> int | None:
        return rng.choice([None, *EDGES, T0 - rng.randrange(100 * DAY_MS)])

    def updated() -> int | None:
        return rng.choice([None, T0 - 5, T0 - 5, T0 - rng.randrange(3)])

    def size() -> Any:
        return rng.choice([None, 0, 1, 10, 10, 100, 5_000_000_000])

    def rule(number: int) -> Row:
        name = rng.choice(["/a/b/C#1", "/a/b/C", "/TapeRecall/t/USER", "/x", "/store/a.root"])
        comment = "Recall for user: x dataset: /p/q/R"
        return {
            "ID": identity(number),
            "ACCOUNT": rng.choice(ACCOUNTS),
            "SCOPE": rng.choice(_SCOPES),
            "NAME": name,
            "STATE": rng.choice(_STATES["RULES"]),
            "ERROR": rng.choice(_ERRORS),
            "RSE_EXPRESSION": rng.choice(["T2_CH_CERN", "tier=2"]),
            "COPIES": rng.choice([None, 1, 2]),
            "EXPIRES_AT": time(),
            **{
                f"LOCKS_{kind}_CNT": rng.choice([None, 0, 3])
                for kind in ("OK", "REPLICATING", "STUCK")
            },
            "ACTIVITY": rng.choice(_ACTIVITIES),
            "STUCK_AT": time(),
            "COMMENTS": rng.choice([None, comment, comment + " and more", "none"]),
            "CREATED_AT": time(),
            "UPDATED_AT": updated(),
        }

    tables["RULES"] = [rule(rng.randrange(40)) for _ in range(60)]
    tables[HISTORY] = []
    for number in range(30, 60):
        first = rule(number) | {"ACTIVITY": "Analysis TapeRecall"}
        for state in rng.choice([("R",), ("R", "O"), ("W", "R"), ("O", "O"), ("I", "S")]):
            tables[HISTORY].append(first | {"STATE": state, "UPDATED_AT": time()})
    tables["LOCKS"] = [
        {
            "SCOPE": rng.choice(_SCOPES),
            "NAME": f"/store/f{rng.randrange(40)}",
            "RULE_ID": identity(rng.randrange(45)),
            "RSE_ID": rng.choice(rse_ids),
            "ACCOUNT": rng.choice(ACCOUNTS),
            "STATE": rng.choice(_STATES["LOCKS"]),
            "BYTES": size(),
            "UPDATED_AT": updated(),
        }
        for _ in range(600)
    ]
    tables["LOCKS"] += [row | {"BYTES": size(), "STATE": "S"} for row in tables["LOCKS"][::9]]
    tables["REPLICAS"] = [
        {
            "SCOPE": rng.choice(_SCOPES),
            "NAME": f"/store/f{rng.randrange(40)}",
            "RSE_ID": rng.choice(rse_ids),
            "STATE": rng.choice(_STATES["REPLICAS"]),
            "BYTES": size(),
            "LOCK_CNT": rng.choice([None, 0, 0, 1, 2]),
            "TOMBSTONE": rng.choice([None, 0, *EDGES]),
            "UPDATED_AT": updated(),
        }
        for _ in range(400)
    ]
    tables["ACCOUNTS"] = [
        {"ACCOUNT": name, "ACCOUNT_TYPE": kind, "DELETED_AT": time(), "EMAIL": "a@b"}
        for name, kind in _TYPES.items()
    ]
    tables["ACCOUNT_LIMITS"] = [
        {
            "ACCOUNT": rng.choice(ACCOUNTS),
            "RSE_ID": rng.choice(rse_ids),
            "BYTES": rng.choice([None, -1, 0, 50, 10**15]),
            "UPDATED_AT": updated(),
        }
        for _ in range(30)
    ]
    tables["RSE_USAGE"] = [
        {
            "RSE_ID": rng.choice(rse_ids),
            "SOURCE": rng.choice(
                ["static", "storage", "rucio", "expired", "unavailable", "obsolete", "x"]
            ),
            "USED": size(),
            "FREE": size(),
            "FILES": rng.choice([None, 7]),
            "UPDATED_AT": time(),
        }
        for _ in range(40)
    ]
    tables["RSE_ATTR_MAP"] = [
        {
            "RSE_ID": rng.choice(rse_ids),
            "KEY": rng.choice(["cms_type", "country", "tier", "dm_weight"]),
            "VALUE": rng.choice([None, "real", "2", "true"]),
            "UPDATED_AT": updated(),
        }
        for _ in range(30)
    ]
    configs = [
        *(None, "", "{", "[]", "null", "{}", '{"requireaccelerator": true}'),
        *('{"requireaccelerator": false, "partialdataset": true}', '{"partialdataset": null}'),
    ]
    tables["TASKS"] = [
        {
            "TM_TASKNAME": rng.choice(
                [None, *(f"260101_000000:u{number}" for number in range(80))]
            ),
            "TM_START_TIME": time(),
            "TM_TASK_STATUS": rng.choice([None, "", "submitted", "KILLED", "odd one"]),
            "TM_SPLIT_ALGO": rng.choice([None, "", "Automatic", "FileBased"]),
            "TM_JOB_TYPE": rng.choice([None, "Analysis"]),
            "TM_USERNAME": rng.choice([None, "", "ann", "bob"]),
            "TM_USER_ROLE": rng.choice([None, "", "production"]),
            "TM_IGNORE_LOCALITY": rng.choice([None, "", "T", "F", "x"]),
            "TM_SCRIPTEXE": rng.choice([None, "", "None", "run.sh"]),
            "TM_USER_CONFIG": rng.choice(configs),
            "TM_NUM_JOBS": rng.choice([None, 0, 100]),
            "TM_DDM_REQID": rng.choice([None, "", identity(rng.randrange(60)).hex().upper()]),
        }
        for _ in range(150)
    ]
    return tables
