"""The jobs on events from ROOT files to scores, in one Spark session on a few hundred events."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from cmsspark.apps.events import demo_run, prepare, sample, score_files, search, train
from cmsspark.apps.events.cli import command
from cmsspark.apps.events.demo_run import MODELS, make_events, write_files, write_tree
from cmsspark.apps.events.models import load
from cmsspark.apps.events.root_files import EntryRange, read_events, read_range, to_matrix
from cmsspark.apps.events.runs import EventRequest
from cmsspark.apps.events.scalers import Scalers
from cmsspark.base.errors import DataError, InputMissing, OutputError
from cmsspark.base.manifests import Manifest
from cmsspark.filesystems.storage import LocalFiles
from cmsspark.settings.settings import Settings
from tests.apps.events.events import CLASSES, DELPHES, HLF_COUNT, MATRIX

DAY = date(2026, 1, 15)
EVENTS = 150
RNG = np.random.default_rng(0)


@dataclass(frozen=True)
class Made:
    """Files, a store with prepared events and a sample of them."""

    files: Path
    request: EventRequest
    prepared: Manifest
    prepared_folder: Path
    sample_folder: Path

    def inputs(self) -> list[str]:
        return [f"{name}={self.files}/{name}_*.root" for name in CLASSES]


def request_in(folder: Path) -> EventRequest:
    settings = Settings(None, None, folder / "state", folder / "cache")
    return EventRequest(str(folder / "store"), DAY, settings, lambda text: None)


@pytest.fixture(scope="module")
def made(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("events")
    write_files(folder / "files", EVENTS)
    request = request_in(folder)
    inputs = [f"{name}={folder}/files/{name}_*.root" for name in CLASSES]
    prepared = prepare.run(
        request, prepare.PrepareOptions(inputs, low_level=True, range_events=100)
    )
    sampled = sample.run(request, sample.SampleOptions(small=5))
    return Made(
        folder / "files", request, prepared.manifest, Path(prepared.path), Path(sampled.path)
    )


def table(folder: str | Path, name: str) -> list[Mapping[str, Any]]:
    return list(pq.read_table(Path(folder) / name).to_pylist())


def test_prepared_events_are_the_features_of_the_files(made: Made) -> None:
    rows = pq.read_table(made.prepared_folder / "events").sort_by(
        [("label", "ascending"), ("entry", "ascending")]
    )
    assert [str(field.type) for field in rows.schema][2:] == [
        "int8",
        "uint64",
        "double",
        "string",
        "int64",
    ]
    for label, name in enumerate(CLASSES):
        path = str(made.files / f"{name}_000.root")
        wanted = read_range(EntryRange(path, label, 0, EVENTS), DELPHES).features(low_level=True)
        mine = rows.filter([value == label for value in rows["label"].to_pylist()])
        assert mine["entry"].to_pylist() == wanted.entries.tolist() and set(
            mine["file"].to_pylist()
        ) == {path}
        assert np.array_equal(to_matrix(mine["hlf"], HLF_COUNT), wanted.hlf)
        assert np.array_equal(
            to_matrix(mine["low_level"], MATRIX), wanted.low_level.reshape(-1, MATRIX)
        )
        assert np.array_equal(mine["event_hash"].to_numpy(), wanted.hashes())


def test_the_cutflow_accounts_for_every_event(made: Made) -> None:
    for row in table(made.prepared_folder, "event_cutflow"):
        others = row["damaged_count"] + row["not_finite_count"] + row["selected_count"]
        assert row["event_count"] == EVENTS == others + sum(json.loads(row["cut_counts"]).values())
    flow = made.prepared.document["cutflow"]
    assert (
        sum(of_class["selected"] for of_class in flow.values())
        == made.prepared.document["folders"]["events"]["rows"]
    )
    schema = json.loads((made.prepared_folder / "schema.json").read_text())
    assert (
        schema["columns"]["low_level"]["shape"] == [801, 19]
        and len(schema["columns"]["hlf"]["features"]) == 14
    )
    assert 0 < made.prepared.document["worker_memory_bytes"] < 1.5e9


def test_the_cutflow_of_a_day_is_that_of_no_other(made: Made) -> None:
    def shown(*more: str) -> Any:
        return CliRunner().invoke(
            command, ["cutflow", "--fout", made.request.fout, "--json", *more]
        )

    assert (
        json.loads(shown().stdout)
        == json.loads(shown("--date", str(DAY)).stdout)
        == made.prepared.document["cutflow"]
    )
    assert isinstance(shown("--date", "2026-01-16").exception, InputMissing)


def test_a_damaged_file_fails_the_run_or_is_quarantined_and_counted(
    made: Made, tmp_path: Path
) -> None:
    shutil.copytree(made.files, tmp_path / "files")
    whole = bytearray((tmp_path / "files/qcd_000.root").read_bytes())
    # Of its size, but a part of it is no data: only reading shows it.
    (tmp_path / "files/qcd_cut.root").write_bytes(bytes(whole[:-20_000]))
    middle = len(whole) // 2
    whole[middle : middle + 20_000] = b"x" * 20_000
    (tmp_path / "files/qcd_torn.root").write_bytes(bytes(whole))
    inputs = [f"{name}={tmp_path}/files/{name}_*.root" for name in CLASSES]
    request = request_in(tmp_path)
    with pytest.raises(DataError, match="cannot be read") as raised:
        prepare.run(request, prepare.PrepareOptions(inputs))
    assert "qcd_cut.root" in str(raised.value)
    done = prepare.run(request, prepare.PrepareOptions(inputs, accepted=("all",)))
    rows = {Path(str(row["file"])).name: row for row in table(done.path, "event_cutflow")}
    for name in ("qcd_torn.root", "qcd_cut.root"):
        row = rows[name]
        assert row["is_quarantined"] and row["reason"] and row["selected_count"] == 0
        assert row["event_count"] == row["damaged_count"]
    assert done.manifest.partial and len(done.manifest.warnings) == 2
    stored = set(pq.read_table(Path(done.path) / "events", columns=["file"])["file"].to_pylist())
    assert stored == {str(tmp_path / f"files/{name}_000.root") for name in CLASSES}
    assert not list((Path(done.path) / "events").glob("_*"))


def test_a_sample_is_balanced_and_no_event_is_in_both_parts(made: Made) -> None:
    hashes = {}
    for part in ("train", "test"):
        rows = pq.read_table(made.sample_folder / part, columns=["label", "event_hash"])
        counts = np.bincount(rows["label"].to_numpy())
        assert counts[0] == counts[1] == counts[2] > 10
        hashes[part] = set(rows["event_hash"].to_pylist())
        assert len(hashes[part]) == rows.num_rows
        # Shuffled: the classes are mixed.
        assert len(set(rows["label"].to_pylist()[:10])) > 1
    assert not hashes["train"] & hashes["test"]
    counted = {
        (row["part"], row["class_name"]): row["chosen_count"]
        for row in table(made.sample_folder, "event_sample")
    }
    assert 3 * counted["train", "qcd"] == len(hashes["train"]) and 3 * counted[
        "test", "wjets"
    ] == len(hashes["test"])
    assert len(read_events(made.sample_folder / "small_train").labels) == 15


def test_scalers_are_those_of_train_alone(made: Made) -> None:
    events = read_events(made.sample_folder / "train", low_level=True)
    hlf, low_level = events.hlf, events.low_level
    scalers = Scalers.load(made.sample_folder)
    assert scalers.minimum == pytest.approx(hlf.min(axis=0)) and scalers.maximum == pytest.approx(
        hlf.max(axis=0)
    )
    assert low_level is not None and scalers.mean is not None and scalers.std is not None
    particles = low_level[low_level.any(axis=-1)].astype(float)
    assert scalers.mean == pytest.approx(particles.mean(axis=0), abs=1e-6)
    assert scalers.std == pytest.approx(particles.std(axis=0), rel=1e-6)


def test_the_same_seed_is_the_same_sample_and_another_one_is_not(
    made: Made, tmp_path: Path
) -> None:
    request = request_in(tmp_path)
    # Twice the same file: equal events count once.
    shutil.copyfile(made.files / "qcd_000.root", tmp_path / "again.root")
    inputs = [*made.inputs(), f"qcd={tmp_path}/again.root"]
    prepare.run(request, prepare.PrepareOptions(inputs, range_events=70))
    orders = []
    for seed in (0, 0, 1):
        done = sample.run(request, sample.SampleOptions(seed=seed))
        orders.append(
            pq.read_table(Path(done.path) / "train", columns=["event_hash"])[
                "event_hash"
            ].to_pylist()
        )
        duplicates = sum(row["duplicate_count"] for row in table(done.path, "event_sample"))
        assert duplicates == sum(row["selected_count"] for row in table_of_qcd(request)) // 2
    wanted = pq.read_table(made.sample_folder / "train", columns=["event_hash"])[
        "event_hash"
    ].to_pylist()
    assert orders[0] == orders[1] == wanted != orders[2]


def table_of_qcd(request: EventRequest) -> list[Mapping[str, Any]]:
    runs = sorted((Path(request.fout) / "events_prepare" / str(DAY) / "runs").iterdir())
    return [row for row in table(runs[-1], "event_cutflow") if row["class_name"] == "qcd"]


def test_models_are_trained_judged_and_score_new_files(
    made: Made, spark: Any, tmp_path: Path
) -> None:
    options = train.TrainOptions(("forest", "xgboost"))
    small = {"forest": {**train.PARAMETERS["forest"], "trees": 5, "depth": 3}}
    with pytest.MonkeyPatch.context() as patched:
        for kind, parameters in small.items():
            patched.setitem(train.PARAMETERS, kind, parameters)  # type: ignore[arg-type]
        done = train.run(made.request, options)
    rows = {row["kind"]: row for row in table(done.path, "event_models")}
    assert list(rows) == ["forest", "xgboost"]
    events = read_events(made.sample_folder / "test")
    hlf, labels = events.hlf, events.labels
    for kind, row in rows.items():
        folder = Path(done.path) / "models" / kind
        assert {
            "model.json",
            "scalers.json",
            "metrics.json",
            "report.html",
            "model_card.md",
            "roc.png",
        } <= {path.name for path in folder.iterdir()}
        scores = load(folder).predict(hlf, None)
        assert scores.sum(axis=1) == pytest.approx(1, abs=1e-5)
        assert (scores.argmax(axis=1) == labels).mean() == pytest.approx(row["accuracy"])
        assert row["auc"] > 0.8 and row["test_count"] == len(labels)
        assert (folder / "roc.png").read_bytes().startswith(b"\x89PNG")
    forest = Path(done.path) / "models/forest"
    request = score_files.ScoreRequest(forest, DELPHES, range_events=100)
    output = str(tmp_path / "scores")
    scored = score_files.score_files(spark, [str(made.files / "ttbar_000.root")], request, output)
    found = pq.read_table(output).sort_by("entry").to_pydict()
    path = str(made.files / "ttbar_000.root")
    wanted = read_range(EntryRange(path, None, 0, EVENTS), DELPHES).features(low_level=False)
    assert (scored.events, scored.selected) == (EVENTS, len(wanted.hlf))
    assert found["entry"] == wanted.entries.tolist()
    probabilities = np.column_stack([found[name] for name in CLASSES])
    assert np.array_equal(probabilities, load(forest).predict(wanted.hlf, None))
    assert found["predicted"] == [CLASSES[place] for place in probabilities.argmax(axis=1)]
    with pytest.raises(OutputError, match="is not empty"):
        score_files.score_files(spark, [path], request, output)
    scores_of_odd_files(made, spark, request, tmp_path)
    stream_of_files(made, spark, request, tmp_path, len(wanted.hlf))


def scores_of_odd_files(
    made: Made, spark: Any, request: score_files.ScoreRequest, folder: Path
) -> None:
    """A file that is torn in its middle leaves no score behind, also of its good
    ranges; no event is a valid result.
    """
    whole = bytearray((made.files / "qcd_000.root").read_bytes())
    whole[-60_000:-40_000] = b"x" * 20_000
    torn, good, output = folder / "torn.root", made.files / "wjets_000.root", folder / "odd scores"
    torn.write_bytes(whole)
    small = replace(request, range_events=30)
    with pytest.raises(DataError, match="cannot be read"):
        score_files.score_files(spark, [str(torn), str(good)], small, str(output))
    assert not list(folder.glob("*odd scores*"))
    small = replace(small, accepted=("torn.root",))
    done = score_files.score_files(spark, [str(torn), str(good)], small, f"file://{output}")
    assert [Path(file.path) for file in done.left_out] == [torn] and done.events == 2 * EVENTS
    rows = pq.read_table(output)
    assert set(rows["file"].to_pylist()) == {str(good)} and rows.num_rows == done.selected > 50
    assert not list(folder.glob("_*"))
    write_tree(
        folder / "none.root",
        {name: rows[:0] for name, rows in make_events(MODELS["qcd"], 3, RNG).items()},
    )
    (folder / "no scores").mkdir()
    done = score_files.score_files(
        spark, [str(folder / "none.root")], small, str(folder / "no scores")
    )
    assert (done.events, done.selected, done.left_out) == (0, 0, ())
    assert pq.read_table(folder / "no scores").schema.names == rows.schema.names


def stream_of_files(
    made: Made, spark: Any, request: score_files.ScoreRequest, folder: Path, selected: int
) -> None:
    """Files are scored once each as they arrive; damaged ones are named and the stream goes on."""
    arriving, output = folder / "files to score", folder / "stream"
    arriving.mkdir()
    shutil.copyfile(made.files / "ttbar_000.root", arriving / "a.root")
    (arriving / "bad.root").write_bytes(b"no ROOT file")
    (arriving / "notes.txt").write_text("not for us")

    def run(request: score_files.ScoreRequest = request) -> None:
        score_files.stream_scores(
            spark, str(arriving), request, str(output), once=True, seconds=1, log=lambda text: None
        )

    run()
    shutil.copyfile(made.files / "qcd_000.root", arriving / "b.root")
    run()
    run()
    shutil.copytree(request.model, folder / "another")
    (folder / "another/model.json").write_text(
        (request.model / "model.json").read_text().replace("seed", "sead")
    )
    with pytest.raises(OutputError, match="scores of another model"):
        run(replace(request, model=folder / "another"))
    batches = sorted(path.name for path in output.glob("batch-*"))
    assert batches == ["batch-000000", "batch-000001"]
    files = [set(pq.read_table(output / name)["file"].to_pylist()) for name in batches]
    assert files == [{str(arriving / "a.root")}, {str(arriving / "b.root")}]
    assert pq.read_table(output / batches[0]).num_rows == selected
    (line,) = (output / "quarantine.jsonl").read_text().splitlines()
    assert json.loads(line)["file"] == str(arriving / "bad.root")


def test_a_search_does_not_repeat_finished_trials(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = search.SearchOptions(trials=3, events=300, seed=1)
    drawn = search.draw_trials(options)
    # XGBoost refuses such a depth: the search ends in the second of its trials.
    wrong = [drawn[0], {**drawn[1], "depth": -1.0}]
    monkeypatch.setattr(search, "draw_trials", lambda options: wrong)
    with pytest.raises(Exception, match="max_depth"):
        search.run(made.request, search.SearchOptions(trials=2, events=300, seed=1, parallel=1))
    monkeypatch.undo()
    logged: list[str] = []
    request = EventRequest(made.request.fout, DAY, made.request.settings, logged.append)
    done = search.run(request, options)
    assert "1 of 3 trials are finished already" in logged
    rows = table(done.path, "event_search")
    assert [row["trial"] for row in rows] == [0, 1, 2] and len(
        {row["parameters"] for row in rows}
    ) == 3
    (best,) = [row for row in rows if row["is_best"]]
    assert best["auc"] == max(row["auc"] for row in rows)
    assert load(Path(done.path) / "best").kind == "xgboost"
    assert (
        "| learned from | 300 events of the part train |"
        in (Path(done.path) / "best/model_card.md").read_text()
    )


def test_without_events_or_a_sample_the_job_to_run_is_named(spark: Any, tmp_path: Path) -> None:
    for run, wanted in (
        (lambda: sample.run(request_in(tmp_path), sample.SampleOptions()), "events_prepare"),
        (lambda: train.run(request_in(tmp_path), train.TrainOptions()), "events_sample"),
    ):
        with pytest.raises(InputMissing, match=f"no day of {wanted} is stored"):
            run()


def test_the_demo_goes_from_made_files_to_scores(spark: Any, tmp_path: Path) -> None:
    options = demo_run.DemoOptions(tmp_path / "demo", events=120, kinds=("xgboost",), trials=1)
    steps = demo_run.run(request_in(tmp_path), options)
    assert [step.name for step in steps] == [
        "make files",
        "prepare",
        "sample",
        "train",
        "search",
        "score",
    ]
    scores = pq.read_table(tmp_path / "demo" / demo_run.SCORES)
    assert steps[-1].result.startswith(f"{scores.num_rows} of 60 events in ")
    assert 30 < scores.num_rows <= 60


def test_a_folder_of_a_store_is_copied_with_all_below_it(tmp_path: Path) -> None:
    (tmp_path / "model" / "deep").mkdir(parents=True)
    (tmp_path / "model" / "card.json").write_text("{}")
    (tmp_path / "model" / "deep" / "weights").write_bytes(b"w")
    demo_run.fetch_folder(LocalFiles(), str(tmp_path / "model"), tmp_path / "copy")
    copied = {str(file.relative_to(tmp_path / "copy")) for file in (tmp_path / "copy").rglob("*")}
    assert copied == {"card.json", "deep", "deep/weights"}
