"""The tables of a day, made of the sums of both feeds, and what the manifest says beside them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any, Final

from cmsspark.apps.jobs_cost.cost_sums import CostSums
from cmsspark.apps.jobs_cost.ended_jobs import EFFICIENCY_KEYS, SUMS
from cmsspark.apps.jobs_cost.hpc_sites import HpcSites
from cmsspark.apps.jobs_cost.report_sums import NULLABLE_SUMS, STEP_KEYS, ReportSums
from cmsspark.base import buffers, dates
from cmsspark.base.errors import DataError
from cmsspark.base.schemas import stored_table
from cmsspark.sources.condor_costs import CORE, HOUR_WINDOWS, LAST_START
from cmsspark.sources.values import MAX_LONG

if TYPE_CHECKING:
    import pyarrow as pa

    from cmsspark.base.arrays import Longs

_HOUR_MS: Final = 3_600_000
_HOURS: Final = 24
_Row = dict[str, Any]


def cost_tables(
    sums: CostSums, day: date, hpc_sites: HpcSites, meanings: Mapping[str, str]
) -> dict[str, pa.Table]:
    """Return the tables of HTCondor's jobs by name. Raises DataError (65) where a sum
    exceeds 64 bits.
    """
    is_of_last_start = meanings[CORE] == LAST_START
    rows = _efficiency_rows(sums, is_of_last_start=is_of_last_start)
    return {
        "job_efficiency": _table("job_efficiency", rows, day),
        "core_hours": _table("core_hours", _core_hour_rows(sums, hpc_sites), day),
        "running_cores": _table("running_cores", _running_rows(sums, hpc_sites), day),
        "job_cost_ids": _ids("job_cost_ids", sums.all_ids()),
    }


def report_tables(sums: ReportSums, day: date) -> dict[str, pa.Table]:
    """Return the tables of WMArchive's reports by name. Raises DataError (65) where a
    sum exceeds 64 bits.
    """
    return {
        "step_efficiency": _table("step_efficiency", _step_rows(sums), day),
        "agent_reports": _table("agent_reports", _agent_rows(sums), day),
        "report_ids": _ids("report_ids", sums.all_ids()),
    }


def _efficiency_rows(sums: CostSums, *, is_of_last_start: bool) -> Iterable[_Row]:
    """Yield rows. ``is_of_last_start``: core hours are of the last start, so that no
    one knows those of the others.
    """
    names = ("type", "job_type", "workflow", "request", "site", "subsite", "tier", "outcome")
    for row in sums.rows:
        values: dict[str, int | None] = dict(zip(SUMS, row.sums, strict=True))
        del values["core_hours_ms"]
        if not values.pop("chirp_job_count"):
            values["read_ms"] = values["elapsed_ms"] = None
        if is_of_last_start:
            values["evicted_core_ms"] = None
        counts = {"distinct_schedds": len(row.schedds), "distinct_users": len(row.users)}
        yield dict(zip(names, row.key, strict=True)) | values | counts


def _core_hour_rows(sums: CostSums, hpc_sites: HpcSites) -> Iterable[_Row]:
    totals: dict[tuple[Any, ...], Counter[str]] = defaultdict(Counter)
    for row in sums.rows:
        key = dict(zip(EFFICIENCY_KEYS, row.key, strict=True))
        totals[key["site"], key["subsite"], key["type"]].update(
            dict(zip(SUMS, row.sums, strict=True))
        )
    for (site, subsite, type_), total in totals.items():
        yield {
            "site": site,
            "subsite": subsite,
            "hpc": hpc_sites.find(site, subsite),
            "type": type_,
            "job_count": total["job_count"],
            "core_ms": total["core_hours_ms"],
            "cpu_ms": total["cpu_ms"],
            "hs06_cpu_ms": total["hs06_cpu_ms"],
        }


def _running_rows(sums: CostSums, hpc_sites: HpcSites) -> Iterable[_Row]:
    windows = window_counts(sums)
    for ((site, subsite, type_), hour), (cores, pairs) in sums.hours.items():
        yield {
            "site": site,
            "subsite": subsite,
            "hpc": hpc_sites.find(site, subsite),
            "type": type_,
            "hour": hour,
            "window_count": windows[hour],
            "core_windows_milli": cores,
            "job_windows": pairs,
        }


def window_counts(sums: CostSums) -> list[int]:
    """Return the number of 12-minute windows with a record, of each hour."""
    return [
        (sums.windows >> (hour * HOUR_WINDOWS) & (2**HOUR_WINDOWS - 1)).bit_count()
        for hour in range(_HOURS)
    ]


def _step_rows(sums: ReportSums) -> Iterable[_Row]:
    for row in sums.rows.values():
        yield (
            dict(zip(STEP_KEYS, row.key, strict=True))
            | dict(zip(NULLABLE_SUMS, row.sums, strict=True))
            | {
                "step_count": row.step_count,
                "threads_sum": row.threads,
                "streams_sum": row.streams,
                "rss_sum_mb": row.rss_sum_mb,
                "rss_max_mb": row.rss_max,
                "rss_count": row.rss_count,
                "vsize_max_mb": row.vsize_max,
                "failed_step_count": row.failed,
                "implausible_count": row.implausible,
            }
        )


def _agent_rows(sums: ReportSums) -> Iterable[_Row]:
    for row in sums.agents.values():
        yield {
            "host": row.host,
            "report_count": row.reports,
            "failed_count": row.failed,
            "step_sum": row.steps,
            "site_count": len(row.sites),
        }


def _table(name: str, rows: Iterable[_Row], day: date) -> pa.Table:
    """Return rows as a table, sorted by its keys, null first."""
    import pyarrow as pa

    schema = stored_table(name)
    ordered = sorted(rows, key=lambda row: sort_key(row, schema.keys))
    for row in ordered:
        for column, value in row.items():
            if isinstance(value, int) and value > MAX_LONG:
                raise DataError(
                    f"a sum of {column} in {name} of {day} is beyond 2^63-1",
                    found=", ".join(f"{key} {row[key]}" for key in schema.keys),
                    next_step="--quarantine-above SECONDS puts records with longer times in quarantine and marks the"
                    " result partial",
                )
    start = dates.start_ms(day)
    return pa.Table.from_pylist(
        [{"day": day, **row, "timestamp": start} for row in ordered], schema.arrow()
    )


def sort_key(row: Mapping[str, Any], keys: Sequence[str]) -> tuple[Any, ...]:
    """Return a sort key of some columns of a row, null first."""
    return tuple((row[key] is not None, row[key] if row[key] is not None else "") for key in keys)


def _ids(name: str, ids: Longs) -> pa.Table:
    import pyarrow as pa

    return pa.table({"id_hash": buffers.from_numpy(ids)}, schema=stored_table(name).arrow())


def cost_checks(sums: CostSums, day: date) -> tuple[dict[str, Any], list[str]]:
    """Return entries of the manifest and warnings: hours without records, and the check
    of core hours (rule 62).

    Raises RuntimeError, a bug of ours (70), where rows lost or doubled jobs.
    """
    totals = dict(
        zip(SUMS, map(sum, zip(*(row.sums for row in sums.rows), strict=True)), strict=False)
    )
    jobs = totals.get("job_count", 0)
    if jobs != sums.counted:
        raise RuntimeError(f"{sums.counted} jobs count, {jobs} are in job_efficiency")
    windows = window_counts(sums)
    by_hour = [0] * _HOURS
    for (_, hour), (cores, _) in sums.hours.items():
        by_hour[hour] += cores
    averages = [
        cores / count / 1000 for cores, count in zip(by_hour, windows, strict=True) if count
    ]
    busiest = max(averages, default=0.0)
    core_hours = totals.get("core_hours_ms", 0) / _HOUR_MS
    entry = {
        "jobs": jobs,
        "core_ms": totals.get("core_ms", 0),
        "windows_by_hour": windows,
        "busiest_hour_cores": round(busiest, 3),
        "core_hours": round(core_hours, 3),
    }
    warnings = []
    silent = [
        f"{hour:02} ({count} of {HOUR_WINDOWS})"
        for hour, count in enumerate(windows)
        if count < HOUR_WINDOWS
    ]
    if silent:
        warnings.append(
            f"condor: 12-minute windows without any record, by hour of {day}: {', '.join(silent)}"
        )
    if core_hours > _HOURS * busiest:
        warnings.append(
            f"condor: {core_hours:,.1f} core hours of jobs that ended are more than 24 h × the {busiest:,.1f} cores"
            " that ran in the busiest hour: jobs ran on days before, or records are missing"
        )
    return {"job_cost_checks": entry}, warnings


def report_checks(sums: ReportSums, day: date) -> tuple[dict[str, Any], list[str]]:
    """Return the entry of the manifest, and no warning: how many times of reads and
    writes are left out, because they cannot be (rule 56).
    """
    return {"implausible": sum(row.implausible for row in sums.rows.values())}, []
