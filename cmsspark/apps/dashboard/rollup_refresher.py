"""Keeps the rollups up to date with the store: looks at it every few seconds, builds
what is new, swaps snapshots.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from cmsspark.apps.dashboard import segment_build
from cmsspark.apps.dashboard import snapshot as snapshots
from cmsspark.apps.dashboard.rollups import AGAIN_S, Rollups, RollupState
from cmsspark.apps.dashboard.segment import reading_rollups
from cmsspark.apps.dashboard.segment_build import RollupProcess
from cmsspark.apps.dashboard.snapshot import Snapshot
from cmsspark.base import dates
from cmsspark.base.errors import NotReady, OutputError, as_ours
from cmsspark.base.memory import trim
from cmsspark.base.periods import spans
from cmsspark.store.query.database import Database

#: Seconds for the thread to end, and between two loads of what is finished while the
#: rest is built, at least.
_END_S, _LOAD_EVERY_S = 1.0, 5.0


class Freshness(msgspec.Struct, frozen=True):
    """Whether the pages hold what the store holds. ``looked_ms``: when the store was
    looked at last, UTC ms.

    ``behind``: a sentence where they do not. ``progress``: what is being built.
    ``is_building``: whether the pages will have more in some seconds.
    """

    looked_ms: int
    behind: str = ""
    progress: str = ""
    is_building: bool = False


class RollupRefresher:
    """Holds the current snapshot. :meth:`start` begins a thread; :meth:`stop` ends it."""

    def __init__(
        self,
        database: Database,
        cache: Path,
        *,
        every_s: float = 2.0,
        log: Callable[[str], None] = lambda text: None,
        builder: RollupProcess | None = None,
    ) -> None:
        """``builder``: builds segments in a process of its own; without one they are
        built in this process.
        """
        self._builder = builder
        self._rollups = Rollups(
            database, cache, self._progress, build=builder or segment_build.build
        )
        self._log = log
        self._every_s = every_s
        self._snapshot: Snapshot | None = None
        self._freshness = Freshness(0, progress="the store has not been read yet")
        self._wake = threading.Event()
        self._is_over = threading.Event()
        self._is_loaded = threading.Event()
        self._is_in_doubt = False
        self._next_load = 0.0
        self._thread = threading.Thread(target=self._run, name="rollups", daemon=True)

    def start(self) -> None:
        """Begin to look at the store."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; a segment that is being built is dropped when the process ends."""
        self._is_over.set()
        self._wake.set()
        if self._builder is not None:
            self._builder.close()
        if self._thread.is_alive():
            self._thread.join(timeout=_END_S)
        if self._snapshot is not None:
            self._snapshot.con.close()
            self._snapshot = None

    def wait(self, seconds: float) -> bool:
        """Wait for the first snapshot; False where it takes longer."""
        return self._is_loaded.wait(seconds)

    @property
    def is_loaded(self) -> bool:
        """Whether there is a first snapshot."""
        return self._snapshot is not None

    @property
    def freshness(self) -> Freshness:
        """Whether the pages hold what the store holds."""
        return self._freshness

    def snapshot(self) -> Snapshot:
        """Return the current snapshot. Raises NotReady (75) before the first one is loaded."""
        if self._snapshot is None:
            raise NotReady(
                "the rollups of the store are being built",
                found=self._freshness.behind or self._freshness.progress,
                next_step="load this page again in some seconds",
            )
        return self._snapshot

    def is_damaged(self) -> None:
        """Check all files of the rollups, as one could not be read, and build damaged ones again."""
        self._rollups.forget()
        self._snapshot = None
        self._freshness = Freshness(
            dates.now_ms(), progress="files of the rollups are damaged or gone"
        )
        self._wake.set()

    def check_files(self) -> None:
        """Check all files, as a page got too little memory to read one, and build only
        damaged ones.
        """
        self._is_in_doubt = True
        self._wake.set()

    def refresh(self) -> None:
        """Look at the store once, and load a new snapshot where anything has changed."""
        if self._is_in_doubt and self._snapshot is not None:
            if not self._rollups.are_whole(self._snapshot.state.segments):
                self.is_damaged()
            self._is_in_doubt = False
        stored = self._rollups.stored()
        current = self._snapshot
        runs = {day: entry.run for day, entry in stored.items()}
        if current is not None:
            summed = {
                **current.state.runs,
                **{day: runs.get(day, "") for day in current.state.faults},
            }
            readable = (entry for entry in stored.values() if entry.fault is None)
            partial = {
                entry.first_day: entry.partial_reason for entry in readable if entry.partial_reason
            }
            faults = self._rollups.find_faults(stored)
            if (summed, partial, faults) == (
                runs,
                dict(current.state.partial),
                dict(current.state.faults),
            ):
                self._freshness = Freshness(dates.now_ms())
                return
            changed = [
                day for day in runs.keys() | summed.keys() if runs.get(day) != summed.get(day)
            ]
            if changed or partial != dict(current.state.partial):
                text = (
                    f"newer results of {spans(changed)} are being added"
                    if changed
                    else "reasons of partial days changed"
                )
                self._freshness = Freshness(dates.now_ms(), behind=text, is_building=True)
        building = _Building()
        state = self._rollups.refresh(lambda state: self._offer(state, building))
        if self._builder is not None:
            self._builder.close()
        if current is None or self._snapshot is not current or state != current.state:
            self._load(state)
        self._freshness = Freshness(dates.now_ms())
        self._is_loaded.set()
        self._rollups.remove_old(state)
        trim()

    def _offer(self, state: RollupState, building: _Building) -> None:
        """Say how far building is. Show what is finished, where no complete snapshot is
        there meanwhile, or a new day is in it before its week or the month before it is
        one segment.
        """
        if self._is_over.is_set():
            raise NotReady("the dashboard ends")
        progress = building.text(len(state.runs), len(state.pending))
        current = self._snapshot
        if current is None or current.state.pending:
            if state.segments and (began := time.monotonic()) >= self._next_load:
                self._load(state)
                # So seldom that building goes on.
                now = time.monotonic()
                self._next_load = now + max(_LOAD_EVERY_S, 5 * (now - began))
            self._freshness = Freshness(
                dates.now_ms(), progress if self._snapshot else "", progress, is_building=True
            )
        elif not state.pending and state.runs != current.state.runs:
            self._load(state)
            self._freshness = Freshness(dates.now_ms())

    def _load(self, state: RollupState) -> None:
        self._progress(f"loading {len(state.runs):,} days")
        try:
            with reading_rollups():
                self._snapshot = snapshots.load(state)
        except NotReady:
            self._rollups.forget()
            raise

    def _run(self) -> None:
        while not self._is_over.is_set():
            pause = self._every_s
            try:
                self.refresh()
            except Exception as error:  # a thread that ends would leave pages stale without a word
                if self._is_over.is_set():
                    return
                ours = as_ours(error)
                # Each try fills a disk that has no room, and others need what is left.
                pause = AGAIN_S if isinstance(ours, OutputError) else pause
                text = " ".join(
                    (ours.text() if ours else f"{type(error).__name__}: {error}"[:200]).split()
                )
                self._freshness = Freshness(
                    dates.now_ms(), behind=f"the newest results could not be added: {text}"
                )
                self._log(
                    f"the rollups could not be refreshed{'' if ours else ', a bug in cmsspark'}: {text}"
                )
            self._wake.wait(pause)
            self._wake.clear()

    def _progress(self, text: str) -> None:
        now = self._freshness
        self._freshness = Freshness(
            dates.now_ms(), now.behind, now.progress if now.is_building else text, now.is_building
        )
        self._log(text)


class _Building:
    """How far the building of segments is."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._days_before: int | None = None

    def text(self, done: int, pending: int) -> str:
        """Return a clause with days done and in all, and the time left where it can be estimated."""
        if self._days_before is None:
            self._days_before = done
        built = done - self._days_before
        remaining = ""
        if built:
            seconds = (time.monotonic() - self._began) / built * pending
            duration = f"{seconds / 60:.0f} min" if seconds >= 90 else f"{max(1, seconds):.0f} s"
            remaining = f"; about {duration} left"
        return f"{done:,} of {done + pending:,} days are summed up for these pages{remaining}"
