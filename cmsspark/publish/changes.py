"""Which documents of a day have to be sent: a comparison with what its destination was last sent.

The spool itself is the record of that: the confirmed batches, in order. They are read
into a scratch database on disk, so that a day of ten million documents needs no more
memory than a small one.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from cmsspark.base.errors import DataError, OutputError
from cmsspark.publish.batch_log import Batch, BatchLog, BatchState
from cmsspark.publish.completeness import MAX_GONE_LISTED
from cmsspark.publish.spool import Spool


@contextmanager
def open_changes(
    folder: Path, completeness_id: str, log: BatchLog, spool: Spool
) -> Iterator[Changes]:
    """Yield a comparison with what was sent before, its scratch database in ``folder``,
    which is removed at the end.

    Raises OutputError (73) where the disk does not hold it.
    """
    failure = "the day cannot be compared with what was sent before"
    with scratch_database(folder / "changes.sqlite", failure) as db:
        changes = Changes(db, completeness_id, spool)
        changes.load(log)
        yield changes


class Changes:
    """Compares the day's documents, one by one, with those sent before."""

    def __init__(self, db: sqlite3.Connection, completeness_id: str, spool: Spool) -> None:
        """``db``: an empty database; ``completeness_id``: of the completeness document,
        which is compared apart.
        """
        #: The digest of the completeness document that is known to have been confirmed last.
        self.completeness_digest: bytes | None = None
        #: The completeness document that was sent last.
        self.last_completeness: bytes | None = None
        self._completeness_id = completeness_id
        self._spool = spool
        self._db = db
        self._db.execute(
            "CREATE TABLE docs (id BLOB PRIMARY KEY, sent BLOB, now BLOB, gone INTEGER, snapshot_no INTEGER, "
            "part TEXT, offset INTEGER, length INTEGER) WITHOUT ROWID"
        )
        self._db.execute("BEGIN")
        self._has_sent = False

    def load(self, log: BatchLog) -> None:
        """Read what was sent before. What may have been delivered without a receipt
        counts as sent, in unknown form.
        """
        for batch in sorted(log.batches(), key=lambda b: (b.snapshot_no, b.number)):
            is_acked = batch.state == BatchState.ACKED
            if is_acked or (
                batch.doubtful and batch.state not in (BatchState.SPLIT, BatchState.QUARANTINED)
            ):
                self._load(batch, is_acked=is_acked)

    def _load(self, batch: Batch, *, is_acked: bool) -> None:
        offset = batch.offset
        for body in self._spool.read(batch):
            loaded = json.loads(body)
            identity = str(loaded["metadata"]["_id"])
            digest = hashlib.sha256(body).digest() if is_acked else None
            if identity == self._completeness_id:
                self.completeness_digest, self.last_completeness = digest, body
            else:
                self._has_sent = True
                position = (batch.snapshot_no, batch.part, offset, len(body))
                self._db.execute(
                    "INSERT OR REPLACE INTO docs VALUES (?, ?, NULL, ?, ?, ?, ?, ?)",
                    (
                        bytes.fromhex(identity),
                        digest,
                        int(loaded.get("is_gone", False)),
                        *position,
                    ),
                )
            offset += len(body) + 1

    def is_new(self, identity: str, body: bytes) -> bool:
        """Record a document of the day. True when it has to be sent: it is new, or
        differs from the one sent before.

        Raises DataError (65) when the day has two documents of one id.
        """
        key, digest = bytes.fromhex(identity), hashlib.sha256(body).digest()
        row = None
        if self._has_sent:
            row = self._db.execute("SELECT sent, now FROM docs WHERE id=?", (key,)).fetchone()
        if row is None:
            try:
                self._db.execute("INSERT INTO docs (id, now) VALUES (?, ?)", (key, digest))
            except sqlite3.IntegrityError:
                raise _duplicate(body) from None
            return True
        if row[1] is not None:
            raise _duplicate(body)
        self._db.execute("UPDATE docs SET now=? WHERE id=?", (digest, key))
        return bool(row[0] != digest)

    def vanished(self, resend_all: bool = False) -> Iterator[bytes]:
        """Yield documents sent before that the day no longer has, not yet sent as gone;
        or all of them.
        """
        rows = self._db.execute(
            "SELECT snapshot_no, part, offset, length FROM docs "
            "WHERE now IS NULL AND (gone=0 OR sent IS NULL OR ?) ORDER BY id",
            (resend_all,),
        )
        return (self._spool.slice(*row) for row in rows)

    def gone(self) -> tuple[int, tuple[str, ...]]:
        """Return how many documents of the day are gone, sent as such or about to be,
        and the first of their ids.
        """
        (count,) = self._db.execute("SELECT count(*) FROM docs WHERE now IS NULL").fetchone()
        rows = self._db.execute(
            "SELECT id FROM docs WHERE now IS NULL ORDER BY id LIMIT ?", (MAX_GONE_LISTED,)
        )
        return count, tuple(row[0].hex() for row in rows)

    def is_new_completeness(self, completeness: bytes) -> bool:
        """Return whether the completeness document differs from the one sent before."""
        return self.completeness_digest != hashlib.sha256(completeness).digest()

    def knows_all(self) -> bool:
        """Return whether all documents that may have been sent are confirmed, so their
        form there is known.
        """
        if self.last_completeness is not None and self.completeness_digest is None:
            return False
        return self._db.execute("SELECT 1 FROM docs WHERE sent IS NULL LIMIT 1").fetchone() is None

    def sent(self) -> Iterator[bytes]:
        """Yield every document that the destination was sent, in its last form, in the
        order of the spool.
        """
        rows = self._db.execute(
            "SELECT snapshot_no, part, offset, length FROM docs ORDER BY snapshot_no, part, offset"
        )
        return (self._spool.slice(*row) for row in rows)

    def present(self) -> Iterator[tuple[bytes, bytes]]:
        """Return (id, digest) of the day's documents, in the order of ids."""
        return iter(self._db.execute("SELECT id, now FROM docs WHERE now IS NOT NULL ORDER BY id"))


def _duplicate(body: bytes) -> DataError:
    return DataError(
        "two rows of the day make the same document: one would overwrite the other",
        found=f"a second document {json.loads(body)['metadata']['_id']}",
        next_step="the stored table has two rows with one key: run its job again",
    )


@contextmanager
def scratch_database(path: Path, failure: str) -> Iterator[sqlite3.Connection]:
    """Yield a new database at ``path``, without a journal, which is removed at the end.

    Raises OutputError (73), which begins with ``failure``, where the disk does not hold it.
    """
    try:
        path.unlink(missing_ok=True)
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            for pragma in (
                "journal_mode=OFF",
                "synchronous=OFF",
                "cache_size=-32000",
                "temp_store=FILE",
            ):
                db.execute(f"PRAGMA {pragma}")
            yield db
    except sqlite3.OperationalError as error:
        raise OutputError(
            failure,
            where=path,
            found=str(error),
            next_step="make room or set `state_dir` to another disk, then run the same command again",
        ) from None
    finally:
        path.unlink(missing_ok=True)
