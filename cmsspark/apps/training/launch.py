"""One run from its checks to its end: attempts, logs of all workers, state, and what
they brought back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final, TextIO

from cmsspark.apps.training.backend import Attempt, Backend, WorkerFailure
from cmsspark.apps.training.checked_script import check_files, check_script
from cmsspark.apps.training.run_folder import RunFolder, RunState
from cmsspark.apps.training.spec import TrainingRun
from cmsspark.base import clock, signals
from cmsspark.base.errors import CmssparkError, DataError
from cmsspark.base.text.readable import readable

#: Files that workers leave which are listed at the end.
_LISTED: Final = 8


class WorkerFailed(DataError):
    """A worker failed, and so did the run (65)."""


def check(run: TrainingRun, backend: Backend) -> str:
    """Everything that can be checked before a run; the text of the script. Starts nothing."""
    checks_imports = backend.has_this_python
    if run.files is not None:
        check_files(run.files, checks_imports=checks_imports)
    source = check_script(
        run.script, run.arguments, checks_imports=checks_imports, files=run.files
    )
    backend.check(run)
    return source


def launch(
    run: TrainingRun, backend: Backend, folder: RunFolder, echo: Callable[[str], None]
) -> None:
    """Run all workers to their end, with retries where the run has them. ``echo`` takes
    merged lines.

    Raises WorkerFailed (65) with a worker's last lines; KeyboardInterrupt after
    everything was stopped. The state of the folder says how it ended.
    """
    try:
        with signals.interruptible(), _Lines(folder, run.workers, echo) as lines:
            for number in range(1, run.retries + 2):
                failure = _attempt(run, backend, folder, number, lines)
                if failure is None:
                    break
                if number > run.retries:
                    raise _failed(run, failure, folder)
                lines.add_own(
                    f"worker {failure.rank} {failure.reason}; attempt {number + 1} of {run.retries + 1}"
                )
            _finish(folder, "done")
    except KeyboardInterrupt:
        _finish(folder, "stopped", "it was interrupted")
        raise
    except BaseException as error:
        problem = (
            error.problem
            if isinstance(error, CmssparkError)
            else f"{type(error).__name__}: {error}"
        )
        _finish(folder, "failed", problem)
        raise


def _attempt(
    run: TrainingRun, backend: Backend, folder: RunFolder, number: int, lines: _Lines
) -> WorkerFailure | None:
    state = RunState(attempt=number, workers=["pending"] * run.workers)
    folder.write_state(state)

    def on_state(rank: int, now: str) -> None:
        if state.workers[rank] != now:
            state.workers[rank] = now
            folder.write_state(state)

    attempt = Attempt(run, number, folder.output, lines.worker, on_state, lines.add_own)
    return backend.attempt(attempt)


def _failed(run: TrainingRun, failure: WorkerFailure, folder: RunFolder) -> WorkerFailed:
    shown = "\n".join(f"    {line}" for line in failure.last_lines) or "    no line"
    return WorkerFailed(
        f"worker {failure.rank} of {run.name} {failure.reason}",
        where=folder.worker_log(failure.rank),
        found=f"its last lines:\n{shown}",
        next_step="correct the script, or start it with --retries where the host failed",
    )


def _finish(folder: RunFolder, word: str, reason: str | None = None) -> None:
    state = folder.state()
    state.state, state.reason, state.ended_ms = word, reason, clock.now_ms()
    state.workers = [now if now not in ("pending", "running") else word for now in state.workers]
    folder.write_state(state)


def brought_back(folder: RunFolder) -> list[Path]:
    """Return the files that workers left, below :attr:`RunFolder.output`."""
    return sorted(
        path.relative_to(folder.output) for path in folder.output.rglob("*") if path.is_file()
    )


def described_files(folder: RunFolder) -> str:
    """Name some of the files that came back, in a line."""
    files = brought_back(folder)
    more = f" and {len(files) - _LISTED} more" if len(files) > _LISTED else ""
    return (", ".join(map(str, files[:_LISTED])) + more) or "no file"


class _Lines:
    """The lines of all workers: to a file each, merged to one file, and to the terminal."""

    def __init__(self, folder: RunFolder, workers: int, echo: Callable[[str], None]) -> None:
        self._folder, self._workers, self._echo = folder, workers, echo
        self._stack = ExitStack()
        self._files: dict[int, TextIO] = {}
        # Lines come from several threads, and the last ones after the end of the run.
        self._lock = threading.Lock()
        self._is_closed = False

    def __enter__(self) -> _Lines:
        self._merged = self._stack.enter_context(self._open(self._folder.merged_log))
        return self

    def __exit__(self, *ignored: object) -> None:
        with self._lock:
            self._is_closed = True
            self._stack.close()

    def worker(self, rank: int, text: str) -> None:
        """Take a line of a worker. Control characters are escaped: a log is read on terminals."""
        # Of a progress bar the last state is left.
        text = readable(text.rpartition("\r")[2].expandtabs(), lines=False)
        with self._lock:
            if self._is_closed:
                return
            if rank not in self._files:
                self._files[rank] = self._stack.enter_context(
                    self._open(self._folder.worker_log(rank))
                )
            print(text, file=self._files[rank], flush=True)
            self._write(f"worker {rank:>{len(str(self._workers - 1))}} | {text}")

    def add_own(self, text: str) -> None:
        """Take a line of the launcher."""
        with self._lock:
            if not self._is_closed:
                self._write(f"launcher | {text}")

    def _write(self, line: str) -> None:
        print(line, file=self._merged, flush=True)
        self._echo(line)

    @staticmethod
    def _open(path: Path) -> TextIO:
        return open(path, "a", encoding="utf-8", errors="backslashreplace")
