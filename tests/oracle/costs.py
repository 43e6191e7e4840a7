"""Rules 49 to 54: what HTCondor's jobs cost, counted one record after the other."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import date, timedelta

from tests.oracle import fields
from tests.oracle.fields import IllTyped
from tests.oracle.jobs import JobRecord, _hours, order, read_job
from tests.oracle.records import Malformed, _object, day_named, needed
from tests.oracle.strict_json import Value, parse_object

TEXTS = (
    "CMS_JobType",
    "Workflow",
    "WMAgent_RequestName",
    "ScheddName",
    "Tier",
    "MachineAttrCMSSubSiteName0",
)
NUMBERS = (
    "RequestCpus",
    "CoreHr",
    "CommittedCoreHr",
    "CommittedWallClockHr",
    "MaxWallTimeMins",
    "ChirpCMSSWReadTimeMsecs",
    "ChirpCMSSWElapsed",
    "HS06CpuTimeHr",
)
FLAGS = ("CpuEffOutlier", "JobFailed")
#: From this day on HTCondor's wall-clock time is of the last start (rule 51).
WALL_OF_LAST_START = date(2026, 7, 27)
Key = tuple[str | None, ...]


@dataclass(frozen=True)
class Costs:
    """A well-formed record: what the stream reads of it, and the other fields by name."""

    job: JobRecord
    more: dict[str, object]


def _flag(value: Value) -> int | None:
    number = fields.timestamp(value)
    if number not in (None, 0, 1):
        raise IllTyped("a flag is 0 or 1")
    return number


def read(line: bytes) -> Costs:
    """The record of a line. Raises Malformed."""
    job = read_job(line)
    try:
        for value in parse_object(line).all("data"):
            data = _object(value)
            more: dict[str, object] = {
                name: needed(data, name, fields.text) or None for name in TEXTS
            }
            more |= {name: needed(data, name, _hours) for name in NUMBERS}
            more |= {name: needed(data, name, _flag) for name in FLAGS}
    except IllTyped as error:
        raise Malformed(str(error)) from None
    return Costs(job, more)


def _half_up(number: float) -> int:
    return math.floor(number + 0.5)


def _ms(hours: object) -> int:
    return 0 if hours is None else _half_up(float(str(hours)) * 3_600_000)


def _type(job: JobRecord) -> str:
    return (job.type or "unknown").lower()


def _cores(costs: Costs) -> float:
    cpus = costs.more["RequestCpus"]
    return 1.0 if cpus is None else float(str(cpus))


def outcome(costs: Costs) -> str:
    if costs.job.status == "Removed":
        return "removed"
    failed = costs.more["JobFailed"]
    if failed == 1 or (failed is None and costs.job.exit_code not in (None, 0)):
        return "failed"
    return "outlier" if costs.more["CpuEffOutlier"] == 1 else "ok"


HPC = {
    "T3_US_ANL": "ANL",
    "T3_US_Anvil": "ANVIL",
    "T3_US_NERSC": "NERSC",
    "T3_US_OSG": "OSG",
    "T3_US_PSC": "PSC",
    "T3_US_SDSC": "SDSC",
    "T3_US_TACC": "TACC",
}


def hpc(site: str, subsite: str | None) -> str | None:
    if site in HPC:
        return HPC[site]
    if site.endswith(("_ES_PIC", "_ES_PIC_BSC")) and subsite == "PIC-BSC":
        return "BSC"
    if site == "T1_IT_CNAF":
        if subsite in ("CNAF-CINECA", "CNAF-LEONARDO"):
            return "CINECA"
        if subsite == "CNAF-VEGA":
            return "VEGA"
        return "CHULA" if subsite and "CHULA" in subsite else None
    if (site, subsite) == ("T1_DE_KIT", "KIT-HOREKA"):
        return "HOREKA"
    return "RWTH" if (site, subsite) == ("T2_DE_RWTH", "RWTH-HPC") else None


@dataclass
class CostDay:
    """What became of a day's records, and its rows by key."""

    bins: Counter[str] = field(default_factory=Counter)
    efficiency: dict[Key, dict[str, int | None]] = field(default_factory=dict)
    core_hours: dict[Key, dict[str, int]] = field(default_factory=dict)
    running: dict[tuple[object, ...], dict[str, int]] = field(default_factory=dict)


def count(lines: Iterable[bytes], day: date, before: Iterable[bytes]) -> CostDay:
    """Rules 50 to 54 over a day's lines; ``before``: those of the day before."""
    result, records = CostDay(), []
    for line in lines:
        result.bins["read"] += 1
        try:
            record = read(line)
        except Malformed:
            result.bins["malformed"] += 1
            continue
        if not _is_of(record, day):
            result.bins["out_of_day"] += 1
            continue
        records.append(record)
    _running(result, records, day)
    earlier = set(
        _ended(
            [record for line in before if (record := _read(line, day - timedelta(days=1)))],
            Counter(),
        )
    )
    for job_id, of_job in _ended(records, result.bins).items():
        is_new = job_id not in earlier
        result.bins["repeated"] += len(of_job) - is_new
        if is_new:
            result.bins["matched"] += 1
            _add(result, max(of_job, key=lambda costs: order(costs.job)), day)
    for row in result.efficiency.values():
        row["distinct_schedds"] = len(row.pop("schedds"))  # type: ignore[arg-type]
        row["distinct_users"] = len(row.pop("users"))  # type: ignore[arg-type]
        if not row.pop("chirps"):
            row["read_ms"] = row["elapsed_ms"] = None
    return result


