"""Sites: what is read at each, local and remote, by application; and what lies there unused."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from datetime import date, timedelta
from functools import partial
from itertools import accumulate
from typing import Any, Final

import pyarrow as pa
from msgspec.structs import replace

from cmsspark.apps.ask import costs
from cmsspark.apps.dashboard import site_use, use
from cmsspark.apps.dashboard import widgets as ui
from cmsspark.apps.dashboard.dataset_ranking import sum_datasets
from cmsspark.apps.dashboard.page import Page, cost_figures, make_chart
from cmsspark.apps.dashboard.page_request import PageDefinition, PageRequest
from cmsspark.apps.dashboard.rollup_query import sum_table, sums
from cmsspark.apps.dashboard.segment import SUMS
from cmsspark.apps.dashboard.selection import Selection, text_parameter
from cmsspark.apps.dashboard.use import (
    USUAL,
    stored_columns,
    to_table,
    use_columns,
    with_remote_share,
)
from cmsspark.base.names import KINDS
from cmsspark.base.text.terminal import is_or_are, pluralize

_WEEKS: Final = 12
#: Terabytes to win by deleting, where the address names none.
_GOAL: Final = 100
#: Weeks of which the people of a site are looked at.
_WEEKS_OF_PEOPLE: Final = 4
#: Datasets of a page of a table.
_PAGE: Final = 20
_ABOUT_AGES: Final = (
    "Replicas of the newest snapshot whose datasets no access and no job read there for so long."
)
_REMOTE: Final = (
    "An access is remote where its site has no copy on disk, or where the log names another reader. "
    "EOS and raw AAA do not record it."
)


def view(request: PageRequest) -> ui.Content:
    """Return all sites, or the page of the site ``site``."""
    chosen, page = request.chosen.only("stream"), Page(request)
    site = text_parameter(request.parameters, "site")
    names = request.snapshot.names["site_name"]
    unknown = [site] if site and site not in names else []
    page.choose("site", "Site", [*unknown, *names], every="all sites")
    page.period(chosen, with_step=bool(site))
    page.filters(chosen, ("stream",))
    page.notes += request.use_notes(chosen)
    period = f"{chosen.first} to {chosen.last}"
    if site:
        _add_site(page, chosen, site)
        return page.content(ui.shown(site), period)
    page.section("What is read at each site", _overview(request, chosen), about=_REMOTE)
    matrix = partial(site_use.matrix_sections, request, chosen)
    page.sections += page.optional("Pairs of sites", matrix) or []
    return page.content("Sites", period)


def _overview(request: PageRequest, chosen: Selection) -> ui.Table:
    snapshot = request.snapshot
    rows = with_remote_share(sum_table(snapshot, chosen, "site_name"))
    users = site_use.count_users(snapshot, chosen)
    counts = [users.get(name, 0) for name in rows["site_name"].to_pylist()]
    rows = rows.append_column("distinct_users", pa.array(counts, pa.int64()))
    about = "distinct people of the whole period, each once at each site"
    columns = (
        ui.Column("site_name", "Site"),
        *stored_columns(snapshot, use_columns(*USUAL)),
        ui.Column("distinct_users", "Users", "count", about),
    )
    return ui.Table("sites", columns, rows, "Accesses by site, as the logs name it", bars=1)


def _add_site(page: Page, chosen: Selection, site: str) -> None:
    """Add the fields and sections of one site."""
    request = page.request
    weeks = page.number("weeks", "Unused for weeks", _WEEKS, 520)
    kind = page.choose("kind", "Storage", KINDS, "disk")
    goal = page.number("win", "TB to win", _GOAL, 1_000_000)
    at_site, typed = chosen.with_values("site_name", site), shlex.quote(ui.shown(site))
    # The rows are read once for both groups.
    tiers, apps = sums(request.snapshot, at_site, ("data_tier",), ("app",))
    if not tiers:
        page.note(f"Nothing was read at {ui.shown(site)} in this period.")
    page.section("In total", _figures(request, chosen, site, tiers))
    if storage := _storage(page, site, kind, weeks):
        title = f"What lies there unread, on {kind}"
        page.section(title, ui.Figures(storage), about=_ABOUT_AGES)
    command = ""
    if request.database.days("dataset_last_access"):
        command = f"cmsspark ask deletable {typed} --free {goal}TB"
    copies = page.optional("What rules hold", partial(_locked_copies, request, site))
    page.section("What rules of Rucio hold there", copies, command=command)
    page.optional("What jobs cost", partial(_add_costs, page, chosen, site))
    page.section(
        "What is read there",
        _datasets(request, chosen, site),
        command=f"cmsspark ask reads {typed} --from {chosen.first} --to {chosen.last}",
    )
    first = max(chosen.first, chosen.last - timedelta(days=7 * _WEEKS_OF_PEOPLE - 1))
    page.section(
        f"How concentrated its use is, {first} to {chosen.last}",
        _people(request, site, first, chosen.last),
        command=f"cmsspark ask concentrated {typed} --from {first} --to {chosen.last}",
    )
    over_time = _local_remote(request, chosen, site)
    page.section("Local and remote accesses over time", over_time, about=_REMOTE)
    for name, heading, rows in (
        ("data_tier", "Data tier", tiers),
        ("app", "Application", apps),
    ):
        table = _group_table(request, name, heading, rows)
        page.section(f"By {heading.lower()}", table, is_half=True)
    pairs = partial(site_use.site_sections, request, chosen, site)
    page.sections += page.optional("Pairs of sites", pairs) or []
    first, oldest = site_use.window(request.snapshot, weeks)[0], request.snapshot.days[0]
    period = f"for {pluralize(weeks, 'week')}" if first >= oldest else f"since {oldest}"
    page.section(
        f"Replicas there that nobody read {period}",
        *_unused(page, site, weeks, (kind, goal)),
        command=f"cmsspark ask unused --site {typed} --weeks {weeks} --kind {kind} --allow-missing",
    )


def _storage(page: Page, site: str, kind: str, weeks: int) -> list[ui.Figure]:
    """Return figures of what is unread by age, and of the cache that the site needs."""
    snapshot, database = page.request.snapshot, page.request.database
    make_ages = partial(site_use.age_figures, snapshot, database, site, kind, weeks)
    ages = page.optional("The replicas", make_ages) or []
    make_cache = partial(site_use.cache_figure, database, site)
    cache = page.optional("The comparison of caches", make_cache)
    return [*ages, *([cache] if cache is not None else [])]


def _locked_copies(request: PageRequest, site: str) -> Any:
    """Return a table of the site's storage elements on the newest day of ``dataset_rses``."""
    if (newest := request.database.newest(("dataset_rses",))) is None:
        return ui.Note("No day of what rules hold is stored: run_spark dataset_rses --date DAY")
    query = (
        "SELECT rse, sum(bytes)::BIGINT AS bytes, sum(locked_bytes)::BIGINT AS locked_bytes,"
        " sum(deletable_bytes)::BIGINT AS deletable_bytes,"
        " sum(only_copy_bytes)::BIGINT AS only_copy_bytes,"
        " count(*) FILTER (lock_state = 'none') AS free_count, count(*) AS dataset_count"
        " FROM dataset_rses WHERE day = ? AND site_name = ? GROUP BY 1 ORDER BY 1"
    )
    columns = (
        ui.Column("rse", "Storage element"),
        ui.Column("bytes", "There", "bytes"),
        ui.Column("locked_bytes", "Locked", "bytes", "copies that a rule holds"),
        ui.Column("deletable_bytes", "Deletable", "bytes", "all may go together"),
        ui.Column("only_copy_bytes", "Only copies", "bytes", "of files that are nowhere else"),
        ui.Column("free_count", "Datasets without a lock", "count"),
        ui.Column("dataset_count", "Datasets", "count"),
    )
    caption = f"Copies in datasets, as of {newest[0]}"
    return request.table("copies", columns, query, [newest[0], site], caption)


