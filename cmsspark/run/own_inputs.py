"""What a user's job may read: accesses, tables of dumps, stored tables, own folders.

Each kind is declared by a small class. What a run reads is fixed first (:class:`Fixed`),
then read as Arrow tables.
"""

from __future__ import annotations

import csv
import inspect
import io
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Literal

import msgspec

from cmsspark.base.access import Quarantined
from cmsspark.base.errors import DataError, InputMissing, UsageError
from cmsspark.base.periods import Interval, Period, spans
from cmsspark.base.schemas import Column, Table, input_table, stored_table
from cmsspark.base.text.terminal import is_or_are, pluralize
from cmsspark.counting.folded_accesses import KEYS, SUMS, Fold
from cmsspark.filesystems.storage import Files, is_local, join, unreadable
from cmsspark.run.request import DayRequest
from cmsspark.sources import dumps
from cmsspark.sources.dumps import Dump
from cmsspark.sources.layout import InputFile, Layout, data_files
from cmsspark.sources.registry import ACCESS_STREAMS, DUMPS, STREAMS_OF_JOB_ROWS

if TYPE_CHECKING:
    import click
    import pyarrow as pa

    from cmsspark.store.results import CurrentTable

#: Malformed records of an own folder that are tolerated: a share, and a number. Both
#: must be exceeded to fail.
MALFORMED_SHARE: Final = 0.001
MALFORMED_RECORDS: Final = 10
_BLOCK: Final = "block_name"
#: Streams of which each record is an access by itself.
_OF_ACCESSES: Final = tuple(name for name in ACCESS_STREAMS if name not in STREAMS_OF_JOB_ROWS)


class Read(msgspec.Struct, frozen=True):
    """Something that a job reads."""

    def problem(self, frames: str) -> str:
        """Return what is wrong with the declaration; empty if nothing is. ``frames``:
        what the job takes tables as.
        """
        del frames
        return ""


class Accesses(Read, frozen=True):
    """Accesses of a day: files that were read, with their dataset and block.

    By ``keys`` and ``sums`` the scan adds them up, of files that are in DBS. With
    ``map_batch``, a function of an Arrow batch of single accesses that returns a table,
    and ``merge``, which makes one of several such tables, the job decides itself: the
    batch also has files that are not in DBS, whose dataset is null. A job of Spark that
    names neither takes single accesses. ``streams``: of accesses, by default all; of
    CRAB's rows those of a job are merged later, so that it is left out where keys are
    not those of every count.

    Example:
        >>> Accesses(["site_name", "hour"], ["read_bytes"]).problem("polars")
        ''
    """

    keys: Sequence[str] = ()
    sums: Sequence[str] = ("accesses",)
    streams: Sequence[str] = ()
    map_batch: Callable[[Any], Any] | None = None
    merge: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        for name in ("keys", "sums", "streams"):
            value = getattr(self, name)
            names = (value,) if isinstance(value, str) else tuple(value)
            msgspec.structs.force_setattr(self, name, names)
        if not self.streams:
            fitting = ACCESS_STREAMS if self.is_of_groups else _OF_ACCESSES
            msgspec.structs.force_setattr(self, "streams", fitting)

    @property
    def is_of_groups(self) -> bool:
        """Whether the keys are those of every count."""
        return bool(self.keys) and Fold(tuple(self.keys), map_batch=self.map_batch).is_of_groups

    @property
    def is_single(self) -> bool:
        """Whether the job takes single accesses, as a DataFrame of Spark."""
        return not self.keys and self.map_batch is None

    def problem(self, frames: str) -> str:
        """Return what is wrong with the declaration."""
        for kind, names, choices in (
            ("key", self.keys, (*KEYS, _BLOCK)),
            ("sum", self.sums, SUMS),
        ):
            if unknown := [name for name in names if name not in choices]:
                return f"there is no {kind} {unknown[0]!r} of accesses; there are {', '.join(choices)}"
        if not self.is_of_groups and {*self.streams} & {*STREAMS_OF_JOB_ROWS}:
            named = ", ".join(STREAMS_OF_JOB_ROWS)
            return f"{named} is counted by job: by stream, dataset, site, app and user only"
        if (self.map_batch is None) != (self.merge is None):
            return "one of map_batch and merge is missing"
        for function in (self.map_batch, self.merge):
            # It goes to other processes by its name.
            if function is not None and "<" in getattr(function, "__qualname__", ""):
                return "map_batch or merge is no function of the file, such as a lambda"
        if self.map_batch is not None and self.keys:
            return (
                "keys and map_batch exclude each other: give keys and sums, or map_batch and merge"
            )
        if self.is_single and frames != "spark":
            return (
                "a day of accesses is more than memory: give keys and sums, or map_batch and merge"
            )
        return ""


