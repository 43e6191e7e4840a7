"""``cmsspark cache``: what a cache would have missed, by policy and size, and how large
a site's cache has to be.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from cmsspark.base import extras
from cmsspark.base.errors import DataError, InputMissing, UsageError
from cmsspark.base.periods import Period
from cmsspark.base.text.terminal import echo_list, echo_table, percent, volume
from cmsspark.cli.options import (
    SITE,
    CommandGroup,
    FiniteRange,
    require_store,
    store_options,
    write_text,
)
from cmsspark.cli.period_options import load_days, needed, period_options
from cmsspark.settings.settings import load_settings

if TYPE_CHECKING:
    from cmsspark.apps.cache.replay import Comparison
    from cmsspark.apps.cache.trace import Trace
    from cmsspark.base.arrays import Array

#: Sizes that a comparison has without ``--size``, as shares of the footprint.
_SHARES: Final = ("5%", "10%", "20%", "30%", "50%")
POLICIES: Final = ("lru", "sieve", "s3fifo", "gdsf", "slru", "2q", "learned")
#: Without ``--policy`` on files: what ``learned`` knows is days of datasets.
_FILE_POLICIES: Final = POLICIES[:-1]
#: Days times objects that can be forecast: four measures of so many take 3 GB.
_MOST_CELLS: Final = 100_000_000


_scores = click.option(
    "--scores",
    type=click.Choice(["trace", "forecast"]),
    default="trace",
    show_default=True,
    help="Scores of learned and protected: of the trace's past days, or the weekly forecast of cmsspark popularity.",
)
seed_option = click.option(
    "--seed", type=int, default=0, show_default=True, help="Seed of the order within a stored day."
)
bound_option = click.option(
    "--bound", is_flag=True, help="Compute the bound, too, which sorts all requests."
)
_policy = click.option(
    "--policy",
    default="lru",
    show_default=True,
    help="Policy; cmsspark cache policies lists them.",
)
policies_option = click.option(
    "--policy",
    "policies",
    multiple=True,
    help=f"Policy; repeatable. [default: {', '.join(POLICIES)}; not learned on a file]",
)
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group("cache", cls=CommandGroup)
def command() -> None:
    """Replay traces through caches of given sizes: policies, bounds, and the size that
    a site needs. Needs cmsspark[cache].

    A trace is a file (CSV or Parquet with the columns time, object and size;
    libCacheSim's oracleGeneral, plain or .zst), or, without a file, stored days: which
    datasets were read where, with sizes from the table dbs_events.
    """


def _trace_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        seed_option,
        click.option(
            "--site",
            type=SITE,
            help="Requests at this site. [default: all sites, as if they shared one cache]",
        ),
        click.option(
            "--sample",
            type=FiniteRange(0, 1, min_open=True),
            default=1.0,
            help="Share of a file's objects to replay, for traces larger than memory. Sizes are scaled.",
        ),
        click.argument("file", required=False, type=click.Path(path_type=Path)),
    ):
        function = option(function)
    return store_options(period_options(function))


def _trace(
    file: Path | None,
    sample: float,
    site: str | None,
    seed: int,
    period: Period | None,
    fout: str | None,
    settings_file: str | None,
) -> Trace:
    """Return the trace of a file or of stored days, with what was left out on stderr."""
    from cmsspark.apps.cache.trace import read_trace

    extras.require("replays need", "numba", extra="cache")
    if file is not None:
        if site or period or fout:
            raise UsageError(
                "a file excludes --site, a period and --fout", next_step="give only one of them"
            )
        trace = read_trace(file, sample=sample)
    else:
        if sample < 1:
            raise UsageError(
                "--sample is for files", next_step="leave it out: stored days fit into memory"
            )
        chosen = needed(period, "the FILE of a trace")
        store = require_store(fout, load_settings(settings_file))
        from cmsspark.apps.cache.stored import site_traces

        trace = site_traces(load_days(store, chosen, "cmsspark cache")).select(site, seed=seed)
        if not len(trace.objects):
            where = f" at {site}" if site else ""
            raise InputMissing(
                f"no request{where} has a size in dbs_events", next_step="run_spark dbs_events"
            )
    dropped = ", ".join(f"{count:,} ({reason})" for reason, count in trace.dropped.items())
    click.echo(_describe(trace) + (f"; left out: {dropped}" if dropped else ""), err=True)
    if trace.resized:
        click.echo(
            f"{trace.resized:,} requests name another size than the object's first one, which holds",
            err=True,
        )
    return trace


def _describe(trace: Trace) -> str:
    """Return what a request is, how many there are, and what the caches recorded."""
    size = volume(trace.footprint)
    if trace.reads is not None:
        days = f"{len(trace.objects):,} days of {len(trace.sizes):,} datasets, {size}"
        return (
            f"{trace.request_count:,} reads on {days}: the reads of a dataset on a day follow "
            "each other, each takes the whole dataset"
        )
    text = f"{len(trace.objects):,} requests of {len(trace.sizes):,} objects, {size}"
    had, missed = trace.recorded or (0, 0)
    if served := had + missed:
        share = percent(missed / served)
        text += f"; the caches themselves missed {share} of {volume(served)}"
    return text


@command.command("replay")
@_trace_options
@_policy
@click.option(
    "--size", "size_text", required=True, metavar="SIZE", help="Size, such as 500GB, 1.5TB or 20%."
)
@_scores
@bound_option
@_json
def replay_command(
    policy: str, size_text: str, as_json: bool, scores: str, bound: bool, **source: Any
) -> None:
    """Replay one policy at one size."""
    _compare((policy,), (size_text,), as_json, scores, bound, **source)


@command.command("compare")
@_trace_options
@policies_option
@click.option(
    "--size",
    "size_texts",
    multiple=True,
    metavar="SIZE",
    help="Size; repeatable. [default: 5 to 50%]",
)
@_scores
@bound_option
@_json
def compare_command(
    policies: tuple[str, ...],
    size_texts: tuple[str, ...],
    as_json: bool,
    scores: str,
    bound: bool,
    **source: Any,
) -> None:
    """Compare policies with LRU and, with --bound, with a bound that no policy beats."""
    default = POLICIES if source["file"] is None else _FILE_POLICIES
    _compare(policies or default, size_texts or _SHARES, as_json, scores, bound, **source)


def _compare(
    policies: tuple[str, ...],
    size_texts: tuple[str, ...],
    as_json: bool,
    scores: str,
    bound: bool,
    **source: Any,
) -> None:
    from cmsspark.apps.cache.replay import check_policies, sampling_error

    check_policies(policies)
    trace = _trace(**source)
    comparisons = _comparisons(trace, policies, size_texts, scores, bound)
    _echo_fallbacks(comparisons, trace)
    best = _best(comparisons)
    if as_json:
        documents = [
            {**_scaled(comparison.as_dict(), trace.sample), "is_best": comparison in best}
            for comparison in comparisons
        ]
        click.echo(json.dumps(documents, indent=1))
        return
    rows = []
    for comparison in comparisons:
        replay = comparison.replay
        least = comparison.least_missed_bytes
        floor = None if least is None else percent(least / replay.requested_bytes)
        gap = None if comparison.gap_closed is None else f"{comparison.gap_closed:.0%}"
        size = volume(replay.capacity / trace.sample)
        misses = (percent(replay.byte_miss_ratio), percent(replay.miss_ratio))
        rows.append((replay.policy, size, *misses, f"{comparison.against_lru:+.1%}", gap, floor))
    headings = (
        "policy",
        "cache",
        "byte misses",
        "request misses",
        "against LRU",
        "gap closed",
        "bound",
    )
    count = len(headings) if bound else len(headings) - 2
    echo_table(headings[:count], [row[:count] for row in rows], optional=(3, 5) if bound else (3,))
    for comparison in best if len(policies) > 1 else ():
        replay, lead = comparison.replay, f"{comparison.against_lru:+.1%} against LRU"
        size = volume(replay.capacity / trace.sample)
        click.echo(
            f"best at {size}: {replay.policy}, {percent(replay.byte_miss_ratio)} byte misses, {lead}"
        )
    if trace.sample < 1:
        replays = [comparison.replay for comparison in comparisons]
        errors = [sampling_error(trace, replay.policy, replay.capacity) for replay in replays]
        is_unknown = any(map(math.isnan, errors))
        worst = (
            "unknown, too few or too large objects"
            if is_unknown
            else f"at most {percent(max(errors))}"
        )
        share = percent(trace.sample)
        click.echo(
            f"from a sample of {share} of the objects; standard error of the byte misses: {worst}"
        )


def _best(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Return the comparison with the fewest missed bytes of each size; of equals the first."""
    best: dict[int, Comparison] = {}
    for comparison in comparisons:
        entry = best.setdefault(comparison.replay.capacity, comparison)
        if comparison.replay.missed_bytes < entry.replay.missed_bytes:
            best[comparison.replay.capacity] = comparison
    return list(best.values())


def _describe_too_large(trace: Trace, policies: Sequence[str], capacities: Sequence[int]) -> str:
    """Return where a sample is too small for its objects, as a sentence; empty where it is not."""
    from cmsspark.apps.cache.replay import too_large_share

    if trace.sample == 1:
        return ""
    shares = {
        (policy, size): too_large_share(trace, policy, size)
        for policy in policies
        for size in capacities
    }
    policy, size = max(shares, key=lambda pair: shares[pair])
    share, cache = percent(shares[policy, size]), f"{policy} at {volume(size / trace.sample)}"
    reason = "admits to the whole cache and not to its share in the sample"
    text = f"{share} of the requests are of objects that {cache} {reason}: misses are too high; give a larger --sample"
    return text if shares[policy, size] else ""


def _echo_fallbacks(comparisons: list[Comparison], trace: Trace) -> None:
    """Say where a policy with scores did as LRU does."""
    for comparison in comparisons:
        share = comparison.replay.scored_share
        if share is not None and share < 1:
            size = volume(comparison.replay.capacity / trace.sample)
            text = f"{comparison.replay.policy} at {size}: LRU decided before {percent(1 - share)} of the requests"
            click.echo(f"{text}, as scores had not paid until then", err=True)


def _comparisons(
    trace: Trace, policies: tuple[str, ...], size_texts: tuple[str, ...], scores: str, bound: bool
) -> list[Comparison]:
    from cmsspark.apps.cache.replay import WITH_SCORES, Simulation
    from cmsspark.apps.cache.sizes import parse_size

    # Sizes are those of the whole trace; a sample is replayed in its share of them.
    footprint = round(trace.footprint / trace.sample)
    capacities = [max(int(parse_size(text, footprint) * trace.sample), 1) for text in size_texts]
    if text := _describe_too_large(trace, policies, capacities):
        click.echo(text, err=True)
    values = None
    if scores == "forecast":
        if not set(policies) & set(WITH_SCORES):
            raise UsageError(
                "--scores forecast needs a policy with scores",
                next_step=f"{', '.join(WITH_SCORES)}",
            )
        values = forecast_scores(trace)
    return Simulation(trace, scores=values).compare(policies, capacities, with_bound=bound)


def forecast_scores(trace: Trace) -> Array:
    """Return float64 [days, objects]: the probability of a request in the week from
    each seventh day on, by the model of ``cmsspark popularity``, from the days before
    that day; NaN for objects without a request before it, and on days before which
    there are too few to learn from.

    Raises DataError (65) where the trace has too few days, or too many objects.
    """
    import numpy as np

    from cmsspark.apps.cache.forecast import DAY_MS, number_days
    from cmsspark.apps.popularity.fitting import raw_forecast
    from cmsspark.apps.popularity.series import MEASURES, Series
    from cmsspark.apps.popularity.training import FIRST_DAY, Label, Weeks

    periods, count = number_days(trace.times_ms), len(trace.sizes)
    day_count = int(periods[-1]) + 1
    label = Label(0)
    first_learned = FIRST_DAY + label.days
    if trace.names is None or day_count * count > _MOST_CELLS or day_count <= first_learned:
        raise DataError(
            "the forecast needs more days, or fewer objects",
            found=f"{day_count:,} days, {count:,} objects",
            next_step=f"give a trace of more than {first_learned} days, --sample 0.1, or leave out --scores forecast",
        )
    values = np.zeros((len(MEASURES), day_count, count))
    np.add.at(values[0], (periods, trace.objects), 1)
    start = date(1970, 1, 1) + timedelta(days=int(trace.times_ms[0] // DAY_MS))
    names = np.array([str(name) for name in trace.names.to_pylist()], object)
    order = np.argsort(names)
    days = tuple(start + timedelta(days=number) for number in range(day_count))
    series = Series(days, tuple(names[order].tolist()), np.ascontiguousarray(values[:, :, order]))
    weeks = Weeks(series, label)
    scores = np.full((day_count, count), np.nan)
    for day in range(first_learned, day_count, 7):
        scores[day : day + 7, order] = raw_forecast(weeks, day, "blend")
    return scores


def _scaled(row: dict[str, Any], sample: float) -> dict[str, Any]:
    return {**row, "capacity": round(row["capacity"] / sample), "sample": sample}


@command.command("report")
@_trace_options
@policies_option
@_scores
@bound_option
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), help="HTML file to write."
)
def report_command(
    policies: tuple[str, ...], output: Path, scores: str, bound: bool, **source: Any
) -> None:
    """Write a page with the miss-ratio curves of policies, and print its path."""
    from cmsspark.apps.cache.replay import check_policies
    from cmsspark.apps.cache.report import page
    from cmsspark.apps.cache.sizes import SHARES

    check_policies(policies)
    trace = _trace(**source)
    shares = tuple(f"{share:.0%}" for share in SHARES)
    chosen = policies or (POLICIES if source["file"] is None else _FILE_POLICIES)
    comparisons = _comparisons(trace, chosen, shares, scores, bound)
    name = (
        source["file"].name
        if source["file"] is not None
        else f"{source['site'] or 'all sites'}, {source['period']}"
    )
    about = f"{_describe(trace)}."
    if trace.sample < 1:
        about = f"From a sample of {percent(trace.sample)} of the objects: {about} Sizes of caches are for all objects."
        capacities = sorted({comparison.replay.capacity for comparison in comparisons})
        about = f"{about} {_describe_too_large(trace, chosen, capacities)}".rstrip()
    write_text(
        output,
        page(
            f"What a cache would miss: {name}", about, comparisons, trace.footprint, trace.sample
        ),
    )
    click.echo(output)


@command.command("size")
@_trace_options
@click.option(
    "--target", type=FiniteRange(0, 1), required=True, help="Byte misses to reach, such as 0.2."
)
@_policy
@_json
def size_command(target: float, policy: str, as_json: bool, **source: Any) -> None:
    """Print the least cache whose byte misses stay within a target.

    Example: cmsspark cache size --site T2_DE_DESY --month last --target 0.2
    """
    from cmsspark.apps.cache.replay import check_policies
    from cmsspark.apps.cache.sizes import least_capacity

    check_policies([policy])
    trace = _trace(**source)
    capacity = least_capacity(trace, target, policy)
    if capacity is not None:
        if text := _describe_too_large(trace, [policy], [capacity]):
            click.echo(text, err=True)
        capacity = round(capacity / trace.sample)
    if as_json:
        click.echo(json.dumps({"policy": policy, "target": target, "bytes": capacity}))
    elif capacity is None:
        click.echo(f"no cache reaches {percent(target)}: first requests alone are more")
    else:
        click.echo(
            f"{volume(capacity)} by {policy}, {percent(capacity * trace.sample / trace.footprint)} of all objects"
        )


@command.command("policies")
def policies_command() -> None:
    """List the policies with a line each."""
    from cmsspark.apps.cache.replay import ABOUT

    echo_list(("policy", "evicts"), ABOUT)
