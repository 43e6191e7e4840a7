"""What Rucio says of RSEs and datasets as Polars frames, beside the replicas that PhEDEx has too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import polars as pl

from cmsspark.counting.catalogue import Hashes, name_hash
from cmsspark.dumps.block_replicas import COUNTS, LARGEST, SUMS
from cmsspark.dumps.catalogue_differences import DIFFERENCES, catalogue_differences
from cmsspark.dumps.dump_frames import datasets_in, exact_sum, in_64_bits, one_each, read_tables
from cmsspark.dumps.file_partitions import Arrays, FilePartitions
from cmsspark.dumps.parts import Each, Part

if TYPE_CHECKING:
    import pyarrow as pa

_KEYS = ("rse", "dataset_name")


def rse_sums(
    tables: Iterable[pa.Table], no_block: Arrays, rses: Sequence[str], storage: Mapping[str, tuple[str, str]]
) -> pl.DataFrame:
    """Return the file replicas by (``rse``, ``dataset_name``: null for files in no block), with ``site_name`` and
    ``kind``.

    ``file_count``, ``bytes``; ``new_file_count``, ``new_bytes``: of those made on the day; ``accessed_file_count``;
    ``created_ms``, ``last_access_ms``: the largest, or null. ``tables``: of
    :func:`cmsspark.dumps.block_replicas.dataset_sums`. Raises DataError (65) where a sum leaves 64 bits.
    """
    outside = {name: no_block[name] for name in (*COUNTS, *SUMS, *LARGEST)}
    names = pl.Series(list(rses), dtype=pl.String)
    frames = [pl.DataFrame({"node_name": names.gather(no_block["rse"]), **outside}).with_columns(
        dataset_name=pl.lit(None, pl.String))]  # fmt: skip
    for table in tables:
        found = pl.from_arrow(table)
        assert isinstance(found, pl.DataFrame)
        frames.append(found)
    rows = pl.concat(frames, how="diagonal").rename({"node_name": "rse"})
    sums = in_64_bits(
        rows.group_by(_KEYS).agg(
            *(exact_sum(name) for name in (*COUNTS, *SUMS)), *(pl.col(name).max() for name in LARGEST)
        )
    )
    places = pl.DataFrame(
        [(rse, site, kind) for rse, (site, kind) in storage.items()],
        schema={"rse": pl.String, "site_name": pl.String, "kind": pl.String},
        orient="row",
    )
    largest = [pl.when(pl.col(name) >= 0).then(pl.col(name)).alias(new)
               for name, new in zip(LARGEST, ("created_ms", "last_access_ms"), strict=True)]  # fmt: skip
    named = {"files": "file_count", "new_files": "new_file_count", "accessed_files": "accessed_file_count"}
    return sums.with_columns(largest).drop("accessed_ms").rename(named).join(places, "rse", "left")


def last_accesses(
    sums: pl.DataFrame, blocks: pa.Array, accessed_ms: npt.NDArray[np.int64], dids: tuple[Hashes, npt.NDArray[np.int64]]
) -> pl.DataFrame:
    """``dataset_name``, ``rucio_last_access_ms``: the last traced access of each dataset that has one.

    The largest of its replicas' (``sums`` of :func:`rse_sums`), of its files' in DIDS (``accessed_ms`` of ``blocks``,
    -1: none), and of its blocks' and its own (``dids``: hashes of the names of datasets, and times).
    """
    of_replicas = sums.filter(pl.col("dataset_name").is_not_null()).select("dataset_name", accessed="last_access_ms")
    there = np.flatnonzero(accessed_ms >= 0)
    names = pl.Series(values=blocks.take(there), dtype=pl.String)
    of_files = pl.DataFrame({"dataset_name": names.str.extract(r"^([^#]*)", 1), "accessed": accessed_ms[there]})
    datasets = pl.Series(values=blocks, dtype=pl.String).str.extract(r"^([^#]*)", 1).unique().drop_nulls()
    by_hash = pl.DataFrame({"dataset_name": datasets, "hash": _hashes(datasets)})
    of_dids = by_hash.join(pl.DataFrame({"hash": dids[0], "accessed": dids[1]}), "hash").drop("hash")
    return (
        pl.concat([of_replicas, of_files, of_dids])
        .drop_nulls()
        .group_by("dataset_name")
        .agg(pl.col("accessed").max().alias("rucio_last_access_ms"))
    )


def differences(
    parts: Mapping[str, Sequence[Part]], partitions: FilePartitions, blocks: pa.Array, folder: Path, each: Each
) -> pl.DataFrame:
    """Return ``difference``, ``dataset_name``, ``file_count``, ``dbs_bytes`` (null: DBS knows no size), ``rucio_bytes``
    (null: Rucio has none of the files).

    ``parts``: of FILES, BLOCKS and DATASETS of DBS. See :mod:`cmsspark.dumps.catalogue_differences`.
    """
    frames = read_tables({name: parts[name] for name in ("BLOCKS", "DATASETS")}, each)
    known, names = datasets_in(frames)
    of_dbs = one_each(frames["BLOCKS"], "block_id", "block_name").drop_nulls().sort("block_id")
    rucio_names = pl.Series(values=blocks, dtype=pl.String)
    datasets = rucio_names.str.extract(r"^([^#]*)", 1).unique(maintain_order=True)
    numbered = pl.DataFrame({"name": rucio_names.str.extract(r"^([^#]*)", 1)}).join(
        pl.DataFrame({"name": datasets}).with_row_index("number"), "name", "left", maintain_order="left"
    )
    found = catalogue_differences(
        partitions,
        parts["FILES"],
        known,
        (of_dbs["block_id"].to_numpy(), _hashes(of_dbs["block_name"])),
        (_hashes(rucio_names), numbered["number"].cast(pl.Int64).to_numpy()),
        folder,
        each,
    ).rows
    rows = pl.DataFrame(found)
    kinds = pl.Series(list(DIFFERENCES), dtype=pl.String)
    sides = [(names, 0), (datasets, 1)]
    named = [rows.filter(pl.col("is_rucio") == side).with_columns(
        texts.gather(rows.filter(pl.col("is_rucio") == side)["dataset"]).alias("dataset_name"))
        for texts, side in sides]  # fmt: skip
    together = pl.concat(named)
    difference = kinds.gather(together["difference"])
    # Of files that DBS does not have, it knows no size either.
    is_known = {"dbs_bytes": together["dbs_sized_count"] > 0, "rucio_bytes": ~difference.str.starts_with("only_dbs")}
    return together.select(
        difference.alias("difference"),
        "dataset_name",
        "file_count",
        *(pl.when(is_there).then(pl.col(name)).alias(name) for name, is_there in is_known.items()),
    )


def _hashes(names: pl.Series) -> Hashes:
    return np.fromiter((name_hash(name.encode()) for name in names), np.uint64, len(names))
