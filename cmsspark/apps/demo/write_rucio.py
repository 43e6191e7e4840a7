"""The dump of Rucio for the CMS of the demo: the same files, blocks and replicas as in
the snapshot of PhEDEx, and what Rucio has beside them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from functools import lru_cache
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any, Final

import msgspec
from fastavro.write import Writer

from cmsspark.apps.demo.world import World
from cmsspark.base.dates import DAY_MS, start_ms

# Avro parts of flat rows whose fields may all be null: blocks as those of fastavro, at
# a third of the cost.

#: Bytes of a block before it is compressed, as fastavro's default.
_BLOCK_BYTES: Final = 16_000
Value = str | bytes | int | None


class _Block(msgspec.Struct, frozen=True):
    """What fastavro's writer takes as a block."""

    num_records: int
    bytes_: BytesIO


class _Encoded(dict[Value, bytes]):
    """Values as a union with null encodes them; 0 is null, 1 the value."""

    def __missing__(self, value: Value) -> bytes:
        encoded = self[value] = _encode(value)
        return encoded


def _encode(value: Value) -> bytes:
    if value is None:
        return b"\x00"
    if isinstance(value, int):
        return b"\x02" + _long(value)
    content = value.encode() if isinstance(value, str) else value
    return b"\x02" + _long(len(content)) + content


def _long(value: int) -> bytes:
    remaining = value << 1 if value >= 0 else (-value << 1) - 1
    out = bytearray()
    while remaining > 0x7F:
        out.append(remaining & 0x7F | 0x80)
        remaining >>= 7
    out.append(remaining)
    return bytes(out)


def write_flat_avro(
    folder: Path,
    name: str,
    fields: Mapping[str, str],
    rows: Sequence[Mapping[str, Value]],
    *,
    number: int,
    codec: str,
) -> Path:
    """Return one part. ``fields``: the type of each, ``string``, ``bytes`` or ``long``;
    a row may leave fields out.
    """
    schema = {
        "type": "record",
        "name": name,
        "fields": [
            {"name": field, "type": ["null", kind], "default": None}
            for field, kind in fields.items()
        ],
    }
    marker = hashlib.md5(f"{folder.name}/{number}".encode(), usedforsecurity=False).digest()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"part-m-{number:05d}.avro"
    encoded, names = _Encoded(), tuple(fields)
    with path.open("wb") as stream:
        writer: Any = Writer(stream, schema, codec=codec, sync_marker=marker)
        block, size = [], 0
        for row in rows:
            packed = b"".join([encoded[row.get(field)] for field in names])
            block.append(packed)
            size += len(packed)
            if size >= _BLOCK_BYTES:
                writer.write_block(_Block(len(block), BytesIO(b"".join(block))))
                block, size = [], 0
        if block:
            writer.write_block(_Block(len(block), BytesIO(b"".join(block))))
        writer.flush()
    return path


