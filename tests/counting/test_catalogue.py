"""The catalogue: a file's block and dataset, found as a dict would find them."""

from __future__ import annotations

import errno
import os
import threading
import tracemalloc
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cmsspark.base.compiled import unavailable_reason
from cmsspark.base.errors import DataError, OutputError
from cmsspark.base.private_folders import locked_folder
from cmsspark.counting import catalogue
from cmsspark.counting.catalogue import (
    FORMAT,
    Catalogue,
    DamagedSnapshot,
    Hash,
    Report,
    check_catalogue,
    name_hash,
    site_hashes,
)
from cmsspark.counting.catalogue_build import build_catalogue
from cmsspark.run.catalogue_snapshots import KEPT, open_or_build
from tests.counting.catalogues import (
    Dataset,
    File,
    build,
    dataset_tables,
    file_tables,
    found,
    opened,
    opened_replicas,
)

DATASETS: list[Dataset] = [(1, "/a/b/RAW"), (2, "/c/d/AOD"), (None, "/no/id/RAW"), (7, None)]


def always_one(name: bytes) -> int:
    return 1


def few(name: bytes) -> int:
    return sum(name) % 3


def by_dict(files: Sequence[File], datasets: Sequence[Dataset]) -> dict[str, tuple[int, str]]:
    """Rule 18 with a dict: rows without a dataset go first, then of one name the larger
    file_id counts.
    """
    names: dict[int, str] = {}
    for dataset, name in datasets:
        if dataset is not None and name is not None:
            names.setdefault(dataset, name)
    best: dict[str, tuple[int, int, int]] = {}
    for place, (lfn, _, dataset, file_id) in enumerate(files):
        if lfn is not None and dataset in names:
            number = -1 if file_id is None else file_id
            if best.get(lfn, (-2, -2, 0))[:2] < (number, place):
                best[lfn] = (number, place, place)
    told = {}
    for lfn, (_, _, place) in best.items():
        _, block, dataset, _ = files[place]
        assert dataset is not None
        told[lfn] = (-1 if block is None else block, names[dataset])
    return told


ASKED = (
    "/store/a",
    "/store/b",
    "/store/c",
    "/store/ü",
    "x",
    "",
    "/store/a ",
    "/store/user/a",
    "/unknown",
    "/store/a",
)


def _taken_for_another(name: str, known: Iterable[str], hash_name: Hash) -> bool:
    """With a weak hash: a single known name has the hash of an unknown one. Of 64 bits
    that is not to be expected.
    """
    return sum(hash_name(other.encode()) == hash_name(name.encode()) for other in known) == 1


_NAMES = st.sampled_from(
    ["/store/a", "/store/b", "/store/c", "/store/ü", "x", "", "/store/a ", "/store/user/a"]
)
_FILES = st.lists(
    st.tuples(
        st.none() | _NAMES,
        st.none() | st.integers(0, 5),
        st.none() | st.sampled_from([1, 2, 2, 7, 99]),
        st.none() | st.integers(0, 4),
    ),
    max_size=20,
)


@settings(deadline=None, max_examples=250)
@given(
    _FILES,
    st.sampled_from([name_hash, few, always_one]),
    st.integers(1, 7),
    st.sampled_from([1, 2, 5, 1000]),
)
def test_a_name_is_found_as_in_a_dict(
    files: list[File], hash_name: Hash, part: int, rows: int
) -> None:
    wanted = by_dict(files, DATASETS)
    asked = [
        name for name in ASKED if name in wanted or not _taken_for_another(name, wanted, hash_name)
    ]
    with TemporaryDirectory() as folder:
        snapshot = opened(Path(folder), files, DATASETS, hash_name, part, rows)
        assert found(snapshot, asked) == [wanted.get(name) for name in asked]


@settings(deadline=None, max_examples=100)
@given(_FILES, st.sampled_from([name_hash, few, always_one]), st.sampled_from([1, 3, 1000]))
def test_the_report_has_each_row_once(files: list[File], hash_name: Hash, rows: int) -> None:
    with TemporaryDirectory() as folder:
        report = build(Path(folder), files, DATASETS, hash_name, rows=rows)
        snapshot = Catalogue(Path(folder), hash_name)
    nulls = sum(lfn is None for lfn, *_ in files)
    known = [lfn for lfn, _, dataset, _ in files if lfn is not None and dataset in (1, 2)]
    orphans = len(files) - nulls - len(known)
    duplicates = len(known) - len(set(known))
    by_hash: dict[int, set[str]] = {}
    for lfn in known:
        by_hash.setdefault(hash_name(lfn.encode()), set()).add(lfn)
    collisions = sum(len(names) for names in by_hash.values() if len(names) > 1)
    assert report == Report(len(files), nulls, orphans, duplicates, collisions) == snapshot.report
    assert len(snapshot.hashes) == len(by_hash)


