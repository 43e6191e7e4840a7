"""``cmsspark daily``: what cron calls. Brings the last days up to date, oldest first, and says in one line how it went.

What is to be done is read from the store and the inputs each time, so that whatever was killed whenever, the next
call goes on from there. Each run is a ``run_spark`` of its own, which holds its day's lease.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from cmsspark import clock, days
from cmsspark.errors import CmssparkError, Exit, UsageError
from cmsspark.jobs import find_job
from cmsspark.pipeline.options import DayType, settings_of, store_of, store_options
from cmsspark.storage import Files, LocalFiles, files_for, join

if TYPE_CHECKING:
    from cmsspark.daily.config import DailyConfig
    from cmsspark.pipeline.planner import Task
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
class Outcome:
    """How a task ended: ``word`` is done, published, waiting, unsent, failed or left."""

    task: Task
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

    def tasks(self, first: date, last: date) -> list[Task]:
        """What is to be done for the days from ``first`` to ``last``, oldest first."""
        from cmsspark.pipeline.planner import Look
        from cmsspark.sources.folders import Layout
        from cmsspark.store import run_history

        published = None
        if self.config.publish:
            published = []
            with suppress(CmssparkError), run_history.opened(self.settings.state_dir) as book:
                published = book.published(first, last)
        layout = Layout.load(self.settings.sources, self.root or self.settings.root)
        rules, policies = self.config.rules, self.config.policies
        look = Look(self.files, layout, self.fout, rules, policies, published, int(self.now() * 1000))
        span = [first + timedelta(days=number) for number in range((last - first).days + 1)]
        found = [look.task(job, day) for day in span for job in self.config.jobs]
        return [task for task in found if task is not None]

    def work(self, tasks: Sequence[Task]) -> list[Outcome]:
        """Do the tasks: a day's one after another, oldest days first, ``parallel`` days at once."""
        by_day: dict[date, list[Task]] = {}
        for task in tasks:
            by_day.setdefault(task.day, []).append(task)
        self._began, self._began_ms = time.monotonic(), clock.now_ms()

        def one_day(day: date) -> list[Outcome]:
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

    def _do(self, task: Task, total: int) -> Outcome:
        name = f"{task.job.name} of {task.day}"
        if self._is_stopped:
            return Outcome(task, "left", 0, "not tried after what happened before")
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

    def _outcome(self, task: Task) -> Outcome:
        if task.error is not None:
            is_waiting = task.error.exit_code in (Exit.NO_INPUT, Exit.NOT_READY)
            ended = Exit.NOT_READY if is_waiting else task.error.exit_code
            return Outcome(task, "waiting" if is_waiting else "failed", int(ended), task.error.wanted)
        for text in task.verdict.warnings:
            self.tell(f"warning: {task.day}: {text}")
        if not task.verdict.is_ready:
            return Outcome(task, "waiting", int(Exit.NOT_READY), "; ".join(task.verdict.reasons))
        if task.runs:
            name = f"run_spark {task.job.name}"
            argv = _python(
                "cmsspark.submit", task.job.name, *self.config.options, *self._arguments(task), *task.options
            )
            root = ("--root", self.root) if self.root else ()
            code = self.runner([*argv, *root])
            if code in (Exit.NO_INPUT, Exit.NOT_READY):
                return Outcome(task, "waiting", int(Exit.NOT_READY), f"{name} ended with {code}{self._reason(task)}")
            if code:
                return Outcome(task, "failed", code, f"{name} ended with {code}{self._reason(task)}")
        return self._publish(task)

    def _reason(self, task: Task) -> str:
        """What the ledger knows of the run that just ended so; nothing where it ran elsewhere."""
        from cmsspark.store import run_history

        with suppress(CmssparkError), run_history.opened(self.settings.state_dir) as book:
            latest = book.runs(job=task.job.name, first=task.day, last=task.day, limit=1)
            if latest and latest[0].error and latest[0].began_ms >= self._began_ms:
                return f": {latest[0].error.splitlines()[0]}"
        return ""

    def _publish(self, task: Task) -> Outcome:
        from cmsspark.pipeline.planner import public_tables

        if not (self.config.publish and public_tables(task.job)):
            return Outcome(task, "done", 0, "stored")
        code = self.runner(_python("cmsspark.cli", "publish", "--job", task.job.name, *self._arguments(task)))
        if code in (0, Exit.QUARANTINED):
            return Outcome(task, "published", code, "some documents were refused" if code else "all confirmed")
        word = "unsent" if code == Exit.NOT_READY else "failed"
        return Outcome(task, word, code, f"stored, but cmsspark publish ended with {code}")

    def _arguments(self, task: Task) -> list[str]:
        return ["--date", days.compact(task.day), "--fout", self.fout, *self.words]


