"""HTCondor's records of jobs: builders, hand-written cases of rules 29 to 33, and days
of them at random.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, timedelta

from tests.corpus.json_lines import DAY_START, NOON_MS, Raw, changed, encode, line
from tests.corpus.tables import JETS, TOPS
from tests.corpus.tree import Tree

CONDOR = "condor"
JOB = {
    "GlobalJobId": "crab3@vocms.cern.ch#1.0#1560000000",
    "Status": "Completed",
    "Type": "analysis",
    "Site": "T1_US_FNAL",
    "CRAB_DataBlock": f"{JETS}#aa",
    "DESIRED_CMSDataset": JETS,
    "CRAB_UserHN": "alice",
    "CRAB_Workflow": "190615_120000:alice_crab_JetHT",
    "CMS_SubmissionTool": "CRAB",
    "CMS_WMTool": "CRAB",
    "RecordTime": NOON_MS,
    "ChirpCMSSWReadBytes": 1000.0,
    "CpuTimeHr": 0.25,
    "WallClockHr": 0.5,
    "ExitCode": 0,
    "KEvents": 12.5,
    "Args": "a=1 b=2",
    "InputFiles": [],
    "Requirements": None,
    "CpuEff": 50.0,
}


def job(
    changes: dict[str, object] = {},
    metadata: object = ...,
    also: Iterable[tuple[str, object]] = (),
) -> bytes:
    """A record of a job, delivered at noon of the day."""
    data = changed(JOB, changes, also)
    return line(data) if metadata is ... else line(data, metadata)


@dataclass(frozen=True)
class JobCase:
    """Records of one or a few jobs, and what becomes of them.

    ``bins``: records by bin. ``counted``: of each job that counts, the values named in ``what``.
    """

    name: str
    lines: tuple[bytes, ...]
    bins: dict[str, int]
    counted: tuple[tuple[object, ...], ...] = ()
    what: tuple[str, ...] = ()
    #: The lines of the day before.
    before: tuple[bytes, ...] = ()


def _one(name: str, changes: dict[str, object], found: str, metadata: object = ...) -> JobCase:
    return JobCase(name, (job(changes, metadata),), {found: 1})


def _input(
    block: object, dataset: object, found: str, name: str | None = None, known: str | None = None
) -> JobCase:
    case = job({"CRAB_DataBlock": block, "DESIRED_CMSDataset": dataset})
    found_bin = "matched" if found == "dataset" else found
    return JobCase(
        f"{block!r}, {dataset!r}",
        (case,),
        {found_bin: 1},
        ((found, name, known),),
        ("input", "dataset", "block"),
    )


def _value(what: str, changes: dict[str, object], value: object) -> JobCase:
    return JobCase(f"{what} of {changes}", (job(changes),), {"matched": 1}, ((value,),), (what,))


def _tie(
    what: str, key: str, low: object, high: object, rest: dict[str, object] = {}
) -> list[JobCase]:
    """Of two records that differ in one key only, the larger counts, in whatever order they come."""
    lines = job({**rest, key: low}), job({**rest, key: high})
    found = {"repeated": 1, "matched": 1}
    value = job_value(what, {**JOB, **rest, key: high})
    return [
        JobCase(f"{key}: {low!r} before {high!r}", lines, found, ((value,),), (what,)),
        JobCase(f"{key}: {high!r} before {low!r}", lines[::-1], found, ((value,),), (what,)),
    ]


def job_value(what: str, data: dict[str, object]) -> object:
    """The value by which a tie is told."""
    return {
        "status": data["Status"],
        "time": data["RecordTime"],
        "wall": round(float(str(data["WallClockHr"])) * 3.6e6),
        "cpu": None if data["CpuTimeHr"] is None else round(float(str(data["CpuTimeHr"])) * 3.6e6),
        "bytes": data["ChirpCMSSWReadBytes"],
        "exit": data["ExitCode"],
        "site": data["Site"],
        "user": data["CRAB_UserHN"],
        "raw_block": data["CRAB_DataBlock"],
        "raw_dataset": data["DESIRED_CMSDataset"],
        "app": "crab" if data["CMS_SubmissionTool"] == "CRAB" else "wmagent",
        "workflow": data["CRAB_Workflow"],
    }[what]


def _bin_cases() -> list[JobCase]:
    day, other = DAY_START, DAY_START + 86_400
    return [
        _one("a matched job", {}, "matched"),
        *(
            _one(f"GlobalJobId is {value!r}", {"GlobalJobId": value}, "malformed")
            for value in (None, "", 5, True, {})
        ),
        JobCase(
            "no GlobalJobId", (job({}).replace(b"GlobalJobId", b"GlobalJobIx"),), {"malformed": 1}
        ),
        _one("another day", {}, "out_of_day", {"timestamp": other * 1000}),
        _one(
            "another day before not final", {"Status": "Idle"}, "out_of_day", {"timestamp": other}
        ),
        _one("the day in seconds", {}, "matched", {"timestamp": day}),
        _one("the day in microseconds", {}, "matched", {"timestamp": day * 1_000_000}),
        *(_one(f"metadata is {value!r}", {}, "matched", value) for value in (None, {})),
        *(_one(f"metadata is {value!r}", {}, "malformed", value) for value in (5, "x", [])),
        *(
            _one(f"Status {value!r}", {"Status": value}, "not_final")
            for value in (
                "Idle",
                "Running",
                "Held",
                "Error",
                "Unknown",
                "completed",
                "Completed ",
                "",
                None,
            )
        ),
        *(_one(f"Status {value!r}", {"Status": value}, "malformed") for value in (4, True, [])),
        _one("not final before another type", {"Status": "Idle", "Type": "test"}, "not_final"),
        *(
            _one(f"Type {value!r}", {"Type": value}, "other_type")
            for value in ("test", "", None, "analysis ", "prod")
        ),
        *(
            _one(f"Type {value!r}", {"Type": value}, "matched")
            for value in ("Analysis", "PRODUCTION", "production")
        ),
        _one("another type before never ran", {"Type": "test", "WallClockHr": 0}, "other_type"),
        *(
            _one(f"WallClockHr {value!r}", {"WallClockHr": value}, "never_ran")
            for value in (None, 0, 0.0, Raw(b"0.000"), Raw(b"-0.0"), Raw(b"0e5"))
        ),
        *(
            _one(f"WallClockHr {value!r}", {"WallClockHr": value}, "matched")
            for value in (1e-9, 3, Raw(b"1e-3"))
        ),
        *(
            _one(f"{key} {value!r}", {key: value}, "malformed")
            for key in ("WallClockHr", "CpuTimeHr")
            for value in ("1", "", -1, -0.5, True, [], {}, Raw(b"1e400"), 1e300)
        ),
        *(
            _one(
                f"{key} ill-typed in a queued job: {value!r}",
                {"Status": "Idle", key: value},
                "malformed",
            )
            for key, value in (
                ("ExitCode", "0"),
                ("ExitCode", 1.5),
                ("RecordTime", -1),
                ("ChirpCMSSWReadBytes", -1),
                ("ChirpCMSSWReadBytes", 0.5),
                ("Site", 5),
                ("CRAB_UserHN", False),
                ("CMS_WMTool", []),
            )
        ),
        *(
            _one(f"{key} {value!r}", {key: value}, "matched")
            for key, value in (
                ("ExitCode", -9),
                ("ExitCode", None),
                ("ExitCode", 84.0),
                ("ExitCode", 2**70),
                ("RecordTime", None),
                ("RecordTime", 1.5e12),
                ("RecordTime", 2**66),
                ("ChirpCMSSWReadBytes", None),
                ("CpuTimeHr", None),
                ("CpuTimeHr", 0),
            )
        ),
        JobCase(
            "two statuses, the last counts",
            (job({}, also=[("Status", "Idle")]),),
            {"not_final": 1},
        ),
        JobCase(
            "two statuses, one ill-typed",
            (job({"Status": 5}, also=[("Status", "Idle")]),),
            {"malformed": 1},
        ),
        JobCase(
            "two ids, the last is empty", (job({}, also=[("GlobalJobId", "")]),), {"malformed": 1}
        ),
        JobCase(
            "an escape in a status", (job({"Status": Raw(rb'"Comple\u0074ed"')}),), {"matched": 1}
        ),
        JobCase("data is an array", (line([]),), {"malformed": 1}),
        JobCase("no data", (encode([("metadata", None)]),), {"malformed": 1}),
    ]


def _input_cases() -> list[JobCase]:
    jets = JETS
    return [
        _input("MCFakeBlock", jets, "no_input"),
        _input("UserFilesFakeBlock", jets, "user_file"),
        _input(f"{jets}#aa", None, "dataset", jets, f"{jets}#aa"),
        _input(f"{jets}#nowhere", None, "dataset", jets),
        _input(f"{TOPS}#bb", jets, "dataset", TOPS, f"{TOPS}#bb"),
        _input("/a/b/RAW#1", jets, "not_in_dbs"),
        _input("/a/b/USER#1", jets, "user_file"),
        *(
            _input(block, jets, "dataset", jets)
            for block in (
                None,
                "",
                "x",
                jets,
                f"{jets}#",
                f"{jets[1:]}#aa",
                "//b/C#x",
                "/a//C#x",
                "/a/b/#x",
                "/a/b#x",
                "/a/b/C/d#x",
                "mcfakeblock",
                " MCFakeBlock",
            )
        ),
        _input(None, f"cms:{jets}", "dataset", jets),
        _input(None, f"cms:{jets}#aa", "dataset", jets),
        _input(None, f"user.bob:{jets}", "user_file"),
        _input(None, f"CMS:{jets}", "user_file"),
        _input(None, "/a/b/RAW", "not_in_dbs"),
        _input(None, "/a/b/USER", "user_file"),
        _input(None, "/a/b/user", "not_in_dbs"),
        _input(None, "/a/b:c/USER", "user_file"),
        *(
            _input(None, name, "no_input")
            for name in (
                None,
                "",
                "None",
                "a/b/C",
                "/a/b",
                "/a/b/C/d",
                "//b/C",
                "cms:a",
                "cms:",
                "#",
                f" {jets}",
            )
        ),
    ]


def _field_cases() -> list[JobCase]:
    sites: dict[object, str] = {
        "T1_US_FNAL_Disk": "T1_US_FNAL",
        " T1_US_FNAL ": "T1_US_FNAL",
        "T1_US_FNAL_Disk_Disk": "T1_US_FNAL_Disk",
        "T1_US_FNAL_MSS": "T1_US_FNAL_MSS",
        "Unknown": "unknown",
        "UNKNOWN_Disk": "unknown",
        "": "unknown",
        None: "unknown",
        "  ": "unknown",
        "_Disk": "unknown",
        "N/A": "unknown",
        "none": "unknown",
        "-": "unknown",
        "T1_US_FNAL_disk": "T1_US_FNAL_disk",
    }
    users: dict[object, object] = {
        " bob ": "bob",
        "Unknown": None,
        "nobody": None,
        "Not reported": None,
        "n/a": None,
        "": None,
        None: None,
        "/CN=Bob": "/CN=Bob",
    }
    tools: list[tuple[object, object, object, str]] = [
        ("CRAB", None, None, "crab"),
        ("WMAgent", "CRAB", "wf", "wmagent"),
        ("", "CRAB", None, "crab"),
        (None, "WMAgent", "wf", "wmagent"),
        ("InstitutionalSchedd", None, None, "other"),
        ("InstitutionalSchedd", None, "wf", "crab"),
        (None, None, None, "unknown"),
        (None, None, "wf", "crab"),
        ("", "", "", "unknown"),
        (" ", None, "", "other"),
        ("USER", "CRAB", "wf", "crab"),
        ("cmsRun", None, "wf", "cmsrun"),
    ]
    remote: list[tuple[object, object, object]] = [
        ("T1_US_FNAL", f"{JETS}#aa", False),
        ("T2_US_MIT", f"{JETS}#aa", False),
        ("T2_DE_DESY", f"{JETS}#aa", True),
        ("T1_US_FNAL_Disk", f"{JETS}#aa", False),
        ("unknown", f"{JETS}#aa", None),
        ("T1_US_FNAL", f"{JETS}#none", None),
        ("T1_US_FNAL", None, None),
    ]
    return [
        *(_value("site", {"Site": site}, found) for site, found in sites.items()),
        *(_value("user", {"CRAB_UserHN": user}, found) for user, found in users.items()),
        *(
            _value(
                "app",
                {"CMS_SubmissionTool": tool, "CMS_WMTool": agent, "CRAB_Workflow": workflow},
                app,
            )
            for tool, agent, workflow, app in tools
        ),
        *(
            _value("remote", {"Site": site, "CRAB_DataBlock": block}, found)
            for site, block, found in remote
        ),
        *(
            _value("wall", {"WallClockHr": hours}, found)
            for hours, found in (
                (0.5, 1_800_000),
                (1, 3_600_000),
                (1e-9, 0),
                (0.0000001388888888888889, 1),
                (0.3333333333333333, 1_200_000),
            )
        ),
        _value("cpu", {"CpuTimeHr": None}, None),
        _value("bytes", {"ChirpCMSSWReadBytes": None}, None),
        _value("time", {"RecordTime": DAY_START}, DAY_START * 1000),
        _value("time", {"RecordTime": NOON_MS * 1000}, NOON_MS),
        _value("time", {"RecordTime": None}, NOON_MS),
    ]


def _tie_cases() -> list[JobCase]:
    found = [
        *_tie("status", "Status", "Removed", "Completed"),
        *_tie("time", "RecordTime", NOON_MS, NOON_MS + 1),
        *_tie("wall", "WallClockHr", 0.5, 0.75),
        *_tie("cpu", "CpuTimeHr", None, 0),
        *_tie("cpu", "CpuTimeHr", 0.5, 0.75),
        *_tie("bytes", "ChirpCMSSWReadBytes", None, 0),
        *_tie("bytes", "ChirpCMSSWReadBytes", 9, 10),
        *_tie("exit", "ExitCode", None, -5),
        *_tie("exit", "ExitCode", -5, 0),
        *_tie("raw_block", "CRAB_DataBlock", None, ""),
        *_tie("raw_block", "CRAB_DataBlock", f"{JETS}#aa", f"{TOPS}#bb"),
        *_tie("raw_dataset", "DESIRED_CMSDataset", None, JETS),
        *_tie("site", "Site", "T1_US_FNAL", "T2_CH_CERN"),
        *_tie("site", "Site", "T2_CH_CERN", "unknown"),
        *_tie("user", "CRAB_UserHN", None, "alice"),
        *_tie("user", "CRAB_UserHN", "Zoe", "alice"),
        *_tie("user", "CRAB_UserHN", "zoe", "Änne"),
        *_tie("app", "CMS_SubmissionTool", "CRAB", "WMAgent"),
        *_tie("workflow", "CRAB_Workflow", None, "wf"),
        *_tie("workflow", "CRAB_Workflow", "wf1", "wf2"),
    ]
    # The first key that differs decides, whatever the later ones say.
    late, long = {"RecordTime": NOON_MS + 5}, {"WallClockHr": 99, "CpuTimeHr": 99, "ExitCode": 9}
    found.append(
        JobCase(
            "a later record with smaller values",
            (job(late), job(long)),
            {"repeated": 1, "matched": 1},
            ((NOON_MS + 5, 1_800_000),),
            ("time", "wall"),
        )
    )
    removed = {"Status": "Removed", "RecordTime": NOON_MS + 9}
    found.append(
        JobCase(
            "a record that was removed later",
            (job(removed), job()),
            {"repeated": 1, "matched": 1},
            (("Completed",),),
            ("status",),
        )
    )
    three = (
        job(),
        job({"CRAB_DataBlock": "MCFakeBlock", "RecordTime": NOON_MS + 1}),
        job({"Status": "Idle"}),
    )
    found.append(
        JobCase(
            "the record that counts has no input",
            three,
            {"repeated": 1, "no_input": 1, "not_final": 1},
        )
    )
    return found


def _earlier_cases() -> list[JobCase]:
    yesterday = {"timestamp": NOON_MS - 86_400_000}
    own = job({}, yesterday)
    twice = {"repeated": 2}
    return [
        JobCase("a job of the day before", (job(), job()), twice, before=(own,)),
        JobCase(
            "another job of the day before",
            (job(),),
            {"matched": 1},
            before=(job({"GlobalJobId": "x"}, yesterday),),
        ),
        JobCase(
            "without an input on the day before",
            (job(),),
            {"repeated": 1},
            before=(job({"CRAB_DataBlock": "MCFakeBlock"}, yesterday),),
        ),
        JobCase(
            "removed on the day before",
            (job(),),
            {"repeated": 1},
            before=(job({"Status": "Removed"}, yesterday),),
        ),
        *(
            JobCase(
                f"not counted on the day before: {changes}",
                (job(),),
                {"matched": 1},
                before=(job(changes, stamp),),
            )
            for changes, stamp in (
                ({"Status": "Running"}, yesterday),
                ({"Type": "test"}, yesterday),
                ({"WallClockHr": 0}, yesterday),
                ({"ExitCode": "x"}, yesterday),
                ({}, ...),
            )
        ),
        JobCase(
            "without a time on the day before", (job(),), {"repeated": 1}, before=(job({}, None),)
        ),
    ]


def cases() -> list[JobCase]:
    """All cases."""
    return _bin_cases() + _input_cases() + _field_cases() + _tie_cases() + _earlier_cases()


def lines_at_random(seed: int, day: date, records: int, jobs: int) -> list[bytes]:
    """Records of some jobs, many of them of one job, with values that often tie."""
    rng = random.Random(seed)
    start = ((day - date(1970, 1, 1)).days * 86_400 + 3_600) * 1000
    found = []
    for _ in range(records):
        changes: dict[str, object] = {
            "GlobalJobId": f"job-{rng.randrange(jobs)}",
            "Status": rng.choice(
                (
                    "Completed",
                    "Completed",
                    "Completed",
                    "Removed",
                    "Idle",
                    "Running",
                    "Error",
                    None,
                )
            ),
            "Type": rng.choice(("analysis", "analysis", "Production", "production", "test")),
            "Site": rng.choice(
                ("T1_US_FNAL", "T1_US_FNAL_Disk", "T2_CH_CERN", "T2_US_MIT", "unknown", None)
            ),
            "CRAB_DataBlock": rng.choice(
                (
                    f"{JETS}#aa",
                    f"{JETS}#zz",
                    f"{TOPS}#bb",
                    "MCFakeBlock",
                    "UserFilesFakeBlock",
                    "/a/b/C#x",
                    None,
                    "",
                )
            ),
            "DESIRED_CMSDataset": rng.choice(
                (JETS, f"cms:{TOPS}", "user.x:/a/b/USER", "/a/b/USER", None)
            ),
            "CRAB_UserHN": rng.choice(("alice", "bob", "Änne", None, "unknown")),
            "CRAB_Workflow": rng.choice((None, "190615:alice_a", "190615:bob_b")),
            "CMS_SubmissionTool": rng.choice(("CRAB", "WMAgent", "InstitutionalSchedd", None)),
            "RecordTime": rng.choice((start, start + 1, (start + 1) // 1000, start * 1000, None)),
            "ChirpCMSSWReadBytes": rng.choice((None, 0, 5, 5.0, 10**12)),
            "CpuTimeHr": rng.choice((None, 0, 0.1, 1 / 3, 7)),
            "WallClockHr": rng.choice((None, 0, 0.5, 0.5, 2 / 3, 1e-9)),
            "ExitCode": rng.choice((None, 0, 0, 1, -9, 8021)),
        }
        moved = rng.choice((0, 0, 0, 0, 86_400_000)) * rng.choice((-1, 1))
        record = job(changes, {"timestamp": start + moved} if rng.random() < 0.9 else None)
        found.append(record[: rng.randrange(len(record))] if rng.random() < 0.01 else record)
    return found


def write_days(tree: Tree, seed: int, days: int = 2, records: int = 1500, jobs: int = 500) -> None:
    """The day of the tree and those before it, in which jobs come again; the cases
    stand in the last two.
    """
    cases_of = case_lines()
    for back in range(days):
        day = tree.day - timedelta(days=back)
        lines = lines_at_random(seed + back, day, records, jobs) + (
            cases_of[back] if back < 2 else []
        )
        Tree(tree.root, day).write_lines("condor", lines, parts=4)


def case_lines() -> tuple[list[bytes], list[bytes]]:
    """The lines of all cases, of the day and of the day before, each case with a job of its own."""
    today: list[bytes] = []
    before: list[bytes] = []
    for number, case in enumerate(cases()):
        own = str(JOB["GlobalJobId"]).encode(), f"case-{number}".encode()
        today += [record.replace(*own) for record in case.lines]
        before += [record.replace(*own) for record in case.before]
    return today, before
