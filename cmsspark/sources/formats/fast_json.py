"""The fast line reader: lines that fit a learned template, and which templates are learned.

Where :mod:`cmsspark.sources.formats.template_reader` was not compiled no line fits, and
the decoder reads every line.
"""

from __future__ import annotations

import io
import json
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from operator import getitem
from typing import Any, Final, NamedTuple

import numpy as np

from cmsspark.base import dates
from cmsspark.base.access import AccessBatch, Group
from cmsspark.base.arrays import Longs
from cmsspark.base.compiled import compiled
from cmsspark.sources.formats.avro_blocks import CODECS, Block, DamagedBlock
from cmsspark.sources.formats.chunk import Content
from cmsspark.sources.values import as_is

# Templates of lines: the literals between the values of a record, learned from one line
# and matched in others.

#: Templates are not learned from longer lines.
LONGEST: Final = 64 * 1024

_TOKEN: Final = re.compile(r' *(?:([{}\[\],:])|("[^"]*")|([^ {}\[\],:"]+))')
_PART: Final = re.compile(r"([^=&]*)=([^&]*)")
_PLAIN_TEXT: Final = re.compile(rb"[\x20-\x5b\x5d-\xff]*")


class RequiredFields(NamedTuple):
    """The keys of a record's ``data`` that a stream requires."""

    #: The file's name.
    name: str
    #: Texts that make an access's group.
    shared: tuple[str, ...]
    #: Sizes read.
    read: tuple[str, ...]
    #: Sizes written.
    written: tuple[str, ...] = ()
    #: Sizes are texts (EOS, G1 and G2).
    sizes_are_texts: bool = False
    #: Sizes read add up (EOS); otherwise the first that is not 0 counts.
    sizes_add_up: bool = False
    #: The shared text that names a program, some of which remove files (EOS), else empty.
    program: str = ""
    #: A text that tells whether an access has bytes of its own (CMSSW), else empty.
    read_type: str = ""
    #: The format version (EOS), else empty.
    format_version: str = ""
    #: ``data`` is a text ``key=value&...`` (EOS, G1).
    data_is_text: bool = False

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts, in the order of their slots."""
        return (self.name, *self.shared, *([self.read_type] if self.read_type else ()))


#: The required fields of a record, by its ``data``; None where that does not identify
#: the format version.
RequiredFieldsOf = Callable[[Mapping[str, Any] | str], RequiredFields | None]


class LineTemplate(NamedTuple):
    """``literals[i]`` comes before value ``i``, the last one after the last value.
    ``slots[i]`` is the slot of a required value, -1 for others: the texts, sizes read,
    sizes written, the timestamp.

    A literal that ends in ``=`` comes before a part of a text, which ends at ``&`` or a quote.
    """

    literals: tuple[bytes, ...]
    slots: tuple[int, ...]
    required: RequiredFields


class _DuplicateKey(Exception):
    """An object has a duplicate key."""


def learn(line: bytes, pick_required: RequiredFieldsOf) -> LineTemplate | None:
    """Return the template of a line (without its newline); None if it has none that
    other lines could fit.

    It must be one JSON object, its ``data`` and ``metadata`` objects, without escapes,
    tabs and duplicate keys. Its required values must not be objects or arrays, which
    are ill-typed there. Where ``data`` is a text, all its parts must be ``key=value``.
    """
    if len(line) > LONGEST or _PLAIN_TEXT.fullmatch(line) is None:
        return None
    try:
        text = line.decode()
        record = json.loads(text, object_pairs_hook=_once, parse_constant=_refused)
    except (ValueError, RecursionError, _DuplicateKey):
        return None
    if not isinstance(record, dict) or not isinstance(record.get("data"), dict | str):
        return None
    if not isinstance(record.get("metadata", {}), dict):
        return None
    required = pick_required(record["data"])
    data = _parts(record["data"]) if isinstance(record["data"], str) else record["data"]
    if (
        required is None
        or required.data_is_text != isinstance(record["data"], str)
        or required.name not in data
    ):
        return None
    names = (*required.texts, *required.read, *required.written)
    position_of: dict[tuple[str | None, ...], int] = {
        ("data", name): position for position, name in enumerate(names)
    }
    position_of["metadata", "timestamp"] = len(names)
    values = [data.get(name) for name in names]
    values.append(record.get("metadata", {}).get("timestamp"))
    if any(isinstance(value, dict | list) for value in values):
        return None
    literals, paths = _cut(text, required.data_is_text)
    return LineTemplate(literals, tuple(position_of.get(path, -1) for path in paths), required)


def _parts(text: str) -> dict[str, str]:
    """Return the parts of ``key=value&...`` by their keys; empty if another part is
    there, or a key twice.
    """
    parts = [part.partition("=") for part in text.split("&")]
    by_key = {key: value for key, _, value in parts}
    return by_key if len(by_key) == len(parts) and all(equals for _, equals, _ in parts) else {}


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        raise _DuplicateKey
    return record


def _refused(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _cut(text: str, data_is_text: bool) -> tuple[tuple[bytes, ...], list[tuple[str | None, ...]]]:
    """Return the literals around the values of valid JSON, and the path of each value,
    with None for an array.

    ``data_is_text``: each part of the text ``data`` is a value.
    """
    literals: list[bytes] = []
    paths: list[tuple[str | None, ...]] = []
    # One entry for each open container: its key, None in an array.
    path: list[str | None] = []
    in_object: list[bool] = []
    begin = 0
    wants_key = False
    for token in _TOKEN.finditer(text):
        mark, quoted, _ = token.groups()
        if mark is None:
            if wants_key and quoted is not None:
                path[-1] = quoted[1:-1]
                continue
            at = token.end() - len(token[0].lstrip(" "))
            if data_is_text and path == ["data"]:
                for part in _PART.finditer(text, at + 1, token.end() - 1):
                    literals.append(text[begin : part.start(2)].encode())
                    paths.append(("data", part[1]))
                    begin = part.end()
            else:
                literals.append(text[begin:at].encode())
                paths.append(tuple(path))
                begin = token.end()
        elif mark in "{[":
            in_object.append(mark == "{")
            path.append(None)
        elif mark in "}]":
            in_object.pop()
            path.pop()
        wants_key = bool(in_object) and in_object[-1] and mark in ("{", ",")
    literals.append(text[begin:].encode())
    return tuple(literals), paths


_packed: Final[Any] = compiled("sources.formats.packed")
_template_reader: Final[Any] = compiled("sources.formats.template_reader")
#: Whether this installation has the compiled line reader.
COMPILED: Final = _template_reader is not None
#: Lines of a chunk that templates are learned from; learning from one costs as much as
#: reading some tens of lines. One try is earned by so many lines read, and at most so
#: many tries are saved for when new templates appear.
_TRIES, _LINES_A_TRY, _MOST_TRIES = 4, 1000, 256


class Distinct(dict[Any, int]):
    """The number of each distinct value, in the order in which they came; ``values`` by number."""

    def __init__(self) -> None:
        super().__init__()
        self.values_by_number: list[Any] = []

    def __missing__(self, value: Any) -> int:
        number = self[value] = len(self)
        self.values_by_number.append(value)
        return number


class _GroupRows:
    """As ``GroupRows`` of compiled code."""

    def __init__(self) -> None:
        self._numbers = Distinct()

    def add(self, user: int, app: int, route: int) -> int:
        """Return the number of a row."""
        return self._numbers[user, app, route]

    def add_all(self, rows: Longs) -> Longs:
        """Return the numbers of rows, given as three numbers each behind each other."""
        numbers = [self._numbers[row] for row in map(tuple, rows.reshape(-1, 3).tolist())]
        return np.array(numbers, np.int64)

    def columns(self, first: int) -> tuple[Longs, ...]:
        """Return users, applications and routes of the rows from ``first`` on."""
        rows = self._numbers.values_by_number[first:]
        return tuple(np.array(rows, np.int64).reshape(-1, 3).T)

    def __len__(self) -> int:
        return len(self._numbers)


def group_rows() -> Any:
    """Return empty rows of three numbers, of the quickest kind that there is."""
    return _GroupRows() if _packed is None else _packed.GroupRows()


#: From where an access reads: the site, one of ``Remote``, and the reader's site.
Route = tuple[str, int, str | None]


class Groups(Sequence[Group]):
    """The distinct groups of records by number; lives as long as a task.

    Few users, applications and routes make many groups: each of these has a number, and
    a group is a row of three numbers.
    """

    def __init__(self, groups: Iterable[Group] = ()) -> None:
        self.users = Distinct()
        self.apps = Distinct()
        self.routes = Distinct()
        self.rows: Any = group_rows()
        self._groups: list[Group] = []
        for group in groups:
            self.number(group.user, group.app, (group.site, group.remote, group.reader))

    def number(self, user: str | None, app: str, route: Route) -> int:
        """Return the number of a group; ``user`` is the user's name as logged."""
        number: int = self.rows.add(self.users[user], self.apps[app], self.routes[route])
        return number

    def __len__(self) -> int:
        return len(self.rows)

    def _all(self) -> list[Group]:
        users, apps, routes = (
            names.values_by_number for names in (self.users, self.apps, self.routes)
        )
        for user, app, route in zip(*self.rows.columns(len(self._groups)), strict=True):
            site, remote, reader = routes[route]
            self._groups.append(Group(site, apps[app], users[user], remote, reader))
        return self._groups

    def __getitem__(self, number: Any) -> Any:
        return (self._groups if len(self._groups) == len(self.rows) else self._all())[number]

    def __iter__(self) -> Iterator[Group]:
        return iter(self._all())


