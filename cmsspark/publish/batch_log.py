"""The batch log: the state of every batch of the spool, in SQLite, safe against a crash
at any moment.

One row per batch. A state is on the disk (WAL, synchronous FULL) before the step that
it announces is taken:

``READY`` → ``SENDING`` → ``ACKED``; back to ``READY`` where nothing can have been
delivered; or ``IN_DOUBT`` where the commit was written and its receipt did not arrive
(the batch is sent again, with the same ids). ``STALLED`` after too many attempts.
``SPLIT`` when a batch was cut in two to find a document that the destination rejects;
``QUARANTINED`` when that document is found. ``SUPERSEDED`` when a newer snapshot of the
day took its place.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from cmsspark.base.errors import DataError, OutputError
from cmsspark.base.private_folders import make_private
from cmsspark.store.run_history import StateDatabase

#: The name of the file in an outbox.
FILE_NAME: Final = "batches.sqlite"


class BatchState(StrEnum):
    """The states of a batch."""

    READY = "READY"
    SENDING = "SENDING"
    ACKED = "ACKED"
    IN_DOUBT = "IN_DOUBT"
    STALLED = "STALLED"
    SPLIT = "SPLIT"
    QUARANTINED = "QUARANTINED"
    SUPERSEDED = "SUPERSEDED"


#: Still to be sent.
OPEN: Final = (BatchState.READY, BatchState.SENDING, BatchState.IN_DOUBT, BatchState.STALLED)


class Batch(msgspec.Struct, frozen=True):
    """Consecutive documents in a part of the spool: byte ``offset`` and ``length``,
    ``count`` documents, their sha256.

    ``doubtful``: some attempt to send it may have been delivered.
    """

    number: int
    snapshot_no: int
    part: str
    offset: int
    length: int
    count: int
    sha256: str
    state: BatchState = BatchState.READY
    attempts: int = 0
    doubtful: bool = False


_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS batches (
    number INTEGER PRIMARY KEY, snapshot_no INTEGER NOT NULL, part TEXT NOT NULL, offset INTEGER NOT NULL,
    length INTEGER NOT NULL, count INTEGER NOT NULL, sha256 TEXT NOT NULL, state TEXT NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0, doubtful INTEGER NOT NULL DEFAULT 0, reason TEXT
);
CREATE INDEX IF NOT EXISTS batches_by_state ON batches (snapshot_no, state);
CREATE TABLE IF NOT EXISTS snapshots (snapshot_no INTEGER PRIMARY KEY);
"""
_IS_OPEN: Final = f"state IN {tuple(map(str, OPEN))}"
#: Gives batches up; what may have been delivered of them stays doubtful.
_SUPERSEDE: Final = "UPDATE batches SET doubtful = doubtful OR state IN ('SENDING', 'IN_DOUBT'), state='SUPERSEDED'"
_COLUMNS: Final = (
    "number, snapshot_no, part, offset, length, count, sha256, state, attempts, doubtful"
)


class BatchLogDamaged(DataError):
    """The file is no database, or not ours (65). The log can be rebuilt from the spool."""


