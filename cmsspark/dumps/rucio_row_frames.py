"""Merged rows of :mod:`cmsspark.dumps.rucio_blocks` and ``catalogue_rows`` as the frames of
:mod:`cmsspark.dumps.rucio_frames`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
import polars as pl

from cmsspark.dumps import rucio_frames as of_processes
from cmsspark.dumps.block_replicas import COUNTS, LARGEST, SUMS
from cmsspark.dumps.catalogue_differences import DIFFERENCES, SUMMED
from cmsspark.dumps.catalogue_rows import DIFFERING, ONLY_RUCIO
from cmsspark.dumps.keyed_rows import KeyedRows
from cmsspark.dumps.rucio_blocks import LAST_ACCESS, RSE_SUMS
from cmsspark.dumps.rucio_rows import OUTSIDE


def rucio_frames(
    wanted: Collection[str],
    rows: Iterable[KeyedRows],
    names: pl.Series,
    rses: Sequence[str],
    storage: Mapping[str, tuple[str, str]],
) -> dict[str, pl.DataFrame]:
    """Return the ``wanted`` frames: ``rse_sums``, ``last_access``, ``differences``.

    ``names``: of DBS's datasets, by number; ``rses``: of storage elements; ``storage``: the site and kind of each.
    Raises DataError (65) where a sum leaves 64 bits.
    """
    by_kind: dict[str, list[KeyedRows]] = {}
    for one in rows:
        by_kind.setdefault(one.what, []).append(one)
    frames = {}
    if wanted:
        frames["rse_sums"] = _rse_sums(by_kind, rses, storage)
    if "last_access" in wanted:
        frames["last_access"] = _last_access(frames["rse_sums"], by_kind.get(LAST_ACCESS, []))
    if "differences" in wanted:
        frames["differences"] = _differences(by_kind, names)
    return frames


def _rse_sums(
    by_kind: Mapping[str, Sequence[KeyedRows]], rses: Sequence[str], storage: Mapping[str, tuple[str, str]]
) -> pl.DataFrame:
    nodes = pl.Series(list(rses), dtype=pl.String)
    tables = []
    for one in by_kind.get(RSE_SUMS, []):
        columns = dict(one.columns)
        keys = {"dataset_name": _named(columns.pop("dataset"), one.names["datasets"]),
                "node_name": nodes.gather(columns.pop("rse"))}  # fmt: skip
        tables.append(pl.DataFrame({**keys, **columns}).to_arrow(compat_level=pl.CompatLevel.oldest()))
    empty = {name: np.zeros(0, np.int64) for name in ("rse", *COUNTS, *SUMS, *LARGEST)}
    outside = [one.columns for one in by_kind.get(OUTSIDE, [])]
    return of_processes.rse_sums(tables, outside[0] if outside else empty, rses, storage)


def _last_access(sums: pl.DataFrame, rows: Iterable[KeyedRows]) -> pl.DataFrame:
    """As :func:`cmsspark.dumps.rucio_frames.last_accesses`: the largest of the replicas' and those of DIDS."""
    of_replicas = sums.filter(pl.col("dataset_name").is_not_null()).select("dataset_name", accessed="last_access_ms")
    of_dids = [
        pl.DataFrame({"dataset_name": _named(one.columns["dataset"], one.names["datasets"]),
                      "accessed": one.columns["accessed_ms"]})
        for one in rows
    ]  # fmt: skip
    accesses = pl.concat([of_replicas, *of_dids]).drop_nulls()
    return accesses.group_by("dataset_name").agg(pl.col("accessed").max().alias("rucio_last_access_ms"))


def _differences(by_kind: Mapping[str, Sequence[KeyedRows]], names: pl.Series) -> pl.DataFrame:
    kinds = pl.Series(list(DIFFERENCES), dtype=pl.String)
    frames = [pl.DataFrame(schema={"difference": pl.String, "dataset_name": pl.String,
                                   **dict.fromkeys(SUMMED, pl.Int64)})]  # fmt: skip
    for one in by_kind.get(DIFFERING, []):
        keys = {"difference": kinds.gather(one.columns["difference"]),
                "dataset_name": names.gather(one.columns["dataset"])}  # fmt: skip
        frames.append(pl.DataFrame({**keys, **{name: one.columns[name] for name in SUMMED}}))
    for one in by_kind.get(ONLY_RUCIO, []):
        named = {"dataset_name": _named(one.columns["dataset"], one.names["datasets"])}
        sums = pl.DataFrame({**named, **{name: one.columns[name] for name in SUMMED}})
        frames.append(sums.select(pl.lit("only_rucio").alias("difference"), *sums.columns))
    is_dbs_only = pl.col("difference").str.starts_with("only_dbs")
    return pl.concat(frames).with_columns(
        dbs_bytes=pl.when(pl.col("dbs_sized_count") > 0).then("dbs_bytes"),
        rucio_bytes=pl.when(~is_dbs_only).then("rucio_bytes"),
    ).drop("dbs_sized_count")


def _named(numbers: np.ndarray[tuple[int], np.dtype[np.int64]], names: Sequence[str]) -> pl.Series:
    return pl.Series(list(names), dtype=pl.String).gather(numbers)
