"""Measures a run of run_spark from its parent: samples and REST while it runs, the
event log, what the job reported and findings when it has ended.

A run by processes of this host is measured from inside, without a thread: the kernel
keeps the peak of resident memory and the CPU time of a process and of its children that
ended. Every method catches whatever goes wrong: a measurement never fails a run, and
never changes its exit code.
"""

from __future__ import annotations

import os
import re
import resource
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

import msgspec

from cmsspark.apps.monitor.memory_sizes import KEPT
from cmsspark.apps.monitor.processes.sampler import STEP_VARIABLE
from cmsspark.base import dates, self_metrics
from cmsspark.base.errors import CmssparkError
from cmsspark.base.private_folders import make_private
from cmsspark.filesystems.storage import is_local
from cmsspark.settings.settings import load_settings
from cmsspark.store import lease, run_metrics
from cmsspark.store.run_history import TraceBuffer
from cmsspark.store.run_metrics import ExecutorEntry, Reported, RunMetrics, StageEntry

if TYPE_CHECKING:
    from cmsspark.apps.monitor.logs.rest import RestPoller
    from cmsspark.apps.monitor.processes.sampler import DriverSamples
    from cmsspark.store.process_samples import ProcessSample


def finish(
    metrics: RunMetrics, folder: Path, options: Mapping[str, str], driver_peaks: Mapping[str, int]
) -> RunMetrics:
    """Return the run with everything that is known after its end.

    ``folder``: that of the measured run; ``driver_peaks``: of the driver's process
    tree, as it was sampled.
    """
    # What only an end needs: `run_spark` starts sooner without.
    from cmsspark.apps.monitor.findings import find as findings
    from cmsspark.apps.monitor.logs.reader import merge_peaks

    add_reported(metrics, folder / self_metrics.FILE)
    metrics = _with_events(metrics, options)
    if metrics.deploy_mode != "cluster" and driver_peaks:
        driver = next((entry for entry in metrics.executors if entry.executor == "driver"), None)
        if driver is None:
            driver = ExecutorEntry("driver", metrics.host)
            metrics.executors.append(driver)
        merge_peaks(driver.peaks, driver_peaks)
    metrics.findings = findings.find(metrics)
    return metrics


def _with_events(metrics: RunMetrics, options: Mapping[str, str]) -> RunMetrics:
    """Return the run with its event log, which replaces the figures of REST on executors."""
    from cmsspark.apps.monitor.measured_runs import pending_note, with_event_log

    location = options.get("spark.eventLog.dir", "")
    if options.get("spark.eventLog.enabled") != "true" or not location:
        metrics.notes.append(
            "there is no event log (spark.eventLog.enabled): figures of stages are missing"
        )
        return metrics
    if not is_local(location):
        metrics.pending_events = location
        metrics.notes.append(pending_note(location))
        return metrics
    try:
        return with_event_log(metrics, location)
    except CmssparkError as error:
        metrics.notes.append(f"the event log cannot be read: {error.problem}")
        return metrics


class ReportedLine(msgspec.Struct):
    """A line of the file: files that were read, or a stage of processes."""

    read: Reported | None = None
    stage: StageEntry | None = None


def add_reported(metrics: RunMetrics, file: Path) -> None:
    """Take the lines of a file; those that are cut or of another form are left out."""
    try:
        lines = file.read_bytes().splitlines()
    except OSError:
        return
    for line in lines:
        with suppress(msgspec.MsgspecError):
            entry = msgspec.json.decode(line, type=ReportedLine)
            if entry.read is not None:
                metrics.reported.append(entry.read)
            if entry.stage is not None:
                metrics.stages.append(entry.stage)
                metrics.stage_count += 1
                metrics.totals.tasks += entry.stage.totals.tasks
                metrics.totals.task_ms += entry.stage.totals.task_ms
                metrics.totals.run_ms += entry.stage.totals.run_ms
                if entry.stage.submitted_ms is not None and entry.stage.completed_ms is not None:
                    metrics.task_spans.append((entry.stage.submitted_ms, entry.stage.completed_ms))
    if lines:
        metrics.sources.append("reported")


def measuring(run: Callable[[], NoReturn]) -> NoReturn:
    """Run what ends with SystemExit, and store the measurement where run_spark began one."""
    try:
        run()
    except SystemExit as end:
        folder = os.environ.get(self_metrics.VARIABLE)
        # Where spark-submit started this process, its parent measures the run.
        if folder and not {"SPARK_ENV_LOADED", "PYSPARK_GATEWAY_PORT"} & os.environ.keys():
            with suppress(Exception):
                _store(Path(folder), end.code if isinstance(end.code, int) else 1)
        raise


