"""Counts a day of a feed: resolves its folder and the day before, reads, checks and
stores its tables.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace

from cmsspark.apps.jobs_cost.feeds import CONDOR, Feed, HpcSites, MakeAggregator
from cmsspark.base import buffers, dates
from cmsspark.base.arrays import Longs
from cmsspark.base.errors import NotReady
from cmsspark.base.text.terminal import pluralize
from cmsspark.counting import reconciliation, row_use
from cmsspark.counting.htcondor_jobs import EARLIER, JOB
from cmsspark.counting.merge import Merge, SideRow
from cmsspark.counting.pre_aggregate import BIN, COLUMNS, QUARANTINE
from cmsspark.counting.reconciliation import StreamBins
from cmsspark.engines.job_work import PARTITIONS, JobSpool
from cmsspark.engines.names import PROCESSES, SPARK
from cmsspark.engines.tasks import StreamFiles, TaskContext, pack_tasks, total_weight
from cmsspark.engines.worker_pool import TASK_BYTES, WorkerPool, cores
from cmsspark.filesystems.opening import files_for
from cmsspark.filesystems.storage import Files, LocalFiles
from cmsspark.pages.day_report import bins_table
from cmsspark.run import local
from cmsspark.run.day_result import identical_files, quarantine_records
from cmsspark.run.earlier_jobs import EarlierDay, find_earlier
from cmsspark.run.inputs import accepted_files
from cmsspark.run.job_run import JobRun, begin
from cmsspark.run.provenance import check_unchanged, input_summary, versions
from cmsspark.run.request import JobRequest
from cmsspark.run.run_context import RunContext
from cmsspark.run.scan_summary import ScanSummary
from cmsspark.settings import pseudonyms
from cmsspark.sources.folders import DayInput, resolve_day
from cmsspark.sources.layout import Layout
from cmsspark.sources.reader import Reader
from cmsspark.store import results

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


# Reads a feed's day by processes of this host or in Spark: both move blobs to the same
# merge.

#: The kind of a row with encoded sums.
_SUMS: Final = "sums"
#: (name, Spark type) of each column of a merge in Spark.
_MERGED: Final = (
    ("kind", "string"),
    ("stream", "string"),
    ("app", "string"),
    ("nacc", "bigint"),
    ("detail", "string"),
    ("packed", "binary"),
)
#: Bytes of logs, decompressed, whose records one merge task takes.
_MERGE_BYTES: Final = 2_000_000_000


class ReadDay(msgspec.Struct):
    """A day that was read: its sums, its side rows with all bins, and (stream, detail)
    of malformed records.
    """

    sums: Any
    side: list[SideRow]
    quarantined: list[tuple[str, str]]

    @classmethod
    def from_sums(
        cls, feed: Feed, sums: Any, side: Iterable[SideRow], quarantined: Iterable[tuple[str, str]]
    ) -> ReadDay:
        """Return the day with the bins of the merge."""
        merged: list[SideRow] = [
            (BIN, feed.name, name, count, None) for name, count in feed.bins(sums).items()
        ]
        return cls(sums, [*side, *merged], list(quarantined))


def read_by_processes(
    feed: Feed,
    pool: WorkerPool,
    streams: Sequence[StreamFiles],
    context: TaskContext,
    earlier: Longs,
    folder: str,
) -> ReadDay:
    """Read the files. ``earlier``: stored ids of the day before, sorted; ``folder``:
    for what does not fit memory.
    """
    spool, side = JobSpool(folder), Merge()
    try:
        for batch in pool.scan(pack_tasks(streams, cores(), TASK_BYTES), context):
            side_rows = spool.add(batch)
            if side_rows is not None:
                side.add(side_rows)
        ids = np.union1d(earlier, spool.earlier())
        sums = feed.new_sums()
        for blobs in spool.partitions():
            sums.merge(blobs, ids)
    finally:
        spool.close()
    aggregated = side.result()
    return ReadDay.from_sums(feed, sums, aggregated.side_rows(), aggregated.quarantined)


def read_in_spark(
    feed: Feed,
    spark: SparkSession,
    streams: Sequence[StreamFiles],
    context: TaskContext,
    earlier: Longs,
    spark_feed: str = "auto",
) -> ReadDay:
    """Read the files in one Spark job, of two stages; the driver gets the sums of each partition."""
    from pyspark.sql import functions as F

    from cmsspark.engines.scan import scan
    from cmsspark.engines.session import spark_progress, static_plans

    scanned = scan(spark, streams, context, spark_feed)
    partitions = max(1, min(PARTITIONS, math.ceil(total_weight(streams) / _MERGE_BYTES)))
    schema = ", ".join(f"`{name}` {kind}" for name, kind in _MERGED)
    by_job = scanned.repartition(partitions, F.expr(f"id_hash & {PARTITIONS - 1}"))
    sums, side, quarantined = feed.new_sums(), [], []
    with spark_progress(spark, "reading logs in Spark"), static_plans(spark):
        for row in by_job.mapInArrow(FeedMergeTask(feed.new_sums, earlier), schema).collect():
            if row["kind"] == _SUMS:
                sums.add_encoded(bytes(row["packed"]))
            elif row["kind"] == QUARANTINE:
                quarantined.append((row["stream"], row["detail"]))
            else:
                side.append((row["kind"], row["stream"], row["app"], row["nacc"], row["detail"]))
    return ReadDay.from_sums(feed, sums, side, quarantined)


class FeedMergeTask(msgspec.Struct, frozen=True):
    """Merges one partition in Spark: batches of ``jobs.JOB_COLUMNS`` become side rows
    and encoded sums.
    """

    new_sums: Any
    earlier: Longs

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        import pyarrow.compute as pc

        side, blobs, earlier = Merge(), [], [self.earlier]
        for batch in batches:
            is_blob, is_id = (
                pc.equal(batch["kind"], buffers.scalar(kind, "string")) for kind in (JOB, EARLIER)
            )
            blobs += batch["record"].filter(is_blob).to_pylist()
            earlier.append(buffers.to_numpy(batch["id_hash"].filter(is_id), np.int64))
            side.add(
                batch.filter(pc.invert(pc.or_(is_blob, is_id))).select(
                    [name for name, _ in COLUMNS]
                )
            )
        sums = self.new_sums()
        sums.merge(blobs, np.unique(np.concatenate(earlier)))
        aggregated = side.result()
        rows: list[tuple[Any, ...]] = [(*row, None) for row in aggregated.side_rows()]
        rows += [
            (QUARANTINE, stream, "malformed", 0, detail, None)
            for stream, detail in aggregated.quarantined
        ]
        rows.append((_SUMS, None, None, None, None, sums.encode()))
        *texts, packed = zip(*rows, strict=True)
        kinds = {"string": "string", "bigint": "long"}
        columns = [
            buffers.array(values, kinds[kind])
            for values, (_, kind) in zip(texts, _MERGED, strict=False)
        ]
        yield pa.RecordBatch.from_arrays(
            [*columns, buffers.binary(packed)], [name for name, _ in _MERGED]
        )


class FeedRequest(JobRequest, frozen=True):
    """A request for a day of a feed."""

    feed: Feed = CONDOR
    allow_tmp: bool = False
    max_malformed: str | None = None
    accept_damaged: tuple[str, ...] = ()
    #: Records that read more bytes, or took more seconds, count as malformed; None:
    #: whatever fits 64 bits counts.
    quarantine_above: int | None = None
    spark_feed: str = "auto"


def run(request: FeedRequest, log: Callable[[str], None] | None = None) -> results.CurrentTable:
    """Make the tables of a day and store them; on any failure the previous result stays.

    Raises UsageError (2) and SettingsError (78) where the engine or a setting is wrong;
    InputMissing (66), NotReady (75), DataError (65), OutputError (73).
    """
    reconciliation.parse_tolerances(request.max_malformed, (request.feed.name,))
    hpc_sites = HpcSites.load(request.settings.hpc_sites)
    with begin(request, log) as job_run:
        start = _run_by_processes if job_run.engine == PROCESSES else _run_in_spark
        done = start(request, job_run, hpc_sites)
        job_run.run_context.manifest = done.manifest
        return done


def _run_by_processes(
    request: FeedRequest, job_run: JobRun, hpc_sites: HpcSites
) -> results.CurrentTable:
    files = LocalFiles()
    with local.worker_pool() as pool:
        day = _resolve(request, job_run.layout, files)

        def read(context: TaskContext) -> ReadDay:
            folder = str(request.settings.cache_dir)
            return read_by_processes(
                request.feed, pool, day.streams, context, day.earlier.read_ids(files), folder
            )

        return FeedDayRun(request, files, day, hpc_sites, job_run.run_context, PROCESSES).run(read)


def _run_in_spark(
    request: FeedRequest, job_run: JobRun, hpc_sites: HpcSites
) -> results.CurrentTable:
    from cmsspark.engines.session import log_page, session

    day = _resolve(request, job_run.layout, LocalFiles()) if job_run.is_local else None
    spark = session(f"cmsspark {request.job}")
    log_page(spark, job_run.run_context.log)
    files = LocalFiles() if day is not None else files_for("hdfs://", spark)
    job_run.run_context.lock(files)
    day = day or _resolve(request, job_run.layout, files)
    ids = day.earlier.read_ids(files)
    streams = day.streams

    def read(context: TaskContext) -> ReadDay:
        return read_in_spark(request.feed, spark, streams, context, ids, request.spark_feed)

    return FeedDayRun(request, files, day, hpc_sites, job_run.run_context, SPARK).run(read)


class FeedInputs(msgspec.Struct, frozen=True):
    """What a day of a feed reads: its folder, the day before, and damaged files that
    are read as far as intact.
    """

    feed: Feed
    source: DayInput
    earlier: EarlierDay
    accepted: frozenset[str]
    #: The meaning of each ``feed.field`` whose producer changed it.
    meanings: Mapping[str, str]

    @property
    def read(self) -> list[DayInput]:
        """All that is read."""
        return [self.source, *([self.earlier.to_read] if self.earlier.to_read is not None else [])]

    @property
    def streams(self) -> list[StreamFiles]:
        """The files as the scan takes them."""
        return [
            StreamFiles(
                self.feed.name,
                source.format_name,
                tuple((file.path, file.size) for file in source.files),
                None if source is self.source else self.earlier.day,
            )
            for source in self.read
        ]


def _resolve(request: FeedRequest, layout: Layout, files: Files) -> FeedInputs:
    """Fix what is read. Raises InputMissing (66) and NotReady (75)."""
    feed = request.feed
    source = resolve_day(files, layout, feed.source, request.day, allow_tmp=request.allow_tmp)
    earlier = find_earlier(
        files, layout, request.fout, feed.source, request.day, (feed.job,), feed.ids
    )
    meanings = layout.epochs.meanings_of_day(request.day, [feed.source])
    inputs = FeedInputs(feed, source, earlier, frozenset(), meanings)
    return replace(inputs, accepted=accepted_files(request.accept_damaged, inputs.read))


class FeedDayRun(msgspec.Struct, frozen=True):
    """A run for a day of a feed, with its inputs resolved."""

    request: FeedRequest
    files: Files
    inputs: FeedInputs
    hpc_sites: HpcSites
    run_context: RunContext
    engine: str

    def run(self, read: Callable[[TaskContext], ReadDay]) -> results.CurrentTable:
        """Read the day, check it, store its tables and make the run current."""
        request, log = self.request, self.run_context.log
        with self.run_context.staged(self.files) as staged:
            settings = self.request.settings
            # No pseudonym is stored; a context has the key because tasks of streams need it.
            key = pseudonyms.load_or_make(
                settings.state_dir / pseudonyms.KEY_FILE, self.request.day
            )
            reader = partial(
                Reader,
                line_limit=settings.max_line_bytes,
                above=self.request.quarantine_above,
                meanings=self.inputs.meanings,
            )
            make = MakeAggregator(self.request.feed.aggregator)
            day = read(
                TaskContext(
                    self.request.day,
                    None,
                    None,
                    key,
                    reader,
                    accepted=self.inputs.accepted,
                    feed_aggregator=make,
                )
            )
            summary = ScanSummary.from_rows(day.side, (request.feed.name,), self.inputs.accepted)
            tables = request.feed.build(
                day.sums, request.day, self.hpc_sites, self.inputs.meanings
            )
            manifest = self._manifest(day, summary)
            for name, table in tables.items():
                self.run_context.log(
                    f"{name}: {pluralize(staged.write_arrow(table, name), 'row')}"
                )
            check_unchanged(self.files, self.inputs.read)
            done = staged.commit({**manifest, "seconds": round(self.run_context.seconds(), 1)})
        for text in done.manifest.warnings:
            log(f"warning: {text}")
        log(bins_table(done.manifest.reconciliation))
        log(
            f"{request.job} of {request.day} stored in {done.path} after {self.run_context.seconds():.1f} s"
        )
        return done

    def _manifest(self, day: ReadDay, summary: ScanSummary) -> dict[str, Any]:
        """Return the manifest. Raises DataError (65) beyond the tolerances, NotReady
        (75) without any record.
        """
        request, source = self.request, self.inputs.source
        quarantine_file, examples = quarantine_records(request, day.quarantined, summary.bins)
        changes, drift_warnings = summary.drift()
        more, check_warnings = request.feed.check(day.sums, request.day)
        warnings = [
            *source.warnings,
            *self.inputs.earlier.warnings,
            *summary.warnings(),
            *drift_warnings,
        ]
        warnings += self._check_bins(summary.bins, examples, quarantine_file) + check_warnings
        return {
            "streams": [request.feed.name],
            "partial": bool(summary.damaged or summary.oversized or source.is_tmp),
            "reconciliation": {name: bins.as_dict() for name, bins in summary.bins.items()},
            **row_use.describe(row_use.of_bins(summary.bins)),
            "out_of_day_by_day": {
                name: dict(sorted(bins.out_of_day.items())) for name, bins in summary.bins.items()
            },
            "meanings": self.inputs.meanings,
            "inputs": [input_summary(source)],
            "identical_files": identical_files([source]),
            "earlier_jobs": {request.feed.name: self.inputs.earlier.as_dict()},
            "damaged": summary.damaged,
            "oversized": summary.oversized,
            "drift": changes,
            "quarantine": quarantine_file,
            **({"quarantine_not_kept": dict(summary.not_kept)} if summary.not_kept else {}),
            **more,
            "engine": self.engine,
            **summary.compiled(),
            "warnings": warnings,
            "versions": versions(),
            "timestamp": dates.start_ms(request.day),
        }

    def _check_bins(
        self,
        bins: dict[str, StreamBins],
        examples: dict[str, list[str]],
        quarantine_file: str | None,
    ) -> list[str]:
        request, source = self.request, self.inputs.source
        tolerances = reconciliation.parse_tolerances(request.max_malformed, bins)
        warnings = reconciliation.check(bins, tolerances, examples, quarantine=quarantine_file)
        before = results.history(
            self.files, request.fout, request.job, request.day, reconciliation.TRAILING_DAYS
        )
        warnings += reconciliation.unusual(bins, [manifest.reconciliation for manifest in before])
        warnings += row_use.check(row_use.of_bins(bins), before)
        if not any(counts.read for counts in bins.values()):
            raise NotReady(
                f"{request.feed.source} of {request.day} is there but has no data",
                where=source.folder,
                found=f"{pluralize(len(source.files), 'file')} without any record",
                next_step="run again when the day is written",
            )
        return warnings