class DumpTable(Read, frozen=True):
    """A table of a dump: ``dbs/DATASETS``, ``phedex/block_replicas``, ``rucio/REPLICAS``.

    ``columns``: those that are read. Without Spark the table must fit into memory.

    Example:
        >>> DumpTable("dbs/DATASETS", ["dataset_id", "dataset"]).kind
        'dbs'
    """

    name: str
    columns: Sequence[str] = ()

    @property
    def kind(self) -> str:
        """The kind of the dump."""
        return self.name.partition("/")[0]

    @property
    def table(self) -> str:
        """The name of the table."""
        return self.name.partition("/")[2]

    def problem(self, frames: str) -> str:
        """Return what is wrong with the declaration."""
        choices = [f"{kind.name}/{table}" for kind in DUMPS.values() for table in kind.tables]
        if self.name not in choices:
            return f"there is no table {self.name!r} of dumps; there are {', '.join(choices)}"
        names = input_table(self.name).names
        if unknown := [name for name in self.columns if name not in names]:
            return f"{self.name} has no column {unknown[0]!r}; it has {', '.join(names)}"
        return "" if self.columns else f"name the columns of {self.name} that are read"


class Stored(Read, frozen=True):
    """A stored table of another job. A job of days takes the rows of its day, or of the
    ``days`` that end with it; a job of periods those of all days of the period.

    Example:
        >>> Stored("data_aggregation", ["dataset_name", "nacc"]).days
        1
    """

    table: str
    columns: Sequence[str] = ()
    days: int = 1

    def problem(self, frames: str) -> str:
        """Return what is wrong with the declaration."""
        return "" if self.days > 0 else "days begin at 1"


class Folder(Read, frozen=True):
    """Files of one's own, in a folder or a single file: ``json`` (a record a line),
    ``csv`` with a header, ``parquet`` or ``avro``.

    ``path``: may have the day, as ``%Y/%m/%d``; a relative one is beside the file of the
    job. ``columns``: each ``TYPE`` with ``not null`` where a value is needed; other
    fields are not read. A record that does not fit is quarantined and counted.

    Example:
        >>> Folder("sites.csv", {"site_name": "string", "country": "string"}, "csv").form
        'csv'
    """

    path: str
    columns: Mapping[str, str] = msgspec.field(default_factory=dict)
    form: Literal["json", "csv", "parquet", "avro"] = "json"

    def problem(self, frames: str) -> str:
        """Return what is wrong with the declaration."""
        if self.form not in ("json", "csv", "parquet", "avro"):
            return f"the form {self.form!r} is none of json, csv, parquet and avro"
        if not self.columns:
            return "name the columns that are read"
        kinds = ("string", "long", "int", "double", "boolean", "date")
        for name, kind in self.columns.items():
            if str(kind).removesuffix(" not null") not in kinds:
                return f"column {name} has no type {kind!r}; there are {', '.join(kinds)}"
        return ""

    @property
    def schema(self) -> Table:
        """The columns as a table's."""
        columns = (
            Column(name, kind.removesuffix(" not null"), nullable=not kind.endswith(" not null"))
            for name, kind in self.columns.items()
        )
        return Table(self.path, "", tuple(columns))

    def paths(self, interval: Interval, base: Path) -> list[str]:
        """Return the folders or files of a day, or of each day of a period."""
        path = self.path if "://" in self.path else str(find_beside(base, self.path))
        days = interval.days if isinstance(interval, Period) else (interval,)
        return list(dict.fromkeys(day.strftime(path) for day in days))


def find_beside(folder: Path, name: str) -> Path:
    """Return the path of a file beside that of a job. On a cluster what travels with a
    job lies in the working folder.
    """
    travelled = Path.cwd() / Path(name).name
    is_here = (folder / name).exists() or not travelled.is_file()
    return folder / name if is_here or Path(name).is_absolute() else travelled


