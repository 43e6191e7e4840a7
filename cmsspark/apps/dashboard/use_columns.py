"""The columns of use that tables of datasets, sites and applications share, and their cells."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from cmsspark.apps.dashboard.formats import ratio
from cmsspark.apps.dashboard.segment import SUMS
from cmsspark.apps.dashboard.snapshot import Snapshot
from cmsspark.apps.dashboard.tables import Column
from cmsspark.apps.dashboard.use import OF_JOBS, integer

_COLUMNS: Final = {
    column.name: column
    for column in (
        Column("nacc", "Accesses", "count"),
        Column(
            "remote_share", "Remote", "share", "remote accesses among those whose log records it"
        ),
        Column("read_bytes", "Read", "bytes", "by accesses"),
        Column("job_count", "Jobs", "count", "jobs are not accesses"),
        Column("job_read_bytes", "Read by jobs", "bytes"),
        Column("cpu_ms", "CPU hours", "ms", "of jobs"),
    )
}
#: The columns of most tables.
USUAL: Final = ("nacc", "remote_share", "read_bytes", "job_count", "cpu_ms")


def use_columns(*names: str) -> tuple[Column, ...]:
    """Return the columns of these names."""
    return tuple(_COLUMNS[name] for name in names)


def stored_columns(snapshot: Snapshot, columns: Iterable[Column]) -> tuple[Column, ...]:
    """Return the columns without those of jobs where no jobs are stored."""
    return tuple(column for column in columns if snapshot.has_jobs or column.name not in OF_JOBS)


def use_cells(sums: Sequence[Any]) -> dict[str, Any]:
    """Column → its value, of sums in the order of ``SUMS``."""
    cells: dict[str, Any] = {name: integer(value) for name, value in zip(SUMS, sums, strict=True)}
    return with_remote_share(cells)


def with_remote_share(sums: Mapping[str, int | None]) -> dict[str, Any]:
    """Return sums with the share of remote accesses."""
    return {**sums, "remote_share": ratio(sums["remote_nacc"], sums["remote_known_nacc"])}
