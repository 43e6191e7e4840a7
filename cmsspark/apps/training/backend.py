"""What every back end of the launcher does: run one attempt of a training, and report
what happens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from cmsspark.apps.training.spec import TrainingRun

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
