"""The Spark runner: counts a day on a cluster, or where paths, catalogue or options need Spark."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from datetime import date
from functools import cached_property, partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec
from msgspec.structs import replace

from cmsspark.base.schemas import Table, stored_table
from cmsspark.counting.crab_rows import first_rows
from cmsspark.counting.merge import KEYS, USER_KEYS, SideRow
from cmsspark.counting.pre_aggregate import COLUMNS, HASH_COLUMNS, QUARANTINE
from cmsspark.counting.site_pairs import PAIR_KEYS
from cmsspark.engines.broadcast_files import ship
from cmsspark.engines.job_work import JobTables
from cmsspark.engines.merge_task import (
    MERGED_COLUMNS,
    MERGED_JOB_COLUMNS,
    PACKED_COLUMNS,
    PAIRS,
    PARTIALS,
    REPORT,
    decode_batches,
    decode_rows,
    merge_accesses,
    merge_crab,
    merge_jobs,
    pack_earlier_ids,
    partition_numbers,
)
from cmsspark.engines.names import SPARK
from cmsspark.engines.session import (
    cluster_events,
    spark_progress,
    static_plans,
    summarize_locality,
)
from cmsspark.engines.tasks import StreamFiles, TaskContext, spark_schema, total_weight
from cmsspark.sources.dumps import Dump
from cmsspark.sources.registry import (
    JOB_IDS,
    JOB_TABLES,
    REPLICAS,
    STREAMS_OF_JOB_ROWS,
    STREAMS_OF_JOBS,
)
from cmsspark.sources.rses import Rses, StorageSites
from cmsspark.store.staged_runs import StagedRun, file_count

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


#: Bytes of logs, decompressed, whose rows one merge task takes. Rows of the shuffle
#: join are not pre-aggregated, so there are more of them for each byte.
MERGE_BYTES: Final = 2_000_000_000
SHUFFLED_MERGE_BYTES: Final = 500_000_000
#: Kinds of merged rows that become tables, and the keys that they are sorted by.
_SORTED_BY: Final = {PARTIALS: USER_KEYS, REPORT: KEYS, PAIRS: PAIR_KEYS}
#: The driver collects and writes a table of up to so many rows: some 20 MB compressed,
#: 250 MB as they are written.
DRIVER_ROWS: Final = 1_000_000
#: The same for ids of jobs, of 8 bytes.
DRIVER_IDS: Final = 10_000_000


class SparkRunner(msgspec.Struct, frozen=True):
    """Counts days with a Spark session. Without a catalogue in the context the shuffle
    join attaches the ``dumps``.

    ``rses``: the storage elements of a dump of Rucio. ``sites``: where the jobs of a
    site have their data. ``tables``: those that the driver
    writes where they are small. ``earlier_ids``: part files with the ids of the jobs of
    the day before, which tasks read.
    """

    session: SparkSession
    dumps: Sequence[Dump]
    tables: Sequence[str]
    feed: str = "auto"
    rses: Rses | None = None
    sites: StorageSites = msgspec.field(default_factory=dict)
    earlier_ids: Sequence[str] = ()

    def run(self, streams: Sequence[StreamFiles], context: TaskContext) -> SparkResult:
        """Count the files of all streams. Spark reads them when a row of the result is needed."""
        from cmsspark.engines.scan import scan

        has_catalogue = context.catalogue is not None
        broadcast = self._broadcast(context)
        of_rows = [stream for stream in streams if stream.stream in STREAMS_OF_JOB_ROWS]
        of_accesses = [
            stream
            for stream in streams
            if stream.stream not in STREAMS_OF_JOBS and stream not in of_rows
        ]
        is_shuffled = bool(of_accesses or of_rows) and not has_catalogue
        count = max(
            1,
            math.ceil(
                total_weight(streams) / (SHUFFLED_MERGE_BYTES if is_shuffled else MERGE_BYTES)
            ),
        )
        numbers = partition_numbers(count)
        parts, jobs, persisted = [], None, None
        if of_rows:
            # Before the scan of other streams, whose sizes decide on the tasks of both.
            parts.append(self._merged_rows(of_rows, broadcast, () if is_shuffled else numbers))
        if of_accesses:
            task_context = replace(
                broadcast, jobs=None, part_numbers=() if is_shuffled else numbers
            )
            parts.append(scan(self.session, of_accesses, task_context, self.feed))
        if is_shuffled:
            dumps = {dump.kind: dump for dump in self.dumps}
            rucio, persisted = self._rucio_replicas(dumps.get("rucio"))
            hashed = reduce(lambda first, right: first.unionByName(right), parts)
            parts = [_attach_by_shuffle(self.session, hashed, dumps, rucio, self.sites)]
        if broadcast.jobs is not None:
            of_jobs = [stream for stream in streams if stream.stream in STREAMS_OF_JOBS]
            jobs = _persisted(self._merged_jobs(of_jobs, broadcast, numbers), is_adaptive=False)
            packed = jobs.where("table is null").select("part", "packed")
            parts.append(
                packed.mapInArrow(decode_batches, spark_schema(COLUMNS)) if is_shuffled else packed
            )
        scanned = reduce(lambda first, right: first.unionByName(right), parts)
        rows = _persisted(merged(scanned, count, context.day), is_adaptive=is_shuffled)
        return SparkResult(rows, count, context.day, self.tables, jobs, persisted)

    def _merged_rows(
        self, streams: Sequence[StreamFiles], context: TaskContext, part_numbers: Sequence[int]
    ) -> DataFrame:
        """Return the rows of a scan of rows of jobs with each file of a job once:
        packed, or without ``part_numbers`` those of a hashed scan.

        All rows of a job are in one partition.
        """
        from cmsspark.engines.scan import scan

        count = max(1, math.ceil(total_weight(streams) / MERGE_BYTES))
        if not part_numbers:
            scanned = scan(self.session, streams, replace(context, jobs=None), self.feed)
            return scanned.repartition(count, "id_hash").mapInArrow(
                first_rows, spark_schema((*COLUMNS, *HASH_COLUMNS))
            )
        task_context = replace(context, jobs=None, part_numbers=partition_numbers(count))
        scanned = scan(self.session, streams, task_context, self.feed)
        return scanned.repartition(count, "part").mapInArrow(
            partial(merge_crab, part_numbers), spark_schema(PACKED_COLUMNS)
        )

    def _merged_jobs(
        self, streams: Sequence[StreamFiles], context: TaskContext, part_numbers: Sequence[int]
    ) -> DataFrame:
        """Return the rows of a scan of jobs with each job once, packed, and the tables of jobs.

        All records of a job are in one partition.
        """
        assert context.jobs is not None
        from cmsspark.engines.scan import scan

        count = max(1, math.ceil(total_weight(streams) / MERGE_BYTES))
        task_context = replace(context, jobs=None, part_numbers=partition_numbers(count))
        scanned = scan(self.session, streams, task_context, self.feed)
        if self.earlier_ids:
            # Each id goes to the partition of its job: in no process are all of them.
            stored = self.session.read.schema("id_hash bigint").parquet(*self.earlier_ids)
            pack = partial(pack_earlier_ids, task_context.part_numbers)
            scanned = scanned.unionByName(stored.mapInArrow(pack, spark_schema(PACKED_COLUMNS)))
        merge_task = partial(merge_jobs, context.jobs, context.day, part_numbers)
        return scanned.repartition(count, "part").mapInArrow(
            merge_task, spark_schema(MERGED_JOB_COLUMNS)
        )

    def _rucio_replicas(self, dump: Dump | None) -> tuple[DataFrame | None, DataFrame | None]:
        """Return the replicas on disk by Rucio, with ``shuffle_join.DISK_REPLICAS``,
        and what is persisted for them.

        Raises DataError (65).
        """
        if dump is None or self.rses is None:
            return None, None
        from cmsspark.dumps.rucio_replicas import persist_disk_replicas
        from cmsspark.dumps.rucio_scan import RucioScan
        from cmsspark.dumps.spark_transport import SparkTransport

        return persist_disk_replicas(
            SparkTransport(self.session, self.feed), RucioScan(dump, self.rses)
        )

    def _broadcast(self, context: TaskContext) -> TaskContext:
        """Return the context with folders that the executors can open."""
        jobs = context.jobs
        catalogue, replicas = (
            self._broadcast_folder(context.catalogue),
            self._broadcast_folder(context.replicas),
        )
        if jobs is not None:
            jobs = replace(jobs, inputs=ship(self.session, Path(jobs.inputs)), replicas=replicas)
        return replace(context, catalogue=catalogue, replicas=replicas, jobs=jobs)

    def _broadcast_folder(self, folder: str | None) -> str | None:
        return ship(self.session, Path(folder)) if folder else None


def merged(scanned: DataFrame, partitions: int, day: date) -> DataFrame:
    """Return the merged rows of all tasks, with ``merge_task.MERGED_COLUMNS``.

    All rows of a key are in one of the ``partitions``. Adaptive execution does not
    change their number.
    """
    keys = ["part"] if "part" in scanned.columns else KEYS
    return scanned.repartition(partitions, *keys).mapInArrow(
        partial(merge_accesses, day), spark_schema(MERGED_COLUMNS)
    )


def _persisted(rows: DataFrame, *, is_adaptive: bool) -> DataFrame:
    """Return the rows, persisted: one read of the logs gives the side rows and the tables.

    Adaptive execution pays off for the joins of the shuffle. It runs a job for each
    exchange; with a catalogue there is one exchange only, whose number of partitions is
    set.
    """
    from pyspark import StorageLevel

    # persist() plans the query, with the settings of this moment.
    with nullcontext() if is_adaptive else static_plans(rows.sparkSession):
        return rows.persist(StorageLevel.MEMORY_AND_DISK)


class SparkResult(msgspec.Struct, dict=True):
    """A day that Spark has counted, as :class:`cmsspark.run.local.LocalResult`.
    ``rows``: the merged rows, persisted.

    ``partitions``: those of the rows. ``tables``: those that the driver writes where
    they are small. ``jobs``: the merged jobs with their tables, persisted; None without
    a stream of jobs. ``kept``: other persisted rows that these are made of.
    """

    rows: DataFrame
    partitions: int
    day: date
    tables: Sequence[str]
    jobs: DataFrame | None = None
    kept: DataFrame | None = None
    engine: str = SPARK
    #: Ids of jobs where tasks write them, else 0.
    _large_id_count: int = 0

    @cached_property
    def _collected(self) -> tuple[list[tuple[Any, ...]], JobTables, dict[str, list[bytes | None]]]:
        """Side rows, the tables of jobs, and encoded rows by kind, None for many rows.
        Later jobs use persisted rows.

        The rows are some hundred, and the quarantined records that the merge keeps. The
        tables of jobs are some hundred thousand rows of CRAB, and 8 bytes for each job
        where these are not many. Of a table that is small each partition has few rows.
        """
        columns = ("kind", "stream", "app", "nacc", "detail")
        is_small = f"kind in ({_quoted(self._kinds)}) and nacc <= {DRIVER_ROWS // self.partitions}"
        rows = self.rows.selectExpr(*columns, f"case when {is_small} then packed end packed")
        if self.jobs is not None:
            # The rows are made of the jobs, which are persisted when the tasks that
            # read them here start.
            is_large = f"table = '{JOB_IDS}' and row_count > {DRIVER_IDS // self.partitions}"
            rows = rows.unionAll(
                self.jobs.where("table is not null").selectExpr(
                    *("table kind", "null stream", "null app", "row_count nacc", "null detail"),
                    f"case when {is_large} then null else packed end packed",
                )
            )
        side: list[tuple[Any, ...]] = []
        tables, encoded, id_count = JobTables(), defaultdict[str, list[bytes | None]](list), 0
        with (
            spark_progress(self.rows.sparkSession, "reading logs in Spark"),
            static_plans(self.rows.sparkSession),
        ):
            for row in rows.collect():
                if row["kind"] == JOB_IDS:
                    encoded[JOB_IDS].append(row["packed"])
                    id_count += row["nacc"]
                    continue
                if row["kind"] in JOB_TABLES:
                    tables.add_rows(row["kind"], decode_rows(row["packed"]))
                    continue
                side.append(tuple(row[name] for name in columns))
                if row["kind"] in _SORTED_BY:
                    encoded.setdefault(row["kind"], []).append(row["packed"])
        ids = encoded.pop(JOB_IDS, [])
        small_ids = [packed for packed in ids if packed is not None]
        if len(small_ids) == len(ids):
            for packed in small_ids:
                tables.add_rows(JOB_IDS, decode_rows(packed))
        else:
            self._large_id_count = id_count
        return side, tables, encoded

    @property
    def _kinds(self) -> list[str]:
        """Kinds of rows of the tables that the driver writes where they are small."""
        return sorted({_kind(table) for table in self.tables if table not in JOB_TABLES})

    @property
    def _side(self) -> list[tuple[Any, ...]]:
        return self._collected[0]

    def _row_count(self, kind: str) -> int:
        return sum(row[3] for row in self._side if row[0] == kind)

    @cached_property
    def _packed(self) -> dict[str, list[bytes]]:
        """Encoded rows of the small tables by kind. Those of which a partition has many
        rows take one job more.
        """
        encoded = self._collected[2]
        small = [kind for kind in self._kinds if self._row_count(kind) <= DRIVER_ROWS]
        uneven = [kind for kind in small if None in encoded[kind]]
        tables = {
            kind: [packed for packed in encoded[kind] if packed is not None] for kind in small
        }
        if uneven:
            tables |= {kind: [] for kind in uneven}
            of_kinds = self.rows.where(f"kind in ({_quoted(uneven)})")
            for row in of_kinds.select("kind", "packed").collect():
                tables[row["kind"]].append(row["packed"])
        return tables

    def side_rows(self) -> Iterator[SideRow]:
        """Return the rows of the scan that are not accesses."""
        return (row for row in self._side if row[0] not in (QUARANTINE, *_SORTED_BY))

    def quarantined(self) -> Iterator[tuple[str, str]]:
        """Return (stream, detail) of malformed records."""
        return (
            (stream, detail) for kind, stream, _, _, detail in self._side if kind == QUARANTINE
        )

    def write(self, run: StagedRun, table: str, fmt: str) -> int:
        """Write a table of the run and return its number of rows. The driver writes
        small tables, tasks large ones.
        """
        job_tables = self._collected[1]
        if table == JOB_IDS and self._large_id_count:
            assert self.jobs is not None
            packed = self.jobs.where(f"table = '{JOB_IDS}'").select("packed")
            rows = packed.mapInArrow(decode_batches, stored_table(JOB_IDS).spark())
            parts = rows.coalesce(file_count(self._large_id_count))
            return run.write(parts.sortWithinPartitions("id_hash"), table, fmt)
        if table in JOB_TABLES:
            return run.write_arrow(job_tables.table(table, self.day), table)
        kind, schema = _kind(table), stored_table(table)
        if kind in self._packed:
            parts = [decode_rows(packed) for packed in self._packed.pop(kind)]
            return run.write_arrow(_sorted(parts, schema, kind), table)
        packed = self.rows.where(f"kind = '{kind}'").select("packed")
        rows = packed.mapInArrow(decode_batches, schema.spark()).coalesce(
            file_count(self._row_count(kind))
        )
        return run.write(rows.sortWithinPartitions(*_SORTED_BY[kind]), table, fmt)

    def cluster_events(self) -> list[dict[str, Any]]:
        """Return what befell the executors and tasks until now, as
        :func:`cmsspark.engines.session` has it.
        """
        return cluster_events(self.rows.sparkSession)

    def close(self) -> None:
        """Unpersist the rows, and print how many tasks ran on the hosts of their data."""
        for rows in (self.rows, self.jobs, self.kept):
            if rows is not None:
                rows.unpersist()
        summary = summarize_locality(self.rows.sparkSession)
        if summary:
            click.echo(summary, err=True)


def _quoted(texts: Sequence[str]) -> str:
    return ", ".join(f"'{text}'" for text in ("", *texts))


def _kind(table: str) -> str:
    """Return the kind of the merged rows that a table of accesses is made of."""
    return table if table in _SORTED_BY else REPORT


def _sorted(parts: list[pa.Table], schema: Table, kind: str) -> pa.Table:
    """Return the rows of all merge tasks, sorted. Each key is in one part, which is
    sorted by user already.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = pa.concat_tables([schema.arrow().empty_table(), *parts])
    if len(parts) < 2:
        return rows
    keys = KEYS if kind == PARTIALS else _SORTED_BY[kind]
    # Null first, as processes sort.
    filled = pa.table({key: pc.fill_null(rows[key], "") for key in keys})
    return rows.take(pc.sort_indices(filled, sort_keys=[(key, "ascending") for key in keys]))


