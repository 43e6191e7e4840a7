"""Networks of events: what they compute, that training repeats itself, goes on after a
stop, and ends early.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cmsspark.apps.events import gru, network_training, networks
from cmsspark.apps.events.network_data import Rows, Share
from cmsspark.apps.events.network_training import (
    LOG_FILE,
    Checkpoints,
    Progress,
    Training,
    World,
    train,
)
from cmsspark.apps.events.root_files import read_events
from cmsspark.apps.events.train import StoredSample, TrainOptions, train_model
from cmsspark.base.errors import DataError, InputMissing, UsageError
from cmsspark.filesystems.storage import Entry, LocalFiles
from tests.apps.events.events import FEATURES
from tests.apps.events.samples import events, write_sample

HLF = Training("hlf", epochs=2, batch=128, learning_rate=1e-3, patience=3)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fifth of it is enough to judge."""
    return write_sample(tmp_path_factory.mktemp("hlf"), 26_000)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fifth of it is not enough to judge."""
    return write_sample(tmp_path_factory.mktemp("small"), 3_000)


@pytest.fixture(scope="module")
def with_particles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sample(tmp_path_factory.mktemp("particles"), 1_200, particles=40)


def equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(np.array_equal(one[name], other[name]) for name in one)


def plain_gru(weights: dict[str, Any], particles: np.ndarray) -> np.ndarray:
    """The GRU of one event as its definition says it, in float64."""
    state = np.zeros(networks.GRU_WIDTH)
    for particle in particles[particles.any(axis=1)].astype(np.float64):
        inputs = np.split(particle @ weights["gru/weight"] + weights["gru/bias"], 3)
        states = np.split(state @ weights["gru/state"] + weights["gru/state_bias"], 3)
        reset, update = (1 / (1 + np.exp(-(inputs[i] + states[i]))) for i in (0, 1))
        state = (1 - update) * np.tanh(inputs[2] + reset * states[2]) + update * state
    return state


def test_the_sequence_network_is_its_definition_and_padding_changes_nothing() -> None:
    weights = networks.initial_weights("sequence", 3)
    draw = np.random.default_rng(0)
    short = draw.normal(size=(4, 30, FEATURES)).astype(np.float32)
    short[2, 11:] = 0
    padded = np.concatenate([short, np.zeros((4, 50, FEATURES), np.float32)], axis=1)
    scores = np.asarray(networks.logits("sequence", weights, np.zeros((4, 14)), short))
    expected = [
        plain_gru(weights, event) @ weights["out/weight"] + weights["out/bias"] for event in short
    ]
    assert scores == pytest.approx(np.array(expected), abs=2e-5)
    assert np.asarray(
        networks.logits("sequence", weights, np.zeros((4, 14)), padded)
    ) == pytest.approx(scores, abs=1e-6)


@pytest.mark.parametrize("count", [5, 33])
def test_the_kernel_for_gpus_gives_state_and_gradients_of_the_scan_in_float64(count: int) -> None:
    import jax

    draw = np.random.default_rng(4)
    weights = {
        name: value + draw.normal(0, 0.1, value.shape).astype(np.float32)
        for name, value in networks.initial_weights("sequence", 3).items()
        if name.startswith("gru")
    }
    sequence = draw.normal(size=(count, 30, FEATURES)).astype(np.float32)
    sequence[np.arange(30)[None] >= draw.integers(0, 31, count)[:, None]] = 0
    sequence[1, 3] = 0  # not only padding at the end
    toward = draw.normal(size=(count, networks.GRU_WIDTH)).astype(np.float32)

    def judged(compute: Any, kind: Any) -> tuple[Any, Any]:
        converted = {name: value.astype(kind) for name, value in weights.items()}
        inputs = sequence.astype(kind)
        state = jax.jit(compute)(converted, inputs)
        changes = jax.jit(jax.grad(lambda w: (compute(w, inputs) * toward.astype(kind)).sum()))(
            converted
        )
        return np.asarray(state), {name: np.asarray(value) for name, value in changes.items()}

    state, changes = judged(gru.by_kernel, np.float32)
    with jax.enable_x64(True):
        expected, expected_changes = judged(gru.by_scan, np.float64)
    assert expected.dtype == np.float64
    assert np.abs(state - expected).max() < 1e-4
    assert state[1] == pytest.approx(plain_gru(weights, sequence[1]), abs=1e-4)
    for name, change in changes.items():
        largest = np.abs(expected_changes[name]).max()
        assert np.abs(change - expected_changes[name]).max() < 1e-3 * largest, name


def test_the_kernel_and_its_gradients_are_lowered_for_cuda(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import jax

    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    weights = networks.initial_weights("sequence", 0)
    sequence = np.ones((gru.BLOCK, 3, FEATURES), np.float32)
    gradients = jax.grad(lambda weights: gru.by_kernel(weights, sequence).sum())
    lowered = jax.jit(gradients).trace(weights).lower(lowering_platforms=("cuda",))
    assert lowered.as_text().count("custom_call @__gpu$xla.gpu.triton") == 2


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process that takes its processor for a GPU, on which the kernel is interpreted."""
    import jax
    from jax.experimental import pallas

    interpreted = pallas.pallas_call

    def interpret(*args: Any, compiler_params: Any, **options: Any) -> Any:
        return interpreted(*args, interpret=True, **options)

    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(pallas, "pallas_call", interpret)
    gru.scan_reason.cache_clear()
    yield
    gru.scan_reason.cache_clear()


