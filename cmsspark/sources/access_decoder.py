"""Decodes records of accesses by their description in ``schemas/inputs`` (see
:mod:`cmsspark.sources.record_schema`).

A stream whose records say what most do needs no decoder of its own. Columns feed these
attributes: ``lfn``, ``user``, ``app``, ``site`` (of the data), ``reader`` (the site
that reads), ``read_type`` (whether it has bytes of its own), ``read_bytes``,
``write_bytes`` and ``timestamp``; of several sizes the last one that is not 0 counts. A
record that only wrote is no access.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date
from itertools import repeat
from operator import attrgetter, itemgetter
from typing import Any, ClassVar, Final

from cmsspark.base.access import NO_BYTES, AccessBatch, Remote
from cmsspark.sources.formats.fast_json import (
    COMPILED,
    AvroFields,
    FastAvroReader,
    FastLineReader,
    Groups,
    RequiredFields,
    RequiredFieldsOf,
    Route,
)
from cmsspark.sources.formats.json_lines import (
    CheckedRecord,
    JsonDecoder,
    add_bytes,
    add_lfns,
    line_type,
    split,
)
from cmsspark.sources.formats.strict_json import Fields
from cmsspark.sources.record_schema import SIZES, RecordSchema, load_schema
from cmsspark.sources.registry import STREAMS_BY_NAME
from cmsspark.sources.rses import is_same_place
from cmsspark.sources.values import (
    UNKNOWN,
    Apps,
    MemoDict,
    as_is,
    avro_long,
    avro_long_text,
    avro_text,
)

#: The check of a value of Avro, by the type of its column and whether it is a size.
_AVRO_CHECKS = {
    ("string", False): avro_text,
    ("long", True): avro_long,
    ("string", True): avro_long_text,
}
#: Values of ``read_type`` of pileup files, whose bytes are in the next record of the
#: process that is of a primary file (rule 11).
ASIDE: Final = ("secondary", "embedded")


def line_fields(schema: RecordSchema, shared: Sequence[str], **options: Any) -> RequiredFields:
    """Return what the compiled line reader looks for. ``shared``: the attributes that
    make an access's group.
    """
    (name,) = schema.keys("lfn")
    read = schema.keys("read_bytes")[::-1]
    read_type = next(iter(schema.keys("read_type")), "")
    return RequiredFields(
        name,
        schema.keys(*shared),
        read,
        schema.keys("write_bytes"),
        read_type=read_type,
        **options,
    )


class AccessDecoder(JsonDecoder):
    """Decodes JSON lines, or rows of Avro. A subclass has the rules of its stream."""

    #: Attributes that make an access's group.
    shared: ClassVar[tuple[str, ...]] = ("user", "app", "site", "reader")
    groups: Groups
    #: Values of ``lfn`` that stand for no name.
    no_names: ClassVar[tuple[str, ...]] = ()

    def __init__(self, day: date, apps: Apps, format_name: str = "json") -> None:
        self.schema = self.load_schema(format_name)
        self.data_type = self.schema.struct("Data")
        super().__init__(day, apps, format_name)
        self._codes = MemoDict(self._number)
        fields = self.schema.fed(*self.shared)
        shared = [field.attribute for field in fields]
        self._texts = [attrgetter(name) for name in shared]
        self._meanings = [self.meaning(field.column.feeds) for field in fields]
        # What a stream does not have is the None behind the others.
        self._pick = itemgetter(
            *(shared.index(name) if name in shared else -1 for name in AccessDecoder.shared)
        )
        # As compiled code numbers groups: by their routes, if the first two values of a
        # key are the user and the application.
        self._numbering: tuple[Callable[[tuple[Any, ...]], int], Groups | None] = (
            (self._number_route, self.groups)
            if tuple(shared[:2]) == ("user", "app")
            else (self._number, None)
        )
        self._needs_replicas = STREAMS_BY_NAME[self.stream].needs_replicas
        self._read = [attrgetter(field.attribute) for field in self.schema.fed("read_bytes")]
        self._written = [attrgetter(field.attribute) for field in self.schema.fed("write_bytes")]
        self._has_read_type = bool(self.schema.keys("read_type"))
        self._use_compiled()

    def load_schema(self, format_name: str) -> RecordSchema:
        """Return the description of the records."""
        return load_schema(f"{self.stream}/{format_name}")

    def line_types(self) -> Sequence[Any]:
        """Return the type of a line."""
        return (line_type("Line", self.data_type),)

    def meaning(self, attribute: str) -> Callable[[str | None], Any]:
        """Return what maps the texts of an attribute to those of a group."""
        sites = self.site_names.__getitem__
        return {
            "user": self.user_names.__getitem__,
            "app": self.apps.of.__getitem__,
            "site": sites,
            "reader": sites,
        }.get(attribute, as_is)

    def _use_compiled(self) -> None:
        """Have compiled code read what is plain, where it is available."""
        if STREAMS_BY_NAME[self.stream].format(self.format_name).is_avro:
            (self.avro_required,) = self.schema.keys("lfn")
            self.avro_fields = tuple(field.key for field in self.schema.fields)
            sizes = self.schema.keys("read_bytes")[::-1]
            needs = AvroFields(self.avro_required, self.schema.keys(*self.shared), sizes)
            self.fast_avro = FastAvroReader(needs, self._meanings, *self._numbering)
        elif COMPILED:
            fields = line_fields(self.schema, self.shared)
            self._use_templates(fields, lambda data: fields)

    def _use_templates(self, required: RequiredFields, pick_required: RequiredFieldsOf) -> None:
        self._fast_lines = FastLineReader(
            self.day_number, required, pick_required, self._meanings, *self._numbering
        )

    def take(self, records: list[Any], batch: AccessBatch) -> None:
        """Bin records as out_of_day, write_only or no_lfn; all others are accesses."""
        of_the_day = read = self.of_the_day(records, batch)
        sizes = _sizes(self._read, read)
        if self._written:
            rows = zip(of_the_day, sizes, _sizes(self._written, of_the_day), strict=True)
            read = [
                data for data, read_bytes, written_bytes in rows if read_bytes or not written_bytes
            ]
            batch.write_only += len(of_the_day) - len(read)
        lfns = [data.lfn for data in read]
        if self.no_names:
            lfns = [None if lfn in self.no_names else lfn for lfn in lfns]
        accesses, unnamed = add_lfns(read, lfns, batch)
        self.add_times(accesses, batch)
        if len(accesses) != len(of_the_day):
            sizes = _sizes(self._read, accesses)
        if self._has_read_type:
            # The sizes, ``NO_BYTES`` for accesses without bytes of their own, which are
            # counted.
            aside = [row for row, entry in enumerate(accesses) if entry.read_type in ASIDE]
            batch.set_aside += len(aside)
            for row in aside:
                batch.set_aside_bytes += int(sizes[row])
                sizes[row] = NO_BYTES
        add_bytes(sizes, batch)
        batch.groups += self._group_numbers(accesses)
        batch.unnamed.update(self._group_numbers(unnamed))

    def _group_numbers(self, accesses: list[Any]) -> Iterator[int]:
        if not self._texts:
            # A stream with neither people nor places has one group.
            return repeat(self._codes[()], len(accesses))
        texts = [map(get, accesses) for get in self._texts]
        meanings = [
            column if meaning is as_is else map(meaning, column)
            for meaning, column in zip(self._meanings, texts, strict=True)
        ]
        return map(self._codes.__getitem__, zip(*meanings, strict=True))

    def _number(self, key: tuple[Any, ...]) -> int:
        """Return the number of a group."""
        user, app, *sites = self._pick((*key, None))
        return self.groups.number(user, app, self.route(*sites))

    def _number_route(self, sites: tuple[Any, ...]) -> int:
        """Return the number of a route, for compiled code: the key of a group without
        user and application.
        """
        _, _, *sites = self._pick((None, None, *sites, None))
        return self.groups.routes[self.route(*sites)]

    def route(self, site: str | None, reader: str | None) -> Route:
        """Return the route of an access. It is remote where its reader is at another
        site, or, of streams that need replicas, by these.
        """
        site, reader = site or UNKNOWN, reader or UNKNOWN
        if site == UNKNOWN:
            remote = Remote.UNKNOWN
        elif self._needs_replicas:
            remote = Remote.BY_REPLICA
        else:
            is_here = reader == UNKNOWN or is_same_place(reader, site, self.storage_sites)
            remote = Remote.NO if is_here else Remote.YES
        return site, remote, None if reader == UNKNOWN else reader

    def strict(self, fields: Fields) -> Any:
        """Return the record of a strictly parsed line. Raises Malformed."""
        values, metadata = split(fields)
        return CheckedRecord(self.data_type(**self.schema.check_all(values)), metadata)

    def avro_record(self, row: Mapping[str, Any]) -> Any:
        """Return the record of a row of Avro. Raises Malformed."""
        fields = self.schema.fields
        values = {
            field.attribute: _AVRO_CHECKS[field.column.type, field.column.feeds in SIZES](
                row, field.key
            )
            for field in fields
        }
        return CheckedRecord(self.data_type(**values))


def _sizes(attributes: Sequence[attrgetter[Any]], data: Sequence[Any]) -> list[Any]:
    """Return for each record the last of these sizes that is not 0; 0 where there is none."""
    if len(attributes) == 1:
        return [size or 0 for size in map(attributes[0], data)]
    sizes: list[Any] = [0] * len(data)
    for get in attributes:
        sizes = [size or before for size, before in zip(map(get, data), sizes, strict=True)]
    return sizes
