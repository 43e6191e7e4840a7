"""Runs: a calendar of days by jobs, reconciliation, publishing, drift, and the report of each run."""

from __future__ import annotations

from collections import Counter
from datetime import date, timedelta
from typing import Any, Final

from flask import Response, abort

from cmsspark.apps.dashboard import run_index, security
from cmsspark.apps.dashboard.page_request import PageDefinition, PageRequest
from cmsspark.apps.dashboard.run_index import RunIndex
from cmsspark.apps.dashboard.selection import choice_parameter, day_parameter
from cmsspark.apps.dashboard.widgets import (
    Calendar,
    Cell,
    Column,
    Content,
    Control,
    Figure,
    Figures,
    Note,
    Section,
    Table,
    shown,
)
from cmsspark.base.errors import NotReady, UsageError
from cmsspark.pages.day_report import BINS, counts
from cmsspark.store.day_states import WORDS
from cmsspark.store.query.database import Database
from cmsspark.store.run_history import Run

#: Days that are shown without a period in the address, and at most.
_DAYS, _MOST = 35, 400
#: Rows of the reconciliation that the page shows.
_SHOWN: Final = 40
_CLASSES: Final = {"green": "good", "yellow": "warn", "blue": "info", "red": "bad", "white": "none"}


def view(request: PageRequest) -> Content:
    """The calendar of a period, or one day of one job."""
    store = request.database.fout
    stored = run_index.stored_job_days(store)
    if not stored:
        return Content(
            "Runs", [], notes=[Note("No run is stored. Run: cmsspark daily, or run_spark data_aggregation --date DAY")]
        )
    last = day_parameter(request.parameters, "to", stored[-1])
    default = date.fromordinal(max(1, last.toordinal() - _DAYS + 1))
    first = day_parameter(request.parameters, "from", default)
    if not 0 <= (last - first).days < _MOST:
        raise UsageError(f"the page shows at most {_MOST} days, in order", found=f"{first} to {last}")
    days = [first + timedelta(days=number) for number in range((last - first).days + 1)]
    index = run_index.read_index(store, request.state_dir, days, request.skipped)
    job = request.parameters.get("job", "")
    if job:
        return _one(
            request,
            index,
            choice_parameter(request.parameters, "job", index.jobs, ""),
            day_parameter(request.parameters, "day", last),
        )
    controls = [
        Control("from", "From", first.isoformat(), kind="date"),
        Control("to", "To (included)", last.isoformat(), kind="date"),
    ]
    notes = [Note(shown(text), "warn") for text in index.notes]
    return Content(
        "Runs",
        [
            Section("In total", [_figures(index)]),
            Section("Days and jobs", [_calendar(request, index, days), *_skipped(index)]),
            Section(
                "Where every record went",
                [_reconciliation(index)],
                "Each record of data_aggregation is in one bin: docs/counting.md.",
            ),
            Section("Publishing", [_publishing(index)], "As the run history of this account knows it."),
            Section(
                "Drift", [_drift(index)], "Fields of logs that differ from their schema, in a sample of each file."
            ),
        ],
        f"{first} to {last}",
        controls,
        notes,
    )


def _figures(index: RunIndex) -> Figures:
    words = Counter(cell.word for cell in index.cells.values() if cell.word != "-")
    figures = [Figure(word, f"{count:,}", WORDS[word][1]) for word, count in words.most_common()]
    return Figures(figures or [Figure("runs", "0", "in this period")])


def _calendar(request: PageRequest, index: RunIndex, days: list[date]) -> Calendar:
    rows = []
    for day in reversed(days):
        cells = []
        for job in index.jobs:
            cell = index.cells[day, job]
            colour, about = WORDS[cell.word]
            about = index.skipped.get((day, job), about)
            word = cell.word + (f" ({cell.refused:,} refused)" if cell.refused else "")
            href = "" if cell.word == "-" else request.here(job=job, day=day)
            cells.append((word, _CLASSES[colour], f"{job} of {day}: {shown(about)}", href))
        rows.append((day.isoformat(), cells))
    used = {cell.word for cell in index.cells.values()}
    legend = [(word, _CLASSES[colour], about) for word, (colour, about) in WORDS.items() if word in used]
    return Calendar(index.jobs, rows, "The state of each day of each job", legend)


def _skipped(index: RunIndex) -> list[Table]:
    """The skipped days of the calendar with their reasons, the newest first."""
    rows = [(day.isoformat(), job, shown(text)) for (day, job), text in sorted(index.skipped.items(), reverse=True)]
    columns = (Column("day", "Day"), Column("job", "Job"), Column("reason", "Reason"))
    return [Table("skipped", columns, rows, "Days that cmsspark daily skips")] if rows else []


def _reconciliation(index: RunIndex) -> Table:
    columns = [Column("day", "Day"), Column("stream", "Stream"), Column("read", "Records read", "count")]
    columns += [Column(name, label[0].upper() + label[1:], "count") for name, label in BINS.items()]
    columns += [Column("matched_share", "Matched", "share"), Column("is_reconciled", "Adds up", "yes")]
    rows = []
    for (day, job), run in sorted(index.current.items(), key=lambda entry: entry[0], reverse=True):
        if job == "data_aggregation":
            for stream, bins in run.details.reconciliation.items():
                rows.append((day.isoformat(), stream, *_bins(bins)))
    return Table(
        "reconciliation",
        columns,
        rows,
        "Records of each stream and day by bin",
        limit=_SHOWN,
        empty="No run of this period has a reconciliation.",
    )


