"""Hashes and look-ups by compiled code are those of Python."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from cmsspark.base.hashed import find_pairs, hashes_of_texts
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
