"""Checkpoints of a training: where it stands after a round, in one file that is written
whole or not at all.
"""

from __future__ import annotations

import json
import os
import re
import zipfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from cmsspark.base.errors import UsageError

_NAME: Final = re.compile(r"round-(\d{6})\.npz")
#: Checkpoints that are kept: the last, and one in case it is damaged.
KEPT: Final = 2


@dataclass(frozen=True)
class Progress:
    """Where a training stands: weights, the optimizer's state, the best weights so far,
    the last round that is done.

    ``waited``: rounds since the best one.
    """

    weights: Any
    optimizer: Any
    best: Any
    round: int = 0
    best_loss: float = float("inf")
    waited: int = 0

    def tree(self) -> dict[str, Any]:
        """Return all of it as arrays."""
        numbers = (
            np.array([self.round, self.waited], np.int32),
            np.array(self.best_loss, np.float32),
        )
        return {
            "weights": self.weights,
            "optimizer": self.optimizer,
            "best": self.best,
            "numbers": numbers,
        }

    @classmethod
    def from_tree(cls, tree: dict[str, Any]) -> Progress:
        """Return what :meth:`tree` made."""
        (round_number, waited), best_loss = tree["numbers"]
        return cls(
            tree["weights"],
            tree["optimizer"],
            tree["best"],
            int(round_number),
            float(best_loss),
            int(waited),
        )


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints in ``folder`` of the training of ``description``."""

    folder: Path
    description: dict[str, Any]

    def write(self, progress: Progress) -> None:
        """Write a checkpoint and remove old ones."""
        import jax

        self.folder.mkdir(parents=True, exist_ok=True)
        leaves = jax.tree.leaves(progress.tree())
        path = self.folder / f"round-{progress.round:06d}.npz"
        aside = path.with_suffix(".part")
        with open(aside, "wb") as stream:
            described = np.frombuffer(
                json.dumps(self.description, sort_keys=True).encode(), np.uint8
            )
            arrays: Any = {f"leaf{i:04d}": np.asarray(leaf) for i, leaf in enumerate(leaves)}
            np.savez(stream, description=described, **arrays)
            stream.flush()
            os.fsync(stream.fileno())
        aside.rename(path)
        for old in self._paths()[KEPT:]:
            old.unlink(missing_ok=True)

    def latest(self, start: Progress) -> Progress:
        """Return the newest checkpoint that is whole; ``start`` where there is none.

        Raises UsageError (2) where the checkpoints are those of another training.
        """
        import jax

        shape = jax.tree.structure(start.tree())
        for path in self._paths():
            with suppress(OSError, ValueError, KeyError, zipfile.BadZipFile, EOFError):
                with open(path, "rb") as stream, np.load(stream, allow_pickle=False) as stored:
                    described = json.loads(stored["description"].tobytes())
                    leaves = [stored[f"leaf{i:04d}"] for i in range(len(stored.files) - 1)]
                if described == json.loads(json.dumps(self.description)):
                    return Progress.from_tree(jax.tree.unflatten(shape, leaves))
                differing = sorted(
                    name
                    for name in self.description
                    if described.get(name) != self.description[name]
                )
                raise UsageError(
                    "the checkpoints are those of another training",
                    where=path,
                    found=", ".join(f"{name}={described.get(name)}" for name in differing),
                    next_step="train as before to go on, or with another output folder to begin anew",
                )
        return start

    def _paths(self) -> list[Path]:
        """Checkpoints, the newest first."""
        with suppress(OSError):
            return sorted(
                (path for path in self.folder.iterdir() if _NAME.fullmatch(path.name)),
                reverse=True,
            )
        return []
