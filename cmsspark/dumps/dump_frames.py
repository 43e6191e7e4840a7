"""The dumps' tables as Polars frames: what DBS says of each dataset, and what lies where.

FILES, BLOCKS and the replicas go through partitions on disk; the other tables are read whole. Joins go over keys made
unique first, so that none multiplies rows. In Spark :mod:`cmsspark.dumps.dump_scan` makes the same frames.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from cmsspark.base import dates
from cmsspark.base.errors import DataError
from cmsspark.base.exact_integers import rounded
from cmsspark.base.names import DERIVED, KINDS
from cmsspark.base.schemas import stored_table
from cmsspark.dumps.dataset_contents import DatasetContents, KnownDatasets, dataset_contents, known_datasets
from cmsspark.dumps.dataset_replicas import Presence, StorageByNode, presence, whole_milliseconds
from cmsspark.dumps.partitions import ROWS
from cmsspark.dumps.parts import Each, Part, read_whole

if TYPE_CHECKING:
    import pyarrow as pa

Frames = Mapping[str, pl.DataFrame]

#: The replicas' name among the tables, and the tables that are not read whole.
REPLICAS: Final = "block_replicas"
_LARGE: Final = ("FILES", "BLOCKS", REPLICAS)
#: The first and the last Unix second of the years from 1 to 9999.
TIMES: Final = (-62_135_596_800, 253_402_300_799)
#: The start of the last day that is a date.
_LAST_MS: Final = dates.start_ms(date.max)
#: Rows that are handed over to Arrow at once: texts of one array must stay below 2 GB.
_SLICE: Final = 1_000_000


def read_frames(
    parts: Mapping[str, Sequence[Part]],
    folder: Path,
    each: Each = map,
    rows: int = ROWS,
    storage: StorageByNode | None = None,
) -> dict[str, pl.DataFrame]:
    """Return the frames that jobs build on, from the parts of the dumps' tables by name.

    Tables other than FILES, BLOCKS and the replicas come as they are. FILES (with DATASETS) give ``contents``:
    ``dataset_name`` (once each), ``file_count``, ``invalid_file_count``, ``events``, ``dataset_bytes``. Replicas give
    ``presence``: ``dataset_name``, ``site_name``, ``kind``, ``present_file_count``, ``present_bytes``,
    ``present_block_count``, ``full_block_count``, ``newest_replica_ms`` and, with BLOCKS, ``block_count`` and
    ``is_complete``. ``storage``: of each node, where the nodes' names do not say it. ``folder`` takes some 60 bytes for
    each row of these three meanwhile. Raises DataError (65) where a sum leaves 64 bits, OSError, and whatever the parts
    raise.
    """
    frames = read_tables({name: parts[name] for name in parts if is_small(name)}, each)
    datasets, names = datasets_in(frames)
    if "FILES" in parts:
        contents = dataset_contents(parts["FILES"], datasets, folder, each, rows=rows)
        frames["contents"] = contents_frame(contents, names)
    if REPLICAS in parts:
        blocks = parts.get("BLOCKS")
        frames["presence"] = _presence(parts[REPLICAS], blocks, datasets, names, folder, each, rows, storage)
    return frames


def read_tables(parts: Mapping[str, Sequence[Part]], each: Each = map) -> dict[str, pl.DataFrame]:
    """Tables as they are."""
    some = [(name, part) for name in parts for part in parts[name]]
    pieces: dict[str, list[pa.Table]] = {name: [] for name, _ in some}
    for (name, _), tables in zip(some, each(read_whole, [part for _, part in some]), strict=True):
        pieces[name] += tables
    return {name: frame_of(tables) for name, tables in pieces.items()}


def is_small(table: str) -> bool:
    """Return whether a table is read whole."""
    return table not in _LARGE


def frame_of(tables: Iterable[pa.Table]) -> pl.DataFrame:
    import pyarrow as pa

    frame = pl.from_arrow(pa.concat_tables(tables))
    assert isinstance(frame, pl.DataFrame)
    return frame


def datasets_in(frames: Frames) -> tuple[KnownDatasets, pl.Series]:
    """Return the datasets that FILES and BLOCKS may name, and their names by number; none where DATASETS was not read.
    """
    if "DATASETS" not in frames:
        return known_datasets([], [], 0), pl.Series(dtype=pl.String)
    ids = identities(frames["DATASETS"])
    names = ids["dataset_name"].unique(maintain_order=True)
    numbered = ids.join(pl.DataFrame({"dataset_name": names}).with_row_index("number"), "dataset_name", "left")
    numbered_datasets = known_datasets(numbered["dataset_id"].to_list(), numbered["number"].to_list(), len(names))
    return numbered_datasets, names


def contents_frame(contents: DatasetContents, names: pl.Series) -> pl.DataFrame:
    """``contents``, as :func:`read_frames` describes it."""
    return pl.DataFrame(
        {
            "dataset_name": names,
            "file_count": contents.files,
            "invalid_file_count": contents.invalid_files,
            "events": nullable(contents.events, contents.has_events),
            "dataset_bytes": nullable(contents.bytes, contents.has_bytes),
        }
    )


def _presence(
    replicas: Sequence[Part],
    blocks: Sequence[Part] | None,
    dbs_datasets: KnownDatasets,
    names: pl.Series,
    folder: Path,
    each: Each,
    rows: int,
    storage: StorageByNode | None,
) -> pl.DataFrame:
    if blocks is None:
        result = presence(replicas, folder, each, rows=rows, storage=storage)
    else:
        of_dbs: dict[str, Any] = {"blocks": blocks, "dbs_datasets": dbs_datasets, "names": names.to_list()}
        result = presence(replicas, folder, each, **of_dbs, rows=rows, storage=storage)
    return presence_frame(result, counts_blocks=blocks is not None)


def presence_frame(result: Presence, *, counts_blocks: bool) -> pl.DataFrame:
    """``presence``, as :func:`read_frames` describes it."""
    columns = result.rows
    texts = {"dataset_name": (result.datasets, "dataset"), "site_name": (result.sites, "site"), "kind": (KINDS, "kind")}
    named = {
        name: pl.Series(values, dtype=pl.String).gather(columns[column]) for name, (values, column) in texts.items()
    }
    numbers = {name: values for name, values in columns.items() if name.endswith(("_count", "_bytes"))}
    newest = nullable(columns["newest_ms"], columns["has_newest"])
    frame = pl.DataFrame({**named, **numbers, "newest_replica_ms": newest})
    if not counts_blocks:
        return frame.drop("block_count")
    # No dataset, no blocks of it.
    count = pl.when(pl.col("dataset_name").is_not_null()).then("block_count")
    is_complete = (pl.col("block_count") > 0) & (pl.col("full_block_count") == pl.col("block_count"))
    return frame.with_columns(count).with_columns(is_complete.fill_null(value=False).alias("is_complete"))


def nullable(values: npt.NDArray[Any], is_valid: npt.NDArray[np.bool_]) -> pl.Series:
    """``values``, null where they are not valid."""
    return pl.DataFrame({"values": values, "there": is_valid}).select(pl.when("there").then("values")).to_series()


def one_each(rows: pl.DataFrame, key: str, *values: str) -> pl.DataFrame:
    """``rows`` with each ``key`` once and no null key: of several rows the largest values win, whatever their order."""
    # Nulls come first, and are the smallest.
    in_order = rows.filter(pl.col(key).is_not_null()).select(key, *values).sort(values)
    return in_order.unique(key, keep="last")


def identities(datasets: pl.DataFrame) -> pl.DataFrame:
    """``dataset_id`` (once each), ``dataset_name``: the rows of DATASETS that have both."""
    named = datasets.filter(pl.col("dataset").is_not_null())
    return one_each(named, "dataset_id", "dataset").rename({"dataset": "dataset_name"})


def releases(frames: Frames) -> pl.DataFrame:
    """``dataset_name`` (once each), ``release_versions``: releases that made it, sorted, joined by commas."""
    modules = one_each(frames["OUTPUT_MODULE_CONFIGS"], "output_mod_config_id", "release_version_id")
    versions = one_each(frames["RELEASE_VERSIONS"], "release_version_id", "release_version")
    made = (
        frames["DATASET_OUTPUT_MOD_CONFIGS"]
        .join(identities(frames["DATASETS"]), "dataset_id")
        .join(modules, "output_mod_config_id")
        .join(versions, "release_version_id")
    )
    texts = pl.col("release_version").drop_nulls().unique().sort().str.join(",").alias("release_versions")
    versions_of = made.group_by("dataset_name").agg(texts)
    return versions_of.with_columns(pl.when(pl.col("release_versions") != "").then("release_versions"))


#: Of each table that DATASETS points to: the key, the value, and the value's name in :func:`attributes`.
_ATTRIBUTES: Final = (
    ("DATASET_ACCESS_TYPES", "dataset_access_type_id", "dataset_access_type", "access_type"),
    ("ACQUISITION_ERAS", "acquisition_era_id", "acquisition_era_name", "acquisition_era"),
    ("PROCESSING_ERAS", "processing_era_id", "processing_version", "processing_version"),
    ("PHYSICS_GROUPS", "physics_group_id", "physics_group_name", "physics_group"),
)


def attributes(frames: Frames) -> pl.DataFrame:
    """Return what DATASETS says of each dataset; of two rows with one name, the larger dataset_id's.

    Columns: ``dataset_name`` (once each), ``is_valid``, ``access_type``, ``acquisition_era``, ``processing_version``,
    ``physics_group``, ``created_ms``. Tables that the job did not read give no column.
    """
    rows = frames["DATASETS"].filter(pl.col("dataset_id").is_not_null())
    facts = [name for name in rows.columns if name not in ("dataset", "dataset_id")]
    rows = one_each(rows, "dataset", "dataset_id", *facts).rename({"dataset": "dataset_name"})
    columns = [pl.col("dataset_name"), (pl.col("is_dataset_valid") == 1).alias("is_valid")]
    for table, key, value, name in _ATTRIBUTES:
        if table in frames:
            rows = rows.join(one_each(frames[table], key, value), key, "left")
            columns.append(pl.col(value).alias(name))
    if "PROCESSING_ERAS" in frames:
        # A version is a whole number; what is none is null.
        columns = [column.cast(pl.Int64, strict=False) if column.meta.output_name() == "processing_version" else column
                   for column in columns]  # fmt: skip
    if "creation_date" in rows.columns:
        seconds = rows["creation_date"]
        created, is_time = whole_milliseconds(seconds.fill_null(0.0).to_numpy())
        rows = rows.with_columns(nullable(created, is_time & seconds.is_not_null().to_numpy()).alias("created_ms"))
        columns.append(pl.col("created_ms"))
    return rows.select(columns)


def by_dataset(presence: pl.DataFrame) -> pl.DataFrame:
    """Return what is there of each dataset, over all sites: ``dataset_name`` (once each), ``site_count``,
    ``site_names`` (sorted, joined by commas), ``disk_bytes``, ``tape_bytes``, ``present_file_count``,
    ``newest_replica_ms`` (or null).

    ``presence``: of :func:`read_frames`; rows with nothing there, or of no dataset, do not count. Raises DataError
    (65).
    """
    there = presence.filter(
        ((pl.col("present_bytes") > 0) | (pl.col("present_file_count") > 0)) & pl.col("dataset_name").is_not_null()
    )
    of_kinds = [
        pl.when(pl.col("kind") == kind).then(pl.col("present_bytes")).alias(f"{kind}_bytes") for kind in KINDS[:2]
    ]
    sites = pl.col("site_name").drop_nulls().unique()
    summed = (
        there.with_columns(of_kinds)
        .group_by("dataset_name")
        .agg(
            sites.len().cast(pl.Int64).alias("site_count"),
            sites.sort().str.join(",").alias("site_names"),
            *(exact_sum(name) for name in ("disk_bytes", "tape_bytes", "present_file_count")),
            pl.col("newest_replica_ms").max(),
        )
    )
    return in_64_bits(summed).with_columns(pl.col("disk_bytes", "tape_bytes").fill_null(0))


def campaign() -> pl.Expr:
    """``campaign``: the second part of a dataset's name up to its first dash, from ``processing_name``."""
    return pl.col("processing_name").str.split("-").list.first().fill_null("").alias("campaign")


