"""Runs the steps of a suite one after another, and watches them here and on the nodes that it names."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cmsspark import clock
from cmsspark.errors import SettingsError
from cmsspark.monitor.processes_collector import Collector, check_address, server_tls
from cmsspark.monitor.processes_sampler import TreeSampler
from cmsspark.monitor.suite_file import Nodes, Step, Suite, filled
from cmsspark.secrets import read_password
from cmsspark.signals import interruptible
from cmsspark.store.process_samples import (
    DONE,
    ENDED,
    FAILED,
    LogEntry,
    ProcessDatabase,
    WatchedRun,
    open_processes,
)

#: Seconds that monitors of nodes have to notice the end of the run.
_PATIENCE: Final = 30.0
#: What the exit code of a step that ran too long is, as timeout(1) has it.
TIMED_OUT: Final = 124


@dataclass
class SuiteRunner:
    """Runs a suite; ``folder``: of its file, from which the steps are started. ``log`` gets lines for people."""

    suite: Suite
    folder: Path
    state_dir: Path
    release: str
    log: Callable[[str], None]

    def run(self) -> list[WatchedRun]:
        """Run the steps for each size; the stored runs. A run whose step fails is FAILED, and the rest is not run."""
        runs: list[WatchedRun] = []
        with open_processes(self.state_dir) as database:
            database.prune()
            for size in self.suite.sizes or [None]:
                runs.append(self._run_size(database, size))
                if runs[-1].status != DONE:
                    break
        return runs

    def _run_size(self, database: ProcessDatabase, size: float | None) -> WatchedRun:
        run = WatchedRun(
            clock.new_run_id(), clock.now_ms(), socket.gethostname(), suite=self.suite.suite, release=self.release,
            input_size=size, job=self.suite.suite,
        )  # fmt: skip
        database.put_run(run)
        scratch = Path(tempfile.mkdtemp(prefix="cmsspark-suite-"))
        values = {
            "{size}": "" if size is None else f"{size:g}" if size != int(size) else str(int(size)),
            "{run}": run.run, "{folder}": str(scratch), "{suite_folder}": str(self.folder), "{python}": sys.executable,
        }  # fmt: skip
        self.log(f"run {run.run} of {self.suite.suite}, release {self.release}" + (f", size {size:g}" if size else ""))
        run.status = ENDED
        try:
            with interruptible(), self._nodes(run, values):
                try:
                    run.exit_code = self._steps(database, run, values)
                    run.status = DONE if run.exit_code == 0 else FAILED
                finally:
                    # The monitors of nodes end when they hear of it.
                    run.end_ms = clock.now_ms()
                    database.put_run(run)
        finally:
            run.end_ms = run.end_ms or clock.now_ms()
            database.put_run(run)
            shutil.rmtree(scratch, ignore_errors=True)
        return run

    def _steps(self, database: ProcessDatabase, run: WatchedRun, values: Mapping[str, str]) -> int:
        """Run the steps; 0, or the exit code of the one that failed."""
        for step in self.suite.steps:
            self._mark(database, run, f"begin {step.name}")
            begun = time.monotonic()
            code, output = self._step(database, run, step, dict(values))
            self._mark(database, run, f"end {step.name} exit {code}")
            self.log(f"  {step.name}: exit code {code}, {time.monotonic() - begun:.1f} s")
            if code not in step.exit_codes:
                text = f"{step.name} ended with {code}; its output: {output}"
                database.add([], [LogEntry(run.run, clock.now_ms(), "error", text, run.host)])
                self.log(f"  {text}")
                return code or 1
        return 0

    def _mark(self, database: ProcessDatabase, run: WatchedRun, text: str) -> None:
        database.add([], [LogEntry(run.run, clock.now_ms(), "mark", text, run.host)])

    def _step(self, database: ProcessDatabase, run: WatchedRun, step: Step, values: dict[str, str]) -> tuple[int, Path]:
        """Run one step and watch it; its exit code and the file with its output."""
        output = self.state_dir / "perf" / run.run / f"{step.name}.log"
        output.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # The steps are watched here: run_spark need not do it again.
        environ = {**os.environ, "CMSSPARK_MONITOR": "0", **step.env}
        argv = filled(step.command, values)
        with open(output, "wb") as stream:
            os.fchmod(stream.fileno(), 0o600)
            try:
                child = subprocess.Popen(
                    argv, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, env=environ, start_new_session=True
                )
            except OSError as error:
                raise SettingsError(
                    f"the command of the step {step.name} cannot be started",
                    where=argv[0], found=error.strerror, next_step="is it on PATH?",
                ) from None  # fmt: skip
            try:
                return self._watched(database, run, step, child), output
            finally:
                _end_group(child)

    def _watched(self, database: ProcessDatabase, run: WatchedRun, step: Step, child: subprocess.Popen[bytes]) -> int:
        sampler = TreeSampler(run.run, [child.pid])
        end = time.monotonic() + step.timeout_seconds
        interval = min(self.suite.interval_seconds, 0.2)
        while True:
            try:
                return child.wait(max(0.0, min(interval, end - time.monotonic())))
            except subprocess.TimeoutExpired:
                database.add(sampler.sample())
                interval = self.suite.interval_seconds
            if time.monotonic() >= end:
                self.log(f"  {step.name} is ended: it took more than {step.timeout_seconds:g} s")
                return TIMED_OUT

    @contextmanager
    def _nodes(self, run: WatchedRun, values: Mapping[str, str]) -> Iterator[None]:
        """Start the monitors of nodes and take what they send; all have ended afterwards."""
        nodes = self.suite.nodes
        if nodes is None:
            yield
            return
        collector = self._collector(nodes)
        collector.start()
        more = {"{collector}": collector.url, "{ttl}": f"{nodes.ttl_seconds:g}"}
        monitors: list[subprocess.Popen[bytes]] = []
        try:
            for host in nodes.hosts:
                argv = filled(nodes.start, {**values, **more, "{host}": host})
                monitors.append(subprocess.Popen(argv, stdin=subprocess.DEVNULL, start_new_session=True))
            yield
        finally:
            end = time.monotonic() + _PATIENCE
            for host, monitor in zip(nodes.hosts, monitors, strict=False):
                try:
                    code = monitor.wait(max(0.1, end - time.monotonic()))
                except subprocess.TimeoutExpired:
                    code = None
                if code != 0:
                    self.log(f"  the monitor of {host} " + ("is ended" if code is None else f"ended with {code}"))
                _end_group(monitor)
            collector.close()

    def _collector(self, nodes: Nodes) -> Collector:
        def path(text: str) -> Path:
            return self.folder / Path(text).expanduser()

        certificate = path(nodes.tls_cert) if nodes.tls_cert else None
        check_address(nodes.listen, certificate is not None, nodes.without_tls)
        tls = server_tls(certificate, path(nodes.tls_key) if nodes.tls_key else None)
        return Collector(self.state_dir, read_password(path(nodes.token_file)), nodes.listen, nodes.port, tls)


def _end_group(child: subprocess.Popen[bytes]) -> None:
    """End a process and all that it started: nothing of a step stays."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, number)
            if child.poll() is None:
                with suppress(subprocess.TimeoutExpired):
                    child.wait(5)
        if child.poll() is not None and number == signal.SIGTERM:
            # Its children may need a moment; what is left of the group is killed.
            time.sleep(0.05)
