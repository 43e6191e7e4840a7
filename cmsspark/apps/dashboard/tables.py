"""Tables of pages: columns, rows, their order, the page of them that is shown, and their
HTML.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, Literal, Protocol

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from markupsafe import Markup, escape

from cmsspark.base.dates import to_second
from cmsspark.base.text.readable import readable
from cmsspark.base.text.terminal import pluralize
from cmsspark.store.query.cell_values import to_values

# Values as the pages show them: SI prefixes, exact numbers, names without control
# characters.

#: How a value is shown. ``ms`` are milliseconds of CPU or wall-clock time, ``instant`` and
#: ``ms_day`` UTC ms since 1970, ``change`` a difference in percent, ``dataset`` a name that may be
#: shortened in the middle, ``insert`` a word for a query.
Kind = Literal[
    "text",
    "dataset",
    "insert",
    "count",
    "bytes",
    "ms",
    "share",
    "change",
    "day",
    "ms_day",
    "instant",
    "yes",
]
NOTHING: Final = "–"
_PREFIXES: Final = ("", "k", "M", "G", "T", "P", "E", "Z", "Y")
#: From here on a number is shown without decimals.
_WHOLE: Final = 100
#: Characters of the end of a long name that are always shown, and of names that are
#: never shortened.
_TAIL, _SHORT = 22, 30


def si(value: float | None, unit: str = "") -> str:
    """Return a number with an SI prefix and three digits; whole numbers are exact below 1,000.

    Example:
        >>> si(1_234_567, "B"), si(9_999), si(99_960), si(999), si(None)
        ('1.23 MB', '10.0 k', '100 k', '999', '–')
    """
    if value is None:
        return NOTHING
    power = 0
    number = float(value)
    while abs(number) >= 999.5 and power < len(_PREFIXES) - 1:
        number /= 1000
        power += 1
    if power == 0:  # noqa: SIM108
        text = f"{value:,}" if isinstance(value, int) else f"{number:,.3g}"
    else:
        text = f"{number:#.3g}".removesuffix(".")
    return f"{text} {_PREFIXES[power]}{unit}".strip()


def ratio(part: float | None, total: float | None) -> float | None:
    """Return the share of a part; None where either is not known, or the total is nothing."""
    return part / total if part is not None and total else None


def ratios(parts: pa.ChunkedArray, totals: Any) -> pa.ChunkedArray:
    """Return the share of each part of its total, or of one for all, as :func:`ratio`."""
    of_all = pc.cast(totals, pa.float64())
    return pc.divide(
        pc.cast(parts, pa.float64()),
        pc.if_else(pc.equal(of_all, 0), pa.scalar(None, pa.float64()), of_all),
    )


def shown(text: object) -> str:
    """Return a name as it is shown: control characters escaped, ``(none)`` for an empty one."""
    return readable(str(text), lines=False) if text not in (None, "") else "(none)"


def formatted(value: Any, kind: Kind) -> str:
    """Return a value as text."""
    if value is None:
        return NOTHING
    if kind == "count":
        if not isinstance(value, float) or abs(value) >= _WHOLE:
            return f"{value:,.0f}"
        return f"{value:,.2f}".rstrip("0").rstrip(".")
    if kind == "bytes":
        return si(int(value), "B")
    if kind == "ms":
        return f"{value / 3_600_000:,.1f}"
    if kind == "share":
        # What is neither nothing nor all does not look as if it were.
        if 0 < value < 0.001:
            return "<0.1%"
        return ">99.9%" if 0.9995 <= value < 1 else f"{value:.1%}"
    if kind == "change":
        return f"{value:+.1%}" if abs(value) < 10 else f"×{value + 1:,.0f}"
    if kind == "instant":
        return f"{to_second(int(value))} UTC"
    if kind == "yes":
        return "yes" if value else "no"
    return to_second(int(value))[:10] if kind == "ms_day" else shown(value)


def exact(value: Any, kind: Kind) -> str:
    """Return the exact value, where the text rounds it; else nothing."""
    if kind == "bytes" and value is not None and value >= 1000:
        return f"{int(value):,} B"
    if kind == "ms" and value is not None:
        return f"{value / 1000:,.3f} s"
    return ""


def halves(name: str) -> tuple[str, str]:
    """Split a long name: its first part may be shortened on the page; its end, with
    version and tier, is kept.
    """
    return (name, "") if len(name) <= _SHORT else (name[:-_TAIL], name[-_TAIL:])


#: A row: column → value.
Row = Mapping[str, Any]
#: Rows that a page shows of a table whose page names no limit.
PAGE_ROWS: Final = 50


class Column(msgspec.Struct, frozen=True):
    """A column of a table: its name in downloads, its heading, and the kind of its values."""

    name: str
    heading: str
    kind: Kind = "text"
    about: str = ""


class Order(msgspec.Struct, frozen=True):
    """How the rows of a table are ordered, and which page of them is shown. An empty
    column leaves them as they are.
    """

    column: str = ""
    is_descending: bool = False
    page: int = 1


class RowSource(Protocol):
    """What a table takes its rows from, ``names`` being the columns that it shows."""

    @property
    def num_rows(self) -> int:
        """The number of all rows."""

    def part(self, names: Collection[str], order: Order, count: int) -> pa.Table:
        """Return the rows of the order's page, of ``count`` rows."""

    def every(self, names: Collection[str]) -> pa.Table:
        """Return all rows of a download, with exact values."""


