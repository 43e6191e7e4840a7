"""What ``cmsspark popularity predict`` prints and writes."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import click

from cmsspark.base.text.terminal import echo_table, pluralize

if TYPE_CHECKING:
    import polars as pl

    from cmsspark.apps.popularity.series import Series
    from cmsspark.apps.popularity.training import Label


def forecast_rows(
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


def echo_forecast(rows: pl.DataFrame) -> None:
    """Print the rows, and how many share a probability as it is shown."""
    shown = [
        (
            row["rank"],
            _probability(row),
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


def _range(row: dict[str, Any]) -> str | None:
    quantiles = [row[f"nacc_p{share}"] for share in (10, 50, 90)]
    return None if quantiles[0] is None else ", ".join(f"{value:,.0f}" for value in quantiles)


def _probability(row: dict[str, Any]) -> str:
    return "unknown" if row["probability"] is None else f"{row['probability']:.3f}"