class Fixed(msgspec.Struct):
    """The fixed list of what a run reads beside accesses, by the names of arguments."""

    dumps: dict[str, Dump] = msgspec.field(default_factory=dict)
    stored: dict[str, dict[date, CurrentTable]] = msgspec.field(default_factory=dict)
    files: dict[str, list[tuple[str, tuple[InputFile, ...]]]] = msgspec.field(default_factory=dict)
    missing: set[date] = msgspec.field(default_factory=set)
    #: Records of own folders by bin, and malformed ones as (name, detail).
    records: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)
    quarantined: list[tuple[str, str]] = msgspec.field(default_factory=list)

    def entries(self, reads: Mapping[str, Read]) -> list[dict[str, Any]]:
        """Return the inputs as manifests have them."""
        listed = [
            {
                "table": f"{read.kind}/{read.table}",
                "folder": self.dumps[read.kind].table_folder(read.table),
                "files": _rows(self.dumps[read.kind].tables[read.table]),
            }
            for read in reads.values()
            if isinstance(read, DumpTable)
        ]
        for name, days in self.stored.items():
            read = reads[name]
            assert isinstance(read, Stored)
            listed += [
                {
                    "table": f"{read.table} of {day}",
                    "folder": table.path,
                    "files": [
                        [table.manifest.rows_run, table.manifest.tables[read.table].bytes, None]
                    ],
                }
                for day, table in days.items()
            ]
        for name, parts in self.files.items():
            listed += [
                {"table": name, "folder": folder, "files": _rows(files)} for folder, files in parts
            ]
        return listed

    def check_unchanged(self, files: Files) -> None:
        """Raise DataError (65) if a file of an own folder changed since it was listed."""
        for parts in self.files.values():
            for folder, listed in parts:
                if _listed(files, folder) != listed:
                    raise DataError(
                        "the input changed while it was read",
                        where=folder,
                        found="other files, sizes or times than before",
                        next_step="run it again when no process writes there",
                    )

    def partial_reasons(self) -> list[str]:
        """Return warnings about stored days that are missing or partial."""
        warnings = (
            [f"not stored and left out: {spans(sorted(self.missing))}"] if self.missing else []
        )
        for name, days in self.stored.items():
            if partial_days := [day for day, table in days.items() if table.manifest.partial]:
                warnings.append(f"partial days of {name}: {spans(partial_days)}")
        return warnings

    def check_records(self, where: Mapping[str, str]) -> None:
        """Raise DataError (65) for more malformed records of a folder than are tolerated."""
        for name, bins in self.records.items():
            malformed, read = bins["malformed"], bins["read"]
            if malformed > MALFORMED_RECORDS and malformed > MALFORMED_SHARE * read:
                example = next(detail for of, detail in self.quarantined if of == name)
                entry = json.loads(example)
                raise DataError(
                    f"{name} has more malformed records than {MALFORMED_SHARE:.1%} and {MALFORMED_RECORDS}",
                    where=where[name],
                    found=f"{malformed:,} of {pluralize(read, 'record')}; the first one:"
                    f" {entry['file']}, record {entry['position']}: {entry['reason']}",
                    next_step="correct the files, or the columns that the job names",
                )


def _rows(files: Sequence[InputFile]) -> list[list[Any]]:
    return [[file.path, file.size, file.mtime_ms] for file in files]


def _listed(files: Files, path: str) -> tuple[InputFile, ...]:
    """Return the files of a folder, or a file itself. Raises InputMissing (66) for neither."""
    entry = files.stat(path)
    if entry is None:
        raise InputMissing(
            "an input of the job is not there", where=path, found="no file or folder of that name"
        )
    if not entry.is_dir:
        return (InputFile(entry.path, entry.size, entry.mtime_ms),)
    listed = data_files(files, path)
    if not listed.files:
        raise InputMissing("an input of the job has no files", where=path, found="an empty folder")
    return listed.files


def list_files(
    files: Files, read: Folder, interval: Interval, base: Path
) -> list[tuple[str, tuple[InputFile, ...]]]:
    """Return the files of each folder. Raises InputMissing (66)."""
    return [(path, _listed(files, path)) for path in read.paths(interval, base)]


