"""Runs a command and brings back the job's own exit code.

In client mode spark-submit passes the code on. In cluster mode it only knows "failed":
the code is in the application's final report, which it prints, and the reason in the
logs of its containers. Spark ties a job's stderr to its stdout; ``CMSSPARK_STDERR``
names a way back to the real one, which ``launch.py`` takes.
"""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Final, NoReturn

from msgspec.structs import replace

from cmsspark.apps.monitor import spark_watch
from cmsspark.base.errors import CmssparkError, Exit, NotReady
from cmsspark.base.text.terminal import pluralize, volume
from cmsspark.filesystems.refusals import refusal, start_error
from cmsspark.submit.command import JAVA_OPTIONS, Command, with_env
from cmsspark.submit.host import write_note
from cmsspark.submit.kubernetes import RunSecret, kubernetes_refusal
from cmsspark.submit.yarn import (
    MARK,
    Application,
    active_nodes,
    collects_logs,
    diagnostics,
    executors_failed,
    fetch_logs,
    granted_executors,
    kill,
    last_error,
    master_log,
    master_page,
    queue_use,
)

if TYPE_CHECKING:
    from cmsspark.apps.monitor.processes import watch as processes_watch
    from cmsspark.apps.monitor.spark_watch import RunMeasure


# Signals to ``run_spark`` are those of what it runs: a child and all processes below
# it.


class Forward:
    """Hands SIGTERM and SIGHUP on to a child and all below it; Ctrl-C reaches them by itself."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self._child: subprocess.Popen[bytes] | None = None

    def note(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        self.received.append(number)
        self._send(number)

    def to(self, child: subprocess.Popen[bytes]) -> None:
        """Name the child; it gets what came while it started."""
        self._child = child
        for number in self.received:
            self._send(number)

    def _send(self, number: int) -> None:
        if self._child is not None and number != signal.SIGINT:
            for pid in [*descendants(self._child.pid), self._child.pid]:
                with_signal(pid, number)


@contextmanager
def forwarding() -> Iterator[Forward]:
    """Handle signals from before a child starts to its end: one that came between would
    end this process alone.
    """
    forward = Forward()
    # What is ignored stays so: `nohup run_spark` outlives its terminal.
    numbers = [
        number
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) != signal.SIG_IGN
    ]
    before = [signal.signal(number, forward.note) for number in numbers]
    try:
        yield forward
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def with_signal(pid: int, number: int) -> None:
    """Send a signal to a process that may be gone already."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def descendants(pid: int) -> list[int]:
    """Return the processes below ``pid``: the driver's Python and its workers."""
    import psutil  # only runs that are ended need it

    with suppress(psutil.NoSuchProcess):
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    return []


