"""The reader of one stream's files, used by each task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date
from typing import IO, Any

from cmsspark.base.access import AccessBatch, Group
from cmsspark.base.compiled import unavailable_reason
from cmsspark.sources.decoders import load_decoder
from cmsspark.sources.file_counts import FileCounts
from cmsspark.sources.formats import avro, damaged, lines
from cmsspark.sources.formats.damaged import Damage
from cmsspark.sources.oversized import LimitedLines, Oversized, OversizedRecord, limited_avro
from cmsspark.sources.record_schema import Note
from cmsspark.sources.registry import find_stream
from cmsspark.sources.sample import Sampler
from cmsspark.sources.storage_sites import StorageSites
from cmsspark.sources.values import Apps


class Reader:
    """Reads a stream's files of one day in one format (``DayInput.format_name``). Each
    task creates its own.

    The registry names the format's decoder. ``line_limit``: maximum bytes of a JSON
    line; a longer one is malformed. ``above``: a record that read more bytes, or took
    more seconds, is malformed too; None means no limit. ``meanings``: those of fields
    whose producers changed them (:class:`cmsspark.sources.layout.Epochs`).
    ``storage_sites``: where the jobs of a site have their data, if elsewhere. Raises
    UsageError (2) for a stream or format that the registry does not have.
    """

    def __init__(
        self,
        stream: str,
        format_name: str,
        day: date,
        line_limit: int = lines.LINE_LIMIT,
        above: int | None = None,
        meanings: Mapping[str, str] | None = None,
        storage_sites: StorageSites | None = None,
    ) -> None:
        format_ = find_stream(stream).format(format_name)
        self.decoder: Any = load_decoder(stream, format_name)(day, Apps.load(), format_.name)
        if meanings:
            self.decoder.use_meanings(meanings)
        if storage_sites:
            self.decoder.storage_sites = storage_sites
        self._oversized = None if above is None else Oversized(above)
        self._lines: Any = self.decoder
        if self._oversized is not None and not format_.is_avro:
            self._lines = LimitedLines(self.decoder, self._oversized)
        self._line_limit = line_limit
        self.is_avro = format_.is_avro
        self._sampler = Sampler(stream, format_name)
        self._damages: list[Damage] = []
        self._file_counts = FileCounts()

    def keep_times(self) -> None:
        """Keep the time of each access, where its decoder can; before anything is read."""
        if hasattr(self.decoder, "keep_times"):
            self.decoder.keep_times()

    @property
    def oversized(self) -> list[OversizedRecord]:
        """The first hundred records that exceed the limit."""
        return [] if self._oversized is None else self._oversized.records

    @property
    def groups(self) -> list[Group]:
        """The groups that batches refer to; grows while reading."""
        groups: list[Group] = self.decoder.groups
        return groups

    def file(
        self, stream: IO[bytes], file: str, *, accept_damaged: bool = False
    ) -> Iterator[AccessBatch]:
        """Yield batches of a whole file. Raises DataError (65) with its name when it is
        damaged. With ``accept_damaged`` the intact part is read and the damage is
        reported in the notes.
        """
        damage = Damage(file)
        self._damages.append(damage)
        if self.is_avro:
            content, decoder = stream.read(), self.decoder
            if self._oversized is not None:
                decoder = limited_avro(decoder, self._oversized, content, file)
            if accept_damaged:
                batches = damaged.read_avro(decoder, content, damage, self._sampler.sample_schema)
            else:
                batches = avro.decode(decoder, content, file, self._sampler.sample_schema)
            self._file_counts.add(file, AccessBatch(content_bytes=len(content)))
        elif accept_damaged:
            batches = damaged.read_lines(
                self._lines, stream, damage, self._sampler.sample_lines, self._line_limit
            )
        else:
            batches = lines.decode_file(
                self._lines, stream, file, self._sampler.sample_lines, self._line_limit
            )
        for batch in batches:
            self._sampler.count_records(batch.read)
            self._file_counts.add(file, batch)
            yield batch

    def chunk(self, chunk: bytes, file: str) -> AccessBatch:
        """Return a batch of whole lines that the caller has read. Line numbers count
        from the start of the chunk.

        Raises DataError (65) if the lines begin as those of a packed file.
        """
        if self.is_avro:
            raise TypeError("an Avro file cannot be read in chunks")
        lines.check_text(chunk[: lines.HEAD_BYTES], file)
        self._sampler.sample_lines(chunk)
        line, batch = 1, AccessBatch()
        for piece in lines.pieces(chunk, line_limit=self._line_limit):
            if isinstance(piece, lines.LongLine):
                line += piece.add_to(batch, file, line)
            else:
                batch.content_bytes += len(piece)
                line += self._lines.add(piece, file, line, batch)
        self._sampler.count_records(batch.read)
        self._file_counts.add(file, batch)
        return batch

    def notes(self) -> list[Note]:
        """Return notes about the files: their numbers, a sample of their fields,
        accepted damage, records above the limit, and whether compiled code read them.
        """
        reader = ("reader", unavailable_reason() or "compiled", 1, "")
        oversized = () if self._oversized is None else self._oversized.notes()
        damages = (note for damage in self._damages for note in damage.notes())
        return [reader, *oversized, *self._sampler.notes(), *damages, *self._file_counts.notes()]
