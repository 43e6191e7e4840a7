"""Copies of datasets at storage elements of Rucio: what is held, what is the last copy,
and what may go (rules 66 and 67).

All copies of a file meet by the hash of its name, with its row of FILES; a lock meets
its repetitions and its rule by the rule's id. Then what is of a dataset meets by the
hash of its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import numpy.typing as npt

from cmsspark.base.arrays import Longs, joined, sums_by_group
from cmsspark.base.buffers import from_numpy, to_numpy
from cmsspark.counting.catalogue import check_hash, hashes_in
from cmsspark.dumps.dataset_contents import NO_BLOCK, KnownDatasets, name_files
from cmsspark.dumps.keyed_rows import (
    Columns,
    KeyedRows,
    by_key,
    find_starts,
    group_rows,
    join_columns,
    keys_of_hashes,
    map_slices,
    number_hashes,
    number_names,
    rank_names,
    rows_by_kind,
)
from cmsspark.dumps.rucio_rows import (
    BLOCK_SUMS,
    BLOCK_TOTALS,
    CONTENTS,
    DATASET_LOCKS,
    FILE_REPLICAS,
    OUTSIDE,
    REPLICA_COLUMNS,
    RULES,
    BlockNames,
    find_blocks,
    replicas_once,
)
from cmsspark.sources.accounts import SYNC, Accounts

if TYPE_CHECKING:
    import pyarrow as pa

Flags = npt.NDArray[np.bool_]

#: Rows of FILES by name, and sums of those that count by (dataset of DBS, RSE), the RSE
#: -1 for all of the dataset.
NAMED_FILES, PRESENT = "named_files", "present"
#: Results: sums by (dataset, RSE), by RSE, and counts of the checks of rule 76.
COPIES, RSE_TOTALS, CHECKS = "copies", "rse_totals", "copy_checks"
#: Columns of FILES that are read.
FILE_COLUMNS: Final = ("logical_file_name", "file_id", "dataset_id", "is_file_valid")
#: Counts and sums of copies of files, and their largest times (-1: null).
COUNTS: Final = ("file_count", "accessed_file_count", "locked_file_count")
#: Sums of bytes, all but the first of those copies for which a flag is set.
SUMS: Final = (
    *("bytes", "locked_bytes", "only_copy_bytes", "only_disk_bytes", "expired_bytes"),
    *("deletable_bytes", "deletable_disk_bytes"),
)
LARGEST: Final = ("created_ms", "accessed_ms")
#: Counts of blocks.
BLOCKS: Final = ("block_count", "full_block_count")
#: What holds a block: bits of its locks by state, and by class of account. Each
#: production account has a bit from ``FIRST_ACCOUNT`` on.
LOCK_BITS: Final = {"ok": 1, "replicating": 2, "stuck": 4, "sync": 8, "other": 16}
FIRST_ACCOUNT: Final = 5
#: What the rules of all accounts for synchronisation are called together.
SYNC_RULES: Final = "sync-rules"
_PAIR: Final = ("dataset", "rse")
_NAMED: Final = ("hash", "check")
_LOCK: Final = ("rule_high", "rule_low", "has_rule", "element", "state", "updated_ms", "rse")
_SUMMED: Final = (*COUNTS, *SUMS, *LARGEST)


class NamedFileMapper(msgspec.Struct, frozen=True):
    """Makes keyed rows of FILES, by the hash of the file's name.

    ``dataset``: the number of the dataset's name if the file is valid and the dataset
    has the largest id of its name, else -1. ``rank``: of two rows of one name and
    file_id the larger counts.
    """

    datasets: KnownDatasets
    keys: int

    def __call__(self, tables: Iterable[pa.Table]) -> Iterator[KeyedRows]:
        for columns in map_slices(self._facts, tables):
            yield from by_key(NAMED_FILES, keys_of_hashes(columns["hash"], self.keys), columns)

    def _facts(self, table: pa.Table) -> Columns:
        positions = self.datasets.find_positions(table["dataset_id"])
        rows = np.flatnonzero(positions >= 0)
        if len(rows) < len(positions):
            table, positions = table.take(from_numpy(rows)), positions[rows]
        numbers = self.datasets.numbers.astype(np.int64)
        last = np.full(self.datasets.count, -1, np.int64)
        # Ids are in order: the last of a name's is the largest.
        last[numbers] = np.arange(len(numbers))
        number = numbers[positions]
        valid = to_numpy(table["is_file_valid"], np.int64, -1)
        counts = (valid == 1) & (last[number] == positions)
        names = name_files(table)
        return {
            "hash": hashes_in(names),
            "check": hashes_in(names, check_hash),
            "file_id": to_numpy(table["file_id"], np.int64, NO_BLOCK),
            "dataset": np.where(counts, number, -1),
            "rank": positions * 3 + np.clip(valid, -1, 1) + 1,
        }


class CopyMerge(msgspec.Struct, frozen=True):
    """Merges the files, and the locks of the rules, of one key. ``is_tape``: of each
    storage element by number. ``count``: how many datasets DBS numbers.
    """

    keys: int
    is_tape: tuple[bool, ...]
    accounts: Accounts
    count: int

    def __call__(self, key: int, rows: Iterable[KeyedRows]) -> Iterator[KeyedRows]:
        """Yield sums by block, and locks of blocks, by the key of the dataset; what is
        of no file and no lock as it is. Raises DataError (65).
        """
        by_kind = rows_by_kind(rows)
        contents = by_kind.pop(CONTENTS, [])
        replicas = by_kind.pop(FILE_REPLICAS, [])
        files = by_kind.pop(NAMED_FILES, [])
        yield from self._files(contents, replicas, files)
        locks, rules = by_kind.pop(DATASET_LOCKS, []), by_kind.pop(RULES, [])
        if locks:
            yield from self._locks(locks, rules)
        for of_kind in by_kind.values():
            yield from of_kind

    def _files(
        self,
        contents: Sequence[KeyedRows],
        replicas: Sequence[KeyedRows],
        files: Sequence[KeyedRows],
    ) -> Iterator[KeyedRows]:
        numbers, names = number_names(contents, "block")
        ranks = rank_names(names)
        blocks = BlockNames(names.take(from_numpy(np.argsort(ranks))))
        of_contents = join_columns(contents, (*_NAMED, "bytes"))
        of_replicas = join_columns(replicas, REPLICA_COLUMNS)
        of_replicas |= join_columns(replicas, ("is_locked", "tombstone"), np.uint8)
        of_files = join_columns(files, (*_NAMED, "file_id", "dataset", "rank"))
        ids, firsts = number_hashes(
            *(
                np.concatenate((of_contents[name], of_replicas[name], of_files[name]))
                for name in _NAMED
            )
        )
        split = np.cumsum([len(of_contents["hash"]), len(of_replicas["hash"])])
        in_contents, in_replicas, in_dbs = np.split(ids, split)
        file, rse, copies = replicas_once(in_replicas, of_replicas)
        block, size = find_blocks(in_contents, ranks[numbers], of_contents["bytes"], len(firsts))
        largest = np.full(len(firsts), -1, np.int64)
        np.maximum.at(largest, file, copies["bytes"])
        size = np.where(size < 0, largest, size)
        yield from self._copies(blocks, block, file, rse, copies)
        # What the catalogue says of each block, also of one that is no file's.
        in_block = block >= 0
        count = len(blocks.names)
        upper, lower = sums_by_group(block[in_block], np.maximum(size[in_block], 0), count)
        columns = {
            "block": np.arange(count),
            "files": np.bincount(block[in_block], minlength=count).astype(np.int64),
            "upper": upper,
            "lower": lower,
        }
        yield from blocks.rows(BLOCK_TOTALS, columns, self.keys)
        yield from self._present(of_files, in_dbs, len(firsts), file, rse)

    def _copies(
        self, blocks: BlockNames, block: Longs, file: Longs, rse: Longs, copies: Columns
    ) -> Iterator[KeyedRows]:
        """Yield the sums of copies by (block, RSE), and those of files in no block."""
        sizes = np.maximum(copies["bytes"], 0)
        is_locked = copies["is_locked"] > 0
        is_tape = np.array([*self.is_tape, False], np.bool_)[rse]
        flags, lost_count = judge_copies(file, rse, is_tape, is_locked)
        flags["expired_bytes"] = ~is_locked & (copies["tombstone"] == 1)
        flags["locked_bytes"] = is_locked
        columns = {
            "block": block[file],
            "rse": rse,
            "file_count": np.ones(len(file), np.int64),
            "accessed_file_count": (copies["accessed_ms"] >= 0).astype(np.int64),
            "locked_file_count": is_locked.astype(np.int64),
            "bytes": sizes,
            "created_ms": copies["created_ms"],
            "accessed_ms": copies["accessed_ms"],
        } | {name: np.where(flag, sizes, 0) for name, flag in flags.items()}
        sums = _sum(columns, ("block", "rse"))
        has_block = sums["block"] >= 0
        inside = {name: values[has_block] for name, values in sums.items()}
        yield from blocks.rows(BLOCK_SUMS, inside, self.keys)
        outside = {name: sums[name][~has_block] for name in ("rse", "file_count", "bytes")}
        if len(outside["rse"]):
            yield KeyedRows(0, OUTSIDE, outside)
        counts = {"rse": rse, "file_count": columns["file_count"], "bytes": sizes}
        totals = group_rows(counts, ("rse",), counts=("file_count",), sums=("bytes",))
        if len(file):
            both = flags["only_copy_bytes"] & (
                flags["deletable_bytes"] | flags["deletable_disk_bytes"]
            )
            checks = (len(find_starts(file)), lost_count, int(both.sum()))
            yield KeyedRows(0, RSE_TOTALS, totals)
            names = ("files", "lost", "only_and_deletable")
            yield KeyedRows(0, CHECKS, _numbers(dict(zip(names, checks, strict=True))))

    def _present(
        self, files: Columns, ids: Longs, count: int, file: Longs, rse: Longs
    ) -> Iterator[KeyedRows]:
        """Yield how many valid files each dataset of DBS has, and at each RSE (rule 18)."""
        dataset = np.full(count, -1, np.int64)
        rows = np.arange(len(ids))
        if len(ids) and np.bincount(ids).max() > 1:
            # The last of several rows stays.
            rows = np.lexsort((files["rank"], files["file_id"], ids))
        dataset[ids[rows]] = files["dataset"][rows]
        of_copies = dataset[file]
        is_there = of_copies >= 0
        all_files = dataset[dataset >= 0]
        columns = {
            "dataset": np.concatenate((all_files, of_copies[is_there])),
            "rse": np.concatenate((np.full(len(all_files), -1), rse[is_there])),
        }
        columns["count"] = np.ones(len(columns["rse"]), np.int64)
        sums = group_rows(columns, _PAIR, counts=("count",))
        yield from by_key(PRESENT, sums["dataset"] * self.keys // max(1, self.count), sums)

    def _locks(
        self, locks: Sequence[KeyedRows], rules: Sequence[KeyedRows]
    ) -> Iterator[KeyedRows]:
        """Yield each lock once (rule 64), with the bits of its state and account."""
        dataset, datasets = number_names(locks, "dataset")
        account, accounts = number_names(locks, "account")
        rows = join_columns(locks, _LOCK) | join_columns(locks, ("block", "check"), np.uint64)
        rows |= {"dataset": dataset, "account": account}
        rank = rank_names(accounts)[account]
        keys = ("rule_high", "rule_low", "has_rule", "block", "check", "element")
        order = np.lexsort(
            (rows["state"], rank, rows["updated_ms"], *(rows[name] for name in reversed(keys)))
        )
        starts = find_starts(*(rows[name][order] for name in keys))
        last = order[np.append(starts[1:], len(order)) - 1]
        rows = {name: values[last] for name, values in rows.items()}
        bits = np.array([account_bit(self.accounts, text) for text in accounts.to_pylist()])
        rule_ids = join_columns(rules, ("rule_high", "rule_low"))
        split = len(rule_ids["rule_high"])
        ids, _ = number_hashes(
            *(
                np.concatenate((rule_ids[name], rows[name])).view(np.uint64)
                for name in ("rule_high", "rule_low")
            )
        )
        has_rule = np.isin(ids[split:], ids[:split]) & (rows["has_rule"] > 0)
        yield KeyedRows(
            0, CHECKS, _numbers({"locks": len(has_rule), "without_rule": int((~has_rule).sum())})
        )
        columns = {
            "block": rows["block"],
            "check": rows["check"],
            "dataset": rows["dataset"],
            "rse": rows["rse"],
            "rule_high": rows["rule_high"],
            "rule_low": rows["rule_low"],
            "has_rule": rows["has_rule"],
            "bits": (1 << rows["state"]) | bits[rows["account"]],
        }
        blocks = BlockNames(datasets)
        row_keys = keys_of_hashes(blocks.hashes, self.keys)[columns["dataset"]]
        yield from by_key(DATASET_LOCKS, row_keys, columns, {"dataset": datasets})


def judge_copies(
    file: Longs, rse: Longs, is_tape: Flags, is_locked: Flags
) -> tuple[dict[str, Flags], int]:
    """Return which copies are the last ones and which may go (rule 67), and of how many
    files all may go, which is none. Copies are in the order of (file, RSE), each once.
    """
    lengths, group = _groups(file)
    starts = np.cumsum(lengths) - lengths
    may_go = _may_go(rse, group, starts, is_tape, is_locked)
    on_disk = np.flatnonzero(~is_tape)
    disk_lengths, disk_group = _groups(file[on_disk])
    disk_starts = np.cumsum(disk_lengths) - disk_lengths
    only_disk, disk_may_go = (np.zeros(len(file), np.bool_) for _ in range(2))
    only_disk[on_disk] = disk_lengths[disk_group] == 1
    disk_may_go[on_disk] = _may_go(
        rse[on_disk], disk_group, disk_starts, is_tape[on_disk], is_locked[on_disk]
    )
    all_may_go = sum(
        int(np.logical_and.reduceat(flags, of_files).sum()) if len(of_files) else 0
        for flags, of_files in ((may_go, starts), (disk_may_go[on_disk], disk_starts))
    )
    flags = {
        "only_copy_bytes": lengths[group] == 1,
        "only_disk_bytes": only_disk,
        "deletable_bytes": may_go,
        "deletable_disk_bytes": disk_may_go,
    }
    return flags, all_may_go


def _groups(file: Longs) -> tuple[Longs, Longs]:
    """Return the number of copies of each file, and the place of each copy's file."""
    starts = find_starts(file)
    lengths = np.diff(np.append(starts, len(file)))
    return lengths, np.repeat(np.arange(len(starts)), lengths)


