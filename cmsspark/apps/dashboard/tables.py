"""Tables of pages: columns, rows, their order, the page of them that is shown, and their
HTML.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from markupsafe import Markup, escape

from cmsspark.base.dates import to_second
from cmsspark.base.text.readable import readable
from cmsspark.base.text.terminal import pluralize

if TYPE_CHECKING:
    import pyarrow as pa


# Values as the pages show them: SI prefixes, exact numbers, names without control
# characters.

#: How a value is shown. ``ms`` are milliseconds of CPU or wall-clock time, ``instant``
#: UTC ms since 1970, ``change`` a difference in percent, ``dataset`` a name that may be
#: shortened in the middle, ``insert`` a word for a query.
Kind = Literal[
    "text", "dataset", "insert", "count", "bytes", "ms", "share", "change", "day", "instant", "yes"
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
    return shown(value)


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


T = TypeVar("T")
#: Rows that a page shows of a table whose page names no limit.
PAGE_ROWS: Final = 50


@dataclass(frozen=True)
class Column:
    """A column of a table: its name in downloads, its heading, and the kind of its values."""

    name: str
    heading: str
    kind: Kind = "text"
    about: str = ""


@dataclass(frozen=True)
class Cell:
    """A text with a link."""

    text: str | None
    href: str


@dataclass(frozen=True)
class Order:
    """How the rows of a table are ordered, and which page of them is shown. An empty
    column leaves them as they are.
    """

    column: str = ""
    is_descending: bool = False
    page: int = 1


@dataclass(frozen=True)
class Table:
    """Rows under headings. ``name`` is that of its download; ``download`` makes all its
    rows, exact values, as Arrow.

    ``load``: makes the rows that are shown where ``rows`` has none: (column of the order,
    whether descending, first row, number of rows) → rows; ``row_count``: of all of them.
    ``limit``: the rows of a page. ``link``: the address of a name in the first column of
    ``rows``. ``bars``: the position of the column that is drawn as
    bars. ``order``: that of the rows, as the address asks for it.
    """

    name: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]
    caption: str
    download: Callable[[], pa.Table] | None = None
    row_count: int | None = None
    empty: str = "Nothing was found."
    bars: int | None = None
    limit: int | None = None
    load: Callable[[str, bool, int, int], Sequence[Sequence[Any]]] | None = None
    link: Callable[[str], str] | None = None
    order: Order = field(default_factory=Order)

    @property
    def page_rows(self) -> int:
        """The rows of a page."""
        return self.limit or PAGE_ROWS

    @property
    def count(self) -> int:
        """The number of all rows."""
        return len(self.rows) if self.row_count is None else self.row_count

    @property
    def is_pageable(self) -> bool:
        """Whether rows that are not shown at first can be shown."""
        return self.load is not None or self.count == len(self.rows)

    @property
    def page_count(self) -> int:
        """The number of pages that can be shown."""
        return max(1, -(-(self.count if self.is_pageable else len(self.rows)) // self.page_rows))

    @cached_property
    def visible(self) -> Sequence[Sequence[Any]]:
        """The rows that the page shows."""
        first = (self.order.page - 1) * self.page_rows
        if self.load is not None:
            return self.load(self.order.column, self.order.is_descending, first, self.page_rows)
        rows = self._ordered[first : first + self.page_rows]
        if self.link is None:
            return rows
        # Thousands of rows are not shown.
        return [(Cell(row[0], self.link(row[0] or "")), *row[1:]) for row in rows]

    @cached_property
    def _ordered(self) -> Sequence[Sequence[Any]]:
        """The rows in their order; empty cells are last."""
        number = next(
            (n for n, column in enumerate(self.columns) if column.name == self.order.column), None
        )
        if number is None:
            return self.rows
        return sort_rows(self.rows, lambda row: _sort_key(row[number]), self.order.is_descending)

    @property
    def shown(self) -> str:
        """Which of its rows are shown."""
        if self.count <= len(self.visible):
            return pluralize(self.count, "row")
        first = (self.order.page - 1) * self.page_rows
        if first or self.is_pageable:
            return f"rows {first + 1:,} to {first + len(self.visible):,} of {self.count:,}"
        return f"{len(self.visible):,} of {self.count:,} rows; the downloads have all"

    def share(self, row: Sequence[Any]) -> int:
        """Return the length of a row's bar in percent of the largest."""
        assert self.bars is not None
        return round(100 * (row[self.bars] or 0) / self._largest) if self._largest else 0

    @cached_property
    def _largest(self) -> Any:
        assert self.bars is not None
        values = (row[self.bars] for row in (*self.rows, *self.visible))
        return max((value for value in values if value is not None), default=0)


