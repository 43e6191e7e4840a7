"""``cmsspark placement``: which copies of datasets to make, which can go, and what such
plans would have served.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click import IntRange, option
from msgspec.structs import replace

from cmsspark.base import dates
from cmsspark.base.errors import CmssparkError, UsageError
from cmsspark.base.periods import Period
from cmsspark.base.text.sizes import parse_bytes
from cmsspark.base.text.terminal import echo_table, percent, pluralize, volume
from cmsspark.cli.options import (
    CommandGroup,
    FiniteRange,
    check_table_path,
    store_options,
    write_table,
)
from cmsspark.cli.period_options import period_options
from cmsspark.settings.settings import load_settings

if TYPE_CHECKING:
    from cmsspark.apps.placement.inputs import PlacementInputs
    from cmsspark.apps.placement.plan import Advice, Limits

_PATH: Final = click.Path(path_type=Path)
_OPTIONS: Final = (
    option(
        "--accesses", type=_PATH, help="CSV or Parquet: day, dataset, site, accesses[, bytes]."
    ),
    option(
        "--replicas",
        type=_PATH,
        help="CSV or Parquet: dataset, site, bytes[, kind, size, complete, locked, custodial, since].",
    ),
    option(
        "--space",
        type=_PATH,
        help="CSV or Parquet: site[, capacity, budget, network_gbits]. [default: all sites are full]",
    ),
    option("--budget", metavar="SIZE", help="Bytes to copy to each site at most, such as 20TB."),
    option("--locked", multiple=True, metavar="PATTERN", help="Datasets whose copies never go."),
    option(
        "--min-benefit",
        type=FiniteRange(0),
        default=1.25,
        help="Bytes that a copy serves in its lifetime, for each byte copied, at least.",
    ),
    option(
        "--lifetime",
        type=IntRange(1, 52),
        default=4,
        help="Weeks that a copy is made for; a younger one does not go.",
    ),
    option(
        "--min-copies",
        type=IntRange(1),
        default=1,
        help="Complete copies on disk that a dataset has elsewhere before one can go.",
    ),
    option("--free", type=FiniteRange(0, 0.9), default=0.0, help="Share of space kept free."),
)


@click.group("placement", cls=CommandGroup, context_settings={"show_default": True})
def command() -> None:
    """Plan copies of datasets for next week: which to make, where, which can go.
    Nothing is copied or removed.

    Reads and replicas come from stored days, or from files. A plan keeps the last
    complete copy on disk, and all copies that are locked or custodial; tape is never
    touched.
    """


def _options(function: Callable[..., Any]) -> Callable[..., Any]:
    for decorate in reversed(_OPTIONS):
        function = decorate(function)
    return store_options(period_options(function))


def _inputs(
    accesses: Path | None,
    replicas: Path | None,
    space: Path | None,
    budget: str | None,
    locked: tuple[str, ...],
    min_benefit: float,
    lifetime: int,
    min_copies: int,
    free: float,
    fout: str | None,
    settings_file: str | None,
    period: Period | None,
) -> tuple[PlacementInputs, Limits]:
    from cmsspark.apps.placement.inputs import file_inputs, read_space, stored_inputs
    from cmsspark.apps.placement.plan import Limits
    from cmsspark.counting.rollup import matches

    if (accesses is None) != (replicas is None):
        raise UsageError(
            "--accesses and --replicas go together", next_step="give both, or a store"
        )
    if accesses is not None and (period or fout):
        raise UsageError(
            "--accesses excludes a period and --fout", next_step="give only one of them"
        )
    if accesses is not None and replicas is not None:
        inputs = file_inputs(accesses, replicas)
    else:
        inputs = stored_inputs(fout, settings_file, period, cooldown_days=7 * lifetime)
    if inputs.reads.dropped:
        click.echo(f"{inputs.reads.dropped:,} accesses name no site and are left out", err=True)
    last_day = inputs.reads.end - timedelta(days=1)
    if last_day > dates.today():
        click.echo(f"warning: reads are of days to come, up to {last_day}", err=True)
    names = inputs.table_before(inputs.reads.end)["dataset"].unique() if locked else ()
    for pattern in locked:
        if not any(matches(name, [pattern]) for name in names):
            click.echo(f"warning: no dataset matches --locked {pattern}", err=True)
    given_space = read_space(space) if space else {}
    weekly = float(parse_bytes(budget)) if budget else None
    inputs = replace(inputs, given_space=given_space, budget=weekly, locked=locked)
    return inputs, Limits(min_copies, free, min_benefit, lifetime)


@command.command("recommend")
@_options
@option("--top", type=IntRange(1), default=20, help="Maximum rows of each table.")
@option("-o", "--output", type=_PATH, help="Write all rows to this CSV or Parquet file.")
@option("--json", "as_json", is_flag=True, help="Print all rows as JSON.")
@option("--rucio", "as_rucio", is_flag=True, help="Print the plan as rules of Rucio, in JSON.")
@option("--activity", default="Data Rebalancing", help="Activity of the rules of Rucio.")
def recommend_command(
    top: int, output: Path | None, as_json: bool, as_rucio: bool, activity: str, **source: Any
) -> None:
    """Print the plan for the week after the last day: copies to make, copies that can go.

    Example: cmsspark placement recommend --fout OUT --budget 20TB --space space.csv
    """
    from cmsspark.apps.placement.plan import recommend, rucio_rules

    check_table_path(output)
    inputs, limits = _inputs(**source)
    advice = recommend(inputs, limits)
    if as_rucio:
        rules = None if source["accesses"] else _find_rules(advice, source["settings_file"])
        click.echo(json.dumps(rucio_rules(advice, activity, rules), indent=1))
    elif output is not None:
        write_table(advice.rows, output)
        click.echo(output)
    elif as_json:
        tables = {"sites": advice.sites.to_dicts(), "rows": advice.rows.to_dicts()}
        about = {"first_day": str(advice.first_day), "total": advice.total}
        click.echo(json.dumps({**about, **tables}, indent=1))
    else:
        click.secho(f"week from {advice.first_day} on, from {inputs.about}", bold=True)
        _echo_advice(advice, top)


def _find_rules(advice: Advice, settings_file: str | None) -> list[dict[str, Any]] | None:
    """Return the rules that hold what can go, by the dump of Rucio; None without one."""
    from cmsspark.dumps.rucio_locks import read_rules
    from cmsspark.run.catalogue_snapshots import opened

    names = set(advice.rows.filter(action="remove")["dataset"])
    if not names:
        return []
    last_day = advice.first_day - timedelta(days=1)
    try:
        return read_rules(load_settings(settings_file), last_day, opened, names.__contains__)[0]
    except CmssparkError as error:
        click.echo(f"warning: rules are not known: {error.text()}", err=True)
        return None


def _echo_advice(advice: Advice, top: int) -> None:
    import polars as pl

    if advice.rows.is_empty():
        click.echo("no copy is worth making, and none has to go")
        return
    changed_sites = advice.sites.filter(pl.col("copied") + pl.col("removed") > 0)
    if not changed_sites.is_empty():
        lines = [*changed_sites.iter_rows(), ("all sites", *advice.total.values())]
        of_sites = ("site", "on disk", "capacity", "to copy", "can go", "then")
        echo_table(of_sites, [(name, *map(volume, sizes)) for name, *sizes in lines], indent="  ")
    titles = {
        "copy": "copies to make",
        "remove": "copies that can go",
        "recall": "worth a copy, but only on tape",
    }
    for action, title in titles.items():
        rows = advice.rows.filter(action=action)
        if rows.is_empty():
            continue
        click.echo(f"\n{title}: {len(rows):,}, {volume(float(rows['bytes'].sum()))}")
        shown = [
            (volume(size), f"{accesses:,.1f}", volume(benefit), *texts)
            for size, accesses, benefit, *texts in rows.head(top)
            .select("bytes", "accesses", "benefit", "copies", "why", "site", "dataset")
            .iter_rows()
        ]
        headings = ("bytes", "reads a week", "serves", "copies", "by", "site", "dataset")
        echo_table(headings, shown, texts=(4, 5, 6), full=(4, 5), optional=(2, 4), indent="  ")
        if len(rows) > top:
            click.echo(f"  and {len(rows) - top:,} more; --top, --json or -o prints them")


@command.command("backtest")
@_options
@option(
    "--weeks",
    type=IntRange(1),
    default=8,
    help="Past weeks to plan, each judged by the weeks of a copy's lifetime.",
)
@option("--json", "as_json", is_flag=True, help="Print JSON.")
def backtest_command(weeks: int, as_json: bool, **source: Any) -> None:
    """Print what plans of past weeks would have served for each byte copied, beside simple rules.

    Each plan knows the days before its Monday only. All have the same copies, space and
    budgets; without a budget a twentieth of a site's copies.
    """
    from cmsspark.apps.placement.plan import RULES, backtest

    inputs, limits = _inputs(**source)
    outcomes = backtest(inputs, limits, weeks).to_dicts()
    if as_json:
        click.echo(json.dumps({"source": inputs.about, "rules": outcomes}, indent=1))
        return
    judged = pluralize(outcomes[0]["weeks"], "week")
    lifetime = pluralize(limits.lifetime, "week")
    click.secho(f"{judged}, each with its next {lifetime}, from {inputs.about}", bold=True)
    shown = []
    for row in outcomes:
        ratio, unread = row["served_per_byte"], row["unread_share"]
        shares = (None, None) if ratio is None else (f"{ratio:.2f}", percent(unread))
        sizes = (f"{row['copies']:,}", volume(row["copied_bytes"]), volume(row["served_bytes"]))
        shown.append((row["rule"], *shares, *sizes, RULES[row["rule"]]))
    headings = ("rule", "served a byte", "never read", "copies", "copied", "served", "copies by")
    echo_table(headings, shown, texts=(0, 6), optional=(6,))
