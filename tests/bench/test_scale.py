"""The model of large days: more nodes never take longer, larger days never less, and
the measured days fit.
"""

from __future__ import annotations

import pytest

from bench import scale
from bench.scale import PAPER, Cluster, estimate


@pytest.mark.parametrize("join", ["index", "shuffle"])
def test_more_nodes_are_not_slower_and_more_records_not_quicker(join: str) -> None:
    times = [estimate(PAPER, Cluster(nodes), join)[0] for nodes in (10, 50, 200)]
    assert times == sorted(times, reverse=True)
    large = PAPER.times(10, "large")
    assert all(
        estimate(large, Cluster(nodes), join)[0] > estimate(PAPER, Cluster(nodes), join)[0]
        for nodes in (10, 200)
    )


def test_an_index_from_the_driver_binds_large_clusters() -> None:
    found = scale.phases(PAPER, Cluster(200), "index", is_shared=False)
    shared = scale.phases(PAPER, Cluster(200), "index")
    assert found["index is fetched"] > 20 * shared["index is fetched"]


def test_the_model_is_within_a_quarter_of_the_days_that_were_measured() -> None:
    for line in scale.checks():
        assert 0.75 < float(line[-1]) < 1.25, line
