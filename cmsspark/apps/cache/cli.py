"""``cmsspark cache``: what a cache would have missed, by policy and size, and how large
a site's cache has to be.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click import option

from cmsspark.base import extras
from cmsspark.base.errors import InputMissing, UsageError
from cmsspark.base.periods import Period
from cmsspark.base.text.terminal import echo_list, echo_table, percent, volume
from cmsspark.cli.options import SITE, CommandGroup, FiniteRange, require_store, store_options
from cmsspark.cli.period_options import load_days, needed, period_options
from cmsspark.settings.settings import load_settings

if TYPE_CHECKING:
    from cmsspark.apps.cache.replay import Comparison
    from cmsspark.apps.cache.trace import Trace

#: Sizes that a comparison has without ``--size``, as shares of the footprint.
_SHARES: Final = ("5%", "10%", "20%", "30%", "50%")
#: Policies without ``--policy``: those of files, and of stored days.
_FILE_POLICIES: Final = ("lru", "sieve", "s3fifo", "gdsf", "slru", "2q")
POLICIES: Final = (*_FILE_POLICIES, "learned")


seed_option = option("--seed", type=int, default=0, help="Seed of the order within a stored day.")
bound_option = option(
    "--bound", is_flag=True, help="Compute the bound, too, which sorts all requests."
)
policies_option = option(
    "--policy",
    "policies",
    multiple=True,
    help=f"Policy; repeatable. [default: {', '.join(POLICIES)}; learned is for stored days only]",
)
_json = option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group("cache", cls=CommandGroup, context_settings={"show_default": True})
def command() -> None:
    """Replay traces through caches of given sizes: policies, bounds, and the size that
    a site needs. Needs cmsspark[cache].

    A trace is a file (CSV or Parquet with the columns time, object and size;
    libCacheSim's oracleGeneral, plain or .zst), or, without a file, stored days: which
    datasets were read where, with sizes from the table dbs_events.
    """


def _trace_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for decorate in (
        seed_option,
        option(
            "--site",
            type=SITE,
            help="Requests at this site. [default: all sites, as if they shared one cache]",
        ),
        click.argument("file", required=False, type=click.Path(path_type=Path)),
    ):
        function = decorate(function)
    return store_options(period_options(function))


def _trace(
    policies: tuple[str, ...],
    file: Path | None,
    site: str | None,
    seed: int,
    period: Period | None,
    fout: str | None,
    settings_file: str | None,
) -> Trace:
    """Return the trace of a file or of stored days, with what was left out on stderr."""
    extras.require("replays need", "numba", extra="cache")
    from cmsspark.apps.cache.replay import LEARNED, check_policies
    from cmsspark.apps.cache.trace import read_trace, site_traces

    check_policies(policies)
    if file is not None:
        if site or period or fout:
            raise UsageError(
                "a file excludes --site, a period and --fout", next_step="give only one of them"
            )
        if LEARNED in policies:
            raise UsageError(
                f"the policy {LEARNED} is not for files: it learns from days of datasets",
                next_step="give stored days, or other policies: cmsspark cache policies",
            )
        trace = read_trace(file)
    else:
        chosen = needed(period, "the FILE of a trace")
        store = require_store(fout, load_settings(settings_file))
        trace = site_traces(load_days(store, chosen, "cmsspark cache")).select(site, seed=seed)
        if not len(trace.objects):
            where = f" at {site}" if site else ""
            raise InputMissing(
                f"no request{where} has a size in dbs_events", next_step="run_spark dbs_events"
            )
    dropped = ", ".join(f"{count:,} ({reason})" for reason, count in trace.dropped.items())
    size, objects = volume(trace.footprint), len(trace.sizes)
    if trace.reads is not None:
        text = (
            f"{trace.reads.sum():,} reads on {len(trace.objects):,} days of {objects:,} "
            f"datasets, {size}: the reads of a dataset on a day follow each other, each takes "
            "the whole dataset"
        )
    else:
        text = f"{len(trace.objects):,} requests of {objects:,} objects, {size}"
    had, missed = trace.recorded or (0, 0)
    if served := had + missed:
        text += f"; the caches themselves missed {percent(missed / served)} of {volume(served)}"
    click.echo(text + (f"; left out: {dropped}" if dropped else ""), err=True)
    if trace.resized:
        click.echo(
            f"{trace.resized:,} requests name another size than the object's first one, which holds",
            err=True,
        )
    return trace


@command.command("compare")
@_trace_options
@policies_option
@option(
    "--size",
    "size_texts",
    multiple=True,
    metavar="SIZE",
    help="Size, such as 500GB, 1.5TB or 20%; repeatable. [default: 5 to 50%]",
)
@bound_option
@_json
def compare_command(
    policies: tuple[str, ...],
    size_texts: tuple[str, ...],
    as_json: bool,
    bound: bool,
    **source: Any,
) -> None:
    """Compare policies with LRU and, with --bound, with a bound that no policy beats.

    Example: cmsspark cache compare --site T2_DE_DESY --month last --policy lru --size 20%
    """
    policies = policies or (POLICIES if source["file"] is None else _FILE_POLICIES)
    trace = _trace(policies, **source)
    from cmsspark.apps.cache.replay import Simulation, parse_size

    capacities = [parse_size(text, trace.footprint) for text in size_texts or _SHARES]
    comparisons = Simulation(trace).compare(policies, capacities, with_bound=bound)
    # The fewest missed bytes of each size; of equals the first.
    best: dict[int, Comparison] = {}
    rows = []
    for comparison in comparisons:
        replay, least = comparison.replay, comparison.least_missed_bytes
        size = volume(replay.capacity)
        if replay.scored_share is not None and replay.scored_share < 1:
            text = f"LRU decided before {percent(1 - replay.scored_share)} of the requests"
            click.echo(
                f"{replay.policy} at {size}: {text}, as scores had not paid until then", err=True
            )
        so_far = best.setdefault(replay.capacity, comparison)
        if replay.missed_bytes < so_far.replay.missed_bytes:
            best[replay.capacity] = comparison
        floor = None if least is None else percent(least / replay.requested_bytes)
        gap = None if comparison.gap_closed is None else f"{comparison.gap_closed:.0%}"
        misses = (percent(replay.byte_miss_ratio), percent(replay.miss_ratio))
        rows.append((replay.policy, size, *misses, f"{comparison.against_lru:+.1%}", gap, floor))
    if as_json:
        documents = [
            {**comparison.as_dict(), "is_best": best[comparison.replay.capacity] is comparison}
            for comparison in comparisons
        ]
        click.echo(json.dumps(documents, indent=1))
        return
    headings: tuple[str, ...] = ("policy", "cache", "byte misses", "request misses", "against LRU")
    headings += ("gap closed", "bound") if bound else ()
    count = len(headings)
    echo_table(headings, [row[:count] for row in rows], optional=(3, 5) if bound else (3,))
    for comparison in best.values() if len(policies) > 1 else ():
        replay, lead = comparison.replay, f"{comparison.against_lru:+.1%} against LRU"
        misses_text = f"{percent(replay.byte_miss_ratio)} byte misses"
        click.echo(f"best at {volume(replay.capacity)}: {replay.policy}, {misses_text}, {lead}")


@command.command("size")
@_trace_options
@option(
    "--target", type=FiniteRange(0, 1), required=True, help="Byte misses to reach, such as 0.2."
)
@option("--policy", default="lru", help="Policy; cmsspark cache policies lists them.")
@_json
def size_command(target: float, policy: str, as_json: bool, **source: Any) -> None:
    """Print the least cache whose byte misses stay within a target, to a hundredth.

    Example: cmsspark cache size --site T2_DE_DESY --month last --target 0.2
    """
    trace = _trace((policy,), **source)
    from cmsspark.apps.cache.replay import least_capacity

    capacity = least_capacity(trace, target, policy)
    if as_json:
        click.echo(json.dumps({"policy": policy, "target": target, "bytes": capacity}))
    elif capacity is None:
        click.echo(f"no cache reaches {percent(target)}: first requests alone are more")
    else:
        share = percent(capacity / trace.footprint)
        click.echo(f"{volume(capacity)} by {policy}, {share} of all objects")


@command.command("policies")
def policies_command() -> None:
    """List the policies with a line each."""
    from cmsspark.apps.cache.replay import ABOUT

    echo_list(("policy", "evicts"), ABOUT)
