"""Stores for the dashboard's tests: made-up days with ordinary and hostile names,
replicas, reports and faults.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from cmsspark.base.names import DERIVED
from cmsspark.base.schemas import stored_table
from cmsspark.filesystems.storage import LocalFiles
from cmsspark.store import staged_runs

LAST = date(2026, 1, 15)
#: Names that would do harm where they are taken for HTML, SQL, a path, a formula or a pattern.
HOSTILE = (
    "/<script>alert(1)</script>/x-v1/AOD",
    '/<img src=x onerror=alert(2)>/"><svg onload=alert(3)>-v1/RAW',
    "/a'; DROP TABLE cube; --/b-v1/MINIAOD",
    "/../../../etc/passwd/..-v1/RECO",
    '=HYPERLINK("http://evil")/x/y',
    "/Ünïcode\u202eevil\x1b[31m/new\nline-v1/AOD",
    "/{{7*7}}/${7*7}-v1/%00",
)
ORDINARY = tuple(
    f"/{primary}/{campaign}-v{version}/{tier}"
    for primary in ("ZMM", "TTbar", "QCD_Pt300", "SingleMuon")
    for campaign in (
        "Run2018A-22Jun2018",
        "RunIISummer15GS-MCRUN2",
        "RunIIAutumn18-102X",
        "Run2017B-31Mar2018",
    )
    for version, tier in ((1, "AOD"), (1, "MINIAODSIM"), (2, "NANOAOD"), (1, "GEN-SIM-RAW"))
)
DATASETS = ORDINARY + HOSTILE
SITES = (
    "T2_CH_CERN",
    "T1_US_FNAL",
    "T2_US_MIT",
    "T2_DE_DESY",
    "T3_US_Colorado",
    "unknown",
    "T2_<b>XX</b>_'Y",
)
STREAMS = ("aaa", "eos", "cmssw", "crab", "condor")
#: A dataset that jobs use and no access reads.
ONLY_JOBS = "/OnlyJobs/Run2018A-v1/AOD"
APPS = ("crab", "cmsrun", "wmagent", "unknown")


def partial_rows(
    day: date, seed: int = 1, count: int = 300, key: str = "key1", people: int = 40
) -> list[dict[str, Any]]:
    """The partials of a day, each key once."""
    rng = random.Random(f"{seed} {day}")
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for _ in range(count):
        stream = rng.choice(STREAMS)
        dataset = DATASETS[min(int(rng.expovariate(0.08)), len(DATASETS) - 1)]
        user = None if rng.random() < 0.1 else f"{key}:{rng.randrange(people):032x}"
        names = (stream, dataset, rng.choice(SITES), rng.choice(APPS), user)
        # Jobs are many, so that a sum that has them by mistake is far off.
        is_job = stream == "condor"
        if is_job and rng.random() < 0.3:
            names = (stream, ONLY_JOBS, *names[2:])
        nacc = rng.randrange(50_000, 900_000) if is_job else rng.randrange(1, 5_000)
        is_known = stream in ("aaa", "cmssw", "crab", "condor") and rng.random() < 0.8
        has_times = stream in ("crab", "condor")
        rows[names] = {
            "day": day,
            "stream": stream,
            "dataset_name": names[1],
            "site_name": names[2],
            "app": names[3],
            "user": user,
            "nacc": nacc,
            "remote_nacc": rng.randrange(nacc + 1) if is_known else None,
            "read_bytes": None if stream == "crab" else nacc * rng.randrange(10**10),
            "cpu_time": rng.randrange(10**9) / 1000 if has_times else None,
            "wc_time": rng.randrange(10**9) / 1000 if has_times else None,
        }
    return [rows[name] for name in sorted(rows, key=str)]


def pair_rows(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Pairs of sites of the accesses of AAA among the partials of a day, each of which
    has a made-up reader or none.
    """
    pairs: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in (row for row in rows if row["stream"] == "aaa"):
        readers = [*(site for site in SITES if site != "unknown"), None]
        source = None if row["site_name"] == "unknown" else row["site_name"]
        key = (
            DERIVED["data_tier"].derive(row["dataset_name"]),
            readers[row["nacc"] % len(readers)],
            source,
        )
        names = dict(zip(("data_tier", "reader_site", "source_site"), key, strict=True))
        pair = pairs.setdefault(
            key,
            {
                "day": row["day"],
                "stream": "aaa",
                **names,
                "timestamp": 0,
                "nacc": 0,
                "remote_nacc": None,
                "read_bytes": 0,
            },
        )
        pair["nacc"] += row["nacc"]
        pair["read_bytes"] += row["read_bytes"]
    return list(pairs.values())


