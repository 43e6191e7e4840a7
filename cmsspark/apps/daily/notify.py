"""How a daily run is reported: one line for the log, metrics, and a mail when somebody
should look.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import date, timedelta
from functools import partial
from typing import TYPE_CHECKING, Final

import click

from cmsspark.apps.daily import metrics
from cmsspark.apps.daily.alarms import Metrics, write_metrics
from cmsspark.apps.daily.metrics import OUTCOMES
from cmsspark.apps.daily.outcome import DailyReport, TaskOutcome
from cmsspark.apps.daily.readiness import is_overdue
from cmsspark.base import clock, dates
from cmsspark.base.errors import CmssparkError, Exit
from cmsspark.base.text.readable import json_text
from cmsspark.base.text.terminal import pluralize
from cmsspark.filesystems.storage import is_local
from cmsspark.store.daily_state import DailyState, DayRecord, day_key, split_key
from cmsspark.store.day_states import Cell, of_record
from cmsspark.store.silent_sites import newest_stored, silent_lines

if TYPE_CHECKING:
    from cmsspark.apps.daily.config import Targets
    from cmsspark.apps.daily.run import Daily

#: Days that the summary names, at most.
_NAMED: Final = 5
#: How a task may end that a mail begins with, the worst first.
_WORST_FIRST: Final = (
    *("failed", "left", "waiting", "unsent", "published", "done", "skipped", "acknowledged"),
)


def notify(
    daily: Daily,
    first: date,
    last: date,
    outcomes: Sequence[TaskOutcome],
    *,
    as_json: bool = False,
) -> int:
    """Report the outcomes to the log, to Prometheus and by mail; return the exit code.
    ``as_json``: the log gets a document instead of a line.

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
    report = DailyReport(first, last, outcomes, overdue, unfinished, _silent(daily, first, last))
    problems += _send(
        daily.config,
        lambda: _mail(daily, report),
        metrics.report_metrics(daily, report),
        is_whole=True,
    )
    problems += send_cron(daily.config, "end", daily.now(), report.code)
    if as_json:
        _echo(json_text(as_document(report, now_ms, problems), indent=1))
    else:
        _echo(summary(report, now_ms, problems))
    return report.code


def send_cron(targets: Targets, event: str, now: float, code: int | None = None) -> list[str]:
    """Send begin or end to the Pushgateway of CMS's cron jobs; return what went wrong."""
    if targets.pushgateway is None:
        return []
    try:
        metrics.push_cron(targets.pushgateway, metrics.cron_metrics(event, now, code))
    except CmssparkError as error:
        return [f"{error.problem}: {error.where}: {error.found}"]
    return []


def as_document(
    report: DailyReport, now_ms: int, problems: Sequence[str] = ()
) -> dict[str, object]:
    """Return what ``cmsspark daily --json`` prints: each day of a job that was to be
    done, with its state, and what else the summary says.
    """
    return {
        "at": clock.to_second(now_ms),
        "first": report.first.isoformat(),
        "last": report.last.isoformat(),
        "exit_code": report.code,
        "days": [
            {
                "day": outcome.task.day.isoformat(),
                "job": outcome.task.job.name,
                "planned": outcome.task.reason,
                "seconds": outcome.seconds,
                **outcome.state.as_dict(),
            }
            for outcome in report.outcomes
        ],
        "unfinished": {
            key: of_record(record).as_dict() for key, record in report.unfinished.items()
        },
        "silent_sites": list(report.silent),
        "problems": list(problems),
    }


def _silent(daily: Daily, first: date, last: date) -> list[str]:
    """Return a line for each stream whose sites fell silent on the newest stored day."""
    if not is_local(daily.fout):
        return []
    days = [last - timedelta(days=back) for back in range((last - first).days + 1)]
    lines = []
    with suppress(Exception):
        for job in daily.config.jobs:
            day = newest_stored(daily.fout, job.name, days)
            lines += silent_lines(daily.fout, job.name, day) if day is not None else []
    return lines


def notify_not_begun(
    targets: Targets, state: DailyState | None, error: CmssparkError, now: float
) -> int:
    """Report that daily could not begin, to the log, to Prometheus and by mail; return
    the exit code.

    Another daily at work is in the log only: that one reports. The same error is mailed once.
    """
    code = int(error.exit_code)
    where = f": {error.where}" if error.where else ""
    at = clock.to_minute(int(now * 1000))
    line = f"{at}: daily run could not start: {error.problem}{where}. Exit code {code}"
    problems: list[str] = []
    if error.exit_code != Exit.NOT_READY:
        values = metrics.error_metrics(code, now)
        problems = _send(
            targets, lambda: _mail_not_begun(targets, state, error, line), values, is_whole=False
        )
        problems += send_cron(targets, "end", now, code)
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