def find_stored(
    files: Files, fout: str, read: Stored, interval: Interval, *, allow_missing: bool, fixed: Fixed
) -> dict[date, CurrentTable]:
    """Return the stored days of a table. Raises InputMissing (66) that names the days
    that are not stored, unless they may be left out and some are stored.
    """
    from cmsspark.store import results
    from cmsspark.store.own_jobs import job_of_table

    job = job_of_table(read.table)
    if isinstance(interval, Period):
        days = list(interval.days)
    else:
        days = [date.fromordinal(interval.toordinal() - back) for back in range(read.days)][::-1]
    stored, missing = {}, []
    for day in days:
        try:
            stored[day] = results.current(files, fout, job.name, read.table, day)
        except InputMissing:
            missing.append(day)
    if missing and not (allow_missing and stored):
        first = min(missing)
        raise InputMissing(
            f"{pluralize(len(missing), 'day')} of {read.table} {is_or_are(len(missing))} not stored: {spans(missing)}"
            if len(missing) > 1
            else f"{read.table} of {first} is not stored",
            where=join(fout, job.name),
            found=f"{len(stored)} of {pluralize(len(days), 'day')}",
            next_step=f"run_spark {job.name} --date {first} --fout {fout}",
        )
    fixed.missing.update(missing)
    return stored


def read_stored(files: Files, read: Stored, days: Mapping[date, CurrentTable]) -> pa.Table:
    """Return the rows of stored days, with the columns that the job names, or all."""
    import pyarrow as pa

    from cmsspark.store.stored_columns import table_rows

    choices = stored_table(read.table).names
    if unknown := [name for name in read.columns if name not in choices]:
        raise UsageError(
            f"{read.table} has no column {unknown[0]!r}", found=f"columns: {', '.join(choices)}"
        )
    names = list(read.columns) or choices
    return pa.concat_tables(
        [table_rows(files, table, read.table, names) for table in days.values()]
    )


def read_dump_table(files: Files, dump: Dump, read: DumpTable) -> pa.Table:
    """Return the columns of a dump's table. Raises DataError (65)."""
    import pyarrow as pa

    from cmsspark.run.catalogue_snapshots import opened
    from cmsspark.sources.formats.sqoop_csv import arrow_schema, read_table

    schema = input_table(read.name)
    empty = arrow_schema(schema, read.columns).empty_table()
    parts = [empty]
    for file in dump.tables[read.table]:
        if not file.size:
            continue
        with opened(files, file.path) as stream:
            if read.kind == "rucio":
                parts.append(_rucio_rows(stream, schema, read.columns, file.path))
            else:
                parts += read_table(stream, schema, tuple(read.columns), file.path)
    return pa.concat_tables(parts)


def _rucio_rows(stream: IO[bytes], schema: Table, columns: Sequence[str], path: str) -> pa.Table:
    """Return the rows of an Avro file of Rucio; names of fields aside from case. Damaged
    rows are tolerated as rules 22 to 25 do.
    """
    import pyarrow as pa

    from cmsspark.sources.formats.avro_table import identifier, plain_text, whole_number
    from cmsspark.sources.formats.sqoop_csv import arrow_schema
    from cmsspark.sources.rucio import TableCounts
    from cmsspark.sources.values import Malformed

    kinds = {column.name: column.type for column in schema.columns}
    checks = {
        name: whole_number
        if kinds[name] == "long"
        else identifier
        if name in ("ID", "RSE_ID")
        else plain_text
        for name in columns
    }
    rows: dict[str, list[Any]] = {name: [] for name in columns}
    counts = TableCounts()
    for number, record in enumerate(_avro_records(stream, path)):
        by_name = {key.upper(): value for key, value in record.items()}
        counts.records += 1
        try:
            values = [
                None if by_name.get(name) is None else check(by_name[name], name)
                for name, check in checks.items()
            ]
        except Malformed as error:
            counts.damaged += 1
            counts.examples = [*counts.examples, f"{path}, row {number}: {error}"][:5]
            continue
        for name, value in zip(columns, values, strict=True):
            rows[name].append(value)
    counts.check(schema.name)
    return pa.table(rows, schema=arrow_schema(schema, columns))


def _avro_records(stream: IO[bytes], path: str) -> Iterator[dict[str, Any]]:
    import fastavro

    try:
        for record in fastavro.reader(stream):
            assert isinstance(record, dict)
            yield record
    except (ValueError, EOFError, KeyError, IndexError, StopIteration, AssertionError) as error:
        raise DataError(
            "an Avro file is damaged", where=path, found=f"{type(error).__name__}: {error}"
        ) from None