def _attach_by_shuffle(
    spark: SparkSession,
    hashed: DataFrame,
    dumps: dict[str, Dump],
    rucio: DataFrame | None,
    sites: StorageSites,
) -> DataFrame:
    """Return the rows of a hashed scan with their datasets and remoteness, from the
    tables of the dumps.

    ``rucio``: the replicas on disk by Rucio.
    """
    from cmsspark.dumps.spark_transport import table_source
    from cmsspark.engines import shuffle_join
    from cmsspark.sources import phedex

    dbs = dumps["dbs"]
    files = table_source(
        spark, dbs, "FILES", ("logical_file_name", "block_id", "dataset_id", "file_id")
    )
    datasets = table_source(spark, dbs, "DATASETS", ("dataset_id", "dataset")).table()
    blocks = table_source(spark, dbs, "BLOCKS", ("block_id", "block_name"))
    replicas = rucio
    if "phedex" in dumps:
        snapshot = table_source(spark, dumps["phedex"], REPLICAS, phedex.COLUMNS)
        replicas = snapshot.mapped(shuffle_join.disk_replicas, shuffle_join.DISK_REPLICAS)
    return shuffle_join.attach(
        hashed,
        files.mapped(shuffle_join.hashed_files, shuffle_join.HASHED_FILES),
        datasets.withColumnRenamed("dataset", "dataset_name"),
        blocks.mapped(shuffle_join.hashed_blocks, shuffle_join.HASHED_BLOCKS),
        replicas if replicas is None else shuffle_join.with_jobs_sites(replicas, sites),
    )
