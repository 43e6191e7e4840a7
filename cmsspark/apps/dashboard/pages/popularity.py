"""Popularity: accesses, users, bytes and CPU over time; the most used datasets; how concentrated use is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cmsspark.apps.dashboard import dataset_ranking, search, use
from cmsspark.apps.dashboard.dataset_ranking import DatasetRanking
from cmsspark.apps.dashboard.page_request import PageDefinition, PageRequest
from cmsspark.apps.dashboard.selection import FILTERS, Selection, choice_parameter, number_parameter, text_parameter
from cmsspark.apps.dashboard.series_parts import chart_of, measure_controls, measure_of
from cmsspark.apps.dashboard.use import MEASURES, OF_JOBS
from cmsspark.apps.dashboard.widgets import (
    Cell,
    Chart,
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
    si,
)

if TYPE_CHECKING:
    import pyarrow as pa

_GROUPS: Final = {name: label for name, label in FILTERS.items()}
_COLUMNS: Final = (
    Column("dataset_name", "Dataset"),
    Column("nacc", "Accesses", "count"),
    Column("share", "Share", "share", "of all accesses of this selection; of its jobs where it is about these"),
    Column("distinct_users", "Users", "count", "distinct people of the whole period, each counted once"),
    Column("read_bytes", "Read", "bytes", "by accesses"),
    Column("remote_share", "Remote", "share", "remote accesses among those whose log records it"),
    Column("job_count", "Jobs", "count", "jobs are not accesses"),
    Column("job_read_bytes", "Read by jobs", "bytes"),
    Column("cpu_ms", "CPU hours", "ms", "of jobs"),
)
_STREAMS_NOTE: Final = (
    "Accesses are log records of all streams. One read can have a record in two streams, so choose a stream to compare."
)
_JOBS_NOTE: Final = "Jobs and their users are not accesses and are never added to them."


def view(request: PageRequest) -> Content:
    """The page for the address's period, filters, measure and grouping."""
    chosen = request.selection()
    notes = request.use_notes(chosen)
    measure = measure_of(request, chosen, notes)
    group = choice_parameter(request.parameters, "by", [*_GROUPS, "none"], "stream")
    by = None if group == "none" else group
    series = use.series(request.snapshot, chosen, measure, by)
    ranked = measure if measure != "users" else "job_count" if chosen.is_of_jobs else "nacc"
    ranking = dataset_ranking.datasets(request.snapshot, chosen, ranked)
    if chosen.value("stream") is None:
        notes.append(Note(f"{_STREAMS_NOTE} {_JOBS_NOTE}" if request.snapshot.has_jobs else _STREAMS_NOTE))
    text = text_parameter(request.parameters, "q")
    return Content(
        "Popularity",
        [
            Section("In total", [_figures(request, chosen, ranking)]),
            Section(
                f"{MEASURES[measure][0]} over time" + (f" by {_GROUPS[by].lower()}" if by else ""),
                [chart_of("over_time", series, measure, chosen, by or "all")],
            ),
            Section("Most used datasets", [_top(request, chosen, ranking, ranked, text)], _about_top(ranked, text)),
            Section("How concentrated use is", _concentration(ranking, ranked)),
        ],
        f"{chosen.first} to {chosen.last}: which datasets are used, and how much.",
        [
            *request.period_controls(chosen),
            *request.filter_controls(chosen),
            *measure_controls(request, measure, group, _GROUPS),
            Control("q", "Find datasets", text, kind="search", suggestions="datasets.json", wide=True),
        ],
        notes,
    )


def _figures(request: PageRequest, chosen: Selection, ranking: DatasetRanking) -> Figures:
    sums = use.totals(request.snapshot, chosen)
    users = sums["users"]
    figures = [
        count_figure("Accesses", sums["nacc"]),
        Figure("Distinct users", si(users), _people(chosen, users)),
        Figure("Datasets", si(ranking.used), f"{ranking.used:,}"),
        bytes_figure("Bytes read", sums["read_bytes"]),
    ]
    if request.snapshot.has_jobs:
        figures.append(count_figure("Jobs", sums["job_count"]))
        figures.append(bytes_figure("Bytes read by jobs", sums["job_read_bytes"]))
    return Figures([*figures, cpu_figure(sums["cpu_ms"])])


