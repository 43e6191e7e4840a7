"""Forecasts: which datasets will probably be popular, and how good such forecasts were, from the stored forecast."""

from __future__ import annotations

from datetime import date
from typing import Any, Final

from cmsspark.dashboard.page_request import PageDefinition, PageRequest
from cmsspark.dashboard.selection import choice_parameter, day_parameter
from cmsspark.dashboard.widgets import (
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
from cmsspark.errors import InputMissing

_SHOWN: Final = 100
_STRATA: Final = ("all", "active", "dormant", "new")
_DATASETS: Final = (
    Column("rank", "Rank", "count"),
    Column("dataset_name", "Dataset"),
    Column("probability", "Popular", "share", "probability to be popular, as the figure above says what that is"),
    Column("last_week_nacc", "Accesses last week", "count"),
    Column("stratum", "Before", "text", "active: used in the seven days before; dormant: before that; new: never"),
    Column("data_tier", "Data tier"),
)
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


def view(request: PageRequest) -> Content:
    """The page of a stored forecast and a stratum. Raises InputMissing (66) for a day without one."""
    days = request.database.days("popularity_forecast")
    if not days:
        note = Note("No forecast is stored. Run: run_spark popularity_forecast --date DAY")
        return Content("Forecasts", [], notes=[note])
    day = day_parameter(request.parameters, "day", days[-1])
    if day not in days:
        raise InputMissing(f"no forecast is stored for {day}", found=f"{days[0]} to {days[-1]}, {len(days)} forecasts")
    stratum = choice_parameter(request.parameters, "stratum", _STRATA, "all")
    judged = request.database.query(
        f"SELECT {', '.join(column.name for column in _QUALITY)} FROM popularity_quality "
        "WHERE day = $day AND stratum = $stratum ORDER BY first_day, model",
        {"day": day, "stratum": stratum},
    )
    sections = [_datasets(request, day, stratum), _quality(judged)]
    controls = [
        Control(
            "day", "Forecast from", day.isoformat(), [(one.isoformat(), one.isoformat()) for one in reversed(days)]
        ),
        Control("stratum", "Datasets", stratum, [(name, name) for name in _STRATA]),
    ]
    about = f"What is popular from {day} on, predicted from the days before it."
    return Content("Forecasts", sections, about, controls)


def _datasets(request: PageRequest, day: date, stratum: str) -> Section:
    where = "WHERE day = $day AND ($stratum = 'all' OR stratum = $stratum)"
    values = {"day": day, "stratum": stratum}
    names = ", ".join(column.name for column in _DATASETS)
    found = request.database.query(
        f"SELECT {names} FROM popularity_forecast {where} ORDER BY rank LIMIT {_SHOWN}", values
    )
    count, likely, threshold, label, model = request.database.query(
        "SELECT count(*), count(*) FILTER (WHERE probability >= 0.5), max(threshold), max(label), max(model) "
        f"FROM popularity_forecast {where}",
        values,
    ).rows[0]
    if not count:
        return Section("Most probable datasets", [Note("The forecast has no such dataset.")])
    means = "by bytes" if threshold is None else f"> {threshold:g}"
    figures = Figures([
        Figure("Probably popular", f"{likely:,}", f"of the first {count:,} datasets by rank"),
        Figure("Popular means", means, label or "accesses in the week"),
        Figure("Model", shown(model)),
    ])  # fmt: skip
    rows = [(row[0], Cell(row[1], request.link("dataset", name=row[1])), *row[2:]) for row in found.rows]

    def everything() -> Any:
        return request.database.query(f"SELECT {names} FROM popularity_forecast {where} ORDER BY rank", values).table

    caption = "Datasets by the probability to be popular"
    table = Table("forecast", _DATASETS, rows, caption, everything, row_count=count, bars=2, limit=_SHOWN)
    return Section("Most probable datasets", [figures, table])


def _quality(judged: Any) -> Section:
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
    about = "persistence: what was popular in the week before is predicted to be popular again."
    return Section(title, [chart], about)


PAGE = PageDefinition("Forecasts", "Which datasets will probably be popular.", view, needs_use=False)
