"""Compare: two periods beside each other, by dataset, site, tier, campaign or stream;
what is new and what is gone.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import date, timedelta
from itertools import pairwise
from typing import Final, NamedTuple

from cmsspark.apps.dashboard import dataset_ranking, site_use, use
from cmsspark.apps.dashboard import widgets as ui
from cmsspark.apps.dashboard.page_request import PageDefinition, PageRequest
from cmsspark.apps.dashboard.segment import SUMS
from cmsspark.apps.dashboard.selection import FILTERS, Selection, choice_parameter, day_parameter
from cmsspark.apps.dashboard.series_parts import KINDS
from cmsspark.apps.dashboard.use import MEASURES, OF_JOBS, added
from cmsspark.base import dates
from cmsspark.base.errors import UsageError
from cmsspark.sources.registry import ACCESS_STREAMS, STREAMS_BY_NAME, STREAMS_OF_JOBS

_GROUPS: Final = {"dataset_name": "Dataset", "site_name": "Site", **FILTERS}
_KINDS: Final = {name: kind for name, kind in KINDS.items() if name != "users"}
#: What rows are shown: the parameter's value → its label.
_SHOW: Final = {
    "all": "all",
    "new": "new: only in this period",
    "gone": "gone: only in the other",
    "both": "in both",
}
#: Measure → the streams that have it, where these are not those of accesses.
_STREAMS: Final = {
    **dict.fromkeys(OF_JOBS, STREAMS_OF_JOBS),
    "cpu_ms": tuple(stream.name for stream in STREAMS_BY_NAME.values() if stream.has_times),
}
_PAGE: Final = 20
#: Days of the period where the address names none, at most.
_DAYS: Final = 30


class _Row(NamedTuple):
    """A group with its value in both periods, None where nothing is known of it.
    ``kind``: new, gone, both, or empty where a period has no stored day that counted
    such streams.
    """

    name: str
    now: int | None
    before: int | None
    kind: str

    @property
    def difference(self) -> int | None:
        return None if self.now is None or self.before is None else self.now - self.before


def view(request: PageRequest) -> ui.Content:
    """Return the page for two periods, a measure and a grouping.

    Raises UsageError (2) for a period that ends too early.
    """
    chosen = request.chosen
    if not request.parameters.get("from") and not request.parameters.get("to"):
        # Two periods of a length that is stored.
        count = (chosen.last - request.snapshot.stored_days[0]).days + 1
        length = max(1, min(_DAYS, count // 2))
        chosen = replace(chosen, first=chosen.last - timedelta(days=length - 1))
    baseline = _baseline(request, chosen)
    measures = {name: label for name, (label, _, _) in MEASURES.items() if name in _KINDS}
    if not request.snapshot.has_jobs:
        measures = {name: label for name, label in measures.items() if name not in OF_JOBS}
    measure = choice_parameter(
        request.parameters, "measure", list(measures), "job_count" if chosen.is_of_jobs else "nacc"
    )
    group = choice_parameter(request.parameters, "by", list(_GROUPS), "dataset_name")
    show = choice_parameter(request.parameters, "show", list(_SHOW), "all")
    presets, *fields = request.period_controls(chosen, with_step=False)
    controls = [
        presets,
        *_months(request, chosen, baseline),
        *fields,
        ui.Control("from2", "Against: from", baseline.first.isoformat(), kind="date"),
        ui.Control("to2", "to (included)", baseline.last.isoformat(), kind="date"),
        *request.filter_controls(chosen),
        ui.Control("measure", "Measure", measure, list(measures.items())),
        ui.Control("by", "By", group, list(_GROUPS.items())),
        ui.Control("show", "Show", show, list(_SHOW.items())),
    ]
    measured, reference = (
        replace(entry, measure=measure, by=group) for entry in (chosen, baseline)
    )
    rows = _rows(request, measured, reference)
    about = f"{chosen.first} to {chosen.last} against {baseline.first} to {baseline.last}"
    notes = [*request.use_notes(chosen), *request.use_notes(baseline)]
    for entry in (chosen, baseline):
        if not _is_stored(request, entry):
            notes.append(
                ui.Note(
                    f"No day from {entry.first} to {entry.last} is stored: nothing is known of that period.",
                    "warn",
                )
            )
    notes += _different_streams(request, measured, reference)
    if _length(chosen) != _length(baseline):
        text = (
            f"The periods have {_length(chosen):,} and {_length(baseline):,} days: compare shares."
        )
        notes.append(ui.Note(text, "warn"))
    # Links lead to the period of the numbers, also where the address names none.
    period = {"from": chosen.first.isoformat(), "to": chosen.last.isoformat()}
    linked = replace(request, parameters={**request.parameters, **period})
    table = _table(
        linked, [row for row in rows if show in ("all", row.kind)], rows, measure, group
    )
    sections = [
        ui.Section("In total", [_figures(rows, measure, group)]),
        ui.Section(
            f"By {_GROUPS[group].lower()}", [table], command=_command(chosen, baseline, group)
        ),
    ]
    return ui.Content("Compare periods", sections, about, controls, list(dict.fromkeys(notes)))


def _command(chosen: Selection, baseline: Selection, group: str) -> str:
    """Return what compares the same periods on the command line, which has no filters."""
    if chosen.filters:
        return ""
    against = f"--against-from {baseline.first} --against-to {baseline.last}"
    by = group.removesuffix("_name")
    return f"cmsspark ask changed --by {by} --from {chosen.first} --to {chosen.last} {against}"


def _baseline(request: PageRequest, chosen: Selection) -> Selection:
    """Return the period to compare with: by default as many days, right before."""
    last = day_parameter(request.parameters, "to2", dates.days_before(chosen.first, 1))
    first = day_parameter(
        request.parameters, "from2", dates.days_before(last, _length(chosen) - 1)
    )
    if first > last:
        raise UsageError(f"the other period begins on {first} and ends before it, on {last}")
    return replace(chosen, first=first, last=last)


def _months(request: PageRequest, chosen: Selection, baseline: Selection) -> list[ui.Control]:
    """Return links that compare each of the newest calendar months with the one before;
    none for a single month.
    """
    newest = request.snapshot.days[-1]
    months = sorted({day.replace(day=1) for day in request.snapshot.days}, reverse=True)[:5]
    links, current = [], ""
    for later, earlier in pairwise(months):
        ends = [later, min(_month_end(later), newest), earlier, _month_end(earlier)]
        label = f"{later:%Y-%m} against {earlier:%Y-%m}"
        names = zip(("from", "to", "from2", "to2"), map(date.isoformat, ends), strict=True)
        links.append((request.link_here(**dict(names), page=None), label))
        if ends == [chosen.first, chosen.last, baseline.first, baseline.last]:
            current = label
    return [ui.Control("months", "Calendar months", current, links, "links")] if links else []


def _month_end(first: date) -> date:
    return (first + timedelta(days=31)).replace(day=1) - timedelta(days=1)


def _length(chosen: Selection) -> int:
    return (chosen.last - chosen.first).days + 1


def _rows(request: PageRequest, chosen: Selection, baseline: Selection) -> list[_Row]:
    """Return the groups of both periods, the largest change first."""
    measure, group = chosen.measure, chosen.by
    now, before = (_values(request, entry) for entry in (chosen, baseline))
    are_counted: list[bool] = []
    rows = []
    for name in now.keys() | before.keys():
        kind = "both" if name in now and name in before else "new" if name in now else "gone"
        if group == "stream" or not are_counted:
            # Nothing is known of a period whose days did not count such streams; else
            # what no record has was not used.
            streams = (name,) if group == "stream" else _STREAMS.get(measure, ACCESS_STREAMS)
            are_counted = [
                use.is_counted(request.snapshot, entry, streams) for entry in (chosen, baseline)
            ]
        missing = [
            0 if measure in ("nacc", "job_count") and is_counted else None
            for is_counted in are_counted
        ]
        values = now.get(name, missing[0]), before.get(name, missing[1])
        rows.append(_Row(name, *values, kind if all(are_counted) else ""))
    return sorted(
        rows, key=lambda row: (-abs(row.difference or 0), -(row.now or row.before or 0), row.name)
    )


def _is_stored(request: PageRequest, chosen: Selection) -> bool:
    return any(chosen.first <= day <= chosen.last for day in request.snapshot.days)


def _different_streams(
    request: PageRequest, chosen: Selection, baseline: Selection
) -> list[ui.Note]:
    """Return a note on streams that only one of two stored periods counted: they are a
    part of the difference.
    """
    if not (_is_stored(request, chosen) and _is_stored(request, baseline)):
        return []
    streams = [
        {
            name
            for name in _STREAMS.get(chosen.measure, ACCESS_STREAMS)
            if use.is_counted(request.snapshot, entry, (name,))
        }
        for entry in (chosen, baseline)
    ]
    names = ", ".join(sorted(streams[0] ^ streams[1]))
    return (
        [ui.Note(f"Only one of the periods has days that counted {names}.", "warn")]
        if names
        else []
    )


def _values(request: PageRequest, chosen: Selection) -> dict[str, int | None]:
    """Group → the measure in a period; groups without a value are left out."""
    snapshot = request.snapshot
    if chosen.by == "dataset_name":
        ranking = dataset_ranking.datasets(snapshot, chosen)
        values = zip(ranking.names(), ranking.values, strict=True)
        return {name: value for name, value in values if value is not None}
    if chosen.by == "site_name":
        position = 1 + SUMS.index(chosen.measure)
        sums = site_use.sum_sites(snapshot, chosen.only(*FILTERS))
        return {row[0]: row[position] for row in sums if row[position] is not None}
    return {**use.sum_groups(snapshot, chosen)}


def _figures(rows: list[_Row], measure: str, group: str) -> ui.Figures:
    label = MEASURES[measure][0]
    now, before = added(row.now for row in rows), added(row.before for row in rows)
    figures = [
        _figure(f"{label}, this period", now, measure),
        _figure(f"{label}, the other", before, measure),
    ]
    if now is not None and before is not None:
        change = ui.formatted(now / before - 1, "change") if before else "–"
        figures.append(ui.Figure("Change", change, ui.formatted(now - before, _KINDS[measure])))
    noun = _GROUPS[group].lower()
    for kind in ("new", "gone") if any(row.kind for row in rows) else ():
        count = sum(row.kind == kind for row in rows)
        figures.append(
            ui.Figure(f"{kind.capitalize()} {noun}s", f"{count:,}", f"of {len(rows):,}")
        )
    return ui.Figures(figures)


def _figure(label: str, value: int | None, measure: str) -> ui.Figure:
    kind = _KINDS[measure]
    return ui.Figure(
        label,
        ui.formatted(value, kind),
        f"{value:,} B" if kind == "bytes" and value is not None else "",
    )


def _table(
    request: PageRequest, shown_rows: list[_Row], rows: list[_Row], measure: str, group: str
) -> ui.Table:
    label, kind = MEASURES[measure][0], _KINDS[measure]
    totals = [added(row.now for row in rows), added(row.before for row in rows)]
    columns = (
        ui.Column(group, _GROUPS[group]),
        ui.Column("difference", "Difference", kind),
        ui.Column(
            "change", "Change", "change", "of the other period's value; – where that has none"
        ),
        ui.Column("now", label, kind, "in this period"),
        ui.Column("before", "Other period", kind),
        ui.Column("share_now", "Share", "share", "of all of this period"),
        ui.Column("share_before", "Share before", "share", "of all of the other period"),
        ui.Column("is_in", "In", "text"),
    )
    cells = [
        (
            row.name or None,
            row.difference,
            ui.ratio(row.difference, row.before),
            row.now,
            row.before,
            ui.ratio(row.now, totals[0]),
            ui.ratio(row.before, totals[1]),
            row.kind or None,
        )
        for row in shown_rows
    ]
    caption = "The largest difference first"
    return ui.Table(
        "compare",
        columns,
        cells,
        caption,
        empty="Nothing of this kind.",
        bars=3,
        limit=_PAGE,
        link={"dataset_name": request.dataset_link, "site_name": request.site_link}.get(group),
    )


PAGE = PageDefinition(
    "Compare", "Two periods beside each other: what grew, what is new, what is gone.", view
)
