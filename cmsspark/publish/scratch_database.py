"""A scratch database on disk, so that a comparison of ten million documents needs no more memory than one of a few."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from cmsspark.base.errors import OutputError


@contextmanager
def scratch_database(path: Path, failure: str) -> Iterator[sqlite3.Connection]:
    """Yield a new database at ``path``, without a journal, which is removed at the end.

    Raises OutputError (73), which begins with ``failure``, where the disk does not hold it.
    """
    try:
        path.unlink(missing_ok=True)
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            for pragma in ("journal_mode=OFF", "synchronous=OFF", "cache_size=-32000", "temp_store=FILE"):
                db.execute(f"PRAGMA {pragma}")
            yield db
    except sqlite3.OperationalError as error:
        raise OutputError(
            failure,
            where=path,
            found=str(error),
            next_step="make room or set `state_dir` to another disk, then run the same command again",
        ) from None
    finally:
        path.unlink(missing_ok=True)
