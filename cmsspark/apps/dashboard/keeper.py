"""Keeps the rollups up to date with the store: looks at it every few seconds, builds what is new, swaps snapshots."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cmsspark.apps.dashboard import snapshot as snapshots
from cmsspark.apps.dashboard.rollups import Rollups, RollupState
from cmsspark.apps.dashboard.shortage import shortage_of
from cmsspark.apps.dashboard.snapshot import Snapshot
from cmsspark.base import clock
from cmsspark.base.errors import DataError, NotReady, as_ours
from cmsspark.base.memory import trim
from cmsspark.base.periods import spans
from cmsspark.store.query.database import Database


@dataclass(frozen=True)
class Freshness:
    """Whether the pages hold what the store holds. ``looked_ms``: when the store was looked at last, UTC ms.

    ``behind``: a sentence where they do not. ``progress``: what is being built.
    """

    looked_ms: int
    behind: str = ""
    progress: str = ""


class Keeper:
    """Holds the current snapshot. :meth:`start` begins a thread; :meth:`stop` ends it."""

    def __init__(
        self, database: Database, cache: Path, *, every_s: float = 5.0, log: Callable[[str], None] = lambda text: None
    ) -> None:
        self._rollups = Rollups(database, cache, self._progress)
        self._log = log
        self._every_s = every_s
        self._snapshot: Snapshot | None = None
        self._freshness = Freshness(0, progress="the store has not been read yet")
        self._wake = threading.Event()
        self._is_over = threading.Event()
        self._is_loaded = threading.Event()
        self._is_in_doubt = False
        self._thread = threading.Thread(target=self._run, name="rollups", daemon=True)

    def start(self) -> None:
        """Begin to look at the store."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; a segment that is being built is dropped when the process ends."""
        self._is_over.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout=30)
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
        """The current snapshot. Raises NotReady (75) before the first one is loaded."""
        if self._snapshot is None:
            raise NotReady(
                "the rollups of the store are being built",
                found=self._freshness.behind or self._freshness.progress,
                next_step="load this page again in some seconds",
            )
        return self._snapshot

    def is_damaged(self) -> None:
        """A file of the rollups could not be read: check all of them, and build those again."""
        self._rollups.forget()
        self._snapshot = None
        self._freshness = Freshness(clock.now_ms(), progress="files of the rollups are damaged or gone")
        self._wake.set()

    def check_files(self) -> None:
        """A page got too little memory to read a file, which may be whole: check all, and build only damaged ones."""
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
        runs = {day: one.run for day, one in stored.items()}
        if current is not None:
            held = {**current.state.runs, **{day: runs.get(day, "") for day in current.state.faults}}
            if held == runs and self._partial(stored) == dict(current.state.partial):
                self._freshness = Freshness(clock.now_ms())
                return
            changed = [day for day in runs.keys() | held.keys() if runs.get(day) != held.get(day)]
            text = (
                f"newer results of {spans(changed)} are being added" if changed else "reasons of partial days changed"
            )
            self._freshness = Freshness(clock.now_ms(), behind=text)
        state = self._rollups.refresh()
        self._load(state)
        self._rollups.remove_old(state)
        trim()

    def _load(self, state: RollupState) -> None:
        import duckdb
        import pyarrow as pa

        self._progress(f"loading {len(state.runs):,} days")
        try:
            self._snapshot = snapshots.load(state)
        except (duckdb.Error, pa.ArrowException, DataError, OSError) as error:
            self._rollups.forget()
            if shortage := shortage_of(error):
                raise shortage from error
            raise NotReady("files of the rollups are gone", found=str(error)[:200]) from None
        self._freshness = Freshness(clock.now_ms())
        self._is_loaded.set()

    @staticmethod
    def _partial(stored: dict) -> dict:  # type: ignore[type-arg]
        return {day: one.partial_reason for day, one in stored.items() if one.partial_reason and one.fault is None}

    def _run(self) -> None:
        while not self._is_over.is_set():
            try:
                self.refresh()
            except Exception as error:  # a thread that ends would leave pages stale without a word
                ours = as_ours(error)
                text = " ".join((ours.text() if ours else f"{type(error).__name__}: {error}"[:200]).split())
                self._freshness = Freshness(clock.now_ms(), behind=f"the newest results could not be added: {text}")
                self._log(f"the rollups could not be refreshed{'' if ours else ', a bug in cmsspark'}: {text}")
            self._wake.wait(self._every_s)
            self._wake.clear()

    def _progress(self, text: str) -> None:
        self._freshness = Freshness(clock.now_ms(), self._freshness.behind, text)
        self._log(text)
