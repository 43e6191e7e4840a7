"""FILES to what each dataset holds, beside a count in plain Python; and the partitions
and sums that it stands on.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cmsspark.base.arrays import joined, rounded, sums_by_group
from cmsspark.base.errors import DataError, OutputError
from cmsspark.counting.catalogue import Hash, name_hash
from cmsspark.dumps import dataset_contents, dump_frames
from cmsspark.dumps.dataset_contents import FILE_COLUMNS, FileMapper, FileMerge, known_datasets
from cmsspark.dumps.dump_plan import merge_key
from cmsspark.dumps.keyed_rows import KeyedRows, merge_kinds
from cmsspark.dumps.process_transport import PartSource, ProcessTransport

SCHEMA = pa.schema(zip(FILE_COLUMNS, [pa.string(), *[pa.int64()] * 5], strict=True))
Row = tuple[str | None, int | None, int | None, int | None, int | None, int | None]


def same_hash(name: bytes) -> int:
    """A hash that all names share."""
    return 7


def counted(rows: list[Row], known: dict[int, int], count: int) -> list[tuple[int | None, ...]]:
    """Files and invalid files, events and bytes of each dataset, and those of its
    invalid files, by the rules.
    """
    kept: dict[Any, tuple[Any, ...]] = {}
    for lfn, *facts in rows:
        if facts[1] not in known:
            continue
        name = lfn if lfn is not None else ("no name", facts[0])
        key = tuple((value is not None, value or 0) for value in facts)
        kept[name] = max(kept.get(name, ()), key)
    found: list[tuple[int | None, ...]] = []
    for number in range(count):
        of_dataset = [key for key in kept.values() if known[key[1][1]] == number]
        invalid = [key for key in of_dataset if key[2] != (True, 1)]
        sums = [
            sum(int(key[at][1]) for key in keys) if any(key[at][0] for key in of_dataset) else None
            for keys in (of_dataset, invalid)
            for at in (3, 4)
        ]
        found.append((len(of_dataset), len(invalid), *sums))
    return found


_SMALL = st.one_of(st.none(), st.integers(-2, 3))
_ROWS = st.lists(
    st.tuples(
        st.sampled_from(["/a", "/b", "/c", "", None]),
        _SMALL,
        st.sampled_from([1, 2, 3, 9, None]),
        _SMALL,
        _SMALL,
        st.one_of(st.none(), st.sampled_from([0, 2**53 + 1, 7])),
    ),
    max_size=30,
)


@settings(deadline=None, max_examples=150)
@given(
    _ROWS, st.integers(1, 4), st.sampled_from([1, 4, 256]), st.sampled_from([name_hash, same_hash])
)
def test_each_file_counts_once_with_its_largest_row_however_rows_are_spread(
    rows: list[Row], parts: int, keys: int, hash_name: Hash
) -> None:
    known = known_datasets([2, 1, 3], [0, 1, 0], 2)
    columns = list(zip(*rows, strict=True)) if rows else [[] for _ in FILE_COLUMNS]
    table = pa.table(
        [pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
    )
    pieces = [
        partial(iter, [table.slice(start, parts)]) for start in range(0, table.num_rows, parts)
    ]
    with tempfile.TemporaryDirectory() as folder:
        transport, merge = ProcessTransport(Path(folder)), FileMerge(keys, len(known.ids))
        mapped = transport.map(
            PartSource(pieces, 0), FileMapper(known, merge, hash_name=hash_name), keys
        )
        sums = transport.merge(mapped, keys, partial(merge_key, merge, False, None))
        again = partial(merge_kinds, {dataset_contents.TOTALS: dataset_contents.merge_totals})
        merged = transport.collect(transport.merge(sums, keys, again))
        found = dump_frames.make_frames(
            merged, known, pl.Series(["first", "second"]), ["contents"], ""
        )["contents"]
        assert not list(Path(folder).iterdir())
    assert found.drop("dataset_name").rows() == counted(rows, {2: 0, 1: 1, 3: 0}, 2)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(-(2**63), 2**63 - 1)), max_size=40))
def test_sums_are_exact_or_refused(rows: list[tuple[int, int]]) -> None:
    groups, values = (np.array([row[place] for row in rows], np.int64) for place in (0, 1))
    wanted = [sum(value for group, value in rows if group == number) for number in range(3)]
    upper, lower = sums_by_group(groups, values, 3)
    if all(-(2**63) <= one < 2**63 for one in wanted):
        assert joined(upper, lower, "x").tolist() == wanted
    else:
        with pytest.raises(DataError, match="the sum of x"):
            joined(upper, lower, "x")


def test_halves_are_rounded_away_from_0() -> None:
    values = [
        0.5,
        -0.5,
        1.4999999999999998,
        2.5,
        0.49999999999999994,
        2.0**53 + 2,
        2.0**63,
        float("inf"),
    ]
    whole, fits = rounded(np.array(values))
    assert whole.tolist() == [1, -1, 1, 3, 0, 2**53 + 2, 0, 0]
    assert fits.tolist() == [True] * 6 + [False] * 2


class Numbers:
    """Keyed rows of the numbers of a part, each under its own key."""

    def __call__(self, numbers: Any) -> Any:
        for number in numbers:
            yield KeyedRows(number % 4, "numbers", {"value": np.array([number])})


def total(key: int, rows: Any) -> Any:
    """The sum of the numbers of a key."""
    yield KeyedRows(
        key, "sum", {"value": np.array([sum(int(one.columns["value"][0]) for one in rows)])}
    )


def test_rows_of_a_key_meet_and_no_file_stays(tmp_path: Path) -> None:
    transport = ProcessTransport(tmp_path)
    parts = PartSource([partial(iter, range(start, start + 5)) for start in (0, 5, 10)], 0)
    rows = transport.union(
        [transport.map(parts, Numbers(), 4), transport.map(PartSource([], 0), Numbers(), 4)]
    )
    found = transport.collect(transport.merge(rows, 4, total))
    assert {one.key: one.columns["value"].tolist() for one in found} == {
        key: [sum(range(key, 15, 4))] for key in range(4)
    }
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_reported_with_what_to_free() -> None:
    with pytest.raises(OutputError, match="no room") as raised:
        ProcessTransport(Path("/nowhere")).map(PartSource([partial(iter, [1])], 0), Numbers(), 4)
    assert "cache_dir" in str(raised.value)
