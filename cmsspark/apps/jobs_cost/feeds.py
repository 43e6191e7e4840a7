"""The two feeds of what jobs cost: HTCondor and WMArchive, each with its aggregator,
its merge and its tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any, Final

from cmsspark.apps.jobs_cost import tables
from cmsspark.apps.jobs_cost.cost_records import CostAggregator
from cmsspark.apps.jobs_cost.cost_sums import CostSums
from cmsspark.apps.jobs_cost.feed_rows import EarlierIds, FeedAggregator
from cmsspark.apps.jobs_cost.hpc_sites import HpcSites
from cmsspark.apps.jobs_cost.report_sums import ReportAggregator, ReportSums

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Feed:
    """A feed. ``name``: in the registry; ``source``: in ``etc/sources.yaml``; ``ids``:
    the table for the next day.

    ``build(sums, day, hpc_sites, meanings)`` makes the tables; ``bins(sums)`` counts records that
    the merge bins; ``check(sums, day)`` returns entries of the manifest and warnings.
    """

    job: str
    name: str
    source: str
    ids: str
    aggregator: type[FeedAggregator]
    new_sums: Callable[[], Any]
    build: Callable[[Any, date, HpcSites, Mapping[str, str]], dict[str, pa.Table]]
    bins: Callable[[Any], dict[str, int]]
    check: Callable[[Any, date], tuple[dict[str, Any], list[str]]]


@dataclass(frozen=True)
class MakeAggregator:
    """Makes the aggregators of a task. It is pickled and sent to the workers."""

    kind: type[FeedAggregator]

    def __call__(self, stream: str, is_earlier: bool) -> FeedAggregator:
        return EarlierIds(stream) if is_earlier else self.kind(stream)


CONDOR: Final = Feed(
    "job_efficiency",
    "condor_costs",
    "condor",
    "job_cost_ids",
    CostAggregator,
    CostSums,
    tables.cost_tables,
    lambda sums: {"matched": sums.counted, "repeated": sums.repeated},
    tables.cost_checks,
)
WMARCHIVE: Final = Feed(
    "step_efficiency",
    "wmarchive",
    "wmarchive",
    "report_ids",
    ReportAggregator,
    ReportSums,
    lambda sums, day, hpc_sites, meanings: tables.report_tables(sums, day),
    lambda sums: {"matched": sums.matched, "no_cmsrun": sums.no_cmsrun, "repeated": sums.repeated},
    tables.report_checks,
)
#: Job → the feed that it counts.
FEEDS: Final = {feed.job: feed for feed in (CONDOR, WMARCHIVE)}
