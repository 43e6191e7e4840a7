"""One run from its checks to its end: attempts, logs of all workers, state, and what
they brought back.
"""

from __future__ import annotations

import base64
import json
import os
import queue
import shutil
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final, Protocol, TextIO, TypeVar

import msgspec

from cmsspark.apps.training.script_check import (
    BackendName,
    TrainingRun,
    check_files,
    check_script,
    run_name,
)
from cmsspark.base import dates, reporting
from cmsspark.base.errors import CmssparkError, DataError, InputMissing, UsageError
from cmsspark.base.private_folders import make_private
from cmsspark.base.text.readable import readable
from cmsspark.store.lease import start_ticks

# The folder of a run below ``<state>/training``: what it is, how it stands, its logs
# and what workers brought back.

_T = TypeVar("_T", bound=msgspec.Struct)
#: States in which a run is over.
ENDED: Final = frozenset({"done", "failed", "stopped", "lost"})


class RunRecord(msgspec.Struct, frozen=True):
    """What was started: script, arguments without secrets, back end, and the launcher's process."""

    name: str
    script: str
    arguments: tuple[str, ...]
    workers: int
    backend: BackendName
    began_ms: int
    process: int
    process_began: int
    secrets: tuple[str, ...] = ()
    namespace: str | None = None
    context: str | None = None
    #: What was typed, by option, to start it again; None where that has secrets.
    typed: dict[str, Any] | None = None


class RunState(msgspec.Struct):
    """How a run and its workers stand: ``running``, ``done``, ``failed``, ``stopped``;
    ``lost`` without a launcher.
    """

    state: str = "running"
    attempt: int = 1
    workers: list[str] = []
    ended_ms: int | None = None
    reason: str | None = None
    job: str | None = None


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run."""

    path: Path

    @classmethod
    def create(
        cls,
        base: Path,
        run: TrainingRun,
        namespace: str | None = None,
        context: str | None = None,
        typed: dict[str, Any] | None = None,
    ) -> RunFolder:
        """Make the folder of a new run. Raises UsageError (2) where the name is taken."""
        folder = cls(base / run.name)
        make_private(base)
        try:
            folder.path.mkdir(mode=0o700)
        except FileExistsError:
            raise UsageError(
                f"there is a run {run.name} already",
                where=folder.path,
                next_step=f"choose another --name, or remove it: cmsspark lab train forget {run.name}",
            ) from None
        for name in ("logs", "output"):
            (folder.path / name).mkdir()
        record = RunRecord(
            run.name,
            str(run.script.absolute()),
            run.shown_arguments,
            run.workers,
            run.backend,
            dates.now_ms(),
            os.getpid(),
            start_ticks(os.getpid()) or 0,
            tuple(secret.name for secret in run.secrets),
            namespace,
            context,
            typed,
        )
        folder._write("run.json", record)
        folder.write_state(RunState(workers=["pending"] * run.workers))
        return folder

    @classmethod
    def find(cls, base: Path, name: str) -> RunFolder:
        """Return the folder of a run. Raises InputMissing (66) where there is none of
        that name, UsageError (2).
        """
        folder = cls(base / run_name(Path(), name))
        if not (folder.path / "run.json").is_file():
            names = ", ".join(run.record.name for run in runs(base)) or "none"
            raise InputMissing(
                f"there is no run {name}",
                where=base,
                found=f"runs: {names}",
                next_step="cmsspark lab train status lists them",
            )
        return folder

    @property
    def record(self) -> RunRecord:
        """What was started."""
        return self._read("run.json", RunRecord)

    def take_over(self) -> int:
        """Make this process the launcher of a run that has ended without success; return
        the number of its next attempt.
        """
        process, state = os.getpid(), self.state()
        began = start_ticks(process) or 0
        self._write(
            "run.json",
            msgspec.structs.replace(self.record, process=process, process_began=began),
        )
        return state.attempt + 1

    @property
    def output(self) -> Path:
        """The folder of what workers left."""
        return self.path / "output"

    @property
    def merged_log(self) -> Path:
        """The lines of all workers, each with its worker's name."""
        return self.path / "logs" / "merged.log"

    def worker_log(self, rank: int) -> Path:
        """Return the lines of a worker."""
        return self.path / "logs" / f"worker-{rank}.log"

    def state(self) -> RunState:
        """Return how the run stands; ``lost`` where its launcher is gone and did not
        say how it ended.
        """
        state = self._read("state.json", RunState)
        if state.state == "running" and not self.is_launcher_alive():
            # It may have ended since the first look.
            state = self._read("state.json", RunState)
        if state.state == "running" and not self.is_launcher_alive():
            state.state, state.reason = "lost", "its launcher is gone"
            state.workers = [
                now if now not in ("pending", "running") else "lost" for now in state.workers
            ]
        return state

    def write_state(self, state: RunState) -> None:
        """Store how the run stands."""
        self._write("state.json", state)

    def is_launcher_alive(self) -> bool:
        """Return whether the process that started the run still runs on this host."""
        record = self.record
        return start_ticks(record.process) == record.process_began

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.path)

    def _write(self, name: str, document: msgspec.Struct) -> None:
        aside = self.path / f".{name}.part"
        aside.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n")
        aside.rename(self.path / name)

    def _read(self, name: str, kind: type[_T]) -> _T:
        path = self.path / name
        try:
            return msgspec.json.decode(path.read_bytes(), type=kind)
        except (OSError, msgspec.DecodeError) as error:
            raise DataError(
                "the record of a run cannot be read", where=path, found=str(error)
            ) from None


