"""What pages are made of: figures, tables, charts, heat maps, forms. Pure data;
``templates/`` draw them.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from cmsspark.apps.dashboard.tables import NOTHING as NOTHING
from cmsspark.apps.dashboard.tables import ArrowRows as ArrowRows
from cmsspark.apps.dashboard.tables import Column as Column
from cmsspark.apps.dashboard.tables import Kind as Kind
from cmsspark.apps.dashboard.tables import Order as Order
from cmsspark.apps.dashboard.tables import Table as Table
from cmsspark.apps.dashboard.tables import exact as exact
from cmsspark.apps.dashboard.tables import formatted as formatted
from cmsspark.apps.dashboard.tables import make_table as make_table
from cmsspark.apps.dashboard.tables import ratio as ratio
from cmsspark.apps.dashboard.tables import shown as shown
from cmsspark.apps.dashboard.tables import si as si
from cmsspark.pages.layout import month_grids
from cmsspark.sources.registry import STREAMS_BY_NAME

if TYPE_CHECKING:
    import pyarrow as pa


# The colours of series: a name has the same one on every page and in every period.

#: The last of the palette in ``static/dashboard.css`` is that of the rest.
REST: Final = 14
_OTHER: Final = "other"
#: Names that many pages show, each with its colour.
_TIERS: Final = (
    (
        "MINIAOD",
        "MINIAODSIM",
        "AODSIM",
        "NANOAODSIM",
        "GEN-SIM",
        "AOD",
        "RAW",
        "NANOAOD",
        "RECO",
        "GEN-SIM-RAW",
    ),
    ("T2", "T1", "T3", "T0"),
    ("local", "remote", "not known"),
    tuple(STREAMS_BY_NAME),
    ("outlier", "removed", "ok", "", "", "failed"),
)
_FIXED: Final[Mapping[str, int]] = {
    name: number for names in _TIERS for number, name in enumerate(names) if name
}


def colours(names: Sequence[str]) -> list[int]:
    """Return the number of each name's colour. Names of a chart differ while there are
    colours enough.

    Example:
        >>> colours(["T1", "other"])
        [1, 14]
    """
    used = {_FIXED[name] for name in names if name in _FIXED}
    result = []
    for name in names:
        if name == _OTHER:
            result.append(REST)
            continue
        number = _FIXED.get(name)
        if number is None:
            first = zlib.crc32(name.encode()) % REST if len(names) > 1 else 0
            number = next(
                (n % REST for n in range(first, first + REST) if n % REST not in used), first
            )
            used.add(number)
        result.append(number)
    return result


class Chart(msgspec.Struct, frozen=True):
    """Lines, stacked areas, bars or stacked bars (columns) over labels, with the same
    values as a table below it.

    ``series``: name → values, None where there is none. ``unit``: ``B``, ``h``, ``%``
    or empty for counts. ``has_gaps``: a value that is not there is unknown, and a stack
    does not draw it as 0.
    """

    name: str
    title: str
    kind: Literal["line", "stack", "bar", "columns"]
    labels: Sequence[str]
    series: Mapping[str, Sequence[float | int | None]]
    unit: str = ""
    x_title: str = "Day (UTC)"
    y_title: str = ""
    is_log_x: bool = False
    note: str = ""
    table: Table | None = None
    x_values: Sequence[float] = ()
    target: float | None = None
    has_gaps: bool = False

    @property
    def drawn(self) -> dict[str, list[float | int | None]]:
        """The series as they are drawn. In a stack a group without a value lies flat
        where another one has a value. If the chart has gaps, the group and all above it
        are not drawn there, as their sum is unknown.
        """
        drawn = {name: list(values) for name, values in self.series.items()}
        if self.kind != "stack":
            return drawn
        for step, values in enumerate(zip(*self.series.values(), strict=True)):
            first = next((n for n, value in enumerate(values) if value is None), len(values))
            has_any = any(value is not None for value in values)
            for number, name in enumerate(drawn):
                if self.has_gaps and number > first:
                    drawn[name][step] = None
                elif not self.has_gaps and values[number] is None and has_any:
                    drawn[name][step] = 0
        return drawn

    @property
    def as_json(self) -> str:
        """The values for the script, which shows those of the step under the pointer."""
        return json.dumps(
            {
                "name": self.name,
                "labels": list(self.labels),
                "series": [
                    {"name": shown(name), "values": list(values), "colour": colour}
                    for (name, values), colour in zip(
                        self.drawn.items(), colours(list(self.series)), strict=True
                    )
                ],
                "unit": self.unit,
                "isStack": self.kind in ("stack", "columns"),
            },
            ensure_ascii=True,
        )

    @property
    def is_empty(self) -> bool:
        return not any(value for values in self.series.values() for value in values)


class HeatMap(msgspec.Struct, frozen=True):
    """Values of rows by columns as shades, each with its number. ``every``: the rows of its
    download, also those that are not shown.
    """

    name: str
    caption: str
    rows: Sequence[str]
    columns: Sequence[str]
    values: Mapping[tuple[str, str], int]
    every: pa.Table
    kind: Kind = "bytes"
    links: Mapping[str, str] = msgspec.field(default_factory=dict)

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


class Figure(msgspec.Struct, frozen=True):
    """One number with its label; ``exact`` is written out below it."""

    label: str
    value: str
    exact: str = ""
    note: str = ""


class Figures(msgspec.Struct, frozen=True):
    """Some numbers beside each other."""

    figures: Sequence[Figure]


class Calendar(msgspec.Struct, frozen=True):
    """Months as grids of days. ``days``: day → (word, its colour class, a title, a
    link). ``legend``: (word, class, meaning).
    """

    days: Mapping[date, tuple[str, str, str, str]]
    caption: str
    legend: Sequence[tuple[str, str, str]] = ()

    @property
    def months(self) -> list[tuple[str, list[list[date | None]]]]:
        """The newest month first: its name, and its weeks from Monday, None for days of
        other months.
        """
        return month_grids(self.days)


class Fold(msgspec.Struct, frozen=True):
    """Parts of a page behind a summary, closed at first. ``note`` stands beside the summary.
    ``source``: the address of a page whose part of the same ``name`` is fetched when it opens.
    """

    title: str
    items: Sequence[Any]
    note: str = ""
    source: str = ""
    name: str = ""


class Search(msgspec.Struct, frozen=True):
    """A field of its own form, which stands at what it searches. All other choices of
    the page stay.
    """

    name: str
    label: str
    value: str
    suggestions: str = ""
    placeholder: str = ""


class Note(msgspec.Struct, frozen=True):
    """A sentence that a reader must see. ``kind``: info, warn or bad."""

    text: str
    kind: Literal["info", "warn", "bad"] = "info"


class Control(msgspec.Struct, frozen=True):
    """A field of the page's form: a choice, some choices (``many``), a day, a text, a
    number, or links that set others.

    ``chosen``: the values of ``many``. ``completions``: the address of the words that
    an area completes.
    """

    name: str
    label: str
    value: str
    choices: Sequence[tuple[str, str]] | None = None
    kind: Literal[
        "select", "many", "date", "search", "text", "area", "number", "hidden", "links"
    ] = "select"
    suggestions: str = ""
    wide: bool = False
    limits: tuple[str, str] = ("", "")
    chosen: Sequence[str] = ()
    completions: str = ""

    @property
    def chip(self) -> str:
        """The choice in a few words, where it is one; else nothing."""
        if self.kind == "many":
            return f"{self.label}: {', '.join(map(shown, self.chosen))}" if self.chosen else ""
        if self.kind in ("hidden", "links", "area") or not self.value:
            return ""
        return f"{self.label}: {dict(self.choices or ()).get(self.value, shown(self.value))}"


class Section(msgspec.Struct, frozen=True):
    """A part of a page with a heading."""

    title: str
    items: Sequence[Any]
    about: str = ""
    #: Two sections with this beside each other share a row where there is room.
    is_half: bool = False
    #: What answers the same on the command line.
    command: str = ""


class Content(msgspec.Struct, frozen=True):
    """A page: its heading, its form, and its sections. ``is_busy``: it lacks what it was
    asked for, as others use the server.
    """

    title: str
    sections: Sequence[Section]
    about: str = ""
    controls: Sequence[Control] = ()
    notes: Sequence[Note] = ()
    button: str = "Show"
    is_busy: bool = False

    def items(self) -> Iterator[Any]:
        """Yield the parts of all sections, also those in folds."""
        queue = [item for section in self.sections for item in section.items]
        while queue:
            item = queue.pop(0)
            if isinstance(item, Fold):
                queue[:0] = item.items
            else:
                yield item


def count_figure(label: str, count: int | None, note: str = "") -> Figure:
    """Return the figure of a number of things."""
    return Figure(
        label, si(count), f"{count:,}" if count is not None and count >= 1000 else "", note
    )


def bytes_figure(label: str, size: int | None) -> Figure:
    """Return a volume."""
    return Figure(
        label,
        si(size, "B"),
        "no stream here logs bytes" if size is None else f"{size:,} B" if size >= 1000 else "",
    )


def jobs_figure(count: int | None, size: int | None) -> Figure:
    """Return the figure of a number of jobs and what they read."""
    return count_figure(
        "Jobs", count, "" if size is None else f"read {si(size, 'B')} ({size:,} B)"
    )


def cpu_figure(milliseconds: int | None) -> Figure:
    """CPU time, which the logs of jobs have."""
    if milliseconds is None:
        return Figure("CPU hours", NOTHING, "no stream here logs CPU")
    return Figure(
        "CPU hours", si(milliseconds / 3_600_000), f"{milliseconds / 1000:,.3f} s, of jobs"
    )
