"""A damaged Parquet file of somebody else ends in 65 with its name, whatever becomes of
the library that reads it.
"""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cmsspark.apps.cache.trace import read_trace
from cmsspark.apps.placement.inputs import read_reads
from cmsspark.apps.popularity.series import read_series
from cmsspark.base import foreign_parquet
from cmsspark.base.errors import DataError
from cmsspark.base.foreign_parquet import _copy, open_parquet

ROWS = pa.table(
    {
        "day": [f"2026-01-{1 + number % 28:02}" for number in range(900)],
        "dataset": [f"/A{number % 7}/B/AOD" for number in range(900)],
        "site": ["T2_CH_CERN"] * 900,
        "accesses": list(range(900)),
    }
)


def write(path: Path, rows: pa.Table = ROWS) -> bytes:
    pq.write_table(rows, path, row_group_size=300, write_page_checksum=True)
    return path.read_bytes()


def read_all(path: Path, *columns: str) -> tuple[list[str], pa.Table]:
    with open_parquet(path, "reads", columns) as (names, schema, batches):
        return names, pa.Table.from_batches(batches, schema)


def test_the_rows_of_the_columns_that_a_file_has_come_through(tmp_path: Path) -> None:
    path = tmp_path / "reads.parquet"
    write(path)
    assert read_all(path)[1].equals(ROWS)
    names, rows = read_all(path, "accesses", "remote", "day")
    assert names == ROWS.column_names and rows.equals(ROWS.select(["day", "accesses"]))
    write(path, ROWS.slice(0, 0))
    assert read_all(path)[1].equals(ROWS.slice(0, 0))


def test_a_flipped_bit_of_the_rows_is_refused_or_changes_no_value(tmp_path: Path) -> None:
    path = tmp_path / "reads.parquet"
    content = write(path)
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    numbers, refused = random.Random(7), 0
    for trial in range(300):
        # Half of them in the footer, where a flip may rename a column, and lose no row.
        first, last = (0, footer) if trial % 2 else (footer, len(content))
        offset = numbers.randrange(first, last)
        flipped = bytes([content[offset] ^ 1 << numbers.randrange(8)])
        path.write_bytes(content[:offset] + flipped + content[offset + 1 :])
        out = io.BytesIO()
        try:
            _copy(str(path), (), out)
        except Exception:
            refused += 1
            continue
        rows = pa.ipc.open_stream(out.getvalue()).read_all()
        assert rows.num_rows == ROWS.num_rows
        if trial % 2:
            assert rows.equals(ROWS)
    assert refused > 100


READERS: dict[str, Callable[[Path], object]] = {
    "accesses": read_series,
    "reads": read_reads,
    "trace": read_trace,
}


@pytest.mark.parametrize("label", READERS)
def test_every_reader_names_a_damaged_file(label: str, tmp_path: Path) -> None:
    path = tmp_path / "given.parquet"
    content = write(path)
    # The footer says more bytes than there are; some rows are others; nothing but letters.
    for damaged in (
        content[:-6] + b"\xff\xff" + content[-4:],
        content[:40] + b"\xff" * 30 + content[70:],
        content[: len(content) // 2],
        b"PAR1PAR1",
    ):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=f"the {label} (cannot be read|has no|needs)") as error:
            READERS[label](path)
        assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("program", "text"),
    [
        ("import os; os.abort()", "its reader ended with SIGABRT"),
        (
            "import os, sys; sys.stderr.write(\"thread 'x' panicked at y.rs:1\\n\"); os.kill(os.getpid(), 11)",
            "SIGSEGV: thread 'x' panicked at y.rs:1",
        ),
        (
            "import sys, pyarrow as pa\nb = pa.record_batch({'day': [1]})\n"
            "w = pa.ipc.new_stream(sys.stdout.buffer, b.schema)\nw.write_batch(b)\nw.close()\n"
            "sys.stdout.flush(); sys.exit('one row of two')",
            "one row of two",
        ),
    ],
)
def test_a_library_that_ends_its_process_is_damage_of_the_file(
    program: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign_parquet, "_MAIN", program)
    path = tmp_path / "reads.parquet"
    write(path)
    with pytest.raises(DataError) as error:
        read_all(path)
    assert text in str(error.value) and str(path) in str(error.value)
