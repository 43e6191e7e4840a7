"""``cmsspark popularity``: which datasets will be popular next week, and how good such
predictions were.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from cmsspark.apps.popularity.label_options import (
    EVALUATED,
    label_options,
    model_option,
    models_option,
    seed_option,
)
from cmsspark.base.errors import UsageError
from cmsspark.base.periods import Period
from cmsspark.base.schemas import stored_table
from cmsspark.base.text.terminal import echo_list, echo_table, percent, pluralize
from cmsspark.cli.options import (
    CommandGroup,
    DayType,
    check_table_path,
    require_store,
    store_options,
    write_table,
    write_text,
)
from cmsspark.cli.period_options import load_days, needed, period_options
from cmsspark.settings.settings import load_settings

if TYPE_CHECKING:
    import polars as pl

    from cmsspark.apps.popularity.series import Series
    from cmsspark.apps.popularity.training import Label


@click.group("popularity", cls=CommandGroup)
def command() -> None:
    """Predict which datasets will be popular, from stored days or from a file of daily
    accesses. Needs cmsspark[popularity].

    A dataset is popular in a week with more than 10 accesses (--threshold, --users).
    Features of a week come from days before its Monday only; each evaluation checks
    that.
    """


def _series_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a series and of a label; the command gets ``label``, and what
    :func:`_load_series` takes.
    """
    for decorate in (
        label_options,
        click.option(
            "--accesses",
            "file",
            type=click.Path(path_type=Path),
            help="CSV or Parquet with day, dataset, accesses[, users, bytes, cpus]. [default: stored days of a period]",
        ),
        period_options,
        store_options,
    ):
        command = decorate(command)
    return command


def _load_series(
    file: Path | None, period: Period | None, fout: str | None, settings_file: str | None
) -> Series:
    from cmsspark.apps.popularity.series import read_series, stored_series

    if file is not None:
        if period or fout:
            raise UsageError(
                "--accesses excludes a period and --fout", next_step="give only one of them"
            )
        series = read_series(file)
    else:
        chosen = needed(period, "--accesses FILE")
        store = require_store(fout, load_settings(settings_file))
        series = stored_series(load_days(store, chosen, "cmsspark popularity"))
    click.echo(
        f"{pluralize(len(series.days), 'day')} from {series.days[0]} on, {series.size_text}",
        err=True,
    )
    if series.missing:
        counts = (
            "have no rows and count as days"
            if len(series.missing) > 1
            else "has no rows and counts as a day"
        )
        click.echo(
            f"warning: {pluralize(len(series.missing), 'day')} {counts} without use", err=True
        )
    return series


@command.command("evaluate")
@_series_options
@models_option
@click.option("--last", type=click.IntRange(1), help="Only the last so many weeks.")
@seed_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with strata and intervals.")
def evaluate_command(
    label: Label,
    models: tuple[str, ...],
    last: int | None,
    seed: int,
    as_json: bool,
    **source: Any,
) -> None:
    """Predict each past week from what was known on its Monday, and compare with what happened."""
    from cmsspark.apps.popularity.baselines import with_baselines
    from cmsspark.apps.popularity.evaluate import forecast_and_judge
    from cmsspark.apps.popularity.scores import mean
    from cmsspark.apps.popularity.training import Weeks

    compared = with_baselines(models or EVALUATED)
    weeks = Weeks(_load_series(**source), label)
    _, rows = forecast_and_judge(weeks, compared, last=last, seed=seed)
    if missing := set(compared) - {row["model"] for row in rows}:
        chosen = next(name for name in compared if name in missing)
        click.echo(label.rule(weeks.series, chosen if len(missing) == 1 else "a model"), err=True)
    for name in compared:
        _echo_warnings(rows, name)
    if as_json:
        click.echo(json.dumps([{**row, "week": str(row["week"])} for row in rows], indent=1))
        return
    shown = [
        (
            str(row["week"]),
            row["model"],
            percent(row["positives"]),
            *(_number(row[name]) for name in _NUMBERS),
        )
        for row in rows
    ]
    for name in dict.fromkeys(row["model"] for row in rows):
        rows_of_model = [row for row in rows if row["model"] == name]
        positives, *means = (
            mean(row[number] for row in rows_of_model) for number in ("positives", *_NUMBERS)
        )
        shown.append(("mean", name, percent(positives or 0), *map(_number, means)))
    headings = ("week", "model", "popular", "average precision", "AUC", "Brier", "TPR", "TNR")
    echo_table(headings, shown, texts=(0, 1), optional=(6, 7))


