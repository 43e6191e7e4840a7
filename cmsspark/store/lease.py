"""A lease in the store: of several processes, on whatever hosts, one works on a day, and a dead one holds nothing.

``FOUT/.leases/<job>/<day>/`` holds numbered files; the highest is the one that counts. Taking the lease is making
the next number, which the file system grants to one only; its holder writes it anew while it works and marks it when
it is done. The highest number is never deleted, so that who looked too early finds out. A holder on this system is
asked for by its process, one elsewhere by its clock: it holds until ``expires_ms``.
"""

from __future__ import annotations

import json
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from cmsspark import clock
from cmsspark.errors import CmssparkError, NotReady
from cmsspark.periods import Interval
from cmsspark.storage import Entry, Files, join
from cmsspark.store import process_identity

#: Seconds that a lease holds without being renewed; clocks of hosts differ by less.
TTL_S: Final = 180.0
_NAME: Final = re.compile(r"(\d{8})\.json", re.ASCII)


def day_folder(fout: str, job: str, day: Interval) -> str:
    """Location of the lease of a job's day or period."""
    return join(fout, ".leases", job, day.isoformat())


@dataclass
class Lease:
    """The lease in ``folder``; ``what`` names for people what it is for. ``now`` is the time in seconds since 1970."""

    files: Files
    folder: str
    what: str
    ttl_s: float = TTL_S
    now: Callable[[], float] = time.time
    process: dict[str, Any] = field(default_factory=process_identity.identity)
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    _number: int = 0
    _since_ms: int = 0

    def take(self) -> None:
        """Take the lease. Raises NotReady (75) that names its holder, OutputError (73) where it cannot be written."""
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
                # Others took it and let it go since we looked: the number was free, the lease perhaps is not.
                self.files.delete(self._path(before + 1))
                continue
            self._number = before + 1
            self._forget(entries)
            return
        raise NotReady(f"many processes ask for {self.what} at once", where=self.folder, next_step="run it again")

    def renew(self) -> None:
        """Hold it for another while. Raises NotReady (75) where another process took it."""
        self.check()
        self.files.write_bytes(self._path(self._number), self._content())

    def check(self) -> None:
        """Raises NotReady (75) where another process took the lease: what was made here must not count."""
        newest = max(self._entries(), default=0)
        if newest != self._number:
            raise NotReady(
                f"{self.what} was taken over by another process, as this one had not renewed its lease in time",
                where=self.folder,
                next_step="see that clocks are right and the file system answers; the other run goes on",
            )

    def release(self) -> None:
        """Let it go. What cannot be written is no error: a dead process's lease ends by itself."""
        with suppress(CmssparkError):
            if max(self._entries(), default=0) == self._number:
                self.files.write_bytes(self._path(self._number), self._content(released=True))

    def _refuse_if_held(self, entry: Entry) -> None:
        told = _read(self.files, entry)
        if told is None:
            # Nothing of ours, or gone since: as old as its file says.
            told = {"expires_ms": entry.mtime_ms + int(self.ttl_s * 1000)}
        alive = process_identity.lives(told)
        is_expired = told.get("expires_ms", 0) <= self._now_ms()
        if told.get("released") or alive is False or (alive is None and is_expired):
            return
        since = told.get("since_ms", entry.mtime_ms)
        until = "while it lives" if alive else f"until {clock.to_second(told['expires_ms'])} UTC unless it is renewed"
        raise NotReady(
            f"{self.what} is being worked on by another process",
            where=self.folder,
            found=f"{process_identity.named(told)}, since {clock.to_second(since)} UTC, {until}",
            next_step="run it again when that one has ended",
        )

    def _entries(self) -> dict[int, Entry]:
        if self.files.stat(self.folder) is None:
            return {}
        found = ((_NAME.fullmatch(entry.name), entry) for entry in self.files.list_dir(self.folder))
        return {int(match[1]): entry for match, entry in found if match}

    def _forget(self, entries: dict[int, Entry]) -> None:
        for number, entry in entries.items():
            if number < self._number:
                with suppress(CmssparkError):
                    self.files.delete(entry.path)

    def _path(self, number: int) -> str:
        return join(self.folder, f"{number:08d}.json")

    def _content(self, *, released: bool = False) -> bytes:
        told = {
            **self.process,
            "token": self.token,
            "what": self.what,
            "since_ms": self._since_ms,
            "expires_ms": self._now_ms() + int(self.ttl_s * 1000),
            "released": released,
        }
        return json.dumps(told).encode()

    def _now_ms(self) -> int:
        return int(self.now() * 1000)


@contextmanager
def held(files: Files, folder: str, what: str, ttl_s: float = TTL_S) -> Iterator[Lease]:
    """The lease, held and renewed by a thread until the end of the block.

    Raises NotReady (75) that names the holder. Call :meth:`Lease.check` before anything is made to count.
    """
    lease = Lease(files, folder, what, ttl_s)
    lease.take()
    done = threading.Event()

    def keep() -> None:
        # One failure is not the end: two more tries fit into the time, and `check` has the last word.
        while not done.wait(ttl_s / 3):
            with suppress(Exception):
                lease.renew()

    thread = threading.Thread(target=keep, name=f"lease of {what}", daemon=True)
    thread.start()
    try:
        yield lease
    finally:
        done.set()
        thread.join(timeout=ttl_s / 3)
        lease.release()


def _read(files: Files, entry: Entry) -> dict[str, Any] | None:
    try:
        told = json.loads(files.read_bytes(entry.path))
    except (CmssparkError, ValueError):
        return None
    return told if isinstance(told, dict) and isinstance(told.get("expires_ms"), int) else None
