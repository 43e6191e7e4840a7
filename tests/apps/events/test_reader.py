"""Batches for training scripts, and the adapters for PyTorch and TensorFlow by fakes of these."""

from __future__ import annotations

import random
import shutil
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cmsspark.apps.events.network_data import SampleReader, tensorflow_dataset, torch_dataset
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


def test_pytorch_gets_tensors_of_one_epoch_after_another(
    train: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="needs PyTorch"):
        torch_dataset(SampleReader(train))
    torch, data = ModuleType("torch"), ModuleType("torch.utils.data")
    torch.from_numpy = lambda array: ("tensor", array)  # type: ignore[attr-defined]
    data.IterableDataset = type("IterableDataset", (), {})  # type: ignore[attr-defined]
    for name, module in (
        ("torch", torch),
        ("torch.utils", ModuleType("torch.utils")),
        ("torch.utils.data", data),
    ):
        monkeypatch.setitem(sys.modules, name, module)
    dataset = torch_dataset(SampleReader(train, 100))
    for epoch in range(2):
        kinds, arrays = zip(*(batch["hlf"] for batch in dataset), strict=True)
        assert set(kinds) == {"tensor"}
        assert [row.tobytes() for array in arrays for row in array] == rows(
            SampleReader(train, 100), epoch
        )


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