def _may_go(rse: Longs, group: Longs, starts: Longs, is_tape: Flags, is_locked: Flags) -> Flags:
    """Return which copies may go together: where a copy is locked all that are not,
    else all but one, on tape before disk, the first by the name of its RSE.
    """
    if not len(rse):
        return np.zeros(0, np.bool_)
    has_lock = np.logical_or.reduceat(is_locked, starts)[group]
    priority = np.where(is_tape, rse, rse + int(rse.max()) + 1)
    is_first = priority == np.minimum.reduceat(priority, starts)[group]
    may_go: Flags = ~is_locked & (has_lock | ~is_first)
    return may_go


def account_bit(accounts: Accounts, account: str | None) -> int:
    """Return the bit of an account in the locks of a block."""
    of_class = accounts.held_by(account)
    if of_class in (SYNC, ""):
        return LOCK_BITS[of_class or "other"]
    return 1 << (FIRST_ACCOUNT + accounts.production.index(of_class))


def _numbers(counts: dict[str, int]) -> Columns:
    return {name: np.array([count], np.int64) for name, count in counts.items()}


def _sum(rows: Columns, keys: Sequence[str]) -> Columns:
    return group_rows(rows, keys, counts=COUNTS, sums=SUMS, largest=LARGEST)


def merge_datasets(key: int, rows: Iterable[KeyedRows]) -> Iterator[KeyedRows]:
    """Yield the sums of the datasets of one key by RSE, and what is of none. Raises
    DataError (65).
    """
    by_kind = rows_by_kind(rows)
    if present := by_kind.pop(PRESENT, []):
        columns = join_columns(present, (*_PAIR, "count"))
        yield KeyedRows(key, PRESENT, group_rows(columns, _PAIR, counts=("count",)))
    totals, sums, locks = (
        by_kind.pop(kind, []) for kind in (BLOCK_TOTALS, BLOCK_SUMS, DATASET_LOCKS)
    )
    if totals or locks:
        yield _sum_datasets(key, totals, sums, locks)
    for of_kind in by_kind.values():
        yield from of_kind


