"""Backtests of plans: by hand, blind to later days; the plan as rules of Rucio."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import jsonschema
import numpy as np
import polars as pl
import pytest
from msgspec.structs import replace
from polars.testing import assert_frame_equal

from bench.placement import inputs_of
from bench.placement_worlds import WORLDS
from cmsspark.apps.placement.inputs import PlacementInputs
from cmsspark.apps.placement.plan import (
    Limits,
    backtest,
    expected,
    recommend,
    rse_of_disk,
    rucio_rules,
)
from cmsspark.base.errors import InputMissing
from tests.apps.placement.worlds import COLD, HOT, TB, A, B, copy, reads_of, run

#: The body of POST /rules, of Rucio's own schema.
_SCHEMA = json.loads(Path(__file__).with_name("rucio_rule.json").read_text())


def test_a_backtest_by_hand() -> None:
    """HOT is read at B, 3 a day of a tenth of a TB, until day 63: a copy of the Monday of
    day 56 serves one week of its four, that of day 49 two.
    """
    rows = [(day, HOT, B, 3) for day in range(63)]
    cold = [copy(f"/Cold{number}/x/RAW", A) for number in range(5)]
    table = pl.DataFrame([{"kind": "disk", "bytes": TB, **row} for row in (copy(HOT, A), *cold)])
    reads = reads_of(*rows, weeks=12)
    inputs = PlacementInputs(reads, lambda day: table, "x", {B: (9e12, 1e12)})
    one, two = (
        backtest(inputs, Limits(), weeks).rows_by_key("rule", named=True, unique=True)
        for weeks in (1, 2)
    )
    assert [(row["copies"], row["copied_bytes"]) for row in one.values()] == [(1, TB)] * 4
    assert list(one) == ["recommend", "ten-reads", "tier", "random"]
    assert one["recommend"]["served_bytes"] == pytest.approx(2.1 * TB)
    assert two["recommend"]["served_bytes"] == pytest.approx(6.3 * TB)
    assert two["tier"]["weeks"] == 2
    assert one["recommend"]["served_per_byte"] == pytest.approx(2.1)
    with pytest.raises(InputMissing, match="no week can be judged"):
        early = reads.before(reads.first + timedelta(days=55))
        backtest(replace(inputs, reads=early), Limits(), 1)


def test_a_plan_is_blind_to_what_comes_later() -> None:
    inputs = inputs_of(WORLDS["groups"](3), 0.05)
    reads, day = inputs.reads, inputs.reads.first + timedelta(days=120)
    noise = pl.Series(np.random.default_rng(1).integers(1, 500, len(reads.rows)).astype(float))
    columns = {"accesses": noise, "bytes": pl.lit(1e12)}
    is_later = pl.col("day") >= day
    other = replace(
        reads,
        rows=reads.rows.with_columns(
            pl.when(is_later).then(value).otherwise(name).alias(name)
            for name, value in columns.items()
        ),
    )
    replicas = inputs.replicas_before(day)
    first, second = (
        expected(each.before(day), replicas).sort("dataset", "site") for each in (reads, other)
    )
    # Threads add up floats in any order.
    assert_frame_equal(first, second, rel_tol=1e-12)
    later = day + timedelta(days=30)
    one, two = (
        expected(each.before(later), replicas).sort("dataset", "site") for each in (reads, other)
    )
    assert not one.equals(two)


@pytest.mark.parametrize("world", WORLDS)
def test_plans_are_worth_more_than_by_bytes_per_byte(world: str) -> None:
    """And at most 15 % of the bytes are never read in their four weeks."""
    inputs = inputs_of(WORLDS[world](7), 0.03)
    rows = backtest(inputs, Limits(), 4).rows_by_key("rule", named=True, unique=True)
    assert rows["recommend"]["served_per_byte"] >= rows["ten-reads"]["served_per_byte"]
    assert rows["recommend"]["unread_share"] <= 0.15
    assert rows["random"]["served_per_byte"] < rows["recommend"]["served_per_byte"] / 3


def test_the_command_prints_each_rule_with_its_bytes(tmp_path: Path) -> None:
    world = WORLDS["users"](1)
    world.accesses.write_parquet(tmp_path / "a.parquet")
    world.replicas.write_parquet(tmp_path / "r.parquet")
    words = ["--accesses", str(tmp_path / "a.parquet"), "--replicas", str(tmp_path / "r.parquet")]
    shown = run("backtest", *words, "--weeks", "2")
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.startswith("2 weeks, each with its next 4 weeks, from a.parquet")
    lines = [line.split()[0] for line in shown.stdout.splitlines()[2:] if line.strip()]
    assert lines[-4:] == ["recommend", "ten-reads", "tier", "random"]
    told = json.loads(run("backtest", *words, "--weeks", "2", "--json").stdout)
    assert [row["weeks"] for row in told["rules"]] == [2] * 4


def test_the_plan_as_rules_of_rucio(files: list[str]) -> None:
    plan = json.loads(
        run("recommend", *files, "--rucio", "--lifetime", "2", "--activity", "Debug").stdout
    )
    (rule,) = plan["add"]
    jsonschema.validate(rule, _SCHEMA)
    assert rule.pop("comment").startswith("cmsspark placement 2026-02-16: its reads, ")
    assert rule == {
        "dids": [{"scope": "cms", "name": HOT}],
        "copies": 1,
        "rse_expression": B,
        "grouping": "ALL",
        "lifetime": 14 * 86_400,
        "activity": "Debug",
        "ask_approval": True,
    }
    assert plan["remove"] == [
        {
            "did": {"scope": "cms", "name": COLD},
            "rse_expression": B,
            "bytes": 10**12,
            "rules": None,
        }
    ]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**rule, "owner": "x"}, _SCHEMA)
    assert [rse_of_disk(site) for site in ("T1_US_FNAL", "T2_DE_DESY", "T0_CH_CERN")] == [
        "T1_US_FNAL_Disk",
        "T2_DE_DESY",
        "T0_CH_CERN_Disk",
    ]


def test_copies_that_can_go_name_the_rules_that_hold_them() -> None:
    world = WORLDS["users"](1)
    inputs = inputs_of(world, 0.05)
    full = replace(inputs, given_space={})
    advice = recommend(full, Limits())
    first, second, *_ = advice.rows.filter(action="remove").to_dicts()
    rule = {"rule_id": "1f", "account": "wmcore_output", "expires_at": "never"}
    at = {"dataset_name": first["dataset"], "rse": rse_of_disk(first["site"]), "state": "ok"}
    elsewhere = {"dataset_name": second["dataset"], "rse": "T2_XX_Y", "state": "ok"}
    held = [{**rule, **at}, {**rule, **elsewhere}]
    removed = rucio_rules(advice, "Debug", held)["remove"]
    assert [copy["rules"] for copy in removed[:2]] == [[rule], []]
