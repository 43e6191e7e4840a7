"""What was measured of runs, as the page *Spark* reads it:
``monitor/runs/RUN/run.json`` and ``processes.sqlite``.

None is "not measured".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec

from cmsspark.base.errors import CmssparkError
from cmsspark.store import run_metrics
from cmsspark.store.process_samples import LogEntry, ProcessSample, WatchedRun, read_processes
from cmsspark.store.run_metrics import RunMetrics, run_file, runs_folder

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


@dataclass(frozen=True)
class RunChoice:
    """A run that the page offers: its id, what it is called, when it began, and its
    watched processes, if any.
    """

    run: str
    label: str
    began_ms: int
    watched: str | None = None
    is_measured: bool = True


@dataclass(frozen=True)
class RunView:
    """All that is known of one run."""

    choice: RunChoice
    measured: RunMetrics | None = None
    watched: WatchedRun | None = None
    samples: Sequence[ProcessSample] = ()
    log: Sequence[LogEntry] = ()
    notes: Sequence[str] = field(default_factory=list)


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