def _sum_datasets(
    key: int,
    totals: Sequence[KeyedRows],
    sums: Sequence[KeyedRows],
    locks: Sequence[KeyedRows],
) -> KeyedRows:
    every = [*totals, *sums, *locks]
    columns = join_columns(every, ("block", "check"), np.uint64)
    ids, firsts = number_hashes(columns["block"], columns["check"])
    numbers, datasets = number_names(every, "dataset")
    dataset = numbers[firsts]
    split = np.cumsum(
        [sum(len(entry.columns["block"]) for entry in part) for part in (totals, sums)]
    )
    in_totals, in_sums, in_locks = np.split(ids, split)
    catalogue = join_columns(totals, ("files", "upper", "lower"))
    of_blocks = {name: np.zeros(len(firsts), np.int64) for name in catalogue}
    for name, values in catalogue.items():
        np.add.at(of_blocks[name], in_totals, values)
    is_listed = np.zeros(len(firsts), np.bool_)
    is_listed[in_totals] = True
    listed = np.bincount(dataset[is_listed], minlength=len(datasets)).astype(np.int64)
    copies = _sum({"block": in_sums, **join_columns(sums, ("rse", *_SUMMED))}, ("block", "rse"))
    block = copies.pop("block")
    sizes = joined(of_blocks["upper"], of_blocks["lower"], "the files of a block")
    is_full = (copies["file_count"] >= of_blocks["files"][block]) & (
        copies["bytes"] >= sizes[block]
    )
    copies |= {
        "dataset": dataset[block],
        "block_count": np.ones(len(block), np.int64),
        "full_block_count": is_full.astype(np.int64),
    }
    lock_sums, rules = _hold(in_locks, dataset, locks)
    of_pairs = group_rows(copies, _PAIR, counts=(*COUNTS, *BLOCKS), sums=SUMS, largest=LARGEST)
    joined_rows = _join_pairs(of_pairs, lock_sums)
    joined_rows["dataset_block_count"] = listed[joined_rows["dataset"]]
    return KeyedRows(key, COPIES, joined_rows, {"dataset": datasets, "rules": rules})