def month(column: str) -> pl.Expr:
    """Return the month (``2026-01``, UTC) of Unix seconds; null where there are none, or none of a year from 1 to 9999.
    """
    seconds = pl.col(column)
    is_time = seconds.is_between(*TIMES)
    whole = pl.when(is_time).then(seconds).floor().cast(pl.Int64)
    return pl.from_epoch(whole, "s").dt.strftime("%Y-%m")


def date_of_ms(column: str) -> pl.Expr:
    """Return the date (UTC) of milliseconds since 1970; of times after the year 9999, which have none, its last day."""
    return pl.from_epoch(pl.col(column).clip(upper_bound=_LAST_MS), "ms").dt.date()


def with_derived(rows: pl.DataFrame, names: Iterable[str]) -> pl.DataFrame:
    """``rows`` with those of ``names`` that are in :data:`cmsspark.base.names.DERIVED` and not in ``rows``.

    They are computed once for each distinct text.
    """
    for name in names:
        if name in DERIVED and name not in rows.columns:
            rule = DERIVED[name]
            texts = rows[rule.source].unique().drop_nulls()
            values = pl.Series(name, [rule.of(text) for text in texts.to_list()], dtype=pl.String)
            rows = rows.join(pl.DataFrame([texts, values]), rule.source, "left", maintain_order="left")
    return rows


