"""Readiness: what is small, still being written or of an older dump is waited for, and
not for ever.
"""

from __future__ import annotations

from datetime import date

import pytest

from cmsspark.apps.daily.planner import (
    HOUR_MS,
    MINUTE_MS,
    Listing,
    Readiness,
    Rules,
    is_overdue,
    judge_dump,
    judge_parts,
    judge_stream,
    judge_writing,
    missing,
    together,
)
from cmsspark.base import dates

DAY = date(2026, 1, 15)
END = dates.start_ms(date(2026, 1, 16))
NOW = END + 6 * HOUR_MS
USUAL = [[100, 100, 0]] * 3


def judged(
    sizes: tuple[int, ...], *, age: int = HOUR_MS, before: list[list[int]] = USUAL, now: int = NOW
) -> Readiness:
    return judge_stream(Listing("aaa", sizes, now - age), before, DAY, now, Rules())


def test_a_day_as_large_as_usual_is_ready() -> None:
    assert judged((90, 95, 0)) == Readiness()


def test_empty_parts_and_fewer_of_them_are_no_reason() -> None:
    assert judged((200, 0, 0, 0, 0)) == Readiness()
    assert judged((100, 100)) == Readiness()


@pytest.mark.parametrize(("total", "ready"), [(99, False), (100, True)])
def test_less_than_half_of_the_usual_bytes_is_waited_for(total: int, ready: bool) -> None:
    found = judged((total, 0, 0))
    assert found.is_ready is ready
    assert found.retry_ms == (None if ready else NOW + HOUR_MS)


def test_a_small_day_is_taken_with_a_warning_when_patience_ends() -> None:
    late = END + 48 * HOUR_MS
    assert not judged((50, 40), now=late - 1).is_ready
    assert judged((50, 40), now=late - 1).retry_ms == late
    found = judged((50, 40), now=late)
    assert found.is_ready
    assert "the time to wait for it is over" in found.warnings[0]


def test_few_large_files_where_many_are_usual_warn() -> None:
    found = judged((200,), before=[[50, 50, 50, 50]] * 3)
    assert found.is_ready
    assert found.warnings == ("aaa: 1 file, the median of days before is 4",)


WHOLE = [f"part-{number:05}.json.gz" for number in range(9)]


def gaps(names: list[str], *before: list[str]) -> Readiness:
    return judge_parts("aaa", names, before)


def test_parts_that_are_left_out_and_never_were_before_warn() -> None:
    lacking = [name for name in WHOLE if "3" not in name and "5" not in name]
    found = gaps(lacking, WHOLE, WHOLE, WHOLE[:4])
    assert found.is_ready
    assert found.warnings == ("aaa: no part 3, 5 of 0 to 8; the 3 days before left out none",)


def test_many_parts_that_are_left_out_are_counted() -> None:
    (warning,) = gaps(["part-m-999999999"], WHOLE, WHOLE, WHOLE).warnings
    assert warning.startswith("aaa: no part 0, 1, 2, 3, 4 and 999999994 more of 0 to 999999999;")


@pytest.mark.parametrize(
    ("names", "before"),
    [
        (WHOLE, [WHOLE, WHOLE, WHOLE]),
        (WHOLE[3:], [WHOLE, WHOLE, WHOLE[2:]]),  # gaps are usual
        (WHOLE[3:], [WHOLE, WHOLE]),  # nothing is usual yet
        (["one", "two"], [WHOLE, WHOLE, WHOLE]),  # no numbers
        (["part-0", "part-0.json", "part-00001-a-b-c.gz"], [WHOLE, WHOLE, WHOLE]),
        (WHOLE[3:], [["one"], ["two"], ["three"]]),
        ([], [WHOLE, WHOLE, WHOLE]),
    ],
)
def test_parts_without_gaps_and_gaps_that_are_usual_say_nothing(
    names: list[str], before: list[list[str]]
) -> None:
    assert gaps(names, *before) == Readiness()


def test_nothing_is_usual_before_three_days_with_data() -> None:
    assert judged((1,), before=[[100], [100], [0], []]) == Readiness()


def test_what_was_written_a_moment_ago_is_still_being_written() -> None:
    found = judged((200,), age=9 * MINUTE_MS)
    assert found.retry_ms == NOW + MINUTE_MS
    assert judged((200, 0, 0), age=10 * MINUTE_MS).is_ready


def test_a_file_from_the_future_holds_nothing_up() -> None:
    assert judged((200, 0, 0), age=-365 * 24 * HOUR_MS).is_ready
    assert not judged((200, 0, 0), age=-MINUTE_MS).is_ready


@pytest.mark.parametrize(
    ("dump", "hours", "ready"),
    [
        (date(2026, 1, 16), 1, True),
        (date(2026, 1, 15), 1, False),
        (date(2026, 1, 15), 47, False),
        (date(2026, 1, 15), 48, True),
        (date(2025, 12, 1), 1, False),
        (None, 1, True),
    ],
)
def test_the_dump_after_the_day_is_waited_for_two_days(
    dump: date | None, hours: int, ready: bool
) -> None:
    found = judge_dump("dbs", dump, DAY, END + hours * HOUR_MS, Rules())
    assert found.is_ready is ready
    assert bool(found.warnings) is (ready and dump is not None and dump <= DAY)


def test_all_verdicts_count_and_the_last_retry_is_the_next_look() -> None:
    found = together(
        [missing("a", 5), Readiness(warnings=("w",)), Readiness(("b",), (), 7), Readiness()]
    )
    assert found == Readiness(("a", "b"), ("w",), 5 + HOUR_MS)
    assert together([]) == Readiness()


def test_a_day_is_overdue_when_patience_has_ended() -> None:
    assert not is_overdue(DAY, END + 48 * HOUR_MS - 1, Rules())
    assert is_overdue(DAY, END + 48 * HOUR_MS, Rules())


@pytest.mark.parametrize(
    ("minutes", "is_ready"), [(0, False), (9, False), (10, True), (600, True), (-60, True)]
)
def test_a_dump_that_is_written_table_by_table_is_waited_for_until_it_is_quiet(
    minutes: int, is_ready: bool
) -> None:
    newest = NOW - minutes * MINUTE_MS
    found = judge_writing("rucio: the last file of the dump", newest, NOW, Rules())
    assert found.is_ready == is_ready
    if not is_ready:
        assert found.retry_ms == newest + 10 * MINUTE_MS
        assert found.reasons == (
            f"rucio: the last file of the dump was written {minutes} minutes ago",
        )
