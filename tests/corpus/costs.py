"""HTCondor's records with what jobs cost: hand-written cases of rules 49 to 54, and
days at random.
"""

from __future__ import annotations

import random
from datetime import date

from tests.corpus.jobs import job
from tests.corpus.json_lines import ABSENT, Raw

COSTS: dict[str, object] = {
    "CMS_JobType": "Processing",
    "Workflow": "Run3Summer",
    "WMAgent_RequestName": "pdmv_task_1",
    "ScheddName": "vocms1",
    "Tier": "T1",
    "MachineAttrCMSSubSiteName0": None,
    "RequestCpus": 4,
    "CoreHr": 2.0,
    "CommittedCoreHr": 1.5,
    "CommittedWallClockHr": 0.4,
    "MaxWallTimeMins": 480,
    "ChirpCMSSWReadTimeMsecs": 1500.5,
    "ChirpCMSSWElapsed": 1200.25,
    "HS06CpuTimeHr": 2.5,
    "CpuEffOutlier": 0,
    "JobFailed": 0,
}
_NUMBERS = (
    "RequestCpus",
    "CoreHr",
    "CommittedCoreHr",
    "CommittedWallClockHr",
    "MaxWallTimeMins",
    "ChirpCMSSWReadTimeMsecs",
    "ChirpCMSSWElapsed",
    "HS06CpuTimeHr",
)
_TEXTS = (
    "CMS_JobType",
    "Workflow",
    "WMAgent_RequestName",
    "ScheddName",
    "Tier",
    "MachineAttrCMSSubSiteName0",
)
_SITES = (
    ("T1_IT_CNAF", "CNAF-LEONARDO"),
    ("T1_IT_CNAF", "CNAF-CINECA"),
    ("T1_IT_CNAF", "CNAF-VEGA"),
    ("T1_IT_CNAF", "x-CHULA-y"),
    ("T1_IT_CNAF", None),
    ("T1_IT_CNAF", "cnaf-cineca"),
    ("T1_ES_PIC", "PIC-BSC"),
    ("T3_ES_PIC_BSC", "PIC-BSC"),
    ("T1_ES_PIC", None),
    ("T1_DE_KIT", "KIT-HOREKA"),
    ("T2_DE_RWTH", "RWTH-HPC"),
    ("T3_US_NERSC", None),
    ("T3_US_Anvil", "x"),
    ("T3_US_ANVIL", None),
    ("T2_CH_CERN", "Unknown"),
    ("T2_CH_CERN_Disk", ""),
    (None, None),
)


def malformed() -> list[bytes]:
    """Lines that are malformed by one of the fields of costs alone."""
    numbers: tuple[object, ...] = (
        "1",
        "",
        -1,
        -0.5,
        True,
        [],
        {},
        Raw(b"1e400"),
        1e300,
        Raw(b"NaN"),
    )
    flags: tuple[object, ...] = (2, -1, 0.5, "1", True, [], {}, Raw(b"1e400"))
    found = [{name: value} for name in _NUMBERS for value in numbers]
    found += [{name: value} for name in ("CpuEffOutlier", "JobFailed") for value in flags]
    found += [{name: value} for name in _TEXTS for value in (5, True, [], Raw(rb'"\ud800"'))]
    lines = [job({**COSTS, **changes}) for changes in found]
    lines += [
        job({**COSTS, "Status": status, "RequestCpus": -1})
        for status in ("Running", "Idle", "Held")
    ]
    return [
        *lines,
        job(COSTS, also=[("RequestCpus", "x")]),
        job({**COSTS, "RequestCpus": "x"}, also=[("RequestCpus", 1)]),
    ]


