"""Rules 22 to 27 and 34: a Rucio dump, row by row in plain Python, and what it says of
files, blocks and datasets.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import fastavro

_BLOCK = re.compile(r"/[^/#]+/[^/#]+/[^/#]+#[\s\S]+")
_TABLES = ("REPLICAS", "CONTENTS", "RSES")


class Damaged(ValueError):
    """A row with an ill-typed value."""


def number(value: Any) -> int | None:
    """Rule 22: text of digits, an integer, a float of whole value, or null."""
    if value is None:
        return None
    if isinstance(value, bool):
        raise Damaged
    if isinstance(value, str):
        if not re.fullmatch("[0-9]+", value, re.ASCII):
            raise Damaged
        found = int(value)
    elif isinstance(value, int):
        found = value
    elif isinstance(value, float) and value == value // 1:
        found = int(value)
    else:
        raise Damaged
    if not 0 <= found < 2**63:
        raise Damaged
    return found


def identifier(value: Any) -> str | None:
    """Rule 22: 16 bytes, or 32 hex digits with or without dashes."""
    if value is None:
        return None
    if isinstance(value, bytes) and len(value) == 16:
        return value.hex()
    if isinstance(value, str) and re.fullmatch("[0-9a-fA-F]{32}", value.replace("-", "")):
        return value.replace("-", "").lower()
    raise Damaged


def text(value: Any) -> str | None:
    """Rule 22: text or null."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise Damaged
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Damaged from None
    return value


_KINDS = {
    "RSE_ID": identifier,
    "ID": identifier,
    "BYTES": number,
    "CREATED_AT": number,
    "ACCESSED_AT": number,
    "DELETED_AT": number,
}
_NEEDED = {
    "REPLICAS": ("RSE_ID", "SCOPE", "NAME", "STATE", "BYTES", "CREATED_AT", "ACCESSED_AT"),
    "CONTENTS": ("SCOPE", "NAME", "CHILD_SCOPE", "CHILD_NAME", "DID_TYPE", "CHILD_TYPE", "BYTES"),
    "RSES": ("ID", "RSE", "RSE_TYPE", "DELETED_AT"),
    "DIDS": ("SCOPE", "NAME", "DID_TYPE", "DELETED_AT", "ACCESSED_AT"),
}


def rows(folder: Path, table: str, damaged: Counter[str]) -> Iterator[dict[str, Any]]:
    """The rows of a table with the needed fields, by name in upper case. Damaged rows are counted."""
    for file in sorted((folder / table.lower()).iterdir()):
        if file.name.startswith((".", "_")) or not file.stat().st_size:
            continue
        with file.open("rb") as stream:
            for row in fastavro.reader(stream, handle_unicode_errors="surrogateescape"):
                upper = {name.upper(): value for name, value in row.items()}
                try:
                    yield {name: _KINDS.get(name, text)(upper[name]) for name in _NEEDED[table]}
                except Damaged:
                    damaged[table] += 1


def site_and_kind(
    rse: str, rse_type: str | None, sites: Mapping[str, str]
) -> tuple[str, str] | None:
    """Rule 23; None for an RSE for tests."""
    rest, tape_by_name = rse, False
    if rse not in sites:
        for ending in ("_test", "_temp", "_user", "_mock"):
            if rse.lower().endswith(ending):
                if ending != "_user":
                    return None
                rest = rse[: -len(ending)]
                break
        for ending in ("_Disk", "_Tape", "_MSS", "_Ceph"):
            if rest.endswith(ending):
                rest, tape_by_name = rest[: -len(ending)], ending in ("_Tape", "_MSS")
                break
    is_tape = code(rse_type) == "TAPE" if rse_type is not None else tape_by_name
    return sites.get(rse, rest), "tape" if is_tape else "disk"


def is_cms(scope: str | None) -> bool:
    """Rule 22: CMS's scope, case and blanks around it aside."""
    return (scope or "").strip().lower() == "cms"


