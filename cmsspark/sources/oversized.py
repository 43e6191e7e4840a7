"""Records whose sizes or times exceed the limit of ``--quarantine-above``: they count
as malformed.

A few records with absurd sizes can make a sum exceed 64 bits, and the whole day fails.
With a limit each chunk is decoded twice: first to check whether any record exceeds the
limit, and if one does, then record by record. Without a limit this module is not used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from cmsspark.base.access import NO_BYTES, AccessBatch, Quarantined
from cmsspark.sources.formats import avro
from cmsspark.sources.formats.chunk import Content
from cmsspark.sources.formats.json_lines import JsonDecoder
from cmsspark.sources.record_schema import Note
from cmsspark.sources.values import Malformed

REASON = "beyond --quarantine-above"


#: The columns of an access or a job that are summed: bytes, and milliseconds.
BYTES: Final = "read_bytes"
TIMES: Final = ("cpu_ms", "wall_ms")


def select_values(batch: AccessBatch, column: str) -> list[int]:
    """Return the values of a column of all accesses or jobs of the batch that have one."""
    values = [getattr(job, column) for job in batch.jobs] + (getattr(batch, column) or [])
    packed = batch.packed
    if packed is not None and packed.count:
        arrays = {
            BYTES: packed.read_bytes,
            **dict(zip(TIMES, (packed.times or (None,) * 4)[::2], strict=True)),
        }
        array = arrays[column]
        values += [] if array is None else array.tolist()
    return [value for value in values if value is not None and value != NO_BYTES]


def largest(batch: AccessBatch, column: str) -> int:
    """Return the maximum of a column over the accesses or jobs of the batch; 0 where
    none has a value.
    """
    packed = batch.packed
    maximum = max((getattr(job, column) or 0 for job in batch.jobs), default=0)
    maximum = max(maximum, max((value or 0 for value in getattr(batch, column) or ()), default=0))
    if packed is not None and packed.count:
        arrays = {
            BYTES: packed.read_bytes,
            **dict(zip(TIMES, (packed.times or (None,) * 4)[::2], strict=True)),
        }
        if (array := arrays[column]) is not None:
            maximum = max(maximum, int(array.max()))
    return maximum


class OversizedRecord(NamedTuple):
    """A record that exceeds the limit: the name of its file, or the id of its job, its
    values, and its position.
    """

    name: str
    values: dict[str, int]
    file: str
    position: int


class Oversized:
    """The limit, in bytes and in seconds, and the records that exceed it."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.records: list[OversizedRecord] = []
        self.count = 0

    def is_exceeded(self, batch: AccessBatch) -> bool:
        """Return whether any record of the batch read more bytes, or took more seconds."""
        return largest(batch, BYTES) > self.limit or any(
            largest(batch, time) > self.limit * 1000 for time in TIMES
        )

    def add(self, batch: AccessBatch, file: str, position: int) -> None:
        """Add the single access or job of the batch."""
        self.count += 1
        if len(self.records) < 100:
            name = batch.jobs[0].job_id if batch.jobs else batch.unpack().lfns[0]
            values = {column: largest(batch, column) for column in (BYTES, *TIMES)}
            self.records.append(OversizedRecord(name, values, file, position))

    def notes(self) -> Iterator[Note]:
        """Yield the number of records that exceed the limit, for the manifest."""
        if self.count:
            yield "oversized", "oversized", self.count, ""


class LimitedLines:
    """A decoder of JSON lines with the limit applied in ``add``."""

    def __init__(self, decoder: JsonDecoder, oversized: Oversized) -> None:
        self._decoder = decoder
        self._oversized = oversized

    def add(self, content: Content, file: str, first_line: int, batch: AccessBatch) -> int:
        """As :meth:`JsonDecoder.add`."""
        trial = AccessBatch()
        lines = self._decoder.add(content, file, first_line, trial)
        if not self._oversized.is_exceeded(trial):
            return self._decoder.add(content, file, first_line, batch)
        for number, line in enumerate(
            [line + b"\n" for line in bytes(content).removesuffix(b"\n").split(b"\n")]
        ):
            single = AccessBatch()
            self._decoder.add(line, file, first_line + number, single)
            if not self._oversized.is_exceeded(single):
                self._decoder.add(line, file, first_line + number, batch)
                continue
            self._oversized.add(single, file, first_line + number)
            batch.read += 1
            raw = line.removesuffix(b"\n")
            batch.malformed.append(
                Quarantined.cut(file, first_line + number, REASON, raw, len(raw))
            )
        return lines


class _NoFastAvro:
    """Replaces the compiled reader, which does not support the limit."""

    def read(self, *arguments: Any) -> None:
        """Return None: no file is plain."""


class _LimitedAvro:
    """A decoder of Avro records that decodes them one by one and applies the limit to each."""

    def __init__(self, decoder: Any, oversized: Oversized, file: str) -> None:
        self.avro_fields, self.avro_required = decoder.avro_fields, decoder.avro_required
        self.fast_avro = _NoFastAvro()
        self.take = decoder.take
        if hasattr(decoder, "take_numbered"):
            self.take_numbered = decoder.take_numbered
        self._decoder = decoder
        self._oversized = oversized
        self._file = file
        self._position = 0

    def avro_record(self, row: Mapping[str, Any]) -> Any:
        """As the decoder's. Raises Malformed also for a record that exceeds the limit."""
        position, self._position = self._position, self._position + 1
        record = self._decoder.avro_record(row)
        single = AccessBatch()
        self._decoder.take([record], single)
        if self._oversized.is_exceeded(single):
            self._oversized.add(single, self._file, position)
            raise Malformed(REASON)
        return record


def limited_avro(decoder: Any, oversized: Oversized, content: bytes, file: str) -> Any:
    """Return a decoder for an Avro file: ``decoder`` where no record exceeds the limit.

    The reader reports damage later.
    """
    batches = avro.decode(decoder, content, file, damaged=lambda reason: None)
    if not any(oversized.is_exceeded(batch) for batch in batches):
        return decoder
    return _LimitedAvro(decoder, oversized, file)