def _bins(bins: dict[str, Any]) -> tuple[Any, ...]:
    flat = counts(bins)
    read = bins["read"]
    share = flat["matched"] / read if read else None
    # Streams of accesses and of jobs have different bins.
    return (read, *(flat.get(name) for name in BINS), share, sum(flat.values()) == read)


def _publishing(index: RunIndex) -> Table:
    columns = (
        Column("day", "Day"), Column("table", "Table"), Column("destination", "Destination"),
        Column("confirmed", "Confirmed", "count"), Column("waiting", "Waiting", "count"),
        Column("refused", "Refused", "count"), Column("at_ms", "At", "instant"), Column("run", "Run"),
    )  # fmt: skip
    rows = [
        (
            one.day.isoformat(),
            one.table,
            one.destination,
            one.confirmed,
            one.waiting,
            one.refused,
            one.at_ms,
            one.stored_run,
        )
        for one in sorted(index.published, key=lambda one: (one.day, one.at_ms), reverse=True)
    ]
    return Table(
        "publishing",
        columns,
        rows,
        "Documents by day and table",
        empty="Nothing of this period was published: cmsspark publish --date DAY",
    )


def _drift(index: RunIndex) -> Table:
    columns = (
        Column("stream", "Stream"), Column("field", "Field"), Column("form", "Format"), Column("change", "Change"),
        Column("day_count", "Days", "count"), Column("last_day", "Last day"),
        Column("records", "Records of samples", "count"),
    )  # fmt: skip
    found: dict[tuple[str, str, str, str], tuple[int, date, int]] = {}
    for (day, _), run in index.current.items():
        for stream, entries in run.details.drift.items():
            for entry in entries:
                key = (stream, str(entry.get("field")), str(entry.get("form")), str(entry.get("change")))
                count, newest, records = found.get(key, (0, day, 0))
                found[key] = (count + 1, max(newest, day), records + int(entry.get("records") or 0))
    rows = [(*key, count, newest.isoformat(), records) for key, (count, newest, records) in sorted(found.items())]
    return Table(
        "drift", columns, rows, "Differences between logs and schemas", empty="No field differed from its schema."
    )


def _one(request: PageRequest, index: RunIndex, job: str, day: date) -> Content:
    runs = [run for run in index.runs if run.job == job and run.day == day]
    current = index.current.get((day, job))
    columns = (
        Column("run", "Run"), Column("state", "State"), Column("began_ms", "Started", "instant"),
        Column("seconds", "Seconds", "count"), Column("rows", "Rows", "count"), Column("report", "Report"),
        Column("error", "Error"),
    )  # fmt: skip
    rows = [_run_row(request, run, current) for run in runs]
    if (day, job) in index.skipped:
        index.notes.append(f"{job} of {day} is {index.skipped[day, job]}")
    sections = [
        Section(
            "Runs", [Table("runs", columns, rows, f"Runs of {job} for {day}", empty="There is no run of this day.")]
        )
    ]
    if current is not None:
        sections += _details(current)
    back = [Control("from", "From", request.parameters.get("from", ""), kind="hidden")]
    back.append(Control("to", "To", request.parameters.get("to", ""), kind="hidden"))
    return Content(
        f"{job} of {day}",
        sections,
        "One day of one job",
        back,
        [Note(shown(text), "warn") for text in index.notes],
        "Back to the calendar",
    )


def _run_row(request: PageRequest, run: Run, current: Run | None) -> tuple[Any, ...]:
    stored = run.stored_run or ""
    page = run_index.report_path(request.database.fout, run.job, run.day.isoformat(), stored) if stored else None
    href = f"{request.prefix}/runs/{run.job}/{run.day}/{stored}/report"
    state = run.state.value + (" (current)" if current is not None and current.stored_run == stored else "")
    state += ", partial" if run.is_partial else ""
    seconds = None if run.seconds is None else round(run.seconds)
    error = (run.error or "").partition("\n")[0]
    return run.run, state, run.began_ms, seconds, run.rows, Cell("open", href) if page else None, error


def _details(run: Run) -> list[Section]:
    sections = []
    warnings = [Note(shown(text), "warn") for text in run.details.warnings]
    if warnings:
        sections.append(Section("Warnings", warnings))
    tables = [(name, entry.rows, entry.bytes) for name, entry in run.details.tables.items()]
    columns = (Column("table", "Table"), Column("rows", "Rows", "count"), Column("bytes", "Size", "bytes"))
    sections.append(Section("Tables", [Table("tables", columns, tables, "What the current run stored")]))
    bins = run.details.reconciliation
    if bins:
        heads = [Column("stream", "Stream"), Column("read", "Records read", "count")]
        heads += [Column(name, label[0].upper() + label[1:], "count") for name, label in BINS.items()]
        heads += [Column("matched_share", "Matched", "share"), Column("is_reconciled", "Adds up", "yes")]
        rows = [(stream, *_bins(counts)) for stream, counts in bins.items()]
        sections.append(Section("Where every record went", [Table("bins", heads, rows, "Records by bin")]))
    return sections


def report(database: Database, job: str, interval: str, run: str) -> Response:
    """The report of a run as it was stored, in a sandbox. 404 where there is none."""
    page = run_index.report_path(database.fout, job, interval, run)
    if page is None:
        abort(404)
    try:
        content = page.read_bytes()
    except OSError as error:
        raise NotReady(
            "the report of the run cannot be read",
            where=page,
            found=error.strerror,
            next_step="load this page again; where it stays so, look at the file",
        ) from None
    answer = Response(content, mimetype="text/html")
    answer.headers["Content-Security-Policy"] = security.REPORT_POLICY
    return answer


PAGE = PageDefinition(
    "Runs", "Which days of which jobs are stored, and what became of every record.", view, needs_use=False
)
