"""Training of the networks, data-parallel over workers: each has the same weights and a
share of the events.

A step takes the mean of the gradients of all workers' batches, so all keep equal
weights. The learning rate is that of one worker times their number, approached over the
first steps and then lowered by a cosine. A round is an epoch, or as many of a small
sample as make 100 steps. It ends with a validation, a line in ``training_log.jsonl``
and a checkpoint, from which a killed training continues. Training stops early where the
validation does not improve for some rounds; the weights of the best round are the
model.

If a fifth of a sample has fewer events than choose a round well, each event judges once:
networks that learn from the other parts find the round at which the model, which learns
from all events, is taken.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain, count, islice, pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np

from cmsspark.apps.events.gru import scan_reason
from cmsspark.apps.events.network_data import Rows, Share, Split
from cmsspark.apps.events.networks import (
    KINDS,
    Network,
    begin_with,
    fit_regression,
    initial_weights,
    logits,
    needs_low_level,
    require_jax,
)
from cmsspark.apps.events.scalers import CURVE_EVENTS
from cmsspark.base.errors import DataError, UsageError

# How a network is trained: its budget in rounds, its learning rate, and the workers
# that share it.

#: Steps that a round has at least, where the budget is in steps: validation after fewer
#: is mostly noise. The features of a few hundred events are learned by heart in 100.
ROUND_STEPS: Final = {"hlf": 25, "sequence": 100, "inclusive": 100}
#: The budget without --steps and --epochs: so many passes over the sample, and at least
#: so many steps.
DEFAULT_EPOCHS: Final = 6
DEFAULT_STEPS: Final = {"hlf": 2_000, "sequence": 400, "inclusive": 400}
#: Events that choose the best of several rounds well enough, and the hundredths of a
#: sample that judge, at least and at most. Smaller samples are divided into folds.
VALIDATION_EVENTS: Final = 5_000
VALIDATION_PERCENT: Final = (10, 20)
FOLDS: Final = {"hlf": 5, "sequence": 2, "inclusive": 2}
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
            >>> Training("sequence").rounds(steps_of_epoch=36)
            (4, 3, 100)
            >>> Training("hlf", epochs=5).rounds(steps_of_epoch=36)
            (5, 1, 36)
        """
        if self.epochs:
            return self.epochs, 1, steps_of_epoch
        budget = self.steps or max(DEFAULT_EPOCHS * steps_of_epoch, DEFAULT_STEPS[self.model])
        epochs = -(-min(ROUND_STEPS[self.model], budget) // steps_of_epoch)
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


# Checkpoints of a training: where it stands after a round, in one file that is written
# whole or not at all.

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


# The loop over rounds, with its compiled functions.

Array = Any
LOG_FILE: Final = "training_log.jsonl"
#: Steps that are compiled into one call: small networks would spend their time between calls.
STEPS_AT_ONCE: Final = {"hlf": 50, "sequence": 1, "inclusive": 1}
#: Calls that wait on the device while the next batch is made.
CALLS_AHEAD: Final = 4
#: Gradients of a larger norm are scaled down to it: single batches would throw
#: recurrent networks back.
MAX_GRADIENT: Final = 1.0


def train(
    sample: str | Path,
    output: str | Path,
    training: Training,
    world: World | None = None,
    log: Callable[[str], None] | None = None,
    metrics: Callable[[Mapping[str, Any]], None] | None = None,
    arrays: Path | None = None,
) -> Network:
    """Train a network on ``sample/train`` and store it in ``output/model``; every
    worker returns it.

    ``output`` also gets ``training_log.jsonl`` and ``checkpoints/``, and of a small
    sample ``folds/``, all from worker 0. Where it has checkpoints of the same training,
    that goes on. ``metrics`` takes the numbers of each round. ``arrays``: a folder that
    keeps the events as a training reads them. Raises UsageError (2), DataError (65),
    InputMissing (66).
    """
    require_jax()
    world = world or World()
    share = Share(Path(sample), training.model, world.rank, world.workers, arrays)
    return _Loop(share, Path(output), training, world, log or (lambda text: None), metrics).run()


class _Loop:
    """One training: its compiled functions, and what is done in an epoch."""

    def __init__(
        self,
        share: Share,
        output: Path,
        training: Training,
        world: World,
        log: Callable[[str], None],
        metrics: Callable[[Mapping[str, Any]], None] | None,
    ) -> None:
        import jax
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        self._training, self._world, self._log, self._output = training, world, log, output
        self._metrics, self._share = metrics, share
        # One device of each worker: a GPU where JAX finds one.
        devices = sorted(jax.devices(), key=lambda device: (-device.process_index, -device.id))
        first = {device.process_index: device for device in devices}
        self._mesh = Mesh(np.array([first[process] for process in sorted(first)]), ("worker",))
        self._split = NamedSharding(self._mesh, PartitionSpec("worker"))
        self._device = first[jax.process_index()]
        columns = share.columns
        counts = self._gathered([len(columns.lengths)])[:, 0]
        # Of all workers, filled up to equal sizes.
        every = [
            self._gathered(np.pad(values.astype(np.int32), (0, counts.max() - len(values))))
            for values in (columns.lengths, columns.hundredths)
        ]
        share.everyone = [
            (lengths[:size], hundredths[:size])
            for lengths, hundredths, size in zip(*every, counts, strict=True)
        ]
        least, most = VALIDATION_PERCENT
        percent = max(least, -(-100 * VALIDATION_EVENTS // share.events))
        self._folds = 1 if percent <= most else FOLDS[training.model]
        #: The parts that choose the round, and the one that gives the model.
        self._parts = [share.split(0, percent)]
        if self._folds > 1:
            edges = [100 * number // self._folds for number in range(self._folds + 1)]
            self._parts = [share.split(*pair) for pair in pairwise(edges)]
        self._last = share.split() if self._folds > 1 else self._parts[0]
        sizes = [[len(learned) for learned, _ in part.lengths] for part in self._parts]
        #: The events that are learned from, and those that judge.
        self.events = [sum(sizes[0]), share.events - sum(sizes[0])]
        if self._folds > 1:
            self.events = [share.events, share.events]
        batches = [len(learned) // training.batch for learned, _ in self._last.lengths]
        self._rounds, self._epochs, steps = (
            training.rounds(min(batches)) if min(batches) else (0, 0, 0)
        )
        # Calls of equal size: each other size would be compiled, which takes seconds.
        # The few events that are left out are others in each round.
        calls = max(1, steps // STEPS_AT_ONCE[training.model])
        self._steps_at_once = steps // calls
        self._steps = calls * self._steps_at_once
        judging = [sum(len(validated) for _, validated in part.lengths) for part in self._parts]
        if not self._steps or min(map(min, sizes)) < training.batch or not min(judging):
            raise DataError(
                f"each of {world.workers} workers needs a batch of {training.batch} events, and some to validate",
                where=share.folder / "train",
                found=f"{share.events:,} events",
                next_step="take a larger sample, a smaller --batch, or fewer workers",
            )
        self._compile()
        #: What computes the GRU, for the log.
        self._gru: dict[str, Any] = {}
        if needs_low_level(training.model):
            reason = scan_reason(len(share.layout.columns))
            self._gru = {"gru": "kernel" if reason is None else "scan"}
            log("GRU by the kernel" if reason is None else f"GRU by the scan: {reason}")

    def run(self) -> Network:
        """Run the remaining rounds, and return the model."""
        training, share = self._training, self._share
        description = {
            **asdict(training),
            "workers": self._world.workers,
            "events": self.events,
        }
        # Another sample may have as many events.
        description["scalers"] = hashlib.sha256(
            json.dumps(share.scalers.as_dict()).encode()
        ).hexdigest()[:12]
        if self._folds == 1:
            progress, start, first_loss = self._fit(self._last, self._output, description)
            weights, best_loss = progress.best, progress.best_loss
            is_better = best_loss < first_loss
        else:
            folders = [self._output / "folds" / str(number) for number in range(self._folds)]
            done = [
                self._fit(part, folder, description, f"fold={number} ")
                for number, (part, folder) in enumerate(zip(self._parts, folders, strict=True), 1)
            ]
            rounds = round(float(np.mean([fold.round - fold.waited for fold, _, _ in done])))
            last_description = {**description, "rounds": rounds}
            progress, start, _ = self._fit(
                self._last, self._output, last_description, "", rounds, folders
            )
            weights = progress.weights
            first_losses = np.array([loss for _, _, loss in done])
            losses = np.zeros(self._folds)
            if self._world.rank == 0:
                losses = _validation(folders, rounds)["validation_loss"]
            losses = self._of_first(losses)
            best_loss, first_loss = float(losses.mean()), float(first_losses.mean())
            gains = first_losses - losses
            # A gain below its standard error is one by chance.
            is_better = gains.mean() > gains.std(ddof=1) / math.sqrt(self._folds)
        if not is_better:
            # The regression that the network began with is as good as all rounds.
            weights, best_loss = start, first_loss
        parameters = {
            **description,
            "steps_done": progress.round * self._steps,
            "best_validation_loss": best_loss,
        }
        layout = share.layout
        network = Network(
            training.model, weights, share.scalers, parameters, training.seed, layout
        )
        if self._world.rank == 0:
            network.save(self._output / "model")
        return network

    def _fit(
        self,
        part: Split,
        output: Path,
        description: dict[str, Any],
        name: str = "",
        rounds: int | None = None,
        folders: Sequence[Path] = (),
    ) -> tuple[Progress, Any, float]:
        """Train on a part of the events, and return where that ends: after ``rounds``, or
        when the validation gets no better; and with which weights it began, with their
        validation.

        ``folders``: of the folds, whose validation stands for that of all events.
        """
        training, is_first = self._training, self._world.rank == 0
        start_weights = initial_weights(
            training.model, training.seed, self._share.layout, self._share.scalers.input_count
        )
        if training.model == "hlf":
            first, columns = part.learned[:CURVE_EVENTS], self._share.columns
            coefficients = fit_regression(
                columns.hlf[first],
                columns.label[first],
                columns.weight[first],
                len(self._share.layout.classes),
            )
            start_weights = begin_with(start_weights, coefficients)
        start = Progress(start_weights, self._optimizer.init(start_weights), best=start_weights)
        # Worker 0's, whose share differs from those of others.
        start = Progress.from_tree(self._of_first(start.tree()))
        first_loss = math.inf
        if _has_validation(part):
            first_loss, _ = self._validate(self._everywhere(start.weights), part)
        checkpoints = Checkpoints(output / "checkpoints", description) if is_first else None
        latest = checkpoints.latest(start) if checkpoints else start
        progress = Progress.from_tree(self._of_first(latest.tree()))
        path = output / LOG_FILE
        if is_first and path.exists():
            # A killed training may leave a line more, or a part of one.
            aside = path.with_suffix(".part")
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
            aside.write_text("".join(lines[: progress.round]), encoding="utf-8")
            aside.replace(path)
        last, patience = (
            (self._rounds, training.patience) if rounds is None else (rounds, math.inf)
        )
        if 0 < progress.round < last and progress.waited < patience:
            self._log(f"{name}goes on after round {progress.round}")
        while progress.round < last and progress.waited < patience:
            progress, line = self._round(progress, part)
            if is_first and folders:
                means = _validation(folders, progress.round)
                line |= {key: round(float(values.mean()), 6) for key, values in means.items()}
            if checkpoints is not None:
                output.mkdir(parents=True, exist_ok=True)
                # First: of a round that has a checkpoint the log has the line.
                with open(path, "a", encoding="utf-8") as stream:
                    stream.write(json.dumps(line) + "\n")
                checkpoints.write(progress)
            if self._metrics is not None and not name:
                self._metrics(line)
            shown = {
                key: f"{value:,.4g}" if isinstance(value, float) else value
                for key, value in line.items()
            }
            self._log(name + " ".join(f"{key}={value}" for key, value in shown.items()))
        return progress, start.weights, first_loss

    def _round(self, before: Progress, part: Split) -> tuple[Progress, dict[str, Any]]:
        """Train one round and validate it; return the line for the log, too."""
        import jax

        began, training, number = time.perf_counter(), self._training, before.round + 1
        weights, state = self._everywhere(before.weights), self._everywhere(before.optimizer)
        done = self._everywhere(np.int32(before.round * self._steps))
        # A fold has fewer events, and begins another epoch earlier.
        steps_of_epoch = min(len(learned) // training.batch for learned, _ in part.lengths)
        epochs = max(self._epochs, -(-self._steps // steps_of_epoch))
        every = (
            part.batches(training.batch, training.seed, epoch)
            for epoch in count(before.round * epochs + 1)
        )
        batches = islice(chain.from_iterable(every), self._steps)
        chunks = iter(lambda: list(islice(batches, self._steps_at_once)), [])
        losses: list[Any] = []
        for rows in _ahead(map(self._batch, chunks)):
            weights, state, done, loss = self._train_steps(
                weights, state, done, *map(self._global, rows)
            )
            losses.append(loss)
            # Calls beyond that would only hold their batches.
            losses[max(0, len(losses) - CALLS_AHEAD)].block_until_ready()
        train_loss = float(np.mean([float(loss) for loss in losses]))
        seconds = time.perf_counter() - began
        line = {
            "round": number,
            "epoch": number * epochs,
            "step": number * self._steps,
            "loss": round(train_loss, 6),
        }
        validation_loss = math.inf
        if _has_validation(part):
            validation_loss, accuracy = self._validate(weights, part)
            line |= {
                "validation_loss": round(validation_loss, 6),
                "validation_accuracy": round(accuracy, 6),
            }
        if not math.isfinite(train_loss) or math.isnan(validation_loss):
            raise DataError(
                "the loss is not a number any more",
                where=f"round {number}",
                next_step="train with a smaller --learning-rate",
            )
        better = validation_loss < before.best_loss
        after = Progress(
            jax.device_get(weights),
            jax.device_get(state),
            jax.device_get(weights) if better else before.best,
            number,
            min(validation_loss, before.best_loss),
            0 if better else before.waited + 1,
        )
        trained = self._steps * training.batch * self._world.workers
        line |= {
            "learning_rate": float(self._rate(number * self._steps)),
            "events_per_second": round(trained / seconds, 1),
            "seconds": round(seconds, 3),
            **self._gru,
        }
        return after, line

    def _validate(self, weights: Any, part: Split) -> tuple[float, float]:
        """Mean loss and accuracy over the events that all workers keep for validation."""
        batches = ([batch] for batch in part.validation(self._training.batch))
        results = [
            self._judge(weights, *map(self._global, rows))
            for rows in _ahead(map(self._batch, batches))
        ]
        sums = np.sum([np.asarray(result, np.float64) for result in results], axis=0)
        # In single precision, as checkpoints have it: a training that goes on compares
        # the same numbers.
        return float(np.float32(sums[0] / sums[2])), float(sums[1] / sums[2])

    def _batch(self, batches: Sequence[tuple[Array, int]]) -> Sequence[Array]:
        """Return the events of some batches, each column as ``(1, batches, events, …)`` on
        this worker's device.
        """
        import jax

        positions = np.stack([positions for positions, _ in batches])
        length = max(length for _, length in batches)
        if self._stored is not None:
            rows_there: Rows = self._take(*self._stored, positions.astype(np.int32)[None], length)
            return rows_there
        rows = self._share.rows(positions.reshape(-1), length)
        return [
            jax.device_put(column.reshape(1, *positions.shape, *column.shape[1:]), self._device)
            for column in rows
        ]

    @cached_property
    def _stored(self) -> tuple[Array, ...] | None:
        """The events on a device that has memory of its own, if they take less than half of
        what is free there.
        """
        import jax

        columns = self._share.columns[:-1]
        size = sum(column.nbytes for column in columns)
        if 2 * size > device_memory(self._device) or len(columns[-1]) >= 2**31:
            return None
        return tuple(
            jax.device_put(
                column.astype(np.int32) if column.dtype == np.int64 else column, self._device
            )
            for column in columns
        )

    def _compile(self) -> None:
        """Make the functions of a step and of a validation; JAX compiles them at their first call."""
        import jax
        import jax.numpy as jnp
        import optax
        from jax.flatten_util import ravel_pytree
        from jax.sharding import PartitionSpec

        kind, key = self._training.model, jax.random.key(self._training.seed)
        self._rate = self._training.rate(self._world.workers, self._steps * self._rounds)
        self._optimizer = optimizer = optax.chain(
            optax.clip_by_global_norm(MAX_GRADIENT), optax.adam(self._rate)
        )
        shared, split = PartitionSpec(), PartitionSpec("worker")

        def compute_loss(weights: Any, rows: tuple[Array, ...], drop: Array) -> Array:
            scores = logits(kind, weights, rows[0], rows[1], drop)
            return (
                optax.softmax_cross_entropy_with_integer_labels(scores, rows[2]) * rows[3]
            ).mean()

        def steps(
            weights: Any, state: Any, first: Array, *columns: Array
        ) -> tuple[Any, Any, Array, Array]:
            def step(
                carry: tuple[Any, Any, Array], rows: tuple[Array, ...]
            ) -> tuple[tuple[Any, Any, Array], Array]:
                weights, state, number = carry
                drop = jax.random.fold_in(
                    jax.random.fold_in(key, number), jax.lax.axis_index("worker")
                )
                loss, gradients = jax.value_and_grad(compute_loss)(weights, rows, drop)
                # One vector: each exchange between workers costs a round trip, whatever its size.
                flat, restore = ravel_pytree((gradients, loss))
                gradients, loss = restore(jax.lax.pmean(flat, "worker"))
                changes, state = optimizer.update(gradients, state, weights)
                return (optax.apply_updates(weights, changes), state, number + 1), loss

            carry, losses = jax.lax.scan(
                step, (weights, state, first), tuple(column[0] for column in columns)
            )
            return (*carry, losses.mean())

        def judge(weights: Any, hlf: Array, sequence: Array, label: Array, weight: Array) -> Array:
            scores = logits(kind, weights, hlf[0, 0], sequence[0, 0])
            losses = optax.softmax_cross_entropy_with_integer_labels(scores, label[0, 0])
            hits = (scores.argmax(axis=-1) == label[0, 0]).astype(jnp.float32)
            sums = [(column * weight[0, 0]).sum() for column in (losses, hits, hits * 0 + 1)]
            return jax.lax.psum(jnp.stack(sums), "worker")

        width = len(self._share.layout.columns)

        def take(
            hlf: Array,
            label: Array,
            weight: Array,
            lengths: Array,
            ends: Array,
            particles: Array,
            positions: Array,
            length: int,
        ) -> Rows:
            sequence = jnp.zeros((*positions.shape, length, width), jnp.float32)
            is_event = positions >= 0
            if needs_low_level(kind):
                size = jnp.where(is_event, lengths[positions], 0)[..., None]
                number = jnp.arange(length)
                rows = particles[ends[positions][..., None] - size + number]
                is_there = (number < size)[..., None]
                sequence = jnp.where(is_there, rows.astype(jnp.float32), sequence)
            return Rows(
                hlf[positions],
                sequence,
                label[positions],
                jnp.where(is_event, weight[positions], 0.0),
            )

        options = {"mesh": self._mesh, "check_vma": False}
        inputs = (shared, shared, shared, *(split,) * 4)
        self._train_steps = jax.jit(
            jax.shard_map(steps, in_specs=inputs, out_specs=(shared,) * 4, **options)
        )
        self._take = jax.jit(take, static_argnames="length")
        self._judge = jax.jit(
            jax.shard_map(judge, in_specs=(shared, *(split,) * 4), out_specs=shared, **options)
        )

    def _global(self, mine: Array) -> Array:
        """Make an array over all workers of this worker's part ``(1, …)``."""
        import jax

        shape = (self._world.workers, *mine.shape[1:])
        return jax.make_array_from_single_device_arrays(shape, self._split, [mine])

    def _everywhere(self, tree: Any) -> Any:
        """Arrays that all workers have, as arrays of all workers: functions are
        compiled for these once.
        """
        import jax
        from jax.sharding import NamedSharding, PartitionSpec

        replicated = NamedSharding(self._mesh, PartitionSpec())
        return jax.tree.map(
            lambda leaf: jax.make_array_from_process_local_data(replicated, np.asarray(leaf)), tree
        )

    def _gathered(self, numbers: list[int] | Array) -> Array:
        """Gather these numbers of all workers, a row each."""
        if self._world.workers == 1:
            return np.array([numbers])
        from jax.experimental import multihost_utils

        return np.asarray(multihost_utils.process_allgather(np.array(numbers, np.int32)))

    def _of_first(self, tree: Any) -> Any:
        """Worker 0's arrays at all workers: only it has checkpoints and logs."""
        if self._world.workers == 1:
            return tree
        from jax.experimental import multihost_utils

        return multihost_utils.broadcast_one_to_all(tree)


def device_memory(device: Any) -> int:
    """Return the free bytes of a device that has memory of its own, else 0."""
    stats = device.memory_stats() or {}
    return int(stats.get("bytes_limit", 0) - stats.get("bytes_in_use", 0))


def _has_validation(part: Split) -> bool:
    return any(len(validated) for _, validated in part.lengths)


def _validation(folders: Sequence[Path], number: int) -> dict[str, Array]:
    """Return the validation of each fold after a round, or after its last before that."""
    logs = [(folder / LOG_FILE).read_text(encoding="utf-8").splitlines() for folder in folders]
    lines = [json.loads(log[min(number, len(log)) - 1]) for log in logs]
    return {
        name: np.array([line[name] for line in lines])
        for name in ("validation_loss", "validation_accuracy")
    }


def _ahead(items: Iterator[Any]) -> Iterator[Any]:
    """Make each item in a thread while the one before is used."""
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(next, items, None)
        while (item := following.result()) is not None:
            following = pool.submit(next, items, None)
            yield item