def _python(module: str, *words: str) -> list[str]:
    return [sys.executable, "-c", f"from {module} import main; main()", *words]


def exit_code(outcomes: Sequence[Outcome]) -> int:
    """The gravest code of what was done; any that is not ours stands for itself."""
    codes = {outcome.code for outcome in outcomes} - {0}
    known = [code for code in EXIT_PRIORITY if code in codes]
    others = codes - set(EXIT_PRIORITY)
    return int(next(iter(sorted(others)), known[0] if known else 0))


@click.command("daily")
@click.option("--from", "first", type=DayType(), help="First day. [default: as many days back as the settings say]")
@click.option("--to", "last", type=DayType(), help="Last day. [default: yesterday in UTC]")
@click.option("--job", "job_names", multiple=True, metavar="JOB", help="Only this job. May stand several times.")
@click.option("--parallel", type=click.IntRange(1, 16), help="So many days at once.")
@click.option("--publish/--no-publish", "publish", default=None, help="Publish what is stored, or only store it.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.option("--root", metavar="URI", help="Put before every default input folder (else CMSSPARK_ROOT).")
@store_options
def command(
    first: date | None, last: date | None, job_names: tuple[str, ...], parallel: int | None, publish: bool | None,
    dry_run: bool, root: str | None, fout: str | None, settings_file: str | None,
) -> int:  # fmt: skip
    """Bring the last days up to date: run what is missing or stale, publish what is not, oldest day first.

    Ends with 75 where an input is not ready yet, or another daily is at work: the next call goes on.
    """
    from cmsspark.daily.config import daily_config
    from cmsspark.daily.notify import notify

    settings = settings_of(settings_file)
    config = daily_config(settings)
    config = replace(
        config,
        jobs=tuple(find_job(name) for name in job_names) or config.jobs,
        parallel=parallel or config.parallel,
        publish=config.publish if publish is None else publish,
    )
    until = last or days.today() - timedelta(days=1)
    since = first or until - timedelta(days=config.days - 1)
    if since > until:
        raise UsageError(f"--from {since} lies after --to {until}", next_step="swap them")
    place = store_of(fout, settings)
    words = ("--settings", str(Path(settings_file).absolute())) if settings_file else ()
    daily = Daily(settings, config, place, _files(settings, root, place), words, root)
    if dry_run:
        return _show(daily.tasks(since, until))
    return notify(daily, since, until, worked(daily, since, until))


def worked(daily: Daily, first: date, last: date) -> list[Outcome]:
    """Plan and do, as the only one. Raises NotReady (75) where another daily is at work on this store."""
    from cmsspark.jobs.cern_monit import interruptible
    from cmsspark.store import lease

    with interruptible(), lease.held(daily.files, join(daily.fout, ".leases", "daily"), "the daily work"):
        return daily.work(daily.tasks(first, last))


def _files(settings: Settings, root: str | None, fout: str) -> Files:
    from cmsspark.pipeline.provenance import is_all_local
    from cmsspark.sources.folders import Layout

    layout = Layout.load(settings.sources, root or settings.root)
    if is_all_local(layout, layout.places, fout):
        return LocalFiles()
    from cmsspark.runners.session import small_session

    return files_for("hdfs://", small_session("cmsspark daily"))


def _show(tasks: Sequence[Task]) -> int:
    for task in tasks:
        what = "; ".join(task.verdict.reasons) or (task.error.wanted if task.error else "")
        state = f"not ready: {what}" if what else "would be run" if task.runs else "would be published"
        click.echo(f"{task.day}  {task.job.name}  {task.why}  {state}")
    if not tasks:
        click.echo("nothing is to be done")
    return 0