def _people(request: PageRequest, site: str, first: date, last: date) -> ui.Fold:
    """Return how concentrated the site's use is, read from the partials when it is opened."""
    title = f"The {costs.HEAVIEST} heaviest people"
    if request.parameters.get("part") != "people":
        return ui.Fold(title, [], "", f"{request.link_here(part='people')}#people", "people")
    share, people, accesses = costs.concentration(request.people, site, first, last)
    figures = [
        ui.Figure(
            f"Share of the {costs.HEAVIEST} heaviest",
            ui.formatted(share, "share"),
            note="people with the most accesses; – if nobody is known, or two keys are",
        ),
        ui.count_figure("People", people, "who are known"),
        ui.count_figure("Their accesses", accesses, "of all streams of accesses"),
    ]
    return ui.Fold(title, [ui.Figures(figures)], name="people")


def _add_costs(page: Page, chosen: Selection, site: str) -> None:
    """Add what jobs cost at the site, the failed ones apart; nothing where no day of the
    period is stored.
    """
    request = page.request
    if not any(
        chosen.first <= day <= chosen.last for day in request.database.days("job_efficiency")
    ):
        return
    period, at_site = (chosen.first, chosen.last), ("site = ?", [site])
    in_all = costs.rank(request.database, costs.RANKINGS["sites"], *period, *at_site).dicts
    if not in_all:
        return
    sums = in_all[0]
    share = ui.ratio(sums["lost"], sums["core_hours"])
    figures = ui.Figures(
        [
            ui.Figure("Core hours", f"{sums['core_hours']:,.0f}", f"{sums['jobs']:,} jobs"),
            ui.Figure(
                "Of failed and removed jobs",
                f"{sums['lost']:,.0f}",
                f"core hours, {ui.formatted(share, 'share')}",
            ),
            ui.Figure("Wasted", f"{sums['wasted'] or 0:,.0f}", "core hours"),
        ]
    )
    workflows = costs.rank(request.database, costs.RANKINGS["workflows"], *period, *at_site).dicts
    workflows.sort(key=lambda row: -row["lost"])
    address = {"from": period[0], "to": period[1], "site": site}
    rows = [
        (row["workflow"], row["lost"], row["core_hours"], row["jobs"])
        for row in workflows
        if row["lost"]
    ]
    columns = (
        ui.Column("workflow", "Workflow", "dataset"),
        ui.Column("lost", "Failed, removed", "count", "core hours of these jobs"),
        ui.Column("core_hours", "Core hours", "count", "of all its jobs here"),
        ui.Column("jobs", "Jobs", "count"),
    )
    caption = "Workflows by core hours of failed and removed jobs"
    links = {
        "workflow": lambda row: request.link("efficiency", workflow=row["workflow"], **address)
    }
    table = ui.Table("failures", columns, rows, caption, bars=1, limit=5, links=links)
    command = f"cmsspark ask worst workflows --site {shlex.quote(ui.shown(site))}"
    page.section(
        "What jobs cost there",
        figures,
        table,
        about="HTCondor's jobs that ended on the stored days of the period, of all streams.",
        command=f"{command} --from {period[0]} --to {period[1]}",
    )