@pytest.mark.parametrize("is_compiling", [False, True])
def test_a_gpu_is_found_to_have_the_kernel_also_while_a_function_is_compiled(
    is_compiling: bool, gpu: None
) -> None:
    """Its check once failed on each GPU."""
    import jax

    answers = []

    def check(value: Any) -> Any:
        answers.append(gru.scan_reason(FEATURES))
        return value

    (jax.jit(check) if is_compiling else check)(1.0)
    assert answers == [None]


@pytest.mark.parametrize(
    ("part", "replacement", "reason"),
    [
        ("_launch", lambda *arrays: 1 / 0, "ZeroDivisionError: division by zero"),
        ("_tanh", lambda values: values * 0.999, "its states differ by"),
        # Forward it is right.
        ("_launch", "wrong gradients", "its gradients by"),
    ],
)
def test_a_kernel_that_fails_or_differs_is_not_used_and_training_says_why(
    part: str,
    replacement: Any,
    reason: str,
    gpu: None,
    with_particles: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launch = gru._launch
    if isinstance(replacement, str):
        # Only the backward kernel has so many arrays.
        replacement = lambda *given: (  # noqa: E731  # a stand-in
            [0.9 * change for change in launch(*given)] if len(given) > 9 else launch(*given)
        )
    monkeypatch.setattr(gru, part, replacement)
    gru._kernels.cache_clear()
    lines: list[str] = []
    with pytest.warns(UserWarning, match=f"the GPU kernel is not used.*{reason}"):
        train(with_particles, tmp_path, Training("sequence", steps=2), log=lines.append)
    gru._kernels.cache_clear()
    assert lines[0].startswith("GRU by the scan: ") and reason in lines[0]
    logged = json.loads((tmp_path / LOG_FILE).read_text().splitlines()[0])
    assert logged["gru"] == "scan"


def test_scores_are_computed_in_the_highest_precision() -> None:
    import jax

    weights = networks.initial_weights("inclusive", 0)
    text = str(
        jax.make_jaxpr(networks._probabilities("inclusive"))(
            weights, np.ones((2, 14), np.float32), np.ones((2, 8, FEATURES), np.float32)
        )
    )
    products = text.count("dot_general")
    assert products and text.count("precision=(Precision.HIGHEST, Precision.HIGHEST)") == products


def test_the_layers_of_each_kind_are_those_of_the_documentation() -> None:
    shapes = {
        name: value.shape
        for name, value in networks.initial_weights("hlf", 0).items()
        if "weight" in name
    }
    assert list(shapes.values()) == [(14, 50), (50, 20), (20, 10), (10, 3)]
    inclusive = networks.initial_weights("inclusive", 0)
    assert inclusive["gru/weight"].shape == (19, 150) and inclusive["dense/weight"].shape == (
        64,
        25,
    )


def test_dropout_is_used_only_while_training() -> None:
    import jax

    weights = networks.initial_weights("inclusive", 0)
    hlf, sequence = np.ones((8, 14), np.float32), np.ones((8, 5, FEATURES), np.float32)
    quiet = networks.logits("inclusive", weights, hlf, sequence)
    assert np.array_equal(quiet, networks.logits("inclusive", weights, hlf, sequence))
    dropped = networks.logits("inclusive", weights, hlf, sequence, jax.random.key(1))
    assert len({tuple(row) for row in np.asarray(dropped).tolist()}) > 1


def test_the_same_seed_gives_the_same_model_and_another_seed_another(
    sample: Path, tmp_path: Path
) -> None:
    one, same, other = (
        train(sample, tmp_path / str(i), replace(HLF, seed=seed))
        for i, seed in enumerate((7, 7, 8))
    )
    assert equal(one.weights, same.weights)
    assert not equal(one.weights, other.weights)


def test_a_killed_training_goes_on_to_the_model_that_it_would_have_made(
    sample: Path, tmp_path: Path
) -> None:
    training = replace(HLF, epochs=4)
    whole = train(sample, tmp_path / "whole", training)

    def killed(text: str) -> None:
        if text.startswith("round=2 "):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(sample, tmp_path / "killed", training, log=killed)
    with open(tmp_path / "killed/training_log.jsonl", "a") as stream:
        stream.write('{"round": 3, "ep')
    lines: list[str] = []
    resumed = train(sample, tmp_path / "killed", training, log=lines.append)
    assert lines[0] == "goes on after round 2" and len(lines) == 3
    assert equal(whole.weights, resumed.weights) and whole.parameters == resumed.parameters
    assert [line["epoch"] for line in read_log(tmp_path / "killed")] == [1, 2, 3, 4]


def read_log(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / LOG_FILE).read_text().splitlines()]