_NUMBERS: Final = ("average_precision", "auc", "brier", "tpr", "tnr")


def _echo_warnings(rows: list[dict[str, Any]], model: str) -> None:
    from cmsspark.apps.popularity.baselines import warnings

    for text in warnings(rows, model):
        click.echo(f"warning: {text}", err=True)


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:.3f}"


@command.command("predict")
@_series_options
@click.option(
    "--model",
    default="blend",
    show_default=True,
    help="Model, or the folder of saved ones: its newest version.",
)
@seed_option
@click.option(
    "--date",
    "day",
    type=DayType(),
    help="Predict the weeks from this day on. [default: after the last day]",
)
@click.option(
    "--top",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    help="Maximum rows of the table.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Write all rows to this CSV or Parquet file.",
)
@click.option("--json", "as_json", is_flag=True, help="Print all rows as JSON.")
def predict_command(
    label: Label,
    model: str,
    seed: int,
    day: date | None,
    top: int,
    output: Path | None,
    as_json: bool,
    **source: Any,
) -> None:
    """Print each dataset's probability to be popular next week, the highest first.

    A saved model (cmsspark popularity train) predicts what it was trained for, whatever
    --threshold, --users and
    --weeks are.
    """
    check_table_path(output)
    series = _load_series(**source)
    frame = _forecast_rows(series, _number_day(series, day), model, label, seed)
    if output is not None:
        write_table(frame, output)
        click.echo(output)
    elif as_json:
        click.echo(json.dumps(frame.to_dicts(), indent=1))
    else:
        # Print the rows, and how many share a probability as it is shown.
        rows = frame.head(top)
        shown = [
            (
                row["rank"],
                ("unknown" if row["probability"] is None else f"{row['probability']:.3f}"),
                _range(row),
                row["reasons"],
                row["dataset"],
            )
            for row in rows.to_dicts()
        ]
        headings = ("rank", "probability", "accesses: 10, 50, 90 %", "moved by", "dataset")
        echo_table(headings, shown, texts=tuple(range(3, len(headings))), optional=(3, 2))
        tied = [row[1] for row in shown if [line[1] for line in shown].count(row[1]) > 1]
        if tied:
            text = f"{pluralize(len(tied), 'row')} share a probability as shown, such as {tied[0]}"
            click.echo(
                f"{text}: their order is that of the unrounded and raw probability, then of the expected accesses"
            )


def _number_day(series: Series, day: date | None) -> int:
    """Return the number of a day of the series, or of the one after it, which it is by default."""
    number = len(series.days) if day is None else (day - series.days[0]).days
    if not 0 < number <= len(series.days):
        raise UsageError(
            f"{day} has no days before it in the series, or is later than the day after it",
            found=f"{series.days[0]} to {series.days[-1]}",
            next_step="choose another --date",
        )
    return number


def _forecast_rows(
    series: Series, number: int, model: str, label: Label, seed: int
) -> pl.DataFrame:
    """Return the forecast by a saved model, or one that learns from the days before."""
    from cmsspark.apps.popularity import saved
    from cmsspark.apps.popularity.forecast import predictions, tabulate_predictions
    from cmsspark.apps.popularity.models import MODELS, check_model
    from cmsspark.apps.popularity.training import Weeks

    past, day = series.until(number), series.days[0] + timedelta(days=number)
    loaded = None if model in MODELS else saved.find(model)
    if loaded is None:
        check_model(model)
        if label.model_on(past, number, model) != model:
            click.echo(label.rule(past, model), err=True)
        rows = predictions(Weeks(past, label), day, model, seed=seed)
    else:
        click.echo(f"model {loaded.version}: {loaded.card['about']}", err=True)
        weeks = Weeks(past, loaded.label)
        scores, moved = loaded.predict(weeks, number), loaded.contributions(weeks, number)
        rows = tabulate_predictions(weeks, day, loaded.card["model"], scores, moved, seed=seed)
    names = {"dataset_name": "dataset"}
    chosen = ("rank", "dataset_name", "probability", "raw_probability", *_FORECAST)
    return rows.select(name for name in chosen if name in rows.columns).rename(names, strict=False)