def _is_of(record: Costs, day: date) -> bool:
    return record.job.delivered is None or day_named(record.job.delivered) == day.isoformat()


def _read(line: bytes, day: date) -> Costs | None:
    try:
        record = read(line)
    except Malformed:
        return None
    return record if _is_of(record, day) else None


def _ended(records: Iterable[Costs], bins: Counter[str]) -> dict[str, list[Costs]]:
    ended: dict[str, list[Costs]] = {}
    for record in records:
        if record.job.status not in ("Completed", "Removed"):
            bins["not_final"] += 1
        elif not record.job.wall and not record.more["CoreHr"]:
            bins["never_ran"] += 1
        else:
            ended.setdefault(record.job.job_id, []).append(record)
    return ended


def _add(result: CostDay, costs: Costs, day: date) -> None:
    job, more = costs.job, costs.more
    tier = str(more["Tier"] or "").upper()
    key = (
        _type(job),
        str(more["CMS_JobType"] or "unknown"),
        more["Workflow"],
        more["WMAgent_RequestName"],
        job.site_name,
        more["MachineAttrCMSSubSiteName0"],
        tier if tier in ("T0", "T1", "T2", "T3") else "unknown",
        outcome(costs),
    )
    row: dict = result.efficiency.setdefault(key, {"schedds": set(), "users": set()})  # type: ignore[arg-type,type-arg]
    committed = _ms(more["CommittedWallClockHr"])
    wall_core = _half_up((job.wall or 0) * _cores(costs) * 3_600_000)
    core = max(_ms(more["CoreHr"]), wall_core)
    committed_core = _ms(more["CommittedCoreHr"])
    last_core = wall_core if day >= WALL_OF_LAST_START else committed_core or core
    has_cpu = job.cpu is not None
    has_max = more["MaxWallTimeMins"] is not None and more["CommittedWallClockHr"] is not None
    has_chirp = (
        more["ChirpCMSSWReadTimeMsecs"] is not None and more["ChirpCMSSWElapsed"] is not None
    )
    for name, value in {
        "job_count": 1,
        "core_sum_milli": _half_up(_cores(costs) * 1000),
        "cpu_ms": _ms(job.cpu),
        "wall_ms": _ms(job.wall),
        "core_ms": core,
        "last_core_ms": last_core,
        "evicted_core_ms": max(0, core - last_core),
        "core_with_cpu_ms": core if has_cpu else 0,
        "last_core_with_cpu_ms": last_core if has_cpu else 0,
        "wall_core_with_cpu_ms": wall_core if has_cpu else 0,
        "committed_core_with_cpu_ms": committed_core if has_cpu else 0,
        "cpu_with_committed_ms": _ms(job.cpu) if committed_core else 0,
        "wall_with_committed_ms": _ms(job.wall) if committed else 0,
        "committed_core_ms": committed_core,
        "committed_wall_ms": committed,
        "hs06_cpu_ms": _ms(more["HS06CpuTimeHr"]),
        "read_ms": _half_up(float(str(more["ChirpCMSSWReadTimeMsecs"]))) if has_chirp else 0,
        "elapsed_ms": _half_up(float(str(more["ChirpCMSSWElapsed"])) * 1000) if has_chirp else 0,
        "hs06_job_count": more["HS06CpuTimeHr"] is not None,
        "chirps": has_chirp,
        "max_wall_ms": _half_up(float(str(more["MaxWallTimeMins"])) * 60_000) if has_max else 0,
        "committed_with_max_ms": committed if has_max else 0,
    }.items():
        row[name] = row.get(name, 0) + int(value)
    row["schedds"] |= {more["ScheddName"]} - {None}
    row["users"] |= {job.user_name} - {None}
    place = (job.site_name, more["MachineAttrCMSSubSiteName0"])
    hours = result.core_hours.setdefault((*place, hpc(*place), _type(job)), Counter())  # type: ignore[arg-type]
    hours["job_count"] += 1
    hours["core_ms"] += _ms(more["CoreHr"]) if job.status == "Completed" else 0
    hours["cpu_ms"] += _ms(job.cpu)
    hours["hs06_cpu_ms"] += _ms(more["HS06CpuTimeHr"])


def _running(result: CostDay, records: Iterable[Costs], day: date) -> None:
    start = (day - date(1970, 1, 1)).days * 86_400_000
    windows: set[int] = set()
    largest: dict[tuple[object, ...], float] = {}
    for costs in records:
        job = costs.job
        has_time = job.record_time is not None or job.delivered is not None
        if not has_time or not start <= job.time_ms < start + 86_400_000:
            continue
        window = (job.time_ms - start) // (12 * 60_000)
        windows.add(window)
        if job.status == "Running":
            subsite = costs.more["MachineAttrCMSSubSiteName0"]
            key = (
                job.site_name,
                subsite,
                hpc(job.site_name, subsite),
                _type(job),
                window,
                job.job_id,
            )  # type: ignore[arg-type]
            largest[key] = max(largest.get(key, 0.0), _cores(costs))
    for (*place, window, _), cores in largest.items():
        hour = int(str(window)) // 5
        row = result.running.setdefault((*place, hour), Counter())
        row["window_count"] = sum(other // 5 == hour for other in windows)
        row["core_windows_milli"] += _half_up(cores * 1000)
        row["job_windows"] += 1