#: Lines that a JVM writes at its start about Spark's own options.
NOISE: Final = (
    b"WARNING: Using incubator modules:",
    b"WARNING: package sun.security.action not in java.base",
)
#: How the report of Ivy begins and ends, which looks for what --avro and --packages
#: need. Where it does not find that, spark-submit ends.
_IVY_STARTS: Final = (b":: loading settings ::", b"Ivy Default Cache set to")
_IVY_END: Final = re.compile(rb"\t\d+ artifacts copied")
#: How a JVM tells of the error that ends it, the lines of such a trace, and a frame of
#: spark-submit: what it was refused, and an application's own error, are told in our words.
_FATAL: Final = b'Exception in thread "main" '
_TRACE: Final = (b"Caused by: ", b"\tat ", b"\t... ", b"\tSuppressed: ")
_OF_SUBMIT: Final = b"\tat org.apache.spark.deploy."
_MARK_BYTES: Final = MARK.encode()
_LOG_YARN: Final = (
    f"-Dcmsspark.yarn.level=info -Dcmsspark.yarn.mark={MARK}"
    " -Dcmsspark.yarn.tasks=.*(Cannot.run.program|ModuleNotFoundError|PACKAGE_NOT_INSTALLED).*"
)
#: Exit codes that say only that something failed.
_VAGUE_CODES: Final = (1, Exit.BUG)
#: Those with which a JVM of Spark ends itself. A job may end with one, too.
_JVM_CODES: Final = range(50, 57)
#: What a shell, and Spark for the driver's Python, adds to the signal that ended a process.
_BY_SIGNAL: Final = 128
#: Seconds after which the log of the master is read, from when it runs and then each
#: from the one before. A job may ask for executors minutes after it began. Two that fail
#: one after the other are seen before Spark gives up after the third.
LOOKS_S: Final = (20.0, *(15.0,) * 40, *(60.0,) * 20)
#: Seconds that the start of spark-submit and the sending of files may take at least.
_SUBMIT_S: Final = 300.0
#: Seconds after which it is said why YARN has not started an application.
_WORD_S: Final = 30.0
#: Seconds between further looks at an application that has had no executor.
_REST_S: Final = 60.0
#: Containers that may fail for a reason while others run.
_BAD_NODES: Final = 3
_TAIL_LETTERS: Final = 65_536
#: The end of a line that is looked at. A refusal by Kubernetes takes some 2,000 bytes.
_LINE_BYTES: Final = 8_192
_STATUS: Final = re.compile(rb"User application exited with (?:status )?(\d+)")
#: How spark-submit, or its Java, tells that it failed itself, and not the job or the
#: application.
_SUBMIT_SAID: Final = re.compile(
    r'^(?:Exception in thread "main" (?!\S*(?:SparkUserAppException|SparkException: Application))'
    r"|Error occurred during initialization of (?:VM|boot layer)\n"
    r"|(?=.*\nError: Could not create the Java Virtual Machine))(\S.*)",
    re.MULTILINE,
)
_UNRESOLVED: Final = re.compile(rb"(?:unresolved dependency|download failed): ([^\s\]!]+?)[:!]")


def run(
    command: Command,
    environ: Mapping[str, str],
    watch_tree: Callable[[int], processes_watch.Watch | None] | None = None,
    measure: RunMeasure | None = None,
) -> int:
    """Run the command to its end and return its exit code; an interrupted one is 75.

    ``watch_tree`` starts to watch the processes below a PID; ``measure`` stores what the run used.
    """
    if measure is not None:
        command = _measured(command, environ, measure)
    if command.mode == "python":
        if watch_tree is not None:
            watch_tree(os.getpid())
        _become(command)
    reader, writer = os.pipe()
    application = Application(write_note) if command.is_on_yarn else None
    command = _with_channels(command, environ, 2 if sys.stderr.isatty() else writer)
    if command.mode == "cluster":
        # Spark would put this host's paths before what travels with the job.
        environ = {name: value for name, value in environ.items() if name != "PYTHONPATH"}
    sys.stdout.flush()
    with (
        forwarding() as forward,
        RunSecret(command, environ),
        subprocess.Popen(command.argv, env={**environ, **command.env}, stderr=writer) as child,
    ):
        forward.to(child)
        tree = watch_tree(child.pid) if watch_tree is not None else None
        if measure is not None:
            measure.started(child.pid)
        # Who asks for details wants Ivy's, too.
        java_options = (
            f"{command.env.get('SPARK_SUBMIT_OPTS')} {command.options.get(JAVA_OPTIONS)}"
        )
        is_detailed = "-Dcmsspark.loglevel" in java_options
        watch = Watch(
            reader,
            2,
            application,
            measure.line if measure is not None else None,
            has_ivy=bool(command.options.get("spark.jars.packages")) and not is_detailed,
            has_job=command.mode != "cluster",
            has_traces=is_detailed,
        )
        watchdog = (
            None
            if application is None
            else _Watchdog(application, {**environ, **command.env}, command.start_within)
        )
        outcome = _wait(child, watchdog)
        if application is not None and isinstance(outcome, CmssparkError):
            _end_application(child, application, command, environ)
    code = outcome if isinstance(outcome, int) else int(outcome.exit_code)
    os.close(writer)
    if tree is not None:
        tree.end(code)
    watch.join(2)
    if measure is not None:
        measure.ended(code, application.id if application else None)
        for text in measure.ending_lines():
            write_note(text)
    if isinstance(outcome, CmssparkError):
        write_note(outcome.text())
        return code
    if forward.received:
        write_note(_interrupted(command, application))
        return int(Exit.NOT_READY)
    return _final_code(code, command, environ, application, watch)


