"""Tables of others: what is read however it is written, and what is refused with the
row and the value.
"""

from __future__ import annotations

import gzip
from datetime import date
from pathlib import Path

import polars as pl
import pytest

from cmsspark.base import errors
from cmsspark.store.table_files import read_table

COLUMNS = {
    "day": ("date",),
    "dataset": ("dataset_name",),
    "accesses": ("nacc",),
    "users": (),
    "is_big": (),
}
PLAIN = "day,dataset,accesses\n2026-01-05,/a/b/C,3\n2026-01-06,/a/b/C,4\n"
ROWS = [(date(2026, 1, 5), "/a/b/C", 3.0), (date(2026, 1, 6), "/a/b/C", 4.0)]
FRAME = pl.DataFrame(
    {"day": ["2026-01-05", "2026-01-06"], "dataset": ["/a/b/C"] * 2, "accesses": [3, 4]}
)


def read(path: Path) -> pl.DataFrame:
    return read_table(
        path,
        "accesses",
        COLUMNS,
        ("day", "dataset", "accesses"),
        numbers=("accesses", "users"),
        flags=("is_big",),
        may_be_null=("users", "is_big"),
    )


def written(folder: Path, content: bytes | str | pl.DataFrame, name: str = "a.csv") -> Path:
    path = folder / name
    if isinstance(content, pl.DataFrame):
        content.write_parquet(path)
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(
    "content",
    [
        PLAIN,
        "\ufeff" + PLAIN,
        PLAIN.replace("\n", "\r\n"),
        PLAIN.replace("\n", "\r"),
        PLAIN.replace("\n", "\r").replace(",", "\t"),
        PLAIN.replace(",", ";"),
        PLAIN.replace(",", "\t"),
        PLAIN.replace(",", " , "),
        PLAIN.replace("\n2026-01-06", "\n\n2026-01-06"),
        PLAIN.replace("day", "Date")
        .replace("dataset", "dataset_name")
        .replace("accesses", "NACC"),
        PLAIN.replace("-", ""),
        PLAIN.replace("-01-", "/01/"),
        PLAIN.replace("-05", "-05 23:59:59").replace("-06", "-06T10:00:00Z"),
        PLAIN.replace("-05", "-04T23:30:00-05:00"),
        PLAIN.replace(",3", ',"3.0"'),
        "extra,accesses,dataset,day\nx,3,/a/b/C,2026-01-05\n,4,/a/b/C,2026-01-06\n",
        gzip.compress(PLAIN.encode(), mtime=0),
        PLAIN.replace("2026-01-05", "1767571200").replace("2026-01-06", "1767743999.75"),
        PLAIN.replace("2026-01-05", "1767657599999").replace("2026-01-06", "1767657600000"),
        PLAIN.replace("2026-01-05", "1767571200000000").replace(
            "2026-01-06", "1767657600000000000"
        ),
        PLAIN.replace("2026-01-05", "1.7675712e9").replace("2026-01-06", "20260106"),
    ],
)
def test_a_csv_is_read_however_it_is_written(content: bytes | str, tmp_path: Path) -> None:
    assert read(written(tmp_path, content)).rows() == ROWS


def test_a_packed_csv_may_have_its_own_ending(tmp_path: Path) -> None:
    assert read(written(tmp_path, gzip.compress(PLAIN.encode()), "a.csv.gz")).rows() == ROWS


@pytest.mark.parametrize(
    "change",
    [
        pl.col("accesses").cast(pl.Int32),
        pl.col("accesses").cast(pl.UInt64),
        pl.col("accesses").cast(pl.String),
        pl.col("accesses").cast(pl.Decimal(20, 2)),
        pl.col("dataset").cast(pl.Categorical),
        pl.col("day").str.to_date(),
        pl.col("day").str.to_datetime("%Y-%m-%d"),
        pl.col("day").str.to_datetime("%Y-%m-%d", time_zone="UTC", time_unit="ns"),
        (pl.col("day") + "T23:30:00")
        .str.to_datetime(time_zone="UTC")
        .dt.convert_time_zone("Asia/Tokyo"),
        pl.col("day").str.replace_all("-", "").cast(pl.Int32),
        pl.col("day").str.to_datetime("%Y-%m-%d").dt.epoch("s"),
        pl.col("day").str.to_datetime("%Y-%m-%d").dt.epoch("ms"),
        pl.col("day").str.to_datetime("%Y-%m-%d").dt.epoch("us"),
        pl.col("day").str.to_datetime("%Y-%m-%d").dt.epoch("us") * 1000,
    ],
    ids=str,
)
def test_a_parquet_file_is_read_in_whatever_types(change: pl.Expr, tmp_path: Path) -> None:
    assert read(written(tmp_path, FRAME.with_columns(change), "a.parquet")).rows() == ROWS