def _figures(
    request: PageRequest, chosen: Selection, site: str, tiers: list[tuple[Any, ...]]
) -> ui.Figures:
    sums = {name: use.added([row[1 + n] for row in tiers]) for n, name in enumerate(SUMS)}
    remote = ui.ratio(sums["remote_nacc"], sums["remote_known_nacc"])
    accesses = use.known_count(request.snapshot, chosen, sums["nacc"])
    users = site_use.count_users(request.snapshot, chosen).get(site, 0)
    share = ui.NOTHING if remote is None else f"{remote:.1%}"
    of_known = f"{sums['remote_nacc'] or 0:,} of {sums['remote_known_nacc'] or 0:,}"
    figures = [
        ui.count_figure("Accesses", None if chosen.is_of_jobs else accesses),
        ui.count_figure(
            "Distinct users", users, "of jobs" if chosen.is_of_jobs else "each person once"
        ),
        ui.Figure("Remote share", share, of_known),
        *cost_figures(request.snapshot, sums),
    ]
    return ui.Figures(figures)


def _local_remote(request: PageRequest, chosen: Selection, site: str) -> Any:
    values: dict[tuple[Any, ...], int | None] = {}
    columns = ("nacc", "remote_known_nacc", "remote_nacc")
    at_site = chosen.with_values("site_name", site)
    (rows,) = sums(request.snapshot, at_site, ("step",), columns=columns)
    for step, nacc, known_nacc, remote in rows:
        if nacc is not None:
            values[step, "local"] = (known_nacc or 0) - (remote or 0)
            values[step, "remote"] = remote or 0
            values[step, "not known"] = nacc - (known_nacc or 0)
    by_locality = replace(chosen, measure="nacc", by="locality")
    series = use.sum_series(request.snapshot, by_locality, values)
    names = ("local", "remote", "not known")
    shown = {name: series.values[name] for name in names if name in series.values}
    series = replace(series, values=shown)
    return make_chart("local_remote", series, by_locality)


