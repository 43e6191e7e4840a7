"""One stream's decoder with the files that feed it: what a task works with."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from typing import IO

from cmsspark.access import AccessBatch, Group
from cmsspark.errors import UsageError
from cmsspark.sources import avro, lines
from cmsspark.sources.aaa import AaaDecoder
from cmsspark.sources.cmssw import CmsswDecoder
from cmsspark.sources.crab import CrabDecoder
from cmsspark.sources.decoder import JsonDecoder
from cmsspark.sources.eos import EosDecoder
from cmsspark.sources.fields import Apps


class Reader:
    """Reads a stream's files of one day in one form (``DayInput.form``); made anew in each task."""

    def __init__(self, stream: str, form: str, day: date) -> None:
        self.decoder = _decoder(stream, form, day, Apps.load())
        self.is_avro = form == "avro"

    @property
    def groups(self) -> list[Group]:
        """The groups that batches refer to; grows while reading."""
        return self.decoder.groups

    def file(self, stream: IO[bytes], file: str) -> Iterator[AccessBatch]:
        """Batches of a whole file. Raises DataError (65) naming it when it is damaged."""
        if self.is_avro or not isinstance(self.decoder, JsonDecoder):
            yield from avro.decode(self.decoder, stream.read(), file)
        else:
            yield from lines.decode_file(self.decoder, stream, file)

    def chunk(self, chunk: bytes, file: str) -> AccessBatch:
        """A batch of whole lines that something else has read (line numbers then count from the chunk's begin)."""
        if not isinstance(self.decoder, JsonDecoder):
            raise TypeError("Avro files are read whole")
        return self.decoder.decode(chunk, file)


def _decoder(stream: str, form: str, day: date, apps: Apps) -> JsonDecoder | CrabDecoder:
    match stream:
        case "aaa":
            return AaaDecoder(day, apps, form)
        case "eos":
            return EosDecoder(day, apps)
        case "cmssw":
            return CmsswDecoder(day, apps)
        case "crab":
            return CrabDecoder(day, apps)
    raise UsageError(f"there is no stream {stream!r}")
