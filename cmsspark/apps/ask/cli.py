"""``cmsspark ask``: common questions, answered from stored days. Answers count people
and never name them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date, timedelta
from functools import wraps
from pathlib import Path
from typing import Any, Final

import click

from cmsspark.apps.ask import forecast, holdings, use
from cmsspark.apps.ask.use import Answer
from cmsspark.base.errors import UsageError
from cmsspark.base.names import KINDS
from cmsspark.base.periods import Period, between
from cmsspark.base.text.sizes import parse_bytes
from cmsspark.base.text.terminal import echo_table, printable
from cmsspark.cli.options import DATASET, SITE, CommandGroup, DayType, require_store, store_options
from cmsspark.cli.period_options import period_options
from cmsspark.filesystems.storage import Files
from cmsspark.settings.settings import load_settings
from cmsspark.store import stored_days
from cmsspark.store.stored_columns import newest, open_store
from cmsspark.store.stored_days import StoredDays

WEEKS: Final = 4


@click.group("ask", cls=CommandGroup)
def command() -> None:
    """Show who reads a dataset, what a site holds or serves, and what nobody reads.
    Needs stored days, and no JVM.
    """


def _answered(function: Callable[..., Answer]) -> Callable[..., Any]:
    """Make a function of options one that prints its answer."""

    @wraps(function)
    def show(*, top: int, as_json: bool, **options: Any) -> None:
        answer = function(**options)
        for warning in answer.warnings:
            click.echo(f"warning: {warning}", err=True)
        if as_json:
            click.echo(json.dumps(answer.as_dict(), indent=1, ensure_ascii=False, default=str))
            return
        click.secho(printable(answer.headline), bold=True)
        for line in answer.facts:
            click.echo(f"  {printable(line)}")
        for part in answer.parts:
            if part.rows:
                click.echo(f"\n{part.title}")
                echo_table(part.headings, part.shown(top), texts=part.text_columns, indent="  ")
            if len(part.rows) > top:
                click.echo(f"  and {len(part.rows) - top:,} more; --top or --json prints them")
        if answer.page:
            click.echo(f"page of cmsspark dashboard: {answer.page}")

    top_help = "Maximum rows of each table."
    show = click.option("--json", "as_json", is_flag=True, help="Print all rows as JSON.")(show)
    show = click.option(
        "--top", type=click.IntRange(1), default=20, show_default=True, help=top_help
    )(show)
    return store_options(show)


def _question(function: Callable[..., Answer]) -> Callable[..., Any]:
    """Make a function of the store's files and path, and of options, one that prints its answer."""

    @wraps(function)
    def ask(*, fout: str | None, settings_file: str | None, **options: Any) -> Answer:
        settings = load_settings(settings_file)
        store = require_store(fout, settings)
        return function(open_store(store, "cmsspark ask", settings), store, **options)

    return _answered(ask)


def _window(function: Callable[..., Any]) -> Callable[..., Any]:
    about = f"Number of weeks up to the newest stored day. [default: {WEEKS}, without a period]"
    return click.option("--weeks", type=click.IntRange(1, 520), help=about)(
        period_options(function)
    )


def _check_one(period: Period | None, weeks: int | None) -> None:
    """Raise UsageError (2) for a window that is named twice."""
    if period is not None and weeks is not None:
        raise UsageError(
            "--weeks and a period exclude each other", next_step="give only one of them"
        )


def find_window(files: Files, fout: str, period: Period | None, weeks: int | None) -> StoredDays:
    """Return the stored days of the period, or of the last weeks.

    Raises InputMissing (66) where there is none, UsageError (2) where both are given.
    """
    _check_one(period, weeks)
    if period is None:
        last, _ = newest(files, fout, stored_days.TABLE)
        period = between(last - timedelta(days=7 * (weeks or WEEKS) - 1), last)
    stored = stored_days.find_days(files, fout, period)
    stored.check(allow_missing=True)
    return stored


@command.command("who-reads")
@click.argument("dataset", type=DATASET)
@click.option(
    "--site",
    metavar="SITE",
    type=SITE,
    help="Count only reads at this site; a pattern as in DATASET.",
)
@_window
@_question
def who_reads(
    files: Files,
    store: str,
    dataset: str,
    site: str | None,
    period: Period | None,
    weeks: int | None,
) -> Answer:
    """Count the people who read DATASET, by site and application. DATASET may be a
    pattern: '/ZMM*/*/AOD'.
    """
    return use.who_reads(find_window(files, store, period, weeks), dataset, site)


