"""Runs that are being written: tables are written aside and checked, then the whole run
becomes current in one step.

A run without a manifest never became current, and a failed run changes nothing.
"""

from __future__ import annotations

import json
import tempfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from cmsspark import __version__
from cmsspark.base import dates
from cmsspark.base.errors import InputMissing, OutputError
from cmsspark.base.manifests import Manifest, compact
from cmsspark.base.periods import Interval
from cmsspark.base.schemas import Table, stored_table
from cmsspark.base.text.readable import json_text
from cmsspark.filesystems.storage import Entry, Files, is_local, join, local_path
from cmsspark.store.part_files import (
    check_columns,
    count_csv_rows,
    count_part_rows,
    list_parts,
    open_part,
    plain_texts,
    read_parts,
    write_part,
)
from cmsspark.store.results import ROWS_OF, CurrentTable, interval_folder, spark_location

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

#: Version of the layout and the manifest; a reader refuses newer ones.
STORE_VERSION = 1
#: Rows of a part file: at most 128 MB, as a packed row takes 20 bytes or less.
FILE_ROWS = 6_000_000
_WRITE_AGAIN = "run it again; where it happens again, check the disk of the store"


class StagedRun(msgspec.Struct):
    """A run that is being written. :meth:`write` adds tables; :meth:`commit` makes the
    run current.
    """

    files: Files
    interval_folder: str
    run_id: str
    job: str
    interval: Interval
    tables: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)
    #: Called before the run becomes current; an error that it raises keeps the previous result.
    before_commit: Callable[[], None] | None = None

    @property
    def folder(self) -> str:
        """Location of the run's folder."""
        return join(self.interval_folder, "runs", self.run_id)

    def table_path(self, table: str) -> str:
        """Return the location of a table's folder of part files."""
        return join(self.folder, table)

    def write(self, rows: DataFrame, table: str, fmt: str = "parquet") -> int:
        """Write ``rows`` as ``table``, read it back, and return the number of rows.

        The columns must be those of ``schemas/tables/<table>.yaml`` (70 if not: a bug
        of ours). Raises OutputError (73) if the rows read back are not the rows
        written.
        """
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        schema = stored_table(table)
        check_columns(rows, schema)
        written = Observation(f"{table}-{self.run_id}")
        observed = rows.observe(written, F.count(F.lit(1)).alias("rows"))
        self._make_table(table)
        target = spark_location(self.table_path(table))
        # The folder is there, and empty.
        if fmt == "csv":
            # Spark would trim texts.
            spaces = {"ignoreLeadingWhiteSpace": False, "ignoreTrailingWhiteSpace": False}
            observed.write.mode("append").csv(target, header=True, escape='"', **spaces)
        else:
            observed.write.mode("append").parquet(target)
        return self._add_table(
            schema, fmt, int(written.get["rows"]), self._count_back(schema, fmt)
        )

    def write_arrow(self, rows: pa.Table, table: str) -> int:
        """Write as :meth:`write` does, without Spark's tasks: Parquet parts of
        ``FILE_ROWS`` rows, from this process.

        Texts may be plain or dictionary arrays: the files are the same.
        """
        schema = stored_table(table)
        if not plain_texts(rows.schema).equals(schema.arrow()):
            raise RuntimeError(
                f"table {table} wants columns {schema.arrow()}, the job made {rows.schema}"
            )
        self._write_parts(rows, table)
        return self._add_table(schema, "parquet", rows.num_rows, self._count_back(schema))

    def take_table(self, rows: pa.Table, table: str, entry: Mapping[str, Any]) -> None:
        """Write the rows of another run's table, whatever version of its schema they
        have, with its ``entry`` in that manifest. Raises OutputError (73) if the
        rows read back are not these rows.
        """
        folder = self.table_path(table)
        self._write_parts(rows, table)
        parts = list_parts(self.files, folder)
        if not read_parts(
            self.files, parts, lambda files, part: open_part(files, part.path)
        ).equals(rows):
            raise OutputError(
                f"the rows of {table} are not those that were written",
                where=folder,
                found="other rows read back",
                next_step=_WRITE_AGAIN,
            )
        self.tables[table] = {**entry, **self._files_entry(parts, table)}

    def _make_table(self, table: str) -> None:
        """Make the folder of a table; only the owner can enter that of a table with
        rows of single people.
        """
        folder = self.table_path(table)
        self.files.make_dirs(folder)
        if _is_private(table):
            self.files.set_mode(folder, 0o700)

    def _write_parts(self, rows: pa.Table, table: str) -> None:
        folder = self.table_path(table)
        self._make_table(table)
        table_id = uuid.uuid4()
        for number in range(file_count(rows.num_rows)):
            # Named and packed as Spark does; without Arrow's own metadata every reader
            # sees the same types.
            name = f"part-{number:05}-{table_id}-c000.snappy.parquet"
            part = rows.slice(number * FILE_ROWS, FILE_ROWS)
            if is_local(folder):
                write_part(part, Path(local_path(folder)) / name)
                continue
            with tempfile.TemporaryDirectory(prefix="cmsspark-") as aside:
                copy = Path(aside, name)
                write_part(part, copy)
                self.files.put(copy, join(folder, name))

    def _count_back(self, schema: Table, fmt: str = "parquet") -> int:
        """Count the rows in the parts of a table: by the footers of Parquet, by reading CSV."""
        count = count_csv_rows if fmt == "csv" else count_part_rows
        return sum(
            count(self.files, part, schema)
            for part in list_parts(self.files, self.table_path(schema.name), fmt)
        )

    def _add_table(self, schema: Table, fmt: str, written: int, read_back: int) -> int:
        """Add a written table to the manifest. Raises OutputError (73) if rows were
        lost or multiplied.
        """
        table, folder = schema.name, self.table_path(schema.name)
        if written != read_back:
            raise OutputError(
                f"{table} has not the {written} rows that were written",
                where=folder,
                found=f"{read_back} read back",
                next_step=_WRITE_AGAIN,
            )
        parts = list_parts(self.files, folder, fmt)
        self.tables[table] = {
            "rows": written,
            "format": fmt,
            "schema": schema.fingerprint(),
            **self._files_entry(parts, table),
        }
        return written

    def _files_entry(self, parts: Sequence[Entry], table: str) -> dict[str, Any]:
        """Return the entry of a table's part files in the manifest; reads each part
        once for its SHA-256.
        """
        if _is_private(table):
            for part in parts:
                self.files.set_mode(part.path, 0o600)
        return {
            "files": len(parts),
            "bytes": sum(part.size for part in parts),
            "sha256": {part.name: self.files.sha256(part.path) for part in parts},
        }

    def commit(self, manifest: Mapping[str, Any]) -> CurrentTable:
        """Write the manifest and make this run the current one of its day or period, in one step."""
        document = {
            "store_version": STORE_VERSION,
            "cmsspark_version": __version__,
            "job": self.job,
            "day": self.interval.isoformat(),
            "run": self.run_id,
            "tables": self.tables,
            **manifest,
        }
        done = CurrentTable(self.folder, Manifest.from_dict(document))
        content = json_text(compact(document), indent=1).encode()
        if self.before_commit is not None:
            self.before_commit()
        self.files.write_bytes(join(self.folder, "manifest.json"), content)
        pointer = {
            "run": self.run_id,
            **({ROWS_OF: done.manifest.rows_of} if done.manifest.rows_of else {}),
        }
        self.files.write_bytes(join(self.interval_folder, "CURRENT"), json.dumps(pointer).encode())
        return done

    def abandon(self) -> None:
        """Remove the run's files; the previous result stays. A run that is current
        already stays, too.
        """
        if not self._is_current():
            self.files.delete(self.folder)

    def _is_current(self) -> bool:
        """Return whether CURRENT names this run: a run may fail, or be ended, after it
        was switched to.
        """
        try:
            content = self.files.read_bytes(join(self.interval_folder, "CURRENT"))
        except InputMissing:
            return False
        return self.run_id.encode() in content