def _group_table(
    request: PageRequest, name: str, heading: str, rows: list[tuple[Any, ...]]
) -> ui.Table:
    columns = (ui.Column(name, heading), *stored_columns(request.snapshot, use_columns(*USUAL)))
    table = with_remote_share(to_table(name, rows))
    return ui.Table(f"by_{name}", columns, table, f"Accesses by {heading.lower()}", bars=1)


def _datasets(request: PageRequest, chosen: Selection, site: str) -> ui.Table:
    snapshot = request.snapshot
    at_site = chosen.with_values("site_name", site)
    ranking = sum_table(snapshot, at_site, "dataset", ("nacc", "job_count"))
    columns = (
        ui.Column("dataset_name", "Dataset"),
        *stored_columns(snapshot, use_columns(*USUAL)),
    )
    caption = "Datasets that are read at this site"

    def widen(rows: pa.Table, names: Collection[str]) -> pa.Table:
        sums = with_remote_share(sum_datasets(snapshot, at_site, rows["dataset"].to_numpy(), SUMS))
        return snapshot.named(sums.add_column(0, "dataset", rows["dataset"]))

    source = ui.ArrowRows(ranking, widen)
    return ui.Table("datasets", columns, source, caption, bars=1, limit=_PAGE)


def _unused(page: Page, site: str, weeks: int, storage_and_goal: tuple[str, int]) -> list[Any]:
    request, snapshot = page.request, page.request.snapshot
    kind, goal = storage_and_goal
    make = partial(site_use.unused, snapshot, request.database, site, weeks, kind)
    if (unused := page.optional("The replicas", make)) is None:
        return []
    day, stored_bytes, count, rows = unused
    if day is None:
        return [ui.Note("No replicas are stored: run_spark dbs_phedex --date DAY")]
    first, last = site_use.window(request.snapshot, weeks)
    sums = list(accumulate(row[1] for row in rows))
    size = sums[-1] if sums else 0
    figures = ui.Figures(
        [
            ui.Figure(
                "Unused there", ui.si(size, "B"), f"{size:,} B of {stored_bytes:,} B on {kind}"
            ),
            ui.Figure("Datasets", f"{len(rows):,}", f"of {count:,} with a replica, as of {day}"),
            ui.Figure(
                "Not read",
                f"{sum(not any(row[3:]) for row in rows):,}",
                "not read at any other site either",
            ),
            _win(sums, goal * 10**12),
        ]
    )
    at_others = "at other or unknown sites in the same weeks"
    columns = (
        ui.Column("dataset_name", "Dataset"),
        ui.Column("present_bytes", "Bytes there", "bytes"),
        ui.Column("running_bytes", "Together", "bytes", "with all that are larger"),
        ui.Column("newest_replica_ms", "Newest replica", "ms_day"),
        ui.Column("nacc_elsewhere", "Accesses elsewhere", "count", f"accesses {at_others}"),
        ui.Column("jobs_elsewhere", "Jobs elsewhere", "count", f"jobs {at_others}"),
    )
    every = [(*row[:2], running, *row[2:]) for row, running in zip(rows, sums, strict=True)]
    caption = f"Not read there from {max(first, snapshot.days[0])} to {last}"
    table = ui.Table("unused", columns, every, caption, bars=1, limit=_PAGE)
    missing = 7 * weeks - sum(first <= stored <= last for stored in snapshot.state.runs)
    text = f"{missing:,} of the {7 * weeks:,} days {is_or_are(missing)} not stored: a dataset may have been read on one of them."
    return [figures, *([ui.Note(text, "warn")] if missing else []), table]


def _win(sums: Sequence[int], goal: int) -> ui.Figure:
    """Return how many of the largest unused replicas win so many bytes."""
    count = next((number for number, size in enumerate(sums, 1) if size >= goal), None)
    label = f"To win {ui.si(goal, 'B')}"
    if count is None:
        return ui.Figure(label, "–", "all of them are less")
    return ui.Figure(label, pluralize(count, "dataset"), "the largest ones")


PAGE = PageDefinition(
    "Sites", "What is read at each site, and which replicas there are unused.", view
)