@command.command("reads")
@click.argument("site", type=SITE)
@_window
@_question
def reads(files: Files, store: str, site: str, period: Period | None, weeks: int | None) -> Answer:
    """Show what is read at SITE and by how many people. A pattern such as 'T2_US_*'
    sums over all these sites.
    """
    return use.reads(find_window(files, store, period, weeks), site)


def _choice(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option(
            "--date",
            "day",
            type=DayType(),
            help="Replicas as of this day. [default: the newest stored day]",
        ),
        click.option("--kind", type=click.Choice(KINDS), help="Only this kind of storage."),
        click.option("--data-tier", metavar="TIER", help="Only this data tier: AOD, MINIAODSIM …"),
        click.option(
            "--site",
            metavar="SITE",
            type=SITE,
            help="Only at this site; a pattern may contain * and ?.",
        ),
        click.option("--tier", metavar="TIER", help="Only at sites of this tier: T1, T2 …"),
    ):
        function = option(function)
    return function


@command.command("holdings")
@_choice
@_question
def holdings_command(
    files: Files,
    store: str,
    tier: str | None,
    site: str | None,
    data_tier: str | None,
    kind: str | None,
    day: date | None,
) -> Answer:
    """Show how much data the sites of a tier (site_tier_usage) or one site (dbs_phedex,
    dbs_rucio) hold.
    """
    return holdings.holdings(files, store, holdings.Choice(tier, site, data_tier, kind), day)


@command.command("unused")
@click.option("--allow-missing", is_flag=True, help="Continue when days are not stored.")
@_window
@_choice
@_question
def unused(
    files: Files,
    store: str,
    tier: str | None,
    site: str | None,
    data_tier: str | None,
    kind: str | None,
    day: date | None,
    period: Period | None,
    weeks: int | None,
    allow_missing: bool,
) -> Answer:
    """List replicas of datasets that nobody read at their site in the last weeks, largest first.

    Only replicas on disk are listed, unless --kind names another kind of storage.
    """
    stored = find_window(files, store, period, weeks)
    stored.check(allow_missing=allow_missing)
    choice = holdings.Choice(tier, site, data_tier, kind or "disk")
    return holdings.unused(stored, choice, day)


@command.command("deletable")
@click.argument("site", type=SITE)
@click.option(
    "--date", "day", type=DayType(), help="As of this day. [default: the newest stored day]"
)
@click.option(
    "--kind",
    type=click.Choice(KINDS[:2]),
    default="disk",
    show_default=True,
    help="The kind of storage.",
)
@click.option(
    "--free", metavar="SIZE", help="List no more than what frees so much, such as 100TB."
)
@_question
def deletable(
    files: Files, store: str, site: str, day: date | None, kind: str, free: str | None
) -> Answer:
    """List what could be deleted at SITE: datasets that nobody used for long, and that
    are not new, largest first, with a running sum.

    The job dataset_last_access says which these are (12 months, or its --months), and
    dataset_rses how much of them no rule holds: all that is listed may go together, and
    each file keeps a copy, maybe on tape. SITE may be a pattern. Where a forecast is
    stored (popularity_forecast), what is likely to be popular next week is left out.
    """
    needed = None if free is None else int(parse_bytes(free))
    return holdings.deletable(files, store, site, kind, day, needed)


@command.command("unique")
@click.argument("rse", type=SITE)
@click.option(
    "--date", "day", type=DayType(), help="As of this day. [default: the newest stored day]"
)
@_question
def unique(files: Files, store: str, rse: str, day: date | None) -> Answer:
    """Show what would be lost with the storage element RSE: files that are nowhere else,
    and those that are on no other disk.

    RSE may be a pattern, or a site with several elements. The job dataset_rses says it.
    """
    return holdings.unique(files, store, rse, day)


@command.command("holds")
@click.argument("dataset", type=DATASET)
@click.option(
    "--date", "day", type=DayType(), help="The dump that belongs to this day. [default: today]"
)
@click.option("--root", metavar="URI", help="Root of the dumps' folders. [default: CMSSPARK_ROOT]")
@_answered
def holds(
    dataset: str, day: date | None, root: str | None, settings_file: str | None, fout: str | None
) -> Answer:
    """Show which rules of Rucio hold DATASET: whose they are, where, and until when.

    DATASET may be a pattern: '/ZMM*/*/AOD'. Reads the dump of Rucio (DATASET_LOCKS and
    RSES; RULES and ACCOUNTS if it has them). People are pseudonyms.
    """
    del fout  # taken as by all questions: the dump has the answer
    return holdings.holds(load_settings(settings_file), root, dataset, day)


