"""What settings keep out of documents: small numbers of users, and datasets whose names
carry accounts.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from cmsspark.publish.comparison import open_comparison
from cmsspark.publish.document_schemas import validator_for
from cmsspark.publish.documents import BadDocument, canonical, document, gone
from tests.publish.days import SPEC, row
from tests.publish.test_publish_command import Place

FEW = replace(SPEC, min_users=5)
ACCOUNT = "jdoe-Run2026A-crab_v1"


def user_row(number: int, **other: Any) -> dict[str, Any]:
    """A row of a dataset of the tier USER."""
    names = {"primary_name": f"P{number}", "processing_name": ACCOUNT, "data_tier": "USER"}
    return row(number, dataset_name=f"/P{number}/{ACCOUNT}/USER", **names, **other)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.parametrize(
    ("users", "is_withheld"), [(0, False), (1, True), (4, True), (5, False), (6, False)]
)
def test_fewer_users_than_the_threshold_are_withheld_and_the_document_says_so(
    users: int, is_withheld: bool
) -> None:
    made = document(FEW, row(1, distinct_users=users))
    validator_for("data_aggregation").check(made)
    assert made.get("is_distinct_users_withheld", False) is is_withheld
    assert ("distinct_users" in made) is not is_withheld
    plain = document(SPEC, row(1, distinct_users=users))
    assert made["metadata"] == plain["metadata"]
    assert plain["distinct_users"] == users and "is_distinct_users_withheld" not in plain


def test_a_row_without_users_is_still_no_document() -> None:
    with pytest.raises(BadDocument, match="distinct_users"):
        document(SPEC, row(1, distinct_users=None))


def test_withholding_sends_the_documents_that_change_and_completeness_fits_what_is_sent(
    place: Place,
) -> None:
    place.store([row(1, distinct_users=2), row(2, distinct_users=9)])
    place.publish()
    before = place.spooled("state/published")
    assert place.publish(settings="publishing: {min_distinct_users: 5}\n").returncode == 0
    _, _, _, changed, last = place.spooled("state/published")
    assert changed["is_distinct_users_withheld"] is True and "distinct_users" not in changed
    assert changed["metadata"] == before[0]["metadata"]
    assert last["document_count"] == 2
    assert last["digest"] != before[2]["digest"]
    assert "left_out_count" not in last


def test_user_datasets_are_left_out_and_counted(place: Place) -> None:
    place.store([row(1), user_row(2), user_row(3)])
    done = place.publish(settings="publishing: {user_datasets: false}\n")
    assert done.returncode == 0, done.stderr
    assert "left out, of the tier USER, or read by EOS itself: 2" in done.stdout
    *documents, last = place.spooled("state/published")
    assert [body["dataset_name"] for body in documents] == [row(1)["dataset_name"]]
    assert (last["document_count"], last["left_out_count"]) == (1, 2)
    validator_for("completeness").check(last)
    files = [file for file in (place.folder / "state").rglob("*") if file.is_file()]
    assert not any(ACCOUNT.encode() in file.read_bytes() for file in files)
    assert (
        ACCOUNT
        not in place.publish("--dry-run", settings="publishing: {user_datasets: false}\n").stdout
    )


def test_user_datasets_published_before_are_sent_as_gone_without_their_names(place: Place) -> None:
    place.store([row(1), user_row(2)])
    place.publish()
    old = next(
        body for body in place.spooled("state/published") if body.get("data_tier") == "USER"
    )
    place.publish(settings="publishing: {user_datasets: false}\n")
    new = place.spooled("state/published")[-2]
    assert new["metadata"] == old["metadata"]
    assert new["is_gone"] is True and new["nacc"] == 0
    assert ACCOUNT not in json.dumps(new)
    validator_for("data_aggregation").check(new)
    assert gone(SPEC, old)["dataset_name"] == old["dataset_name"]


def test_a_snapshot_made_before_the_setting_is_not_continued_after_it(place: Place) -> None:
    place.store([row(1), user_row(2)])
    dead = place.credentials(1)
    settings = "publishing: {patience: 0.1}\n"
    assert place.publish("--amq", dead, settings=settings).returncode == 75
    private = "publishing: {patience: 0.1, user_datasets: false, min_distinct_users: 5}\n"
    assert place.publish("--amq", dead, settings=private).returncode == 75
    snapshots = sorted((place.folder / "state" / "outbox").glob("*/*/*/g*"))
    assert len(snapshots) == 2
    assert not any(ACCOUNT.encode() in part.read_bytes() for part in snapshots[1].glob("part-*"))


@pytest.mark.parametrize(
    "value", ["min_distinct_users: 1", "min_distinct_users: many", "user_datasets: 3"]
)
def test_wrong_values_of_the_settings_are_78(place: Place, value: str) -> None:
    place.store([row(1)])
    assert place.publish(settings=f"publishing: {{{value}}}\n").returncode == 78


def test_a_comparison_expects_what_is_published_with_these_settings(tmp_path: Path) -> None:
    spec = replace(SPEC, min_users=5, has_user_datasets=False)
    with open_comparison(tmp_path, spec) as comparison:
        comparison.expect([row(1), user_row(2)], False)
        assert comparison._summary["document_count"] == 1
        kept = canonical(document(spec, row(1)))
        assert b"distinct_users" in kept and b'"distinct_users":' not in kept
