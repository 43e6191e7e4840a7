"""Keyed rows by processes of this host: the rows lie on disk by key, so that memory
does not grow with a dump.
"""

from __future__ import annotations

import os
import pickle
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from cmsspark.base.errors import DataError, OutputError
from cmsspark.base.private_folders import cache_not_written, locked_folder
from cmsspark.base.schemas import Table, input_table
from cmsspark.dumps.keyed_rows import KeyedRows, Mapper, Merge, unpack
from cmsspark.dumps.rucio_scan import OpenRange, Scan, open_local, range_starts
from cmsspark.engines.tasks import weigh
from cmsspark.filesystems.storage import is_local, local_path
from cmsspark.sources.dumps import Dump
from cmsspark.sources.formats.sqoop_csv import arrow_schema, read_table

if TYPE_CHECKING:
    import pyarrow as pa

#: ``map``, or something like it: results in order, whichever process made them.
MapParts = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]
#: What a part has, read when it is called. It must pickle where :data:`MapParts` has
#: other processes.
Part = Callable[[], Iterator[Any]]
#: Bytes of a file of Rucio that one task reads.
RANGE_BYTES: Final = 64_000_000


class PartSource(msgspec.Struct, frozen=True):
    """The parts of a table. ``weight``: decompressed bytes, about. ``columns``: those
    of Arrow tables.
    """

    parts: Sequence[Part]
    weight: int
    columns: pa.Schema | None = None


class Span(NamedTuple):
    """Rows of one key and kind in a file."""

    path: str
    key: int
    kind: str
    offset: int
    size: int


class ProcessTransport(msgspec.Struct, frozen=True):
    """Carries rows through files in ``folder``, which take some 60 bytes for each row
    of a large table.

    ``opened``: opens a file of Rucio's dump on this host.
    """

    folder: Path
    map_parts: MapParts = map
    opened: Callable[[str], AbstractContextManager[IO[bytes]]] = open_local
    key_bytes: int = 128 * 1024 * 1024
    range_bytes: int = RANGE_BYTES

    def table(self, dump: Dump, name: str, columns: Sequence[str]) -> PartSource:
        """See :class:`cmsspark.dumps.dump_plan.Transport`."""
        table = input_table(f"{dump.kind}/{name}")
        # The largest first, so that no process waits for a large one at the end.
        files = sorted(
            (file for file in dump.tables[name] if file.size), key=lambda file: -file.size
        )
        parts = [partial(_read_part, table, tuple(columns), file.path) for file in files]
        return PartSource(
            parts, sum(weigh(file.path, file.size) for file in files), arrow_schema(table, columns)
        )

    def ranges(self, scan: Scan) -> list[PartSource]:
        """See :class:`cmsspark.dumps.dump_plan.Transport`. Files of other file systems stay whole."""
        parts = []
        for table, file in scan.files:
            ranges = (
                range_starts(table, file.size, self.range_bytes)
                if is_local(file.path)
                else [(0, file.size)]
            )
            parts += [
                partial(_open_range, self.opened, table, file.path, first, last)
                for first, last in ranges
            ]
        return [PartSource(parts, scan.weight)]

    def map(self, source: PartSource, mapper: Mapper[Any], keys: int) -> list[Span]:
        """See :class:`cmsspark.dumps.dump_plan.Transport`. Raises OutputError (73)
        if the folder is full.
        """
        del keys
        return self._spans(_map_part, mapper, source.parts)

    def union(self, rows: Sequence[list[Span]]) -> list[Span]:
        """See :class:`cmsspark.dumps.dump_plan.Transport`."""
        return [span for spans in rows for span in spans]

    def merge(self, rows: list[Span], keys: int, merge: Merge) -> list[Span]:
        """See :class:`cmsspark.dumps.dump_plan.Transport`. Raises OutputError (73)
        if the folder is full.
        """
        del keys
        by_key: dict[int, list[Span]] = defaultdict(list)
        for span in rows:
            by_key[span.key].append(span)
        merged = self._spans(_merge_key, merge, sorted(by_key.items()))
        _remove(rows)
        return merged

    def collect(self, rows: list[Span]) -> list[KeyedRows]:
        """See :class:`cmsspark.dumps.dump_plan.Transport`."""
        collected = list(read_spans(rows))
        _remove(rows)
        return collected

    def _spans(
        self, run: Callable[..., list[Span]], function: Any, items: Iterable[Any]
    ) -> list[Span]:
        """Return the rows of all items; ``function`` goes to each process once."""
        path = self.folder / f"{uuid.uuid4().hex}.function"
        with _full_disk(self.folder):
            path.write_bytes(pickle.dumps(function))
        spans = list(chain.from_iterable(self.map_parts(partial(run, self.folder, path), items)))
        path.unlink()
        return spans


