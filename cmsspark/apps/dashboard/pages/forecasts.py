"""Forecasts: which datasets will probably be popular, and how good such forecasts were, from the stored forecast."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Any, Final

from cmsspark.apps.dashboard.page_request import PageDefinition, PageRequest
from cmsspark.apps.dashboard.selection import choice_parameter, day_parameter
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
    shown,
)
from cmsspark.base.errors import InputMissing
from cmsspark.base.text.plurals import pluralize

_SHOWN: Final = 25
_STRATA: Final = ("all", "active", "dormant", "new")
_DATASETS: Final = (
    Column("rank", "Rank", "count"),
    Column("dataset_name", "Dataset"),
    Column("probability", "Popular", "share", "probability to be popular, as the figure above says what that is"),
    Column("expected_nacc", "Expected accesses", "count", "in the predicted weeks"),
    Column("nacc_p10", "10 %", "count", "one in ten has fewer accesses"),
    Column("nacc_p90", "90 %", "count", "nine in ten have fewer"),
    Column("expected_bytes", "Expected bytes read", "bytes"),
    Column("last_week_nacc", "Accesses last week", "count"),
    Column("basis", "Rests on", "text", "use, siblings, creation in DBS, or unknown: then there is no probability"),
    Column("reasons", "Moved by", "text", "the columns that moved the probability most"),
    Column("stratum", "Before", "text", "active: used in the seven days before; dormant: before that; new: never"),
    Column("data_tier", "Data tier"),
)
_SITE: Final = Column("site_name", "Site", "text", "where the data were read from")
_BASELINES: Final = ("persistence", "last-week", "decayed")
#: Columns that are shown as whole numbers.
_ROUNDED: Final = {
    name: f"round({name})::BIGINT AS {name}" for name in ("expected_nacc", "nacc_p10", "nacc_p90", "expected_bytes")
}
#: The job, and its table, of whole datasets and of datasets at sites.
_JOBS: Final = ("popularity_forecast", "popularity_site_forecast")
_OF: Final = {"dataset": "at all sites together", "site": "at each site"}
_QUALITY: Final = (
    Column("first_day", "Week from", "day"),
    Column("model", "Model"),
    Column("dataset_count", "Datasets", "count"),
    Column("popular_share", "Were popular", "share"),
    Column("average_precision", "Average precision", "share"),
    Column("average_precision_low", "From", "share", "5 % of the resamplings of datasets are below"),
    Column("average_precision_high", "To", "share"),
    Column("brier", "Brier score", "share", "mean squared distance of probabilities from what happened; 0 is best"),
    Column("tpr", "Found", "share", "share of the popular datasets with a probability of 50 % and more"),
    Column("tnr", "Rightly not", "share", "share of the others with less"),
)


@dataclass(frozen=True)
class _Chosen:
    """What the page shows: the forecast of a day, of whole datasets or (``by_site``) of datasets at sites, for a
    stratum and a site. An empty site means all sites.
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
    def columns(self) -> tuple[Column, ...]:
        return (*_DATASETS[:2], _SITE, *_DATASETS[2:]) if self.by_site else _DATASETS


def view(request: PageRequest) -> Content:
    """Return the page of a stored forecast and a stratum; by site where the address says so.

    Raises InputMissing (66) for a day without one.
    """
    of = choice_parameter(request.parameters, "of", tuple(_OF), "dataset")
    by_site = of == "site"
    days = request.database.days(_JOBS[by_site])
    kinds = Control("of", "Popular", of, list(_OF.items()))
    if not days:
        forecast = "forecast by site" if by_site else "forecast"
        note = Note(f"No {forecast} is stored. Run: run_spark {_JOBS[by_site]} --date DAY")
        has_other_kind = request.database.days(_JOBS[not by_site])
        return Content("Forecasts", [], controls=[kinds] if has_other_kind else [], notes=[note])
    day = day_parameter(request.parameters, "day", days[-1])
    if day not in days:
        raise InputMissing(
            f"no forecast is stored for {day}", found=f"{days[0]} to {days[-1]}, {pluralize(len(days), 'forecast')}"
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
        kinds, Control("day", "Forecast from", day.isoformat(), named),
        *([_sites(request, chosen)] if by_site else []),
        Control("stratum", "Datasets", stratum, [(name, name) for name in _STRATA]),
    ]  # fmt: skip
    where = ", and at which sites" if by_site else ""
    about = f"What is popular from {day} on{where}, predicted from the days before it."
    return Content("Forecasts", sections, about, controls)


