"""The catalogue snapshots of a run: opened from the cache, or built from the dumps that
were chosen.

Each has a folder in the cache, is built once for its dumps and replaced when it is
damaged; old ones go.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO, Any, Final

import msgspec
import numpy as np

from cmsspark.base.buffers import from_numpy
from cmsspark.base.errors import OutputError, os_error_number
from cmsspark.base.private_folders import cache_not_written, locked_folder
from cmsspark.base.schemas import input_table
from cmsspark.counting.catalogue import (
    FORMAT,
    Catalogue,
    DamagedSnapshot,
    Replicas,
    Report,
    check_catalogue,
    is_no_damage,
)
from cmsspark.counting.catalogue_build import MapParts, Part, build_catalogue, build_replicas
from cmsspark.filesystems.storage import Files, unreadable
from cmsspark.sources.dumps import Dump
from cmsspark.sources.formats.sqoop_csv import read_table
from cmsspark.sources.phedex import read_disk_replicas
from cmsspark.sources.registry import REPLICAS
from cmsspark.sources.rses import StorageSites, load_sites, with_jobs_sites
from cmsspark.store.part_files import open_part

#: Snapshots kept in the cache folder; a running task keeps the files that it has mapped.
KEPT: Final = 4
#: Makes parts of (``block_name`` or its hash, ``site``): replicas of blocks on disk.
#: Rows lie in a folder meanwhile.
DiskReplicas = Callable[[Path], list[Part]]


class Snapshots(msgspec.Struct, frozen=True):
    """Folders of the snapshots, whether any was built just now, and the report of the
    catalogue's build.

    ``catalogue`` and ``report`` are None if no file is looked up in it;
    ``job_inputs``, the catalogue of the names of blocks and datasets, is None without a
    stream of jobs.
    """

    catalogue: Path | None
    replicas: Path | None
    built: bool
    report: Report | None
    job_inputs: Path | None = None


def open_snapshots(
    files: Files,
    dbs: Dump,
    replicas: Dump | None,
    cache: Path,
    map_parts: MapParts = map,
    *,
    rses_file: str | None = None,
    sites: StorageSites | None = None,
    disk_replicas: DiskReplicas | None = None,
    has_accesses: bool = True,
    has_jobs: bool = False,
) -> Snapshots:
    """Return the snapshots of these dumps; without replicas there is none of them.

    ``map_parts`` works on parts, as ``map`` does. ``rses_file``: exceptions to the
    sites of Rucio's RSEs. ``sites``: where the jobs of a site have their data.
    ``disk_replicas``: makes the parts of Rucio's replicas on
    disk elsewhere than in ``map_parts``. ``has_accesses``: files are looked up in a
    catalogue. ``has_jobs``: blocks and datasets are. Raises DataError (65) naming a
    damaged file of a dump.
    """
    catalogue, job_inputs = None, None
    built = built_jobs = False
    if has_accesses:
        build = partial(_build_catalogue, files, dbs, map_parts)
        identity = dbs.identity(("FILES", "DATASETS"))
        catalogue, built = open_or_build(cache, "catalogue", identity, build, check_catalogue)
    if has_jobs:
        build = partial(_build_job_inputs, files, dbs, map_parts)
        identity = dbs.identity(("BLOCKS", "DATASETS"))
        job_inputs, built_jobs = open_or_build(
            cache, "job-inputs", identity, build, check_catalogue
        )
    report = None if catalogue is None else Catalogue(catalogue).report
    if replicas is None:
        return Snapshots(catalogue, None, built or built_jobs, report, job_inputs)
    both = dbs.identity(("BLOCKS",)) + replicas.identity()
    make: DiskReplicas = partial(_parts_of_phedex, files, replicas)
    if replicas.kind == "rucio":
        both += repr(sorted(load_sites(rses_file).items()))
        make = disk_replicas or partial(_parts_of_rucio, files, replicas, map_parts, rses_file)
    if sites:
        both += repr(sorted(sites.items()))
    build = partial(_build_replicas, files, dbs, map_parts, make, sites or {})
    at_sites, built_too = open_or_build(cache, "replicas", both, build, Replicas)
    return Snapshots(catalogue, at_sites, built or built_jobs or built_too, report, job_inputs)


def list_warnings(report: Report, dbs: Dump) -> list[str]:
    """Return warnings about parts of FILES in which columns seem to have moved, with file and row."""
    warnings = []
    for suspect in report.suspects:
        file = dbs.tables["FILES"][suspect["part"]].path
        for count, row, problem in (
            (
                suspect["orphans"],
                suspect["first_orphan"],
                "name a dataset that is not in DATASETS",
            ),
            (
                suspect["odd_names"],
                suspect["first_odd_name"],
                "have names that do not begin with a slash",
            ),
        ):
            if count:
                share = f"{count:,} of {suspect['rows']:,} rows of {file}"
                warnings.append(
                    f"dbs: {share} {problem}, the first in row {row:,}: have columns moved?"
                )
    return warnings


def _build_catalogue(files: Files, dbs: Dump, map_parts: MapParts, folder: Path) -> None:
    datasets = chain.from_iterable(
        part() for part in _parts(files, dbs, "DATASETS", ("dataset_id", "dataset"))
    )
    columns = ("logical_file_name", "block_id", "dataset_id", "file_id")
    build_catalogue(folder, _parts(files, dbs, "FILES", columns), datasets, map_parts=map_parts)


def _build_job_inputs(files: Files, dbs: Dump, map_parts: MapParts, folder: Path) -> None:
    """Build a catalogue of the names of blocks and of datasets, in which a name's block
    is its own, if any.

    No name is of both, as that of a block has a ``#``.
    """
    datasets = chain.from_iterable(
        part() for part in _parts(files, dbs, "DATASETS", ("dataset_id", "dataset"))
    )
    parts = [partial(_read_blocks, files, part.path) for part in dbs.tables["BLOCKS"]]
    parts += [partial(_read_datasets, files, part.path) for part in dbs.tables["DATASETS"]]
    build_catalogue(folder, parts, datasets, map_parts=map_parts)


def _read_blocks(files: Files, path: str) -> Iterator[Any]:
    """Yield tables (name, block id, dataset id, block id) of one part of BLOCKS."""
    for table in _read_rows(files, "BLOCKS", ("block_name", "block_id", "dataset_id"), path):
        yield table.append_column("row_id", table.column(1))


def _read_datasets(files: Files, path: str) -> Iterator[Any]:
    """Yield tables (name, null, dataset id, dataset id) of one part of DATASETS."""
    for table in _read_rows(files, "DATASETS", ("dataset", "dataset_id"), path):
        no_block = from_numpy(
            np.zeros(table.num_rows, np.int64), np.zeros(table.num_rows, np.bool_)
        )
        yield table.add_column(1, "block_id", no_block).append_column("row_id", table.column(1))


def _build_replicas(
    files: Files,
    dbs: Dump,
    map_parts: MapParts,
    disk_replicas: DiskReplicas,
    sites: StorageSites,
    folder: Path,
) -> None:
    blocks = _parts(files, dbs, "BLOCKS", ("block_id", "block_name"))
    spill = folder / "spill"
    spill.mkdir()
    replicas = disk_replicas(spill)
    if sites:
        replicas = [partial(_read_part, part, sites) for part in replicas]
    build_replicas(folder, blocks, replicas, map_parts)
    shutil.rmtree(spill)


def _read_part(part: Part, sites: StorageSites) -> Iterator[Any]:
    for table in part():
        yield with_jobs_sites(table, sites)


def _parts_of_phedex(files: Files, phedex: Dump, spill: Path) -> list[Part]:
    del spill
    return [partial(_read_replicas, files, part.path) for part in phedex.tables[REPLICAS]]


def _parts_of_rucio(
    files: Files, rucio: Dump, map_parts: MapParts, rses_file: str | None, spill: Path
) -> list[Part]:
    """Return block replicas on disk, from the replicas of files."""
    # Most runs have a snapshot, and need none of these modules.
    from cmsspark.dumps.process_transport import ProcessTransport
    from cmsspark.dumps.rucio_replicas import spill_disk_replicas
    from cmsspark.dumps.rucio_scan import RucioScan, read_rses

    opener = partial(opened, files)
    rses, _ = read_rses(rucio, rses_file, opener)
    return spill_disk_replicas(ProcessTransport(spill, map_parts, opener), RucioScan(rucio, rses))


@contextmanager
def opened(files: Files, path: str) -> Iterator[IO[bytes]]:
    """Yield a file of a dump, open on this host. Raises an error that names it, also
    while it is read.
    """
    try:
        with open_part(files, path) as stream:
            yield stream
    except OSError as error:
        raise unreadable(path, error) from None


def _parts(files: Files, dump: Dump, table: str, columns: tuple[str, ...]) -> list[Part]:
    return [partial(_read_rows, files, table, columns, part.path) for part in dump.tables[table]]


def _read_rows(files: Files, table: str, columns: tuple[str, ...], path: str) -> Iterator[Any]:
    """Yield Arrow tables of one part of a DBS table."""
    with opened(files, path) as stream:
        yield from read_table(stream, input_table(f"dbs/{table}"), columns, path)


def _read_replicas(files: Files, path: str) -> Iterator[Any]:
    """Yield Arrow tables of the disk replicas in one part of a PhEDEx snapshot."""
    with opened(files, path) as stream:
        yield from read_disk_replicas(stream, path)


def open_or_build(
    cache: Path,
    kind: str,
    fingerprint: str,
    build: Callable[[Path], None],
    check: Callable[[Path], object] = lambda folder: None,
) -> tuple[Path, bool]:
    """Return the snapshot's folder in ``cache``, built if it is not there; True beside
    it when it was.

    ``check`` opens it: one that is damaged is removed and built anew. Two builders at
    once each work in a folder of their own; the first to finish is used by both. Old
    snapshots of the same kind go, but the newest ``KEPT``, and what killed builders
    left. Raises OutputError (73) if the cache cannot be written.
    """
    name = f"{kind}-v{FORMAT}-{hashlib.sha256(fingerprint.encode()).hexdigest()[:24]}"
    folder = cache / name
    if (folder / "meta.json").exists():
        try:
            check(folder)
        except DamagedSnapshot:
            _remove_damaged(folder)
        else:
            with suppress(PermissionError):
                os.utime(folder)  # pruning goes by age; another user's snapshot serves as it is
            return folder, False
    with ExitStack() as stack:
        try:
            aside = stack.enter_context(locked_folder(cache, f".{kind}-v{FORMAT}-"))
        except OSError as error:
            raise cache_not_written(cache, error) from None
        try:
            build(aside)
            (aside / "lock").unlink()
        except (OSError, OutputError) as error:
            if (written := _not_written(error, cache)) is None:
                raise
            raise written from None
        try:
            aside.rename(folder)
        except OSError:
            if not (folder / "meta.json").exists():
                raise
    prefix = f"{kind}-v"
    ages: list[tuple[float, Path]] = []
    for snapshot in cache.glob(f"{prefix}*"):
        # Another builder may prune at the same time.
        with suppress(FileNotFoundError):
            ages.append((snapshot.stat().st_mtime, snapshot))
    for _, old in sorted(ages, reverse=True)[KEPT:]:
        shutil.rmtree(old, ignore_errors=True)
    return folder, True


def _not_written(error: OSError | OutputError, cache: Path) -> OutputError | None:
    """Return the error (73) for a snapshot that could not be built; None if the
    cache's disk is not at fault.
    """
    number = os_error_number(error)  # processes of the pool hand it over as an error of ours
    if not isinstance(error, OSError) or number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return OutputError(
            "there is no room for the catalogue's snapshot",
            where=cache,
            found=error.found if isinstance(error, OutputError) else os.strerror(number),
            next_step="free 40 bytes for each file in DBS, or name another folder in the settings, as cache_dir",
        )
    if is_no_damage(error):
        return None
    return OutputError(
        "the catalogue's snapshot cannot be written",
        where=error.filename or cache,
        found=error.strerror or error,
        next_step="check that disk, or name another folder in the settings, as cache_dir",
    )


def _remove_damaged(folder: Path) -> None:
    """Remove a snapshot; a task that has mapped its files keeps them. Raises OSError."""
    aside = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}")
    with suppress(FileNotFoundError):  # another run was faster
        folder.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)
