"""Runs the steps of a suite one after another, and watches them here and on the nodes
that it names.
"""

from __future__ import annotations

import itertools
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cmsspark.apps.monitor.measured_runs import measured_runs
from cmsspark.apps.monitor.processes.collector import Collector, check_address, server_tls
from cmsspark.apps.monitor.processes.reaper import OrphanReaper, end_group, end_step
from cmsspark.apps.monitor.processes.sampler import STEP_VARIABLE, TreeSampler
from cmsspark.apps.monitor.run_report import ending_lines
from cmsspark.apps.monitor.suites.suite import Nodes, Step, Suite, filled, size_text
from cmsspark.base import dates
from cmsspark.base.errors import SettingsError
from cmsspark.base.private_folders import make_private
from cmsspark.base.reporting import interruptible
from cmsspark.settings.secrets import read_password
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
class _Ended:
    """How a step ended. ``is_late``: it took too long; ``left``: names of processes
    that it left, ended by now.
    """

    code: int
    output: Path
    is_late: bool = False
    survivors: list[str] = field(default_factory=list)


@dataclass
class SuiteRunner:
    """Runs a suite; ``folder``: of its file, from which the steps are started. ``log``
    gets lines for people.
    """

    suite: Suite
    folder: Path
    state_dir: Path
    release: str
    log: Callable[[str], None]
    _guard: OrphanReaper = field(init=False)
    _concluded: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._guard = OrphanReaper(self.state_dir)

    def run(self) -> list[WatchedRun]:
        """Run the steps for each size; the stored runs. A run whose step fails is
        FAILED, and the rest is not run.
        """
        runs: list[WatchedRun] = []
        with self._guard, open_processes(self.state_dir) as database:
            database.prune()
            sizes: list[float | None] = [*self.suite.sizes] or [None]
            for size in sizes:
                runs.append(self._run_size(database, size))
                if runs[-1].status != DONE:
                    break
        return runs

    def _run_size(self, database: ProcessDatabase, size: float | None) -> WatchedRun:
        run = WatchedRun(
            dates.new_run_id(),
            dates.now_ms(),
            socket.gethostname(),
            suite=self.suite.suite,
            release=self.release,
            input_size=size,
            job=self.suite.suite,
        )
        database.put_run(run)
        scratch = Path(tempfile.mkdtemp(prefix="cmsspark-suite-"))
        self._guard.run_began(run.run, scratch)
        values = {
            "{size}": "" if size is None else size_text(size),
            "{run}": run.run,
            "{folder}": str(scratch),
            "{suite_folder}": str(self.folder),
            "{python}": sys.executable,
        }
        self.log(
            f"run {run.run} of {self.suite.suite}, release {self.release}"
            + (f", size {size_text(size)}" if size else "")
        )
        run.status = ENDED
        try:
            with interruptible(), self._nodes(database, run, values):
                try:
                    run.exit_code = self._steps(database, run, values)
                    run.status = DONE if run.exit_code == 0 else FAILED
                finally:
                    # The monitors of nodes end when the collector answers with this state.
                    run.end_ms = dates.now_ms()
                    database.put_run(run)
        finally:
            run.end_ms = run.end_ms or dates.now_ms()
            database.put_run(run)
            shutil.rmtree(scratch, ignore_errors=True)
        return run

    def _steps(self, database: ProcessDatabase, run: WatchedRun, values: Mapping[str, str]) -> int:
        """Run the steps; 0, or the exit code of the one that failed."""
        for step in itertools.chain.from_iterable(
            [step] * step.repeat for step in self.suite.steps
        ):
            self._note(database, run, "mark", f"begin {step.name}")
            begun = time.monotonic()
            ended = self._step(database, run, step, dict(values))
            self._note(database, run, "mark", f"end {step.name} exit {ended.code}")
            self.log(f"  {step.name}: exit code {ended.code}, {time.monotonic() - begun:.1f} s")
            # Note what the measured runs of a step found.
            marker = f"{run.run}/{self.suite.steps.index(step)}/"
            for metrics in reversed(list(measured_runs(self.state_dir, started_ms=run.start_ms))):
                if metrics.step == marker and metrics.run not in self._concluded:
                    self._concluded.add(metrics.run)
                    for line in ending_lines(metrics):
                        self._note(database, run, "finding", f"{step.name}: {line}")
            if ended.survivors:
                text = f"{step.name} left {len(ended.survivors)} processes, which are ended: {', '.join(ended.survivors)}"
                self._note(database, run, "info", text)
            if ended.is_late or ended.code not in step.exit_codes:
                text = f"{step.name} ended with {ended.code}; its output: {ended.output}"
                self._note(database, run, "error", text)
                return ended.code or 1
        return 0

    def _note(self, database: ProcessDatabase, run: WatchedRun, kind: str, text: str) -> None:
        """Store a line of the run's log; show it, too, unless it is the mark of a step."""
        database.add([], [LogEntry(run.run, dates.now_ms(), kind, text, run.host)])
        if kind != "mark":
            self.log(f"  {text}")

    def _step(
        self, database: ProcessDatabase, run: WatchedRun, step: Step, values: dict[str, str]
    ) -> _Ended:
        """Run one step and watch it. Raises SettingsError (78) where its command cannot
        be started.
        """
        output = self.state_dir / "perf" / run.run / f"{step.name}.log"
        make_private(output.parent)
        marker = f"{run.run}/{self.suite.steps.index(step)}/"
        environment = dict(zip(step.env, filled(list(step.env.values()), values), strict=True))
        # Runs of steps are measured into the store of the suite, which watches their processes.
        state = {"CMSSPARK_STATE_DIR": str(self.state_dir.absolute())}
        environ = {**os.environ, **state, **environment, STEP_VARIABLE: marker}
        argv = filled(step.command, values)
        with open(output, "wb") as stream:
            os.fchmod(stream.fileno(), 0o600)
            try:
                child = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=stream,
                    stderr=stream,
                    env=environ,
                    start_new_session=True,
                )
            except (OSError, ValueError) as error:
                refused = _not_started(f"the step {step.name}", argv, error)
                self._note(database, run, "error", str(refused).splitlines()[0])
                raise refused from None
        self._guard.started(child.pid)
        ended = _Ended(TIMED_OUT, output)
        try:
            code = self._watched(database, run, step, child)
            ended.code, ended.is_late = (TIMED_OUT, True) if code is None else (code, False)
        finally:
            ended.survivors = end_step(child, marker)
            self._guard.ended(child.pid)
        return ended

    def _watched(
        self,
        database: ProcessDatabase,
        run: WatchedRun,
        step: Step,
        child: subprocess.Popen[bytes],
    ) -> int | None:
        """Sample a step until it ends; its exit code, or None where it takes too long."""
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
                return None

    @contextmanager
    def _nodes(
        self, database: ProcessDatabase, run: WatchedRun, values: Mapping[str, str]
    ) -> Iterator[None]:
        """Start the monitors of nodes and take what they send; all have ended afterwards."""
        nodes = self.suite.nodes
        if nodes is None:
            yield
            return
        collector = self._collector(nodes)
        collector.start()
        more = {"{collector}": collector.url, "{ttl}": f"{nodes.ttl_seconds:.0f}"}
        try:
            monitors = _started_monitors(nodes, {**values, **more})
            try:
                for monitor in monitors.values():
                    self._guard.started(monitor.pid)
                yield
            finally:
                end = time.monotonic() + _PATIENCE
                for host, monitor in monitors.items():
                    code: int | None = None
                    with suppress(subprocess.TimeoutExpired):
                        code = monitor.wait(max(0.1, end - time.monotonic()))
                    if code != 0:
                        how = (
                            f"did not end in {_PATIENCE:.0f} s"
                            if code is None
                            else f"ended with {code}"
                        )
                        text = f"the monitor of {host} {how}: samples of this node may be missing"
                        self._note(database, run, "error", text)
                    end_group(monitor)
                    self._guard.ended(monitor.pid)
        finally:
            collector.close()

    def _collector(self, nodes: Nodes) -> Collector:
        def path(text: str) -> Path:
            return self.folder / Path(text).expanduser()

        certificate = path(nodes.tls_cert) if nodes.tls_cert else None
        check_address(nodes.listen, certificate is not None, nodes.without_tls)
        tls = server_tls(certificate, path(nodes.tls_key) if nodes.tls_key else None)
        return Collector(
            self.state_dir, read_password(path(nodes.token_file)), nodes.listen, nodes.port, tls
        )


def _started_monitors(nodes: Nodes, values: dict[str, str]) -> dict[str, subprocess.Popen[bytes]]:
    """Host → its monitor. Raises SettingsError (78) where a command cannot be started;
    the others are ended then.
    """
    monitors: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for host in nodes.hosts:
            argv = filled(nodes.start, {**values, "{host}": host})
            try:
                monitors[host] = subprocess.Popen(
                    argv, stdin=subprocess.DEVNULL, start_new_session=True
                )
            except (OSError, ValueError) as error:
                raise _not_started(f"the monitor of {host}", argv, error) from None
    except BaseException:
        for monitor in monitors.values():
            end_group(monitor)
        raise
    return monitors


def _not_started(label: str, argv: list[str], error: OSError | ValueError) -> SettingsError:
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return SettingsError(
        f"the command of {label} cannot be started",
        where=argv[0],
        found=reason,
        next_step="is it on PATH?",
    )
