"""The one shape that crosses the house."""

from __future__ import annotations

from cmsspark import access
from cmsspark.access import AccessBatch, Remote


def test_the_bins_are_those_of_a_reconciliation_and_each_is_decided_in_one_place() -> None:
    assert set(access.DECODER_BINS).isdisjoint(access.CATALOGUE_BINS)
    assert set(access.UNMATCHED_BINS) < {*access.DECODER_BINS, *access.CATALOGUE_BINS}
    assert access.STREAMS == ("aaa", "eos", "cmssw", "crab")


def test_remoteness_folds_as_a_small_number() -> None:
    assert len({Remote.NO, Remote.YES, Remote.UNKNOWN, Remote.BY_REPLICA}) == 4


def test_batches_share_nothing() -> None:
    one, other = AccessBatch(), AccessBatch()
    one.lfns.append("/store/a")
    one.out_of_day[5] = 1
    assert other == AccessBatch()
