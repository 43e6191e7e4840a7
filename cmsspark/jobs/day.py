"""One day of streams: resolved, scanned, checked and stored. The jobs on log streams are this with other choices."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING, Any

import click

from cmsspark import days, pseudonyms
from cmsspark.access import STREAMS
from cmsspark.errors import DataError, InputMissing, NotReady, OutputError
from cmsspark.jobs import by_processes, by_spark, engine, snapshots
from cmsspark.jobs.attended import Attended, attended
from cmsspark.jobs.provenance import check_unchanged, dumps_told, is_all_local, versions
from cmsspark.jobs.quarantine import keep
from cmsspark.jobs.scanned import Counted, Scanned, accepted_files
from cmsspark.runs import reconciliation
from cmsspark.runs.reconciliation import StreamBins
from cmsspark.session import cause_of
from cmsspark.sinks import store
from cmsspark.sources import folders
from cmsspark.sources.folders import DayInput, Dump, Layout
from cmsspark.sources.reader import Reader
from cmsspark.storage import Files, LocalFiles, files_for, is_local
from cmsspark.transforms.scan import Kit, StreamFiles
from cmsspark.transforms.snapshot import Run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cmsspark.settings import Settings


#: Streams whose accesses are remote or not by where the file's block lies (rule 21).
ASK_REPLICAS = ("cmssw", "crab")
#: A FILES dump larger than this on disk is joined by shuffle: some 200 million files, an index of 2.4 GB a host.
INDEX_DUMP_BYTES = 30_000_000_000


@dataclass(frozen=True)
class DayRequest:
    """What a job on log streams is asked for. ``tables``: the report's name, and ``partials`` where they are kept."""

    job: str
    day: date
    fout: str
    settings: Settings
    root: str | None = None
    streams: tuple[str, ...] = STREAMS
    tables: tuple[str, ...] = ("data_aggregation", "partials")
    allow_tmp: bool = False
    allow_missing: bool = False
    max_malformed: str | None = None
    accept_damaged: tuple[str, ...] = ()
    refresh_dumps: bool = False
    join: str = "auto"
    feed: str = "auto"
    fmt: str = "parquet"
    #: ``processes`` of this host, ``spark``, or ``auto``: processes where they can and Spark was not asked for.
    engine: str = "auto"


@dataclass
class Inputs:
    """The fixed list of what a run reads."""

    files: Files
    streams: list[DayInput]
    missing: list[str]
    dbs: Dump
    #: None where no stream of the run asks where replicas lie.
    phedex: Dump | None
    warnings: list[str] = field(default_factory=list)
    #: Files that are read as far as they are intact.
    accepted: frozenset[str] = frozenset()

    @property
    def dumps(self) -> list[Dump]:
        """The dumps that are read."""
        return [self.dbs] if self.phedex is None else [self.dbs, self.phedex]


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
        if _by_index(request, inputs):
            work = Work(request, inputs, _snapshots(request, inputs, tell, crew.map), tell, run_of_day)
            return work.run(lambda kit: by_processes.count(crew, stream_files(inputs), kit))
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
    return work.run(lambda kit: by_spark.count(spark, streams, dumps, kit, request.feed))


@dataclass
class Work:
    """A run with its inputs at hand. ``opened`` None: Spark's shuffle join attaches the datasets."""

    request: DayRequest
    inputs: Inputs
    opened: snapshots.Snapshots | None
    tell: Any
    run_of_day: Attended

    def run(self, count: Callable[[Kit], Counted]) -> store.CurrentTable:
        """Count, check and store; the store stays as it was where that fails."""
        request = self.request
        # Before anything is read: a store that cannot be written must not cost an hour first.
        run_now = store.stage(self.inputs.files, request.fout, request.job, request.day, self.run_of_day.check)
        try:
            counted = count(self.kit())
            done = _store(request, self.inputs, self.opened, counted, run_now, self.tell, self.run_of_day.began_ticks)
            counted.close()
            return done
        except BaseException as error:
            run_now.abandon()
            if isinstance(error, Exception):
                raise cause_of(error) from None
            raise

    def kit(self) -> Kit:
        """What tasks need besides their files."""
        key = pseudonyms.load_or_make(self.request.settings.state_dir / pseudonyms.KEY_FILE)
        opened = self.opened
        catalogue = str(opened.catalogue) if opened else None
        replicas = str(opened.replicas) if opened and opened.replicas else None
        return Kit(self.request.day, catalogue, replicas, key, Reader, accepted=self.inputs.accepted)


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


def _snapshots(request: DayRequest, inputs: Inputs, tell: Any, run: Run = map) -> snapshots.Snapshots:
    began = time.monotonic()
    cache = request.settings.cache_dir / "catalogue"
    opened = snapshots.open_snapshots(inputs.files, inputs.dbs, inputs.phedex, cache, run)
    if opened.built:
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


