"""Text for terminals: tables that fit the width, and readable numbers, shares and
volumes, also in messages.

On a terminal a table never wraps: its longest texts are shortened in the middle, as
both ends of a name matter most. In a pipe or a file nothing is shortened, so the next
program gets full names. Only what prints imports click: tasks name numbers, too.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple, overload

from cmsspark.base.text.readable import readable

#: Shown where there is no value.
NOTHING: Final = "–"
#: Below this width a text column is shortened only when nothing else is left to shorten.
_READABLE: Final = 20
_SHORTEST: Final = 3
_GAP: Final = "  "
_UNITS: Final = (("EB", 1e18), ("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


class Coloured(NamedTuple):
    """A cell of a table in a colour, which only a terminal gets."""

    text: str
    colour: str


def terminal_width() -> int | None:
    """Return the width of the terminal on stdout: ``COLUMNS``, else the reported width.

    None if stdout is no terminal.
    """
    if not sys.stdout.isatty():
        return None
    set_by_user = os.environ.get("COLUMNS", "")
    if set_by_user.isascii() and set_by_user.isdigit() and int(set_by_user):
        return int(set_by_user)
    return shutil.get_terminal_size().columns or None


def drop_stdout() -> None:
    """Drop what is still to be printed: the reader of stdout has gone, and at exit
    nothing may be flushed into it.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def table(
    headings: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    texts: Collection[int] = (0,),
    full: Collection[int] = (),
    width: int | None = None,
    indent: str = "  ",
) -> list[str]:
    """Return ``rows`` under ``headings``, a line each.

    Columns in ``texts`` hold text and begin at the left; all others hold numbers and
    end at the right. A table wider than ``width`` has the texts of its widest ``texts``
    columns shortened, except of those in ``full``. None in a row is shown as a dash,
    whole numbers with separators.
    """
    import click

    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(len(line[i]) for line in [list(headings), *cells]) for i in range(len(headings))]
    if width is not None:
        room = width - len(indent) - len(_GAP) * (len(widths) - 1)
        widths = _narrowed(widths, room, [i for i in texts if i not in full])

    def line(values: Sequence[str], colours: Sequence[str | None]) -> str:
        shown = []
        for i, (text, size, colour) in enumerate(zip(values, widths, colours, strict=True)):
            text = middle(text, size)
            padding = " " * (size - len(text))
            text = click.style(text, fg=colour) if colour else text
            shown.append(text + padding if i in texts else padding + text)
        return (indent + _GAP.join(shown)).rstrip()

    plain = [None] * len(widths)
    colours = [
        [value.colour if isinstance(value, Coloured) else None for value in row] for row in rows
    ]
    return [
        line(headings, plain),
        *(line(values, of) for values, of in zip(cells, colours, strict=True)),
    ]


def echo_table(
    headings: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    texts: Collection[int] = (0,),
    full: Collection[int] = (),
    optional: Sequence[int] = (),
    indent: str = "",
) -> None:
    """Print :func:`table` on stdout, in the terminal's width where stdout is one.

    ``optional`` columns are left out, the last of them first, where a terminal has no
    room for readable names beside them; a line below the table names them.
    """
    width = terminal_width()
    columns = list(range(len(headings)))
    for i in reversed(optional):
        if width is None or _least_width(headings, rows, columns, texts, full, indent) <= width:
            break
        columns.remove(i)
    lines = table(
        [headings[i] for i in columns],
        [[row[i] for i in columns] for row in rows],
        texts=[position for position, i in enumerate(columns) if i in texts],
        full=[position for position, i in enumerate(columns) if i in full],
        width=width,
        indent=indent,
    )
    import click

    for line in lines:
        click.echo(line)
    if left_out := [name for i, name in enumerate(headings) if i not in columns]:
        click.echo(
            hanging(
                f"{indent}columns hidden in this width: ",
                ", ".join(left_out),
                len(indent) + 2,
                width,
            )
        )


