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

from cmsspark.base.errors import DataError, OutputError
from cmsspark.base.memory import trim
from cmsspark.base.schemas import input_table, stored_table
from cmsspark.dumps.dataset_replicas import REPLICA_COLUMNS
from cmsspark.dumps.parts import Each, Part
from cmsspark.filesystems.storage import local_path
from cmsspark.sources.dumps import Dump
from cmsspark.sources.formats.sqoop_csv import read_table
from cmsspark.sources.registry import REPLICAS
from cmsspark.store.results import StagedRun

if TYPE_CHECKING:
    import polars as pl
    from pyspark.sql import SparkSession

    from cmsspark.dumps.dump_frames import Frames
    from cmsspark.dumps.dump_tables import TableSource
    from cmsspark.dumps.rucio_parts import RucioDump


class DumpTable(Protocol):
    """The part of a job that this module uses, of a :class:`cmsspark.run.dump_day.DumpJob`."""

    @property
    def name(self) -> str: ...
    @property
    def dbs(self) -> Mapping[str, tuple[str, ...]]: ...
    @property
    def build(self) -> Callable[[Frames, date], pl.DataFrame]: ...
    @property
    def manifest(self) -> Callable[[Frames], dict[str, Any]] | None: ...
    @property
    def rucio_frames(self) -> tuple[str, ...]: ...
    @property
    def block_contents(self) -> str: ...
    def sources(self, spark: SparkSession, dumps: list[Dump]) -> dict[str, TableSource]: ...


def parts_of(job: DumpTable, dumps: Sequence[Dump]) -> dict[str, list[Part]]:
    """Return the part files of each table that the job reads."""
    parts: dict[str, list[Part]] = {}
    for dump in dumps:
        for table, files in dump.tables.items() if dump.kind != "rucio" else ():
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
    job: DumpTable,
    day: date,
    dumps: Sequence[Dump],
    folder: Path,
    each: Each,
    staged: StagedRun,
    rses_file: str | None = None,
    more: Frames | None = None,
) -> tuple[int, dict[str, Any]]:
    """Write the job's table into the run; return its rows, and entries of the manifest.

    ``each`` is ``map``, or something like it. ``rses_file``: exceptions to the names of RSEs. ``more``: frames that do
    not come from dumps.
    """
    from cmsspark.dumps.rucio_parts import accessed_before_ms, read_rucio

    rucio = next((dump for dump in dumps if dump.kind == "rucio"), None)
    limit = accessed_before_ms(job.rucio_frames, day)
    found = (
        None
        if rucio is None
        else read_rucio(rucio, day, folder, each, rses_file=rses_file, accessed_before_ms=limit)
    )
    sums = []
    if found is not None and job.rucio_frames:
        # By processes, before this one has threads.
        from cmsspark.dumps.block_replicas import dataset_sums

        sums = list(each(dataset_sums, found.replicas.parts))
    parts = parts_of(job, dumps)
    if found is not None:
        parts[REPLICAS] = found.replicas.parts
    from cmsspark.dumps import dump_frames

    storage = None if found is None else found.rses.storage()
    if job.block_contents:
        frames = _block_frames(job, parts, folder, each)
    elif job.rucio_frames and "last_access" not in job.rucio_frames:
        frames = {}  # what lies where is not needed
    else:
        frames = dump_frames.read_frames(parts, folder, each, storage=storage)
    if found is not None and job.rucio_frames:
        frames |= _rucio_frames(job, found, sums, parts, folder, each)
    trim()
    frames |= more or {}
    rows = dump_frames.to_arrow(job.build(frames, day), stored_table(job.name).arrow())
    of_job = job.manifest(frames) if job.manifest else {}
    return staged.write_arrow(rows, job.name), ({} if found is None else {"rucio": found.as_dict()}) | of_job


def _block_frames(job: DumpTable, parts: dict[str, list[Part]], folder: Path, each: Each) -> dict[str, pl.DataFrame]:
    """DATASETS as it is, and ``block_sums``."""
    from cmsspark.dumps import dump_frames
    from cmsspark.dumps.block_contents import block_contents, sums_by_month

    frames = dump_frames.read_tables({name: parts[name] for name in ("DATASETS", "BLOCKS")}, each)
    known, _ = dump_frames.datasets_in(frames)
    blocks, datasets = frames.pop("BLOCKS"), dump_frames.identities(frames["DATASETS"])
    ids = blocks["block_id"].drop_nulls().unique().sort().to_list()
    is_valid_only = job.block_contents == "valid"
    contents = block_contents(parts["FILES"], ids, known, folder, each, is_valid_only=is_valid_only)
    frames["block_sums"] = sums_by_month(blocks, datasets, contents)
    return frames


def _rucio_frames(
    job: DumpTable, found: RucioDump, sums: list[Any], parts: dict[str, list[Part]], folder: Path, each: Each
) -> dict[str, pl.DataFrame]:
    """Return the frames that only Rucio gives."""
    from cmsspark.dumps import rucio_frames

    rses = [rse.name for rse in found.rses.rses]
    frames = {"rse_sums": rucio_frames.rse_sums(sums, found.replicas.no_block, rses, found.rses.storage())}
    if "last_access" in job.rucio_frames:
        frames["last_access"] = rucio_frames.last_accesses(
            frames["rse_sums"],
            found.replicas.blocks,
            found.replicas.totals.accessed_ms,
            (found.datasets, found.accessed_ms),
        )
    if "differences" in job.rucio_frames:
        frames["differences"] = rucio_frames.differences(parts, found.partitions, found.replicas.blocks, folder, each)
    return frames


@contextmanager
def spill_folder(cache_dir: Path) -> Iterator[Path]:
    """Yield a temporary folder for rows on disk. Removes folders of killed runs.

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
