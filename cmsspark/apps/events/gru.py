"""The GRU over the particles of events: a scan on every processor, and one fused kernel
for GPUs, of the same numbers.

Its hundreds of dependent steps cost the time. The kernel (Pallas, by Triton) keeps the
weights and the state of a block of events near the arithmetic over all particles, forward
and backward. The scan is its reference, and stands in if the kernel does not compile.
"""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, Final

import numpy as np

Array = Any
Weights = dict[str, Any]

#: The numbers of a state.
WIDTH: Final = 50
#: Steps of the scan in one round of its loop, on accelerators. On processors more than one
#: costs time to compile, and saves none.
UNROLL: Final = 8
#: Events that a program of the kernel works on, and its warps.
BLOCK: Final = 16
_WARPS: Final = 4


def last_state(weights: Weights, sequence: Array) -> Array:
    """Return the state ``(n, width)`` after the last particle of scaled sequences ``(n,
    length, columns)``; padding, rows of zeros, leaves it as it is.
    """
    is_scan = scan_reason(sequence.shape[-1], weights["gru/state"].shape[0])
    return (by_scan if is_scan else by_kernel)(weights, sequence)


def by_scan(weights: Weights, sequence: Array) -> Array:
    """Return :func:`last_state` by a scan."""
    import jax
    import jax.numpy as jnp

    is_particle = jnp.any(sequence != 0.0, axis=-1)
    # One large product for all particles: only the state's own product is left for the loop.
    inputs = sequence @ weights["gru/weight"] + weights["gru/bias"]

    def step(state: Array, particle: tuple[Array, Array]) -> tuple[Array, None]:
        from_input, is_there = particle
        reset_in, update_in, new_in = jnp.split(from_input, 3, axis=-1)
        from_state = state @ weights["gru/state"] + weights["gru/state_bias"]
        reset_state, update_state, new_state = jnp.split(from_state, 3, axis=-1)
        reset = jax.nn.sigmoid(reset_in + reset_state)
        update = jax.nn.sigmoid(update_in + update_state)
        new = jnp.tanh(new_in + reset * new_state)
        return jnp.where(is_there[:, None], (1.0 - update) * new + update * state, state), None

    # Made from the input, so that it is spread over the workers as the input is.
    start = inputs[:, 0, : weights["gru/state"].shape[0]] * 0.0
    particles = (jnp.swapaxes(inputs, 0, 1), is_particle.T)
    unroll = 1 if jax.default_backend() == "cpu" else UNROLL
    state, _ = jax.lax.scan(step, start, particles, unroll=unroll)
    return state


@cache
def scan_reason(columns: int, width: int = WIDTH) -> str | None:
    """Return why this process uses the scan for particles of so many columns; None if its
    GPU has the kernel, of these sizes, and that gives what the scan gives: states as
    scores need them, and gradients as a training computes them.
    """
    import jax

    if jax.default_backend() != "gpu":
        return "there is no GPU"
    draw = np.random.default_rng(0)
    shapes = {"weight": (columns, 3 * width), "bias": (3 * width,)}
    shapes |= {"state": (width, 3 * width), "state_bias": (3 * width,)}
    weights = {
        f"gru/{name}": draw.normal(0, 0.2, shape).astype(np.float32)
        for name, shape in shapes.items()
    }
    sequence = draw.normal(size=(2 * BLOCK + 1, 9, columns)).astype(np.float32)
    # Of all lengths, one event without a particle, and one block of short events.
    sequence[np.arange(9) >= np.arange(len(sequence))[:, None] % 9] = 0.0
    sequence[BLOCK : 2 * BLOCK, 5:] = 0.0

    def judge(compute: Any) -> tuple[Array, ...]:
        with jax.default_matmul_precision("highest"):
            states = np.asarray(jax.jit(compute)(weights, sequence))
        changes = jax.jit(jax.grad(lambda values: (compute(values, sequence) ** 2).sum()))(weights)
        return states, *(np.asarray(changes[name]) for name in sorted(changes))

    def difference(value: Array, expected: Array) -> float:
        return float(np.abs(value - expected).max() / np.abs(expected).max())

    try:
        # In another thread: this one may be in the middle of compiling a function.
        with ThreadPoolExecutor(1) as pool:
            pairs = zip(*pool.map(judge, (by_kernel, by_scan)), strict=True)
        of_states, *of_changes = (difference(*pair) for pair in pairs)
    except Exception as error:  # whatever a compiler of another version raises
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    else:
        # Factors of products have ten bits in a training.
        if of_states < 1e-4 and max(of_changes) < 0.03:
            return None
        reason = f"its states differ by {of_states:.1g}, its gradients by {max(of_changes):.1g}"
    warnings.warn(f"the GPU kernel is not used, which is slower: {reason}", stacklevel=2)
    return reason