def _sites(request: PageRequest, chosen: _Chosen) -> Control:
    """Return the form's field for the site."""
    sql = f"SELECT DISTINCT site_name FROM {chosen.job} WHERE day = $day ORDER BY site_name"
    names = [row[0] for row in request.database.query(sql, {"day": chosen.day}).rows]
    if chosen.site and chosen.site not in names:
        names.insert(0, chosen.site)
    return Control("site", "Site", chosen.site, [("", "all"), *((name, shown(name)) for name in names)])


def _datasets(request: PageRequest, chosen: _Chosen) -> Section:
    where = "WHERE day = $day AND ($stratum = 'all' OR stratum = $stratum)"
    values = {"day": chosen.day, "stratum": chosen.stratum}
    if chosen.site:
        where, values = f"{where} AND site_name = $site", {**values, "site": chosen.site}
    names = ", ".join(_ROUNDED.get(column.name, column.name) for column in chosen.columns)
    table = chosen.job
    result = request.database.query(f"SELECT {names} FROM {table} {where} ORDER BY rank", values)
    count, likely, threshold, label, model = request.database.query(
        "SELECT count(*), count(*) FILTER (WHERE probability >= 0.5), max(threshold), max(label), max(model) "
        f"FROM {table} {where}",
        values,
    ).rows[0]
    if not count:
        return Section("Most probable datasets", [Note("The forecast has no such dataset.")])
    means = "by bytes" if threshold is None else f"> {threshold:g}"
    of = "datasets at sites" if chosen.by_site and not chosen.site else "datasets"
    figures = Figures([
        Figure("Probably popular", f"{likely:,}", f"of the first {count:,} {of} by rank"),
        Figure("Popular means", means, label or "accesses in the week"),
        Figure("Model", shown(model)),
    ])  # fmt: skip
    rows = [(row[0], Cell(row[1], request.dataset_link(row[1])), *row[2:]) for row in result.rows]

    caption = "Datasets by the probability to be popular"
    bars = [column.name for column in chosen.columns].index("probability")
    drawn = Table("forecast", chosen.columns, rows, caption, lambda: result.table, bars=bars, limit=_SHOWN)
    return Section("Most probable datasets", [figures, drawn])


def _quality(judged: Any, *, by_site: bool) -> Section:
    title = "How good such forecasts were"
    if not judged.rows:
        return Section(title, [Note("No past week could be judged: the store had too few days before the forecast.")])
    weeks = sorted({row[0] for row in judged.rows})
    values = {(row[0], row[1]): row[4] for row in judged.rows}
    series = {
        model: [None if (value := values.get((week, model))) is None else round(100 * value, 1) for week in weeks]
        for model in dict.fromkeys(row[1] for row in judged.rows)
    }
    table = Table("quality", _QUALITY, judged.rows, "Past weeks, each predicted from the days before it",
                  lambda: judged.table)  # fmt: skip
    chart = Chart(
        "precision", "Average precision by week", "line", [week.isoformat() for week in weeks], series, "%",
        "Week from", "Average precision", table=table,
    )  # fmt: skip
    about = (
        "persistence: what was popular in the week before is predicted to be popular again; last-week, decayed: by the "
        "accesses of the last week, or of the last days."
    )
    if by_site:
        about = f"Of all sites together. {about[0].upper()}{about[1:]} Datasets are counted once for each site."
    return Section(title, [*_warnings(judged.rows), chart], about)


def _warnings(rows: list[tuple[Any, ...]]) -> list[Note]:
    """Return a warning where a baseline had a higher average precision than the model in the mean of the weeks."""
    means = {}
    for model in dict.fromkeys(row[1] for row in rows):
        values = [row[4] for row in rows if row[1] == model and row[4] is not None]
        if values:
            means[model] = sum(values) / len(values)
    models = [name for name in means if name not in _BASELINES]
    return [
        Note(f"Warning: the baseline {name} was better than {model}: {means[name]:.1%} against {means[model]:.1%}.")
        for model in models for name in _BASELINES if means.get(name, 0) > means[model]
    ]  # fmt: skip


PAGE = PageDefinition("Forecasts", "Which datasets will probably be popular.", view, needs_use=False)
