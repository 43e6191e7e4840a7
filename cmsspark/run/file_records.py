"""The records of each log file of a day: what the manifest says of them, and files that
no record can be read from.

A file without one well-formed record is damaged: its records are lost, and a count of
lines does not show how many.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cmsspark.base import clock
from cmsspark.base.errors import DataError
from cmsspark.base.private_folders import make_private
from cmsspark.base.text.terminal import pluralize
from cmsspark.counting.reconciliation import MALFORMED_RECORDS, StreamBins
from cmsspark.run.inputs import spellings
from cmsspark.sources import file_counts
from cmsspark.sources.folders import DayInput
from cmsspark.sources.formats.packings import LEAVE_OUT


@dataclass
class FileNotes:
    """The notes of all tasks about the files of a stream, by the name of the file that a task had."""

    numbers: dict[str, Counter[str]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    def add(self, file: str, count: int, detail: str) -> None:
        """Add a note of :mod:`cmsspark.sources.file_counts`; ``file`` is JSON."""
        file = json.loads(file)
        if detail.startswith(file_counts.REASON):
            self.reasons[file] = detail.removeprefix(file_counts.REASON)
        else:
            self.numbers.setdefault(file, Counter())[detail] += count


@dataclass(frozen=True)
class FileRecords:
    """The records of one file. ``bytes``: as it is stored; ``content_bytes``: after unpacking."""

    file: str
    bytes: int
    content_bytes: int = 0
    read: int = 0
    malformed: int = 0
    malformed_bytes: int = 0
    out_of_day: int = 0
    #: Why the first record is malformed, where all of a task are.
    reason: str = ""

    def has_no_record(self, line_bytes: float) -> bool:
        """Return whether the file has records, and none of them is well-formed. A single
        line of up to ``line_bytes`` is one malformed record, as in any other file.
        """
        is_line = self.read == 1 and self.content_bytes <= line_bytes
        return 0 < self.read == self.malformed and not is_line

    def as_dict(self) -> dict[str, Any]:
        """Return the entry of the manifest. Counted records are neither malformed nor
        of another day.
        """
        return {
            "file": self.file,
            "bytes": self.bytes,
            "content_bytes": self.content_bytes,
            "records_read": self.read,
            "records_counted": self.read - self.malformed - self.out_of_day,
            "malformed_bytes": self.malformed_bytes,
        }


def list_records(source: DayInput, notes: FileNotes) -> list[FileRecords]:
    """Return the records of each listed file of a stream, none for a file that no task
    had a record of.
    """
    # Spark names files by URIs.
    listed = {file.path: file.size for file in source.files}
    names = {
        next((path for path in spellings(noted) if path in listed), noted): noted
        for noted in notes.numbers
    }
    return [
        FileRecords(
            path,
            size,
            reason=notes.reasons.get(names.get(path, ""), ""),
            **notes.numbers[names[path]],
        )
        if path in names
        else FileRecords(path, size)
        for path, size in listed.items()
    ]


def leave_out_damaged(
    records: Mapping[str, list[FileRecords]],
    bins: Mapping[str, StreamBins],
    accepted: Collection[str],
) -> list[dict[str, Any]]:
    """Take the ``accepted`` files without a well-formed record out of ``bins``; return
    their entries of ``damaged``.

    Also fills in the bytes of ``bins``. Raises DataError (65) for a file without a
    well-formed record that is not accepted.
    """
    damaged = []
    for stream, files in records.items():
        line_bytes = _longest_line(files)
        lost = [file for file in files if file.has_no_record(line_bytes)]
        if refused := [file for file in lost if file.file not in accepted]:
            raise _damaged(stream, refused, len(files))
        for file in lost:
            bins[stream].read -= file.read
            bins[stream].malformed -= file.malformed
            damaged.append(
                {
                    "stream": stream,
                    "file": file.file,
                    "reason": f"no well-formed record: {file.reason}",
                    "left_out_bytes": file.content_bytes,
                    "unverified_records": 0,
                    "records_read": 0,
                }
            )
        readable_files = [file for file in files if not file.has_no_record(line_bytes)]
        bins[stream].content_bytes = sum(file.content_bytes for file in readable_files)
        bins[stream].malformed_bytes = sum(file.malformed_bytes for file in readable_files)
    return damaged


def _longest_line(files: Iterable[FileRecords]) -> float:
    """Return the bytes of as many average well-formed records as may be malformed; a
    line that is longer may hold more. 0 where no record of the stream is well-formed.
    """
    good = size = 0
    for file in files:
        good += file.read - file.malformed
        size += file.content_bytes - file.malformed_bytes
    return MALFORMED_RECORDS * size / good if good else 0.0


def _damaged(stream: str, files: list[FileRecords], count: int) -> DataError:
    first = files[0]
    more = (
        f", as are {len(files) - 1} more of {pluralize(count, 'file')}" if len(files) > 1 else ""
    )
    return DataError(
        f"{stream}: a file without one well-formed record is damaged{more}",
        where=first.file,
        found=f"{pluralize(first.read, 'malformed line')} of {pluralize(first.content_bytes, 'byte')}: {first.reason}",
        next_step=f"write one JSON object to a line, or fetch the file again; {LEAVE_OUT}",
    )


#: Days after which a file is removed: the records contain names of people.
DAYS_KEPT: Final = 90
_EXAMPLES: Final = 5


def quarantine(
    folder: Path, records: Iterator[Mapping[str, Any]]
) -> tuple[str, dict[str, list[str]]]:
    """Write malformed records to a private file in ``folder``,
    ``<state>/quarantine/<job>/<day>``, and prune it.

    Returns the file, and by stream a few examples without values. Raises OSError.
    """
    make_private(folder)
    for private in (folder, *list(folder.parents)[:2]):
        private.chmod(0o700)
    target = folder / f"{clock.now_ms()}-{os.getpid()}.jsonl"
    examples: dict[str, list[str]] = {}
    with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as sink:
        for record in records:
            sink.write(json.dumps(record) + "\n")
            shown = examples.setdefault(record["stream"], [])
            if len(shown) < _EXAMPLES:
                shown.append(
                    f"{Path(record['file']).name}, record {record['position']}: {record['reason']}"
                )
    prune(folder.parents[1], clock.now_ms() / 1000)
    return str(target), examples


def prune(root: Path, now: float, days: int = DAYS_KEPT) -> None:
    """Remove files below the quarantine ``root`` that are older than ``days``; ``now``
    in seconds since 1970.

    Files that cannot be removed stay until the next run.
    """
    for file in root.glob("*/*/*.jsonl"):
        with suppress(OSError):
            if now - file.lstat().st_mtime > days * 86_400:
                file.unlink()
                file.parent.rmdir()  # fails unless the file was the last
