"""EOS file accesses: JSON lines in three format versions, which each record identifies
(``docs/feeds.md``).

G1: ``data`` is one text ``key=value&…``. G2: a struct of texts, first with the prefix
``eos.``, later with ``eos_path`` and ``sec_…``; both also carry ``raw``. G3: typed
numbers and names with literal dots.

Each layout has its own type that rejects the keys which mark the others. A union type
would accept a repeated number whose first value its layout forbids.

EOS also writes records of its own: of files that it removes, which are no accesses (rule
4), and of its own programs (rule 14).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Final

import msgspec

from cmsspark.base.access import AccessBatch, Remote
from cmsspark.sources.access_decoder import AccessDecoder, line_fields
from cmsspark.sources.formats.fast_json import COMPILED, RequiredFields, Route
from cmsspark.sources.formats.json_lines import CheckedRecord, Metadata, line_type, split
from cmsspark.sources.formats.strict_json import Fields
from cmsspark.sources.record_schema import FormatVersions, Never, RecordSchema, load_schema
from cmsspark.sources.values import MAX_LONG, Malformed, Number, long_text, name_type, text

SITE: Final = "T2_CH_CERN"
#: The layouts: the text of G1, both structs of G2, and G3.
TEXT, PREFIXED, FLAT, TYPED = "G1", "G2 eos.", "G2", "G3"
#: Begins the keys of the first layout of G2.
_PREFIX: Final = "eos."
#: Programs whose records are of removed files (rule 4).
DELETIONS: Final = ("deletion", "rm", "recycle")


@cache
def layouts() -> Mapping[str, RecordSchema]:
    """Return the schema of each layout."""
    g2 = load_schema("eos/g2")
    is_prefixed = {column: column.name.startswith(f"data.{_PREFIX}") for column in g2.columns}
    is_shared = {
        column: (
            column.name.startswith("metadata.")
            or column.name in ("data.raw", "data.real_timestamp")
        )
        for column in g2.columns
    }
    return {
        TEXT: load_schema("eos/g1", TEXT),
        PREFIXED: RecordSchema(
            PREFIXED, tuple(name for name in g2.columns if is_shared[name] or is_prefixed[name])
        ),
        FLAT: RecordSchema(
            FLAT, tuple(name for name in g2.columns if is_shared[name] or not is_prefixed[name])
        ),
        TYPED: load_schema("eos/g3", TYPED),
    }


def _find_layout(keys: Fields | Mapping[str, Any]) -> str:
    """Return the layout of a struct by its keys."""
    if any(key.startswith(_PREFIX) for key in keys):
        return PREFIXED
    return FLAT if "eos_path" in keys or "raw" in keys else TYPED


class EosDecoder(AccessDecoder):
    """Decodes EOS lines of all versions in any mix. All accesses are at CERN; remote or
    not is unknown.
    """

    stream = "eos"

    def load_schema(self, format_name: str) -> RecordSchema:
        """Return the description of G3, whose attributes all versions have."""
        return layouts()[TYPED]

    def line_types(self) -> Sequence[Any]:
        """Return the types of a line of G3, of both layouts of G2, and of G1."""
        return _line_types()

    def meaning(self, attribute: str) -> Callable[[str | None], Any]:
        """Return what maps the texts of an attribute to those of a group."""
        if attribute == "app":
            return lambda text: self.apps.of[program_name(text)]
        return super().meaning(attribute)

    def _use_compiled(self) -> None:
        if COMPILED:
            required = {
                layout: line_fields(
                    schema,
                    self.shared,
                    sizes_are_texts=layout != TYPED,
                    sizes_add_up=True,
                    program=schema.keys("app")[0],
                    format_version=layout[:2],
                    data_is_text=layout == TEXT,
                )
                for layout, schema in layouts().items()
            }

            def pick_required(data: Mapping[str, Any] | str) -> RequiredFields | None:
                """Return the fields of a record; None if the keys do not identify its layout."""
                layout = TEXT if isinstance(data, str) else _find_layout(data)
                return required[layout] if layout != PREFIXED or "eos.path" in data else None

            self._use_templates(required[TYPED], pick_required)

    @classmethod
    def format_versions(cls) -> FormatVersions:
        """Return the versions that may be in one file: G1, G3, and both layouts of G2."""
        return FormatVersions(layouts(), _find_version)

    def checked(self, records: list[Any]) -> list[Any]:
        """Records of one layout, with texts of numbers converted. Raises
        ValidationError for a G2 record without the keys of its layout, and for a G1
        record with an invalid number.
        """
        layout = records[0].layout if records else TYPED
        if layout == TEXT:
            return [self._split_text(record, number) for number, record in enumerate(records)]
        for number, record in enumerate(records):
            data = record.data
            if layout != TYPED:
                if data.lfn is msgspec.UNSET:
                    if layout == PREFIXED or data.raw is msgspec.UNSET:
                        raise _refused("a struct without the keys of its layout", number)
                    data.lfn = None
                # The type accepts digits only.
                data.read_bytes = int(data.read_bytes or 0)
                data.write_bytes = int(data.write_bytes or 0)
            if data.read_bytes_2:
                try:
                    _add_vector_reads(data)
                except Malformed as error:
                    raise _refused(str(error), number) from None
        return records

    def of_the_day(self, records: list[Any], batch: AccessBatch) -> list[Any]:
        """Return the ``data`` of records of the folder's day that are not of removed files."""
        of_the_day = super().of_the_day(records, batch)
        accesses = [data for data in of_the_day if program_name(data.app) not in DELETIONS]
        batch.deletion += len(of_the_day) - len(accesses)
        return accesses

    def take(self, records: list[Any], batch: AccessBatch) -> None:
        """Bin records as out_of_day, deletion, write_only or no_lfn; all others are accesses."""
        for version, count in Counter(record.format_version for record in records).items():
            batch.generations[version] = batch.generations.get(version, 0) + count
        super().take(records, batch)

    def route(self, site: str | None, reader: str | None) -> Route:
        """Return the route of all accesses."""
        del site, reader
        return SITE, Remote.UNKNOWN, None

    def _split_text(self, record: Any, number: int) -> Any:
        try:
            return self._strict_text(record.data, record.metadata)
        except Malformed as error:
            raise _refused(str(error), number) from None

    def _strict_text(self, text: str, metadata: Metadata | None) -> Any:
        """G1's text. Not percent-decoded; of a repeated key the last value counts (rule
        15). Raises Malformed.
        """
        get, (fields, data_type) = _split_parts(text).get, _text_fields()
        values = [
            long_text(get(key), where) if is_size else get(key) for key, is_size, where in fields
        ]
        data = data_type(*values)
        if data.read_bytes_2:
            _add_vector_reads(data)
        return CheckedRecord(data, metadata, TEXT)

    def strict(self, fields: Fields) -> Any:
        """Return the record of a strictly parsed line. Raises Malformed."""
        values, metadata = split(fields)
        result: Any = None
        for value in values:
            if isinstance(value, dict):
                layout = _find_layout(value)
                # Each is checked by the types of its layout.
                data = self.data_type(**layouts()[layout].check(value))
                if data.read_bytes_2:
                    _add_vector_reads(data)
                result = CheckedRecord(data, metadata, layout[:2])
            elif isinstance(value, str) and not isinstance(value, Number):
                result = text(value, "data") or ""
            else:
                raise Malformed(f"data: expected an object or text, found {name_type(value)}")
        # Of repeated texts the last one counts, as in msgspec.
        return self._strict_text(result, metadata) if isinstance(result, str) else result


