"""Sums of locks by storage element, account and activity (rule 68), and of replicas of
all scopes by storage element (rule 69).

All locks and replicas of a file meet in one task, by the hash of its name and scope; the
locks of a rule meet again, so that each rule counts once.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from cmsspark.base.arrays import Longs
from cmsspark.base.buffers import array
from cmsspark.dumps.keyed_rows import (
    Columns,
    KeyedRows,
    by_key,
    find_starts,
    group_rows,
    join_columns,
    keys_of_ids,
    number_hashes,
    number_names,
    rank_names,
    rows_by_kind,
    with_own_names,
)
from cmsspark.dumps.row_tables import LOCKS, REPEATED, REPLICA_LOCKS, SCOPES, STATES
from cmsspark.dumps.rucio_rows import READ_COUNTS
from cmsspark.dumps.rucio_scan import pack_counts
from cmsspark.sources.rucio import TableCounts

if TYPE_CHECKING:
    import pyarrow as pa

#: Rows that the merges make.
LOCK_SUMS, FILE_SUMS, ACTIVITY_SUMS = "lock_sums", "file_sums", "activity_sums"
RULES, RULE_COUNTS, CHECKS, REPLICA_SUMS = "rules", "rule_counts", "checks", "replica_sums"
UNKNOWN: Final = "unknown"
_RULE: Final = ("rule_high", "rule_low")
_LOCK_COLUMNS: Final = ("scope", "rse", "state", "bytes", "updated_ms", *_RULE)
_REPLICA_COLUMNS: Final = (
    *("scope", "rse", "state", "bytes", "updated_ms"),
    *("lock_count", "tombstone_ms"),
)
_REPLICA_ORDER: Final = (
    ("file", "rse"),
    ("updated_ms", "bytes", "state", "lock_count", "tombstone_ms"),
)
_OF_LOCKS: Final = ("lock_bytes", "ok_bytes", "replicating_bytes", "stuck_bytes")
#: Names of the columns that hold sums, by kind of row.
SUMS: Final = {
    LOCK_SUMS: ("lock_count", *_OF_LOCKS),
    FILE_SUMS: ("file_count", "bytes", "cms_bytes"),
    ACTIVITY_SUMS: ("file_count", "bytes", "stuck_bytes"),
    RULE_COUNTS: ("rule_count",),
    CHECKS: ("locks", "locks_without_rule", "replicas", "differing_replicas"),
    REPLICA_SUMS: (
        *("replica_count", "replica_bytes", "other_bytes", "locked_bytes", "own_expired_bytes"),
        "other_scope_bytes",
    ),
}


class Activities(msgspec.Struct, frozen=True):
    """The activity of each rule. ``rules``: ids as 16 bytes, sorted. ``numbers``: of
    each the place in ``names``, whose last is :data:`UNKNOWN`.
    """

    rules: npt.NDArray[np.bytes_]
    numbers: npt.NDArray[np.int32]
    names: tuple[str, ...]

    @classmethod
    def from_rows(cls, rules: Sequence[str], activities: Sequence[str | None]) -> Activities:
        """From ids in hex, each once, and the activity of each."""
        names = tuple(sorted({name for name in activities if name} - {UNKNOWN}))
        numbers_of_names = {name: number for number, name in enumerate(names)}
        ids = np.frombuffer(bytes.fromhex("".join(rules)), "S16")
        order = np.argsort(ids, kind="stable")
        numbers = np.array(
            [numbers_of_names.get(name or "", len(names)) for name in activities], np.int32
        )
        return cls(ids[order], numbers[order], (*names, UNKNOWN))

    def find(self, rule_high: Longs, rule_low: Longs) -> tuple[npt.NDArray[np.bool_], Longs]:
        """Return of each rule whether it is known, and the number of its activity."""
        ids = np.stack([rule_high, rule_low], 1).astype(">i8").reshape(-1).view("S16")
        unknown = np.full(len(ids), len(self.names) - 1, np.int64)
        if not len(self.rules):
            return np.zeros(len(ids), np.bool_), unknown
        at = np.minimum(np.searchsorted(self.rules, ids), len(self.rules) - 1)
        is_known = self.rules[at] == ids
        return is_known, np.where(is_known, self.numbers[at], unknown)


class LockMerge(msgspec.Struct, frozen=True):
    """Sums the locks of the files of a key; where replicas were read, compares their
    LOCK_CNT with the rows that LOCKS has.
    """

    activities: Activities
    keys: int

    def __call__(self, key: int, rows: Iterable[KeyedRows]) -> Iterator[KeyedRows]:
        by_kind = rows_by_kind(rows)
        yield from by_kind[READ_COUNTS]
        of_locks, of_replicas = by_kind[LOCKS], by_kind[REPLICA_LOCKS]
        locks, accounts = _locks(of_locks)
        replicas = join_columns(of_replicas, ("hash", "check", *_REPLICA_COLUMNS))
        file, _ = number_hashes(
            np.concatenate((locks["hash"], replicas["hash"])),
            np.concatenate((locks["check"], replicas["check"])),
        )
        split = len(locks["hash"])
        locks |= {"file": file[:split]}
        replicas |= {"file": file[split:]}
        order = ("file", *_RULE, "rse"), ("updated_ms", "account", "state", "bytes")
        locks = yield from _once(LOCKS, locks, *order)
        is_known, locks["activity"] = self.activities.find(locks["rule_high"], locks["rule_low"])
        checks = {
            "locks": len(locks["file"]),
            "locks_without_rule": int((~is_known).sum()),
            "replicas": 0,
            "differing_replicas": 0,
        }
        if of_replicas:
            replicas = yield from _once(REPLICA_LOCKS, replicas, *_REPLICA_ORDER)
            checks["replicas"] = len(replicas["file"])
            checks["differing_replicas"] = _differing(locks, replicas)
        yield KeyedRows(0, CHECKS, {name: np.array([count]) for name, count in checks.items()})
        names = array(accounts, "string")
        for kind, sums in self._sums(locks).items():
            activity = {"activity": array(self.activities.names, "string")}
            text_columns = {"account": names} | (activity if kind == ACTIVITY_SUMS else {})
            yield with_own_names(KeyedRows(0, kind, sums, text_columns))
        rules = group_rows(locks, ("rse", "account", *_RULE))
        rules = {name: rules[name] for name in ("rse", "account", *_RULE)}
        rule_ids = (rules["rule_high"] ^ rules["rule_low"]).view(np.int64)
        rule_keys = keys_of_ids(rule_ids, self.keys)
        yield from by_key(RULES, rule_keys, rules, {"account": names})

    def _sums(self, locks: Columns) -> dict[str, Columns]:
        """Return the sums by storage element, account and activity, a row each."""
        sizes = np.maximum(locks["bytes"], 0)
        cell = ("rse", "account")
        of_state = {
            f"{name}_bytes": np.where(locks["state"] == STATES[LOCKS].index(state), sizes, 0)
            for name, state in (("ok", "O"), ("replicating", "R"), ("stuck", "S"))
        }
        rows = {
            **{name: locks[name] for name in (*cell, "activity", "file")},
            "lock_count": np.ones(len(sizes), np.int64),
            "lock_bytes": sizes,
            **of_state,
            "is_cms": (locks["scope"] == SCOPES.index("cms")).astype(np.int64),
            "is_stuck": (locks["state"] == STATES[LOCKS].index("S")).astype(np.int64),
        }
        results = {LOCK_SUMS: group_rows(rows, cell, counts=("lock_count",), sums=_OF_LOCKS)}
        files = group_rows(rows, (*cell, "file"), largest=("lock_bytes", "is_cms"))
        results[FILE_SUMS] = _count_files(files, cell, cms_bytes="is_cms")
        files = group_rows(rows, (*cell, "activity", "file"), largest=("lock_bytes", "is_stuck"))
        results[ACTIVITY_SUMS] = _count_files(files, (*cell, "activity"), stuck_bytes="is_stuck")
        return results


def _count_files(files: Columns, keys: Sequence[str], **flags: str) -> Columns:
    """Return the number and bytes of files by ``keys``, and the bytes of those with a flag."""
    rows = {name: files[name] for name in keys}
    rows["file_count"] = np.ones(len(files["file"]), np.int64)
    rows["bytes"] = files["lock_bytes"]
    for name, flag in flags.items():
        rows[name] = np.where(files[flag] > 0, files["lock_bytes"], 0)
    return group_rows(rows, keys, counts=("file_count",), sums=("bytes", *flags))


def _locks(rows: Sequence[KeyedRows]) -> tuple[Columns, list[str | None]]:
    """Return the locks of a key, and the accounts that they number, in the order of
    their bytes.
    """
    locks = join_columns(rows, ("hash", "check", *_LOCK_COLUMNS))
    numbers, names = number_names(rows, "account")
    order = np.argsort(rank_names(names), kind="stable")
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    texts = names.to_pylist()
    locks["account"] = rank[numbers] if len(rank) else numbers
    return locks, [texts[number] for number in order.tolist()]


def _once(
    name: str, rows: Columns, keys: Sequence[str], order: Sequence[str]
) -> Generator[KeyedRows, None, Columns]:
    """Return each row of a key once, the largest by ``order``; yields the number of others."""
    sorted_rows = np.lexsort([rows[column] for column in reversed((*keys, *order))])
    in_order = {column: values[sorted_rows] for column, values in rows.items()}
    starts = find_starts(*(in_order[column] for column in keys))
    last = np.append(starts[1:], len(sorted_rows)) - 1 if len(starts) else starts
    counts = TableCounts()
    counts.ignored[REPEATED] = len(sorted_rows) - len(starts)
    if counts.ignored[REPEATED]:
        yield pack_counts(name, counts)
        return {column: values[last] for column, values in in_order.items()}
    return in_order


def _differing(locks: Columns, replicas: Columns) -> int:
    """Return how many replicas have another LOCK_CNT than rows in LOCKS."""
    count = len(replicas["file"])
    rows = {
        "file": np.concatenate((replicas["file"], locks["file"])),
        "rse": np.concatenate((replicas["rse"], locks["rse"])),
        "is_replica": np.repeat([1, 0], [count, len(locks["file"])]),
        "balance": np.concatenate(
            (np.maximum(replicas["lock_count"], 0), np.full(len(locks["file"]), -1))
        ),
    }
    balance = group_rows(rows, ("file", "rse"), counts=("is_replica", "balance"))
    return int(((balance["balance"] != 0) & (balance["is_replica"] > 0)).sum())


def merge_rules(key: int, rows: Iterable[KeyedRows]) -> Iterator[KeyedRows]:
    """Count the different rules of each storage element and account; pass all else."""
    by_kind = rows_by_kind(rows)
    rules = by_kind.pop(RULES, [])
    for rows_of_kind in by_kind.values():
        yield from rows_of_kind
    if not rules:
        return
    numbers, names = number_names(rules, "account")
    columns = join_columns(rules, ("rse", *_RULE)) | {"account": numbers}
    once = group_rows(columns, ("rse", "account", *_RULE))
    # An id of zeros stands for none.
    once["rule_count"] = ((once["rule_high"] != 0) | (once["rule_low"] != 0)).astype(np.int64)
    counts = group_rows(
        {name: once[name] for name in ("rse", "account", "rule_count")},
        ("rse", "account"),
        counts=("rule_count",),
    )
    yield with_own_names(KeyedRows(0, RULE_COUNTS, counts, {"account": names}))


class ReplicaMerge(msgspec.Struct, frozen=True):
    """Sums the replicas of a key by storage element. ``before_ms``: a TOMBSTONE before
    it is past.
    """

    before_ms: int

    def __call__(self, key: int, rows: Iterable[KeyedRows]) -> Iterator[KeyedRows]:
        by_kind = rows_by_kind(rows)
        of_replicas = by_kind.pop(REPLICA_LOCKS, [])
        for rows_of_kind in by_kind.values():
            yield from rows_of_kind
        replicas = join_columns(of_replicas, ("hash", "check", *_REPLICA_COLUMNS))
        replicas["file"], _ = number_hashes(replicas["hash"], replicas["check"])
        replicas = yield from _once(REPLICA_LOCKS, replicas, *_REPLICA_ORDER)
        sizes = np.maximum(replicas["bytes"], 0)
        states, letters = replicas["state"], STATES[REPLICA_LOCKS]
        is_available = states == letters.index("A")
        is_locked = replicas["lock_count"] > 0
        tombstone = replicas["tombstone_ms"]
        is_expired = (
            np.isin(states, [letters.index(state) for state in "AUD"])
            & ~is_locked
            & (tombstone >= 0)
            & (tombstone < self.before_ms)
        )
        is_cms = replicas["scope"] == SCOPES.index("cms")
        sums = {
            "rse": replicas["rse"],
            "replica_count": is_available.astype(np.int64),
            "replica_bytes": np.where(is_available, sizes, 0),
            "other_bytes": np.where(is_available, 0, sizes),
            "locked_bytes": np.where(is_available & is_locked, sizes, 0),
            "own_expired_bytes": np.where(is_expired, sizes, 0),
            "other_scope_bytes": np.where(is_available & ~is_cms, sizes, 0),
        }
        yield KeyedRows(
            0,
            REPLICA_SUMS,
            group_rows(sums, ("rse",), counts=("replica_count",), sums=SUMS[REPLICA_SUMS][1:]),
        )


def total_sums(kind: str, rows: Iterable[KeyedRows]) -> dict[tuple[Any, ...], list[int]]:
    """Return the sums of all keys together: of each cell (storage element by number,
    account, activity) those that :data:`SUMS` names. Sums of Python do not overflow.
    """
    sums: dict[tuple[Any, ...], list[int]] = {}
    for entry in rows:
        if entry.kind != kind:
            continue
        keys = [
            _texts(entry.names[name], entry.columns[name])
            if name in entry.names
            else entry.columns[name].tolist()
            for name in ("rse", "account", "activity")
            if name in entry.columns
        ]
        values = [entry.columns[name].tolist() for name in SUMS[kind]]
        cells = zip(*keys, strict=True) if keys else [()]
        for cell, addends in zip(cells, zip(*values, strict=True), strict=True):
            sums_so_far = sums.setdefault(cell, [0] * len(addends))
            sums[cell] = [
                first + addend for first, addend in zip(sums_so_far, addends, strict=True)
            ]
    return sums


def _texts(names: pa.Array, numbers: Longs) -> list[str | None]:
    texts = names.to_pylist()
    return [texts[number] for number in numbers.tolist()]