def _people(chosen: Selection, users: int | None) -> str:
    if users is None:
        return "two pseudonym keys"
    return "of jobs, each person once" if chosen.is_of_jobs else "each person once"


def _about_top(measure: str, text: str) -> str:
    about = f"Ordered by {MEASURES[measure][0].lower()}."
    return f"{about} Names that contain: {text}" if text else about


def _top(request: PageRequest, chosen: Selection, ranking: DatasetRanking, measure: str, text: str) -> Table:
    limit = number_parameter(request.parameters, "top", 20, 1, 500)
    positions = search.matching(ranking.names(), text) if text.strip() else list(range(len(ranking)))
    names = ranking.names(positions[:limit])
    users = dataset_ranking.users_of_datasets(request.snapshot, chosen, names)
    sums = ranking.sums(names)
    columns = _COLUMNS if request.snapshot.has_jobs else [one for one in _COLUMNS if one.name not in OF_JOBS]
    counted = "job_count" if chosen.is_of_jobs or measure in OF_JOBS else "nacc"
    period = {"from": chosen.first, "to": chosen.last}
    rows = []
    for number, (name, count) in enumerate(zip(names, users, strict=True)):
        link = Cell(name, request.link("dataset", name=name, **period))
        own = {column: values[number] for column, values in sums.items()}
        shown_values = _values(own, count, counted, ranking.total)
        rows.append((link, *(shown_values[column.name] for column in columns[1:])))
    return Table(
        "datasets",
        columns,
        rows,
        "Datasets with their use in the chosen period",
        lambda: _download(request, chosen, ranking, positions),
        len(positions),
        f"No dataset of this selection has {text!r} in its name." if text else "Nothing was read in this selection.",
        bars=[column.name for column in columns].index(measure),
    )


def _values(sums: dict[str, int | None], users: int | None, counted: str, total: int) -> dict[str, Any]:
    """Column → value. ``counted``: the column of ``total``."""
    remote, known, count = sums["remote_nacc"], sums["remote_known_nacc"], sums[counted]
    return {
        **sums,
        "share": count / total if total and count is not None else None,
        "distinct_users": users,
        "remote_share": remote / known if remote is not None and known else None,
    }


def _download(request: PageRequest, chosen: Selection, ranking: DatasetRanking, positions: list[int]) -> pa.Table:
    import pyarrow as pa

    names = ranking.names(positions)
    users = dataset_ranking.users_of_datasets(request.snapshot, chosen, names) if names else []
    columns: dict[str, Any] = {
        "dataset_name": pa.array(names, pa.string()), "distinct_users": pa.array(users, pa.int64())
    }  # fmt: skip
    for name, values in ranking.sums(names).items():
        fits = all(value is None or value < 1 << 63 for value in values)
        columns[name] = pa.array(values, pa.int64() if fits else pa.decimal128(38, 0))
    return pa.table(columns)


def _concentration(ranking: DatasetRanking, measure: str) -> list[Any]:
    rows = dataset_ranking.concentration(ranking)
    label, unit, _ = MEASURES[measure]
    kind = {"B": "bytes", "h": "ms"}.get(unit, "count")
    table = Table(
        "concentration",
        (
            Column("datasets", "Largest datasets", "count"),
            Column(measure, label, kind),  # type: ignore[arg-type]
            Column("share", "Share of all", "share"),
        ),
        rows,
        f"The share of {label.lower()} that the largest N datasets hold",
    )
    if not rows:
        return [table]
    chart = Chart(
        "concentration",
        f"Share of {label.lower()} in the N most used datasets",
        "line",
        [f"{number:,}" for number, _, _ in rows],
        {"share": [100 * share for _, _, share in rows]},
        "%",
        "Number of datasets, most used first",
        f"Share of {label.lower()}",
        table=table,
    )
    return [chart]


PAGE = PageDefinition("Popularity", "Which datasets are used, over time and in total.", view)
