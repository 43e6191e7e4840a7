"""The table of a job on dumps: the dumps' rows as frames, which the job's ``build`` takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import date
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from cmsspark.base import dates
from cmsspark.base.manifests import Manifest
from cmsspark.base.memory import trim
from cmsspark.base.schemas import stored_table
from cmsspark.counting import row_use
from cmsspark.counting.row_use import RowUse
from cmsspark.dumps.dataset_replicas import REPLICA_COLUMNS
from cmsspark.dumps.dump_plan import DumpRows, RucioTables, Transport, read_dumps
from cmsspark.dumps.rucio_rows import UNATTACHED
from cmsspark.dumps.rucio_scan import (
    TABLES,
    RucioScan,
    accessed_before_ms,
    count_uses,
    counts_by_table,
    read_rses,
)
from cmsspark.filesystems.storage import Files
from cmsspark.run.catalogue_snapshots import opened
from cmsspark.sources.accounts import Accounts, load_accounts
from cmsspark.sources.dumps import Dump
from cmsspark.sources.rses import Rses
from cmsspark.sources.rucio import TableCounts

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

    from cmsspark.dumps.dump_frames import Frames
    from cmsspark.run.request import JobRequest


class DumpTable(Protocol):
    """The part of a :class:`cmsspark.run.dump_day.DumpJob` that makes its table."""

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


def make_table(
    job: DumpTable,
    request: JobRequest,
    transport: Transport,
    files: Files,
    dumps: Sequence[Dump],
    more: Mapping[str, pl.DataFrame],
    before: Sequence[Manifest] = (),
) -> tuple[pa.Table, dict[str, Any]]:
    """Return the job's table, and entries of the manifest; ``warnings`` are about this
    day beside those of the days ``before``. Raises DataError (65).
    """
    manifest: dict[str, Any] = {}
    uses: dict[str, RowUse] = {}
    sources = dump_sources(job, transport, dumps)
    rucio = next((dump for dump in dumps if dump.kind == "rucio"), None)
    if rucio is None:
        rows = read_dumps(transport, sources, blocks=job.block_contents)
        frames = rows.frames
    else:
        rses, rse_counts = read_rses(rucio, request.settings.rses, partial(opened, files))
        limit = accessed_before_ms(job.rucio_frames, request.day)
        is_of_locks = "copies" in job.rucio_frames
        # Locks are as of the start of the dump's day (rule 66).
        locks_ms = dates.start_ms(rucio.day or request.day) if is_of_locks else None
        day_ms = dates.timestamp_ms_bounds(request.day)
        scan = RucioScan(rucio, rses, day_ms, limit, locks_ms)
        has_replicas = not job.rucio_frames or "last_access" in job.rucio_frames
        accounts = load_accounts() if is_of_locks else None
        is_check = "differences" in job.rucio_frames
        tables = RucioTables(scan, has_replicas, is_check, accounts)
        rows = read_dumps(transport, sources, storage=rses.storage(), rucio=tables)
        # Before the table: it says whether too many rows are damaged.
        manifest["rucio"], uses = _describe_rucio(rucio, rows, rse_counts)
        frames = rows.frames | _rucio_frames(job, rows, rses, accounts)
    from cmsspark.dumps import dump_frames

    trim()
    uses |= rows.uses
    warnings = row_use.check(uses, before)
    frames |= more
    of_day = dump_frames.as_table(job.build(frames, request.day), job.name, request.day)
    table = dump_frames.to_arrow(of_day, stored_table(job.name).arrow())
    more_entries = job.manifest(frames) if job.manifest else {}
    warnings += more_entries.pop("warnings", [])
    return table, manifest | row_use.describe(uses) | {"warnings": warnings} | more_entries


def dump_sources(job: DumpTable, transport: Transport, dumps: Sequence[Dump]) -> dict[str, Any]:
    """Return the sources of the tables of DBS and PhEDEx, by the tables' names."""
    return {
        name: transport.table(dump, name, job.dbs[name] if dump.kind == "dbs" else REPLICA_COLUMNS)
        for dump in dumps
        if dump.kind != "rucio"
        for name in (job.dbs if dump.kind == "dbs" else dump.tables)
    }


def _rucio_frames(
    job: DumpTable, rows: DumpRows, rses: Rses, accounts: Accounts | None
) -> dict[str, pl.DataFrame]:
    from cmsspark.dumps.dump_frames import copy_frames, rucio_frames

    if accounts is not None:
        return copy_frames(rows.rucio, rows.names, rses.rses, accounts)
    return rucio_frames(
        job.rucio_frames, rows.rucio, rows.names, [rse.name for rse in rses.rses], rses.storage()
    )


def _describe_rucio(
    dump: Dump, rows: DumpRows, rse_counts: TableCounts
) -> tuple[dict[str, Any], dict[str, RowUse]]:
    """Return the entry of the manifest, and what was used of each table. Raises
    DataError (65) where too many rows are damaged.
    """
    read = {table: TableCounts() for table in TABLES if table in dump.tables}
    counts = read | counts_by_table(rows.rucio) | {"RSES": rse_counts}
    unattached = sum(
        int(entry.columns["count"][0]) for entry in rows.rucio if entry.kind == UNATTACHED
    )
    uses: dict[str, RowUse] = {}
    for table in read:
        uses |= count_uses(table, counts[table])
    tables = {name: of_table.as_dict() for name, of_table in sorted(counts.items())}
    entry = {"tables": tables}
    # Which blocks are in their datasets is not read with locks.
    return entry if "DATASET_LOCKS" in read else entry | {"unattached_blocks": unattached}, uses
