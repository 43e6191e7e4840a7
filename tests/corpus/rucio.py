"""Rucio dumps with everything that rule 22 allows and some that it does not: values of
other types, repeated rows, ties.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import fastavro

#: The schema of a dump as sqoop writes it, and as hostile rows need it: any value may
#: have any plain type.
_ANY = ["null", "string", "long", "double", "boolean", "bytes"]
_PLAIN = {
    "RSE_ID": "bytes",
    "ID": "bytes",
    "CREATED_AT": "long",
    "ACCESSED_AT": "long",
    "DELETED_AT": "long",
}
FIELDS = {
    "REPLICAS": (
        "RSE_ID",
        "SCOPE",
        "NAME",
        "BYTES",
        "MD5",
        "ADLER32",
        "PATH",
        "STATE",
        "LOCK_CNT",
        "ACCESSED_AT",
        "TOMBSTONE",
        "CREATED_AT",
    ),
    "CONTENTS": ("SCOPE", "NAME", "CHILD_SCOPE", "CHILD_NAME", "DID_TYPE", "CHILD_TYPE", "BYTES"),
    "RSES": ("ID", "RSE", "RSE_TYPE", "DELETED_AT"),
    "DIDS": ("SCOPE", "NAME", "DID_TYPE", "HIDDEN", "DELETED_AT", "BYTES", "ACCESSED_AT"),
}
DAY_MS = 86_400_000


def schema(
    table: str, types: Mapping[str, Any] | None = None, *, is_hostile: bool = False
) -> dict[str, Any]:
    """The Avro schema of a table; ``types`` overrides those of fields."""
    kinds = {
        name: _ANY if is_hostile else ["null", _PLAIN.get(name, "string")]
        for name in FIELDS[table]
    }
    kinds |= types or {}
    fields = [{"name": name, "type": kind} for name, kind in kinds.items() if kind is not None]
    return {"type": "record", "name": table, "fields": fields}


def write_table(
    folder: Path,
    table: str,
    rows: Sequence[Mapping[str, Any]],
    *,
    codec: str = "snappy",
    parts: int = 2,
    is_hostile: bool = False,
    sync_interval: int = 16_000,
) -> None:
    """A table in some parts, with small blocks."""
    target = folder / table.lower()
    target.mkdir(parents=True, exist_ok=True)
    parsed = fastavro.parse_schema(schema(table, is_hostile=is_hostile))
    for part in range(parts):
        some = [dict.fromkeys(FIELDS[table]) | dict(row) for row in rows[part::parts]]
        marker = hashlib.md5(f"{table} {part}".encode(), usedforsecurity=False).digest()
        with (target / f"part-m-{part:05d}.avro").open("wb") as stream:
            fastavro.writer(
                stream, parsed, some, codec=codec, sync_interval=sync_interval, sync_marker=marker
            )
    (target / "_SUCCESS").write_bytes(b"")


def write_table_by_others(
    folder: Path,
    table: str,
    rows: Sequence[Mapping[str, Any]],
    rng: random.Random,
    *,
    parts: int = 4,
) -> None:
    """A table whose parts come from different writers: fields and their types in any
    order, names in any case, fields that nobody needs, annotated types, any codec,
    blocks of any size.
    """
    target = folder / table.lower()
    target.mkdir(parents=True, exist_ok=True)
    for part in range(parts):
        spelt = rng.choice([str, str.lower, str.title])
        names = [*FIELDS[table], "UPDATED_BY"]
        rng.shuffle(names)
        fields = []
        for name in names:
            kinds: list[Any] = rng.sample(_ANY, len(_ANY))
            annotated = [
                {"type": kind, "avro.java.string": "String"} if kind == "string" else kind
                for kind in kinds
            ]
            fields.append({"name": spelt(name), "type": rng.choice([kinds, annotated])})
        some = [{spelt(name): row.get(name) for name in names} for row in rows[part::parts]]
        parsed = fastavro.parse_schema(
            {"type": "record", "name": f"{spelt(table)}{part}", "fields": fields}
        )
        codec, size = (
            rng.choice(["snappy", "deflate", "null", "bzip2", "xz"]),
            rng.choice([1, 300, 16_000]),
        )
        with (target / f"part-m-{part:05d}.avro").open("wb") as stream:
            fastavro.writer(stream, parsed, some, codec=codec, sync_interval=size)


def rse_id(name: str) -> bytes:
    return hashlib.md5(name.encode(), usedforsecurity=False).digest()


RSES = (
    *(
        ("T1_US_FNAL_Disk", "DISK"),
        ("T1_US_FNAL_Tape", "TAPE"),
        ("T1_DE_KIT_MSS", None),
        ("T2_UK_London_IC", "disk"),
    ),
    *(
        ("T2_US_Caltech_Ceph", None),
        ("T2_US_Caltech", "DISK"),
        ("T3_X_Tape_Test", "TAPE"),
        ("T2_Y_temp", "DISK"),
    ),
    *(
        ("T2_Z_MOCK", None),
        ("T2_Y_User", "DISK"),
        ("T1_DE_KIT_Disk_user", "Disk"),
        ("T0_CH_CERN_Tape", "tape"),
    ),
    *(("T0_CH_CERN_Disk", None), ("T2_É_Disk", "UNKNOWN")),
)


def hostile_rows(
    rng: random.Random, files: int, day_ms: int, *, ill_typed: float = 0.0
) -> dict[str, list[dict[str, Any]]]:
    """The rows of all tables of a dump of about ``files`` files; a share ``ill_typed``
    of values has another type.
    """
    datasets = [
        f"/P{number}/Run2016{'ABC'[number % 3]}-v{number}/{tier}"
        for number, tier in enumerate(("AOD", "RAW", "É"))
    ]
    blocks = [f"{name}#{x}" for name in datasets for x in ("a", "b", "#c/d", "é")]
    parents = [
        *blocks,
        *datasets,
        "/P1/x#y",
        "/a//C#x",
        "/a/b/C#",
        "/a/b/C/d#x",
        "x/a/b/C#x",
        "no block",
        "",
        None,
    ]
    names = [f"/store/data/{number % 7}/é{number}.root" for number in range(files)] + [None, ""]
    scopes = ["cms"] * 12 + ["user.me", "CMS", "cms   ", None]

    def odd(value: Any) -> Any:
        if rng.random() >= ill_typed:
            return value
        return rng.choice(
            [True, -1, 1.5, b"\xff", "12x", "\udcff", 2.0**63, float("nan"), "-3", "", "²", " 1"]
        )

    def size() -> Any:
        found = rng.choice([0, 1, 1_000, 2**40, 2**53 + 1])
        return rng.choice(
            [str(found), found, float(found) if found < 2**53 else found, f"{found:020d}", None]
        )

    def time() -> Any:
        return rng.choice(
            [
                None,
                day_ms - 1,
                day_ms,
                day_ms + DAY_MS - 1,
                day_ms + DAY_MS,
                0,
                day_ms // 1000,
                day_ms * 1000,
                day_ms - 300 * DAY_MS,
                day_ms + 2 * DAY_MS - 1,
                day_ms + 2 * DAY_MS,
                str(day_ms + 5),
                float(day_ms),
            ]
        )

    def identifier(raw: bytes) -> Any:
        text = raw.hex()
        return rng.choice(
            [
                raw,
                raw,
                text,
                text.upper(),
                f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}",
            ]
        )

    ids = [*(rse_id(name) for name, _ in RSES), rse_id("nobody"), rse_id("gone")]
    rses = [
        {"ID": identifier(rse_id(name)), "RSE": name, "RSE_TYPE": kind, "DELETED_AT": None}
        for name, kind in RSES
    ]
    rses += [
        {"ID": rse_id("gone"), "RSE": "T2_Gone", "RSE_TYPE": "DISK", "DELETED_AT": 0},
        {"ID": None, "RSE": "T2_NoId"},
        {"ID": rse_id("nobody"), "RSE": None},
        {
            "ID": rse_id("T2_UK_London_IC"),
            "RSE": "T2_Old",
            "RSE_TYPE": "DISK",
            "DELETED_AT": day_ms,
        },
    ]
    replicas = [
        {
            "RSE_ID": None if rng.random() < 0.02 else odd(identifier(rng.choice(ids))),
            "SCOPE": odd(rng.choice(scopes)),
            "NAME": odd(rng.choice(names)),
            "BYTES": odd(size()),
            "STATE": odd(
                rng.choice(
                    [*"AAAAAAaUCBDT", "AVAILABLE", "ReplicaState.AVAILABLE", "A ", "BAD", "", None]
                )
            ),
            "CREATED_AT": odd(time()),
            "ACCESSED_AT": odd(time()),
            "LOCK_CNT": "x",
            "MD5": rng.choice([None, "m"]),
        }
        for _ in range(4 * files)
    ]
    contents = [
        {
            "SCOPE": odd(rng.choice(scopes)),
            "NAME": odd(rng.choice(parents)),
            "CHILD_SCOPE": rng.choice(scopes),
            "CHILD_NAME": odd(rng.choice(names)),
            "DID_TYPE": odd(rng.choice([*"DDDDDDdCX", "DATASET", "D  ", None])),
            "CHILD_TYPE": rng.choice([*"FFFFFFfDC", "File", None]),
            "BYTES": odd(size()),
        }
        for _ in range(2 * files)
    ]
    contents += [
        {
            "SCOPE": "cms",
            "NAME": rng.choice(datasets),
            "CHILD_SCOPE": "cms",
            "CHILD_NAME": block,
            "DID_TYPE": "C",
            "CHILD_TYPE": "D",
        }
        for block in blocks
        for _ in range(2)
    ]
    dids = [
        {
            "SCOPE": odd(rng.choice(scopes)),
            "NAME": odd(name),
            "DID_TYPE": odd(kind),
            "ACCESSED_AT": odd(time()),
            "DELETED_AT": rng.choice([None, None, None, 5]),
        }
        for kind, of_kind in (
            ("F", names),
            ("D", parents),
            ("C", datasets),
            ("c", datasets),
            ("CONTAINER ", datasets),
            ("X", names[:5]),
        )
        for name in of_kind
    ]
    # A block that CONTENTS has no rows of, of a dataset that has replicas.
    dids.append(
        {
            "SCOPE": "cms",
            "NAME": f"{datasets[0]}#gone",
            "DID_TYPE": "D",
            "ACCESSED_AT": day_ms + DAY_MS + 7,
        }
    )
    return {"REPLICAS": replicas, "CONTENTS": contents, "RSES": rses, "DIDS": dids}


def write_dump(
    folder: Path,
    rows: Mapping[str, Sequence[Mapping[str, Any]]],
    *,
    codec: str = "snappy",
    is_hostile: bool = True,
) -> None:
    """All tables of a dump."""
    for table, of_table in rows.items():
        write_table(
            folder, table, of_table, codec=codec, is_hostile=is_hostile, parts=3, sync_interval=700
        )