@cache
def _line_types() -> list[Any]:
    """Return the types of a line of G3, of both layouts of G2, and of G1."""
    name = ("lfn", str | msgspec.UnsetType | None, msgspec.UNSET)
    marks = _absent(layouts()[PREFIXED].keys("lfn", "read_bytes", "write_bytes", "user", "app"))
    typed = layouts()[TYPED].struct("TypedData", [*marks, *_absent(("eos_path", "raw"))])
    raw = ("raw", msgspec.Raw | msgspec.UnsetType, msgspec.UNSET)
    flat = layouts()[FLAT].struct("FlatData", [name, *marks, raw])
    types = {
        TYPED: typed,
        FLAT: flat,
        PREFIXED: layouts()[PREFIXED].struct("PrefixedData", [name]),
        TEXT: str,
    }
    return [
        line_type(layout, data, layout=layout, format_version=layout[:2])
        for layout, data in types.items()
    ]


@cache
def _text_fields() -> tuple[list[tuple[str, bool, str]], Any]:
    """Return the key of each field of G1, whether it is a size, and its name in
    reasons; and the type of ``data``.
    """
    schema = layouts()[TEXT]
    fields = [
        (field.key, field.check is long_text, f"data: {field.key}") for field in schema.fields
    ]
    return fields, schema.struct("TextData")


def _absent(keys: Sequence[str]) -> list[tuple[str, Any, Any]]:
    """Return fields that reject a record with one of these keys."""
    return [
        (f"no_{key}".replace(".", "__"), Never, msgspec.field(default=msgspec.UNSET, name=key))
        for key in keys
    ]


def _find_version(data: Any) -> tuple[str, Mapping[str, Any]] | None:
    """Return the version of a record and its fields, by its ``data``."""
    if isinstance(data, str):
        return TEXT, _split_parts(data)
    return (_find_layout(data), data) if isinstance(data, dict) else None


def _split_parts(text: str) -> dict[str, str]:
    """Return the parts of G1's text, which may be in quotes."""
    if len(text) > 1 and text[0] == text[-1] == '"':
        text = text[1:-1]
    return dict(part.split("=", 1) for part in text.split("&") if "=" in part)


def program_name(logged: str | None) -> str:
    """Return a program without what stands behind its first ``?``; empty for ``-`` (rule 14)."""
    name = (logged or "").partition("?")[0]
    return "" if name == "-" else name


def _add_vector_reads(data: Any) -> None:
    """Add the bytes of vector reads to those of single reads (rule 11). Raises Malformed."""
    total = int(data.read_bytes or 0) + int(data.read_bytes_2)
    if total > MAX_LONG:
        raise Malformed("data: rb and rvb_sum together exceed 2^63-1")
    data.read_bytes, data.read_bytes_2 = total, 0


def _refused(reason: str, number: int) -> msgspec.ValidationError:
    """Return the error in msgspec's format, which contains the number of the rejected record."""
    return msgspec.ValidationError(f"{reason} - at `$[{number}]`")
