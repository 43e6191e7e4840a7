"""Locks of Rucio's rules: which dataset is held at which site, by which rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from datetime import UTC, date, datetime
from functools import partial
from typing import IO, Any

import msgspec
import numpy as np

from cmsspark.base.names import is_block
from cmsspark.filesystems.storage import Files
from cmsspark.settings import pseudonyms
from cmsspark.settings.settings import Settings
from cmsspark.sources.accounts import load_accounts
from cmsspark.sources.dumps import Dump, choose_rucio_dump, dump_at
from cmsspark.sources.formats.avro_table import CODE, ID, NUMBER, TablePiece, TableReader
from cmsspark.sources.layout import Layout
from cmsspark.sources.rses import Rses, load_sites
from cmsspark.sources.rucio import LOCK_STATES, SCOPE, RucioReader, TableCounts, find_code
from cmsspark.store.stored_columns import open_store

#: Opens a file of a dump.
Opener = Callable[[str], AbstractContextManager[IO[bytes]]]


class HeldBlocks(msgspec.Struct, frozen=True):
    """The blocks of a dataset that a rule holds at a storage element. ``states``: of its
    locks, joined by commas. ``account_type``: of the rule's account, None without a row.
    ``has_expiry``: whether RULES has the rule. ``expires_ms``: None if it never ends.
    """

    dataset: str
    rse: str
    rule_id: str
    account: str | None
    expires_ms: int | None
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
    rse_rows = [
        row
        for file in dump.tables["RSES"]
        for row in of_rses.rse_rows(_opened_pieces(of_rses.pieces, opened, file.path))
    ]
    of_rses.counts.check("RSES")
    rses = Rses.from_rows(rse_rows, load_sites(rses_file))

    def table(name: str, kinds: Mapping[str, str]) -> Iterator[tuple[Any, ...]]:
        """Yield the different rows of a table: texts, ids in hex and numbers, None for
        null.
        """
        listed = dump.tables.get(name)
        if listed is None:
            of_table = dump_at(
                files, dump.kind, dump.folder, dump.day or date.min, dump.day, [name]
            )
            listed = of_table.tables[name] if of_table is not None else ()
        reader, counts = TableReader(kinds), TableCounts()
        for file in listed:
            if not file.size:
                continue
            for piece in _opened_pieces(reader.read, opened, file.path):
                counts.take(piece)
                texts = {
                    column: list(reader.texts[column])
                    for column, kind in kinds.items()
                    if kind != NUMBER
                }
                rows = np.stack([piece.numbers(column, -1) for column in kinds], axis=1)
                for row in np.unique(rows, axis=0).tolist():
                    yield tuple(
                        None if value < 0 else texts[column][value] if column in texts else value
                        for column, value in zip(kinds, row, strict=True)
                    )
        counts.check(name)

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
            rule_id,
            account,
            ends.get(rule_id),
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


def read_rules(
    settings: Settings,
    day: date,
    opened: Callable[[Files, str], AbstractContextManager[IO[bytes]]],
    is_chosen: Callable[[str], bool],
) -> tuple[list[dict[str, Any]], Dump]:
    """Return what rules hold of chosen datasets, in the order of names, by the dump of
    Rucio that belongs to a day, and this dump. People are pseudonyms. ``expires_at`` is
    None in all rows if the dump does not know it.

    Raises InputMissing (66) and NotReady (75) without a dump, DataError (65).
    """
    layout = Layout.from_settings(settings, settings.root)
    files = open_store(layout.dump_location("rucio", "dated").folder, "cmsspark", settings)
    dump = choose_rucio_dump(files, layout, day, ("RSES", "DATASET_LOCKS"))
    holds = read_holds(files, dump, settings.rses, partial(opened, files), is_chosen)
    accounts = load_accounts()
    key = pseudonyms.load_or_make(settings.state_dir / pseudonyms.KEY_FILE)
    is_known = any(blocks.has_expiry for blocks in holds)

    def row(blocks: HeldBlocks) -> dict[str, Any]:
        of_class = accounts.account_class(blocks.account, blocks.account_type)
        name, end = blocks.account, "never"
        is_person = of_class in ("user", "unknown") and name is not None
        if blocks.expires_ms is not None:
            end = f"{datetime.fromtimestamp(blocks.expires_ms / 1000, UTC):%FT%TZ}"
        return {
            "block_count": blocks.block_count,
            "state": blocks.states,
            "expires_at": end if is_known else None,
            "account_class": of_class,
            "account": key.pseudonym(name) if is_person and name else name,
            "rule_id": blocks.rule_id,
            "rse": blocks.rse,
            "dataset_name": blocks.dataset,
        }

    names = ("dataset_name", "rse", "rule_id")
    return sorted(map(row, holds), key=lambda entry: [entry[name] for name in names]), dump
