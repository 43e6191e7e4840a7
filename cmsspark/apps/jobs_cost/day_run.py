"""Counts a day of a feed: resolves its folder and the day before, reads, checks and
stores its tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from cmsspark.apps.jobs_cost.engines import ReadDay, read_by_processes, read_in_spark
from cmsspark.apps.jobs_cost.feeds import CONDOR, Feed, MakeAggregator
from cmsspark.apps.jobs_cost.hpc_sites import HpcSites
from cmsspark.base import dates
from cmsspark.base.errors import NotReady
from cmsspark.base.text.terminal import pluralize
from cmsspark.counting import reconciliation, row_use
from cmsspark.counting.reconciliation import StreamBins
from cmsspark.engines.names import PROCESSES, SPARK
from cmsspark.engines.session import unwrap_cause
from cmsspark.engines.tasks import StreamFiles, TaskContext
from cmsspark.filesystems.opening import files_for
from cmsspark.filesystems.storage import Files, LocalFiles
from cmsspark.pages.text import bins_table
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
from cmsspark.store import results, staged_runs

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class FeedRequest(JobRequest):
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
    from cmsspark.engines.session import session
    from cmsspark.engines.spark_progress import log_page

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

    try:
        return FeedDayRun(request, files, day, hpc_sites, job_run.run_context, SPARK).run(read)
    except Exception as error:
        raise unwrap_cause(error) from None


@dataclass(frozen=True)
class FeedInputs:
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


@dataclass(frozen=True)
class FeedDayRun:
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
            day = read(self._context())
            summary = ScanSummary.from_rows(day.side, (request.feed.name,), self.inputs.accepted)
            tables = request.feed.build(
                day.sums, request.day, self.hpc_sites, self.inputs.meanings
            )
            manifest = self._manifest(day, summary)
            self._write(staged, tables)
            check_unchanged(self.files, self.inputs.read)
            done = staged.commit({**manifest, "seconds": round(self.run_context.seconds(), 1)})
        for text in done.manifest.warnings:
            log(f"warning: {text}")
        log(bins_table(done.manifest.reconciliation))
        log(
            f"{request.job} of {request.day} stored in {done.path} after {self.run_context.seconds():.1f} s"
        )
        return done

    def _context(self) -> TaskContext:
        settings = self.request.settings
        # No pseudonym is stored; a context has the key because tasks of streams need it.
        key = pseudonyms.load_or_make(settings.state_dir / pseudonyms.KEY_FILE, self.request.day)
        reader = partial(
            Reader,
            line_limit=settings.max_line_bytes,
            above=self.request.quarantine_above,
            meanings=self.inputs.meanings,
        )
        make = MakeAggregator(self.request.feed.aggregator)
        return TaskContext(
            self.request.day,
            None,
            None,
            key,
            reader,
            accepted=self.inputs.accepted,
            feed_aggregator=make,
        )

    def _write(self, staged: staged_runs.StagedRun, tables: dict[str, pa.Table]) -> None:
        for name, table in tables.items():
            self.run_context.log(f"{name}: {pluralize(staged.write_arrow(table, name), 'row')}")

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
