"""What jobs cost: fields of HTCondor's records, and WMArchive's reports of production jobs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any, Final

import numpy as np
from msgspec import json

from cmsspark.apps.demo.world import T2, World
from cmsspark.apps.demo.write import Compression, write_lines
from cmsspark.base.dates import start_ms

#: Parts of sites, one job in so many.
_SUBSITES: Final = {"T1_IT_CNAF": ("CNAF-LEONARDO", "CNAF-CINECA"), "T1_DE_KIT": ("KIT-HOREKA",)}
_HPC_EVERY: Final = 4
_AGENTS: Final = ("vocms0255.cern.ch", "vocms0281.cern.ch", "cmsgwms-submit4.fnal.gov")
_TYPES: Final = ("Processing", "Production", "Merge", "LogCollect", "Cleanup")


def cost_fields(data: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Return the fields of what a job cost, which follow from the others and its number."""
    is_production = data["Type"] == "production"
    cores = (8 if number % 3 else 4) if is_production else (1 if number % 13 == 5 else 4)
    wall, site = data["WallClockHr"] or 0.0, str(data["Site"]).removesuffix("_Disk")
    committed = wall if number % 13 else 0.6 * wall
    subsites = _SUBSITES.get(site)
    return {
        "RequestCpus": cores,
        "CoreHr": round(cores * wall, 6),
        "CommittedCoreHr": round(cores * committed, 6),
        "CommittedWallClockHr": round(committed, 6),
        "MaxWallTimeMins": 480 if is_production else 1315,
        "ChirpCMSSWElapsed": round(wall * 3400, 3) if number % 7 else None,
        "ChirpCMSSWReadTimeMsecs": round(wall * 90_000, 3) if number % 7 else None,
        "HS06CpuTimeHr": round(11.5 * (data["CpuTimeHr"] or 0.0), 6) if number % 10 else None,
        "CpuEffOutlier": int((data["CpuTimeHr"] or 0.0) > wall * cores),
        "JobFailed": int(data["ExitCode"] not in (None, 0)),
        "CMS_JobType": _TYPES[number % 5] if is_production else "Analysis",
        "Workflow": f"Run3Summer{number % 4}" if is_production else f"crab_{number % 40}",
        "WMAgent_RequestName": f"pdmvserv_task_Run3Summer{number % 4}_{number % 12}"
        if is_production
        else None,
        "ScheddName": f"vocms0{200 + number % 5}.cern.ch",
        "Tier": site[:2] if site[:1] == "T" else "Unknown",
        "MachineAttrCMSSubSiteName0": subsites[number % len(subsites)]
        if subsites and number % _HPC_EVERY
        else None,
    }


def report_folder(root: Path, day: date) -> Path:
    """Return where WMArchive's reports of a day lie under ``root``."""
    return root / f"project/monitoring/archive/wmarchive/raw/metric/{day:%Y/%m/%d}"


def write_reports(
    world: World,
    root: Path,
    seed: int,
    day: date,
    records: int,
    *,
    per_part: int,
    compression: Compression,
) -> None:
    """Write a day's reports."""
    # Of its own: other logs do not depend on it.
    rng = np.random.default_rng([seed, 101, day.toordinal()])
    lines = report_lines(world, rng, day, records)
    write_lines(report_folder(root, day), lines, per_part=per_part, compression=compression)


def report_lines(world: World, rng: np.random.Generator, day: date, records: int) -> list[str]:
    """Return the reports of a day; one in thirty arrives twice, with a ``wmaid`` each time."""
    stamps = start_ms(day) // 1000 + np.sort(rng.integers(86_400, size=records))
    times, shares = rng.exponential(7_000.0, records).round(3), rng.uniform(0.5, 0.99, records)
    lines = []
    for number, (stamp, seconds, share) in enumerate(
        zip(stamps.tolist(), times.tolist(), shares.tolist(), strict=True)
    ):
        kind, is_failed = _TYPES[number % 5], number % 17 == 3
        names = ("cmsRun1", "cmsRun2", "stageOut1") if number % 4 else ("cmsRun1", "stageOut1")
        steps = [_step(world, name, number, seconds, share, is_failed) for name in names]
        data = {
            "wmaid": f"{day:%Y%m%d}-{number:08}",
            "wmats": stamp,
            "task": f"/pdmvserv_task_Run3Summer{number % 4}_{number % 12}/DataProcessing",
            "meta_data": {
                "ts": stamp,
                "fwjr_id": f"{day:%y%m%d}{number:06}-0",
                "jobtype": kind,
                "jobstate": "jobfailed" if is_failed else "success",
                "host": _AGENTS[number % len(_AGENTS)],
            },
            "steps": steps if number % 50 else [*steps, None],
        }
        metadata = {"producer": "wmarchive", "timestamp": 1000 * stamp}
        arrivals = [data["wmaid"], f"{data['wmaid']}-2"] if number % 30 == 7 else [data["wmaid"]]
        lines += [
            json.encode({"data": {**data, "wmaid": wmaid}, "metadata": metadata}).decode()
            for wmaid in arrivals
        ]
    return lines


def _step(
    world: World, name: str, number: int, seconds: float, share: float, is_failed: bool
) -> dict[str, Any]:
    step: dict[str, Any] = {
        "name": name,
        "site": T2[number % len(T2)],
        "status": 1 if is_failed else 0,
        "errors": [{"exitCode": 8001}] if is_failed else [],
        "output": [],
        "performance": {},
    }
    if name.startswith("cmsRun"):
        dataset = world.names[number % len(world.names)]
        step["output"] = [
            {
                "acquisitionEra": dataset.split("/")[2].split("-")[0],
                "events": 500 + number % 500,
                "outputDataset": dataset,
            }
        ]
        step["performance"] = {
            "cpu": {
                "NumberOfStreams": 4,
                "NumberOfThreads": 8,
                "TotalJobTime": seconds,
                "TotalJobCPU": round(8 * share * seconds, 3) if number % 40 else -1,
            },
            "storage": {
                "readTotalMB": round(seconds / 3, 3),
                "writeTotalMB": round(seconds / 9, 3),
                "readTotalSecs": round(seconds / 90, 3),
                "writeTotalSecs": str(round(seconds / 200, 3)),
            },
            "memory": {"PeakValueRss": round(6000 + 1000 * share, 1), "PeakValueVsize": 9000},
        }
    return step