class ArrowRows(msgspec.Struct, frozen=True):
    """Rows in memory. ``widen`` returns some of them with more columns, of these names: it
    is asked for the rows that are shown, and for all only if these are sorted by such a
    column or downloaded.
    """

    rows: pa.Table
    widen: Callable[[pa.Table, Collection[str]], pa.Table] = lambda rows, names: rows

    @property
    def num_rows(self) -> int:
        return int(self.rows.num_rows)

    def part(self, names: Collection[str], order: Order, count: int) -> pa.Table:
        rows = self.rows
        if order.column:
            has_column = order.column in rows.column_names
            keyed = rows if has_column else self.widen(rows, [order.column])
            rows = rows.take(sorted_positions(keyed[order.column], order.is_descending))
        return self.widen(rows.slice((order.page - 1) * count, count), names)

    def every(self, names: Collection[str]) -> pa.Table:
        return self.widen(self.rows, names)


def sorted_positions(values: pa.ChunkedArray, is_descending: bool = False) -> pa.Array:
    """Return the positions of values in their order: texts without case, equal ones as they
    are, empty ones last.
    """
    if pa.types.is_null(values.type):
        return pa.array(range(len(values)), pa.int64())
    if pa.types.is_string(values.type):
        lower = pc.utf8_lower(values)
        values = pc.if_else(pc.equal(lower, ""), None, lower)
    direction = "descending" if is_descending else "ascending"
    try:
        keys = pa.table({"key": values})
        return pc.sort_indices(keys, [("key", direction)])
    except pa.ArrowNotImplementedError:
        # Lists and the like have no order of their own.
        texts = [None if value is None else str(value) for value in to_values(values)]
        return sorted_positions(pa.chunked_array([texts], pa.string()), is_descending)


def to_arrow(columns: Sequence[Column], rows: Sequence[Sequence[Any]]) -> pa.Table:
    """Return rows as Arrow, with the names and types of their columns."""
    cells = zip(*rows, strict=True) if rows else [()] * len(columns)
    arrays = [_to_array(values, column) for values, column in zip(cells, columns, strict=True)]
    return pa.table(arrays, names=[column.name for column in columns])


def _to_array(values: Sequence[Any], column: Column) -> pa.Array:
    if column.kind in ("text", "dataset", "insert", "day"):
        return pa.array([None if value is None else str(value) for value in values], pa.string())
    if column.kind == "yes":
        return pa.array(values, pa.bool_())
    if column.kind in ("share", "change") or any(isinstance(value, float) for value in values):
        return pa.array(values, pa.float64())
    is_wide = any(value is not None and not -(1 << 63) <= value < 1 << 63 for value in values)
    return pa.array(values, pa.decimal128(38, 0) if is_wide else pa.int64())


