"""``cmsspark popularity``: which datasets will be popular next week, and how good such
predictions were.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click import IntRange, option

from cmsspark.apps.popularity.jobs import (
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
)
from cmsspark.cli.period_options import load_days, needed, period_options
from cmsspark.settings.settings import load_settings

if TYPE_CHECKING:
    from cmsspark.apps.popularity.series import Series
    from cmsspark.apps.popularity.training import Label


@click.group("popularity", cls=CommandGroup, context_settings={"show_default": True})
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
        option(
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
@option("--last", type=IntRange(1), help="Only the last so many weeks.")
@seed_option
@option("--json", "as_json", is_flag=True, help="Print JSON, with strata and intervals.")
def evaluate_command(
    label: Label,
    models: tuple[str, ...],
    last: int | None,
    seed: int,
    as_json: bool,
    **source: Any,
) -> None:
    """Predict each past week from what was known on its Monday, and compare with what happened."""
    from cmsspark.apps.popularity.evaluate import judge_last
    from cmsspark.apps.popularity.scores import (
        calibration_error,
        mean,
        warnings,
        with_baselines,
    )
    from cmsspark.apps.popularity.training import Weeks

    compared = with_baselines(models or EVALUATED)
    weeks = Weeks(_load_series(**source), label)
    rows = judge_last(weeks, compared, last=last, seed=seed)
    if missing := set(compared) - {row["model"] for row in rows}:
        chosen = next(name for name in compared if name in missing)
        click.echo(
            label.rule(weeks.series.days[0], chosen if len(missing) == 1 else "a model"), err=True
        )
    for text in (text for name in compared for text in warnings(rows, name)):
        click.echo(f"warning: {text}", err=True)
    if as_json:
        click.echo(json.dumps([{**row, "week": str(row["week"])} for row in rows], indent=1))
        return
    numbers = ("average_precision", "auc", "brier", "calibration_error", "tpr", "tnr")
    lines = [(str(row["week"]), row["model"], row) for row in rows]
    for name in dict.fromkeys(row["model"] for row in rows):
        of_model = [row for row in rows if row["model"] == name]
        means = {key: mean(row[key] for row in of_model) for key in ("positives", *numbers)}
        means["calibration_error"] = calibration_error(of_model)
        lines.append(("mean", name, means))
    shown = [
        (
            week,
            name,
            percent(row["positives"] or 0),
            *(None if row[key] is None else f"{row[key]:.3f}" for key in numbers),
        )
        for week, name, row in lines
    ]
    scores = ("average precision", "AUC", "Brier", "calibration error", "TPR", "TNR")
    echo_table(("week", "model", "popular", *scores), shown, texts=(0, 1), optional=(7, 8))


@command.command("predict")
@_series_options
@model_option
@seed_option
@option(
    "--date",
    "day",
    type=DayType(),
    help="Predict the weeks from this day on. [default: after the last day]",
)
@option("--top", type=IntRange(1), default=20, help="Maximum rows of the table.")
@option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Write all rows to this CSV or Parquet file.",
)
@option("--json", "as_json", is_flag=True, help="Print all rows as JSON.")
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
    """Print each dataset's probability to be popular next week, the highest first."""
    from cmsspark.apps.popularity.forecast import predictions
    from cmsspark.apps.popularity.training import Weeks

    check_table_path(output)
    series = _load_series(**source)
    number = _number_day(series, day)
    past, first_day = series.until(number), series.days[0] + timedelta(days=number)
    if label.model_on(past, number, model) != model:
        click.echo(label.rule(past.days[0], model), err=True)
    rows = predictions(Weeks(past, label), first_day, model, seed=seed)
    columns = [name for name in _FORECAST if name in rows.columns]
    frame = rows.select(columns).rename({"dataset_name": "dataset"})
    if output is not None:
        write_table(frame, output)
        click.echo(output)
    elif as_json:
        click.echo(json.dumps(frame.to_dicts(), indent=1))
    else:
        shown = []
        for row in frame.head(top).to_dicts():
            score, quantiles = (
                row["probability"],
                [row[f"nacc_p{share}"] for share in (10, 50, 90)],
            )
            between = (
                ", ".join(f"{value:,.0f}" for value in quantiles if value is not None) or None
            )
            probability = "unknown" if score is None else f"{score:.3f}"
            shown.append((row["rank"], probability, between, row["reasons"], row["dataset"]))
        headings = ("rank", "probability", "accesses: 10, 50, 90 %", "moved by", "dataset")
        echo_table(headings, shown, texts=(3, 4), optional=(3, 2))
        counts = Counter(line[1] for line in shown)
        if tied := [line[1] for line in shown if counts[line[1]] > 1]:
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


#: The columns that are printed and written, as far as a forecast has them.
_FORECAST: Final = (
    *("rank", "dataset_name", "probability", "raw_probability"),
    *(
        name
        for measure in ("nacc", "bytes")
        for name in (f"expected_{measure}", *(f"{measure}_p{share}" for share in (10, 50, 90)))
    ),
    *("stratum", "basis", "reasons"),
)


@command.command("features")
@_series_options
@option(
    "--date", "day", type=DayType(), help="Features on this day. [default: after the last day]"
)
@option("--last", type=IntRange(0), default=0, help="Also so many weeks before it.")
@option(
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
    from cmsspark.apps.popularity.stored_run import feature_rows

    check_table_path(output)
    series = _load_series(**source)
    number = _number_day(series, day)
    if last:
        label.check(series)
    starts = [start for start in range(number, number - 7 * last - 1, -7) if start > 0]
    write_table(feature_rows(series, starts, label).rename({"dataset_name": "dataset"}), output)
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
