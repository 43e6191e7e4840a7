"""The one shape that crosses the house."""

from __future__ import annotations

from cmsspark import access
from cmsspark.access import AccessBatch, Remote


def test_the_parts_of_unmatched_are_those_of_rule_4() -> None:
    assert access.UNMATCHED_BINS == ("no_lfn", "user_file", "temporary", "not_in_dbs")


def test_remoteness_folds_as_a_small_number() -> None:
    assert len({Remote.NO, Remote.YES, Remote.UNKNOWN, Remote.BY_REPLICA}) == 4


def test_batches_share_nothing() -> None:
    one, other = AccessBatch(), AccessBatch()
    one.lfns.append("/store/a")
    one.out_of_day[5] = 1
    assert other == AccessBatch()
