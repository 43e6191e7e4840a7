"""Tables of dumps in Avro as columns of numbers: texts and ids by number, names by
their hashes (rule 22).

Only required fields are read, found by name, case aside. Compiled code reads records of
plain values; Python reads all others, and all records where compiled code is
unavailable, with the same result. A row with an ill-typed value is damaged: it is
counted, and left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from cmsspark.base.compiled import compiled
from cmsspark.base.errors import DataError
from cmsspark.base.names import is_block
from cmsspark.sources.formats import avro
from cmsspark.sources.formats.avro import Container, PlainBlock
from cmsspark.sources.formats.avro_blocks import DamagedBlock, read_records
from cmsspark.sources.values import MAX_LONG, Malformed

_columns: Final[Any] = compiled("sources.formats.avro_columns")
_plain_avro: Final[Any] = compiled("sources.formats.plain_avro")

#: Kinds of columns: a text by number, an id (16 bytes) by number, a whole number, a
#: name by its hashes, a name with the hash of its dataset where it is a block's, and a
#: whole number that may be -1, which Python reads.
CODE, ID, NUMBER, NAME, DID, SIGNED = "code", "id", "number", "name", "did", "signed"
#: The Avro types that have values of a kind.
_TYPES: Final = {
    CODE: ("string",),
    NAME: ("string",),
    DID: ("string",),
    ID: ("bytes", "string", "fixed"),
    NUMBER: ("string", "int", "long", "float", "double"),
    SIGNED: ("string", "int", "long", "float", "double"),
}
_PLAIN: Final = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))
#: Seed of the second hash: :data:`cmsspark.counting.catalogue.CHECK_SEED`.
CHECK_SEED: Final = 0x43_4D_53
#: Rows of a piece, about.
ROWS: Final = 1 << 16
#: Damaged rows of a piece that are told with their reasons.
_TOLD: Final = 5
_WORDS: Final = 4


class TablePiece(msgspec.Struct, frozen=True):
    """Some rows: ``words`` (row, column, word) has a flag for each value (1: not null;
    3: a block's name) and then the value: a number; or a name's two hashes and the hash
    of its dataset. ``damaged``: reasons with the rows' places.
    """

    columns: tuple[str, ...]
    words: npt.NDArray[np.int64]
    records: int
    damaged_count: int = 0
    damaged: tuple[str, ...] = ()

    def has(self, name: str) -> npt.NDArray[np.bool_]:
        """Return whether each value is not null."""
        return self._word(name, 0) > 0

    def numbers(self, name: str, null: int = 0) -> npt.NDArray[np.int64]:
        """Return the numbers of a column, ``null`` where there is none."""
        return np.where(self.has(name), self._word(name, 1), null)

    def hashes(self, name: str) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
        """Both hashes of each name."""
        return self._word(name, 1).view(np.uint64), self._word(name, 2).view(np.uint64)

    def datasets(self, name: str) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.uint64]]:
        """Return whether each name is a block's, and the hash of its dataset."""
        return (self._word(name, 0) & 2) > 0, self._word(name, 3).view(np.uint64)

    def _word(self, name: str, word: int) -> npt.NDArray[np.int64]:
        return np.ascontiguousarray(self.words[:, self.columns.index(name), word])


class TableReader(msgspec.Struct):
    """Reads files of one table. ``kinds``: the kind of each column; those of
    ``optional`` are null if a file has none. ``texts``: the distinct texts (or ids
    in hex) of each column of codes or ids, by their numbers; they grow while reading.
    """

    kinds: Mapping[str, str]
    optional: frozenset[str] = frozenset()
    texts: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        self.texts = {name: {} for name, kind in self.kinds.items() if kind in (CODE, ID)}

    def read(
        self,
        stream: IO[bytes],
        file: str,
        first: int = 0,
        last: int | None = None,
        container: Container | None = None,
    ) -> Iterator[TablePiece]:
        """Yield the rows of the blocks in a range of bytes. ``container``: the file's
        header, if it has been read already.

        Raises DataError (65) for damage and for another schema.
        """
        container = container or avro.open_container(stream, file)
        if container is None:
            return
        # The file's name of each column that it has.
        types = (
            {field["name"]: field["type"] for field in container.schema.get("fields", ())}
            if isinstance(container.schema, dict)
            else {}
        )
        by_name = {name.upper(): name for name in reversed(types)} | {name: name for name in types}
        differences = []
        for name, kind in self.kinds.items():
            if name not in by_name:
                differences += [] if name in self.optional else [f"{name} is missing"]
            elif not _fits(types[by_name[name]], kind):
                differences.append(
                    f"{name} is {_shown(types[by_name[name]])}, not {' or '.join(_TYPES[kind])}"
                )
        if differences:
            raise DataError(
                f"the Avro file lacks some of the fields {', '.join(self.kinds)}",
                where=file,
                found="; ".join(differences) + f" (fields there: {', '.join(list(types)[:20])})",
                next_step="compare it with schemas/inputs/rucio; a dump of another schema is not read",
            )
        fields = {name: by_name[name] for name in self.kinds if name in by_name}
        blocks = avro.blocks_of_range(stream, container, file, first, last)
        yield from self._pieces(blocks, container, fields, file)

    def _pieces(
        self,
        blocks: Iterator[PlainBlock],
        container: Container,
        fields: Mapping[str, str],
        file: str,
    ) -> Iterator[TablePiece]:
        fast = self._fast(container.schema, fields)
        remaining: list[tuple[str, Mapping[str, Any]]] = []
        pending = 0
        for block in blocks:
            try:
                if fast is None:
                    rows = read_records(block.content, block.records, container.schema)
                    block_at = f"block at byte {block.begin}, row"
                    remaining += [(f"{block_at} {row}", values) for row, values in enumerate(rows)]
                else:
                    remaining += _remaining(fast, block, container.schema)
            except DamagedBlock as error:
                raise avro.damaged(
                    file, DamagedBlock(f"the block at byte {block.begin}: {error}")
                ) from None
            pending += block.records
            if pending >= ROWS:
                yield self._piece(fast, remaining, fields, file, pending)
                remaining, pending = [], 0
        if pending:
            yield self._piece(fast, remaining, fields, file, pending)

    def _piece(
        self,
        fast: Any,
        remaining: Sequence[tuple[str, Mapping[str, Any]]],
        fields: Mapping[str, str],
        file: str,
        count: int,
    ) -> TablePiece:
        words = [] if fast is None else [fast.take()]
        rows, damaged = [], []
        for where, values in remaining:
            try:
                rows.append(
                    [
                        self._value(name, values[fields[name]] if name in fields else None)
                        for name in self.kinds
                    ]
                )
            except Malformed as error:
                damaged.append(f"{file}, {where}: {error}")
        if rows or not words:
            words.append(np.array(rows, np.int64).reshape(-1, len(self.kinds), _WORDS))
        merged = np.concatenate(words) if len(words) > 1 else words[0]
        return TablePiece(tuple(self.kinds), merged, count, len(damaged), tuple(damaged[:_TOLD]))

    def _fast(self, schema: Any, fields: Mapping[str, str]) -> Any:
        """Return the compiled reader of these fields; None if it is unavailable or
        the schema is not plain.
        """
        types = [
            [
                _base(branch)
                for branch in (
                    field["type"] if isinstance(field["type"], list) else [field["type"]]
                )
            ]
            for field in schema["fields"]
        ]
        if _columns is None or not all(kind in _PLAIN for kinds in types for kind in kinds):
            return None
        if SIGNED in self.kinds.values():
            return None
        slots = {fields[name]: slot for slot, name in enumerate(self.kinds) if name in fields}
        described = [
            ([_plain_avro.KINDS[kind] for kind in kinds], slots.get(field["name"], -1))
            for field, kinds in zip(schema["fields"], types, strict=True)
        ]
        slot_kinds = [
            (_columns.SLOT_KINDS[kind], self._numbering(name)) for name, kind in self.kinds.items()
        ]
        try:
            return _columns.ColumnReader(described, slot_kinds, CHECK_SEED)
        except ValueError:
            return None

    def _numbering(self, name: str) -> Callable[[Any], int] | None:
        numbers = self.texts.get(name)
        if numbers is None:
            return None
        if self.kinds[name] == ID:
            return lambda raw: numbers.setdefault(raw.hex(), len(numbers))
        return lambda text: numbers.setdefault(text, len(numbers))

    def _value(self, name: str, value: Any) -> list[int]:
        """Return the words of a value. Raises Malformed."""
        if value is None:
            return [0] * _WORDS
        kind = self.kinds[name]
        if kind == SIGNED and (value == "-1" or (value == -1 and not isinstance(value, str))):
            return [1, -1, 0, 0]
        if kind in (NUMBER, SIGNED):
            return [1, whole_number(value, name), 0, 0]
        text = identifier(value, name) if kind == ID else plain_text(value, name)
        if kind in (CODE, ID):
            return [1, self.texts[name].setdefault(text, len(self.texts[name])), 0, 0]
        raw = text.encode()
        hashes = [
            _signed(xxhash.xxh64_intdigest(raw)),
            _signed(xxhash.xxh64_intdigest(raw, CHECK_SEED)),
        ]
        if kind == DID and is_block(text):
            return [3, *hashes, _signed(xxhash.xxh64_intdigest(raw.partition(b"#")[0]))]
        return [1, *hashes, 0]


def plain_text(value: Any, field_name: str) -> str:
    """Text of valid Unicode. Raises Malformed."""
    if not isinstance(value, str):
        raise Malformed(f"{field_name}: expected text, found {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Malformed(f"{field_name}: text is not valid UTF-8") from None
    return value


def identifier(value: Any, field_name: str) -> str:
    """Return an id as 32 hex digits in lower case: from 16 bytes, or hex digits, dashes
    aside. Raises Malformed.
    """
    if isinstance(value, bytes) and len(value) == 16:
        return value.hex()
    if isinstance(value, str):
        digits = value.replace("-", "")
        if len(digits) == 32 and all(digit in "0123456789abcdefABCDEF" for digit in digits):
            return digits.lower()
    raise Malformed(
        f"{field_name}: expected 16 bytes or 32 hex digits, found {type(value).__name__}"
    )


def whole_number(value: Any, field_name: str) -> int:
    """Return a number from 0 to 2^63-1: text of digits, an integer, or a float of whole
    value. Raises Malformed.
    """
    number = -1
    if isinstance(value, str) and value.isascii() and value.isdigit():
        number = int(value) if len(value.lstrip("0")) < 20 else MAX_LONG + 1
    elif (isinstance(value, float) and value.is_integer()) or (
        isinstance(value, int) and not isinstance(value, bool)
    ):
        number = int(value)
    if not 0 <= number <= MAX_LONG:
        raise Malformed(
            f"{field_name}: expected a whole number from 0 to 2^63-1, found {type(value).__name__}"
        )
    return number


def _remaining(fast: Any, block: PlainBlock, schema: Any) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the rows of a block that compiled code leaves to Python. Raises DamagedBlock."""
    result = fast.read(block.content, block.records)
    if result is None:
        raise DamagedBlock(
            f"it does not hold exactly the {block.records} records that its header names"
        )
    if not result:
        return []
    content = b"".join(block.content[begin:end] for _, begin, end in result)
    rows = read_records(content, len(result), schema)
    return [
        (f"block at byte {block.begin}, row {row}", values)
        for (row, _, _), values in zip(result, rows, strict=True)
    ]


def _fits(kind: Any, expected: str) -> bool:
    """Return whether a field of this type may have values of a kind. A number's field
    may be null throughout.
    """
    branches = {_base(branch) for branch in (kind if isinstance(kind, list) else [kind])}
    return bool(branches & set(_TYPES[expected])) or (
        expected in (NUMBER, SIGNED) and branches == {"null"}
    )


def _base(kind: Any) -> str:
    """Return the name of a type, without what it says beside."""
    name = (
        kind.get("type")
        if isinstance(kind, dict) and kind.get("logicalType") != "decimal"
        else kind
    )
    return (
        name if isinstance(name, str) else "decimal" if isinstance(kind, dict) else "another type"
    )


def _shown(kind: Any) -> str:
    return " or ".join(_base(branch) for branch in (kind if isinstance(kind, list) else [kind]))


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value
