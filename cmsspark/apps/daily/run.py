"""Brings the last days up to date: plans what is to be done, starts it, and keeps how
each task ended.
"""

from __future__ import annotations

import json
import re
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import date, timedelta
from functools import cache
from typing import IO, TYPE_CHECKING, Final, Self

import click
import msgspec
from msgspec.structs import replace

from cmsspark import __version__
from cmsspark.apps.daily.planner import Rules, is_overdue
from cmsspark.base import dates
from cmsspark.base.errors import CmssparkError, Exit, as_ours, parts_of_text
from cmsspark.base.periods import first_day
from cmsspark.base.reporting import interruptible
from cmsspark.base.text.terminal import pluralize
from cmsspark.filesystems.storage import Files, is_local, join
from cmsspark.sources.registry import STREAMS
from cmsspark.store.daily_state import (
    GIVEN_UP,
    DailyState,
    DayRecord,
    StoreState,
    day_key,
    signature,
    split_key,
)
from cmsspark.store.day_states import Cell, inputs_named
from cmsspark.store.own_jobs import JOBS, Job

if TYPE_CHECKING:
    from cmsspark.apps.daily.config import DailyConfig
    from cmsspark.apps.daily.planner import PlannedTask, Planner
    from cmsspark.settings.settings import Settings
    from cmsspark.store.own_jobs import Job
    from cmsspark.store.run_history import Published


# How a task of ``cmsspark daily`` ended: its outcome, its exit code, and what is
# recorded of it.

#: When two days in a row end with the same one of these, all others would, too: daily
#: does not try them.
FATAL_EXIT_CODES: Final = (Exit.USAGE, Exit.NO_OUTPUT, Exit.SETTINGS)

#: The code that daily ends with is the first of these that something ended with.
EXIT_PRIORITY: Final = (
    *(Exit.BUG, Exit.SETTINGS, Exit.NOT_ALLOWED, Exit.NO_OUTPUT, Exit.DATA, Exit.USAGE),
    *(Exit.QUARANTINED, Exit.NOT_READY),
)

#: Days without any daily that are recorded, at most.
_GAP_DAYS: Final = 400


class TaskOutcome(msgspec.Struct, frozen=True):
    """How a task ended.

    ``word`` is done, published, waiting, unsent, failed, left (not tried), acknowledged
    or skipped. ``where``, ``next_step`` and ``run`` are the file, what to do, and the
    run of a failure; ``since_ms`` says since when it is so.
    """

    task: PlannedTask
    word: str
    code: int
    text: str
    seconds: float = 0.0
    where: str = ""
    next_step: str = ""
    run: str = ""
    since_ms: int | None = None
    is_overdue: bool = False
    is_given_up: bool = False
    #: Whether a job was started for it.
    has_run: bool = False
    #: Identifies the trouble; see :func:`cmsspark.store.daily_state.signature`.
    signature: str = ""

    @classmethod
    def of_error(cls, task: PlannedTask, word: str, code: int, error: CmssparkError) -> Self:
        """Return the outcome of a task that an error ended."""
        observed = "" if error.found is None else f": {error.found}"
        where = "" if error.where is None else str(error.where)
        return cls(
            task,
            word,
            code,
            error.problem + observed,
            where=where,
            next_step=error.next_step or "",
        )

    @property
    def state(self) -> Cell:
        """The outcome as mails, metrics and ``cmsspark status`` tell it."""
        return Cell(
            "given up" if self.is_given_up else self.word,
            reason=self.text,
            where=self.where,
            next_step=self.next_step,
            inputs=inputs_named(self.text) if self.word == "waiting" else (),
            since_ms=self.since_ms,
            is_overdue=self.is_overdue,
            run=self.run,
            code=self.code,
        )

    @property
    def trouble(self) -> str:
        """What a mail was sent of: that a day is given up is told once more."""
        return self.signature + (GIVEN_UP if self.is_given_up else "")


