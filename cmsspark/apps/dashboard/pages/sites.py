"""Sites: what is read at each, local and remote, by application; and what lies there unused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from cmsspark.apps.dashboard import site_pairs, site_storage, site_use, use
from cmsspark.apps.dashboard.page_request import PageDefinition, PageRequest
from cmsspark.apps.dashboard.segment import SUMS
from cmsspark.apps.dashboard.selection import Selection, choice_parameter, number_parameter, text_parameter
from cmsspark.apps.dashboard.series_parts import make_chart
from cmsspark.apps.dashboard.use import OF_JOBS, Series
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
from cmsspark.base.clock import to_second
from cmsspark.base.errors import CmssparkError
from cmsspark.base.names import KINDS
from cmsspark.base.text.plurals import pluralize

T = TypeVar("T")
_WEEKS: Final = 12
#: Datasets of a page of a table.
_PAGE: Final = 20
_ABOUT_AGES: Final = "Replicas of the newest snapshot whose datasets no access and no job read there for so long."
_SUM_COLUMNS: Final = (
    Column("nacc", "Accesses", "count"),
    Column("remote_share", "Remote", "share", "remote accesses among those in rows whose log records it"),
    Column("read_bytes", "Read", "bytes", "by accesses"),
    Column("job_count", "Jobs", "count", "jobs are not accesses"),
    Column("cpu_ms", "CPU hours", "ms", "of jobs"),
)
_REMOTE: Final = (
    "An access is remote where its site has no copy on disk, or where the log names another reader. "
    "EOS and raw AAA do not record it."
)


def view(request: PageRequest) -> Content:
    """Return all sites, or the page of the site ``site``."""
    chosen = request.selection()
    site = text_parameter(request.parameters, "site")
    sites = site_use.all_sites(request.snapshot, chosen)
    names = request.snapshot.names["site_name"]
    options = [
        ("", "all sites"),
        *((name, shown(name)) for name in ([site] if site and site not in names else []) + names),
    ]
    controls = [
        Control("site", "Site", site, options),
        *request.period_controls(chosen, with_step=bool(site)),
        *request.filter_controls(chosen, ("stream",)),
    ]
    if site:
        return _site_view(request, chosen, site, controls)
    notes = request.use_notes(chosen)
    return Content(
        "Sites",
        [
            Section("What is read at each site", [_overview(request, chosen, sites)], _REMOTE),
            *(_optional(notes, "Pairs of sites", lambda: site_pairs.matrix_sections(request, chosen)) or []),
        ],
        f"{chosen.first} to {chosen.last}",
        controls,
        notes,
    )


def _overview(request: PageRequest, chosen: Selection, sites: list[tuple[Any, ...]]) -> Table:
    rows = [(Cell(row[0], request.site_link(row[0])), *_values(request, row[1:-1]), row[-1]) for row in sites]
    users = Column("distinct_users", "Users", "count", "distinct people of the whole period, each once at each site")
    columns = (Column("site_name", "Site"), *_columns(request), users)
    return Table("sites", columns, rows, "Accesses by site, as the logs name it", bars=1)


def _site_view(request: PageRequest, chosen: Selection, site: str, controls: list[Control]) -> Content:
    snapshot = request.snapshot
    weeks = number_parameter(request.parameters, "weeks", _WEEKS, 1, 520)
    kind = choice_parameter(request.parameters, "kind", KINDS, "disk")
    notes = request.use_notes(chosen)
    tiers = site_use.by_group(snapshot, chosen, site, "data_tier")
    apps = site_use.by_group(snapshot, chosen, site, "app")
    if not tiers:
        notes.append(Note(f"Nothing was read at {shown(site)} in this period."))
    controls += [
        Control("weeks", "Unused for weeks", str(weeks), kind="number", limits=("1", "520")),
        Control("kind", "Storage", kind, [(entry, entry) for entry in KINDS]),
    ]
    forecast = _optional(notes, "The forecast", lambda: site_storage.forecast_section(request, site))
    storage = _storage(request, site, kind, notes)
    return Content(
        shown(site),
        [
            Section("In total", [_figures(request, chosen, site, tiers)]),
            *([Section(f"What lies there unread, on {kind}", [Figures(storage)], _ABOUT_AGES)] if storage else []),
            Section("What is read there", [_datasets(request, chosen, site)]),
            Section("Local and remote accesses over time", [_local_remote(request, chosen, site)], _REMOTE),
            Section("By data tier", [_group_table(request, "data_tier", "Data tier", tiers)], is_half=True),
            Section("By application", [_group_table(request, "app", "Application", apps)], is_half=True),
            *(_optional(notes, "Pairs of sites", lambda: site_pairs.site_sections(request, chosen, site)) or []),
            *([forecast] if forecast is not None else []),
            Section(
                f"Replicas there that nobody read for {pluralize(weeks, 'week')}",
                _unused(request, site, weeks, kind, notes),
            ),
        ],
        f"{chosen.first} to {chosen.last}",
        controls,
        notes,
    )


def _storage(request: PageRequest, site: str, kind: str, notes: list[Note]) -> list[Figure]:
    """Return figures of what is unread by age, and of the cache that the site needs."""
    result = _optional(notes, "The replicas", lambda: site_storage.ages(request.snapshot, request.database, site, kind))
    cache = _optional(notes, "The comparison of caches", lambda: site_storage.cache_figure(request.database, site))
    return [*site_storage.age_figures(result or []), *([cache] if cache is not None else [])]


def _optional(notes: list[Note], subject: str, make: Callable[[], T]) -> T | None:
    """Return a part of the page; where its table cannot be read, None, and a note says so."""
    try:
        return make()
    except CmssparkError as error:
        notes.append(Note(f"{subject} cannot be read: {' '.join(error.text().split())}", "bad"))
        return None


def _figures(request: PageRequest, chosen: Selection, site: str, tiers: list[tuple[Any, ...]]) -> Figures:
    sums = {name: _sum(row[1 + n] for row in tiers) for n, name in enumerate(SUMS)}
    accesses = use.known_count(request.snapshot, chosen, sums["nacc"])
    remote, known_nacc = sums["remote_nacc"], sums["remote_known_nacc"]
    users = site_use.users_of_site(request.snapshot, chosen, site)
    share = f"{remote / known_nacc:.1%}" if remote is not None and known_nacc else "–"
    figures = [
        count_figure("Accesses", None if chosen.is_of_jobs else accesses),
        count_figure("Distinct users", users, "of jobs" if chosen.is_of_jobs else "each person once"),
        Figure("Remote share", share, f"{remote or 0:,} of {known_nacc or 0:,}"),
        bytes_figure("Bytes read", sums["read_bytes"]),
    ]
    if request.snapshot.has_jobs:
        figures.append(jobs_figure(sums["job_count"], sums["job_read_bytes"]))
    return Figures([*figures, cpu_figure(sums["cpu_ms"])])


def _local_remote(request: PageRequest, chosen: Selection, site: str) -> Any:
    buckets = chosen.buckets()
    position = {day: number for number, day in enumerate(buckets)}
    values: dict[str, list[int | None]] = {name: [None] * len(buckets) for name in ("local", "remote", "not known")}
    for day, *sums in site_use.over_time(request.snapshot, chosen, site):
        row = dict(zip(SUMS, sums, strict=True))
        if row["nacc"] is None:
            continue
        known_nacc, remote = int(row["remote_known_nacc"] or 0), int(row["remote_nacc"] or 0)
        at = position[day]
        values["local"][at], values["remote"][at] = known_nacc - remote, remote
        values["not known"][at] = int(row["nacc"]) - known_nacc
    use.with_zeros(request.snapshot, chosen, values, "nacc", None)
    series = Series(buckets, values, partial=use.partial_steps(request.snapshot, chosen))
    return make_chart("local_remote", series, "nacc", chosen, "locality")


def _group_table(request: PageRequest, name: str, heading: str, rows: list[tuple[Any, ...]]) -> Table:
    shown_rows = [(shown(row[0]), *_values(request, row[1:])) for row in rows]
    return Table(
        f"by_{name}", (Column(name, heading), *_columns(request)), shown_rows, f"Accesses by {heading.lower()}", bars=1
    )


def _datasets(request: PageRequest, chosen: Selection, site: str) -> Table:
    rows = site_use.top_datasets(request.snapshot, chosen, site)
    columns = (Column("dataset_name", "Dataset"), *_columns(request))

    def cells(part: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        return [(Cell(row[0], request.dataset_link(row[0])), *_values(request, row[1:])) for row in part]

    def load(column: str, is_descending: bool, first: int, count: int) -> list[tuple[Any, ...]]:
        number = next((n for n, entry in enumerate(columns) if entry.name == column), None)
        if number is None:
            return cells(rows[first : first + count])
        keyed = [(row[0] if number == 0 else _values(request, row[1:])[number - 1], row) for row in rows]
        filled = sorted(
            (entry for entry in keyed if entry[0] is not None), key=lambda entry: entry[0], reverse=is_descending
        )
        ordered = [*filled, *(entry for entry in keyed if entry[0] is None)]
        return cells([row for _, row in ordered[first : first + count]])

    def download() -> Any:
        import pyarrow as pa

        names = ("dataset_name", *SUMS)
        return pa.table([list(column) for column in zip(*rows, strict=True)] or [[]] * len(names), names=list(names))

    caption = "Datasets that are read at this site"
    return Table("datasets", columns, cells(rows[:_PAGE]), caption, download, len(rows), bars=1, limit=_PAGE, load=load)


def _unused(request: PageRequest, site: str, weeks: int, kind: str, notes: list[Note]) -> list[Any]:
    try:
        day, stored_bytes, count, rows = site_use.unused(request.snapshot, request.database, site, weeks, kind)
    except CmssparkError as error:
        notes.append(Note(f"The replicas cannot be read: {' '.join(error.text().split())}", "bad"))
        return []
    if day is None:
        return [Note("No replicas are stored: run_spark dbs_phedex --date DAY")]
    first, last = site_use.window(request.snapshot, weeks)
    size = sum(row[1] for row in rows)
    figures = Figures(
        [
            Figure("Unused there", si(size, "B"), f"{size:,} B of {stored_bytes:,} B on {kind}"),
            Figure("Datasets", f"{len(rows):,}", f"of {count:,} with a replica, as of {day}"),
            Figure("Not read", f"{sum(not any(row[3:]) for row in rows):,}", "not read at any other site either"),
        ]
    )
    columns = (
        Column("dataset_name", "Dataset"),
        Column("present_bytes", "Bytes there", "bytes"),
        Column("newest_replica_ms", "Newest replica", "day"),
        Column("nacc_elsewhere", "Accesses elsewhere", "count", "accesses at other or unknown sites in the same weeks"),
        Column("jobs_elsewhere", "Jobs elsewhere", "count", "jobs at other or unknown sites in the same weeks"),
    )
    cells = [(Cell(row[0], request.dataset_link(row[0])), row[1], _day_of(row[2]), *row[3:]) for row in rows]
    table = Table(
        "unused",
        columns,
        cells,
        f"Not read there from {first} to {last}",
        lambda: _all(columns, rows),
        bars=1,
        limit=_PAGE,
    )
    missing = [
        n
        for n in range(first.toordinal(), last.toordinal() + 1)
        if type(first).fromordinal(n) not in request.snapshot.state.runs
    ]
    warning = [
        Note(f"{len(missing):,} of these days are not stored: a dataset may have been read on one of them.", "warn")
    ]
    return [figures, *(warning if missing else []), table]


def _day_of(ms: int | None) -> str | None:
    return None if ms is None else to_second(int(ms))[:10]


def _all(columns: tuple[Column, ...], rows: list[tuple[Any, ...]]) -> Any:
    import pyarrow as pa

    return pa.table(
        [list(values) for values in zip(*rows, strict=True)] or [[]] * len(columns),
        names=[entry.name for entry in columns],
    )


def _columns(request: PageRequest) -> tuple[Column, ...]:
    """Return the columns of sums; those of jobs where any are stored."""
    return tuple(column for column in _SUM_COLUMNS if request.snapshot.has_jobs or column.name not in OF_JOBS)


def _values(request: PageRequest, sums: Any) -> tuple[Any, ...]:
    """Return the values of :func:`_columns`."""
    row: dict[str, Any] = {name: None if value is None else int(value) for name, value in zip(SUMS, sums, strict=True)}
    remote, known_nacc = row["remote_nacc"], row["remote_known_nacc"]
    row["remote_share"] = remote / known_nacc if remote is not None and known_nacc else None
    return tuple(row[column.name] for column in _columns(request))


def _sum(values: Any) -> int | None:
    numbers = [int(value) for value in values if value is not None]
    return sum(numbers) if numbers else None


PAGE = PageDefinition("Sites", "What is read at each site, and which replicas there are unused.", view)
