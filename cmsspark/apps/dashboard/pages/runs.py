"""Runs: a calendar of days by jobs, reconciliation, publishing, drift, and the report of each run."""

from __future__ import annotations

from collections import Counter
from datetime import date, timedelta
from typing import Any, Final

from flask import Response, abort

from cmsspark.apps.dashboard import run_index, security
from cmsspark.apps.dashboard import widgets as ui
from cmsspark.apps.dashboard.downloads import without_noughts
from cmsspark.apps.dashboard.page_request import PageDefinition, PageRequest
from cmsspark.apps.dashboard.run_index import RunIndex
from cmsspark.apps.dashboard.selection import choice_parameter, day_parameter
from cmsspark.base.errors import NotReady, UsageError
from cmsspark.store.day_states import WORDS, Cell, delivery_lines
from cmsspark.store.query.database import Database
from cmsspark.store.run_history import Run, describe

#: Days that are shown without a period in the address, and at most.
_DAYS, _MOST = 35, 400
#: Rows of the reconciliation that the page shows.
_SHOWN: Final = 40
#: Words of days, the worst first.
_ORDER: Final = (
    *(
        "given up",
        "failed",
        "lost",
        "damaged",
        "kept",
        "interrupted",
        "waiting",
        "left",
        "unsent",
        "partial",
        "sending",
        "running",
        "skipped",
    ),
    *("done", "published", "outside", "not looked at", "-"),
)
#: Columns of bins before those that may be empty.
_FIXED: Final = 4
_CLASSES: Final = {
    "green": "good",
    "yellow": "warn",
    "blue": "info",
    "red": "bad",
    "white": "none",
}


def view(request: PageRequest) -> ui.Content:
    """Return the calendar of a period, the jobs of one day, or one day of one job."""
    store = request.database.fout
    stored = run_index.stored_job_days(store)
    if not stored:
        return ui.Content(
            "Runs",
            [],
            notes=[
                ui.Note(
                    "No run is stored. Run: cmsspark daily, or run_spark data_aggregation --date DAY"
                )
            ],
        )
    notes: list[ui.Note] = []
    days = _days(request, stored, notes)
    index = run_index.read_index(store, request.state_dir, days, request.settings)
    notes += [ui.Note(ui.shown(text), "warn") for text in (*index.notes, *index.silent)]
    job, day = request.parameters.get("job", ""), request.parameters.get("day", "")
    if job and day:
        name = choice_parameter(request.parameters, "job", index.jobs, "")
        return _run_view(request, index, name, day_parameter(request.parameters, "day", days[-1]))
    if day:
        return _of_day(request, index, day_parameter(request.parameters, "day", days[-1]))
    name = choice_parameter(request.parameters, "job", ["", *index.jobs], "")
    jobs = [name] if name else index.jobs
    options = [("", "all: the worst of each day"), *((item, item) for item in index.jobs)]
    controls = [
        ui.Control("from", "From", days[0].isoformat(), kind="date"),
        ui.Control("to", "To (included)", days[-1].isoformat(), kind="date"),
        ui.Control("job", "Job", name, options),
    ]
    about = (
        "Numbers count the days of each job; the calendar has the worst state of each day."
        if len(jobs) > 1
        else ""
    )
    return ui.Content(
        "Runs",
        [
            ui.Section(
                "Each day", [_figures(index, jobs), _calendar(request, index, days, jobs)], about
            ),
            *_attention(request, index, jobs),
            ui.Section(
                "Where every record went",
                [run_index.reconciliation(index)],
                "Each record of data_aggregation is in one bin: docs/counting.md.",
            ),
            ui.Section(
                "At each destination",
                [run_index.destinations(index)],
                "; ".join(map(run_index.without_paths, delivery_lines(index.cells))),
            ),
            ui.Section(
                "Publishing",
                [run_index.publishing(index)],
                "As the run history of this account knows it.",
            ),
            ui.Section(
                "Drift",
                [run_index.drift(index)],
                "Fields of logs that differ from their schema, in a sample of each file.",
            ),
        ],
        f"{days[0]} to {days[-1]}",
        controls,
        notes,
    )