def by_kernel(weights: Weights, sequence: Array) -> Array:
    """Return :func:`last_state` by the kernel; without a GPU it is interpreted, for tests."""
    import jax.numpy as jnp

    weights = {name: jnp.asarray(value, jnp.float32) for name, value in weights.items()}
    sequence = jnp.asarray(sequence, jnp.float32)
    count, _, columns = sequence.shape
    width = weights["gru/state"].shape[0]
    is_particle = jnp.any(sequence != 0.0, axis=-1)
    # Sides of matrices are powers of two, 16 at least, and blocks of events are whole. A
    # column of ones takes the biases of the input into its product.
    wide, rows = (max(16, 1 << (size - 1).bit_length()) for size in (width, columns + 1))
    ones = is_particle[:, :, None].astype(sequence.dtype)
    particles = jnp.concatenate([sequence, ones], axis=-1)
    padding = ((0, -count % BLOCK), (0, 0), (0, rows - columns - 1))
    particles = jnp.swapaxes(jnp.pad(particles, padding), 0, 1)
    is_there = jnp.pad(is_particle, padding[:2]).T.astype(jnp.int32)
    state_bias = weights["gru/state_bias"]
    # Those of reset and update add to the biases of the input.
    added = jnp.concatenate([state_bias[: 2 * width], jnp.zeros(width)])
    from_input = jnp.concatenate([weights["gru/weight"], (weights["gru/bias"] + added)[None]])

    def gates(matrix: Array, height: int) -> Array:
        """Return a matrix for each gate, filled up with zeros: ``(3, height, wide)``."""
        parts = jnp.stack(jnp.split(matrix, 3, axis=-1))
        return jnp.pad(parts, ((0, 0), (0, height - parts.shape[1]), (0, wide - parts.shape[2])))

    state = _kernels()(
        particles,
        is_there,
        gates(from_input, rows),
        gates(weights["gru/state"], wide),
        jnp.pad(state_bias[2 * width :], (0, wide - width)),
    )
    return state[:count, :width]


