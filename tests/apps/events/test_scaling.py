"""Scaling that survives tails and placeholders: on lognormal features, with −999 for what
is not known, the default ``hlf`` is as good as boosted trees.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from cmsspark.apps.events import networks
from cmsspark.apps.events.cli import export_onnx
from cmsspark.apps.events.evaluation import evaluate, write_result
from cmsspark.apps.events.layout import EventLayout
from cmsspark.apps.events.network_training import Training, train
from cmsspark.apps.events.root_files import PartWriter, read_events
from cmsspark.apps.events.scalers import Curve, Moments, Scalers, find_sentinel
from cmsspark.apps.events.train import PARAMETERS, fit_xgboost
from cmsspark.apps.events.train_script import command
from cmsspark.base.arrays import Array
from cmsspark.base.errors import DataError

LAYOUT = EventLayout(
    (("background", "Background"), ("signal", "Signal")),
    tuple((f"x{number}", "") for number in range(10)),
)


def draw_events(count: int, sigma: float, sentinels: bool, seed: int) -> tuple[Array, Array]:
    """Lognormal features that differ between the classes in mean, width and correlation."""
    draw = np.random.default_rng(seed)
    label = draw.integers(0, 2, count).astype(np.int8)
    normal = draw.normal(size=(count, 10))
    normal[:, :4] += 0.35 * label[:, None]
    normal[:, 4] *= 1 + 0.35 * label
    normal[:, 6] = (0.7 * label - 0.35) * normal[:, 5] + 0.94 * normal[:, 6]
    values = np.exp(sigma * normal)
    if sentinels:
        # Also that a value is missing tells something of the class.
        shares = 0.1 + 0.1 * label[:, None] * (np.arange(10) < 3)
        values[draw.random((count, 10)) < shares] = -999.0
    return values.astype(np.float32), label


def write_sample(folder: Path, hlf: Array, label: Array, layout: EventLayout = LAYOUT) -> Path:
    """A sample as one was written before samples had curves."""
    moments = Moments.empty(layout)
    moments.add(hlf, None)
    (folder / "train").mkdir(parents=True)
    hashes = np.random.default_rng(5).integers(0, 2**63, len(label)).astype(np.uint64)
    with PartWriter(str(folder / "train"), 0, layout.schema(origin=False)) as writer:
        ones = np.ones(len(label))
        writer.write({"hlf": hlf, "label": label, "event_hash": hashes, "weight": ones})
    scalers = moments.scalers(low_level=False).as_dict()
    (folder / "scalers.json").write_text(json.dumps(scalers))
    (folder / "schema.json").write_text(json.dumps(layout.document(origin=False)))
    return folder


def regression(hlf: Array, label: Array, judged: Array) -> Array:
    """Scores of a logistic regression on standardised features, by Newton's method."""
    mean, deviation = hlf.mean(axis=0), hlf.std(axis=0)
    columns, others = (
        np.column_stack([np.ones(len(rows)), (rows - mean) / deviation]).astype(np.float64)
        for rows in (hlf, judged)
    )
    weights = np.zeros(columns.shape[1])
    for _ in range(20):
        scores = 1 / (1 + np.exp(-np.clip(columns @ weights, -30, 30)))
        curvature = (columns * (scores * (1 - scores))[:, None]).T @ columns
        weights += np.linalg.solve(
            curvature + 1e-3 * np.eye(len(weights)), columns.T @ (label - scores)
        )
    signal = 1 / (1 + np.exp(-np.clip(others @ weights, -30, 30)))
    return np.column_stack([1 - signal, signal])


@pytest.mark.parametrize(
    ("count", "sigma", "sentinels"),
    [
        (12_000, 0.5, True),
        (12_000, 2.0, False),
        (12_000, 2.0, True),
        (2_000, 1.0, False),
        (2_000, 1.0, True),
    ],
)
def test_the_default_network_is_as_good_as_boosting_on_tails_and_placeholders(
    count: int, sigma: float, sentinels: bool, tmp_path: Path
) -> None:
    hlf, label = draw_events(count, sigma, sentinels, 1)
    sample = write_sample(tmp_path / "sample", hlf, label)
    # As docs/training.md starts it, but for the output.
    ended = CliRunner().invoke(command, [str(sample), "--output", str(tmp_path)])
    assert ended.exit_code == 0, ended.output
    network = networks.load(tmp_path / "model")
    trees, _ = fit_xgboost(
        read_events(sample / "train"), Scalers.load(sample), PARAMETERS["xgboost"], 0, 1
    )
    judged, truth = draw_events(20_000, sigma, sentinels, 2)
    areas = {
        name: evaluate(truth, scores, LAYOUT.classes).auc
        for name, scores in (
            ("hlf", network.predict(judged)),
            ("xgboost", trees.predict(judged)),
            ("regression", regression(hlf, label, judged)),
        )
    }
    assert areas["hlf"] > areas["xgboost"] - 0.01, areas
    assert areas["hlf"] > areas["regression"], areas


