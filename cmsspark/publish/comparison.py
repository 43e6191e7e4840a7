"""Compares a day's documents with those that lie in an OpenSearch: missing, extra and
different ones.

Ids and digests of the expected documents are kept in a scratch database on disk, so
that a day of ten million documents needs no more memory than a small one.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from cmsspark.base.errors import DataError, OutputError
from cmsspark.publish.batch_log import BatchLog, BatchState, Spool
from cmsspark.publish.document_schemas import valid_document
from cmsspark.publish.documents import (
    MAX_GONE_LISTED,
    SUFFIX,
    WITHHELD,
    BadDocument,
    DocumentSpec,
    completeness_id,
    digest_pairs,
    document,
    field_name,
)
from cmsspark.publish.search_index import Hit, SearchIndex, at_time, of_id, of_type

# Which documents of a day have to be sent: a comparison with what its destination was
# last sent.


@contextmanager
def open_changes(
    folder: Path, completeness_id: str, log: BatchLog, spool: Spool
) -> Iterator[Changes]:
    """Yield a comparison with what was sent before, its scratch database in ``folder``,
    which is removed at the end.

    Raises OutputError (73) if the disk does not hold it.
    """
    failure = "the day cannot be compared with what was sent before"
    with scratch_database(folder / "changes.sqlite", failure) as db:
        changes = Changes(db, completeness_id, spool)
        changes.load(log)
        yield changes


class Changes:
    """Compares the day's documents, one by one, with those sent before."""

    def __init__(self, db: sqlite3.Connection, completeness_id: str, spool: Spool) -> None:
        """``db``: an empty database. ``completeness_id``: of the completeness document,
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


#: Fields of the completeness document that follow from the stored table.
_SUMMARY: Final = ("table", "period", "document_count", "digest", "is_partial", "timestamp")
_IS_GONE: Final = "is_gone"


class Verification(msgspec.Struct, frozen=True):
    """The outcome of a comparison, in documents. The completeness document is one of them.

    ``expected``: documents that the store makes. ``found``: those of them that are
    there, whatever their content. ``extra``: others of the same day, type and producer,
    and second copies. ``gone``: those that are there as gone, as they should be.
    ``others``: of the same time and type, but another producer or period. ``invalid``:
    rows that make no valid document.
    """

    expected: int
    found: int
    missing: int
    extra: int
    different: int
    gone: int
    others: int
    invalid: int

    @property
    def is_same(self) -> bool:
        """Whether there is no difference."""
        return not (self.missing or self.extra or self.different)


class Difference(NamedTuple):
    """A document that is not as it should be. ``kind``: missing, extra or different.
    ``about``: which fields.
    """

    kind: str
    identity: str
    about: str


@contextmanager
def open_comparison(folder: Path, spec: DocumentSpec) -> Iterator[Comparison]:
    """Yield a comparison with its scratch database in ``folder``, which is removed at the end.

    Raises OutputError (73) if the disk does not hold it.
    """
    scratch = folder / f"verify-{spec.table.name}-{spec.period}.sqlite"
    with scratch_database(scratch, "the documents cannot be compared") as db:
        yield Comparison(db, spec)


class Comparison:
    """Expected documents on one side, those of an index on the other."""

    def __init__(self, db: sqlite3.Connection, spec: DocumentSpec) -> None:
        self._spec = spec
        self._fields = tuple(field_name(column.name) for column in spec.fields)
        self._invalid = self._gone = self._others = 0
        self._summary: dict[str, Any] = {}
        self._db = db
        self._db.execute(
            "CREATE TABLE docs (id BLOB PRIMARY KEY, sha BLOB, content BLOB, seen INTEGER NOT NULL DEFAULT 0) "
            "WITHOUT ROWID"
        )
        self._db.execute("CREATE TABLE found (kind TEXT, id TEXT, body TEXT)")
        self._db.execute("CREATE INDEX found_id ON found (id)")
        self._db.execute("BEGIN")

    def expect(self, rows: Iterable[Mapping[str, Any]], is_partial: bool) -> None:
        """Take the stored rows as what should be there. Raises DataError (65) if two
        make one document.
        """
        for row in self._spec.published_rows(rows):
            if self._spec.leaves_out(row):
                continue
            try:
                fields, body = valid_document(self._spec, row)
            except BadDocument:
                self._invalid += 1
                continue
            key = bytes.fromhex(fields["metadata"]["_id"])
            values = (key, hashlib.sha256(body).digest(), self._content(fields))
            try:
                self._db.execute("INSERT INTO docs (id, sha, content) VALUES (?, ?, ?)", values)
            except sqlite3.IntegrityError:
                raise DataError(
                    "two rows of the day make the same document",
                    next_step="run the job of the day again",
                ) from None
        count, digest = digest_pairs(self._db.execute("SELECT id, sha FROM docs ORDER BY id"))
        spec = self._spec
        summary = (spec.table.name, spec.period, count, digest, is_partial, spec.timestamp)
        self._summary = dict(zip(_SUMMARY, summary, strict=True))

    # -- what is there
    # -----------------------------------------------------------------------------------------

    def compare(self, index: SearchIndex) -> Verification:
        """Read the day's documents of an index and compare them. Raises as SearchIndex does."""
        spec = self._spec
        names = [*self._fields, "timestamp", _IS_GONE, WITHHELD]
        for hit in index.documents([at_time(spec.timestamp), of_type(spec.type)], names):
            self._take(hit, index.where)
        identity = completeness_id(spec)
        hits = list(index.documents([of_id(identity), of_type(spec.type + SUFFIX)], _SUMMARY))
        if not hits:
            self._note("no summary", identity, None)
        for hit in hits:
            body = {name: _plain(hit.body.get(name)) for name in _SUMMARY}
            if body != self._summary:
                self._note("summary", identity, _unequal(body, self._summary))
        (expected, seen) = self._db.execute(
            "SELECT count(*), total(seen > 0) FROM docs"
        ).fetchone()
        counts = dict(self._db.execute("SELECT kind, count(*) FROM found GROUP BY kind"))
        return Verification(
            expected=expected + 1,
            found=int(seen) + 1 - counts.get("no summary", 0),
            missing=expected - int(seen) + counts.get("no summary", 0),
            extra=counts.get("extra", 0),
            different=counts.get("different", 0) + counts.get("summary", 0),
            gone=self._gone,
            others=self._others,
            invalid=self._invalid,
        )

    def _take(self, hit: Hit, where: str) -> None:
        if hit.source is None:
            raise DataError(
                "an index does not keep the source of its documents",
                where=where,
                found=f"none in {hit.index}",
            )
        identity = self._identity(hit)
        row = None
        if identity is not None:
            row = self._db.execute(
                "SELECT content, seen FROM docs WHERE id=?", (identity,)
            ).fetchone()
        if row is None:
            if not self._belongs(hit):
                self._others += 1
            elif hit.body.get(_IS_GONE) is True:
                self._gone += 1
            else:
                self._note("extra", str(hit.meta("_id") or hit.id), None)
            return
        content, seen = row
        self._db.execute("UPDATE docs SET seen=? WHERE id=?", (seen + 1, identity))
        assert identity is not None
        if seen:
            self._note("extra", identity.hex(), f"a second copy, {hit.id} in {hit.index}")
        if self._content(hit.body) != content:
            self._note("different", identity.hex(), json.dumps(self._comparable(hit.body)))

    def _identity(self, hit: Hit) -> bytes | None:
        """Return the id of an expected document: the one it is stored under, or the one
        that it carries.
        """
        for text in (hit.meta("_id"), hit.id):
            if isinstance(text, str) and len(text) == 64:
                try:
                    return bytes.fromhex(text)
                except ValueError:
                    continue
        return None

    def _belongs(self, hit: Hit) -> bool:
        """Return whether a document says that it is one of this table, producer and period."""
        spec = self._spec
        fields = {"type": spec.type, "producer": spec.producer}
        if any(hit.meta(name) not in (None, value) for name, value in fields.items()):
            return False
        return "period" not in self._fields or hit.body.get("period") in (None, spec.period)

    def _note(self, kind: str, identity: str, body: str | None) -> None:
        self._db.execute("INSERT INTO found VALUES (?, ?, ?)", (kind, identity, body))

    # -- content
    # -----------------------------------------------------------------------------------------------

    def _comparable(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields that count: numbers by value, no nulls, nothing that MONIT adds."""
        names = (*self._fields, "timestamp", _IS_GONE, WITHHELD)
        return {name: _plain(body[name]) for name in names if body.get(name) is not None}

    def _content(self, body: Mapping[str, Any]) -> bytes:
        text = json.dumps(self._comparable(body), sort_keys=True)
        return hashlib.sha256(text.encode("utf-8", errors="surrogatepass")).digest()

    # -- differences
    # -------------------------------------------------------------------------------------------

    def differences(
        self, rows: Iterable[Mapping[str, Any]], limit: int | None = None
    ) -> Iterator[Difference]:
        """Yield the differences, of each kind at most ``limit``; ``rows`` as in :meth:`expect`."""
        remaining = {kind: limit if limit is not None else -1 for kind in ("missing", "different")}
        for kind, identity, about in self._db.execute(
            "SELECT kind, id, body FROM found WHERE kind IN ('summary', 'no summary')"
        ):
            about = "the completeness document" + (f": {about}" if about else "")
            yield Difference("missing" if kind == "no summary" else "different", identity, about)
        cursor = self._db.execute(
            "SELECT id, body FROM found WHERE kind='extra' LIMIT ?", (limit or -1,)
        )
        for identity, about in cursor:
            yield Difference("extra", identity, about or "")
        for row in self._spec.published_rows(rows):
            if not any(remaining.values()):
                return
            if self._spec.leaves_out(row):
                continue
            try:
                body = document(self._spec, row)
            except BadDocument:
                continue
            for difference in self._compare_document(body):
                if remaining[difference.kind]:
                    remaining[difference.kind] -= 1
                    yield difference

    def _compare_document(self, expected: Mapping[str, Any]) -> Iterator[Difference]:
        identity = str(expected["metadata"]["_id"])
        about = " ".join(
            str(expected[column.name]) for column in self._spec.keys if column.name in expected
        )
        row = self._db.execute(
            "SELECT seen FROM docs WHERE id=?", (bytes.fromhex(identity),)
        ).fetchone()
        if row is not None and not row[0]:
            yield Difference("missing", identity, about)
        for (body,) in self._db.execute(
            "SELECT body FROM found WHERE kind='different' AND id=?", (identity,)
        ):
            indexed, comparable = json.loads(body), self._comparable(expected)
            yield Difference("different", identity, f"{about}: {_unequal(indexed, comparable)}")


def _plain(value: Any) -> Any:
    """Return a value such that equal numbers are equal texts: ``3.0`` and ``3`` are one."""
    if type(value) is float and value.is_integer():
        return int(value)
    return value


def _unequal(indexed: Mapping[str, Any], expected: Mapping[str, Any]) -> str:
    """Return the fields that differ, each with both values."""
    names = sorted(
        name
        for name in indexed.keys() | expected.keys()
        if indexed.get(name) != expected.get(name)
    )
    return ", ".join(
        f"{name} {_shown(indexed.get(name))} instead of {_shown(expected.get(name))}"
        for name in names
    )


def _shown(value: Any) -> str:
    return "nothing" if value is None else json.dumps(value, ensure_ascii=False)