def test_of_a_name_twice_the_larger_file_id_counts_unless_it_has_no_dataset(
    tmp_path: Path,
) -> None:
    files: list[File] = [
        ("/twice", 10, 1, 5),
        ("/twice", 20, 2, 6),
        ("/twice", 30, 1, None),
        ("/twice", 40, 99, 7),
        ("/twice", 50, None, 8),
    ]
    for number, order in enumerate((files, files[::-1], files[2:] + files[:2])):
        snapshot = opened(tmp_path / str(number), order, DATASETS)
        assert found(snapshot, ["/twice"]) == [(20, "/c/d/AOD")]
        assert (snapshot.report.duplicates, snapshot.report.orphans) == (2, 2)


def test_names_that_share_a_hash_are_distinguished_and_others_of_that_hash_are_not_there(
    tmp_path: Path,
) -> None:
    files: list[File] = [("/a", 1, 1, None), ("/b", 2, 2, None), ("/c", 3, 1, 3)]
    snapshot = opened(tmp_path, files, DATASETS, always_one)
    assert found(snapshot, ["/c", "/b", "/a", "/d", "/a"]) == [
        (3, "/a/b/RAW"),
        (2, "/c/d/AOD"),
        (1, "/a/b/RAW"),
        None,
        (1, "/a/b/RAW"),
    ]
    assert snapshot.report.collisions == 3


def test_a_snapshot_is_the_same_bytes_in_however_many_runs_it_was_made(tmp_path: Path) -> None:
    files: list[File] = [(f"/store/{n % 700}", n % 50, 1 + n % 2, n % 31) for n in range(1_000)]
    for rows in (7, 64, 10_000):
        build(tmp_path / str(rows), files, DATASETS, part=90, rows=rows)
    made = {rows: Catalogue(tmp_path / str(rows)) for rows in (7, 64, 10_000)}
    for name in ("hashes", "pairs", "starts", "pair_blocks", "pair_datasets"):
        one, *others = (getattr(one, name) for one in made.values())
        assert all(one.dtype == other.dtype and one.tolist() == other.tolist() for other in others)
    assert (made[7].hashes[1:] > made[7].hashes[:-1]).all()
    assert not (tmp_path / "7" / "runs").exists()


