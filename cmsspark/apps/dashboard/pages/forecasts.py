"""Forecasts: which datasets will probably be popular, and how good such forecasts were,
from the stored forecast.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Any, Final

from cmsspark.apps.dashboard import widgets as ui
from cmsspark.apps.dashboard.page_request import PageDefinition, PageRequest
from cmsspark.apps.dashboard.selection import choice_parameter, day_parameter
from cmsspark.base.errors import InputMissing
from cmsspark.base.text.terminal import pluralize

_SHOWN: Final = 25
_STRATA: Final = ("all", "active", "dormant", "new")
_DATASETS: Final = (
    ui.Column("rank", "Rank", "count"),
    ui.Column("dataset_name", "Dataset"),
    ui.Column(
        "probability",
        "Popular",
        "share",
        "probability to be popular, as the figure above says what that is",
    ),
    ui.Column("expected_nacc", "Expected accesses", "count", "in the predicted weeks"),
    ui.Column("nacc_p10", "10 %", "count", "one in ten has fewer accesses"),
    ui.Column("nacc_p90", "90 %", "count", "nine in ten have fewer"),
    ui.Column("expected_bytes", "Expected bytes read", "bytes"),
    ui.Column("last_week_nacc", "Accesses last week", "count"),
    ui.Column(
        "basis",
        "Rests on",
        "text",
        "use, siblings, creation in DBS, or unknown: then there is no probability",
    ),
    ui.Column("reasons", "Moved by", "text", "the columns that moved the probability most"),
    ui.Column(
        "stratum",
        "Before",
        "text",
        "active: used in the seven days before; dormant: before that; new: never",
    ),
    ui.Column("data_tier", "Data tier"),
)
_SITE: Final = ui.Column("site_name", "Site", "text", "where the data were read from")
_BASELINES: Final = ("persistence", "last-week", "decayed")
#: Columns that are shown as whole numbers.
_ROUNDED: Final = {
    name: f"round({name})::BIGINT AS {name}"
    for name in ("expected_nacc", "nacc_p10", "nacc_p90", "expected_bytes")
}
#: The job, and its table, of whole datasets and of datasets at sites.
_JOBS: Final = ("popularity_forecast", "popularity_site_forecast")
_OF: Final = {"dataset": "at all sites together", "site": "at each site"}
_QUALITY: Final = (
    ui.Column("first_day", "Week from", "day"),
    ui.Column("model", "Model"),
    ui.Column("dataset_count", "Datasets", "count"),
    ui.Column("popular_share", "Were popular", "share"),
    ui.Column("average_precision", "Average precision", "share"),
    ui.Column(
        "average_precision_low", "From", "share", "5 % of the resamplings of datasets are below"
    ),
    ui.Column("average_precision_high", "To", "share"),
    ui.Column(
        "brier",
        "Brier score",
        "share",
        "mean squared distance of probabilities from what happened; 0 is best",
    ),
    ui.Column(
        "tpr",
        "Found",
        "share",
        "share of the popular datasets with a probability of 50 % and more",
    ),
    ui.Column("tnr", "Rightly not", "share", "share of the others with less"),
)


@dataclass(frozen=True)
class _Chosen:
    """What the page shows: the forecast of a day, of whole datasets or (``by_site``) of
    datasets at sites, for a stratum and a site. An empty site means all sites.
    """

    day: date
    stratum: str
    by_site: bool
    site: str

    @property
    def job(self) -> str:
        return _JOBS[self.by_site]

    @property
    def quality(self) -> str:
        return "popularity_site_quality" if self.by_site else "popularity_quality"

    @property
    def columns(self) -> tuple[ui.Column, ...]:
        return (*_DATASETS[:2], _SITE, *_DATASETS[2:]) if self.by_site else _DATASETS


def view(request: PageRequest) -> ui.Content:
    """Return the page of a stored forecast and a stratum; by site where the address says so.

    Raises InputMissing (66) for a day without one.
    """
    of = choice_parameter(request.parameters, "of", tuple(_OF), "dataset")
    by_site = of == "site"
    days = request.database.days(_JOBS[by_site])
    kinds = ui.Control("of", "Popular", of, list(_OF.items()))
    if not days:
        forecast = "forecast by site" if by_site else "forecast"
        note = ui.Note(f"No {forecast} is stored. Run: run_spark {_JOBS[by_site]} --date DAY")
        has_other_kind = request.database.days(_JOBS[not by_site])
        return ui.Content(
            "Forecasts", [], controls=[kinds] if has_other_kind else [], notes=[note]
        )
    day = day_parameter(request.parameters, "day", days[-1])
    if day not in days:
        raise InputMissing(
            f"no forecast is stored for {day}",
            found=f"{days[0]} to {days[-1]}, {pluralize(len(days), 'forecast')}",
        )
    stratum = choice_parameter(request.parameters, "stratum", _STRATA, "all")
    chosen = _Chosen(day, stratum, by_site, request.parameters.get("site", "") if by_site else "")
    judged = request.database.query(
        f"SELECT {', '.join(column.name for column in _QUALITY)} FROM {chosen.quality} "
        "WHERE day = $day AND stratum = $stratum ORDER BY first_day, model",
        {"day": day, "stratum": stratum},
    )
    sections = [_datasets(request, chosen), _quality(judged, by_site=by_site)]
    named = [(entry.isoformat(), entry.isoformat()) for entry in reversed(days)]
    controls = [
        kinds,
        ui.Control("day", "Forecast from", day.isoformat(), named),
        *([_sites(request, chosen)] if by_site else []),
        ui.Control("stratum", "Datasets", stratum, [(name, name) for name in _STRATA]),
    ]
    where = ", and at which sites" if by_site else ""
    about = f"What is popular from {day} on{where}, predicted from the days before it."
    return ui.Content("Forecasts", sections, about, controls)


def _sites(request: PageRequest, chosen: _Chosen) -> ui.Control:
    """Return the form's field for the site."""
    sql = f"SELECT DISTINCT site_name FROM {chosen.job} WHERE day = $day ORDER BY site_name"
    names = request.values(sql, {"day": chosen.day})
    if chosen.site and chosen.site not in names:
        names.insert(0, chosen.site)
    return ui.Control(
        "site", "Site", chosen.site, [("", "all"), *((name, ui.shown(name)) for name in names)]
    )