class Numbers:
    """Numbers for the values that shared texts map to; compiled code builds its groups of them.

    ``meanings``: for each of the shared texts, the function that maps its value;
    ``group``: numbers a group of mapped values. With ``groups`` the first two texts are
    the user and the application, and ``group`` numbers the route of the others.
    """

    def __init__(
        self,
        meanings: Sequence[Callable[[str | None], Any]],
        group: Callable[[tuple[Any, ...]], int],
        groups: Groups | None = None,
    ) -> None:
        persons = () if groups is None else (groups.users, groups.apps)
        numbers = [*persons, *(Distinct() for _ in meanings[len(persons) :])]
        self._means = [names.values_by_number for names in numbers[len(persons) :]]
        self._group = group
        self._unpack = struct.Struct(f"={len(self._means)}q").unpack
        self.rows = None if groups is None else groups.rows
        #: For each of the shared texts: the number of what it means.
        self.shared = [
            _numbered(meaning, of_meaning)
            for meaning, of_meaning in zip(meanings, numbers, strict=True)
        ]

    def group(self, numbers: bytes) -> int:
        """Return the group, or the route, of such numbers, given as int64 after each other."""
        return self._group(tuple(map(getitem, self._means, self._unpack(numbers))))


def _numbered(
    meaning: Callable[[str | None], Any], numbers: Distinct
) -> Callable[[str | None], int]:
    return lambda text: numbers[meaning(text)]


