"""Suites: YAML files with named steps, sizes of their input and limits to keep. The
steps run one after another, and are watched here and on the nodes that a suite names.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

import msgspec

from cmsspark.apps.monitor.measured_runs import measured_runs
from cmsspark.apps.monitor.processes.collector import Collector, check_address, server_tls
from cmsspark.apps.monitor.processes.reaper import OrphanReaper, end_step
from cmsspark.apps.monitor.processes.sampler import ROLES, STEP_VARIABLE, TreeSampler
from cmsspark.apps.monitor.run_report import ending_lines
from cmsspark.base import config_files, dates
from cmsspark.base.config_files import ConfigFile, nearest
from cmsspark.base.errors import InputMissing, SettingsError
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

#: Names of suites and steps: they are also names of files and words of marks.
_NAME: Final = re.compile(r"[\w.\-]{1,60}")
#: Ten years; infinity has no place in a poll, an option or a database.
_Seconds = Annotated[float, msgspec.Meta(gt=0, le=315_360_000)]
#: No run breaks a limit that is no number.
_Most = Annotated[float, msgspec.Meta(ge=0)]
#: What commands may contain; each is replaced by its value.
PLACEHOLDERS: Final = ("{size}", "{run}", "{folder}", "{suite_folder}", "{python}")
#: What the command that starts a node's monitor may contain in addition.
NODE_PLACEHOLDERS: Final = ("{host}", "{collector}", "{ttl}")
#: All roles together.
ALL: Final = "all"
#: Measures of a step and role.
MEASURES: Final = ("cpu_percent", "virtual_bytes", "rss_bytes")


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A step: a command line that must end with one of ``exit_codes`` before ``timeout_seconds``.

    It runs ``repeat`` times, which shows how much its figures vary.
    Placeholders are replaced in ``command`` and in the values of ``env``.
    """

    name: str
    command: Annotated[list[str], msgspec.Meta(min_length=1)]
    timeout_seconds: _Seconds = 3600.0
    env: dict[str, str] = {}
    exit_codes: Annotated[list[int], msgspec.Meta(min_length=1)] = msgspec.field(
        default_factory=lambda: [0]
    )
    repeat: Annotated[int, msgspec.Meta(ge=1, le=100)] = 1


class Limit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a step may use at most; ``role``: of the processes, all together by default."""

    step: str
    role: str = ALL
    rss_bytes: Annotated[int, msgspec.Meta(ge=0)] | None = None
    virtual_bytes: Annotated[int, msgspec.Meta(ge=0)] | None = None
    cpu_percent: _Most | None = None
    seconds: _Most | None = None


class Nodes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nodes that are watched meanwhile. ``start``: the command that starts ``cmsspark
    monitor node`` on ``{host}``.

    ``listen``: the address of the collector on this host; an address of the network
    needs ``tls_cert``, or ``without_tls: true``.
    """

    hosts: Annotated[list[str], msgspec.Meta(min_length=1)]
    start: Annotated[list[str], msgspec.Meta(min_length=1)]
    token_file: str
    listen: str = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65_535)] = 0
    ttl_seconds: _Seconds = 86_400.0
    tls_cert: str | None = None
    tls_key: str | None = None
    without_tls: bool = False


