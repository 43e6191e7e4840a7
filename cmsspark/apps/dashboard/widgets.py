"""What pages are made of: figures, tables, charts, heat maps, forms. Pure data; ``templates/`` draw them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal

from cmsspark.base.clock import to_second
from cmsspark.base.text.plurals import number_of
from cmsspark.base.text.readable import readable

if TYPE_CHECKING:
    import pyarrow as pa

#: How a value is shown. ``ms`` are milliseconds of CPU or wall-clock time, ``instant`` UTC ms since 1970.
Kind = Literal["text", "count", "bytes", "ms", "share", "day", "instant", "yes"]
NOTHING: Final = "–"
_PREFIXES: Final = ("", "k", "M", "G", "T", "P", "E", "Z", "Y")


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
class Table:
    """Rows under headings. ``name`` is that of its download; ``download`` makes all its rows, exact values, as Arrow.

    ``row_count``: of all rows, where ``rows`` has only some. ``limit``: the rows that the page shows at most. ``bars``:
    the position of the column that is drawn as bars.
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

    @property
    def visible(self) -> Sequence[Sequence[Any]]:
        """The rows that the page shows."""
        return self.rows[: self.limit]

    @property
    def shown(self) -> str:
        """How many of its rows are shown."""
        count = len(self.rows) if self.row_count is None else self.row_count
        if count > len(self.visible):
            return f"{len(self.visible):,} of {count:,} rows; the downloads have all"
        return number_of(count, "row")

    def share(self, row: Sequence[Any]) -> int:
        """The length of a row's bar in percent of the largest."""
        assert self.bars is not None
        return round(100 * (row[self.bars] or 0) / self._largest) if self._largest else 0

    @cached_property
    def _largest(self) -> Any:
        assert self.bars is not None
        return max((value for row in self.rows if (value := row[self.bars]) is not None), default=0)


@dataclass(frozen=True)
class Chart:
    """Lines, stacked areas or bars over labels, with the same values as a table below it.

    ``series``: name → values, None where there is none. ``unit``: ``B``, ``h``, ``%`` or empty for counts.
    """

    name: str
    title: str
    kind: Literal["line", "stack", "bar"]
    labels: Sequence[str]
    series: Mapping[str, Sequence[float | int | None]]
    unit: str = ""
    x_title: str = "Day (UTC)"
    y_title: str = ""
    is_log_x: bool = False
    note: str = ""
    table: Table | None = None

    @property
    def as_json(self) -> str:
        """What the script draws."""
        return json.dumps(
            {
                "kind": self.kind,
                "title": self.title,
                "labels": list(self.labels),
                "series": [{"name": shown(name), "values": list(values)} for name, values in self.series.items()],
                "unit": self.unit,
                "xTitle": self.x_title,
                "yTitle": self.y_title,
                "logX": self.is_log_x,
            },
            ensure_ascii=True,
        )

    @property
    def is_empty(self) -> bool:
        return not any(value for values in self.series.values() for value in values)


@dataclass(frozen=True)
class HeatMap:
    """Values of rows by columns as shades, each with its number."""

    name: str
    caption: str
    rows: Sequence[str]
    columns: Sequence[str]
    values: Mapping[tuple[str, str], int]
    kind: Kind = "bytes"
    download: Callable[[], pa.Table] | None = None
    links: Mapping[str, str] = field(default_factory=dict)

    def shade(self, row: str, column: str) -> int:
        """0 to 9: the decade and half of a value below the largest one."""
        value = self.values.get((row, column), 0)
        if value <= 0:
            return 0
        largest = max(self.values.values())
        steps = 0
        while value * 10 <= largest and steps < 4:
            value *= 10
            steps += 1
        return max(1, 9 - 2 * steps - (1 if value * 3 <= largest else 0))


@dataclass(frozen=True)
class Figure:
    """One number with its label; ``exact`` is written out below it."""

    label: str
    value: str
    exact: str = ""
    note: str = ""


