"""What of a day has to be sent: a comparison with what its destination was last given.

The spool itself is the record of that: the batches that were confirmed, in order. They are read into a scratch
database on disk, so that a day of ten million documents needs no more memory than a small one.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from cmsspark.errors import DataError
from cmsspark.publish.completeness import MAX_GONE_LISTED
from cmsspark.publish.ledger import Batch, Ledger, State
from cmsspark.publish.spool import Spool


class Former(NamedTuple):
    """A document that was sent, and is not among the day's any more: where its bytes are in the spool."""

    identity: bytes
    generation: int
    part: str
    offset: int
    length: int


class Changes:
    """The day's documents as they come, against those sent before."""

    def __init__(self, scratch: Path, unique: str) -> None:
        """``scratch``: a file that does not exist; ``unique``: the id that is left out (the completeness
        document's).
        """
        self.before: bytes | None = None
        #: The completeness document that was sent last.
        self.last_word: bytes | None = None
        self._unique = unique
        self._db = sqlite3.connect(scratch, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=OFF")
        self._db.execute("PRAGMA synchronous=OFF")
        self._db.execute("PRAGMA cache_size=-32000")
        self._db.execute(
            "CREATE TABLE docs (id BLOB PRIMARY KEY, sent BLOB, now BLOB, gone INTEGER, generation INTEGER, "
            "part TEXT, offset INTEGER, length INTEGER) WITHOUT ROWID"
        )
        self._db.execute("BEGIN")
        self._some_before = False

    def close(self) -> None:
        """Forget everything."""
        self._db.close()

    def load(self, ledger: Ledger, spool: Spool) -> None:
        """Take in what was sent before. What may have arrived without a receipt counts as there, but not as known."""
        for batch in sorted(ledger.batches(), key=lambda b: (b.generation, b.number)):
            if batch.state == State.ACKED or (batch.doubtful and batch.state not in (State.SPLIT, State.QUARANTINED)):
                self._load(batch, spool, known=batch.state == State.ACKED)

    def _load(self, batch: Batch, spool: Spool, *, known: bool) -> None:
        offset = batch.offset
        for body in spool.read(batch):
            loaded = json.loads(body)
            identity = str(loaded["metadata"]["_id"])
            digest = hashlib.sha256(body).digest() if known else None
            if identity == self._unique:
                self.before, self.last_word = digest, body
            else:
                self._some_before = True
                self._db.execute(
                    "INSERT OR REPLACE INTO docs VALUES (?, ?, NULL, ?, ?, ?, ?, ?)",
                    (
                        bytes.fromhex(identity),
                        digest,
                        int(loaded.get("is_gone", False)),
                        batch.generation,
                        batch.part,
                        offset,
                        len(body),
                    ),
                )
            offset += len(body) + 1

    def is_new(self, identity: str, body: bytes) -> bool:
        """Note a document of the day. True when it has to be sent: it is new, or another than the one sent before.

        Raises DataError (65) when the day has two documents of one id.
        """
        key, digest = bytes.fromhex(identity), hashlib.sha256(body).digest()
        row = None
        if self._some_before:
            row = self._db.execute("SELECT sent, now FROM docs WHERE id=?", (key,)).fetchone()
        if row is None:
            try:
                self._db.execute("INSERT INTO docs (id, now) VALUES (?, ?)", (key, digest))
            except sqlite3.IntegrityError:
                raise _twice(body) from None
            return True
        if row[1] is not None:
            raise _twice(body)
        self._db.execute("UPDATE docs SET now=? WHERE id=?", (digest, key))
        return bool(row[0] != digest)

    def vanished(self) -> Iterator[Former]:
        """Documents sent before that the day no longer has, and that were not sent as gone yet."""
        rows = self._db.execute(
            "SELECT id, generation, part, offset, length FROM docs "
            "WHERE now IS NULL AND (gone=0 OR sent IS NULL) ORDER BY id"
        )
        return (Former(*row) for row in rows)

    def gone(self) -> tuple[int, tuple[str, ...]]:
        """How many documents of the day are gone, sent as such or about to be, and the first of their ids."""
        (count,) = self._db.execute("SELECT count(*) FROM docs WHERE now IS NULL").fetchone()
        rows = self._db.execute("SELECT id FROM docs WHERE now IS NULL ORDER BY id LIMIT ?", (MAX_GONE_LISTED,))
        return count, tuple(row[0].hex() for row in rows)

    def is_last_word(self, completeness: bytes) -> bool:
        """True when the completeness document is another than the one sent before."""
        return self.before != hashlib.sha256(completeness).digest()

    def knows_all(self) -> bool:
        """Whether each document that may have been sent is known to be there, and in which form."""
        if self.last_word is not None and self.before is None:
            return False
        return self._db.execute("SELECT 1 FROM docs WHERE sent IS NULL LIMIT 1").fetchone() is None

    def sent(self) -> Iterator[Former]:
        """Every document that the destination was given, in its last form, in the order of the spool."""
        rows = self._db.execute(
            "SELECT id, generation, part, offset, length FROM docs ORDER BY generation, part, offset"
        )
        return (Former(*row) for row in rows)

    def present(self) -> Iterator[tuple[bytes, bytes]]:
        """(id, digest) of the day's documents, in the order of ids."""
        return iter(self._db.execute("SELECT id, now FROM docs WHERE now IS NOT NULL ORDER BY id"))


def _twice(body: bytes) -> DataError:
    return DataError(
        "two rows of the day make the same document: one would overwrite the other",
        found=f"a second document {json.loads(body)['metadata']['_id']}",
        next_step="the stored table has two rows with one key: run its job again",
    )