def _final_code(
    code: int,
    command: Command,
    environ: Mapping[str, str],
    application: Application | None,
    watch: Watch,
) -> int:
    """Return the exit code of a run whose spark-submit ended with ``code``, and write why
    it is another one.
    """
    is_there = command.mode == "cluster"
    if (error := _signal_error(code, "spark-submit" if is_there else "the driver")) is not None:
        write_note(error.text())
        if is_there:
            write_note(_interrupted(command, application))
        return int(error.exit_code)
    if code != 0 and watch.unresolved:
        _show_unresolved(watch.unresolved)
        return int(Exit.SETTINGS)
    if code != 0 and watch.is_in_ivy:
        sys.stderr.write("\n".join(watch.tail.splitlines()[-20:]) + "\n")
    if application is not None and command.mode == "cluster":
        return _end_on_yarn(application, command, environ, code, watch)
    if code in _VAGUE_CODES or code in _JVM_CODES:
        reason = None
        if application is not None:
            reason = refusal(f"{application.diagnostics}\n{watch.tail}")
        elif command.is_on_kubernetes:
            reason = kubernetes_refusal(watch.tail, command.options.get("spark.master") or "")
        elif code in _JVM_CODES:
            reason = refusal(watch.tail)
        reason = reason or _submit_failure(watch.tail)
        if reason is not None:
            write_note(reason.text())
            return int(reason.exit_code)
    if (
        application is not None
        and application.id
        and application.failed
        and (code in (Exit.NOT_READY, Exit.SETTINGS) or application.is_gone)
    ):
        # The driver only saw that the application ended. YARN knows who ended it, or else
        # the container why: what a setting causes comes again.
        text = diagnostics({**environ, **command.env}, application.id)
        reason = refusal(text)
        if reason is None:
            reason = _show_last_error(application.id, command, environ, text, application.failed)
            if reason is not None and reason.exit_code not in (Exit.NOT_READY, Exit.SETTINGS):
                reason = None
        if reason is not None and code in (Exit.NOT_READY, *_VAGUE_CODES):
            write_note(reason.text())
            return int(reason.exit_code)
    return watch.status if command.mode == "cluster" and code != 0 and watch.status else code


def _signal_error(code: int | None, name: str = "the driver") -> NotReady | None:
    """Return the error of a process that a signal ended: a JVM, or the driver's Python, of
    which Spark tells as a shell does; None for other ends.
    """
    number = 0 if code is None else -code if code < 0 else code - _BY_SIGNAL
    if number not in [*signal.Signals]:
        return None
    return NotReady(
        f"{name} was ended from outside",
        found=signal.Signals(number).name,
        next_step="check whether memory ran out (the kernel's log says so: dmesg), or ask who "
        "ended it; then run it again",
    )


def _submit_failure(text: str) -> CmssparkError | None:
    """Return the error of a spark-submit that failed before a job began; None where it
    did not fail itself.
    """
    messages = _SUBMIT_SAID.findall(text)
    return start_error(messages[-1][:300]) if messages else None


def _measured(command: Command, environ: Mapping[str, str], measure: RunMeasure) -> Command:
    """Return the command with the environment, and in cluster mode the option, that
    name its measurement.
    """
    command = with_env(command, **measure.environment({**environ, **command.env}))
    if command.mode != "cluster":
        return command
    # The environment does not reach a driver on another host: its event log names the
    # run by an option.
    option = f"{spark_watch.OPTION}={measure.metrics.run}"
    return replace(command, argv=[command.argv[0], "--conf", option, *command.argv[1:]])


def _with_channels(command: Command, environ: Mapping[str, str], descriptor: int) -> Command:
    """Return the command with a path to our stderr for the job and, on YARN, with
    marked lines of Spark's client.
    """
    command = with_env(command, CMSSPARK_STDERR=f"/proc/{os.getpid()}/fd/{descriptor}")
    if not command.is_on_yarn:
        return command
    own_options = command.env.get("SPARK_SUBMIT_OPTS") or environ.get("SPARK_SUBMIT_OPTS") or ""
    return with_env(command, SPARK_SUBMIT_OPTS=f"{_LOG_YARN} {own_options}".strip())


