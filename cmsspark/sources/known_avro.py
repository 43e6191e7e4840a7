"""Avro files of plain schemas, read by compiled code; see :mod:`cmsspark.sources.plain_avro`.

Where it was not compiled, or a file is not plain, :mod:`cmsspark.sources.avro` reads in its other ways.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from cmsspark.access import AccessBatch
from cmsspark.compiled import compiled
from cmsspark.sources import avro_blocks
from cmsspark.sources.known import Numbers

_packed: Final[Any] = compiled("sources.packed")
_plain_avro: Final[Any] = compiled("sources.plain_avro")
_SNAPPY_CHECK: Final = 4


class AvroNeeds(NamedTuple):
    """Fields that a stream needs of its Avro records."""

    name: str
    #: Texts that make an access's group.
    shared: tuple[str, ...]
    #: Sizes: the first that is not 0 counts.
    read: tuple[str, ...] = ()
    #: CPU and wall time, in seconds as text.
    times: tuple[str, ...] = ()


class KnownAvro:
    """Reads files whose records have plain fields only into batches."""

    def __init__(
        self,
        needs: AvroNeeds,
        meanings: Sequence[Callable[[str | None], Any]],
        group: Callable[[tuple[Any, ...]], int],
    ) -> None:
        self._needs = needs
        self._numbers = Numbers(meanings, group)
        self._readers: dict[tuple[Any, ...], Any] = {}

    def read(
        self, content: bytes, codec: str, fields: Mapping[str, Any]
    ) -> tuple[AccessBatch, list[tuple[int, bytes]]] | None:
        """The accesses of a file, and the records that are left as (number in the file, its bytes).

        None where the file is not plain: nothing of it is read then.
        """
        reader = self._reader(fields)
        unpack = _CODECS.get(codec)
        if reader is None or unpack is None:
            return None
        batch = AccessBatch(packed=_packed.Columns(bool(self._needs.times)))
        reader.unnamed()
        left: list[tuple[int, bytes]] = []
        for count, begin, end in avro_blocks.blocks(content):
            block = unpack(memoryview(content)[begin:end])
            found = None if block is None else reader.read(block, count, batch.packed)
            if found is None:
                return None
            left += [(batch.read + row, bytes(block[first:last])) for row, first, last in found]
            batch.read += count
        batch.no_lfn = reader.unnamed()
        return batch, left

    def _reader(self, fields: Mapping[str, Any]) -> Any:
        """What reads records of these fields; None where they are not plain."""
        if _plain_avro is None:
            return None
        kinds = [tuple(kind) if isinstance(kind, list) else (kind,) for kind in fields.values()]
        key = tuple(zip(fields, kinds, strict=True))
        if key not in self._readers:
            names = (self._needs.name, *self._needs.shared, *self._needs.read, *self._needs.times)
            places = {name: place for place, name in enumerate(names)}
            told = [
                ([_plain_avro.KINDS[one] for one in kind], places.get(name, -1))
                for name, kind in zip(fields, kinds, strict=True)
            ]
            sizes, has_times = len(self._needs.read), bool(self._needs.times)
            try:
                made = _plain_avro.Records(told, self._numbers.shared, self._numbers.group, sizes, has_times)
            except ValueError:
                made = None
            self._readers[key] = made
        return self._readers[key]


def rows_of(left: list[tuple[int, bytes]], schema: Any) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The records that were left, by name, each with its number. Raises what fastavro raises."""
    import fastavro

    for number, content in left:
        row: Any = fastavro.schemaless_reader(
            io.BytesIO(content), schema, None, handle_unicode_errors="surrogateescape"
        )
        yield number, row


def _snappy(block: memoryview) -> Any:
    """What a block holds; None where it is damaged."""
    import cramjam

    try:
        content = bytes(cramjam.snappy.decompress_raw(block[:-_SNAPPY_CHECK]))
    except cramjam.DecompressionError:
        return None
    return content if zlib.crc32(content) == int.from_bytes(block[-_SNAPPY_CHECK:], "big") else None


def _deflate(block: memoryview) -> Any:
    inflate = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        content = inflate.decompress(block)
    except zlib.error:
        return None
    return content if inflate.eof and not inflate.unused_data else None


_CODECS: Final[Mapping[str, Callable[[memoryview], Any]]] = {"null": bytes, "snappy": _snappy, "deflate": _deflate}