def _store(
    request: DayRequest,
    inputs: Inputs,
    opened: snapshots.Snapshots | None,
    counted: Counted,
    run_now: store.Run,
    tell: Any,
    began: float,
) -> store.CurrentTable:
    scanned = Scanned.of(counted, request.streams, inputs.accepted)
    quarantine, examples = _quarantine(request, counted, scanned.bins)
    changes, warnings = scanned.drift()
    warnings = inputs.warnings + scanned.warnings() + warnings
    tolerances = reconciliation.parse_tolerances(request.max_malformed, request.streams)
    prefixes = scanned.unmatched_prefixes()
    warnings += reconciliation.check(scanned.bins, tolerances, examples, _asked(inputs.dbs, opened), prefixes)
    before = store.history(inputs.files, request.fout, request.job, request.day, reconciliation.TRAILING_DAYS)
    trailing = [manifest.get("reconciliation", {}) for manifest in before]
    warnings += reconciliation.unusual(scanned.bins, trailing, inputs.missing)
    for table in request.tables:
        count = counted.write(run_now, table, request.fmt)
        tell(f"{table}: {count:,} rows")
    check_unchanged(inputs.files, [*inputs.streams, *inputs.dumps])
    told: dict[str, Any] = {"damaged": scanned.damaged, "drift": changes, "quarantine": quarantine}
    told |= {"warnings": warnings, "unmatched_prefixes": prefixes, "engine": counted.engine}
    done = run_now.commit(_manifest(request, inputs, opened, scanned.bins, told, run_now, began))
    for text in warnings:
        tell(f"warning: {text}")
    tell(reconciliation.table(done.manifest["reconciliation"]))
    tell(f"{request.job} of {request.day} stored in {done.path} after {time.monotonic() - began:.1f} s")
    return done


def _asked(dbs: Dump, opened: snapshots.Snapshots | None) -> str:
    """The DBS dump that was asked for files, for errors."""
    known = f", which names {opened.report.files:,} files" if opened else ""
    return f"DBS dump of {dbs.day or 'no date'} in {dbs.folder}{known}"


def _quarantine(request: DayRequest, counted: Counted, bins: Mapping[str, StreamBins]) -> tuple[str | None, list[str]]:
    """Keep malformed records in a private folder; return its file and a few examples without values."""
    if not any(one.malformed for one in bins.values()):
        return None, []
    folder = request.settings.state_dir / "quarantine" / request.job / request.day.isoformat()
    records = counted.quarantined()
    try:
        return keep(folder, ({"stream": stream, **json.loads(detail)} for stream, detail in records))
    except OSError as error:
        raise OutputError("malformed records cannot be kept", where=folder, found=error.strerror) from None


def _manifest(
    request: DayRequest,
    inputs: Inputs,
    opened: snapshots.Snapshots | None,
    bins: Mapping[str, StreamBins],
    told: Mapping[str, Any],
    run_now: store.Run,
    began: float,
) -> dict[str, Any]:
    read = sum(one.read for one in bins.values())
    rows = run_now.tables[request.tables[0]]["rows"]
    key = pseudonyms.load_or_make(request.settings.state_dir / pseudonyms.KEY_FILE)
    return {
        "streams": list(request.streams),
        "partial": bool(inputs.missing or told["damaged"]) or any(one.is_tmp for one in inputs.streams),
        "missing_streams": inputs.missing,
        "reconciliation": {stream: one.as_dict() for stream, one in bins.items()},
        "out_of_day_by_day": {stream: dict(sorted(one.out_of_day.items())) for stream, one in bins.items()},
        "generations": {stream: dict(one.generations) for stream, one in bins.items() if one.generations},
        "reduction_factor": round(read / rows, 3) if rows else None,
        "join": "shuffle" if opened is None else "index",
        "catalogue": opened.report.__dict__ if opened else None,
        "dumps": dumps_told(inputs.dumps),
        "inputs": [_input(one) for one in inputs.streams],
        "identical_files": _identical(inputs),
        "pseudonym_key_id": key.key_id,
        **told,
        "versions": versions(),
        "seconds": round(time.monotonic() - began, 1),
        "timestamp": days.start_ms(request.day),
    }


def _input(one: DayInput) -> dict[str, Any]:
    return {
        "stream": one.stream,
        "form": one.form,
        "folder": one.folder,
        "is_tmp": one.is_tmp,
        "files": [[file.path, file.size, file.mtime_ms] for file in one.files],
    }


def _identical(inputs: Inputs) -> list[list[str]]:
    """Part files of one folder with the same content (rule 3); told, and counted as found. Local folders only."""
    import hashlib

    told = []
    for one in inputs.streams:
        by_size: dict[int, list[str]] = {}
        for file in one.files:
            if file.size and is_local(file.path):
                by_size.setdefault(file.size, []).append(file.path)
        for paths in by_size.values():
            if len(paths) < 2:
                continue
            by_content: dict[bytes, list[str]] = {}
            for path in paths:
                with open(path, "rb") as stream:
                    by_content.setdefault(hashlib.file_digest(stream, "blake2b").digest(), []).append(path)
            told += [same for same in by_content.values() if len(same) > 1]
    return told