class Table(msgspec.Struct, frozen=True, dict=True):
    """Rows under headings. ``name`` is that of its download, which has all columns of the
    rows, also those that are not shown.

    ``rows``: Arrow, or rows in the order of the columns. ``limit``: the rows of a page.
    ``bars``: the position of the column that is drawn as bars. ``links``: column → the
    address for a row; names of datasets and sites lead to their pages without one.
    ``order``: that of the rows, as the address asks for it.
    """

    name: str
    columns: Sequence[Column]
    rows: RowSource | pa.Table | Sequence[Sequence[Any]]
    caption: str
    empty: str = "Nothing was found."
    bars: int | None = None
    limit: int = PAGE_ROWS
    links: Mapping[str, Callable[[Row], str]] = msgspec.field(default_factory=dict)
    order: Order = msgspec.field(default_factory=Order)

    @cached_property
    def source(self) -> RowSource:
        """Where its rows come from."""
        if isinstance(self.rows, pa.Table):
            return ArrowRows(self.rows)
        return (
            ArrowRows(to_arrow(self.columns, self.rows))
            if isinstance(self.rows, Sequence)
            else self.rows
        )

    @property
    def names(self) -> list[str]:
        """The names of the columns that it shows."""
        return [column.name for column in self.columns]

    @property
    def count(self) -> int:
        """The number of all rows."""
        return self.source.num_rows

    @property
    def page_count(self) -> int:
        """The number of pages."""
        return max(1, -(-self.count // self.limit))

    @property
    def every(self) -> pa.Table:
        """All rows, for a download."""
        return self.source.every(self.names)

    @cached_property
    def part(self) -> pa.Table:
        """The rows that the page shows, with all their columns."""
        return self.source.part(self.names, self.order, self.limit)

    @cached_property
    def visible(self) -> list[tuple[Any, ...]]:
        """The cells that the page shows."""
        # A query may have several columns of one name.
        columns = self.part.columns
        if self.part.column_names != self.names:
            columns = [self.part[name] for name in self.names]
        return list(zip(*map(to_values, columns), strict=True))

    @property
    def shown(self) -> str:
        """Which of its rows are shown."""
        if self.count <= len(self.visible):
            return pluralize(self.count, "row")
        first = (self.order.page - 1) * self.limit
        return f"rows {first + 1:,} to {first + len(self.visible):,} of {self.count:,}"

    @cached_property
    def shares(self) -> list[int]:
        """The length of each visible row's bar in percent of the largest."""
        assert self.bars is not None
        sizes = [row[self.bars] or 0 for row in self.visible]
        rows = self.source.rows if isinstance(self.source, ArrowRows) else self.part
        name = self.columns[self.bars].name
        largest = pc.max(rows[name]).as_py() if name in rows.column_names else None
        most = max([largest or 0, *sizes])
        return [round(100 * size / most) if most else 0 for size in sizes]


def make_table(
    name: str,
    fields: Mapping[Column, Callable[[Any], Any]],
    entries: Iterable[Any],
    caption: str,
    **more: Any,
) -> Table:
    """Return a table with a row for each entry; each column has what makes its cell."""
    rows = [tuple(make(entry) for make in fields.values()) for entry in entries]
    return Table(name, list(fields), rows, caption, **more)


# The rows of tables as HTML. Pages have thousands of cells: made here they cost a fraction
# of what macros cost.

_TEXTS = ("text", "dataset", "insert", "day", "ms_day", "yes")
#: Characters of a text that gets room for more than a word in a line, and that a page shows.
_LONG, _MOST = 60, 2_000
#: The column of names that are shortened in the middle, in every table.
_DATASET = "dataset_name"


def table_rows(table: Table, links: Mapping[str, Callable[[Row], str]]) -> Markup:
    """Return the visible rows, all texts escaped; ``links`` are those of all tables."""
    addresses = {
        name: link for name, link in {**links, **table.links}.items() if name in table.names
    }
    columns = [to_values(column) for column in table.part.columns] if addresses else []
    rows = []
    for number, cells in enumerate(table.visible):
        row = {
            name: column[number]
            for name, column in zip(table.part.column_names, columns, strict=False)
        }
        hrefs = [
            link(row) if (link := addresses.get(name)) and isinstance(cell, str) and cell else ""
            for name, cell in zip(table.names, cells, strict=True)
        ]
        rows.append(_row(table, number, cells, hrefs))
    return Markup("\n").join(rows)


def is_text(column: Column) -> bool:
    """Return whether a column is aligned to the left."""
    return column.kind in _TEXTS


def name_html(name: str) -> Markup:
    """Return a name of which narrow windows show the beginning and the end; the whole
    name is its title.
    """
    begin, end = (escape(part) for part in halves(shown(name)))
    title = escape(shown(name))
    return Markup(  # noqa: S704
        f'<span class="name" title="{title}"><span>{begin}</span><span>{end}</span></span>'
    )


def _class(column: Column) -> str:
    if column.kind in ("day", "ms_day"):
        return "text day"
    return "text" if is_text(column) else ""


def _row(table: Table, row: int, values: Sequence[Any], hrefs: Sequence[str]) -> Markup:
    cells = []
    for number, (value, href, column) in enumerate(zip(values, hrefs, table.columns, strict=True)):
        html = _value(value, column)
        html = f'<a href="{escape(href)}">{html}</a>' if href else html
        if number == 0:
            cells.append(f'<th scope="row" class="{_class(column)}">{html}</th>')
        elif table.bars == number:
            length = f'<rect width="{table.shares[row]}%" height="100%"/>'
            bar = f'<svg class="bar" aria-hidden="true" width="100%" height="100%">{length}</svg>'
            cells.append(f'<td class="barred">{bar}<span>{html}</span></td>')
        else:
            is_long = column.kind == "text" and column.name != _DATASET and len(str(value)) > _LONG
            cells.append(f'<td class="{_class(column)}{" long" if is_long else ""}">{html}</td>')
    return Markup(f"<tr>{''.join(cells)}</tr>")  # noqa: S704 (each value is escaped)


def _value(value: Any, column: Column) -> str:
    if value is not None and (column.name == _DATASET or column.kind == "dataset"):
        return str(name_html(str(value)))
    if column.kind == "insert":
        word = escape(shown(value))
        return f'{word} <button type="button" class="insert" data-insert="{word}" hidden>insert</button>'
    if column.kind == "text" and value is not None:
        value = str(value)[:_MOST]
    more = exact(value, column.kind)
    html = str(escape(formatted(value, column.kind)))
    return f'<span title="{escape(more)}">{html}</span>' if more else html
