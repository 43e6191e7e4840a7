"""Documents are pure functions of stored rows, the same bytes each time, and never what
MONIT would drop or double.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from datetime import date, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cmsspark.base.errors import UsageError
from cmsspark.base.schemas import stored_table
from cmsspark.publish.document_schemas import validator_for
from cmsspark.publish.documents import (
    BadDocument,
    DaySummary,
    DocumentSpec,
    canonical,
    completeness,
    document,
    gone,
)
from tests.publish.days import DAY, MANIFEST, SPEC, TIMESTAMP, row

CLASSES = ("sync", "production", "user", "group", "service", "unknown")

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner),
    max_leaves=12,
)


def people_documents(table: str, rows: list[dict[str, Any]], **options: Any) -> list[Any]:
    spec = DocumentSpec(stored_table(table), DAY, "cms-test", table, **options)
    full = [{**dict.fromkeys(spec.table.names), **row, "timestamp": TIMESTAMP} for row in rows]
    bodies = [document(spec, row) for row in spec.published_rows(full)]
    for body in bodies:
        validator_for(table).check(body)
    # One would overwrite the other.
    assert len({body["metadata"]["_id"] for body in bodies}) == len(bodies)
    return bodies


def test_rule_68_accounts_of_single_people_are_published_by_class_and_without_names() -> None:
    """A class is summed at an RSE by kind of quota, as unlimited ones have no bytes."""
    names = [column.name for column in stored_table("account_usage").columns]
    sums = dict.fromkeys((name for name in names if name.endswith(("_bytes", "_count"))), 1)
    same = {"day": DAY, "rse": "T2_X", "bytes": 5, **sums}
    rows = [
        {**same, "account": f"key:{number}", "account_class": of_class, "limit_kind": kind}
        for number, (of_class, kind) in enumerate(
            [(name, "limit") for name in (*CLASSES, "user", "user")] + [("user", "none")]
        )
    ]
    rows[-1]["limit_bytes"] = None
    bodies = people_documents("account_usage", rows, min_users=2)
    found = {
        (body["account_class"], body["limit_kind"]): (
            body.get("account"),
            body["bytes"],
            body.get("limit_bytes"),
            body.get("distinct_users"),
            body.get("is_distinct_users_withheld"),
        )
        for body in bodies
    }
    assert len(bodies) == len(found) == 7
    assert found == {
        **{
            (name, "limit"): (f"key:{number}", 5, 1, None, None)
            for number, name in enumerate(CLASSES)
            if name not in ("user", "unknown")
        },
        ("user", "limit"): (None, 15, 3, 3, None),
        ("user", "none"): (None, 5, None, None, True),
        ("unknown", "limit"): (None, 5, 1, None, True),
    }


def test_rule_68_the_oldest_rule_of_people_is_the_oldest_of_all() -> None:
    same = {"day": DAY, "event": "stuck", "account_class": "user", "activity": "a"}
    same |= {"did_scope": "cms", "reason": "none", "lock_ok": 0, "lock_replicating": 1}
    same |= {"lock_stuck": 2, "copies": 1, "rule_count": 2}
    rows = [{**same, "account": f"k:{n}", "oldest_ms": old} for n, old in enumerate([7, None, 3])]
    (body,) = people_documents("rules_day", rows)
    assert (body["oldest_ms"], body["rule_count"], body["distinct_users"]) == (3, 6, 3)
    assert "account" not in body


def test_rule_68_tasks_are_published_without_people_by_the_day_of_their_start() -> None:
    """Tasks without a user are in the sums, and no people."""
    same = {"status": "FAILED", "job_type": "Analysis", "split_algo": "Automatic"}
    same |= {"has_script": False, "task_count": 2, "job_count": 10}
    before = DAY - timedelta(days=1)
    rows = [
        {**same, "day": day, "user": user}
        for day, user in ((DAY, "k:1"), (DAY, "k:2"), (DAY, None), (before, "k:1"))
    ]
    bodies = people_documents("crab_tasks", rows)
    found = [(body["day"], body["task_count"], body["distinct_users"]) for body in bodies]
    assert found == [(DAY.isoformat(), 6, 2), (before.isoformat(), 2, 1)]
    assert all("user" not in body and "k:" not in str(body) for body in bodies)
    assert len({body["metadata"]["_id"] for body in bodies}) == 2


def test_reads_of_the_storage_system_itself_are_not_published() -> None:
    assert SPEC.leaves_out(row(1, app="storage"))
    assert not SPEC.leaves_out(row(1, app="transfer")) and not SPEC.hides_dataset(row(1))


def test_a_document_keeps_the_dashboards_names_and_leaves_nulls_out() -> None:
    body = document(SPEC, row(1))
    assert body == {
        "stream": "aaa",
        "dataset_name": "/P1/Run2026A-v1/MINIAOD",
        "site_name": "T2_CH_CERN",
        "app": "crab",
        "nacc": 3,
        "distinct_users": 2,
        "read_bytes": 1_000,
        "site_tier": "T2",
        "primary_name": "P1",
        "processing_name": "Run2026A-v1",
        "data_tier": "MINIAOD",
        "timestamp": TIMESTAMP,
        "metadata": {
            "producer": "cms-test",
            "type": "data_aggregation",
            "type_prefix": "agg",
            "timestamp": TIMESTAMP,
            "_id": body["metadata"]["_id"],
        },
    }


def test_the_id_is_the_sha256_of_job_period_and_group_key() -> None:
    text = (
        '["data_aggregation","2026-01-15",["aaa","/P1/Run2026A-v1/MINIAOD","T2_CH_CERN","crab"]]'
    )
    assert document(SPEC, row(1))["metadata"]["_id"] == hashlib.sha256(text.encode()).hexdigest()


def test_the_id_does_not_depend_on_measures_producer_or_type() -> None:
    other = DocumentSpec(SPEC.table, DAY, "another", "kind")
    assert (
        document(other, row(1, nacc=99))["metadata"]["_id"]
        == document(SPEC, row(1))["metadata"]["_id"]
    )


def test_a_row_twice_is_the_same_bytes_whatever_the_order_of_its_columns() -> None:
    shuffled = list(row(1, cpu_time=-0.0).items())
    random.Random(3).shuffle(shuffled)
    assert canonical(document(SPEC, dict(shuffled))) == canonical(
        document(SPEC, row(1, cpu_time=0.0))
    )


def test_a_double_stays_a_double_also_when_it_is_whole() -> None:
    assert b'"cpu_time":3.0' in canonical(document(SPEC, row(1, cpu_time=3)))


def test_the_order_of_a_sum_does_not_show() -> None:
    first, second = (0.1 + 0.2) + 0.3, 0.1 + (0.2 + 0.3)
    assert first != second
    assert document(SPEC, row(1, cpu_time=first)) == document(SPEC, row(1, cpu_time=second))


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"cpu_time": math.nan}, "cpu_time is NaN"),
        ({"cpu_time": math.inf}, "cpu_time is NaN"),
        ({"nacc": 1.0}, "nacc is a float"),
        ({"nacc": True}, "nacc is a bool"),
        ({"nacc": "3"}, "nacc is a str"),
        ({"site_name": 7}, "site_name is a int"),
        ({"site_name": None}, "no value for site_name"),
        ({"day": date(2026, 1, 16)}, "another day"),
        ({"timestamp": TIMESTAMP + 1}, "timestamp"),
    ],
)
def test_a_row_that_makes_no_valid_document_is_refused(
    change: dict[str, object], word: str
) -> None:
    with pytest.raises(BadDocument, match=word):
        document(SPEC, row(1, **change))


def test_lone_surrogates_are_refused_and_not_replaced() -> None:
    with pytest.raises(BadDocument, match="surrogate"):
        canonical({"a": "x\ud800"})


def test_single_people_s_tables_are_never_published() -> None:
    with pytest.raises(UsageError):
        document(DocumentSpec(stored_table("partials"), DAY, "p", "t"), row(1))


def test_a_gone_document_has_its_id_zero_measures_and_the_mark() -> None:
    body = document(SPEC, row(1, cpu_time=2.5))
    last = gone(SPEC, body)
    expected = {
        **body,
        "nacc": 0,
        "distinct_users": 0,
        "read_bytes": 0,
        "cpu_time": 0.0,
        "is_gone": True,
    }
    # As bytes, which tell 0 from 0.0: a search index takes the type of the first one.
    assert canonical(last) == canonical(expected)
    assert "remote_nacc" not in last
    validator_for("data_aggregation").check(last)


def test_the_completeness_document_has_numbers_and_no_names() -> None:
    body = completeness(SPEC, DaySummary(10, "0" * 64, (), 0, 2), MANIFEST)
    validator_for("completeness").check(body)
    assert body["reconciliation"]["aaa"]["read"] == 12
    assert b"somebody" not in canonical(body)
    assert body["metadata"]["type"] == "data_aggregation_completeness"


@given(VALUES)
def test_canonical_json_is_read_back_as_it_was(value: object) -> None:
    assert json.loads(canonical(value)) == value


@given(st.dictionaries(TEXTS, VALUES), st.randoms())
def test_canonical_json_does_not_depend_on_the_order_of_keys(
    value: dict[str, object], chance: random.Random
) -> None:
    items = list(value.items())
    chance.shuffle(items)
    assert canonical(dict(items)) == canonical(value)


@given(st.text())
def test_any_text_is_either_utf8_or_refused(text: str) -> None:
    try:
        encoded = canonical(text)
    except BadDocument:
        assert any(0xD800 <= ord(letter) < 0xE000 for letter in text)
    else:
        assert json.loads(encoded.decode("utf-8")) == text


def test_documents_of_jobs_say_so_beside_the_count_of_other_documents() -> None:
    jobs = document(SPEC, row(1, stream="condor"))
    assert jobs["job_count"] == jobs["nacc"] == 3
    assert gone(SPEC, jobs)["job_count"] == 0
    assert "job_count" not in document(SPEC, row(1))
    for body in (jobs, gone(SPEC, jobs)):
        validator_for("data_aggregation").check(body)
