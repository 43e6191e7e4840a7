"""What a forecast changes in a plan: expected accesses, damped bursts, benefit in
bytes; the plan as rules of Rucio.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

from cmsspark.apps.placement import replay
from cmsspark.apps.placement.demand import Outlook, expected, group_datasets
from cmsspark.apps.placement.plan import Limits, make_plan
from cmsspark.apps.placement.recommend import rse_of_disk
from cmsspark.apps.placement.replicas import Space
from cmsspark.apps.placement.stored_inputs import forecast_with, synthetic_inputs
from cmsspark.apps.popularity.training import Label
from tests.apps.placement.worlds import COLD, HOT, TB, A, B, copies_of, copy, reads_of, run

#: 30 accesses a day at B; a burst in the last week.
STEADY = [(day, HOT, B, 30) for day in range(56)]
BURST = [(day, COLD, B, 5000) for day in range(52, 56)]


def test_a_burst_is_damped_to_what_the_forecast_holds_for_possible() -> None:
    reads = reads_of(*STEADY, *BURST, weeks=8)
    number = reads.datasets.index(COLD)
    before = expected(reads, group_datasets(reads.datasets)).accesses
    count = len(reads.datasets)
    outlook = Outlook(np.full(count, 0.5), np.full(count, 100.0), np.full(count, 210.0))
    after = expected(reads, group_datasets(reads.datasets), outlook).accesses
    assert before[number] > 5_000 and after[number] == pytest.approx((210 + 100) / 2)
    unknown = Outlook(np.full(count, np.nan), np.full(count, np.nan), np.full(count, np.nan))
    assert (expected(reads, group_datasets(reads.datasets), unknown).accesses == before).all(), (
        "unknown is not 0"
    )


def test_a_copy_has_to_serve_the_least_benefit_for_the_bytes_that_it_takes() -> None:
    reads = reads_of(*STEADY, weeks=8, bytes=[TB / 100] * len(STEADY) + [0.0] * 2)
    replicas = copies_of(copy(HOT, A), reads=reads)
    named = reads.named(replicas.datasets, replicas.sites)
    demand = expected(named, group_datasets(named.datasets))
    pair = replicas.datasets.index(HOT), replicas.sites.index(B)
    one, four = (demand.benefit(*pair, lifetime) for lifetime in (1, 4))
    # 210 accesses a week of a 3,000th of a TB, most of them expected at B.
    assert (
        one is not None
        and 0.05 * TB < one < 0.07 * TB
        and four == pytest.approx(one * (1 - 0.6**4) / 0.4)
    )
    space = Space(np.full(len(replicas.sites), 1e18), np.full(len(replicas.sites), np.inf))
    limits = [Limits(min_benefit=ratio, lifetime=1) for ratio in (0, 0.05, 0.07)]
    made = [len(make_plan(replicas, demand, space, every).added) for every in limits]
    assert made == [1, 1, 0]
    quiet = reads_of(*STEADY, weeks=8).named(*(replicas.datasets, replicas.sites))
    silent = expected(quiet, group_datasets(named.datasets))
    assert silent.benefit(*pair, 4) is None
    added = make_plan(replicas, silent, space, Limits(min_benefit=9)).added
    assert len(added) == 1, "a benefit that nobody knows is not 0"


def test_the_plan_as_rules_of_rucio(files: list[str]) -> None:
    plan = json.loads(run("recommend", *files, "--rucio", "--lifetime", "2").stdout)
    assert plan["add"] == [
        {
            "dids": [{"scope": "cms", "name": HOT}],
            "copies": 1,
            "rse_expression": B,
            "grouping": "ALL",
            "lifetime": 14 * 86_400,
            "comment": "cmsspark placement, 2026-02-16",
        }
    ]
    assert plan["remove"] == [{"did": {"scope": "cms", "name": COLD}, "rse_expression": B}]
    assert [rse_of_disk(site) for site in ("T1_US_FNAL", "T2_DE_DESY", "T0_CH_CERN")] == [
        "T1_US_FNAL_Disk",
        "T2_DE_DESY",
        "T0_CH_CERN_Disk",
    ]


@pytest.mark.long
@pytest.mark.parametrize("budget", [1e12, None, 1e14])
@pytest.mark.parametrize("seed", range(3))
def test_the_forecast_is_never_worse_than_the_recent_weeks_by_over_two_percent(
    seed: int, budget: float | None
) -> None:
    inputs = synthetic_inputs(seed, budget)
    space = inputs.space(inputs.replicas_before(inputs.reads.days[-1]))
    forecast = forecast_with("average", Label(10), 0)
    rows = replay.Replay(inputs.reads, inputs.replicas_before, space, forecast).run(
        ["tier", "recent", "predicted"]
    )
    tier, recent, predicted = replay.sums(rows)
    for measure in ("remote_reads", "remote_bytes"):
        assert predicted[measure] <= 1.02 * recent[measure] and predicted[measure] <= tier[measure]
