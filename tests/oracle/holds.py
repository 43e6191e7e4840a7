"""Rules 64 to 67: what is held at each RSE and what may go, by sets of names and by
playing the deletions out; shares no code with the jobs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import fastavro

PRODUCTION = (
    *("transfer_ops", "wma_prod", "wmcore_output", "wmcore_pileup", "wmcore_transferor"),
    *("crab_tape_recall", "crab_input"),
)
_STATES = {
    "REPLICAS": dict(
        A="AVAILABLE",
        U="UNAVAILABLE",
        C="COPYING",
        B="BEING_DELETED",
        D="BAD",
        T="TEMPORARY_UNAVAILABLE",
    ),
    "DATASET_LOCKS": dict(O="OK", R="REPLICATING", S="STUCK"),
    "DID": dict(
        F="FILE",
        D="DATASET",
        C="CONTAINER",
        A="ARCHIVE",
        X="DELETED_FILE",
        Y="DELETED_DATASET",
        Z="DELETED_CONTAINER",
    ),
}


def avro(folder: Path, table: str) -> Iterable[dict[str, Any]]:
    for file in sorted((folder / table.lower()).glob("*.avro")):
        with file.open("rb") as stream:
            for row in fastavro.reader(stream):
                yield {name.upper(): value for name, value in row.items()}


def letter(kind: str, text: str | None) -> str | None:
    """The code of a text; None for what is none: the row is damaged."""
    if text is None:
        return None
    text = text.strip().upper()
    return {
        **{name: code for code, name in _STATES[kind].items()},
        **{c: c for c in _STATES[kind]},
    }.get(text)


def whole(value: Any) -> int | None:
    return None if value is None else int(value)


def hexed(value: bytes | str | None) -> str | None:
    return value.hex() if isinstance(value, bytes) else value and value.replace("-", "").lower()


def is_block(name: str | None) -> bool:
    if not name or "#" not in name:
        return False
    parts = name.partition("#")[0].split("/")
    return len(parts) == 4 and parts[0] == "" and all(parts[1:]) and bool(name.partition("#")[2])


def may_go(copies: Mapping[str, tuple[str, bool]]) -> set[str]:
    """Of the copies of one file, RSE → (kind, locked): those that go, when all go that
    may: take them away one by one, the last in the order of what stays first, while one
    remains.
    """
    remaining = sorted(copies, key=lambda rse: (copies[rse][0] != "tape", rse.encode()))
    gone = set()
    for rse in reversed(list(remaining)):
        if not copies[rse][1] and len(remaining) > 1:
            remaining.remove(rse)
            gone.add(rse)
    return gone


def dataset_rses(
    folder: Path,
    places: Mapping[str, tuple[str, str, str]],
    dbs_datasets: Iterable[tuple[int, str]],
    dbs_files: Iterable[tuple[str, int, int, int]],
    start_ms: int,
) -> dict[tuple[str, str], dict[str, Any]]:
    """``places``: id of an RSE that counts → (name, site, kind). ``dbs_files``: (lfn,
    file_id, dataset_id, is_file_valid).
    """
    copies: dict[str, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for row in avro(folder, "REPLICAS"):
        place = places.get(hexed(row["RSE_ID"]) or "")
        is_there = letter("REPLICAS", row["STATE"]) == "A" and row["NAME"] is not None
        if row["SCOPE"] == "cms" and place and is_there:
            copies[row["NAME"]][place[0]].append(row)
    parents = defaultdict(set)
    sizes: dict[tuple[str, str], int] = {}
    for row in avro(folder, "CONTENTS"):
        kinds = letter("DID", row["DID_TYPE"]), letter("DID", row["CHILD_TYPE"])
        is_cms = row["SCOPE"] == row["CHILD_SCOPE"] == "cms" and kinds == ("D", "F")
        if is_cms and is_block(row["NAME"]) and row["CHILD_NAME"] is not None:
            parents[row["CHILD_NAME"]].add(row["NAME"])
            pair = row["CHILD_NAME"], row["NAME"]
            sizes[pair] = max(
                sizes.get(pair, -1), -1 if row["BYTES"] is None else int(row["BYTES"])
            )
    block_of = {name: min(blocks, key=str.encode) for name, blocks in parents.items()}

    def size_at(name: str, rse: str) -> int:
        return max((whole(row["BYTES"]) or 0 for row in copies[name][rse]), default=0)

    def size_of(name: str) -> int:
        listed = sizes[name, block_of[name]]
        return (
            listed
            if listed >= 0
            else max((size_at(name, rse) for rse in copies.get(name, ())), default=0)
        )

    files_of = defaultdict(set)
    for name, block in block_of.items():
        files_of[block].add(name)
    catalogue = defaultdict(set)
    for blocks in parents.values():
        for block in blocks:
            catalogue[block.partition("#")[0]].add(block)
    # Locks: of repeated keys the later, then the larger account and state.
    locks: dict[tuple[str, str, str], Any] = {}
    for row in avro(folder, "DATASET_LOCKS"):
        element = hexed(row["RSE_ID"]) or ""
        state = letter("DATASET_LOCKS", row["STATE"])
        if row["SCOPE"] == "cms" and element in places and is_block(row["NAME"]) and state:
            updated = row.get("UPDATED_AT")
            facts = (-1 if updated is None else updated, (row["ACCOUNT"] or "").encode(), state)
            lock = row["NAME"], hexed(row["RULE_ID"]), element
            locks[lock] = max(locks.get(lock, facts), facts)
    held = defaultdict(list)
    for (block, rule, element), (_, account, state) in locks.items():
        held[places[element][0], block.partition("#")[0]].append(
            (block, rule, account.decode(), state)
        )
    # DBS: the larger id of a name, the larger file_id of an lfn.
    id_of: dict[str, int] = {}
    for dataset_id, name in dbs_datasets:
        id_of[name] = max(dataset_id, id_of.get(name, dataset_id))
    known = {dataset_id for dataset_id, _ in dbs_datasets}
    rows_of: dict[str, tuple[int, int, int]] = {}
    for lfn, file_id, dataset_id, valid in dbs_files:
        if dataset_id in known:
            rows_of[lfn] = max(rows_of.get(lfn, (-1, 0, 0)), (file_id, dataset_id, valid))
    valid_of = {
        name: {lfn for lfn, (_, of, valid) in rows_of.items() if of == dataset_id and valid == 1}
        for name, dataset_id in id_of.items()
    }
    kind_at = {name: kind for name, _, kind in places.values()}
    here = defaultdict(set)
    for name, by_rse in copies.items():
        for rse in by_rse if name in block_of else ():
            here[rse, block_of[name].partition("#")[0]].add(name)
    judged = {}
    for name, by_rse in copies.items():
        facts = {
            rse: (kind_at[rse], max(whole(row["LOCK_CNT"]) or 0 for row in rows) > 0)
            for rse, rows in by_rse.items()
        }
        on_disk = {rse: fact for rse, fact in facts.items() if fact[0] == "disk"}
        judged[name] = (facts, may_go(facts), may_go(on_disk), set(on_disk))
    result = {}
    for rse, dataset in {*here, *held}:
        names, of_locks = here[rse, dataset], held[rse, dataset]
        there = Counter(block_of[name] for name in names)

        def total(chosen: Iterable[str], rse: str = rse) -> int:
            return sum(size_at(name, rse) for name in chosen)

        def blocks_with(fits: Any, of_locks: Any = of_locks) -> int:
            return len({block for block, _, account, state in of_locks if fits(account, state)})

        def latest(column: str, names: Any = names, rse: str = rse) -> int | None:
            return max(
                (
                    row[column]
                    for name in names
                    for row in copies[name][rse]
                    if row[column] is not None
                ),
                default=None,
            )

        def is_expired(name: str, rse: str = rse) -> bool:
            times = [row["TOMBSTONE"] for row in copies[name][rse] if row["TOMBSTONE"] is not None]
            return not judged[name][0][rse][1] and bool(times) and max(times) < start_ms

        full = [
            block
            for block, count in there.items()
            if count >= len(files_of[block])
            and total(name for name in names if block_of[name] == block)
            >= sum(map(size_of, files_of[block]))
        ]
        locked = {name for name in names if judged[name][0][rse][1]}
        expected = valid_of.get(dataset)
        present = None if expected is None else sum(rse in copies.get(lfn, {}) for lfn in expected)
        lock_blocks = blocks_with(lambda *_: True)
        accounts = {
            "sync" if account.startswith("sync_") else account
            for _, _, account, _ in of_locks
            if account.startswith("sync_") or account in PRODUCTION
        }
        result[rse, dataset] = {
            "kind": kind_at[rse],
            "file_count": len(names),
            "bytes": total(names),
            "block_count": len(there),
            "full_block_count": len(full),
            "dataset_block_count": len(catalogue[dataset]),
            "dbs_file_count": None if expected is None else len(expected),
            "dbs_present_count": present,
            "is_complete": None if not expected else present == len(expected),
            "locked_file_count": len(locked),
            "locked_bytes": total(locked),
            "lock_blocks_ok": blocks_with(lambda _, state: state == "O"),
            "lock_blocks_replicating": blocks_with(lambda _, state: state == "R"),
            "lock_blocks_stuck": blocks_with(lambda _, state: state == "S"),
            "lock_blocks": lock_blocks,
            "lock_blocks_production": blocks_with(lambda account, _: account in PRODUCTION),
            "lock_blocks_sync": blocks_with(lambda account, _: account.startswith("sync_")),
            "lock_blocks_other": blocks_with(
                lambda account, _: account not in PRODUCTION and not account.startswith("sync_")
            ),
            "rule_count": len({rule for _, rule, _, _ in of_locks if rule}),
            "production_accounts": ",".join(sorted(accounts)) or None,
            "production_rules": ",".join(
                sorted(
                    {rule for _, rule, account, _ in of_locks if rule and account in PRODUCTION}
                )
                + ["sync-rules"] * ("sync" in accounts)
            )
            or None,
            "lock_state": "none"
            if not lock_blocks and not locked
            else "full"
            if 0 < len(catalogue[dataset]) <= lock_blocks
            else "partial",
            "created_ms": latest("CREATED_AT"),
            "accessed_ms": latest("ACCESSED_AT"),
            "accessed_file_count": sum(
                any(row["ACCESSED_AT"] is not None for row in copies[name][rse]) for name in names
            ),
            "only_copy_bytes": total(name for name in names if len(judged[name][0]) == 1),
            "only_disk_bytes": total(name for name in names if judged[name][3] == {rse}),
            "expired_bytes": total(filter(is_expired, names)),
            "deletable_bytes": total(name for name in names if rse in judged[name][1]),
            "deletable_disk_bytes": total(name for name in names if rse in judged[name][2]),
        }
    return result
