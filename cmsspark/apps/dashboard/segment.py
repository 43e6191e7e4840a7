"""A segment of the rollups: what the pages read instead of the stored partials of some days.

A segment is a folder of Parquet and Arrow files and ``segment.json``, which names the
run of each of its days. Sums are exact: bytes and counts as integers, seconds as whole
milliseconds. Users are numbers of the segment's own list.

Pages map two Arrow files into memory: sums and people by dataset. There datasets,
streams and site tiers are numbers in the order of the segment's own names, so a
dataset's rows stand together and its numbers rise with its name. Files without
compression are read in place: pages that nobody asks for stay on disk.
"""

from __future__ import annotations

import errno
import fcntl
import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from cmsspark.base.errors import DataError, NotReady
from cmsspark.base.memory import is_shortage
from cmsspark.base.names import DERIVED

if TYPE_CHECKING:
    import pyarrow as pa

#: Version of the files below; segments of another version are built anew.
VERSION: Final = 4
#: The stored table that segments are made from.
TABLE: Final = "partials"
#: The additive columns of every rollup: integers, null where nothing of the group has a
#: value. The first four are of accesses, the next two of jobs.
SUMS: Final = (
    *("nacc", "remote_nacc", "remote_known_nacc", "read_bytes"),
    *("job_count", "job_read_bytes", "cpu_ms", "wc_ms"),
)
#: File → keys of its sums.
SUM_FILES: Final[Mapping[str, tuple[str, ...]]] = {
    "cube": ("day", "stream", "site_tier", "data_tier", "campaign"),
    "detail": ("dataset_name", "day", "stream", "site_name", "app"),
    "site_days": ("site_name", "day", "stream", "data_tier", "app"),
    "site_datasets": ("site_name", "dataset_name", "stream"),
}
#: File → keys of sets of users as bits, for combinations with many users: bit N is the
#: user with number N.
BIT_FILES: Final[Mapping[str, tuple[str, ...]]] = {
    "tier_users": ("day", "stream", "site_tier", "data_tier"),
    "campaign_users": ("day", "stream", "campaign"),
    "site_users": ("day", "stream", "site_name"),
}
#: Files in which pages look up single datasets. ``dataset_users`` has a row for each
#: day, stream, site tier and user.
LOOKUP_FILES: Final = ("detail", "dataset_users")
SUMS_FILE, PEOPLE_FILE, NAMES_FILE = (
    "datasets.arrow",
    "dataset_people.arrow",
    "dataset_names.parquet",
)
#: All files of a segment beside its index. ``cube_users`` has lists of users for the
#: keys of ``cube``.
FILES: Final = frozenset(
    (
        *(
            f"{name}.parquet"
            for name in (*SUM_FILES, *BIT_FILES, "dataset_users", "cube_users", "users")
        ),
        *(SUMS_FILE, PEOPLE_FILE, NAMES_FILE),
    )
)
#: Stands for null in the sums of ``SUMS_FILE``, which are never negative, and in days.
NULL: Final = -1
_INDEX: Final = "segment.json"
#: What libraries say of too many open files.
_TOO_MANY: Final = tuple(os.strerror(number) for number in (errno.EMFILE, errno.ENFILE))
#: The key of :class:`About` in the metadata of an Arrow file.
_ABOUT: Final = b"cmsspark"


class SegmentIndex(msgspec.Struct, frozen=True):
    """``segment.json``: the run of each day, the pseudonym keys of each day, and size
    and digest of each file.
    """

    version: int
    store: str
    runs: dict[str, str]
    keys: dict[str, list[str]]
    rows: int
    files: dict[str, tuple[int, str]]


@dataclass(frozen=True)
class Segment:
    """A segment that is there: its folder and its index."""

    folder: Path
    index: SegmentIndex

    @property
    def days(self) -> list[date]:
        """Its days, in order."""
        return sorted(date.fromisoformat(day) for day in self.index.runs)

    def file(self, name: str) -> str:
        """Return the path of one of its Parquet files."""
        return str(self.folder / f"{name}.parquet")


