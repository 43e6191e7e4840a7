"""Files that a command writes for its user (``-o FILE``): whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cmsspark.base.errors import OutputError, UsageError, os_error_number

if TYPE_CHECKING:
    import polars as pl

_TABLES: Final = (".parquet", ".csv")


def check_table_path(path: Path | None) -> None:
    """Raise UsageError (2) for a name that does not end in .csv or .parquet: before any
    work is done.
    """
    if path is not None and path.suffix not in _TABLES:
        raise UsageError(
            f"the kind of {path.name} is not known",
            found=path.suffix or "no ending",
            next_step="name it .csv or .parquet",
        )


def write_table(rows: pl.DataFrame, path: Path) -> None:
    """Write rows as CSV or Parquet, by the ending. Raises UsageError (2) for another
    ending, OutputError (73).
    """
    check_table_path(path)
    write_file(path, rows.write_parquet if path.suffix == ".parquet" else rows.write_csv)


def write_text(path: Path, text: str) -> None:
    """Write a text. Raises OutputError (73)."""
    write_file(path, lambda part: part.write_text(text, encoding="utf-8"))


def write_file(path: Path, write: Callable[[Path], object], label: str = "the file") -> None:
    """Have ``write`` write a file aside, which then takes its name: there is never a
    part of it, also on a full disk.

    Raises OutputError (73) that names ``label`` and the path.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        write(part)
        part.replace(path)
    except Exception as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        # polars reports errors of the system as its own.
        number = os_error_number(error)
        if not number and not isinstance(error, OSError):
            raise
        raise OutputError(
            f"{label} cannot be written",
            where=path,
            found=os.strerror(number) if number else str(error),
            next_step="make room or get permission there, or name another place",
        ) from None
