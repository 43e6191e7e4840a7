"""How a daily run is reported: one line for the log, metrics, and a mail when somebody
should look.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import date
from functools import partial
from typing import TYPE_CHECKING, Final

import click

from cmsspark.apps.daily import metrics
from cmsspark.apps.daily.alarms import Metrics, write_metrics
from cmsspark.apps.daily.metrics import OUTCOMES
from cmsspark.apps.daily.outcome import DailyReport, TaskOutcome
from cmsspark.apps.daily.readiness import is_overdue
from cmsspark.base import clock
from cmsspark.base.errors import CmssparkError, Exit
from cmsspark.store.daily_state import DailyState, DayRecord

if TYPE_CHECKING:
    from cmsspark.apps.daily.config import Targets
    from cmsspark.apps.daily.run import Daily

#: Days that the summary names, at most.
_NAMED: Final = 5
#: The end of a mail.
_MORE: Final = (
    "The same trouble is not mailed again. When you know of it: cmsspark daily acknowledge DAY JOB --reason TEXT",
    "cmsspark status, cmsspark runs and cmsspark show RUN show more.",
)


def notify(daily: Daily, first: date, last: date, outcomes: Sequence[TaskOutcome]) -> int:
    """Report the outcomes to the log, to Prometheus and by mail; return the exit code.

    A target that cannot be reached is named in the summary and changes nothing else.
    """
    now_ms = int(daily.now() * 1000)
    pending = [outcome for outcome in outcomes if outcome.word in ("waiting", "unsent")]
    overdue = [
        outcome for outcome in pending if is_overdue(outcome.task.day, now_ms, daily.config.rules)
    ]
    unfinished: Mapping[str, DayRecord] = {}
    problems = []
    try:
        unfinished = daily.unfinished(min(first, daily.window_start()))
    except Exception as error:
        problems.append(f"days before {first} cannot be checked: {error}")
    report = DailyReport(first, last, outcomes, overdue, unfinished)
    problems += _send(
        daily.config,
        lambda: _mail(daily, report),
        metrics.report_metrics(daily, report),
        is_whole=True,
    )
    _echo(summary(report, problems))
    return report.code


def notify_not_begun(
    targets: Targets, state: DailyState | None, error: CmssparkError, now: float
) -> int:
    """Report that daily could not begin, to the log, to Prometheus and by mail; return
    the exit code.

    Another daily at work is in the log only: that one reports. The same error is mailed once.
    """
    code = int(error.exit_code)
    where = f": {error.where}" if error.where else ""
    line = f"daily run could not start: {error.problem}{where}; exit {code}"
    problems: list[str] = []
    if error.exit_code != Exit.NOT_READY:
        values = metrics.error_metrics(code, now)
        problems = _send(
            targets, lambda: _mail_not_begun(targets, state, error, line), values, is_whole=False
        )
    _echo(" ".join("; ".join([line, *problems]).split()))
    return code


def _send(
    targets: Targets, mail: Callable[[], None], values: Metrics, *, is_whole: bool
) -> list[str]:
    """Send the mail and the metrics, in place of all or only of those of the same
    names; return what went wrong.
    """
    sends = [mail]
    if (path := targets.metrics) is not None:
        sends.append(partial(write_metrics if is_whole else metrics.update, path, values))
    if (push := targets.push) is not None:
        sends.append(partial(push.send, values, replace=is_whole))
    problems = []
    for send in sends:
        try:
            send()
        except CmssparkError as error:
            problems.append(f"{error.problem}: {error.where}: {error.found}")
        except Exception as error:
            problems.append(f"a target failed: {type(error).__name__}: {error}")
    return problems


def _echo(line: str) -> None:
    # A closed stdout changes no exit code.
    with suppress(OSError, ValueError):
        click.echo(line)


def summary(report: DailyReport, problems: Sequence[str] = ()) -> str:
    """Return one line: counts by outcome, the exit code, when to look again, and which
    targets could not be reached.
    """
    outcomes = report.outcomes
    counts = Counter(outcome.word for outcome in outcomes)
    refused = sum(outcome.code == Exit.QUARANTINED for outcome in outcomes)
    line = f"daily {report.first} to {report.last}: {len(outcomes)} to do"
    line += "".join(f", {counts[word]} {word}" for word in OUTCOMES if counts[word])
    line += f", {len(report.overdue)} overdue" if report.overdue else ""
    line += f", {refused} with documents refused" if refused else ""
    line += f" in {sum(outcome.seconds for outcome in outcomes):.0f} s; exit {report.code}"
    retries = [
        outcome.task.readiness.retry_ms
        for outcome in outcomes
        if outcome.task.readiness.retry_ms is not None
    ]
    line += f"; look again at {clock.to_minute(min(retries))}" if retries else ""
    if report.unfinished:
        names = ", ".join(sorted(report.unfinished)[:_NAMED])
        more = len(report.unfinished) - _NAMED
        line += f"; unfinished before: {names}" + (f" and {more} more" if more > 0 else "")
    return line + "".join(f"; {problem}" for problem in problems)


def _mail(daily: Daily, report: DailyReport) -> None:
    """Send a mail where there is trouble that was not mailed yet."""
    if daily.config.mail is None:
        return
    trouble = report.trouble()
    records: Mapping[str, DayRecord] = {}
    with suppress(CmssparkError):
        records = daily.state.read().days
    if all(
        key in records and records[key].mailed == signature for key, signature in trouble.items()
    ):
        return
    lines = [summary(report), ""]
    for outcome in report.outcomes:
        mark = " OVERDUE" if outcome in report.overdue else ""
        task = outcome.task
        lines.append(
            f"{task.day} {task.job.name}: {outcome.word}{mark}: {outcome.text} ({task.reason})"
        )
    if report.unfinished:
        lines += ["", "Days before that are not done, and that no daily tries again:"]
        lines += [
            f"{key}: {record.word}: {record.text}"
            for key, record in sorted(report.unfinished.items())
        ]
    lines += ["", *_MORE]
    daily.config.mail.send(f"cmsspark daily: exit {report.code}", "\n".join(lines) + "\n")
    with daily.state.change() as state:
        for key, signature in trouble.items():
            if key in state.days:
                state.days[key].mailed = signature


def _mail_not_begun(
    targets: Targets, state: DailyState | None, error: CmssparkError, line: str
) -> None:
    if targets.mail is None or (state is not None and state.read().not_begun == error.text()):
        return
    text = f"{line}\n\n{error.text()}\n\nThe same error is not mailed again until a daily has begun.\n"
    targets.mail.send(f"cmsspark daily: exit {int(error.exit_code)}", text)
    if state is not None:
        with state.change() as content:
            content.not_begun = error.text()
