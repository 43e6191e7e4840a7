"""Charts of series: what is stacked, and what a stack would misrepresent."""

from __future__ import annotations

from datetime import date

from cmsspark.apps.dashboard.page import make_chart
from cmsspark.apps.dashboard.selection import Selection
from cmsspark.apps.dashboard.use import Series

DAYS = [date(2026, 1, 14), date(2026, 1, 15)]


def test_groups_that_add_up_are_stacked_over_days_and_bars_of_one_day() -> None:
    """A stack of one day has no areas: its points would show the sum of all groups
    below as the value of one.
    """
    over_days = Series(DAYS, {"aaa": [5, 3], "eos": [7, None]})
    by_tier = Selection(DAYS[0], DAYS[1], measure="nacc", by="data_tier")
    chart = make_chart("use", over_days, by_tier)
    assert (chart.kind, chart.drawn) == ("stack", {"aaa": [5, 3], "eos": [7, 0]})
    one_day = Series(DAYS[1:], {"aaa": [3], "eos": [None]})
    chart = make_chart("use", one_day, Selection(DAYS[1], DAYS[1], measure="nacc", by="stream"))
    assert (chart.kind, chart.series) == ("bar", {"aaa": [3], "eos": [None]})


def test_a_stream_that_a_day_lacks_is_a_gap_in_a_stack_that_hides_no_other() -> None:
    over_days = Series(DAYS, {"eos": [7, None], "aaa": [5, 3], "crab": [None, 2]})
    by_stream = Selection(DAYS[0], DAYS[1], measure="nacc", by="stream")
    chart = make_chart("use", over_days, by_stream)
    assert chart.kind == "stack" and list(chart.drawn) == ["aaa", "eos", "crab"]
    # The sum above a gap is unknown.
    assert list(chart.drawn.values()) == [[5, 3], [7, None], [None, None]]
    assert chart.table is not None and [row[2:] for row in chart.table.rows] == [
        (5, 7, None),
        (3, None, 2),
    ]
