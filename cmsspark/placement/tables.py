"""Tables of anybody's as CSV or Parquet: reads, replicas, space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cmsspark.errors import DataError, InputMissing, UsageError

if TYPE_CHECKING:
    import polars as pl


def read_table(
    path: Path,
    what: str,
    columns: Mapping[str, Sequence[str]],
    needed: Sequence[str],
    *,
    numbers: Sequence[str] = (),
    flags: Sequence[str] = (),
    may_be_null: Sequence[str] = ("site", "remote", "bytes"),
) -> pl.DataFrame:
    """The rows of a CSV or Parquet file under the names of ``columns``, each with its other names.

    ``day`` and ``since`` are dates, ``numbers`` float64 and not negative, ``flags`` booleans, all others texts. Other
    columns are left out. Raises InputMissing (66), UsageError (2) for other kinds of files, DataError (65) for damaged
    ones, missing columns, nulls that may not be, and negative numbers.
    """
    import polars as pl

    if not path.is_file():
        raise InputMissing(f"there is no such file of {what}", where=path, next_step="give a CSV or Parquet file")
    kind = path.suffix.lower()
    if kind not in (".csv", ".parquet"):
        raise UsageError(f"the kind of {path.name} is not known", next_step="name it .csv or .parquet")
    try:
        table = pl.read_csv(path, infer_schema=False) if kind == ".csv" else pl.read_parquet(path)
    except (pl.exceptions.PolarsError, OSError) as error:
        text = str(error).splitlines()[0]
        raise DataError(f"the {what} cannot be read", where=path, found=text, next_step="write it again") from None
    table = _renamed(table, path, what, columns, needed)
    try:
        table = table.with_columns(_typed(name, table.schema[name], numbers, flags) for name in table.columns)
    except pl.exceptions.PolarsError as error:
        raise DataError(
            f"the {what} have a value of another type",
            where=path,
            found=str(error).splitlines()[0],
            next_step="days: 2026-01-15; accesses and bytes: numbers; flags: true or false",
        ) from None
    _check(table, path, what, numbers, may_be_null)
    return table


def _renamed(
    table: pl.DataFrame, path: Path, what: str, columns: Mapping[str, Sequence[str]], needed: Sequence[str]
) -> pl.DataFrame:
    chosen = {}
    for name, others in columns.items():
        there = [each for each in (name, *others) if each in table.columns]
        if there:
            chosen[there[0]] = name
        elif name in needed:
            wanted = " or ".join((name, *others))
            raise DataError(
                f"the {what} have no column {wanted}",
                where=path,
                found=f"columns {', '.join(table.columns)}",
                next_step=f"name the columns {', '.join(columns)}",
            )
    return table.select(list(chosen)).rename(chosen)


def _typed(name: str, kind: pl.DataType, numbers: Sequence[str], flags: Sequence[str]) -> pl.Expr:
    import polars as pl

    column = pl.col(name)
    if name in ("day", "since"):
        return column.str.strptime(pl.Date, "%Y-%m-%d") if kind == pl.String else column.cast(pl.Date)
    if name in numbers:
        return column.cast(pl.Float64)
    if name in flags and kind == pl.String:
        words = {"true": True, "false": False, "y": True, "n": False, "1": True, "0": False}
        return column.str.to_lowercase().replace_strict(words, return_dtype=pl.Boolean)
    return column.cast(pl.Boolean if name in flags else pl.String)


def _check(table: pl.DataFrame, path: Path, what: str, numbers: Sequence[str], may_be_null: Sequence[str]) -> None:
    import polars as pl

    required = [name for name in table.columns if name not in may_be_null]
    there = [name for name in numbers if name in table.columns]
    wrong = [pl.col(name).is_null() for name in required]
    wrong += [((pl.col(name) < 0) | ~pl.col(name).is_finite()).fill_null(False) for name in there]
    bad = table.filter(pl.any_horizontal(wrong))
    if len(bad) or table.is_empty():
        found = f"{len(bad)} rows, the first: {bad.row(0)}" if len(bad) else "no rows"
        raise DataError(f"the {what} have nulls or negative numbers", where=path, found=found, next_step="remove them")