def _wait(child: subprocess.Popen[bytes], watchdog: _Watchdog | None) -> int | CmssparkError:
    """Return the child's exit code, or what its application waits for in vain."""
    while watchdog is not None:
        try:
            return child.wait(1)
        except subprocess.TimeoutExpired:
            if (reason := watchdog.look()) is not None:
                return reason
    return child.wait()


class _Watchdog:
    """Follows an application on YARN from its submission: says what it waits for, its start
    and then its first executor, once for each reason, and finds what it waits for in vain.
    """

    def __init__(
        self, application: Application, environ: Mapping[str, str], patience_s: float
    ) -> None:
        self.application, self.environ, self.patience_s = application, environ, patience_s
        self._began = self._next_look = time.monotonic()
        #: Since when it waits; None where it does not, or is not known to.
        self._since: float | None = None
        self._looks: Iterator[float] | None = None
        self._has_worked = False

    def look(self) -> CmssparkError | None:
        """Return what the application waits for in vain; None where it may go on."""
        now = time.monotonic()
        if self._looks is None and self.application.has_started:
            self._since, self._looks = None, iter(LOOKS_S)
            self._next_look = now + next(self._looks)
        if self._looks is None:
            return self._look_at_start(now)
        if now <= self._next_look:
            return None
        reason = self._look_at_master(now)
        self._next_look = now + next(self._looks, math.inf if self._has_worked else _REST_S)
        if self._since is not None:
            self._next_look = min(self._next_look, self._since + self.patience_s)
        return reason

    def _look_at_start(self, now: float) -> CmssparkError | None:
        if self.application.id is None:
            # What travels with the job is being sent, or a server does not answer.
            seconds = max(self.patience_s, _SUBMIT_S)
            is_late = now > self._began + seconds
            return self._too_late("was sent no application", seconds=seconds) if is_late else None
        if self._since is None:
            self._since, self._next_look = now, now + _WORD_S
        if self._is_late(now):
            nodes = active_nodes(self.environ)
            size = None if nodes is None else f"the cluster has {pluralize(nodes, 'active node')}"
            return self._too_late("did not start the application", size)
        if now > self._next_look:
            self._next_look = now + _WORD_S
            text = diagnostics(self.environ, self.application.id)
            # Without the time: [Sat Nov 28 14:10:00 +0000 2026] …
            if words := (text.partition("] ")[2] or text).split():
                self._note_wait(f"YARN: {' '.join(words)[:300]}")
        return None

    def _look_at_master(self, now: float) -> CmssparkError | None:
        if self.application.id is None:
            return None
        # Other words of a master that runs may be of a task that is tried again.
        log = master_log(self.environ, self.application.id)
        executors = granted_executors(self.environ, self.application.id)
        reason = refusal(log, only_lasting=True)
        # Where an executor runs, one bad node among good ones is no reason to end it.
        if reason is not None and (
            executors.running <= 0 or log.count(str(reason.found)[:60]) > _BAD_NODES
        ):
            return reason
        self._has_worked |= executors.running > 0
        if self._has_worked or not executors.awaited_bytes:
            self._since = None
        elif self._since is None:
            self._since = now
        else:
            demand = f"it asks for {volume(executors.awaited_bytes)}{queue_use(self.environ, executors.queue)}"
            if self._is_late(now):
                return self._too_late("gave the application no executor", demand)
            self._note_wait("an executor", f": {demand}")
        return None

    def _is_late(self, now: float) -> bool:
        return self._since is not None and now > self._since + self.patience_s

    def _too_late(
        self, problem: str, room_text: str | None = None, seconds: float | None = None
    ) -> NotReady:
        return NotReady(
            f"YARN {problem} within {seconds or self.patience_s:.0f} s",
            where=self.application.page,
            found=room_text,
            next_step="run it again later, or with another --queue, or let it wait longer with --start-within",
        )

    def _note_wait(self, reason: str, details: str = "") -> None:
        if reason != self.application.wait_reason:
            self.application.wait_reason = reason
            write_note(f"{self.application.id} waits for {reason}{details}")


