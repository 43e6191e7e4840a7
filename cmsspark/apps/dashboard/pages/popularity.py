"""Popularity: accesses, users, bytes and CPU over time; the most used datasets; how concentrated use is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from cmsspark.apps.dashboard import dataset_ranking, search, use
from cmsspark.apps.dashboard.dataset_ranking import DatasetRanking
from cmsspark.apps.dashboard.page_request import PageDefinition, PageRequest
from cmsspark.apps.dashboard.selection import FILTERS, Selection, choice_parameter, text_parameter
from cmsspark.apps.dashboard.series_parts import choose_measure, make_chart, measure_controls
from cmsspark.apps.dashboard.use import MEASURES, OF_JOBS
from cmsspark.apps.dashboard.widgets import (
    Cell,
    Chart,
    Column,
    Content,
    Control,
    Figures,
    Note,
    Search,
    Section,
    Table,
    bytes_figure,
    count_figure,
    cpu_figure,
    jobs_figure,
    shown,
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
#: Datasets of a page of the table.
_PAGE: Final = 20
_STREAMS_NOTE: Final = (
    "Accesses are log records of all streams. One read can have a record in two streams, so choose a stream to compare."
)
_JOBS_NOTE: Final = "Jobs and their users are not accesses and are never added to them."
#: How values over time are drawn: on each other, beside each other, or as shares of each step.
MODES: Final[Mapping[str, str]] = {"sum": "sums", "line": "lines", "share": "shares"}


def view(request: PageRequest) -> Content:
    """Return the page for the address's period, filters, measure and grouping."""
    chosen = request.selection()
    notes = request.use_notes(chosen)
    measure = choose_measure(request, chosen, notes)
    group = choice_parameter(request.parameters, "by", [*_GROUPS, "none"], "stream")
    by = None if group == "none" else group
    # A read can have a record in two streams: their sums say nothing, so they are lines beside each other.
    is_overlapping = by == "stream" and not chosen.values("stream")
    mode = choice_parameter(request.parameters, "mode", list(MODES), "line" if is_overlapping else "sum")
    text = text_parameter(request.parameters, "q")
    controls = [
        *request.period_controls(chosen),
        *request.filter_controls(chosen),
        *measure_controls(request, measure, group, _GROUPS),
        Control("mode", "Draw", mode, list(MODES.items())),
    ]
    about = f"{chosen.first} to {chosen.last}: which datasets are used, and how much."
    ranking = dataset_ranking.datasets(request.snapshot, chosen, measure)
    if not len(ranking) and not request.parameters.get("download"):
        nothing = Note("Nothing was read in this period with these filters. Choose another period or fewer filters.")
        return Content("Popularity", [Section("Nothing was read", [nothing])], about, controls, notes)
    series = use.series(request.snapshot, chosen, measure, by)
    chart = in_mode(make_chart("over_time", series, measure, chosen, by or "all"), mode)
    search_field = Search("q", "Find datasets in this table", text, "datasets.json", "parts of a name, * for any")
    return Content(
        "Popularity",
        [
            Section("In total", [_figures(request, chosen, ranking)]),
            Section(
                f"{MEASURES[measure][0]} over time" + (f" by {_GROUPS[by].lower()}" if by else ""),
                [chart],
                _about_streams(request) if not chosen.values("stream") else "",
            ),
            Section(
                "Most used datasets",
                [search_field, _top(request, chosen, ranking, measure, text)],
                _about_top(measure, text),
            ),
            *([Section("How concentrated use is", _concentration(ranking, measure))] if measure != "users" else []),
        ],
        about,
        controls,
        notes,
    )


def _figures(request: PageRequest, chosen: Selection, ranking: DatasetRanking) -> Figures:
    sums = use.totals(request.snapshot, chosen)
    users = sums["users"]
    figures = [
        count_figure("Accesses", sums["nacc"]),
        count_figure("Distinct users", users, _people(chosen, users)),
        count_figure("Datasets", ranking.used),
        bytes_figure("Bytes read", sums["read_bytes"]),
    ]
    if request.snapshot.has_jobs:
        figures.append(jobs_figure(sums["job_count"], sums["job_read_bytes"]))
    return Figures([*figures, cpu_figure(sums["cpu_ms"])])


def _about_streams(request: PageRequest) -> str:
    return f"{_STREAMS_NOTE} {_JOBS_NOTE}" if request.snapshot.has_jobs else _STREAMS_NOTE