#: Rows of a part file.
PER_PART: Final = 100_000
#: The schema of each table: name and type of its fields, each a union with null.
_FIELDS: Final = {
    "REPLICAS": (
        "RSE_ID bytes, SCOPE string, NAME string, BYTES string, MD5 string, ADLER32 string, PATH string, STATE string, "
        "LOCK_CNT string, ACCESSED_AT long, TOMBSTONE long, CREATED_AT long, UPDATED_AT long"
    ),
    "CONTENTS": (
        "SCOPE string, NAME string, CHILD_SCOPE string, CHILD_NAME string, DID_TYPE string, CHILD_TYPE string, "
        "BYTES string, CREATED_AT long"
    ),
    "DIDS": (
        "SCOPE string, NAME string, DID_TYPE string, HIDDEN string, BYTES string, LENGTH string, DELETED_AT long, "
        "CREATED_AT long, ACCESSED_AT long"
    ),
    "RSES": "ID bytes, RSE string, RSE_TYPE string, DELETED_AT long, CREATED_AT long",
    "DATASET_LOCKS": (
        "RULE_ID bytes, RSE_ID bytes, SCOPE string, NAME string, ACCOUNT string, STATE string, LENGTH string, "
        "BYTES string, CREATED_AT long, UPDATED_AT long"
    ),
    "RULES": (
        "ID bytes, SCOPE string, NAME string, DID_TYPE string, ACCOUNT string, STATE string, ERROR string, "
        "RSE_EXPRESSION string, COPIES string, EXPIRES_AT long, LOCKS_OK_CNT string, LOCKS_REPLICATING_CNT string, "
        "LOCKS_STUCK_CNT string, ACTIVITY string, STUCK_AT long, COMMENTS string, CREATED_AT long, UPDATED_AT long"
    ),
}
TABLES: Final = tuple(_FIELDS)
#: One block in so many is in no dataset, and one file in so many in no block; what
#: traces saw of files; unknown sizes.
UNATTACHED_EVERY, NO_BLOCK_EVERY, TRACED_EVERY, NO_SIZE_EVERY = 97, 499, 3, 211
#: One file in so many is not in Rucio, has another size there, or is in another block.
LOST_EVERY, OTHER_SIZE_EVERY, OTHER_BLOCK_EVERY = 701, 503, 907
#: One replica of a block in so many has no lock, and one two rules of its account.
UNLOCKED_EVERY, TWICE_EVERY = 5, 7
#: The accounts whose rules hold replicas, in turns.
ACCOUNTS: Final = ("transfer_ops", "wmcore_output", "sync_t1_us_fnal", "ann", "bob")
#: The activities of rules, in turns, and why some are stuck.
ACTIVITIES: Final = ("Production Input", "User Subscriptions", "Data rebalance")
STUCK_ERRORS: Final = ("No source: none is available", "Quota exceeded: RSE is full", None)
#: RSEs beside those of the world's nodes: for tests, and one that is deleted.
TEST_RSE, DELETED_RSE = "T2_CH_CERN_Test", "T2_XX_Gone"
#: So long before the day are accesses and replicas of datasets that nobody reads any more.
_OLD_MS: Final = 500 * DAY_MS

Row = dict[str, Any]


def rucio_folder(root: Path, day: date) -> Path:
    """Return where the Rucio dump of ``day`` lies under ``root``."""
    return root / "project/awg/cms/rucio" / day.isoformat()


def write_rucio_table(world: World, root: Path, day: date, *, codec: str, name: str) -> Path:
    """Return one of ``TABLES`` of a dump of ``day``, a part in memory at a time;
    returns the dump's folder.
    """
    folder = rucio_folder(root, day)
    rows = _ROWS[name](world, start_ms(day) - DAY_MS)
    write_parts(folder / name.lower(), name, _FIELDS[name], rows, codec)
    return folder


def write_parts(folder: Path, name: str, fields: str, rows: Iterator[Row], codec: str) -> None:
    """Write the parts of a table. ``fields``: the name and type of each, as
    :func:`write_flat_avro` takes them.
    """
    kinds = dict(field.split() for field in fields.split(", "))
    number = 0
    while True:
        part = list(islice(rows, PER_PART))
        if part or not number:
            write_flat_avro(folder, name, kinds, part, number=number, codec=codec)
        if len(part) < PER_PART:
            return
        number += 1


def find_rse(node: str) -> str | None:
    """Return the RSE of a node of PhEDEx; None for a buffer, which Rucio does not have."""
    if node.endswith(("_Buffer", "_Export")):
        return None
    return f"{node.removesuffix('_MSS')}_Tape" if node.endswith("_MSS") else node


@lru_cache(1_000)
def rucio_id(name: str) -> bytes:
    """Return the id of an element or a rule."""
    return hashlib.md5(name.encode(), usedforsecurity=False).digest()


def nodes(world: World) -> list[str]:
    """Return the RSEs of the world's nodes."""
    return sorted({rse for replica in world.replicas if (rse := find_rse(replica.node))})


def _rses(world: World, now: int) -> Iterator[Row]:
    for name in [*nodes(world), TEST_RSE, DELETED_RSE]:
        # A few have no type: their names say it.
        kind = None if name.startswith("T1_UK") else "TAPE" if name.endswith("_Tape") else "DISK"
        deleted = now - 10 * DAY_MS if name == DELETED_RSE else None
        yield {
            "ID": rucio_id(name),
            "RSE": name,
            "RSE_TYPE": kind,
            "DELETED_AT": deleted,
            "CREATED_AT": now - 900 * DAY_MS,
        }


def _file_starts(world: World) -> list[int]:
    starts, at = [], 0
    for files in world.block_files.tolist():
        starts.append(at)
        at += files
    return starts


