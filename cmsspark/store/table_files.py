"""Tables of others as CSV or Parquet: columns by name, days, numbers and flags in
whatever type they come.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from cmsspark.base.errors import DataError, InputMissing, UsageError
from cmsspark.base.foreign_parquet import open_parquet

if TYPE_CHECKING:
    import polars as pl

_KINDS: Final = (".csv", ".csv.gz", ".parquet")
#: Days outside of these years are mistakes of units.
_YEARS: Final = (1990, 2100)
#: Of whole numbers that are times: from which value on they are ms, µs and ns since
#: 1970; seconds below.
_UNITS: Final[tuple[tuple[int, Literal["ns", "us", "ms"]], ...]] = (
    (10**17, "ns"),
    (10**14, "us"),
    (10**11, "ms"),
)
_FLAGS: Final = {
    "true": True,
    "false": False,
    "y": True,
    "n": False,
    "yes": True,
    "no": False,
    "1": True,
    "0": False,
}
#: Larger numbers are mistakes: no 64-bit counter holds them, and the sum of their
#: squares overflows.
_MOST: Final = 2.0**63
#: Columns that an error names.
_MOST_NAMES: Final = 12
_DAYS: Final = ("%Y-%m-%d", "%Y%m%d", "%Y/%m/%d")
_TIMES: Final = "2026-01-15, 20260115, a timestamp, or seconds since 1970"


def read_table(
    path: Path,
    label: str,
    columns: Mapping[str, Sequence[str]],
    needed: Sequence[str],
    *,
    numbers: Sequence[str] = (),
    flags: Sequence[str] = (),
    may_be_null: Sequence[str] = ("site", "remote", "bytes"),
) -> pl.DataFrame:
    """Read rows with ``columns`` (name → other names taken for it; case and blanks
    around do not matter): ``day`` and ``since`` as dates in UTC, ``numbers`` as
    float64, ``flags`` as booleans, others as text.

    A CSV may have commas, semicolons or tabs, a byte order mark, any line ends, and be
    packed by gzip. Empty lines and other columns are left out. Raises InputMissing
    (66), UsageError (2) for other kinds of files, DataError (65) for damaged ones,
    missing or doubled columns, values of another type, nulls that may not be, and
    numbers that are negative, infinite or above 2^63.
    """
    import polars as pl

    if not path.is_file():
        raise InputMissing(
            f"there is no such file of {label}", where=path, next_step="give a CSV or Parquet file"
        )
    kind = next((kind for kind in _KINDS if path.name.lower().endswith(kind)), None)
    if kind is None:
        raise UsageError(
            f"the kind of {path.name} is not known", next_step=f"name it {', '.join(_KINDS)}"
        )
    try:
        table = _read_parquet(path, label) if kind == ".parquet" else _read_csv(path)
    except (pl.exceptions.PolarsError, OSError, EOFError) as error:
        text = (str(error) or type(error).__name__).splitlines()[0]
        raise DataError(
            f"the {label} cannot be read", where=path, found=text, next_step="write it again"
        ) from None
    table = _renamed(table, path, label, columns, needed)
    table = table.with_row_index("_line", 2).filter(
        ~pl.all_horizontal(pl.exclude("_line").is_null())
    )
    kinds = {name: _find_kind(name, numbers, flags) for name in columns if name in table.columns}
    for name, kind_of in kinds.items():
        table = _typed(table, name, kind_of, path, label)
    _check(table, path, label, kinds, may_be_null)
    return table.drop("_line")


def _read_parquet(path: Path, label: str) -> pl.DataFrame:
    import polars as pl
    import pyarrow as pa

    with open_parquet(path, label) as (_, schema, batches):
        table = pl.from_arrow(pa.Table.from_batches(batches, schema))
    assert isinstance(table, pl.DataFrame)
    return table


def _read_csv(path: Path) -> pl.DataFrame:
    import polars as pl

    with path.open("rb") as plain:
        is_packed = plain.read(2) == b"\x1f\x8b"
    content = gzip.decompress(path.read_bytes()) if is_packed else path.read_bytes()
    if not content.strip():
        raise pl.exceptions.NoDataError("an empty file")
    header = content.split(b"\n", 1)[0].split(b"\r", 1)[0]
    separator = max((",", ";", "\t"), key=lambda sign: header.count(sign.encode()))
    if b"\n" not in content:
        content = content.replace(b"\r", b"\n")
    table = pl.read_csv(content, infer_schema=False, separator=separator)
    # Blanks around values; texts of nothing are nulls.
    texts = (pl.col(name).str.strip_chars() for name in table.columns)
    return table.with_columns(pl.when(text != "").then(text) for text in texts)


def _renamed(
    table: pl.DataFrame,
    path: Path,
    label: str,
    columns: Mapping[str, Sequence[str]],
    needed: Sequence[str],
) -> pl.DataFrame:
    columns_by_name: dict[str, list[str]] = {}
    for name in table.columns:
        columns_by_name.setdefault(name.strip().lower().partition("_duplicated_")[0], []).append(
            name
        )
    chosen = {}
    for name, spellings in columns.items():
        matches = [spelling for spelling in (name, *spellings) if spelling in columns_by_name]
        if matches and len(columns_by_name[matches[0]]) > 1:
            raise DataError(
                f"the {label} have the column {matches[0]} more than once",
                where=path,
                found=_name_columns(table),
                next_step="keep one of them",
            )
        if matches:
            chosen[columns_by_name[matches[0]][0]] = name
        elif name in needed:
            raise DataError(
                f"the {label} have no column {' or '.join((name, *spellings))}",
                where=path,
                found=_name_columns(table),
                next_step=f"name the columns {', '.join(columns)}",
            )
    return table.select(list(chosen)).rename(chosen)


def _name_columns(table: pl.DataFrame) -> str:
    """Return the names of the columns; of many the first ones, and how many more there are."""
    more = len(table.columns) - _MOST_NAMES
    return f"columns {', '.join(table.columns[:_MOST_NAMES])}" + (
        f" and {more:,} more" if more > 0 else ""
    )


def _find_kind(name: str, numbers: Sequence[str], flags: Sequence[str]) -> str:
    return (
        "day"
        if name in ("day", "since")
        else "number"
        if name in numbers
        else "flag"
        if name in flags
        else "text"
    )


def _typed(table: pl.DataFrame, name: str, kind: str, path: Path, label: str) -> pl.DataFrame:
    """Return the table with a column in its type. Raises DataError (65) that names the
    first value of another one.
    """
    import polars as pl

    of_name = {"day": _TIMES, "number": "a number", "flag": "true or false", "text": "a text"}[
        kind
    ]
    try:
        typed = table.with_columns(_expression(pl.col(name), table.schema[name], kind).alias(name))
        lost = table.filter(typed[name].is_null() & table[name].is_not_null())
        if kind == "day":
            lost = lost.vstack(
                table.filter(~typed[name].dt.year().is_between(*_YEARS).fill_null(True))
            )
    except (pl.exceptions.PolarsError, TypeError) as error:
        raise DataError(
            f"the column {name} of the {label} has another type",
            where=path,
            found=str(error).splitlines()[0],
            next_step=f"write it as {of_name}",
        ) from None
    if len(lost):
        raise DataError(
            f"the column {name} of the {label} has a value that is not {of_name}",
            where=f"{path}, row {lost['_line'][0]}",
            found=f"{lost[name][0]}, in {len(lost):,} rows"
            if len(lost) > 1
            else str(lost[name][0]),
            next_step=f"write it as {of_name}",
        )
    return typed


def _expression(column: pl.Expr, kind: pl.DataType, kind_name: str) -> pl.Expr:
    import polars as pl

    is_text = kind in (pl.String, pl.Categorical) or isinstance(kind, pl.Enum)
    if kind_name == "day":
        return _day(column.cast(pl.String) if is_text else column, kind, is_text=is_text)
    if kind_name == "number":
        if not (is_text or kind.is_numeric() or kind == pl.Null):
            raise TypeError(f"{kind}")
        return (
            column.cast(pl.String).cast(pl.Float64, strict=False)
            if is_text
            else column.cast(pl.Float64)
        )
    if kind_name == "flag" and kind != pl.Boolean:
        return (
            column.cast(pl.String)
            .str.to_lowercase()
            .replace_strict(_FLAGS, default=None, return_dtype=pl.Boolean)
        )
    if kind_name == "text" and (kind.is_nested() or kind == pl.Binary):
        raise TypeError(f"{kind}")
    return column if kind_name == "flag" else column.cast(pl.String)


def _day(column: pl.Expr, kind: pl.DataType, *, is_text: bool) -> pl.Expr:
    """Return dates in UTC. Texts and times without a zone are UTC."""
    import polars as pl

    if is_text:
        time = column.str.replace(" ", "T").str.replace(r"Z$", "+00:00")
        zoned = time.str.to_datetime(
            "%Y-%m-%dT%H:%M:%S%.f%:z", time_zone="UTC", time_unit="us", strict=False
        ).dt.date()
        plain = time.str.to_datetime(
            "%Y-%m-%dT%H:%M:%S%.f", time_unit="us", strict=False
        ).dt.date()
        number = column.cast(pl.Int64, strict=False)
        seconds = column.cast(pl.Float64, strict=False).floor().cast(pl.Int64, strict=False)
        days = (column.str.to_date(form, strict=False) for form in _DAYS)
        return pl.coalesce(*days, zoned, plain, _day_of_number(pl.coalesce(number, seconds)))
    if kind == pl.Date or kind == pl.Null:
        return column.cast(pl.Date)
    if isinstance(kind, pl.Datetime):
        return (column.dt.convert_time_zone("UTC") if kind.time_zone else column).dt.date()
    if not kind.is_numeric():
        raise TypeError(f"{kind}")
    return _day_of_number(column.cast(pl.Int64, strict=False))


def _day_of_number(number: pl.Expr) -> pl.Expr:
    """Return the date of 20260115, or of seconds, ms, µs or ns since 1970."""
    import polars as pl

    as_day = number.cast(pl.String).str.to_date("%Y%m%d", strict=False)
    time = pl.from_epoch(number.clip(-(10**11), 10**11), "s").dt.date()
    for least, unit in reversed(_UNITS):
        time = (
            pl.when(number.abs() >= least)
            .then(pl.from_epoch(number, unit).dt.date())
            .otherwise(time)
        )
    # A day as a whole number has eight digits; so few seconds are in 1970 to 1973.
    return pl.when(number.is_between(19_000_101, 21_001_231)).then(as_day).otherwise(time)


def _check(
    table: pl.DataFrame,
    path: Path,
    label: str,
    kinds: Mapping[str, str],
    may_be_null: Sequence[str],
) -> None:
    import polars as pl

    if table.is_empty():
        raise DataError(f"the {label} have no rows", where=path, next_step="give a file with rows")
    required = [name for name in kinds if name not in may_be_null]
    wrong = [pl.col(name).is_null() for name in required]
    wrong += [
        ((pl.col(name) < 0) | (pl.col(name) > _MOST) | pl.col(name).is_nan()).fill_null(False)
        for name, kind in kinds.items()
        if kind == "number"
    ]
    bad = table.filter(pl.any_horizontal(wrong))
    if len(bad):
        row = bad.drop("_line").row(0, named=True)
        raise DataError(
            f"the {label} have nulls, or numbers that are negative, infinite or above 2^63",
            where=f"{path}, row {bad['_line'][0]}",
            found=f"{', '.join(f'{name} {value}' for name, value in row.items())}; {len(bad):,} such rows",
            next_step="correct or remove them",
        )