def _days(request: PageRequest, stored: list[date], notes: list[ui.Note]) -> list[date]:
    """Return the days of the address, the last ones of a longer period."""
    last = day_parameter(request.parameters, "to", stored[-1])
    default = date.fromordinal(max(1, last.toordinal() - _DAYS + 1))
    first = day_parameter(request.parameters, "from", default)
    if first > last:
        raise UsageError(
            f"the period begins on {first} and ends before it, on {last}",
            next_step="exchange them",
        )
    if (last - first).days >= _MOST:
        first = last - timedelta(days=_MOST - 1)
        notes.append(ui.Note(f"This page shows {_MOST} days at most: those up to {last}.", "warn"))
    text = request.parameters.get("day", "")
    if text:
        day = day_parameter(request.parameters, "day", last)
        first, last = (day, day) if not first <= day <= last else (first, last)
    return [first + timedelta(days=number) for number in range((last - first).days + 1)]


def _figures(index: RunIndex, jobs: list[str]) -> ui.Figures:
    words = Counter(
        cell.word for (_, job), cell in index.cells.items() if cell.word != "-" and job in jobs
    )
    figures = [
        ui.Figure(word.capitalize(), f"{count:,}", WORDS[word][1])
        for word, count in words.most_common(5)
    ]
    return ui.Figures(figures or [ui.Figure("Runs", "0", "in this period")])


def _calendar(
    request: PageRequest, index: RunIndex, days: list[date], jobs: list[str]
) -> ui.Calendar:
    cells = {}
    for day in days:
        states = [(job, index.cells[day, job]) for job in jobs if (day, job) in index.cells]
        worst = min(
            (cell for _, cell in states), key=lambda cell: _ORDER.index(cell.word), default=None
        )
        if worst is None or worst.word == "-":
            cells[day] = ("–", "none", f"{day}: no result", "")
            continue
        about = "; ".join(
            f"{job}: {_skipped(cell) or cell.word}"
            + (f", {cell.refused:,} refused" if cell.refused else "")
            for job, cell in states
            if cell.word != "-"
        )
        href = request.link_here(day=day, job=jobs[0] if len(jobs) == 1 else None)
        kind = "bad" if any(cell.refused for _, cell in states) else _CLASSES[WORDS[worst.word][0]]
        cells[day] = (worst.word, kind, f"{day}: {ui.shown(about)}", href)
    used = {cell[0] for cell in cells.values()}
    legend = [
        (word, _CLASSES[colour], about) for word, (colour, about) in WORDS.items() if word in used
    ]
    return ui.Calendar(cells, "The state of each day", legend)


def _attention(request: PageRequest, index: RunIndex, jobs: list[str]) -> list[ui.Section]:
    """Days and jobs that are not simply stored, the newest first."""
    rows = []
    for (day, job), cell in sorted(index.cells.items(), reverse=True):
        is_told = cell.needs_a_line or cell.word == "running"
        if (job in jobs and is_told) or cell.refused:
            about = _reason(index, day, job)
            rows.append((day, cell.word, job, ui.shown(about), cell.refused or None))
    columns = (
        ui.Column("day", "Day", "day"),
        ui.Column("state", "State"),
        ui.Column("job", "Job"),
        ui.Column("about", "Why"),
        ui.Column("refused", "Refused documents", "count"),
    )
    links = {"day": lambda row: request.link_here(job=row["job"], day=row["day"])}
    caption = "Days that are not complete"
    table = ui.Table("attention", columns, rows, caption, limit=_SHOWN, links=links)
    return [ui.Section("What needs a look", [table])] if rows else []


def _skipped(cell: Cell) -> str:
    """Return who skipped a day and why; an empty text if nobody did."""
    return f"skipped by {cell.by}: {cell.reason}" if cell.word == "skipped" else ""


def _reason(index: RunIndex, day: date, job: str) -> str:
    """Return what the state of a day and job means, and why it is in that state, as far
    as it is known.
    """
    cell = index.cells[day, job]
    texts = [_skipped(cell) or WORDS[cell.word][1]]
    current = index.current.get((day, job))
    if cell.word == "partial" and current is not None:
        lacking = current.details.missing_streams
        texts += [f"without {', '.join(lacking)}"] if lacking else []
        texts += ["damaged files"] if current.details.damaged else []
    elif cell.needs_a_line and cell.word != "skipped":
        texts.append(run_index.without_paths(cell.text()))
    return ": ".join((texts[0], "; ".join(texts[1:]))) if texts[1:] else texts[0]