def code(text: str | None) -> str:
    """Rule 22: the letter of a state or type, also of its name in Rucio's enumerations."""
    names = {
        "AVAILABLE": "A",
        "FILE": "F",
        "DATASET": "D",
        "CONTAINER": "C",
    }
    word = (text or "").strip().upper().split(".")[-1]
    return names.get(word, word)


def time_ms(value: int | None) -> int | None:
    """Rule 70: a time from March 1973 to 2099, else null."""
    return value if value is not None and 10**11 <= value < 4_102_444_800_000 else None


def largest(one: int | None, other: int | None) -> int | None:
    return max((value for value in (one, other) if value is not None), default=None)


@dataclass
class Replica:
    """A file at an RSE."""

    bytes: int | None = None
    created_ms: int | None = None
    accessed_ms: int | None = None


@dataclass
class BlockReplica:
    """A block at an RSE (rule 26)."""

    node_files: int = 0
    node_bytes: int = 0
    created_ms: int | None = None
    accessed_ms: int | None = None


@dataclass
class Rucio:
    """What a dump says."""

    #: RSE → (site, kind)
    places: dict[str, tuple[str, str]] = field(default_factory=dict)
    #: (RSE, file) → replica
    replicas: dict[tuple[str, str], Replica] = field(default_factory=dict)
    #: file → its block, and the size in CONTENTS or of its largest replica
    blocks: dict[str, str] = field(default_factory=dict)
    sizes: dict[str, int | None] = field(default_factory=dict)
    #: (RSE, block) → replica
    block_replicas: dict[tuple[str, str], BlockReplica] = field(default_factory=dict)
    block_files: Counter[str] = field(default_factory=Counter)
    block_bytes: Counter[str] = field(default_factory=Counter)
    damaged: Counter[str] = field(default_factory=Counter)
    ignored: Counter[str] = field(default_factory=Counter)
    accessed_before_ms: int | None = None
    #: dataset → last access of it, its blocks and files in DIDS
    accessed: dict[str, int] = field(default_factory=dict)
    unattached: int = 0

    def believed(self, accessed_ms: int | None) -> int | None:
        """Return a last access; None for one in the future."""
        limit = self.accessed_before_ms
        return (
            None
            if accessed_ms is None or (limit is not None and accessed_ms >= limit)
            else accessed_ms
        )

    def on_disk(self) -> set[tuple[str, str]]:
        """(block, site) with a file on disk."""
        return {
            (block, self.places[rse][0])
            for rse, block in self.block_replicas
            if self.places[rse][1] == "disk"
        }


def table_folder(root: Path, day: date, tables: tuple[str, ...] = _TABLES) -> Path:
    """Rule 17: the first complete dump after the day, else its own, else the newest before."""
    dumps = {}
    for folder in (root / "project/awg/cms/rucio").iterdir():
        if re.fullmatch(r"\d{4}-\d{2}-\d{2}", folder.name) and all(
            _is_there(folder / name.lower()) for name in tables
        ):
            dumps[date.fromisoformat(folder.name)] = folder
    after = sorted(one for one in dumps if one > day)
    before = sorted(one for one in dumps if one <= day)
    return dumps[after[0] if after else before[-1]]


def _is_there(folder: Path) -> bool:
    return folder.is_dir() and any(
        file.stat().st_size for file in folder.iterdir() if file.name[0] not in "._"
    )