def _end_application(
    child: subprocess.Popen[bytes],
    application: Application,
    command: Command,
    environ: Mapping[str, str],
) -> None:
    """End an application and its driver here."""
    if application.id and not kill(application.id, command.argv[0], {**environ, **command.env}):
        write_note(
            f"  {application.id} could not be ended: yarn application -kill {application.id}"
        )
    for pid in [*descendants(child.pid), child.pid]:
        with_signal(pid, signal.SIGTERM)


def _interrupted(command: Command, application: Application | None) -> str:
    if command.mode == "cluster" and application is not None and application.id:
        return (
            f"interrupted here; it goes on there: yarn application -kill {application.id} ends it"
        )
    return "interrupted; run the same command again to finish"


def _end_on_yarn(
    application: Application,
    command: Command,
    environ: Mapping[str, str],
    code: int,
    watch: Watch,
) -> int:
    """Print how an application in cluster mode ended, with what refused it, or else the
    last error of the container that failed.
    """
    job_code = watch.status or application.job_code
    # Spark's client marks the ends of lines.
    diagnostics_text = application.diagnostics.replace(" | ", "\n")
    reason = (
        refusal(f"{diagnostics_text}\n{watch.tail}")
        if code != 0 and job_code in (None, *_VAGUE_CODES)
        else None
    )
    if application.id is None or application.state is None:
        if code in _VAGUE_CODES and job_code is None:
            reason = reason or _submit_failure(watch.tail)
        if reason is not None:
            # The client refused it, or YARN did: there are no logs.
            write_note(reason.text())
            return int(reason.exit_code)
        if application.id is None:
            return watch.status or code
    if code == 0:
        write_note(
            f"{application.id} {'succeeded' if application.state == 'FINISHED' else 'is on its way'}"
        )
        return 0
    # What follows the first line is the end of a container's log, with traces.
    reason_text = diagnostics_text.partition("\n")[0][:300] or "no reason is given"
    write_note(f"{application.id} ended as {application.state}: {reason_text}")
    # What is known needs no look at the logs, which takes a JVM and the nodes' hand-over.
    if reason is None:
        refused = _show_last_error(application.id, command, environ, diagnostics_text)
        reason = refused if job_code in (None, *_VAGUE_CODES) else _signal_error(job_code)
    if reason is not None:
        write_note(reason.text())
        return int(reason.exit_code)
    return watch.status or application.exit_code()


def _show_last_error(
    application: str,
    command: Command,
    environ: Mapping[str, str],
    diagnostics_text: str,
    container: str = "",
) -> CmssparkError | None:
    """Show the last error of the container that failed: of ``container`` where its name
    is known. Return what refused it, or kept all executors from their start; None where
    nothing known did.
    """
    environ = {**environ, **command.env}
    logs = fetch_logs(application, command.argv[0], environ)
    name, error = last_error({container: logs[container]} if container in logs else logs)
    if error:
        sys.stderr.write(f"{name} wrote:\n  " + error.replace("\n", "\n  ") + "\n")
    page = None if collects_logs(environ) else master_page(environ, application)
    write_note(f"all it wrote: {page or f'yarn logs -applicationId {application}'}")
    stderr = logs.get(name, {}).get("stderr", "")
    if (reason := refusal(error) or refusal(stderr, only_lasting=True)) is not None:
        return reason
    is_start = bool(error) and executors_failed(diagnostics_text, logs)
    return start_error(error[:300], "an executor of Spark") if is_start else None


def _show_unresolved(artifact: str) -> None:
    sys.stderr.write(
        f"run_spark: no Maven repository gave {artifact}\n"
        "  next: put the jar into a folder that `jars` in the settings names (--avro looks there first), or name\n"
        "        a mirror with --repositories; or go without: our own jobs read Avro with no jar\n"
    )


def _become(command: Command) -> NoReturn:
    """Run a job without Spark in this process: another Python would import again what
    is here already.
    """
    # Not above: `python -m` of a module that its package imports warns.
    from cmsspark.submit import launch

    os.environ.update(command.env)
    sys.argv[1:] = command.argv[3:]
    launch.main()


