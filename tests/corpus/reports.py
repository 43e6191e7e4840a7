"""WMArchive's reports: builders, hostile lines of rules 56 to 58, and days of them at random."""

from __future__ import annotations

import random
from datetime import date

from tests.corpus.json_lines import ABSENT, Raw
from tests.corpus.json_lines import encode as encode_flat

NAN = Raw(b"NaN")
CPU: dict[str, object] = {
    "NumberOfStreams": 4,
    "NumberOfThreads": 8,
    "TotalJobCPU": 1000.5,
    "TotalJobTime": 200.25,
}
STORAGE: dict[str, object] = {
    "readTotalMB": 10.5,
    "writeTotalMB": 2,
    "readTotalSecs": 5.5,
    "writeTotalSecs": "0.25",
    "x": None,
}
MEMORY: dict[str, object] = {"PeakValueRss": 1500.3, "PeakValueVsize": 2500}


def encode(value: object) -> bytes:
    """A value as JSON; unlike that of other logs it may hold :class:`Raw` in lists."""
    if isinstance(value, dict):
        value = list(value.items()) or {}
    if isinstance(value, list) and value and not all(isinstance(item, tuple) for item in value):
        return b"[" + b",".join(map(encode, value)) + b"]"
    if isinstance(value, list) and value:
        return (
            b"{" + b",".join(encode_flat(key) + b":" + encode(item) for key, item in value) + b"}"
        )
    return encode_flat(value)


def without(values: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in values.items() if value is not ABSENT}


def step(
    changes: dict[str, object] | None = None,
    cpu: dict[str, object] | None = None,
    storage: dict[str, object] | None = None,
    memory: dict[str, object] | None = None,
) -> dict[str, object]:
    """A step with changes."""
    parts = {
        "cpu": without({**CPU, **(cpu or {})}),
        "storage": without({**STORAGE, **(storage or {})}),
        "memory": without({**MEMORY, **(memory or {})}),
    }
    return without(
        {
            "name": "cmsRun1",
            "site": "T1_US_FNAL",
            "status": 0,
            "start": 1,
            "stop": 2,
            "errors": [{"exitCode": 8021}],
            "output": [{"acquisitionEra": "Run3", "events": 100, "outputDataset": "/a/b/C"}],
            "performance": parts,
            **(changes or {}),
        }
    )


def report(
    wmaid: object,
    noon: int,
    changes: dict[str, object] | None = None,
    meta: dict[str, object] | None = None,
    steps: object = ...,
    also: tuple[tuple[str, object], ...] = (),
) -> bytes:
    """A report with changes; ``also`` comes behind them, so that keys can stand twice."""
    data = without(
        {
            "wmaid": wmaid,
            "wmats": noon,
            "task": "/req1/task/DataProc",
            "meta_data": without(
                {
                    "ts": noon,
                    "fwjr_id": str(wmaid),
                    "jobtype": "Processing",
                    "jobstate": "success",
                    "host": "vocms1",
                    **(meta or {}),
                }
            ),
            "steps": [step(), None, {"name": "stageOut1", "site": "T2_CH_CERN"}]
            if steps is ...
            else steps,
            "LFNArray": [["x"]],
            **(changes or {}),
        }
    )
    return encode([("data", [*data.items(), *also]), ("metadata", {"timestamp": noon * 1000})])