def stage(
    files: Files,
    fout: str,
    job: str,
    interval: Interval,
    before_commit: Callable[[], None] | None = None,
    began_ms: int | None = None,
) -> StagedRun:
    """Begin a run of ``job`` for ``interval`` in the store ``fout``. ``began_ms``: its
    start, by default now.
    """
    folder = interval_folder(fout, job, interval)
    run = StagedRun(
        files, folder, dates.new_run_id(began_ms), job, interval, before_commit=before_commit
    )
    files.make_dirs(run.folder)
    return run


def remove_leftovers(files: Files, fout: str, job: str, interval: Interval) -> list[str]:
    """Remove leftovers of killed runs: runs without a manifest, files that were never
    renamed. Returns their paths.

    Only the holder of the lease may call this: a run that is being written looks the same.
    """
    folder = interval_folder(fout, job, interval)
    runs = join(folder, "runs")
    leftovers = []
    if files.stat(runs) is not None:
        leftovers = [
            run.path
            for run in files.list_dir(runs)
            if files.stat(join(run.path, "manifest.json")) is None
        ]
        leftovers += [
            entry.path for entry in files.list_dir(folder) if entry.name.endswith(".part")
        ]
    for path in leftovers:
        files.delete(path)
    return leftovers


def _is_private(table: str) -> bool:
    """Return whether a table has rows of single people. A table of another version may
    have no schema here.
    """
    try:
        return stored_table(table).is_private
    except FileNotFoundError:
        return False


def file_count(rows: int) -> int:
    """Return the number of part files of a table of so many rows."""
    return max(1, -(-rows // FILE_ROWS))