class Suite(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A suite. ``sizes``: input sizes; the steps run once for each, with ``{size}`` replaced."""

    suite: str
    steps: Annotated[list[Step], msgspec.Meta(min_length=1)]
    about: str = ""
    interval_seconds: Annotated[float, msgspec.Meta(ge=0.1, le=3600)] = 1.0
    sizes: list[Annotated[float, msgspec.Meta(gt=0, le=1e18)]] = []
    nodes: Nodes | None = None
    limits: list[Limit] = []


def read_suite(path: Path) -> Suite:
    """Return the suite of a file. Raises InputMissing (66) for none, SettingsError (78)
    with file and line.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputMissing("the suite cannot be read", where=path, found=error.strerror) from None
    file = config_files.parse(content, str(path))
    suite = file.convert(Suite)
    _check_name(file, suite.suite, "suite")
    _check_steps(file, suite)
    _check_limits(file, suite)
    for number, size in enumerate(suite.sizes):
        if size in suite.sizes[:number]:
            raise file.error("each input size is named once", "sizes", str(number), found=size)
    if suite.nodes is not None:
        for number, host in enumerate(suite.nodes.hosts):
            key = ("nodes", "hosts", str(number))
            # ssh would take a name that begins with a dash for an option.
            if not re.fullmatch(r"[^\s\-\0][^\s\0]*", host):
                raise file.error(
                    "a host has a name without blanks that does not begin with a dash",
                    *key,
                    found=host,
                )
            if host in suite.nodes.hosts[:number]:
                raise file.error("each host is named once", *key, found=host)
        _check_words(
            file, suite.nodes.start, (*PLACEHOLDERS, *NODE_PLACEHOLDERS), "nodes", "start"
        )
    return suite


def _check_name(file: ConfigFile, name: str, *key: str) -> None:
    if not _NAME.fullmatch(name):
        rule = "a name has letters, digits and _.-, at least 1 and at most 60"
        near = re.sub(r"[^\w.\-]+", "_", name)[:60]
        hint = f"such as {near!r}" if _NAME.fullmatch(near) else None
        raise file.error(rule, *key, found=name, next_step=hint)


def _check_steps(file: ConfigFile, suite: Suite) -> None:
    names = [step.name for step in suite.steps]
    for number, step in enumerate(suite.steps):
        key = ("steps", str(number))
        _check_name(file, step.name, *key, "name")
        if step.name in names[:number]:
            raise file.error("each step has a name of its own", *key, "name", found=step.name)
        _check_words(file, step.command, PLACEHOLDERS, *key, "command")
        for name, value in step.env.items():
            if not name or "=" in name or "\0" in name or not _is_text(name):
                raise file.error(
                    "a variable of the environment has a name without =", *key, "env", found=name
                )
            _check_word(file, value, PLACEHOLDERS, *key, "env", name)
        if not suite.sizes and any(
            "{size}" in word for word in (*step.command, *step.env.values())
        ):
            raise file.error("{size} needs `sizes`", *key, "command", found="no sizes")


def _check_limits(file: ConfigFile, suite: Suite) -> None:
    names = [step.name for step in suite.steps]
    for number, limit in enumerate(suite.limits):
        key = ("limits", str(number))
        if limit.step not in names:
            raise file.error(
                "a limit names a step",
                *key,
                "step",
                found=limit.step,
                next_step=nearest(limit.step, names),
            )
        if limit.role != ALL and limit.role not in ROLES:
            hint = nearest(limit.role, (ALL, *ROLES))
            raise file.error(
                "a limit names a role", *key, "role", found=limit.role, next_step=hint
            )
        measures = ("seconds", *MEASURES)
        if all(getattr(limit, name) is None for name in measures):
            raise file.error(f"a limit has one of {', '.join(measures)}", *key)


def _check_words(
    file: ConfigFile, words: list[str], placeholders: Collection[str], *key: str
) -> None:
    if not words[0]:
        raise file.error("a command begins with a program", *key, "0", found=words[0])
    for number, word in enumerate(words):
        _check_word(file, word, placeholders, *key, str(number))


def _check_word(file: ConfigFile, word: str, placeholders: Collection[str], *key: str) -> None:
    if "\0" in word or not _is_text(word):
        rule = "a word of a command and a value of the environment have no NUL and no half of a character"
        raise file.error(rule, *key, found=word)
    for placeholder in re.findall(r"\{[a-z_]+\}", word):
        if placeholder not in placeholders:
            hint = (
                f"{nearest(placeholder, placeholders)}; other braces need a blank inside of them"
            )
            raise file.error(
                "a placeholder is one of the known names", *key, found=placeholder, next_step=hint
            )


def _is_text(word: str) -> bool:
    """Return whether UTF-8 has the word: half of a surrogate pair is no character."""
    with suppress(UnicodeEncodeError):
        return bool(word.encode()) or not word
    return False


def filled(words: list[str], values: dict[str, str]) -> list[str]:
    """Return the words with placeholders replaced; a value that looks like a
    placeholder stays as it is.
    """
    placeholders = re.compile("|".join(map(re.escape, values)))
    return [placeholders.sub(lambda match: values[match[0]], word) for word in words]


def size_text(size: float) -> str:
    """Return an input size with all of its digits: ``10000000``, ``0.5``."""
    return str(int(size)) if size == int(size) else repr(size)


#: Seconds that monitors of nodes have to notice the end of the run.
_PATIENCE: Final = 30.0
#: What the exit code of a step that ran too long is, as timeout(1) has it.
TIMED_OUT: Final = 124


class _Ended(msgspec.Struct):
    """How a step ended. ``is_late``: it took too long; ``left``: names of processes
    that it left, ended by now.
    """

    code: int
    output: Path
    is_late: bool = False
    survivors: list[str] = msgspec.field(default_factory=list)


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
                    end_step(monitor)
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
            end_step(monitor)
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