class FastLineReader:
    """Reads lines that fit a template into batches, and learns templates from the others.

    ``day``: its number, from 1970 on. ``shared``: for each of the shared texts, what
    its value means; ``group`` and ``groups``: as for :class:`Numbers`.
    """

    def __init__(
        self,
        day: int,
        required: RequiredFields,
        pick_required: RequiredFieldsOf,
        shared: Sequence[Callable[[str | None], Any]],
        group: Callable[[tuple[Any, ...]], int],
        groups: Groups | None,
    ) -> None:
        self._pick_required = pick_required
        self._lines_for_tries = _MOST_TRIES * _LINES_A_TRY
        # A line with unusual values does not fit its own template. The template must
        # not be added repeatedly.
        self._templates: set[LineTemplate] = set()
        numbers = Numbers(shared, group, groups)
        self._lines: Any = _template_reader.Lines(
            numbers.shared,
            numbers.group,
            len(required.read),
            len(required.written),
            day,
            required.sizes_add_up,
            1 + required.shared.index(required.program) if required.program else 0,
            bool(required.read_type),
            numbers.rows,
        )

    def read(self, content: Content, batch: AccessBatch) -> tuple[int, bytes, list[int]]:
        """Add the accesses of lines that fit to ``batch``.

        Returns the number of all lines, the lines that do not fit, and the number of
        each of these.
        """
        if batch.packed is None:
            batch.packed = _packed.Columns()
        lines, remaining, numbers = self._lines.read(content, batch.packed)
        read = 0
        for version, count in self._lines.taken():
            read += count
            if version and count:
                batch.generations[version] = batch.generations.get(version, 0) + count
        batch.read += read
        deletion, write_only, unnamed, out_of_day = self._lines.bins()
        batch.deletion += deletion
        batch.write_only += write_only
        batch.unnamed.update(unnamed)
        set_aside, set_aside_bytes = self._lines.set_aside()
        batch.set_aside += set_aside
        batch.set_aside_bytes += set_aside_bytes
        for timestamp in out_of_day:
            batch.count_out_of_day(dates.day_number(timestamp))
        self._lines_for_tries = min(self._lines_for_tries + lines, _MOST_TRIES * _LINES_A_TRY)
        if remaining and not self._lines.is_full:
            self._learn(remaining)
        return lines, remaining, numbers

    def _learn(self, remaining: bytes) -> None:
        """Learn templates from the first lines."""
        for ended in islice(io.BytesIO(remaining), _TRIES):
            if self._lines_for_tries < _LINES_A_TRY or self._lines.is_full:
                return
            line = ended.removesuffix(b"\n")
            if not line or self._lines.knows(line):
                continue
            self._lines_for_tries -= _LINES_A_TRY
            template = learn(line, self._pick_required)
            if template is not None and template not in self._templates:
                self._templates.add(template)
                self._lines.add(template)