def runs(base: Path) -> Iterator[RunFolder]:
    """Yield all runs, the oldest first."""
    with suppress(OSError):
        folders = [RunFolder(path) for path in base.iterdir() if (path / "run.json").is_file()]
        yield from sorted(folders, key=lambda folder: folder.record.began_ms)


# What every back end of the launcher does: run one attempt of a training, and report
# what happens.

#: Lines of a failed worker that are shown.
LAST_LINES: Final = 15


@dataclass(frozen=True)
class WorkerFailure:
    """Why an attempt ended: which worker, what happened to it, its last lines."""

    rank: int
    reason: str
    last_lines: tuple[str, ...] = ()


@dataclass
class Attempt:
    """One attempt of a run: its number, the folder that workers' output comes into, and
    the listeners.

    ``output`` has a folder ``worker-N`` for each worker; what an earlier attempt left
    there is given to the worker.
    """

    run: TrainingRun
    number: int
    output: Path
    #: Takes a worker's number and a line of it.
    on_line: Callable[[int, str], None]
    #: Takes a worker's number and its state: ``pending``, ``running``, ``done``,
    #: ``failed``, ``stopped``.
    on_state: Callable[[int, str], None]
    #: Takes a line of the launcher itself.
    log: Callable[[str], None] = lambda text: None
    _last: dict[int, deque[str]] = field(default_factory=dict)

    def line(self, rank: int, text: str) -> None:
        """Pass a line of a worker on."""
        self._last.setdefault(rank, deque(maxlen=LAST_LINES)).append(text)
        self.on_line(rank, text)

    def failure(self, rank: int, reason: str) -> WorkerFailure:
        """Return the failure of a worker, with its last lines."""
        self.on_state(rank, "failed")
        return WorkerFailure(rank, reason, tuple(self._last.get(rank, ())))

    def folder(self, rank: int) -> Path:
        """Return the folder of a worker's output."""
        return self.output / f"worker-{rank}"


class Backend(Protocol):
    """A place where workers run."""

    @property
    def has_this_python(self) -> bool:
        """Whether workers run with this Python, so that a script's imports can be checked here."""

    def check(self, run: TrainingRun) -> None:
        """Raises a CmssparkError where this run cannot be started here; starts nothing."""

    def attempt(self, attempt: Attempt) -> WorkerFailure | None:
        """Run all workers to their end. The first failure stops the others and is
        returned; None: all ended well.

        Everything that it made is gone when it returns or raises, KeyboardInterrupt included.
        """