def hostile(noon: int) -> list[bytes]:
    """Lines of odd and of wrong values, each a report of its own."""
    values: tuple[object, ...] = (
        None,
        ABSENT,
        NAN,
        -2,
        -2.0,
        -1.0,
        0,
        Raw(b"-0.0"),
        1.5,
        7,
        8.0,
        -1,
        -3,
        -2.5,
        "3",
        "",
        True,
        [],
        {},
        1e300,
        10**9,
        Raw(b"1e400"),
        Raw(b"Infinity"),
    )
    texts: tuple[object, ...] = (
        None,
        ABSENT,
        "",
        "x",
        "Änne",
        5,
        True,
        [],
        Raw(rb'"\ud800"'),
        Raw(b'"\xff"'),
    )
    seconds: tuple[object, ...] = (
        *values,
        "1.5",
        " 2 ",
        "NaN",
        "nan",
        "-2",
        "inf",
        "x",
        "-1",
        "1e3",
    )
    found: list[list[object]] = [[step(cpu={name: value})] for name in CPU for value in values]
    found += [[step(storage={name: value})] for name in STORAGE for value in seconds]
    found += [[step(memory={name: value})] for name in MEMORY for value in values]
    found += [[step({name: value})] for name in ("name", "site") for value in texts]
    found += [
        [step({"site": value})]
        for value in (
            {},
            {"a": [1]},
            [{}],
            Raw(b"1e400"),
            Raw(b"NaN"),
            False,
            " T1_US_FNAL_Disk ",
            "T1_US_FNAL_Disk_Disk",
            "UNKNOWN",
            "n/a",
            "None",
            "null",
            "-",
            "unknown_Disk",
        )
    ]
    found += [[step({"status": value})] for value in (*values, -9)]
    found += [
        [step({"output": value})]
        for value in (
            None,
            ABSENT,
            [],
            [None],
            [{}],
            {},
            "x",
            [5],
            [[]],
            [{"events": NAN}, {"events": -2}, {"events": 5}],
            [{"acquisitionEra": "b"}, {"acquisitionEra": "a"}, {"acquisitionEra": ""}],
            [{"acquisitionEra": 5}],
            [{"events": "5"}],
            [{"events": 2**40}],
            [{"events": 5, "outputDataset": name} for name in ("/a", "/b", "/a", None, {}, 5)],
            [{"events": 9}, {"events": 5, "outputDataset": ""}, {"outputDataset": "/a"}],
            [{"events": -1, "outputDataset": Raw(rb'"\ud800"')}],
        )
    ]
    found += [
        [step({"performance": value})]
        for value in (
            None,
            ABSENT,
            {},
            [],
            "x",
            {"cpu": None},
            {"cpu": {}},
            {"cpu": []},
            {"storage": 5},
            {"memory": {"PeakValueRss": NAN}},
        )
    ]
    found += [
        [step({"name": name})] for name in ("CMSRUN2", "cmsRun", "cmsrunx", "logArch1", " cmsRun1")
    ]
    # Times of 200.25 s and 8 threads: 16,020 s at most.
    found += [
        [step(cpu=cpu, storage={"readTotalSecs": read, "writeTotalSecs": write})]
        for cpu in ({}, {"NumberOfThreads": None}, {"NumberOfThreads": 0}, {"TotalJobTime": -1})
        for read, write in ((16_020, 16_020.001), (2002.5, "2002.501"), (None, 1e6))
    ]
    found += [[], [None], [5], [[]], [step(), step({"name": "cmsRun2"}), step()]]
    lines = [report(f"steps-{number}", noon, steps=steps) for number, steps in enumerate(found)]
    lines += [
        report(f"whole-{number}", noon, steps=steps)
        for number, steps in enumerate((None, ABSENT, {}, "x", 5))
    ]
    for number, value in enumerate(texts):
        lines += [
            report(f"{name}-{number}", noon, meta={name: value})
            for name in ("jobtype", "jobstate", "host", "fwjr_id")
        ]
        lines += [
            report(f"task-{number}", noon, {"task": value}),
            report(value, noon),
            report(f"meta-{number}", noon, {"meta_data": value}),
        ]
    lines += [
        report(f"task2-{number}", noon, {"task": task})
        for number, task in enumerate(("/", "//", "a/b", "abc", "/a", "//b"))
    ]
    stamps = (
        None,
        ABSENT,
        noon * 1000,
        noon * 1_000_000,
        float(noon),
        noon + 86_400,
        0,
        -1,
        1.5,
        "x",
        NAN,
        True,
    )
    lines += [
        report(f"time-{number}", noon, {"wmats": value}) for number, value in enumerate(stamps)
    ]
    lines += [
        report("twice-1", noon, also=(("task", "/other/x"),)),
        report("twice-2", noon, also=(("task", 5),)),
        report("twice-3", noon, {"task": 5}, also=(("task", "/o"),)),
    ]
    first = report("deep", noon)
    lines += [
        first.replace(b'"metadata":', b'"metadata":5,"metadata":'),
        first.replace(b'"metadata":', b'"metadata":null,"metadata":'),
        first[:-1],
        first + first,
        first.replace(b'"LFNArray":[["x"]]', b'"LFNArray":' + b"[" * 500 + b"]" * 500),
        first.replace(b'"errors":', b'"x":NaN,"errors":'),
    ]
    # Equal ids: the longest line counts, of equally long ones the largest as bytes.
    for name, changes in (
        ("a", {"status": 1}),
        ("b", {"status": 22}),
        ("c", {"status": 3}),
        ("d", {"site": "T1_US_FNAK"}),
    ):
        lines += [
            report(
                "same",
                noon,
                steps=[step({**changes})],
                meta={"host": "vocms9" if name == "d" else "vocms8"},
            )
        ]
    # One report that arrived several times, and others of one id that are not it.
    again = {"host": "vocms7", "fwjr_id": "12-0"}
    lines += [
        report("first", noon, meta=again),
        report("second", noon, meta=again),
        report("third", noon, {"task": "/req1/task/Other"}, meta=again),
        report("fourth", noon, meta={**again, "fwjr_id": "12-1"}),
        report("fifth", noon, meta={**again, "host": None}),
        report("fifth", noon, meta={**again, "fwjr_id": ""}),
        report("fifth", noon, meta={**again, "fwjr_id": {}}),
        report("sixth", noon, meta={**again, "jobstate": "jobfailed"}),
    ]
    lines += [
        report("mixed", noon, meta={"jobstate": "failed", "more": "x" * 50}),
        report("mixed", noon),
    ]
    return lines


