"""A day unlike the days before it is told: far more unmatched, far fewer records."""

from __future__ import annotations

import pytest

from cmsspark.counting.reconciliation import StreamBins, unusual


def day(read: int = 1000, unmatched: int = 100) -> StreamBins:
    bins = StreamBins(read=read, matched=read - unmatched)
    bins.unmatched["not_in_dbs"] = unmatched
    return bins


def warnings_of(now: StreamBins, *before: StreamBins) -> list[str]:
    return unusual({"aaa": now}, [{"aaa": one.as_dict()} for one in before])


def test_a_usual_day_is_not_reported() -> None:
    assert warnings_of(day(), day(), day(), day()) == []
    assert warnings_of(day(500, 50), day(), day(), day()) == []
    assert warnings_of(day(1000, 300), day(), day(), day()) == []


@pytest.mark.parametrize(
    ("now", "words"), [(day(499, 50), "499 records"), (day(1000, 301), "30.1% of the records")]
)
def test_half_the_records_or_three_times_the_unmatched_are_reported_with_the_usual_value(
    now: StreamBins, words: str
) -> None:
    (warning,) = warnings_of(now, day(), day(), day(10_000_000), day(1000, 90))
    assert words in warning
    assert "the median of the days before" in warning


def test_fewer_than_three_days_before_say_nothing() -> None:
    assert warnings_of(day(1, 1), day(), day()) == []
    assert warnings_of(day(1, 1), day(), day(), day(0, 0)) == []
    assert unusual({"aaa": day(1, 1)}, [{"eos": day().as_dict()}, {}, {}]) == []


def test_a_stream_that_was_left_out_is_reported_elsewhere() -> None:
    before = [{"aaa": day().as_dict()}] * 3
    assert unusual({"aaa": day(0, 0)}, before, missing=["aaa"]) == []
