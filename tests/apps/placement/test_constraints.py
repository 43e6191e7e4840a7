"""What every plan keeps to, checked from its input files and its JSON alone."""

from __future__ import annotations

import csv
import json
from collections import Counter, defaultdict
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from tests.apps.placement.worlds import run

DAY = date(2026, 3, 2)
SITES = ("T1_US_A", "T1_DE_B", "T2_CH_C", "T2_FR_D", "T2_IT_E", "T2_UK_F", "T2_ES_G")
WEEK_OF_GBIT = 1e9 / 8 * 7 * 86_400
SCHEMA = json.loads(Path(__file__).with_name("rucio_rule.json").read_text())


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.with_suffix(".csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)
    return str(path.with_suffix(".csv"))


def adverse_world(seed: int) -> dict[str, list[dict[str, Any]]]:
    """Copies in parts, without sizes and of 0 bytes, names of nodes, tape and buffers, days
    to come; reads without bytes and sites; sites without space, full ones, slow ones.
    """
    draw = np.random.default_rng(seed)
    names = [f"/P{i % 4}/Run{i % 3}-v{i}/{('AOD', 'RAW')[i % 2]}" for i in range(48)]
    replicas, accesses = [], []
    for number, name in enumerate(names):
        size = int(draw.lognormal(25, 1.5)) + 1
        has_size = draw.random() < 0.6
        born = DAY - timedelta(days=int(draw.choice([1, 6, 12, 20, 27, 28, 90])))
        for site in draw.choice(SITES, draw.integers(1, 5), replace=False):
            kind = draw.choice(["disk", "disk", "disk", "disk", "tape", "buffer"])
            node = site + {"disk": "_Disk" * (site[1] == "1"), "tape": "_MSS"}.get(kind, "_Buffer")
            present = int(size * draw.choice([0, 0.5, 1, 1, 1, 1, 1, 1.1]))
            parts = [present // 2, present - present // 2] if draw.random() < 0.3 else [present]
            since = born + timedelta(days=int(draw.choice([0, 0, 0, 40])))
            row = {
                "dataset": name,
                "site": node,
                "kind": kind,
                "size": size if has_size else "",
                "complete": draw.choice(["", "y" if present >= size else "n"]),
                "locked": draw.choice(["", "n", "n", "n", "y"]),
                "custodial": "ny"[kind == "tape"],
                "since": since if draw.random() < 0.9 else "",
            }
            replicas += [{**row, "bytes": part} for part in parts]
        if number % 8 == 0:
            continue
        others = draw.choice([*SITES, "unknown"], draw.integers(0, 4), replace=False)
        for site in dict.fromkeys([SITES[2 + number % 4], *others.tolist()]):
            has_bytes, last = draw.random() < 0.8, int(draw.choice([1, 1, 1, 3, 20]))
            for ago in range(last, min(70, (DAY - born).days) + 1, int(draw.choice([1, 1, 2]))):
                count = int(draw.integers(1, 9))
                volume = int(count * size * draw.uniform(0.01, 0.2)) * has_bytes
                row = {"day": DAY - timedelta(days=ago), "dataset": name, "site": site}
                accesses += [{**row, "accesses": count, "bytes": volume}] * int(
                    draw.integers(1, 3)
                )
    # The last day is known.
    accesses.append({"day": DAY - timedelta(days=1), "dataset": names[1], "site": SITES[2]})
    accesses[-1] |= {"accesses": 1, "bytes": 0}
    known = {row["site"].partition("_Disk")[0] for row in replicas if row["kind"] == "disk"}
    space = []
    for site in sorted(known):
        used = sum(bytes_on_disk(replicas, site).values())
        row = {"site": site, "capacity": draw.choice(["", int(used * draw.uniform(0.5, 2))])}
        row["budget"] = draw.choice(["", int(draw.lognormal(26, 1))])
        row["network_gbits"] = draw.choice(["", 1e-4, 1e-3, 1])
        if draw.random() < 0.8:
            space.append(row)
    return {"accesses": accesses, "replicas": replicas, "space": space}


def bytes_on_disk(replicas: list[dict[str, Any]], site: str = "") -> dict[tuple[str, str], int]:
    sums = Counter[tuple[str, str]]()
    for row in replicas:
        name = row["site"].removesuffix("_Disk")
        is_here = row["kind"] == "disk" and (not site or name == site)
        if is_here and row["bytes"] and not (row["since"] and row["since"] >= DAY):
            sums[row["dataset"], name] += row["bytes"]
    return dict(sums)


def broken_rules(world: dict[str, list[dict[str, Any]]], plan: dict[str, Any]) -> list[str]:
    """Return a text for each rule that a plan breaks."""
    replicas = [
        {
            **row,
            "site": row["site"].rpartition("_")[0] if row["site"].count("_") > 2 else row["site"],
        }
        for row in world["replicas"]
        if row["bytes"] and not (row["since"] and row["since"] >= DAY)
    ]
    sums = Counter[tuple[str, str, str]]()
    for row in replicas:
        sums[row["dataset"], row["site"], row["kind"]] += row["bytes"]
    lying, rows_of, kinds_at = (
        bytes_on_disk(world["replicas"]),
        defaultdict(list),
        defaultdict(set),
    )
    sizes, youngest = dict[str, float](), dict[str, date]()
    for row in replicas:
        kinds_at[row["dataset"], row["site"]].add(row["kind"])
        if row["kind"] == "disk":
            rows_of[row["dataset"], row["site"]].append(row)
        if row["since"]:
            youngest[row["dataset"]] = min(youngest.get(row["dataset"], DAY), row["since"])
    for name in {row["dataset"] for row in replicas}:
        given = [row["size"] for row in replicas if row["dataset"] == name and row["size"]]
        sizes[name] = max(given or [size for copy, size in sums.items() if copy[0] == name])

    def is_complete(pair: tuple[str, str]) -> bool:
        flags = [row["complete"] for row in rows_of[pair]]
        is_whole = lying[pair] >= sizes[pair[0]]
        return (
            is_whole
            if "n" not in flags and ("" in flags or len(kinds_at[pair]) > 1)
            else "n" not in flags
        )

    complete = {pair for pair in lying if is_complete(pair)}
    sources = Counter(name for name, _ in complete)
    chosen = {
        action: {
            (row["dataset"], row["site"]): row for row in plan["rows"] if row["action"] == action
        }
        for action in ("copy", "remove", "recall")
    }
    made, gone = chosen["copy"], chosen["remove"]
    lately, ever = Counter[tuple[str, str]](), set[str]()
    for row in world["accesses"]:
        ever.add(row["dataset"] if row["site"] != "unknown" else "")
        if row["day"] >= DAY - timedelta(days=14):
            lately[row["dataset"], row["site"]] += row["accesses"]
    faults = [] if len(plan["rows"]) == sum(map(len, chosen.values())) else ["a row twice"]
    for pair, row in made.items():
        name = pair[0]
        faults += [f"{pair} has no source"] * (not sources[name])
        faults += [f"{pair} is there"] * (pair in complete)
        faults += [f"{pair} goes, too"] * (pair in gone)
        faults += [f"{pair} has 0 bytes"] * (row["bytes"] <= 0)
        faults += [f"{pair} has other bytes"] * (row["bytes"] != sizes[name] - lying.get(pair, 0))
        faults += [f"{pair} is not worth it"] * (row["benefit"] < 1.25 * row["bytes"])
        is_young = name in youngest and DAY - youngest[name] < timedelta(days=14)
        has_demand = (
            is_young and name not in ever if row["why"] == "siblings" else lately[pair] >= 10
        )
        faults += [f"{pair} has no demand"] * (not has_demand)
    remaining = Counter(name for name, site in complete if (name, site) not in gone)
    for pair, row in gone.items():
        parts = rows_of[pair]
        faults += [f"{pair} is not there"] * (not parts)
        faults += [f"{pair} is fixed"] * any("y" in (x["locked"], x["custodial"]) for x in parts)
        since = [x["since"] for x in parts if x["since"]]
        faults += [f"{pair} is young"] * (DAY - max(since, default=date.min) < timedelta(days=28))
        faults += [f"{pair} is the last"] * (not remaining[pair[0]])
        faults += [f"{pair} frees other bytes"] * (row["bytes"] != lying.get(pair))
    for name, _ in chosen["recall"]:
        faults += [f"{name} is no recall"] * bool(sources[name])
    space = {row["site"]: row for row in world["space"]}
    for site in {site for _, site in lying} | {site for _, site in made}:
        used = sum(size for pair, size in lying.items() if pair[1] == site)
        room = space.get(site, {})
        capacity = int(room.get("capacity") or used)
        copied, removed = (
            [row["bytes"] for pair, row in rows.items() if pair[1] == site]
            for rows in (made, gone)
        )
        after = used + sum(copied) - sum(removed)
        faults += [f"{site} is too full"] * (bool(copied) and after > capacity)
        faults += [f"{site} loses too much"] * any(size <= capacity - after for size in removed)
        if room.get("budget"):
            faults += [f"{site} is over budget"] * (sum(copied) > int(room["budget"]))
        if room.get("network_gbits"):
            week = float(room["network_gbits"]) * WEEK_OF_GBIT
            faults += [f"{site} has a slower network"] * (sum(copied) > week)
    totals = (sum(row["bytes"] for row in rows.values()) for rows in (made, gone))
    expected = dict(zip(("copied", "removed"), totals, strict=True)) | {
        "used": sum(lying.values())
    }
    return faults + [name for name, size in expected.items() if plan["total"][name] != size]


@pytest.mark.parametrize("seed", range(20))
def test_a_plan_of_adverse_files_breaks_no_rule(seed: int, tmp_path: Path) -> None:
    world = adverse_world(seed)
    words = [f"--{name}={write(tmp_path / name, rows)}" for name, rows in world.items()]
    plan = json.loads(run("recommend", *words, "--json").stdout)
    assert plan["rows"] and broken_rules(world, plan) == []
    rules = json.loads(run("recommend", *words, "--rucio").stdout)
    for rule in rules["add"]:
        jsonschema.validate(rule, SCHEMA)
    counts = Counter(row["action"] for row in plan["rows"])
    assert (len(rules["add"]), len(rules["remove"])) == (counts["copy"], counts["remove"])
