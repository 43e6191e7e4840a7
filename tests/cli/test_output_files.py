"""Files that a command writes for its user: whole or not at all, also where the disk is full."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import polars as pl
import pytest

from cmsspark.base.errors import CmssparkError, Exit, OutputError, as_ours
from cmsspark.cli.options import write_file, write_table, write_text

ROWS = pl.DataFrame({"nacc": range(100_000)})


def onto_a_full_disk(path: Path) -> None:
    """What is written for ``path`` ends on a device that is always full."""
    (path.parent / f".{path.name}.part").symlink_to("/dev/full")


@pytest.mark.parametrize("ending", ["parquet", "csv", "jsonl", "html"])
def test_a_full_disk_is_named_and_leaves_no_part_of_the_file(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"result.{ending}"
    path.write_text("of before")
    onto_a_full_disk(path)
    with pytest.raises(OutputError, match="No space left on device") as error:
        if ending in ("parquet", "csv"):
            write_table(ROWS, path)
        elif ending == "jsonl":
            write_file(path, ROWS.write_ndjson, "the view")
        else:
            write_text(path, "x" * 100_000)
    assert error.value.where == path
    assert error.value.exit_code is Exit.NO_OUTPUT
    assert [left.name for left in tmp_path.iterdir()] == [path.name]
    assert path.read_text() == "of before"


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "result.parquet"
    for height in (3, 2):
        write_table(ROWS.head(height), path)
        assert pl.read_parquet(path).height == height
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_of_the_writer_is_passed_on_and_leaves_nothing(tmp_path: Path) -> None:
    def write(part: Path) -> None:
        part.write_text("half")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_file(tmp_path / "x", write)
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_the_system_is_no_bug_where_polars_reports_it() -> None:
    with pytest.raises(pl.exceptions.ComputeError) as error:
        ROWS.write_parquet("/dev/full")
    converted = as_ours(error.value)
    assert isinstance(converted, OutputError) and converted.found == "No space left on device"
    assert as_ours(pl.exceptions.ComputeError("a column is missing")) is None
    assert as_ours(ValueError("it says (os error 28) somewhere else")) is None


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(CmssparkError, match="the picture cannot be written") as error:
        write_file(
            tmp_path / "none" / "x.svg", partial(Path.write_bytes, data=b"x"), "the picture"
        )
    assert error.value.found == "No such file or directory"
