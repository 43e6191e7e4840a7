"""Forecasts: which datasets will probably be popular, and how good such forecasts were,
from the stored forecast.
"""

from __future__ import annotations

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
_BASELINES: Final = ("persistence", "last-week", "decayed")
#: Columns that are shown as whole numbers.
_ROUNDED: Final = {
    name: f"round({name})::BIGINT AS {name}"
    for name in ("expected_nacc", "nacc_p10", "nacc_p90", "expected_bytes")
}
#: The job, and its table.
_JOB: Final = "popularity_forecast"
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


def view(request: PageRequest) -> ui.Content:
    """Return the page of a stored forecast and a stratum.

    Raises InputMissing (66) for a day without one.
    """
    days = request.database.days(_JOB)
    if not days:
        note = ui.Note(f"No forecast is stored. Run: run_spark {_JOB} --date DAY")
        return ui.Content("Forecasts", [], notes=[note])
    day = day_parameter(request.parameters, "day", days[-1])
    if day not in days:
        raise InputMissing(
            f"no forecast is stored for {day}",
            found=f"{days[0]} to {days[-1]}, {pluralize(len(days), 'forecast')}",
        )
    stratum = choice_parameter(request.parameters, "stratum", _STRATA, "all")
    judged = request.database.query(
        f"SELECT {', '.join(column.name for column in _QUALITY)} FROM popularity_quality "
        "WHERE day = $day AND stratum = $stratum ORDER BY first_day, model",
        {"day": day, "stratum": stratum},
    )
    sections = [_datasets(request, day, stratum), _quality(judged)]
    named = [(entry.isoformat(), entry.isoformat()) for entry in reversed(days)]
    controls = [
        ui.Control("day", "Forecast from", day.isoformat(), named),
        ui.Control("stratum", "Datasets", stratum, [(name, name) for name in _STRATA]),
    ]
    about = f"What is popular from {day} on, predicted from the days before it."
    return ui.Content("Forecasts", sections, about, controls)


def _datasets(request: PageRequest, day: date, stratum: str) -> ui.Section:
    where = "WHERE day = $day AND ($stratum = 'all' OR stratum = $stratum)"
    values = {"day": day, "stratum": stratum}
    names = ", ".join(_ROUNDED.get(column.name, column.name) for column in _DATASETS)
    result = request.database.query(f"SELECT {names} FROM {_JOB} {where} ORDER BY rank", values)
    count, likely, threshold, label, model, ranks = request.database.query(
        "SELECT count(*), count(*) FILTER (WHERE probability >= 0.5), max(threshold), max(label), max(model), "
        f"(SELECT max(rank) FROM {_JOB} WHERE day = $day) FROM {_JOB} {where}",
        values,
    ).rows[0]
    if not count:
        return ui.Section("Most probable datasets", [ui.Note("The forecast has no such dataset.")])
    means = "by bytes" if threshold is None else f"> {threshold:,.15g}"
    among = f"of the first {ranks:,} datasets by rank"
    if count < ranks:
        among = f"of the {pluralize(count, 'row')} of this selection among the first {ranks:,} datasets by rank"
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
    bars = [column.name for column in _DATASETS].index("probability")
    drawn = ui.Table(
        "forecast", _DATASETS, rows, caption, lambda: result.table, bars=bars, limit=_SHOWN
    )
    command = f"cmsspark ask will-be-popular --date {day}"
    return ui.Section("Most probable datasets", [figures, drawn], command=command)


def _quality(judged: Any) -> ui.Section:
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