def as_table(rows: pl.DataFrame, table: str, day: date) -> pl.DataFrame:
    """``rows`` with the columns of a stored table: derived columns, ``day`` and ``timestamp`` are added."""
    names = stored_table(table).names
    of_day = {"day": pl.lit(day), "timestamp": pl.lit(dates.start_ms(day), pl.Int64)}
    return with_derived(rows, names).with_columns(**of_day).select(names)


def whole(values: pl.Series, what: str) -> pl.Series:
    """Round to the nearest integer, half away from zero. Raises DataError (65) on 64-bit overflow."""
    rounded_values, fits = rounded(values.fill_null(0.0).to_numpy())
    if not fits.all():
        raise _too_large(what)
    return nullable(rounded_values, values.is_not_null().to_numpy())


def exact_sum(name: str) -> pl.Expr:
    """Return the sum of a column of integers in 128 bits, null where all are null; :func:`in_64_bits` brings it back.
    """
    return pl.when(pl.col(name).count() > 0).then(pl.col(name).cast(pl.Int128).sum()).alias(name)


def in_64_bits(rows: pl.DataFrame) -> pl.DataFrame:
    """``rows`` with their 128-bit sums in 64 bits. Raises DataError (65) where one does not fit."""
    for name, kind in rows.schema.items():
        if kind == pl.Int128 and rows[name].abs().max() is not None and rows[name].abs().max() >= 2**63:  # type: ignore[operator]
            raise _too_large(name)
    return rows.cast({pl.Int128: pl.Int64})


def _too_large(what: str) -> DataError:
    return DataError(f"the sum of {what} does not fit 64 bits", next_step="look for absurd sizes in the dump")


def to_arrow(rows: pl.DataFrame, schema: pa.Schema) -> pa.Table:
    """``rows`` as an Arrow table with the columns and types of ``schema``."""
    import pyarrow as pa

    oldest = pl.CompatLevel.oldest()
    pieces = [part.select(schema.names).to_arrow(compat_level=oldest).cast(schema) for part in rows.iter_slices(_SLICE)]
    return pa.concat_tables(pieces) if pieces else schema.empty_table()
