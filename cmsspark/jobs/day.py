"""One day of streams: resolved, scanned, checked and stored. The jobs on log streams are this with other choices."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any

import click

from cmsspark import pseudonyms
from cmsspark.errors import DataError, InputMissing, NotReady
from cmsspark.jobs import by_processes, by_spark, derived, engine, overflow, result, snapshots
from cmsspark.jobs.attended import Attended, attended
from cmsspark.jobs.overflow import reader_of
from cmsspark.jobs.provenance import is_all_local
from cmsspark.jobs.request import DayRequest, Inputs
from cmsspark.jobs.scanned import Counted, accepted_files
from cmsspark.memory import trim
from cmsspark.runs import reconciliation
from cmsspark.session import cause_of
from cmsspark.sinks import store
from cmsspark.sources import folders
from cmsspark.sources.folders import DayInput, Dump, Layout
from cmsspark.storage import Files, LocalFiles, files_for
from cmsspark.transforms.scan import Kit, StreamFiles
from cmsspark.transforms.snapshot import Each

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Streams whose accesses are remote or not by where the file's block lies (rule 21).
ASK_REPLICAS = ("cmssw", "crab")
#: A FILES dump larger than this on disk is joined by shuffle: some 200 million files, an index of 2.4 GB a host.
INDEX_DUMP_BYTES = 30_000_000_000


def run(request: DayRequest, say: Any = None) -> store.CurrentTable:
    """Count the day and store its tables; return the run's location and manifest.

    Raises InputMissing (66), NotReady (75), DataError (65), OutputError (73): the previous result stays.
    """
    tell = say or (lambda text: click.echo(text, err=True))
    reconciliation.parse_tolerances(request.max_malformed, request.streams)
    layout = Layout.load(request.settings.sources, request.root or request.settings.root)
    is_local = is_all_local(layout, (*request.streams, "dbs", "phedex"), request.fout)
    chosen = engine.of(request, is_local)
    if chosen == engine.SPARK:
        engine.go_back_for_spark()
    with attended(request.settings, request.fout, request.job, request.day, tell) as run_of_day:
        # What is missing on the local disk is told before anything starts; so is who else works on the day.
        if is_local:
            run_of_day.lock(LocalFiles())
        start = _run_by_processes if chosen == engine.PROCESSES else _run_by_spark
        done = start(request, layout, is_local, tell, run_of_day)
        run_of_day.manifest = done.manifest
        return done


def _run_by_processes(
    request: DayRequest, layout: Layout, is_local: bool, tell: Any, run_of_day: Attended
) -> store.CurrentTable:
    with by_processes.crew() as crew:
        inputs = resolve(request, layout, LocalFiles())
        earlier = derived.find(request, inputs)
        if earlier is not None:
            tell(f"taken from {derived.SOURCE} of the day, run {earlier.manifest['run']}; --recount reads the logs")
            return Work(request, inputs, None, tell, run_of_day).take(earlier)
        if _by_index(request, inputs):
            work = Work(request, inputs, _snapshots(request, inputs, tell, crew.map), tell, run_of_day)
            return work.count(lambda kit: by_processes.count(crew, stream_files(inputs), kit))
    return _run_by_spark(request, layout, is_local, tell, run_of_day)


def _run_by_spark(
    request: DayRequest, layout: Layout, is_local: bool, tell: Any, run_of_day: Attended
) -> store.CurrentTable:
    inputs = resolve(request, layout, LocalFiles()) if is_local else None
    with ThreadPoolExecutor(1) as pool:
        # The session starts while the catalogue is opened or built.
        starting = pool.submit(_session, request.job)
        if inputs is None:
            files = files_for("hdfs://", starting.result())
            run_of_day.lock(files)
            inputs = resolve(request, layout, files)
        opened = _snapshots(request, inputs, tell) if _by_index(request, inputs) else None
        spark = starting.result()
    work = Work(request, inputs, opened, tell, run_of_day)
    streams, dumps = stream_files(inputs), inputs.dumps
    return work.count(lambda kit: by_spark.count(spark, streams, dumps, kit, request.feed))


@dataclass
class Work:
    """A run with its inputs at hand. ``opened`` None: Spark's shuffle join attaches the datasets."""

    request: DayRequest
    inputs: Inputs
    opened: snapshots.Snapshots | None
    tell: Any
    run_of_day: Attended

    def count(self, count: Callable[[Kit], Counted]) -> store.CurrentTable:
        """Count, check and store."""

        def counted_day(run_now: store.Run) -> store.CurrentTable:
            counted = count(self.kit())
            report = self.opened.report.__dict__ if self.opened else None
            outcome = result.outcome_of(self.request, self.inputs, counted, report)
            done = self._stored(run_now, outcome, lambda run, table: counted.write(run, table, self.request.fmt))
            counted.close()
            return done

        return self._in_a_run(counted_day)

    def take(self, earlier: store.CurrentTable) -> store.CurrentTable:
        """Take what another job has counted."""
        streams = self.request.streams
        outcome = derived.outcome_of(earlier, streams)
        return self._in_a_run(
            lambda run_now: self._stored(
                run_now, outcome, lambda run, table: derived.write(earlier, streams, run, table)
            )
        )

    def _stored(
        self, run_now: store.Run, outcome: result.Outcome, write: Callable[[store.Run, str], int]
    ) -> store.CurrentTable:
        began = self.run_of_day.began_ticks
        return result.store_day(self.request, self.inputs, outcome, write, run_now, self.tell, began)

    def _in_a_run(self, work: Callable[[store.Run], store.CurrentTable]) -> store.CurrentTable:
        """Work in a run's folder; the store stays as it was where that fails."""
        request = self.request
        # Before anything is read: a store that cannot be written must not cost an hour first.
        run_now = store.stage(self.inputs.files, request.fout, request.job, request.day, self.run_of_day.check)
        try:
            return work(run_now)
        except BaseException as error:
            run_now.abandon()
            if isinstance(error, Exception):
                cause = cause_of(error)
                catalogue = self.opened.catalogue if self.opened else None
                raise overflow.explained(cause, request, self.inputs, catalogue) from None
            raise

    def kit(self) -> Kit:
        """What tasks need besides their files."""
        key = pseudonyms.load_or_make(self.request.settings.state_dir / pseudonyms.KEY_FILE)
        opened = self.opened
        catalogue = str(opened.catalogue) if opened else None
        replicas = str(opened.replicas) if opened and opened.replicas else None
        reader = reader_of(self.request)
        return Kit(self.request.day, catalogue, replicas, key, reader, accepted=self.inputs.accepted)