def read_folder(name: str, files: Files, read: Folder, fixed: Fixed) -> pa.Table:
    """Return the records of an own folder; malformed ones are counted in ``fixed``.

    Raises DataError (65) for a damaged file, or one without a needed column.
    """
    import pyarrow as pa

    from cmsspark.store.part_files import open_part

    schema = read.schema
    bins = fixed.records.setdefault(name, {"read": 0, "malformed": 0})
    tables = [schema.arrow().empty_table()]
    for _, listed in fixed.files[name]:
        for file in listed:
            try:
                with open_part(files, file.path) as stream:
                    if read.form == "parquet":
                        tables.append(_parquet_rows(stream, schema, file.path))
                        bins["read"] += tables[-1].num_rows
                        continue
                    records = _RECORDS[read.form](stream, file.path)
                    if read.form == "csv":
                        _, header, _ = next(records)
                        missing = [name for name in schema.names if name not in header]
                        if missing and isinstance(header, Mapping):
                            raise DataError(
                                "a CSV file lacks a column that the job reads",
                                where=file.path,
                                found=f"no {missing[0]}; it has {', '.join(header) or 'no header'}",
                            )
                    tables.append(_checked_rows(name, records, schema, file.path, bins, fixed))
            except OSError as error:
                raise unreadable(file.path, error) from None
    return pa.concat_tables(tables)


def _parquet_rows(stream: IO[bytes], schema: Table, path: str) -> pa.Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        rows = pq.read_table(stream)
        missing = [name for name in schema.names if name not in rows.column_names]
        if missing:
            raise DataError(
                "a Parquet file lacks a column that the job reads",
                where=path,
                found=f"no {missing[0]}; it has {', '.join(rows.column_names)}",
            )
        return rows.select(schema.names).cast(schema.arrow())
    except (pa.ArrowException, ValueError) as error:
        raise DataError(
            "a Parquet file cannot be read with the columns of the job",
            where=path,
            found=" ".join(str(error).split())[:200],
        ) from None


#: A record with its position and its raw text; a text instead of a record says why it
#: is malformed.
_Record = tuple[int, Mapping[str, Any] | str, bytes]


def _json_records(stream: IO[bytes], path: str) -> Iterator[_Record]:
    from cmsspark.sources.formats.lines import unpacked

    for number, line in enumerate(unpacked(stream, path), 1):
        text = line.rstrip(b"\r\n")
        if not text.strip():
            continue
        try:
            value = json.loads(text)
        except ValueError as error:
            yield number, f"no JSON: {error}", text
            continue
        is_object = isinstance(value, dict)
        yield (
            number,
            value if is_object else f"expected an object, found {type(value).__name__}",
            text,
        )


def _csv_records(stream: IO[bytes], path: str) -> Iterator[_Record]:
    from cmsspark.sources.formats.lines import unpacked

    with io.TextIOWrapper(unpacked(stream, path), "utf-8-sig", "replace", newline="") as text:
        rows = csv.reader(text)
        header = next(rows, [])
        yield 1, dict.fromkeys(header), b""
        for row in rows:
            if not row:
                continue
            raw = ",".join(row).encode()
            if len(row) != len(header):
                yield rows.line_num, f"{len(row)} values for {len(header)} columns", raw
            else:
                yield (
                    rows.line_num,
                    {
                        name: value if value else None
                        for name, value in zip(header, row, strict=True)
                    },
                    raw,
                )


def _plain_avro_records(stream: IO[bytes], path: str) -> Iterator[_Record]:
    for number, record in enumerate(_avro_records(stream, path)):
        yield number, record, repr(record).encode("utf-8", "replace")


_RECORDS: Final[Mapping[str, Callable[[IO[bytes], str], Iterator[_Record]]]] = {
    "json": _json_records,
    "csv": _csv_records,
    "avro": _plain_avro_records,
}


def _checked_rows(
    name: str,
    records: Iterator[_Record],
    schema: Table,
    path: str,
    bins: dict[str, int],
    fixed: Fixed,
) -> pa.Table:
    import pyarrow as pa

    rows: dict[str, list[Any]] = {column: [] for column in schema.names}
    for position, record, raw in records:
        bins["read"] += 1
        try:
            if isinstance(record, str):
                raise ValueError(record)
            values = [_value(record.get(column.name), column) for column in schema.columns]
        except ValueError as error:
            bins["malformed"] += 1
            cut = Quarantined.cut(path, position, str(error), raw, len(raw))
            fixed.quarantined.append((name, json.dumps(cut.as_dict())))
            continue
        for column, value in zip(schema.names, values, strict=True):
            rows[column].append(value)
    return pa.table(rows, schema=schema.arrow())


