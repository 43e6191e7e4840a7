"""The rows of stored tables for the page *Table*, and what it shows of some tables before
them: how much a cache would have missed, and how good forecasts were.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from cmsspark.apps.dashboard import widgets as ui
from cmsspark.apps.dashboard.page import pivoted, table_chart
from cmsspark.apps.dashboard.page_request import PageRequest
from cmsspark.apps.dashboard.site_use import TARGET
from cmsspark.base import schemas
from cmsspark.base.text.terminal import pluralize
from cmsspark.store.query.database import QueryResult

if TYPE_CHECKING:
    import pyarrow as pa


#: Rows of a download, and days of the chart.
DOWNLOADED, CHARTED = 200_000, 400
#: How a column is compared, in SQL; all but the last take a value.
COMPARISONS: Final = {
    "is": "{column}::VARCHAR = $value",
    "is not": "{column}::VARCHAR IS DISTINCT FROM $value",
    "contains": "contains({column}::VARCHAR, $value)",
    "at least": "{column} >= try_cast($value AS DOUBLE)",
    "at most": "{column} <= try_cast($value AS DOUBLE)",
    "is null": "{column} IS NULL",
}


class TableView(msgspec.Struct, frozen=True):
    """``sections``: what the page shows of the chosen rows. ``column`` and ``value``: the
    rows that it takes where the address has no condition. ``order``: that of the rows,
    by default the one of the table's keys. ``kinds``: of columns that are shown otherwise
    than their types say.

    ``page``: the page that the table had of its own, and its parameters of the interval and
    of ``choice``, whose column here is given.
    """

    sections: Callable[[RowQuery], list[ui.Section]]
    page: str
    interval: str
    choice: tuple[str, str]
    column: str = ""
    value: str = ""
    order: str = ""
    kinds: Mapping[str, ui.Kind] = msgspec.field(default_factory=dict)


class Condition(msgspec.Struct, frozen=True):
    """A comparison of one column with a value; without a column all rows."""

    column: str
    word: str
    value: str

    @property
    def sql(self) -> str:
        """The condition as SQL, whose value is the parameter ``$value``."""
        if not self.column:
            return "true"
        return COMPARISONS[self.word].format(column=_quoted(self.column))

    @property
    def parameters(self) -> dict[str, str]:
        """The parameters of the SQL."""
        return {"value": self.value} if "$value" in self.sql else {}


class RowQuery(msgspec.Struct, frozen=True, dict=True):
    """The rows of a day or period of a table that meet a condition."""

    request: PageRequest
    stored: schemas.Table
    interval_name: str
    names: Sequence[str]
    condition: Condition
    view: TableView | None = None

    @property
    def source(self) -> str:
        """The table in SQL."""
        return _quoted(self.stored.name)

    @property
    def interval(self) -> str:
        """The column of days or periods."""
        return "period" if "period" in self.stored.names else "day"

    def select(self, columns: str, clause: str = "") -> QueryResult:
        """Return what a query has of the rows."""
        return self.request.database.query(
            f"SELECT {columns} FROM {self.source} WHERE {self.interval}::VARCHAR = $when "
            f"AND {self.condition.sql} {clause}",
            {"when": self.interval_name, **self.condition.parameters},
            max_rows=DOWNLOADED,
        )

    @cached_property
    def num_rows(self) -> int:
        """The number of all rows."""
        return int(self.select("count(*)").rows[0][0])

    def part(self, names: Collection[str], order: ui.Order, count: int) -> pa.Table:
        """Return the rows of a page."""
        by = self._order
        if order.column:
            sign = "DESC" if order.is_descending else "ASC"
            by = f"{_quoted(order.column)} {sign} NULLS LAST, {by}"
        limit = f"LIMIT {count} OFFSET {(order.page - 1) * count}"
        return self.select(", ".join(map(_quoted, names)), f"ORDER BY {by} {limit}").table

    def every(self, names: Collection[str]) -> pa.Table:
        """Return the rows of a download."""
        clause = f"ORDER BY {self._order} LIMIT {DOWNLOADED}"
        return self.select(", ".join(map(_quoted, names)), clause).table

    @property
    def _order(self) -> str:
        """The order of rows in SQL."""
        keys = [name for name in self.stored.keys if name in self.stored.names]
        order = self.view.order if self.view else ""
        return order or ", ".join(map(_quoted, keys)) or "1"

    def table(self) -> ui.Table:
        """Return the table of rows, of which a page is read at a time."""
        by_name = {column.name: column for column in self.stored.columns}
        kinds: dict[str, ui.Kind] = {self.interval: "day"}
        kinds |= self.view.kinds if self.view else {}
        columns = [
            ui.Column(name, name, kinds.get(name) or _kind(by_name[name]), by_name[name].about)
            for name in self.names
        ]
        caption = f"Rows of {self.stored.name}; a download has up to {DOWNLOADED:,}"
        # A table of sites may have a row of all of them.
        sites = self.request.links["site_name"]
        links = {"site_name": lambda row: "" if row["site_name"] == "all" else sites(row)}
        return ui.Table("rows", columns, self, caption, "No row fits.", links=links)

    def chart(self, measure: str) -> ui.Chart:
        """Return the sums of a column by day or period, of the rows that fit."""
        answer = self.request.database.query(
            f"SELECT {self.interval}::VARCHAR, sum({_quoted(measure)}) FROM {self.source} "
            f"WHERE {self.condition.sql} GROUP BY 1 ORDER BY 1 DESC LIMIT {CHARTED}",
            self.condition.parameters,
        )
        rows = list(reversed(answer.rows))
        column = next(entry for entry in self.stored.columns if entry.name == measure)
        unit = "B" if column.unit == "bytes" else column.own_unit
        values = [None if value is None else float(value) for _, value in rows]
        named = self.interval
        columns = [ui.Column(named, named), ui.Column(measure, measure, _kind(column))]
        exact = [(str(name), value) for name, value in rows]
        return ui.Chart(
            "sums",
            f"{measure} by {named}",
            "line",
            [str(name) for name, _ in rows],
            {measure: values},
            unit,
            table=ui.Table("sums", columns, exact, f"Sums of {measure}"),
        )


def _kind(column: schemas.Column) -> ui.Kind:
    if column.type not in ("long", "int", "double"):
        return "text"
    kinds: dict[str | None, ui.Kind] = {"bytes": "bytes", "share of 1": "share"}
    return kinds.get(column.unit, "count")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


# Caches: misses by size and policy.

_MISSES: Final = (
    ui.Column("site_name", "Site"),
    ui.Column("policy", "Policy"),
    ui.Column("capacity_share", "Cache, of all bytes", "share"),
    ui.Column("capacity_bytes", "Cache", "bytes"),
    ui.Column("missed", "Bytes missed", "share", "of all requested bytes"),
    ui.Column("against_lru", "Against LRU", "change", "missed bytes against those of LRU"),
    ui.Column("bound", "Bound", "share", "no policy misses fewer; only with --bound"),
    ui.Column("request_count", "Requests", "count"),
    ui.Column("compulsory_count", "First requests", "count", "any cache misses them"),
    ui.Column("footprint_bytes", "All bytes", "bytes", "that were requested there"),
)
_ABOUT_MISSES: Final = (
    f"The dashed line is at {TARGET:.0%} of the bytes: a usual target for a cache. A request is a"
    " dataset that was read there on a day, with its whole size; caches are cold at the start."
)


def _caches(rows: RowQuery) -> list[ui.Section]:
    result = rows.select(
        "site_name, policy, capacity_share, capacity_bytes,"
        " missed_bytes / requested_bytes AS missed,"
        " missed_bytes / nullif(lru_missed_bytes, 0) - 1 AS against_lru,"
        " least_missed_bytes / requested_bytes AS bound, request_count, compulsory_count,"
        " footprint_bytes",
        "ORDER BY site_name, capacity_share, missed, policy",
    )
    if len({row[0] for row in result.rows}) != 1:
        note = ui.Note("Choose the rows of one site, such as: Where site_name is all.")
        return [ui.Section("Misses by size", [note])]
    site, *_, requests, compulsory, footprint = result.rows[0]
    figures = [
        ui.Figure("Requests", f"{requests:,}"),
        ui.Figure("First requests", f"{compulsory / requests:.1%}", "any cache misses them"),
        ui.Figure("All bytes", ui.si(footprint, "B"), f"{footprint:,} B"),
    ]
    sizes = sorted({row[3] for row in result.rows})
    missed = [(row[3], row[1], 100 * row[4]) for row in result.rows]
    missed += [(row[3], "bound", 100 * row[6]) for row in result.rows if row[6] is not None]
    # Every policy has the bound of its size.
    series = pivoted(dict.fromkeys(missed), sizes)
    chart = ui.Chart(
        "misses",
        "Bytes missed by the size of the cache",
        "line",
        [ui.si(size, "B") for size in sizes],
        series,
        "%",
        "Size of the cache",
        "Bytes missed",
        is_log_x=True,
        table=ui.Table("caches", _MISSES, result.table, "Misses by size and policy"),
        x_values=sizes,
        target=100 * TARGET,
    )
    name = "all sites together, as if they shared one cache" if site == "all" else ui.shown(site)
    return [ui.Section(f"Misses by size: {name}", [ui.Figures(figures), chart], _ABOUT_MISSES)]


# Forecasts: how many datasets are probably popular, and how good such forecasts were.

_BASELINES: Final = ("persistence", "last-week", "decayed")
_QUALITY: Final = (
    ui.Column("first_day", "Week from", "day"),
    ui.Column("model", "Model"),
    ui.Column("dataset_count", "Datasets", "count"),
    ui.Column("popular_share", "Were popular", "share"),
    ui.Column("average_precision", "Average precision", "share"),
    ui.Column("average_precision_low", "From", "share", "5 % of the resamplings are below"),
    ui.Column("average_precision_high", "To", "share"),
    ui.Column("brier", "Brier score", "share", "mean squared distance from what happened"),
    ui.Column("tpr", "Found", "share", "of the popular datasets, by a probability of 50 %"),
    ui.Column("tnr", "Rightly not", "share", "of the others"),
)
_ABOUT_QUALITY: Final = (
    "persistence: what was popular before, in as many weeks, is predicted to be popular again;"
    " last-week, decayed: by the accesses, or bytes, of the last week, or of the last days."
)


def _forecast(rows: RowQuery) -> list[ui.Section]:
    count, likely, threshold, label, model = rows.select(
        "count(*), count(*) FILTER (probability >= 0.5), max(threshold), max(label), max(model)"
    ).rows[0]
    if not count:
        none = [ui.Note("The forecast has no such dataset.")]
        return [ui.Section("In total", none), _quality(rows)]
    sql = f"SELECT max(rank) FROM {rows.source} WHERE day::VARCHAR = $when"
    ranks = rows.request.values(sql, {"when": rows.interval_name})[0]
    among = f"of the first {ranks:,} datasets by rank"
    if count < ranks:
        among = f"of the {pluralize(count, 'row')} of this selection among the first {ranks:,} datasets by rank"
    means = "by bytes" if threshold is None else f"> {threshold:,.15g}"
    figures = [
        ui.Figure("Probably popular", f"{likely:,}", among),
        ui.Figure("Popular means", means, label or "accesses in the week"),
        ui.Figure("Model", ui.shown(model)),
    ]
    command = f"cmsspark ask will-be-popular --date {rows.interval_name}"
    total = ui.Section("In total", [ui.Figures(figures)], command=command)
    return [total, _quality(rows)]


def _quality(rows: RowQuery) -> ui.Section:
    title = "How good such forecasts were"
    is_stratum = rows.condition.column == "stratum" and rows.condition.word == "is"
    judged = rows.request.database.query(
        f"SELECT {', '.join(column.name for column in _QUALITY)} FROM popularity_quality "
        "WHERE day::VARCHAR = $when AND stratum = $stratum ORDER BY first_day, model",
        {"when": rows.interval_name, "stratum": rows.condition.value if is_stratum else "all"},
    )
    if not judged.rows:
        reason = "the store had too few days before the forecast, or --judged was 0"
        return ui.Section(title, [ui.Note(f"No past week was judged: {reason}.")])
    caption = "Past weeks, each predicted from the days before it"
    table = ui.Table("quality", _QUALITY, judged.table, caption)
    chart = table_chart(table, "first_day", "model", "average_precision", kind="line", unit="%")
    chart = replace(chart, name="precision", title="Average precision by week")
    return ui.Section(title, [*_warnings(judged.rows), chart], _ABOUT_QUALITY)


def _warnings(rows: list[tuple[Any, ...]]) -> list[ui.Note]:
    """Return a warning where a baseline had a higher average precision than the model
    in the mean of the weeks.
    """
    values: dict[str, list[float]] = {}
    for row in rows:
        if row[4] is not None:
            values.setdefault(row[1], []).append(row[4])
    means = {name: sum(of_weeks) / len(of_weeks) for name, of_weeks in values.items()}
    return [
        ui.Note(
            f"Warning: the baseline {name} was better than {model}: {means[name]:.1%} against {means[model]:.1%}."
        )
        for model in means.keys() - {*_BASELINES}
        for name in _BASELINES
        if round(means.get(name, 0), 3) > round(means[model], 3)
    ]


#: Stored table → what the page shows of it.
VIEWS: Final[Mapping[str, TableView]] = {
    "cache_comparison": TableView(
        _caches, "caches", "period", ("site", "site_name"), column="site_name", value="all"
    ),
    "popularity_forecast": TableView(
        _forecast,
        "forecasts",
        "day",
        ("stratum", "stratum"),
        order="rank",
        kinds={"probability": "share", "raw_probability": "share"},
    ),
}


def moved(page: str, parameters: Mapping[str, str]) -> dict[str, str] | None:
    """Return the parameters of the page *Table* for the address of a page that a table had
    of its own; None for another page.
    """
    for table, view in VIEWS.items():
        if view.page == page:
            address = {"table": table, "when": parameters.get(view.interval, "")}
            name, column = view.choice
            if parameters.get(name, "all") != "all":
                address |= {"where": column, "is": "is", "value": parameters[name]}
            return {name: value for name, value in address.items() if value}
    return None
