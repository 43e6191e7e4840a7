"""Replays of rules over past weeks: by hand, and blind to what comes later."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

import numpy as np
import polars as pl
import pytest

from cmsspark.apps.placement import replay, synthetic
from cmsspark.apps.placement.demand import Outlook
from cmsspark.apps.placement.reads import Reads
from cmsspark.apps.placement.replicas import Replicas, make_replicas, make_space
from cmsspark.base.errors import InputMissing
from tests.apps.placement.worlds import FIRST, HOT, NEW, TB, A, B, copies_of, copy, full, reads_of


def replayed(reads: Reads, replicas: Replicas, **options: Any) -> list[replay.Week]:
    named = reads.named(replicas.datasets, replicas.sites)
    space = full(replicas, **options)
    return replay.Replay(named, lambda day: replicas, space).run(
        ["as-is", "tier", "recent", "oracle"]
    )


def test_a_replay_by_hand() -> None:
    """HOT is read at B, 30 a day; the week of day 28 has 210 reads of it, all remote as
    long as nothing is copied.
    """
    reads = reads_of(
        *[(day, HOT, B, 30) for day in range(35)], weeks=5, bytes=[7.0] * 35 + [0.0, 0.0]
    )
    rows = replayed(
        reads, copies_of(copy(HOT, A), copy("/Clock/x/RAW", A), reads=reads), T2_DE_B=TB
    )
    assert [row.rule for row in rows] == ["as-is", "tier", "recent", "oracle"]
    assert [row.remote_reads for row in rows] == [210, 0, 0, 0]
    assert [row.remote_bytes for row in rows] == [49, 0, 0, 0] and {row.reads for row in rows} == {
        211
    }
    assert [row.copied_bytes for row in rows] == [0, TB, TB, TB]
    totals = {row["rule"]: row for row in replay.sums(rows)}
    assert totals["recent"]["remote_reads_against_as_is"] == -1 and totals["recent"]["weeks"] == 1


def test_a_replay_is_blind_to_what_comes_later() -> None:
    world, table = synthetic.make_world(3, primaries=6, weeks=8)
    names = tuple(sorted({*world.datasets, *table["dataset"].to_list()}))
    sites = tuple(sorted({*world.sites, *table["site"].to_list()}))
    reads = world.named(names, sites)

    def of(chosen: Reads) -> list[replay.Week]:
        def before(day: date) -> Replicas:
            return make_replicas(table, datasets=names, sites=sites, until=day)

        space = make_space(before(FIRST + timedelta(days=60)), {}, None)
        rules = ["tier", "recent", "predicted"]
        seen: list[int] = []

        def forecast(past: Reads) -> Outlook:
            seen.append(len(past.days))
            assert past.day.max() < len(past.days)
            return Outlook(np.ones(len(past.datasets)))

        rows = replay.Replay(chosen, before, space, forecast).run(rules)
        assert seen == [28, 35, 42, 49]
        return rows

    whole = of(reads)
    noise = np.random.default_rng(1).integers(1, 500, len(reads.day))
    later = np.where(reads.day >= 35, noise, reads.accesses)
    other = of(
        Reads(
            reads.days,
            names,
            sites,
            reads.day,
            reads.dataset,
            reads.site,
            later,
            reads.can_say,
            reads.remote,
            reads.bytes,
        )
    )
    plans = [
        (row.copied_bytes, row.removed_bytes, row.copies_made, row.copies_removed) for row in whole
    ]
    others = [
        (row.copied_bytes, row.removed_bytes, row.copies_made, row.copies_removed) for row in other
    ]
    assert plans[:6] == others[:6], (
        "the weeks of days 28 and 35 are planned from the days before them"
    )
    assert plans[6:] != others[6:] and whole[:3] == other[:3] and whole[3:6] != other[3:6]


def test_snapshots_of_later_days_are_not_seen() -> None:
    table = pl.DataFrame(
        [
            {"dataset": HOT, "site": A, "bytes": TB, "kind": "disk", "since": FIRST},
            {
                "dataset": NEW,
                "site": A,
                "bytes": TB,
                "kind": "disk",
                "since": FIRST + timedelta(days=9),
            },
        ]
    )
    at = make_replicas(table, datasets=[NEW], until=FIRST + timedelta(days=9))
    assert at.copies().tolist() == [1, 0] and at.datasets == (HOT, NEW)
    later = make_replicas(table, until=FIRST + timedelta(days=10))
    assert replay.with_arrivals(at, later).copies().tolist() == [1, 1]


def test_a_dataset_that_a_snapshot_lacks_does_not_arrive_twice() -> None:
    reads = reads_of(*[(day, HOT, B, 30) for day in range(49)], weeks=7)
    clock = copy("/Clock/x/RAW", A)
    whole, lacking = copies_of(copy(HOT, A), clock, reads=reads), copies_of(clock, reads=reads)
    snapshots = [whole, lacking, whole]
    named = reads.named(snapshots[0].datasets, snapshots[0].sites)

    def before(day: date) -> Replicas:
        return snapshots[max((day - FIRST).days // 7 - 4, 0)]

    rows = replay.Replay(named, before, full(snapshots[0])).run(["as-is"])
    assert [row.disk_bytes for row in rows] == [2 * TB] * 3


def test_weeks_before_the_first_replicas_are_left_out() -> None:
    reads = reads_of(*[(day, HOT, B, 30) for day in range(49)], weeks=7)
    replicas = copies_of(copy(HOT, A), copy("/Clock/x/RAW", A), reads=reads)
    named = reads.named(replicas.datasets, replicas.sites)

    def since(first: date) -> list[date]:
        def before(day: date) -> Replicas:
            if day < first:
                raise InputMissing("no replicas")
            return replicas

        return [row.week for row in replay.Replay(named, before, full(replicas)).run(["as-is"])]

    weeks = [FIRST + timedelta(days=day) for day in (28, 35, 42)]
    assert [since(week) for week in weeks] == [weeks, weeks[1:], weeks[2:]]
    with pytest.raises(InputMissing, match="no replicas"):
        since(weeks[2] + timedelta(days=1))