def at_random(seed: int, day: date, count: int = 1500) -> list[bytes]:
    """Reports of a day, some of them twice."""
    rng = random.Random(seed)
    noon = (day - date(1970, 1, 1)).days * 86_400 + 43_200
    numbers = (None, NAN, -2, -1, 0, 1, 2.5, 1 / 3, 1e6, 123.456)
    lines = []
    for _ in range(count):
        steps: list[object] = [
            step(
                {
                    "name": rng.choice(("cmsRun1", "cmsRun2", "stageOut1")),
                    "site": rng.choice(("T1_US_FNAL", "T2_CH_CERN", None)),
                    "status": rng.choice((0, 0, 0, 1, None)),
                    "output": [
                        {
                            "acquisitionEra": rng.choice(("A", "B", None)),
                            "events": rng.choice((None, 5, 7, -2)),
                            "outputDataset": rng.choice(("/a/b/C", "/a/b/D", None)),
                        }
                        for _ in range(rng.randrange(3))
                    ],
                },
                {
                    "NumberOfThreads": rng.choice((None, 1, 8, NAN)),
                    "TotalJobCPU": rng.choice(numbers),
                    "TotalJobTime": rng.choice(numbers),
                },
                {
                    "readTotalMB": rng.choice(numbers),
                    "readTotalSecs": rng.choice((*numbers, "1.25", "")),
                },
                {"PeakValueRss": rng.choice(numbers), "PeakValueVsize": rng.choice(numbers)},
            )
            for _ in range(rng.randrange(4))
        ]
        meta = {
            "jobtype": rng.choice(
                ("Production", "Processing", "Merge", "Cleanup", "LogCollect", "Skim")
            ),
            "jobstate": rng.choice(("success",) * 4 + ("failed",)),
            "host": f"vocms{rng.randrange(3)}",
            "fwjr_id": rng.choice((f"{rng.randrange(count // 4)}-0", "", None, {})),
        }
        line = report(
            f"id-{rng.randrange(count)}",
            noon + rng.choice((0, 0, 0, 0, 0, 86_400)),
            {"task": f"/r{rng.randrange(3)}/t{rng.randrange(2)}"},
            meta,
            steps,
        )
        lines.append(line[: rng.randrange(len(line))] if rng.random() < 0.003 else line)
    return lines
