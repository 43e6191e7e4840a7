"""``rucio_daily`` by Polars: ``python -m bench.peers.rucio_with_polars DUMP OUT``.

Only the needed columns are read; Polars' reader of Avro has no lazy form, so the files
are read one after the other.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import polars as pl

from bench.rucio import DAY, DAY_MS

_PURPOSE: Final = r"(?i)_(test|temp|user|mock)$"
_STORAGE: Final = r"_(Disk|Tape|MSS|Ceph)$"
_IGNORED: Final = r"(?i)_(test|temp|mock)$"


def table(dump: Path, name: str, *columns: str) -> pl.DataFrame:
    """The columns of a table's files."""
    return pl.concat(
        [
            pl.read_avro(part, columns=list(columns))
            for part in sorted((dump / name).glob("*.avro"))
        ]
    )


def rucio_daily(dump: Path) -> pl.DataFrame:
    """The table, in no order."""
    rses = table(dump, "rses", "ID", "RSE", "RSE_TYPE", "DELETED_AT").filter(
        pl.col("DELETED_AT").is_null() & ~pl.col("RSE").str.contains(_IGNORED)
    )
    rest = pl.col("RSE").str.replace(_PURPOSE, "")
    is_tape = (
        pl.when(pl.col("RSE_TYPE").is_null())
        .then(rest.str.contains("_(Tape|MSS)$"))
        .otherwise(pl.col("RSE_TYPE").str.to_uppercase() == "TAPE")
    )
    places = rses.select(
        pl.col("ID").alias("RSE_ID"),
        pl.col("RSE").alias("rse"),
        rest.str.replace(_STORAGE, "").alias("site_name"),
        pl.when(is_tape).then(pl.lit("tape")).otherwise(pl.lit("disk")).alias("kind"),
    )
    numbers = [pl.col(name).cast(pl.Int64) for name in ("BYTES",)]
    columns = ("RSE_ID", "SCOPE", "NAME", "BYTES", "STATE", "CREATED_AT", "ACCESSED_AT")
    replicas = (
        table(dump, "replicas", *columns)
        .lazy()
        .filter((pl.col("SCOPE") == "cms") & (pl.col("STATE").str.to_uppercase() == "A"))
        .with_columns(numbers)
        .join(places.lazy(), "RSE_ID")
        .group_by("rse", "site_name", "kind", "NAME")
        .agg(pl.col("BYTES", "CREATED_AT", "ACCESSED_AT").max())
    )
    contents = table(
        dump, "contents", "SCOPE", "NAME", "CHILD_SCOPE", "CHILD_NAME", "DID_TYPE", "CHILD_TYPE"
    ).lazy()
    blocks = (
        contents.filter(
            (pl.col("SCOPE") == "cms")
            & (pl.col("CHILD_SCOPE") == "cms")
            & (pl.col("DID_TYPE") == "D")
            & (pl.col("CHILD_TYPE") == "F")
            & pl.col("NAME").str.contains(r"^/[^/#]+/[^/#]+/[^/#]+#.")
        )
        .group_by(pl.col("CHILD_NAME").alias("file"))
        .agg(pl.col("NAME").min().str.extract("^([^#]*)").alias("dataset_name"))
    )
    is_new = pl.col("CREATED_AT").is_between(DAY_MS, DAY_MS + 86_400_000, closed="left")
    return (
        replicas.join(blocks, left_on="NAME", right_on="file", how="left")
        .group_by("rse", "site_name", "kind", "dataset_name")
        .agg(
            pl.len().cast(pl.Int64).alias("file_count"),
            pl.col("BYTES").sum().alias("bytes"),
            is_new.sum().cast(pl.Int64).alias("new_file_count"),
            pl.col("BYTES").filter(is_new).sum().alias("new_bytes"),
            pl.col("ACCESSED_AT").count().cast(pl.Int64).alias("accessed_file_count"),
            pl.col("ACCESSED_AT").max().alias("last_access_ms"),
        )
        .collect()
    )


if __name__ == "__main__":
    made = rucio_daily(Path(sys.argv[1])).with_columns(day=pl.lit(DAY))
    made.write_parquet(sys.argv[2])