def test_what_building_holds_does_not_grow_with_the_dump(tmp_path: Path) -> None:
    def held(files: int) -> int:
        def part(first: int, last: int) -> Iterator[pa.Table]:
            for start in range(first, last, 1_000):
                yield from file_tables(
                    [(f"/store/{n}", 1, 1, n) for n in range(start, start + 1_000)], 1_000
                )

        folder = tmp_path / str(files)
        folder.mkdir()
        parts = [partial(part, start, start + files // 2) for start in (0, files // 2)]
        tracemalloc.start()
        build_catalogue(folder, parts, dataset_tables(DATASETS), rows=2_000)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert len(Catalogue(folder).hashes) == files
        return peak

    held(4_000)  # what is imported at first counts for none
    # The starts of the hashes grow: half a byte for each file.
    assert held(80_000) - held(8_000) < 8 * 72_000


def test_no_room_for_a_snapshot_is_reported(tmp_path: Path) -> None:
    def full(folder: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OutputError, match="no room") as error:
        open_or_build(tmp_path, "catalogue", "dump", full)
    assert error.value.exit_code == 73
    assert str(tmp_path) in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_an_empty_catalogue_has_nothing(tmp_path: Path) -> None:
    for number, (files, datasets) in enumerate(
        [([], []), ([], DATASETS), ([("/a", 1, 1, 1)], [])]
    ):
        snapshot = opened(tmp_path / str(number), files, datasets)
        assert found(snapshot, ["/a", ""]) == [None, None]
        assert snapshot.lookup([]).tolist() == []


def test_a_snapshot_is_mapped_not_read(tmp_path: Path) -> None:
    snapshot = opened(tmp_path, [("/a", 1, 1, 1), ("/b", 2, 2, 2)], DATASETS)
    for array in (snapshot.hashes, snapshot.pairs, snapshot.pair_blocks, snapshot.pair_datasets):
        assert isinstance(array.base, np.memmap)
    assert snapshot.hashes.dtype == np.uint64
    assert snapshot.pairs.itemsize + snapshot.hashes.itemsize == 12


def test_a_mapped_snapshot_outlives_its_files(tmp_path: Path) -> None:
    snapshot = opened(tmp_path, [("/a", 1, 1, 1)], DATASETS)
    for file in tmp_path.iterdir():
        if file.suffix == ".npy":
            file.unlink()
    assert found(snapshot, ["/a"]) == [(1, "/a/b/RAW")]


@pytest.mark.skipif(bool(unavailable_reason()), reason="of compiled code")
def test_a_snapshot_that_was_damaged_on_disk_is_named(tmp_path: Path) -> None:
    build(tmp_path, [(f"/store/{number}", 1, 1, 1) for number in range(100)], DATASETS, part=100)
    starts = np.load(tmp_path / "starts.npy")
    starts[:-1] = 2**31
    np.save(tmp_path / "starts.npy", starts)
    with pytest.raises(DataError, match="catalogue snapshot is damaged") as error:
        Catalogue(tmp_path).lookup([b"/store/1"])
    assert str(tmp_path) in str(error.value) and "delete that folder" in str(error.value)


def test_a_replica_is_there_for_its_block_and_site_only(tmp_path: Path) -> None:
    blocks = [(1, "/a#1"), (2, "/a#2"), (3, "/a#1"), (None, "/a#2"), (4, None)]
    replicas = [
        ("/a#1", "T2_X"),
        ("/a#1", "T2_X"),
        ("/nobody#9", "T2_X"),
        (None, "T2_X"),
        ("/a#2", "T1_Y"),
    ]
    opened_ = opened_replicas(tmp_path, blocks, replicas)
    asked = [
        (1, "T2_X"),
        (3, "T2_X"),
        (2, "T1_Y"),
        (2, "T2_X"),
        (1, "T1_Y"),
        (4, "T2_X"),
        (-1, "T2_X"),
        (1, "unknown"),
    ]
    there = opened_.has_replica(
        np.array([block for block, _ in asked]), site_hashes([site for _, site in asked])
    )
    assert there.tolist() == [True, True, True, False, False, False, False, False]
    assert len(opened_.hashes) == 3


def test_many_replicas_are_found_with_and_without_compiled_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = [(number, f"/a#{number}") for number in range(5_000)]
    stored = {(number * number % 5_000, f"T2_{number % 7}") for number in range(3_000)}
    replicas = opened_replicas(
        tmp_path, blocks, [(f"/a#{number}", site) for number, site in stored]
    )
    asked = [(number, f"T2_{number % 9}") for number in range(5_000)]
    arguments = np.array([number for number, _ in asked]), site_hashes([site for _, site in asked])
    expected = [pair in stored for pair in asked]
    assert 50 < sum(expected) < 4_950
    assert replicas.has_replica(*arguments).tolist() == expected
    monkeypatch.setattr(catalogue, "_hashed", None)
    assert replicas.has_replica(*arguments).tolist() == expected


def test_without_replicas_nothing_is_there(tmp_path: Path) -> None:
    empty = opened_replicas(tmp_path, [], [])
    assert empty.has_replica(np.array([1, -1]), site_hashes(["T2_X", "T2_X"])).tolist() == [
        False,
        False,
    ]


def _write(folder: Path) -> None:
    build(folder, [("/a", 1, 1, 1)], DATASETS)


def test_a_snapshot_is_built_once_and_then_opened(tmp_path: Path) -> None:
    folder, built = open_or_build(tmp_path / "cache", "catalogue", "dump 1", _write)
    assert built
    assert open_or_build(tmp_path / "cache", "catalogue", "dump 1", _fail) == (folder, False)
    other, built = open_or_build(tmp_path / "cache", "catalogue", "dump 2", _write)
    assert built
    assert other != folder


def _fail(folder: Path) -> None:
    (folder / "half").write_bytes(b"x")
    raise ValueError("the dump is damaged")


def test_a_builder_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="damaged"):
        open_or_build(tmp_path, "catalogue", "dump", _fail)
    assert list(tmp_path.iterdir()) == []
    assert open_or_build(tmp_path, "catalogue", "dump", _write)[1]


def test_builders_at_once_end_with_one_snapshot(tmp_path: Path) -> None:
    together = threading.Barrier(4)

    def build_together(folder: Path) -> None:
        together.wait(300)
        _write(folder)
        together.wait(300)

    with ThreadPoolExecutor(4) as pool:
        ended = list(
            pool.map(
                lambda _: open_or_build(tmp_path, "catalogue", "dump", build_together), range(4)
            )
        )
    assert len({folder for folder, _ in ended}) == 1
    assert [entry.name for entry in tmp_path.iterdir()] == [ended[0][0].name]
    assert found(Catalogue(ended[0][0]), ["/a"]) == [(1, "/a/b/RAW")]


def test_old_snapshots_go_and_the_newest_stay_for_each_kind(tmp_path: Path) -> None:
    made = []
    for number in range(KEPT + 2):
        folder, _ = open_or_build(tmp_path, "catalogue", f"dump {number}", _write)
        made.append(folder)
        os.utime(folder, (number, number))
    replicas, _ = open_or_build(tmp_path, "replicas", "dump 0", _write)
    os.utime(replicas, (0, 0))
    again, _ = open_or_build(tmp_path, "catalogue", f"dump {len(made) - 1}", _fail)
    newest, _ = open_or_build(tmp_path, "catalogue", "the newest", _write)
    assert set(tmp_path.iterdir()) == {replicas, newest, again, *made[-KEPT + 1 :]}


def test_what_a_killed_builder_left_goes_when_another_one_is_built(tmp_path: Path) -> None:
    left = tmp_path / f".catalogue-v{FORMAT}-killed"
    with locked_folder(tmp_path, f".catalogue-v{FORMAT}-") as being_built:
        left.mkdir()
        for name in ("hashes.npy", "lock"):
            (left / name).write_bytes(b"half")
        made, _ = open_or_build(tmp_path, "catalogue", "dump", _write)
        assert set(tmp_path.iterdir()) == {made, being_built}
    assert "lock" not in {path.name for path in made.iterdir()}


def test_a_snapshot_in_use_counts_as_new(tmp_path: Path) -> None:
    used, _ = open_or_build(tmp_path, "catalogue", "used", _write)
    os.utime(used, (0, 0))
    open_or_build(tmp_path, "catalogue", "used", _fail)
    assert used.stat().st_mtime > 0


def test_a_cache_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OutputError, match="cache folder") as error:
        open_or_build(tmp_path / "file" / "cache", "catalogue", "dump", _write)
    assert error.value.exit_code == 73


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("meta.json", b""),
        ("meta.json", b"[]"),
        ("hashes.npy", b""),
        ("hashes.npy", b"\0" * 10),
        ("pairs.npy", None),
        ("datasets.arrow", b""),
        ("datasets.arrow", b"\0" * 10),
        ("datasets.arrow", None),
    ],
)
def test_a_snapshot_that_cannot_be_opened_is_built_anew(
    tmp_path: Path, name: str, content: bytes | None
) -> None:
    folder, _ = open_or_build(tmp_path, "catalogue", "dump", _write, check_catalogue)
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    with pytest.raises(DamagedSnapshot, match="catalogue snapshot is damaged"):
        check_catalogue(folder)
    assert open_or_build(tmp_path, "catalogue", "dump", _write, check_catalogue) == (folder, True)
    assert open_or_build(tmp_path, "catalogue", "dump", _fail, check_catalogue) == (folder, False)
    assert found(Catalogue(folder), ["/a"]) == [(1, "/a/b/RAW")]
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


def test_an_error_of_the_disk_is_damage_and_a_shortage_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = open_or_build(tmp_path, "catalogue", "dump", _write)

    def failing(number: int) -> None:
        def load(path: Path, **options: object) -> None:
            raise OSError(number, os.strerror(number), str(path))

        monkeypatch.setattr(np, "load", load)

    failing(errno.EIO)
    with pytest.raises(DamagedSnapshot, match="Input/output error"):
        check_catalogue(folder)
    failing(errno.EMFILE)
    with pytest.raises(OSError, match="Too many open files"):
        open_or_build(tmp_path, "catalogue", "dump", _fail, check_catalogue)


def test_a_cache_disk_that_fails_while_a_snapshot_is_written_is_73(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        raise OSError(errno.EIO, "Input/output error", str(folder / "hashes.npy"))

    with pytest.raises(OutputError, match=r"hashes\.npy"):
        open_or_build(tmp_path, "catalogue", "dump", fail)
    assert list(tmp_path.iterdir()) == []
