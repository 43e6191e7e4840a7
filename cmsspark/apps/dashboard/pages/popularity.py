"""Popularity: accesses, users, bytes and CPU over time; the most used datasets; how
concentrated use is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from cmsspark.apps.dashboard import site_use, use
from cmsspark.apps.dashboard import widgets as ui
from cmsspark.apps.dashboard.dataset_ranking import (
    concentration,
    rank_datasets,
    sum_datasets,
    users_of_datasets,
)
from cmsspark.apps.dashboard.page import (
    Page,
    choose_measure,
    cost_figures,
    make_chart,
)
from cmsspark.apps.dashboard.page_request import PageDefinition, PageRequest
from cmsspark.apps.dashboard.segment import SUMS
from cmsspark.apps.dashboard.selection import FILTERS, Selection, text_parameter
from cmsspark.apps.dashboard.tables import ratios
from cmsspark.apps.dashboard.use import (
    MEASURES,
    stored_columns,
    use_columns,
    with_remote_share,
)

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
    about = f"{chosen.first} to {chosen.last}: which datasets are used, and how much."
    ranking = rank_datasets(request.snapshot, replace(chosen, measure=measure))
    if not ranking.num_rows and not request.parameters.get("download"):
        nothing = ui.Note(
            "Nothing was read in this period with these filters. Choose another period or fewer filters."
        )
        page.section("Nothing was read", nothing)
        return page.content("Popularity", about)
    if page.needs("figures"):
        page.section("In total", _figures(request, chosen, ranking))
    title = f"{MEASURES[measure][0]} over time" + (f" by {FILTERS[by].lower()}" if by else "")
    about_streams = f"{_STREAMS_NOTE} {_JOBS_NOTE}" if request.snapshot.has_jobs else _STREAMS_NOTE
    if page.needs("over_time"):
        over_time = replace(chosen, measure=measure, by=by)
        chart = make_chart("over_time", use.series(request.snapshot, over_time), over_time)
        if chart.kind != "stack":
            # What is not stacked is drawn beside each other whatever was asked for, and
            # the field says so.
            mode = "line"
            page.controls[-1] = replace(page.controls[-1], value=mode)
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
    if page.needs("unusual"):
        page.section("Unusual days", _unusual(request, chosen))
    if measure != "users":
        page.section("How concentrated use is", _concentration(ranking["measured"], measure))
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
    cells = [(*row[:3], _rounded(row[3]), *row[4:6], _rounded(row[6])) for row in rows]
    caption = "Less than half or more than twice the usual number, the largest difference first"
    return ui.Table("unusual", columns, cells, caption, limit=_UNUSUAL)


def _rounded(value: float | None) -> int | None:
    return None if value is None else round(value)


def _figures(request: PageRequest, chosen: Selection, ranking: pa.Table) -> ui.Figures:
    sums = use.totals(request.snapshot, chosen)
    users = sums["users"]
    figures = [
        ui.count_figure("Accesses", sums["nacc"]),
        ui.count_figure("Distinct users", users, _people(chosen, users)),
        ui.count_figure("Datasets", ranking.num_rows - ranking["counted"].null_count),
        *cost_figures(request.snapshot, sums),
    ]
    return ui.Figures(figures)


def _people(chosen: Selection, users: int | None) -> str:
    if users is None:
        return "not known over two pseudonym keys"
    return "of jobs, each person once" if chosen.is_of_jobs else "each person once"


def _top(
    request: PageRequest, chosen: Selection, ranking: pa.Table, measure: str, text: str
) -> ui.Table:
    snapshot = request.snapshot
    total = pc.sum(ranking["counted"])
    columns = stored_columns(snapshot, _COLUMNS)
    # Without stored jobs the table has none of their columns.
    names = [column.name for column in columns]
    drawn = "distinct_users" if measure == "users" else measure

    def widen(rows: pa.Table, names: Collection[str]) -> pa.Table:
        numbers = rows["dataset"].to_numpy()
        added: dict[str, Any] = {"share": ratios(rows["counted"], total)}
        if "distinct_users" in names:
            users = users_of_datasets(snapshot, chosen, numbers)
            added["distinct_users"] = pa.array(users, pa.int64())
        if not {*names} <= {*added, "dataset_name"}:
            sums = with_remote_share(sum_datasets(snapshot, chosen, numbers, SUMS))
            added |= dict(zip(sums.column_names, sums.columns, strict=True))
        return pa.table({"dataset_name": snapshot.dataset_names.take(rows["dataset"]), **added})

    if text.strip():
        names = snapshot.named(ranking)["dataset_name"].to_pylist()
        ranking = ranking.take(pa.array(use.matching(names, text), pa.int64()))
    return ui.Table(
        "datasets",
        columns,
        ui.ArrowRows(ranking, widen),
        "Datasets with their use in the chosen period",
        f"No dataset of this selection has {ui.shown(text)!r} in its name.",
        bars=names.index(drawn) if drawn in names else None,
        limit=_PAGE,
    )


def _concentration(measured: pa.ChunkedArray, measure: str) -> ui.Table | ui.Chart:
    rows = concentration(measured)
    label, unit, _ = MEASURES[measure]
    kind: ui.Kind = "bytes" if unit == "B" else "ms" if unit == "h" else "count"
    table = ui.Table(
        "concentration",
        (
            ui.Column("datasets", "Largest datasets", "count"),
            ui.Column(measure, label, kind),
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
