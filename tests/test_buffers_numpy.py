"""Numbers and flags between numpy and Arrow, by their buffers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cmsspark.base.buffers import flags, from_numpy, is_there, to_numpy

LONGS = st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), max_size=40)


@settings(deadline=None)  # the first import of pandas by pa.array takes its time
@given(LONGS, LONGS, st.integers(0, 10))
def test_any_column_in_any_chunks_is_read_as_it_is(
    first: list[int | None], second: list[int | None], cut: int
) -> None:
    column = pa.chunked_array(
        [pa.array(first, pa.int64()).slice(cut), pa.array(second, pa.int64())]
    )
    wanted = first[cut:] + second
    assert is_there(column).tolist() == [value is not None for value in wanted]
    assert to_numpy(column, np.int64, -1).tolist() == [
        -1 if value is None else value for value in wanted
    ]


@pytest.mark.parametrize("kind", [np.int32, np.int64, np.float64])
@given(values=st.lists(st.tuples(st.integers(0, 99), st.booleans()), max_size=40))
def test_numbers_become_an_array_with_nulls(
    kind: type[np.generic], values: list[tuple[int, bool]]
) -> None:
    numbers = np.array([number for number, _ in values], kind)
    made = from_numpy(numbers, np.array([there for _, there in values], np.bool_))
    made.validate(full=True)
    assert made.to_pylist() == [number if there else None for number, there in values]
    assert from_numpy(numbers).null_count == 0


@given(st.lists(st.booleans(), max_size=40))
def test_flags_are_kept(values: list[bool]) -> None:
    made = flags(np.array(values, np.bool_))
    made.validate(full=True)
    assert made.to_pylist() == values


def test_texts_and_columns_of_nulls_alone_are_reported() -> None:
    assert is_there(pa.array(["a", None, "", None]).slice(1)).tolist() == [False, True, False]
    assert is_there(pa.array([None, None])).tolist() == [False, False]
    assert to_numpy(pa.array([None], pa.int64()), np.int64, 7).tolist() == [7]
    assert to_numpy(pa.chunked_array([], pa.int64()), np.int64).tolist() == []


def test_a_day_is_counted_stored_and_shown_without_pandas(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from datetime import date\n"
        "from pathlib import Path\n"
        "from cmsspark.apps import demo\n"
        "from cmsspark.run.log_day import run\n"
        "from cmsspark.run.request import DayRequest\n"
        "from cmsspark.run.run_report import write_page\n"
        "from cmsspark.settings.settings import Settings\n"
        "place, day = Path(sys.argv[1]), date(2026, 1, 15)\n"
        "demo.make(place / 'root', day, records=2_000, files=900, datasets=20, people=20)\n"
        "settings = Settings(None, None, place / 'state', place / 'cache')\n"
        "asked = DayRequest('data_aggregation', day, str(place / 'out'), settings, root=str(place / 'root'))\n"
        "done = run(asked)\n"
        "write_page(asked.fout, asked.job, done, lambda line: print(line, file=sys.stderr))\n"
        "run(DayRequest('dbs_aaa', day, asked.fout, settings, asked.root, streams=('aaa',), tables=('dbs_aaa',)))\n"
        "print([name for name in ('pandas', 'pyspark', 'polars') if name in sys.modules])\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert told.stdout == "[]\n", told.stderr
    assert "taken from data_aggregation" in told.stderr
    assert "where every record went: " in told.stderr
