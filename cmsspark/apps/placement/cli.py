"""``cmsspark placement``: which copies of datasets to make, which can go, and how good
such plans were.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from cmsspark.apps.placement import stored_inputs
from cmsspark.apps.placement.stored_inputs import PlacementInputs
from cmsspark.base.errors import UsageError
from cmsspark.base.periods import Period
from cmsspark.base.text.sizes import parse_bytes
from cmsspark.base.text.terminal import echo_list, echo_table, percent, pluralize, volume
from cmsspark.cli.groups import CommandGroup
from cmsspark.cli.options import FiniteRange, store_options
from cmsspark.cli.output_files import check_table_path, write_table
from cmsspark.cli.period_options import period_options
from cmsspark.settings.settings import load_settings

if TYPE_CHECKING:
    from cmsspark.apps.placement.replay import Forecast

_COMPARED: Final = ("as-is", "tier", "recent", "predicted", "oracle")


@click.group("placement", cls=CommandGroup)
def command() -> None:
    """Plan copies of datasets for next week: which to make, where, which can go.
    Nothing is copied or removed.

    Reads and replicas come from stored days, or from files. A plan keeps the last
    complete copy on disk, and all copies that are locked or custodial; tape is never
    touched.
    """


def _options(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--seed", type=int, default=0, show_default=True, help="Seed of models."),
        click.option(
            "--threshold",
            type=FiniteRange(0),
            default=10,
            show_default=True,
            help="Popular: more accesses a week.",
        ),
        click.option(
            "--model",
            default="blend",
            show_default=True,
            help="Model of the forecast; cmsspark popularity models.",
        ),
        click.option(
            "--free",
            type=FiniteRange(0, 0.9),
            default=0.0,
            show_default=True,
            help="Share of space kept free.",
        ),
        click.option(
            "--min-copies",
            type=click.IntRange(1),
            default=1,
            show_default=True,
            help="Complete copies on disk that a dataset has elsewhere before one can go.",
        ),
        click.option(
            "--lifetime",
            type=FiniteRange(1, 52),
            default=4,
            show_default=True,
            help="Weeks that a copy is expected to be used for.",
        ),
        click.option(
            "--min-benefit",
            type=FiniteRange(0),
            default=0.0,
            show_default=True,
            help="Bytes that a copy serves in its lifetime, for each byte copied, at least.",
        ),
        click.option(
            "--locked",
            multiple=True,
            metavar="PATTERN",
            help="Datasets whose copies never go; repeatable.",
        ),
        click.option(
            "--locks",
            type=click.Path(path_type=Path),
            help="Copies that never go: CSV or Parquet with dataset, site; or the folder of a Rucio dump with "
            "DATASET_LOCKS and RSES.",
        ),
        click.option(
            "--budget", metavar="SIZE", help="Bytes that may be copied to each site, such as 20TB."
        ),
        click.option(
            "--space",
            type=click.Path(path_type=Path),
            help="CSV or Parquet with site, capacity[, budget]. [default: a site is full with its current copies]",
        ),
        click.option(
            "--replicas",
            type=click.Path(path_type=Path),
            help="CSV or Parquet with dataset, site, bytes[, kind, size, complete, locked, custodial, since].",
        ),
        click.option(
            "--accesses",
            type=click.Path(path_type=Path),
            help="CSV or Parquet with day, dataset, site, accesses[, remote, bytes]. [default: stored days]",
        ),
    ):
        function = option(function)
    return store_options(period_options(function))


def _inputs(
    accesses: Path | None,
    replicas: Path | None,
    space: Path | None,
    budget: str | None,
    locked: tuple[str, ...],
    locks: Path | None,
    period: Period | None,
    fout: str | None,
    settings_file: str | None,
    *,
    all_weeks: bool = False,
) -> PlacementInputs:
    from cmsspark.apps.placement.locks import read_locks
    from cmsspark.apps.placement.replicas import read_space

    if (accesses is None) != (replicas is None):
        raise UsageError(
            "--accesses and --replicas go together", next_step="give both, or a store"
        )
    if accesses is not None and (period or fout):
        raise UsageError(
            "--accesses excludes a period and --fout", next_step="give only one of them"
        )
    room_of = read_space(space) if space else {}
    weekly = float(parse_bytes(budget)) if budget else None
    if accesses is not None and replicas is not None:
        inputs = stored_inputs.file_inputs(accesses, replicas)
    else:
        inputs = stored_inputs.stored_inputs(fout, settings_file, period, all_weeks=all_weeks)
    inputs = replace(inputs, given_space=room_of, budget=weekly, locked=locked)
    if locks is not None:
        inputs = replace(inputs, locks=read_locks(locks, load_settings(settings_file).rses))
        click.echo(f"{pluralize(len(inputs.locks), 'lock')} of datasets on disk", err=True)
    idle = inputs.idle_locks()
    if idle:
        names = "names that no read and no replica has"
        click.echo(
            f"warning: {pluralize(len(idle), 'lock')} of {names}, such as {idle[0]}", err=True
        )
    if inputs.reads.dropped:
        click.echo(f"{inputs.reads.dropped:,} accesses name no site and are left out", err=True)
    return inputs


def _forecast(model: str, threshold: float, seed: int) -> Forecast:
    from cmsspark.apps.popularity.training import Label

    return stored_inputs.forecast_with(model, Label(threshold), seed)


@command.command("recommend")
@_options
@click.option(
    "--top",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    help="Maximum rows of each table.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Write all rows to this CSV or Parquet file.",
)
@click.option("--json", "as_json", is_flag=True, help="Print all rows as JSON.")
@click.option(
    "--rucio", "as_rucio", is_flag=True, help="Print the plan as rules of Rucio, in JSON."
)
def recommend_command(
    model: str,
    threshold: float,
    seed: int,
    min_copies: int,
    free: float,
    min_benefit: float,
    lifetime: float,
    top: int,
    output: Path | None,
    as_json: bool,
    as_rucio: bool,
    **source: Any,
) -> None:
    """Print the plan for the week after the last day: copies to make, copies that can go.

    Example: cmsspark placement recommend --fout OUT --budget 20TB --space space.csv
    """
    from cmsspark.apps.placement.plan import Limits
    from cmsspark.apps.placement.recommend import recommend

    check_table_path(output)
    inputs = _inputs(**source)
    outlook = _forecast(model, threshold, seed)(inputs.reads)
    limits = Limits(min_copies, free, min_benefit, lifetime)
    advice = recommend(inputs.reads, inputs.replicas_before, inputs.space, outlook, limits)
    if as_rucio:
        click.echo(json.dumps(advice.rucio(), indent=1))
    elif output is not None:
        import polars as pl

        frame = pl.DataFrame(advice.rows, schema=advice.schema)
        write_table(frame, output)
        click.echo(output)
    elif as_json:
        rows = [asdict(row) for row in advice.rows]
        click.echo(
            json.dumps(
                {"first_day": str(advice.first_day), "sites": advice.sites, "rows": rows}, indent=1
            )
        )
    else:
        click.secho(f"week from {advice.first_day} on, from {inputs.about}", bold=True)
        _echo_advice(advice, top)


def _echo_advice(advice: Any, top: int) -> None:
    if not advice.rows:
        click.echo("no copy is worth making, and none has to go")
        return
    changed_sites = {row.site for row in advice.rows}
    sites = [
        (
            row["site"],
            *(
                volume(row[name])
                for name in ("used", "capacity", "copied", "removed", "used_after")
            ),
        )
        for row in advice.sites
        if row["site"] in changed_sites
    ]
    echo_table(("site", "on disk", "capacity", "to copy", "can go", "then"), sites, indent="  ")
    for action, title in (("copy", "copies to make"), ("remove", "copies that can go")):
        rows = [row for row in advice.rows if row.action == action]
        if not rows:
            continue
        click.echo(f"\n{title}: {len(rows):,}, {volume(sum(row.bytes for row in rows))}")
        shown = [
            (
                volume(row.bytes),
                f"{row.accesses:,.1f}",
                None if row.probability is None else percent(row.probability),
                None if row.benefit is None else volume(row.benefit),
                row.copies,
                row.why,
                row.site,
                row.dataset,
            )
            for row in rows[:top]
        ]
        headings = (
            "bytes",
            "expected reads there",
            "popular",
            "serves",
            "copies",
            "by",
            "site",
            "dataset",
        )
        echo_table(headings, shown, texts=(5, 6, 7), full=(5, 6), optional=(2, 5, 3), indent="  ")
        if len(rows) > top:
            click.echo(f"  and {len(rows) - top:,} more; --top, --json or -o prints them")


@command.command("replay")
@_options
@click.option(
    "--rule", "rules", multiple=True, help=f"Rule; repeatable. [default: {', '.join(_COMPARED)}]"
)
@click.option("--last", type=click.IntRange(1), help="Only the last so many weeks.")
@click.option("--synthetic", type=int, metavar="SEED", help="Replay synthetic data of this seed.")
@click.option("--weekly", is_flag=True, help="Print each week, too.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: each week, and the sums.")
def replay_command(
    model: str,
    threshold: float,
    seed: int,
    min_copies: int,
    free: float,
    min_benefit: float,
    lifetime: float,
    rules: tuple[str, ...],
    last: int | None,
    synthetic: int | None,
    weekly: bool,
    as_json: bool,
    **source: Any,
) -> None:
    """Judge plans of past weeks by what was read then: remote reads and bytes, against
    the rule by data tier.

    Each plan knows the days before its week only. All rules have the same copies at
    first, space and budgets.
    """
    from cmsspark.apps.placement import replay
    from cmsspark.apps.placement.plan import Limits

    if synthetic is None:
        inputs = _inputs(**source, all_weeks=True)
    else:
        if any(
            source[name]
            for name in ("accesses", "replicas", "space", "locked", "locks", "period", "fout")
        ):
            raise UsageError(
                "--synthetic excludes files, --locked, --locks, a period and --fout",
                next_step="give only one",
            )
        budget = float(parse_bytes(source["budget"])) if source["budget"] else None
        inputs = stored_inputs.synthetic_inputs(synthetic, budget)
    last_day = inputs.reads.days[-1]
    space = inputs.space(inputs.replicas_before(last_day))
    forecast, limits = (
        _forecast(model, threshold, seed),
        Limits(min_copies, free, min_benefit, lifetime),
    )
    replayed = replay.Replay(inputs.reads, inputs.replicas_before, space, forecast, limits)
    rows = replayed.run(tuple(dict.fromkeys(rules)) or _COMPARED, weeks=last)
    totals = replay.sums(rows)
    if as_json:
        about = {"source": inputs.about, "is_synthetic": inputs.is_synthetic}
        click.echo(
            json.dumps(
                {**about, "weeks": [row.as_dict() for row in rows], "sums": totals}, indent=1
            )
        )
        return
    weeks = f"{pluralize(totals[0]['weeks'], 'week')} from {rows[0].week} on"
    click.secho(
        f"{weeks}, {inputs.about}{': synthetic, no measurement' if inputs.is_synthetic else ''}",
        bold=True,
    )
    if weekly:
        _echo_weeks(rows)
    _echo_sums(totals)


def _echo_weeks(rows: list[Any]) -> None:
    shown = [
        (
            str(row.week),
            row.rule,
            _share(row.remote_reads, row.reads),
            _share(row.remote_bytes, row.read_bytes),
            volume(row.copied_bytes),
            volume(row.removed_bytes),
        )
        for row in rows
    ]
    echo_table(
        ("week", "rule", "remote reads", "remote bytes", "copied", "removed"), shown, texts=(0, 1)
    )
    click.echo()


def _echo_sums(totals: list[dict[str, Any]]) -> None:
    shown = [
        (
            row["rule"],
            _share(row["remote_reads"], row["reads"]),
            _signed(row["remote_reads_against_tier"]),
            _share(row["remote_bytes"], row["read_bytes"]),
            _signed(row["remote_bytes_against_tier"]),
            volume(row["disk_bytes"]),
            volume(row["copied_bytes"]),
            volume(row["removed_bytes"]),
        )
        for row in totals
    ]
    headings = (
        "rule",
        "remote reads",
        "against tier",
        "remote bytes",
        "against tier",
        "on disk",
        "copied",
        "removed",
    )
    echo_table(headings, shown, optional=(5, 7, 6))


def _share(part: float, total: float) -> str:
    return percent(part / total if total else None)


def _signed(value: float | None) -> str | None:
    return None if value is None else f"{value:+.1%}"


@command.command("rules")
def rules_command() -> None:
    """List the rules that a replay compares, with a line each."""
    from cmsspark.apps.placement.replay import ABOUT

    echo_list(("rule", "places copies by"), ABOUT)
