"""The monitor of one node: samples the tree of the NodeManager and sends it to the collector.

What cannot be sent waits on disk and is sent later, oldest first. The monitor ends with
the run that it belongs to, with the NodeManager, after its time to live, or by a
signal; no process of it stays.
"""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
import psutil

from cmsspark.apps.monitor.processes.collector import (
    BATCHES,
    BOOT,
    SENT_MS,
    Batch,
    Stored,
    boot_id,
    check_token,
)
from cmsspark.apps.monitor.processes.sampler import YARN_NODE_MANAGER, TreeSampler, find_role
from cmsspark.base import dates
from cmsspark.base.errors import InputMissing, NotAllowed, NotReady, UsageError
from cmsspark.base.private_folders import make_private
from cmsspark.base.sockets import ConnectionLost
from cmsspark.settings.http_client import HttpAddress, HttpClient, HttpTimeouts
from cmsspark.settings.secrets import safe_text
from cmsspark.store.process_samples import DONE, RUNNING, LogEntry, ProcessSample, WatchedRun

#: Bytes that wait on disk at most; of more, the oldest are deleted, and counted.
MOST_BUFFERED: Final = 200_000_000
#: Seconds that the last batches are tried to be sent at the end.
_LAST_SECONDS: Final = 10.0
#: Seconds after a failed sending in which none is tried.
_PAUSE: Final = 5.0
#: Samples of a request at most: with command lines of 4,000 characters of four bytes it
#: is smaller than what is taken.
_MOST_SAMPLES: Final = 400


class CollectorServer(HttpAddress, frozen=True, kw_only=True):
    """Where the collector is, and its token."""

    token: str


def collector_server(url: str, token: str, ca: Path | None = None) -> CollectorServer:
    """Return the server of ``http[s]://HOST:PORT``.

    Raises UsageError (2) for anything else, SettingsError (78) for a token that no header carries.
    """
    check_token(token)
    try:
        server = CollectorServer.from_url(url, token=token, authorization=f"Bearer {token}", ca=ca)
    except ValueError:
        server = None
    if server is None or server.path.strip("/"):
        raise UsageError("--collector is http://HOST:PORT or https://HOST:PORT", found=repr(url))
    return server


class Buffer(msgspec.Struct):
    """Batches in files of a private folder, in the order of their numbers."""

    folder: Path
    dropped: int = 0
    most_bytes: int = MOST_BUFFERED
    _next: int = 0

    def __post_init__(self) -> None:
        make_private(self.folder)
        numbers = [int(file.stem) for file in self.files()]
        self._next = max(numbers, default=0) + 1

    def files(self) -> list[Path]:
        """Return the files that wait, the oldest first."""
        return sorted(
            file for file in self.folder.glob("*.json") if re.fullmatch(r"\d{10}", file.stem)
        )

    def add(self, batch: Batch) -> None:
        """Keep a batch; the oldest are deleted where there is no room."""
        aside = self.folder / ".new"
        aside.write_bytes(msgspec.json.encode(batch))
        aside.replace(self.folder / f"{self._next:010}.json")
        self._next += 1
        files = self.files()
        sizes = [file.stat().st_size for file in files]
        while len(files) > 1 and sum(sizes) > self.most_bytes:
            files.pop(0).unlink(missing_ok=True)
            sizes.pop(0)
            self.dropped += 1


class Sender(msgspec.Struct):
    """Sends what waits in a buffer."""

    client: HttpClient
    buffer: Buffer
    log: Callable[[str], None]
    token: str = ""
    status: str = ""
    #: When the collector answered last, by a clock that does not jump.
    answered: float = msgspec.field(default_factory=time.monotonic)
    _again: float = 0.0
    _logged: str = ""

    def send(self, *, at_once: bool = False) -> bool:
        """Send all that waits; False where some is left. Raises NotAllowed (77) where
        the token is refused.
        """
        if time.monotonic() < self._again and not at_once:
            return False
        for file in self.buffer.files():
            reason = self._send(file)
            if reason is not None:
                self._again = time.monotonic() + _PAUSE
                if reason != self._logged:
                    self.log(f"kept for later, {len(self.buffer.files())} batches wait: {reason}")
                self._logged = reason
                return False
            file.unlink(missing_ok=True)
        if self._logged:
            self.log("the collector answers again")
        self._logged, self._again = "", 0.0
        return True

    def _send(self, file: Path) -> str | None:
        """Send one batch; why it failed, or None."""
        try:
            self.client.connected()
            headers = {
                "Content-Type": "application/json",
                SENT_MS: str(dates.now_ms()),
                BOOT: boot_id(),
            }
            answer = self.client.exchange("POST", BATCHES, headers, file.read_bytes(), 10_000)
        except ConnectionLost as error:
            return error.reason
        self.answered = time.monotonic()
        if answer.status == 401:
            raise NotAllowed(
                "the collector refuses the token",
                next_step="compare the token files of the node and the collector",
            )
        if answer.status in (400, 413):
            # It will never be taken: another version, damaged, or too large. It must
            # not hold up those after it.
            self.log(
                f"a batch was refused and left out: {answer.body[:200].decode(errors='replace')}"
            )
            return None
        if not answer.is_success:
            text = safe_text(answer.body.decode(errors="replace"), self.token, limit=150)
            return f"the collector answered {answer.status}: {text}"
        with suppress(msgspec.DecodeError):
            self.status = msgspec.json.decode(answer.body, type=Stored).status
        return None


