"""Compaction: a stored day or period as a new run with the same rows in few files. The
old run stays until pruned.

Days that were stored by earlier versions may have hundreds of small files for each
table. The rows of the new run are those of the old one, sorted by the keys of the
table, in files of at most ``staged_runs.FILE_ROWS`` rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cmsspark.base import clock
from cmsspark.base.errors import DataError
from cmsspark.base.manifests import Manifest
from cmsspark.base.periods import Interval
from cmsspark.filesystems.storage import Files, join
from cmsspark.store import lease, results, staged_runs
from cmsspark.store.part_checks import open_stored, stored_parts
from cmsspark.store.part_files import list_parts, read_parts
from cmsspark.store.results import ROWS_OF, CurrentTable, folder_names, stored_intervals
from cmsspark.store.staged_runs import StagedRun, file_count

if TYPE_CHECKING:
    import pyarrow as pa

#: The order of rows in a file: those of one dataset stand together, so that a reader
#: skips the rest.
_ORDER: Final = (
    "stream",
    "dataset_name",
    "site_name",
    "site_tier",
    "kind",
    "data_tier",
    "app",
    "user",
)


@dataclass(frozen=True)
class ManyFiles:
    """A current run whose tables have more files than they need: its id, and of each
    table (files now, files then).
    """

    job: str
    interval: Interval
    run: str
    tables: Mapping[str, tuple[int, int]]

    @property
    def what(self) -> str:
        """The work on it, for messages."""
        return f"{self.job} of {self.interval}"

    @property
    def counts(self) -> tuple[int, int]:
        """Files of all tables, now and then."""
        return sum(now for now, _ in self.tables.values()), sum(
            then for _, then in self.tables.values()
        )


def stored_results(
    files: Files, fout: str, jobs: tuple[str, ...] = ()
) -> Iterator[tuple[str, Interval]]:
    """Yield jobs and their days and periods that have a result, job by job, oldest
    first; ``jobs``: of these only.
    """
    for job in jobs or folder_names(files, fout):
        for interval in stored_intervals(files, fout, job):
            yield job, interval


def many_files(files: Files, fout: str, job: str, interval: Interval) -> ManyFiles | None:
    """Return the current run, where its tables have more files than they need; None
    where they do not, or are no Parquet.

    Raises InputMissing (66) where nothing is stored, DataError (65) for a damaged store.
    """
    _, folder, manifest = results.current_run(files, fout, job, interval)
    tables = {}
    for table, entry in manifest.tables.items():
        if entry.format != "parquet":
            return None
        tables[table] = (
            entry.files or len(list_parts(files, join(folder, table))),
            file_count(entry.rows),
        )
    if all(now <= then for now, then in tables.values()):
        return None
    return ManyFiles(job, interval, manifest.run, tables)


def compact(files: Files, fout: str, job: str, interval: Interval) -> ManyFiles | None:
    """Store the current run as a new run with few files and make it current; return
    what it was made of.

    Returns None where the run has few files already. The rows are the same to the bit,
    and everything that is known of the run is taken over, so nothing is published again
    and no period becomes stale. Holds one table in memory. Raises NotReady (75) where
    another process works on the interval, DataError (65) for a damaged run, OutputError
    (73): the run stays current.
    """
    with lease.hold(
        files, lease.lease_folder(fout, job, interval), f"{job} of {interval}"
    ) as held_lease:
        staged_runs.remove_leftovers(files, fout, job, interval)
        many = many_files(files, fout, job, interval)
        if many is None:
            return None
        _, folder, manifest = results.current_run(files, fout, job, interval)
        staged = staged_runs.stage(files, fout, job, interval, held_lease.check)
        try:
            for table in manifest.tables:
                rows = _rows(files, join(folder, table), table, manifest)
                staged.take_table(rows, table, manifest.document["tables"][table])
            _copy_pages(files, folder, staged)
            staged.commit(_manifest(manifest, many))
        except BaseException:
            staged.abandon()
            raise
    return many


def _manifest(manifest: Manifest, many: ManyFiles) -> dict[str, Any]:
    """Return the manifest of the old run, without what the new one says of itself."""
    before = {table: now for table, (now, _) in many.tables.items()}
    return {
        **{
            name: value
            for name, value in manifest.document.items()
            if name not in ("run", "tables", "store_version")
        },
        ROWS_OF: manifest.rows_run,
        "compacted": {"run": many.run, "files": before, "at": clock.iso()},
    }


def _rows(files: Files, folder: str, table: str, manifest: Manifest) -> pa.Table:
    """Return all rows of a table, sorted. Raises DataError (65) where they are not
    those of the manifest.
    """
    import pyarrow.compute as pc

    rows = read_parts(
        files, stored_parts(files, CurrentTable(folder, manifest), table), open_stored
    )
    count = manifest.tables[table].rows
    if rows.num_rows != count:
        raise DataError(
            f"the manifest says {count:,} rows of {table}",
            where=folder,
            found=f"{rows.num_rows:,} rows",
            next_step="run the day's job again",
        )
    keys = [name for name in _ORDER if name in rows.column_names]
    if not keys:
        return rows
    return rows.take(
        pc.sort_indices(rows, sort_keys=[(key, "ascending") for key in keys])
    ).combine_chunks()


def _copy_pages(files: Files, folder: str, staged: StagedRun) -> None:
    """Copy what lies beside the tables, such as the report."""
    for entry in files.list_dir(folder):
        if not entry.is_dir and entry.name != "manifest.json":
            files.write_bytes(join(staged.folder, entry.name), files.read_bytes(entry.path))
