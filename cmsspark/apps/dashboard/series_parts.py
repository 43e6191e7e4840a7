"""Charts of values over time, with their tables, as several pages show them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from cmsspark.apps.dashboard.selection import NO_PART, STEPS, Selection, choice_parameter
from cmsspark.apps.dashboard.use import MEASURES, OF_JOBS, Series
from cmsspark.apps.dashboard.widgets import (
    Chart,
    Column,
    Figure,
    Kind,
    Note,
    Table,
    bytes_figure,
    cpu_figure,
    jobs_figure,
    shown,
)

if TYPE_CHECKING:
    from cmsspark.apps.dashboard.page_request import PageRequest
    from cmsspark.apps.dashboard.snapshot import Snapshot

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


def cost_figures(snapshot: Snapshot, sums: Mapping[str, int | None]) -> list[Figure]:
    """Return the figures of bytes, of jobs where any are stored, and of CPU time."""
    jobs = [jobs_figure(sums["job_count"], sums["job_read_bytes"])] if snapshot.has_jobs else []
    return [bytes_figure("Bytes read", sums["read_bytes"]), *jobs, cpu_figure(sums["cpu_ms"])]


def list_measures(snapshot: Snapshot) -> list[tuple[str, str]]:
    """Return the measures that a form offers, those of jobs where any are stored, each
    with its label.
    """
    return [
        (name, label)
        for name, (label, _, _) in MEASURES.items()
        if snapshot.has_jobs or name not in OF_JOBS
    ]


def choose_measure(request: PageRequest, chosen: Selection, notes: list[Note]) -> str:
    """Return the measure of the address.

    A stream has either accesses or jobs: the measure of the other kind is replaced, and
    ``notes`` says so.
    """
    measure = choice_parameter(request.parameters, "measure", list(MEASURES), "nacc")
    stream = chosen.value("stream")
    fitting = {"nacc": "job_count", "read_bytes": "job_read_bytes"}
    if not chosen.is_of_jobs:
        fitting = {} if stream is None else {of_jobs: name for name, of_jobs in fitting.items()}
    if measure in fitting:
        is_said = "measure" in request.parameters or chosen.is_of_jobs
        measure = fitting[measure]
        if is_said:
            kind = "jobs, not accesses" if chosen.is_of_jobs else "accesses, not jobs"
            notes.append(
                Note(
                    f"The stream {shown(stream)} counts {kind}: this is its {MEASURES[measure][0].lower()}."
                )
            )
    return measure
