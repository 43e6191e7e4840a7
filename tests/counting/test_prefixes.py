"""Where unmatched files lie is told by words that name nobody."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cmsspark.counting import reconciliation
from cmsspark.counting.pre_aggregate import unmatched_bin
from cmsspark.counting.reconciliation import KEPT, OTHER


@pytest.mark.parametrize(
    ("lfn", "wanted"),
    [
        ("/store/user/jdoe/x.root", "/store/user/*"),
        ("/store/user/x.root", "/store/user/*"),
        ("/store/group/phys_higgs/jdoe/x.root", "/store/group/*"),
        ("/store/temp/user/jdoe.abc/x.root", "/store/temp/*"),
        ("/store/mc/RunIISummer20UL18/TTTo2L/AOD/x.root", "/store/mc/RunIISummer20UL18/*"),
        ("/store/data/Run2018A/x.root", "/store/data/Run2018A/*"),
        ("/store/data/Run2018A", "/store/data/*"),
        ("/store/mc/jdoe/x.root", "/store/mc/*"),
        ("/store/mc/jdoe2/x.root", "/store/mc/*"),
        ("/store/mc/Doe/x.root", "/store/mc/*"),
        ("/store/mc/R1\n<script>/x.root", "/store/mc/*"),
        ("/store/unmerged/user/Jdoe1/x.root", "/store/unmerged/*"),
        ("/store/results/Jdoe1/x.root", "/store/results/*"),
        ("/store/jdoe/x.root", "/store/*"),
        ("/store/x.root", "/store/*"),
        ("/home/jdoe/x.root", "*"),
        ("/user/jdoe/x.root", "*"),
        ("store/mc/Run2018A/x.root", "*"),
        ("x.root", "*"),
        ("//store/user/x", "*"),
    ],
)
def test_a_prefix_ends_before_any_word_that_may_name_a_person(lfn: str, wanted: str) -> None:
    ((head, count),) = reconciliation.heads([lfn]).items()
    assert (reconciliation.shown(head), count) == (wanted, 1)


_WORDS = st.sampled_from(["", "store", "user", "group", "mc", "jdoe", "planted", "temp", "home"])


@given(st.lists(_WORDS, max_size=7).map("/".join))
def test_names_never_show_wherever_they_stand(lfn: str) -> None:
    told = "".join(reconciliation.shown(head) for head in reconciliation.heads([lfn]))
    assert "jdoe" not in told
    assert "planted" not in told


@given(st.lists(_WORDS | st.sampled_from(["unmerged", "Run2018A"]), max_size=7).map("/".join))
def test_a_prefix_tells_the_bin_of_its_names_and_stays_as_it_is(lfn: str) -> None:
    (told,) = reconciliation.all_shown([lfn])
    assert unmatched_bin(told) == unmatched_bin(lfn)
    assert reconciliation.shown(told) == told


def test_a_task_keeps_so_many_prefixes_and_counts_the_rest() -> None:
    kept: Counter[str] = Counter()
    lfns = [f"/store/mc/Run{number}/x" for number in range(KEPT + 7)] * 2
    reconciliation.add(kept, reconciliation.heads(lfns))
    assert len(kept) == KEPT + 1
    assert kept[OTHER] == 14
    assert kept.total() == len(lfns)
