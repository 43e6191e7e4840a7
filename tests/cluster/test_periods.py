"""A period over days on HDFS: the partials that YARN's executors wrote make the cells
that they make here.
"""

from __future__ import annotations

import json

import pytest

from tests.cluster.conftest import CMSSPARK, DAYS, RUN, World, cells, current

pytestmark = pytest.mark.cluster

FOUT = "/cms/periods"
NAME = f"{DAYS[0]}--{DAYS[-1]}"
PERIOD = ("--from", f"{DAYS[0]:%Y%m%d}", "--to", f"{DAYS[-1]:%Y%m%d}")


@pytest.fixture(scope="module")
def counted(world: World) -> str:
    """The store on HDFS with both days, counted on YARN."""
    for day in DAYS:
        ended = world.run(*world.on_yarn("data_aggregation", f"hdfs://{FOUT}", day=day))
        assert ended.code == 0
    return f"hdfs://{FOUT}"


@pytest.mark.parametrize("way", ["cmsspark", "client", "cluster"])
def test_a_period_over_days_on_hdfs_has_the_cells_of_one_made_here(
    world: World, counted: str, way: str
) -> None:
    there = () if way == "cmsspark" else ("--yarn", "--deploy-mode", way)
    program = CMSSPARK if way == "cmsspark" else RUN
    ended = world.end(world.start("period", *there, *PERIOD, "--fout", counted, program=program))
    assert ended.code == 0
    for day in DAYS:
        local = world.here("data_aggregation", day)
    assert world.cmsspark("period", *PERIOD, "--fout", str(local)).code == 0
    run, manifest = current(world.fetched(FOUT), "period", NAME)
    wanted_run, wanted = current(local, "period", NAME)
    rows = cells(run, "period_aggregation")
    assert rows.height > 50 and rows.equals(cells(wanted_run, "period_aggregation"))
    assert manifest["days"].keys() == wanted["days"].keys() == {day.isoformat() for day in DAYS}
    assert (manifest["partial"], manifest["pseudonym_key_id"]) == (
        False,
        wanted["pseudonym_key_id"],
    )


def test_a_period_that_lacks_a_day_is_66_and_a_view_of_days_on_hdfs_is_that_of_here(
    world: World, counted: str
) -> None:
    ended = world.cmsspark("period", "--from", "20260115", "--to", "20260117", "--fout", counted)
    assert ended.code == 66 and "2026-01-17" in ended.err
    for day in DAYS:
        local = world.here("data_aggregation", day)
    views = [
        world.cmsspark("period", "--view", "datasets", *PERIOD, "--json", "--fout", fout)
        for fout in (counted, str(local))
    ]
    assert [one.code for one in views] == [0, 0]
    assert json.loads(views[0].out) == json.loads(views[1].out) != []