class Watch(threading.Thread):
    """Copies a child's stderr line by line, without the noise; keeps the exit status
    and missing jar that it names.
    """

    def __init__(
        self,
        source: int,
        target: int,
        application: Application | None = None,
        log_line: Callable[[str], None] | None = None,
        *,
        has_ivy: bool = False,
        has_job: bool = True,
        has_traces: bool = False,
    ) -> None:
        super().__init__(daemon=True)
        #: Whether it reports on packages, or ended with that.
        self._has_ivy, self.is_in_ivy = has_ivy, False
        #: The trace of a JVM's end, as far as it has come.
        self._has_job, self._has_traces, self._trace = has_job, has_traces, b""
        self.source, self.target, self.application, self.log_line = (
            source,
            target,
            application,
            log_line,
        )
        self.status: int | None = None
        self.unresolved: str | None = None
        #: The end of all that it wrote.
        self.tail = ""
        self._line = b""
        self.start()

    def run(self) -> None:
        pending = b""
        while chunk := self._read():
            pending = self._pass(pending + chunk)
        self._end_trace()
        self._write(pending)
        os.close(self.source)

    def _read(self) -> bytes:
        try:
            return os.read(self.source, 65536)
        except OSError:
            return b""

    def _pass(self, data: bytes) -> bytes:
        """Write what is no noise; return the start of a line that may still turn out to be."""
        lines = data.splitlines(keepends=True)
        for position, line in enumerate(lines):
            is_last = position == len(lines) - 1 and not line.endswith(b"\n")
            if is_last and (
                self.is_in_ivy
                or self._trace
                or any(
                    noise.startswith(line) or line.startswith(noise) for noise in self._hidden()
                )
            ):
                return line
            if self._is_of_ivy(line) or self._is_of_trace(line):
                self._note(line)
                continue
            if self.application and line.startswith(_MARK_BYTES):
                self._note(line)
                self.application.hear(line[len(_MARK_BYTES) :].decode(errors="replace").strip())
            elif not line.startswith(self._hidden()):
                self._note(line)
                self._write(line)
            elif not self._has_job:
                self._note(line)
        return b""

    def _is_of_ivy(self, line: bytes) -> bool:
        """Return whether a line is of Ivy's report, or of the error that it ends in."""
        was_in_ivy = self.is_in_ivy
        if self._has_ivy and line.startswith(_IVY_STARTS):
            self.is_in_ivy = True
        elif was_in_ivy and _IVY_END.match(line):
            self.is_in_ivy = False
        return self.is_in_ivy or was_in_ivy

    def _is_of_trace(self, line: bytes) -> bool:
        """Return whether a line is held back, as of the trace with which a JVM ends."""
        if not self._has_traces and line.startswith(_FATAL):
            self._end_trace()
            self._trace = line
            return True
        # A message may have several lines.
        is_message = b"\n\tat " not in self._trace and len(self._trace) < _LINE_BYTES
        if self._trace and (is_message or line.startswith(_TRACE)):
            self._trace += line
            return True
        self._end_trace()
        return False

    def _end_trace(self) -> None:
        """Write a trace that is held back, unless it is spark-submit's own."""
        if self._has_job and _OF_SUBMIT not in self._trace:
            self._write(self._trace)
        self._trace = b""

    def _hidden(self) -> tuple[bytes, ...]:
        ivy = _IVY_STARTS if self._has_ivy else ()
        mark = (_MARK_BYTES,) if self.application else ()
        # Where no job runs here, each trace is of what is refused.
        traces = () if self._has_traces else (_FATAL, *(() if self._has_job else _TRACE))
        return (*NOISE, *ivy, *mark, *traces)

    def _note(self, text: bytes) -> None:
        self._line = (self._line + text)[-_LINE_BYTES:]
        if self.application:
            self.application.overhear(self._line.decode(errors="replace"))
        codes = _STATUS.findall(self._line)
        if codes:
            self.status = int(codes[-1])
        missing = _UNRESOLVED.search(self._line)
        if missing:
            self.unresolved = missing.group(1).decode(errors="replace")
        if text.endswith(b"\n"):
            self.tail = (self.tail + self._line.decode(errors="replace"))[-_TAIL_LETTERS:]
            if self.log_line is not None:
                self.log_line(self._line.decode(errors="replace"))
            self._line = b""

    def _write(self, text: bytes) -> None:
        while text:
            try:
                text = text[os.write(self.target, text) :]
            except OSError:
                return  # stderr is closed; the job continues
