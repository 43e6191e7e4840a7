"""Dataset: its history, sites, applications, replicas beside accesses, and its last access."""

from __future__ import annotations

from typing import Any, Final

from cmsspark.apps.dashboard import dataset_use, search, use
from cmsspark.apps.dashboard.dataset_use import DatasetUse
from cmsspark.apps.dashboard.page_request import PageDefinition, PageRequest
from cmsspark.apps.dashboard.segment import SUMS
from cmsspark.apps.dashboard.selection import Selection, text_parameter
from cmsspark.apps.dashboard.series_parts import choose_measure, list_measures, make_chart
from cmsspark.apps.dashboard.use import MEASURES, OF_JOBS, Series
from cmsspark.apps.dashboard.widgets import (
    Cell,
    Column,
    Content,
    Control,
    Figure,
    Figures,
    Note,
    Section,
    Table,
    bytes_figure,
    count_figure,
    cpu_figure,
    jobs_figure,
    shown,
    si,
)
from cmsspark.base.errors import CmssparkError, InputMissing
from cmsspark.base.text.plurals import pluralize

_USE: Final = (
    Column("nacc", "Accesses", "count"),
    Column("remote_share", "Remote", "share", "remote accesses among those whose log records it"),
    Column("read_bytes", "Read", "bytes", "by accesses"),
    Column("job_count", "Jobs", "count", "jobs are not accesses"),
    Column("cpu_ms", "CPU hours", "ms", "of jobs"),
)
_REPLICAS: Final = (
    Column("site_name", "Site"),
    Column("kind", "Storage"),
    Column("present_bytes", "Bytes there", "bytes"),
    Column("present_file_count", "Files", "count"),
    Column("is_complete", "Complete", "yes", "every block of the dataset is wholly at the site"),
    Column("newest_replica_ms", "Newest replica", "instant"),
    Column("nacc", "Accesses there", "count", "accesses at this site in the chosen period"),
    Column("job_count", "Jobs there", "count", "jobs at this site in the chosen period"),
)


def view(request: PageRequest) -> Content:
    """Return the page of the dataset ``name``; without a name, a search."""
    name = text_parameter(request.parameters, "name")
    if not name:
        return _search(request)
    chosen = request.selection()
    notes = request.use_notes(chosen)
    measure = choose_measure(request, chosen, notes)
    used = dataset_use.use_of(request.snapshot, chosen, name)
    replicas, facts = _replicas(request, used, name, notes), _facts(request, name, notes)
    about = [*_holdings(replicas), *_of_dbs(facts), *_forecast(request, name, notes)]
    if used.last_access is None:
        if not replicas.rows and not facts:
            raise InputMissing(
                f"no access, job, replica or entry of DBS is stored for {shown(name)}",
                next_step="type a part of its name to find it",
            )
        notes.append(Note(f"No stored access or job has read {shown(name)}."))
    measures = list_measures(request.snapshot)
    return Content(
        shown(name),
        [
            Section("In total", [_figures(request, used, chosen)]),
            *([Section("What it is", [Figures(about)])] if about else []),
            Section(f"{MEASURES[measure][0]} over time", [_history(request, used, chosen, measure)]),
            Section("Where it is read", [_by(request, name, used.by_site, "site", "Site")]),
            Section("With what", [_by(request, name, used.by_app, "app", "Application")]),
            Section("Replicas beside accesses", [replicas]),
        ],
        f"{chosen.first} to {chosen.last}",
        [
            Control("name", "Dataset", name, kind="search", suggestions="datasets.json", wide=True),
            *request.period_controls(chosen),
            *request.filter_controls(chosen, ("stream",)),
            Control("measure", "Measure", measure, measures),
        ],
        notes,
    )


def _search(request: PageRequest) -> Content:
    result = search.suggestions(request)
    rows = [(Cell(item["name"], item["href"]), item["nacc"]) for item in result]
    columns = (Column("dataset_name", "Dataset"), Column("nacc", "Accesses", "count"))
    text = text_parameter(request.parameters, "q")
    table = Table("found", columns, rows, "Datasets by their accesses on all stored days", bars=1)
    control = Control("q", "Parts of the name", text, kind="search", suggestions="datasets.json", wide=True)
    return Content("Dataset", [Section("Most used datasets", [table])], "Choose a dataset.", [control], button="Search")


def _figures(request: PageRequest, used: DatasetUse, chosen: Selection) -> Figures:
    sums = dict(zip(SUMS, used.totals, strict=True))
    accesses = use.known_count(request.snapshot, chosen, sums["nacc"])
    last = used.last_access
    about = "or last job, on any stored day" if request.snapshot.has_jobs else "on any stored day"
    figures = [
        Figure("Last access", last.isoformat() if last else "none", about),
        count_figure("Accesses", None if chosen.is_of_jobs else accesses),
        count_figure("Distinct users", used.all_users, "of jobs" if chosen.is_of_jobs else "each person once"),
        bytes_figure("Bytes read", sums["read_bytes"]),
    ]
    if request.snapshot.has_jobs:
        figures.append(jobs_figure(sums["job_count"], sums["job_read_bytes"]))
    return Figures([*figures, cpu_figure(sums["cpu_ms"])])


def _holdings(replicas: Table) -> list[Figure]:
    """Return how much of the dataset lies on each kind of storage, and at how many sites."""
    kinds: dict[str, list[int]] = {}
    for row in replicas.rows:
        kinds.setdefault(row[1], []).append(row[2] or 0)
    return [
        Figure(f"On {kind}", si(sum(sizes), "B"), f"{sum(sizes):,} B", pluralize(len(sizes), "site"))
        for kind, sizes in sorted(kinds.items())
    ]


