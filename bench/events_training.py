"""Training throughput of two workers against one: ``python -m bench.events_training``
from the top of a checkout.

Networks train on synthetic numbers by processes of ``cmsspark lab train`` here, with
one and two workers by turns, each worker with one thread. Prints events a second,
without the first epoch, which compiles, and the ratio of medians.

``--device`` measures the inclusive network in this process instead, on the device that
JAX has: the documented loop, its compiled step alone, PyTorch's GRU of the same size where
PyTorch is installed, and the bound of dependent steps. It needs JAX, optax, NumPy and
pyarrow only.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from cmsspark.apps.events.layout import BATCH_ROWS, TOPOLOGY
from cmsspark.apps.events.root_files import PartWriter
from cmsspark.apps.events.scalers import Moments

SCRIPT = Path(__file__).resolve().parent.parent / "etc/training/train_events.py"
WORKERS = (1, 2)


def make_sample(folder: Path, events: int, particles: int) -> None:
    """A sample of random numbers; ``particles`` rows of each matrix are filled, without
    any there is no matrix.
    """
    layout = TOPOLOGY if particles else TOPOLOGY.without_matrix()
    moments = Moments.empty(layout)
    (folder / "train").mkdir(parents=True)
    schema = layout.schema(origin=False)

    def make_part(number: int) -> Moments:
        draw, of_part = np.random.default_rng(number), Moments.empty(layout)
        with PartWriter(str(folder / "train"), number, schema) as writer:
            for start in range(0, events // 8, BATCH_ROWS):
                count = min(BATCH_ROWS, events // 8 - start)
                label = draw.integers(0, 3, count).astype(np.int8)
                hlf = (
                    draw.normal(size=(count, layout.hlf_count)).astype(np.float32) + label[:, None]
                )
                columns: dict[str, Any] = {"hlf": hlf, "label": label, "weight": np.ones(count)}
                columns["event_hash"] = draw.integers(0, 2**63, count).astype(np.uint64)
                matrix = None
                if particles:
                    matrix = np.zeros((count, *layout.shape), np.float32)
                    size = (count, particles, matrix.shape[2])
                    matrix[:, :particles] = draw.standard_normal(size, np.float32)
                    # Events have half of the particles or more.
                    lengths = draw.integers(particles // 2, particles + 1, (count, 1))
                    matrix[np.arange(layout.particles)[None] >= lengths] = 0.0
                    columns["low_level"] = matrix.reshape(count, layout.matrix)
                of_part.add(hlf, matrix)
                writer.write(columns)
        return of_part

    with ThreadPoolExecutor() as pool:
        for of_part in pool.map(make_part, range(8)):
            moments.merge(of_part)
    scalers = moments.scalers(low_level=bool(particles)).as_dict()
    (folder / "scalers.json").write_text(json.dumps(scalers), encoding="utf-8")
    (folder / "schema.json").write_text(
        json.dumps(layout.document(origin=False)), encoding="utf-8"
    )


def throughput(run: Any, base: Path) -> float:
    """Events a second of all workers together: the median of the epochs behind the first."""
    from cmsspark.apps.training.launch import RunFolder, launch
    from cmsspark.apps.training.local_backend import LocalBackend

    folder = RunFolder.create(base, run)
    launch(run, LocalBackend(), folder, lambda line: None)
    log = (folder.output / "worker-0/training_log.jsonl").read_text(encoding="utf-8").splitlines()
    return statistics.median(json.loads(line)["events_per_second"] for line in log[1:])


#: Time of a step of the recurrence that waits for the one before, on an H200.
DEPENDENT_STEP_MICROSECONDS = 1.47


def seconds_of(step: Callable[[], Any], repeats: int) -> float:
    """Seconds of a call, behind three that compile and warm up; ``step`` returns an array."""
    for _ in range(3):
        step()
    began = time.perf_counter()
    last = [step() for _ in range(repeats)][-1]
    last.block_until_ready() if hasattr(last, "block_until_ready") else last.item()
    return (time.perf_counter() - began) / repeats


def our_step(batch: int, particles: int, repeats: int, last_state: Any) -> float:
    """Seconds of the compiled loss and gradients of the inclusive network, data on the
    device, where ``last_state`` computes the GRU.
    """
    import jax
    import optax

    from cmsspark.apps.events.networks import initial_weights, logits

    draw = np.random.default_rng(0)
    weights = jax.device_put(initial_weights("inclusive", 0))
    sequence = draw.normal(size=(batch, particles, len(TOPOLOGY.columns))).astype(np.float32)
    hlf = draw.normal(size=(batch, TOPOLOGY.hlf_count)).astype(np.float32)
    arrays = jax.device_put((hlf, sequence, draw.integers(0, 3, batch)))

    @jax.jit
    def step(weights: Any, hlf: Any, sequence: Any, label: Any) -> Any:
        def loss(weights: Any) -> Any:
            with patch("cmsspark.apps.events.gru.last_state", last_state):
                scores = logits("inclusive", weights, hlf, sequence)
            return optax.softmax_cross_entropy_with_integer_labels(scores, label).mean()

        changes = jax.grad(loss)(weights)
        return jax.tree.map(lambda weight, change: weight - 1e-3 * change, weights, changes)

    def call() -> Any:
        nonlocal weights
        weights = step(weights, *arrays)
        return weights["out/bias"]

    return seconds_of(call, repeats)


def torch_step(batch: int, particles: int, repeats: int) -> float | None:
    """Seconds of a step of PyTorch's GRU and a layer behind it; None without PyTorch."""
    try:
        import torch
    except ImportError:
        return None
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    gru = torch.nn.GRU(len(TOPOLOGY.columns), 50, batch_first=True).to(device)
    out = torch.nn.Linear(50, 3).to(device)
    optimizer = torch.optim.Adam([*gru.parameters(), *out.parameters()])
    sequence = torch.randn(batch, particles, len(TOPOLOGY.columns), device=device)
    label = torch.randint(0, 3, (batch,), device=device)

    def call() -> Any:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(out(gru(sequence)[1][0]), label)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return seconds_of(call, repeats)


