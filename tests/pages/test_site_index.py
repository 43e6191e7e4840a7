"""The calendar of a static site: each day has its number and verdict; what is missing
or wrong is seen.
"""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from cmsspark.base.manifests import Manifest
from cmsspark.pages.site_index import SiteEntry, Verdict, judge_day, site_index


def manifest(**facts: Any) -> Manifest:
    bins = {
        "read": 1_000,
        "matched": 900,
        "unmatched": {"user_file": 60, "not_in_dbs": 40},
        "malformed": 0,
    }
    return Manifest.from_dict({"reconciliation": {"aaa": bins}, **facts})


@pytest.mark.parametrize(
    ("facts", "kind", "word", "about"),
    [
        ({}, "good", "complete", "1,000 records read, 90"),
        ({"warnings": ["a", "b"]}, "warn", "warning", "2 warnings"),
        ({"missing_streams": ["eos"], "partial": True}, "warn", "partial", "without eos"),
        (
            {
                "reconciliation": {
                    "aaa": {"read": 5, "matched": 4, "unmatched": {}, "malformed": 0}
                }
            },
            "bad",
            "wrong",
            "the bins of aaa do not add up",
        ),
        ({"reconciliation": {}}, "good", "complete", "stored"),
    ],
)
def test_the_verdict_is_that_of_the_worst_fact(
    facts: dict[str, Any], kind: str, word: str, about: str
) -> None:
    verdict = judge_day(manifest(**facts))
    assert (verdict.kind, verdict.word) == (kind, word) and about in verdict.about


def test_records_that_nobody_counted_are_unknown_and_not_zero() -> None:
    assert judge_day(manifest(reconciliation={})).read is None
    page = site_index(
        {
            date(2026, 1, 5): SiteEntry(
                "a day", "days/a.html", judge_day(manifest(reconciliation={}))
            )
        },
        [],
        "",
        "",
    )
    assert "records read" not in page and "<b>5</b><span></span>" in page


def test_days_stand_in_months_and_missing_ones_are_named() -> None:
    good = judge_day(manifest())
    days = {
        date(2025, 12, 30): SiteEntry("<b>", "days/1.html", good),
        date(2026, 1, 2): SiteEntry("x", "", Verdict("bad", "damaged", "<i>")),
    }
    page = site_index(
        days, [("Weeks", [SiteEntry("week 1", "periods/w.html", good)])], "/store", "now"
    )
    assert page.index("January 2026") < page.index("December 2025")
    assert "days missing: 2025-12-31 to 2026-01-01" in page or "2025-12-31" in page
    assert page.count(">missing<") == 2
    assert 'href="days/1.html"' in page and 'href="periods/w.html"' in page and "<i>" not in page
    assert "<b>30</b><span>1k</span><span>complete</span>" in page
