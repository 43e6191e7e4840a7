"""Hashes and look-ups by compiled code are those of Python."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from cmsspark.base.hashed import KeyedSums, find_pairs, hashes_of_texts, sorted_order
from cmsspark.counting import catalogue
from cmsspark.counting.catalogue import (
    NOT_THERE,
    check_hash,
    choose_bits,
    find_starts,
    hashes_in,
    name_hash,
)
from tests.counting.catalogues import found, opened

_TEXTS = st.lists(st.text(max_size=100), max_size=20)
_HASHES = st.integers(0, 2**64 - 1) | st.integers(0, 40) | st.integers(2**64 - 40, 2**64 - 1)


@settings(deadline=None, max_examples=200)
@given(_TEXTS, st.integers(0, 3))
def test_a_column_s_hashes_are_those_of_its_texts(texts: list[str], skipped: int) -> None:
    column = pa.chunked_array(
        [pa.array(texts, pa.string()).slice(skipped), pa.array(texts, pa.string())]
    )
    wanted = column.to_pylist()
    for hash_name in (name_hash, check_hash):
        assert hashes_in(column, hash_name).tolist() == [
            hash_name(text.encode()) for text in wanted
        ]


def test_every_length_is_hashed_as_xxhash_does() -> None:
    content = bytes(range(256)) * 2
    for seed in (0, 1, catalogue.CHECK_SEED, 2**64 - 1):
        ends = np.arange(len(content) + 1, dtype=np.int32)
        text = np.frombuffer(content, np.uint8)
        got = [int(hashes_of_texts(ends[[0, size]], text, seed)[0]) for size in range(300)]
        assert got == [xxhash.xxh64_intdigest(content[:size], seed=seed) for size in range(300)]


@pytest.mark.parametrize("ends", [[0, 5], [-1, 2], [2, 1], [3, 9]])
def test_texts_outside_of_the_content_are_refused(ends: list[int]) -> None:
    with pytest.raises(ValueError, match="outside"):
        hashes_of_texts(np.array(ends, np.int32), np.zeros(4, np.uint8), 0)


@settings(deadline=None, max_examples=300)
@given(st.lists(_HASHES, max_size=200, unique=True), st.lists(_HASHES, max_size=200))
def test_look_ups_find_what_is_there_and_nothing_else(there: list[int], asked: list[int]) -> None:
    hashes = np.sort(np.array(there, np.uint64))
    pairs = np.arange(len(hashes), dtype=np.int32) * 3
    wanted = np.array(there + asked, np.uint64)
    got = find_pairs(
        wanted,
        hashes,
        pairs,
        find_starts([hashes], len(hashes)),
        choose_bits(len(hashes)),
        NOT_THERE,
    )
    known = dict(zip(hashes.tolist(), pairs.tolist(), strict=True))
    assert got.tolist() == [known.get(one, NOT_THERE) for one in wanted.tolist()]


def test_many_hashes_are_found_in_short_runs() -> None:
    rng = np.random.default_rng(5)
    hashes = np.unique(rng.integers(0, 2**64, 100_000, np.uint64))
    starts = find_starts([hashes], len(hashes))
    assert np.diff(starts).max() < 60
    pairs = rng.integers(0, 1000, len(hashes)).astype(np.int32)
    rows = rng.permutation(len(hashes))
    got = find_pairs(hashes[rows], hashes, pairs, starts, choose_bits(len(hashes)), NOT_THERE)
    assert (got == pairs[rows]).all()
    got = find_pairs(
        hashes + np.uint64(1), hashes, pairs, starts, choose_bits(len(hashes)), NOT_THERE
    )
    assert (got == NOT_THERE).all()


def test_arrays_that_do_not_fit_are_refused() -> None:
    hashes, pairs = np.arange(20, dtype=np.uint64), np.zeros(20, np.int32)
    starts = find_starts([hashes], len(hashes))
    for wrong in (
        (hashes, pairs[:-1], starts, choose_bits(20)),
        (hashes[:-1], pairs[:-1], starts, choose_bits(20)),
        (hashes, pairs, starts[:-1], choose_bits(20)),
        (hashes, pairs, starts, 0),
    ):
        with pytest.raises(ValueError, match="do not fit"):
            find_pairs(hashes, *wrong, NOT_THERE)


def test_damaged_starts_are_refused_where_a_look_up_meets_them() -> None:
    hashes = np.unique(np.random.default_rng(5).integers(0, 2**64, 10_000, np.uint64))
    pairs, right, bits = (
        np.zeros(len(hashes), np.int32),
        find_starts([hashes], len(hashes)),
        choose_bits(len(hashes)),
    )
    for place in (0, 1, len(right) // 2, len(right) - 1):
        for bit in (31, 20):
            starts = right.copy()
            starts[place] ^= np.uint32(1 << bit)
            with pytest.raises(ValueError, match="do not fit its hashes"):
                find_pairs(hashes, hashes, pairs, starts, bits, NOT_THERE)


def test_with_compiled_code_and_without_it_the_same_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"/store/data/{number}.root" for number in range(500)]
    files = [(name, number % 7, 1, number) for number, name in enumerate(names[:300])]
    there = opened(tmp_path / "snapshot", files, [(1, "/A/B/RAW")])
    known = found(there, names)
    assert known == [(number % 7, "/A/B/RAW") for number in range(300)] + [None] * 200
    monkeypatch.setattr(catalogue, "_hashed", None)
    assert found(there, names) == known


_MOST = 2**63 - 1


def _place(key: int) -> int:
    """The place of a key in a table of 1024 places, which it has from the begin."""
    mixed = key * 0x9E3779B97F4A7C15 % 2**64
    return (mixed ^ (mixed >> 32)) & 1023


#: Keys of one place, and of the one before it, behind which they move.
_COLLIDING = [key for key in range(100_000) if _place(key) in (7, 8)][:60]
_KEYS = st.sampled_from([*_COLLIDING, 0, 1 << 32, _MOST]) | st.integers(0, _MOST)
_ROWS = st.lists(st.tuples(_KEYS, st.integers(0, 2**52), st.integers(0, 1)), max_size=150)


@settings(deadline=None, max_examples=200)
@given(st.lists(_ROWS, max_size=5))
def test_sums_by_key_are_those_of_a_dict(batches: list[list[tuple[int, int, int]]]) -> None:
    table, expected = KeyedSums(2), dict[int, list[int]]()
    for rows in batches:
        keys, *columns = np.array(rows, np.int64).reshape(-1, 3).T.copy()
        table.add(keys, columns)
        for key, *values in rows:
            sums = expected.setdefault(key, [0, 0])
            sums[:] = [total + value for total, value in zip(sums, values, strict=True)]
    keys, *columns = table.columns()
    assert table.count == len(expected)
    got = zip(keys.tolist(), *(column.tolist() for column in columns), strict=True)
    assert [(key, *sums) for key, sums in expected.items()] == list(got)


def test_a_table_of_sums_grows_with_its_keys() -> None:
    table, count = KeyedSums(1), 200_000
    keys = np.arange(count, dtype=np.int64) << 32
    for part in np.array_split(np.tile(keys, 3), 50):
        table.add(part, [np.ones(len(part), np.int64)])
    got, sums = table.columns()
    assert got.tolist() == keys.tolist()
    assert set(sums.tolist()) == {3}


def test_a_sum_up_to_64_bits_is_exact_and_one_beyond_names_its_column() -> None:
    table = KeyedSums(2)
    one, most = np.ones(1, np.int64), np.array([_MOST - 1], np.int64)
    table.add(one, [one, most])
    table.add(one, [one, one])
    assert [column.tolist() for column in table.columns()] == [[1], [2], [_MOST]]
    with pytest.raises(OverflowError) as error:
        table.add(one, [one, one])
    assert error.value.args == (1,)


def test_rows_that_do_not_fit_a_table_of_sums_are_refused() -> None:
    table, one = KeyedSums(2), np.ones(1, np.int64)
    for columns in ([one], [one, one, one], [one, np.ones(2, np.int64)], [one, np.ones(1)]):
        with pytest.raises(ValueError, match=r"column|expected"):
            table.add(one, columns)
    assert table.count == 0


@settings(deadline=None, max_examples=200)
@given(st.lists(_HASHES, max_size=80))
def test_the_order_of_hashes_is_that_of_a_stable_sort(values: list[int]) -> None:
    hashes = np.array(values, np.uint64)
    assert catalogue.sorted_order(hashes).tolist() == np.argsort(hashes, kind="stable").tolist()


def test_many_hashes_are_ordered_and_those_that_do_not_spread_are_left() -> None:
    hashes = np.random.default_rng(1).integers(0, 2**64, 50_000, np.uint64)
    hashes[30_000:] = hashes[:20_000]
    for shift in (0, 5, 30):
        shifted = hashes >> np.uint64(shift)
        assert (sorted_order(shifted) == np.argsort(shifted, kind="stable")).all()
    hashes[100:300] = 7
    assert sorted_order(hashes) is None
    assert (catalogue.sorted_order(hashes) == np.argsort(hashes, kind="stable")).all()
