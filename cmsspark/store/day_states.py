"""The state of each day of each job and its reason: one table behind ``cmsspark status``,
mails, metrics, ``daily.json`` and the dashboard.

A state comes from the run history, the store, what ``cmsspark daily`` recorded, and the
publications at each destination.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import date, timedelta
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import asdict, replace

from cmsspark.base import dates
from cmsspark.base.errors import Exit, parts_of_text
from cmsspark.base.text.terminal import pluralize, printable
from cmsspark.filesystems.storage import is_local, local_path
from cmsspark.settings.settings import Settings
from cmsspark.sources.registry import DUMPS, STREAMS
from cmsspark.store.daily_state import DayRecord, StoreState, split_key
from cmsspark.store.deliveries import Delivery, Target, deliveries
from cmsspark.store.own_jobs import JOBS
from cmsspark.store.run_history import Published, Run, State

#: Word of a cell → its colour and its meaning.
WORDS: Final[Mapping[str, tuple[str, str]]] = {
    "published": ("green", "stored, all documents confirmed"),
    "done": ("green", "stored"),
    "partial": ("yellow", "stored, but incomplete"),
    "sending": ("yellow", "stored, some documents are not confirmed yet"),
    "unsent": ("yellow", "stored, not sent to the destination of the settings"),
    "running": ("blue", "a process is running"),
    "waiting": ("yellow", "an input is missing or not ready; nothing is stored"),
    "interrupted": ("yellow", "the last run was interrupted; nothing is stored"),
    "failed": ("red", "the last run failed; nothing is stored"),
    "given up": ("red", "failed too often with the same inputs; daily does not try it again"),
    "kept": ("red", "the last run failed; the earlier result is kept"),
    "damaged": ("red", "bytes of the stored result changed; cmsspark verify names them"),
    "lost": ("red", "the stored result is gone; cmsspark daily makes it again"),
    "left": ("yellow", "not tried by the last daily"),
    "skipped": ("white", "skipped by an operator (reason below)"),
    "outside": ("white", "no result; daily looks at later days only (`days` in the settings)"),
    "not looked at": ("white", "the store was not looked at, so nothing is known of the day"),
    "-": ("white", "no result; nothing was tried"),
}
#: Words of days without a result, which a day that is skipped shows no more.
NO_RESULT: Final = (
    *("-", "waiting", "interrupted", "failed", "lost", "given up", "left"),
    *("outside", "not looked at"),
)
#: Words that need no line of their own beside the table.
_PLAIN: Final = ("published", "done", "running", "outside", "not looked at", "-")
#: Words whose reason is the fault of a run.
_FAULTS: Final = ("failed", "given up", "kept")
#: Words of days that daily tries again, as long as it looks at them.
_TRIED_AGAIN: Final = (
    "waiting",
    "interrupted",
    "failed",
    "kept",
    "left",
    "lost",
    "unsent",
    "sending",
)
HOUR_MS: Final = 3_600_000
#: Defaults of the section ``daily`` of the settings that states depend on.
DEFAULT_DAYS: Final = 7
PATIENCE_HOURS: Final = 48.0

#: Words of days with a result.
STORED: Final = ("published", "done", "partial", "sending", "unsent", "running", "kept", "damaged")


class Cell(msgspec.Struct, frozen=True):
    """The state of a day of a job, a key of :data:`WORDS`, and its reason.

    ``refused``: refused documents. ``reason``: the fault in a line, ``where`` its file,
    ``inputs`` what a day waits for, ``since_ms`` since when (UTC). ``run`` and ``code``
    are those of the run that failed, ``by`` who skipped the day, ``deliveries`` the state
    of the documents at each destination.
    """

    word: str
    refused: int = 0
    reason: str = ""
    where: str = ""
    next_step: str = ""
    inputs: tuple[str, ...] = ()
    since_ms: int | None = None
    is_overdue: bool = False
    run: str = ""
    code: int = 0
    by: str = ""
    deliveries: tuple[Delivery, ...] = ()

    @property
    def needs_a_line(self) -> bool:
        """Whether there is more to say than the word."""
        return self.word not in _PLAIN or any(
            delivery.is_configured and delivery.state != "confirmed"
            for delivery in self.deliveries
        )

    def text(self) -> str:
        """Return the state in a line: what it is, since when, why, and the next step.

        Example:
            >>> Cell("waiting", reason="no eos log for 2026-01-15", inputs=("eos",)).text()
            'waiting for eos: no eos log for 2026-01-15'
            >>> Cell("failed", code=65, reason="damaged", where="/a/b.gz", next_step="fetch it again").text()
            'failed (65): damaged: /a/b.gz. Next: fetch it again'
        """
        text = "stored, not published" if self.word == "unsent" else self.word
        if self.inputs and self.word == "waiting":
            text += f" for {', '.join(self.inputs)}"
        if self.code and self.word in _FAULTS:
            text += f" ({self.code})"
        if self.since_ms and self.word not in _FAULTS:
            text += f" since {dates.to_minute(self.since_ms)}"
        text += f" by {self.by}" if self.by else ""
        text += ", overdue" if self.is_overdue else ""
        where = "" if self.where in self.reason else f": {self.where}"
        text += f": {self.reason}{where}" if self.reason else ""
        text += f". Next: {self.next_step}" if self.next_step else ""
        text += f" (run {self.run})" if self.run and self.word in _FAULTS else ""
        return printable(text)

    def as_dict(self) -> dict[str, Any]:
        """Return the state and its reason for ``--json``; what is empty is left out."""
        plain = {
            "state": self.word,
            "waits_for": list(self.inputs),
            "since": dates.to_second(self.since_ms) if self.since_ms else "",
            "is_overdue": self.is_overdue,
            "exit_code": self.code,
            "reason": self.reason,
            "file": self.where,
            "next_step": self.next_step,
            "run": self.run,
            "by": self.by,
            "refused": self.refused,
            "destinations": [
                {key: value for key, value in asdict(delivery).items() if value is not None}
                for delivery in self.deliveries
            ],
        }
        return {key: value for key, value in plain.items() if value or key == "state"}


def cell(
    runs: Iterable[Run],
    published: Iterable[Published],
    is_lost: Callable[[Run], bool] = lambda run: False,
    damaged: Collection[str] = (),
    target: Target | None = None,
) -> Cell:
    """Return the state of a day and job by its runs, the latest start first, and by the
    publications of them. ``damaged``: the stored runs that a verification found damaged.
    ``target``: the destination that the settings name.
    """
    latest_first = list(runs)
    if not latest_first:
        return Cell("-")
    latest = latest_first[0]
    if (
        running := next((run for run in latest_first if run.state is State.RUNNING), None)
    ) is not None:
        return Cell("running", since_ms=running.began_ms, run=running.run)
    stored = next((run for run in latest_first if run.state is State.DONE), None)
    # The failure of a run, by the message that it ended with.
    parts = parts_of_text(latest.error or "")
    observed = parts.get("found", "")
    failure = Cell(
        "failed",
        reason=": ".join(filter(None, (parts.get("problem", ""), observed))),
        where=parts.get("where", ""),
        next_step=parts.get("next", ""),
        run=latest.run,
        code=latest.exit_code or 0,
    )
    if stored is None:
        if latest.state is State.INTERRUPTED:
            return replace(failure, word="interrupted")
        waits = (Exit.NO_INPUT, Exit.NOT_READY)
        if latest.exit_code in waits:
            inputs = inputs_named(failure.reason)
            waiting = takewhile(lambda run: run.exit_code in waits, latest_first)
            since_ms = min(run.began_ms for run in waiting)
            return replace(failure, word="waiting", inputs=inputs, since_ms=since_ms)
        return failure
    if is_lost(stored):
        return Cell("lost", run=stored.run)
    if stored.stored_run in damaged:
        return Cell("damaged", next_step="cmsspark verify", run=stored.run)
    if latest.state is State.FAILED and latest.exit_code not in (Exit.NO_INPUT, Exit.NOT_READY):
        return replace(failure, word="kept")
    sent = [entry for entry in published if entry.stored_run == stored.stored_run]
    public = JOBS[stored.job].public_tables if stored.job in JOBS else ()
    tables = set(public) & set(stored.details.tables) or set(public[:1])
    at = tuple(deliveries(sent, tables, target)) if sent or (target and tables) else ()
    refused = sum(delivery.refused for delivery in at)
    # Without a destination in the settings, each that documents were sent to counts.
    of_settings = [delivery for delivery in at if delivery.is_configured] or list(at)
    open_at = [delivery for delivery in of_settings if delivery.state in ("waiting", "not sent")]
    state = Cell("done", refused, deliveries=at)
    unsent = "; ".join(delivery.text() for delivery in open_at)
    if any(delivery.state == "waiting" for delivery in open_at):
        return replace(state, word="sending", reason=unsent, since_ms=stored.ended_ms)
    if stored.is_partial:
        lacking = ", ".join(stored.details.missing_streams)
        without = f"without {lacking}" if lacking else ""
        return replace(state, word="partial", reason="; ".join(filter(None, (without, unsent))))
    if open_at:
        return replace(state, word="unsent", reason=unsent, since_ms=stored.ended_ms)
    refusals = "; ".join(delivery.text() for delivery in of_settings if delivery.refused)
    return replace(state, word="published" if sent else "done", reason=refusals)


def inputs_named(text: str) -> tuple[str, ...]:
    """Return the streams and dumps that a reason to wait names, without those in paths.

    Example:
        >>> inputs_named("no eos log for 2026-01-15; dbs: no complete dump in /a/cms/aaa")
        ('eos', 'dbs')
    """
    plain = re.sub(r"\S*/\S*", " ", text)
    words = re.findall(r"[a-z][a-z0-9-]*", plain)
    return tuple(dict.fromkeys(word for word in words if word in STREAMS or word in DUMPS))


class Surroundings(msgspec.Struct, frozen=True):
    """What a day's state depends on beside its runs.

    ``window_start``: the first day that the next daily looks at, None if no daily
    does the store's work. ``jobs``: those of daily. ``is_looked_at``: whether the store
    was. ``records``: those of daily, by (day, job).
    """

    now_ms: int
    records: Mapping[tuple[date, str], DayRecord] = msgspec.field(default_factory=dict)
    window_start: date | None = None
    jobs: Collection[str] = ()
    patience_hours: float = PATIENCE_HOURS
    is_looked_at: bool = True

    def _is_outside(self, day: date, job: str) -> bool:
        """Return whether daily, which runs the job, looks at later days only."""
        return self.window_start is not None and job in self.jobs and day < self.window_start

    def explained(self, state: Cell, day: date, job: str) -> Cell:
        """Return the state with what daily recorded of the day, and why there is none."""
        record = self.records.get((day, job))
        if record is not None:
            state = _with_record(state, record)
        if state.word == "-":
            if not self.is_looked_at:
                state = replace(state, word="not looked at")
            elif self._is_outside(day, job):
                state = replace(state, word="outside", next_step=run_step(day, job))
        elif self.is_looked_at and state.word in _TRIED_AGAIN and self._is_outside(day, job):
            step = f"daily looks at later days only: {run_step(day, job)}"
            before = "" if state.word == "waiting" else state.next_step
            state = replace(state, next_step="; ".join(filter(None, (before, step))))
        late = state.word in ("waiting", "sending", "unsent", "left")
        return replace(
            state, is_overdue=late and is_overdue(day, self.now_ms, self.patience_hours)
        )


def surroundings(settings: Settings, state: StoreState) -> Surroundings:
    """Return what the states of days depend on beside their runs, by the settings and by
    what daily recorded.
    """
    daily = settings.daily
    days, patience = daily.get("days"), daily.get("patience_hours")
    count = days if isinstance(days, int) else DEFAULT_DAYS
    names = daily.get("jobs")
    jobs = [str(name) for name in names] if isinstance(names, list) else ["data_aggregation"]
    has_daily = bool(daily) or state.planned_until is not None
    return Surroundings(
        dates.now_ms(),
        {split_key(key): record for key, record in state.days.items()},
        dates.today() - timedelta(days=count) if has_daily else None,
        jobs,
        float(patience) if isinstance(patience, int | float) else PATIENCE_HOURS,
    )


def run_step(day: date, job: str) -> str:
    """Return the command that does the work of a day outside daily's window."""
    return f"cmsspark daily --date {dates.compact(day)} --job {job}"


