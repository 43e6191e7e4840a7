"""CRAB (JobMonitoring) records and the legacy form of CMSSW records, for Avro."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from cmsspark.apps.demo.activity import MALFORMED, Activity
from cmsspark.apps.demo.json_records import POOL, cmssw_statistics
from cmsspark.apps.demo.users import Person, domain
from cmsspark.base.schemas import input_table

_CMSSW_TEXTS: Final = (
    "UNIQUE_ID",
    "FILE_LFN",
    "CLIENT_DOMAIN",
    "CLIENT_HOST",
    "SERVER_DOMAIN",
    "SERVER_HOST",
    "SITE_NAME",
    "USER_DN",
    "APP_INFO",
    "FALLBACK",
)
#: Numbers as text.
_CMSSW_NUMBERS: Final = (
    "FILE_SIZE",
    "READ_BYTES",
    "READ_BYTES_AT_CLOSE",
    "READ_SINGLE_BYTES",
    "READ_SINGLE_OPERATIONS",
    "READ_VECTOR_BYTES",
    "READ_VECTOR_OPERATIONS",
    "START_TIME",
    "END_TIME",
    "READ_SINGLE_AVERAGE",
    "READ_SINGLE_SIGMA",
    "READ_VECTOR_AVERAGE",
    "READ_VECTOR_SIGMA",
    "READ_VECTOR_COUNT_AVERAGE",
    "READ_VECTOR_COUNT_SIGMA",
)
_CMSSW_LONGS: Final = ("START_DATE", "END_DATE", "INSERT_DATE")


def _field(name: str, kind: str) -> dict[str, Any]:
    return {"name": name, "type": ["null", kind], "default": None}


CRAB_SCHEMA: Final[dict[str, Any]] = {
    "type": "record",
    "name": "jm",
    "fields": [_field(column.name, column.type) for column in input_table("crab/avro").columns],
}

CMSSW_SCHEMA: Final[dict[str, Any]] = {
    "type": "record",
    "name": "cmssw_popularity",
    "fields": [_field(name, "string") for name in (*_CMSSW_TEXTS, *_CMSSW_NUMBERS)]
    + [_field(name, "long") for name in _CMSSW_LONGS],
}

#: What a broken producer writes for seconds.
_NO_SECONDS: Final = ("nan", "-1", "unknown")


def crab_records(activity: Activity, rng: np.random.Generator) -> list[dict[str, Any]]:
    """CRAB records: all 44 fields, numbers as text; a malformed one has no number in ``WrapCPU``."""
    a = activity
    count = len(a.bins)
    wall = rng.gamma(1.2, 6_000, count)
    cpu = wall * rng.beta(6, 2, count)
    jobs = rng.integers(1_000_000_000, 1_999_999_999, count)
    return [
        _crab(*values)
        for values in zip(
            a.lfns,
            a.users,
            a.apps,
            a.sites,
            a.starts,
            a.ends,
            a.ids,
            a.noise,
            a.bins,
            cpu.tolist(),
            wall.tolist(),
            jobs.tolist(),
            strict=True,
        )
    ]


def _crab(
    lfn: str | None,
    user: Person | None,
    app: str,
    site: str | None,
    start: int,
    end: int,
    unique: str,
    noise: int,
    number: int,
    cpu: float,
    wall: float,
    job: int,
) -> dict[str, Any]:
    seconds: str | None = f"{cpu:.{noise % 5}f}" if noise % 60 else (None, "")[noise % 120 // 60]
    return {
        "JobId": str(job),
        "FileName": lfn,
        "IsParentFile": "0",
        "ProtocolUsed": "Remote" if noise % 4 == 0 else "Local",
        "SuccessFlag": "1" if noise % 20 else "0",
        "FileType": "EDM",
        "LumiRanges": "unknown",
        "StrippedFiles": "0",
        "BlockId": str(noise % 900_000),
        "StrippedBlocks": "0",
        "BlockName": "Dummy",
        "InputCollection": "DoesNotApply",
        "Application": "CMSSW",
        "ApplicationVersion": f"CMSSW_{7 + noise % 4}_0_{noise % 30}",
        "Type": "analysis" if app == "crab3" else "reprocessing",
        "GenericType": "analysis",
        "NewGenericType": "analysis",
        "NewType": "analysis",
        "SubmissionTool": app or None,
        "InputSE": None,
        "TargetCE": None,
        "SiteName": site,
        "SchedulerName": "PYCONDOR",
        "JobMonitorId": "unknown",
        "TaskJobId": str(job + 7),
        "SchedulerJobIdV2": f"{unique}-{noise % 999}_0",
        "TaskId": str(noise % 40_000_000),
        "TaskMonitorId": f"task_{noise % 3_600}_v1_T_170213_041344_640",
        "NEventsPerJob": str(1_000 * (noise % 90)),
        "NTaskSteps": "1",
        "JobExecExitCode": "0" if noise % 20 else "8021",
        "JobExecExitTimeStamp": end,
        "StartedRunningTimeStamp": start,
        "FinishedTimeStamp": end,
        "WrapWC": str(round(wall)),
        "WrapCPU": _NO_SECONDS[noise % 3] if number == MALFORMED else seconds,
        "ExeCPU": "0",
        "NCores": str(1 + 3 * (noise % 2)),
        "NEvProc": str(noise % 90_000),
        "NEvReq": str(noise % 90_000),
        "WNHostName": f"wn{noise % 9_999:04d}",
        "JobType": "Processing",
        "UserId": str(100_000 + noise % 30_000),
        "GridName": user.name if user else None,
    }


def cmssw_avro_records(activity: Activity, rng: np.random.Generator) -> list[dict[str, Any]]:
    """CMSSW records in the legacy form: upper-case names, no metadata, so none is out
    of day; a malformed one has bytes below 0.
    """
    pool = [
        {name.upper(): value for name, value in cmssw_statistics(rng).items()} for _ in range(POOL)
    ]
    a = activity
    records = [
        {
            **pool[noise % POOL],
            "UNIQUE_ID": f"{unique.upper()}-{noise % 9}",
            "FILE_LFN": lfn,
            "FILE_SIZE": size,
            "CLIENT_DOMAIN": domain(client),
            "CLIENT_HOST": f"wn{noise % 9_999:04d}",
            "SERVER_DOMAIN": domain(site),
            "SERVER_HOST": f"se{noise % 97:03d}",
            "SITE_NAME": site,
            "READ_BYTES": -1 if number == MALFORMED else read,
            "READ_BYTES_AT_CLOSE": read if noise % 50 else None,
            "FALLBACK": "-",
            "USER_DN": dn,
            "APP_INFO": app,
            "START_TIME": start // 1000,
            "END_TIME": end // 1000,
            "START_DATE": start,
            "END_DATE": end,
            "INSERT_DATE": end + 90_000,
        }
        for number, lfn, size, dn, app, site, client, read, start, end, unique, noise in zip(
            a.bins,
            a.lfns,
            a.sizes,
            a.dns,
            a.apps,
            a.sites,
            a.clients,
            a.read_bytes,
            a.starts,
            a.ends,
            a.ids,
            a.noise,
            strict=True,
        )
    ]
    for record in records:
        numbers = {name: record.get(name) for name in _CMSSW_NUMBERS}
        record |= {name: None if n is None else f"{n}" for name, n in numbers.items()}
    return records
