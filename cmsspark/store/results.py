"""The store: a day's tables written aside, checked, and switched to as a whole.

Layout (``docs/architecture.md``): ``FOUT/<job>/<day>/CURRENT`` names the run that counts; ``runs/<id>/`` holds its
tables and its ``manifest.json``. A run without a manifest never became current, and a failed run changes nothing.
"""

from __future__ import annotations

import json
import os
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cmsspark import __version__, clock
from cmsspark.errors import CmssparkError, DataError, InputMissing, OutputError
from cmsspark.periods import Interval, options
from cmsspark.readable import json_text
from cmsspark.schemas import Table, stored_table
from cmsspark.storage import Entry, Files, is_local, join, local_path

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

#: Of this module's layout and manifest; a reader refuses what is newer.
STORE_VERSION = 1
#: Rows of a part file of a day's tables: 128 MB at the 20 bytes or less that a row takes when it is packed.
FILE_ROWS = 6_000_000
#: Bytes at the end of a Parquet file in which its footer mostly is.
_FOOTER_BYTES = 65_536


@dataclass(frozen=True)
class CurrentTable:
    """A table's current result: the location of its folder of part files, and its run's manifest."""

    path: str
    manifest: dict[str, Any]


@dataclass
class StagedRun:
    """A run being written. Tables are added with :meth:`write`; nothing counts before :meth:`commit`."""

    files: Files
    day_folder: str
    run_id: str
    job: str
    day: Interval
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    #: Called before the run is made current; what it raises leaves the previous result.
    before_commit: Callable[[], None] | None = None

    @property
    def folder(self) -> str:
        """Location of the run's folder."""
        return join(self.day_folder, "runs", self.run_id)

    def table_path(self, table: str) -> str:
        """Location of a table's folder of part files."""
        return join(self.folder, table)

    def write(self, rows: DataFrame, table: str, fmt: str = "parquet") -> int:
        """Write ``rows`` as ``table``, read it back, and return the number of rows.

        The columns must be those of ``schemas/tables/<table>.yaml`` (70 if not: a bug of ours). Raises OutputError
        (73) when what can be read back is not what was written.
        """
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        schema = stored_table(table)
        _check_columns(rows, schema)
        written = Observation(f"{table}-{self.run_id}")
        observed = rows.observe(written, F.count(F.lit(1)).alias("rows"))
        target = spark_location(self.table_path(table))
        if fmt == "csv":
            observed.write.csv(target, header=True, escape='"')
        else:
            observed.write.parquet(target)
        wanted = int(written.get["rows"])
        found = self._count_back(schema) if fmt == "parquet" else _count_csv(rows.sparkSession, target, schema)
        return self._enter(schema, fmt, wanted, found)

    def write_arrow(self, rows: pa.Table, table: str) -> int:
        """As :meth:`write`, without Spark's tasks: Parquet parts of ``FILE_ROWS`` rows, from this process."""
        schema = stored_table(table)
        if not rows.schema.equals(schema.arrow()):
            raise RuntimeError(f"table {table} wants columns {schema.arrow()}, the job made {rows.schema}")
        folder = self.table_path(table)
        self.files.make_dirs(folder)
        of_table = uuid.uuid4()
        for number in range(file_count(rows.num_rows)):
            # As Spark names and packs its parts; without Arrow's own notes every reader sees the same types.
            name = f"part-{number:05}-{of_table}-c000.snappy.parquet"
            part = rows.slice(number * FILE_ROWS, FILE_ROWS)
            if is_local(folder):
                _write_part(part, Path(local_path(folder)) / name)
                continue
            with tempfile.TemporaryDirectory(prefix="cmsspark-") as aside:
                copy = Path(aside, name)
                _write_part(part, copy)
                self.files.put(copy, join(folder, name))
        return self._enter(schema, "parquet", rows.num_rows, self._count_back(schema))

    def _count_back(self, schema: Table) -> int:
        """Rows that a reader finds in the parts of a Parquet table, by their footers."""
        parts = self.files.list_dir(self.table_path(schema.name))
        return sum(_rows_of(self.files, part, schema) for part in parts if part.name.startswith("part-"))

    def _enter(self, schema: Table, fmt: str, wanted: int, found: int) -> int:
        """Enter a table that was written in the manifest. Raises OutputError (73) where it is not what was written."""
        table = schema.name
        if wanted != found:
            raise OutputError(
                f"{wanted} rows of {table} were written", where=self.table_path(table), found=f"{found} rows read back"
            )
        parts = [entry for entry in self.files.list_dir(self.table_path(table)) if entry.name.startswith("part-")]
        self.tables[table] = {
            "rows": found,
            "format": fmt,
            "schema": schema.fingerprint(),
            "files": len(parts),
            "bytes": sum(part.size for part in parts),
        }
        return found

    def commit(self, manifest: Mapping[str, Any]) -> CurrentTable:
        """Write the manifest and make this run the day's current one, in one step."""
        whole = {
            "store_version": STORE_VERSION,
            "cmsspark_version": __version__,
            "job": self.job,
            "day": self.day.isoformat(),
            "run": self.run_id,
            "tables": self.tables,
            **manifest,
        }
        content = json_text(whole, indent=1).encode()
        if self.before_commit is not None:
            self.before_commit()
        self.files.write_bytes(join(self.folder, "manifest.json"), content)
        self.files.write_bytes(join(self.day_folder, "CURRENT"), json.dumps({"run": self.run_id}).encode())
        return CurrentTable(self.folder, whole)

    def abandon(self) -> None:
        """Remove what was written; the previous result stays as it was."""
        self.files.delete(self.folder)