@dataclass
class NodeMonitor:
    """Watches the tree of ``pid``. ``run``: the run that it belongs to, else one of its
    own; ``patience``: seconds without an answer after which the run counts as ended, as
    its collector may have been killed with it.
    """

    pid: int
    sender: Sender
    run: str | None
    ttl: float
    interval: float = 10.0
    patience: float = 600.0
    #: The name of this node, that of the host by default.
    name: str | None = None
    _is_stopped: bool = False
    _sampler: TreeSampler = field(init=False)

    def watch(self) -> str:
        """Watch until there is a reason to end, which is returned."""
        run_id = self.run or f"node-{dates.new_run_id()}"
        name = self.name or socket.gethostname()
        self._sampler = TreeSampler(run_id, [self.pid], left_out=[os.getpid()], host=name)
        row = WatchedRun(
            run_id,
            dates.now_ms(),
            self._sampler.host,
            "node",
            root_pid=0 if self.run else self.pid,
        )
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            raise InputMissing(
                "the process to watch does not exist", where=f"PID {self.pid}"
            ) from None
        end = time.monotonic() + self.ttl
        reason = ""
        with _signals(self._stop) as wake:
            while not reason:
                self._keep(row, self._sampler.sample())
                self.sender.send()
                reason = self._wait(
                    handle, wake, min(self.interval, max(0.0, end - time.monotonic())), end
                )
        os.close(handle)
        row.end_ms, row.status, row.exit_code = dates.now_ms(), DONE, 0
        self._keep(
            row, [], [LogEntry(run_id, row.end_ms, "info", f"monitor ended: {reason}", row.host)]
        )
        self._finish()
        return reason

    def _keep(
        self, row: WatchedRun, samples: list[ProcessSample], log: list[LogEntry] | None = None
    ) -> None:
        for start in range(0, max(1, len(samples)), _MOST_SAMPLES):
            self.sender.buffer.add(Batch(row, samples[start : start + _MOST_SAMPLES], log or []))

    def _stop(self) -> None:
        self._is_stopped = True

    def _wait(self, handle: int, wake: int, seconds: float, end: float) -> str:
        """Wait for the next sample; why there is none, or an empty text."""
        if self.run and self.sender.status not in ("", RUNNING):
            return f"its run has ended ({self.sender.status})"
        silent = time.monotonic() - self.sender.answered
        if self.run and silent > self.patience:
            return f"the collector has not answered for {silent:.0f} s"
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        poll.register(wake, select.POLLIN)
        events = dict(poll.poll(int(seconds * 1000)))
        if handle in events:
            return f"process {self.pid} has ended"
        if self._is_stopped:
            return "a signal"
        return "its time to live is over" if time.monotonic() >= end else ""

    def _finish(self) -> None:
        """Send the rest; what cannot be sent now waits for the next monitor of this folder."""
        end = time.monotonic() + _LAST_SECONDS
        while not self.sender.send(at_once=True) and time.monotonic() < end:
            time.sleep(0.5)
        waiting = len(self.sender.buffer.files())
        if waiting:
            raise NotReady(
                "the collector could not be reached",
                where=self.sender.buffer.folder,
                found=f"{waiting} batches wait there",
                next_step="the next monitor with the same --buffer sends them",
            )


@contextmanager
def _signals(stop: Callable[[], None]) -> Iterator[int]:
    """Have SIGTERM, SIGINT and SIGHUP call ``stop``; yields a file that can be read then."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def handle(*_: object) -> None:
        stop()
        with suppress(OSError):
            os.write(writer, b"x")

    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = [signal.signal(number, handle) for number in numbers]
    try:
        yield reader
    finally:
        for number, old in zip(numbers, before, strict=True):
            signal.signal(number, old)
        os.close(reader)
        os.close(writer)


def sender_to(server: CollectorServer, folder: Path, log: Callable[[str], None]) -> Sender:
    """Return a sender with its buffer in ``folder``."""
    return Sender(
        HttpClient(server, HttpTimeouts(connect=3.0, move=10.0, whole=20.0)),
        Buffer(folder),
        log,
        server.token,
    )


def find_node_manager() -> int:
    """Return the PID of this host's NodeManager. Raises InputMissing (66) for none,
    UsageError (2) for several.
    """
    pids = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            words = process.cmdline()
            if find_role(process.name(), words, None) == YARN_NODE_MANAGER:
                pids.append(int(process.pid))
    if not pids:
        raise InputMissing(
            "this account sees no NodeManager on this host",
            next_step="start the monitor as the user of the NodeManager, or name its process with --pid",
        )
    if len(pids) > 1:
        raise UsageError(
            "this host has several NodeManagers",
            found=f"processes {', '.join(map(str, pids))}",
            next_step="name one with --pid",
        )
    return pids[0]