def replica_rows(world: World, now: int) -> Iterator[Row]:
    """Yield REPLICAS."""
    starts, sizes = _file_starts(world), world.file_bytes.tolist()
    for i, replica in enumerate(world.replicas):
        rse = find_rse(replica.node)
        if rse is None:
            continue
        first, count = starts[replica.block], int(world.block_files[replica.block])
        is_used = _is_used(world, int(world.block_dataset[replica.block]))
        created = now - (i * 7 % 700) * DAY_MS // 2 - (0 if is_used else _OLD_MS)
        for position in range(count):
            file = first + position
            # Those that are not there yet are being copied, or lost.
            state = "A" if position < replica.files else "CUDT"[file % 4]
            yield _replica(
                rse,
                world.lfns[file],
                sizes[file],
                state,
                created + 1_000 * (file % 3_600),
                _traced(file, i, now, is_used=is_used),
                lock_count(i),
            )
        if i % 50 == 0:
            yield _replica(TEST_RSE, world.lfns[first], sizes[first], "A", created, None)
            yield _replica(DELETED_RSE, world.lfns[first], sizes[first], "A", created, None)
            yield {
                **_replica(rse, f"/store/user/rucio/someone/{i}.root", 5_000, "A", created, None),
                "SCOPE": "user.someone",
            }
    first_node = nodes(world)[0]
    for file in range(0, len(world.lfns), NO_BLOCK_EVERY):
        yield _replica(
            first_node,
            f"/store/mc/Loose/None/GEN-SIM/v1/{file:07d}.root",
            1_000_000 + file,
            "A",
            now - file * 1_000,
            None,
        )


def _is_used(world: World, dataset: int) -> bool:
    """Return whether anyone reads a dataset these days."""
    return bool(world.popularity[dataset] > 0)


def _traced(file: int, position: int, now: int, *, is_used: bool) -> int | None:
    if not is_used:
        return None if file % 40 else now - _OLD_MS - file % 300 * DAY_MS
    return (
        None if (file + position) % TRACED_EVERY else now - (file * 131 + position) % 800 * DAY_MS
    )


def lock_count(replica: int) -> int:
    """Return how many locks the files of a replica of a block have, by its number."""
    return 0 if replica % UNLOCKED_EVERY == 0 else 2 if replica % TWICE_EVERY == 0 else 1


def _replica(
    rse: str,
    name: str,
    size: int,
    state: str,
    created: int,
    accessed: int | None,
    locks: int = 0,
) -> Row:
    return {
        "RSE_ID": rucio_id(rse),
        "SCOPE": "cms",
        "NAME": name,
        "BYTES": str(size),
        "ADLER32": f"{size % 2**32:08x}",
        "STATE": state,
        "LOCK_CNT": str(locks),
        # Set when the last lock goes; 0 where a rule was purged.
        "TOMBSTONE": None if locks else 0 if size % 17 == 0 else accessed or created,
        "CREATED_AT": created,
        "UPDATED_AT": created,
        "ACCESSED_AT": accessed,
    }


def _contents(world: World, now: int) -> Iterator[Row]:
    sizes = world.file_bytes.tolist()
    starts = _file_starts(world)
    for block, name in enumerate(world.block_names):
        first = starts[block]
        for file in range(first, first + int(world.block_files[block])):
            if file % LOST_EVERY == LOST_EVERY - 1:
                continue
            size = (
                None
                if file % NO_SIZE_EVERY == 0
                else str(sizes[file] + (file % OTHER_SIZE_EVERY == 1))
            )
            parent = (
                world.block_names[0] if file % OTHER_BLOCK_EVERY == OTHER_BLOCK_EVERY - 1 else name
            )
            yield _content(parent, world.lfns[file], "DF", size, now)
        if block % 60 == 0:
            yield _content(
                name, f"/store/mc/Forgotten/None/GEN-SIM/v1/{block:07d}.root", "DF", "2000", now
            )
        dataset = world.names[int(world.block_dataset[block])]
        if block % UNATTACHED_EVERY:
            yield _content(dataset, name, "CD", None, now)
        if block % 40 == 0:
            # Pile-up that is kept partly: the block is in another container, too.
            yield _content(f"{dataset}-partial", name, "CD", None, now)
    yield {
        **_content("/user/x/USER#1", "/store/user/rucio/someone/0.root", "DF", "5", now),
        "SCOPE": "user.someone",
    }