def store_day(store: Path, day: date, rows: Sequence[dict[str, Any]], **manifest: Any) -> Path:
    """Store the partials of a day and their report as ``data_aggregation`` does.
    Returns the run's folder.
    """
    from cmsspark.apps.demo.narration import report

    partials = pa.Table.from_pylist(list(rows), stored_table("partials").arrow())
    run = staged_runs.stage(LocalFiles(), str(store), "data_aggregation", day)
    run.write_arrow(report(partials, day), "data_aggregation")
    run.write_arrow(partials, "partials")
    run.write_arrow(
        pa.Table.from_pylist(pair_rows(rows), stored_table("site_pairs").arrow()), "site_pairs"
    )
    run.commit(
        {
            "streams": list(STREAMS),
            "missing_streams": [],
            "partial": False,
            "warnings": [],
            **manifest,
        }
    )
    return Path(run.folder)


def store_table(store: Path, name: str, day: date, rows: Sequence[dict[str, Any]]) -> None:
    """Store a table of a job on dumps; derived columns are added."""
    full = [
        _derived(stored_table(name).names, {"day": day, "timestamp": 0, **row}) for row in rows
    ]
    run = staged_runs.stage(LocalFiles(), str(store), name, day)
    run.write_arrow(pa.Table.from_pylist(full, stored_table(name).arrow()), name)
    run.commit({"warnings": []})


def _derived(names: Sequence[str], row: dict[str, Any]) -> dict[str, Any]:
    for column, rule in DERIVED.items():
        if column in names and column not in row and row.get(rule.source) is not None:
            row[column] = rule.derive(row[rule.source])
    return row


def replica_rows(seed: int = 1) -> list[dict[str, Any]]:
    """Replicas of the datasets at the sites, some of datasets that DBS does not know."""
    rng = random.Random(seed)
    rows = []
    for dataset in (*DATASETS, ONLY_JOBS, "/Never/Read-v1/AOD"):
        for site in SITES[:-2]:
            for kind in ("disk", "tape"):
                if rng.random() < 0.5:
                    size = rng.randrange(10**9, 10**14)
                    rows.append(
                        {
                            "dataset_name": dataset,
                            "site_name": site,
                            "kind": kind,
                            "present_bytes": size,
                            "present_file_count": size // 10**9,
                            "present_block_count": 3,
                            "is_complete": rng.random() < 0.7,
                            "newest_replica_ms": 1_700_000_000_000 + rng.randrange(10**9),
                            "dataset_bytes": size,
                        }
                    )
    return rows


def usage_rows(replicas: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """``site_tier_usage`` of some replicas."""
    groups: dict[tuple[str, str, str | None], list[dict[str, Any]]] = {}
    for row in replicas:
        tier = DERIVED["data_tier"].derive(row["dataset_name"])
        groups.setdefault((row["site_name"].split("_")[0], row["kind"], tier), []).append(row)
    return [
        {
            "site_tier": tier,
            "kind": kind,
            "data_tier": data_tier,
            "site_count": len({row["site_name"] for row in rows}),
            "dataset_count": len({row["dataset_name"] for row in rows}),
            "unknown_dataset_count": 0,
            "events": 1_000,
            "replica_events": 1_500,
            "replica_bytes": sum(row["present_bytes"] for row in rows),
            "replica_file_count": sum(row["present_file_count"] for row in rows),
        }
        for (tier, kind, data_tier), rows in groups.items()
    ]


def reconciliation(read: int) -> dict[str, Any]:
    """The bins of a stream of so many records, 4 % of them unmatched."""
    unmatched = {"user_file": read // 50, "temporary": 0, "not_in_dbs": read // 50, "no_lfn": 0}
    rest = read - sum(unmatched.values())
    return {
        "read": read,
        "matched": rest,
        "unmatched": unmatched,
        "malformed": 0,
        "out_of_day": 0,
        "write_only": 0,
    }


def full_store(store: Path, day_count: int = 45) -> Path:
    """A store with days up to ``LAST``, one missing and one partial; replicas, facts of
    DBS, and a report.
    """
    for back in range(day_count):
        day = LAST - timedelta(days=back)
        if back == 5:
            continue
        facts: dict[str, Any] = {
            "reconciliation": {stream: reconciliation(10_000 + back) for stream in STREAMS}
        }
        if back == 3:
            facts |= {
                "partial": True,
                "missing_streams": ["eos"],
                "warnings": ["<b>eos</b> was left out"],
            }
        if back == 2:
            entry = {
                "field": "<i>new_field</i>",
                "form": "enr",
                "change": "new",
                "example": "1",
                "records": 7,
            }
            facts["drift"] = {"aaa": [entry]}
        folder = store_day(store, day, partial_rows(day), **facts)
        if back == 0:
            (folder / "report.html").write_text(
                "<!doctype html><title>r</title><style>p{color:red}</style><p>the report</p>"
            )
    replicas = replica_rows()
    store_table(store, "dbs_phedex", LAST, replicas)
    store_table(store, "site_tier_usage", LAST, usage_rows(replicas))
    store_table(
        store,
        "dbs_events",
        LAST,
        [
            {
                "dataset_name": name,
                "events": 1_234_567,
                "file_count": 10,
                "invalid_file_count": 0,
                "dataset_bytes": 9_876_543_210,
                "is_valid": True,
                "access_type": "VALID",
            }
            for name in DATASETS
        ],
    )
    return store