def odd() -> list[bytes]:
    """Well-formed lines of odd values, each of a job of its own."""
    found: list[dict[str, object]] = [
        {name: value}
        for name in _NUMBERS
        for value in (
            None,
            0,
            0.0,
            Raw(b"-0.0"),
            Raw(b"1e-3"),
            0.0005,
            2.5,
            ABSENT,
            Raw(b"0.00000013888888888888889"),
            10**11,
        )
    ]
    found += [
        {name: value}
        for name in ("CpuEffOutlier", "JobFailed")
        for value in (None, 0, 1, 1.0, Raw(b"0e5"), ABSENT)
    ]
    found += [
        {name: value}
        for name in _TEXTS
        for value in (None, "", " ", "Änne", "t1", "T0", "T4", ABSENT, Raw(rb'"a\u0062"'))
    ]
    found += [
        {"Type": value}
        for value in (None, "", "Tier0", "folding@home", "TEST", "ÄRGER", "unknown")
    ]
    found += [{"JobFailed": None, "ExitCode": code} for code in (None, 0, 1, -1, 2**70)]
    found += [
        {"Status": "Removed", "JobFailed": 1},
        {"JobFailed": 1, "CpuEffOutlier": 1},
        {"CpuEffOutlier": 1},
    ]
    found += [
        {"WallClockHr": wall, "CoreHr": core, "CommittedCoreHr": committed, "CpuTimeHr": cpu}
        for wall in (None, 0, 2.0)
        for core in (None, 0, Raw(b"0.000"), 48.0)
        for committed in (None, 0, 16.0, 1e-9)
        for cpu in (None, 0, 15.2)
    ]
    ids = ("file:a", "a//b", "root://x/y", "/", "fnal#1", "ä#1", "x" * 3000)
    lines = [
        job({**COSTS, "GlobalJobId": f"odd-{number}", **changes})
        for number, changes in enumerate(found)
    ]
    for status in ("Running", "Completed"):
        lines += [job({**COSTS, "GlobalJobId": name, "Status": status}) for name in ids]
    return lines


def at_random(seed: int, day: date, records: int = 2000, jobs: int = 500) -> list[bytes]:
    """Records of jobs that are running or ended, many of one job."""
    rng = random.Random(seed)
    start = (day - date(1970, 1, 1)).days * 86_400_000
    lines = []
    for _ in range(records):
        site, subsite = rng.choice(_SITES)
        time = (
            start + rng.randrange(86_400_000)
            if rng.random() < 0.95
            else start + rng.choice((-1, 86_400_000, 0, 719_999, 720_000))
        )
        if rng.random() < 0.3:
            time = start + rng.randrange(3) * 720_000
        changes: dict[str, object] = {
            "GlobalJobId": f"job-{rng.randrange(jobs)}",
            "Status": rng.choice(
                ("Running",) * 5
                + ("Completed", "Completed", "Removed", "Idle", "Held", "running", None)
            ),
            "Type": rng.choice(
                ("analysis", "Production", "production", "tier0", "test", None, "")
            ),
            "Site": site,
            "MachineAttrCMSSubSiteName0": subsite,
            "CRAB_UserHN": rng.choice(("alice", "bob", "Änne", None)),
            "RecordTime": rng.choice(
                (time, time, time, time // 1000, time * 1000, None, float(time))
            ),
            "CpuTimeHr": rng.choice((None, 0, 0.1, 1 / 3, 7)),
            "WallClockHr": rng.choice((None, 0, 0.5, 0.5, 2 / 3, 1e-9, 12)),
            "ExitCode": rng.choice((None, 0, 0, 1, -9)),
            "CMS_JobType": rng.choice(("Analysis", "Processing", "Merge", None, "")),
            "Workflow": rng.choice(("Run3Summer", "crab_x", None, "")),
            "WMAgent_RequestName": rng.choice(("r1", "r2", None)),
            "ScheddName": rng.choice(("s1", "s2", "s3", None)),
            "Tier": rng.choice(("T1", "t2", "Unknown", None, "T0")),
            "RequestCpus": rng.choice((None, 1, 4, 8, 0.5, 0, 2.0005)),
            **{
                name: rng.choice((None, 0, 1.5, 2 / 3, 100))
                for name in _NUMBERS
                if name != "RequestCpus"
            },
            "CpuEffOutlier": rng.choice((None, 0, 0, 1)),
            "JobFailed": rng.choice((None, 0, 0, 1)),
        }
        stamp: object = rng.choice((start + 5, start + 86_399_999, None, (start + 7) // 1000))
        stamp = start + rng.choice((-1, 86_400_000)) if rng.random() < 0.03 else stamp
        record = job(changes, None if stamp is None else {"timestamp": stamp})
        lines.append(record[: rng.randrange(len(record))] if rng.random() < 0.002 else record)
    return lines