def _value(value: Any, column: Column) -> Any:
    """Return a value as its column has it. Raises ValueError that says what is wrong."""
    if value is None:
        if not column.nullable:
            raise ValueError(f"{column.name}: missing")
        return None
    try:
        checked = _CHECKS[column.type](value)
    except (ValueError, TypeError, OverflowError):
        checked = None
    if checked is None:
        shown = repr(value)
        raise ValueError(
            f"{column.name}: expected {column.type}, found {shown[:60]}{'…' if len(shown) > 60 else ''}"
        )
    return checked


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: Any, bits: int = 64) -> int | None:
    if isinstance(value, bool):
        return None
    number = int(value) if isinstance(value, str | int) or float(value).is_integer() else None
    return (
        number if number is not None and -(2 ** (bits - 1)) <= number < 2 ** (bits - 1) else None
    )


def _double(value: Any) -> float | None:
    number = None if isinstance(value, bool) else float(value)
    return number if number is not None and number - number == 0 else None


def _boolean(value: Any) -> bool | None:
    named = {"true": True, "false": False}
    return value if isinstance(value, bool) else named.get(str(value).lower())


def _date(value: Any) -> date | None:
    return value if type(value) is date else date.fromisoformat(str(value)[:10])


_CHECKS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "string": _text,
    "long": _number,
    "int": partial(_number, bits=32),
    "double": _double,
    "boolean": _boolean,
    "date": _date,
}


# A declared function of a user's job, and the request to run it for a day.

#: What a job takes its tables as.
FrameKind = Literal["polars", "pandas", "arrow", "spark"]
#: Arguments that a function may have beside its inputs.
DAY: Final = "day"
PERIOD: Final = "period"


class JobFunction(msgspec.Struct, frozen=True):
    """A declared function. ``reads``: what it takes by the names of its arguments.
    ``options``: its own options, by the names of keyword arguments. ``own_files``: paths
    that it names, of its columns and of own folders.
    """

    name: str
    function: Callable[..., Any]
    table: Table
    reads: Mapping[str, Read]
    of_periods: bool
    frames: FrameKind
    options: Mapping[str, click.Option]
    where: str
    own_files: tuple[str, ...] = ()

    @property
    def accesses(self) -> Accesses | None:
        """What it reads of accesses."""
        return next((read for read in self.reads.values() if isinstance(read, Accesses)), None)

    @property
    def dump_tables(self) -> dict[str, DumpTable]:
        """The tables of dumps that it reads."""
        return {name: read for name, read in self.reads.items() if isinstance(read, DumpTable)}

    @property
    def needs_spark(self) -> bool:
        """Whether it takes DataFrames of Spark, or reads a folder on a cluster."""
        return self.frames == "spark" or any(
            isinstance(read, Folder) and not is_local(read.path) for read in self.reads.values()
        )

    @property
    def files_beside(self) -> list[str]:
        """The files beside that of the job that it names; folders are left out."""
        folder = Path(self.function.__code__.co_filename).absolute().parent
        paths = [folder / name for name in self.own_files if not Path(name).is_absolute()]
        return [str(path) for path in paths if path.is_file()]

    def choose_dumps(self, files: Files, layout: Layout, day: date) -> list[Dump]:
        """Return the dumps of a day with the tables that the job reads.

        Raises InputMissing (66) and NotReady (75).
        """
        tables: dict[str, set[str]] = {}
        for read in self.dump_tables.values():
            tables.setdefault(read.kind, set()).add(read.table)
        chosen = []
        for kind, names in sorted(tables.items()):
            if kind == "dbs":
                chosen.append(dumps.choose_dbs_dump(files, layout, day, names))
            elif kind == "rucio":
                chosen.append(dumps.choose_rucio_dump(files, layout, day, names))
            else:
                chosen.append(dumps.choose_phedex_dump(files, layout, day))
        return chosen

    def arguments(self, interval: date | Period, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the positional arguments of the function by name."""
        parameters = inspect.signature(self.function).parameters
        both = {**inputs, (PERIOD if isinstance(interval, Period) else DAY): interval}
        return {name: both[name] for name in parameters if name in both}


class OwnRequest(DayRequest, frozen=True):
    """A request to a user's job of days. ``own_options``: values of its own options."""

    reads_dumps: bool = False
    own_options: Mapping[str, Any] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        """Keep the streams as they are: a job may read none."""

    @property
    def sources(self) -> tuple[str, ...]:
        kinds = ("dbs", "phedex", "rucio") if self.reads_dumps or self.streams else ()
        return (*self.streams, *kinds)


def function_module(declared: JobFunction) -> Any:
    """Return the module of a job's function."""
    return sys.modules.get(declared.function.__module__)
