"""The runs of a store and of the run history, day by day and job by job; read only."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from cmsspark.apps.dashboard.tables import make_table, to_arrow
from cmsspark.apps.dashboard.widgets import Column, Table
from cmsspark.base import dates
from cmsspark.base.errors import CmssparkError
from cmsspark.base.manifests import Manifest
from cmsspark.base.periods import Period
from cmsspark.filesystems.storage import LocalFiles, join, local_path
from cmsspark.pages.day_report import BINS, counts
from cmsspark.publish.publication import settings_target
from cmsspark.run.run_context import from_manifest
from cmsspark.run.run_report import PAGE
from cmsspark.settings.settings import Settings
from cmsspark.store import results, run_history, run_metrics
from cmsspark.store.daily_state import DailyState, StoreState, split_key
from cmsspark.store.day_states import Cell, Surroundings, surroundings, table
from cmsspark.store.deliveries import Target
from cmsspark.store.own_jobs import JOBS
from cmsspark.store.process_samples import LogEntry, ProcessSample, WatchedRun, read_processes
from cmsspark.store.run_history import Published, Run
from cmsspark.store.run_metrics import RunMetrics, run_file, runs_folder
from cmsspark.store.silent_sites import silent_lines

#: Runs that are kept, as they never change.
_MOST_RUNS: Final = 4_000
#: What pages show of a manifest.
_SHOWN: Final[tuple[str, ...]] = (
    *("reconciliation", "drift", "warnings", "missing_streams", "tables"),
    *("dumps", "versions", "period", "damaged"),
)


class RunIndex(msgspec.Struct, frozen=True):
    """Runs of a period's days. ``cells``: (day, job) → state; ``current``: (day, job) →
    the run that is stored.

    ``published``: what became of their documents; ``notes``: what could not be read;
    ``silent``: a line for each stream of which sites fell silent on the newest day.
    """

    jobs: list[str]
    cells: Mapping[tuple[date, str], Cell]
    current: Mapping[tuple[date, str], Run]
    runs: list[Run]
    published: list[Published]
    notes: list[str] = msgspec.field(default_factory=list)
    silent: Sequence[str] = ()


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
    store: str, state_dir: Path, days: list[date], settings: Settings | None = None
) -> RunIndex:
    """Return the runs of some days, in order; those of the run history where it knows
    this store. States are those of ``cmsspark status``: ``settings`` name the destination
    and the work of daily.
    """
    notes: list[str] = []
    runs, published, damaged = _history(store, state_dir, days, notes)
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
    around, target = _surroundings(store, state_dir, settings, notes)
    recorded = {job for day, job in around.records if day in days}
    jobs = [name for name in JOBS if any(run.job == name for run in runs) or name in recorded]
    cells = table(days, jobs, runs, published, damaged, target, around)
    newest = {job: day for day, job in sorted(current)}
    silent = [line for job, day in newest.items() for line in silent_lines(store, job, day)]
    return RunIndex(jobs, cells, current, runs, published, notes, silent)


def _surroundings(
    store: str, state_dir: Path, settings: Settings | None, notes: list[str]
) -> tuple[Surroundings, Target | None]:
    """Return what daily recorded of the days, and the destination of the settings."""
    state = StoreState()
    try:
        state = DailyState(state_dir, store).read()
    except CmssparkError as error:
        notes.append(" ".join(error.text().split()))
    if settings is None:
        records = {split_key(key): record for key, record in state.days.items()}
        return Surroundings(dates.now_ms(), records), None
    target, problem = settings_target(settings)
    notes += [problem] if problem else []
    return surroundings(settings, state), target


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
) -> tuple[list[Run], list[Published], set[str]]:
    """Return the runs of the days in this store, what was published, and the stored runs
    that a verification found damaged.
    """
    now = dates.now_ms()
    try:
        with run_history.read_history(state_dir) as history:
            if history is None or not days:
                return [], [], set()
            runs = [
                run_history.as_of_now(run, now)
                for run in history.runs(first=days[0], last=days[-1])
            ]
            published = history.published(days[0], days[-1])
            checks = history.checks(store).values()
            damaged = {check.stored_run for check in checks if check.error}
    except CmssparkError as error:
        notes.append(" ".join(error.text().split()))
        return [], [], set()
    path = Path(local_path(store)).resolve()
    runs = [
        run
        for run in runs
        if not run.details.period and Path(local_path(run.store)).resolve() == path
    ]
    return runs, published, damaged


# Tables of runs: where every record went, what was published, which fields of logs
# changed.

#: An absolute path of this host, or of a file system with a scheme.
_PATH: Final = re.compile(
    r"(?:[a-z0-9]+://|(?<![\w/.]))/(?:home|root|tmp|var|srv|opt|usr|mnt|data|eos|afs|cvmfs|scratch|work|user|project|build)"
    r"(?:/[^/\s:,;'\"()]+){2,}"
)
#: Rows of a table that the page shows.
SHOWN: Final = 40


def without_paths(text: str) -> str:
    """Return a text with the last two parts of each absolute path; datasets and files of CMS stay."""
    return _PATH.sub(lambda path: "…/" + "/".join(path[0].rsplit("/", 2)[1:]), text)


def reconciliation(index: RunIndex) -> Table:
    columns = (
        Column("day", "Day", "day"),
        Column("stream", "Stream"),
        Column("is_reconciled", "Adds up", "yes"),
        Column("matched_share", "Matched", "share"),
        Column("read", "Records read", "count"),
        Column(
            "unmatched",
            "Not matched",
            "count",
            "user and group files, temporary files, not in DBS, no name",
        ),
        Column(
            "left_out",
            "Other bins",
            "count",
            "malformed, another day, write only, jobs that do not count",
        ),
        Column("malformed", "of them malformed", "count"),
    )
    rows = []
    for (day, job), run in sorted(index.current.items(), key=lambda entry: entry[0], reverse=True):
        if job == "data_aggregation":
            for stream, bins in run.details.reconciliation.items():
                rows.append((day, stream, *bin_values(bins), *_merged(bins)))
    every = to_arrow([*bin_columns(columns[0]), *columns[5:7]], rows)
    caption = "Records of each stream and day; the downloads have every bin"
    empty = "No run of this period has a reconciliation."
    return Table("reconciliation", columns, every, caption, empty, limit=SHOWN)


def bin_columns(*first: Column) -> list[Column]:
    columns = [*first, Column("stream", "Stream"), Column("is_reconciled", "Adds up", "yes")]
    columns += [
        Column("matched_share", "Matched", "share"),
        Column("read", "Records read", "count"),
    ]
    return columns + [
        Column(name, label[0].upper() + label[1:], "count") for name, label in BINS.items()
    ]


def _merged(bins: dict[str, Any]) -> tuple[int, int]:
    """Return the records that did not match, and those in other bins."""
    _, _, read, *values = bin_values(bins)
    flat = dict(zip(BINS, values, strict=True))
    unmatched = sum(flat[name] or 0 for name in bins.get("unmatched") or ())
    return unmatched, read - unmatched - (flat["matched"] or 0)


def bin_values(bins: dict[str, Any]) -> tuple[Any, ...]:
    flat = counts(bins)
    read = bins["read"]
    share = flat["matched"] / read if read else None
    # Streams of accesses and of jobs have different bins.
    return (sum(flat.values()) == read, share, read, *(flat.get(name) for name in BINS))


#: The columns of deliveries, and what each has in them.
_COUNTS: Final[Mapping[Column, Callable[[Any], object]]] = {
    Column("confirmed", "Confirmed", "count"): lambda entry: entry.confirmed,
    Column("waiting", "Waiting", "count"): lambda entry: entry.waiting,
    Column("refused", "Refused", "count"): lambda entry: entry.refused,
    Column("reason", "Why"): lambda entry: without_paths(entry.reason),
}
_PUBLISHED: Final[Mapping[Column, Callable[[Published], object]]] = {
    Column("day", "Day", "day"): lambda entry: entry.day,
    Column("table", "Table"): lambda entry: entry.table,
    Column("destination", "Destination"): lambda entry: without_paths(entry.destination),
    **_COUNTS,
    Column("at_ms", "At", "instant"): lambda entry: entry.at_ms,
    Column("run", "Run"): lambda entry: entry.stored_run,
}


def publishing(index: RunIndex) -> Table:
    newest = sorted(index.published, key=lambda item: (item.day, item.at_ms), reverse=True)
    empty = "Nothing of this period was published: cmsspark publish --date DAY"
    return make_table("publishing", _PUBLISHED, newest, "Documents by day and table", empty=empty)


def destinations(index: RunIndex) -> Table:
    """Return the state of each stored day at each destination, the newest day first."""
    fields: dict[Column, Callable[[Any], object]] = {
        Column("day", "Day", "day"): lambda row: row[0],
        Column("job", "Job"): lambda row: row[1],
        Column("state", "State"): lambda row: row[2].state,
        Column("destination", "Destination"): lambda row: without_paths(row[2].destination),
        Column("is_configured", "Of the settings", "yes"): lambda row: row[2].is_configured,
    }
    for column, make in _COUNTS.items():
        fields[column] = partial(lambda make, row: make(row[2]), make)
    rows = [
        (day, job, entry)
        for (day, job), cell in sorted(index.cells.items(), reverse=True)
        for entry in cell.deliveries
    ]
    empty = "The settings name no destination, and nothing of this period was sent."
    caption = "Stored days at each destination"
    return make_table("destinations", fields, rows, caption, empty=empty, limit=SHOWN)


def drift(index: RunIndex) -> Table:
    columns = (
        Column("stream", "Stream"),
        Column("field", "Field"),
        Column("form", "Format"),
        Column("change", "Change"),
        Column("day_count", "Days", "count"),
        Column("last_day", "Last day"),
        Column("records", "Records of samples", "count"),
    )
    result: dict[tuple[str, str, str, str], tuple[int, date, int]] = {}
    for (day, _), run in index.current.items():
        for stream, entries in run.details.drift.items():
            for entry in entries:
                key = (
                    stream,
                    str(entry.get("field")),
                    str(entry.get("form")),
                    str(entry.get("change")),
                )
                count, newest, records = result.get(key, (0, day, 0))
                result[key] = (
                    count + 1,
                    max(newest, day),
                    records + int(entry.get("records") or 0),
                )
    rows = [
        (*key, count, newest.isoformat(), records)
        for key, (count, newest, records) in sorted(result.items())
    ]
    return Table(
        "drift",
        columns,
        rows,
        "Differences between logs and schemas",
        empty="No field differed from its schema.",
    )


# What was measured of runs, as the page *Spark* reads it: ``monitor/runs/RUN/run.json``
# and ``processes.sqlite``.

#: Runs that the page offers.
MOST_RUNS: Final = 100
_RUN: Final = re.compile(r"[\w.\-]{1,100}")
_LARGEST: Final = 64_000_000


class _Head(msgspec.Struct):
    run: str
    job: str = ""
    began_ms: int = 0
    state: str = ""
    application: str | None = None
    root_pid: int | None = None
    process: dict[str, str | int | None] = {}


class RunChoice(msgspec.Struct, frozen=True):
    """A run that the page offers: its id, what it is called, when it began, and its
    watched processes, if any.
    """

    run: str
    label: str
    began_ms: int
    watched: str | None = None
    is_measured: bool = True


class RunView(msgspec.Struct, frozen=True):
    """All that is known of one run."""

    choice: RunChoice
    measured: RunMetrics | None = None
    watched: WatchedRun | None = None
    samples: Sequence[ProcessSample] = ()
    log: Sequence[LogEntry] = ()
    notes: Sequence[str] = msgspec.field(default_factory=list)


def choices(state_dir: Path, notes: list[str]) -> list[RunChoice]:
    """Return the runs that were measured or watched, the latest first; ``notes`` gets
    what could not be read.
    """
    watched = _watched(state_dir, notes)
    by_root = {run.root_pid: run for run in reversed(watched) if run.root_pid}
    run_choices: list[RunChoice] = []
    names: set[str] = set()
    folders = sorted(runs_folder(state_dir).glob("*/run.json"), key=lambda file: file.parent.name)
    for file in folders[-MOST_RUNS:]:
        try:
            _check_size(file)
            head = msgspec.json.decode(file.read_bytes(), type=_Head)
        except (OSError, msgspec.MsgspecError) as error:
            notes.append(f"{file} was left out: {error}")
            continue
        nearest = by_root.get(head.root_pid or -1)
        # A number of a process is used again after some time: the run must be the same, too.
        run = (
            nearest
            if nearest is not None and abs(nearest.start_ms - head.began_ms) < 600_000
            else None
        )
        names.add(run.run if run else "")
        name = head.application or run_metrics.state_now(head.state, head.process)
        run_choices.append(
            RunChoice(
                file.parent.name, f"{head.job} {name}", head.began_ms, run.run if run else None
            )
        )
    for run in watched:
        if run.run not in names:
            label = f"suite {run.suite}, release {run.release}" if run.suite else run.job
            run_choices.append(RunChoice(run.run, label, run.start_ms, run.run, is_measured=False))
    return sorted(run_choices, key=lambda choice: -choice.began_ms)[:MOST_RUNS]


def read_run_view(state_dir: Path, choice: RunChoice) -> RunView:
    """Return all that is stored of a run."""
    notes: list[str] = []
    measured = None
    if choice.is_measured and _RUN.fullmatch(choice.run):
        file = run_file(state_dir, choice.run)
        try:
            _check_size(file)
            measured = run_metrics.as_of_now(run_metrics.read(file))
        except (OSError, ValueError) as error:
            notes.append(f"{file} cannot be read: {error}")
    view = RunView(choice, measured, notes=notes)
    if choice.watched is None:
        return view
    try:
        with read_processes(state_dir) as database:
            if database is not None:
                samples, log = database.samples(choice.watched), database.log(choice.watched)
                view = replace(
                    view, watched=database.find(choice.watched), samples=samples, log=log
                )
    except CmssparkError as error:
        notes.append(str(error))
    return view


def _watched(state_dir: Path, notes: list[str]) -> list[WatchedRun]:
    try:
        with read_processes(state_dir) as database:
            return database.runs(limit=MOST_RUNS) if database else []
    except CmssparkError as error:
        notes.append(str(error))
        return []


def _check_size(file: Path) -> None:
    if file.stat().st_size > _LARGEST:
        raise OSError(f"it has more than {_LARGEST:,} bytes")


def over_time(
    samples: Sequence[ProcessSample], name: str, label: Callable[[ProcessSample], str]
) -> tuple[list[int], dict[str, list[int | float | None]]]:
    """Return times, and for each label the sums of a measure at them; None where it has
    no process then.

    Each host looks at times of its own: what it saw counts until its next look.
    """
    times = sorted({sample.time_ms for sample in samples})
    position = {time: number for number, time in enumerate(times)}
    looks: dict[str, list[int]] = {}
    for host, time in sorted({(sample.host, sample.time_ms) for sample in samples}):
        looks.setdefault(host, []).append(position[time])
    ends = {
        (host, at): end for host, of in looks.items() for at, end in pairwise([*of, of[-1] + 1])
    }
    sums: dict[str, list[int | float | None]] = {}
    for sample in samples:
        row = sums.setdefault(label(sample), [None] * len(times))
        first = position[sample.time_ms]
        for number in range(first, ends[sample.host, first]):
            row[number] = (row[number] or 0) + (getattr(sample, name) or 0)
    return times, sums


def by_role(
    samples: Sequence[ProcessSample], name: str
) -> tuple[list[int], dict[str, list[int | float]]]:
    """Return times, and for each role the sums of a measure at them; 0 where a role has
    no process then.
    """
    times, sums = over_time(samples, name, lambda sample: sample.role)
    return times, {role: [value or 0 for value in values] for role, values in sums.items()}
