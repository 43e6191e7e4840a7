"""How a daily run is reported: one line for the log, metrics, and a mail when somebody
should look.
"""

from __future__ import annotations

import os
import re
import socket
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import date, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from cmsspark.apps.daily.config import Metrics, Push, write_metrics
from cmsspark.apps.daily.planner import is_overdue
from cmsspark.apps.daily.run import DailyReport, TaskOutcome
from cmsspark.base import dates
from cmsspark.base.errors import CmssparkError, Exit
from cmsspark.base.text.readable import json_text
from cmsspark.base.text.terminal import pluralize
from cmsspark.filesystems.storage import is_local
from cmsspark.store import run_history
from cmsspark.store.daily_state import DailyState, DayRecord, day_key, split_key
from cmsspark.store.day_states import Cell, before_window, of_record, run_step
from cmsspark.store.deliveries import destination_name
from cmsspark.store.run_history import State
from cmsspark.store.silent_sites import newest_stored, silent_lines

if TYPE_CHECKING:
    from cmsspark.apps.daily.config import Targets
    from cmsspark.apps.daily.run import Daily, DailyReport


# The metrics of ``cmsspark daily`` for Prometheus: how it ended, how fresh each day is,
# and a heartbeat.

#: How a task may end, in the order of the summary.
OUTCOMES: Final = (
    "done",
    "published",
    "waiting",
    "unsent",
    "failed",
    "left",
    "acknowledged",
    "skipped",
)

#: The name of daily among CMS's cron jobs.
_CRON_SCRIPT: Final = "cmsspark_daily"
_HEARTBEAT: Final = "cmsspark_daily_heartbeat_timestamp_seconds"


def heartbeat(now: float) -> Metrics:
    """Return the instant at which a daily was alive."""
    return {
        _HEARTBEAT: (
            "When cmsspark daily last was alive: it began, did a task, or ended.",
            {"": float(int(now))},
        )
    }


def error_metrics(code: int, now: float) -> Metrics:
    """Return the metrics of a daily run that could not start: the heartbeat and its exit code."""
    return {**heartbeat(now), **_ended(code, now)}


def cron_metrics(event: str, now: float, code: int | None = None) -> Metrics:
    """Return a metric of CMS's cron jobs, ``start`` or ``end``, as CMSSpark's
    ``common_utils.sh`` sends it: K8S_ENV and the script are in the name, too.
    """
    environment = os.environ.get("K8S_ENV") or "default"
    name = re.sub(r"[^A-Za-z0-9_]", "_", f"cmsmon_cron_{event}_{environment}_{_CRON_SCRIPT}")
    labels = f'script="{_CRON_SCRIPT}",env="{_escaped(environment)}",period="1d"'
    labels += "" if code is None else f',status="{code}"'
    return {name: (f"cronjob {event.upper()} Unix time", {labels: float(int(now))})}


def report_metrics(daily: Daily, report: DailyReport) -> Metrics:
    """Return the metrics of a daily run. Days are labelled as ``2026-01-15``; instants
    are seconds since 1970.
    """
    now = daily.now()
    counts = Counter(outcome.word for outcome in report.outcomes)
    tasks = {f'outcome="{word}"': float(counts[word]) for word in OUTCOMES}
    return {
        **heartbeat(now),
        **_ended(report.code, now),
        "cmsspark_daily_seconds": (
            "How long its tasks took.",
            {"": sum(task.seconds for task in report.outcomes)},
        ),
        "cmsspark_daily_tasks": ("Days of jobs that were to be done, by how that ended.", tasks),
        "cmsspark_daily_overdue": (
            "Those that have waited for too long.",
            {"": float(len(report.overdue))},
        ),
        "cmsspark_daily_unfinished": (
            "Days before the window that are not done and not acknowledged.",
            {"": float(len(report.unfinished))},
        ),
        **_states(report),
        **_deliveries(daily, report),
        "cmsspark_daily_silent_streams": (
            "Streams of which sites fell silent on the newest stored day.",
            {"": float(len(report.silent))},
        ),
        **_freshness(daily, report),
    }


def _states(report: DailyReport) -> Metrics:
    """By job and day that is not done: its state and what it waits for, and since when."""
    cells = {
        (outcome.task.job.name, outcome.task.day): outcome.state
        for outcome in report.outcomes
        if outcome.word not in ("done", "published")
    }
    for key, record in report.unfinished.items():
        day, job = split_key(key)
        cells[job, day] = of_record(record)
    states = {
        f'{_labels(*key)},state="{cell.word}",waits_for="{",".join(cell.inputs)}"': 1.0
        for key, cell in cells.items()
    }
    since = {_labels(*key): cell.since_ms / 1000 for key, cell in cells.items() if cell.since_ms}
    return {
        "cmsspark_daily_day_state": ("The state of each day of a job that is not done.", states),
        "cmsspark_daily_day_state_since_timestamp_seconds": ("Since when it is so.", since),
    }


def _deliveries(daily: Daily, report: DailyReport) -> Metrics:
    """By destination: documents of the days that are confirmed, waiting and refused."""
    counts: Counter[tuple[str, str]] = Counter()
    with suppress(CmssparkError), run_history.open_history(daily.settings.state_dir) as history:
        stored = {
            run.stored_run
            for run in history.runs(first=report.first, last=report.last, store=daily.fout)
        }
        latest = {
            (entry.job, entry.table, entry.day, destination_name(entry)): entry
            for entry in sorted(
                history.published(report.first, report.last), key=lambda entry: entry.at_ms
            )
            if entry.stored_run in stored
        }
        for (*_, name), entry in latest.items():
            for state in ("confirmed", "waiting", "refused"):
                counts[name, state] += getattr(entry, state)
    values = {
        f'destination="{_escaped(name)}",state="{state}"': float(count)
        for (name, state), count in counts.items()
    }
    return {
        "cmsspark_daily_documents": ("Documents of these days by destination and state.", values)
    }


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")


