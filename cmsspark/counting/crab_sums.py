"""Sums of CRAB's jobs of a day by input, dataset, block, user and task: what reports of
periods are made from.
"""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from cmsspark.base import buffers, dates
from cmsspark.base.access import HtcondorJob
from cmsspark.base.errors import DataError
from cmsspark.base.schemas import Table

if TYPE_CHECKING:
    import pyarrow as pa

#: The keys and the sums of ``schemas/tables/crab_partials.yaml``, besides the day.
CRAB_KEYS: Final = ("input", "dataset_name", "block_name", "user", "task", "is_analysis")
CRAB_COUNTS: Final = ("job_count", "failed_job_count", "removed_job_count")
CRAB_MEASURES: Final = ("read_bytes", "cpu_ms", "wall_ms")
_COLUMNS: Final = (*CRAB_KEYS, *CRAB_COUNTS, *CRAB_MEASURES, "first_ms", "last_ms")
_LIMIT: Final = 2**63 - 1


class CrabSums:
    """Sums of jobs by ``CRAB_KEYS``. ``user`` and ``task`` are pseudonyms."""

    def __init__(self) -> None:
        self._sums: dict[tuple[Any, ...], list[Any]] = {}

    def add(self, job: HtcondorJob, key: tuple[Any, ...]) -> None:
        """Add a job that counts. A job failed if it is completed and its exit code is
        neither null nor 0 (rule 37): a removed job is not failed, whatever its code.
        """
        has_failed = job.is_completed and bool(job.exit_code)
        counts = (1, int(has_failed), int(not job.is_completed))
        self._add(
            key, (*counts, job.read_bytes, job.cpu_ms, job.wall_ms, job.time_ms, job.time_ms)
        )

    def add_sums(self, sums: CrabSums) -> None:
        """Add the sums of other jobs."""
        for key, values in sums._sums.items():
            self._add(key, tuple(values))

    def add_rows(self, rows: pa.Table) -> None:
        """Add the rows of a table that :meth:`table` made."""
        columns = [rows.column(name).to_pylist() for name in _COLUMNS]
        for values in zip(*columns, strict=True):
            self._add(values[: len(CRAB_KEYS)], values[len(CRAB_KEYS) :])

    def _add(self, key: tuple[Any, ...], values: tuple[Any, ...]) -> None:
        sums = self._sums.get(key)
        if sums is None:
            self._sums[key] = list(values)
            return
        for index, value in enumerate(values[:-2]):
            if value is not None:
                sums[index] = (sums[index] or 0) + value
        sums[-2], sums[-1] = min(sums[-2], values[-2]), max(sums[-1], values[-1])

    def table(self, day: date, schema: Table) -> pa.Table:
        """Return the rows, sorted by their keys, null first. Raises DataError (65)
        where a sum exceeds 64 bits.
        """
        import pyarrow as pa

        in_order = sorted(
            self._sums,
            key=lambda key: [(value is not None, value or "") for value in key[:-1]] + [key[-1]],
        )
        rows = [(*key, *self._sums[key]) for key in in_order]
        values = (
            dict(zip(_COLUMNS, zip(*rows, strict=True), strict=True))
            if rows
            else dict.fromkeys(_COLUMNS, ())
        )
        for name in CRAB_MEASURES:
            if max((value or 0 for value in values[name]), default=0) > _LIMIT:
                problem = f"a sum of {name} of CRAB jobs is beyond 2^63-1"
                raise DataError(problem, next_step="look for absurd sizes in the log")
        number = dates.start_ms(day) // dates.DAY_MS
        columns = [
            buffers.from_numpy(np.full(len(rows), number, np.int32)).view(pa.date32())
            if column.name == "day"
            else buffers.array(values[column.name], column.type)
            for column in schema.columns
        ]
        return pa.table(dict(zip(schema.names, columns, strict=True)), schema=schema.arrow())
