"""``cmsspark periods``: the stored weeks, months and ranges, and which are stale."""

from __future__ import annotations

import json
from typing import Any

import click

from cmsspark.periods import Period
from cmsspark.pipeline.options import settings_of, store_of, store_options
from cmsspark.pipeline.stored_columns import files_of
from cmsspark.pipeline.stored_days import CurrentRuns, stale, stored_periods
from cmsspark.schemas import stored_table
from cmsspark.storage import Files
from cmsspark.store import results


@click.command("periods")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@store_options
def command(as_json: bool, fout: str | None, settings_file: str | None) -> None:
    """List the stored weeks, months and ranges: days, rows, and whether days were run again since."""
    from cmsspark.reports.terminal import echo_table

    place = store_of(fout, settings_of(settings_file))
    files = files_of(place, "cmsspark periods")
    runs = CurrentRuns(files, place)
    found = [_told(files, place, period, runs) for period in stored_periods(files, place, "period")]
    if as_json:
        click.echo(json.dumps(found, indent=1))
        return
    if not found:
        click.echo(f"no period is stored in {place}; run_spark period --week last makes one")
        return
    rows = []
    for one in found:
        state = "partial" if one["partial"] else ""
        rows.append((one["period"], one["days"], one["rows"], state, "; ".join(one["stale"]) or "up to date"))
    echo_table(("period", "days", "rows", "", "its days since then"), rows, left=(0, 3, 4), whole=(0, 3), indent="  ")


def _told(files: Files, fout: str, period: Period, runs: CurrentRuns) -> dict[str, Any]:
    table = "period_aggregation"
    manifest = results.current(files, fout, "period", table, period).manifest
    changed = stale(manifest, runs.of(period))
    if manifest["tables"][table].get("schema") != stored_table(table).fingerprint():
        changed.append("the schema has changed")
    return {
        "period": str(period),
        "run": manifest.get("run"),
        "days": len(manifest.get("days", ())),
        "rows": manifest["tables"][table]["rows"],
        "partial": bool(manifest.get("partial")),
        "stale": changed,
    }