def _datasets(request: PageRequest, chosen: _Chosen) -> ui.Section:
    where = "WHERE day = $day AND ($stratum = 'all' OR stratum = $stratum)"
    values = {"day": chosen.day, "stratum": chosen.stratum}
    if chosen.site:
        where, values = f"{where} AND site_name = $site", {**values, "site": chosen.site}
    names = ", ".join(_ROUNDED.get(column.name, column.name) for column in chosen.columns)
    table = chosen.job
    result = request.database.query(f"SELECT {names} FROM {table} {where} ORDER BY rank", values)
    count, likely, threshold, label, model, ranks = request.database.query(
        "SELECT count(*), count(*) FILTER (WHERE probability >= 0.5), max(threshold), max(label), max(model), "
        f"(SELECT max(rank) FROM {table} WHERE day = $day) FROM {table} {where}",
        values,
    ).rows[0]
    if not count:
        return ui.Section("Most probable datasets", [ui.Note("The forecast has no such dataset.")])
    means = "by bytes" if threshold is None else f"> {threshold:,.15g}"
    elements = "datasets at sites" if chosen.by_site else "datasets"
    among = f"of the first {ranks:,} {elements} by rank"
    if count < ranks:
        among = f"of the {pluralize(count, 'row')} of this selection among the first {ranks:,} {elements} by rank"
    figures = ui.Figures(
        [
            ui.Figure("Probably popular", f"{likely:,}", among),
            ui.Figure("Popular means", means, label or "accesses in the week"),
            ui.Figure("Model", ui.shown(model)),
        ]
    )
    rows = [
        (row[0], ui.Cell(row[1], request.dataset_link(row[1])), *row[2:]) for row in result.rows
    ]

    caption = "Datasets by the probability to be popular"
    bars = [column.name for column in chosen.columns].index("probability")
    drawn = ui.Table(
        "forecast", chosen.columns, rows, caption, lambda: result.table, bars=bars, limit=_SHOWN
    )
    return ui.Section("Most probable datasets", [figures, drawn])


def _quality(judged: Any, *, by_site: bool) -> ui.Section:
    title = "How good such forecasts were"
    if not judged.rows:
        reason = "the store had too few days before the forecast, or --judged was 0"
        return ui.Section(title, [ui.Note(f"No past week was judged: {reason}.")])
    weeks = sorted({row[0] for row in judged.rows})
    values = {(row[0], row[1]): row[4] for row in judged.rows}
    series = {
        model: [
            None if (value := values.get((week, model))) is None else round(100 * value, 1)
            for week in weeks
        ]
        for model in dict.fromkeys(row[1] for row in judged.rows)
    }
    table = ui.Table(
        "quality",
        _QUALITY,
        judged.rows,
        "Past weeks, each predicted from the days before it",
        lambda: judged.table,
    )
    chart = ui.Chart(
        "precision",
        "Average precision by week",
        "line",
        [week.isoformat() for week in weeks],
        series,
        "%",
        "Week from",
        "Average precision",
        table=table,
    )
    about = (
        "persistence: what was popular before, in as many weeks, is predicted to be popular again; last-week, decayed: "
        "by the accesses, or bytes, of the last week, or of the last days."
    )
    if by_site:
        about = f"Of all sites together. {about[0].upper()}{about[1:]} Datasets are counted once for each site."
    return ui.Section(title, [*_warnings(judged.rows), chart], about)


def _warnings(rows: list[tuple[Any, ...]]) -> list[ui.Note]:
    """Return a warning where a baseline had a higher average precision than the model
    in the mean of the weeks.
    """
    means = {}
    for model in dict.fromkeys(row[1] for row in rows):
        values = [row[4] for row in rows if row[1] == model and row[4] is not None]
        if values:
            means[model] = sum(values) / len(values)
    models = [name for name in means if name not in _BASELINES]
    return [
        ui.Note(
            f"Warning: the baseline {name} was better than {model}: {means[name]:.1%} against {means[model]:.1%}."
        )
        for model in models
        for name in _BASELINES
        if round(means.get(name, 0), 3) > round(means[model], 3)
    ]


PAGE = PageDefinition(
    "Forecasts", "Which datasets will probably be popular.", view, needs_use=False
)
