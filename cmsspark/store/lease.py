"""A lease in the store: one process at a time works on a day, on any host; a dead
process holds nothing.

``FOUT/.leases/<job>/<day>/`` holds numbered files; the highest number is the lease. A
process takes the lease when it creates the next number, which the file system lets only
one process do. The holder rewrites the file while it works and marks it when it is
done. The highest number is never deleted, so a process that listed early detects that
it lost. A holder on this system is alive while its process is; a holder elsewhere until
``expires_ms``.
"""

from __future__ import annotations

import json
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec

from cmsspark.base import dates
from cmsspark.base.errors import CmssparkError, NotReady
from cmsspark.base.periods import Interval
from cmsspark.filesystems.storage import Entry, Files, join

# The identity of a process that holds a lease or writes a run, and whether it is alive,
# if this host can know.


def identity() -> dict[str, Any]:
    """Identify this process: ``host``, ``pid``, and what tells it from another process
    with the same number.

    ``kernel`` is the running system (boot and process namespace), ``started`` the
    process's start in clock ticks since then.
    """
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "kernel": _kernel(),
        "started": start_ticks(os.getpid()),
    }


def lives(process: Mapping[str, Any]) -> bool | None:
    """Return whether that process exists; None if it runs, or ran, on another system.

    No clock is used: a stopped process is alive, and a process whose number was reused is not.
    """
    pid = process.get("pid")
    if not _kernel() or process.get("kernel") != _kernel() or not isinstance(pid, int):
        return None
    return start_ticks(pid) == process.get("started") is not None


def named(process: Mapping[str, Any]) -> str:
    """Return the process as messages name it."""
    return f"process {process.get('pid')} on {process.get('host')}"


@cache
def _kernel() -> str:
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    return ""


def start_ticks(pid: int) -> int | None:
    """Return when a process began, in clock ticks since the boot; None if it does not run.

    That is field 22 of ``/proc/PID/stat``, behind a name with any blanks and brackets.
    A zombie counts as ended.
    """
    with suppress(OSError, ValueError, IndexError):
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        fields = text[text.rindex(")") + 2 :].split()
        return None if fields[0] in ("Z", "X") else int(fields[19])
    return None


#: Seconds that a lease is valid without a renewal; clocks of hosts differ by less.
TTL_S: Final = 180.0
#: The lease of ``cmsspark daily`` as messages name it.
DAILY_WORK: Final = "the daily work"
_NAME: Final = re.compile(r"(\d{8})\.json", re.ASCII)


def lease_folder(fout: str, job: str, interval: Interval) -> str:
    """Return the location of the lease of a job's day or period."""
    return join(fout, ".leases", job, interval.isoformat())


