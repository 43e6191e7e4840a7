"""A SQLite file of the state directory: opened, checked and guarded, so that its errors
say which file is concerned.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import ClassVar, Self

from cmsspark.base import clock, private_folders
from cmsspark.base.errors import CmssparkError, DataError, OutputError


def make_private(path: Path, label: str) -> None:
    """Make the file where there is none, before SQLite opens it, which would make it
    readable by all.

    A file that exists is not opened: closing it again would take away the locks that
    another connection of this process has on it, and two writers would damage it.
    Raises OutputError (73) where it cannot be made.
    """
    try:
        private_folders.make_private(path.parent)
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except OSError as error:
        raise OutputError(f"{label} cannot be written", where=path, found=str(error)) from None


def sqlite_files(path: Path) -> list[Path]:
    """Return the files of a SQLite database that exist: the database, its log, its index."""
    names = (path.with_name(path.name + suffix) for suffix in ("", "-wal", "-shm"))
    return [name for name in names if name.exists()]


def set_aside(path: Path, label: str) -> str:
    """Rename the files of a damaged database; return its new name. Raises OutputError (73)."""
    ending = f".damaged-{clock.stamp()}"
    # The database last: until then other processes find it damaged.
    for file in reversed(sqlite_files(path)):
        try:
            file.rename(file.with_name(file.name + ending))
        except OSError as error:
            raise OutputError(
                f"{label} cannot be set aside", where=file, found=error.strerror
            ) from None
    return path.name + ending


class StateDatabase:
    """A SQLite file. A subclass says what the file is, which tables it has, and how it
    is repaired.

    Raises ``damaged`` (65) for a file that is no database, ``other_version`` for one of
    another version, OutputError (73) where the file cannot be written.
    """

    #: As messages name it.
    label: ClassVar[str]
    version: ClassVar[int] = 1
    tables: ClassVar[str]
    repair: ClassVar[str]
    damaged: ClassVar[type[DataError]]
    other_version: ClassVar[type[CmssparkError]]

    def __init__(self, path: Path) -> None:
        self.path = path
        make_private(path, self.label)
        with self._guard():
            self._db = sqlite3.connect(path, isolation_level=None, timeout=10)
            try:
                self._prepare()
            except BaseException:
                self._db.close()
                raise

    @classmethod
    @contextmanager
    def opened(cls, path: Path, notes: list[str] | None = None) -> Iterator[Self]:
        """Yield the database, made where there is none; a damaged one is set aside, with a note.

        Raises OutputError (73) where it cannot be written.
        """
        try:
            database = cls(path)
        except cls.damaged:
            database = cls._replaced(path, notes)
        with closing(database):
            yield database

    @classmethod
    def _replaced(cls, path: Path, notes: list[str] | None) -> Self:
        """Set a damaged database aside and return a new one; the one of a process that
        has done so meanwhile.
        """
        lock_file = path.with_name(f"{path.name}.lock")
        make_private(lock_file, cls.label)
        with lock_file.open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                return cls(path)
            except cls.damaged as error:
                copy = set_aside(path, cls.label)
                if notes is not None:
                    notes.append(
                        f"{cls.label} was damaged ({error.found}) and is kept as {copy}; a new one was created"
                    )
                return cls(path)

    @classmethod
    @contextmanager
    def to_read(cls, path: Path) -> Iterator[Self | None]:
        """Yield the database, to which nothing can be written; None where there is
        none. Raises ``damaged`` (65).
        """
        if not path.is_file():
            yield None
            return
        database = cls.__new__(cls)
        database.path = path
        with database._guard():
            database._db = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=5
            )
        with closing(database):
            yield database

    def _prepare(self) -> None:
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, self.version):
            actual = f"version {version} instead of {self.version}"
            raise self.other_version(
                f"{self.label} has another version", where=self.path, found=actual
            )
        self._db.executescript(self.tables)
        self._db.execute(f"PRAGMA user_version={self.version}")

    def close(self) -> None:
        """Close the database; what was committed stays."""
        self._db.close()

    def check(self) -> None:
        """Raise ``damaged`` (65), and close the database, where SQLite finds an
        inconsistency in the file.
        """
        with self._guard():
            (status,) = self._db.execute("PRAGMA quick_check(1)").fetchone()
        if status != "ok":
            self._db.close()
            raise self._damaged(status)

    def _damaged(self, status: str) -> DataError:
        return self.damaged(
            f"{self.label} is damaged", where=self.path, found=status, next_step=self.repair
        )

    @contextmanager
    def _guard(self) -> Iterator[None]:
        """Turn SQLite's errors into ours."""
        try:
            yield
        except sqlite3.OperationalError as error:
            raise OutputError(
                f"{self.label} cannot be written", where=self.path, found=str(error)
            ) from None
        except sqlite3.DatabaseError as error:
            raise self._damaged(str(error)) from None

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Yield all statements of the block, or none."""
        with self._guard():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")
