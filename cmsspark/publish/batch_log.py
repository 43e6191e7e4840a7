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

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from cmsspark.base.errors import DataError
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


@dataclass(frozen=True)
class Batch:
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
