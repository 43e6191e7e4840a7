"""Records whose sizes or times are beyond a limit that a person gave: they count as malformed.

Some records of absurd sizes make a sum that 64 bits do not hold, and so keep a whole day from its result. With a limit
(``--quarantine-above``) each chunk is decoded twice, the first time to see whether any record is beyond it; where one
is, the chunk's records are decoded one by one. Without a limit none of this is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cmsspark.access import AccessBatch, Quarantined
from cmsspark.sources.formats import avro
from cmsspark.sources.formats.chunk import Content
from cmsspark.sources.formats.json_lines import JsonDecoder
from cmsspark.sources.sample import Note
from cmsspark.sources.values import Malformed

REASON = "beyond --quarantine-above"


def largest(batch: AccessBatch) -> int:
    """The most bytes that an access of the batch has read, or the most milliseconds that it took; 0 for none."""
    most = 0
    for column in (batch.read_bytes, batch.cpu_ms, batch.wall_ms):
        most = max(most, max((value or 0 for value in column or ()), default=0))
    packed = batch.packed
    if packed is not None and packed.count:
        times = packed.times
        columns = [packed.read_bytes] if times is None else [times[0] * times[1], times[2] * times[3]]
        most = max(most, *(int(column.max()) for column in columns if column is not None))
    return most


class Outsized:
    """The limit, in bytes or milliseconds, and the records that were beyond it: (lfn, value, file, position)."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.found: list[tuple[str, int, str, int]] = []
        self.count = 0

    def note(self, batch: AccessBatch, file: str, position: int) -> None:
        """Note the one access of the batch."""
        self.count += 1
        if len(self.found) < 100:
            self.found.append((batch.unpack().lfns[0], largest(batch), file, position))

    def notes(self) -> Iterator[Note]:
        """How many records were beyond the limit, for the manifest."""
        if self.count:
            yield "outsized", "outsized", self.count, ""


class LimitedLines:
    """A decoder of JSON lines to whose ``add`` the limit applies."""

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
            one = AccessBatch()
            self._decoder.add(line, file, first_line + number, one)
            if largest(one) <= self._outsized.limit:
                self._decoder.add(line, file, first_line + number, batch)
                continue
            self._outsized.note(one, file, first_line + number)
            batch.read += 1
            raw = line.removesuffix(b"\n")
            batch.malformed.append(Quarantined.cut(file, first_line + number, REASON, raw, len(raw)))
        return lines


def _lines(content: Content) -> list[bytes]:
    return [line + b"\n" for line in bytes(content).removesuffix(b"\n").split(b"\n")]


class _NothingKnown:
    """In the place of compiled code, which does not know the limit."""

    def read(self, *given: Any) -> None:
        """No file is plain."""


class _OneByOne:
    """A decoder of Avro records that reads them one by one, so that each meets the limit."""

    def __init__(self, decoder: Any, outsized: Outsized, file: str) -> None:
        self.avro_fields, self.avro_required = decoder.avro_fields, decoder.avro_required
        self.known_avro = _NothingKnown()
        self.take = decoder.take
        self._decoder = decoder
        self._outsized = outsized
        self._file = file
        self._position = 0

    def avro_record(self, row: Mapping[str, Any]) -> Any:
        """As the decoder's; raises Malformed also for a record beyond the limit."""
        position, self._position = self._position, self._position + 1
        record = self._decoder.avro_record(row)
        one = AccessBatch()
        self._decoder.take([record], one)
        if largest(one) > self._outsized.limit:
            self._outsized.note(one, self._file, position)
            raise Malformed(REASON)
        return record


def limited_avro(decoder: Any, outsized: Outsized, content: bytes, file: str) -> Any:
    """The decoder for an Avro file: itself, where no record is beyond the limit. Damage is for the reader to report."""
    every = avro.decode(decoder, content, file, damaged=lambda reason: None)
    if all(largest(batch) <= outsized.limit for batch in every):
        return decoder
    return _OneByOne(decoder, outsized, file)