def as_error(error: Exception) -> CmssparkError:
    """Return the error as one of ours; a surprise is a bug (70)."""
    ours = as_ours(error)
    if ours is not None:
        return ours
    return CmssparkError(
        f"a bug in cmsspark: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
    )


def in_a_line(error: CmssparkError) -> str:
    """Return what was wanted, where, and what is there instead."""
    where = "" if error.where is None else f": {error.where}"
    return error.problem + where + ("" if error.found is None else f": {error.found}")


def most_serious(exit_codes: Iterable[int]) -> int:
    """Return the most serious of the codes; a code that is not in ``EXIT_PRIORITY`` comes first."""
    codes = set(exit_codes) - {0}
    ranked = [code for code in EXIT_PRIORITY if code in codes]
    unranked = codes - set(EXIT_PRIORITY)
    return int(next(iter(sorted(unranked)), ranked[0] if ranked else 0))


def update_record(record: DayRecord, outcome: TaskOutcome, now_ms: int, rules: Rules) -> None:
    """Put an outcome that is not done into the record of its day."""
    is_same_wait = record.word == outcome.word == "waiting" and inputs_named(
        record.text
    ) == inputs_named(outcome.text)
    if not is_same_wait and record.signature != signature(
        outcome.word, outcome.code, outcome.text
    ):
        record.first_ms = now_ms
    record.word, record.code, record.text = outcome.word, outcome.code, outcome.text
    record.where, record.next_step = outcome.where, outcome.next_step
    record.run = outcome.run or record.run
    record.is_given_up, record.last_ms = outcome.is_given_up, now_ms
    record.is_overdue = outcome.word in ("waiting", "unsent") and is_overdue(
        outcome.task.day, now_ms, rules
    )
    if not outcome.has_run:
        return
    if record.fingerprint != outcome.task.fingerprint:
        record.attempts, record.fingerprint = 0, outcome.task.fingerprint
    # What waits is worth another attempt until it is overdue; what ends all days alike
    # is no fault of this one.
    is_temporary = outcome.word == "waiting" and not is_overdue(outcome.task.day, now_ms, rules)
    if (
        outcome.word in ("failed", "waiting")
        and outcome.code not in FATAL_EXIT_CODES
        and not is_temporary
    ):
        record.attempts += 1


def record_gap(
    state: StoreState, jobs: Sequence[Job], first: date, last: date, now_ms: int
) -> None:
    """Record the days between the last one that a daily looked at and ``first``: no
    daily will look at them.
    """
    until = state.planned_until
    if until is not None:
        for number in range(1, min((first - until).days, _GAP_DAYS + 1)):
            for job in jobs:
                text = "no cmsspark daily has checked it"
                record = DayRecord(
                    word="left", code=int(Exit.NOT_READY), text=text, first_ms=now_ms
                )
                state.days.setdefault(day_key(until + timedelta(days=number), job.name), record)
    state.planned_until = last if until is None else max(until, last)


class DailyReport(msgspec.Struct, frozen=True):
    """All that is reported of one call. ``unfinished``: days before ``first`` that are
    not done, by key; ``silent``: a line for each stream whose sites fell silent.
    """

    first: date
    last: date
    outcomes: Sequence[TaskOutcome]
    overdue: Sequence[TaskOutcome] = ()
    unfinished: Mapping[str, DayRecord] = msgspec.field(default_factory=dict)
    silent: Sequence[str] = ()

    @property
    def code(self) -> int:
        """The exit code."""
        unfinished = [record.code or int(Exit.NOT_READY) for record in self.unfinished.values()]
        return most_serious([outcome.code for outcome in self.outcomes] + unfinished)

    def trouble(self) -> dict[str, str]:
        """Return what somebody should look at: the key of the day → the signature of its trouble."""
        result = {key: record.trouble for key, record in self.unfinished.items()}
        for outcome in self.outcomes:
            if (
                outcome.word == "failed"
                or outcome.code == Exit.QUARANTINED
                or outcome in self.overdue
                or outcome.is_given_up
            ):
                result[day_key(outcome.task.day, outcome.task.job.name)] = outcome.trouble
        return result


