"""Judging models, trees as arrays, models in folders, and the commands on them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from cmsspark.apps.events import require_events, search
from cmsspark.apps.events.cli import command
from cmsspark.apps.events.evaluation import (
    evaluate,
    learning_curves,
    roc_curve,
    score_distribution,
    write_result,
)
from cmsspark.apps.events.jobs import KINDS
from cmsspark.apps.events.layout import ABOUT, TOPOLOGY, read_description
from cmsspark.apps.events.models import load
from cmsspark.apps.events.root_files import Events, PartWriter
from cmsspark.apps.events.runs import EventRequest, event_run
from cmsspark.apps.events.scalers import Scalers
from cmsspark.apps.events.score_files import ScorePartTask
from cmsspark.apps.events.train import fit_xgboost, parse_parameters
from cmsspark.base.errors import DataError, InputMissing, SettingsError, UsageError
from cmsspark.engines import session
from cmsspark.settings.settings import Settings
from tests.apps.events.events import HLF_COUNT, event_schema, write_schema

RNG = np.random.default_rng(5)
LABELS = np.arange(600) % 3
#: Classes that the first two features separate, mostly.
HLF = (RNG.normal(size=(600, HLF_COUNT)) + np.eye(3, HLF_COUNT)[LABELS] * 2.5).astype(np.float32)
EVENTS = Events(TOPOLOGY.without_matrix(), HLF, None, LABELS, np.ones(600))
SCALERS = Scalers(HLF.min(axis=0).astype(float), HLF.max(axis=0).astype(float))


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    folder = tmp_path / "sample"
    for part in ("train", "test"):
        (folder / part).mkdir(parents=True)
        with PartWriter(
            str(folder / part), 0, event_schema(low_level=False, origin=False)
        ) as writer:
            writer.write(
                {
                    "hlf": HLF,
                    "label": LABELS,
                    "event_hash": np.arange(600, dtype=np.uint64),
                    "weight": np.ones(600),
                }
            )
    scalers = Scalers(HLF.min(axis=0).astype(float), HLF.max(axis=0).astype(float))
    (folder / "scalers.json").write_text(json.dumps(scalers.as_dict()))
    write_schema(folder, low_level=False)
    return folder


def test_the_area_is_the_share_of_pairs_in_the_right_order() -> None:
    scores = np.round(RNG.random(80), 1)
    signal = RNG.random(80) < 0.4
    pairs = [(a > b) + 0.5 * (a == b) for a in scores[signal] for b in scores[~signal]]
    curve = roc_curve(signal, scores)
    assert curve.auc == pytest.approx(np.mean(pairs))
    assert (curve.false_positive[0], curve.true_positive[0]) == (0, 0)
    assert (curve.false_positive[-1], curve.true_positive[-1]) == (1, 1)
    assert len(roc_curve(RNG.random(50_000) < 0.5, RNG.random(50_000)).true_positive) <= 200


def test_a_judgement_by_hand() -> None:
    scores = np.array([[0.8, 0.1, 0.1], [0.3, 0.6, 0.1], [0.5, 0.1, 0.4], [0.6, 0.3, 0.1]])
    judged = evaluate(np.array([0, 1, 2, 1]), scores, TOPOLOGY.classes)
    assert judged.confusion.tolist() == [[1, 0, 0], [1, 1, 0], [1, 0, 0]]
    assert (judged.accuracy, judged.diagonal) == (0.5, pytest.approx((1 + 0.5 + 0) / 3))
    assert judged.log_loss == pytest.approx(-np.log([0.8, 0.6, 0.4, 0.3]).mean())
    assert judged.as_dict()["auc_by_class"]["qcd"] == 1 and judged.scores.sum() == 12
    # The mean of the scores, not of the middles of their bins.
    label = score_distribution(judged, 0).label
    assert label.endswith(
        "mean 0.80 of true QCD; mean 0.45 of true ttbar; mean 0.50 of true W+jets"
    )
    with pytest.raises(DataError, match="all classes") as raised:
        evaluate(np.array([0, 1]), scores[:2], TOPOLOGY.classes)
    assert raised.value.found == "1 qcd, 1 ttbar, 0 wjets"
    with pytest.raises(DataError, match="finite"):
        evaluate(np.array([0, 1, 2, 1]), np.where(scores == 0.8, np.nan, scores), TOPOLOGY.classes)


def test_a_forest_is_one_round_of_trees_in_xgboosts_own_file(sample: Path, tmp_path: Path) -> None:
    import xgboost

    parameters = parse_parameters("forest", ("trees=20", "depth=4"))
    model, _ = fit_xgboost(EVENTS, SCALERS, parameters, 3, 1, "forest")
    model.save(tmp_path, SCALERS, parameters, 3)
    booster = xgboost.Booster(model_file=str(tmp_path / "xgboost.ubj"))
    # A tree for each class.
    assert len(booster.get_dump()) == 20 * 3 and booster.num_boosted_rounds() == 1
    stored = load(tmp_path)
    scores = stored.predict(HLF, None)
    assert stored.kind == "forest" and np.array_equal(scores, model.predict(HLF))
    assert evaluate(LABELS, scores, TOPOLOGY.classes).auc > 0.95
    (tmp_path / "xgboost.ubj").write_bytes(b"no trees")
    with pytest.raises(DataError, match="cannot be read"):
        load(tmp_path)


def test_boosting_stops_where_it_no_longer_helps_and_a_seed_is_a_model(
    sample: Path, tmp_path: Path
) -> None:
    parameters = parse_parameters("xgboost", ("depth=3", "rate=0.5", "subsample=0.7"))
    model, history = fit_xgboost(EVENTS, SCALERS, parameters, 4, 1)
    assert model.rounds < len(history) < 300
    model.save(tmp_path / "model", SCALERS, parameters, 4)
    again, _ = fit_xgboost(EVENTS, SCALERS, parameters, 4, 1)
    other, _ = fit_xgboost(EVENTS, SCALERS, parameters, 5, 1)
    scores = load(tmp_path / "model").predict(HLF, None)
    assert np.array_equal(scores, again.predict(HLF)) and not np.array_equal(
        scores, other.predict(HLF)
    )
    assert evaluate(LABELS, scores, TOPOLOGY.classes).auc > 0.95


def test_the_loss_of_rounds_with_negative_weights_is_that_of_the_judgement() -> None:
    weights = np.where(np.arange(600) % 20 < 4, -1.0, 1.0)
    scalers = replace(SCALERS, mean_weights=np.full(3, weights.mean()))
    events = replace(EVENTS, weights=weights)
    model, history = fit_xgboost(events, scalers, parse_parameters("xgboost", ("trees=20",)), 0, 1)
    learned = slice(0, 500)
    judged = evaluate(
        LABELS[learned], model.predict(HLF[learned]), TOPOLOGY.classes, weights[learned]
    )
    assert history[model.rounds - 1]["train_loss"] == pytest.approx(judged.log_loss, rel=0.1)


def test_each_task_has_the_model_that_stands_in_the_folder(tmp_path: Path) -> None:
    """Python workers of Spark live on: a model may be trained again in its folder."""
    scores = []
    for trees in ("trees=2", "trees=20"):
        parameters = parse_parameters("xgboost", (trees,))
        model, _ = fit_xgboost(EVENTS, SCALERS, parameters, 0, 1)
        model.save(tmp_path, SCALERS, parameters, 0)
        task = ScorePartTask(str(tmp_path))
        assert task.loaded is task.loaded
        scores.append(task.loaded.predict(HLF, None))
    assert not np.array_equal(*scores)


@pytest.mark.parametrize("text", ["depth", "depth=x", "deepness=3", "depth=0", "rate=-1"])
def test_parameters_are_known_numbers_above_zero(text: str) -> None:
    with pytest.raises(UsageError):
        parse_parameters("xgboost", (text,))


def test_a_folder_without_a_model_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputMissing, match="the model has no folder"):
        read_description(tmp_path)
    for content, found in (
        ("{", "damaged"),
        ('{"format_version": 9, "kind": "forest"}', "format 9"),
        ("[]", "format"),
    ):
        (tmp_path / "model.json").write_text(content)
        with pytest.raises(DataError, match=found):
            read_description(tmp_path)


def test_trials_are_the_same_for_the_same_seed_and_inside_their_ranges() -> None:
    drawn = search.draw_trials(search.SearchOptions(trials=40, seed=2))
    assert drawn == search.draw_trials(search.SearchOptions(trials=40, seed=2))
    assert drawn[:10] == search.draw_trials(search.SearchOptions(trials=10, seed=2))
    assert drawn != search.draw_trials(search.SearchOptions(trials=40, seed=3))
    for name, (low, high, _) in search.RANGES.items():
        assert (
            all(low <= one[name] <= high for one in drawn)
            and len({one[name] for one in drawn}) > 5
        )
    grid = search.draw_trials(search.SearchOptions("grid", trials=1_000))
    assert len(grid) == len({json.dumps(one) for one in grid}) == 60


def test_evaluate_writes_the_result_beside_a_model(sample: Path, tmp_path: Path) -> None:
    parameters = parse_parameters("xgboost", ("trees=20",))
    model, _ = fit_xgboost(EVENTS, SCALERS, parameters, 0, 1)
    model.save(tmp_path / "model", SCALERS, parameters, 0)
    ended = CliRunner().invoke(
        command, ["evaluate", "--model", f"{tmp_path}/model", "--sample", str(sample)]
    )
    assert ended.exit_code == 0, ended.output
    assert "true class" in ended.stdout and "W+jets" in ended.stdout
    metrics = json.loads((tmp_path / "model/metrics.json").read_text())
    assert metrics["events"] == 600 and 0.95 < metrics["auc"] <= 1
    page = (tmp_path / "model/report.html").read_text()
    assert page.count("<svg") == 5 and "ROC curves" in page and "Confusion matrix" in page
    assert f"{metrics['auc']:.4f}" in (tmp_path / "model/model_card.md").read_text()
    arguments = [
        "evaluate",
        "--model",
        f"{tmp_path}/model",
        "--sample",
        str(sample),
        "--part",
        "train",
    ]
    assert CliRunner().invoke(command, arguments).exit_code == 0
    card = (tmp_path / "model/model_card.md").read_text()
    page = (tmp_path / "model/report.html").read_text()
    assert "events of the part train |" in card and "the part test" not in card + page
    ended = CliRunner().invoke(
        command, ["evaluate", "--model", f"{tmp_path}/model", "--sample", str(tmp_path)]
    )
    assert isinstance(ended.exception, InputMissing)


def test_the_page_of_weighted_events_says_that_its_sums_are_of_weights(
    sample: Path, tmp_path: Path
) -> None:
    parameters = parse_parameters("xgboost", ("trees=3",))
    model, _ = fit_xgboost(EVENTS, SCALERS, parameters, 0, 1)
    model.save(tmp_path, SCALERS, parameters, 0)
    for weights, heading in ((None, ">events<"), (np.full(600, 1.5), ">sum of weights<")):
        write_result(tmp_path, evaluate(LABELS, model.predict(HLF), TOPOLOGY.classes, weights), {})
        assert heading in (tmp_path / "report.html").read_text()


def test_losses_that_rise_are_not_said_to_fall() -> None:
    history = [
        {"train_loss": 0.5, "validation_loss": 0.4},
        {"train_loss": 0.2, "validation_loss": 0.9},
    ]
    assert learning_curves(history).label == "Loss over 2 epochs or rounds: between 0.2 and 0.9"


def test_score_wants_files_or_a_folder_to_watch(tmp_path: Path) -> None:
    for more in ([], ["a.root", "--stream", "folder"]):
        ended = CliRunner().invoke(
            command, ["score", "--model", "m", "-o", str(tmp_path / "out"), *more]
        )
        assert isinstance(ended.exception, UsageError)


def test_a_package_that_lacks_is_named_with_the_extra() -> None:
    with pytest.raises(UsageError, match="events need no_such_package") as raised:
        require_events("no_such_package")
    assert "cmsspark[events]" in str(raised.value)


def test_a_job_without_a_session_names_run_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "has_session", lambda: False)
    settings = Settings(None, None, tmp_path / "state", tmp_path / "cache")
    from datetime import date

    with (
        pytest.raises(SettingsError, match="Spark is needed"),
        event_run(EventRequest(str(tmp_path), date(2026, 1, 15), settings), "events_sample"),
    ):
        pass


def test_jobs_offer_the_kinds_that_there_are() -> None:
    assert tuple(ABOUT) == KINDS
