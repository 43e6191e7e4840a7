"""Counts of each log file: its bytes after unpacking, its records, and those that are malformed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from cmsspark.base.access import AccessBatch
from cmsspark.sources.formats.lines import describe
from cmsspark.sources.record_schema import Note

#: The kind of the notes. Their name is the file in JSON, as it may be no UTF-8; their
#: details are a name below.
FILE: Final = "file"
#: Numbers of a file: bytes after unpacking (of Avro, of the file), records read,
#: malformed records and their bytes, records of other days.
CONTENT_BYTES, READ, MALFORMED, MALFORMED_BYTES, OUT_OF_DAY = NUMBERS = (
    *("content_bytes", "read", "malformed", "malformed_bytes", "out_of_day"),
)
#: Bytes of a malformed record that are looked at: those of the first record, where
#: several are in one line.
_DESCRIBED_BYTES: Final = 16_384
#: Before the reason why the first record of a file without a well-formed one is malformed.
REASON: Final = "reason "


@dataclass
class FileCounts:
    """The numbers of the files that a task reads. A file may be read by several tasks:
    the numbers add up.
    """

    numbers: dict[str, Counter[str]] = field(default_factory=dict)
    #: By file, what its first malformed record looks like and why it is malformed.
    reasons: dict[str, str] = field(default_factory=dict)

    def add(self, file: str, batch: AccessBatch) -> None:
        """Add a batch of a file."""
        numbers = self.numbers.get(file)
        if numbers is None:
            numbers = self.numbers[file] = Counter()
        numbers[CONTENT_BYTES] += batch.content_bytes
        numbers[READ] += batch.read
        if batch.out_of_day:
            numbers[OUT_OF_DAY] += sum(batch.out_of_day.values())
        if batch.malformed:
            numbers[MALFORMED] += len(batch.malformed)
            numbers[MALFORMED_BYTES] += batch.malformed_bytes
            first = batch.malformed[0]
            if file not in self.reasons:
                self.reasons[file] = f"{describe(first.raw[:_DESCRIBED_BYTES])} ({first.reason})"

    def notes(self) -> Iterator[Note]:
        """Yield the numbers as notes; reasons of files of which this task has no
        well-formed record.
        """
        for file, numbers in self.numbers.items():
            for name, count in numbers.items():
                if count:
                    yield FILE, json.dumps(file), count, name
            if numbers[READ] and numbers[READ] == numbers[MALFORMED]:
                yield FILE, json.dumps(file), 1, REASON + self.reasons[file]
