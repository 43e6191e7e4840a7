"""The UTC clock: instants in names, files and messages."""

from __future__ import annotations

import re
import time

import pytest

from cmsspark.base import dates
from cmsspark.base.dates import parse_day

INSTANT = dates.start_ms(parse_day("2026-01-15")) + (6 * 3600 + 7 * 60 + 8) * 1000 + 999


def test_an_instant_is_written_in_utc_whatever_the_hosts_zone_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        assert dates.iso(INSTANT) == "2026-01-15T06:07:08+00:00"
        assert dates.to_second(INSTANT) == "2026-01-15 06:07:08"
        assert dates.to_minute(INSTANT) == "2026-01-15 06:07 UTC"
        assert dates.new_run_id(INSTANT).startswith("20260115T060708Z-")
        assert dates.run_began_ms(dates.new_run_id(INSTANT)) == INSTANT - 999
    finally:
        monkeypatch.undo()
        time.tzset()


def test_now_is_the_current_instant() -> None:
    before = int(time.time() * 1000)
    assert before <= dates.now_ms() <= int(time.time() * 1000) + 1
    assert before - 1000 <= dates.run_began_ms(dates.new_run_id()) <= dates.now_ms()
    assert re.fullmatch(r"\d{8}T\d{6}", dates.stamp())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", dates.iso())


def test_run_ids_of_one_second_differ() -> None:
    # Of 50 with six random digits two are the same once in 14,000 times, three or two pairs never.
    assert len({dates.new_run_id(INSTANT) for _ in range(50)}) >= 49


@pytest.mark.parametrize("text", ["", "r1", "20260115T060708", "2026-01-15T06:07:08Z-1a2b3c"])
def test_what_is_no_run_id_is_reported(text: str) -> None:
    with pytest.raises(ValueError, match="does not match"):
        dates.run_began_ms(text)