class BatchLog(StateDatabase):
    """The batch log of one day of one table at one destination."""

    label = "the batch log"
    tables = _SCHEMA
    repair = "cmsspark outbox rebuild makes a new one from the spool"
    damaged = BatchLogDamaged
    other_version = BatchLogDamaged

    def add(self, snapshot_no: int, batches: Iterable[Batch]) -> None:
        """Enter a whole snapshot; it supersedes what older snapshots still had to send,
        or had refused.
        """
        with self._transaction() as db:
            db.execute(
                f"{_SUPERSEDE} WHERE snapshot_no < ? AND ({_IS_OPEN} OR state = 'QUARANTINED')",
                (snapshot_no,),
            )
            self._insert(db, batches)
            db.execute("INSERT OR IGNORE INTO snapshots VALUES (?)", (snapshot_no,))

    def replace(self, snapshot_no: int, batches: Iterable[Batch]) -> None:
        """Replace all older snapshots by this one, in one transaction: their batches
        are forgotten.
        """
        with self._transaction() as db:
            db.execute("DELETE FROM batches WHERE snapshot_no <= ?", (snapshot_no,))
            self._insert(db, batches)
            db.execute("INSERT OR IGNORE INTO snapshots VALUES (?)", (snapshot_no,))

    def _insert(self, db: sqlite3.Connection, batches: Iterable[Batch]) -> None:
        db.executemany(
            "INSERT INTO batches (snapshot_no, part, offset, length, count, sha256, state, attempts, doubtful) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                (
                    b.snapshot_no,
                    b.part,
                    b.offset,
                    b.length,
                    b.count,
                    b.sha256,
                    b.state,
                    b.attempts,
                    b.doubtful,
                )
                for b in batches
            ),
        )

    def mark(self, batch: Batch, state: BatchState, reason: str | None = None) -> None:
        """Set a batch's state, durably. A batch that was once IN_DOUBT stays doubtful."""
        with self._transaction() as db:
            db.execute(
                "UPDATE batches SET state=?, reason=?, doubtful=doubtful OR ? WHERE number=?",
                (state, reason, state == BatchState.IN_DOUBT, batch.number),
            )

    def advance(self, done: Batch | None, batch: Batch) -> None:
        """Enter in one transaction that ``done`` is confirmed and that an attempt to
        send ``batch`` begins.
        """
        with self._transaction() as db:
            if done is not None:
                db.execute(
                    "UPDATE batches SET state='ACKED', reason=NULL WHERE number=?", (done.number,)
                )
            db.execute(
                "UPDATE batches SET state='SENDING', attempts=attempts+1 WHERE number=?",
                (batch.number,),
            )

    def split(self, batch: Batch, halves: Iterable[Batch], reason: str) -> list[int]:
        """Replace ``batch`` by its ``halves``, in one transaction; returns their numbers."""
        with self._transaction() as db:
            db.execute(
                "UPDATE batches SET state='SPLIT', reason=? WHERE number=?", (reason, batch.number)
            )
            (last,) = db.execute("SELECT max(number) FROM batches").fetchone()
            self._insert(db, halves)
            return [
                number
                for (number,) in db.execute("SELECT number FROM batches WHERE number > ?", (last,))
            ]

    def reopen_quarantined(self, snapshot_no: int, numbers: Iterable[int] | None = None) -> int:
        """Make quarantined batches of a snapshot ready again, all or those of
        ``numbers``, and join what was split.

        A split batch is joined again where nothing of it was confirmed. Returns the
        number of documents reopened.
        """
        with self._transaction() as db:
            rows = db.execute(
                "SELECT number, count FROM batches WHERE snapshot_no = ? AND state = 'QUARANTINED'",
                (snapshot_no,),
            ).fetchall()
            chosen = {
                number: count
                for number, count in rows
                if numbers is None or number in set(numbers)
            }
            db.executemany(
                "UPDATE batches SET attempts=0, state=CASE WHEN doubtful THEN 'IN_DOUBT' ELSE 'READY' END "
                "WHERE number = ?",
                [(number,) for number in chosen],
            )
            if chosen:
                _join_split(db, snapshot_no)
        return sum(chosen.values())

    def recover(self) -> int:
        """Make batches that were SENDING in a crash IN_DOUBT: they may have been
        delivered. Returns how many.
        """
        with self._transaction() as db:
            return db.execute(
                "UPDATE batches SET state='IN_DOUBT', doubtful=1, reason='the publisher ended while sending' "
                "WHERE state='SENDING'"
            ).rowcount

    def release(self) -> int:
        """Make STALLED batches READY (or IN_DOUBT) again and reset attempts. Returns
        how many were STALLED.
        """
        with self._transaction() as db:
            db.execute(
                "UPDATE batches SET attempts=0 WHERE state IN ('READY', 'IN_DOUBT') AND attempts > 0"
            )
            return db.execute(
                "UPDATE batches SET state=CASE WHEN doubtful THEN 'IN_DOUBT' ELSE 'READY' END, attempts=0 "
                "WHERE state='STALLED'"
            ).rowcount

    def discard(self) -> int:
        """Give up what is still to be sent. Returns the number of batches."""
        with self._transaction() as db:
            return db.execute(f"{_SUPERSEDE}, reason='discarded' WHERE {_IS_OPEN}").rowcount

    def first(self, states: Sequence[BatchState]) -> Batch | None:
        """Return the first batch in one of ``states``."""
        marks = ",".join("?" * len(states))
        query = f"SELECT {_COLUMNS} FROM batches WHERE state IN ({marks}) ORDER BY number LIMIT 1"  # noqa: S608 -- only placeholders
        with self._guard():
            row = self._db.execute(query, states).fetchone()
        return None if row is None else _batch(row)

    def get(self, number: int) -> Batch:
        """Return the batch of that number, in its present state. Raises KeyError where
        there is none.
        """
        with self._guard():
            row = self._db.execute(
                f"SELECT {_COLUMNS} FROM batches WHERE number = ?",  # noqa: S608 -- a constant
                (number,),
            ).fetchone()
        if row is None:
            raise KeyError(number)
        return _batch(row)

    def batches(self) -> list[Batch]:
        """Return all batches in the order of sending."""
        with self._guard():
            rows = self._db.execute(f"SELECT {_COLUMNS} FROM batches ORDER BY number").fetchall()  # noqa: S608 -- a constant
        return [_batch(row) for row in rows]

    def snapshots(self) -> set[int]:
        """Return the snapshots that were entered."""
        with self._guard():
            return {row[0] for row in self._db.execute("SELECT snapshot_no FROM snapshots")}

    def counts(self, snapshot_no: int | None = None) -> dict[BatchState, tuple[int, int]]:
        """Return (batches, documents) by state, of one snapshot or of all."""
        with self._guard():
            rows = self._db.execute(
                "SELECT state, count(*), sum(count) FROM batches WHERE ? IS NULL OR snapshot_no = ? GROUP BY state",
                (snapshot_no, snapshot_no),
            ).fetchall()
        return {BatchState(state): (batches, documents) for state, batches, documents in rows}

    def reasons(self, state: BatchState) -> list[tuple[int, str]]:
        """Return (batch number, reason) of batches in ``state``."""
        with self._guard():
            return self._db.execute(
                "SELECT number, coalesce(reason, '') FROM batches WHERE state=? ORDER BY number",
                (state,),
            ).fetchall()