@pytest.mark.parametrize("count", [600, 2_000, 26_000])
def test_where_a_regression_is_the_best_model_the_network_is_none_worse(
    count: int, tmp_path: Path
) -> None:
    draw = np.random.default_rng(3)

    def normal_events(size: int) -> tuple[Array, Array]:
        label = draw.integers(0, 2, size).astype(np.int8)
        return (draw.normal(size=(size, 10)) + 0.25 * label[:, None]).astype(np.float32), label

    (hlf, label), (judged, truth) = normal_events(count), normal_events(20_000)
    sample = write_sample(tmp_path / "sample", hlf, label)
    network = train(sample, tmp_path, Training("hlf"))
    areas = [
        evaluate(truth, scores, LAYOUT.classes).auc
        for scores in (network.predict(judged), regression(hlf, label, judged))
    ]
    assert areas[0] > areas[1] - 0.003, areas


def test_few_events_with_tied_values_are_judged_as_well_as_by_a_regression(
    tmp_path: Path,
) -> None:
    draw = np.random.default_rng(4)

    def tied_events(size: int) -> tuple[Array, Array]:
        hlf = draw.integers(0, 4, (size, 6)).astype(np.float32)
        signal = 1 / (1 + np.exp(0.3 - hlf[:, :3] @ [0.35, -0.3, 0.25]))
        return hlf, (draw.random(size) < signal).astype(np.int8)

    (hlf, label), (judged, truth) = tied_events(800), tied_events(20_000)
    layout = EventLayout(LAYOUT.classes, LAYOUT.features[:6])
    network = train(
        write_sample(tmp_path / "sample", hlf, label, layout), tmp_path, Training("hlf")
    )
    areas = [
        evaluate(truth, scores, LAYOUT.classes).auc
        for scores in (network.predict(judged), regression(hlf, label, judged))
    ]
    # Quantiles of tied values would lose 0.004.
    assert areas[0] > areas[1] - 0.001, areas


@pytest.mark.parametrize("classes", [2, 3, 6, 7])
def test_a_network_begins_with_the_scores_of_a_regression(classes: int) -> None:
    draw = np.random.default_rng(3)
    inputs = draw.normal(size=(400, 9)).astype(np.float32)
    label = (inputs[:, :3].sum(axis=1) + draw.normal(size=400)).round().astype(int) % classes
    layout = EventLayout(tuple((f"c{i}", "") for i in range(classes)), LAYOUT.features)
    coefficients = networks.fit_regression(inputs, label, np.ones(400), classes)
    plain = networks.initial_weights("hlf", 0, layout, 9)
    weights = networks.begin_with(plain, coefficients)
    scores = np.asarray(networks.logits("hlf", weights, inputs, np.zeros((400, 1, 0))))
    expected = np.column_stack([inputs @ coefficients[:-1] + coefficients[-1], np.zeros(400)])
    if classes == 7:
        # Ten units are too few.
        assert weights is plain
    else:
        assert scores == pytest.approx(expected, abs=1e-4)
    # At the minimum residuals are orthogonal to what is read, but for the ridge.
    shares = np.exp(expected) / np.exp(expected).sum(axis=1, keepdims=True)
    slope = inputs.T @ (shares - np.eye(classes)[label])[:, :-1] + coefficients[:-1]
    assert np.abs(slope).max() < 1e-2


def stored_network(folder: Path) -> networks.Network:
    hlf, label = draw_events(3_000, 2.0, True, 1)
    hlf[:, 9] = 7.0  # a constant feature
    scalers = Scalers.load(write_sample(folder, hlf, label)).with_curves(hlf)
    weights = networks.initial_weights("hlf", 3, LAYOUT, scalers.input_count)
    network = networks.Network("hlf", weights, scalers, {}, 0, LAYOUT)
    network.save(folder / "model")
    return network