def summary(report: DailyReport, now_ms: int, problems: Sequence[str] = ()) -> str:
    """Return one line: when, counts by outcome, the exit code, when to look again, and
    which targets could not be reached.
    """
    outcomes = report.outcomes
    counts = Counter(outcome.word for outcome in outcomes)
    refused = sum(outcome.code == Exit.QUARANTINED for outcome in outcomes)
    given_up = sum(outcome.is_given_up for outcome in outcomes)
    span = f"{report.first}" if report.first == report.last else f"{report.first} to {report.last}"
    if outcomes:
        line = f"{clock.to_minute(now_ms)}: {span}: {pluralize(len(outcomes), 'day')}: "
        line += ", ".join(f"{counts[word]} {word}" for word in OUTCOMES if counts[word])
    else:
        line = f"{clock.to_minute(now_ms)}: {span}: nothing to do"
    line += f", {len(report.overdue)} overdue" if report.overdue else ""
    line += f", {given_up} given up" if given_up else ""
    line += f", {refused} with documents refused" if refused else ""
    seconds = sum(outcome.seconds for outcome in outcomes)
    line += f" in {seconds:.0f} s" if outcomes else ""
    line += f". Exit code {report.code}"
    retries = [
        outcome.task.readiness.retry_ms
        for outcome in outcomes
        if outcome.task.readiness.retry_ms is not None
    ]
    line += f". Next try after {clock.to_minute(min(retries))}" if retries else ""
    if report.unfinished:
        names = ", ".join(sorted(report.unfinished)[:_NAMED])
        more = len(report.unfinished) - _NAMED
        line += f". Unfinished before: {names}" + (f" and {more} more" if more > 0 else "")
    return line + "".join(f"; {problem}" for problem in problems)


def _subject(report: DailyReport) -> str:
    """Return which host, job and day a mail is about, and how many others there are."""
    troubles = [key for key in report.trouble() if key not in report.unfinished]
    keys = sorted(troubles, reverse=True) or sorted(report.unfinished, reverse=True)
    by_key = {
        day_key(outcome.task.day, outcome.task.job.name): outcome for outcome in report.outcomes
    }
    keys.sort(key=lambda key: _rank(by_key[key]) if key in by_key else len(_WORST_FIRST))
    counts = Counter(
        "given up" if outcome.is_given_up else "failed"
        for outcome in report.outcomes
        if outcome.word == "failed" or outcome.is_given_up
    )
    parts = [f"{counts[word]} {word}" for word in ("failed", "given up") if counts[word]]
    refused = sum(outcome.code == Exit.QUARANTINED for outcome in report.outcomes)
    parts += [f"{len(report.overdue)} overdue"] if report.overdue else []
    parts += [f"{refused} with documents refused"] if refused else []
    parts += [f"{len(report.unfinished)} unfinished before"] if report.unfinished else []
    about = f"exit code {report.code}"
    if keys:
        day, job = split_key(keys[0])
        state = (
            by_key[keys[0]].state if keys[0] in by_key else of_record(report.unfinished[keys[0]])
        )
        about = f"{job} {day} {_word(state)}"
    elif report.silent:
        about = "sites fell silent"
    return f"cmsspark on {socket.gethostname()}: {about}" + (
        f" ({', '.join(parts)})" if parts else ""
    )


def _word(state: Cell) -> str:
    if state.word == "waiting" and state.inputs:
        return f"waits for {', '.join(state.inputs)}"
    return "is not published" if state.word == "unsent" else state.word


def _rank(outcome: TaskOutcome) -> int:
    return _WORST_FIRST.index(outcome.word)


def mail_text(report: DailyReport, now_ms: int) -> str:
    """Return a mail: first what needs somebody, each with its reason, file, next step
    and run, then everything else, then what to type.
    """
    troubles = report.trouble()
    lines: list[str] = []
    quiet_lines: list[str] = []
    for outcome in sorted(report.outcomes, key=_rank):
        task = outcome.task
        line = f"{task.day} {task.job.name}: {outcome.state.text()}"
        is_trouble = day_key(task.day, task.job.name) in troubles
        (lines if is_trouble else quiet_lines).append(line)
    if report.unfinished:
        lines += ["", "Days before that are not done, and that no daily tries again:"]
        lines += [
            f"{key}: {of_record(record).text()}"
            for key, record in sorted(report.unfinished.items())
        ]
    if report.silent:
        lines += ["", "Sites that fell silent:", *report.silent]
    lines += ["", summary(report, now_ms)]
    lines += ["", "The other days:", *quiet_lines] if quiet_lines else []
    if troubles:
        day, job = split_key(min(troubles, key=lambda key: key in report.unfinished))
        silence = f'cmsspark daily acknowledge {dates.compact(day)} {job} --reason "…"'
        lines += ["", f"You will not be mailed about this again. To silence it: {silence}"]
    lines += ["More: cmsspark status"]
    return "\n".join(lines).lstrip("\n") + "\n"


def _mail(daily: Daily, report: DailyReport) -> None:
    """Send a mail where there is trouble that was not mailed yet."""
    if daily.config.mail is None:
        return
    trouble = report.trouble()
    records: Mapping[str, DayRecord] = {}
    silent = ""
    with suppress(CmssparkError):
        state = daily.state.read()
        records, silent = state.days, state.silent
    is_silent_new = bool(report.silent) and silent != _names(report.silent)
    if not is_silent_new and all(
        key in records and records[key].mailed == signature for key, signature in trouble.items()
    ):
        return
    daily.config.mail.send(_subject(report), mail_text(report, int(daily.now() * 1000)))
    with daily.state.change() as state:
        state.silent = _names(report.silent)
        for key, signature in trouble.items():
            if key in state.days:
                state.days[key].mailed = signature


def _names(silent: Sequence[str]) -> str:
    """Return the silent sites without the day: the same sites are not mailed again."""
    return "; ".join(line.partition(" ")[2] for line in silent)


def _mail_not_begun(
    targets: Targets, state: DailyState | None, error: CmssparkError, line: str
) -> None:
    if targets.mail is None or (state is not None and state.read().not_begun == error.text()):
        return
    text = f"{error.text()}\n\n{line}\n\nYou will not be mailed about this error again until a daily has begun.\n"
    host, code = socket.gethostname(), int(error.exit_code)
    targets.mail.send(f"cmsspark on {host}: daily could not start ({code}: {error.problem})", text)
    if state is not None:
        with state.change() as content:
            content.not_begun = error.text()
