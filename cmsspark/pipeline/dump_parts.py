"""A job on dumps by processes of this host: its dumps' part files, where rows are kept meanwhile, and its table.

What the processes work with is imported here, before they are made, once for all. Polars is not: it has threads, which
a fork does not copy.
"""

from __future__ import annotations

import fcntl
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from cmsspark.errors import DataError, OutputError
from cmsspark.kernel.parts import Each, Part
from cmsspark.kernel.presence import REPLICA_COLUMNS
from cmsspark.memory import trim
from cmsspark.schemas import input_table, stored_table
from cmsspark.sources.dumps import Dump
from cmsspark.sources.formats.sqoop_csv import read_table
from cmsspark.storage import local_path
from cmsspark.store.results import StagedRun

if TYPE_CHECKING:
    import polars as pl

    from cmsspark.kernel.dump_frames import Frames


class DumpTable(Protocol):
    """The part of a job that this module uses, of a :class:`cmsspark.pipeline.dump_day.DumpJob`."""

    @property
    def name(self) -> str: ...
    @property
    def dbs(self) -> Mapping[str, tuple[str, ...]]: ...
    @property
    def build(self) -> Callable[[Frames, date], pl.DataFrame]: ...


def parts_of(job: DumpTable, dumps: Sequence[Dump]) -> dict[str, list[Part]]:
    """The part files of each table that the job reads."""
    parts: dict[str, list[Part]] = {}
    for dump in dumps:
        for table, files in dump.tables.items():
            columns = REPLICA_COLUMNS if dump.kind == "phedex" else job.dbs[table]
            # The largest first, so that no process waits for a large one at the end.
            in_order = sorted((file for file in files if file.size), key=lambda file: -file.size)
            parts[table] = [partial(_read_part, f"{dump.kind}/{table}", columns, file.path) for file in in_order]
    return parts


def _read_part(table: str, columns: tuple[str, ...], path: str) -> Iterator[Any]:
    """Arrow tables of a part file."""
    try:
        yield from read_table(local_path(path), input_table(table), columns, path)
    except OSError as error:
        raise DataError("a dump's file cannot be read", where=path, found=error.strerror) from None


def write_by_processes(
    job: DumpTable, day: date, dumps: Sequence[Dump], folder: Path, each: Each, staged: StagedRun
) -> int:
    """Write the job's table into the run and return its rows. ``each`` is ``map``, or something like it."""
    from cmsspark.kernel import dump_frames

    frames = dump_frames.read_frames(parts_of(job, dumps), folder, each)
    trim()
    rows = dump_frames.to_arrow(job.build(frames, day), stored_table(job.name).arrow())
    return staged.write_arrow(rows, job.name)


@contextmanager
def spill_folder(cache_dir: Path) -> Iterator[Path]:
    """A temporary folder for rows on disk. Removes folders of killed runs.

    Raises OutputError (73) where the cache cannot be written.
    """
    cache = cache_dir / "dumps"
    name = uuid.uuid4().hex
    new, folder = cache / f".{name}", cache / name
    try:
        new.mkdir(parents=True)
        lock = (new / "lock").open("w")
    except OSError as error:
        raise OutputError(
            "the cache folder cannot be written",
            where=cache,
            found=error.strerror,
            next_step="name another one in the settings, as cache_dir",
        ) from None
    with lock:
        # Under its final name the folder is locked until this process ends.
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        new.rename(folder)
        try:
            _remove_unlocked(cache)
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _remove_unlocked(cache: Path) -> None:
    for folder in cache.glob("[!.]*"):
        try:
            with (folder / "lock").open("r") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue  # its run is active, or another process removes it
