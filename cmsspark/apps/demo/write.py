"""Part files, byte for byte the same for the same content: plain or gzip (no time
inside), and Avro.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from isal import isal_zlib

Compression = Literal["none", "all", "mixed"]


def gzip_bytes(content: bytes) -> bytes:
    """``content`` as one gzip member without name and time."""
    packer = isal_zlib.compressobj(1, wbits=31)
    return bytes(packer.compress(content) + packer.flush())


def write_part(
    folder: Path, number: int, content: bytes, compression: Compression, suffix: str = ""
) -> Path:
    """Return one part; of ``mixed`` ones each second is packed. Names are of the forms
    that production has.
    """
    packed = compression == "all" or (compression == "mixed" and number % 2 == 1)
    unique = hashlib.sha256(f"{folder.name}/{number}".encode()).hexdigest()
    name = f"part-{number:05d}"
    if packed:
        name += f"-{unique[:8]}-{unique[8:12]}-{unique[12:16]}-{unique[16:20]}-{unique[20:32]}{suffix}.gz"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_bytes(gzip_bytes(content) if packed else content)
    return path


def write_lines(
    folder: Path,
    lines: Sequence[str],
    *,
    per_part: int,
    compression: Compression,
    suffix: str = ".json",
    first_part: int = 0,
) -> int:
    """``lines`` as parts of ``per_part`` lines each, and a ``_SUCCESS`` that is no
    data. Returns the bytes on disk.
    """
    size = 0
    for number, first in enumerate(range(0, max(len(lines), 1), per_part), first_part):
        chunk = lines[first : first + per_part]
        content = ("\n".join(chunk) + "\n").encode() if chunk else b""
        size += write_part(folder, number, content, compression, suffix).stat().st_size
    (folder / "_SUCCESS").write_bytes(b"")
    return size


def write_avro(
    folder: Path,
    schema: Mapping[str, Any],
    records: Sequence[Mapping[str, Any]],
    *,
    per_part: int,
    codec: str,
    first_part: int = 0,
) -> int:
    """``records`` as Avro parts. The sync marker is a digest of the place, not random.
    Returns the bytes on disk.
    """
    import fastavro

    folder.mkdir(parents=True, exist_ok=True)
    parsed = fastavro.parse_schema(dict(schema))
    size = 0
    for number, first in enumerate(range(0, max(len(records), 1), per_part), first_part):
        path = folder / f"part-m-{number:05d}.avro"
        marker = hashlib.md5(f"{folder.name}/{number}".encode(), usedforsecurity=False).digest()
        with path.open("wb") as stream:
            fastavro.writer(
                stream, parsed, records[first : first + per_part], codec=codec, sync_marker=marker
            )
        size += path.stat().st_size
    return size


def csv_line(values: Iterable[object]) -> str:
    """Return one line as sqoop writes it: ``null``, backslash escapes, quotes around a
    text that needs them.
    """
    return ",".join([_csv_value(value) for value in values])


def _csv_value(value: object) -> str:
    if value is None:
        return "null"
    if not isinstance(value, str):
        return str(value)
    if "," in value or '"' in value or "\\" in value or "\n" in value:
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    return value
