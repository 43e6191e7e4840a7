"""Files that a command writes for its user (``-o FILE``): whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cmsspark.errors import OutputError, UsageError

if TYPE_CHECKING:
    import polars as pl

_TABLES: Final = (".parquet", ".csv")


def check_table_path(path: Path | None) -> None:
    """Raises UsageError (2) for a name that does not end in .csv or .parquet: before any work is done."""
    if path is not None and path.suffix not in _TABLES:
        raise UsageError(
            f"the kind of {path.name} is not known",
            found=path.suffix or "no ending",
            next_step="name it .csv or .parquet",
        )


def write_table(rows: pl.DataFrame, path: Path) -> None:
    """Write rows as CSV or Parquet, by the ending. Raises UsageError (2) for another ending, OutputError (73)."""
    check_table_path(path)
    _write(path, rows.write_parquet if path.suffix == ".parquet" else rows.write_csv)


def write_text(path: Path, text: str) -> None:
    """Write a text. Raises OutputError (73)."""
    _write(path, lambda part: part.write_text(text, encoding="utf-8"))


def _write(path: Path, write: Callable[[Path], object]) -> None:
    part = path.with_name(f".{path.name}.part")
    try:
        write(part)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise OutputError(
            "the file cannot be written", where=path, found=error.strerror or str(error),
            next_step="give another --output",
        ) from None  # fmt: skip