#: Runs a command line to its end and returns its exit code.
Runner = Callable[[list[str]], int]


class Commands:
    """Runs command lines as processes; their output goes to stderr, because stdout is
    for the summary.
    """

    def __init__(self, log: JsonLog | None = None) -> None:
        """``log`` gets what they print, a line an event; without it stderr does."""
        self._children: set[subprocess.Popen[bytes]] = set()
        self._log = log

    def __call__(self, argv: list[str]) -> int:
        stdout, stderr = (2, None) if self._log is None else (subprocess.PIPE, subprocess.STDOUT)
        with subprocess.Popen(argv, stdout=stdout, stderr=stderr) as child:
            self._children.add(child)
            try:
                if self._log is not None and child.stdout is not None:
                    command = {"process.command_args": argv[3:], "process.pid": child.pid}
                    for line in child.stdout:
                        self._log(line.decode("utf-8", "replace").rstrip("\n"), command)
                code = child.wait()
            except BaseException:
                self.stop()
                raise
            finally:
                self._children.discard(child)
        return code if code >= 0 else int(Exit.NOT_READY)

    def stop(self) -> None:
        """Send SIGTERM to the processes that still run."""
        for child in list(self._children):
            with suppress(OSError):
                child.terminate()


def _log(text: str) -> None:
    # A closed stderr stops no day.
    with suppress(OSError, ValueError):
        click.echo(text, err=True)