def _hold(
    block: Longs, dataset: Longs, locks: Sequence[KeyedRows]
) -> tuple[Columns, pa.StringArray]:
    """Return how many blocks the locks of each (dataset, RSE) hold, and how many rules
    these are; and the texts that ``rules`` numbers. ``dataset``: of each block.
    """
    names = ("rse", "rule_high", "rule_low", "has_rule", "bits")
    rows = {"block": block, **join_columns(locks, names)}
    order = np.lexsort((rows["rse"], rows["block"]))
    starts = find_starts(rows["block"][order], rows["rse"][order])
    bits = np.bitwise_or.reduceat(rows["bits"][order], starts) if len(starts) else rows["bits"][:0]
    firsts = order[starts]
    of_blocks = {"dataset": dataset[rows["block"][firsts]], "rse": rows["rse"][firsts]}
    production = (bits >> FIRST_ACCOUNT) > 0
    of_blocks |= {
        f"lock_blocks_{name}": ((bits & bit) > 0).astype(np.int64)
        for name, bit in LOCK_BITS.items()
    }
    of_blocks |= {
        "lock_blocks": np.ones(len(bits), np.int64),
        "lock_blocks_production": production.astype(np.int64),
    }
    counts = [name for name in of_blocks if name not in _PAIR]
    sums = group_rows(of_blocks, _PAIR, counts=counts)
    of_rules = {"dataset": dataset[rows["block"]], **rows}
    order = np.lexsort(
        tuple(of_rules[name] for name in ("rule_low", "rule_high", "has_rule", "rse", "dataset"))
    )
    of_rules = {name: values[order] for name, values in of_rules.items()}
    starts = find_starts(of_rules["dataset"], of_rules["rse"])
    first_of_rule = find_starts(*(of_rules[name] for name in (*_PAIR, *names[1:4])))
    once = np.zeros(len(order), np.int64)
    once[first_of_rule] = 1
    once *= of_rules["has_rule"]
    empty = np.zeros(0, np.int64)
    rule_bits = np.bitwise_or.reduceat(of_rules["bits"], first_of_rule) if len(starts) else empty
    texts = _production_rules(
        {name: values[first_of_rule] for name, values in of_rules.items()} | {"bits": rule_bits},
        np.searchsorted(first_of_rule, starts),
    )
    return sums | {
        "rule_count": np.add.reduceat(once, starts) if len(starts) else empty,
        "bits": np.bitwise_or.reduceat(of_rules["bits"], starts) if len(starts) else empty,
        "rules": np.arange(1, len(starts) + 1),
    }, texts


