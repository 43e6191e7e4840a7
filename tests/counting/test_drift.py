"""What samples of logs say of their schema, and what the counts of all records must bear out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cmsspark.base.errors import DataError
from cmsspark.base.schemas import Column
from cmsspark.counting import drift
from cmsspark.counting.drift import Seen
from cmsspark.counting.reconciliation import StreamBins

FIELDS = (
    Column("lfn", "string", feeds="lfn", is_required=True),
    Column("close", "long", feeds="read_bytes", is_required=True),
    Column("far", "long", feeds="read_bytes", is_required=True),
    Column("user", "string", feeds="user", is_required=True),
    Column("wrote", "long", feeds="write_bytes"),
    Column("info", "string", feeds="info", about="may be absent"),
)


def seen(records: int, form: str = "f", **types: dict[str, int]) -> Seen:
    """A sample in which every field is as it should be, but for ``types``."""
    found = Seen()
    usual = {
        one.name: {"text" if one.type == "string" else "whole number": records} for one in FIELDS
    }
    found.add("seen", records, json.dumps({"form": form, "field": "", "type": "records"}))
    for field, counts in (usual | types).items():
        for kind, count in counts.items():
            found.add("seen", count, json.dumps({"form": form, "field": field, "type": kind}))
    return found


def check(
    sample: Seen, known: tuple[str, ...] = (), **bins: Any
) -> tuple[list[tuple[str, str]], list[str]]:
    counts = StreamBins(**({"read": 500, "matched": 500} | bins))
    told, warnings = drift.check(
        {"s": counts},
        {"s": sample},
        lambda stream, form: FIELDS,
        lambda stream, what: what in known,
    )
    return [(one["field"], one["change"]) for one in told.get("s", [])], warnings


def test_a_stream_as_its_schema_says_is_not_reported() -> None:
    assert check(seen(200)) == ([], [])


def test_a_needed_field_without_which_rules_can_do_is_reported_as_missing() -> None:
    gone = {"": 200}
    assert check(seen(200, wrote=gone))[0] == [("wrote", "missing")]
    assert check(seen(200, close=gone), ("bytes",))[0] == [("close", "missing")]
    assert check(seen(200, info=gone))[0] == []


def test_gone_from_the_sample_and_from_all_accesses_is_another_schema() -> None:
    with pytest.raises(DataError, match="user: text expected, found in none of 200 records"):
        check(seen(200, user={"": 200}))
    assert check(seen(200, user={"": 200}), ("user",))[0] == [("user", "missing")]
    assert check(seen(200, user={"": 199, "null": 1}))[0] == []


def test_a_small_sample_says_nothing_of_what_is_gone() -> None:
    assert check(seen(99, user={"": 99}, wrote={"": 99})) == ([], [])


def test_an_lfn_that_is_gone_is_reported_from_eleven_records_on() -> None:
    for count, fails in ((10, False), (11, True)):
        bins = StreamBins(read=count)
        bins.unmatched["no_lfn"] = count
        sample = {"s": seen(count, lfn={"": count})}
        if fails:
            with pytest.raises(DataError, match="lfn"):
                drift.check(
                    {"s": bins}, sample, lambda stream, form: FIELDS, lambda stream, what: True
                )
        else:
            drift.check(
                {"s": bins}, sample, lambda stream, form: FIELDS, lambda stream, what: True
            )


def test_a_form_that_has_the_field_keeps_the_stream() -> None:
    both = seen(200, "old", user={"": 200})
    both.records["new"] = 5
    both.types["new", "user"] = drift.Counter({"text": 5})
    assert check(both)[0] == [("user", "missing")]


def test_another_type_fails_where_all_records_are_malformed() -> None:
    sample = seen(50, close={"text": 49, "": 1})
    with pytest.raises(DataError, match="close: a whole number expected, found text in 49 of 50"):
        check(sample, read=60, matched=0, malformed=60)
    assert check(sample, read=60, matched=1, malformed=59) == ([], [])
    assert check(
        seen(50, close={"text": 49, "whole number": 1}), read=60, matched=0, malformed=60
    ) == ([], [])


def test_new_fields_of_many_tasks_add_up_under_one_example() -> None:
    sample = seen(200)
    for example in ("text of 9 characters", "number 5"):
        sample.add("new", 3, json.dumps({"form": "f", "field": "more", "example": example}))
    told, (warning,) = drift.check(
        {"s": StreamBins()}, {"s": sample}, lambda *_: FIELDS, lambda *_: True
    )
    assert told == {
        "s": [{"field": "more", "form": "f", "change": "new", "example": "number 5", "records": 6}]
    }
    assert "more (new: number 5)" in warning


def test_a_warning_names_a_few_fields_only() -> None:
    sample = seen(200)
    for number in range(30):
        sample.add(
            "new", 1, json.dumps({"form": "f", "field": f"new{number:02}", "example": "null"})
        )
    assert check(sample)[1][0].endswith("and 22 more")


def test_drift_does_not_depend_on_the_order_in_which_samples_arrive() -> None:
    def of(streams: tuple[str, ...], forms: tuple[str, ...], kinds: tuple[str, ...]) -> object:
        samples: dict[str, Seen] = {}
        for stream in streams:
            sample = samples[stream] = Seen()
            for form in forms:
                of_form = seen(200, form, wrote=dict.fromkeys(kinds, 100))
                for rows in ("records", "types"):
                    getattr(sample, rows).update(getattr(of_form, rows))
        bins = {stream: StreamBins(read=500, matched=500) for stream in streams}
        told, warnings = drift.check(bins, samples, lambda *_: FIELDS, lambda *_: True)
        return json.dumps([told, warnings])

    found = of(("a", "b"), ("f", "g"), ("text", "enum"))
    assert found == of(
        ("b", "a"), ("g", "f"), ("enum", "text")
    ) and "enum in 100, text in 100" in str(found)
