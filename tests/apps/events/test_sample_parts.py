"""Keys, splits, scalers and parts, without Spark."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cmsspark.apps.events import sample
from cmsspark.apps.events.layout import TOPOLOGY
from cmsspark.apps.events.root_files import PartWriter, keep_only, read_events
from cmsspark.apps.events.sample import (
    SampleOptions,
    WriteTask,
    _as_bytes,
    _from_bytes,
    assign_parts,
    chosen_counts,
    is_test,
    last_bin,
    make_keys,
    write_small,
)
from cmsspark.apps.events.scalers import Moments, Scalers
from cmsspark.base.errors import DataError, InputMissing, OutputError
from cmsspark.filesystems.storage import LocalFiles
from tests.apps.events.events import (
    CLASSES,
    FEATURES,
    HLF_COUNT,
    MATRIX,
    PARTICLES,
    event_schema,
    write_schema,
)

RNG = np.random.default_rng(0)
HASHES = RNG.integers(0, 2**64, 100_000, dtype=np.uint64)
ROW = {"hlf": np.ones((1, 14)), "label": [1], "event_hash": HASHES[:1], "weight": [1.0]}


def write(folder: Path, number: int, rows: int, *, low_level: bool = False) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    columns = {
        "hlf": RNG.normal(size=(rows, HLF_COUNT)),
        "low_level": RNG.normal(size=(rows, MATRIX)),
        "label": np.arange(rows) % 3,
        "event_hash": HASHES[:rows],
        "weight": np.ones(rows),
    }
    with PartWriter(
        str(folder), number, event_schema(low_level=low_level, origin=False)
    ) as writer:
        writer.write({name: columns[name] for name in writer.schema.names})


def test_the_split_has_its_share_and_depends_on_no_seed() -> None:
    split = is_test(HASHES, 0.2)
    assert split.mean() == pytest.approx(0.2, abs=0.005)
    # An event of a small test part is in every larger one.
    assert not (is_test(HASHES, 0.1) & ~split).any()
    for seed in (0, 1):
        keys = make_keys(HASHES, seed)
        assert keys.min() >= 0 and len(np.unique(keys)) == len(keys)
        # The order says nothing of the split, or of the hash.
        assert split[np.argsort(keys)[:10_000]].mean() == pytest.approx(0.2, abs=0.02)
        assert abs(np.corrcoef(keys, HASHES.astype(float))[0, 1]) < 0.02
    assert (np.argsort(make_keys(HASHES, 0))[:100] != np.argsort(make_keys(HASHES, 1))[:100]).any()


def test_parts_are_ranges_of_keys_of_equal_size() -> None:
    keys = np.sort(make_keys(HASHES, 0))
    parts = assign_parts(keys, 7)
    assert (np.diff(parts) >= 0).all() and np.bincount(parts) == pytest.approx(
        len(keys) / 7, rel=0.05
    )


def test_as_many_events_of_each_class_as_the_smallest_has() -> None:
    available = {
        (False, 0): 90,
        (False, 1): 50,
        (False, 2): 70,
        (True, 0): 20,
        (True, 1): 30,
        (True, 2): 25,
    }
    assert chosen_counts(available, SampleOptions(), CLASSES) == {False: 50, True: 20}
    assert chosen_counts(available, SampleOptions(per_class=40), CLASSES) == {False: 40, True: 10}
    assert chosen_counts(available, SampleOptions(per_class=999), CLASSES) == {False: 50, True: 20}
    with pytest.raises(DataError, match="none of test ttbar"):
        chosen_counts({**available, (True, 1): 0}, SampleOptions(), CLASSES)


def test_the_last_chosen_key_is_found_by_bins() -> None:
    bins = {3: 5, 1: 2, 8: 4}
    assert [last_bin(bins, count) for count in (1, 2, 3, 7, 8, 11)] == [
        (1, 1),
        (1, 2),
        (3, 1),
        (3, 5),
        (8, 1),
        (8, 4),
    ]


def test_floats_travel_as_bytes_and_come_back() -> None:
    rows = RNG.normal(size=(7, 5)).astype(np.float32)
    packed = _as_bytes(rows)
    assert np.array_equal(_from_bytes(packed, 5), rows)
    assert np.array_equal(_from_bytes(packed.slice(2, 3), 5), rows[2:5])
    assert _from_bytes(packed.slice(0, 0), 5).shape == (0, 5)


def test_an_event_counts_once_in_each_class_and_weights_of_mean_1_are_weights(
    tmp_path: Path,
) -> None:
    def batch(*events: tuple[int, int, float]) -> pa.RecordBatch:
        keys, labels, weights = map(np.array, zip(*events, strict=True))
        columns = {
            "part": np.zeros(len(keys), np.int32),
            "key": keys,
            "label": labels.astype(np.int8),
            "event_hash": keys,
            "weight": weights,
            "hlf": _as_bytes(np.ones((len(keys), HLF_COUNT), np.float32)),
        }
        return pa.RecordBatch.from_pydict(columns)

    task = WriteTask((str(tmp_path), str(tmp_path)), (1, 1), TOPOLOGY.without_matrix())
    batches = [
        batch((1, 0, 0.5), (1, 0, 0.5), (1, 1, 1.0)),
        batch((1, 1, 1.0), (1, 2, 1.0), (2, 0, 1.5)),
    ]
    [row] = [
        json.loads(text) for rows in task(batches) for text in rows.column("result").to_pylist()
    ]
    assert row["labels"] == row["weights"] == [2, 1, 1]
    assert sample._scalers([row], TOPOLOGY.without_matrix()).mean_weights.tolist() == [1, 1, 1]


def test_scalers_of_parts_are_those_of_all_and_padding_stays_zero() -> None:
    hlf = RNG.normal(3, 2, (50, HLF_COUNT)).astype(np.float32)
    hlf[:, 5] = 4
    low_level = np.zeros((50, PARTICLES, FEATURES), np.float32)
    low_level[:, :20] = RNG.normal(100, 3, (50, 20, FEATURES))
    low_level[:, :20, 3] = 7
    whole = Moments.empty(TOPOLOGY)
    for part in (slice(0, 10), slice(10, 11), slice(11, 50)):
        other = Moments.empty(TOPOLOGY)
        other.add(hlf[part], low_level[part])
        whole.merge(Moments.from_dict(json.loads(json.dumps(other.as_dict()))))
    scalers = whole.scalers(low_level=True)
    particles = low_level[:, :20].reshape(-1, FEATURES).astype(float)
    assert scalers.mean == pytest.approx(particles.mean(axis=0)) and scalers.std == pytest.approx(
        particles.std(axis=0)
    )
    scaled = scalers.hlf(hlf)
    assert (
        scaled.dtype == np.float32
        and (scaled.min(), scaled.max()) == (0, 1)
        and not scaled[:, 5].any()
    )
    matrices = scalers.low_level(low_level)
    assert not matrices[:, 20:].any() and not matrices[..., 3].any()
    assert matrices[:, :20, 0].std() == pytest.approx(1, abs=1e-3)


def test_scalers_are_stored_and_damaged_ones_are_named(tmp_path: Path) -> None:
    scalers = Scalers(np.arange(14.0), np.arange(14.0) + 2)
    (tmp_path / "scalers.json").write_text(json.dumps(scalers.as_dict()))
    write_schema(tmp_path, low_level=True)
    assert Scalers.load(tmp_path).maximum.tolist() == scalers.maximum.tolist()
    few = {"hlf": {"minimum": [1], "maximum": [2]}, "low_level": None, "mean_weights": None}
    (tmp_path / "scalers.json").write_text(json.dumps(few))
    with pytest.raises(DataError, match="these scalers are not of these events"):
        Scalers.load(tmp_path)
    with pytest.raises(InputMissing):
        Scalers.load(tmp_path / "nowhere")
    with pytest.raises(DataError, match="without --low-level"):
        scalers.low_level(np.zeros((1, PARTICLES, FEATURES)))


def test_a_part_has_fixed_lists_and_appears_when_it_is_whole(tmp_path: Path) -> None:
    write(tmp_path, 3, 1_100, low_level=True)
    (part,) = tmp_path.iterdir()
    assert part.name.startswith("part-000003-") and part.suffix == ".parquet"
    file = pq.ParquetFile(part)
    assert file.schema_arrow.field("hlf").type.list_size == 14
    assert file.schema_arrow.field("low_level").type.list_size == MATRIX
    assert [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)] == [
        500,
        500,
        100,
    ]
    with (
        pytest.raises(RuntimeError),
        PartWriter(str(tmp_path), 4, event_schema(low_level=False)) as writer,
    ):
        writer.write({**ROW, "file": ["a"], "entry": [0]})
        raise RuntimeError
    with PartWriter(str(tmp_path), 5, event_schema(low_level=False)):
        pass
    assert list(tmp_path.iterdir()) == [part]


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with (
        pytest.raises(OutputError, match="a part cannot be written"),
        PartWriter(
            str(tmp_path / "gone"), 0, event_schema(low_level=False, origin=False)
        ) as writer,
    ):
        writer.write(ROW)


def test_parts_of_failed_tasks_are_removed(tmp_path: Path) -> None:
    write(tmp_path, 0, 10)
    kept = next(tmp_path.iterdir()).name
    write(tmp_path, 0, 10)
    (tmp_path / "_part-x.incomplete").write_text("")
    size = keep_only(LocalFiles(), str(tmp_path), [kept])
    assert [path.name for path in tmp_path.iterdir()] == [kept] and size == (
        tmp_path / kept
    ).stat().st_size
    with pytest.raises(OutputError, match="are not there"):
        keep_only(LocalFiles(), str(tmp_path), [kept, "part-000009.parquet"])


def test_small_samples_are_the_first_of_each_class(tmp_path: Path) -> None:
    for number in range(2):
        write(tmp_path / "train", number, 30, low_level=True)
    write_schema(tmp_path, low_level=True)
    entry = write_small(LocalFiles(), str(tmp_path / "train"), 12, TOPOLOGY)
    assert entry["rows"] == 36
    small = read_events(tmp_path / "small_train", low_level=True)
    hlf, low_level, labels = small.hlf, small.low_level, small.labels
    whole = read_events(tmp_path / "train", low_level=True)
    assert np.bincount(labels).tolist() == [12, 12, 12] and low_level is not None
    assert np.array_equal(hlf, whole.hlf[:36]) and low_level.shape == (36, PARTICLES, FEATURES)
    assert len(read_events(tmp_path / "train", limit=7).labels) == 7


def test_events_without_the_matrix_say_so(tmp_path: Path) -> None:
    write(tmp_path / "train", 0, 3)
    write_schema(tmp_path, low_level=False)
    with pytest.raises(DataError, match="lack a column"):
        read_events(tmp_path / "train", low_level=True)
    with pytest.raises(InputMissing):
        read_events(tmp_path / "none")