def resolve(request: DayRequest, layout: Layout, files: Files) -> Inputs:
    """Fix what is read: each stream's files, and the dumps. Raises InputMissing (66) and NotReady (75)."""
    found: list[DayInput] = []
    missing: list[str] = []
    warnings: list[str] = []
    for stream in request.streams:
        try:
            found.append(folders.resolve_day(files, layout, stream, request.day, allow_tmp=request.allow_tmp))
        except (InputMissing, NotReady) as error:
            if not request.allow_missing:
                raise
            missing.append(stream)
            warnings.append(f"{stream} is left out: {error.wanted}")
    if not found:
        raise InputMissing(
            f"none of {', '.join(request.streams)} is there for {request.day}", found="; ".join(warnings)
        )
    kept = {} if request.refresh_dumps else _kept_dumps(request, layout, files)
    dbs = kept.get("dbs") or folders.choose_dbs_dump(files, layout, request.day, snapshots.DBS_TABLES)
    phedex = None
    if any(one.stream in ASK_REPLICAS for one in found):
        try:
            phedex = kept.get("phedex") or folders.choose_phedex_dump(files, layout, request.day)
        except (InputMissing, NotReady) as error:
            if not request.allow_missing:
                raise
            missing.append("phedex")
            warnings.append(f"phedex is left out, remote_nacc of {' and '.join(ASK_REPLICAS)} is null: {error.wanted}")
    accepted = accepted_files(request.accept_damaged, found)
    inputs = Inputs(files, found, missing, dbs, phedex, warnings, accepted)
    for texts in (*(one.warnings for one in found), *(dump.warnings for dump in inputs.dumps)):
        warnings += texts
    return inputs


def _kept_dumps(request: DayRequest, layout: Layout, files: Files) -> dict[str, Dump]:
    """The dumps that the day's current result was made with: the choice stays until it is refreshed (rule 17).

    Dumps of other folders than this run's are not kept: with another root all inputs are others.
    """
    try:
        before = store.current(files, request.fout, request.job, request.tables[0], request.day)
    except (InputMissing, DataError):
        return {}
    kept = {}
    for kind, dump in before.manifest.get("dumps", {}).items():
        if not any(place.holds(dump["folder"]) for place in layout.places[kind]):
            continue
        when = date.fromisoformat(dump["day"]) if dump["day"] else None
        found = folders.dump_at(files, kind, dump["folder"], request.day, when, snapshots.DBS_TABLES)
        if found is not None:
            kept[kind] = found
    return kept


def _session(job: str) -> SparkSession:
    from cmsspark.session import session

    return session(f"cmsspark {job}")


def _snapshots(request: DayRequest, inputs: Inputs, tell: Any, each: Each = map) -> snapshots.Snapshots:
    began = time.monotonic()
    cache = request.settings.cache_dir / "catalogue"
    opened = snapshots.open_snapshots(inputs.files, inputs.dbs, inputs.phedex, cache, each)
    if opened.built:
        trim()
        tell(f"catalogue of {opened.report.files:,} files built in {time.monotonic() - began:.1f} s")
    return opened


def _by_index(request: DayRequest, inputs: Inputs) -> bool:
    """Whether files find their dataset in the index: as asked, or where FILES is small enough for one on each host;
    ``spark.cmsspark.indexDumpBytes`` sets the size.
    """
    if request.join != "auto":
        return request.join == "index"
    limit = int(request.settings.spark.get("spark.cmsspark.indexDumpBytes", INDEX_DUMP_BYTES))
    return sum(file.size for file in inputs.dbs.tables["FILES"]) <= limit


def stream_files(inputs: Inputs) -> list[StreamFiles]:
    """The files of each stream as the scan takes them."""
    return [
        StreamFiles(one.stream, one.form, tuple((file.path, file.size) for file in one.files)) for one in inputs.streams
    ]