def shown(seconds: Callable[[], float | None]) -> str:
    """A time in ms, or why there is none: one that fails must not end the others."""
    try:
        measured = seconds()
    except Exception as error:
        return f"failed: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return "not installed" if measured is None else f"{1000 * measured:.2f} ms"


def measure_loop(sample: Path, output: Path, batch: int) -> float:
    """Print the speed of each epoch of the documented loop, and return its mean step in
    the last one.
    """
    from cmsspark.apps.events.network_training import Training, train

    training, began = (
        Training("inclusive", epochs=3, batch=batch, patience=99),
        time.perf_counter(),
    )
    train(sample, output, training, log=lambda text: print(f"  {text}", flush=True))
    text = (output / "training_log.jsonl").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    first = time.perf_counter() - began - sum(line["seconds"] for line in lines[1:])
    for line in lines:
        rate = line["events_per_second"]
        step = f"{rate:>9,.0f} events/s, {1000 * batch / rate:>8.2f} ms a step"
        print(f"batch {batch:>5}, epoch {line['epoch']}, by the {line['gru']}: {step}")
    print(f"  with the input, which is made once, epoch 1 took {first:.1f} s")
    return float(batch / lines[-1]["events_per_second"])


def measure_device(events: int, particles: int, sizes: list[int], repeats: int) -> None:
    """Print the speed of the documented loop by batch size, and of what it consists of."""
    import jax

    from cmsspark.apps.events import gru

    print(f"{jax.devices()[0].device_kind}, JAX {jax.__version__}, {os.cpu_count()} cores")
    reason = gru.scan_reason(len(TOPOLOGY.columns))
    print("GRU by the kernel" if reason is None else f"GRU by the scan: {reason}", flush=True)
    ways = {"scan": gru.by_scan} if reason else {"kernel": gru.by_kernel, "scan": gru.by_scan}
    with tempfile.TemporaryDirectory(prefix="bench-training-") as name:
        sample = Path(name, "sample")
        make_sample(sample, events, particles)
        for batch in sizes:
            output = Path(name, f"output-{batch}")
            print(f"  loop: {shown(partial(measure_loop, sample, output, batch))}")
            for way, compute in ways.items():
                step = partial(our_step, batch, particles, repeats, compute)
                print(f"  compiled step alone, by the {way}: {shown(step)}")
            print(f"  PyTorch's GRU: {shown(partial(torch_step, batch, particles, repeats))}")
            bound = 2 * particles * DEPENDENT_STEP_MICROSECONDS / 1000
            print(f"  bound of dependent steps on an H200: {bound:.2f} ms", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--events",
        type=int,
        default=200_000,
        help="events without particles; with them a fiftieth; with --device all",
    )
    parser.add_argument(
        "--particles", type=int, default=128, help="of an event, for the inclusive network"
    )
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3, help="runs of each, the medians count")
    parser.add_argument("--device", action="store_true", help="this process and its device")
    parser.add_argument(
        "--batch", type=int, action="append", help="with --device; default 128, 1024, 4096"
    )
    arguments = parser.parse_args()
    if arguments.device:
        sizes = arguments.batch or [128, 1024, 4096]
        measure_device(arguments.events, arguments.particles, sizes, 10 * arguments.repeats)
        return
    from cmsspark.apps.training.script_check import TrainingRun

    print(
        f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}, {arguments.repeats} runs"
    )
    with tempfile.TemporaryDirectory(prefix="bench-training-") as name:
        for kind in ("hlf", "inclusive"):
            sample = Path(name, f"sample-{kind}")
            particles = 0 if kind == "hlf" else arguments.particles
            make_sample(sample, arguments.events // (50 if particles else 1), particles)
            script = (
                str(sample),
                "--model",
                kind,
                "--epochs",
                str(arguments.epochs),
                "--patience",
                "99",
            )
            run = TrainingRun("bench", SCRIPT, script)
            rates: dict[int, list[float]] = {workers: [] for workers in WORKERS}
            for number in range(arguments.repeats):
                for workers in WORKERS:
                    named = replace(run, name=f"bench-{kind}-{number}-{workers}", workers=workers)
                    rates[workers].append(throughput(named, Path(name, "training")))
            one, two = (statistics.median(rates[workers]) for workers in WORKERS)
            print(
                f"{kind:<10} 1 worker {one:>9,.0f} events/s   2 workers {two:>9,.0f} events/s   "
                f"ratio {two / one:.2f} (wanted: 1.6 where both have a core)"
            )


if __name__ == "__main__":
    main()