def _with_record(state: Cell, record: DayRecord) -> Cell:
    """Return the state with the record of daily, where that says more than the runs."""
    if record.skipped is not None and state.word in NO_RESULT:
        note = record.skipped
        return Cell("skipped", reason=note.reason, by=note.user, since_ms=note.at_ms)
    if state.word not in (*NO_RESULT, "kept") or not record.word:
        return state
    recorded = of_record(record)
    if state.word == "kept":
        text = recorded.next_step if record.is_given_up else state.next_step
        return replace(state, next_step=text)
    return replace(recorded, run=recorded.run or state.run) if recorded.word in WORDS else state


def of_record(record: DayRecord) -> Cell:
    """Return the state that daily recorded."""
    return Cell(
        "given up" if record.is_given_up else record.word,
        reason=record.text,
        where=record.where,
        next_step=record.next_step,
        inputs=inputs_named(record.text) if record.word == "waiting" else (),
        since_ms=record.first_ms or None,
        is_overdue=record.is_overdue,
        run=record.run,
        code=record.code,
    )


def before_window(record: DayRecord) -> Cell:
    """Return the state that daily recorded of a day that it no longer looks at: what
    waits is not run when its input comes.
    """
    state = of_record(record)
    return replace(state, next_step="") if state.word == "waiting" else state


