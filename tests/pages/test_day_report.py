"""The reconciliation report: what a manifest tells, for people, as a page, and without
anybody's name or script.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from cmsspark.base.manifests import Manifest
from cmsspark.pages.day_report import BINS, report, text
from cmsspark.pages.page import page

UNMATCHED = {"no_lfn": 1, "user_file": 2, "temporary": 3, "not_in_dbs": 4}
HOSTILE = "<script>alert(1)</script>\"'&\x1b[31m\udc80"


def bins(matched: int = 80, **more: Any) -> dict[str, Any]:
    one = {
        "matched": matched,
        "unmatched": UNMATCHED,
        "malformed": 5,
        "out_of_day": 3,
        "write_only": 2,
        **more,
    }
    return {"read": matched + sum(one["unmatched"].values()) + 10, **one}


def manifest(day: str = "2026-01-15", **more: Any) -> Manifest:
    document = {
        "job": "data_aggregation",
        "day": day,
        "run": "20260116T050000Z-abcdef",
        "tables": {"data_aggregation": {"rows": 7, "bytes": 2_500}},
        "reconciliation": {"aaa": bins(), "crab": bins(10)},
        "missing_streams": [],
        "inputs": [
            {
                "stream": "aaa",
                "folder": "/logs/aaa",
                "form": "enr",
                "is_tmp": True,
                "files": [["a", 5, 1], ["b", 7, 1]],
            }
        ],
        "dumps": {
            "dbs": {"folder": "/dbs", "day": None},
            "phedex": {"folder": "/phedex", "day": "2026-01-16"},
        },
        "unmatched_prefixes": {
            "aaa": [["/store/user/*", 2], ["other", 1]],
            "crab": [["/store/user/*", 5]],
        },
        "out_of_day_by_day": {"aaa": {"2026-01-14": 1, "2026-01-16": 2}},
        "generations": {"aaa": {"G1": 4}},
        "drift": {
            "aaa": [
                {
                    "field": "f",
                    "form": "enr",
                    "change": "new",
                    "example": "text of 3",
                    "records": 9,
                }
            ]
        },
        "warnings": ["something"],
        **more,
    }
    return Manifest.from_dict(document)


def test_the_costs_of_jobs_have_the_files_of_their_source() -> None:
    read = {"stream": "condor", "folder": "/c", "form": "json", "files": [["a", 5, 1]]}
    contents = report(manifest(inputs=[read], reconciliation={"condor_costs": bins()}))
    assert [stream["input"]["files"] for stream in contents["streams"]] == [1]


def test_the_bins_of_a_stream_add_up_to_what_was_read() -> None:
    (aaa, _) = report(manifest())["streams"]
    assert [one["bin"] for one in aaa["bins"]] == [
        name for name in BINS if name in bins() or name in UNMATCHED
    ]
    assert sum(one["records"] for one in aaa["bins"]) == aaa["read"] == 100
    assert aaa["bins"][0] == {"bin": "matched", "records": 80, "share": 0.8}
    assert aaa["input"] == {
        "folder": "/logs/aaa",
        "form": "enr",
        "is_tmp": True,
        "files": 2,
        "bytes": 12,
    }


def test_accesses_are_counted_before_and_after_each_join() -> None:
    joins = report(manifest(), stored={"aaa": 80, "crab": 11})["joins"]
    assert [
        (one["stream"], one["rows_in"], one["rows_out"], one["is_right"]) for one in joins
    ] == [
        ("aaa", 89, 89, True),
        ("aaa", 80, 80, True),
        ("crab", 19, 19, True),
        ("crab", 10, 11, False),
    ]
    assert ["replicas" in one["join"] for one in joins] == [False, False, True, False]


def test_a_join_that_multiplied_is_reported() -> None:
    one = bins()
    one["matched"] += 1
    told = report(manifest(reconciliation={"aaa": one}))
    assert [(join["rows_in"], join["rows_out"], join["is_right"]) for join in told["joins"]] == [
        (89, 90, False)
    ]
    assert "WRONG" in text(told)
    assert "1 wrong join" in page(told)


@pytest.mark.parametrize(
    ("now", "word"),
    [
        (bins(), "usual"),
        (bins(29), "few"),
        (bins(60, unmatched=dict.fromkeys(UNMATCHED, 10)), "unmatched"),
    ],
)
def test_a_stream_is_compared_with_the_trailing_days(now: dict[str, Any], word: str) -> None:
    before = [manifest(f"2026-01-{day}") for day in (14, 13, 12)]
    told = report(manifest(reconciliation={"aaa": now}), before)
    assert told["streams"][0]["usual"]["word"] == word
    assert told["streams"][0]["usual"]["read"] == 100
    assert [one["day"] for one in told["trailing_days"]] == [
        "2026-01-12",
        "2026-01-13",
        "2026-01-14",
        "2026-01-15",
    ]


def test_too_few_days_before_say_nothing() -> None:
    unreconciled = Manifest.from_dict({"day": "2026-01-12", "reconciliation": None})
    before = [manifest("2026-01-14"), Manifest.from_dict({}), unreconciled]
    assert report(manifest(), before)["streams"][0]["usual"] == {"word": "unknown"}


def test_where_a_shuffle_join_counted_no_prefixes_they_are_not_known() -> None:
    told = report(manifest(unmatched_prefixes={}, join="shuffle"))
    assert told["streams"][0]["unmatched_prefixes"] is None
    told = report(manifest(unmatched_prefixes={"aaa": [["/store/user/*", 2]]}, join="shuffle"))
    assert [stream["unmatched_prefixes"] for stream in told["streams"]] == [
        [["/store/user/*", 2]],
        [],
    ]


def test_a_stream_that_logs_no_names_of_files_has_no_column_of_prefixes() -> None:
    """The stream condor has records that are not in DBS, and no prefix of them: 0 would
    say that it has none.
    """
    counts = {"aaa": bins(), "condor": bins()}
    told = report(
        manifest(reconciliation=counts, unmatched_prefixes={"aaa": [["/store/user/*", 2]]})
    )
    section = page(told).partition("Files that are not in DBS")[2].partition("</table>")[0]
    assert "/store/user/*" in section and "aaa" in section and "condor" not in section


def test_a_job_without_streams_has_a_report() -> None:
    dumps = {
        "job": "dbs_phedex",
        "day": "2026-01-15",
        "run": "r",
        "tables": {"dbs_phedex": {"rows": 3}},
    }
    told = report(Manifest.from_dict(dumps))
    assert "dbs_phedex: 3 rows" in text(told)
    assert "dbs_phedex of 2026-01-15" in page(told)


def test_the_text_shows_what_a_person_asks_for() -> None:
    kept = {
        "file": "/q.jsonl",
        "is_there": True,
        "records": 5,
        "reasons": [{"reason": "x", "records": 5}],
        "examples": ["part-0, record 3: x"],
    }
    lines = text(report(manifest(), quarantine=kept)).splitlines()
    for wanted in (
        "  aaa    2 files, 12 B, .tmp (G1 4): /logs/aaa",
        "  dump      dbs of no date: /dbs",
        "  /store/user/*                        aaa 2, crab 5",
        "  aaa    f (enr): new, text of 3, in 9 records of a sample",
        "  aaa    2026-01-16: 2, 2026-01-14: 1",
        "  5 kept in /q.jsonl",
        "  e.g. part-0, record 3: x",
    ):
        assert wanted in lines


def test_long_lists_are_cut_in_the_terminal() -> None:
    made = manifest(identical_files=[[f"a{number}", "b", "c", "d"] for number in range(99)])
    lines = [line for line in text(report(made)).splitlines() if "= b and 2 more" in line]
    assert len(lines) == 10
    assert "1 row," in text(report(manifest(tables={"x": {"rows": 1}})))


def planted() -> Manifest:
    """A manifest with hostile text wherever text of others may stand."""
    made = json.loads(json.dumps(manifest().document).replace('"/logs/aaa"', json.dumps(HOSTILE)))
    made["drift"]["aaa"][0] |= dict.fromkeys(("field", "form", "example"), HOSTILE)
    made["warnings"] = made["identical_files"] = [HOSTILE]
    made["identical_files"] = [[HOSTILE, HOSTILE]]
    made["dumps"]["dbs"]["folder"] = HOSTILE
    made["generations"] = {"aaa": {HOSTILE: 1}}
    made["out_of_day_by_day"] = {"aaa": {HOSTILE: 1}}
    made["unmatched_prefixes"] = {"aaa": [[HOSTILE, 1]]}
    made["versions"] = {HOSTILE: HOSTILE}
    return Manifest.from_dict(made)


def quarantine() -> dict[str, Any]:
    return {
        "file": HOSTILE,
        "is_there": True,
        "records": 1,
        "reasons": [{"reason": HOSTILE, "records": 1}],
        "examples": [HOSTILE],
    }


def test_a_page_has_the_bins_with_records_and_how_many_warnings_there_are() -> None:
    told = manifest(reconciliation={"aaa": bins(write_only=0)}, warnings=["one", "two"])
    made = page(report(told))
    assert 'title="not_in_dbs">not in DBS<' in made
    assert 'title="write_only">' not in made
    assert "2 warnings" in made and "nothing unusual" not in made
    assert "nothing unusual" in page(report(manifest(warnings=[], reconciliation={})))


def test_a_page_escapes_all_that_it_shows() -> None:
    made = page(report(planted(), quarantine=quarantine()))
    made.encode()
    assert made.count("&lt;script&gt;") > 12
    assert not re.search(r"<script|alert\(1\)</script>|\"'&\x1b", made)


def test_a_page_fetches_nothing_and_runs_nothing() -> None:
    made = page(report(manifest(), [manifest("2026-01-14")] * 3))
    assert "default-src 'none'" in made
    assert not re.search(
        r"<(script|link|img|iframe|object|form|base)\b|\bon\w+=|https?:|url\(|@import|\bsrc=", made
    )


def test_a_terminal_is_written_to_in_printable_letters_only() -> None:
    said = text(report(planted(), quarantine=quarantine()))
    assert all(line.isprintable() for line in said.split("\n"))


def test_an_empty_stream_has_no_shares() -> None:
    empty = {
        "read": 0,
        "matched": 0,
        "unmatched": dict.fromkeys(UNMATCHED, 0),
        "malformed": 0,
        "out_of_day": 0,
        "write_only": 0,
    }
    told = report(manifest(reconciliation={"aaa": empty}, missing_streams=["aaa"], inputs=[]))
    assert {one["share"] for one in told["streams"][0]["bins"]} == {None}
    assert told["joins"] == []
    assert "left out" in text(told)
    assert "left out" in page(told)
