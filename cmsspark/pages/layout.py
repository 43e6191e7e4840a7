"""The layout of every page that is a file: reports, suites, caches, forecasts, models,
and the site.

``layout.html`` has the page and its parts. A page is one file without scripts and
external resources. All texts are escaped, control characters too; what is HTML already
is ``Markup`` or a chart.
"""

from __future__ import annotations

import calendar
from collections.abc import Callable, Iterable, Sequence
from datetime import date
from functools import cache
from typing import Any

from markupsafe import Markup

from cmsspark.base.resources import read_text
from cmsspark.base.text.terminal import printable
from cmsspark.pages.svg import COLOURS, DARK_COLOURS, SHAPES


@cache
def _macros() -> Any:
    # Not imported with the module: jinja2 takes 70 ms.
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        finalize=_shown,
    )
    return environment.from_string(read_text("pages/layout.html")).module


def _shown(value: Any) -> Any:
    # A lone surrogate, of a file name that is not UTF-8, cannot be written.
    return value if hasattr(value, "__html__") else printable(str(value))


def _macro(name: str) -> Callable[..., Markup]:
    return lambda *values: getattr(_macros(), name)(*values)


#: Numbers beside each other: (value, what it is).
facts = _macro("facts")
#: A list of texts.
items = _macro("items")
#: A chart with its heading: name, title, about, chart.
picture = _macro("picture")
bins = _macro("bins")
trends = _macro("trends")
months = _macro("months")
_section = _macro("section")
_table = _macro("table")


def month_grids(days: Iterable[date]) -> list[tuple[str, list[list[date | None]]]]:
    """Return the months of days, the newest first: its name, and its weeks from Monday,
    None for other months' days.
    """
    months = sorted({(day.year, day.month) for day in days}, reverse=True)
    return [
        (
            f"{calendar.month_name[month]} {year}",
            [
                [date(year, month, number) if number else None for number in week]
                for week in calendar.monthcalendar(year, month)
            ],
        )
        for year, month in months
    ]


def document(
    title: str, parts: Iterable[Any], about: Any = "", links: Markup | None = None
) -> str:
    """Return a whole page. ``links``: what stands at its top."""
    return str(_macros().document(title, _style(), parts, about, links))


def section(title: str, *parts: Any, about: str = "", kind: str = "") -> Markup:
    """Return a part of a page with a heading; a chart scrolls where it is wider than the window."""
    return _section(title, parts, about, kind)


def table(
    heads: Sequence[str], rows: Iterable[Sequence[Any]], text: Sequence[int] = (0,)
) -> Markup:
    """Return a table; the columns ``text`` are aligned to the left, and None is a dash."""
    return _table(heads if any(heads) else (), rows, text)


def safe(words: object) -> Markup:
    """Return a text as HTML, with control characters escaped."""
    return Markup.escape(_shown(words))


def badge(kind: str, words: str) -> Markup:
    """Return a verdict. ``kind``: good, warn or bad."""
    return Markup('<span class="badge {}">{}</span>').format(kind, safe(words))


def code(words: object) -> Markup:
    """Return a path or an id."""
    return Markup("<code>{}</code>").format(safe(words))


@cache
def _style() -> Markup:
    """Return the style sheet with the colours of charts; on paper they are those of light pages."""
    light, dark = (
        "".join(f".{name}{{color:{colour}}}" for name, colour in colours.items())
        for colours in (COLOURS, DARK_COLOURS)
    )
    sheet = f"{SHAPES}\n{light}\n@media screen and (prefers-color-scheme: dark){{{dark}}}\n"
    return Markup(sheet + read_text("pages/report.css"))  # noqa: S704 - our own text