class Lease(msgspec.Struct):
    """The lease in ``folder``; ``what`` names the work in messages. ``now`` returns
    seconds since 1970.
    """

    files: Files
    folder: str
    what: str
    ttl_s: float = TTL_S
    now: Callable[[], float] = time.time
    process: dict[str, Any] = msgspec.field(default_factory=identity)
    token: str = msgspec.field(default_factory=lambda: uuid.uuid4().hex)
    _number: int = 0
    _since_ms: int = 0

    def take(self) -> None:
        """Take the lease. Raises NotReady (75) that names its holder, OutputError (73)
        where it cannot be written.
        """
        self._since_ms = self._now_ms()
        for _ in range(10):
            entries = self._entries()
            before = max(entries, default=0)
            if before:
                self._refuse_if_held(entries[before])
            if not self.files.create(self._path(before + 1), self._content()):
                continue
            entries = self._entries()
            if max(entries) > before + 1:
                # Others took and released it in between: the number was free, the lease
                # may not be.
                self.files.delete(self._path(before + 1))
                continue
            self._number = before + 1
            for number, entry in entries.items():
                if number < self._number:
                    with suppress(CmssparkError):
                        self.files.delete(entry.path)
            return
        raise NotReady(
            f"several processes ask for {self.what} at once",
            where=self.folder,
            next_step="run it again",
        )

    def renew(self) -> None:
        """Extend the lease by ``ttl_s``. Raises NotReady (75) if another process took it."""
        self.check()
        self.files.write_bytes(self._path(self._number), self._content())

    def check(self) -> None:
        """Raise NotReady (75) if another process took the lease, or somebody removed it:
        this result must not become current.
        """
        newest = max(self._entries(), default=0)
        if not newest:
            raise NotReady(
                f"the lease of {self.what} was removed while it was held",
                where=self.folder,
                next_step="find out who removed it, and what else of the store; then run it again",
            )
        if newest != self._number:
            raise NotReady(
                f"another process took over {self.what}, because this one did not renew its lease in time",
                where=self.folder,
                next_step="check the clocks and the file system; the other run continues",
            )

    def release(self) -> None:
        """Release the lease. A failed write is no error: the lease of a dead process expires."""
        with suppress(CmssparkError):
            if max(self._entries(), default=0) == self._number:
                self.files.write_bytes(self._path(self._number), self._content(released=True))

    def _refuse_if_held(self, entry: Entry) -> None:
        holder = _read(self.files, entry)
        if holder is None:
            # Not a lease file of ours, or deleted since: its age is that of the file.
            holder = {"expires_ms": entry.mtime_ms + int(self.ttl_s * 1000)}
        alive = lives(holder)
        is_expired = holder.get("expires_ms", 0) <= self._now_ms()
        if holder.get("released") or alive is False or (alive is None and is_expired):
            return
        since = holder.get("since_ms", entry.mtime_ms)
        until = (
            ""
            if alive
            else f", until {dates.to_second(holder['expires_ms'])} UTC unless it is renewed"
        )
        raise NotReady(
            "another cmsspark daily is running"
            if self.what == DAILY_WORK
            else f"another process is working on {self.what}",
            where=self.folder,
            found=f"{named(holder)}, running since {dates.to_second(since)} UTC{until}",
            next_step="run it again after that process has ended",
        )

    def _entries(self) -> dict[int, Entry]:
        if self.files.stat(self.folder) is None:
            return {}
        matches = (
            (_NAME.fullmatch(entry.name), entry) for entry in self.files.list_dir(self.folder)
        )
        return {int(match[1]): entry for match, entry in matches if match}

    def _path(self, number: int) -> str:
        return join(self.folder, f"{number:08d}.json")

    def _content(self, *, released: bool = False) -> bytes:
        content = {
            **self.process,
            "token": self.token,
            "what": self.what,
            "since_ms": self._since_ms,
            "expires_ms": self._now_ms() + int(self.ttl_s * 1000),
            "released": released,
        }
        return json.dumps(content).encode()

    def _now_ms(self) -> int:
        return int(self.now() * 1000)


@contextmanager
def hold(files: Files, folder: str, label: str, ttl_s: float = TTL_S) -> Iterator[Lease]:
    """Yield the lease, which a thread renews until the end of the block.

    Raises NotReady (75) that names the holder. Call :meth:`Lease.check` before a result
    becomes current.
    """
    lease = Lease(files, folder, label, ttl_s)
    lease.take()
    done = threading.Event()

    def renew() -> None:
        # A failure is no error here: two more tries fit into the time, and `check` decides.
        while not done.wait(ttl_s / 3):
            with suppress(Exception):
                lease.renew()

    thread = threading.Thread(target=renew, name=f"lease of {label}", daemon=True)
    thread.start()
    try:
        yield lease
    finally:
        done.set()
        thread.join(timeout=ttl_s / 3)
        lease.release()


def _read(files: Files, entry: Entry) -> dict[str, Any] | None:
    try:
        holder = json.loads(files.read_bytes(entry.path))
    except (CmssparkError, ValueError):
        return None
    return (
        holder if isinstance(holder, dict) and isinstance(holder.get("expires_ms"), int) else None
    )