def test_counts_above_32_bits_and_flags_and_nulls_are_kept(tmp_path: Path) -> None:
    text = (
        "day,dataset,accesses,users,is_big\n2026-01-05,a,99999999999,,yes\n2026-01-05,b,1e3,2,\n"
    )
    rows = read(written(tmp_path, text)).rows()
    assert rows == [
        (date(2026, 1, 5), "a", 99999999999.0, None, True),
        (date(2026, 1, 5), "b", 1000.0, 2.0, None),
    ]


LATE = "".join(f"2026-01-05,/a{number},3\n" for number in range(300))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "an empty file"),
        ("day,dataset,accesses\n", "have no rows"),
        ("day,dataset\n2026-01-05,a\n", "no column accesses or nacc"),
        ("day,dataset,accesses,accesses\n2026-01-05,a,3,4\n", "more than once"),
        ("day,dataset,accesses\n01/15/2026,a,3\n", "row 2"),
        ("day,dataset,accesses\n1026-01-05,a,3\n", "1026-01-05"),
        (f"day,dataset,accesses\n{LATE}2026-01-06,z,abc\n", "row 302"),
        ("day,dataset,accesses\n\n2026-01-05,a,-3\n", "row 3"),
        ("day,dataset,accesses\n2026-01-05,a,NaN\n2026-01-05,b,inf\n", "2 such rows"),
        ("day,dataset,accesses\n2026-01-05,,3\n", "nulls"),
        ("day,dataset,accesses\n2026-01-05,a,3,4,5\n", "cannot be read"),
        ("day,dataset,accesses\n2026-01-05,\xe9,3\n".encode("latin-1"), "cannot be read"),
        (gzip.compress(PLAIN.encode(), mtime=0)[:-9], "cannot be read"),
        (FRAME.with_columns(accesses=pl.Series([[1], [2]])), "another type"),
        (FRAME.with_columns(accesses=pl.Series([True, False])), "another type"),
        (FRAME.with_columns(pl.col("dataset").cast(pl.Binary)), "another type"),
        (FRAME.clear(), "have no rows"),
        (b"PAR1 and no more", "cannot be read"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(
    content: bytes | str | pl.DataFrame, message: str, tmp_path: Path
) -> None:
    is_parquet = isinstance(content, pl.DataFrame) or content == b"PAR1 and no more"
    with pytest.raises(errors.DataError) as caught:
        read(written(tmp_path, content, "a.parquet" if is_parquet else "a.csv"))
    assert message in caught.value.text()


def test_other_kinds_of_files_and_missing_ones_have_their_codes(tmp_path: Path) -> None:
    with pytest.raises(errors.UsageError, match=r"kind of a\.xlsx is not known"):
        read(written(tmp_path, "x", "a.xlsx"))
    with pytest.raises(errors.InputMissing, match="no such file of accesses"):
        read(tmp_path / "b.csv")


@pytest.mark.parametrize("value", ["1e300", "99999999999999999999", "1e309", "nan", "-0.5"])
def test_numbers_that_no_counter_has_are_refused_with_their_row(
    value: str, tmp_path: Path
) -> None:
    text = PLAIN + f"2026-01-07,/a/b/C,{value}\n"
    with pytest.raises(errors.DataError, match="negative, infinite or above 2\\^63") as caught:
        read(written(tmp_path, text))
    assert str(caught.value.where).endswith("row 4")
    largest = PLAIN + "2026-01-07,/a/b/C,9223372036854775807\n"
    assert read(written(tmp_path, largest))["accesses"][2] == 2.0**63


def test_a_column_of_nulls_alone_is_read_where_nulls_may_be(tmp_path: Path) -> None:
    frame = FRAME.with_columns(users=pl.lit(None))
    assert read(written(tmp_path, frame, "a.parquet"))["users"].to_list() == [None, None]
    nothing = FRAME.with_columns(accesses=pl.lit(None))
    with pytest.raises(errors.DataError, match="have nulls"):
        read(written(tmp_path, nothing, "b.parquet"))


def test_an_error_names_a_few_of_many_columns(tmp_path: Path) -> None:
    text = ",".join(f"c{number}" for number in range(5000)) + "\n"
    with pytest.raises(errors.DataError) as caught:
        read(written(tmp_path, text))
    assert "c0, c1" in str(caught.value.found) and "and 4,988 more" in str(caught.value.found)
