"""Popularity: accesses, users, bytes and CPU over time; the most used datasets; how
concentrated use is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from cmsspark.apps.dashboard import dataset_ranking, site_use, use
from cmsspark.apps.dashboard import widgets as ui
from cmsspark.apps.dashboard.dataset_ranking import DatasetRanking
from cmsspark.apps.dashboard.page_request import PageDefinition, PageRequest
from cmsspark.apps.dashboard.selection import FILTERS, Selection, choice_parameter, text_parameter
from cmsspark.apps.dashboard.series_parts import (
    choose_measure,
    cost_figures,
    list_measures,
    make_chart,
)
from cmsspark.apps.dashboard.use import (
    MEASURES,
    OF_JOBS,
    stored_columns,
    use_columns,
    with_remote_share,
)

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
    chosen = request.chosen
    notes = request.use_notes(chosen)
    measure = choose_measure(request, chosen, notes)
    group = choice_parameter(request.parameters, "by", [*FILTERS, "none"], "stream")
    by = None if group == "none" else group
    # A read can have a record in two streams: their sums say nothing, so they are lines
    # beside each other.
    is_overlapping = by == "stream" and not chosen.values("stream")
    mode = choice_parameter(
        request.parameters, "mode", list(MODES), "line" if is_overlapping else "sum"
    )
    text = text_parameter(request.parameters, "q")
    over_time = replace(chosen, measure=measure, by=by or "")
    chart = make_chart("over_time", use.series(request.snapshot, over_time), over_time)
    # What is not stacked is drawn beside each other whatever was asked for, and the
    # control says so.
    mode = mode if chart.kind == "stack" else "line"
    controls = [
        *request.period_controls(chosen),
        *request.filter_controls(chosen),
        ui.Control("measure", "Measure", measure, list_measures(request.snapshot)),
        ui.Control("by", "Group by", group, [*FILTERS.items(), ("none", "nothing")]),
        ui.Control("mode", "Draw", mode, list(MODES.items())),
    ]
    about = f"{chosen.first} to {chosen.last}: which datasets are used, and how much."
    ranking = dataset_ranking.datasets(request.snapshot, replace(chosen, measure=measure))
    if not len(ranking) and not request.parameters.get("download"):
        nothing = ui.Note(
            "Nothing was read in this period with these filters. Choose another period or fewer filters."
        )
        return ui.Content(
            "Popularity", [ui.Section("Nothing was read", [nothing])], about, controls, notes
        )
    about_streams = f"{_STREAMS_NOTE} {_JOBS_NOTE}" if request.snapshot.has_jobs else _STREAMS_NOTE
    about_top = f"Ordered by {_in_text(MEASURES[measure][0])}."
    about_top += f" Names that contain: {ui.shown(text)}" if text else ""
    search_field = ui.Search(
        "q", "Find datasets in this table", text, "datasets.json", "parts of a name, * for any"
    )
    return ui.Content(
        "Popularity",
        [
            ui.Section("In total", [_figures(request, chosen, ranking)]),
            ui.Section(
                f"{MEASURES[measure][0]} over time" + (f" by {FILTERS[by].lower()}" if by else ""),
                [in_mode(chart, mode)],
                about_streams if not chosen.values("stream") else "",
            ),
            ui.Section(
                "Most used datasets",
                [search_field, _top(request, chosen, ranking, measure, text)],
                about_top,
            ),
            *_unusual(request, chosen),
            *(
                [ui.Section("How concentrated use is", _concentration(ranking, measure))]
                if measure != "users"
                else []
            ),
        ],
        about,
        controls,
        notes,
    )


def _unusual(request: PageRequest, chosen: Selection) -> list[ui.Section]:
    """Return the days that are unlike those before; nothing where there are none."""
    rows = site_use.unusual_days(request.snapshot, chosen)
    if not rows:
        return []
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
    table = ui.Table("unusual", columns, cells, caption, limit=_UNUSUAL)
    return [ui.Section("Unusual days", [table])]


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
    counted = "job_count" if chosen.is_of_jobs or measure in OF_JOBS else "nacc"

    def make_rows(chosen_positions: Sequence[int]) -> list[tuple[Any, ...]]:
        names = ranking.names(chosen_positions)
        users = dataset_ranking.users_of_datasets(request.snapshot, chosen, names)
        sums = ranking.sums(names)
        rows = []
        for number, (name, count) in enumerate(zip(names, users, strict=True)):
            cells = with_remote_share({column: values[number] for column, values in sums.items()})
            cells |= {"share": ui.ratio(cells[counted], ranking.total), "distinct_users": count}
            rows.append(
                (
                    ui.Cell(name, request.dataset_link(name)),
                    *(cells[column.name] for column in columns[1:]),
                )
            )
        return rows

    def load(column: str, is_descending: bool, first: int, count: int) -> list[tuple[Any, ...]]:
        ordered = _ordered(request, chosen, ranking, positions, (column, is_descending))
        return make_rows(ordered[first : first + count])

    return ui.Table(
        "datasets",
        columns,
        make_rows(positions[:_PAGE]),
        "Datasets with their use in the chosen period",
        lambda: _download(request, chosen, ranking, positions),
        len(positions),
        f"No dataset of this selection has {ui.shown(text)!r} in its name.",
        bars=[column.name for column in columns].index(
            {"users": "distinct_users"}.get(measure, measure)
        ),
        limit=_PAGE,
        load=load,
    )


def _ordered(
    request: PageRequest,
    chosen: Selection,
    ranking: DatasetRanking,
    positions: list[int],
    order: tuple[str, bool],
) -> list[int]:
    """Return the positions in the order of a column; datasets without a value are last."""
    column, is_descending = order
    if not column:
        return positions
    if column == "dataset_name":
        return sorted(positions, key=ranking.names().__getitem__, reverse=is_descending)
    measure = {
        "share": "job_count" if chosen.is_of_jobs else "nacc",
        "distinct_users": "users",
    }.get(column, column)
    values: list[Any]
    if measure == "remote_share":
        sums = ranking.sums(ranking.names())
        values = list(map(ui.ratio, sums["remote_nacc"], sums["remote_known_nacc"]))
    else:
        by_measure = dataset_ranking.datasets(request.snapshot, replace(chosen, measure=measure))
        by_code = dict(zip(by_measure.codes.tolist(), by_measure.values, strict=True))
        values = [by_code.get(code) for code in ranking.codes.tolist()]
    return ui.sort_rows(positions, values.__getitem__, is_descending)


def _download(
    request: PageRequest, chosen: Selection, ranking: DatasetRanking, positions: list[int]
) -> pa.Table:
    import pyarrow as pa

    names = ranking.names(positions)
    users = dataset_ranking.users_of_datasets(request.snapshot, chosen, names) if names else []
    columns: dict[str, Any] = {
        "dataset_name": pa.array(names, pa.string()),
        "distinct_users": pa.array(users, pa.int64()),
    }
    for name, values in ranking.sums(names).items():
        fits = all(value is None or value < 1 << 63 for value in values)
        columns[name] = pa.array(values, pa.int64() if fits else pa.decimal128(38, 0))
    return pa.table(columns)


def _concentration(ranking: DatasetRanking, measure: str) -> list[Any]:
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
        return [table]
    chart = ui.Chart(
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
    return [chart]


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