def _of_day(request: PageRequest, index: RunIndex, day: date) -> ui.Content:
    """Return all jobs of one day."""
    rows = []
    for job in index.jobs:
        run = index.current.get((day, job))
        numbers = (None, None) if run is None else (run.rows, run.run)
        about = ui.shown(_reason(index, day, job))
        rows.append((job, index.cells[day, job].word, about, *numbers))
    columns = (
        ui.Column("job", "Job"),
        ui.Column("state", "State"),
        ui.Column("about", "Meaning"),
        ui.Column("rows", "Rows", "count"),
        ui.Column("run", "Current run"),
    )
    links = {
        "job": lambda row: (
            "" if row["state"] == "-" else request.link_here(job=row["job"], day=day)
        )
    }
    table = ui.Table("jobs", columns, rows, f"The jobs of {day}", links=links)
    sections = [ui.Section("Jobs", [table])]
    notes = [ui.Note(ui.shown(text), "warn") for text in index.notes]
    return ui.Content(
        f"Runs of {day}", sections, "One day", _back(request), notes, "Back to the calendar"
    )


def _back(request: PageRequest) -> list[ui.Control]:
    return [
        ui.Control(name, name, request.parameters.get(name, ""), kind="hidden")
        for name in ("from", "to")
    ]


def _run_view(request: PageRequest, index: RunIndex, job: str, day: date) -> ui.Content:
    runs = [run for run in index.runs if run.job == job and run.day == day]
    current = index.current.get((day, job))
    columns = (
        ui.Column("run", "Run"),
        ui.Column("state", "State"),
        ui.Column("began_ms", "Started", "instant"),
        ui.Column("seconds", "Seconds", "count"),
        ui.Column("rows", "Rows", "count"),
        ui.Column("report", "Report"),
        ui.Column("error", "Error"),
    )
    rows = [_run_row(request, run, current) for run in runs]
    address, stored = (
        f"{request.prefix}/runs/{job}/{day}",
        {run.run: run.stored_run for run in runs},
    )
    links = {"report": lambda row: f"{address}/{stored[row['run']]}/report"}
    if text := _skipped(index.cells[day, job]):
        index.notes.append(f"{job} of {day} is {text}")
    sections = [
        ui.Section(
            "Runs",
            [
                ui.Table(
                    "runs",
                    columns,
                    rows,
                    f"Runs of {job} for {day}",
                    "There is no run of this day.",
                    links=links,
                )
            ],
        )
    ]
    if current is not None:
        sections += _details(current)
    return ui.Content(
        f"{job} of {day}",
        sections,
        "One day of one job",
        _back(request),
        [ui.Note(ui.shown(text), "warn") for text in index.notes],
        "Back to the calendar",
    )


def _run_row(request: PageRequest, run: Run, current: Run | None) -> tuple[Any, ...]:
    stored = run.stored_run or ""
    page = (
        run_index.report_path(request.database.fout, run.job, run.day.isoformat(), stored)
        if stored
        else None
    )
    state = run.state.value + (
        " (current)" if current is not None and current.stored_run == stored else ""
    )
    state += ", partial" if run.is_partial else ""
    seconds = None if run.seconds is None else round(run.seconds)
    report = "open" if page else None
    error = run_index.without_paths(run.failure)
    return (run.run, state, run.began_ms, seconds, run.rows, report, error)


def _details(run: Run) -> list[ui.Section]:
    sections = []
    warnings = [
        ui.Note(ui.shown(run_index.without_paths(text)), "warn") for text in run.details.warnings
    ]
    if warnings:
        sections.append(ui.Section("Warnings", warnings))
    facts = [(label, run_index.without_paths(text)) for label, text in describe(run)]
    columns = (ui.Column("label", "What"), ui.Column("text", "Value"))
    table = ui.Table("facts", columns, facts, "The run whose result is current")
    sections.append(ui.Section("The run", [table]))
    bins = run.details.reconciliation
    if bins:
        rows = [(stream, *run_index.bin_values(counts)) for stream, counts in bins.items()]
        table = ui.Table(
            "bins", run_index.bin_columns(), rows, "Records by bin; empty bins are left out"
        )
        sections.append(
            ui.Section("Where every record went", [without_noughts(table, first=_FIXED)])
        )
    return sections


def report(database: Database, job: str, interval: str, run: str) -> Response:
    """Return the report of a run as it was stored, in a sandbox. 404 where there is none."""
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
    "Runs",
    "Which days of which jobs are stored, and what became of every record.",
    view,
    needs_use=False,
)
