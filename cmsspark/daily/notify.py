"""How a daily run is reported: one line for the log, metrics, and a mail when somebody should look."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import date
from typing import TYPE_CHECKING, Final

import click

from cmsspark import clock
from cmsspark.checks.alarms import Metrics, write_metrics
from cmsspark.checks.readiness import is_overdue
from cmsspark.daily.run import exit_code
from cmsspark.errors import CmssparkError, Exit

if TYPE_CHECKING:
    from cmsspark.daily.run import Daily, TaskOutcome

_WORDS: Final = ("done", "published", "waiting", "unsent", "failed", "left")


def notify(daily: Daily, first: date, last: date, outcomes: Sequence[TaskOutcome]) -> int:
    """Report the outcomes to the log, to Prometheus and by mail; return the exit code.

    A target that cannot be reached is named in the summary and changes nothing else.
    """
    code = exit_code(outcomes)
    overdue = [one for one in outcomes if one.word in ("waiting", "unsent") and _is_overdue(daily, one)]
    problems = []
    metrics, config = _metrics(daily, outcomes, overdue, code), daily.config
    targets: list[Callable[[], None]] = [lambda: _mail(daily, first, last, outcomes, overdue, code)]
    if (path := config.metrics) is not None:
        targets.append(lambda: write_metrics(path, metrics))
    if (push := config.push) is not None:
        targets.append(lambda: push.send(metrics))
    for send in targets:
        try:
            send()
        except CmssparkError as error:
            problems.append(f"{error.wanted}: {error.where}: {error.found}")
    click.echo(summary(first, last, outcomes, len(overdue), code, problems))
    return code


def summary(
    first: date, last: date, outcomes: Sequence[TaskOutcome], overdue: int, code: int, problems: Sequence[str] = ()
) -> str:
    """One line: counts by outcome, the exit code, when to look again, and which targets could not be reached."""
    words = Counter(one.word for one in outcomes)
    refused = sum(one.code == Exit.QUARANTINED for one in outcomes)
    line = f"daily {first} to {last}: {len(outcomes)} to do"
    line += "".join(f", {words[word]} {word}" for word in _WORDS if words[word])
    line += f", {overdue} overdue" if overdue else ""
    line += f", {refused} with documents refused" if refused else ""
    line += f" in {sum(one.seconds for one in outcomes):.0f} s; exit {code}"
    retries = [one.task.verdict.retry_ms for one in outcomes if one.task.verdict.retry_ms is not None]
    line += f"; look again at {clock.to_minute(min(retries))}" if retries else ""
    return line + "".join(f"; {problem}" for problem in problems)


def _is_overdue(daily: Daily, outcome: TaskOutcome) -> bool:
    return is_overdue(outcome.task.day, int(daily.now() * 1000), daily.config.rules)


def _metrics(daily: Daily, outcomes: Sequence[TaskOutcome], overdue: Sequence[TaskOutcome], code: int) -> Metrics:
    words = Counter(one.word for one in outcomes)
    tasks = {f'outcome="{word}"': float(words[word]) for word in _WORDS}
    return {
        "cmsspark_daily_end_timestamp_seconds": ("When cmsspark daily last ended.", {"": float(int(daily.now()))}),
        "cmsspark_daily_exit_code": ("Its exit code.", {"": float(code)}),
        "cmsspark_daily_seconds": ("How long its tasks took.", {"": sum(one.seconds for one in outcomes)}),
        "cmsspark_daily_tasks": ("Days of jobs that were to be done, by how that ended.", tasks),
        "cmsspark_daily_overdue": ("Those that have waited for too long.", {"": float(len(overdue))}),
    }


def _mail(
    daily: Daily, first: date, last: date, outcomes: Sequence[TaskOutcome], overdue: Sequence[TaskOutcome], code: int
) -> None:
    is_trouble = overdue or any(one.word in ("failed", "left") or one.code == Exit.QUARANTINED for one in outcomes)
    if daily.config.mail is None or not is_trouble:
        return
    lines = [summary(first, last, outcomes, len(overdue), code), ""]
    for one in outcomes:
        mark = " OVERDUE" if one in overdue else ""
        lines.append(f"{one.task.day} {one.task.job.name}: {one.word}{mark}: {one.text} ({one.task.why})")
    lines += ["", "cmsspark status, cmsspark runs and cmsspark show RUN tell more."]
    daily.config.mail.send(f"cmsspark daily: exit {code}", "\n".join(lines) + "\n")
