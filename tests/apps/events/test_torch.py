"""The reader for PyTorch, in real DataLoaders and with DistributedDataParallel.

Collected only in an environment that has PyTorch, which no extra brings: it takes 5 GB,
or 200 MB for processors only (.github/workflows/ci.yml).
"""

from __future__ import annotations

import importlib
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cmsspark.apps.events.network_data import SampleReader, torch_dataset
from tests.apps.events.samples import write_sample

torch: Any = importlib.import_module("torch")

# On a host with fewer cores than workers.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
EVENTS = 1_025


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sample(tmp_path_factory.mktemp("sample"), EVENTS, parts=1) / "train"


def loader(reader: SampleReader, workers: int, **options: Any) -> Any:
    if workers:
        options.setdefault("multiprocessing_context", "fork")
    return torch.utils.data.DataLoader(
        torch_dataset(reader), batch_size=None, num_workers=workers, **options
    )


def events(batches: Any) -> list[bytes]:
    return [row.tobytes() for batch in batches for row in batch["hlf"].numpy()]


@pytest.mark.parametrize(
    ("workers", "persistent"), [(0, False), (1, False), (2, False), (2, True), (5, True)]
)
def test_each_event_is_given_once_an_epoch_and_each_epoch_has_another_order(
    workers: int, persistent: bool, train: Path
) -> None:
    batches = loader(SampleReader(train, 128), workers, persistent_workers=persistent)
    epochs = [events(batches) for _ in range(3)]
    assert len(batches) == 9
    for number, epoch in enumerate(epochs):
        assert len(epoch) == EVENTS
        expected = [
            row.tobytes()
            for batch in SampleReader(train, 128).epoch(number)
            for row in batch["hlf"]
        ]
        assert sorted(epoch) == sorted(expected)
        assert epoch == expected or workers > 1
    assert epochs[0] != epochs[1] != epochs[2]


def test_an_epoch_that_was_left_and_two_at_once_confuse_no_worker(train: Path) -> None:
    batches = loader(SampleReader(train, 64), 3)
    everything = sorted(events(batches))
    next(iter(batches))
    assert sorted(events(batches)) == everything
    first, second = iter(batches), iter(batches)
    pairs = list(zip(first, second, strict=True))
    assert sorted(events(pair[0] for pair in pairs)) == everything
    assert sorted(events(pair[1] for pair in pairs)) == everything


def test_processes_that_are_started_anew_read_as_forked_ones(train: Path) -> None:
    spawned = loader(SampleReader(train, 64), 2, multiprocessing_context="spawn")
    forked = loader(SampleReader(train, 64), 2)
    for _ in range(2):
        assert events(spawned) == events(forked)


def test_a_training_that_goes_on_names_its_epoch(train: Path) -> None:
    batches = loader(SampleReader(train, 64), 2)
    epochs = [events(batches) for _ in range(3)]
    again = loader(SampleReader(train, 64), 2)
    again.dataset.set_epoch(2)
    assert events(again) == epochs[2]


def _learn(rank: int, port: int, train: Path, output: Path) -> None:
    torch.distributed.init_process_group(
        "gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2
    )
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(14, 3))
    optimizer = torch.optim.Adam(model.parameters())
    seen: list[bytes] = []
    steps = 0
    # No join(): with unequal numbers of batches one rank would wait for the other.
    batches = loader(SampleReader(train, 128, rank=rank, workers=2), 2)
    for _ in range(2):
        for batch in batches:
            optimizer.zero_grad()
            losses = torch.nn.functional.cross_entropy(
                model(batch["hlf"]), batch["label"], reduction="none"
            )
            (losses * batch["weight"]).mean().backward()
            optimizer.step()
            seen += [row.tobytes() for row in batch["hlf"].numpy()]
            steps += 1
    torch.save((steps, seen, model.module.weight.detach()), output / f"{rank}.pt")
    torch.distributed.destroy_process_group()


def test_ranks_of_ddp_take_equally_many_steps_and_see_each_event_once(
    train: Path, tmp_path: Path
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(_learn, (port, train, tmp_path), nprocs=2)
    (steps, seen, weight), (other_steps, others, other_weight) = (
        torch.load(tmp_path / f"{rank}.pt") for rank in range(2)
    )
    # 513 events are five batches of 128, 512 would be four.
    assert steps == other_steps == 10
    assert len(seen) + len(others) == 2 * EVENTS
    assert len({*seen, *others}) == EVENTS
    assert torch.equal(weight, other_weight)


def test_the_example_learns_on_the_particles_of_a_sample(tmp_path: Path) -> None:
    sample = write_sample(tmp_path / "sample", 1_200, particles=12)
    example = Path(__file__).parents[3] / "etc/examples/training/particle_transformer.py"
    environ = {**os.environ, "CMSSPARK_TRAIN_OUTPUT": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, example, sample, "--epochs", "2", "--batch", "32", "--loaders", "1"],
        env=environ,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    losses = [float(text) for text in re.findall(r"loss ([\d.]+)", ended.stdout)]
    assert len(losses) == 2 and losses[1] < losses[0] < 1.2
    assert (tmp_path / "transformer.pt").exists()