def test_a_small_sample_is_judged_by_all_its_events_and_learned_from_whole(
    small: Path, tmp_path: Path
) -> None:
    training = Training("hlf", epochs=30, batch=64, learning_rate=0.02, patience=2)
    network = train(small, tmp_path, training)
    folds = [read_log(tmp_path / "folds" / str(number)) for number in range(5)]
    best = [np.argmin([line["validation_loss"] for line in fold]) + 1 for fold in folds]
    rounds = read_log(tmp_path)
    assert 1 <= len(rounds) == round(np.mean(best)) < 30
    losses = [fold[0]["validation_loss"] for fold in folds]
    assert rounds[0]["validation_loss"] == pytest.approx(np.mean(losses), abs=1e-5)
    assert network.parameters["events"] == [3_000, 3_000]
    assert network.parameters["steps_done"] == len(rounds) * (3_000 // 64)
    share = Share(small, "hlf")
    parts = [share.split(start, start + 20) for start in range(0, 100, 20)]
    judged = np.concatenate([part.validated for part in parts])
    assert sorted(judged.tolist()) == list(range(3_000))
    assert all(not set(part.validated) & set(part.learned) for part in parts)
    assert len(share.split().learned) == 3_000


def test_a_killed_training_on_folds_goes_on_to_the_model_that_it_would_have_made(
    small: Path, tmp_path: Path
) -> None:
    whole = train(small, tmp_path / "whole", HLF)
    for last in ("fold=1 round=1 ", "fold=4 round=2 "):

        def killed(text: str, last: str = last) -> None:
            if text.startswith(last):
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            train(small, tmp_path / "killed", HLF, log=killed)
    lines: list[str] = []
    resumed = train(small, tmp_path / "killed", HLF, log=lines.append)
    assert lines[0].startswith("fold=5 round=1 ")
    assert equal(whole.weights, resumed.weights) and whole.parameters == resumed.parameters


def test_arrays_are_stored_once_and_never_used_for_other_events(
    with_particles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = shutil.copytree(with_particles, tmp_path / "sample")
    arrays = tmp_path / "arrays"
    made = Share(sample, "inclusive", arrays=arrays).columns
    read: list[Any] = []
    plain_read = Share._read
    monkeypatch.setattr(
        Share, "_read", lambda self, place: read.append(place) or plain_read(self, place)
    )
    again = Share(sample, "inclusive", arrays=arrays).columns
    assert not read and all(map(np.array_equal, made, again))
    assert not list(arrays.glob("*/.new-*"))

    def is_read_anew(*arguments: Any) -> bool:
        read.clear()
        columns = Share(sample, *arguments, arrays=arrays).columns
        count = len(read)
        fresh = Share(sample, *arguments).columns
        assert all(map(np.array_equal, columns, fresh))
        return count > 0

    # Another worker, another kind of network, other scalers, another part, a cut file.
    assert is_read_anew("inclusive", 0, 2)
    assert is_read_anew("hlf")
    document = json.loads((sample / "scalers.json").read_text())
    document["low_level"]["mean"][0] += 1
    (sample / "scalers.json").write_text(json.dumps(document))
    assert is_read_anew("inclusive")
    other = write_sample(tmp_path / "other", 1_200, seed=9, particles=40)
    part = next((other / "train").iterdir())
    shutil.copyfile(part, sample / "train" / part.name)
    assert is_read_anew("inclusive")
    for file in arrays.glob("*/0-of-1/*"):
        file.write_bytes(file.read_bytes()[:-100])
    assert is_read_anew("inclusive")
    # The oldest samples go.
    assert len(list(arrays.iterdir())) == 4


def test_a_folder_that_cannot_be_written_or_has_little_room_costs_no_training(
    with_particles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    plain = Share(with_particles, "inclusive").columns
    columns = Share(with_particles, "inclusive", arrays=tmp_path / "file/arrays").columns
    assert all(map(np.array_equal, columns, plain))
    usage = shutil.disk_usage(tmp_path)._replace(free=50_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    columns = Share(with_particles, "inclusive", arrays=tmp_path / "arrays").columns
    assert all(map(np.array_equal, columns, plain))
    assert not [path for path in (tmp_path / "arrays").rglob("*") if path.is_file()]


def test_the_bench_of_a_device_needs_jax_optax_numpy_and_pyarrow_only() -> None:
    others = "awkward click hist markupsafe msgspec numba pandas polars pyspark uproot xgboost xxhash yaml"
    program = f"""
import sys
class Bare:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {others.split()!r}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Bare())
import bench.events_training as bench
bench.measure_device(400, 4, [64], 1)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    lines = done.stdout.splitlines()
    assert lines[1:2] == ["GRU by the scan: there is no GPU"], done.stderr
    # What fails is told, and ends nothing else.
    assert "failed" not in done.stdout and "by the scan: " in done.stdout, done.stdout
    assert lines[-1].startswith("  bound of dependent steps"), done.stdout


@pytest.mark.parametrize("kind", ["hlf", "inclusive"])
def test_events_on_the_device_give_the_model_that_batches_from_the_host_give(
    kind: str, with_particles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training(kind, epochs=2, batch=32)
    host = train(with_particles, tmp_path / "host", training)
    asked: list[Any] = []
    monkeypatch.setattr(
        network_training, "device_memory", lambda device: asked.append(device) or 10**10
    )
    # Not once the host makes a batch.
    monkeypatch.setattr(Share, "rows", None)
    device = train(with_particles, tmp_path / "device", training)
    assert asked and equal(host.weights, device.weights)


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(
    sample: Path, tmp_path: Path
) -> None:
    whole = train(sample, tmp_path, replace(HLF, epochs=3))
    newest = max((tmp_path / "checkpoints").iterdir())
    newest.write_bytes(newest.read_bytes()[:500])
    lines: list[str] = []
    assert equal(
        train(sample, tmp_path, replace(HLF, epochs=3), log=lines.append).weights, whole.weights
    )
    assert lines[0] == "goes on after round 2"
    assert len((tmp_path / "training_log.jsonl").read_text().splitlines()) == 3


def test_checkpoints_of_another_training_are_refused(sample: Path, tmp_path: Path) -> None:
    train(sample, tmp_path, HLF)
    with pytest.raises(UsageError, match="another training") as error:
        train(sample, tmp_path, replace(HLF, learning_rate=0.5))
    assert error.value.found == "learning_rate=0.001"
    other = shutil.copytree(sample, tmp_path / "other")
    scalers = json.loads((other / "scalers.json").read_text())
    scalers["hlf"]["maximum"][0] += 1
    (other / "scalers.json").write_text(json.dumps(scalers))
    with pytest.raises(UsageError, match="another training"):
        train(other, tmp_path, HLF)


def test_training_stops_where_the_validation_gets_no_better_and_keeps_the_best_epoch(
    sample: Path, tmp_path: Path
) -> None:
    network = train(sample, tmp_path, Training("hlf", epochs=60, learning_rate=0.3, patience=2))
    losses = [line["validation_loss"] for line in read_log(tmp_path)]
    assert len(losses) < 60
    assert len(losses) - 1 - losses.index(min(losses)) == 2
    # The regression that it began with may be better.
    assert network.parameters["best_validation_loss"] <= min(losses) + 1e-5


def test_the_learning_rate_is_that_of_all_workers_and_then_falls() -> None:
    rate = HLF.rate(4, 1000)
    rates = [float(rate(step)) for step in (0, 50, 500, 1000)]
    assert rates[0] == pytest.approx(1e-3) and rates[1] == pytest.approx(4e-3)
    assert rates[1] > rates[2] > rates[3] == pytest.approx(4e-3 * network_training.LAST_RATE)
    assert float(HLF.rate(1, 1000)(0)) == pytest.approx(1e-3)


def test_a_stored_network_gives_the_probabilities_of_the_trained_one(
    sample: Path, tmp_path: Path
) -> None:
    network = train(sample, tmp_path, replace(HLF, epochs=6))
    hlf, _, label, _ = events(1_500, 99)
    probabilities = networks.load(tmp_path / "model").predict(hlf)
    assert probabilities.dtype == np.float32 and probabilities.shape == (1_500, 3)
    assert np.array_equal(probabilities, network.predict(hlf))
    assert probabilities.sum(axis=1) == pytest.approx(np.ones(1_500), abs=1e-5)
    assert networks.load(tmp_path / "model").predict(hlf[:7]) == pytest.approx(
        probabilities[:7], abs=1e-6
    )
    assert networks.load(tmp_path / "model").predict(hlf[:0]).shape == (0, 3)
    assert (probabilities.argmax(axis=1) == label).mean() > 0.75


@pytest.mark.parametrize("kind", ["sequence", "inclusive"])
def test_networks_of_particles_learn(kind: str, with_particles: Path, tmp_path: Path) -> None:
    train(with_particles, tmp_path, Training(kind, epochs=4, batch=32))
    hlf, low_level, label, _ = events(300, 99, particles=40)
    network = networks.load(tmp_path / "model")
    assert network.needs_low_level
    assert (network.predict(hlf, low_level).argmax(axis=1) == label).mean() > 0.55
    with pytest.raises(DataError, match="matrix of particles"):
        network.predict(hlf)


def batches(share: Share, size: int) -> Iterator[Rows]:
    """The batches of an epoch, and those of a fifth that judges."""
    part = share.split(0, 20)
    for positions, length in (*part.batches(size, 0, 1), *part.validation(size)):
        yield share.rows(positions, length)


@pytest.mark.parametrize("workers", [1, 2, 3, 9])
def test_shares_of_all_workers_are_the_sample_each_event_once(
    with_particles: Path, workers: int
) -> None:
    shares = [Share(with_particles, "hlf", rank, workers) for rank in range(workers)]
    seen = np.concatenate([rows.hlf[rows.weight > 0] for s in shares for rows in batches(s, 1)])
    whole = Share(with_particles, "hlf")
    rows_of_all = np.concatenate([rows.hlf[rows.weight > 0] for rows in batches(whole, 1)])
    assert sorted(map(tuple, seen.tolist())) == sorted(map(tuple, rows_of_all.tolist()))
    learned = [len(share.split(0, 20).learned) for share in (*shares, whole)]
    assert sum(learned[:-1]) == learned[-1]


def test_batches_of_an_epoch_are_shuffled_anew_and_the_same_again(with_particles: Path) -> None:
    share = Share(with_particles, "inclusive")
    first, again, next_epoch = (
        [positions for positions, _ in share.split(0, 20).batches(32, 5, epoch)]
        for epoch in (1, 1, 2)
    )
    assert np.array_equal(np.stack(first), np.stack(again))
    assert not np.array_equal(first[0], next_epoch[0])


def test_sequences_of_batches_are_those_of_the_matrices_and_end_with_the_longest(
    tmp_path: Path,
) -> None:
    sample = write_sample(tmp_path, 400, particles=150)
    share = Share(sample, "inclusive")
    source = read_events(sample / "train", low_level=True)
    assert source.low_level is not None
    expected = {
        hlf.tobytes(): sequence
        for hlf, sequence in zip(
            share.scalers.inputs(source.hlf),
            networks.make_sequences(share.scalers, source.low_level, share.layout),
            strict=True,
        )
    }
    seen, lengths = 0, set()
    for rows in batches(share, 16):
        lengths.add(rows.sequence.shape[1])
        for hlf, sequence in zip(rows.hlf[rows.weight > 0], rows.sequence, strict=False):
            whole = expected[hlf.tobytes()].astype(np.float16)
            assert np.array_equal(sequence, whole[: len(sequence)])
            assert not whole[len(sequence) :].any()
            seen += 1
    # Events have 75 to 150 particles; those of similar length are together.
    assert seen > 380 and lengths == {128, 192}


def test_batches_of_all_workers_are_equally_long_and_as_many(tmp_path: Path) -> None:
    sample = write_sample(tmp_path, 600, particles=150)
    shares = [Share(sample, "inclusive", rank, 2) for rank in range(2)]
    everyone = [(share.columns.lengths, share.columns.hundredths) for share in shares]
    # Else workers of unequal shares would be in batches of other lengths from then on.
    everyone[1] = (everyone[1][0][:-60], everyone[1][1][:-60])
    for share in shares:
        share.everyone = everyone
    parts = [share.split(0, 20) for share in shares]
    of_ranks = [[length for _, length in part.batches(8, 0, 1)] for part in parts]
    assert of_ranks[0] == of_ranks[1] and len(of_ranks[0]) == len(parts[1].learned) // 8
    validations = [[length for _, length in part.validation(32)] for part in parts]
    assert validations[0] == validations[1]


def test_what_is_no_sample_is_refused_with_its_reason(
    sample: Path, with_particles: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputMissing, match="scalers"):
        train(tmp_path, tmp_path, HLF)
    with pytest.raises(DataError, match="lack a column") as error:
        train(sample, tmp_path, Training("inclusive"))
    assert "events_prepare --low-level" in str(error.value.next_step)
    with pytest.raises(DataError, match="needs a batch"):
        train(sample, tmp_path, replace(HLF, batch=10**6))
    (tmp_path / "train").mkdir()
    for name in ("scalers.json", "schema.json"):
        (tmp_path / name).write_bytes((sample / name).read_bytes())
    part = next((sample / "train").iterdir())
    (tmp_path / "train/part-00000.parquet").write_bytes(part.read_bytes()[:2000])
    with pytest.raises(DataError, match="damaged"):
        train(tmp_path, tmp_path, HLF)


@pytest.mark.parametrize(
    "text", ["", "{}", '{"kind": "hlf"}', "[1]", '{"kind": "x", "parameters": {}, "seed": 0}']
)
def test_what_is_no_model_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(InputMissing):
        networks.load(tmp_path)
    (tmp_path / "model.json").write_text(text)
    np.savez(tmp_path / "weights.npz", a=np.zeros(1))
    with pytest.raises(DataError):
        networks.load(tmp_path)


@pytest.mark.parametrize("name", ["batch", "learning_rate", "patience"])
@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_a_number_that_cannot_be_is_refused(name: str, value: float) -> None:
    with pytest.raises(UsageError, match="must be above 0"):
        replace(HLF, **{name: value})


def test_the_launchers_variables_describe_the_world() -> None:
    environ = {"JAX_NUM_PROCESSES": "3", "JAX_PROCESS_ID": "2", "JAX_COORDINATOR_ADDRESS": "h:1"}
    assert World.from_environ(environ) == World(2, 3, "h:1")
    assert World.from_environ({}) == World()


def test_old_checkpoints_go_and_half_written_ones_are_none(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, {"a": 1})
    weights = {"w": np.ones(2, np.float32)}
    for epoch in range(1, 6):
        checkpoints.write(Progress(weights, (np.zeros(1),), weights, epoch, 0.5, 0))
    (tmp_path / "round-000009.part").write_bytes(b"half")
    assert sorted(path.name for path in tmp_path.glob("*.npz")) == [
        "round-000004.npz",
        "round-000005.npz",
    ]
    assert checkpoints.latest(Progress(weights, (np.zeros(1),), weights)).round == 5


class Elsewhere(LocalFiles):
    """A folder of this host as a store on HDFS."""

    def __init__(self, base: Path) -> None:
        self.base = base

    def stat(self, path: str) -> Entry | None:
        return super().stat(self._local(path))

    def list_dir(self, path: str) -> list[Entry]:
        return super().list_dir(self._local(path))

    def fetch(self, path: str, target: Path) -> None:
        super().fetch(self._local(path), target)

    def _local(self, path: str) -> str:
        return path.replace("hdfs://nn/store", str(self.base))


def test_of_a_sample_on_hdfs_a_network_learns_where_its_workers_are_on_this_host(
    small: Path, tmp_path: Path
) -> None:
    stored = StoredSample(f"hdfs://nn/store/{small.name}", "r1", False, 0, {"train": 1, "test": 1})
    learned: list[tuple[str, list[str], list[str]]] = []

    def learn(spark: Any, sample: Path, *_: Any) -> None:
        parts = sorted(path.name for path in (sample / "train").iterdir())
        learned.append((sample.name, parts, sorted(path.name for path in sample.iterdir())))

    options = TrainOptions(("hlf",), networks=learn)

    def train_on(master: str) -> None:
        spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(master=master))
        train_model(spark, Elsewhere(small.parent), stored, "hlf", tmp_path, options)

    train_on("local[2]")
    ((name, parts, entries),) = learned
    assert name == small.name and parts == sorted(p.name for p in (small / "train").iterdir())
    assert "scalers.json" in entries
    with pytest.raises(UsageError, match="all hosts mount"):
        train_on("yarn")