# The fast reader by keys, for producers whose records leave out empty fields or have
# over a thousand of them.

_key_reader: Final[Any] = compiled("sources.formats.key_reader")


class AccessKeys(NamedTuple):
    """The keys of a record of an access, in its ``data`` or, where it has none, in the
    record itself.
    """

    #: The file's name.
    name: str
    #: Texts that make an access's group.
    shared: tuple[str, ...]
    #: Those of them that decide an access's site (the server's, where it names none)
    #: and whether it is remote: site, server, source, target, and the statuses of these
    #: two, which are null, empty or begin with ``resolved``.
    ends: tuple[str, ...]
    #: Sizes read: the first that is not 0 counts.
    read: tuple[str, ...]
    #: Sizes written.
    written: tuple[str, ...]
    #: Values that stand for no name.
    no_names: tuple[str, ...]


class JobKeys(NamedTuple):
    """The keys of a record of a job, in its ``data``, in the order in which compiled
    code returns their values.
    """

    #: Id, status, type and site; subsite, where costs are read; and other texts.
    texts: tuple[str, ...]
    #: CPU and wall-clock time; cores and core hours, where costs are read; and other
    #: numbers.
    hours: tuple[str, ...]
    #: The exit code, and flags.
    wholes: tuple[str, ...]
    #: The record's time, and others.
    longs: tuple[str, ...]


