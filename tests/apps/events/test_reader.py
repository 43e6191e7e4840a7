"""Batches for training scripts, and the adapter for TensorFlow by a fake of it."""

from __future__ import annotations

import random
import shutil
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cmsspark.apps.events import network_data
from cmsspark.apps.events.network_data import SampleReader, tensorflow_dataset, torch_dataset
from cmsspark.apps.events.root_files import event_groups
from cmsspark.base.errors import DataError, InputMissing, UsageError
from tests.apps.events.samples import write_sample


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sample(tmp_path_factory.mktemp("sample"), 1_000) / "train"


def rows(reader: SampleReader, epoch: int = 0) -> list[bytes]:
    return [row.tobytes() for batch in reader.epoch(epoch) for row in batch["hlf"]]


def test_workers_read_each_event_once_in_an_order_by_seed_and_epoch(train: Path) -> None:
    everything = rows(SampleReader(train, 64))
    assert len(everything) == len(set(everything)) == 1_000
    shares = [rows(SampleReader(train, 64, rank=rank, workers=3)) for rank in range(3)]
    assert sorted(row for share in shares for row in share) == sorted(everything)
    assert sorted(map(len, shares)) == [333, 333, 334]
    assert rows(SampleReader(train, 64)) == everything != rows(SampleReader(train, 64), 1)
    assert rows(SampleReader(train, 64, seed=1)) != everything
    sizes = [len(batch["label"]) for batch in SampleReader(train, 64).epoch()]
    assert set(sizes[:-1]) == {64} and sizes[-1] == 1_000 % 64


def test_features_are_scaled_and_the_launchers_variables_say_who_reads(
    train: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CMSSPARK_TRAIN_RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    batches = list(SampleReader(train).epoch())
    assert sum(len(batch["label"]) for batch in batches) == 500
    assert all(batch["hlf"].min() >= 0 and batch["hlf"].max() <= 1 for batch in batches)
    assert all((batch["weight"] == 1).all() for batch in batches)


def test_what_cannot_be_read_is_refused(train: Path, tmp_path: Path) -> None:
    with pytest.raises(InputMissing):
        SampleReader(tmp_path)
    with pytest.raises(UsageError):
        SampleReader(train, rank=2, workers=2)
    with pytest.raises(DataError, match="no matrix of particles"):
        next(SampleReader(train, low_level=True).epoch())


@pytest.mark.parametrize("where", ["rows", "footer"])
def test_a_sample_with_a_flipped_bit_is_refused_by_name_or_read_as_it_is(
    where: str, train: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "train"
    shutil.copytree(train.parent, tmp_path, dirs_exist_ok=True)
    part = sorted(copy.glob("part-*.parquet"))[0]
    content, numbers, refused = part.read_bytes(), random.Random(where), 0
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    first, last = (4, footer) if where == "rows" else (footer, len(content))
    for _ in range(40):
        offset = numbers.randrange(first, last)
        flipped = bytes([content[offset] ^ 1 << numbers.randrange(8)])
        part.write_bytes(content[:offset] + flipped + content[offset + 1 :])
        try:
            rows(SampleReader(copy, 64))
        except DataError as error:
            refused += 1
            assert str(part) in str(error) or str(copy) in str(error)
    assert refused


def test_workers_have_equal_numbers_of_batches_and_none_is_larger(train: Path) -> None:
    for workers, batch in ((2, 100), (3, 167), (7, 143), (8, 125), (3, 1), (999, 2)):
        sizes = [
            [
                len(labels)
                for labels in _labels(SampleReader(train, batch, False, 0, rank, workers))
            ]
            for rank in range(workers)
        ]
        assert len({len(batches) for batches in sizes}) == 1, (workers, batch)
        assert sum(map(sum, sizes)) == 1_000
        # Only 1 cannot be: some worker has an event more.
        assert max(map(max, sizes)) <= max(batch, 2)
    with pytest.raises(UsageError, match="each worker needs an event"):
        SampleReader(train, rank=0, workers=1_001).edges()


def _labels(reader: SampleReader) -> list[Any]:
    return [batch["label"] for batch in reader.epoch()]


def test_processes_of_a_loader_share_row_groups_and_give_the_batches_of_one(
    train: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, read = SampleReader(train, 64), []
    whole = [batch["hlf"] for batch in reader.epoch(3)]

    def noted(part: str, *arguments: Any, **options: Any) -> Any:
        read.append((part, options["number"]))
        return event_groups(part, *arguments, **options)

    monkeypatch.setattr(network_data, "event_groups", noted)
    shares = [[batch["hlf"] for batch in reader.epoch(3, i, 4)] for i in range(4)]
    assert all(
        np.array_equal(one, other)
        for one, other in zip((array for share in shares for array in share), whole, strict=True)
    )
    # Eight row groups, three of which lie between the parts of two processes at most.
    assert len(set(read)) == 8 and len(read) <= 11


def test_plain_torchrun_says_who_reads(train: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert SampleReader(train).place == 2


def test_pytorch_that_is_not_installed_is_named(
    train: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UsageError, match="needs PyTorch"):
        torch_dataset(SampleReader(train))


def test_tensorflow_gets_features_labels_and_weights(
    train: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="needs TensorFlow"):
        tensorflow_dataset(SampleReader(train))
    given: dict[str, Any] = {}

    def from_generator(generator: Any, output_signature: Any) -> Any:
        given.update(signature=output_signature)
        return generator

    tensorflow = ModuleType("tensorflow")
    attributes = {
        "float32": "f4",
        "int64": "i8",
        "TensorSpec": lambda shape, kind: (shape, kind),
        "data": SimpleNamespace(Dataset=SimpleNamespace(from_generator=from_generator)),
    }
    vars(tensorflow).update(attributes)
    monkeypatch.setitem(sys.modules, "tensorflow", tensorflow)
    generator = tensorflow_dataset(SampleReader(train, 100))
    assert given["signature"] == ({"hlf": ((None, 14), "f4")}, ((None,), "i8"), ((None,), "f4"))
    features, label, weight = next(generator())
    assert (
        features["hlf"].shape == (100, 14)
        and label.dtype == np.int64
        and weight.dtype == np.float32
    )
