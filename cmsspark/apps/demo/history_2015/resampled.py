"""Days around a counted day: its partials drawn again, a little otherwise each day.

Datasets, sites, applications and people are those of the counted day, so a week of such
days fits to it. Each dataset has better and worse days; weekends are quieter. The same
seed and day give the same rows.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Final

import numpy as np

from cmsspark.apps.demo.history_2015 import activity, jobs_stream
from cmsspark.base import buffers
from cmsspark.sources.layout import JOBS_ROLE
from cmsspark.sources.registry import STREAMS_BY_NAME

if TYPE_CHECKING:
    import pyarrow as pa

    from cmsspark.base.schemas import Table

#: How far the use of a dataset moves around its mean, as the width of a log-normal distribution.
_WIDTH: Final = 0.7
#: Days of its slowest move.
_PERIOD: Final = 9.0


@dataclass(frozen=True)
class ResampledPast:
    """The past of ``rows``, the partials that ``day`` counted."""

    rows: pa.Table
    day: date
    seed: int = 1

    def partials(
        self, day: date, schema: Table, *, share: float = 1.0, without: Collection[str] = ()
    ) -> pa.Table:
        """Return the partials of another day: ``share`` of its accesses, and no stream
        of ``without``.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        rows = self.rows
        rng = np.random.default_rng([self.seed, day.toordinal()])
        before = buffers.to_numpy(rows["nacc"], np.int64)
        nacc = rng.poisson(
            before * self._moves(rows, day) * share * activity(day) / activity(self.day)
        )
        is_kept = nacc > 0
        columns = {name: rows[name] for name in rows.column_names}
        ratio = nacc / before
        columns["nacc"] = buffers.from_numpy(nacc.astype(np.int64))
        columns["day"] = pa.repeat(pa.scalar(day, pa.date32()), rows.num_rows)
        for name in ("remote_nacc", "read_bytes"):
            values = np.floor(buffers.to_numpy(rows[name], np.int64) * ratio).astype(np.int64)
            columns[name] = buffers.from_numpy(values, _is_valid(rows[name]))
        for name in ("cpu_time", "wc_time"):
            values = np.round(buffers.to_numpy(rows[name], np.float64) * ratio, 3)
            columns[name] = buffers.from_numpy(values, _is_valid(rows[name]))
        columns["stream"], columns["read_bytes"] = _of_epoch(
            columns["stream"], columns["read_bytes"], day
        )
        resampled = pa.table({name: columns[name] for name in schema.names}, schema=schema.arrow())
        resampled = resampled.filter(buffers.flags(is_kept))
        # After all was drawn: a day without a stream has the same rows of the others.
        left_out = pc.is_in(resampled["stream"], buffers.array(list(without), "string"))
        return resampled.filter(pc.invert(left_out)) if without else resampled

    def _moves(self, rows: pa.Table, day: date) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Return how much more or less than usual each row's dataset is read on a day;
        1 on the counted day.
        """
        coded = rows["dataset_name"].combine_chunks().dictionary_encode()
        rng = np.random.default_rng([self.seed, 1])
        phases = rng.random(len(coded.dictionary)) * 2 * np.pi
        periods = _PERIOD * (0.5 + rng.random(len(coded.dictionary)))
        since = 2 * np.pi * (day - self.day).days / periods
        moves = np.exp(_WIDTH * (np.sin(phases + since) - np.sin(phases)))
        moved: np.ndarray[tuple[int], np.dtype[np.float64]] = moves[
            buffers.to_numpy(coded.indices, np.int32)
        ]
        return moved


def _of_epoch(
    stream: pa.ChunkedArray, read_bytes: pa.Array, day: date
) -> tuple[pa.ChunkedArray, pa.Array]:
    """Jobs as the stream that serves ``day`` has them: CRAB's records have no bytes."""
    import pyarrow as pa
    import pyarrow.compute as pc

    serving = jobs_stream(day)
    is_job = pc.is_in(
        stream,
        pa.array([name for name, entry in STREAMS_BY_NAME.items() if entry.role == JOBS_ROLE]),
    )
    if not STREAMS_BY_NAME[serving].has_bytes:
        read_bytes = pc.if_else(is_job, pa.scalar(None, pa.int64()), read_bytes)
    return pc.if_else(is_job, serving, stream), read_bytes


def _is_valid(column: pa.ChunkedArray) -> np.ndarray[tuple[int], np.dtype[np.bool_]] | None:
    return buffers.is_there(column) if column.null_count else None