def _store(folder: Path, code: int) -> None:
    from cmsspark.apps.monitor.findings import find as findings
    from cmsspark.apps.monitor.run_report import ending_lines

    path = folder / "run.json"
    metrics = run_metrics.read(path)
    metrics.ended_ms, metrics.exit_code = dates.now_ms(), code
    metrics.state = "DONE" if code == 0 else "FAILED"
    add_reported(metrics, folder / self_metrics.FILE)
    process, children = (
        resource.getrusage(resource.RUSAGE_SELF),
        resource.getrusage(resource.RUSAGE_CHILDREN),
    )
    metrics.cpu_ms = round(
        1000 * (process.ru_utime + process.ru_stime + children.ru_utime + children.ru_stime)
    )
    metrics.sources.append("samples")
    # The system counts resident memory in kB.
    metrics.executors = [ExecutorEntry("driver", metrics.host, 1, peaks=_peaks(process.ru_maxrss))]
    if children.ru_maxrss and metrics.stages:
        count = len(os.sched_getaffinity(0))
        metrics.executors.append(
            ExecutorEntry("workers", metrics.host, count, peaks=_peaks(children.ru_maxrss))
        )
    metrics.findings = findings.find(metrics)
    run_metrics.write(path, metrics)
    for text in ending_lines(metrics):
        sys.stderr.write(f"run_spark: {text}\n")
    # This process was started by run_spark, whose settings it has by the environment.
    settings = load_settings(None, os.environ)
    if settings.metrics.host is not None:
        from cmsspark.apps.monitor.processes.live_metrics import send_run

        send_run(settings.metrics, path)


def _peaks(kilobytes: int) -> dict[str, int]:
    return {"ProcessTreePythonRSSMemory": 1024 * kilobytes}


#: The system property by which the event log of a run is known among others in one folder.
PROPERTY: Final = "cmsspark-run"
#: The option of Spark with the same meaning where the driver is on another host.
OPTION: Final = "spark.cmsspark.run"
#: Lines of the driver's log that name a cause.
_TELLING: Final = re.compile(
    r"OutOfMemoryError|Java heap space|GC overhead limit|getOutputCommand|py4j\.Protocol|Container killed"
    r"|[Ee]xit (?:code|status):? (?:is )?(?:137|143)|beyond (?:the )?'?(?:physical|virtual)'? memory"
    r"|Failed to connect to (?:driver|master)|YARN: .*Failed to connect to|YARN application has|ExecutorLostFailure|maxResultSize"
    r"|Python worker exited unexpectedly|Could not execute broadcast in|No space left on device|eartbeat timed out"
    r"|Not enough space to cache rdd|Persisting block rdd|Broadcasting large task binary|task of very large size"
)
_MOST_LINES: Final = 50
_LONGEST_LINE: Final = 300
#: Seconds between two versions of the file while the run goes on.
_EVERY_MS: Final = 30_000


class RunMeasure(msgspec.Struct):
    """The measurement of one run, from before its child starts until after it ended."""

    state_dir: Path
    metrics: RunMetrics
    options: Mapping[str, str] = msgspec.field(default_factory=dict)
    has_jvm: bool = True
    #: YARN's reason why an application failed, by its id: a Python driver shows it to
    #: the user only.
    diagnose: Callable[[str], str] | None = None
    #: Called with the file of the run when it is complete: live metrics.
    on_end: Callable[[Path], None] | None = None
    _driver: DriverSamples | None = None
    _rest_poller: RestPoller | None = None
    _written_ms: int = 0
    _trace: TraceBuffer = msgspec.field(default_factory=TraceBuffer)

    @property
    def folder(self) -> Path:
        """The folder of the measured run."""
        return run_metrics.runs_folder(self.state_dir) / self.metrics.run

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the child's variables: where a job reports, and the run's id, which
        the JVM writes into its log.
        """
        if not self.has_jvm:
            return {self_metrics.VARIABLE: str(self.folder)}
        options = environ.get("SPARK_SUBMIT_OPTS", "")
        words = f"-D{PROPERTY}={self.metrics.run} {options}".strip()
        return {self_metrics.VARIABLE: str(self.folder), "SPARK_SUBMIT_OPTS": words}

    def started(self, pid: int) -> None:
        """spark-submit runs."""
        with suppress(Exception):
            from cmsspark.apps.monitor.logs.rest import RestPoller
            from cmsspark.apps.monitor.processes.sampler import DriverSamples

            self.metrics.root_pid = pid
            self.metrics.host_cores = len(os.sched_getaffinity(0))
            if self.options.get("spark.ui.enabled") != "false":
                self._rest_poller = RestPoller(pid, self.options)
            self._driver = DriverSamples(pid)

    def take(self, processes: Sequence[ProcessSample]) -> None:
        """Take a sample of the processes of the run."""
        with suppress(Exception):
            sample = self._driver.take(processes) if self._driver is not None else None
            if sample is None or self._driver is None:
                return
            if self._rest_poller is not None:
                self._rest_poller.poll()
                sample.active_tasks = self._rest_poller.active_tasks
            # A run that is killed leaves what was seen until then.
            if dates.now_ms() - self._written_ms > _EVERY_MS:
                self.metrics.samples = list(self._driver.samples)
                self._write()

    def line(self, text: str) -> None:
        """Take a line of the driver's log."""
        self._trace.take(text)
        lines = self.metrics.log_lines
        if len(lines) < _MOST_LINES and _TELLING.search(text):
            lines.append(text.strip()[:_LONGEST_LINE])

    def ended(self, code: int, application: str | None = None) -> None:
        """Note that the child has ended with ``code``; ``application`` is YARN's id
        where it is known.
        """
        with suppress(Exception):
            if self._driver is not None and (samples := self._driver.end()):
                self.metrics.samples = samples
                self.metrics.sources.append("samples")
                self.metrics.cpu_ms = max(sample.cpu_ms or 0 for sample in samples)
        with suppress(Exception):
            if code and application and self.diagnose is not None:
                for text in self.diagnose(application).splitlines():
                    self.line(f"YARN: {text.strip()}")
        with suppress(Exception):
            metrics = self.metrics
            metrics.ended_ms, metrics.exit_code = dates.now_ms(), code
            metrics.state = "DONE" if code == 0 else "FAILED"
            metrics.driver_trace = self._trace.text() if code else None
            metrics.application = application or metrics.application
            if self._rest_poller is not None and self._rest_poller.answers:
                from cmsspark.apps.monitor.logs.rest import set_stages

                metrics.sources.append("rest")
                metrics.executors = self._rest_poller.executors
                set_stages(metrics, self._rest_poller.stages)
            peaks = self._driver.peaks if self._driver is not None else {}
            self.metrics = finish(metrics, self.folder, self.options, peaks)
            self._write()
            if self.on_end is not None:
                self.on_end(self.folder / "run.json")
        with suppress(Exception):
            prune(self.state_dir)

    def ending_lines(self) -> list[str]:
        """Return what is to be said of the run at its end."""
        with suppress(Exception):
            from cmsspark.apps.monitor.run_report import ending_lines

            return list(ending_lines(self.metrics))
        return []

    def _write(self) -> None:
        self._written_ms = dates.now_ms()
        run_metrics.write(self.folder / "run.json", self.metrics)


