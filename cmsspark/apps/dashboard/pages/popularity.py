"""Popularity: accesses, users, bytes and CPU over time; the most used datasets; how
concentrated use is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from cmsspark.apps.dashboard import dataset_ranking, site_use, use
from cmsspark.apps.dashboard import widgets as ui
from cmsspark.apps.dashboard.dataset_ranking import (
    DatasetRanking,
    to_integers,
    users_of_datasets,
)
from cmsspark.apps.dashboard.page import (
    Page,
    choose_measure,
    cost_figures,
    make_chart,
)
from cmsspark.apps.dashboard.page_request import PageDefinition, PageRequest
from cmsspark.apps.dashboard.selection import FILTERS, Selection, text_parameter
from cmsspark.apps.dashboard.use import MEASURES, OF_JOBS, stored_columns, use_columns

if TYPE_CHECKING:
    import pyarrow as pa

_COLUMNS: Final = (
    ui.Column("dataset_name", "Dataset"),
    *use_columns("nacc"),
    ui.Column(
        "share",
        "Share",
        "share",
        "of all accesses of this selection; of its jobs where it is about these",
    ),
    ui.Column(
        "distinct_users",
        "Users",
        "count",
        "distinct people of the whole period, each counted once",
    ),
    *use_columns("read_bytes", "remote_share", "job_count", "job_read_bytes", "cpu_ms"),
)
#: Datasets of a page of the table.
_PAGE: Final = 20
#: Unusual days that the page shows.
_UNUSUAL: Final = 5
_STREAMS_NOTE: Final = "Accesses are log records of all streams. One read can have a record in two streams, so choose a stream to compare."
_JOBS_NOTE: Final = "Jobs and their users are not accesses and are never added to them."
#: How values over time are drawn: on each other, beside each other, or as shares of each step.
MODES: Final[Mapping[str, str]] = {"sum": "sums", "line": "lines", "share": "shares"}


def view(request: PageRequest) -> ui.Content:
    """Return the page for the address's period, filters, measure and grouping."""
    chosen, page = request.chosen, Page(request)
    page.notes += request.use_notes(chosen)
    page.period(chosen)
    page.filters(chosen)
    measure = choose_measure(page, chosen)
    group = page.choose("by", "Group by", {**FILTERS, "none": "nothing"}, "stream")
    by = "" if group == "none" else group
    # A read can have a record in two streams: their sums say nothing, so they are lines
    # beside each other.
    is_overlapping = by == "stream" and not chosen.values("stream")
    mode = page.choose("mode", "Draw", MODES, "line" if is_overlapping else "sum")
    text = text_parameter(request.parameters, "q")
    over_time = replace(chosen, measure=measure, by=by)
    chart = make_chart("over_time", use.series(request.snapshot, over_time), over_time)
    if chart.kind != "stack":
        # What is not stacked is drawn beside each other whatever was asked for, and the
        # field says so.
        mode = "line"
        page.controls[-1] = replace(page.controls[-1], value=mode)
    about = f"{chosen.first} to {chosen.last}: which datasets are used, and how much."
    ranking = dataset_ranking.datasets(request.snapshot, replace(chosen, measure=measure))
    if not len(ranking) and not request.parameters.get("download"):
        nothing = ui.Note(
            "Nothing was read in this period with these filters. Choose another period or fewer filters."
        )
        page.section("Nothing was read", nothing)
        return page.content("Popularity", about)
    page.section("In total", _figures(request, chosen, ranking))
    title = f"{MEASURES[measure][0]} over time" + (f" by {FILTERS[by].lower()}" if by else "")
    about_streams = f"{_STREAMS_NOTE} {_JOBS_NOTE}" if request.snapshot.has_jobs else _STREAMS_NOTE
    page.section(
        title, in_mode(chart, mode), about="" if chosen.values("stream") else about_streams
    )
    about_top = f"Ordered by {_in_text(MEASURES[measure][0])}."
    about_top += f" Names that contain: {ui.shown(text)}" if text else ""
    search_field = ui.Search(
        "q", "Find datasets in this table", text, "datasets.json", "parts of a name, * for any"
    )
    top = _top(request, chosen, ranking, measure, text)
    page.section("Most used datasets", search_field, top, about=about_top)
    page.section("Unusual days", _unusual(request, chosen))
    if measure != "users":
        page.section("How concentrated use is", _concentration(ranking, measure))
    return page.content("Popularity", about)


def _unusual(request: PageRequest, chosen: Selection) -> ui.Table | None:
    """Return the days that are unlike those before; None where there are none."""
    rows = site_use.unusual_days(request.snapshot, chosen)
    if not rows:
        return None
    columns = (
        ui.Column("day", "Day", "day"),
        ui.Column("stream", "Stream"),
        ui.Column("count", "Accesses or jobs", "count"),
        ui.Column(
            "usual", "Usual", "count", "the median of the same weekday in the four weeks before"
        ),
        ui.Column("site_name", "Site behind it", "text", "whose number differs most"),
        ui.Column("site_count", "Its number", "count"),
        ui.Column("site_usual", "Usual there", "count"),
    )
    cells = [
        (
            *(str(row[0]), row[1], row[2], _rounded(row[3])),
            *(row[4] and ui.Cell(ui.shown(row[4]), request.site_link(row[4])), row[5]),
            _rounded(row[6]),
        )
        for row in rows
    ]
    caption = "Less than half or more than twice the usual number, the largest difference first"
    return ui.Table("unusual", columns, cells, caption, limit=_UNUSUAL)


