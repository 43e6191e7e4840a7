"""The metrics of ``cmsspark daily`` for Prometheus: how it ended, how fresh each day
is, and a heartbeat.
"""

from __future__ import annotations

import os
import re
import socket
from collections import Counter
from contextlib import suppress
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cmsspark.apps.daily.alarms import Metrics, Push, write_metrics
from cmsspark.base import dates
from cmsspark.base.errors import CmssparkError
from cmsspark.store import run_history
from cmsspark.store.daily_state import split_key
from cmsspark.store.day_states import of_record
from cmsspark.store.deliveries import destination_name
from cmsspark.store.run_history import State

if TYPE_CHECKING:
    from cmsspark.apps.daily.outcome import DailyReport
    from cmsspark.apps.daily.run import Daily

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


def push_cron(pushgateway: str, metrics: Metrics) -> None:
    """Send a metric of CMS's cron jobs to the group that theirs are in. Raises as
    :meth:`cmsspark.apps.daily.alarms.Push.send`.
    """
    environment = os.environ.get("K8S_ENV") or "default"
    group = f"job/cmsmon-cron-{environment}/instance/{socket.gethostname()}"
    Push(url=f"{pushgateway}/metrics/{group}").send(metrics, replace=False)


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