def is_overdue(day: date, now_ms: int, patience_hours: float) -> bool:
    """Return whether a day that is still not done should be reported."""
    return now_ms >= patience_ends(day, patience_hours)


def patience_ends(day: date, patience_hours: float) -> int:
    """Return the instant from which on a day that is not done is overdue."""
    return dates.timestamp_ms_bounds(day)[1] + int(patience_hours * HOUR_MS)


def table(
    span: list[date],
    jobs: list[str],
    runs: Iterable[Run],
    published: Iterable[Published],
    damaged: Collection[str] = (),
    target: Target | None = None,
    around: Surroundings | None = None,
) -> dict[tuple[date, str], Cell]:
    """Return the cell of each day and job. ``damaged``: the stored runs that a
    verification found damaged.
    """
    by_day: dict[tuple[date, str], list[Run]] = {}
    for run in runs:
        by_day.setdefault((run.day, run.job), []).append(run)
    sent: dict[tuple[date, str], list[Published]] = {}
    for entry in published:
        sent.setdefault((entry.day, entry.job), []).append(entry)
    surroundings = around or Surroundings(dates.now_ms())
    cells = {}
    for key in ((day, job) for day in span for job in jobs):
        # Of a job that daily does not run, nobody said that it is to be published.
        is_public = key[1] in surroundings.jobs or key in sent
        chosen = target if is_public else None
        state = cell(by_day.get(key, ()), sent.get(key, ()), is_lost, damaged, chosen)
        cells[key] = surroundings.explained(state, *key)
    return cells


