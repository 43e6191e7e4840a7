"""What a page shows: period, filters, measure and grouping are one object, which a
query takes whole.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import date, timedelta
from functools import cached_property
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from cmsspark.base import dates
from cmsspark.base.errors import UsageError
from cmsspark.sources.registry import ACCESS_STREAMS, STREAMS_OF_JOBS

#: Filters on accesses: the column, and its label.
FILTERS: Final[Mapping[str, str]] = {
    "stream": "Stream",
    "data_tier": "Data tier",
    "site_tier": "Site tier",
    "campaign": "Campaign",
}
#: The period where the address names none: the newest month and so many before it,
#: which are whole segments.
DEFAULT_MONTHS: Final = 2
#: Name → (label, DuckDB's part of a date).
STEPS: Final[Mapping[str, tuple[str, str]]] = {
    "day": ("Days", "day"),
    "week": ("ISO weeks", "week"),
    "month": ("Months", "month"),
}
_MAX_TEXT: Final = 1_000


class UnusedPartError(Exception):
    """A query would answer without a part of the selection, which is a bug of the page:
    its numbers would be those of something else.
    """


class Selection(msgspec.Struct, frozen=True, dict=True):
    """Days from ``first`` to ``last`` (both included), the accesses and jobs that the
    page is about, and what is asked of them.

    ``filters``: (column of ``FILTERS``, ``site_name``, ``day`` or ``dataset``, and a value);
    a column with several values takes each of them, and ``dataset`` has one value, a tuple
    of numbers. ``step``: day, week or month. ``measure`` and ``by``, the column of the
    grouping, are empty where a query needs none.
    """

    first: date
    last: date
    filters: tuple[tuple[str, Any], ...] = msgspec.field(default=())
    step: str = "day"
    measure: str = ""
    by: str = ""

    def check(
        self,
        filters: Iterable[str],
        *,
        groups: Collection[str] = (),
        measures: Collection[str] = (),
    ) -> None:
        """Raise UnusedPartError where a query that can use these filters, groupings and
        measures would leave out a part of the selection.
        """
        unused = [
            *sorted({name for name, _ in self.filters} - {*filters}),
            *([f"by {self.by}"] if self.by and self.by not in groups else []),
            *(
                [f"measure {self.measure}"]
                if self.measure and self.measure not in measures
                else []
            ),
        ]
        if unused:
            raise UnusedPartError(", ".join(unused))

    def only(self, *filters: str) -> Selection:
        """Return the period with some of the filters, without measure and grouping."""
        chosen = tuple((name, value) for name, value in self.filters if name in filters)
        return replace(self, filters=chosen, measure="", by="")

    def with_values(self, column: str, *values: Any) -> Selection:
        """Return the selection with these values of a column in place of its own."""
        filters = tuple(pair for pair in self.filters if pair[0] != column)
        return replace(self, filters=(*filters, *((column, value) for value in values)))

    def where(
        self, columns: Sequence[str] | Mapping[str, str], *, days_too: bool = True
    ) -> tuple[str, list[object]]:
        """Return the condition in SQL on a table that has these columns, and its
        parameters. A mapping has the condition of each column, ``{}`` for its values.

        Raises UnusedPartError where the table lacks a column that is filtered.
        """
        templates = (
            columns
            if isinstance(columns, Mapping)
            else {name: f"{name} IN ({{}})" for name in columns}
        )
        replace(self, measure="", by="").check(templates)
        conditions = ["day BETWEEN ? AND ?"] if days_too else ["true"]
        parameters: list[object] = [self.first, self.last] if days_too else []
        for name, template in templates.items():
            if values := self.values(name):
                conditions.append(template.format(", ".join("?" * len(values))))
                parameters += values
        return " AND ".join(conditions), parameters

    @property
    def is_of_jobs(self) -> bool:
        """Whether all its streams count jobs, not accesses."""
        streams = self.values("stream")
        return bool(streams) and all(name in STREAMS_OF_JOBS for name in streams)

    @property
    def streams_of_users(self) -> tuple[str, ...]:
        """The streams whose users are counted: those of accesses, or those of jobs
        where there are no others.
        """
        streams = self.values("stream")
        return (
            streams
            if self.is_of_jobs
            else tuple(name for name in streams or ACCESS_STREAMS if name not in STREAMS_OF_JOBS)
        )

    def value(self, column: str) -> str | None:
        """Return the only value that a column is filtered to; None for all and for several."""
        values = self.values(column)
        return values[0] if len(values) == 1 else None

    def values(self, column: str) -> tuple[str, ...]:
        """Return the values that a column is filtered to; none for all."""
        return tuple(value for name, value in self.filters if name == column)

    def find_bucket(self, day: date) -> date:
        """Return the first day of the day's step."""
        if self.step == "week":
            return day - timedelta(days=day.isoweekday() - 1)
        return day.replace(day=1) if self.step == "month" else day

    @cached_property
    def steps(self) -> dict[date, date]:
        """Each day of the period, in order, with the first day of its step."""
        count = (self.last - self.first).days + 1
        days = (self.first + timedelta(days=number) for number in range(count))
        return {day: self.find_bucket(day) for day in days}

    def list_days(self, bucket: date) -> list[date]:
        """Return all days of the step that begins on ``bucket``, also those outside of the period."""
        days = [
            bucket + timedelta(days=number)
            for number in range({"day": 1, "week": 7, "month": 31}[self.step])
        ]
        return [day for day in days if self.find_bucket(day) == bucket]

    @cached_property
    def buckets(self) -> list[date]:
        """The first days of all steps of the period, in order."""
        return list(dict.fromkeys(self.steps.values()))


