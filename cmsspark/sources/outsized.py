"""Records whose sizes or times exceed the limit of ``--quarantine-above``: they count as malformed.

A few records with absurd sizes can make a sum exceed 64 bits, and the whole day fails. With a limit each chunk is
decoded twice: first to check whether any record exceeds the limit, and if one does, then record by record. Without a
limit this module is not used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cmsspark.base.access import AccessBatch, Quarantined
from cmsspark.sources.formats import avro
from cmsspark.sources.formats.chunk import Content
from cmsspark.sources.formats.json_lines import JsonDecoder
from cmsspark.sources.record_schema import Note
from cmsspark.sources.values import Malformed

REASON = "beyond --quarantine-above"


def largest(batch: AccessBatch) -> int:
    """The maximum of bytes read, or of milliseconds, over the accesses of the batch; 0 for an empty batch.

    Of jobs, which have both, the maximum of bytes.
    """
    maximum = max((job.read_bytes or 0 for job in batch.jobs), default=0)
    for column in (batch.read_bytes, batch.cpu_ms, batch.wall_ms):
        maximum = max(maximum, max((value or 0 for value in column or ()), default=0))
    packed = batch.packed
    if packed is not None and packed.count:
        times = packed.times
        columns = [packed.read_bytes] if times is None else [times[0] * times[1], times[2] * times[3]]
        maximum = max(maximum, *(int(column.max()) for column in columns if column is not None))
    return maximum


class Outsized:
    """The limit, in bytes or milliseconds, and the records that exceed it: (lfn, value, file, position)."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.records: list[tuple[str, int, str, int]] = []
        self.count = 0

    def add(self, batch: AccessBatch, file: str, position: int) -> None:
        """Add the single access of the batch."""
        self.count += 1
        if len(self.records) < 100:
            name = batch.jobs[0].job_id if batch.jobs else batch.unpack().lfns[0]
            self.records.append((name, largest(batch), file, position))

    def notes(self) -> Iterator[Note]:
        """The number of records that exceed the limit, for the manifest."""
        if self.count:
            yield "outsized", "outsized", self.count, ""


class LimitedLines:
    """A decoder of JSON lines with the limit applied in ``add``."""

    def __init__(self, decoder: JsonDecoder, outsized: Outsized) -> None:
        self._decoder = decoder
        self._outsized = outsized

    def add(self, content: Content, file: str, first_line: int, batch: AccessBatch) -> int:
        """As :meth:`JsonDecoder.add`."""
        trial = AccessBatch()
        lines = self._decoder.add(content, file, first_line, trial)
        if largest(trial) <= self._outsized.limit:
            return self._decoder.add(content, file, first_line, batch)
        for number, line in enumerate(_lines(content)):
            single = AccessBatch()
            self._decoder.add(line, file, first_line + number, single)
            if largest(single) <= self._outsized.limit:
                self._decoder.add(line, file, first_line + number, batch)
                continue
            self._outsized.add(single, file, first_line + number)
            batch.read += 1
            raw = line.removesuffix(b"\n")
            batch.malformed.append(Quarantined.cut(file, first_line + number, REASON, raw, len(raw)))
        return lines


def _lines(content: Content) -> list[bytes]:
    return [line + b"\n" for line in bytes(content).removesuffix(b"\n").split(b"\n")]


class _NoFastAvro:
    """Replaces the compiled reader, which does not support the limit."""

    def read(self, *arguments: Any) -> None:
        """Return None: no file is plain."""


class _LimitedAvro:
    """A decoder of Avro records that decodes them one by one and applies the limit to each."""

    def __init__(self, decoder: Any, outsized: Outsized, file: str) -> None:
        self.avro_fields, self.avro_required = decoder.avro_fields, decoder.avro_required
        self.fast_avro = _NoFastAvro()
        self.take = decoder.take
        self._decoder = decoder
        self._outsized = outsized
        self._file = file
        self._position = 0

    def avro_record(self, row: Mapping[str, Any]) -> Any:
        """As the decoder's. Raises Malformed also for a record that exceeds the limit."""
        position, self._position = self._position, self._position + 1
        record = self._decoder.avro_record(row)
        single = AccessBatch()
        self._decoder.take([record], single)
        if largest(single) > self._outsized.limit:
            self._outsized.add(single, self._file, position)
            raise Malformed(REASON)
        return record


def limited_avro(decoder: Any, outsized: Outsized, content: bytes, file: str) -> Any:
    """A decoder for an Avro file: ``decoder`` where no record exceeds the limit. The reader reports damage later."""
    batches = avro.decode(decoder, content, file, damaged=lambda reason: None)
    if all(largest(batch) <= outsized.limit for batch in batches):
        return decoder
    return _LimitedAvro(decoder, outsized, file)
