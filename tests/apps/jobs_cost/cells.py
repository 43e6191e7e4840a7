"""Runs of the feeds in tests, and their rows by key."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from cmsspark.apps.jobs_cost import feeds
from cmsspark.apps.jobs_cost.day_run import FeedRequest, run
from cmsspark.base.schemas import stored_table
from cmsspark.settings.settings import load_settings
from cmsspark.store.results import CurrentTable


def count(
    root: Path,
    day: date,
    fout: Path,
    feed: feeds.Feed = feeds.CONDOR,
    settings_file: Path | None = None,
    **options: Any,
) -> CurrentTable:
    """Count a day, by processes unless ``engine`` says otherwise, with states below ``fout``."""
    environment = {
        "XDG_STATE_HOME": str(fout / "state"),
        "XDG_CACHE_HOME": str(fout / "cache"),
        "HOME": str(fout),
    }
    settings = load_settings(settings_file and str(settings_file), environment)
    options = {"engine": "processes", "max_malformed": "100%", **options}
    request = FeedRequest(
        feed.job, day, str(fout / "store"), settings, str(root), feed=feed, **options
    )
    return run(request, lambda text: None)


def rows(done: CurrentTable, table: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    """The stored rows of a table by key, without day and timestamp."""
    schema = stored_table(table)
    found = {}
    for row in pq.read_table(f"{done.path}/{table}").to_pylist():
        key = tuple(row.pop(name) for name in schema.keys)
        assert key not in found
        found[key] = {
            name: value for name, value in row.items() if name not in ("day", "timestamp")
        }
    return found