def _of_dbs(facts: dict[str, Any]) -> list[Figure]:
    if not facts:
        return []
    size, events = facts["dataset_bytes"], facts["events"]
    return [
        Figure("Size in DBS", si(size, "B"), f"{size:,} B" if size is not None else ""),
        count_figure("Events", events),
        Figure("State in DBS", shown(facts["access_type"]), f"as of {facts['day']}"),
    ]


def _forecast(request: PageRequest, name: str, notes: list[Note]) -> list[Figure]:
    """Return the probability that the dataset will be popular, by the newest stored forecast."""
    try:
        days = request.database.days("popularity_forecast")
        if not days:
            return []
        rows = request.database.query(
            "SELECT probability, rank FROM popularity_forecast WHERE day = ? AND dataset_name = ?", [days[-1], name]
        ).rows
    except CmssparkError as error:
        notes.append(Note(f"The forecast cannot be read: {' '.join(error.text().split())}", "bad"))
        return []
    if not rows:
        return [Figure("Forecast", "–", f"not in the forecast from {days[-1]} on")]
    return [Figure("Forecast: popular", f"{rows[0][0]:.1%}", f"from {days[-1]} on", f"rank {rows[0][1]:,}")]


def _history(request: PageRequest, used: DatasetUse, chosen: Selection, measure: str) -> Any:
    if measure == "users":
        note = "" if None not in used.users else "Users cannot be counted over days of two pseudonym keys."
        is_counted = use.counted_steps(request.snapshot, chosen, chosen.streams_of_users)
        users = [count if counted or count else None for count, counted in zip(used.users, is_counted, strict=True)]
        partial = use.partial_steps(request.snapshot, chosen)
        series = Series(chosen.buckets(), {"": users}, is_additive=False, note=note, partial=partial)
        return make_chart("history", series, "users", chosen, "all")
    return make_chart(
        "history", dataset_use.series_by_stream(request.snapshot, used, chosen, measure), measure, chosen, "stream"
    )


def _by(request: PageRequest, dataset: str, rows: list[tuple[Any, ...]], name: str, heading: str) -> Table:
    columns = _shown(request, _USE)
    last_days = dataset_use.last_at_sites(request.snapshot, dataset) if name == "site" else {}
    shown_rows: list[tuple[Any, ...]] = []
    for row in rows:
        first: Any = Cell(row[0], request.site_link(row[0])) if name == "site" else row[0]
        sums = {key: None if value is None else int(value) for key, value in zip(SUMS, row[1:], strict=True)}
        known_nacc, remote = sums["remote_known_nacc"], sums["remote_nacc"]
        sums["remote_share"] = remote / known_nacc if remote is not None and known_nacc else None  # type: ignore[assignment]
        last = (str(last_days.get(row[0], "")) or None,) if name == "site" else ()
        shown_rows.append((first, *(sums[column.name] for column in columns), *last))
    if name == "site":
        columns = (*columns, Column("last_day", "Last read", "day", "the last stored day with an access or job there"))
    columns = (Column(f"{name}_name" if name == "site" else name, heading), *columns)
    return Table(
        f"by_{name}", columns, shown_rows, f"Accesses by {heading.lower()}", empty="Not read in this period.", bars=1
    )


def _shown(request: PageRequest, columns: tuple[Column, ...]) -> tuple[Column, ...]:
    """Return the columns without those of jobs where no jobs are stored."""
    return tuple(column for column in columns if request.snapshot.has_jobs or column.name not in OF_JOBS)


def _replicas(request: PageRequest, used: DatasetUse, name: str, notes: list[Note]) -> Table:
    of_jobs = 1 + SUMS.index("job_count")
    columns = _shown(request, _REPLICAS)
    # Accesses and jobs, or accesses alone where no jobs are stored.
    read_at = {row[0]: (int(row[1] or 0), int(row[of_jobs] or 0)) for row in used.by_site}
    last = len(_REPLICAS) - len(columns)
    rows: list[tuple[Any, ...]] = []
    empty = "The newest replica snapshot has no replica of it."
    caption = "Replicas"
    try:
        days = request.database.days("dbs_phedex")
        if days:
            caption = f"Replicas as of {days[-1]}, and the accesses at the same site"
            result = request.database.query(
                "SELECT site_name, kind, present_bytes, present_file_count, is_complete, newest_replica_ms "
                "FROM dbs_phedex WHERE day = ? AND dataset_name = ? ORDER BY present_bytes DESC, site_name, kind",
                [days[-1], name],
            )
            rows = [(*row, *read_at.get(row[0], (0, 0))[: 2 - last]) for row in result.rows]
        else:
            empty = "No replicas are stored: run_spark dbs_phedex --date DAY"
    except CmssparkError as error:
        notes.append(Note(f"The replicas cannot be read: {' '.join(error.text().split())}", "bad"))
    linked = [(Cell(row[0], request.site_link(row[0])), *row[1:]) for row in rows]
    return Table("replicas", columns, linked, caption, empty=empty, bars=2)


def _facts(request: PageRequest, name: str, notes: list[Note]) -> dict[str, Any]:
    try:
        days = request.database.days("dbs_events")
        if not days:
            return {}
        result = request.database.query(
            "SELECT day, events, dataset_bytes, access_type FROM dbs_events WHERE day = ? AND dataset_name = ?",
            [days[-1], name],
        )
        return result.dicts[0] if result.dicts else {}
    except CmssparkError as error:
        notes.append(Note(f"The facts of DBS cannot be read: {' '.join(error.text().split())}", "bad"))
        return {}


PAGE = PageDefinition("Dataset", "The history, sites, applications and replicas of one dataset.", view)
