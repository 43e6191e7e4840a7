"""Tables of dumps in SQL: ``dbs.files``, ``phedex.replicas``, ``rucio.contents`` and
others, read where they lie.

Each part file of a dump becomes Parquet in memory when a query opens it; nothing is
stored. The dump is the one that rule 17 chooses for a day. Columns have the names of
``schemas/inputs/`` in lower case. Of Rucio, numbers are numbers and ids are hex digits
(rule 22), and a value that is neither is null; rows of every scope are there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from cmsspark.base.errors import CmssparkError, DataError, InputMissing, NotReady
from cmsspark.base.schemas import Table, input_table
from cmsspark.filesystems.storage import Files, unreadable
from cmsspark.sources import dumps as sources
from cmsspark.sources.formats.sqoop_csv import arrow_schema, read_table
from cmsspark.sources.layout import Layout
from cmsspark.sources.registry import DUMPS, REPLICAS
from cmsspark.store.part_files import open_part

if TYPE_CHECKING:
    import pyarrow as pa

#: The view of the one table of PhEDEx.
_VIEWS: Final = {REPLICAS: "replicas"}
_LARGEST: Final = 2**63 - 1
#: Columns of ids.
_IDS: Final = ("ID", "RSE_ID", "RULE_ID")


@dataclass(frozen=True)
class DumpView:
    """A table of a dump as a view: its columns, and what makes the rows of each part file."""

    schema: str
    name: str
    columns: pa.Schema
    parts: Mapping[str, Callable[[], pa.Table]]

    @property
    def view(self) -> str:
        """The name of the view, such as ``dbs.files``."""
        return f"{self.schema}.{self.name}"


def find_tables(files: Files, layout: Layout, day: date) -> tuple[list[DumpView], list[str]]:
    """Find the tables of the dumps that belong to a day, and notes: the folder of each
    kind, or why there is none.

    Raises InputMissing (66) where there is no dump of any kind.
    """
    tables: list[DumpView] = []
    notes: list[str] = []
    for kind, choose in (
        ("dbs", partial(sources.choose_dbs_dump, tables=DUMPS["dbs"].for_streams)),
        ("phedex", sources.choose_phedex_dump),
        ("rucio", sources.choose_rucio_dump),
    ):
        try:
            dump = choose(files, layout, day)
        except (InputMissing, NotReady) as error:
            notes.append(f"{kind}: {error.problem}: {error.found}")
            continue
        notes += [f"{kind}: {dump.folder}", *dump.warnings]
        tables += _find_tables(files, dump, day)
    if not tables:
        raise InputMissing(
            f"no dump for {day}",
            found="; ".join(notes),
            next_step="give --root DIR, or the folders in the settings under sources",
        )
    return tables, notes


def _find_tables(files: Files, dump: sources.Dump, day: date) -> Iterator[DumpView]:
    """Yield the tables that are in the dump's folder, needed for streams or not."""
    for name in DUMPS[dump.kind].tables:
        listed = dump.tables.get(name)
        if listed is None:
            # A table that is not there has no view.
            with suppress(CmssparkError):
                dump_of_day = sources.dump_at(files, dump.kind, dump.folder, day, dump.day, [name])
                listed = None if dump_of_day is None else dump_of_day.tables[name]
        if listed is None:
            continue
        table = input_table(f"{dump.kind}/{name}")
        read = _rucio_part if dump.kind == "rucio" else _csv_part
        parts = {
            f"part-{number:05}.parquet": partial(read, files, table, file.path)
            for number, file in enumerate(listed)
        }
        yield DumpView(dump.kind, _VIEWS.get(name, name.lower()), _arrow(table), parts)


def _arrow(table: Table) -> pa.Schema:
    import pyarrow as pa

    schema = arrow_schema(table, table.names)
    return pa.schema([(field.name.lower(), field.type) for field in schema])


def _csv_part(files: Files, table: Table, path: str) -> pa.Table:
    """Return the rows of a part in CSV, plain or gzip. Raises DataError (65)."""
    import pyarrow as pa

    schema = arrow_schema(table, table.names)
    try:
        with open_part(files, path) as stream:
            pieces = [piece.cast(schema) for piece in read_table(stream, table, table.names, path)]
    except OSError as error:
        raise unreadable(path, error) from None
    return pa.concat_tables([schema.empty_table(), *pieces]).rename_columns(
        [name.lower() for name in table.names]
    )


def _rucio_part(files: Files, table: Table, path: str) -> pa.Table:
    """Return the rows of a part in Avro. Raises DataError (65)."""
    import fastavro
    import pyarrow as pa

    columns: dict[str, list[Any]] = {name: [] for name in table.names}
    kinds = {column.name: column.type for column in table.columns}
    try:
        with open_part(files, path) as stream:
            for row in fastavro.reader(stream):
                assert isinstance(row, dict)
                values = {name.upper(): value for name, value in row.items()}
                for name, column in columns.items():
                    column.append(_plain(values.get(name), name, kinds[name]))
        arrays = {name.lower(): columns[name] for name in table.names}
        return pa.table(arrays, schema=_arrow(table))
    except CmssparkError:
        raise
    except OSError as error:
        raise unreadable(path, error) from None
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise DataError(
            "a part of a dump of Rucio cannot be read", where=path, found=reason
        ) from None


def _plain(value: Any, name: str, kind: str) -> Any:
    """Return a value of Avro as the type of its column; a number that is none is null (rule 22)."""
    if value is None:
        return None
    if name in _IDS:
        return value.hex() if isinstance(value, bytes) else str(value).replace("-", "").lower()
    if kind == "string":
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    try:
        number = int(value)
        return number if -_LARGEST - 1 <= number <= _LARGEST else None
    except (TypeError, ValueError, OverflowError):
        return None
