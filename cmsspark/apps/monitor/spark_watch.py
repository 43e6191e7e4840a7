"""Measures a run of run_spark from its parent: samples and REST while it runs, the
event log when it has ended.

Every method catches whatever goes wrong: a measurement never fails a run, and never
changes its exit code.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cmsspark.apps.monitor.memory_sizes import KEPT
from cmsspark.base import clock, self_metrics
from cmsspark.base.private_folders import make_private
from cmsspark.store import process_identity, run_metrics
from cmsspark.store.run_exceptions import TraceBuffer
from cmsspark.store.run_metrics import RunMetrics, Sample

if TYPE_CHECKING:
    from cmsspark.apps.monitor.spark_rest import RestPoller
    from cmsspark.apps.monitor.spark_samples import Sampler

#: The system property by which the event log of a run is known among others in one folder.
PROPERTY: Final = "cmsspark-run"
#: The option of Spark with the same meaning where the driver is on another host.
OPTION: Final = "spark.cmsspark.run"
#: Lines of the driver's log that name a cause.
_TELLING: Final = re.compile(
    r"OutOfMemoryError|Java heap space|GC overhead limit|getOutputCommand|py4j\.Protocol|Container killed"
    r"|[Ee]xit (?:code|status):? (?:is )?(?:137|143)|beyond (?:the )?'?(?:physical|virtual)'? memory"
    r"|Failed to connect to (?:driver|master)|YARN: .*Failed to connect to|ExecutorLostFailure|maxResultSize"
    r"|Python worker exited unexpectedly|Could not execute broadcast in|No space left on device|eartbeat timed out"
)
_MOST_LINES: Final = 50
_LONGEST_LINE: Final = 300
#: Seconds between two versions of the file while the run goes on.
_EVERY_MS: Final = 30_000


@dataclass
class RunMeasure:
    """The measurement of one run, from before its child starts until after it ended."""

    state_dir: Path
    metrics: RunMetrics
    options: Mapping[str, str] = field(default_factory=dict)
    has_jvm: bool = True
    #: YARN's reason why an application failed, by its id: a Python driver shows it to
    #: the user only.
    diagnose: Callable[[str], str] | None = None
    #: Called with the file of the run when it is complete: live metrics.
    on_end: Callable[[Path], None] | None = None
    _sampler: Sampler | None = None
    _rest_poller: RestPoller | None = None
    _written_ms: int = 0
    _trace: TraceBuffer = field(default_factory=TraceBuffer)

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
            from cmsspark.apps.monitor.spark_rest import RestPoller
            from cmsspark.apps.monitor.spark_samples import Sampler, TreeReader

            self.metrics.root_pid = pid
            if self.options.get("spark.ui.enabled") != "false":
                self._rest_poller = RestPoller(pid, self.options)
            self._sampler = Sampler(TreeReader(pid), self._sampled)
            self._sampler.start()

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
            self._end_samples()
        with suppress(Exception):
            if code and application and self.diagnose is not None:
                for text in self.diagnose(application).splitlines():
                    self.line(f"YARN: {text.strip()}")
        with suppress(Exception):
            metrics = self.metrics
            metrics.ended_ms, metrics.exit_code = clock.now_ms(), code
            metrics.state = "DONE" if code == 0 else "FAILED"
            metrics.driver_trace = self._trace.text() if code else None
            metrics.application = application or metrics.application
            if self._rest_poller is not None and self._rest_poller.answers:
                from cmsspark.apps.monitor.spark_rest import set_stages

                metrics.sources.append("rest")
                metrics.executors = self._rest_poller.executors
                set_stages(metrics, self._rest_poller.stages)
            # Not before: a short run needs none of it while it starts.
            from cmsspark.apps.monitor.spark_finish import finish

            peaks = self._sampler.peaks if self._sampler is not None else {}
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

    def _end_samples(self) -> None:
        if self._sampler is not None:
            self.metrics.samples = self._sampler.stop()
            if self.metrics.samples:
                self.metrics.sources.append("samples")
                self.metrics.cpu_ms = max(sample.cpu_ms or 0 for sample in self.metrics.samples)

    def _sampled(self, sample: Sample) -> None:
        if self._rest_poller is not None:
            self._rest_poller.poll()
            sample.active_tasks = self._rest_poller.active_tasks
        # A run that is killed leaves what was seen until then.
        if clock.now_ms() - self._written_ms > _EVERY_MS and self._sampler is not None:
            self.metrics.samples = list(self._sampler.samples)
            self._write()

    def _write(self) -> None:
        self._written_ms = clock.now_ms()
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
    now = clock.now_ms()
    metrics = RunMetrics(clock.new_run_id(now), job, "spark" if has_jvm else "processes", now)
    metrics.host, metrics.process = socket.gethostname(), process_identity.identity()
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
_OLD_MS: Final = 86_400_000


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
        if number and total > MOST_EVENT_BYTES and clock.now_ms() - changed * 1000 > _OLD_MS / 24:
            if entry.is_dir():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink(missing_ok=True)
