"""The three networks of events in JAX: ``hlf``, ``sequence`` and ``inclusive``. Needs
the extra ``cmsspark[training]``.

``hlf``: high-level features → 50 → 20 → 10 (ReLU) → classes. ``sequence``: a GRU of
width 50 over the particles, of Delphes by falling ΔR from the lepton → classes.
``inclusive``: the state of that GRU, dropout, beside the scaled high-level features →
25 (ReLU) → classes. A network is a dict of float32 arrays; all functions here are pure.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np

from cmsspark.apps.events import gru
from cmsspark.apps.events.layout import (
    DELTA_R,
    NETWORKS,
    TOPOLOGY,
    WEIGHTS_FILE,
    EventLayout,
    layout_in,
    read_columns,
    read_description,
    write_model,
)
from cmsspark.apps.events.scalers import Scalers
from cmsspark.base import extras
from cmsspark.base.errors import DataError

KINDS: Final = tuple(NETWORKS)
HIDDEN: Final = (50, 20, 10)
GRU_WIDTH: Final = gru.WIDTH
INCLUSIVE_WIDTH: Final = 25
DROPOUT: Final = 0.2
#: Sequences are cut to a multiple of this many particles, so that few lengths are compiled.
LENGTH_STEP: Final = 64
#: Steps of Newton's method, and what keeps coefficients finite.
_NEWTON_STEPS: Final = 10
_RIDGE: Final = 1.0
#: Events that ``predict`` takes at once.
PREDICT_ROWS: Final = 512

Array = Any
Weights = dict[str, Any]


def require_jax() -> None:
    """Raise UsageError (2) that names the extra where JAX or optax is not installed."""
    extras.require("the networks need", "jax", "optax", extra="training")


def needs_low_level(kind: str) -> bool:
    """Return whether a network of this kind reads the matrix of particles."""
    return "low_level" in read_columns(kind)


def initial_weights(
    kind: str, seed: int, layout: EventLayout = TOPOLOGY, inputs: int | None = None
) -> Weights:
    """Return weights to begin with, as numpy arrays: the same for the same seed.

    They have Glorot's uniform distribution; biases are 0. ``inputs``: the width of
    :meth:`Scalers.inputs`, if it is not that of the features.
    """
    draw, classes = np.random.default_rng(seed), len(layout.classes)
    inputs = layout.hlf_count if inputs is None else inputs

    def dense(name: str, wide: int, out: int) -> Weights:
        limit = np.sqrt(6.0 / (wide + out))
        drawn = draw.uniform(-limit, limit, (wide, out)).astype(np.float32)
        return {f"{name}/weight": drawn, f"{name}/bias": np.zeros(out, np.float32)}

    if kind == "hlf":
        widths = (inputs, *HIDDEN)
        layers = [dense(f"dense{i}", *pair) for i, pair in enumerate(pairwise(widths))]
        return {
            name: value
            for layer in (*layers, dense("out", HIDDEN[-1], classes))
            for name, value in layer.items()
        }
    weights = dense("gru", len(layout.columns), 3 * GRU_WIDTH)
    # Orthogonal matrices keep the state's size over hundreds of steps.
    blocks = [np.linalg.qr(draw.normal(size=(GRU_WIDTH, GRU_WIDTH)))[0] for _ in range(3)]
    weights["gru/state"] = np.concatenate(blocks, axis=1).astype(np.float32)
    weights["gru/state_bias"] = np.zeros(3 * GRU_WIDTH, np.float32)
    if kind == "sequence":
        return weights | dense("out", GRU_WIDTH, classes)
    wide = GRU_WIDTH + inputs
    return weights | dense("dense", wide, INCLUSIVE_WIDTH) | dense("out", INCLUSIVE_WIDTH, classes)


def fit_regression(inputs: Array, label: Array, weight: Array, classes: int) -> Array:
    """Return the coefficients ``(inputs + 1, classes - 1)`` of a logistic regression, by
    Newton's method; the last row is the constant, and the score of the last class is 0.
    """
    rows = np.column_stack([inputs, np.ones(len(label))]).astype(np.float64)
    truth, size, free = np.eye(classes)[label][:, :-1], rows.shape[1], classes - 1
    # Negative weights would have no minimum.
    weight = np.maximum(weight, 0.0)
    coefficients = np.zeros((size, free))
    for _ in range(_NEWTON_STEPS):
        scores = np.column_stack([rows @ coefficients, np.zeros(len(label))])
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        shares = (powers / powers.sum(axis=1, keepdims=True))[:, :-1]
        slope = rows.T @ (weight[:, None] * (shares - truth)) + _RIDGE * coefficients
        curvature = np.zeros((free, size, free, size))
        for i, j in np.ndindex(free, free):
            factor = weight * shares[:, i] * ((i == j) - shares[:, j])
            curvature[i, :, j] = (rows * factor[:, None]).T @ rows
        matrix = curvature.reshape(free * size, -1) + _RIDGE * np.eye(free * size)
        coefficients -= np.linalg.solve(matrix, slope.T.reshape(-1)).reshape(free, size).T
    return coefficients


def begin_with(weights: Weights, coefficients: Array) -> Weights:
    """Return weights of the kind ``hlf`` that give the scores of a regression, and where
    all other units begin to learn what it lacks.

    Each score goes through the layers as its positive and its negative part. Unchanged
    if the narrowest layer has too few units for that.
    """
    free = coefficients.shape[1]
    units = 2 * free
    if units > min(HIDDEN):
        return weights
    began = {name: value.copy() for name, value in weights.items()}
    signed = np.concatenate([coefficients, -coefficients], axis=1)
    began["dense0/weight"][:, :units], began["dense0/bias"][:units] = signed[:-1], signed[-1]
    for number in range(1, len(HIDDEN)):
        began[f"dense{number}/weight"][:, :units] = 0.0
        began[f"dense{number}/weight"][:units, :units] = np.eye(units)
    began["out/weight"][:] = 0.0
    began["out/weight"][:units, :free] = np.concatenate([np.eye(free), -np.eye(free)])
    return began


def logits(
    kind: str, weights: Weights, hlf: Array, sequence: Array, dropout_key: Array = None
) -> Array:
    """Return unnormalised scores ``(n, classes)`` of events.

    ``hlf``: :meth:`Scalers.inputs` of features. ``sequence``: scaled particles ``(n,
    length, columns)``, padding last as zeros; any array for the kind ``hlf``.
    ``dropout_key``: a key of JAX while training, None afterwards.
    """
    import jax
    import jax.numpy as jnp

    def dense(name: str, values: Array) -> Array:
        return values @ weights[f"{name}/weight"] + weights[f"{name}/bias"]

    if kind == "hlf":
        for i in range(len(HIDDEN)):
            hlf = jax.nn.relu(dense(f"dense{i}", hlf))
        return dense("out", hlf)
    state = gru.last_state(weights, sequence)
    if kind == "sequence":
        return dense("out", state)
    if dropout_key is not None:
        is_active = jax.random.bernoulli(dropout_key, 1.0 - DROPOUT, state.shape)
        state = jnp.where(is_active, state / (1.0 - DROPOUT), 0.0)
    return dense("out", jax.nn.relu(dense("dense", jnp.concatenate([state, hlf], axis=-1))))


def particle_order(low_level: Array, layout: EventLayout = TOPOLOGY) -> Array:
    """Return the numbers of the rows of each matrix, ``(n, rows)``, as networks read them:
    by falling ΔR from the first row, the lepton, or as they are; padding last.

    ``low_level``: unscaled, ``(n, rows, columns)``. Particles of equal ΔR keep their
    order. The lepton itself, at ΔR = 0, is the last particle.
    """
    is_there = low_level.any(axis=-1)
    if layout.sequence != DELTA_R:
        return np.argsort(~is_there, axis=1, kind="stable")
    eta, phi = (
        low_level[:, :, layout.columns.index(name)].astype(np.float64) for name in ("eta", "phi")
    )
    delta_phi = phi - phi[:, :1]
    delta_phi -= 2 * np.pi * np.round(delta_phi / (2 * np.pi))
    distance = (eta - eta[:, :1]) ** 2 + delta_phi**2
    distance[~is_there] = -1.0
    return np.argsort(-distance, axis=1, kind="stable")


def ordered_particles(
    scalers: Scalers, low_level: Array, layout: EventLayout
) -> tuple[Array, Array]:
    """Return the particles of unscaled matrices ``(n, rows, columns)``, ordered and
    scaled, one event behind the other as ``(particles, columns)``, and how many each
    event has.
    """
    low_level = np.asarray(low_level, np.float32)
    count, most, columns = low_level.shape
    order = particle_order(low_level, layout)
    lengths = low_level.any(axis=-1).sum(axis=1)
    rows = (order + np.arange(count)[:, None] * most)[np.arange(most) < lengths[:, None]]
    return scalers.low_level(low_level.reshape(-1, columns).take(rows, axis=0)), lengths


def make_sequences(scalers: Scalers, low_level: Array, layout: EventLayout) -> Array:
    """Return unscaled matrices ``(n, rows, columns)`` as :func:`logits` reads them:
    ordered, scaled, cut where only padding is left.
    """
    particles, lengths = ordered_particles(scalers, low_level, layout)
    longest = max(1, int(lengths.max(initial=0)))
    length = min(low_level.shape[1], -(-longest // LENGTH_STEP) * LENGTH_STEP)
    sequences = np.zeros((len(lengths), length, low_level.shape[2]), np.float32)
    sequences[np.arange(length) < lengths[:, None]] = particles
    return sequences


@cache
def _probabilities(kind: str) -> Any:
    """Return the compiled function of a kind; compiled once for each shape in a process."""
    import jax

    def compute(weights: Weights, hlf: Array, sequence: Array) -> Array:
        # GPUs would round the factors of products to ten bits, and scores to 0.002.
        with jax.default_matmul_precision("highest"):
            return jax.nn.softmax(logits(kind, weights, hlf, sequence))

    return jax.jit(compute)


@dataclass(frozen=True)
class Network:
    """A trained network. ``parameters``: how it was trained."""

    kind: str
    weights: Weights
    scalers: Scalers
    parameters: dict[str, Any]
    seed: int = 0
    layout: EventLayout = TOPOLOGY

    @property
    def needs_low_level(self) -> bool:
        """Whether ``predict`` reads the matrix of particles."""
        return needs_low_level(self.kind)

    def predict(self, hlf: Array, low_level: Array | None = None) -> Array:
        """Return probabilities ``(n, classes)`` in float32 of events with **unscaled**
        ``hlf`` ``(n, features)`` and ``low_level`` ``(n, rows, columns)``. Raises
        DataError (65) where the network reads the matrix, and it is None.
        """
        if self.needs_low_level and low_level is None:
            raise DataError(
                f"a {self.kind} network reads the matrix of particles", found="events without it"
            )
        probabilities = _probabilities(self.kind)
        parts = [np.zeros((0, len(self.layout.classes)), np.float32)]
        for start in range(0, len(hlf), PREDICT_ROWS):
            rows = slice(start, start + PREDICT_ROWS)
            features = self.scalers.inputs(np.asarray(hlf[rows]))
            sequence = np.zeros((len(features), 1, len(self.layout.columns)), np.float32)
            if self.needs_low_level and low_level is not None:
                sequence = make_sequences(self.scalers, low_level[rows], self.layout)
            # Filled up to one size: each new shape would be compiled.
            missing = PREDICT_ROWS - len(features) if len(hlf) > PREDICT_ROWS else 0
            padded = [
                np.pad(part, ((0, missing), *(((0, 0),) * (part.ndim - 1))))
                for part in (features, sequence)
            ]
            parts.append(np.asarray(probabilities(self.weights, *padded))[: len(features)])
        return np.concatenate(parts)

    def save(self, folder: str | Path) -> None:
        """Write the network into a folder, which is made."""

        def write(target: Path) -> None:
            arrays: Any = {name: np.asarray(value) for name, value in self.weights.items()}
            np.savez(target / WEIGHTS_FILE, **arrays)

        of_sample = self.layout, self.scalers.as_dict()
        write_model(Path(folder), self.kind, *of_sample, self.parameters, self.seed, write)


def load(folder: str | Path) -> Network:
    """Return the network of a model's folder. Raises InputMissing (66), DataError (65),
    UsageError (2) without JAX.
    """
    require_jax()
    path, described = Path(folder), read_description(folder)
    try:
        kind, parameters, seed = (described[name] for name in ("kind", "parameters", "seed"))
        with (
            open(path / WEIGHTS_FILE, "rb") as stream,
            np.load(stream, allow_pickle=False) as stored,
        ):
            weights = {name: stored[name] for name in stored.files}
    except (OSError, KeyError, TypeError, ValueError, zipfile.BadZipFile) as error:
        raise DataError("this is not a network", where=path, found=str(error)) from None
    layout, scalers = layout_in(path), Scalers.load(path)
    expected = initial_weights(kind, 0, layout, scalers.input_count)
    shapes = {name: value.shape for name, value in expected.items()}
    if {name: value.shape for name, value in weights.items()} != shapes:
        raise DataError(
            f"the weights are not those of a {kind} network", where=path / WEIGHTS_FILE
        )
    return Network(kind, weights, scalers, dict(parameters), int(seed), layout)