def read(
    folder: Path, sites: Mapping[str, str] | None = None, accessed_before_ms: int | None = None
) -> Rucio:
    """All rules over a dump's rows. ``accessed_before_ms``: a later last access is none (rule 35)."""
    found = Rucio(accessed_before_ms=accessed_before_ms)
    rses: dict[str, str] = {}
    test = set()
    for row in rows(folder, "RSES", found.damaged):
        if row["DELETED_AT"] is None and row["ID"] is not None and row["RSE"] is not None:
            place = site_and_kind(row["RSE"], row["RSE_TYPE"], sites or {})
            if place is None:
                test.add(row["ID"])
            else:
                rses[row["ID"]] = row["RSE"]
                found.places[row["RSE"]] = place
    for row in rows(folder, "REPLICAS", found.damaged):
        if not is_cms(row["SCOPE"]):
            found.ignored["other_scope"] += 1
        elif row["NAME"] is None:
            found.ignored["no_name"] += 1
        elif code(row["STATE"]) != "A":
            found.ignored["not_available"] += 1
        elif row["RSE_ID"] in test:
            found.ignored["test_rse"] += 1
        elif row["RSE_ID"] not in rses:
            found.ignored["unknown_rse"] += 1
        else:
            one = found.replicas.setdefault((rses[row["RSE_ID"]], row["NAME"]), Replica())
            for column in ("CREATED_AT", "ACCESSED_AT"):
                value = row[column]
                is_future = column == "ACCESSED_AT" and found.believed(value) is None
                if value is not None and time_ms(value) is None and not is_future:
                    found.ignored[f"{column}_out_of_range"] += 1
            one.bytes = largest(one.bytes, row["BYTES"])
            one.created_ms = largest(one.created_ms, time_ms(row["CREATED_AT"]))
            one.accessed_ms = largest(one.accessed_ms, time_ms(found.believed(row["ACCESSED_AT"])))
    _contents(found, folder)
    if (folder / "dids").is_dir():
        _dids(found, folder)
    return found


def _contents(found: Rucio, folder: Path) -> None:
    sizes: dict[tuple[str, str], int | None] = {}
    parents: dict[str, set[str]] = defaultdict(set)
    attached = set()
    for row in rows(folder, "CONTENTS", found.damaged):
        if (
            not is_cms(row["SCOPE"])
            or not is_cms(row["CHILD_SCOPE"])
            or row["NAME"] is None
            or row["CHILD_NAME"] is None
        ):
            continue
        kinds = (code(row["DID_TYPE"]), code(row["CHILD_TYPE"]))
        if kinds == ("D", "F") and _BLOCK.fullmatch(row["NAME"]):
            parents[row["CHILD_NAME"]].add(row["NAME"])
            key = (row["CHILD_NAME"], row["NAME"])
            sizes[key] = largest(sizes.get(key), row["BYTES"])
        elif kinds == ("C", "D"):
            attached.add((row["NAME"], row["CHILD_NAME"]))
    of_files: dict[str, int | None] = {}
    for (_, name), replica in found.replicas.items():
        of_files[name] = largest(of_files.get(name), replica.bytes)
    for name, names in parents.items():
        block = min(names, key=str.encode)
        size = sizes[name, block]
        found.blocks[name] = block
        found.sizes[name] = of_files.get(name) if size is None else size
        found.block_files[block] += 1
        found.block_bytes[block] += found.sizes[name] or 0
    found.unattached = sum(
        (block.split("#")[0], block) not in attached for block in found.block_files
    )
    for (rse, name), replica in found.replicas.items():
        if name in found.blocks:
            one = found.block_replicas.setdefault((rse, found.blocks[name]), BlockReplica())
            one.node_files += 1
            one.node_bytes += replica.bytes or 0
            one.created_ms = largest(one.created_ms, replica.created_ms)
            one.accessed_ms = largest(one.accessed_ms, replica.accessed_ms)


def _dids(found: Rucio, folder: Path) -> None:
    for row in rows(folder, "DIDS", found.damaged):
        if not is_cms(row["SCOPE"]) or row["NAME"] is None or row["DELETED_AT"] is not None:
            continue
        accessed_ms = time_ms(found.believed(row["ACCESSED_AT"]))
        kind, name = code(row["DID_TYPE"]), row["NAME"]
        block = (
            found.blocks.get(name)
            if kind == "F"
            else name
            if kind == "D" and _BLOCK.fullmatch(name)
            else None
        )
        dataset = name if kind == "C" else None if block is None else block.split("#")[0]
        if dataset is not None and accessed_ms is not None:
            found.accessed[dataset] = max(accessed_ms, found.accessed.get(dataset, 0))


