"""The jobs on other people's files: NanoAOD of two versions, own classes, signed
weights, from files to scores.
"""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import uproot

from cmsspark.apps.events import prepare, sample, score_files, train
from cmsspark.apps.events.evaluation import fill_histograms, write_histograms
from cmsspark.apps.events.layout import layout_in
from cmsspark.apps.events.network_training import Training
from cmsspark.apps.events.network_training import train as train_network
from cmsspark.apps.events.root_files import read_events
from cmsspark.apps.events.runs import EventRequest
from cmsspark.apps.events.scalers import Scalers
from cmsspark.base.errors import UsageError
from cmsspark.settings.settings import Settings
from tests.apps.events.nanoaod import nano_events, write_nano

DAY = date(2026, 1, 15)


def test_nanoaod_goes_from_files_with_signed_weights_to_scores(spark: Any, tmp_path: Path) -> None:
    for name, seed, shift in (("signal", 1, 1.5), ("background", 2, 0.0)):
        # Data have no sums of generator weights.
        sums = (10_000.5, 20_000.0) if name == "signal" else ()
        old = nano_events(900, seed, shift=shift)
        write_nano(tmp_path / f"{name}_9.root", old, weight_sums=sums)
        events = nano_events(900, seed + 10, v15=True, shift=shift)
        write_nano(tmp_path / f"{name}_15.root", events, as_ntuple=True, weight_sums=sums[:1])
    request = EventRequest(
        str(tmp_path / "store"),
        DAY,
        Settings(None, None, tmp_path / "state", tmp_path / "cache"),
        lambda text: None,
    )
    inputs = [f"{name}={tmp_path}/{name}_*.root" for name in ("signal", "background")]
    prepared = prepare.run(
        request, prepare.PrepareOptions(inputs, low_level=True, definition="nanoaod")
    )
    document = prepared.manifest.document
    assert document["classes"] == {"signal": "signal", "background": "background"}
    assert document["defaults"] == {"jet.id": 2} and any(
        "jet.id" in text for text in prepared.manifest.warnings
    )
    assert document["weight_sums"] == {"signal": 40_001.0, "background": None}
    by_file = {
        Path(row["file"]).name: row["weight_sum"]
        for row in pq.read_table(Path(prepared.path) / "event_cutflow").to_pylist()
    }
    assert by_file == {
        "signal_9.root": 30_000.5,
        "signal_15.root": 10_000.5,
        "background_9.root": None,
        "background_15.root": None,
    }
    for flow in document["cutflow"].values():
        assert (
            flow["events"] == 1_800 == flow["not_finite"] + flow["one_lepton"] + flow["selected"]
        )

    sampled = sample.run(request, sample.SampleOptions(small=5))
    folder = Path(sampled.path)
    assert layout_in(folder).weight_sums == (40_001.0, None)
    paths = write_histograms(
        folder / "train", tmp_path / "pictures", fill_histograms(folder / "train", ["HT"])
    )
    with uproot.open(paths[0]) as file:
        assert file["weight_sums"].values().tolist() == [40_001.0]
        assert file["weight_sums"].axis().labels() == ["signal"]
    rows = pq.read_table(folder / "event_sample").to_pylist()
    events = {part: read_events(folder / part, low_level=True) for part in ("train", "test")}
    for row in rows:
        of_class = events[row["part"]].labels == ["signal", "background"].index(row["class_name"])
        assert row["chosen_count"] == of_class.sum()
        assert row["chosen_weight"] == pytest.approx(events[row["part"]].weights[of_class].sum())
    scalers = Scalers.load(folder)
    normal = scalers.weights(events["train"].labels, events["train"].weights)
    assert (normal < 0).any() and normal[events["train"].labels == 0].mean() == pytest.approx(1)

    done = train.run(request, train.TrainOptions(("xgboost",), ("trees=30", "depth=3")))
    judged = pq.read_table(Path(done.path) / "event_models").to_pylist()[0]
    assert judged["auc"] > 0.75 and set(json.loads(judged["auc_by_class"])) == {
        "signal",
        "background",
    }

    model = Path(done.path) / "models/xgboost"
    with pytest.raises(UsageError, match="not the one that the model learned from"):
        score_files.definition_of_model(model, "delphes", None)
    definition = score_files.definition_of_model(model, None, None)
    scoring = score_files.ScoreRequest(model, definition)
    scored = score_files.score_files(
        spark, [f"{tmp_path}/signal_*.root"], scoring, str(tmp_path / "scores")
    )
    scores = pq.read_table(tmp_path / "scores")
    assert scored.selected == scores.num_rows == document["cutflow"]["signal"]["selected"]
    listed = json.loads((tmp_path / "scores/_files.json").read_text())
    assert {Path(file["file"]).name: file["weight_sum"] for file in listed} == {
        name: total for name, total in by_file.items() if name.startswith("signal")
    }
    assert scores.schema.names[3:] == ["weight", "signal", "background", "predicted"]
    assert set(scores["weight"].to_pylist()) == {-12.5, 12.5} and set(
        scores["predicted"].to_pylist()
    ) == {"signal", "background"}
    assert np.mean(scores["signal"].to_numpy()) > 0.5

    network = train_network(
        folder, tmp_path / "network", Training("inclusive", steps=30, batch=32)
    )
    found = network.predict(events["test"].hlf, events["test"].low_level)
    assert found.shape == (len(events["test"].labels), 2) and np.isfinite(found).all()