def text_parameter(parameters: Mapping[str, str], name: str) -> str:
    """Return a text of the address. Raises UsageError (2) for one that is too long."""
    text = parameters.get(name, "")
    if len(text) > _MAX_TEXT:
        raise UsageError(f"{name} has at most {_MAX_TEXT:,} characters", found=f"{len(text):,}")
    return text


def choice_parameter(
    parameters: Mapping[str, str], name: str, choices: Sequence[str], default: str
) -> str:
    """Return one of several words. Raises UsageError (2) for another one."""
    text = text_parameter(parameters, name) or default
    if text not in choices:
        raise UsageError(f"{name} is one of {', '.join(choices)}", found=repr(text[:80]))
    return text


def number_parameter(
    parameters: Mapping[str, str], name: str, default: int, least: int, most: int
) -> int:
    """Return a whole number within limits. Raises UsageError (2) for anything else."""
    text = text_parameter(parameters, name)
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 12 and least <= int(text) <= most):
        raise UsageError(
            f"{name} is a whole number from {least:,} to {most:,}", found=repr(text[:80])
        )
    return int(text)


def day_parameter(parameters: Mapping[str, str], name: str, default: date) -> date:
    """Return a day. Raises UsageError (2) for another text."""
    text = text_parameter(parameters, name)
    return dates.parse_day(text) if text else default


def presets(stored: Sequence[date]) -> list[tuple[str, date, date]]:
    """Return usual periods up to the newest stored day: label, first and last day."""
    newest = stored[-1]
    lengths = (("Last week", 7), ("Month", 30), ("Quarter", 91), ("Year", 365))
    periods = [(label, newest - timedelta(days=count - 1), newest) for label, count in lengths]
    return [*periods, ("All days", stored[0], newest)]


def parse_selection(parameters: Mapping[str, str], stored: Sequence[date]) -> Selection:
    """Return the period and filters of an address, for a store that holds these days.

    Without a period it is the month of the newest stored day up to that day, and the
    two months before it. Raises UsageError (2) for wrong values.
    """
    newest, oldest = stored[-1], stored[0]
    last = day_parameter(parameters, "to", newest)
    default = (
        max(oldest, dates.months_before(last.replace(day=1), DEFAULT_MONTHS))
        if last >= oldest
        else last
    )
    first = day_parameter(parameters, "from", default)
    if first > last:
        raise UsageError(
            f"the period begins on {first} and ends before it, on {last}",
            next_step="exchange them",
        )
    if (last - first).days >= 3_660:
        raise UsageError("a period has ten years at most", found=f"{first} to {last}")
    filters = tuple((name, value) for name in FILTERS for value in filter_values(parameters, name))
    return Selection(first, last, filters, _step(parameters, (last - first).days + 1))


def filter_values(parameters: Mapping[str, Any], name: str) -> list[str]:
    """Return the values of a filter, each once; none for all. ``-`` stands for names
    without that part.
    """
    value = parameters.get(name) or ()
    texts = [
        text_parameter({name: text}, name)
        for text in ((value,) if isinstance(value, str) else value)
    ]
    return ["" if text == NO_PART else text for text in sorted(set(texts)) if text]


#: What stands in the address and on the page for a name that has no such part.
NO_PART: Final = "-"


def _step(parameters: Mapping[str, str], day_count: int) -> str:
    default = "day" if day_count <= 100 else "week"
    return choice_parameter(parameters, "step", list(STEPS), default)
