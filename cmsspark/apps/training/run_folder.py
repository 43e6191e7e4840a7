"""The folder of a run below ``<state>/training``: what it is, how it stands, its logs
and what workers brought back.

``run.json`` describes the run, ``state.json`` how it stands; both hold no secret.
``logs/worker-N.log`` has each worker's lines, ``logs/merged.log`` those of all.
``output/worker-N`` is what a worker left in its output folder.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from cmsspark.apps.training.spec import BackendName, TrainingRun, run_name
from cmsspark.base import clock
from cmsspark.base.errors import DataError, InputMissing, UsageError
from cmsspark.base.private_folders import make_private
from cmsspark.store.process_identity import start_ticks

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
        cls, base: Path, run: TrainingRun, namespace: str | None = None, context: str | None = None
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
            clock.now_ms(),
            os.getpid(),
            start_ticks(os.getpid()) or 0,
            tuple(secret.name for secret in run.secrets),
            namespace,
            context,
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
