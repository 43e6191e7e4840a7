"""Limits of a query: how long it may take, and how much of its result is read."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from cmsspark.base.errors import UsageError

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa


@contextmanager
def time_limit(cursor: duckdb.DuckDBPyConnection, seconds: float | None) -> Iterator[Any]:
    """Interrupt the cursor's query after ``seconds``; yields a function that says whether it was."""
    over = threading.Event()

    def interrupt() -> None:
        over.set()
        with suppress(Exception):
            cursor.interrupt()

    timer = threading.Timer(seconds, interrupt) if seconds is not None else None
    if timer:
        timer.daemon = True
        timer.start()
    try:
        yield over.is_set
    finally:
        if timer:
            timer.cancel()


def limited(
    reader: Any, max_rows: int | None, max_bytes: int | None
) -> tuple[list[pa.RecordBatch], bool]:
    """Return the batches of the first rows, and whether there are more. Raises
    UsageError (2) over ``max_bytes``.
    """
    batches: list[pa.RecordBatch] = []
    remaining, size = max_rows, 0
    for batch in reader:
        size += batch.nbytes
        if max_bytes is not None and size > max_bytes:
            raise UsageError(
                f"a result has at most {max_bytes / 1e6:,.0f} MB",
                found=f"{size / 1e6:,.0f} MB and more",
                next_step="ask for fewer rows or columns, or shorter texts",
            )
        if remaining is not None and batch.num_rows > remaining:
            batches.append(batch.slice(0, remaining))
            return batches, True
        batches.append(batch)
        if remaining is not None:
            remaining -= batch.num_rows
    return batches, False