def rucio_daily(
    found: Rucio, day: date
) -> dict[tuple[str, str, str, str | None], tuple[Any, ...]]:
    """Rule 34: (rse, site, kind, dataset) → files, bytes, new files, new bytes,
    accessed files, last access.
    """
    start = int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp() * 1000)
    sums: dict[tuple[str, str, str, str | None], list[Any]] = {}
    for (rse, name), replica in found.replicas.items():
        block = found.blocks.get(name)
        one = sums.setdefault(
            (rse, *found.places[rse], block and block.split("#")[0]), [0, 0, 0, 0, 0, None]
        )
        is_new = (
            replica.created_ms is not None and start <= replica.created_ms < start + 86_400_000
        )
        one[0] += 1
        one[1] += replica.bytes or 0
        one[2] += is_new
        one[3] += (replica.bytes or 0) if is_new else 0
        one[4] += replica.accessed_ms is not None
        one[5] = largest(one[5], replica.accessed_ms)
    return {key: tuple(values) for key, values in sums.items()}


def presence(
    found: Rucio, dbs_blocks: set[str], without_valid: set[str]
) -> dict[tuple[str, str, str], tuple[Any, ...]]:
    """Rules 20, 26 and 71: (dataset, site, kind) → bytes, files, blocks there, blocks,
    complete?, newest replica. ``without_valid``: blocks of DBS without a valid file.
    """
    named: dict[str, set[str]] = defaultdict(set)
    for block in (*dbs_blocks, *(block for _, block in found.block_replicas)):
        if block not in without_valid:
            named[block.split("#")[0]].add(block)
    full: dict[tuple[str, str], set[str]] = defaultdict(set)
    there: dict[tuple[str, str, str], list[Any]] = {}
    blocks: dict[tuple[str, str, str], set[str]] = defaultdict(set)
    for (rse, block), replica in found.block_replicas.items():
        dataset, (site, kind) = block.split("#")[0], found.places[rse]
        one = there.setdefault((dataset, site, kind), [0, 0, None])
        one[0] += replica.node_bytes
        one[1] += replica.node_files
        one[2] = largest(one[2], replica.created_ms)
        blocks[dataset, site, kind].add(block)
        if (
            block not in without_valid
            and replica.node_files >= found.block_files[block]
            and replica.node_bytes >= found.block_bytes[block]
        ):
            full[dataset, site].add(block)
    return {
        key: (
            size,
            files,
            len(blocks[key]),
            len(named[key[0]]),
            bool(named[key[0]]) and full[key[:2]] == named[key[0]],
            newest,
        )
        for key, (size, files, newest) in there.items()
    }


def last_access(found: Rucio) -> dict[str, int]:
    """Rule 35: the last access of each dataset with a block replica; ``found`` was read
    with the limit.
    """
    times = {}
    for (_, block), replica in found.block_replicas.items():
        dataset = block.split("#")[0]
        time = largest(
            largest(times.get(dataset), replica.accessed_ms), found.accessed.get(dataset)
        )
        if time is not None:
            times[dataset] = time
    return times


def differences(
    found: Rucio, dbs: Mapping[str, tuple[str, str | None, int | None, int | None]]
) -> dict[tuple[str, str], tuple[int, int | None, int | None]]:
    """Rule 27. ``dbs``: file → (dataset, block, is_file_valid, size)."""
    sums: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for name in {*dbs, *found.blocks}:
        dataset, block, valid, size = dbs.get(name, (None, None, None, None))
        other = found.blocks.get(name)
        kinds = []
        if other is None:
            kinds = ["only_dbs_invalid" if valid == 0 else "only_dbs"]
        elif dataset is None:
            kinds = ["only_rucio"]
        else:
            kinds += ["block"] if block is not None and block != other else []
            theirs = found.sizes[name]
            kinds += ["size"] if size is not None and theirs is not None and size != theirs else []
        for kind in kinds:
            one = sums[kind, dataset or str(other).split("#")[0]]
            one[0] += 1
            one[1] += size or 0
            one[2] += found.sizes.get(name) or 0
            one[3] += size is not None
    return {
        (kind, dataset): (
            count,
            ours if sized else None,
            None if kind.startswith("only_dbs") else theirs,
        )
        for (kind, dataset), (count, ours, theirs, sized) in sums.items()
    }
