"""A run that is killed at a numbered step: ``python -m tests.run.killed_run FOLDER STEP``.

All around the work is real: lease, leftovers, staging, manifest, the switch. The table
is one file of text, so that no JVM is needed. A step lies before and after everything
that is written, renamed or deleted; STEP 0 is never reached.
"""

from __future__ import annotations

import os
import signal
import sys
from datetime import date
from pathlib import Path
from typing import Any

from cmsspark.filesystems.storage import Files, LocalFiles, join
from cmsspark.run.run_context import running
from cmsspark.settings.settings import load_settings
from cmsspark.store import results, staged_runs

DAY = date(2026, 1, 15)
JOB = "data_aggregation"


class SteppingFiles(LocalFiles):
    """The local disk, and the end of the process at one of its steps, as kill -9 does it."""

    def __init__(self, last: int) -> None:
        self.last = last
        self.count = 0

    def _step(self) -> None:
        self.count += 1
        if self.count == self.last:
            os.kill(os.getpid(), signal.SIGKILL)

    def write_bytes(self, path: str, content: bytes) -> None:
        self._step()
        super().write_bytes(path, content)
        self._step()

    def create(self, path: str, content: bytes) -> bool:
        self._step()
        made = super().create(path, content)
        self._step()
        return made

    def make_dirs(self, path: str) -> None:
        self._step()
        super().make_dirs(path)
        self._step()

    def delete(self, path: str) -> None:
        self._step()
        super().delete(path)
        self._step()


def settings(folder: Path) -> Any:
    environ = {"HOME": str(folder), "CMSSPARK_STATE_DIR": str(folder / "state")}
    return load_settings(environ=environ)


def work(folder: Path, files: Files, text: str) -> results.CurrentTable:
    """A run of the day whose table is ``text``."""
    fout = str(folder / "store")
    with running(settings(folder), fout, JOB, DAY, lambda text: None) as run_context:
        run_context.lock(files)
        staged = staged_runs.stage(files, fout, JOB, DAY, run_context.check)
        files.write_bytes(join(staged.table_path(JOB), "part-0.txt"), text.encode())
        staged.tables[JOB] = {"rows": 1}
        done = staged.commit({"versions": {"cmsspark": "1"}, "seconds": 0.1})
        run_context.manifest = done.manifest
        return done


if __name__ == "__main__":
    work(Path(sys.argv[1]), SteppingFiles(int(sys.argv[2])), "killed")