def _join_split(db: sqlite3.Connection, snapshot_no: int) -> None:
    """Put split batches of which nothing was confirmed together again, the largest first."""
    split = db.execute(
        "SELECT number, part, offset, offset + length FROM batches WHERE snapshot_no = ? AND state = 'SPLIT' "
        "ORDER BY number",
        (snapshot_no,),
    ).fetchall()
    pieces = "FROM batches WHERE snapshot_no = ? AND part = ? AND offset >= ? AND offset + length <= ? AND number > ?"
    for number, part, start, end in split:
        inside = (snapshot_no, part, start, end, number)
        states = db.execute(f"SELECT state, doubtful {pieces}", inside).fetchall()
        if not states or any(state not in (*OPEN, BatchState.SPLIT) for state, _ in states):
            continue  # joined as a part of a larger one, or something of it is confirmed or kept aside
        db.execute(f"DELETE {pieces}", inside)
        db.execute(
            "UPDATE batches SET doubtful = doubtful OR ?, attempts=0, "
            "state=CASE WHEN doubtful OR ? THEN 'IN_DOUBT' ELSE 'READY' END WHERE number = ?",
            (*[any(doubtful for _, doubtful in states)] * 2, number),
        )


def _batch(row: tuple[int, int, str, int, int, int, str, str, int, int]) -> Batch:
    return Batch(*row[:7], state=BatchState(row[7]), attempts=row[8], doubtful=bool(row[9]))


# The spool: a day's documents as JSON Lines parts with a manifest, on the disk before
# the first one is sent.

VERSION: Final = 1
BATCH_DOCUMENTS: Final = 500
BATCH_BYTES: Final = 4_000_000
PART_BYTES: Final = 64_000_000


class _OpenBatch(msgspec.Struct):
    offset: int
    count: int = 0
    length: int = 0
    sha: Any = msgspec.field(default_factory=hashlib.sha256)


