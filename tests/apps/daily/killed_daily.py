"""Ten days of EOS logs and a runner that stores in no time, for the tests of ``cmsspark daily``.

``python -m tests.apps.daily.killed_daily FOLDER STEP`` runs a daily that is killed at a
numbered step. A step lies before and after each command line that it starts, and in the
middle of each run.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from cmsspark.apps.daily.config import DailyConfig, daily_config
from cmsspark.apps.daily.run import Daily, TaskOutcome, worked
from cmsspark.base import dates
from cmsspark.base.schemas import stored_table
from cmsspark.filesystems.storage import LocalFiles, join
from cmsspark.run.provenance import input_summary
from cmsspark.run.run_context import note_published, running
from cmsspark.settings.settings import load_settings
from cmsspark.sources import folders
from cmsspark.sources.folders import Layout
from cmsspark.store import results, staged_runs
from cmsspark.store.own_jobs import find_job
from cmsspark.store.run_history import Published
from tests.corpus.tree import Tree, write_table

LAST = date(2026, 1, 31)
DAYS = [LAST - timedelta(days=back) for back in range(9, -1, -1)]
#: The morning after the last day.
NOW = datetime(2026, 2, 1, 6, 0, tzinfo=UTC).timestamp()
JOB = "dbs_eos"


@dataclass
class Mornings:
    """A root with ten days of logs, a store, a state, a clock, and a record of what was started."""

    folder: Path
    now: float = NOW
    started: list[tuple[str, date, tuple[str, ...]]] = field(default_factory=list)
    #: (what, day) → exit code, where it is not 0.
    codes: dict[tuple[str, date], int] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)
    daily_settings: str = ""
    step: Callable[[], None] = lambda: None

    def prepare(self) -> Mornings:
        for day in DAYS:
            self.log(day, 1_000)
        dbs = Tree(self.root, LAST).dbs()
        for name in ("FILES", "BLOCKS", "DATASETS"):
            write_table(dbs / name, {"part-0": b"1\n"})
        return self

    @property
    def root(self) -> Path:
        return self.folder / "root"

    @property
    def fout(self) -> str:
        return str(self.folder / "store")

    def log(self, day: date, size: int, ending: str = "", at: float = NOW - 3_600) -> None:
        """The day's log, one file of ``size`` bytes that was written at ``at``."""
        tree = Tree(self.root, day)
        folder = tree.folder("eos since 2020")
        if ending:
            folder = folder.rename(folder.with_name(folder.name + ending))
        path = folder / "part-0"
        path.write_bytes(b"x" * size)
        os.utime(path, (at, at))

    def log_folder(self, day: date) -> Path:
        return Tree(self.root, day).folder("eos since 2020")

    def settings(self) -> Any:
        path = self.folder / "cmsspark.yaml"
        text = f"state_dir: state\nroot: {self.root}\n{self.daily_settings}"
        # Days that run at once read this: it is never written while it stays as it is,
        # for then it is empty.
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
        return load_settings(str(path), {"HOME": str(self.folder)})

    def daily(self, **changes: Any) -> Daily:
        settings = self.settings()
        config: DailyConfig = replace(
            daily_config(settings), **{"jobs": (find_job(JOB),), "publish": True, **changes}
        )
        log, runner = self.told.append, self.run
        return Daily(
            settings, config, self.fout, LocalFiles(), runner=runner, log=log, now=lambda: self.now
        )

    def work(self, first: date = DAYS[0], last: date = LAST, **changes: Any) -> list[TaskOutcome]:
        """A daily over the ten days."""
        return worked(self.daily(**changes), first, last)

    def runs(self) -> list[date]:
        """The days that were run, in order."""
        return [day for what, day, _ in self.started if what == "run"]

    def sent(self) -> list[date]:
        return [day for what, day, _ in self.started if what == "publish"]

    def run(self, argv: list[str]) -> int:
        """Stands for a process: a run that stores what its inputs are, or a publisher
        that enters what it sent.
        """
        what = "run" if "cmsspark.submit" in argv[2] else "publish"
        day = dates.parse_day(argv[argv.index("--date") + 1])
        self.step()
        self.started.append((what, day, tuple(argv[3:])))
        code = self.codes.get((what, day), 0)
        if code == 0:
            self.publish(day) if what == "publish" else self.store(day, "--allow-tmp" in argv)
        self.step()
        return code

    def store(self, day: date, allow_tmp: bool = False, **changes: Any) -> None:
        """A result of the day, as a job leaves it."""
        files, settings = LocalFiles(), self.settings()
        read = folders.resolve_day(
            files, Layout.load({}, str(self.root)), "eos", day, allow_tmp=allow_tmp
        )
        with running(settings, self.fout, JOB, day, self.told.append) as run_of_day:
            run_of_day.lock(files)
            staged = staged_runs.stage(files, self.fout, JOB, day, run_of_day.check)
            files.write_bytes(join(staged.table_path(JOB), "part-0.parquet"), b"")
            self.step()
            staged.tables[JOB] = {"rows": 1, "schema": stored_table(JOB).fingerprint()}
            manifest = {
                "inputs": [input_summary(read)],
                "partial": read.is_tmp,
                "seconds": 0.1,
                **changes,
            }
            run_of_day.manifest = staged.commit(manifest).manifest

    def publish(self, day: date) -> None:
        run = self.manifest(day)["run"]
        note_published(
            self.folder / "state",
            Published(JOB, JOB, day, run, "/queue/x", dates.now_ms(), 2, 0, 0),
        )

    def manifest(self, day: date) -> dict[str, Any]:
        return results.current(LocalFiles(), self.fout, JOB, JOB, day).manifest.document


def main() -> None:
    last, count = int(sys.argv[2]), 0

    def step() -> None:
        nonlocal count
        count += 1
        if count == last:
            os.kill(os.getpid(), signal.SIGKILL)

    Mornings(Path(sys.argv[1]), step=step).work(first=DAYS[-3])


if __name__ == "__main__":
    main()
