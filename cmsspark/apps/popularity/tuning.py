"""Tuning: configurations of a model, each judged on past weeks, one task a configuration.

The configurations are compared on the earlier weeks only; the last ones are held back
and say what the chosen one is worth. Folds follow time: each week is predicted from the
days before it.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from cmsspark.apps.popularity.evaluate import too_short
from cmsspark.apps.popularity.fitting import predict
from cmsspark.apps.popularity.models import GRIDS
from cmsspark.apps.popularity.scores import average_precision, mean
from cmsspark.apps.popularity.series import Series
from cmsspark.apps.popularity.training import FIRST_DAY, Label, Weeks
from cmsspark.base.errors import UsageError
from cmsspark.engines.parallel_tasks import map_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Weeks of the end that no configuration is chosen by.
HELD_WEEKS: Final = 1
#: No value of a grid is larger.
_MOST: Final = 1e9


def configurations(grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return all combinations of the values of a grid."""
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def parse_grid(model_name: str, texts: Sequence[str]) -> dict[str, list[Any]]:
    """Return the grid of ``NAME=VALUE,VALUE`` texts, or the model's own without any.
    Raises UsageError (2).
    """
    if model_name not in GRIDS:
        raise UsageError(
            f"{model_name} has nothing to tune", next_step=f"one of {', '.join(GRIDS)}"
        )
    grid: dict[str, list[Any]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals or name not in GRIDS[model_name]:
            names = ", ".join(GRIDS[model_name])
            raise UsageError(
                f"{text!r} is not NAME=VALUE,VALUE", next_step=f"{model_name} has {names}"
            )
        grid[name] = [
            _parse_value(text, value, GRIDS[model_name][name]) for value in values.split(",")
        ]
    return grid or {name: list(values) for name, values in GRIDS[model_name].items()}


def _parse_value(text: str, value: str, defaults: Sequence[Any]) -> Any:
    """Return a value of ``text``, a number above 0 of the kind that the default values
    have: whole ones, or shares.
    """
    kind, most = type(defaults[0]), 1.0 if max(defaults) < 1 else _MOST
    try:
        number = json.loads(value)
    except ValueError:
        number = None
    if type(number) not in (int, kind) or not 0 < number <= most:
        words = "a whole number" if kind is int else "a number"
        also = "" if most == _MOST else ", at most 1"
        raise UsageError(
            f"{text!r} has a value that is not {words} above 0{also}",
            found=value or "nothing",
            next_step=f"write them as {', '.join(map(str, defaults))}",
        )
    return number


def tune(
    series: Series,
    label: Label,
    model_name: str,
    grid: Mapping[str, Sequence[Any]],
    *,
    weeks: int = 4,
    seed: int = 0,
    spark: SparkSession | None = None,
) -> list[dict[str, Any]]:
    """Return a row for each configuration, the best first: ``options``,
    ``average_precision`` and ``brier`` as means of the ``weeks`` before the held-back
    one, and ``held_average_precision`` and ``held_brier`` of that one.

    Raises InputMissing (66) where the series has too few weeks.
    """
    mondays = [day for day in series.mondays(label.weeks) if day - label.days >= FIRST_DAY + 7]
    chosen = mondays[-weeks - HELD_WEEKS :]
    if len(chosen) <= HELD_WEEKS:
        earliest = FIRST_DAY + 7 + label.days
        raise too_short(
            series, "too few weeks to tune on", earliest, label, mondays=HELD_WEEKS + 1
        )
    pieces = [
        {"model": model_name, "options": options, "days": chosen}
        for options in configurations(grid)
    ]
    rows = map_tasks(_judge, (series, label, seed), pieces, spark)
    return sorted(
        rows,
        key=lambda row: (
            -(row["average_precision"] or 0),
            row["brier"],
            json.dumps(row["options"]),
        ),
    )


def _judge(shared: tuple[Series, Label, int], piece: Mapping[str, Any]) -> dict[str, Any]:
    series, label, seed = shared
    weeks = Weeks(series, label)
    judged = []
    for day in piece["days"]:
        scores = predict(weeks, day, piece["model"], seed=seed, options=piece["options"])
        entered = ~np.isnan(scores)
        labels, scores = label.mark(series, day)[entered], scores[entered]
        judged.append((average_precision(labels, scores), float(((scores - labels) ** 2).mean())))
    tuned, held_back = judged[:-HELD_WEEKS], judged[-HELD_WEEKS:]
    return {
        "model": piece["model"],
        "options": piece["options"],
        "weeks": [series.days[day].isoformat() for day in piece["days"]],
        "average_precision": mean(precision for precision, _ in tuned),
        "brier": mean(brier for _, brier in tuned),
        "held_average_precision": mean(precision for precision, _ in held_back),
        "held_brier": mean(brier for _, brier in held_back),
    }