def _content(parent: str, child: str, kinds: str, size: str | None, now: int) -> Row:
    return {
        "SCOPE": "cms",
        "NAME": parent,
        "CHILD_SCOPE": "cms",
        "CHILD_NAME": child,
        "DID_TYPE": kinds[0],
        "CHILD_TYPE": kinds[1],
        "BYTES": size,
        "CREATED_AT": now - 500 * DAY_MS,
    }


def _dids(world: World, now: int) -> Iterator[Row]:
    created = {"SCOPE": "cms", "HIDDEN": "0", "CREATED_AT": now - 500 * DAY_MS}
    of_files = world.file_dataset.tolist()
    for file, (name, size) in enumerate(zip(world.lfns, world.file_bytes.tolist(), strict=True)):
        is_traced = file % 5 == 0 and _is_used(world, of_files[file])
        accessed = now - file * 37 % 900 * DAY_MS if is_traced else None
        yield {
            **created,
            "NAME": name,
            "DID_TYPE": "F",
            "BYTES": str(size),
            "LENGTH": "1",
            "ACCESSED_AT": accessed,
        }
    for block, name in enumerate(world.block_names):
        is_traced = block % 7 == 0 and _is_used(world, int(world.block_dataset[block]))
        accessed = now - block * 11 % 1_000 * DAY_MS if is_traced else None
        size = str(world.block_bytes[block])
        yield {**created, "NAME": name, "DID_TYPE": "D", "BYTES": size, "ACCESSED_AT": accessed}
    for dataset, name in enumerate(world.names):
        accessed = (
            None
            if dataset % 3 or not _is_used(world, dataset)
            else now - dataset * 13 % 1_200 * DAY_MS
        )
        deleted = now - DAY_MS if dataset % 61 == 60 else None
        yield {
            **created,
            "NAME": name,
            "DID_TYPE": "C",
            "ACCESSED_AT": accessed,
            "DELETED_AT": deleted,
        }


def _locks(world: World, now: int) -> Iterator[Row]:
    for i, replica in enumerate(world.replicas):
        rse = find_rse(replica.node)
        for number in range(lock_count(i) if rse else 0):
            is_there = replica.files == int(world.block_files[replica.block])
            yield {
                "RULE_ID": rucio_id(f"rule {i} {number}"),
                "RSE_ID": rucio_id(rse or ""),
                "SCOPE": "cms",
                "STATE": "O" if is_there else "S" if i % 3 else "R",
                "NAME": world.block_names[replica.block],
                "ACCOUNT": ACCOUNTS[i % len(ACCOUNTS)],
                "LENGTH": str(world.block_files[replica.block]),
                "BYTES": str(world.block_bytes[replica.block]),
                "CREATED_AT": now - 300 * DAY_MS,
                "UPDATED_AT": now - 200 * DAY_MS,
            }


def _rules(world: World, now: int) -> Iterator[Row]:
    for i, lock in enumerate(_locks(world, now)):
        is_stuck = lock["STATE"] == "S"
        counts = {"O": "OK", "R": "REPLICATING", "S": "STUCK"}
        yield {
            "ID": lock["RULE_ID"],
            "SCOPE": lock["SCOPE"],
            "NAME": lock["NAME"],
            "DID_TYPE": "D",
            "ACCOUNT": lock["ACCOUNT"],
            # A rule that is stuck for long is suspended.
            "STATE": "U" if is_stuck and i % 2 == 0 else lock["STATE"],
            "ERROR": STUCK_ERRORS[i % len(STUCK_ERRORS)] if is_stuck else None,
            "RSE_EXPRESSION": "tier=2",
            "COPIES": "1",
            # A few end, some soon.
            "EXPIRES_AT": now + i % 40 * DAY_MS if i % 4 == 0 else None,
            **{
                f"LOCKS_{name}_CNT": lock["LENGTH"] if state == lock["STATE"] else "0"
                for state, name in counts.items()
            },
            "ACTIVITY": ACTIVITIES[i % len(ACTIVITIES)],
            "STUCK_AT": lock["UPDATED_AT"] if is_stuck else None,
            "CREATED_AT": lock["CREATED_AT"] if i % 50 else now + i * 1_000,
            "UPDATED_AT": lock["UPDATED_AT"],
        }


_ROWS: Final[dict[str, Any]] = {
    "REPLICAS": replica_rows,
    "CONTENTS": _contents,
    "DIDS": _dids,
    "RSES": _rses,
    "DATASET_LOCKS": _locks,
    "RULES": _rules,
}
