"""Dataset: its history, sites, applications, replicas beside accesses, and its last access."""

from __future__ import annotations

import shlex
from functools import partial
from typing import Any, Final

import pyarrow as pa
from msgspec.structs import replace

from cmsspark.apps.dashboard import dataset_ranking, use
from cmsspark.apps.dashboard import widgets as ui
from cmsspark.apps.dashboard.dataset_ranking import DatasetUse
from cmsspark.apps.dashboard.page import (
    Page,
    choose_measure,
    cost_figures,
    make_chart,
)
from cmsspark.apps.dashboard.page_request import PageDefinition, PageRequest
from cmsspark.apps.dashboard.segment import SUMS
from cmsspark.apps.dashboard.selection import Selection, text_parameter
from cmsspark.apps.dashboard.tables import formatted
from cmsspark.apps.dashboard.use import (
    MEASURES,
    USUAL,
    Series,
    stored_columns,
    to_table,
    use_columns,
    with_remote_share,
)
from cmsspark.base.errors import InputMissing
from cmsspark.base.text.terminal import pluralize
from cmsspark.store.stored_columns import REPLICA_TABLES

_REPLICAS: Final = (
    ui.Column("site_name", "Site"),
    ui.Column("kind", "Storage"),
    ui.Column("present_bytes", "Bytes there", "bytes"),
    ui.Column("present_file_count", "Files", "count"),
    ui.Column(
        "is_complete", "Complete", "yes", "every block of the dataset is wholly at the site"
    ),
    ui.Column("newest_replica_ms", "Newest replica", "instant"),
    ui.Column("nacc", "Accesses there", "count", "accesses at this site in the chosen period"),
    ui.Column("job_count", "Jobs there", "count", "jobs at this site in the chosen period"),
)
_ON_STORAGE: Final = ("kind", "present_bytes")


def view(request: PageRequest) -> ui.Content:
    """Return the page of the dataset ``name``; without a name, a search."""
    name = text_parameter(request.parameters, "name")
    if not name:
        return _search(request)
    chosen, page = request.chosen.only("stream"), Page(request)
    page.notes += request.use_notes(chosen)
    page.text("name", "Dataset", "search", suggestions="datasets.json", wide=True)
    page.period(chosen)
    page.filters(chosen, ("stream",))
    measure = choose_measure(page, chosen)
    used = dataset_ranking.load_use(request.snapshot, chosen, name)
    replicas = _replicas(page, used, name)
    facts = page.optional("The facts of DBS", partial(_facts, request, name)) or {}
    forecast = page.optional("The forecast", partial(_forecast, request, name)) or []
    about = [*_holdings(replicas), *_of_dbs(facts), *forecast]
    if used.last_access is None:
        if not replicas.count and not facts:
            raise InputMissing(
                f"no access, job, replica or entry of DBS is stored for {ui.shown(name)}",
                next_step="type a part of its name to find it",
            )
        page.note(f"No stored access or job has read {ui.shown(name)}.")
    page.section("In total", _figures(request, used, chosen))
    page.section("What it is", ui.Figures(about) if about else None)
    history = _history(request, used, chosen, measure)
    page.section(f"{MEASURES[measure][0]} over time", history)
    page.section(
        "Where it is read",
        _by(request, name, used.by_site, "site_name", "Site"),
        command=f"cmsspark ask who-reads {shlex.quote(ui.shown(name))}"
        f" --from {chosen.first} --to {chosen.last}",
    )
    page.section("With what", _by(request, name, used.by_app, "app", "Application"))
    page.section("Replicas beside accesses", replicas)
    return page.content(ui.shown(name), f"{chosen.first} to {chosen.last}")


def _search(request: PageRequest) -> ui.Content:
    rows = [(item["name"], item["nacc"]) for item in use.suggestions(request)]
    columns = (ui.Column("dataset_name", "Dataset"), ui.Column("nacc", "Accesses", "count"))
    caption, page = "Datasets by their accesses on all stored days", Page(request)
    page.text("q", "Parts of the name", "search", suggestions="datasets.json", wide=True)
    table = ui.Table("found", columns, rows, caption, bars=1)
    page.section("Most used datasets", table)
    return page.content("Dataset", "Choose a dataset.", button="Search")


def _figures(request: PageRequest, used: DatasetUse, chosen: Selection) -> ui.Figures:
    sums = dict(zip(SUMS, used.totals, strict=True))
    accesses = use.known_count(request.snapshot, chosen, sums["nacc"])
    last = used.last_access
    about = "or last job, on any stored day" if request.snapshot.has_jobs else "on any stored day"
    figures = [
        ui.Figure("Last access", last.isoformat() if last else "none", about),
        ui.count_figure("Accesses", None if chosen.is_of_jobs else accesses),
        ui.count_figure(
            "Distinct users",
            used.all_users,
            "of jobs" if chosen.is_of_jobs else "each person once",
        ),
        *cost_figures(request.snapshot, sums),
    ]
    return ui.Figures(figures)


def _holdings(replicas: ui.Table) -> list[ui.Figure]:
    """Return how much of the dataset lies on each kind of storage, and at how many sites."""
    kinds: dict[str, list[int]] = {}
    rows = replicas.every
    for kind, size in zip(*(rows[name].to_pylist() for name in _ON_STORAGE), strict=True):
        kinds.setdefault(kind, []).append(size or 0)
    return [
        ui.Figure(
            f"On {kind}",
            ui.si(sum(sizes), "B"),
            f"{sum(sizes):,} B",
            pluralize(len(sizes), "site"),
        )
        for kind, sizes in sorted(kinds.items())
    ]