def test_curves_and_placeholders_travel_with_the_model_and_into_onnx(tmp_path: Path) -> None:
    from onnx.reference import ReferenceEvaluator

    network = stored_network(tmp_path)
    assert network.scalers.input_count == 10 + 9
    judged, _ = draw_events(500, 2.5, True, 2)
    scores = networks.load(tmp_path / "model").predict(judged)
    assert np.array_equal(scores, network.predict(judged))
    export_onnx(tmp_path / "model", tmp_path / "model.onnx")
    theirs = ReferenceEvaluator(str(tmp_path / "model.onnx")).run(None, {"hlf": judged})[0]
    assert theirs == pytest.approx(scores, abs=1e-4)


def test_the_card_names_each_placeholder_with_its_share(tmp_path: Path) -> None:
    network = stored_network(tmp_path)
    judged, label = draw_events(500, 2.0, True, 2)
    write_result(tmp_path / "model", evaluate(label, network.predict(judged), LAYOUT.classes), {})
    card = (tmp_path / "model/model_card.md").read_text()
    line = next(line for line in card.splitlines() if line.startswith("| not known |"))
    assert "x0 -999 (1" in line and "x8 -999 (" in line and "x9" not in line
    assert "| scaled by quantiles | x0, x1, x2, x3, x4, x5, x6, x7, x8 |" in card
    assert "| scaled by nothing, as constant | x9 |" in card


@pytest.mark.parametrize(
    ("values", "sentinel"),
    [
        ([-999.0] * 9 + list(range(500)), -999.0),
        ([-1.0] * 9 + [number / 500 for number in range(500)], -1.0),
        ([9999.0] * 9 + list(range(500)), 9999.0),
        # Counts, charges, flags, a few large values, and zeros of an isolation have none.
        ([0] * 200 + [1] * 150 + [2] * 90 + [3] * 40 + [4] * 12, None),
        ([-1] * 200 + [1] * 150, None),
        ([0] * 200 + [1] * 150, None),
        ([float(number) for number in range(500)] + [9999.0], None),
        ([0.0] * 300 + [number / 50 for number in range(1, 500)], None),
    ],
)
def test_a_placeholder_is_an_extreme_value_of_many_events_apart_from_the_others(
    values: list[float], sentinel: float | None
) -> None:
    assert find_sentinel(np.array(values)) == sentinel


def test_a_curve_gives_any_tail_the_width_of_a_normal_distribution() -> None:
    values = np.exp(3 * np.random.default_rng(0).normal(size=20_000))
    curve = Curve.fit(values)
    scaled = curve.scale(values)
    assert abs(scaled.mean()) < 1e-9 and scaled.std() == pytest.approx(1)
    assert np.abs(scaled).max() < 4
    assert (np.diff(scaled[np.argsort(values)]) >= 0).all()
    assert Curve.fit(np.full(10, 3.0)).scale(np.array([3.0, 9.0])).tolist() == [0, 0]
    assert np.array_equal(Curve.from_dict(curve.as_dict()).scale(values), scaled)


def test_a_feature_without_tails_is_scaled_by_a_line_also_beyond_its_range() -> None:
    values = np.append(np.arange(8.0).repeat(20), [-999.0] * 10)
    curve = Curve.fit(values)
    assert curve.shape == "a line" and curve.sentinel == -999
    expected = (np.arange(-1, 11.0) - 3.5) / np.arange(8).std()
    assert curve.scale(np.arange(-1, 11.0)) == pytest.approx(expected)
    assert curve.scale(np.array([-999.0, 1e9])).tolist() == [0, 12]
    assert Curve.fit(np.random.default_rng(0).normal(size=500)).scale(np.array([99])) == 6
    # Counts of what is rare are a line, too; a tail is none.
    assert Curve.fit(np.random.default_rng(0).poisson(0.4, 9_000)).shape == "a line"
    assert Curve.fit(np.append(values, 800.0)).shape == "quantiles"


@pytest.mark.parametrize(
    "change", [{"knots": [2, 1]}, {"heights": [0]}, {"knots": []}, {"sentinel": "none"}]
)
def test_curves_that_cannot_be_are_refused(change: dict[str, Any], tmp_path: Path) -> None:
    hlf, label = draw_events(200, 1.0, False, 1)
    sample = write_sample(tmp_path, hlf, label)
    document = Scalers.load(sample).with_curves(hlf).as_dict()
    document["hlf"]["curves"][0] |= {"knots": [1, 2], "heights": [0, 1], **change}
    (sample / "scalers.json").write_text(json.dumps(document))
    with pytest.raises(DataError, match="these are not scalers"):
        Scalers.load(sample)