def begin(
    state_dir: Path,
    job: str,
    options: Mapping[str, str],
    *,
    has_jvm: bool,
    log: Callable[[str], None] | None = None,
) -> RunMeasure | None:
    """Return a measurement; None, with a message to ``log``, where the state folder
    cannot be written.
    """
    now = dates.now_ms()
    metrics = RunMetrics(dates.new_run_id(now), job, "spark" if has_jvm else "processes", now)
    metrics.step = os.environ.get(STEP_VARIABLE)
    metrics.host, metrics.process = socket.gethostname(), lease.identity()
    metrics.master, metrics.deploy_mode = (
        options.get("spark.master", ""),
        options.get("spark.submit.deployMode", ""),
    )
    # The event log has all that count; an application that never started has none.
    metrics.options = (
        {name: value for name, value in options.items() if KEPT.fullmatch(name)} if has_jvm else {}
    )
    if not has_jvm:
        # This process becomes that of the job.
        metrics.root_pid, metrics.master, metrics.deploy_mode = os.getpid(), "", ""
    measure = RunMeasure(state_dir, metrics, options, has_jvm)
    try:
        measure._write()
    except OSError as error:
        if log is not None:
            log(f"the run is not measured: {measure.folder} cannot be written ({error.strerror})")
        return None
    return measure


def usable_events_folder(state_dir: Path) -> str | None:
    """Return the URI of the folder for event logs, made where there is none; None where
    Spark could not write there.

    Spark refuses to start where the folder of event logs is missing.
    """
    folder = run_metrics.events_folder(state_dir)
    with suppress(OSError):
        make_private(folder)
        status = os.statvfs(folder)
        if (
            os.access(folder, os.W_OK | os.X_OK)
            and status.f_bavail * status.f_frsize > _LEAST_ROOM
        ):
            return folder.absolute().as_uri()
    return None


_LEAST_ROOM: Final = 200_000_000
#: What is kept: measured runs, and bytes of event logs; the oldest go first.
MOST_RUNS: Final = 500
MOST_EVENT_BYTES: Final = 1_000_000_000
_YOUNG_MS: Final = 3_600_000


def prune(state_dir: Path) -> None:
    """Remove the oldest measured runs and event logs beyond what is kept."""
    import shutil

    runs = sorted(
        entry for entry in run_metrics.runs_folder(state_dir).iterdir() if entry.is_dir()
    )
    for folder in runs[:-MOST_RUNS]:
        shutil.rmtree(folder, ignore_errors=True)
    logs = []
    for entry in run_metrics.events_folder(state_dir).iterdir():
        files = (
            [file for file in entry.rglob("*") if file.is_file()] if entry.is_dir() else [entry]
        )
        logs.append((entry.stat().st_mtime, sum(file.stat().st_size for file in files), entry))
    total = 0
    for number, (changed, size, entry) in enumerate(sorted(logs, reverse=True)):
        total += size
        # One that is young may still be written by another run.
        if number and total > MOST_EVENT_BYTES and dates.now_ms() - changed * 1000 > _YOUNG_MS:
            if entry.is_dir():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink(missing_ok=True)
