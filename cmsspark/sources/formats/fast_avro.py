"""Avro files of plain schemas, read by compiled code; see
:mod:`cmsspark.sources.formats.plain_avro`.

Where it was not compiled, or a file is not plain, :mod:`cmsspark.sources.formats.avro`
reads in its other ways.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from cmsspark.base.access import AccessBatch
from cmsspark.base.compiled import compiled
from cmsspark.sources.formats.avro_blocks import CODECS, Block, DamagedBlock
from cmsspark.sources.formats.fast_json import Numbers

_packed: Final[Any] = compiled("sources.formats.packed")
_plain_avro: Final[Any] = compiled("sources.formats.plain_avro")
#: A file of which one record in so many is left, and more than a few, is read quicker
#: in the other ways.
_LEFT_OF, _FEW = 8, 1000


class Left(NamedTuple):
    """Records that are left to Python: their numbers in the file, and their bytes
    behind each other.
    """

    numbers: list[int]
    content: bytes


class AvroFields(NamedTuple):
    """Fields that a stream needs of its Avro records."""

    name: str
    #: Texts that make an access's group.
    shared: tuple[str, ...]
    #: Sizes: the first that is not 0 counts.
    read: tuple[str, ...] = ()
    #: CPU and wall time, in seconds as text, and the id of the job.
    times: tuple[str, ...] = ()


class FastAvroReader:
    """Reads files whose records have plain fields only into batches."""

    def __init__(
        self,
        needs: AvroFields,
        meanings: Sequence[Callable[[str | None], Any]],
        group: Callable[[tuple[Any, ...]], int],
    ) -> None:
        self._needs = needs
        self._numbers = Numbers(meanings, group)
        self._readers: dict[tuple[Any, ...], Any] = {}

    def read(
        self, content: bytes, codec: str, fields: Mapping[str, Any], blocks: Iterable[Block]
    ) -> tuple[AccessBatch, Left] | None:
        """Return the accesses of a file of such ``blocks``, and the records that are left.

        None where the file is not plain, or much of it would be left: nothing of it is
        read then. Raises DamagedBlock where a block does not hold what its header says.
        """
        reader = self._reader(fields)
        unpack = CODECS.get(codec)
        if reader is None or unpack is None:
            return None
        batch = AccessBatch(packed=_packed.Columns(bool(self._needs.times)))
        reader.unnamed()
        records, numbers, parts = 0, [], []
        for count, begin, end in blocks:
            block = unpack(memoryview(content)[begin:end])
            left_records = (
                None if block is None else reader.read(block, count, batch.packed, records)
            )
            if left_records is None:
                raise DamagedBlock(f"the block whose content begins at byte {begin} is damaged")
            for row, first, last in left_records:
                numbers.append(records + row)
                parts.append(block[first:last])
            records += count
            if len(numbers) > _FEW + records // _LEFT_OF:
                return None
        batch.read, batch.no_lfn = records - len(numbers), reader.unnamed()
        return batch, Left(numbers, b"".join(parts))

    def _reader(self, fields: Mapping[str, Any]) -> Any:
        """Return what reads records of these fields; None where they are not plain."""
        if _plain_avro is None:
            return None
        kinds = [tuple(kind) if isinstance(kind, list) else (kind,) for kind in fields.values()]
        key = tuple(zip(fields, kinds, strict=True))
        if key not in self._readers:
            names = (self._needs.name, *self._needs.shared, *self._needs.read, *self._needs.times)
            slots = {name: slot for slot, name in enumerate(names)}
            columns = [
                ([_plain_avro.KINDS[branch] for branch in kind], slots.get(name, -1))
                for name, kind in zip(fields, kinds, strict=True)
            ]
            sizes, has_times = len(self._needs.read), bool(self._needs.times)
            try:
                reader = _plain_avro.Records(
                    columns, self._numbers.shared, self._numbers.group, sizes, has_times
                )
            except ValueError:
                reader = None
            self._readers[key] = reader
        return self._readers[key]