class Daily(msgspec.Struct):
    """One call of ``cmsspark daily``. ``argv``: options that every command line gets;
    ``now`` is in seconds.

    ``only``: the days to look at, where not all from the first to the last. ``force``:
    run these days again, also those that are done or were given up.
    """

    settings: Settings
    config: DailyConfig
    fout: str
    files: Files
    argv: tuple[str, ...] = ()
    root: str | None = None
    only: frozenset[date] | None = None
    force: bool = False
    runner: Runner = msgspec.field(default_factory=Commands)
    log: Callable[[str], None] = _log
    now: Callable[[], float] = time.time
    #: Called after each task: the daily is alive.
    heartbeat: Callable[[], None] = lambda: None
    _is_stopped: bool = False
    _fatal: int = 0
    _ended: int = 0
    _began: float = 0.0
    _began_ms: int = 0

    def use_log(self, log: JsonLog) -> None:
        """Write the log, and what the commands print, as JSON."""
        self.log = log
        if isinstance(self.runner, Commands):
            self.runner = Commands(log)

    @property
    def state(self) -> DailyState:
        """What earlier calls recorded of this store."""
        return DailyState(self.settings.state_dir, self.fout)

    def window_start(self) -> date:
        """Return the first day that a call without options looks at."""
        return dates.utc(int(self.now() * 1000)).date() - timedelta(days=self.config.days)

    def tasks(self, first: date, last: date) -> list[PlannedTask]:
        """Return what is to be done for the days from ``first`` to ``last``, oldest first."""
        planner = self._planner(first, last)
        span = [first + timedelta(days=number) for number in range((last - first).days + 1)]
        chosen = [day for day in span if self.only is None or day in self.only]
        tasks = [self._plan(planner, job, day) for day in chosen for job in self.config.jobs]
        return [task for task in tasks if task is not None]

    def latest_day(self, until: date) -> date:
        """Return the newest day up to ``until`` whose inputs are complete for all jobs.
        Raises NotReady (75).
        """
        from cmsspark.apps.daily.planner import latest_day

        return latest_day(self._planner(until, until), self.config.jobs, until)

    def _planner(self, first: date, last: date) -> Planner:
        from cmsspark.apps.daily.planner import Planner
        from cmsspark.publish.publication import configured_target
        from cmsspark.sources.folders import Layout
        from cmsspark.store import run_history

        published: list[Published] | None = [] if self.config.publish else None
        damaged: set[str] = set()
        with (
            suppress(CmssparkError),
            run_history.open_history(self.settings.state_dir) as history,
        ):
            checks = history.checks(self.fout).values()
            damaged = {check.stored_run for check in checks if check.error}
            if self.config.publish:
                published = history.published(first, last)
        layout = Layout.from_settings(self.settings, self.root)
        rules, policies = self.config.rules, self.config.policies
        now_ms, target = int(self.now() * 1000), cache(lambda: configured_target(self.settings))
        return Planner(
            self.files,
            layout,
            self.fout,
            rules,
            policies,
            published,
            now_ms,
            damaged,
            target,
        )

    def _plan(self, planner: Planner, job: Job, day: date) -> PlannedTask | None:
        """Return what is to be done for a day; whatever goes wrong in looking is an
        error of this day alone.
        """
        from cmsspark.apps.daily.planner import PlannedTask

        try:
            return planner.task(job, day, force=self.force)
        except Exception as error:
            return PlannedTask(day, job, "cannot be checked", error=as_error(error))

    def unfinished(self, before: date) -> dict[str, DayRecord]:
        """Recorded days before ``before`` that are still to be done and that nobody
        acknowledged, by key.

        The records of days that were done in the meantime are removed.
        """
        records = {
            key: record
            for key, record in self.state.read().days.items()
            if split_key(key)[0] < before
        }
        if not records:
            return {}
        jobs = {job.name: job for job in self.config.jobs}
        days = [split_key(key)[0] for key in records]
        planner = self._planner(min(days), max(days))
        done = []
        for key in records:
            day, name = split_key(key)
            if name in jobs and self._plan(planner, jobs[name], day) is None:
                done.append(key)
        if done:
            with self.state.change() as state:
                for key in done:
                    state.days.pop(key, None)
        names = [key for key in records if key not in done and split_key(key)[1] in jobs]
        return {
            key: records[key]
            for key in names
            if not records[key].is_acknowledged and not records[key].skipped
        }

    def work(self, tasks: Sequence[PlannedTask]) -> list[TaskOutcome]:
        """Do the tasks: a day's one after another, oldest days first, ``parallel`` days at once."""
        by_day: dict[date, list[PlannedTask]] = {}
        for task in tasks:
            by_day.setdefault(task.day, []).append(task)
        self._began, self._began_ms = time.monotonic(), dates.now_ms()

        def one_day(day: date) -> list[TaskOutcome]:
            return [self._do(task, len(tasks)) for task in by_day[day]]

        if self.config.parallel == 1 or len(by_day) < 2:
            return [outcome for day in by_day for outcome in one_day(day)]
        with ThreadPoolExecutor(self.config.parallel) as pool:
            try:
                return [outcome for outcomes in pool.map(one_day, by_day) for outcome in outcomes]
            except BaseException:
                self._is_stopped = True
                if isinstance(self.runner, Commands):
                    self.runner.stop()
                raise

    def verify_share(self) -> list[TaskOutcome]:
        """Compare a share of a local store with its manifests; return an outcome for
        each result that is damaged. A day of the window is run again by the next call.
        """
        from cmsspark.apps.daily.planner import PlannedTask
        from cmsspark.store import run_history
        from cmsspark.store.part_files import check_share

        outcomes = []
        try:
            with run_history.open_history(self.settings.state_dir) as history:
                now_ms = int(self.now() * 1000)
                for check in check_share(self.files, self.fout, history, now_ms):
                    self.heartbeat()
                    if not check.errors or check.job not in JOBS:
                        continue
                    task = PlannedTask(first_day(check.interval), JOBS[check.job], "verified")
                    text = f"the stored result is damaged: {in_a_line(check.errors[0])}"
                    if check.errors[0].next_step:
                        text += f"; next: {check.errors[0].next_step}"
                    outcome = TaskOutcome(task, "failed", int(Exit.DATA), text)
                    is_planned = any(job.name == check.job for job in self.config.jobs)
                    outcomes.append(
                        self._recorded(self._record(task), outcome) if is_planned else outcome
                    )
        except CmssparkError as error:
            self.log(f"warning: the store was not verified: {in_a_line(error)}")
        return outcomes

    def _do(self, task: PlannedTask, total: int) -> TaskOutcome:
        if self._is_stopped:
            outcome = TaskOutcome(
                task, "left", 0, "not tried, because others ended with a code that stops all"
            )
            with suppress(CmssparkError), self.state.change() as state:
                record = DayRecord(
                    word=outcome.word, text=outcome.text, first_ms=int(self.now() * 1000)
                )
                state.days.setdefault(day_key(task.day, task.job.name), record)
            return outcome
        began = time.monotonic()
        record = self._record(task)
        if record.skipped is not None:
            outcome = TaskOutcome(
                task, "skipped", 0, f"{record.skipped.reason} ({record.skipped.user})"
            )
        else:
            outcome = self._recorded(record, self._attempt(task, record))
        outcome = replace(outcome, seconds=round(time.monotonic() - began, 1))
        self._ended += 1
        pending = total - self._ended
        estimate = (time.monotonic() - self._began) / self._ended * pending
        more = (
            f"; {pending} to go, about {max(1, round(estimate / 60))} min"
            if pending and estimate > 30
            else ""
        )
        name = f"{task.job.name} of {task.day}"
        self.log(
            f"[{self._ended} of {total}] {name} ({task.reason}): {outcome.state.text()}{more}"
        )
        self.heartbeat()
        return outcome

    def _record(self, task: PlannedTask) -> DayRecord:
        try:
            return self.state.record(task.day, task.job.name)
        except CmssparkError as error:
            self.log(f"warning: {error.problem}: {error.where}: {error.found}")
            return DayRecord()

    def _attempt(self, task: PlannedTask, record: DayRecord) -> TaskOutcome:
        """Do the task, unless it failed too often; an exception of any kind is an
        outcome of this task alone.
        """
        is_same = (
            record.attempts >= self.config.attempts and record.fingerprint == task.fingerprint
        )
        if task.runs and task.error is None and is_same and not self.force:
            outcome = TaskOutcome(
                task, record.word, record.code, record.text.partition(GIVEN_UP)[0]
            )
            outcome = replace(
                outcome, where=record.where, next_step=record.next_step, run=record.run
            )
            return self._given_up(outcome, record)
        try:
            outcome = self._outcome(task)
        except Exception as error:
            ours = as_error(error)
            return TaskOutcome.of_error(task, "failed", int(ours.exit_code), ours)
        if task.error is None:
            is_fatal = outcome.code in FATAL_EXIT_CODES
            self._is_stopped = self._is_stopped or (is_fatal and self._fatal == outcome.code)
            if is_fatal or outcome.word != "waiting":
                self._fatal = outcome.code
        return outcome

    def _given_up(self, outcome: TaskOutcome, record: DayRecord) -> TaskOutcome:
        """Return the outcome of a day that failed too often with the same inputs."""
        day, job = dates.compact(outcome.task.day), outcome.task.job.name
        step = f"cmsspark daily --date {day} --job {job} --force --fout {shlex.quote(self.fout)}"
        failures = f"given up after {pluralize(record.attempts, 'failure')}"
        return replace(outcome, next_step=f"{failures}; to run it again: {step}", is_given_up=True)

    def _recorded(self, record: DayRecord, outcome: TaskOutcome) -> TaskOutcome:
        """Record the outcome for the next calls; trouble that was acknowledged is
        returned as such.
        """
        task = outcome.task
        trouble = signature(outcome.word, outcome.code, outcome.text)
        try:
            with self.state.change() as state:
                if outcome.word in ("done", "published"):
                    state.days.pop(day_key(task.day, task.job.name), None)
                    return replace(outcome, signature=trouble)
                latest = state.days.setdefault(day_key(task.day, task.job.name), DayRecord())
                update_record(latest, outcome, int(self.now() * 1000), self.config.rules)
                if outcome.has_run and latest.attempts >= self.config.attempts:
                    outcome = self._given_up(outcome, latest)
                    latest.is_given_up, latest.next_step = True, outcome.next_step
                record = latest
                outcome = replace(outcome, since_ms=record.first_ms, is_overdue=record.is_overdue)
        except CmssparkError as error:
            self.log(f"warning: {error.problem}: {error.where}: {error.found}")
        if record.acknowledged is not None and record.acknowledged_signature == trouble:
            return replace(outcome, word="acknowledged", code=0, signature=trouble)
        return replace(outcome, signature=trouble)

    def _outcome(self, task: PlannedTask) -> TaskOutcome:
        if task.error is not None:
            is_waiting = task.error.exit_code in (Exit.NO_INPUT, Exit.NOT_READY)
            ended = Exit.NOT_READY if is_waiting else task.error.exit_code
            word = "waiting" if is_waiting else "failed"
            return TaskOutcome.of_error(task, word, int(ended), task.error)
        for text in task.readiness.warnings:
            self.log(f"warning: {task.day}: {text}")
        if not task.readiness.is_ready:
            text = "; ".join(task.readiness.reasons)
            step = self._step_without(task, inputs_named(text))
            return TaskOutcome(task, "waiting", int(Exit.NOT_READY), text, next_step=step)
        if task.runs:
            arguments = (*self.config.options, *self._arguments(task), *task.options)
            root = ("--root", self.root) if self.root else ()
            code = self.runner(_python("cmsspark.submit", task.job.name, *arguments, *root))
            if code:
                is_waiting = code in (Exit.NO_INPUT, Exit.NOT_READY)
                shown = int(Exit.NOT_READY) if is_waiting else code
                word = "waiting" if is_waiting else "failed"
                outcome = TaskOutcome(
                    task, word, shown, f"run_spark {task.job.name} ended with {code}", has_run=True
                )
                return self._with_fault(outcome)
        return self._publish(task)

    def _step_without(self, task: PlannedTask, inputs: Sequence[str]) -> str:
        """Return what to do about a day whose input does not come; empty before it is
        overdue.
        """
        if not is_overdue(task.day, int(self.now() * 1000), self.config.rules):
            return ""
        day, job = dates.compact(task.day), task.job.name
        skip = f'cmsspark daily skip {day} {job} --reason "…"'
        streams = [name for name in inputs if name in STREAMS]
        if not streams or {*task.job.streams} <= {*streams}:
            return f"it is run when that has come; if it never will: {skip}"
        without = ", ".join(f"{name}: partial" for name in streams)
        return (
            f"it is run when that has come; if it never will: {skip}, or count without: "
            f"`sources: {{{without}}}` under daily in the settings"
        )

    def _with_fault(self, outcome: TaskOutcome) -> TaskOutcome:
        """Return the outcome with the error of the run that just ended, from the run
        history; as it is where the run was elsewhere.
        """
        from cmsspark.store import run_history

        task = outcome.task
        with suppress(Exception), run_history.open_history(self.settings.state_dir) as history:
            latest = history.runs(
                job=task.job.name, first=task.day, last=task.day, store=self.fout, limit=1
            )
            if latest and latest[0].error and latest[0].began_ms >= self._began_ms:
                parts = parts_of_text(latest[0].error)
                text = ": ".join(filter(None, (parts.get("problem"), parts.get("found"))))
                return replace(
                    outcome,
                    text=text,
                    where=parts.get("where", ""),
                    next_step=parts.get("next", ""),
                    run=latest[0].run,
                )
        return outcome

    def _publish(self, task: PlannedTask) -> TaskOutcome:
        if not (self.config.publish and task.job.public_tables):
            return TaskOutcome(task, "done", 0, "stored")
        code = self.runner(
            _python("cmsspark.main", "publish", "--job", task.job.name, *self._arguments(task))
        )
        if code in (0, Exit.QUARANTINED):
            return TaskOutcome(
                task, "published", code, "some documents were refused" if code else "all confirmed"
            )
        word = "unsent" if code == Exit.NOT_READY else "failed"
        reason = self._unsent_reason(task) or f"cmsspark publish ended with {code}"
        if word == "unsent":
            return TaskOutcome(task, word, code, reason, next_step="the next daily tries again")
        return TaskOutcome(task, word, code, f"stored, not published: {reason}")

    def _unsent_reason(self, task: PlannedTask) -> str:
        """Return what the destination said, from the run history, or why the settings name
        none that can be used; empty where neither is known.
        """
        from cmsspark.publish.publication import configured_target
        from cmsspark.store import run_history

        with suppress(Exception), run_history.open_history(self.settings.state_dir) as history:
            entries = [
                entry
                for entry in history.published(task.day, task.day)
                if entry.job == task.job.name and entry.at_ms >= self._began_ms and entry.reason
            ]
            if entries:
                latest = max(entries, key=lambda entry: entry.at_ms)
                return f"{latest.destination}: {latest.reason}"
        try:
            configured_target(self.settings)
        except CmssparkError as error:
            parts = (error.problem, error.where, error.found)
            return ": ".join(str(part) for part in parts if part)
        return ""

    def _arguments(self, task: PlannedTask) -> list[str]:
        return ["--date", dates.compact(task.day), "--fout", self.fout, *self.argv]


