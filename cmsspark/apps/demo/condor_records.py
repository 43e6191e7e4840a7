"""HTCondor's records of jobs: queued and running ones, those that ended, and those that
are sent again; what jobs cost; and WMArchive's reports.

Each record falls into one bin of rule 30 by construction, in exact numbers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from cmsspark.apps.demo.world import T2, T3, World
from cmsspark.apps.demo.write import Compression, write_lines
from cmsspark.base.access import JOB_BINS, UNMATCHED_JOB_BINS
from cmsspark.base.dates import start_ms

#: Bins and their share of a day's records; the rest is matched. Each gets at least one
#: record of a hundred.
SHARES: Final = {
    "malformed": 2e-4,
    "out_of_day": 4e-3,
    "not_final": 0.5,
    "other_type": 0.03,
    "never_ran": 0.01,
    "repeated": 0.08,
    "no_input": 0.03,
    "user_file": 0.03,
    "not_in_dbs": 0.02,
}
#: All bins, as a manifest has them.
BINS_OF_JOBS: Final = ("matched", *UNMATCHED_JOB_BINS, "malformed", "out_of_day", *JOB_BINS)
#: The first jobs of a day, at most so many, are sent again on the next day.
SENT_AGAIN: Final = 5
POOL: Final = 64
#: Made once: json.dumps makes one for each record.
_JSON: Final = json.JSONEncoder(separators=(",", ":"))


def condor_lines(
    world: World,
    rng: np.random.Generator,
    day: date,
    piece: int,
    records: int,
    *,
    is_first: bool,
    fields: int,
) -> tuple[list[str], dict[str, int]]:
    """Return a piece of a day's records, and their number by bin. ``is_first``: there
    is no day before.

    ``fields``: fields of a record of a job that ended, besides those that are read;
    others have half of them.
    """
    bins = _bins(rng, records)
    fillers = [_filler(rng, fields) for _ in range(POOL)]
    jobs = _Jobs(world, rng, day, piece)
    lines: list[str] = []
    sent: list[dict[str, Any]] = []
    again = 0 if is_first or piece else SENT_AGAIN
    counts = dict.fromkeys(BINS_OF_JOBS, 0)
    for number, name in enumerate(bins):
        data = jobs.draw(number)
        if name == "repeated" and again:
            # A job of the day before, whose update came after midnight.
            again -= 1
            data["GlobalJobId"] = job_id(day - timedelta(days=1), 0, again)
        elif name == "repeated" and not sent:
            name = "matched"
        elif name == "repeated":
            data = {**sent[number % len(sent)], "CRAB_PostJobStatus": "FINISHED"}
        # Change a job so that its record falls into the bin.
        match name:
            case "not_final":
                data["Status"] = ("Idle", "Running", "Running", "Held", "Error")[number % 5]
                data["ExitCode"] = data["ChirpCMSSWReadBytes"] = None
            case "other_type":
                data["Type"] = "test"
            case "never_ran":
                data["WallClockHr"] = 0 if number % 2 else None
            case "no_input":
                data["CRAB_DataBlock"] = "MCFakeBlock"
            case "user_file":
                data["CRAB_DataBlock"] = "UserFilesFakeBlock" if number % 2 else None
                data["DESIRED_CMSDataset"] = (
                    f"/Private/{world.people[number % len(world.people)].login}-v1/USER"
                )
            case "not_in_dbs":
                data["CRAB_DataBlock"] = "/Gone/Run2012A-v1/AOD#0"
        # A job that is sent again keeps what it cost.
        data = {**cost_fields(data, number), **data}
        if name == "matched":
            sent.append(data)
        counts[name] += 1
        filler = fillers[number % POOL]
        short = (
            filler[: filler.rindex(",", 0, max(2, len(filler) // 2))]
            if name == "not_final"
            else filler
        )
        stamp = data["RecordTime"] + (86_400_000 if name == "out_of_day" else 0)
        body = _JSON.encode(data)[:-1] + "," + short
        line = f'{{"data":{body}}},"metadata":{{"_id":"{number}","producer":"condor","timestamp":{stamp}}}}}'
        lines.append(line[: len(line) // 2] if name == "malformed" else line)
    return lines, counts


def job_id(day: date, piece: int, number: int) -> str:
    """Return the id of a job of a day."""
    return f"crab3@vocms0{100 + number % 7}.cern.ch#{1_000_000 * piece + number}.0#{start_ms(day) // 1000}"


def _bins(rng: np.random.Generator, records: int) -> list[str]:
    names: list[str] = []
    for name, share in SHARES.items():
        names += [name] * max(round(share * records), 1 if records >= 100 else 0)
    names = names[:records] + ["matched"] * (records - len(names))
    rng.shuffle(names)
    # The jobs that are sent again on the next day.
    return ["matched"] * min(SENT_AGAIN, records) + names[SENT_AGAIN:]


class _Jobs:
    """Draws jobs of people on blocks of datasets."""

    def __init__(self, world: World, rng: np.random.Generator, day: date, piece: int) -> None:
        self._world, self._day, self._piece = world, day, piece
        self._rng = rng
        weights = world.popularity[world.block_dataset]
        self._blocks = rng.choice(len(world.block_names), 512, p=weights / weights.sum()).tolist()

    def draw(self, number: int) -> dict[str, Any]:
        """Return a job that ended, of a user's analysis on a block that DBS has."""
        world, rng = self._world, self._rng
        luck = rng.random(4)
        block = self._blocks[int(luck[0] ** 2 * len(self._blocks))]
        dataset = int(world.block_dataset[block])
        person = world.people[int(luck[1] ** 2 * len(world.people))]
        home = world.sites[dataset]
        elsewhere = (*T2, *T3)
        site = (
            home[number % len(home)]
            if home and luck[2] < 0.8
            else elsewhere[number % len(elsewhere)]
        )
        is_crab = number % 5 > 0
        end = start_ms(self._day) + int(luck[3] * 86_000_000)
        hours = float(np.round(rng.exponential(3.0) + 0.01, 6))
        return {
            "GlobalJobId": job_id(self._day, self._piece, number),
            "Status": "Completed" if number % 12 or number < SENT_AGAIN else "Removed",
            "Type": "analysis" if is_crab else "production",
            "Site": site + ("_Disk" if number % 50 == 0 else "") if number % 97 else "Unknown",
            "CRAB_DataBlock": world.block_names[block] if is_crab else None,
            "DESIRED_CMSDataset": world.names[dataset],
            "CRAB_UserHN": person.login if is_crab else None,
            "CRAB_Workflow": f"{self._day:%y%m%d}_120000:{person.login}_crab_{dataset}"
            if is_crab
            else None,
            "CMS_SubmissionTool": ("CRAB" if number % 20 else "InstitutionalSchedd")
            if is_crab
            else "WMAgent",
            "CMS_WMTool": "CRAB" if is_crab else "WMAgent",
            "RecordTime": end,
            "WallClockHr": hours,
            "CpuTimeHr": float(np.round(hours * rng.uniform(0.2, 3.5), 6)),
            "ChirpCMSSWReadBytes": float(rng.integers(0, 20_000_000_000)) if number % 9 else None,
            "ExitCode": 0 if number % 11 else 8021,
        }


def _filler(rng: np.random.Generator, fields: int) -> str:
    """Fields that nobody reads."""
    numbers = rng.integers(0, 1 << 40, max(1, fields)).tolist()
    forms = (
        '"CRAB_Attr{i}":"/cms/attribute/{n}"',
        '"ClassAdCount{i}":{n}',
        '"ClassAdRatio{i}":{n}.25',
        '"HasFlag{i}":true',
    )
    return ",".join(forms[i % len(forms)].format(i=i, n=n) for i, n in enumerate(numbers))


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
            msgspec.json.encode({"data": {**data, "wmaid": wmaid}, "metadata": metadata}).decode()
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
