"""The order and the page of a table, as the address has them:
``sort=datasets.-nacc&page=datasets.2``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from cmsspark.apps.dashboard.downloads import load_rows
from cmsspark.apps.dashboard.widgets import Chart, Content, Fold, Order, Table
from cmsspark.base.errors import UsageError


def arranged(content: Content, parameters: Mapping[str, str]) -> Content:
    """Return the page with its tables in the order and at the page that the address asks for.

    Raises UsageError (2) for a column or page that a table does not have.
    """
    order = (parameters.get("sort", ""), parameters.get("page", ""))
    if not any(order):
        return content
    sections = [
        replace(section, items=[_item(item, *order) for item in section.items])
        for section in content.sections
    ]
    return replace(content, sections=sections)


def _item(item: Any, sort: str, page: str) -> Any:
    if isinstance(item, Table):
        return _table(item, sort, page)
    if isinstance(item, Fold):
        return replace(item, items=[_item(part, sort, page) for part in item.items])
    if isinstance(item, Chart) and item.table is not None:
        return replace(item, table=_table(item.table, sort, page))
    return item


def _table(table: Table, sort: str, page: str) -> Table:
    (sorted_name, _, column), (paged_name, _, number) = sort.partition("."), page.partition(".")
    order = Order()
    if sorted_name == table.name:
        name = (
            column.removeprefix("-")
            if column not in {entry.name for entry in table.columns}
            else column
        )
        if name not in {entry.name for entry in table.columns}:
            names = ", ".join(entry.name for entry in table.columns)
            raise UsageError(
                f"the table {table.name} has no column {name[:80]!r} to sort by", found=names
            )
        order = Order(name, column != name)
    if paged_name == table.name:
        if not (
            number.isascii()
            and number.isdigit()
            and len(number) < 9
            and 1 <= int(number) <= table.page_count
        ):
            raise UsageError(
                f"the table {table.name} has pages from 1 to {table.page_count:,}",
                found=number[:40],
            )
        order = replace(order, page=int(number))
    return replace(table, order=order)


def without_noughts(table: Table, *, first: int = 1) -> Table:
    """Return a table without the columns, from ``first`` on, that are empty or 0; its
    downloads have all.
    """

    used = [n for n in range(len(table.columns)) if n < first or any(row[n] for row in table.rows)]
    bars = used.index(table.bars) if table.bars in used else None
    rows = [tuple(row[n] for n in used) for row in table.rows]
    return replace(
        table,
        columns=[table.columns[n] for n in used],
        rows=rows,
        bars=bars,
        download=partial(load_rows, table),
    )