class About(msgspec.Struct, frozen=True):
    """What a mapped file says of itself: the names of streams and site tiers by number.

    ``totals``: column → the sum of all its rows, as text; ``pairs``: the stream and
    site tier of each pair of people; ``groups``: file of ``LOOKUP_FILES`` → the first
    and the last dataset of each of its row groups.
    """

    streams: list[str]
    site_tiers: list[str]
    totals: dict[str, str] = {}
    pairs: list[tuple[int, int]] = []
    groups: dict[str, list[tuple[int, int]]] = {}


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
    import pyarrow as pa

    try:
        yield
    except (duckdb.IOException, duckdb.InvalidInputException, pa.ArrowException, OSError) as error:
        if exhausted := find_exhaustion(error):
            raise exhausted from error
        raise RollupsDamagedError(
            "files of the rollups are damaged or gone, and are built again",
            next_step="load this page again",
        ) from error


def derive_part(column: str, text: str) -> str:
    """Return a derived column of a name; an empty text where the name has no such part."""
    return DERIVED[column].derive(text) or ""


def join_ranges(begins: npt.NDArray[Any], counts: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return the positions of ranges, one after another: ``counts`` of them from each
    of ``begins`` on.
    """
    before = np.cumsum(counts) - counts
    return np.repeat(begins - before, counts) + np.arange(counts.sum())


def read_index(folder: Path) -> SegmentIndex:
    """Return the index of a segment. Raises ValueError or OSError where there is none
    that can be read.
    """
    return msgspec.json.decode((folder / _INDEX).read_bytes(), type=SegmentIndex)


def hold(folders: Sequence[Path], owner: object) -> None:
    """Keep other servers on this host from removing segments while ``owner`` lives."""
    for folder in folders:
        descriptor = os.open(folder / _INDEX, os.O_RDONLY)
        weakref.finalize(owner, os.close, descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_SH)


def is_held(folder: Path) -> bool:
    """Return whether a server on this host uses a segment."""
    try:
        with open(folder / _INDEX, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def write_index(folder: Path, index: SegmentIndex) -> None:
    """Write the index of a segment."""
    (folder / _INDEX).write_bytes(msgspec.json.encode(index))


def file_digest(path: Path) -> str:
    """Return the digest of a file's content."""
    import xxhash

    digest = xxhash.xxh3_64()
    with open(path, "rb") as stream:
        while chunk := stream.read(1 << 22):
            digest.update(chunk)
    return digest.hexdigest()


def read_mapped(path: Path) -> tuple[pa.RecordBatch, About]:
    """Return an Arrow file of a segment, mapped into memory.

    Raises DataError (65) where it is damaged, OSError if it is gone.
    """
    import pyarrow as pa

    try:
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        about = msgspec.json.decode((reader.schema.metadata or {})[_ABOUT], type=About)
        batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
    except (pa.ArrowInvalid, KeyError, msgspec.MsgspecError) as error:
        raise DataError(
            "a file of the rollups is damaged", where=str(path), found=str(error)[:200]
        ) from None
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=reader.schema), about


def write_mapped(path: Path, columns: Mapping[str, Any], about: About) -> None:
    """Write an Arrow file of a segment."""
    import pyarrow as pa

    table = pa.table(columns)
    schema = table.schema.with_metadata({_ABOUT: msgspec.json.encode(about)})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        for batch in table.to_batches():
            writer.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=schema))


def numbers(column: pa.Array) -> Any:
    """Return a column as numpy: whole numbers of 64 bits or less in place, larger ones
    as Python's.
    """
    import pyarrow as pa

    if pa.types.is_decimal(column.type):
        return np.array([int(value) for value in column.to_pylist()], dtype=object)
    return column.to_numpy()
