"""The dumps' tables as Polars frames: what DBS says of each dataset, and where its replicas are.

Small tables come whole, the others as merged rows of :mod:`cmsspark.dumps.dump_plan`.
Joins go over keys made unique first, so that none multiplies rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from cmsspark.base import dates
from cmsspark.base.arrays import joined, rounded
from cmsspark.base.buffers import array
from cmsspark.base.errors import DataError
from cmsspark.base.names import DERIVED, KINDS
from cmsspark.base.schemas import stored_table
from cmsspark.dumps.catalogue_differences import DIFFERENCES, DIFFERING, ONLY_RUCIO, SUMMED
from cmsspark.dumps.dataset_contents import (
    MONTH_SUMS,
    NULL,
    SUMS,
    TOTALS,
    KnownDatasets,
    known_datasets,
    sum_datasets,
)
from cmsspark.dumps.dataset_replicas import (
    COLUMNS,
    DATASET_REPLICAS,
    merge_replicas,
    whole_milliseconds,
)
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
from cmsspark.dumps.rucio_rows import COUNTS, LARGEST, LAST_ACCESS, OUTSIDE, RSE_SUMS
from cmsspark.dumps.rucio_rows import SUMS as REPLICA_SUMS
from cmsspark.sources.accounts import Accounts
from cmsspark.sources.rses import Rse

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

Frames = Mapping[str, pl.DataFrame]

#: The start of the last day that is a date.
_LAST_MS: Final = dates.start_ms(date.max)
#: Rows that are handed over to Arrow at once: texts of one array must stay below 2 GB.
_SLICE: Final = 1_000_000


def make_frames(
    rows: Iterable[KeyedRows],
    datasets: KnownDatasets,
    names: pl.Series,
    frames: Iterable[str],
    blocks: str,
) -> dict[str, pl.DataFrame]:
    """Return ``frames`` of merged rows. ``names``: those that ``datasets`` numbers.
    Raises DataError (65) if a sum leaves 64 bits.

    ``contents``: ``dataset_name`` (once each), ``file_count``, ``invalid_file_count``,
    ``events``, ``dataset_bytes``, and of invalid files alone ``invalid_events`` and
    ``invalid_bytes``. ``dataset_replicas``: ``dataset_name``,
    ``site_name``, ``kind``, ``present_file_count``, ``present_bytes``,
    ``present_block_count``, ``full_block_count``, ``newest_replica_ms``, and ``with
    blocks`` ``block_count`` and ``is_complete``. ``block_sums``: ``dataset_id``,
    ``month`` (of the creation of blocks, or null), ``block_count``, and in 128 bits
    ``file_count``, ``events`` (null if no file says), ``bytes``; with ``blocks``
    ``valid`` of valid files only.
    """
    by_kind = rows_by_kind(rows)
    by_name = {}
    for name in frames:
        if name == "contents":
            by_name[name] = _contents(by_kind[TOTALS], datasets, names)
        elif name == "block_sums":
            by_name[name] = _block_sums(by_kind[MONTH_SUMS], is_valid_only=blocks == "valid")
        else:
            pieces = [
                replicas_frame(entry, counts_blocks="blocks" in name)
                for entry in (*by_kind[DATASET_REPLICAS], no_replicas())
            ]
            by_name["dataset_replicas"] = pl.concat(pieces)
    return by_name


def to_frame(tables: Iterable[pa.Table]) -> pl.DataFrame:
    """Return tables as a frame."""
    import pyarrow as pa

    frame = pl.from_arrow(pa.concat_tables(tables))
    assert isinstance(frame, pl.DataFrame)
    return frame


def datasets_in(frames: Frames) -> tuple[KnownDatasets, pl.Series]:
    """Return the datasets that FILES and BLOCKS may name, by number; none where
    DATASETS was not read.
    """
    if "DATASETS" not in frames:
        return known_datasets([], [], 0), pl.Series(dtype=pl.String)
    ids = identities(frames["DATASETS"])
    names = ids["dataset_name"].unique(maintain_order=True)
    numbered = ids.join(
        pl.DataFrame({"dataset_name": names}).with_row_index("number"), "dataset_name", "left"
    )
    numbered_datasets = known_datasets(
        numbered["dataset_id"].to_list(), numbered["number"].to_list(), len(names)
    )
    return numbered_datasets, names


def _contents(
    rows: Sequence[KeyedRows], datasets: KnownDatasets, names: pl.Series
) -> pl.DataFrame:
    sums = sum_datasets(rows, datasets)
    events = joined(sums["events_upper"], sums["events_lower"], "event_count")
    sizes = joined(sums["bytes_upper"], sums["bytes_lower"], "file_size")
    invalid_events, invalid_sizes = (
        joined(sums[f"invalid_{name}_upper"], sums[f"invalid_{name}_lower"], f"invalid {name}")
        for name in ("events", "bytes")
    )
    return pl.DataFrame(
        {
            "dataset_name": names,
            "file_count": sums["files"],
            "invalid_file_count": sums["invalid"],
            "events": nullable(events, sums["events_there"] > 0),
            "dataset_bytes": nullable(sizes, sums["bytes_there"] > 0),
            "invalid_events": nullable(invalid_events, sums["events_there"] > 0),
            "invalid_bytes": nullable(invalid_sizes, sums["bytes_there"] > 0),
        }
    )


def no_replicas() -> KeyedRows:
    """Return the replicas of datasets if there are none."""
    columns = {
        name: np.zeros(0, kind)
        for name, kind in {**COLUMNS, "dataset": "i8", "node": "i8"}.items()
    }
    names = {name: array([], "string") for name in ("dataset", "node")}
    return merge_replicas(0, [KeyedRows(0, "", columns, names)], None, None)


def replicas_frame(rows: KeyedRows, *, counts_blocks: bool) -> pl.DataFrame:
    """Return ``dataset_replicas``, as :func:`make_frames` describes it."""
    columns = rows.columns
    texts = {
        "dataset_name": (rows.names["dataset"], "dataset"),
        "site_name": (rows.names["site"], "site"),
        "kind": (KINDS, "kind"),
    }
    named = {
        name: pl.Series(values=values, dtype=pl.String).gather(columns[column])
        for name, (values, column) in texts.items()
    }
    numbers = {
        name: values for name, values in columns.items() if name.endswith(("_count", "_bytes"))
    }
    newest = nullable(columns["newest_ms"], columns["has_newest"])
    frame = pl.DataFrame({**named, **numbers, "newest_replica_ms": newest})
    if not counts_blocks:
        return frame.drop("block_count")
    # No dataset, no blocks of it.
    count = pl.when(pl.col("dataset_name").is_not_null()).then("block_count")
    is_complete = (pl.col("block_count") > 0) & (
        pl.col("full_block_count") == pl.col("block_count")
    )
    return frame.with_columns(count).with_columns(
        is_complete.fill_null(value=False).alias("is_complete")
    )


def _block_sums(rows: Sequence[KeyedRows], *, is_valid_only: bool) -> pl.DataFrame:
    names = ("dataset", "month", "block_count", *SUMS)
    sums = pl.DataFrame(join_columns(rows, names), schema=dict.fromkeys(names, pl.Int64))
    events, sizes = (
        pl.col(f"{name}_upper").cast(pl.Int128) * 2**32 + pl.col(f"{name}_lower").cast(pl.Int128)
        for name in ("events", "bytes")
    )
    months, positions = np.unique(sums["month"].to_numpy(), return_inverse=True)
    texts = [
        None if month == NULL else f"{1970 + month // 12:04}-{month % 12 + 1:02}"
        for month in months.tolist()
    ]
    return sums.select(
        pl.col("dataset").alias("dataset_id"),
        pl.Series("month", texts, pl.String).gather(positions),
        "block_count",
        (pl.col("files") - (pl.col("invalid") if is_valid_only else 0))
        .cast(pl.Int128)
        .alias("file_count"),
        pl.when(pl.col("events_there") > 0).then(events).alias("events"),
        sizes.alias("bytes"),
    )


def nullable(values: npt.NDArray[Any], is_valid: npt.NDArray[np.bool_]) -> pl.Series:
    """Return ``values``, null if they are not valid."""
    return (
        pl.DataFrame({"values": values, "there": is_valid})
        .select(pl.when("there").then("values"))
        .to_series()
    )


def one_each(rows: pl.DataFrame, key: str, *values: str) -> pl.DataFrame:
    """Return ``rows`` with each ``key`` once and no null key; of several rows the
    largest values win.
    """
    # Nulls come first, and are the smallest.
    in_order = rows.filter(pl.col(key).is_not_null()).select(key, *values).sort(values)
    return in_order.unique(key, keep="last")


def identities(datasets: pl.DataFrame) -> pl.DataFrame:
    """Return ``dataset_id`` (once each), ``dataset_name``: the rows of DATASETS that have both."""
    named = datasets.filter(pl.col("dataset").is_not_null())
    return one_each(named, "dataset_id", "dataset").rename({"dataset": "dataset_name"})


def releases(frames: Frames) -> pl.DataFrame:
    """Return ``dataset_name`` (once each), ``release_versions``: releases that made it,
    sorted, joined by commas.
    """
    modules = one_each(
        frames["OUTPUT_MODULE_CONFIGS"], "output_mod_config_id", "release_version_id"
    )
    versions = one_each(frames["RELEASE_VERSIONS"], "release_version_id", "release_version")
    by_release = (
        frames["DATASET_OUTPUT_MOD_CONFIGS"]
        .join(identities(frames["DATASETS"]), "dataset_id")
        .join(modules, "output_mod_config_id")
        .join(versions, "release_version_id")
    )
    texts = (
        pl.col("release_version")
        .drop_nulls()
        .unique()
        .sort()
        .str.join(",")
        .alias("release_versions")
    )
    load_versions = by_release.group_by("dataset_name").agg(texts)
    return load_versions.with_columns(
        pl.when(pl.col("release_versions") != "").then("release_versions")
    )


#: Of each table that DATASETS points to: the key, the value, and the value's name in
#: :func:`attributes`.
_ATTRIBUTES: Final = (
    ("DATASET_ACCESS_TYPES", "dataset_access_type_id", "dataset_access_type", "access_type"),
    ("ACQUISITION_ERAS", "acquisition_era_id", "acquisition_era_name", "acquisition_era"),
    ("PROCESSING_ERAS", "processing_era_id", "processing_version", "processing_version"),
    ("PHYSICS_GROUPS", "physics_group_id", "physics_group_name", "physics_group"),
)


def attributes(frames: Frames) -> pl.DataFrame:
    """Return what DATASETS says of each dataset; of two rows with one name, the larger
    dataset_id's.

    Columns: ``dataset_name`` (once each), ``is_valid``, ``access_type``,
    ``acquisition_era``, ``processing_version``, ``physics_group``, ``created_ms``.
    Tables that the job did not read give no column.
    """
    rows = frames["DATASETS"].filter(pl.col("dataset_id").is_not_null())
    facts = [name for name in rows.columns if name not in ("dataset", "dataset_id")]
    rows = one_each(rows, "dataset", "dataset_id", *facts).rename({"dataset": "dataset_name"})
    columns = [pl.col("dataset_name"), (pl.col("is_dataset_valid") == 1).alias("is_valid")]
    for table, key, value, name in _ATTRIBUTES:
        if table in frames:
            rows = rows.join(one_each(frames[table], key, value), key, "left")
            fact = pl.col(value)
            if name == "access_type":
                # A code, however it is written (rule 70).
                fact = fact.str.strip_chars().str.to_uppercase()
            columns.append(fact.alias(name))
    if "PROCESSING_ERAS" in frames:
        # A version is a whole number; what is none is null.
        columns = [
            column.cast(pl.Int64, strict=False)
            if column.meta.output_name() == "processing_version"
            else column
            for column in columns
        ]
    if "creation_date" in rows.columns:
        seconds = rows["creation_date"]
        created, is_time = whole_milliseconds(seconds.fill_null(0.0).to_numpy())
        rows = rows.with_columns(
            nullable(created, is_time & seconds.is_not_null().to_numpy()).alias("created_ms")
        )
        columns.append(pl.col("created_ms"))
    return rows.select(columns)


def by_dataset(replicas: pl.DataFrame) -> pl.DataFrame:
    """Return what is there of each dataset, over all sites: ``dataset_name`` (once
    each), ``site_count``, ``site_names`` (sorted, joined by commas), ``disk_bytes``,
    ``tape_bytes``, ``present_file_count``, ``newest_replica_ms`` (or null).

    ``replicas``: ``dataset_replicas`` of :func:`make_frames`; rows with nothing there,
    or of no dataset, do not count. Raises DataError (65).
    """
    present = replicas.filter(
        ((pl.col("present_bytes") > 0) | (pl.col("present_file_count") > 0))
        & pl.col("dataset_name").is_not_null()
    )
    of_kinds = [
        pl.when(pl.col("kind") == kind).then(pl.col("present_bytes")).alias(f"{kind}_bytes")
        for kind in KINDS[:2]
    ]
    sites = pl.col("site_name").drop_nulls().unique()
    summed = (
        present.with_columns(of_kinds)
        .group_by("dataset_name")
        .agg(
            sites.len().cast(pl.Int64).alias("site_count"),
            sites.sort().str.join(",").alias("site_names"),
            *(exact_sum(name) for name in ("disk_bytes", "tape_bytes", "present_file_count")),
            pl.col("newest_replica_ms").max(),
        )
    )
    return in_64_bits(summed).with_columns(pl.col("disk_bytes", "tape_bytes").fill_null(0))


def date_of_ms(column: str) -> pl.Expr:
    """Return the date (UTC) of milliseconds since 1970; of times after the year 9999,
    which have none, its last day.
    """
    return pl.from_epoch(pl.col(column).clip(upper_bound=_LAST_MS), "ms").dt.date()


def with_derived(rows: pl.DataFrame, names: Iterable[str]) -> pl.DataFrame:
    """Return ``rows`` with those of ``names`` that are in
    :data:`cmsspark.base.names.DERIVED` and not in ``rows``.

    They are computed once for each distinct text.
    """
    for name in names:
        if name in DERIVED and name not in rows.columns:
            rule = DERIVED[name]
            texts = rows[rule.source].unique().drop_nulls()
            values = pl.Series(
                name, [rule.derive(text) for text in texts.to_list()], dtype=pl.String
            )
            rows = rows.join(
                pl.DataFrame([texts, values]), rule.source, "left", maintain_order="left"
            )
    return rows


def as_table(rows: pl.DataFrame, table: str, day: date) -> pl.DataFrame:
    """Return ``rows`` with the columns of a stored table: derived columns, ``day`` and
    ``timestamp`` are added.
    """
    names = stored_table(table).names
    of_day = {"day": pl.lit(day), "timestamp": pl.lit(dates.start_ms(day), pl.Int64)}
    return with_derived(rows, names).with_columns(**of_day).select(names)


def round_values(values: pl.Series, label: str) -> pl.Series:
    """Round to the nearest integer, half away from zero. Raises DataError (65) on 64-bit overflow."""
    rounded_values, fits = rounded(values.fill_null(0.0).to_numpy())
    if not fits.all():
        raise _too_large(label)
    return nullable(rounded_values, values.is_not_null().to_numpy())


def exact_sum(name: str) -> pl.Expr:
    """Return the 128-bit sum of integers, null if all are null; :func:`in_64_bits`
    brings it back.
    """
    return pl.when(pl.col(name).count() > 0).then(pl.col(name).cast(pl.Int128).sum()).alias(name)


def in_64_bits(rows: pl.DataFrame) -> pl.DataFrame:
    """Return ``rows`` with their 128-bit sums in 64 bits. Raises DataError (65) if
    one does not fit.
    """
    for name, kind in rows.schema.items():
        largest = rows[name].abs().max() if kind == pl.Int128 else None
        if largest is not None and largest >= 2**63:  # type: ignore[operator]
            raise _too_large(name)
    return rows.cast({pl.Int128: pl.Int64})


def _too_large(label: str) -> DataError:
    return DataError(
        f"the sum of {label} does not fit 64 bits", next_step="look for absurd sizes in the dump"
    )


def to_arrow(rows: pl.DataFrame, schema: pa.Schema) -> pa.Table:
    """Return ``rows`` as an Arrow table with the columns and types of ``schema``."""
    import pyarrow as pa

    oldest = pl.CompatLevel.oldest()
    pieces = [
        part.select(schema.names).to_arrow(compat_level=oldest).cast(schema)
        for part in rows.iter_slices(_SLICE)
    ]
    return pa.concat_tables(pieces) if pieces else schema.empty_table()


# What Rucio says of RSEs and datasets, beside the replicas that PhEDEx has too.

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
        # The largest of a dataset's replicas, and of its files, its blocks and its own in DIDS.
        of_replicas = frames["rse_sums"].select("dataset_name", accessed="last_access_ms")
        of_dids = [
            _name_datasets(entry).rename({"accessed_ms": "accessed"})
            for entry in by_kind[LAST_ACCESS]
        ]
        accesses = pl.concat([of_replicas, *of_dids]).drop_nulls()
        frames["last_access"] = accesses.group_by("dataset_name").agg(
            pl.col("accessed").max().alias("rucio_last_access_ms")
        )
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
    numbers = (*COUNTS, *REPLICA_SUMS, *LARGEST)
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
            *(exact_sum(name) for name in (*COUNTS, *REPLICA_SUMS)),
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
