"""Counts a day of log streams: resolves the inputs, scans, checks and stores. All jobs
on log streams run this.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
from msgspec.structs import asdict

from cmsspark.base.memory import trim
from cmsspark.base.text.terminal import pluralize
from cmsspark.counting import reconciliation
from cmsspark.counting.catalogue_build import MapParts, Part
from cmsspark.engines.job_work import HtcondorMergeSpec
from cmsspark.engines.names import PROCESSES
from cmsspark.engines.session import log_page, unwrap_cause
from cmsspark.engines.tasks import StreamFiles, TaskContext
from cmsspark.filesystems.storage import LocalFiles
from cmsspark.run import catalogue_snapshots, day_result, engine_choice, local, scan_summary
from cmsspark.run.inputs import resolve, uses_index
from cmsspark.run.job_run import JobRun, begin
from cmsspark.run.request import DayRequest, Inputs
from cmsspark.run.run_context import RunContext
from cmsspark.run.scan_summary import build_reader
from cmsspark.settings import pseudonyms
from cmsspark.sources.reader import Reader
from cmsspark.sources.rses import Rses, load_storage_sites
from cmsspark.store import results
from cmsspark.store.staged_runs import StagedRun

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cmsspark.run.spark import SparkRunner

#: Parts of the dumps that the driver of a Spark day fetches and reads at once.
FETCHES: Final = 4


def run(request: DayRequest, log: Callable[[str], None] | None = None) -> results.CurrentTable:
    """Count the day and store its tables; return the run's location and manifest.

    Raises UsageError (2) and SettingsError (78) where the engine is not available;
    InputMissing (66), NotReady (75), DataError (65), OutputError (73): the previous
    result stays.
    """
    reconciliation.parse_tolerances(request.max_malformed, request.streams)
    with begin(request, log) as job_run:
        count = _run_by_processes if job_run.engine == PROCESSES else _run_by_spark
        done = count(request, job_run)
        job_run.run_context.manifest = done.manifest
        return done


def _run_by_processes(request: DayRequest, job_run: JobRun) -> results.CurrentTable:
    run_context = job_run.run_context
    inputs = resolve(request, job_run.layout, LocalFiles())
    for source in inputs.streams:
        # What readers load from files is loaded once, before the processes are forked.
        Reader(source.stream, source.format_name, request.day)
    with local.worker_pool() as pool:
        earlier = day_result.find(request, inputs)
        if earlier is not None:
            run_context.log(
                f"taken from {day_result.SOURCE} of the day, run {earlier.manifest.run}; --recount reads the logs"
            )
            return LogDayRun(request, inputs, None, run_context).store_reused(earlier)
        engine_choice.check_index(request, inputs)
        map_parts = partial(pool.map, label="building the catalogue")
        day_run = LogDayRun(
            request,
            inputs,
            open_day_snapshots(request, inputs, run_context.log, map_parts),
            run_context,
        )
        return day_run.count(local.LocalRunner(pool))


def _run_by_spark(request: DayRequest, job_run: JobRun) -> results.CurrentTable:
    # Processes need none of these modules.
    from concurrent.futures import ThreadPoolExecutor

    from cmsspark.filesystems.opening import files_for
    from cmsspark.run.spark import SparkRunner

    layout, run_context = job_run.layout, job_run.run_context
    # Missing local input is an error before a session starts.
    inputs = resolve(request, layout, LocalFiles()) if job_run.is_local else None
    with ThreadPoolExecutor(1) as pool:
        # The session starts while the catalogue is opened or built.
        starting = pool.submit(_session, request.job)
        if inputs is None:
            files = files_for("hdfs://", starting.result())
            run_context.lock(files)
            inputs = resolve(request, layout, files)
        has_index = uses_index(request, inputs.dbs, inputs.files)
        opened = None
        if has_index or inputs.earlier:
            # Parts of a dump on HDFS are fetched while others are read.
            with ThreadPoolExecutor(FETCHES) as fetching:
                rucio = partial(_disk_replicas, request, inputs, starting.result)
                opened = open_day_snapshots(
                    request,
                    inputs,
                    run_context.log,
                    fetching.map,
                    has_index=has_index,
                    disk_replicas=rucio,
                )
        spark = starting.result()
        log_page(spark, run_context.log)
    day_run = LogDayRun(request, inputs, opened, run_context)
    rses = None if has_index else _read_rses(request, inputs)
    # Tasks write CSV.
    of_driver = request.tables if request.fmt == "parquet" else ()
    sites = load_storage_sites(request.settings.sites)
    paths = [path for day in inputs.earlier for path in day.id_paths(inputs.files)]
    runner = SparkRunner(spark, inputs.dumps, of_driver, request.feed, rses, sites, paths)
    return day_run.count(runner, reads_ids=not paths)


def _read_rses(request: DayRequest, inputs: Inputs) -> Rses | None:
    """Return the storage elements of a dump of Rucio; None if another source has the replicas."""
    if inputs.replicas is None or inputs.replicas.kind != "rucio":
        return None
    from cmsspark.dumps.rucio_scan import read_rses

    opener = partial(catalogue_snapshots.opened, inputs.files)
    rses, _ = read_rses(inputs.replicas, request.settings.rses, opener)
    return rses


def _disk_replicas(
    request: DayRequest, inputs: Inputs, start: Callable[[], SparkSession], spill: Path
) -> list[Part]:
    """Return replicas of blocks on disk by Rucio. Its rows of files are too many for
    one host: Spark reads them.
    """
    from cmsspark.dumps.rucio_replicas import collect_disk_replicas
    from cmsspark.dumps.rucio_scan import RucioScan
    from cmsspark.dumps.spark_transport import SparkTransport

    del spill
    rses = _read_rses(request, inputs)
    assert rses is not None and inputs.replicas is not None
    transport = SparkTransport(start(), request.feed)
    return [partial(collect_disk_replicas, transport, RucioScan(inputs.replicas, rses))]


class LogDayRun(msgspec.Struct):
    """A run with its resolved inputs. ``opened`` is None if Spark's shuffle join
    attaches the datasets.
    """

    request: DayRequest
    inputs: Inputs
    opened: catalogue_snapshots.Snapshots | None
    run_context: RunContext

    def count(
        self, runner: local.LocalRunner | SparkRunner, *, reads_ids: bool = True
    ) -> results.CurrentTable:
        """Count, check and store. ``reads_ids``: the tasks get the stored ids of the day before."""

        def count_and_store(run_now: StagedRun) -> results.CurrentTable:
            context = self.context(reads_ids=reads_ids)
            counted = runner.run(stream_files(self.inputs), context)
            report = asdict(self.opened.report) if self.opened and self.opened.report else None
            outcome = day_result.build_outcome(self.request, self.inputs, counted, report)
            # Of the key that was used: the file may have changed since.
            outcome.manifest["pseudonym_key_id"] = context.pseudonyms.key_id

            def write(run: StagedRun, table: str) -> int:
                rows = counted.write(run, table, self.request.fmt)
                # Tasks may write tables, so what befell them is known after the last one.
                if events := counted.cluster_events():
                    outcome.manifest["cluster_events"] = events
                return rows

            done = self._stored(run_now, outcome, write)
            counted.close()
            return done

        return self._staged(count_and_store)

    def store_reused(self, earlier: results.CurrentTable) -> results.CurrentTable:
        """Store the rows that another job has counted."""
        streams = self.request.streams
        outcome = day_result.restore_outcome(earlier, streams)
        return self._staged(
            lambda run_now: self._stored(
                run_now, outcome, lambda run, table: day_result.write(earlier, streams, run, table)
            )
        )

    def _stored(
        self,
        run_now: StagedRun,
        outcome: day_result.DayOutcome,
        write: Callable[[StagedRun, str], int],
    ) -> results.CurrentTable:
        return day_result.store_day(
            self.request, self.inputs, outcome, write, run_now, self.run_context
        )

    def _staged(self, store: Callable[[StagedRun], results.CurrentTable]) -> results.CurrentTable:
        """Store within a staged run; a failure leaves the store unchanged."""
        try:
            # Before anything is read, so that an unwritable store is an error at once.
            with self.run_context.staged(self.inputs.files) as run_now:
                return store(run_now)
        except Exception as error:
            catalogue = self.opened.catalogue if self.opened else None
            raise scan_summary.explained(
                unwrap_cause(error), self.request, self.inputs, catalogue
            ) from None

    def context(self, *, reads_ids: bool = True) -> TaskContext:
        """Return the context of all tasks. ``reads_ids``: with the stored ids of the day before."""
        key = pseudonyms.load_or_make(
            self.request.settings.state_dir / pseudonyms.KEY_FILE, self.request.day
        )
        opened = self.opened
        catalogue = str(opened.catalogue) if opened and opened.catalogue else None
        replicas = str(opened.replicas) if opened and opened.replicas else None
        reader = build_reader(self.request)
        jobs = None
        if opened and opened.job_inputs:
            (earlier,) = self.inputs.earlier
            ids = earlier.read_ids(self.inputs.files) if reads_ids else np.zeros(0, np.int64)
            spool = str(self.request.settings.cache_dir)
            jobs = HtcondorMergeSpec(
                earlier.stream, str(opened.job_inputs), replicas, key, ids, spool
            )
        accepted = self.inputs.accepted
        return TaskContext(
            self.request.day, catalogue, replicas, key, reader, accepted=accepted, jobs=jobs
        )


def _session(job: str) -> SparkSession:
    from cmsspark.engines.session import session

    return session(f"cmsspark {job}")


def open_day_snapshots(
    request: DayRequest,
    inputs: Inputs,
    log: Callable[[str], None],
    map_parts: MapParts = map,
    *,
    has_index: bool = True,
    disk_replicas: catalogue_snapshots.DiskReplicas | None = None,
) -> catalogue_snapshots.Snapshots:
    """Return the snapshots that the inputs need; without ``has_index`` only those of
    jobs, as Spark joins files.
    """
    began = time.monotonic()
    cache = request.settings.cache_dir / "catalogue"
    opened = catalogue_snapshots.open_snapshots(
        inputs.files,
        inputs.dbs,
        inputs.replicas,
        cache,
        map_parts,
        rses_file=request.settings.rses,
        sites=load_storage_sites(request.settings.sites),
        disk_replicas=disk_replicas,
        has_accesses=has_index and inputs.has_accesses,
        has_jobs=bool(inputs.earlier),
    )
    if opened.built:
        trim()
        content = (
            pluralize(opened.report.files, "file") if opened.report else "blocks and datasets"
        )
        log(f"catalogue of {content} built in {time.monotonic() - began:.1f} s")
    return opened


def stream_files(inputs: Inputs) -> list[StreamFiles]:
    """Return the files of each stream as the scan takes them."""
    streams = [StreamFiles.from_input(source) for source in inputs.streams]
    earlier = [
        StreamFiles.from_input(day.to_read, day.day)
        for day in inputs.earlier
        if day.to_read is not None
    ]
    return streams + earlier