def _production_rules(rules: Columns, starts: Longs) -> pa.StringArray:
    """Return null, and for the rules from each of ``starts`` on the ids of those of
    production, sorted, joined by commas, with :data:`SYNC_RULES` for all of sync.
    """
    import pyarrow as pa

    texts: list[str | None] = [None]
    is_production = (rules["bits"] >> FIRST_ACCOUNT > 0) & (rules["has_rule"] > 0)
    is_sync = rules["bits"] & LOCK_BITS["sync"] > 0
    highs, lows = (rules[name].view(np.uint64) for name in ("rule_high", "rule_low"))
    for first, last in zip(starts, np.append(starts[1:], len(highs)), strict=True):
        chosen = first + np.flatnonzero(is_production[first:last])
        ids = sorted(
            f"{high:016x}{low:016x}"
            for high, low in zip(highs[chosen].tolist(), lows[chosen].tolist(), strict=True)
        )
        ids += [SYNC_RULES] if is_sync[first:last].any() else []
        texts.append(",".join(ids) or None)
    return pa.array(texts, pa.string())


def _join_pairs(copies: Columns, lock_sums: Columns) -> Columns:
    """Return the rows of both, those of one (dataset, RSE) as one; 0 for what is not
    there, -1 for times.
    """
    width = 1 + max(int(rows["rse"].max(initial=0)) for rows in (copies, lock_sums))
    keys = [rows["dataset"] * width + rows["rse"] for rows in (copies, lock_sums)]
    pairs = np.union1d(*keys)
    columns: Columns = {"dataset": pairs // width, "rse": pairs % width}
    for rows, of_rows in zip((copies, lock_sums), keys, strict=True):
        positions = np.searchsorted(pairs, of_rows)
        for name, values in rows.items():
            if name not in _PAIR:
                columns[name] = np.full(len(pairs), -1 if name in LARGEST else 0, np.int64)
                columns[name][positions] = values
    return columns


def account_names(accounts: Accounts, bits: int) -> str | None:
    """Return the production accounts of some bits, sorted, joined by commas; None for none."""
    names = {
        name
        for number, name in enumerate(accounts.production)
        if bits >> (FIRST_ACCOUNT + number) & 1
    }
    names |= {SYNC} if bits & LOCK_BITS["sync"] else set()
    return ",".join(sorted(names, key=str.encode)) or None
