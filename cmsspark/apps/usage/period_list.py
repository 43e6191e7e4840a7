"""``cmsspark period --list``: the stored weeks, months and ranges, and which are out of date."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from cmsspark.base.periods import Period
from cmsspark.base.schemas import stored_table
from cmsspark.cli.options import require_store
from cmsspark.filesystems.storage import Files
from cmsspark.store import results
from cmsspark.store.stored_columns import open_store
from cmsspark.store.stored_days import CurrentRuns, stale, stored_periods

if TYPE_CHECKING:
    from cmsspark.settings.settings import Settings


def echo_periods(settings: Settings, fout: str | None, as_json: bool) -> None:
    """List the stored weeks, months and ranges: their days and rows, and whether days were run again since."""
    from cmsspark.base.text.terminal import echo_table

    store = require_store(fout, settings)
    files = open_store(store, "cmsspark period --list", settings)
    runs = CurrentRuns(files, store)
    periods = [_as_dict(files, store, period, runs) for period in stored_periods(files, store, "period")]
    if as_json:
        click.echo(json.dumps(periods, indent=1))
        return
    if not periods:
        click.echo(f"no period is stored in {store}; next: cmsspark period --week last")
        return
    rows = []
    for row in periods:
        state = "partial" if row["partial"] else ""
        rows.append((row["period"], row["days"], row["rows"], state, "; ".join(row["stale"]) or "up to date"))
    echo_table(("period", "days", "rows", "", "changes since then"), rows, texts=(0, 3, 4), full=(0, 3), indent="  ")


def _as_dict(files: Files, fout: str, period: Period, runs: CurrentRuns) -> dict[str, Any]:
    table = "period_aggregation"
    manifest = results.current(files, fout, "period", table, period).manifest
    changed = stale(manifest, runs.find(period))
    if manifest.tables[table].schema != stored_table(table).fingerprint():
        changed.append("the schema has changed")
    return {
        "period": str(period),
        "run": manifest.run,
        "days": len(manifest.days),
        "rows": manifest.tables[table].rows,
        "partial": manifest.partial,
        "stale": changed,
    }