def describe_exit(code: int) -> str:
    """Return what an exit code of a script says; a negative one is a signal."""
    if code >= 0:
        return f"ended with exit code {code}"
    import signal

    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = "; the system may have had too little memory" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"


class Frames:
    """What the workers of an attempt send: frames of
    :mod:`cmsspark.apps.training.worker`, read by a thread for each worker.

    ``remaining``: the workers whose script has not ended; ``scripts``: the process of
    each script; ``archives``: packed output of workers on other hosts.
    """

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._queue: queue.Queue[tuple[int, dict[str, Any]]] = queue.Queue()
        self.remaining = set(range(attempt.run.workers))
        self.scripts: dict[int, int] = {}
        self.archives: dict[int, bytearray] = {}
        for rank in self.remaining:
            attempt.on_state(rank, "pending")

    def read(self, rank: int, stream: IO[bytes], lost_reason: Callable[[], str]) -> None:
        """Read the frames of a worker to their end, which is a failure if its script has
        not ended.
        """
        with suppress(OSError, ValueError):
            for line in stream:
                self._queue.put((rank, json.loads(line)))
        self._queue.put((rank, {"lost": lost_reason()}))

    def wait(
        self, check: Callable[[], WorkerFailure | None] = lambda: None
    ) -> WorkerFailure | None:
        """Take frames until all scripts ended; return the first failure, or what
        ``check`` finds when no frame comes.
        """
        failure = None
        while self.remaining and failure is None:
            try:
                failure = self._take(*self._queue.get(timeout=0.5))
            except queue.Empty:
                failure = check()
        return failure

    def drain(self) -> None:
        """Take what came until now, from workers that were stopped."""
        with suppress(queue.Empty):
            while True:
                rank, frame = self._queue.get_nowait()
                if frame.get("code", 0) == 0 and "lost" not in frame:
                    self._take(rank, frame)

    def _take(self, rank: int, frame: dict[str, Any]) -> WorkerFailure | None:
        if "line" in frame:
            self._attempt.line(rank, frame["line"])
        elif "archive" in frame:
            content = base64.b64decode(frame["archive"])
            self.archives.setdefault(rank, bytearray()).extend(content)
        elif "started" in frame:
            self.scripts[rank] = frame["started"]
            self._attempt.on_state(rank, "running")
        elif rank in self.remaining:
            self.remaining.discard(rank)
            if frame.get("code") != 0:
                reason = describe_exit(frame["code"]) if "code" in frame else frame["lost"]
                return self._attempt.failure(rank, reason)
            self._attempt.on_state(rank, "done")
        return None


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
    run: TrainingRun,
    backend: Backend,
    folder: RunFolder,
    echo: Callable[[str], None],
    first: int = 1,
) -> None:
    """Run all workers to their end, with retries where the run has them. ``echo`` takes
    merged lines; ``first`` is the number of the first attempt.

    Raises WorkerFailed (65) with a worker's last lines; KeyboardInterrupt after
    everything was stopped. The state of the folder says how it ended.
    """
    try:
        with reporting.interruptible(), _Lines(folder, run.workers, echo) as lines:
            last = first + run.retries
            for number in range(first, last + 1):
                failure = _attempt(run, backend, folder, number, lines)
                if failure is None:
                    break
                if number == last:
                    raise _failed(run, failure, folder)
                lines.add_own(
                    f"worker {failure.rank} {failure.reason}; attempt {number + 1} of {last}"
                )
            _finish(folder, "done")
    except KeyboardInterrupt:
        _finish(folder, "stopped", "it was interrupted")
        raise KeyboardInterrupt(
            f"cmsspark lab train run --resume {run.name} goes on with what its workers left"
        ) from None
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
    state.state, state.reason, state.ended_ms = word, reason, dates.now_ms()
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