def _python(module: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", f"from {module} import main; main()", *arguments]


def worked(daily: Daily, first: date, last: date) -> list[TaskOutcome]:
    """Plan and do, as the only one. Raises NotReady (75) where another daily is at work
    on this store.
    """
    from cmsspark.store import lease

    with (
        interruptible(),
        lease.hold(daily.files, join(daily.fout, ".leases", "daily"), lease.DAILY_WORK),
    ):
        daily.heartbeat()
        try:
            with daily.state.change() as state:
                state.not_begun = ""
                if daily.only is None:
                    record_gap(state, daily.config.jobs, first, last, int(daily.now() * 1000))
        except CmssparkError as error:
            daily.log(f"warning: {error.problem}: {error.where}: {error.found}")
        outcomes = daily.work(daily.tasks(first, last))
        # HDFS and object stores check their blocks themselves.
        if daily.only is None and is_local(daily.fout):
            outcomes += daily.verify_share()
        return outcomes


# The log of ``cmsspark daily`` as JSON: one event a line, with the field names of
# OpenTelemetry's log data model.

#: Word at the beginning of a message → (text, number) of the severity.
_SEVERITIES: Final[Mapping[str, tuple[str, int]]] = {
    "warning": ("WARN", 13),
    "error": ("ERROR", 17),
}
_INFO: Final = ("INFO", 9)
_FAILED: Final = re.compile(r": (failed|given up) [(]")
_TASK: Final = re.compile(r"\[\d+ of \d+\] (?P<job>\w+) of (?P<day>[\d-]+) ")


class JsonLog:
    """Writes events to stderr; lines of threads do not mix."""

    def __init__(self, stream: IO[str] | None = None) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._resource = {
            "service.name": "cmsspark-daily",
            "service.version": __version__,
            "host.name": socket.gethostname(),
        }

    def __call__(self, text: str, attributes: Mapping[str, object] | None = None) -> None:
        """Write a message as one event."""
        word = text.partition(":")[0]
        severity, number = _SEVERITIES.get(word, _INFO)
        if _FAILED.search(text):
            severity, number = _SEVERITIES["error"]
        task = _TASK.match(text)
        event = {
            "Timestamp": str(time.time_ns()),
            "SeverityText": severity,
            "SeverityNumber": number,
            "Body": text,
            "Resource": self._resource,
            "Attributes": {
                **({"cms.job": task["job"], "cms.day": task["day"]} if task else {}),
                **(attributes or {}),
            },
        }
        line = json.dumps(event, ensure_ascii=False, default=str) + "\n"
        stream = self._stream or sys.stderr
        # A closed stderr stops no day.
        with self._lock, suppress(OSError, ValueError):
            stream.write(line)
            stream.flush()
