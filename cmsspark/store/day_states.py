"""The state of each day of each job in one word, from the run history and the store."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Final

from cmsspark.base.errors import Exit
from cmsspark.filesystems.storage import is_local, local_path
from cmsspark.store.run_history import Published, Run, State

#: Word of a cell → its colour and its meaning.
WORDS: Final[Mapping[str, tuple[str, str]]] = {
    "published": ("green", "stored, all documents confirmed"),
    "done": ("green", "stored"),
    "partial": ("yellow", "stored, but incomplete"),
    "sending": ("yellow", "stored, some documents are not confirmed yet"),
    "running": ("blue", "a process is running"),
    "waiting": ("yellow", "an input is missing or not ready; nothing is stored"),
    "interrupted": ("yellow", "the last run was interrupted; nothing is stored"),
    "failed": ("red", "the last run failed; nothing is stored"),
    "kept": ("red", "the last run failed; the earlier result is kept"),
    "damaged": ("red", "bytes of the stored result changed; cmsspark verify names them"),
    "lost": ("red", "the stored result is gone; cmsspark daily makes it again"),
    "skipped": ("white", "acknowledged: there is no result, for the reason given"),
    "-": ("white", "never run"),
}
#: Words of days without a result, which a day that is skipped shows no more.
NO_RESULT: Final = ("-", "waiting", "interrupted", "failed", "lost")

#: Words of days with a result.
STORED: Final = ("published", "done", "partial", "sending", "running", "kept", "damaged")


@dataclass(frozen=True)
class Cell:
    """The state of a day of a job, and the number of refused documents."""

    word: str
    refused: int = 0


def cell(
    runs: Iterable[Run],
    published: Iterable[Published],
    is_lost: Callable[[Run], bool] = lambda run: False,
    damaged: Collection[str] = (),
) -> Cell:
    """Return the state of a day and job. ``runs``: the latest start first;
    ``damaged``: the stored runs that a verification found damaged.
    """
    latest_first = list(runs)
    if not latest_first:
        return Cell("-")
    latest = latest_first[0]
    if any(run.state is State.RUNNING for run in latest_first):
        return Cell("running")
    stored = next((run for run in latest_first if run.state is State.DONE), None)
    if stored is None:
        if latest.state is State.INTERRUPTED:
            return Cell("interrupted")
        return Cell("waiting" if latest.exit_code in (Exit.NO_INPUT, Exit.NOT_READY) else "failed")
    if is_lost(stored):
        return Cell("lost")
    if stored.stored_run in damaged:
        return Cell("damaged")
    if latest.state is State.FAILED and latest.exit_code not in (Exit.NO_INPUT, Exit.NOT_READY):
        return Cell("kept")
    sent = [entry for entry in published if entry.stored_run == stored.stored_run]
    refused = sum(entry.refused for entry in sent)
    if any(entry.waiting for entry in sent):
        return Cell("sending", refused)
    if stored.is_partial:
        return Cell("partial", refused)
    return Cell("published" if sent else "done", refused)


def table(
    span: list[date],
    jobs: list[str],
    runs: Iterable[Run],
    published: Iterable[Published],
    damaged: Collection[str] = (),
) -> dict[tuple[date, str], Cell]:
    """Return the cell of each day and job."""
    by_day: dict[tuple[date, str], list[Run]] = {}
    for run in runs:
        by_day.setdefault((run.day, run.job), []).append(run)
    sent: dict[tuple[date, str], list[Published]] = {}
    for entry in published:
        sent.setdefault((entry.day, entry.job), []).append(entry)
    keys = [(day, job) for day in span for job in jobs]
    return {key: cell(by_day.get(key, ()), sent.get(key, ()), is_lost, damaged) for key in keys}


def is_lost(run: Run) -> bool:
    """Return whether the store has nothing of the run's day any more; checked in local
    stores only.
    """
    if not is_local(run.store):
        return False
    return not Path(local_path(run.store), run.job, run.day.isoformat(), "CURRENT").exists()
