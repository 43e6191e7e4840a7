"""The catalogue of Rucio beside that of DBS in Spark (rule 27): as :mod:`cmsspark.kernel.catalogue_differences`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from cmsspark.buffers import from_numpy
from cmsspark.kernel.catalogue import check_hash, hashes_in
from cmsspark.runners import dbs_rows
from cmsspark.runners.rucio_tables import FILE

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame


def differing_files(rucio_files: DataFrame, tables: Mapping[str, DataFrame]) -> DataFrame:
    """Return ``difference``, ``dataset_name``, ``file_count``, ``dbs_bytes``, ``rucio_bytes`` (null: none there).

    ``rucio_files``: of :class:`cmsspark.runners.rucio_tables.RucioTables`; ``tables``: DATASETS, BLOCKS, FILES.
    """
    from pyspark.sql import functions as F

    rucio = rucio_files.where(F.col("kind") == FILE).select(
        "hash", "check", F.col("block_name").alias("rucio_block"), F.col("bytes").alias("rucio_size")
    )
    rows = _dbs_files(tables).join(rucio, ["hash", "check"], "full")
    in_dbs, in_rucio = F.col("dataset_name").isNotNull(), F.col("rucio_block").isNotNull()
    is_invalid = F.coalesce(F.col("is_file_valid") == 0, F.lit(False))
    differences = F.array(
        F.when(in_dbs & ~in_rucio & ~is_invalid, F.lit("only_dbs")),
        F.when(in_dbs & ~in_rucio & is_invalid, F.lit("only_dbs_invalid")),
        F.when(in_rucio & ~in_dbs, F.lit("only_rucio")),
        F.when(in_rucio & in_dbs & (F.col("block_name") != F.col("rucio_block")), F.lit("block")),
        F.when(in_rucio & in_dbs & (F.col("size") != F.col("rucio_size")), F.lit("size")),
    )
    of_rucio = F.substring_index("rucio_block", "#", 1)
    exploded = rows.select(
        F.explode(differences).alias("difference"),
        F.coalesce("dataset_name", of_rucio).alias("dataset_name"),
        "size",
        "rucio_size",
    ).where(F.col("difference").isNotNull())
    kind = F.col("difference")
    return exploded.groupBy("difference", "dataset_name").agg(
        F.count(F.lit(1)).alias("file_count"),
        F.when(F.first(kind) != "only_rucio", _sum("size")).alias("dbs_bytes"),
        F.when(~F.first(kind).startswith("only_dbs"), _sum("rucio_size")).alias("rucio_bytes"),
    )


def _sum(name: str) -> Column:
    from pyspark.sql import functions as F

    return F.coalesce(F.sum(name), F.lit(0))


def _dbs_files(tables: Mapping[str, DataFrame]) -> DataFrame:
    """Return each name of FILES once, of known datasets, with the larger file_id (rule 18)."""
    from pyspark.sql import functions as F

    known = dbs_rows.identities(tables["DATASETS"])
    named = tables["FILES"].where(F.col("logical_file_name").isNotNull())
    hashed = named.select(
        "logical_file_name", "file_id", "dataset_id", "block_id", "is_file_valid", F.col("file_size").cast("double")
    ).mapInArrow(_hashed, "hash bigint, check bigint, file_id bigint, dataset_id bigint, block_id bigint, "
                          "is_file_valid bigint, size bigint")  # fmt: skip
    rows = hashed.join(F.broadcast(known), "dataset_id", "inner")
    facts = F.struct("file_id", "dataset_id", "dataset_name", "block_id", "is_file_valid", "size")
    unique = rows.groupBy("hash", "check").agg(F.max(facts).alias("file")).select("hash", "check", "file.*")
    return unique.join(dbs_rows.one_each(tables["BLOCKS"], "block_id", "block_name"), "block_id", "left")


def _hashed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    from cmsspark.buffers import is_there, to_numpy

    for batch in batches:
        names = pa.chunked_array([batch.column(0)])
        sizes = to_numpy(batch.column(5), np.float64)
        fits = is_there(batch.column(5)) & (np.abs(sizes) < 2.0**63)
        hashes = [from_numpy(found.view(np.int64)) for found in (hashes_in(names), hashes_in(names, check_hash))]
        size = from_numpy(np.where(fits, sizes, 0).astype(np.int64), fits)
        numbers = [batch.column(place).cast(pa.int64()) for place in range(1, 5)]
        yield pa.record_batch(
            [*hashes, *numbers, size],
            names=["hash", "check", "file_id", "dataset_id", "block_id", "is_file_valid", "size"],
        )
