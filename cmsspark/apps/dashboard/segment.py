"""A segment of the rollups: what the pages read instead of the stored partials of some days.

A segment is a DuckDB file, which pages attach read-only. Sums are exact: bytes and counts
as integers, seconds as whole milliseconds. All names are numbers of the lists of names
beside the segments (:class:`NameList`), the same in all segments, so that sums and sets of
several segments meet in one query. Tables are sorted by what pages look up in them.
"""

from __future__ import annotations

import errno
import fcntl
import os
import uuid
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Final

import msgspec

from cmsspark.base.errors import NotReady
from cmsspark.base.memory import is_shortage
from cmsspark.base.names import DERIVED

#: Version of the tables below; segments of another version are built anew.
VERSION: Final = 8
#: The stored table that segments are made from.
TABLE: Final = "partials"
#: The additive columns of every rollup: integers, null where nothing of the group has a
#: value. The first four are of accesses, the next two of jobs.
SUMS: Final = (
    *("nacc", "remote_nacc", "remote_known_nacc", "read_bytes"),
    *("job_count", "job_read_bytes", "cpu_ms", "wc_ms"),
)
#: Table → keys of its sums, in the order of its rows; the smallest tables first. Those
#: without a day have ``last_day`` instead: the last one with an access or a job.
SUM_TABLES: Final[Mapping[str, tuple[str, ...]]] = {
    "cube": ("day", "stream", "site_tier", "data_tier", "campaign"),
    "site_totals": ("day", "site_name", "stream"),
    "dataset_totals": ("dataset",),
    "dataset_sums": ("stream", "site_tier", "dataset"),
    "site_days": ("site_name", "day", "stream", "data_tier", "app"),
    "site_datasets": ("site_name", "dataset", "stream"),
    "dataset_days": ("dataset", "day"),
    "detail": ("dataset", "day", "stream", "site_name", "app"),
}
#: Table → keys of its sets of people, the smallest tables first: bit N of ``users`` is the
#: person with the number N. Without the key ``stream`` it has those of accesses, not those
#: of jobs.
SET_TABLES: Final[Mapping[str, tuple[str, ...]]] = {
    "tier_users": ("day", "stream", "site_tier", "data_tier"),
    "campaign_users": ("day", "stream", "campaign"),
    "site_users": ("day", "stream", "site_name"),
    "cube_users": ("day", "stream", "site_tier", "data_tier", "campaign"),
    "dataset_everyone": ("dataset",),
    "dataset_stream_users": ("stream", "dataset"),
    "dataset_tier_users": ("site_tier", "dataset"),
    "dataset_users": ("stream", "site_tier", "dataset"),
}
_NAMES: Final = "names.json"
#: What folders begin with that hold what a server has no room for in memory.
SPILLED: Final = ".spilled-"
#: What libraries say of too many open files.
_TOO_MANY: Final = tuple(os.strerror(number) for number in (errno.EMFILE, errno.ENFILE))


class Segment(msgspec.Struct, frozen=True):
    """A segment that is there: its file, and the run of each of its days."""

    path: Path
    runs: Mapping[date, str]

    @property
    def days(self) -> list[date]:
        """Its days, in order."""
        return sorted(self.runs)


class ResourceExhausted(NotReady):
    """The server gets no memory, thread or file descriptor (75)."""


def find_exhaustion(error: Exception) -> ResourceExhausted | None:
    """Return the error to raise where another says that the process gets no memory,
    thread or file descriptor.
    """
    import duckdb

    is_of_host = isinstance(error, duckdb.OutOfMemoryException) or is_shortage(error)
    if not is_of_host and not any(text in str(error) for text in _TOO_MANY):
        return None
    return ResourceExhausted(
        "the server has too little memory or too few file descriptors now",
        found=" ".join(str(error).split())[:200] or type(error).__name__,
        next_step="ask again, for fewer days; where it stays so, start the server with higher limits (ulimit -a)",
    )


class RollupsDamagedError(NotReady):
    """A file of the rollups could not be read: they are checked and built again."""


@contextmanager
def reading_rollups() -> Iterator[None]:
    """Raise RollupsDamagedError (75) where the block cannot read a file of the rollups.

    Raises ResourceExhausted (75) where it gets no memory or file descriptor for it; a
    damaged file may ask for much memory, too.
    """
    import duckdb

    try:
        yield
    except (duckdb.Error, OSError) as error:
        if exhausted := find_exhaustion(error):
            raise exhausted from error
        if isinstance(error, duckdb.ProgrammingError | duckdb.DataError):
            raise
        raise RollupsDamagedError(
            "files of the rollups are damaged or gone, and are built again",
            next_step="load this page again",
        ) from error


def part_sql(column: str, source: str = "") -> str:
    """Return in SQL a derived column of a name, by default of the stored column; an empty
    text where the name has no such part.

    Example:
        >>> part_sql("campaign")
        "split_part(split_part(dataset_name, '/', 3), '-', 1)"
    """
    rule = DERIVED[column]
    source = source or rule.source
    if rule.first is not None:
        source = f"split_part({source}, '{rule.first.separator}', {rule.first.part + 1})"
    return f"split_part({source}, '{rule.separator}', {rule.part + 1})"


def hold(paths: Sequence[Path], owner: object) -> None:
    """Keep other servers on this host from removing files or folders while ``owner``
    lives.
    """
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        weakref.finalize(owner, os.close, descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_SH)


def is_held(path: Path) -> bool:
    """Return whether a server on this host uses a file or folder."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


class NameList(msgspec.Struct, frozen=True):
    """The names that segments have numbers of, by column and in the order of their arrival,
    and an id of their own. Names are only added, so a number keeps its name.
    """

    id: str
    names: dict[str, list[str]]


def read_names(folder: Path) -> NameList | None:
    """Return the names of a folder of segments; None where they are not there or damaged."""
    import xxhash

    try:
        digest, content = (folder / _NAMES).read_bytes().split(b"\n", 1)
        is_whole = digest.decode() == xxhash.xxh3_64_hexdigest(content)
        return msgspec.json.decode(content, type=NameList) if is_whole else None
    except (FileNotFoundError, ValueError):
        return None


def write_names(folder: Path, names: NameList) -> None:
    """Replace the names of a folder of segments."""
    import xxhash

    content = msgspec.json.encode(names)
    aside = folder / f".building-{_NAMES}"
    aside.write_bytes(xxhash.xxh3_64_hexdigest(content).encode() + b"\n" + content)
    aside.replace(folder / _NAMES)


@contextmanager
def locked_names(folder: Path) -> Iterator[NameList]:
    """Give the names of a folder of segments, made where there are none; meanwhile no
    other process adds any.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with open(folder / ".lock", "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        names = read_names(folder)
        if names is None:
            names = NameList(uuid.uuid4().hex, {})
            write_names(folder, names)
        yield names


def file_digest(path: Path) -> str:
    """Return the digest of a file's content."""
    import xxhash

    digest = xxhash.xxh3_64()
    with open(path, "rb") as stream:
        while chunk := stream.read(1 << 22):
            digest.update(chunk)
    return digest.hexdigest()
