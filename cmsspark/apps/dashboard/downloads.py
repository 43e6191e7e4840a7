"""Tables of pages in the order of an address; as CSV and Parquet, with all rows and exact
values; charts as SVG.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from flask import Response
from markupsafe import Markup
from msgspec.structs import replace
from pyarrow import csv

from cmsspark.apps.dashboard.tables import shown, si
from cmsspark.apps.dashboard.widgets import Chart, Content, Fold, HeatMap, Order, Table, colours
from cmsspark.base.errors import InputMissing, UsageError
from cmsspark.pages.charts import Line, plot
from cmsspark.pages.svg import REST, SERIES, WIDE, Axis, round_ticks, standalone
from cmsspark.pages.svg import Chart as Drawing
from cmsspark.store.query.cell_values import to_text, to_values

# A chart as SVG: in a page, whose colours it takes, and as a picture of its own, on white,
# for slides and mails.

_PALETTE: Final = (*SERIES, REST)
#: Widths of a chart in a page: where there is room, and in a narrow column or window.
_WIDTHS: Final = {"wide": 1180, "narrow": 420}
#: Bars for which there is room at least.
_LEAST_BARS: Final = 8
#: Width for each step from which on the values of a line have points.
_POINT: Final = 15


def draw(chart: Chart, width: int = WIDE, height: int = 330) -> Drawing:
    """Draw stacked areas, lines or bars between axes, with a legend."""
    kinds = [_PALETTE[number % len(_PALETTE)] for number in colours(list(chart.series))]
    lines = []
    positions: Sequence[float] = chart.x_values or range(len(chart.labels))
    below: list[float | None] = [0] * len(chart.labels)
    is_stack, bars = chart.kind in ("stack", "columns"), chart.kind in ("bar", "columns")
    for number, ((name, values), kind) in enumerate(zip(chart.drawn.items(), kinds, strict=True)):
        base: Sequence[float | None] = ()
        if is_stack:
            base = below
            values = [
                None if value is None else (low or 0) + value
                for low, value in zip(below, values, strict=True)
            ]
            below = [
                low if value is None else value for low, value in zip(below, values, strict=True)
            ]
        size = 0.8 / (len(kinds) if chart.kind == "bar" else 1) if bars else 0
        shift = size * (number + 0.5) - 0.4 if chart.kind == "bar" else 0
        points = [(x + shift, value) for x, value in zip(positions, values, strict=True)]
        # Dashes tell lines apart without colours.
        dash = f" d{number % 4}" if chart.kind == "line" and number % 4 else ""
        has_dots = chart.kind == "line" and _POINT * len(points) <= width
        lines.append(Line(shown(name), points, kind + dash, base, bar=size, has_dots=has_dots))
    x, y = _axes(chart, lines, positions or [0])
    if chart.target is not None:
        ends = [(x.low, chart.target), (x.high, chart.target)]
        lines.append(Line(f"target {_number(chart, chart.target)}", ends, "rule"))
    # One series may be named by the axis.
    if len(lines) == 1 and chart.y_title.casefold().startswith(lines[0].name.casefold()):
        lines = [replace(lines[0], name="")]
    return plot(lines, x, y, about=chart.title, width=width, height=height)


def svg(chart: Chart, about: str = "") -> str:
    """Return the picture as a file with its title."""
    return standalone(draw(chart), shown(chart.title), shown(about) if about else "")


def in_page(chart: Chart) -> Markup:
    """Return the chart for a page, once for each width; the page shows one of them."""
    drawings = [(name, draw(chart, width, 270)) for name, width in _WIDTHS.items()]
    drawn = "".join(f'<div class="{name}">{drawing.svg()}</div>' for name, drawing in drawings)
    return Markup(drawn)  # noqa: S704 (texts are escaped as they are drawn)


def steps(chart: Chart) -> list[float]:
    """Return where each step of a chart stands between the ends of its axis: 0 to 1."""
    positions: Sequence[float] = chart.x_values or range(len(chart.labels))
    x, _ = _axes(chart, [], positions or [0])
    return [round(x.share(position), 4) for position in positions]


def _axes(chart: Chart, lines: Sequence[Line], positions: Sequence[float]) -> tuple[Axis, Axis]:
    values = [value for line in lines for _, value in line.points if value is not None]
    top = round_ticks(0, max([*values, chart.target or 0]) or 1, is_whole=False)[-1]
    if chart.unit == "%" and max(values, default=0) < 100.5:
        top = 100
    # A few bars do not fill the width.
    room = max(0.5, (_LEAST_BARS - len(positions)) / 2)
    if chart.kind not in ("bar", "columns") and len(positions) > 1:
        room = 0
    marks = [
        (position, shown(label)) for position, label in zip(positions, chart.labels, strict=False)
    ]
    every = -(-len(marks) // 10) if not chart.is_log_x else 1
    x = Axis(
        min(positions) - room,
        max(positions) + room,
        chart.x_title,
        is_log=chart.is_log_x and not room,
        marks=marks[::every],
    )
    return x, Axis(0, top, chart.y_title, partial(_number, chart))


def _number(chart: Chart, value: float) -> str:
    return f"{value:.3g} %" if chart.unit == "%" else si(value, chart.unit)


T = TypeVar("T", Chart, Table | HeatMap)
FORMATS: Final = {
    "csv": "text/csv; charset=utf-8",
    "parquet": "application/vnd.apache.parquet",
    "svg": "image/svg+xml",
}
#: Spreadsheets take a text that begins so for a formula.
_UNSAFE: Final = r"^[^A-Za-z0-9/]"
_FORMULA: Final = re.compile(r"^\s*[=+\-@\t\r]")


def answer(content: Content, name: str, fmt: str, stem: str = "cmsspark") -> Response:
    """Return the table or picture of that name, in a file whose name begins with ``stem``.

    Raises UsageError (2) for another format, InputMissing (66) for another name.
    """
    if fmt not in FORMATS:
        raise UsageError("a download must be csv or parquet", found=repr(fmt[:40]))
    if fmt == "svg":
        charts = [item for item in content.items() if isinstance(item, Chart)]
        body: str | bytes = svg(_named(charts, name, "chart"), content.about)
    else:
        items = [item.table if isinstance(item, Chart) else item for item in content.items()]
        tables = [item for item in items if isinstance(item, Table | HeatMap)]
        rows = _named(tables, name, "table").every
        body = as_csv(rows) if fmt == "csv" else as_parquet(rows)
    headers = {"Content-Disposition": f'attachment; filename="{stem}-{name}.{fmt}"'}
    return Response(body, headers=headers, content_type=FORMATS[fmt])


def _named(items: Sequence[T], name: str, kind: str) -> T:
    """Return the item of that name. Raises InputMissing (66) where the page has none."""
    by_name = {item.name: item for item in items}
    if name not in by_name:
        raise InputMissing(
            f"there is no such {kind} on this page", found=", ".join(by_name) or "none"
        )
    return by_name[name]


def as_csv(rows: pa.Table) -> bytes:
    """CSV in UTF-8 with a line of names; texts that a spreadsheet would take for a
    formula begin with an apostrophe.
    """
    for number, column in enumerate(rows.schema):
        if not _is_written_as_it_is(column.type):
            rows = _as_texts(rows, number)
        if pa.types.is_string(rows.schema.field(number).type):
            column_texts = rows.column(number)
            # Most columns have names alone: looking at their first letters is quick.
            if not pc.any(pc.match_substring_regex(column_texts, _UNSAFE)).as_py():
                continue
            texts = column_texts.to_pylist()
            safe = [f"'{text}" if text and _FORMULA.match(text) else text for text in texts]
            rows = rows.set_column(number, column.name, pa.array(safe, pa.string()))
    sink = io.BytesIO()
    names = [f"'{name}" if _FORMULA.match(name) else name for name in rows.column_names]
    csv.write_csv(rows.rename_columns(names), sink)
    return sink.getvalue()


def as_parquet(rows: pa.Table) -> bytes:
    """Parquet, packed with zstd. A column of a type that Parquet has not, such as an
    interval, is written as text.
    """
    for number, column in enumerate(rows.schema):
        try:
            pq.write_table(pa.schema([column]).empty_table(), io.BytesIO())
        except pa.ArrowNotImplementedError:
            rows = _as_texts(rows, number)
    sink = io.BytesIO()
    pq.write_table(rows, sink, compression="zstd")
    return sink.getvalue()


def _is_written_as_it_is(kind: Any) -> bool:
    """Return whether Arrow's CSV writer writes a type as readers expect, also days
    beyond Python's.
    """
    types = pa.types
    return bool(
        types.is_null(kind)
        or types.is_boolean(kind)
        or types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_decimal(kind)
        or types.is_string(kind)
        or (types.is_temporal(kind) and not types.is_interval(kind))
    )


def _as_texts(rows: pa.Table, number: int) -> pa.Table:
    """Return the table with one column as text."""
    values = [
        None if value is None else to_text(value) for value in to_values(rows.column(number))
    ]
    return rows.set_column(number, rows.column_names[number], pa.array(values, pa.string()))


# The order and the page of a table, as the address has them:
# ``sort=datasets.-nacc&page=datasets.2``.


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
    rows = table.every
    used = [
        number
        for number, column in enumerate(table.columns)
        if number < first or any(rows[column.name].to_pylist())
    ]
    bars = used.index(table.bars) if table.bars in used else None
    return replace(table, columns=[table.columns[n] for n in used], rows=rows, bars=bars)
