"""FILES to what each dataset holds, beside a count in plain Python; and the partitions and sums that it stands on."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cmsspark.base.errors import DataError, OutputError
from cmsspark.base.exact_integers import joined, rounded, sums_by_group
from cmsspark.counting.catalogue import Hash, name_hash
from cmsspark.dumps.dataset_contents import FILE_COLUMNS, dataset_contents, known_datasets
from cmsspark.dumps.partitions import PARTITIONS, PartitionedRun, ranges

SCHEMA = pa.schema(zip(FILE_COLUMNS, [pa.string(), *[pa.int64()] * 5], strict=True))
Row = tuple[str | None, int | None, int | None, int | None, int | None, int | None]


def same_hash(name: bytes) -> int:
    """A hash that all names share."""
    return 7


def counted(rows: list[Row], known: dict[int, int], count: int) -> list[tuple[int, int, int | None, int | None]]:
    """Files, invalid files, events and bytes of each dataset, by the rule."""
    kept: dict[Any, tuple[Any, ...]] = {}
    for lfn, *facts in rows:
        if facts[1] not in known:
            continue
        name = lfn if lfn is not None else ("no name", facts[0])
        key = tuple((value is not None, value or 0) for value in facts)
        kept[name] = max(kept.get(name, ()), key)
    found = []
    for number in range(count):
        of_dataset = [key for key in kept.values() if known[key[1][1]] == number]
        events = [key[3][1] for key in of_dataset if key[3][0]]
        sizes = [int(key[4][1]) for key in of_dataset if key[4][0]]
        invalid = sum(key[2] != (True, 1) for key in of_dataset)
        found.append((len(of_dataset), invalid, sum(events) if events else None, sum(sizes) if sizes else None))
    return found


_SMALL = st.one_of(st.none(), st.integers(-2, 3))
_ROWS = st.lists(
    st.tuples(st.sampled_from(["/a", "/b", "/c", "", None]), _SMALL, st.sampled_from([1, 2, 3, 9, None]), _SMALL,
              _SMALL, st.one_of(st.none(), st.sampled_from([0, 2**53 + 1, 7]))),
    max_size=30,
)  # fmt: skip


@settings(deadline=None, max_examples=150)
@given(_ROWS, st.integers(1, 4), st.sampled_from([name_hash, same_hash]))
def test_each_file_counts_once_with_its_largest_row_however_rows_are_spread(
    rows: list[Row], parts: int, hash_name: Hash
) -> None:
    known = known_datasets([2, 1, 3], [0, 1, 0], 2)
    columns = list(zip(*rows, strict=True)) if rows else [[] for _ in FILE_COLUMNS]
    table = pa.table([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)
    pieces = [partial(iter, [table.slice(start, parts)]) for start in range(0, table.num_rows, parts)]
    with tempfile.TemporaryDirectory() as folder:
        found = dataset_contents(pieces, known, Path(folder), hash_name=hash_name, rows=3)
    events = [int(value) if there else None for value, there in zip(found.events, found.has_events, strict=True)]
    sizes = [int(value) if there else None for value, there in zip(found.bytes, found.has_bytes, strict=True)]
    got = list(zip(found.files.tolist(), found.invalid_files.tolist(), events, sizes, strict=True))
    assert got == counted(rows, {2: 0, 1: 1, 3: 0}, 2)


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
    values = [0.5, -0.5, 1.4999999999999998, 2.5, 0.49999999999999994, 2.0**53 + 2, 2.0**63, float("inf")]
    whole, fits = rounded(np.array(values))
    assert whole.tolist() == [1, -1, 1, 3, 0, 2**53 + 2, 0, 0]
    assert fits.tolist() == [True] * 6 + [False] * 2


def runs_of(folder: Path, *partitions: list[int]) -> Iterator[PartitionedRun]:
    for number, some in enumerate(partitions):
        columns = {"value": np.array(some, np.int64) * 10, "run": np.full(len(some), number, np.uint8)}
        yield PartitionedRun.write(folder, np.array(some, np.uint8), columns)


def test_ranges_have_all_rows_of_their_partitions_once(tmp_path: Path) -> None:
    runs = list(runs_of(tmp_path, [5, 1, 255, 1], [], [1, 7]))
    found = [(one.first, one.last, one.column("value").tolist(), one.column("run").tolist()) for one in ranges(runs, 3)]
    assert [one[2] for one in found] == [[10, 10, 10], [50, 2550, 70]]
    assert [one[3] for one in found] == [[0, 0, 2], [0, 0, 2]]
    assert found[0][0] == 0 and found[-1][1] == PARTITIONS and found[0][1] == found[1][0]
    assert list(ranges(list(runs_of(tmp_path, [])))) == []


def test_a_full_disk_is_reported_with_what_to_free() -> None:
    with pytest.raises(OutputError, match="no room") as raised:
        list(runs_of(Path("/nowhere"), [1]))
    assert "cache_dir" in str(raised.value)
