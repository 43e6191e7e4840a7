"""Networks for other programs: ONNX gives the same probabilities, TensorBoard the
numbers of each round.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from cmsspark.apps.events import networks
from cmsspark.apps.events.cli import export_onnx
from cmsspark.apps.events.layout import TOPOLOGY
from cmsspark.apps.events.network_training import Training, train
from cmsspark.apps.events.scalers import Scalers
from cmsspark.apps.events.train_script import TensorBoardMetrics
from cmsspark.base.errors import UsageError
from tests.apps.events.samples import events, write_sample


def network(kind: str) -> networks.Network:
    """A network with drawn weights, and with biases, whose order matters."""
    draw = np.random.default_rng(1)
    start = networks.initial_weights(kind, 3)
    weights = {
        name: value + draw.normal(0, 0.1, value.shape).astype(np.float32)
        for name, value in start.items()
    }
    high = np.linspace(5, 50, 14)
    high[4] = -1.0  # a constant feature
    scalers = Scalers(np.full(14, -1.0), high, draw.normal(size=19), draw.uniform(0.5, 2, 19))
    return networks.Network(kind, weights, scalers, {}, 0, TOPOLOGY)


@pytest.mark.parametrize("kind", ["hlf", "sequence", "inclusive"])
def test_onnx_gives_the_probabilities_of_the_network(kind: str, tmp_path: Path) -> None:
    from onnx.reference import ReferenceEvaluator

    ours = network(kind)
    ours.save(tmp_path / "model")
    export_onnx(tmp_path / "model", tmp_path / "out" / "model.onnx")
    hlf, low_level, _, _ = events(6, 2, particles=12)
    assert low_level is not None
    inputs = {"hlf": hlf} if kind != "sequence" else {}
    if kind != "hlf":
        sequence = networks.make_sequences(ours.scalers, low_level, TOPOLOGY)
        inputs |= {
            "sequence": sequence,
            "particles": sequence.any(axis=-1).sum(axis=1).astype(np.int32),
        }
    theirs = ReferenceEvaluator(str(tmp_path / "out/model.onnx"))
    if kind != "hlf":
        # The reference evaluator of onnx ignores lengths: all events have as many particles here.
        count = int(inputs["particles"].min())
        low_level[:, count:] = 0
        inputs["sequence"] = networks.make_sequences(ours.scalers, low_level, TOPOLOGY)[:, :count]
        inputs["particles"] = np.full(6, count, np.int32)
    (probabilities,) = theirs.run(None, inputs)
    assert probabilities == pytest.approx(ours.predict(hlf, low_level), abs=2e-5)


def test_trees_are_no_onnx(tmp_path: Path) -> None:
    (tmp_path / "model.json").write_text('{"format_version": 1, "kind": "forest"}')
    with pytest.raises(UsageError, match="not forest"):
        export_onnx(tmp_path, tmp_path / "x.onnx")


def test_tensorboard_gets_the_numbers_of_each_round(tmp_path: Path) -> None:
    sample = write_sample(tmp_path / "sample", 2_000)
    metrics = TensorBoardMetrics(tmp_path / "board")
    train(sample, tmp_path, Training("hlf", epochs=3), metrics=metrics)
    metrics.close()
    (file,) = (tmp_path / "board").iterdir()
    content, records = file.read_bytes(), 0
    while content:
        (size,) = struct.unpack("<Q", content[:8])
        content, records = content[16 + size :], records + 1
    text = file.read_bytes()
    # A first record with the version, then one for each number and round.
    rounds = len((tmp_path / "training_log.jsonl").read_text().splitlines())
    assert all(name in text for name in (b"validation_loss", b"learning_rate"))
    assert rounds and records == 1 + rounds * 6
