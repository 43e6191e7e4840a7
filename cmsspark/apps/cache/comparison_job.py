"""``cache_comparison``: what caches of several sizes would have missed at each site in
a period, by policy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import click

from cmsspark.apps.cache.cli import POLICIES, bound_option, policies_option, seed_option
from cmsspark.base import extras
from cmsspark.base.errors import InputMissing
from cmsspark.base.periods import Period
from cmsspark.base.schemas import stored_table
from cmsspark.cli.options import (
    FiniteRange,
    output_options,
    print_outcome,
    require_store,
    store_options,
)
from cmsspark.cli.period_options import needed, period_options
from cmsspark.run.period_run import run_on_days, store_period, with_period
from cmsspark.settings.settings import load_settings
from cmsspark.store import results
from cmsspark.store import stored_days as stored
from cmsspark.store.own_jobs import Job, declare
from cmsspark.store.stored_days import StoredDays

if TYPE_CHECKING:
    import polars as pl
    from pyspark.sql import SparkSession

    from cmsspark.apps.cache.trace import Trace
    from cmsspark.settings.settings import Settings

NAME: Final = "cache_comparison"
JOB: Final = Job(
    NAME,
    "Misses of caches of several sizes at each site, by policy, one Spark task each",
    (NAME,),
    of_periods=True,
    module=__name__,
)
_SHARES: Final = (0.05, 0.1, 0.2, 0.3, 0.5)
#: The site that stands for all sites together.
_ALL: Final = "all"


@click.command(
    NAME,
    help=f"{JOB.about}. Exit codes: cmsspark help exit-codes.",
    context_settings={"show_default": True},
)
@period_options
@click.option(
    "--site",
    "sites",
    multiple=True,
    help="Only this site, or `all` together; repeatable. [default: each]",
)
@policies_option
@click.option(
    "--share",
    "shares",
    multiple=True,
    type=FiniteRange(0, 1, min_open=True),
    help="Size of the cache as a share of all bytes; repeatable. [default: 0.05, 0.1, 0.2, 0.3, 0.5]",
)
@bound_option
@seed_option
@store_options
@output_options
def command(
    period: Period | None,
    sites: tuple[str, ...],
    policies: tuple[str, ...],
    shares: tuple[float, ...],
    bound: bool,
    seed: int,
    fout: str | None,
    settings_file: str | None,
    as_json: bool,
) -> None:
    from cmsspark.apps.cache.replay import check_policies
    from cmsspark.engines.session import session

    check_policies(policies)
    settings, chosen = load_settings(settings_file), needed(period)
    store = require_store(fout, settings)
    spark = session(f"cmsspark {NAME}")
    options: dict[str, Any] = {"sites": sites, "with_bound": bound, "seed": seed}
    options |= {"policies": policies or POLICIES, "shares": shares or _SHARES}
    print_outcome(NAME, chosen, as_json, lambda: run(chosen, store, settings, spark, **options))


def run(
    period: Period,
    fout: str,
    settings: Settings,
    spark: SparkSession | None,
    *,
    sites: tuple[str, ...] = (),
    policies: tuple[str, ...] = POLICIES,
    shares: tuple[float, ...] = _SHARES,
    with_bound: bool = False,
    seed: int = 0,
    log: Callable[[str], None] | None = None,
) -> results.CurrentTable:
    """Make the table of a period and store it; on any failure the previous result
    stays. Without ``spark`` the caches are compared one after the other in this
    process.

    Raises InputMissing (66) where no day, no ``dbs_events`` or a site is not stored,
    DataError (65), NotReady (75), OutputError (73).
    """
    from cmsspark.apps.cache.replay import check_policies

    check_policies(policies)
    extras.require("replays need", "numba", extra="cache")
    begun = run_on_days(settings, fout, NAME, period, log, stored.find_days, allow_missing=True)
    with begun as (run_context, days):
        rows = build(days, sites, policies, shares, seed, spark, with_bound=with_bound)
        return store_period(run_context, days, {NAME: rows})


def build(
    days: StoredDays,
    sites: tuple[str, ...],
    policies: tuple[str, ...],
    shares: tuple[float, ...],
    seed: int,
    spark: SparkSession | None,
    *,
    with_bound: bool = False,
) -> pl.DataFrame:
    """Return ``schemas/tables/cache_comparison.yaml``: a row for each site, size and
    policy, one Spark task each.
    """
    import polars as pl

    from cmsspark.apps.cache.trace import site_traces
    from cmsspark.engines.worker_pool import map_tasks

    requests = site_traces(days)
    names = list(dict.fromkeys(sites)) or [
        *(name for name in requests.site_names if name != "unknown"),
        _ALL,
    ]
    traces = {name: requests.select(None if name == _ALL else name, seed=seed) for name in names}
    traces = {name: trace for name, trace in traces.items() if len(trace.objects)}
    if not traces:
        raise InputMissing(
            "no request of the period has a size in dbs_events", next_step="run_spark dbs_events"
        )
    pieces = [
        (site, share, policy, with_bound)
        for site in sorted(traces)
        for share in shares
        for policy in policies
    ]
    table = stored_table(NAME)
    rows = pl.DataFrame(
        map_tasks(_compare, traces, pieces, spark), schema=pl.Schema(table.arrow())
    )
    return with_period(rows, days.period).select(table.names)


def _compare(traces: Mapping[str, Trace], piece: tuple[str, float, str, bool]) -> dict[str, Any]:
    """Return the columns of a row without the period."""
    from cmsspark.apps.cache.replay import Simulation

    site, share, policy, with_bound = piece
    trace = traces[site]
    capacity = max(int(trace.footprint * share), 1)
    comparison = Simulation(trace).compare([policy], [capacity], threads=1, with_bound=with_bound)[
        0
    ]
    least, replay = comparison.least_missed_bytes, comparison.replay
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
        "lru_missed_bytes": comparison.lru.missed_bytes,
        # The bound is a fraction of the last object: a whole number of bytes below it.
        "least_missed_bytes": None if least is None else math.floor(least),
    }


declare(JOB, lambda: command)
