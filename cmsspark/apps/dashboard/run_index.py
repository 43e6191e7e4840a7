"""The runs of a store and of the run history, day by day and job by job; read only."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from functools import lru_cache
from pathlib import Path
from typing import Final

from cmsspark.base import clock
from cmsspark.base.errors import CmssparkError
from cmsspark.base.manifests import Manifest
from cmsspark.base.periods import Period
from cmsspark.filesystems.storage import LocalFiles, join, local_path
from cmsspark.run.run_context import from_manifest
from cmsspark.run.run_report import PAGE
from cmsspark.store import results, run_history
from cmsspark.store.daily_state import DailyState, DayRecord, split_key
from cmsspark.store.day_states import NO_RESULT, Cell, Surroundings, table
from cmsspark.store.job_index import JOBS
from cmsspark.store.run_history import Published, Run

#: Runs that are kept, as they never change.
_MOST_RUNS: Final = 4_000
#: What pages show of a manifest.
_SHOWN: Final[tuple[str, ...]] = (
    *("reconciliation", "drift", "warnings", "missing_streams", "tables"),
    *("dumps", "versions", "period", "damaged"),
)


@dataclass(frozen=True)
class RunIndex:
    """Runs of a period's days. ``cells``: (day, job) → state; ``current``: (day, job) →
    the run that is stored.

    ``published``: what became of their documents; ``notes``: what could not be read;
    ``skipped``: (day, job) → why the daily run leaves a day out that has no result.
    """

    jobs: list[str]
    cells: Mapping[tuple[date, str], Cell]
    current: Mapping[tuple[date, str], Run]
    runs: list[Run]
    published: list[Published]
    notes: list[str] = field(default_factory=list)
    skipped: Mapping[tuple[date, str], str] = field(default_factory=dict)


def _read_current(store: str, job: str, day: date) -> Run | str | None:
    """Return the current run of a day, a text where it is damaged, None where there is none."""
    folder = Path(local_path(join(store, job, day.isoformat())))
    try:
        name = str(json.loads((folder / "CURRENT").read_bytes())["run"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        return f"{job} of {day}: CURRENT is damaged"
    if name in ("", ".", "..") or "/" in name:
        return f"{job} of {day}: CURRENT names no run"
    try:
        return _load_run(folder, name, store)
    except (OSError, ValueError, AttributeError) as error:
        return (
            f"{job} of {day}: the manifest of run {name} cannot be read ({type(error).__name__})"
        )


@lru_cache(_MOST_RUNS)
def _load_run(folder: Path, name: str, store: str) -> Run:
    """Return a run by its manifest, which never changes."""
    manifest = Manifest.from_dict(
        json.loads((folder / "runs" / name / "manifest.json").read_bytes())
    )
    details = {key: manifest.document[key] for key in _SHOWN if key in manifest.document}
    return replace(
        from_manifest(manifest, store), details=Manifest.from_dict(details), stored_run=name
    )


def read_index(
    store: str,
    state_dir: Path,
    days: list[date],
    skipped: Callable[[], Mapping[tuple[date, str], str]] = dict,
) -> RunIndex:
    """Return the runs of some days, in order; those of the run history where it knows this store."""
    notes: list[str] = []
    runs, published = _history(store, state_dir, days, notes)
    current: dict[tuple[date, str], Run] = {}
    names = {run.stored_run for run in runs}
    for job in stored_jobs(store):
        for day in days:
            run = _read_current(store, job, day)
            if isinstance(run, str):
                notes.append(run)
            elif run is not None:
                current[day, job] = run
                if run.stored_run not in names:
                    runs.append(run)
    runs.sort(key=lambda run: (run.began_ms, run.run), reverse=True)
    # Documents of another store's runs are not this store's; those of a run that only
    # the store knows are.
    stored_runs = {run.stored_run for run in runs}
    published = [entry for entry in published if entry.stored_run in stored_runs]
    reasons = _reasons(skipped, days, notes)
    records = _records(store, state_dir, days, notes)
    recorded = {job for _, job in (*reasons, *records)}
    jobs = [name for name in JOBS if any(run.job == name for run in runs) or name in recorded]
    cells = table(days, jobs, runs, published, around=Surroundings(clock.now_ms(), records))
    # As `cmsspark status` has it: a result that is there is shown.
    reasons = {key: text for key, text in reasons.items() if cells[key].word in NO_RESULT}
    return RunIndex(
        jobs,
        cells | dict.fromkeys(reasons, Cell("skipped")),
        current,
        runs,
        published,
        notes,
        reasons,
    )


def _reasons(
    skipped: Callable[[], Mapping[tuple[date, str], str]], days: list[date], notes: list[str]
) -> dict[tuple[date, str], str]:
    try:
        return {
            (day, job): text
            for (day, job), text in skipped().items()
            if day in days and job in JOBS
        }
    except CmssparkError as error:
        notes.append(" ".join(error.text().split()))
        return {}


def _records(
    store: str, state_dir: Path, days: list[date], notes: list[str]
) -> dict[tuple[date, str], DayRecord]:
    """Return what daily recorded of the days that are not done."""
    try:
        records = DailyState(state_dir, store).read().days
    except CmssparkError as error:
        notes.append(" ".join(error.text().split()))
        return {}
    keyed = {split_key(key): record for key, record in records.items() if record.word}
    return {key: record for key, record in keyed.items() if key[0] in days and key[1] in JOBS}


def stored_jobs(store: str) -> list[str]:
    """Return the jobs of days of which the store has a folder."""
    base = Path(local_path(store))
    return [name for name, job in JOBS.items() if not job.of_periods and (base / name).is_dir()]


def stored_job_days(store: str) -> list[date]:
    """Return all days that any job has a result of, in order."""
    files = LocalFiles()
    intervals = (
        interval
        for job in stored_jobs(store)
        for interval in results.stored_intervals(files, store, job)
    )
    return sorted({interval for interval in intervals if not isinstance(interval, Period)})


def report_path(store: str, job: str, interval: str, run: str) -> Path | None:
    """Return the report of a run: only names that the store's own folders have lead to a file."""
    if job not in JOBS:
        return None
    base = Path(local_path(join(store, job)))
    folder = _entry(_entry(base, interval), "runs")
    page = _entry(_entry(folder, run), PAGE)
    return page if page is not None and page.is_file() else None


def _entry(folder: Path | None, name: str) -> Path | None:
    """Return the entry of a folder whose name is exactly this; so no name leads out of the folder."""
    if folder is None or not folder.is_dir():
        return None
    return next((entry for entry in folder.iterdir() if entry.name == name), None)


def _history(
    store: str, state_dir: Path, days: list[date], notes: list[str]
) -> tuple[list[Run], list[Published]]:
    now = clock.now_ms()
    try:
        with run_history.read_history(state_dir) as history:
            if history is None or not days:
                return [], []
            runs = [
                run_history.as_of_now(run, now)
                for run in history.runs(first=days[0], last=days[-1])
            ]
            published = history.published(days[0], days[-1])
    except CmssparkError as error:
        notes.append(" ".join(error.text().split()))
        return [], []
    path = Path(local_path(store)).resolve()
    runs = [
        run
        for run in runs
        if not run.details.period and Path(local_path(run.store)).resolve() == path
    ]
    return runs, published
