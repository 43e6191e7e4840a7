"""Days of HTCondor's records as a collector writes them: every 12 minutes each running
job, and jobs that ended.

Nine of ten records are of running jobs, of which each has about 60; one in twelve of
the others repeats a job that ended in the 12 minutes before. A part file has 12
minutes.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from cmsspark.apps.demo.condor_records import _filler, _Jobs, cost_fields
from cmsspark.apps.demo.world import World, make_world
from cmsspark.base.dates import start_ms

DAY: Final = date(2026, 1, 15)
#: Fields of a record beside those that are read.
_FIELDS: Final = 60
_WINDOWS, _WINDOW_MS = 120, 720_000
_JSON: Final = json.JSONEncoder(separators=(",", ":"))


def provide(records: int, cache_folder: Path, processes: int) -> Path:
    """Return the root of a day of so many records, made where it is not there."""
    root = cache_folder / f"condor-{records / 1e6:g}M"
    if not (root / "made").exists():
        shutil.rmtree(root, ignore_errors=True)
        folder = root / f"project/monitoring/archive/condor/raw/metric/{DAY:%Y/%m/%d}"
        folder.mkdir(parents=True)
        with ProcessPoolExecutor(processes) as pool:
            list(pool.map(partial(_write_window, folder, records // _WINDOWS), range(_WINDOWS)))
        (root / "made").touch()
    return root


@cache
def _world() -> World:
    return make_world(np.random.default_rng(1), datasets=1_000, files=100_000, people=2_000)


@cache
def _fillers() -> list[str]:
    rng = np.random.default_rng(2)
    return [_filler(rng, _FIELDS) for _ in range(64)]


@cache
def _running(slots: int) -> tuple[list[tuple[str, str]], list[int]]:
    """Return two jobs for each slot of running jobs, and the window from which the
    second has the slot.
    """
    rng = np.random.default_rng(3)
    jobs = _Jobs(_world(), rng, DAY, _WINDOWS + 1)
    return [_body(jobs, number, is_running=True) for number in range(2 * slots)], rng.integers(
        _WINDOWS, size=slots
    ).tolist()


def _ended(window: int, count: int) -> Iterator[tuple[str, str]]:
    """Yield the jobs that end in a window."""
    jobs = _Jobs(_world(), np.random.default_rng([4, window]), DAY, window)
    return (_body(jobs, number, is_running=False) for number in range(count))


def _write_window(folder: Path, records: int, window: int) -> None:
    start, rng = start_ms(DAY) + window * _WINDOW_MS, np.random.default_rng([5, window])
    slots = round(0.9 * records)
    bodies, change = _running(slots)
    again = (records - slots) // 12 if window else 0
    chosen = [bodies[2 * slot + (change[slot] <= window)] for slot in range(slots)]
    chosen += [*_ended(window, records - slots - again), *_ended(max(0, window - 1), again)]
    times = rng.integers(_WINDOW_MS, size=records).tolist()
    with (folder / f"part-{window:05}.json").open("w") as sink:
        sink.writelines(
            f"{chosen[number][0]}{start + time}{chosen[number][1]}{start + time}}}}}\n"
            for number, time in zip(rng.permutation(records).tolist(), times, strict=True)
        )


def _body(jobs: Any, number: int, *, is_running: bool) -> tuple[str, str]:
    """Return what stands before and behind a record's time."""
    data = jobs.draw(number)
    data |= cost_fields(data, number)
    filler = _fillers()[number % len(_fillers())]
    if is_running:
        data |= {"Status": "Running", "ExitCode": None, "ChirpCMSSWReadBytes": None}
        filler = filler[: filler.rindex(",", 0, len(filler) // 2)]
    names = list(data)
    at = names.index("RecordTime")
    head = _JSON.encode({name: data[name] for name in names[:at]})[:-1]
    rest = _JSON.encode({name: data[name] for name in names[at + 1 :]})[1:-1]
    return (
        f'{{"data":{head},"RecordTime":',
        f',{rest},{filler}}},"metadata":{{"producer":"condor","timestamp":',
    )
