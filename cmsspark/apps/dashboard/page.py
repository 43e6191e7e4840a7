"""A page as it is made: the fields of its form, its notes and its sections, in order;
charts of values over time; an error above the form that led to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from msgspec.structs import replace
from werkzeug.datastructures import MultiDict

from cmsspark.apps.dashboard import selection
from cmsspark.apps.dashboard.selection import (
    FILTERS,
    NO_PART,
    STEPS,
    Selection,
    choice_parameter,
)
from cmsspark.apps.dashboard.use import MEASURES, OF_JOBS, Series
from cmsspark.apps.dashboard.widgets import (
    Chart,
    Column,
    Content,
    Control,
    Figure,
    Kind,
    Note,
    Section,
    Table,
    bytes_figure,
    cpu_figure,
    jobs_figure,
    shown,
)
from cmsspark.base.errors import CmssparkError
from cmsspark.base.text.readable import readable

if TYPE_CHECKING:
    from cmsspark.apps.dashboard.page_request import PageRequest
    from cmsspark.apps.dashboard.snapshot import Snapshot

T = TypeVar("T")


class Page:
    """Collects the parts of a page. A parameter of the address and its field are one: such a
    method returns the value, and raises UsageError (2) for one that the field does not take.
    """

    def __init__(self, request: PageRequest) -> None:
        self.request = request
        self.parameters = request.parameters
        self.controls: list[Control] = []
        self.notes: list[Note] = []
        self.sections: list[Section] = []

    def content(self, title: str, about: str = "", **more: Any) -> Content:
        """Return the page."""
        return Content(title, self.sections, about, self.controls, self.notes, **more)

    def section(self, title: str, *items: Any, **more: Any) -> None:
        """Add a section of the items that are not None; nothing without any."""
        if items := tuple(item for item in items if item is not None):
            self.sections.append(Section(title, items, **more))

    def note(self, text: str, kind: Literal["info", "warn", "bad"] = "info") -> None:
        """Add a note."""
        self.notes.append(Note(text, kind))

    def needs(self, *names: str) -> bool:
        """Return whether to make the part with one of these names: a page has all parts,
        and a download one of them.
        """
        return (self.parameters.get("download") or names[0]) in names

    def optional(self, subject: str, make: Callable[[], T]) -> T | None:
        """Return a part of the page; where what it is made from cannot be read, None, and
        a note says so.
        """
        try:
            return make()
        except CmssparkError as error:
            self.note(f"{subject} cannot be read: {' '.join(error.text().split())}", "bad")
            return None

    def choose(
        self,
        name: str,
        label: str,
        choices: Mapping[str, str] | Iterable[str],
        default: str | None = None,
        *,
        every: str = "",
    ) -> str:
        """Take one of some words, or of a mapping's keys, which are shown as its values; by
        default the first one. ``every``: what an empty choice, which comes first, is called.
        """
        options = {"": every} if every else {}
        options |= (
            choices if isinstance(choices, Mapping) else {word: shown(word) for word in choices}
        )
        if default is None or (every and name in self.parameters):
            default = next(iter(options))
        value = selection.choice_parameter(self.parameters, name, list(options), default)
        self.controls.append(Control(name, label, value, list(options.items())))
        return value

    def many(
        self, name: str, label: str, choices: Mapping[str, str], chosen: Sequence[str]
    ) -> None:
        """Add a field of several values, which the page has read."""
        options = list(choices.items())
        self.controls.append(Control(name, label, "", options, "many", chosen=chosen))

    def day(
        self, name: str, label: str, default: date, limits: tuple[date, date] | None = None
    ) -> date:
        """Take a day."""
        value = selection.day_parameter(self.parameters, name, default)
        ends = (limits[0].isoformat(), limits[1].isoformat()) if limits else ("", "")
        self.controls.append(Control(name, label, value.isoformat(), kind="date", limits=ends))
        return value

    def number(self, name: str, label: str, default: int, most: int) -> int:
        """Take a whole number from 1 on."""
        value = selection.number_parameter(self.parameters, name, default, 1, most)
        limits = ("1", str(most))
        self.controls.append(Control(name, label, str(value), kind="number", limits=limits))
        return value

    def text(
        self, name: str, label: str, kind: Any = "text", default: str = "", **more: Any
    ) -> str:
        """Take a text."""
        value = selection.text_parameter(self.parameters, name) or default
        self.controls.append(Control(name, label, value, kind=kind, **more))
        return value

    def period(self, chosen: Selection, *, with_step: bool = True) -> None:
        """Add the fields of a period, and links to usual ones."""
        days = self.request.snapshot.stored_days
        limits = (days[0].isoformat(), days[-1].isoformat())
        unset = dict.fromkeys(("from2", "to2", "step", "page"))
        links, current = [], ""
        for label, *ends in selection.presets(days):
            address = {"from": ends[0], "to": ends[1]}
            links.append((self.request.link_here(**unset, **address), label))
            current = current or (label if ends == [chosen.first, chosen.last] else "")
        self.controls.append(Control("presets", "Usual periods", current, links, "links"))
        for name, label, day in (
            ("from", "From", chosen.first),
            ("to", "To (included)", chosen.last),
        ):
            field = Control(name, label, day.isoformat(), kind="date", limits=limits)
            self.controls.append(field)
        if with_step:
            steps = [(name, label) for name, (label, _) in STEPS.items()]
            self.controls.append(Control("step", "In steps of", chosen.step, steps))

    def filters(self, chosen: Selection, names: Sequence[str] = tuple(FILTERS)) -> None:
        """Add the fields of filters, each of which takes several values."""
        for name in names:
            values, stored = chosen.values(name), self.request.snapshot.names[name]
            options = [*(value for value in values if value not in stored), *stored]
            choices = {option or NO_PART: shown(option) for option in options}
            self.many(name, FILTERS[name], choices, [value or NO_PART for value in values])


# Charts of values over time, with their tables.

#: Measure → how its values are shown.
KINDS: Final[Mapping[str, Kind]] = {
    "nacc": "count",
    "users": "count",
    "job_count": "count",
    "read_bytes": "bytes",
    "job_read_bytes": "bytes",
    "cpu_ms": "ms",
}
_PARTIAL: Final = Column(
    "is_partial",
    "Partial",
    "yes",
    "some of its days are outside of the period, not stored, or without a stream",
)
_X: Final = {"day": "Day (UTC)", "week": "ISO week, by its Monday (UTC)", "month": "Month (UTC)"}


def make_chart(name: str, series: Series, chosen: Selection) -> Chart:
    """Return the chart of a selection's measure by its grouping: stacked where the
    groups add up, else lines.

    Of one step the groups are bars: a stack without areas shows points at sums that
    read as values. Steps of which only a part is counted are marked, in the picture and
    in the table. Columns of downloads are named for the measure.
    """
    measure = chosen.measure
    label, unit, factor = MEASURES[measure]
    labels = [
        f"{day:%Y-%m}" if chosen.step == "month" else day.isoformat() for day in series.buckets
    ]
    marked = [
        f"{text} (partial)" if day in series.partial else text
        for day, text in zip(series.buckets, labels, strict=True)
    ]
    is_stack = series.is_additive and len(series.values) > 1 and len(labels) > 1
    # What a day does not count of a stream is unknown, and not nothing. Streams that some
    # days lack are on top, so that a gap hides no other one.
    has_gaps = chosen.by == "stream"
    groups = sorted(series.values, key=lambda name: has_gaps and series.values[name].count(None))
    values = {
        group: [None if value is None else value * factor for value in series.values[group]]
        for group in groups
    }
    note = series.note
    if not series.is_additive and len(series.values) > 1:
        note = f"{note} One person can be in several groups and steps: these numbers do not add up.".strip()
    columns = [Column(chosen.step, STEPS[chosen.step][1].capitalize(), "text"), _PARTIAL]
    columns += [
        Column(measure, "All", KINDS[measure])
        if not chosen.by
        else Column(f"{measure}_{group or NO_PART}", shown(group), KINDS[measure])
        for group in values
    ]
    rows = [
        (text, day in series.partial, *(series.values[group][number] for group in groups))
        for number, (day, text) in enumerate(zip(series.buckets, labels, strict=True))
    ]
    return Chart(
        name,
        f"{label} by {STEPS[chosen.step][1]}",
        "bar" if len(labels) == 1 else "stack" if is_stack else "line",
        marked,
        values if chosen.by or not values else {label: next(iter(values.values()))},
        "" if unit == "h" else unit,
        _X[chosen.step],
        label + (f" per {STEPS[chosen.step][1]}"),
        note=note,
        has_gaps=has_gaps,
        table=Table(name, columns, rows, f"{label} by {STEPS[chosen.step][1]}"),
    )


def pivoted(
    rows: Iterable[tuple[Any, str, float | None]], steps: Sequence[Any]
) -> dict[str, list[float | None]]:
    """Return (step, name, value) as the sums of each name over the steps, rounded to a
    tenth; None where it has no value.
    """
    sums: dict[str, dict[Any, float]] = {}
    for step, name, value in rows:
        of_name = sums.setdefault(shown(name), {})
        if value is not None:
            of_name[step] = of_name.get(step, 0) + value
    return {
        name: [round(cells[step], 1) if step in cells else None for step in steps]
        for name, cells in sums.items()
    }


def table_chart(
    table: Table,
    step: str,
    by: str,
    value: str,
    *,
    steps: Sequence[Any] = (),
    order: Sequence[str] = (),
    kind: Literal["line", "columns"] = "columns",
    unit: str = "",
) -> Chart:
    """Return the sums of a column by step and group as a chart of a table's rows, whose
    headings name the axes.

    ``steps``: all that have a place, by default those of the rows; ``order``: of the
    groups. Shares are drawn in percent.
    """
    rows, headings = table.every, {column.name: column.heading for column in table.columns}
    cells = [rows[name].to_pylist() for name in (step, by, value)]
    factor = 100 if unit == "%" else 1
    values = [None if number is None else factor * number for number in cells[2]]
    steps = steps or sorted({*cells[0]})
    series = pivoted(zip(cells[0], cells[1], values, strict=True), steps)
    names = sorted(series, key=lambda name: (order.index(name) if name in order else -1, name))
    return Chart(
        table.name,
        table.caption,
        kind,
        [f"{entry:02}" if isinstance(entry, int) else str(entry) for entry in steps],
        {name: series[name] for name in names},
        unit,
        "Day (UTC)" if step == "day" else headings[step],
        headings[value],
        table=table,
    )


def cost_figures(snapshot: Snapshot, sums: Mapping[str, int | None]) -> list[Figure]:
    """Return the figures of bytes, of jobs where any are stored, and of CPU time."""
    jobs = [jobs_figure(sums["job_count"], sums["job_read_bytes"])] if snapshot.has_jobs else []
    return [bytes_figure("Bytes read", sums["read_bytes"]), *jobs, cpu_figure(sums["cpu_ms"])]


def choose_measure(page: Page, chosen: Selection) -> str:
    """Return the measure of the address, and add its field with the measures that are
    stored.

    A stream has either accesses or jobs: the measure of the other kind is replaced, and a
    note says so.
    """
    measure = choice_parameter(page.parameters, "measure", list(MEASURES), "nacc")
    stream = chosen.value("stream")
    fitting = {"nacc": "job_count", "read_bytes": "job_read_bytes"}
    if not chosen.is_of_jobs:
        fitting = {} if stream is None else {of_jobs: name for name, of_jobs in fitting.items()}
    if measure in fitting:
        is_said = "measure" in page.parameters or chosen.is_of_jobs
        measure = fitting[measure]
        if is_said:
            kind = "jobs, not accesses" if chosen.is_of_jobs else "accesses, not jobs"
            stream_text = f"The stream {shown(stream)} counts {kind}"
            page.note(f"{stream_text}: this is its {MEASURES[measure][0].lower()}.")
    measures = [
        (name, label)
        for name, (label, _, _) in MEASURES.items()
        if page.request.snapshot.has_jobs or name not in OF_JOBS
    ]
    page.controls.append(Control("measure", "Measure", measure, measures))
    return measure


# An error of a page above its form, which keeps what was chosen.

#: Field of a form → the parameter that it takes where it has none of its own: an
#: unknown name is searched.
_INSTEAD: Final = {"q": "name"}


def error_title(error: CmssparkError) -> str:
    """Return the first sentence of an error, which begins with a capital."""
    text = readable(error.problem)
    return text[:1].upper() + text[1:]


def error_facts(error: CmssparkError) -> dict[str, str]:
    """Return where, what was found and the next step, as far as the error has them."""
    labels = (("where", error.where), ("found", error.found), ("next", error.next_step))
    return {label: readable(str(value)) for label, value in labels if value is not None}


def error_content(page: Content, error: CmssparkError, chosen: MultiDict[str, str]) -> Content:
    """Return a page with the error and the form of ``page``, filled with the parameters
    of the address.
    """
    notes = [Note(f"{label}: {value}") for label, value in error_facts(error).items()]
    controls = [_filled(control, chosen) for control in page.controls]
    return Content(error_title(error), [], "", controls, notes, page.button)


def _filled(control: Control, chosen: MultiDict[str, str]) -> Control:
    values = chosen.getlist(control.name) or chosen.getlist(_INSTEAD.get(control.name, ""))
    if not values or control.kind == "links":
        return control
    if control.kind == "many":
        return replace(control, chosen=values)
    return replace(control, value=values[0])
