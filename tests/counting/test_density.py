"""A day whose records for each byte leave their usual range is told."""

from __future__ import annotations

from typing import Any

import pytest

from cmsspark.base.manifests import Manifest
from cmsspark.counting import drift


def files(counted: int, size: int = 1_000_000) -> list[dict[str, Any]]:
    entry = {
        "content_bytes": size // 2,
        "records_read": counted // 2,
        "records_counted": counted // 2,
    }
    return [entry, entry]


def day(counted: int, form: str = "enr") -> Manifest:
    return Manifest.from_dict(
        {"inputs": [{"stream": "aaa", "form": form}], "files_read": {"aaa": files(counted)}}
    )


def told(counted: int, *before: Manifest) -> list[str]:
    entries, warnings = drift.unusual_density({"aaa": files(counted)}, {"aaa": "enr"}, before)
    assert [len(entries.get("aaa", ()))] == [len(warnings)]
    return warnings


@pytest.mark.parametrize(
    ("counted", "is_told"), [(798, True), (800, False), (1000, False), (1376, True), (570, True)]
)
def test_a_fifth_less_than_the_least_or_a_quarter_more_than_the_largest_is_told(
    counted: int, is_told: bool
) -> None:
    before = [day(1000), day(1050), day(1100)]
    assert bool(told(counted, *before)) is is_told
    if is_told:
        assert "1,000.0 to 1,100.0 on the 3 days before" in told(counted, *before)[0]


def test_few_days_before_another_format_or_few_records_say_nothing() -> None:
    assert told(500, day(1000), day(1000)) == []
    assert told(500, day(1000), day(1000), day(1000, "aaa-ng")) == []
    assert told(98, *[day(1000)] * 3) == []
    assert told(500, *[day(60)] * 3) == []
    assert (
        told(500, *[Manifest.from_dict({"inputs": [{"stream": "aaa", "form": "enr"}]})] * 5) == []
    )