@command.command("will-be-popular")
@click.argument("dataset", required=False, type=DATASET)
@click.option("--data-tier", metavar="TIER", help="Only this data tier: AOD, MINIAODSIM …")
@click.option(
    "--date",
    "day",
    type=DayType(),
    help="The forecast of this day or before. [default: the newest]",
)
@_question
def will_be_popular(
    files: Files, store: str, dataset: str | None, data_tier: str | None, day: date | None
) -> Answer:
    """List the datasets that will probably be popular, by the newest forecast, and how
    good it was last week.

    DATASET may be a pattern: '/ZMM*/*/AOD'. The job popularity_forecast makes forecasts.
    """
    return forecast.will_be_popular(files, store, dataset, data_tier, day)


@command.command("replicate")
@click.option(
    "--site",
    metavar="SITE",
    type=SITE,
    help="Only copies at this site; a pattern may contain * and ?.",
)
@click.option(
    "--space",
    type=click.Path(path_type=Path),
    help="CSV or Parquet with site, capacity[, budget].",
)
@click.option(
    "--budget", metavar="SIZE", help="Bytes that may be copied to each site, such as 20TB."
)
@click.option(
    "--date",
    "day",
    type=DayType(),
    help="The forecast of this day or before. [default: the newest]",
)
@_question
def replicate(
    files: Files,
    store: str,
    site: str | None,
    space: Path | None,
    budget: str | None,
    day: date | None,
) -> Answer:
    """List the datasets that deserve another copy on disk and where, by the newest forecast.

    The plan is that of cmsspark placement recommend, which also lists the copies to remove for it.
    """
    settings_file: str | None = click.get_current_context().params["settings_file"]
    return forecast.replicate(files, store, settings_file, site, space, budget, day)


@command.command("changed")
@click.option(
    "--by",
    type=click.Choice(["dataset", "site", "stream", "app", "data_tier", "site_tier", "campaign"]),
    default="dataset",
    show_default=True,
    help="What is compared.",
)
@click.option("--against-from", type=DayType(), help="First day of the earlier period.")
@click.option("--against-to", type=DayType(), help="Last day of the earlier period, included.")
@_window
@_question
def changed(
    files: Files,
    store: str,
    by: str,
    against_from: date | None,
    against_to: date | None,
    period: Period | None,
    weeks: int | None,
) -> Answer:
    """Show what changed between two periods: accesses and jobs by dataset, site, stream …

    The earlier period is as long as the later one and ends right before it, unless
    --against-from and --against-to name another one.
    """
    after = find_window(files, store, period, weeks)
    last = against_to or after.period.first - timedelta(days=1)
    first = against_from or last - timedelta(days=len(after.period.days) - 1)
    before = stored_days.find_days(files, store, between(first, last))
    before.check(allow_missing=True)
    return use.changed(after, before, {"dataset": "dataset_name", "site": "site_name"}.get(by, by))


@command.command("concentrated")
@click.argument("site", type=SITE)
@_window
@_question
def concentrated(
    files: Files, store: str, site: str, period: Period | None, weeks: int | None
) -> Answer:
    """Show how concentrated the use of SITE is: the share of the ten people with the
    most accesses, without names.
    """
    from cmsspark.apps.ask import costs
    from cmsspark.store.query.database import Database

    stored = find_window(files, store, period, weeks)
    with Database(store, files=files) as database:
        return costs.concentrated(database, site, stored)


@command.command("worst")
@click.argument("name", type=click.Choice(["workflows", "sites", "requests", "agents"]))
@click.option("--site", metavar="SITE", type=SITE, help="Only jobs at this site.")
@_window
@_question
def worst(
    files: Files,
    store: str,
    name: str,
    site: str | None,
    period: Period | None,
    weeks: int | None,
) -> Answer:
    """Rank what jobs cost: workflows and sites by wasted core hours of HTCondor's jobs,
    requests by thread hours without CPU and agents by failed jobs, of WMArchive.

    Reads the stored days of job_efficiency or step_efficiency.
    """
    from cmsspark.apps.ask import costs
    from cmsspark.store.query.database import Database

    _check_one(period, weeks)
    if site is not None and name == "agents":
        raise UsageError("agents have no site", next_step="leave out --site")
    with Database(store, files=files) as database:
        return costs.worst(database, name, period, weeks or WEEKS, site)