def _of_dbs(facts: dict[str, Any]) -> list[ui.Figure]:
    if not facts:
        return []
    size, events = facts["dataset_bytes"], facts["events"]
    return [
        ui.Figure("Size in DBS", ui.si(size, "B"), f"{size:,} B" if size is not None else ""),
        ui.count_figure("Events", events),
        ui.Figure("State in DBS", ui.shown(facts["access_type"]), f"as of {facts['day']}"),
    ]


def _forecast(request: PageRequest, name: str) -> list[ui.Figure]:
    """Return the probability that the dataset will be popular, by the newest stored forecast."""
    days = request.database.days("popularity_forecast")
    if not days:
        return []
    rows = request.database.query(
        "SELECT probability, rank, label FROM popularity_forecast WHERE day = ? AND dataset_name = ?",
        [days[-1], name],
    ).rows
    if not rows:
        return [
            ui.Figure(
                "Forecast", "–", f"not among the first ranks of the forecast from {days[-1]} on"
            )
        ]
    probability, rank, label = rows[0]
    value = "unknown" if probability is None else formatted(probability, "share")
    meaning = f"{label} from {days[-1]} on" if label else f"from {days[-1]} on"
    return [ui.Figure("Forecast: popular", value, meaning, f"rank {rank:,}")]


def _history(request: PageRequest, used: DatasetUse, chosen: Selection, measure: str) -> Any:
    if measure == "users":
        note = (
            ""
            if None not in used.users
            else "Users cannot be counted over days of two pseudonym keys."
        )
        is_counted = use.counted_steps(request.snapshot, chosen, chosen.streams_of_users)
        users = [
            count if counted or count else None
            for count, counted in zip(used.users, is_counted, strict=True)
        ]
        partial = use.partial_steps(request.snapshot, chosen)
        series = Series(chosen.buckets, {"": users}, is_additive=False, note=note, partial=partial)
        return make_chart("history", series, replace(chosen, measure="users"))
    by_stream = replace(chosen, measure=measure, by="stream")
    series = dataset_ranking.series_by_stream(request.snapshot, used, by_stream)
    return make_chart("history", series, by_stream)


def _by(
    request: PageRequest, dataset: str, rows: list[tuple[Any, ...]], name: str, heading: str
) -> ui.Table:
    columns = (ui.Column(name, heading), *stored_columns(request.snapshot, use_columns(*USUAL)))
    table = with_remote_share(to_table(name, rows))
    if name == "site_name":
        last_days = dataset_ranking.last_at_sites(request.snapshot, dataset)
        days = [last_days.get(site) for site in table[name].to_pylist()]
        table = table.append_column("last_day", pa.array(days, pa.date32()))
        about = "the last stored day with an access or job there"
        columns = (*columns, ui.Column("last_day", "Last read", "day", about))
    caption, empty = f"Accesses by {heading.lower()}", "Not read in this period."
    return ui.Table(f"by_{name.removesuffix('_name')}", columns, table, caption, empty, bars=1)


def _replicas(page: Page, used: DatasetUse, name: str) -> ui.Table:
    request = page.request
    of_jobs = 1 + SUMS.index("job_count")
    columns = stored_columns(request.snapshot, _REPLICAS)
    # Accesses and jobs, or accesses alone where no jobs are stored.
    read_at = {row[0]: (int(row[1] or 0), int(row[of_jobs] or 0)) for row in used.by_site}
    of_site = 2 - (len(_REPLICAS) - len(columns))
    newest = page.optional("The replicas", lambda: request.database.newest(REPLICA_TABLES) or ())
    empty = "The newest replica snapshot has no replica of it."
    if not newest:
        empty = (
            empty if newest is None else "No replicas are stored: run_spark dbs_phedex --date DAY"
        )
        return ui.Table("replicas", columns, [], "Replicas", empty=empty, bars=2)
    as_of, table = newest
    sql = (
        "SELECT site_name, kind, present_bytes, present_file_count, is_complete, newest_replica_ms "
        f"FROM {table} WHERE day = ? AND dataset_name = ? ORDER BY present_bytes DESC, site_name, kind"
    )
    stored = page.optional("The replicas", lambda: request.database.query(sql, [as_of, name]).rows)
    rows = [(*row, *read_at.get(row[0], (0, 0))[:of_site]) for row in stored or ()]
    caption = f"Replicas as of {as_of}, and the accesses at the same site"
    return ui.Table("replicas", columns, rows, caption, empty=empty, bars=2)


def _facts(request: PageRequest, name: str) -> dict[str, Any]:
    """Return what the newest stored day of DBS has of the dataset."""
    days = request.database.days("dbs_events")
    sql = "SELECT day, events, dataset_bytes, access_type FROM dbs_events WHERE day = ? AND dataset_name = ?"
    rows = request.database.query(sql, [days[-1], name]).dicts if days else []
    return rows[0] if rows else {}


PAGE = PageDefinition(
    "Dataset", "The history, sites, applications and replicas of one dataset.", view
)
