"""Rule 1 and the folders of a day: which files there are, and the lines and records in them."""

from __future__ import annotations

import gzip
import io
import re
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import IO

import fastavro

BOM = b"\xef\xbb\xbf"
MONITORING = "project/monitoring/archive"
AWG = "project/awg/cms"


class NotThere(LookupError):
    """No folder of this day."""


def data_files(folder: Path) -> list[Path]:
    """The files that are data: no hidden, no temporary names."""
    return sorted(entry for entry in folder.iterdir() if entry.is_file() and _is_data(entry.name))


def _is_data(name: str) -> bool:
    return not name.startswith((".", "_")) and not name.endswith((".tmp", "_COPYING_", ".crc"))


def content(file: Path) -> bytes:
    """The file's bytes, decompressed where it is gzip."""
    stored = file.read_bytes()
    return gzip.decompress(stored) if stored.startswith(b"\x1f\x8b") else stored


def records(stored: bytes) -> Iterator[bytes]:
    """Rule 1: the lines of a file that are records, well-formed or not. The file's end
    ends a line, too.
    """
    for ended in stored.removeprefix(BOM).split(b"\n"):
        line = ended.removesuffix(b"\r")
        if line.strip(b" \t"):
            yield line


def avro_records(file: Path) -> Iterator[dict[str, object]]:
    """The records of an Avro file, whatever its codec; bad UTF-8 as lone surrogates."""
    yield from avro_records_of(io.BytesIO(file.read_bytes()))


def avro_records_of(stored: IO[bytes]) -> Iterator[dict[str, object]]:
    """The same for a file's content."""
    for record in fastavro.reader(stored, handle_unicode_errors="surrogateescape"):
        assert isinstance(record, dict)
        yield record


def _padded(day: date) -> str:
    return f"{day:%Y/%m/%d}"


def _unpadded(day: date) -> str:
    return f"year={day.year}/month={day.month}/day={day.day}"


def stream_folder(root: Path, stream: str, day: date) -> tuple[str, Path]:
    """Rule 16: the folder of the stream's day and the form of what is in it (`enr`,
    `raw`, `json`, `avro`).
    """
    forms = {
        "aaa": [
            (form, f"{MONITORING}/xrootd/{form}/gled/{_padded(day)}") for form in ("enr", "raw")
        ],
        "eos": [
            ("json", f"{MONITORING}/{place}/{_padded(day)}")
            for place in ("eos-report/logs/cms", "eos/logs/reports/cms")
        ],
        "cmssw": [
            ("json", f"{MONITORING}/cmssw_pop/raw/metric/{_padded(day)}"),
            ("avro", f"{AWG}/cmssw-popularity/avro-snappy/{_unpadded(day)}"),
        ],
        "crab": [("avro", f"{AWG}/jm-data-popularity/avro-snappy/{_unpadded(day)}")],
    }[stream]
    for form, place in forms:
        if (root / place).is_dir():
            return form, root / place
    raise NotThere(f"{stream} has no folder for {day} under {root}")


def choose_dump(dates: list[str], day: date) -> str:
    """Rule 17, over the names of the complete dumps: a date (``YYYY-MM-DD``), and what
    follows is a time.
    """
    own = day.isoformat()
    named = {name[:10] for name in dates}
    after, before = {name for name in named if name > own}, {name for name in named if name < own}
    if after:
        chosen = min(after)
    elif own in named:
        chosen = own
    elif before:
        chosen = max(before)
    else:
        raise NotThere(f"no complete dump for {day}")
    return max((name for name in dates if name[:10] == chosen), key=_time)


def _time(name: str) -> list[int]:
    return [int(number) for number in re.findall("[0-9]+", name[10:])]


def dbs_folder(root: Path, day: date, tables: tuple[str, ...]) -> Path:
    """The DBS dump of a log day: a folder that holds a folder for each table."""
    dated = root / AWG / "dbs/PROD_GLOBAL"
    names = (
        [entry.name for entry in dated.iterdir() if _is_data(entry.name)] if dated.is_dir() else []
    )
    if not names:
        return root / AWG / "CMS_DBS3_PROD_GLOBAL/current"
    complete = [name for name in names if all(_has_rows(dated / name / table) for table in tables)]
    return dated / choose_dump(complete, day)


def phedex_folder(root: Path, day: date) -> Path:
    """The snapshot of PhEDEx block replicas of a log day."""
    snapshots = root / AWG / "phedex/block-replicas-snapshots/csv"
    names = [
        entry.name.removeprefix("time=")
        for entry in snapshots.iterdir()
        if entry.name.startswith("time=")
    ]
    complete = [name for name in names if _has_rows(snapshots / f"time={name}")]
    return snapshots / f"time={choose_dump(complete, day)}"


def _has_rows(folder: Path) -> bool:
    return folder.is_dir() and any(content(file) for file in data_files(folder))
