"""Locks of Rucio's rules: which dataset is held at which site, by which rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import IO, Any, Final

import numpy as np

from cmsspark.base.dates import start_ms
from cmsspark.base.errors import DataError, InputMissing
from cmsspark.base.names import is_block, site_and_kind
from cmsspark.filesystems.storage import Files
from cmsspark.sources.dumps import Dump, dump_at
from cmsspark.sources.formats.avro_table import CODE, ID, NUMBER, TablePiece, TableReader
from cmsspark.sources.rses import Rses, load_sites, make_rse
from cmsspark.sources.rucio import LOCK_STATES, SCOPE, RucioReader, TableCounts, find_code
from cmsspark.store.table_files import read_table

#: Columns of a file: name → other names that are taken for it.
_COLUMNS: Final = {
    "dataset": ("dataset_name", "name", "block", "block_name"),
    "site": ("site_name", "rse", "node", "node_name"),
}
_WEEK_MS: Final = 7 * 86_400_000
#: Opens a file of a dump.
Opener = Callable[[str], AbstractContextManager[IO[bytes]]]
#: (dataset, site); the site is None if the dataset is locked everywhere.
Lock = tuple[str, "str | None"]


@dataclass(frozen=True)
class Rule:
    """A rule of Rucio that holds a copy. ``account``: who owns it. ``expires_ms``: when
    it ends, None if never or unknown.
    """

    rule_id: str
    account: str | None = None
    expires_ms: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the rule with its expiry as text, UTC."""
        expires = self.expires_ms
        text = None if expires is None else f"{datetime.fromtimestamp(expires / 1000, UTC):%FT%TZ}"
        return {"rule_id": self.rule_id, "account": self.account, "expires_at": text}


#: The rules that lock datasets at sites; a lock of a table names none.
Locks = Mapping[Lock, tuple[Rule, ...]]


def is_held(rules: tuple[Rule, ...], day: date) -> bool:
    """Return whether a lock holds its copy beyond the week from ``day`` on: without rules
    that are known, or if one of them ends later or never.
    """
    end = start_ms(day) + _WEEK_MS
    return not rules or any(rule.expires_ms is None or rule.expires_ms > end for rule in rules)


@dataclass(frozen=True)
class HeldBlocks:
    """The blocks of a dataset that a rule holds at a storage element. ``states``: of its
    locks, joined by commas. ``account_type``: of the rule's account, None without a row.
    ``has_expiry``: whether RULES has the rule.
    """

    dataset: str
    rse: str
    rule: Rule
    states: str
    block_count: int
    account_type: str | None
    has_expiry: bool


def read_holds(
    files: Files,
    dump: Dump,
    rses_file: str | None,
    opened: Opener,
    is_chosen: Callable[[str], bool],
) -> list[HeldBlocks]:
    """Return what rules hold of chosen datasets, by the tables DATASET_LOCKS and RSES of
    a dump, and RULES and ACCOUNTS where it has them. Raises DataError (65).
    """
    of_rses = RucioReader("RSES")
    rows = [
        row
        for file in dump.tables["RSES"]
        for row in of_rses.rse_rows(_opened_pieces(of_rses.pieces, opened, file.path))
    ]
    of_rses.counts.check("RSES")
    rses = Rses.from_rows(rows, load_sites(rses_file))

    def table(name: str, kinds: Mapping[str, str]) -> Iterator[tuple[Any, ...]]:
        listed = dump.tables.get(name)
        if listed is None:
            of_table = dump_at(
                files, dump.kind, dump.folder, dump.day or date.min, dump.day, [name]
            )
            listed = of_table.tables[name] if of_table is not None else ()
        reader = TableReader(kinds)
        pieces = (
            piece
            for file in listed
            if file.size
            for piece in _opened_pieces(reader.read, opened, file.path)
        )
        return _distinct_rows(reader, name, pieces)

    blocks: dict[tuple[str, int, str, str | None], set[str]] = {}
    states: dict[tuple[str, int, str, str | None], set[str]] = {}
    kinds = {"RSE_ID": ID, "SCOPE": CODE, "NAME": CODE, "RULE_ID": ID, "ACCOUNT": CODE}
    for rse_id, scope, name, rule_id, account, state in table(
        "DATASET_LOCKS", {**kinds, "STATE": CODE}
    ):
        number = rses.numbers.get(rse_id or "", -1)
        if number < 0 or (scope or "").strip().lower() != SCOPE or not is_block(name or ""):
            continue
        dataset = name.partition("#")[0]
        if is_chosen(dataset):
            key = dataset, number, rule_id or "", account
            blocks.setdefault(key, set()).add(name)
            code = find_code(LOCK_STATES, state or "")
            states.setdefault(key, set()).add(LOCK_STATES.get(code, "unknown").lower())
    rule_ids = {key[2] for key in blocks}
    ends = {
        rule_id: expires
        for rule_id, expires in table("RULES", {"ID": ID, "EXPIRES_AT": NUMBER})
        if rule_id in rule_ids
    }
    names = {key[3] for key in blocks}
    types = {
        account: kind
        for account, kind in table("ACCOUNTS", {"ACCOUNT": CODE, "ACCOUNT_TYPE": CODE})
        if account in names
    }
    return [
        HeldBlocks(
            dataset,
            rses.rses[number].name,
            Rule(rule_id, account, ends.get(rule_id)),
            ",".join(sorted(states[key])),
            len(names_of_blocks),
            types.get(account),
            rule_id in ends,
        )
        for key, names_of_blocks in blocks.items()
        for dataset, number, rule_id, account in [key]
    ]


