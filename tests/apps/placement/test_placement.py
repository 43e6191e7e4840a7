"""Plans of copies: hand-made worlds, what never goes, space and budgets, siblings."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cmsspark.apps.placement.inputs import PlacementInputs, Reads, Replicas, Space
from cmsspark.apps.placement.plan import Demand, Limits, Plan, expected, make_plan
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
)


def made_plan(
    reads: Reads, replicas: Replicas, space: Space | None = None, **options: Any
) -> Plan:
    named = reads.named(replicas.datasets, replicas.sites)
    plenty = Space(np.full(len(replicas.sites), 1e18), np.full(len(replicas.sites), np.inf))
    limits = Limits(**options)
    return make_plan(replicas, expected(named, replicas, limits.lifetime), space or plenty, limits)


def names_of(plan: Plan) -> tuple[set[Any], set[Any]]:
    replicas = plan.replicas
    datasets, sites = replicas.datasets, replicas.sites
    made = {(datasets[pair // len(sites)], sites[pair % len(sites)]) for pair, _ in plan.added}
    gone = {
        (datasets[replicas.dataset[i]], sites[replicas.site[i]]) for i in np.nonzero(plan.gone)[0]
    }
    return made, gone


def plan_of(
    reads: Reads, replicas: Replicas, space: Space | None = None, **options: Any
) -> tuple[set[Any], set[Any]]:
    """(copies to make, copies that go) as pairs of names; without ``space`` there is
    room for anything.
    """
    return names_of(made_plan(reads, replicas, space, **options))


DAILY = [(day, HOT, B, 30) for day in range(28)]


def test_what_is_read_from_elsewhere_gets_a_copy_where_it_is_read() -> None:
    reads = reads_of(*DAILY)
    made, gone = plan_of(reads, copies_of(copy(HOT, A), reads=reads))
    assert made == {(HOT, B)} and not gone


def test_what_nobody_read_for_two_weeks_has_no_demand() -> None:
    reads = reads_of(*[(day, HOT, B, 3000) for day in range(14)], weeks=4)
    assert plan_of(reads, copies_of(copy(HOT, A), reads=reads))[0] == set()
    again = reads_of(*[(day, HOT, B, 3000) for day in range(24)], weeks=4)
    assert plan_of(again, copies_of(copy(HOT, A), reads=again))[0] == {(HOT, B)}


def test_a_pair_needs_ten_reads_in_two_weeks() -> None:
    """Whole reads of a TB: four a week are worth their bytes, and nine too few."""
    rows = [(day, HOT, B, 1) for day in range(0, 28, 7)]
    nine, ten = (
        reads_of(*rows, *[(14 + day, HOT, B, 1) for day in range(1, 1 + count)], bytes=None)
        for count in (6, 8)
    )
    for reads, made in ((nine, set()), (ten, {(HOT, B)})):
        whole = replace(reads, bytes=reads.accesses * TB)
        assert plan_of(whole, copies_of(copy(HOT, A), reads=whole))[0] == made


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
    replicas = copies_of(*(copy(name, A) for name in (HOT, NEW, *names)), reads=reads)
    assert plan_of(reads, replicas)[0] == {(HOT, C), (NEW, C)}
    short = plan_of(reads.before(21), replicas)[0]
    assert short > {(HOT, C), (NEW, C)}, "three weeks do not tell them apart"


def test_a_copy_is_made_where_a_complete_one_is_none() -> None:
    reads = reads_of(*DAILY)
    there = copies_of(copy(HOT, A), copy(HOT, B), reads=reads)
    assert plan_of(reads, there) == (set(), set())
    partial = copies_of(
        copy(HOT, A), copy(HOT, B, bytes=TB / 4, complete=False, locked=True), reads=reads
    )
    plan = made_plan(reads, partial, full(partial, T2_DE_B=TB))
    assert [plan.bytes_to_copy(pair) for pair, _ in plan.added] == [pytest.approx(0.75 * TB)]
    assert not plan.gone.any()


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
    assert plan_of(reads, copies_of(source, copy(COLD, A), reads=reads))[0] == set()


def test_a_copy_that_needs_no_bytes_is_none() -> None:
    reads = reads_of(*DAILY)
    partial = copies_of(
        copy(HOT, A, size=TB), copy(HOT, B, bytes=1.5 * TB, size=TB, complete=False), reads=reads
    )
    assert plan_of(reads, partial, full(partial, T2_DE_B=2 * TB)) == (set(), set())


def test_a_full_site_lets_go_what_is_read_least_for_its_bytes() -> None:
    reads = reads_of(*DAILY, (3, COLD, B, 1))
    replicas = copies_of(copy(HOT, A), copy(COLD, A), copy(COLD, B), reads=reads)
    assert plan_of(reads, replicas, full(replicas)) == ({(HOT, B)}, {(COLD, B)})


def test_copies_stay_that_the_room_is_enough_for() -> None:
    """The copies of least worth go first: a small one, and then one large enough alone."""
    small, large = "/Small/x/AOD", "/Large/x/AOD"
    reads = reads_of(*DAILY, *[(day, large, B, 0.1) for day in range(20, 28)])
    both = [copy(name, A) for name in (small, large)]
    replicas = copies_of(
        copy(HOT, A), *both, copy(small, B, bytes=TB / 5), copy(large, B), reads=reads
    )
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
    replicas = copies_of(copy(HOT, A), copy(COLD, B), *other, reads=reads)
    assert plan_of(reads, replicas, full(replicas)) == (set(), set())


def test_an_incomplete_copy_goes_only_beside_complete_ones() -> None:
    reads = reads_of(*DAILY)
    part = copy(COLD, B, complete=False)
    alone = copies_of(copy(HOT, A), part, copy(COLD, C, complete=False), reads=reads)
    assert plan_of(reads, alone, full(alone))[1] == set()
    beside = copies_of(copy(HOT, A), part, copy(COLD, C), reads=reads)
    assert plan_of(reads, beside, full(beside))[1] == {(COLD, B)}


@pytest.mark.parametrize("flag", ["locked", "custodial"])
def test_locked_and_custodial_copies_stay(flag: str) -> None:
    reads = reads_of(*DAILY)
    replicas = copies_of(copy(HOT, A), copy(COLD, A), copy(COLD, B, **{flag: True}), reads=reads)
    assert plan_of(reads, replicas, full(replicas)) == (set(), set())


def test_a_copy_younger_than_its_lifetime_stays() -> None:
    reads = reads_of(*DAILY)
    today = FIRST + timedelta(days=28)

    def gone(days: int, lifetime: int) -> set[Any]:
        since = today - timedelta(days=days)
        rows = (copy(HOT, A), copy(COLD, A), copy(COLD, B, since=since))
        replicas = copies_of(*({"since": FIRST, **row} for row in rows), reads=reads, day=today)
        return plan_of(reads, replicas, full(replicas), lifetime=lifetime)[1]

    assert gone(13, 2) == set() and gone(14, 2) == {(COLD, B)} and gone(14, 3) == set()


def test_a_planned_copy_does_not_count_as_one() -> None:
    """COLD gets a copy at C in the same plan; its copy at B, the only complete one, stays."""
    reads = reads_of(*DAILY, *[(day, COLD, C, 30) for day in range(28)])
    replicas = copies_of(copy(HOT, A), copy(COLD, B), reads=reads)
    made, gone = plan_of(reads, replicas, full(replicas, T2_CH_C=5 * TB))
    assert made == {(COLD, C)} and not gone


def test_more_copies_remain_if_that_is_asked_for() -> None:
    reads = reads_of(*DAILY)
    replicas = copies_of(copy(HOT, A), copy(COLD, A), copy(COLD, B), reads=reads)
    assert plan_of(reads, replicas, full(replicas), min_copies=2) == (set(), set())


def test_two_sites_do_not_both_let_the_same_dataset_go() -> None:
    reads = reads_of(*DAILY, *[(day, HOT, C, 30) for day in range(28)])
    replicas = copies_of(copy(HOT, A), copy(COLD, B), copy(COLD, C), reads=reads)
    made, gone = plan_of(reads, replicas, full(replicas))
    assert len(gone) == 1 and len(made) == 1


def test_a_budget_bounds_what_is_copied_and_a_free_share_what_stays() -> None:
    reads = reads_of(*DAILY)
    replicas = copies_of(copy(HOT, A), copy(COLD, A), copy(COLD, B), reads=reads)
    room = np.full(len(replicas.sites), 10 * TB)
    assert plan_of(reads, replicas, Space(room, np.full(len(room), 0.9 * TB))) == (set(), set())
    assert plan_of(reads, replicas, Space(room, np.full(len(room), TB)))[0] == {(HOT, B)}
    tight = full(replicas, T1_US_A=2 * TB, T2_DE_B=1.1 * TB)
    plan = made_plan(reads, replicas, tight, free_share=0.4, min_benefit=1e9)
    freed = names_of(plan)[1]
    assert len(plan.freed) == 1 and {name for name, _ in freed} == {COLD}, "one copy has to stay"


def test_a_copy_has_to_serve_the_least_benefit_for_the_bytes_that_it_takes() -> None:
    """30 accesses a day of a tenth of a TB are 84 TB in four weeks; more than a tenth of
    them is expected again, and not twice as much.
    """
    reads = reads_of(*DAILY)
    replicas = copies_of(copy(HOT, A), reads=reads)
    made = [bool(plan_of(reads, replicas, min_benefit=ratio)[0]) for ratio in (1, 8, 168)]
    assert made == [True, True, False]


def test_a_benefit_that_nobody_knows_refuses_no_copy() -> None:
    silent = reads_of(*DAILY, bytes=[0.0] * (len(DAILY) + 2))
    replicas = copies_of(copy(HOT, A), copy(COLD, A), reads=silent)
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
        return copies_of(new, *others, reads=reads, day=today)

    young = replicas(13)
    named = reads.named(young.datasets, young.sites)
    demand = expected(named, young)
    pair = young.datasets.index(NEW) * len(young.sites) + young.sites.index(B)
    place = demand.pairs.tolist().index(pair)
    assert demand.from_siblings[place] and demand.accesses[place] == pytest.approx(7 * 40)
    assert demand.bytes[place] == pytest.approx(7 * 40 * TB / 10)
    assert plan_of(reads, young)[0] == {(NEW, B)}, "its siblings are read no more"
    assert plan_of(reads, replicas(14))[0] == set(), "an old one that nobody read has no demand"
    few = {name: day for name, day in list(born.items())[:2]}
    born.clear()
    born.update(few)
    assert plan_of(reads, replicas(3))[0] == set(), "two siblings are too few"


def test_locks_of_rows_and_patterns_fix_copies() -> None:
    import polars as pl

    table = pl.DataFrame(
        [
            {**copy(name, site), "kind": "disk", "bytes": TB, "locked": (name, site) == (HOT, B)}
            for name in (HOT, COLD)
            for site in (A, B)
        ]
    )
    reads = reads_of((0, HOT, A, 1)).named([COLD], [B])
    inputs = PlacementInputs(reads, lambda day: table, "x", locked=("/Old/*",))
    replicas = inputs.replicas_before(FIRST)
    fixed = {
        (replicas.datasets[d], replicas.sites[s])
        for d, s in zip(
            replicas.dataset[replicas.is_fixed], replicas.site[replicas.is_fixed], strict=True
        )
    }
    assert fixed == {(HOT, B), (COLD, A), (COLD, B)}


@given(st.integers(0, 10_000))
def test_no_plan_breaks_a_rule(seed: int) -> None:
    generator = np.random.default_rng(seed)
    datasets, sites, count = 12, 4, 30
    pairs = generator.choice(datasets * sites, count, replace=False)
    size = generator.integers(1, 10, datasets).astype(float)
    dataset, site = pairs // sites, pairs % sites
    whole = generator.random(count) < 0.7
    replicas = Replicas(
        tuple(f"/d{i:02}/x/AOD" for i in range(datasets)),
        tuple(f"T2_{i}" for i in range(sites)),
        dataset,
        site,
        np.where(whole, size[dataset], size[dataset] / 2),
        whole,
        generator.random(count) < 0.2,
        np.where(generator.random(count) < 0.2, 3.0, np.nan),
        size,
        np.full(datasets, np.nan),
        generator.random(datasets) < 0.5,
    )
    wanted = np.sort(generator.choice(datasets * sites, 35, replace=False))
    demand = Demand(
        wanted,
        generator.exponential(50, 35),
        generator.exponential(20, 35),
        np.zeros(35, bool),
    )
    used = replicas.used()
    capacity = used * generator.uniform(0.8, 1.3, sites)
    budget = generator.uniform(0, 15, sites)
    min_copies = int(generator.integers(1, 3))
    plan = make_plan(replicas, demand, Space(capacity, budget), Limits(min_copies=min_copies))
    assert not (plan.gone & (replicas.is_fixed | (replicas.made_days < 28))).any()
    lost = np.unique(dataset[plan.gone])
    kept = np.bincount(dataset[whole & ~plan.gone], minlength=datasets)
    assert (kept[lost] >= min_copies).all(), "planned copies do not count"
    assert (kept[replicas.copies() > 0] > 0).all()
    copied = np.zeros(sites)
    for pair, benefit in plan.added:
        copied[pair % sites] += plan.bytes_to_copy(pair)
        assert pair not in pairs[whole] and replicas.copies()[pair // sites] > 0
        assert benefit >= plan.bytes_to_copy(pair) > 0
    after = used + copied - np.bincount(site[plan.gone], replicas.bytes[plan.gone], sites)
    assert (after <= np.maximum(capacity, used) + 1e-9).all()
    free = capacity - after
    assert (replicas.bytes[plan.gone] > free[site[plan.gone]]).all(), "no copy goes for nothing"
    assert (copied <= budget + 1e-9).all()
    added = [pair for pair, _ in plan.added]
    assert len(set(added)) == len(added) and not set(added) & set(pairs[plan.gone].tolist())


def test_what_is_complete_only_with_tape_is_no_copy_on_disk() -> None:
    """is_complete of stored tables is over all kinds of storage of a site."""
    whole = {"complete": True, "size": TB}
    mixed = copies_of(
        copy(HOT, A, **{**whole, "bytes": TB / 2}), copy(HOT, A, **{**whole, "kind": "tape"})
    )
    assert mixed.copies().tolist() == [0] and mixed.on_tape.tolist() == [True]
    # Invalid files are in the size of DBS, and nowhere on disk.
    alone = copies_of(copy(HOT, A, complete=True, size=TB, bytes=0.99 * TB))
    assert alone.copies().tolist() == [1]
