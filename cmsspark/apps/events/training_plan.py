"""How a network is trained: its budget in rounds, its learning rate, and the workers
that share it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cmsspark.apps.events.networks import KINDS
from cmsspark.base.errors import UsageError

#: Steps that a round has at least, where the budget is in steps: validation after fewer
#: is mostly noise.
ROUND_STEPS: Final = 100
#: The budget without --steps and --epochs: so many passes over the sample, and at least
#: so many steps.
DEFAULT_EPOCHS: Final = 6
DEFAULT_STEPS: Final = {"hlf": 2_000, "sequence": 400, "inclusive": 400}
#: The share of all steps in which the learning rate rises to that of all workers.
WARM_UP: Final = 0.05
#: The share of the learning rate that is left at the end.
LAST_RATE: Final = 0.02


@dataclass(frozen=True)
class World:
    """This worker's number, how many there are, and where they meet (``host:port``;
    None for one worker).
    """

    rank: int = 0
    workers: int = 1
    coordinator: str | None = None

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] = os.environ) -> World:
        """Return the world of the launcher's variables (``JAX_COORDINATOR_ADDRESS`` …);
        without them one worker.
        """
        workers = int(environ.get("JAX_NUM_PROCESSES", "1"))
        if workers == 1:
            return cls()
        return cls(int(environ["JAX_PROCESS_ID"]), workers, environ["JAX_COORDINATOR_ADDRESS"])

    def join(self) -> None:
        """Meet the other workers; gradients travel by gloo, between GPUs by NCCL. Call
        it before all else of JAX.
        """
        import jax

        if self.workers > 1:
            # Of gradients on processors; GPUs have their own.
            jax.config.update("jax_cpu_collectives_implementation", "gloo")
            jax.distributed.initialize(
                self.coordinator, self.workers, self.rank, heartbeat_timeout_seconds=60
            )


@dataclass(frozen=True)
class Training:
    """How a network is trained. ``batch``: events a step and worker. ``learning_rate``:
    that of one worker.

    ``steps`` or ``epochs`` is the budget; 0 and 0: six epochs, and at least
    :data:`DEFAULT_STEPS`. ``patience``: rounds without a
    better validation before it stops.
    """

    model: str
    steps: int = 0
    epochs: int = 0
    batch: int = 64
    learning_rate: float = 3e-3
    patience: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        if self.model not in KINDS:
            raise UsageError(f"the model is one of {', '.join(KINDS)}", found=repr(self.model))
        for name in ("batch", "learning_rate", "patience"):
            if not getattr(self, name) > 0:
                raise UsageError(
                    f"--{name.replace('_', '-')} must be above 0", found=str(getattr(self, name))
                )
        for name in ("steps", "epochs"):
            if not getattr(self, name) >= 0:
                raise UsageError(f"--{name} must not be negative", found=str(getattr(self, name)))
        if self.steps and self.epochs:
            raise UsageError("--steps and --epochs are both the budget: give one of them")

    def rounds(self, steps_of_epoch: int) -> tuple[int, int, int]:
        """Return the number of rounds, the epochs of a round, and the steps of a round.

        Example:
            >>> Training("hlf").rounds(steps_of_epoch=36)
            (19, 3, 105)
            >>> Training("hlf", epochs=5).rounds(steps_of_epoch=36)
            (5, 1, 36)
        """
        if self.epochs:
            return self.epochs, 1, steps_of_epoch
        budget = self.steps or max(DEFAULT_EPOCHS * steps_of_epoch, DEFAULT_STEPS[self.model])
        epochs = -(-min(ROUND_STEPS, budget) // steps_of_epoch)
        # Rounds of equal size within the budget; each begins with another epoch.
        rounds = -(-budget // (epochs * steps_of_epoch))
        return rounds, epochs, budget // rounds

    def rate(self, workers: int, steps: int) -> Any:
        """Return the learning rate by step, as optax takes it."""
        import optax

        top = self.learning_rate * workers
        warm_up = math.ceil(WARM_UP * steps) if workers > 1 else 0
        falling = optax.cosine_decay_schedule(top, max(1, steps - warm_up), LAST_RATE)
        if not warm_up:
            return falling
        return optax.join_schedules(
            [optax.linear_schedule(self.learning_rate, top, warm_up), falling], [warm_up]
        )
