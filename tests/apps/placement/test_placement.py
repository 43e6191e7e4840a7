"""Plans of copies: hand-made worlds, what never goes, space and budgets, siblings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cmsspark.apps.placement import demand
from cmsspark.apps.placement.demand import Demand, Outlook, expected, group_datasets
from cmsspark.apps.placement.plan import Limits, make_plan
from cmsspark.apps.placement.reads import Reads
from cmsspark.apps.placement.replicas import Replicas, Space
from tests.apps.placement.worlds import (
    COLD,
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


def plan_of(
    reads: Reads, replicas: Replicas, space: Space | None = None, **options: Any
) -> tuple[set[Any], set[Any]]:
    """(copies to make, copies that go) as pairs of names; without ``space`` there is
    room for anything.
    """
    named = reads.named(replicas.datasets, replicas.sites)
    plenty = Space(np.full(len(replicas.sites), 1e18), np.full(len(replicas.sites), np.inf))
    wanted = expected(named, group_datasets(named.datasets))
    plan = make_plan(replicas, wanted, space or plenty, Limits(**options))
    made = {(replicas.datasets[dataset], replicas.sites[site]) for dataset, site in plan.added}
    gone = {
        (replicas.datasets[replicas.dataset[i]], replicas.sites[replicas.site[i]])
        for i in np.nonzero(plan.gone)[0]
    }
    return made, gone


DAILY = [(day, HOT, B, 30) for day in range(28)]


def test_what_is_read_from_elsewhere_gets_a_copy_where_it_is_read() -> None:
    reads = reads_of(*DAILY)
    made, gone = plan_of(reads, copies_of(copy(HOT, A), reads=reads))
    assert made == {(HOT, B)} and not gone


def test_where_a_complete_copy_is_none_is_made_and_an_incomplete_one_is_completed() -> None:
    reads = reads_of(*DAILY)
    there = copies_of(copy(HOT, A), copy(HOT, B), reads=reads)
    assert plan_of(reads, there) == (set(), set())
    partial = copies_of(
        copy(HOT, A), copy(HOT, B, bytes=TB / 4, complete=False, locked=True), reads=reads
    )
    named = reads.named(partial.datasets, partial.sites)
    space = full(partial, T2_DE_B=TB)
    plan = make_plan(partial, expected(named, group_datasets(named.datasets)), space)
    assert plan.moved_bytes == pytest.approx(0.75 * TB) and not plan.gone.any()
    after = plan.result()
    assert after.used().sum() == pytest.approx(2 * TB), (
        "the incomplete copy is not counted beside the complete one"
    )
    assert after.is_fixed.sum() == 1, "a lock stays"


def test_an_incomplete_copy_with_all_bytes_needs_none() -> None:
    reads = reads_of(*DAILY)
    partial = copies_of(
        copy(HOT, A, size=TB), copy(HOT, B, bytes=1.5 * TB, size=TB, complete=False), reads=reads
    )
    named = reads.named(partial.datasets, partial.sites)
    space = full(partial, T2_DE_B=2 * TB)
    plan = make_plan(partial, expected(named, group_datasets(named.datasets)), space)
    assert len(plan.added) == 1 and plan.moved_bytes == 0, "no copy frees bytes"
    assert plan.result().used().sum() == 2.5 * TB


def test_a_full_site_lets_go_what_is_read_least_for_its_bytes() -> None:
    reads = reads_of(*DAILY, (3, COLD, B, 1))
    replicas = copies_of(copy(HOT, A), copy(COLD, A), copy(COLD, B), reads=reads)
    assert plan_of(reads, replicas, full(replicas)) == ({(HOT, B)}, {(COLD, B)})


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
    pattern = copies_of(copy(HOT, A), copy(COLD, A), copy(COLD, B), reads=reads).fixed_too(
        ["/Old/*"]
    )
    assert plan_of(reads, pattern, full(pattern))[1] == set()


def test_a_planned_copy_does_not_count_as_one() -> None:
    """COLD gets a copy at C in the same plan; its copy at B, the only complete one, stays."""
    reads = reads_of(*DAILY, *[(day, COLD, C, 30) for day in range(28)])
    replicas = copies_of(copy(HOT, A), copy(COLD, B), reads=reads)
    made, gone = plan_of(reads, replicas, full(replicas, T2_CH_C=5 * TB))
    assert made == {(COLD, C)} and not gone


def test_more_copies_remain_where_that_is_asked_for() -> None:
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
    named = reads.named(replicas.datasets, replicas.sites)
    outlook = expected(named, group_datasets(named.datasets))
    plan = make_plan(replicas, outlook, tight, Limits(free_share=0.4, least_accesses=1e9))
    freed = {
        (replicas.datasets[replicas.dataset[i]], replicas.sites[replicas.site[i]])
        for i in plan.freed
    }
    assert len(freed) == 1 and next(iter(freed))[0] == COLD, "one copy of it has to stay"


def test_reads_that_logs_call_local_are_no_reason_for_a_copy() -> None:
    reads = reads_of(*DAILY, remote=[0.0] * len(DAILY) + [None, None])
    assert plan_of(reads, copies_of(copy(HOT, A), reads=reads))[0] == set()
    remote = reads_of(*DAILY, remote=[30.0] * len(DAILY) + [None, None])
    assert plan_of(remote, copies_of(copy(HOT, A), reads=remote))[0] == {(HOT, B)}


def test_a_new_dataset_is_placed_by_its_siblings() -> None:
    siblings = [(7 + day, f"/Muon/Run1-v{i}/AOD", B, 40) for i in range(4) for day in range(14)]
    reads = reads_of(*siblings)
    replicas = copies_of(copy(NEW, A), copy("/Other/Run2-v1/RAW", A), reads=reads)
    assert plan_of(reads, replicas)[0] == {(NEW, B)}
    named = reads.named(replicas.datasets, replicas.sites)
    wanted = expected(named, group_datasets(named.datasets))
    new = replicas.datasets.index(NEW)
    assert wanted.from_siblings[new] and wanted.accesses[new] == pytest.approx(7 * 40), (
        "their first weeks"
    )
    assert wanted.share.sum(1) == pytest.approx(np.ones(len(replicas.datasets)))


def test_a_forecast_scales_what_a_dataset_was_read() -> None:
    reads = reads_of(*DAILY)
    sure = expected(reads, group_datasets(reads.datasets), Outlook(np.ones(2)))
    unlikely = expected(reads, group_datasets(reads.datasets), Outlook(np.full(2, 0.25)))
    assert sure.accesses[reads.datasets.index(HOT)] == pytest.approx(210)
    assert unlikely.accesses == pytest.approx(sure.accesses / 4)


def test_the_rule_by_tier_knows_no_single_dataset() -> None:
    reads = reads_of(*DAILY, (3, COLD, C, 2))
    sizes = np.array([TB, TB, TB])
    wanted = demand.by_tier(reads, group_datasets(reads.datasets), sizes)
    hot, cold = reads.datasets.index(HOT), reads.datasets.index(COLD)
    assert (
        wanted.accesses[hot] == wanted.accesses[cold]
        and (wanted.share[hot] == wanted.share[cold]).all()
    )


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
        size,
        np.zeros(datasets, bool),
    )
    share = generator.dirichlet(np.ones(sites), datasets)
    wanted = Demand(
        generator.exponential(50, datasets),
        share,
        np.zeros(datasets, bool),
        np.ones((datasets, sites)),
    )
    used = replicas.used()
    capacity = used * generator.uniform(0.8, 1.3, sites)
    budget = generator.uniform(0, 15, sites)
    min_copies = int(generator.integers(1, 3))
    limits = Limits(min_copies=min_copies, least_accesses=1)
    plan = make_plan(replicas, wanted, Space(capacity, budget), limits)
    after = plan.result()
    assert not (plan.gone & replicas.is_fixed).any()
    lost = np.unique(dataset[plan.gone])
    kept = np.bincount(dataset[whole & ~plan.gone], minlength=datasets)
    assert (kept[lost] >= min_copies).all(), "planned copies do not count"
    assert (kept[replicas.copies() > 0] > 0).all()
    assert (after.used() <= np.maximum(capacity, used) + 1e-9).all()
    copied = np.zeros(sites)
    for pair in plan.added:
        copied[pair[1]] += plan.bytes_to_copy(*pair)
        assert not replicas.has_copy()[pair]
    assert (copied <= budget + 1e-9).all() and len(set(plan.added)) == len(plan.added)
    assert len(set(zip(after.dataset.tolist(), after.site.tolist(), strict=True))) == len(
        after.dataset
    )


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