def _map_part(folder: Path, function: Path, part: Part) -> list[Span]:
    return _write_rows(folder, _load(function)(part()))


def _merge_key(folder: Path, function: Path, task: tuple[int, list[Span]]) -> list[Span]:
    key, spans = task
    return _write_rows(folder, _load(function)(key, read_spans(spans)))


@lru_cache(1)
def _load(path: Path) -> Any:
    return pickle.loads(path.read_bytes())  # noqa: S301  this run has written it, in a folder of its own


def _write_rows(folder: Path, rows: Iterable[KeyedRows]) -> list[Span]:
    """Write rows into a new file, one after the other."""
    path = folder / f"{uuid.uuid4().hex}.rows"
    spans: list[Span] = []
    offset = 0
    with _full_disk(folder):
        sink = path.open("wb")
    with sink:
        # What reads the rows has errors of its own.
        for entry in rows:
            with _full_disk(folder):
                size = sum(map(sink.write, entry.buffers()))
            spans.append(Span(str(path), entry.key, entry.kind, offset, size))
            offset += size
        with _full_disk(folder):
            sink.flush()
    if not spans:
        path.unlink()
    return spans


@contextmanager
def _full_disk(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(
            "there is no room for the dump's rows, which are kept on disk while they are counted",
            where=folder,
            found=error.strerror,
            next_step="free 60 bytes for each file and block replica, or name another folder in the settings, as "
            "cache_dir",
        ) from None


def read_spans(spans: Iterable[Span]) -> Iterator[KeyedRows]:
    """Yield the rows of spans, from disk."""
    opened: dict[str, int] = {}
    try:
        for span in spans:
            if span.path not in opened:
                for descriptor in opened.values():
                    os.close(descriptor)
                opened = {span.path: os.open(span.path, os.O_RDONLY)}
            yield unpack(span.key, span.kind, os.pread(opened[span.path], span.size, span.offset))
    finally:
        for descriptor in opened.values():
            os.close(descriptor)


def _remove(spans: Iterable[Span]) -> None:
    for path in {span.path for span in spans}:
        Path(path).unlink()


def _read_part(table: Table, columns: tuple[str, ...], path: str) -> Iterator[pa.Table]:
    """Yield the Arrow tables of a part file."""
    try:
        yield from read_table(local_path(path), table, columns, path)
    except OSError as error:
        raise DataError("a dump's file cannot be read", where=path, found=error.strerror) from None


def _open_range(
    opened: Callable[[str], AbstractContextManager[IO[bytes]]],
    table: str,
    path: str,
    first: int,
    last: int,
) -> Iterator[OpenRange]:
    with opened(path) as stream:
        yield OpenRange(table, stream, path, first, last)


@contextmanager
def spill_folder(cache_dir: Path) -> Iterator[Path]:
    """Yield a temporary folder for rows on disk. Removes folders of killed runs.

    Raises OutputError (73) if the cache cannot be written.
    """
    cache_folder = cache_dir / "dumps"
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(locked_folder(cache_folder, "rows-"))
        except OSError as error:
            raise cache_not_written(cache_folder, error) from None
        yield folder
