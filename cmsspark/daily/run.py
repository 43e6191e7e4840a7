"""Brings the last days up to date: plans what is to be done, starts it, and keeps how each task ended."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from typing import TYPE_CHECKING, Final

import click

from cmsspark import clock, days
from cmsspark.errors import CmssparkError, Exit
from cmsspark.signals import interruptible
from cmsspark.storage import Files, join

if TYPE_CHECKING:
    from cmsspark.daily.config import DailyConfig
    from cmsspark.pipeline.planner import PlannedTask
    from cmsspark.settings import Settings


#: Runs a command line to its end and returns its exit code.
Runner = Callable[[list[str]], int]


#: After these the other days would end in the same way, so that daily stops.
FATAL_EXIT_CODES: Final = (Exit.USAGE, Exit.NO_OUTPUT, Exit.SETTINGS)


#: The code that daily ends with is the first of these that something ended with.
EXIT_PRIORITY: Final = (
    *(Exit.BUG, Exit.SETTINGS, Exit.NOT_ALLOWED, Exit.NO_OUTPUT, Exit.DATA, Exit.USAGE),
    *(Exit.QUARANTINED, Exit.NOT_READY),
)


@dataclass(frozen=True)
class TaskOutcome:
    """How a task ended: ``word`` is done, published, waiting, unsent, failed or left."""

    task: PlannedTask
    word: str
    code: int
    text: str
    seconds: float = 0.0


class Commands:
    """Runs command lines as processes; what they print goes to stderr, as stdout is for the summary."""

    def __init__(self) -> None:
        self._children: set[subprocess.Popen[bytes]] = set()

    def __call__(self, argv: list[str]) -> int:
        with subprocess.Popen(argv, stdout=sys.stderr.fileno()) as child:
            self._children.add(child)
            try:
                code = child.wait()
            except BaseException:
                self.stop()
                raise
            finally:
                self._children.discard(child)
        return code if code >= 0 else int(Exit.NOT_READY)

    def stop(self) -> None:
        """Ask what still runs to end."""
        for child in list(self._children):
            with suppress(OSError):
                child.terminate()


@dataclass
class Daily:
    """One call of ``cmsspark daily``. ``words`` are the options that every command line gets; ``now`` is in seconds."""

    settings: Settings
    config: DailyConfig
    fout: str
    files: Files
    words: tuple[str, ...] = ()
    root: str | None = None
    runner: Runner = field(default_factory=Commands)
    tell: Callable[[str], None] = lambda text: click.echo(text, err=True)
    now: Callable[[], float] = time.time
    _is_stopped: bool = False
    _ended: int = 0
    _began: float = 0.0
    _began_ms: int = 0

    def tasks(self, first: date, last: date) -> list[PlannedTask]:
        """What is to be done for the days from ``first`` to ``last``, oldest first."""
        from cmsspark.pipeline.planner import Planner
        from cmsspark.sources.folders import Layout
        from cmsspark.store import run_history

        published = None
        if self.config.publish:
            published = []
            with suppress(CmssparkError), run_history.open_history(self.settings.state_dir) as book:
                published = book.published(first, last)
        layout = Layout.load(self.settings.sources, self.root or self.settings.root)
        rules, policies = self.config.rules, self.config.policies
        look = Planner(self.files, layout, self.fout, rules, policies, published, int(self.now() * 1000))
        span = [first + timedelta(days=number) for number in range((last - first).days + 1)]
        found = [look.task(job, day) for day in span for job in self.config.jobs]
        return [task for task in found if task is not None]

    def work(self, tasks: Sequence[PlannedTask]) -> list[TaskOutcome]:
        """Do the tasks: a day's one after another, oldest days first, ``parallel`` days at once."""
        by_day: dict[date, list[PlannedTask]] = {}
        for task in tasks:
            by_day.setdefault(task.day, []).append(task)
        self._began, self._began_ms = time.monotonic(), clock.now_ms()

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

    def _do(self, task: PlannedTask, total: int) -> TaskOutcome:
        name = f"{task.job.name} of {task.day}"
        if self._is_stopped:
            return TaskOutcome(task, "left", 0, "not tried after what happened before")
        began = time.monotonic()
        outcome = self._outcome(task)
        outcome = replace(outcome, seconds=round(time.monotonic() - began, 1))
        if outcome.code in FATAL_EXIT_CODES:
            self._is_stopped = True
        self._ended += 1
        left = total - self._ended
        estimate = (time.monotonic() - self._began) / self._ended * left
        more = f"; {left} to go, about {max(1, round(estimate / 60))} min" if left and estimate > 30 else ""
        self.tell(f"[{self._ended} of {total}] {name} ({task.why}): {outcome.word}, {outcome.text}{more}")
        return outcome

    def _outcome(self, task: PlannedTask) -> TaskOutcome:
        if task.error is not None:
            is_waiting = task.error.exit_code in (Exit.NO_INPUT, Exit.NOT_READY)
            ended = Exit.NOT_READY if is_waiting else task.error.exit_code
            return TaskOutcome(task, "waiting" if is_waiting else "failed", int(ended), task.error.wanted)
        for text in task.verdict.warnings:
            self.tell(f"warning: {task.day}: {text}")
        if not task.verdict.is_ready:
            return TaskOutcome(task, "waiting", int(Exit.NOT_READY), "; ".join(task.verdict.reasons))
        if task.runs:
            name = f"run_spark {task.job.name}"
            argv = _python(
                "cmsspark.submit", task.job.name, *self.config.options, *self._arguments(task), *task.options
            )
            root = ("--root", self.root) if self.root else ()
            code = self.runner([*argv, *root])
            if code in (Exit.NO_INPUT, Exit.NOT_READY):
                return TaskOutcome(
                    task, "waiting", int(Exit.NOT_READY), f"{name} ended with {code}{self._reason(task)}"
                )
            if code:
                return TaskOutcome(task, "failed", code, f"{name} ended with {code}{self._reason(task)}")
        return self._publish(task)

    def _reason(self, task: PlannedTask) -> str:
        """What the ledger knows of the run that just ended so; nothing where it ran elsewhere."""
        from cmsspark.store import run_history

        with suppress(CmssparkError), run_history.open_history(self.settings.state_dir) as book:
            latest = book.runs(job=task.job.name, first=task.day, last=task.day, limit=1)
            if latest and latest[0].error and latest[0].began_ms >= self._began_ms:
                return f": {latest[0].error.splitlines()[0]}"
        return ""

    def _publish(self, task: PlannedTask) -> TaskOutcome:
        if not (self.config.publish and task.job.public_tables):
            return TaskOutcome(task, "done", 0, "stored")
        code = self.runner(_python("cmsspark.cli", "publish", "--job", task.job.name, *self._arguments(task)))
        if code in (0, Exit.QUARANTINED):
            return TaskOutcome(task, "published", code, "some documents were refused" if code else "all confirmed")
        word = "unsent" if code == Exit.NOT_READY else "failed"
        return TaskOutcome(task, word, code, f"stored, but cmsspark publish ended with {code}")

    def _arguments(self, task: PlannedTask) -> list[str]:
        return ["--date", days.compact(task.day), "--fout", self.fout, *self.words]


def _python(module: str, *words: str) -> list[str]:
    return [sys.executable, "-c", f"from {module} import main; main()", *words]


def exit_code(outcomes: Sequence[TaskOutcome]) -> int:
    """The gravest code of what was done; any that is not ours stands for itself."""
    codes = {outcome.code for outcome in outcomes} - {0}
    known = [code for code in EXIT_PRIORITY if code in codes]
    others = codes - set(EXIT_PRIORITY)
    return int(next(iter(sorted(others)), known[0] if known else 0))


def worked(daily: Daily, first: date, last: date) -> list[TaskOutcome]:
    """Plan and do, as the only one. Raises NotReady (75) where another daily is at work on this store."""
    from cmsspark.store import lease

    with interruptible(), lease.hold(daily.files, join(daily.fout, ".leases", "daily"), "the daily work"):
        return daily.work(daily.tasks(first, last))
