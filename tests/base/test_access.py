"""The one shape that crosses the house."""

from __future__ import annotations

from cmsspark.base import access
from cmsspark.base.access import AccessBatch, Remote
from cmsspark.counting.reconciliation import StreamBins


def test_the_unmatched_bins_are_those_of_a_reconciliation() -> None:
    assert set(StreamBins().as_dict()["unmatched"]) == set(access.UNMATCHED_BINS)


def test_remoteness_folds_as_a_small_number() -> None:
    assert len({Remote.NO, Remote.YES, Remote.UNKNOWN, Remote.BY_REPLICA}) == 4


def test_batches_share_nothing() -> None:
    one, other = AccessBatch(), AccessBatch()
    one.lfns.append("/store/a")
    one.out_of_day[5] = 1
    assert other == AccessBatch()