def _opened_pieces(
    read: Callable[[IO[bytes], str], Iterator[TablePiece]], opened: Opener, path: str
) -> Iterator[TablePiece]:
    with opened(path) as stream:
        yield from read(stream, path)


def read_locks(path: Path, rses_file: str | None = None) -> Locks:
    """Return the locks of a table or a dump. Those on tape are left out, and a lock
    counts whatever its state is.

    A table is CSV or Parquet with ``dataset`` (or the name of a block) and ``site`` (or
    an RSE or node; null: at all sites). A dump is a folder with Rucio's Avro tables
    DATASET_LOCKS and RSES, read by rules 22 and 23, and RULES if it has them.
    ``rses_file``: the exceptions of the settings. Raises InputMissing (66), UsageError
    (2) for other kinds of files, DataError (65) for damaged ones.
    """
    if path.is_dir():
        return _dump_locks(path, load_sites(rses_file))
    table = read_table(path, "locks", _COLUMNS, ("dataset",), may_be_null=("site",))
    sites = table["site"].to_list() if "site" in table.columns else [None] * len(table)
    exceptions = load_sites(rses_file)
    locks: dict[Lock, tuple[Rule, ...]] = {}
    for name, site in zip(table["dataset"].to_list(), sites, strict=True):
        dataset = name.partition("#")[0]
        if site is None:
            locks[dataset, None] = ()
        elif (rse := make_rse(site, None, exceptions)) is not None and rse.kind == "disk":
            # The name of a site, a node or an RSE.
            locks[dataset, site_and_kind(rse.site)[0]] = ()
    return locks


def _dump_locks(folder: Path, exceptions: Mapping[str, str]) -> Locks:
    of_rses = RucioReader("RSES")
    rows = [
        row
        for path in _dump_files(folder, "RSES")
        for row in of_rses.rse_rows(_pieces(of_rses.pieces, path))
    ]
    of_rses.counts.check("RSES")
    rses = Rses.from_rows(rows, exceptions)
    rules = {}
    with suppress(InputMissing):
        kinds = {"ID": ID, "ACCOUNT": CODE, "EXPIRES_AT": NUMBER}
        for rule_id, account, expires in _dump_rows(folder, "RULES", kinds):
            rules[rule_id] = Rule(rule_id, account, expires)
    kinds = {"RSE_ID": ID, "SCOPE": CODE, "NAME": CODE, "RULE_ID": ID}
    locks: dict[Lock, set[str]] = {}
    for rse_id, scope, name, rule_id in _dump_rows(folder, "DATASET_LOCKS", kinds):
        number = rses.numbers.get(rse_id or "", -1)
        if number >= 0 and rses.rses[number].kind == "disk" and scope == SCOPE and name:
            of_copy = locks.setdefault((name.partition("#")[0], rses.rses[number].site), set())
            of_copy.update([rule_id] if rule_id else [])
    return {
        lock: tuple(rules.get(rule_id) or Rule(rule_id) for rule_id in sorted(ids))
        for lock, ids in locks.items()
    }


def _dump_files(folder: Path, table: str) -> list[Path]:
    folders = [path for path in (folder / table, folder / table.lower()) if path.is_dir()]
    files = (
        sorted(path for path in folders[0].iterdir() if path.name[0] not in "._")
        if folders
        else []
    )
    if not any(path.is_file() and path.stat().st_size for path in files):
        raise InputMissing(
            f"no table {table} of Rucio's dump",
            where=folder,
            found="no folder of it with Avro files",
            next_step="give the folder of a day's dump, or a CSV or Parquet file of locks",
        )
    return files


def _dump_rows(folder: Path, table: str, kinds: Mapping[str, str]) -> Iterator[tuple[Any, ...]]:
    """Yield the different rows of a table: texts, ids in hex and numbers, None for null.

    Raises InputMissing (66) without the table, DataError (65) for many damaged rows.
    """
    reader = TableReader(kinds)
    files = _dump_files(folder, table)
    pieces = (piece for path in files for piece in _pieces(reader.read, path))
    yield from _distinct_rows(reader, table, pieces)


def _distinct_rows(
    reader: TableReader, table: str, pieces: Iterable[TablePiece]
) -> Iterator[tuple[Any, ...]]:
    """Yield the different rows of pieces of a table. Raises DataError (65)."""
    counts, kinds = TableCounts(), reader.kinds
    for piece in pieces:
        counts.take(piece)
        texts = {name: list(reader.texts[name]) for name, kind in kinds.items() if kind != NUMBER}
        rows = np.stack([piece.numbers(name, -1) for name in kinds], axis=1)
        for row in np.unique(rows, axis=0).tolist():
            yield tuple(
                None if value < 0 else texts[name][value] if name in texts else value
                for name, value in zip(kinds, row, strict=True)
            )
    counts.check(table)


def _pieces(
    read: Callable[[IO[bytes], str], Iterator[TablePiece]], path: Path
) -> Iterator[TablePiece]:
    try:
        with path.open("rb") as stream:
            yield from read(stream, str(path))
    except OSError as error:
        raise DataError("a dump's file cannot be read", where=path, found=error.strerror) from None