def _rounded(value: float | None) -> int | None:
    return None if value is None else round(value)


def _figures(request: PageRequest, chosen: Selection, ranking: DatasetRanking) -> ui.Figures:
    sums = use.totals(request.snapshot, chosen)
    users = sums["users"]
    figures = [
        ui.count_figure("Accesses", sums["nacc"]),
        ui.count_figure("Distinct users", users, _people(chosen, users)),
        ui.count_figure("Datasets", ranking.used),
        *cost_figures(request.snapshot, sums),
    ]
    return ui.Figures(figures)


def _people(chosen: Selection, users: int | None) -> str:
    if users is None:
        return "not known over two pseudonym keys"
    return "of jobs, each person once" if chosen.is_of_jobs else "each person once"


def _top(
    request: PageRequest, chosen: Selection, ranking: DatasetRanking, measure: str, text: str
) -> ui.Table:
    positions = use.matching(ranking.names(), text) if text.strip() else list(range(len(ranking)))
    columns = stored_columns(request.snapshot, _COLUMNS)

    def make_rows(part: Sequence[int]) -> list[tuple[Any, ...]]:
        cells = _cells(request, chosen, ranking, part, [column.name for column in columns[1:]])
        names = [ui.Cell(name, request.dataset_link(name)) for name in ranking.names(part)]
        return list(zip(names, *cells, strict=True))

    def values(column: str) -> Sequence[Any]:
        if column == "dataset_name":
            return ranking.names(positions)
        return _cells(request, chosen, ranking, positions, [column])[0]

    return ui.Table(
        "datasets",
        columns,
        (),
        "Datasets with their use in the chosen period",
        lambda: _download(request, chosen, ranking, positions),
        len(positions),
        f"No dataset of this selection has {ui.shown(text)!r} in its name.",
        bars=[column.name for column in columns].index(
            {"users": "distinct_users"}.get(measure, measure)
        ),
        limit=_PAGE,
        load=ui.loader(positions, make_rows, values),
    )


def _cells(
    request: PageRequest,
    chosen: Selection,
    ranking: DatasetRanking,
    positions: Sequence[int],
    columns: Sequence[str],
) -> list[Sequence[Any]]:
    """Return the values of columns for the datasets at some positions."""
    sums: dict[str, list[Any]]
    sums = {name: to_integers(values) for name, values in _sums(ranking, positions).items()}
    counted = "job_count" if chosen.is_of_jobs or ranking.chosen.measure in OF_JOBS else "nacc"
    sums["remote_share"] = list(map(ui.ratio, sums["remote_nacc"], sums["remote_known_nacc"]))
    sums["share"] = [ui.ratio(count, ranking.total) for count in sums[counted]]
    if "distinct_users" in columns:
        codes = ranking.codes[positions]
        sums["distinct_users"] = users_of_datasets(request.snapshot, chosen, codes)
    return [sums[name] for name in columns]


def _sums(ranking: DatasetRanking, positions: Sequence[int]) -> dict[str, Any]:
    sums = ranking.sums(positions)
    return dict(zip(sums.column_names, sums.columns, strict=True))


def _download(
    request: PageRequest, chosen: Selection, ranking: DatasetRanking, positions: list[int]
) -> pa.Table:
    import pyarrow as pa

    users = users_of_datasets(request.snapshot, chosen, ranking.codes[positions])
    columns: dict[str, Any] = {
        "dataset_name": pa.array(ranking.names(positions), pa.string()),
        "distinct_users": pa.array(users, pa.int64()),
    }
    return pa.table(columns | _sums(ranking, positions))


def _concentration(ranking: DatasetRanking, measure: str) -> ui.Table | ui.Chart:
    rows = dataset_ranking.concentration(ranking)
    label, unit, _ = MEASURES[measure]
    kind = {"B": "bytes", "h": "ms"}.get(unit, "count")
    table = ui.Table(
        "concentration",
        (
            ui.Column("datasets", "Largest datasets", "count"),
            ui.Column(measure, label, kind),  # type: ignore[arg-type]
            ui.Column("share", "Share of all", "share"),
        ),
        rows,
        f"The share of {_in_text(label)} that the largest N datasets hold",
    )
    if not rows:
        return table
    return ui.Chart(
        "concentration",
        f"Share of {_in_text(label)} in the N most used datasets",
        "line",
        [f"{number:,}" for number, _, _ in rows],
        {"share": [100 * share for _, _, share in rows]},
        "%",
        "Number of datasets, most used first",
        f"Share of {_in_text(label)}",
        table=table,
    )


def _in_text(label: str) -> str:
    """Return the label of a measure inside a text: ``bytes read``, but ``CPU hours``."""
    return label if label[:2].isupper() else label[:1].lower() + label[1:]


def in_mode(chart: ui.Chart, mode: str) -> ui.Chart:
    """Return the chart in a mode. What does not add up, such as users, has no sums and no shares."""
    if chart.kind != "stack" or mode == "sum":
        return chart
    if mode == "line":
        return replace(chart, kind="line")
    totals = [
        sum(value or 0 for value in step) for step in zip(*chart.series.values(), strict=True)
    ]
    shares = {
        name: [
            None if value is None or not total else 100 * value / total
            for value, total in zip(values, totals, strict=True)
        ]
        for name, values in chart.series.items()
    }
    return replace(chart, series=shares, unit="%", y_title=f"Share of {_in_text(chart.y_title)}")


PAGE = PageDefinition("Popularity", "Which datasets are used, over time and in total.", view)
