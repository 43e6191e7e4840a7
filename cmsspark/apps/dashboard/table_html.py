"""The rows of tables as HTML. Pages have thousands of cells: made here they cost a
fraction of what macros cost.
"""

from __future__ import annotations

from typing import Any

from markupsafe import Markup, escape

from cmsspark.apps.dashboard.tables import NOTHING, exact, formatted, halves, shown
from cmsspark.apps.dashboard.widgets import Cell, Column, Table

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