def _people(chosen: Selection, users: int | None) -> str:
    if users is None:
        return "not known over two pseudonym keys"
    return "of jobs, each person once" if chosen.is_of_jobs else "each person once"


def _about_top(measure: str, text: str) -> str:
    about = f"Ordered by {MEASURES[measure][0].lower()}."
    return f"{about} Names that contain: {shown(text)}" if text else about


def _top(request: PageRequest, chosen: Selection, ranking: DatasetRanking, measure: str, text: str) -> Table:
    positions = search.matching(ranking.names(), text) if text.strip() else list(range(len(ranking)))
    columns = _COLUMNS if request.snapshot.has_jobs else [entry for entry in _COLUMNS if entry.name not in OF_JOBS]
    counted = "job_count" if chosen.is_of_jobs or measure in OF_JOBS else "nacc"

    def values_of(chosen_positions: Sequence[int]) -> list[tuple[Any, ...]]:
        names = ranking.names(chosen_positions)
        users = dataset_ranking.users_of_datasets(request.snapshot, chosen, names)
        sums = ranking.sums(names)
        rows = []
        for number, (name, count) in enumerate(zip(names, users, strict=True)):
            cells = _values({column: values[number] for column, values in sums.items()}, count, counted, ranking.total)
            rows.append((Cell(name, request.dataset_link(name)), *(cells[column.name] for column in columns[1:])))
        return rows

    def load(column: str, is_descending: bool, first: int, count: int) -> list[tuple[Any, ...]]:
        ordered = _ordered(request, chosen, ranking, positions, (column, is_descending))
        return values_of(ordered[first : first + count])

    return Table(
        "datasets",
        columns,
        values_of(positions[:_PAGE]),
        "Datasets with their use in the chosen period",
        lambda: _download(request, chosen, ranking, positions),
        len(positions),
        f"No dataset of this selection has {shown(text)!r} in its name.",
        bars=[column.name for column in columns].index({"users": "distinct_users"}.get(measure, measure)),
        limit=_PAGE,
        load=load,
    )


def _ordered(
    request: PageRequest, chosen: Selection, ranking: DatasetRanking, positions: list[int], order: tuple[str, bool]
) -> list[int]:
    """Return the positions in the order of a column; datasets without a value are last."""
    column, is_descending = order
    if not column:
        return positions
    if column == "dataset_name":
        return sorted(positions, key=ranking.names().__getitem__, reverse=is_descending)
    measure = {"share": "job_count" if chosen.is_of_jobs else "nacc", "distinct_users": "users"}.get(column, column)
    values: list[Any]
    if measure == "remote_share":
        sums = ranking.sums(ranking.names())
        values = [
            None if remote is None or not known_nacc else remote / known_nacc
            for remote, known_nacc in zip(sums["remote_nacc"], sums["remote_known_nacc"], strict=True)
        ]
    else:
        by_measure = dataset_ranking.datasets(request.snapshot, chosen, measure)
        by_code = dict(zip(by_measure.codes.tolist(), by_measure.values, strict=True))
        values = [by_code.get(code) for code in ranking.codes.tolist()]
    filled = [position for position in positions if values[position] is not None]
    empty = [position for position in positions if values[position] is None]
    return [*sorted(filled, key=lambda position: values[position], reverse=is_descending), *empty]


def _values(sums: dict[str, int | None], users: int | None, counted: str, total: int) -> dict[str, Any]:
    """Column → value. ``counted``: the column of ``total``."""
    remote, known_nacc, count = sums["remote_nacc"], sums["remote_known_nacc"], sums[counted]
    return {
        **sums,
        "share": count / total if total and count is not None else None,
        "distinct_users": users,
        "remote_share": remote / known_nacc if remote is not None and known_nacc else None,
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


def in_mode(chart: Chart, mode: str) -> Chart:
    """Return the chart in a mode. What does not add up, such as users, has no sums and no shares."""
    if chart.kind != "stack" or mode == "sum":
        return chart
    if mode == "line":
        return replace(chart, kind="line")
    totals = [sum(value or 0 for value in step) for step in zip(*chart.series.values(), strict=True)]
    shares = {
        name: [
            None if value is None or not total else 100 * value / total
            for value, total in zip(values, totals, strict=True)
        ]
        for name, values in chart.series.items()
    }
    return replace(chart, series=shares, unit="%", y_title=f"Share of {chart.y_title[:1].lower()}{chart.y_title[1:]}")


PAGE = PageDefinition("Popularity", "Which datasets are used, over time and in total.", view)