def lines(cells: Mapping[tuple[date, str], Cell]) -> list[str]:
    """Return a line for each state that has a reason, the oldest day first."""
    return [
        f"{day} {job}: {state.text()}"
        for (day, job), state in sorted(cells.items())
        if state.needs_a_line
    ]


def delivery_lines(cells: Mapping[tuple[date, str], Cell]) -> list[str]:
    """Return a line for each destination: how many stored days it has, lacks and refused."""
    counts: dict[tuple[str, bool], dict[str, int]] = {}
    for state in cells.values():
        for delivery in state.deliveries:
            key = delivery.destination, delivery.is_configured
            states = counts.setdefault(key, {})
            states[delivery.state] = states.get(delivery.state, 0) + 1
    return [
        f"{name}{' (of the settings)' if is_configured else ''}: "
        + ", ".join(
            f"{pluralize(count, 'day')} {state}" for state, count in sorted(states.items())
        )
        for (name, is_configured), states in sorted(
            counts.items(), key=lambda item: not item[0][1]
        )
    ]


def is_lost(run: Run) -> bool:
    """Return whether the store has nothing of the run's day any more; checked in local
    stores only.
    """
    if not is_local(run.store):
        return False
    return not Path(local_path(run.store), run.job, run.day.isoformat(), "CURRENT").exists()