#: What a forecast has beside the probabilities.
_FORECAST: Final = (
    *(
        "expected_nacc",
        "nacc_p10",
        "nacc_p50",
        "nacc_p90",
        "expected_bytes",
        "bytes_p10",
        "bytes_p50",
        "bytes_p90",
    ),
    *("stratum", "basis", "reasons"),
)


def _range(row: dict[str, Any]) -> str | None:
    quantiles = [row[f"nacc_p{share}"] for share in (10, 50, 90)]
    return None if quantiles[0] is None else ", ".join(f"{value:,.0f}" for value in quantiles)


@command.command("train")
@_series_options
@model_option
@seed_option
@click.option(
    "--last",
    type=click.IntRange(1),
    default=4,
    show_default=True,
    help="Past weeks for the model card.",
)
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    help="Folder of the model's versions.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the model card as JSON.")
def train_command(
    label: Label, model: str, seed: int, last: int, output: Path, as_json: bool, **source: Any
) -> None:
    """Train a model on all days and save it as a new version, with its model card.

    The card says how good such a model was on the last weeks, each predicted from the
    days before it.
    """
    from cmsspark.apps.popularity import saved
    from cmsspark.apps.popularity.baselines import with_baselines
    from cmsspark.apps.popularity.evaluate import forecast_and_judge
    from cmsspark.apps.popularity.training import Weeks

    weeks = Weeks(_load_series(**source), label)
    _, metrics = forecast_and_judge(weeks, with_baselines([model]), last=last, seed=seed)
    _echo_warnings(metrics, model)
    version = saved.train(output, weeks, model, metrics, seed)
    if as_json:
        click.echo((version / "card.json").read_text(encoding="utf-8"), nl=False)
    else:
        click.echo(version)


@command.command("features")
@_series_options
@click.option(
    "--date", "day", type=DayType(), help="Features on this day. [default: after the last day]"
)
@click.option(
    "--last",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Also so many weeks before it.",
)
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    help="CSV or Parquet file to write.",
)
def features_command(
    label: Label, day: date | None, last: int, output: Path, **source: Any
) -> None:
    """Write one row for each dataset and week with its features, from the days before
    that week only.

    Weeks that are over have their label in is_popular.
    """
    from cmsspark.apps.popularity.stored_run import file_rows

    check_table_path(output)
    series = _load_series(**source)
    write_table(file_rows(series, _number_day(series, day), label, last), output)
    click.echo(output)


@command.command("report")
@_series_options
@model_option
@seed_option
@click.option("--last", type=click.IntRange(1), help="Only the last so many weeks.")
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), help="HTML file to write."
)
def report_command(
    label: Label, model: str, seed: int, last: int | None, output: Path, **source: Any
) -> None:
    """Write a page with a model card, weekly numbers, reliability and gain."""
    from cmsspark.apps.popularity.baselines import with_baselines
    from cmsspark.apps.popularity.evaluate import forecast_and_judge
    from cmsspark.apps.popularity.report import evaluation_page
    from cmsspark.apps.popularity.training import Weeks

    weeks = Weeks(_load_series(**source), label)
    forecasts, rows = forecast_and_judge(weeks, with_baselines([model]), last=last, seed=seed)
    write_text(output, evaluation_page(weeks, model, forecasts, rows, seed))
    click.echo(output)


@command.command("columns")
def columns_command() -> None:
    """List the features with a line each."""
    from cmsspark.apps.popularity.features import BASE_COLUMNS, STORE_COLUMNS

    texts = {column.name: column.about for column in stored_table("popularity_features").columns}
    echo_list(
        ("feature", "what it is"), {name: texts[name] for name in (*BASE_COLUMNS, *STORE_COLUMNS)}
    )


@command.command("models")
def models_command() -> None:
    """List the models with a line each."""
    from cmsspark.apps.popularity.models import ABOUT

    echo_list(("model", "what it is"), ABOUT)
