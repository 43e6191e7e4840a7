"""Spark: memory, time and processes of one run: of an application, of a run by
processes, or of a suite.
"""

from __future__ import annotations

from cmsspark.apps.dashboard import run_index
from cmsspark.apps.dashboard import spark_parts as parts
from cmsspark.apps.dashboard.page_request import PageDefinition, PageRequest
from cmsspark.apps.dashboard.run_index import RunView
from cmsspark.apps.dashboard.selection import choice_parameter
from cmsspark.apps.dashboard.widgets import Column, Content, Control, Note, Section, Table, shown
from cmsspark.base.dates import to_second
from cmsspark.store.run_history import find_exception
from cmsspark.store.run_metrics import RunMetrics


def view(request: PageRequest) -> Content:
    """Return the run ``run``; the latest without one."""
    notes: list[str] = []
    choices = run_index.choices(request.state_dir, notes)
    if not choices:
        text = "No run was measured yet. run_spark measures each run that it starts."
        return Content(
            "Spark", [], notes=[Note(text), *(Note(shown(item), "warn") for item in notes)]
        )
    names = [item.run for item in choices]
    chosen = choice_parameter(request.parameters, "run", names, names[0])
    run = run_index.read_run_view(request.state_dir, choices[names.index(chosen)])
    options = [
        (item.run, f"{to_second(item.began_ms)} {shown(item.label)}"[:90]) for item in choices
    ]
    return Content(
        shown(run.choice.label),
        _sections(run),
        _about(run),
        [Control("run", "Application or run", chosen, options, wide=True)],
        _exception(run)
        + [
            Note(shown(text), "warn")
            for text in (*notes, *run.notes, *(run.measured.notes if run.measured else ()))
        ],
    )


def _exception(run: RunView) -> list[Note]:
    """Return the exception that ended the run."""
    if run.measured is None or (exception := find_exception(run.measured)) is None:
        return []
    trace = f"cmsspark show {run.measured.run} --trace has the whole trace"
    return [Note(shown(f"Exception: {exception.summary}; {trace}"), "bad")]


def _about(run: RunView) -> str:
    measured = run.measured
    facts = [f"run {run.choice.run}", f"{to_second(run.choice.began_ms)} UTC"]
    if measured is not None:
        facts.append(measured.engine_text)
    if run.watched is not None:
        facts.append(f"on {run.watched.host}")
    return ", ".join(shown(fact) for fact in facts if fact)


def _sections(run: RunView) -> list[Section]:
    measured = run.measured
    sections = [Section("In total", [parts.figures(run)])]
    if measured is not None and measured.findings:
        sections.append(Section("What costs time or memory", [_findings(measured)]))
    if measured is not None and any(item.peaks for item in measured.executors):
        sections.append(
            Section(
                "Memory by area",
                [parts.memory_areas(measured)],
                "The largest value of each area while it ran.",
            )
        )
    if measured is not None and measured.samples:
        about = (
            "As the run saw itself: its driver and its Python workers on the host of the driver."
            " The used heap is a part of the driver's JVM."
        )
        sections.append(Section("Memory over time", [parts.memory_over_time(measured)], about))
    if run.samples:
        sections.append(
            Section(
                "Memory of all processes",
                [parts.roles_over_time(run, "rss_bytes")],
                "As a monitor saw them: every process of the run on all its hosts, also executors, the"
                " launcher and the Python of a driver in client mode, which Spark does not see. It is"
                " more than the run's own figures above. Shared pages count twice.",
            )
        )
        sections.append(
            Section("CPU by role", [parts.roles_over_time(run, "cpu_percent")], is_half=True)
        )
        sections.append(
            Section("Top processes over time", [parts.top_processes(run)], is_half=True)
        )
    if measured is not None:
        if any(item.active_tasks for item in measured.samples):
            sections.append(Section("Tasks", [parts.active_tasks(measured)]))
        if measured.totals.task_ms or measured.totals.run_ms:
            sections.append(
                Section("Where the time of tasks went", [parts.time_components(measured)])
            )
        if measured.executors:
            sections.append(Section("Executors", [parts.executors(measured)]))
        if measured.stages:
            about = "A slice of time counts each stage that ran in it, also those that ran one after the other."
            sections.append(Section("Stages over time", [parts.stage_timeline(measured)], about))
            sections.append(Section("Stages", [parts.stages(measured)]))
    if run.samples:
        sections.append(Section("Process tree", [parts.process_tree(run)]))
    if run.log:
        rows = [(entry.time_ms, entry.type, entry.host, entry.message) for entry in run.log]
        columns = (
            Column("time_ms", "Time", "instant"),
            Column("type", "Type"),
            Column("host", "Host"),
        )
        table = Table(
            "log", (*columns, Column("message", "Message")), rows, "Log of the monitor", limit=100
        )
        sections.append(Section("Log", [table]))
    return sections


def _findings(measured: RunMetrics) -> Table:
    rows = [(item.title, item.where, item.cure) for item in measured.findings]
    columns = (
        Column("title", "Finding"),
        Column("where", "Where"),
        Column("cure", "What to change"),
    )
    return Table("findings", columns, rows, "Findings")


PAGE = PageDefinition("Spark", "Memory, time and processes of runs.", view, needs_use=False)