def stage(
    files: Files, fout: str, job: str, day: Interval, before_commit: Callable[[], None] | None = None
) -> StagedRun:
    """Begin a run of ``job`` for ``day``, or for a period, in the store ``fout``."""
    run = StagedRun(files, _day_folder(fout, job, day), clock.new_run_id(), job, day, before_commit=before_commit)
    files.make_dirs(run.folder)
    return run


def clear_leftovers(files: Files, fout: str, job: str, day: Interval) -> list[str]:
    """Remove what processes that were killed left of the day: runs without a manifest, files never renamed.

    Only for who holds the day's lease: a run that is being written looks the same. Returns what was removed.
    """
    folder = _day_folder(fout, job, day)
    runs = join(folder, "runs")
    left = []
    if files.stat(runs) is not None:
        left = [run.path for run in files.list_dir(runs) if files.stat(join(run.path, "manifest.json")) is None]
        left += [entry.path for entry in files.list_dir(folder) if entry.name.endswith(".part")]
    for path in left:
        files.delete(path)
    return left


def current(files: Files, fout: str, job: str, table: str, day: Interval) -> CurrentTable:
    """The current result of ``table`` for ``day``, or for a period.

    Raises InputMissing (66) that names the days there are, DataError (65) where the store is damaged.
    """
    folder = _day_folder(fout, job, day)
    if files.stat(join(folder, "CURRENT")) is None:
        raise InputMissing(
            f"no result of {table} is stored for {day}",
            where=join(fout, job),
            found=_days_there(files, fout, job),
            next_step=f"run_spark {job} {options(day)} --fout {fout}",
        )
    again = f"run {job} again for {day}"
    run = _read_json(files, join(folder, "CURRENT"), again).get("run")
    if not isinstance(run, str):
        raise DataError("CURRENT does not name a run", where=join(folder, "CURRENT"), next_step=again)
    place = join(folder, "runs", run)
    if files.stat(join(place, "manifest.json")) is None:
        raise DataError(f"the manifest of run {run} is gone", where=place, next_step=again)
    manifest = _read_json(files, join(place, "manifest.json"), again)
    tables = manifest.get("tables")
    if not isinstance(tables, dict):
        raise DataError(f"the manifest of run {run} names no tables", where=place, next_step=again)
    if table not in tables:
        raise InputMissing(f"run {run} has no table {table}", where=place, found=", ".join(tables))
    if files.stat(join(place, table)) is None:
        raise DataError(f"the table {table} of run {run} is gone", where=place, next_step=again)
    return CurrentTable(join(place, table), manifest)


def run_table(files: Files, fout: str, job: str, table: str, day: date, run: str) -> CurrentTable:
    """The result of ``table`` in a run of ``day`` that is, or was, current; the beginning of the run's id will do.

    Raises InputMissing (66) with the runs there are, where none or several begin so; DataError (65) for a damaged one.
    """
    runs = join(_day_folder(fout, job, day), "runs")
    there = [entry.name for entry in files.list_dir(runs)] if files.stat(runs) is not None else []
    found = [name for name in there if name.startswith(run)]
    if len(found) != 1:
        raise InputMissing(f"a run of {job} of {day} whose id begins with {run}", where=runs, found=", ".join(there))
    place = join(runs, found[0])
    manifest = _read_json(files, join(place, "manifest.json"), "compare another run")
    if table not in manifest.get("tables", {}) or files.stat(join(place, table)) is None:
        raise DataError(f"run {found[0]} has no table {table}", where=place, next_step="compare another run")
    return CurrentTable(join(place, table), manifest)