def _dot(left_side: Array, right_side: Array) -> Array:
    import jax
    import jax.numpy as jnp

    return jax.lax.dot_general(
        left_side, right_side, (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32
    )


def _sigmoid(values: Array) -> Array:
    import jax.numpy as jnp

    return 1.0 / (1.0 + jnp.exp(-values))


def _tanh(values: Array) -> Array:
    return 2.0 * _sigmoid(2.0 * values) - 1.0


def _gates(particle: Array, state: Array, weights: tuple[Array, ...]) -> tuple[Array, ...]:
    """Return reset, update, the new state, and what the old one gives to it."""
    (reset_in, update_in, new_in), (reset_of, update_of, new_of), bias = weights
    from_state = _dot(state, new_of) + bias[None, :]
    reset = _sigmoid(_dot(particle, reset_in) + _dot(state, reset_of))
    update = _sigmoid(_dot(particle, update_in) + _dot(state, update_of))
    return reset, update, _tanh(_dot(particle, new_in) + reset * from_state), from_state


def _launch(kernel: Any, shapes: Any, *arrays: Array) -> Any:
    """Run a kernel over blocks of events; interpreted where there is no GPU."""
    import jax
    from jax.experimental import pallas as pl

    is_gpu = jax.default_backend() == "gpu"
    options: dict[str, Any] = {"interpret": True}
    if is_gpu:
        from jax.experimental.pallas import triton

        options = {"compiler_params": triton.CompilerParams(num_warps=_WARPS, num_stages=1)}
    blocks = arrays[0].shape[1] // BLOCK
    return pl.pallas_call(kernel, out_shape=shapes, grid=(blocks,), **options)(*arrays)


@cache
def _kernels() -> Any:
    """Return the function of both kernels: of particles ``(length, n, rows)``, which of
    them are there ``(length, n)``, the weights of the input ``(3, rows, wide)`` and of
    the state ``(3, wide, wide)``, and the bias of the new state; it returns ``(n, wide)``.
    """
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl

    def read(from_input: Any, of_state: Any, bias: Any) -> tuple[Array, ...]:
        return (
            tuple(from_input[gate] for gate in range(3)),
            tuple(of_state[gate] for gate in range(3)),
            bias[...],
        )

    def forward_kernel(particles: Any, is_there: Any, steps: Any, *more: Any) -> None:
        *weight_refs, states, last = more
        events = pl.ds(pl.program_id(0) * BLOCK, BLOCK)
        weights = read(*weight_refs)

        def step(number: Array, state: Array) -> Array:
            states[number, events, :] = state
            _, update, new, _ = _gates(particles[number, events, :], state, weights)
            is_real = (is_there[number, events] > 0)[:, None]
            return jnp.where(is_real, (1.0 - update) * new + update * state, state)

        start = jnp.zeros((BLOCK, last.shape[1]), jnp.float32)

        def leave_empty(number: Array, state: Array) -> Array:
            states[number, events, :] = start
            return state

        count = steps[pl.program_id(0)]
        state = jax.lax.fori_loop(0, count, step, start)
        last[events, :] = jax.lax.fori_loop(count, len(states), leave_empty, state)

    def backward_kernel(particles: Any, is_there: Any, steps: Any, *more: Any) -> None:
        *weight_refs, transposed, states, of_last, of_reset, of_update, of_new, of_state = more
        events = pl.ds(pl.program_id(0) * BLOCK, BLOCK)
        weights = read(*weight_refs)
        back = tuple(transposed[gate] for gate in range(3))
        count = steps[pl.program_id(0)]

        def step(done: Array, change: Array) -> Array:
            number = count - 1 - done
            state = states[number, events, :]
            reset, update, new, from_state = _gates(particles[number, events, :], state, weights)
            is_real = (is_there[number, events] > 0)[:, None]
            in_step = jnp.where(is_real, change, 0.0)
            d_new = in_step * (1.0 - update) * (1.0 - new * new)
            d_update = in_step * (state - new) * update * (1.0 - update)
            d_reset = d_new * from_state * reset * (1.0 - reset)
            d_state = d_new * reset
            for target, value in (
                (of_reset, d_reset),
                (of_update, d_update),
                (of_new, d_new),
                (of_state, d_state),
            ):
                target[number, events, :] = value
            before = in_step * update + _dot(d_reset, back[0])
            before += _dot(d_update, back[1]) + _dot(d_state, back[2])
            return jnp.where(is_real, before, change)

        def leave_empty(number: Array, zeros: Array) -> Array:
            for target in (of_reset, of_update, of_new, of_state):
                target[number, events, :] = zeros
            return zeros

        change = jax.lax.fori_loop(0, count, step, of_last[events, :])
        jax.lax.fori_loop(count, len(states), leave_empty, jnp.zeros_like(change))

    def run_forward(*arrays: Array) -> Array:
        return forward(*arrays)[0]

    def forward(
        particles: Array, is_there: Array, from_input: Array, of_state: Array, bias: Array
    ) -> tuple[Array, tuple[Array, ...]]:
        length, count, _ = particles.shape
        wide = of_state.shape[-1]
        # A block of events ends behind the last particle of its longest one.
        ends = jnp.where(is_there > 0, jnp.arange(1, length + 1)[:, None], 0).max(axis=0)
        steps = ends.reshape(-1, BLOCK).max(axis=1).astype(jnp.int32)
        shapes = (
            jax.ShapeDtypeStruct((length, count, wide), jnp.float32),
            jax.ShapeDtypeStruct((count, wide), jnp.float32),
        )
        arrays = (particles, is_there, steps, from_input, of_state, bias)
        states, last = _launch(forward_kernel, shapes, *arrays)
        return last, (*arrays, states)

    def backward(stored: tuple[Array, ...], of_last: Array) -> tuple[Any, ...]:
        *arrays, states = stored
        particles, of_state = arrays[0], arrays[4]
        transposed = jnp.swapaxes(of_state, 1, 2)
        shapes = (jax.ShapeDtypeStruct(states.shape, jnp.float32),) * 4
        *of_gates, of_from_state = _launch(
            backward_kernel, shapes, *arrays, transposed, states, of_last
        )
        of_inputs = jnp.stack([jnp.einsum("tbf,tbh->fh", particles, d) for d in of_gates])
        by_state = (*of_gates[:2], of_from_state)
        of_states = jnp.stack([jnp.einsum("tbk,tbh->kh", states, d) for d in by_state])
        return None, None, of_inputs, of_states, of_from_state.sum((0, 1))

    run = jax.custom_vjp(run_forward)
    run.defvjp(forward, backward)
    return run
