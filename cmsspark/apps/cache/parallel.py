"""Comparisons of many caches in parallel: sites × sizes × policies, one Spark task each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from cmsspark.apps.cache.replay import Simulation, check_policy
from cmsspark.apps.cache.trace import Trace
from cmsspark.engines.parallel_tasks import run_pieces

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The site that stands for all sites together.
ALL: Final = "all"


def compare_sites(
    traces: Mapping[str, Trace], policies: Sequence[str], shares: Sequence[float], spark: SparkSession | None = None,
    *, with_bound: bool = False,
) -> list[dict[str, Any]]:  # fmt: skip
    """Return a row for each site, size and policy, in this order: the columns of
    ``schemas/tables/cache_comparison.yaml`` without the period. ``shares``: sizes as shares of each site's footprint.

    Raises UsageError (2) for an unknown policy.
    """
    for name in policies:
        check_policy(name)
    pieces = [(site, share, policy, with_bound) for site in sorted(traces) for share in shares for policy in policies]
    return run_pieces(_compare, dict(traces), pieces, spark)


def _compare(traces: Mapping[str, Trace], piece: tuple[str, float, str, bool]) -> dict[str, Any]:
    site, share, policy, with_bound = piece
    trace = traces[site]
    capacity = max(int(trace.footprint * share), 1)
    found = Simulation(trace).compare([policy], [capacity], threads=1, with_bound=with_bound)[0]
    least = found.least_missed_bytes
    replay = found.replay
    return {
        "site_name": site,
        "policy": policy,
        "capacity_share": share,
        "capacity_bytes": capacity,
        "footprint_bytes": int(trace.footprint),
        "request_count": replay.requests,
        "missed_count": replay.misses,
        "compulsory_count": replay.compulsory,
        "bypassed_count": replay.bypassed,
        "requested_bytes": replay.requested_bytes,
        "missed_bytes": replay.missed_bytes,
        "lru_missed_bytes": found.lru.missed_bytes,
        # The bound is a fraction of the last object: a whole number of bytes below it.
        "least_missed_bytes": None if least is None else math.floor(least),
    }
