"""Plans of copies: hand-made worlds, what never goes, space and budgets, siblings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from cmsspark.apps.placement.inputs import Reads, Replicas
from cmsspark.apps.placement.plan import Limits, Plan, expected, make_plan
from tests.apps.placement.worlds import (
    COLD,
    FIRST,
    HOT,
    NEW,
    TB,
    A,
    B,
    C,
    copies_of,
    copy,
    full,
    reads_of,
    space_of,
)


def made_plan(
    reads: Reads, replicas: Replicas, space: pl.DataFrame | None = None, **options: Any
) -> Plan:
    limits = Limits(**options)
    demand = expected(reads, replicas, limits.lifetime)
    return make_plan(replicas, demand, space_of(1e18) if space is None else space, limits)


def pairs_of(rows: Iterable[dict[str, Any]]) -> set[Any]:
    return {(row["dataset"], row["site"]) for row in rows}


def plan_of(
    reads: Reads, replicas: Replicas, space: pl.DataFrame | None = None, **options: Any
) -> tuple[set[Any], set[Any]]:
    """(copies to make, copies that go) as pairs of names; without ``space`` there is
    room for anything.
    """
    plan = made_plan(reads, replicas, space, **options)
    return pairs_of(plan.added), pairs_of(plan.removed())


DAILY = [(day, HOT, B, 30) for day in range(28)]


def test_what_is_read_from_elsewhere_gets_a_copy_where_it_is_read() -> None:
    reads = reads_of(*DAILY)
    made, gone = plan_of(reads, copies_of(copy(HOT, A)))
    assert made == {(HOT, B)} and not gone


def test_what_nobody_read_for_two_weeks_has_no_demand() -> None:
    reads = reads_of(*[(day, HOT, B, 3000) for day in range(14)], weeks=4)
    assert plan_of(reads, copies_of(copy(HOT, A)))[0] == set()
    again = reads_of(*[(day, HOT, B, 3000) for day in range(24)], weeks=4)
    assert plan_of(again, copies_of(copy(HOT, A)))[0] == {(HOT, B)}


def test_a_pair_needs_ten_reads_in_two_weeks() -> None:
    """Whole reads of a TB: four a week are worth their bytes, and nine too few."""
    rows = [(day, HOT, B, 1) for day in range(0, 28, 7)]
    nine, ten = (
        reads_of(*rows, *[(14 + day, HOT, B, 1) for day in range(1, 1 + count)], bytes=None)
        for count in (6, 8)
    )
    for reads, made in ((nine, set()), (ten, {(HOT, B)})):
        whole = replace(reads, rows=reads.rows.with_columns(bytes=pl.col("accesses") * TB))
        assert plan_of(whole, copies_of(copy(HOT, A)))[0] == made


def test_pairs_that_end_after_a_week_at_a_site_are_not_copied() -> None:
    """Of ten datasets a week, each is read whole for five days and never again."""
    rows = [
        (7 * week + day, f"/P{week}/Run{number}-v1/AOD", B, 40)
        for week in range(16)
        for number in range(10)
        for day in range(5)
    ]
    steady = [(day, name, C, 40) for day in range(7 * 16) for name in (HOT, NEW)]
    reads = reads_of(*rows, *steady, weeks=16)
    names = {row[1] for row in rows}
    replicas = copies_of(*(copy(name, A) for name in (HOT, NEW, *names)))
    assert plan_of(reads, replicas)[0] == {(HOT, C), (NEW, C)}
    short = plan_of(reads.before(FIRST + timedelta(days=21)), replicas)[0]
    assert short > {(HOT, C), (NEW, C)}, "three weeks do not tell them apart"


def test_pairs_are_likely_to_be_read_again_as_those_with_as_many_passes() -> None:
    """Each week three small datasets are read whole for a week, and three large ones by
    parts from then on: the newest of both have the same days with reads.
    """
    reads = [
        (day, f"/{kind}{week}x{number}/Run{week}-v1/AOD", B, 20)
        for week in range(14)
        for number in range(3)
        for kind, end in (("Small", 7 * week + 7), ("Large", 98))
        for day in range(7 * week, end)
    ]
    sizes = {name: TB if name.startswith("/Small") else 100 * TB for _, name, _, _ in reads}
    replicas = copies_of(*(copy(name, A, bytes=size) for name, size in sizes.items()))
    demand = expected(reads_of(*reads, weeks=14), replicas)["dataset"].to_list()
    newest = [name for name in sizes if "/Run13-" in name]
    assert {name for name in newest if name in demand} == {
        name for name in newest if name.startswith("/Large")
    }


def test_a_copy_is_made_where_a_complete_one_is_none() -> None:
    reads = reads_of(*DAILY)
    there = copies_of(copy(HOT, A), copy(HOT, B))
    assert plan_of(reads, there) == (set(), set())
    partial = copies_of(copy(HOT, A), copy(HOT, B, bytes=TB / 4, complete=False, locked=True))
    plan = made_plan(reads, partial, full(partial, T2_DE_B=TB))
    assert [row["bytes"] for row in plan.added] == [pytest.approx(0.75 * TB)]
    assert not plan.removed()


@pytest.mark.parametrize(
    "source",
    [
        copy(HOT, A, kind="tape"),
        copy(HOT, A, bytes=TB / 2, complete=False, size=TB),
        copy(HOT, A, kind="buffer"),
    ],
)
def test_a_copy_needs_a_complete_source_on_disk(source: dict[str, Any]) -> None:
    reads = reads_of(*DAILY)
    assert plan_of(reads, copies_of(source, copy(COLD, A)))[0] == set()


def test_a_copy_that_needs_no_bytes_is_none() -> None:
    reads = reads_of(*DAILY)
    partial = copies_of(
        copy(HOT, A, size=TB), copy(HOT, B, bytes=1.5 * TB, size=TB, complete=False)
    )
    assert plan_of(reads, partial, full(partial, T2_DE_B=2 * TB)) == (set(), set())


def test_a_full_site_lets_go_what_is_read_least_for_its_bytes() -> None:
    reads = reads_of(*DAILY, (3, COLD, B, 1))
    replicas = copies_of(copy(HOT, A), copy(COLD, A), copy(COLD, B))
    assert plan_of(reads, replicas, full(replicas)) == ({(HOT, B)}, {(COLD, B)})


def test_copies_stay_that_the_room_is_enough_for() -> None:
    """The copies of least worth go first: a small one, and then one large enough alone."""
    small, large = "/Small/x/AOD", "/Large/x/AOD"
    reads = reads_of(*DAILY, *[(day, large, B, 0.1) for day in range(20, 28)])
    both = [copy(name, A) for name in (small, large)]
    replicas = copies_of(copy(HOT, A), *both, copy(small, B, bytes=TB / 5), copy(large, B))
    assert plan_of(reads, replicas, full(replicas))[1] == {(large, B)}


@pytest.mark.parametrize(
    "other",
    [
        [],
        [copy(COLD, A, kind="tape")],
        [copy(COLD, A, bytes=TB / 2, complete=False)],
        [copy(COLD, A, kind="buffer")],
    ],
)
def test_the_last_complete_copy_on_disk_stays_whatever_lies_on_tape(
    other: list[dict[str, Any]],
) -> None:
    reads = reads_of(*DAILY)
    replicas = copies_of(copy(HOT, A), copy(COLD, B), *other)
    assert plan_of(reads, replicas, full(replicas)) == (set(), set())


def test_an_incomplete_copy_goes_only_beside_complete_ones() -> None:
    reads = reads_of(*DAILY)
    part = copy(COLD, B, complete=False)
    alone = copies_of(copy(HOT, A), part, copy(COLD, C, complete=False))
    assert plan_of(reads, alone, full(alone))[1] == set()
    beside = copies_of(copy(HOT, A), part, copy(COLD, C))
    assert plan_of(reads, beside, full(beside))[1] == {(COLD, B)}


@pytest.mark.parametrize("flag", ["locked", "custodial"])
def test_locked_and_custodial_copies_stay(flag: str) -> None:
    reads = reads_of(*DAILY)
    replicas = copies_of(copy(HOT, A), copy(COLD, A), copy(COLD, B, **{flag: True}))
    assert plan_of(reads, replicas, full(replicas)) == (set(), set())


def test_a_copy_younger_than_its_lifetime_stays() -> None:
    reads = reads_of(*DAILY)
    today = FIRST + timedelta(days=28)

    def gone(days: int, lifetime: int) -> set[Any]:
        since = today - timedelta(days=days)
        rows = (copy(HOT, A), copy(COLD, A), copy(COLD, B, since=since))
        replicas = copies_of(*({"since": FIRST, **row} for row in rows), day=today)
        return plan_of(reads, replicas, full(replicas), lifetime=lifetime)[1]

    assert gone(13, 2) == set() and gone(14, 2) == {(COLD, B)} and gone(14, 3) == set()


def test_a_planned_copy_does_not_count_as_one() -> None:
    """COLD gets a copy at C in the same plan; its copy at B, the only complete one, stays."""
    reads = reads_of(*DAILY, *[(day, COLD, C, 30) for day in range(28)])
    replicas = copies_of(copy(HOT, A), copy(COLD, B))
    made, gone = plan_of(reads, replicas, full(replicas, T2_CH_C=5 * TB))
    assert made == {(COLD, C)} and not gone


def test_more_copies_remain_if_that_is_asked_for() -> None:
    reads = reads_of(*DAILY)
    replicas = copies_of(copy(HOT, A), copy(COLD, A), copy(COLD, B))
    assert plan_of(reads, replicas, full(replicas), min_copies=2) == (set(), set())


def test_two_sites_do_not_both_let_the_same_dataset_go() -> None:
    reads = reads_of(*DAILY, *[(day, HOT, C, 30) for day in range(28)])
    replicas = copies_of(copy(HOT, A), copy(COLD, B), copy(COLD, C))
    made, gone = plan_of(reads, replicas, full(replicas))
    assert len(gone) == 1 and len(made) == 1


def test_a_budget_bounds_what_is_copied_and_a_free_share_what_stays() -> None:
    reads = reads_of(*DAILY)
    replicas = copies_of(copy(HOT, A), copy(COLD, A), copy(COLD, B))
    assert plan_of(reads, replicas, space_of(10 * TB, 0.9 * TB)) == (set(), set())
    assert plan_of(reads, replicas, space_of(10 * TB, TB))[0] == {(HOT, B)}
    tight = full(replicas, T1_US_A=2 * TB, T2_DE_B=1.1 * TB)
    plan = made_plan(reads, replicas, tight, free_share=0.4, min_benefit=1e9)
    freed = [(row["dataset"], row["why"]) for row in plan.removed()]
    assert freed == [(COLD, "full site")], "one copy has to stay"


def test_a_copy_has_to_serve_the_least_benefit_for_the_bytes_that_it_takes() -> None:
    """30 accesses a day of a tenth of a TB are 84 TB in four weeks; more than a tenth of
    them is expected again, and not twice as much.
    """
    reads = reads_of(*DAILY)
    replicas = copies_of(copy(HOT, A))
    made = [bool(plan_of(reads, replicas, min_benefit=ratio)[0]) for ratio in (1, 8, 168)]
    assert made == [True, True, False]


def test_a_benefit_that_nobody_knows_refuses_no_copy() -> None:
    silent = reads_of(*DAILY, bytes=[0.0] * (len(DAILY) + 2))
    replicas = copies_of(copy(HOT, A), copy(COLD, A))
    assert plan_of(silent, replicas, min_benefit=1e9)[0] == {(HOT, B)}
    few = reads_of((20, HOT, B, 9), bytes=[0.0] * 3)
    assert plan_of(few, replicas)[0] == set(), "ten reads in two weeks are needed"


def siblings(count: int, last: int) -> list[tuple[int, str, str, float]]:
    return [(7 + day, f"/Muon/Run1-v{i}/AOD", B, 40) for i in range(count) for day in range(last)]


def test_a_new_dataset_is_placed_by_the_first_week_of_its_siblings() -> None:
    rows = siblings(4, 7)
    reads = reads_of(*rows, weeks=6)
    today = FIRST + timedelta(days=42)
    born = {name: FIRST + timedelta(days=7) for _, name, _, _ in rows}

    def replicas(age: int) -> Replicas:
        others = (copy(name, A, since=since) for name, since in born.items())
        new = copy(NEW, A, since=today - timedelta(days=age))
        return copies_of(new, *others, day=today)

    young = replicas(13)
    (demand,) = expected(reads, young).filter(dataset=NEW, site=B).to_dicts()
    assert demand["why"] == "siblings" and demand["accesses"] == pytest.approx(7 * 40)
    assert demand["benefit"] == pytest.approx(7 * 40 * TB / 10)
    assert plan_of(reads, young)[0] == {(NEW, B)}, "its siblings are read no more"
    assert plan_of(reads, replicas(14))[0] == set(), "an old one that nobody read has no demand"
    few = {name: day for name, day in list(born.items())[:2]}
    born.clear()
    born.update(few)
    assert plan_of(reads, replicas(3))[0] == set(), "two siblings are too few"


def test_locks_of_rows_and_patterns_fix_copies() -> None:
    rows = [
        copy(name, site, locked=(name, site) == (HOT, B))
        for name in (HOT, COLD)
        for site in (A, B)
    ]
    copies = copies_of(*rows, locked=("/Old/*",)).copies
    assert pairs_of(copies.filter("is_fixed").to_dicts()) == {(HOT, B), (COLD, A), (COLD, B)}


@example(106)  # no copy says since when
@given(st.integers(0, 10_000))
def test_no_plan_breaks_a_rule(seed: int) -> None:
    generator = np.random.default_rng(seed)
    datasets = [f"/d{i:02}/x/AOD" for i in range(12)]
    sites = [f"T2_{i}" for i in range(4)]
    every = [(name, site) for name in datasets for site in sites]
    sizes = dict(zip(datasets, generator.integers(1, 10, 12).astype(float), strict=True))
    today = FIRST + timedelta(days=28)
    rows = []
    for number in generator.choice(len(every), 30, replace=False):
        dataset, site = every[number]
        is_whole = bool(generator.random() < 0.7)
        flags = {"complete": is_whole, "locked": bool(generator.random() < 0.2)}
        since = today - timedelta(days=3) if generator.random() < 0.2 else None
        size = sizes[dataset]
        rows.append(
            copy(dataset, site, size=size, bytes=size if is_whole else size / 2, since=since)
            | flags
        )
    tape = [name for name in datasets if generator.random() < 0.5]
    rows += [copy(name, sites[0], kind="tape", size=sizes[name]) for name in tape]
    replicas = copies_of(*rows, day=today)
    chosen = [every[number] for number in generator.choice(len(every), 35, replace=False)]
    worth = generator.exponential(20, 35)
    demand = pl.DataFrame(
        [
            {"dataset": name, "site": site, "worth": value, "benefit": value, "accesses": 1.0}
            for (name, site), value in zip(chosen, worth, strict=True)
        ]
    )
    at_sites = replicas.copies.group_by("site").agg(used=pl.col("bytes").sum()).sort("site")
    count = len(at_sites)
    space = at_sites.with_columns(
        capacity=pl.col("used") * generator.uniform(0.8, 1.3, count),
        budget=pl.Series(generator.uniform(0, 15, count)),
    )
    demand = demand.filter(pl.col("site").is_in(space["site"].to_list()))
    min_copies = int(generator.integers(1, 3))
    plan = make_plan(replicas, demand, space, Limits(min_copies=min_copies))
    gone, made = plan.removed(), plan.added
    assert not any(row["is_fixed"] or row["days"] is not None for row in gone)
    lost = pairs_of(gone)
    complete = replicas.copies.filter("is_complete")
    remaining = Counter(
        name
        for name, site in complete.select("dataset", "site").rows()
        if (name, site) not in lost
    )
    before = Counter(complete["dataset"])
    assert all(remaining[name] >= min_copies for name, _ in lost), "planned copies do not count"
    assert all(remaining[name] for name in before)
    whole = pairs_of(complete.to_dicts())
    present = {row["dataset"] + row["site"]: row["bytes"] for row in replicas.copies.to_dicts()}
    for row in made:
        assert (row["dataset"], row["site"]) not in whole and before[row["dataset"]]
        there = present.get(row["dataset"] + row["site"], 0)
        assert row["benefit"] >= row["bytes"] == sizes[row["dataset"]] - there > 0
    for row in plan.recalls:
        assert not before[row["dataset"]] and row["dataset"] in tape
    for site in space.to_dicts():
        copied = sum(row["bytes"] for row in made if row["site"] == site["site"])
        removed = [row["bytes"] for row in gone if row["site"] == site["site"]]
        after = site["used"] + copied - sum(removed)
        assert copied <= site["budget"] + 1e-9
        assert after <= max(site["capacity"], site["used"]) + 1e-9
        assert all(size > site["capacity"] - after for size in removed), "no copy goes for nothing"
    assert len(pairs_of(made)) == len(made) and not pairs_of(made) & lost


def test_what_is_complete_only_with_tape_is_no_copy_on_disk() -> None:
    """is_complete of stored tables is over all kinds of storage of a site."""
    whole = {"complete": True, "size": TB}
    mixed = copies_of(
        copy(HOT, A, **{**whole, "bytes": TB / 2}), copy(HOT, A, **{**whole, "kind": "tape"})
    )
    assert mixed.datasets.select("copies", "on_tape").rows() == [(0, True)]
    # Invalid files are in the size of DBS, and nowhere on disk.
    alone = copies_of(copy(HOT, A, complete=True, size=TB, bytes=0.99 * TB))
    assert alone.datasets["copies"].to_list() == [1]