def loader(
    items: Sequence[T],
    make_rows: Callable[[Sequence[T]], Sequence[Sequence[Any]]],
    values: Callable[[str], Sequence[Any]],
) -> Callable[[str, bool, int, int], Sequence[Sequence[Any]]]:
    """Return a function that makes the rows of some items when they are shown. ``values``:
    the name of a column → what each item has in it, all of one type or None.
    """

    def load(column: str, is_descending: bool, first: int, count: int) -> Sequence[Any]:
        ordered: Sequence[T] = items
        if column:
            keys = map(_plain, values(column))
            pairs = zip(keys, items, strict=True)
            ordered = [item for _, item in sort_rows(pairs, itemgetter(0), is_descending)]
        return make_rows(ordered[first : first + count])

    return load


def sort_rows(rows: Iterable[T], key: Callable[[T], Any], is_descending: bool) -> list[T]:
    """Return rows in the order of a key; those whose key is None are last."""
    keyed = [(key(row), row) for row in rows]
    filled = [entry for entry in keyed if entry[0] is not None]
    filled.sort(key=itemgetter(0), reverse=is_descending)
    return [row for _, row in filled] + [row for value, row in keyed if value is None]


def _plain(value: Any) -> Any:
    """Return a value to order by: a text without case; None for an empty cell."""
    value = value.text if isinstance(value, Cell) else value
    return value.casefold() or None if isinstance(value, str) else value


def _sort_key(value: Any) -> Any:
    """Return what rows of mixed types are ordered by: numbers before texts."""
    value = _plain(value)
    if value is None or isinstance(value, int | float):
        return value if value is None else (0, value, "")
    return (1, 0, str(value))


# The rows of tables as HTML. Pages have thousands of cells: made here they cost a fraction
# of what macros cost.

_TEXTS = ("text", "dataset", "insert", "day", "yes")
#: Characters of a text that gets room for more than a word in a line.
_LONG = 60
#: The column of names that are shortened in the middle, in every table.
_DATASET = "dataset_name"


def table_rows(table: Table) -> Markup:
    """Return the visible rows, all texts escaped."""
    return Markup("\n").join(_row(table, row) for row in table.visible)


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
    return "" if not is_text(column) else "text day" if column.kind == "day" else "text"


def _row(table: Table, row: Any) -> Markup:
    cells = []
    for number, (cell, column) in enumerate(zip(row, table.columns, strict=True)):
        value = _value(cell, column)
        if number == 0:
            cells.append(f'<th scope="row" class="{_class(column)}">{value}</th>')
        elif table.bars == number:
            length = f'<rect width="{table.share(row)}%" height="100%"/>'
            bar = f'<svg class="bar" aria-hidden="true" width="100%" height="100%">{length}</svg>'
            cells.append(f'<td class="barred">{bar}<span>{value}</span></td>')
        else:
            is_long = column.kind == "text" and column.name != _DATASET and len(str(cell)) > _LONG
            cells.append(f'<td class="{_class(column)}{" long" if is_long else ""}">{value}</td>')
    return Markup(f"<tr>{''.join(cells)}</tr>")  # noqa: S704 (each value is escaped)


def _value(cell: Any, column: Column) -> str:
    text = cell.text if isinstance(cell, Cell) else cell
    if text is not None and (column.name == _DATASET or column.kind == "dataset"):
        html = str(name_html(str(text)))
    elif column.kind == "insert":
        word = escape(shown(text))
        button = (
            f'<button type="button" class="insert" data-insert="{word}" hidden>insert</button>'
        )
        html = f"{word} {button}"
    elif isinstance(cell, Cell):
        html = NOTHING if text is None else str(escape(shown(text)))
    else:
        more = exact(cell, column.kind)
        html = str(escape(formatted(cell, column.kind)))
        return f'<span title="{escape(more)}">{html}</span>' if more else html
    return (
        f'<a href="{escape(cell.href)}">{html}</a>'
        if isinstance(cell, Cell) and text is not None
        else html
    )
