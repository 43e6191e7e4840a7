"""Training throughput of two workers against one: ``python -m bench.events_training``
from the top of a checkout.

Networks train on synthetic numbers by processes of ``cmsspark lab train`` here, with
one and two workers by turns, each worker with one thread. Prints events a second,
without the first epoch, which compiles, and the ratio of medians.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from cmsspark.apps.events.layout import BATCH_ROWS
from cmsspark.apps.events.root_files import PartWriter
from cmsspark.apps.events.scalers import Moments
from cmsspark.apps.events.topology import TOPOLOGY
from cmsspark.apps.training.launch import RunFolder, launch
from cmsspark.apps.training.local_backend import LocalBackend
from cmsspark.apps.training.script_check import TrainingRun

SCRIPT = Path(__file__).resolve().parent.parent / "etc/training/train_events.py"
WORKERS = (1, 2)


def make_sample(folder: Path, events: int, particles: int) -> None:
    """A sample of random numbers; ``particles`` rows of each matrix are filled, without
    any there is no matrix.
    """
    layout = TOPOLOGY if particles else TOPOLOGY.without_matrix()
    draw, moments = np.random.default_rng(0), Moments.empty(layout)
    (folder / "train").mkdir(parents=True)
    schema = layout.schema(origin=False)
    for number in range(8):
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
                    matrix[:, :particles] = draw.normal(size=(count, particles, matrix.shape[2]))
                    columns["low_level"] = matrix.reshape(count, layout.matrix)
                moments.add(hlf, matrix)
                writer.write(columns)
    scalers = moments.scalers(low_level=bool(particles)).as_dict()
    (folder / "scalers.json").write_text(json.dumps(scalers), encoding="utf-8")
    (folder / "schema.json").write_text(
        json.dumps(layout.document(origin=False)), encoding="utf-8"
    )


def throughput(run: TrainingRun, base: Path) -> float:
    """Events a second of all workers together: the median of the epochs behind the first."""
    folder = RunFolder.create(base, run)
    launch(run, LocalBackend(), folder, lambda line: None)
    log = (folder.output / "worker-0/training_log.jsonl").read_text(encoding="utf-8").splitlines()
    return statistics.median(json.loads(line)["events_per_second"] for line in log[1:])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--events",
        type=int,
        default=200_000,
        help="events without particles; with them a fiftieth",
    )
    parser.add_argument(
        "--particles", type=int, default=128, help="of an event, for the inclusive network"
    )
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3, help="runs of each, the medians count")
    arguments = parser.parse_args()
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