def _ended(code: int, now: float) -> Metrics:
    return {
        "cmsspark_daily_end_timestamp_seconds": (
            "When cmsspark daily last ended.",
            {"": float(int(now))},
        ),
        "cmsspark_daily_exit_code": ("Its exit code.", {"": float(code)}),
    }


def _freshness(daily: Daily, report: DailyReport) -> Metrics:
    """By job and day: whether it is done, when it was stored; by job: the newest day that is done."""
    is_open = {
        (outcome.task.job.name, outcome.task.day)
        for outcome in report.outcomes
        if outcome.word not in ("done", "published", "acknowledged", "skipped")
    }
    span = [
        report.first + timedelta(days=number)
        for number in range((report.last - report.first).days + 1)
    ]
    keys = [
        (job.name, day)
        for job in daily.config.jobs
        for day in span
        if daily.only is None or day in daily.only
    ]
    done: dict[str, date] = {}
    for job, day in keys:
        if (job, day) not in is_open:
            done[job] = max(day, done.get(job, day))
    newest = {
        f'job="{job}"': dates.timestamp_ms_bounds(day)[1] / 1000 for job, day in done.items()
    }
    stored = _stored(daily, report.first, report.last)
    return {
        "cmsspark_daily_day_done": (
            "1 where nothing is left to do for a day of a job, else 0.",
            {_labels(*key): float(key not in is_open) for key in keys},
        ),
        "cmsspark_daily_day_stored_timestamp_seconds": (
            "When the result of a day of a job was stored.",
            {_labels(*key): stored[key] for key in keys if key in stored},
        ),
        "cmsspark_daily_newest_day_end_timestamp_seconds": (
            "The end of the newest day of a job for which nothing is left to do.",
            newest,
        ),
    }


def _labels(job: str, day: date) -> str:
    return f'job="{job}",day="{day.isoformat()}"'


def _stored(daily: Daily, first: date, last: date) -> dict[tuple[str, date], float]:
    """Return when each day was stored, as the run history knows it: seconds since 1970."""
    result: dict[tuple[str, date], float] = {}
    with suppress(CmssparkError), run_history.open_history(daily.settings.state_dir) as history:
        for run in history.runs(first=first, last=last, state=State.DONE, store=daily.fout):
            if run.ended_ms is not None and not run.details.period:
                key = (run.job, run.day)
                result[key] = max(result.get(key, 0.0), float(run.ended_ms // 1000))
    return result


def update(path: Path, metrics: Metrics) -> None:
    """Replace these metrics in the file of the last daily and keep all others. Raises
    OutputError (73).
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    except (OSError, UnicodeDecodeError):
        lines = []
    names = "|".join(re.escape(name) for name in metrics)
    replaced = re.compile(rf"(?:# (?:HELP|TYPE) )?(?:{names})[ {{]")
    write_metrics(path, metrics, "".join(line for line in lines if not replaced.match(line)))


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
        report_metrics(daily, report),
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
        environment = os.environ.get("K8S_ENV") or "default"
        group = f"job/cmsmon-cron-{environment}/instance/{socket.gethostname()}"
        Push(url=f"{targets.pushgateway}/metrics/{group}").send(
            cron_metrics(event, now, code), replace=False
        )
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
        "at": dates.to_second(now_ms),
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
            lines += (
                silent_lines(daily.fout, job.name, day, only_warnings=True)
                if day is not None
                else []
            )
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
    at = dates.to_minute(int(now * 1000))
    line = f"{at}: daily run could not start: {error.problem.rstrip('.')}{where}. Exit code {code}"
    problems: list[str] = []
    if error.exit_code != Exit.NOT_READY:
        values = error_metrics(code, now)
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
        sends.append(partial(write_metrics if is_whole else update, path, values))
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
        line = f"{dates.to_minute(now_ms)}: {span}: {pluralize(len(outcomes), 'day')}: "
        line += ", ".join(f"{counts[word]} {word}" for word in OUTCOMES if counts[word])
    else:
        line = f"{dates.to_minute(now_ms)}: {span}: nothing to do"
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
    line += f". Next try after {dates.to_minute(min(retries))}" if retries else ""
    if report.unfinished:
        names = ", ".join(sorted(report.unfinished)[:_NAMED])
        more = len(report.unfinished) - _NAMED
        line += f". Unfinished before: {names}" + (f" and {more} more" if more > 0 else "")
    return line + "".join(f"; {problem}" for problem in problems)


def _subject(report: DailyReport, new: Collection[str]) -> str:
    """Return which host, job and day a mail is about, and how many others there are:
    the worst of what was not mailed before (``new``), else the sites that fell silent.
    """
    troubles = [key for key in new if key not in report.unfinished]
    keys = sorted(troubles, reverse=True) or sorted(new, reverse=True)
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
        step = run_step(*split_key(min(report.unfinished)))
        lines += ["", f"Days before that are not done, and that only a line such as {step} does:"]
        lines += [
            f"{key}: {before_window(record).text()}"
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
    new = [
        key
        for key, signature in trouble.items()
        if key not in records or records[key].mailed != signature
    ]
    if not is_silent_new and not new:
        return
    daily.config.mail.send(_subject(report, new), mail_text(report, int(daily.now() * 1000)))
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
