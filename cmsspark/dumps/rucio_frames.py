"""What Rucio says of RSEs and datasets as Polars frames, beside the replicas that PhEDEx has too."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import polars as pl

from cmsspark.dumps.catalogue_differences import DIFFERENCES, DIFFERING, ONLY_RUCIO, SUMMED
from cmsspark.dumps.dump_frames import exact_sum, in_64_bits
from cmsspark.dumps.keyed_rows import Columns, KeyedRows, join_columns, rows_by_kind
from cmsspark.dumps.locked_copies import (
    BLOCKS,
    CHECKS,
    COPIES,
    LOCK_BITS,
    PRESENT,
    RSE_TOTALS,
    account_names,
)
from cmsspark.dumps.locked_copies import COUNTS as COPY_COUNTS
from cmsspark.dumps.locked_copies import SUMS as COPY_SUMS
from cmsspark.dumps.rucio_rows import COUNTS, LARGEST, LAST_ACCESS, OUTSIDE, RSE_SUMS, SUMS
from cmsspark.sources.accounts import Accounts
from cmsspark.sources.rses import Rse

_KEYS = ("rse", "dataset_name")
#: Numbers of rows of copies.
_COPIES = (
    *("rse", *COPY_COUNTS, *COPY_SUMS, *LARGEST, *BLOCKS, "dataset_block_count"),
    *("lock_blocks", "lock_blocks_production", "rule_count", "bits"),
    *(f"lock_blocks_{name}" for name in LOCK_BITS),
)


def rucio_frames(
    names: Collection[str],
    rows: Iterable[KeyedRows],
    datasets: pl.Series,
    rses: Sequence[str],
    storage: Mapping[str, tuple[str, str]],
) -> dict[str, pl.DataFrame]:
    """Return the frames ``names``: ``rse_sums``, ``last_access``, ``differences``.

    ``datasets``: the names of those of DBS, by number. ``rses``: of storage elements.
    ``storage``: the site and kind of each. Raises DataError (65) on 64-bit overflow.
    """
    by_kind = rows_by_kind(rows)
    frames = {}
    if names:
        frames["rse_sums"] = _rse_sums(by_kind[RSE_SUMS], by_kind[OUTSIDE], rses, storage)
    if "last_access" in names:
        frames["last_access"] = _last_accesses(frames["rse_sums"], by_kind[LAST_ACCESS])
    if "differences" in names:
        frames["differences"] = _differences(by_kind, datasets)
    return frames


def _rse_sums(
    in_blocks: Sequence[KeyedRows],
    outside: Sequence[KeyedRows],
    rses: Sequence[str],
    storage: Mapping[str, tuple[str, str]],
) -> pl.DataFrame:
    """Return the file replicas by (``rse``, ``dataset_name``: null for files in no
    block), with ``site_name`` and ``kind``.

    ``file_count``, ``bytes``. ``new_file_count``, ``new_bytes``: of those made on the
    day; ``accessed_file_count``. ``created_ms``, ``last_access_ms``: the largest, or
    null.
    """
    nodes = pl.Series(list(rses), dtype=pl.String)
    numbers = (*COUNTS, *SUMS, *LARGEST)
    empty = dict.fromkeys(_KEYS, pl.String) | dict.fromkeys(numbers, pl.Int64)
    frames = [pl.DataFrame(schema=empty)]
    for entry in (*in_blocks, *outside):
        columns = {name: entry.columns[name] for name in numbers}
        sums = pl.DataFrame({"rse": nodes.gather(entry.columns["rse"]), **columns})
        dataset = (
            _name_datasets(entry)["dataset_name"]
            if "dataset" in entry.names
            else pl.lit(None, pl.String)
        )
        frames.append(sums.with_columns(dataset.alias("dataset_name")).select(list(empty)))
    sums = in_64_bits(
        pl.concat(frames)
        .group_by(_KEYS)
        .agg(
            *(exact_sum(name) for name in (*COUNTS, *SUMS)),
            *(pl.col(name).max() for name in LARGEST),
        )
    )
    sites = pl.DataFrame(
        [(rse, site, kind) for rse, (site, kind) in storage.items()],
        schema={"rse": pl.String, "site_name": pl.String, "kind": pl.String},
        orient="row",
    )
    largest = [
        pl.when(pl.col(name) >= 0).then(pl.col(name)).alias(new)
        for name, new in zip(LARGEST, ("created_ms", "last_access_ms"), strict=True)
    ]
    renamed = {
        "files": "file_count",
        "new_files": "new_file_count",
        "accessed_files": "accessed_file_count",
    }
    return (
        sums.with_columns(largest).drop("accessed_ms").rename(renamed).join(sites, "rse", "left")
    )


def _last_accesses(sums: pl.DataFrame, rows: Sequence[KeyedRows]) -> pl.DataFrame:
    """Return ``dataset_name``, ``rucio_last_access_ms``: the last traced access of each
    dataset that has one.

    The largest of its replicas' (``sums``: ``rse_sums``), and of its files', its
    blocks' and its own in DIDS.
    """
    of_replicas = sums.select("dataset_name", accessed="last_access_ms")
    of_dids = [_name_datasets(entry).rename({"accessed_ms": "accessed"}) for entry in rows]
    accesses = pl.concat([of_replicas, *of_dids]).drop_nulls()
    return accesses.group_by("dataset_name").agg(
        pl.col("accessed").max().alias("rucio_last_access_ms")
    )


def _differences(by_kind: Mapping[str, Sequence[KeyedRows]], datasets: pl.Series) -> pl.DataFrame:
    """Return ``difference``, ``dataset_name``, ``file_count``, ``dbs_bytes`` (null: DBS
    knows no size), ``rucio_bytes`` (null: Rucio has none of the files).
    """
    kinds = pl.Series(list(DIFFERENCES), dtype=pl.String)
    names = ("difference", "dataset_name", *SUMMED)
    frames = [
        pl.DataFrame(schema=dict.fromkeys(names[:2], pl.String) | dict.fromkeys(SUMMED, pl.Int64))
    ]
    for entry in by_kind[DIFFERING]:
        keys = {
            "difference": kinds.gather(entry.columns["difference"]),
            "dataset_name": datasets.gather(entry.columns["dataset"]),
        }
        frames.append(pl.DataFrame(keys | {name: entry.columns[name] for name in SUMMED}))
    frames += [
        _name_datasets(entry).with_columns(difference=pl.lit("only_rucio")).select(names)
        for entry in by_kind[ONLY_RUCIO]
    ]
    is_dbs_only = pl.col("difference").str.starts_with("only_dbs")
    return (
        pl.concat(frames)
        .with_columns(
            dbs_bytes=pl.when(pl.col("dbs_sized_count") > 0).then("dbs_bytes"),
            rucio_bytes=pl.when(~is_dbs_only).then("rucio_bytes"),
        )
        .drop("dbs_sized_count")
    )


def copy_frames(
    rows: Iterable[KeyedRows], datasets: pl.Series, rses: Sequence[Rse], accounts: Accounts
) -> dict[str, pl.DataFrame]:
    """Return the frames of what is locked. ``datasets``: the names of those of DBS, by
    number. Raises DataError (65) on 64-bit overflow.

    ``copies``: by (``rse``, ``dataset_name``), with ``site_name`` and ``kind``, the sums
    of :mod:`cmsspark.dumps.locked_copies`, ``production_accounts``,
    ``dbs_file_count`` and ``dbs_present_count``. ``copies_by_rse``: ``rse``,
    ``file_count`` and ``bytes`` of all files, and ``loose_file_count`` and
    ``loose_bytes`` of those in no block. ``copy_checks``: one row of counts.
    """
    by_kind = rows_by_kind(rows)
    storage_elements = pl.DataFrame(
        [(number, rse.name, rse.site, rse.kind) for number, rse in enumerate(rses)],
        schema={
            "number": pl.Int64,
            "rse": pl.String,
            "site_name": pl.String,
            "kind": pl.String,
        },
        orient="row",
    )
    present = _summed(by_kind[PRESENT], ("dataset", "rse", "count"), ("dataset", "rse"))
    present = present.with_columns(dataset_name=datasets.gather(present["dataset"]))
    of_all = present.filter(pl.col("rse") < 0).select("dataset_name", dbs_file_count="count")
    by_rse_present = present.select("dataset_name", "rse", dbs_present_count="count")
    of_dbs = pl.DataFrame({"dataset_name": datasets}).join(of_all, "dataset_name", "left")
    kinds = {"dataset_name": pl.String, "production_rules": pl.String}
    copies = pl.concat(
        [
            pl.DataFrame(schema=kinds | dict.fromkeys(_COPIES, pl.Int64)),
            *(_name_copies(entry).select(*kinds, *_COPIES) for entry in by_kind[COPIES]),
        ]
    )
    bits = copies["bits"].unique().to_list()
    texts = pl.DataFrame(
        {"bits": bits, "production_accounts": [account_names(accounts, value) for value in bits]},
        schema={"bits": pl.Int64, "production_accounts": pl.String},
    )
    copies = (
        copies.join(of_dbs.with_columns(in_dbs=True), "dataset_name", "left")
        .join(by_rse_present, ["dataset_name", "rse"], "left")
        .join(texts, "bits", "left")
        .with_columns(
            pl.when("in_dbs").then(pl.col(name).fill_null(0)).alias(name)
            for name in ("dbs_file_count", "dbs_present_count")
        )
        .with_columns(pl.when(pl.col(name) >= 0).then(name).alias(name) for name in LARGEST)
        .rename({"rse": "number"})
        .join(storage_elements, "number", "left")
    )
    names = ("rse", "file_count", "bytes")
    loose = _summed(by_kind[OUTSIDE], names, ("rse",)).rename(
        {"file_count": "loose_file_count", "bytes": "loose_bytes"}
    )
    by_rse = (
        _summed(by_kind[RSE_TOTALS], names, ("rse",))
        .join(loose, "rse", "left")
        .rename({"rse": "number"})
        .join(storage_elements, "number", "left")
        .with_columns(pl.col("loose_file_count", "loose_bytes").fill_null(0))
    )
    counts = {
        name: sum(
            int(entry.columns[name][0]) for entry in by_kind[CHECKS] if name in entry.columns
        )
        for name in ("files", "lost", "only_and_deletable", "locks", "without_rule")
    }
    return {"copies": copies, "copies_by_rse": by_rse, "copy_checks": pl.DataFrame([counts])}


def _summed(rows: Sequence[KeyedRows], names: Sequence[str], keys: Sequence[str]) -> pl.DataFrame:
    """Return rows of numbers with equal keys as one."""
    frame = pl.DataFrame(join_columns(rows, names), schema=dict.fromkeys(names, pl.Int64))
    sums = [exact_sum(name) for name in names if name not in keys]
    return in_64_bits(frame.group_by(keys).agg(sums))


def _name_copies(rows: KeyedRows) -> pl.DataFrame:
    rules = pl.Series(values=rows.names["rules"], dtype=pl.String).gather(rows.columns["rules"])
    return _name_datasets(rows).with_columns(production_rules=rules)


def _name_datasets(rows: KeyedRows) -> pl.DataFrame:
    """Return rows with ``dataset_name`` in the place of their own numbers of datasets."""
    columns: Columns = dict(rows.columns)
    names = pl.Series(values=rows.names["dataset"], dtype=pl.String).gather(columns.pop("dataset"))
    return pl.DataFrame({"dataset_name": names, **columns})