class FastKeyReader:
    """Reads lines into batches by their keys; the lines that it is not certain of are
    left to the decoder.

    ``finish`` adds to a batch what the compiled reader has collected besides accesses.
    """

    def __init__(
        self, lines: Any, finish: Callable[[AccessBatch], None], *, has_accesses: bool
    ) -> None:
        self._lines = lines
        self._finish = finish
        self._has_accesses = has_accesses

    def read(self, content: Content, batch: AccessBatch) -> tuple[int, bytes, list[int]]:
        """Add the records of plain lines to ``batch``.

        Returns the number of all lines, the lines that are left, and the number of each of these.
        """
        if self._has_accesses and batch.packed is None:
            batch.packed = _packed.Columns()
        result: tuple[int, bytes, list[int]] = self._lines.read(content, batch.packed)
        batch.read += self._lines.taken()
        for timestamp in self._lines.days():
            batch.count_out_of_day(dates.day_number(timestamp))
        self._finish(batch)
        return result


def fast_access_lines(
    day: int,
    keys: AccessKeys,
    meanings: Sequence[Callable[[str | None], Any]],
    group: Callable[[tuple[Any, ...]], int],
    groups: Groups | None,
) -> FastKeyReader | None:
    """Return the reader of accesses of ``day`` (its number, from 1970 on); None where
    it is not compiled. ``meanings``, ``group`` and ``groups``: as for :class:`Numbers`.
    """
    if _key_reader is None:
        return None
    numbers = Numbers(meanings, group, groups)
    longs = (*keys.read, *keys.written)
    texts = (keys.name, *keys.shared)
    lines = _key_reader.AccessLines(
        texts,
        (),
        (),
        longs,
        True,
        day,
        len(keys.read),
        numbers.shared,
        numbers.group,
        numbers.rows,
        keys.no_names,
        [texts.index(key) for key in keys.ends],
    )

    def finish(batch: AccessBatch) -> None:
        write_only, unnamed = lines.bins()
        batch.write_only += write_only
        batch.unnamed.update(unnamed)

    return FastKeyReader(lines, finish, has_accesses=True)


def fast_job_lines(
    day: int,
    keys: JobKeys,
    add: Callable[[list[tuple[Any, ...]], AccessBatch], None],
    group: Callable[[tuple[Any, ...]], int] | None = None,
) -> FastKeyReader | None:
    """Return the reader of jobs of ``day``; None if it is not compiled.

    ``add`` takes the records that are in no bin: their values and the time in ms.
    ``group``, where costs are read, numbers (site, subsite, type, cores) of a running
    job, as logged.
    """
    if _key_reader is None:
        return None
    if group is None:
        lines = _key_reader.JobLines(*keys, False, day)
    else:
        numbers = Numbers([as_is] * 4, group)
        lines = _key_reader.CostLines(*keys, False, day, numbers.shared, numbers.group)

    def finish(batch: AccessBatch) -> None:
        if group is not None:
            batch.windows |= lines.windows()
        for name, count in lines.bins().items():
            batch.count_job(name, count)
        add(lines.ended(), batch)

    return FastKeyReader(lines, finish, has_accesses=group is not None)


# Avro files of plain schemas, read by compiled code; see
# :mod:`cmsspark.sources.formats.plain_avro`.

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
        groups: Groups | None,
    ) -> None:
        self._needs = needs
        self._numbers = Numbers(meanings, group, groups)
        self._readers: dict[tuple[Any, ...], Any] = {}

    def read(
        self, content: bytes, codec: str, fields: Mapping[str, Any], blocks: Iterable[Block]
    ) -> tuple[AccessBatch, Left] | None:
        """Return the accesses of a file of such ``blocks``, and the records that are left.

        None if the file is not plain, or much of it would be left: nothing of it is
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
        batch.read = records - len(numbers)
        batch.unnamed.update(reader.unnamed())
        return batch, Left(numbers, b"".join(parts))

    def _reader(self, fields: Mapping[str, Any]) -> Any:
        """Return what reads records of these fields; None if they are not plain."""
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
                numbers = self._numbers
                reader = _plain_avro.Records(
                    columns, numbers.shared, numbers.group, sizes, has_times, numbers.rows
                )
            except ValueError:
                reader = None
            self._readers[key] = reader
        return self._readers[key]