class SpoolWriter:
    """Writes one snapshot aside. Only :meth:`finish` makes it visible; without it
    nothing was spooled.
    """

    def __init__(self, day_folder: Path, snapshot_no: int, part_bytes: int = PART_BYTES) -> None:
        self.snapshot_no = snapshot_no
        self.final = day_folder / f"g{snapshot_no:04d}"
        self.folder = day_folder / f".spooling-{snapshot_no:04d}"
        self.parts: list[dict[str, Any]] = []
        self.quarantined = 0
        self._part_bytes = part_bytes
        self._stream: BinaryIO | None = None
        self._quarantine: BinaryIO | None = None
        self._sha: Any = None
        self._batch: _OpenBatch | None = None
        with disk_errors(day_folder):
            shutil.rmtree(self.folder, ignore_errors=True)
            make_private(self.folder)

    def add(self, document: bytes) -> tuple[str, int, int]:
        """Append a document; returns its part, offset and length (without the newline)."""
        line = document + b"\n"
        with disk_errors(self._part_path):
            batch = self._batch_with_room(len(line))
            assert self._stream is not None
            self._stream.write(line)
        position = (self.parts[-1]["name"], self.parts[-1]["size"], len(document))
        self._sha.update(line)
        batch.sha.update(line)
        batch.count += 1
        batch.length += len(line)
        self.parts[-1]["size"] += len(line)
        self.parts[-1]["count"] += 1
        return position

    def quarantine(self, position: int, reason: str, row: Mapping[str, Any]) -> None:
        """Keep a row with an invalid document aside, with the reason; it is never sent."""
        path = self.folder / "quarantine.jsonl"
        text = json.dumps(
            {"row": position, "reason": reason, "values": row}, default=str, ensure_ascii=True
        )
        with disk_errors(path):
            if self._quarantine is None:
                self._quarantine = _open_private(path)
            self._quarantine.write(text.encode() + b"\n")
        self.quarantined += 1

    def finish(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Make the snapshot complete and durable under its final name; returns its manifest."""
        with disk_errors(self._part_path):
            self._end_part()
        with disk_errors(self.folder):
            if self._quarantine is not None:
                _sync_close(self._quarantine)
            complete = {
                "spool_version": VERSION,
                "snapshot": self.snapshot_no,
                "quarantined": self.quarantined,
                **manifest,
                "parts": self.parts,
            }
            with _open_private(self.folder / "manifest.json") as stream:
                stream.write(json.dumps(complete, ensure_ascii=False, allow_nan=False).encode())
                stream.flush()
                os.fsync(stream.fileno())
            sync_folder(self.folder)
            os.rename(self.folder, self.final)
            sync_folder(self.final.parent)
        return complete

    def abandon(self) -> None:
        """Remove what was written so far."""
        for stream in (self._stream, self._quarantine):
            if stream is not None:
                # Closing writes what is buffered, which a full disk refuses again: the
                # files go all the same.
                with suppress(OSError):
                    stream.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def _part_path(self) -> Path:
        """The part that is being written, for errors."""
        return self.folder / self.parts[-1]["name"] if self.parts else self.folder

    def _batch_with_room(self, size: int) -> _OpenBatch:
        if self._stream is not None and self.parts[-1]["size"] + size > self._part_bytes:
            self._end_part()
        if self._stream is None:
            name = f"part-{len(self.parts) + 1:04d}.jsonl"
            self._stream = _open_private(self.folder / name)
            self._sha = hashlib.sha256()
            self.parts.append({"name": name, "size": 0, "count": 0, "sha256": "", "batches": []})
        batch = self._batch
        if batch is not None and (
            batch.count >= BATCH_DOCUMENTS or batch.length + size > BATCH_BYTES
        ):
            self._end_batch()
        if self._batch is None:
            self._batch = _OpenBatch(self.parts[-1]["size"])
        return self._batch

    def _end_batch(self) -> None:
        if self._batch is not None:
            batch = self._batch
            self.parts[-1]["batches"].append(
                [batch.offset, batch.length, batch.count, batch.sha.hexdigest()]
            )
        self._batch = None

    def _end_part(self) -> None:
        if self._stream is None:
            return
        self._end_batch()
        self.parts[-1]["sha256"] = self._sha.hexdigest()
        _sync_close(self._stream)
        self._stream = None


class Spool:
    """Reads the complete snapshots below a day's folder."""

    def __init__(self, day_folder: Path) -> None:
        self.day_folder = day_folder
        self._verified: set[tuple[int, str]] = set()
        self._manifests: dict[int, dict[str, Any]] = {}

    def remove_leftovers(self) -> None:
        """Remove snapshots that killed processes left incomplete. Only the holder of
        the outbox may call this.
        """
        for folder in self.day_folder.glob(".spooling-*"):
            shutil.rmtree(folder, ignore_errors=True)

    def snapshots(self) -> list[int]:
        """Return the numbers of the snapshots, oldest first."""
        names = [
            entry.name
            for entry in self.day_folder.glob("g[0-9]*")
            if (entry / "manifest.json").is_file()
        ]
        return sorted(int(name[1:]) for name in names)

    def manifest(self, snapshot_no: int) -> dict[str, Any]:
        """Return a snapshot's manifest. Raises DataError (65) if it is damaged."""
        if snapshot_no not in self._manifests:
            path = self.folder(snapshot_no) / "manifest.json"
            try:
                loaded = json.loads(path.read_bytes())
            except (OSError, ValueError) as error:
                raise _damaged(path, str(error)) from None
            self._manifests[snapshot_no] = loaded
        return self._manifests[snapshot_no]

    def folder(self, snapshot_no: int) -> Path:
        """Return the folder of a snapshot."""
        return self.day_folder / f"g{snapshot_no:04d}"

    def batches(self, snapshot_no: int) -> Iterator[Batch]:
        """Yield the batches as the manifest bounds them, READY, without numbers."""
        for part in self.manifest(snapshot_no)["parts"]:
            for offset, length, count, sha256 in part["batches"]:
                yield Batch(0, snapshot_no, part["name"], offset, length, count, sha256)

    def verify(self, snapshot_no: int, part: str) -> None:
        """Raise DataError (65) unless the part is, byte for byte, what the manifest
        says. Reads each part once.
        """
        if (snapshot_no, part) in self._verified:
            return
        expected = next(
            p["sha256"] for p in self.manifest(snapshot_no)["parts"] if p["name"] == part
        )
        path = self.folder(snapshot_no) / part
        try:
            with open(path, "rb") as stream:
                actual = hashlib.file_digest(stream, "sha256").hexdigest()
        except OSError as error:
            raise _damaged(path, error.strerror) from None
        if actual != expected:
            raise _damaged(path, f"sha256 {actual[:12]}…, the manifest says {expected[:12]}…")
        self._verified.add((snapshot_no, part))

    def read(self, batch: Batch) -> list[bytes]:
        """Return the documents of a batch. Raises DataError (65) if the part is
        damaged: nothing of it is sent.
        """
        self.verify(batch.snapshot_no, batch.part)
        content = self.slice(batch.snapshot_no, batch.part, batch.offset, batch.length)
        lines = content.split(b"\n")[:-1]
        if hashlib.sha256(content).hexdigest() != batch.sha256 or len(lines) != batch.count:
            raise _damaged(
                self.folder(batch.snapshot_no) / batch.part,
                f"batch {batch.number} differs from the spool",
            )
        return lines

    def slice(self, snapshot_no: int, part: str, offset: int, length: int) -> bytes:
        """Return ``length`` bytes of a part from ``offset`` on."""
        with open(self.folder(snapshot_no) / part, "rb") as stream:
            stream.seek(offset)
            return stream.read(length)


def split(batch: Batch, documents: list[bytes]) -> list[Batch]:
    """Return the two halves of a batch, each in the state in which it has to be sent."""
    middle = len(documents) // 2
    halves, offset = [], batch.offset
    for piece in (documents[:middle], documents[middle:]):
        content = b"".join(document + b"\n" for document in piece)
        sha256 = hashlib.sha256(content).hexdigest()
        state = BatchState.IN_DOUBT if batch.doubtful else BatchState.READY
        half = Batch(
            0,
            batch.snapshot_no,
            batch.part,
            offset,
            len(content),
            len(piece),
            sha256,
            state,
            0,
            batch.doubtful,
        )
        halves.append(half)
        offset += len(content)
    return halves


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class disk_errors:
    """A context that turns an OSError of the disk into an OutputError (73) with the path."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            raise OutputError(
                "the spool cannot be written",
                where=self.path,
                found=error.strerror,
                next_step="make room or set `state_dir` to another disk, then run the same command again",
            ) from None


def _open_private(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def _sync_close(stream: BinaryIO) -> None:
    stream.flush()
    os.fsync(stream.fileno())
    stream.close()


def _damaged(path: Path, actual: str | None) -> DataError:
    return DataError(
        "a part of the spool is damaged; nothing of it is sent",
        where=path,
        found=actual,
        next_step="cmsspark outbox discard, then publish the day again",
    )