def echo_list(headings: tuple[str, str], items: Mapping[str, str]) -> None:
    """Print names with a text beside each, which continues below itself where the
    terminal is too narrow for it.
    """
    import click

    rows, width = [headings, *items.items()], terminal_width()
    names = max(len(name) for name, _ in rows)
    for name, text in rows:
        click.echo(hanging(f"{name:<{names}}{_GAP}", text, names + len(_GAP), width))


def hanging(lead: str, text: str, indent: int, width: int | None) -> str:
    """Return ``lead`` and ``text`` in lines that fit ``width``, those after the first
    indented by ``indent`` blanks.

    In a pipe (``width`` None), and where little room is left beside the indent, it is one line.
    """
    if width is None or len(lead + text) <= width or width - indent < _READABLE:
        return lead + text
    wrapper = textwrap.TextWrapper(
        width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    )
    return wrapper.fill(lead + text)


def _least_width(
    headings: Sequence[str],
    rows: Sequence[Sequence[object]],
    columns: Sequence[int],
    texts: Collection[int],
    full: Collection[int],
    indent: str,
) -> int:
    """Return the width of a table of these columns whose texts are as short as they can be read."""
    sizes = [
        max(len(text) for text in (headings[i], *(_cell(row[i]) for row in rows))) for i in columns
    ]
    least = [
        min(size, _READABLE) if i in texts and i not in full else size
        for i, size in zip(columns, sizes, strict=True)
    ]
    return len(indent) + sum(least) + len(_GAP) * (len(least) - 1)


def _narrowed(widths: list[int], room: int, columns: list[int]) -> list[int]:
    """Return widths that fit into ``room``, as far as ``columns`` can give way: the
    widest of them first.
    """
    widths = list(widths)
    for least in (_READABLE, _SHORTEST):
        while sum(widths) > room and (wide := [i for i in columns if widths[i] > least]):
            widths[max(wide, key=lambda i: widths[i])] -= 1
    return widths


def middle(text: str, width: int) -> str:
    """Return ``text`` shortened in its middle to ``width`` characters; both ends of a
    dataset name matter most.
    """
    if len(text) <= width:
        return text
    head = (width - 1) // 2
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"


@overload
def volume(count: float) -> str: ...
@overload
def volume(count: None) -> None: ...
@overload
def volume(count: float | None) -> str | None: ...
def volume(count: float | None) -> str | None:
    """Return a number of bytes with a unit, in powers of 1000; None stays None.

    Example:
        >>> volume(1_234_567), volume(999_960_000), volume(999)
        ('1.2 MB', '1.0 GB', '999 B')
    """
    if count is None:
        return None
    for unit, size in _UNITS:
        # What rounds up to 1,000 of a unit has the next one.
        if count >= size * 0.99995:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} B"


def number(value: float | None, sign: str = "") -> str:
    """Return a whole number with separators, and with its sign where ``sign`` is ``+``;
    a dash for None.

    Integers are written exactly, however large.
    """
    if value is None:
        return NOTHING
    return format(value, f"{sign},{'d' if isinstance(value, int) else '.0f'}")


def percent(share: float | None) -> str:
    """Return a share between 0 and 1 in percent; a small share other than 0 is
    ``<0.01%``. A dash for None.
    """
    if share is None:
        return NOTHING
    return f"{share:.2%}" if share >= 0.0001 or not share else "<0.01%"


def printable(text: str) -> str:
    """Return ``text`` with control characters escaped, such as ``\\x1b``."""
    return readable(text, lines=False)


def _cell(value: object) -> str:
    if value is None:
        return NOTHING
    if isinstance(value, Coloured):
        return printable(value.text)
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else printable(str(value))


def is_or_are(number: int) -> str:
    """Return ``is`` for one thing, else ``are``."""
    return "is" if number == 1 else "are"


def pluralize(number: int, noun: str, plural: str = "") -> str:
    """Return ``number`` with commas and its noun. ``plural``: where it is not the noun with an s.

    Example:
        >>> pluralize(1, "day"), pluralize(1204, "file"), pluralize(2, "replica of a day", "replicas of a day")
        ('1 day', '1,204 files', '2 replicas of a day')
    """
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"