@dataclass(frozen=True)
class Figures:
    """Some numbers beside each other."""

    figures: Sequence[Figure]


@dataclass(frozen=True)
class Calendar:
    """Rows of days by columns of jobs: a word for each, with its colour class, a title and a link."""

    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[tuple[str, str, str, str]]]]
    caption: str
    legend: Sequence[tuple[str, str, str]] = ()


@dataclass(frozen=True)
class Note:
    """A sentence that a reader must see. ``kind``: info, warn or bad."""

    text: str
    kind: Literal["info", "warn", "bad"] = "info"


@dataclass(frozen=True)
class Control:
    """A field of the page's form: a choice, a day, a text or a number."""

    name: str
    label: str
    value: str
    choices: Sequence[tuple[str, str]] | None = None
    kind: Literal["select", "date", "search", "text", "area", "number", "hidden"] = "select"
    suggestions: str = ""
    wide: bool = False
    limits: tuple[str, str] = ("", "")


@dataclass(frozen=True)
class Section:
    """A part of a page with a heading."""

    title: str
    items: Sequence[Any]
    about: str = ""
    #: Two sections with this beside each other share a row where there is room.
    is_half: bool = False


@dataclass(frozen=True)
class Content:
    """A page: its heading, its form, and its sections."""

    title: str
    sections: Sequence[Section]
    about: str = ""
    controls: Sequence[Control] = ()
    notes: Sequence[Note] = ()
    button: str = "Show"


def si(value: float | None, unit: str = "", digits: int = 3) -> str:
    """A number with an SI prefix: ``1.23 PB``, ``45.6 M``; exact below 1,000."""
    if value is None:
        return NOTHING
    power = 0
    number = float(value)
    while abs(number) >= 999.5 and power < len(_PREFIXES) - 1:
        number /= 1000
        power += 1
    if power == 0:
        text = f"{value:,}" if isinstance(value, int) else f"{number:,.3g}"
    else:
        text = f"{number:.{max(0, digits - len(str(int(abs(number)))))}f}"
    return f"{text} {_PREFIXES[power]}{unit}".strip()


def count_figure(label: str, count: int | None) -> Figure:
    """A number of things."""
    return Figure(label, si(count), f"{count:,}" if count is not None else "")


def bytes_figure(label: str, size: int | None) -> Figure:
    """A volume."""
    return Figure(label, si(size, "B"), f"{size:,} B" if size is not None else "no stream here logs bytes")


def cpu_figure(milliseconds: int | None) -> Figure:
    """CPU time, which the logs of jobs have."""
    if milliseconds is None:
        return Figure("CPU hours", NOTHING, "no stream here logs CPU")
    return Figure("CPU hours", si(milliseconds / 3_600_000), f"{milliseconds / 1000:,.3f} s, of jobs")


def shown(text: object) -> str:
    """A name as it is shown: control characters escaped, ``(none)`` for an empty one."""
    return readable(str(text), lines=False) if text not in (None, "") else "(none)"


def formatted(value: Any, kind: Kind) -> str:
    """A value as text."""
    if value is None:
        return NOTHING
    if kind == "count":
        return f"{value:,}"
    if kind == "bytes":
        return si(int(value), "B")
    if kind == "ms":
        return f"{value / 3_600_000:,.1f}"
    if kind == "share":
        return f"{value:.1%}" if value >= 0.001 or not value else "<0.1%"
    if kind == "instant":
        return f"{to_second(int(value))} UTC"
    if kind == "yes":
        return "yes" if value else "no"
    return shown(value)


def exact(value: Any, kind: Kind) -> str:
    """The exact value, where the text rounds it; else nothing."""
    if kind == "bytes" and value is not None and value >= 1000:
        return f"{int(value):,} B"
    if kind == "ms" and value is not None:
        return f"{value / 1000:,.3f} s"
    return ""