def _read_json(files: Files, path: str, next_step: str) -> dict[str, Any]:
    """The JSON object in a file of the store. Raises DataError (65) where it is none."""
    try:
        found = json.loads(files.read_bytes(path))
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise DataError("a JSON object is wanted", where=path, found="something else", next_step=next_step)
    return found


def history(files: Files, fout: str, job: str, day: date, count: int) -> list[dict[str, Any]]:
    """The manifests of the last ``count`` stored days before ``day``, newest first; what cannot be read is left out."""
    base = join(fout, job)
    if files.stat(base) is None:
        return []
    names = sorted((entry.name for entry in files.list_dir(base) if entry.is_dir), reverse=True)
    found = []
    for name in [name for name in names if name < day.isoformat()][:count]:
        try:
            run = json.loads(files.read_bytes(join(base, name, "CURRENT")))["run"]
            found.append(json.loads(files.read_bytes(join(base, name, "runs", run, "manifest.json"))))
        except (CmssparkError, ValueError, KeyError):
            continue
    return found


def manifests(files: Files, fout: str) -> Iterator[dict[str, Any]]:
    """The manifest of every run in the store that was once current, job by job, oldest day first.

    What cannot be read, and what is no result (names that begin with a dot, folders that are no day), is left out.
    """
    if files.stat(fout) is None:
        return
    for job in _folders(files, fout):
        for day in _folders(files, job):
            runs = join(day, "runs")
            for run in _folders(files, runs) if files.stat(runs) is not None else ():
                try:
                    found = json.loads(files.read_bytes(join(run, "manifest.json")))
                except (CmssparkError, ValueError):
                    continue
                if isinstance(found, dict):
                    yield found


def _folders(files: Files, path: str) -> list[str]:
    return [entry.path for entry in files.list_dir(path) if entry.is_dir and not entry.name.startswith(".")]


def spark_location(location: str) -> str:
    """A location as Spark takes it: local ones with their scheme, so that a cluster's default does not catch them."""
    return "file://" + _absolute(location) if is_local(location) else location


def _absolute(location: str) -> str:
    return os.path.abspath(local_path(location))


def _day_folder(fout: str, job: str, day: Interval) -> str:
    return join(fout if not is_local(fout) else _absolute(fout), job, day.isoformat())


def _days_there(files: Files, fout: str, job: str) -> str:
    base = join(fout, job)
    if files.stat(base) is None:
        return f"nothing of {job}"
    folders = [entry for entry in files.list_dir(base) if entry.is_dir]
    # A day whose runs all failed has a folder and no result.
    days = [entry.name for entry in folders if files.stat(join(entry.path, "CURRENT")) is not None]
    shown = ", ".join(days[-10:])
    return f"days {shown}" + (f" and {len(days) - 10} before" if len(days) > 10 else "") if days else "no day"


def _check_columns(rows: DataFrame, schema: Table) -> None:
    wanted = [(f.name, f.dataType.simpleString()) for f in schema.spark().fields]
    there = [(f.name, f.dataType.simpleString()) for f in rows.schema.fields]
    if wanted != there:
        raise RuntimeError(f"table {schema.name} wants columns {wanted}, the job made {there}")


def _write_part(rows: pa.Table, part: Path) -> None:
    import pyarrow.parquet as pq

    try:
        pq.write_table(rows, part, compression="snappy", store_schema=False)
    except OSError as error:
        raise OutputError("the result cannot be written", where=part, found=error.strerror or error) from None


def _count_csv(spark: SparkSession, location: str, schema: Table) -> int:
    return int(spark.read.csv(location, header=True, schema=schema.spark(), escape='"', multiLine=True).count())


def _rows_of(files: Files, part: Entry, schema: Table) -> int:
    """The rows of a Parquet file anywhere, from its end alone. Raises OutputError (73) where it is of other columns."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    end = files.read_end(part.path, _FOOTER_BYTES)
    # The last 8 bytes: the footer's length, and four letters that mark the format.
    size = int.from_bytes(end[-8:-4], "little") + 8
    if size > len(end):
        end = files.read_end(part.path, size)
    footer = pq.read_metadata(pa.BufferReader(end))
    names = footer.schema.to_arrow_schema().names
    if names != schema.names:
        raise OutputError("a part with other columns was written", where=part.path, found=names)
    return int(footer.num_rows)


def file_count(rows: int) -> int:
    """The part files that a table of so many rows is written to."""
    return max(1, -(-rows // FILE_ROWS))
