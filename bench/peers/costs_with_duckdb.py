"""The tables of HTCondor's jobs by DuckDB: ``python -m bench.peers.costs_with_duckdb
ROOT DAY OUT THREADS``.

Columns are given, so that nothing is sniffed and only what is needed is read. Lines
that are no JSON are left out, and other days; nothing is counted in bins.
"""

from __future__ import annotations

import sys
from datetime import UTC, date, datetime
from pathlib import Path

import duckdb

_TEXTS = (
    "GlobalJobId",
    "Status",
    "Type",
    "Site",
    "CRAB_UserHN",
    "CMS_JobType",
    "Workflow",
    "WMAgent_RequestName",
    "ScheddName",
    "Tier",
    "MachineAttrCMSSubSiteName0",
)
_NUMBERS = (
    "RecordTime",
    "CpuTimeHr",
    "WallClockHr",
    "RequestCpus",
    "CoreHr",
    "CommittedCoreHr",
    "CommittedWallClockHr",
    "MaxWallTimeMins",
    "ChirpCMSSWReadTimeMsecs",
    "ChirpCMSSWElapsed",
    "HS06CpuTimeHr",
    "ExitCode",
    "CpuEffOutlier",
    "JobFailed",
)


def _ms(hours: str) -> str:
    return f"floor({hours} * 3600000 + 0.5)::BIGINT"


def statements(files: str, start_ms: int, out: Path) -> list[str]:
    """The queries, which read the logs once."""
    kinds = [f"{name} VARCHAR" for name in _TEXTS] + [f"{name} DOUBLE" for name in _NUMBERS]
    columns = f"{{data: 'STRUCT({', '.join(kinds)})', metadata: 'STRUCT(timestamp BIGINT)'}}"
    name = "regexp_replace(trim(Site), '_Disk$', '')"
    site = f"CASE WHEN {name} IS NULL OR lower({name}) IN ('', 'unknown', 'n/a', 'none', 'null', '-') THEN 'unknown' ELSE {name} END"
    core = f"{_ms('coalesce(CoreHr, 0)')}, {_ms('coalesce(WallClockHr, 0) * coalesce(RequestCpus, 1)')}"
    committed = _ms("CommittedCoreHr")
    return [
        f"CREATE TABLE records AS SELECT data.*, metadata.timestamp AS stamp FROM read_ndjson('{files}',"
        f" columns = {columns}, ignore_errors = true)"
        f" WHERE metadata.timestamp IS NULL OR metadata.timestamp BETWEEN {start_ms} AND {start_ms + 86_399_999}",
        f"COPY (SELECT site, subsite, type, w // 5 AS hour, sum(cores) AS core_windows_milli, count(*) AS job_windows"
        f" FROM (SELECT {site} AS site, nullif(MachineAttrCMSSubSiteName0, '') AS subsite, lower(Type) AS type,"
        f" (coalesce(RecordTime, stamp)::BIGINT - {start_ms}) // 720000 AS w, GlobalJobId,"
        " max(floor(coalesce(RequestCpus, 1) * 1000 + 0.5)::BIGINT) AS cores FROM records WHERE Status = 'Running'"
        " GROUP BY ALL) WHERE w BETWEEN 0 AND 119 GROUP BY ALL)"
        f" TO '{out}/running_cores.parquet'",
        "CREATE TABLE jobs AS SELECT DISTINCT ON (GlobalJobId) * FROM records WHERE Status IN ('Completed', 'Removed')"
        " AND (WallClockHr > 0 OR CoreHr > 0) ORDER BY GlobalJobId, Status = 'Completed' DESC, coalesce(RecordTime, stamp) DESC,"
        " WallClockHr DESC, CpuTimeHr DESC NULLS LAST",
        f"COPY (SELECT lower(Type) AS type, coalesce(CMS_JobType, 'unknown') AS job_type, Workflow AS workflow,"
        f" WMAgent_RequestName AS request, {site} AS site, nullif(MachineAttrCMSSubSiteName0, '') AS subsite,"
        " upper(Tier) AS tier, CASE WHEN Status = 'Removed' THEN 'removed' WHEN JobFailed = 1 OR (JobFailed IS NULL"
        " AND ExitCode <> 0) THEN 'failed' WHEN CpuEffOutlier = 1 THEN 'outlier' ELSE 'ok' END AS outcome,"
        f" count(*) AS job_count, sum({_ms('CpuTimeHr')}) AS cpu_ms, sum({_ms('WallClockHr')}) AS wall_ms,"
        f" sum(greatest({core})) AS core_ms,"
        f" sum(coalesce(nullif({committed}, 0), greatest({core}))) AS last_core_ms,"
        f" sum({_ms('CommittedCoreHr')}) AS committed_core_ms, sum({_ms('CommittedWallClockHr')}) AS committed_wall_ms,"
        f" sum({_ms('HS06CpuTimeHr')}) AS hs06_cpu_ms, count(DISTINCT ScheddName) AS distinct_schedds,"
        f" count(DISTINCT CRAB_UserHN) AS distinct_users FROM jobs GROUP BY ALL) TO '{out}/job_efficiency.parquet'",
        f"COPY (SELECT {site} AS site, nullif(MachineAttrCMSSubSiteName0, '') AS subsite, lower(Type) AS type,"
        f" count(*) AS job_count, sum({_ms('CoreHr')}) FILTER (Status = 'Completed') AS core_ms FROM jobs GROUP BY ALL)"
        f" TO '{out}/core_hours.parquet'",
    ]


def main() -> None:
    """Write the tables."""
    root, text, out, threads = sys.argv[1:]
    day = date.fromisoformat(text)
    files = f"{root}/project/monitoring/archive/condor/raw/metric/{day:%Y/%m/%d}/*"
    start = int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp() * 1000)
    con = duckdb.connect(config={"threads": threads})
    for statement in statements(files, start, Path(out)):
        con.execute(statement)


if __name__ == "__main__":
    main()
