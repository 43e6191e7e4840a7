"""Compare: two periods beside each other, by dataset, site, tier, campaign or stream;
what is new and what is gone.
"""

from __future__ import annotations

from datetime import date, timedelta
from itertools import pairwise
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from cmsspark.apps.dashboard import use
from cmsspark.apps.dashboard import widgets as ui
from cmsspark.apps.dashboard.page import KINDS, Page
from cmsspark.apps.dashboard.page_request import PageDefinition, PageRequest
from cmsspark.apps.dashboard.rollup_query import sum_table
from cmsspark.apps.dashboard.selection import FILTERS, Selection, day_parameter
from cmsspark.apps.dashboard.snapshot import Snapshot
from cmsspark.apps.dashboard.use import MEASURES, OF_JOBS
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
    page = Page(request)
    page.period(chosen, with_step=False)
    page.controls[1:1] = _months(request, chosen, baseline)
    page.day("from2", "Against: from", baseline.first)
    page.day("to2", "to (included)", baseline.last)
    page.filters(chosen)
    measures = {name: label for name, (label, _, _) in MEASURES.items() if name in _KINDS}
    if not request.snapshot.has_jobs:
        measures = {name: label for name, label in measures.items() if name not in OF_JOBS}
    default = "job_count" if chosen.is_of_jobs else "nacc"
    measure = page.choose("measure", "Measure", measures, default)
    group = page.choose("by", "By", _GROUPS)
    show = page.choose("show", "Show", _SHOW)
    measured, reference = (
        replace(entry, measure=measure, by=group) for entry in (chosen, baseline)
    )
    rows = _compare(request.snapshot, measured, reference)
    about = f"{chosen.first} to {chosen.last} against {baseline.first} to {baseline.last}"
    page.notes += [*request.use_notes(chosen), *request.use_notes(baseline)]
    for entry in (chosen, baseline):
        if not _is_stored(request, entry):
            text = f"No day from {entry.first} to {entry.last} is stored"
            page.note(f"{text}: nothing is known of that period.", "warn")
    page.notes += _different_streams(request, measured, reference)
    if _length(chosen) != _length(baseline):
        lengths = f"{_length(chosen):,} and {_length(baseline):,} days"
        page.note(f"The periods have {lengths}: compare shares.", "warn")
    page.notes = list(dict.fromkeys(page.notes))
    # Links lead to the period of the numbers, also where the address names none.
    period = {"from": chosen.first.isoformat(), "to": chosen.last.isoformat()}
    linked = replace(request, parameters={**request.parameters, **period})
    shown_rows = rows if show == "all" else rows.filter(pc.equal(rows["is_in"], show))
    table = _table(linked, shown_rows, measure, group)
    page.section("In total", _figures(rows, measure, group))
    command = _command(chosen, baseline, group)
    page.section(f"By {_GROUPS[group].lower()}", table, command=command)
    return page.content("Compare periods", about)


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


def _compare(snapshot: Snapshot, chosen: Selection, baseline: Selection) -> pa.Table:
    """Return the groups of both periods with their values, null where nothing is known, the
    largest difference first. ``is_in``: new, gone or both; null if a period has no stored
    day that counted such streams.
    """
    key = "dataset" if chosen.by == "dataset_name" else chosen.by
    streams = _STREAMS.get(chosen.measure, ACCESS_STREAMS)
    tables, counted_sql = {}, {}
    for name, entry in (("now", chosen), ("before", baseline)):
        tables[name] = sum_table(snapshot, entry.only(*FILTERS), key, [chosen.measure])
        counted = [stream for stream in streams if use.is_counted(snapshot, entry, (stream,))]
        listed = ", ".join(f"'{stream}'" for stream in counted)
        of_stream = f"coalesce(key::VARCHAR IN ({listed}), false)" if counted else "false"
        counted_sql[name] = of_stream if key == "stream" else str(bool(counted)).lower()
    # What no record of a counted day has was not used: that is 0, and no sum is.
    zero = "0" if chosen.measure in ("nacc", "job_count") else "NULL"
    values = ", ".join(
        f"CASE WHEN {name} IS NULL AND {counted_sql[name]} THEN {zero} ELSE {name} END AS {name}"
        for name in tables
    )
    name = "dataset_name" if key == "dataset" else "key"
    joined = "LEFT JOIN datasets ON key = dataset" if key == "dataset" else ""
    return snapshot.arrow(
        f"""
        WITH pairs AS (
          SELECT coalesce(a.{key}, b.{key}) AS key, a.{chosen.measure} AS now,
            b.{chosen.measure} AS before
          FROM (FROM now WHERE {chosen.measure} IS NOT NULL) a
          FULL JOIN (FROM before WHERE {chosen.measure} IS NOT NULL) b USING ({key})),
        known AS (
          SELECT {name} AS name, {values},
            CASE WHEN NOT ({counted_sql["now"]} AND {counted_sql["before"]}) THEN NULL
            WHEN now IS NULL THEN 'gone' WHEN before IS NULL THEN 'new' ELSE 'both'
            END AS is_in
          FROM pairs {joined})
        SELECT name::VARCHAR AS {chosen.by}, now - before AS difference,
          (now - before) / nullif(before, 0) AS change, now, before,
          now / nullif(sum(now) OVER (), 0) AS share_now,
          before / nullif(sum(before) OVER (), 0) AS share_before, is_in
        FROM known
        ORDER BY abs(coalesce(difference, 0)) DESC, coalesce(nullif(now, 0), before, 0) DESC, 1
        """,
        tables=tables,
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


def _figures(rows: pa.Table, measure: str, group: str) -> ui.Figures:
    label, kinds = MEASURES[measure][0], rows["is_in"]
    now, before = (
        None if (total := pc.sum(rows[name]).as_py()) is None else int(total)
        for name in ("now", "before")
    )
    figures = [
        _figure(f"{label}, this period", now, measure),
        _figure(f"{label}, the other", before, measure),
    ]
    if now is not None and before is not None:
        change = ui.formatted(now / before - 1, "change") if before else "–"
        figures.append(ui.Figure("Change", change, ui.formatted(now - before, _KINDS[measure])))
    noun = _GROUPS[group].lower()
    for kind in ("new", "gone") if kinds.null_count < len(kinds) else ():
        count = pc.sum(pc.equal(kinds, kind)).as_py() or 0
        figures.append(
            ui.Figure(f"{kind.capitalize()} {noun}s", f"{count:,}", f"of {len(kinds):,}")
        )
    return ui.Figures(figures)


def _figure(label: str, value: int | None, measure: str) -> ui.Figure:
    kind = _KINDS[measure]
    return ui.Figure(
        label,
        ui.formatted(value, kind),
        f"{value:,} B" if kind == "bytes" and value is not None else "",
    )


def _table(request: PageRequest, rows: pa.Table, measure: str, group: str) -> ui.Table:
    label, kind = MEASURES[measure][0], _KINDS[measure]
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
    caption, empty = "The largest difference first", "Nothing of this kind."
    return ui.Table(
        "compare", columns, rows, caption, empty, bars=3, limit=_PAGE, links=request.links
    )


PAGE = PageDefinition(
    "Compare", "Two periods beside each other: what grew, what is new, what is gone.", view
)
