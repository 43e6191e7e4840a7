"""Sections of the page of an evaluation: strata, the funnel, the columns that matter, and the datasets of a week."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

import numpy as np
from markupsafe import Markup

from cmsspark.apps.popularity.explanations import importance, moved_by, reasons
from cmsspark.apps.popularity.fitting import fit
from cmsspark.apps.popularity.quantities import expected
from cmsspark.apps.popularity.scores import format_score, mean
from cmsspark.apps.popularity.training import Weeks
from cmsspark.base.arrays import Array
from cmsspark.pages.layout import section, table

_LIKELY: Final = 0.5
#: Rows of the lists of columns and of datasets.
_COLUMNS, _DATASETS = 20, 50


def sections(
    weeks: Weeks, model: str, day: int, scores: Array, rows: Sequence[Mapping[str, Any]], seed: int
) -> Iterator[Markup]:
    """Yield the sections. ``day``: of the last judged week; ``scores``: what the model predicted for it; ``rows``: of
    :func:`cmsspark.apps.popularity.evaluate.judged`, of all weeks and models.
    """
    fitted = fit(weeks, day, model, seed=seed)
    before, entered = weeks.until(day), np.nonzero(~np.isnan(scores))[0]
    moved = moved_by(fitted.model, before, day, entered)
    about = "Means of the weeks: active datasets were used in the week before, dormant ones before that."
    yield section("By stratum", _strata([row for row in rows if row["model"] == model]), about=about)
    funnel = _funnel(weeks, day, scores, len(fitted.training.rows), fitted.training.total)
    about = f"The last judged week, from {weeks.series.days[day]} on."
    yield section("From accesses to forecasts", funnel, about=about)
    if moved is not None:
        lines = [(name, f"{value:.3f}") for name, value in importance(before.columns, moved)[:_COLUMNS]]
        about = "The mean change of the logarithm of the odds by each column, in that week."
        yield section("Columns that matter", table(("column", "mean change"), lines), about=about)
    about = "The most probable datasets of that week, and what happened."
    yield section("Datasets", _datasets(weeks, day, scores, entered, moved, seed), about=about)


def _strata(rows: Sequence[Mapping[str, Any]]) -> Markup:
    lines = []
    for stratum in ("active", "dormant", "new"):
        parts = [row["strata"][stratum] for row in rows]
        names = ("positives", "average_precision", "brier", "tpr", "tnr")
        means = [mean(part[name] for part in parts) for name in names]
        lines.append((stratum, f"{np.mean([part['rows'] for part in parts]):,.0f}", *map(format_score, means)))
    return table(("stratum", "datasets a week", "popular", "average precision", "Brier", "TPR", "TNR"), lines)


def _funnel(weeks: Weeks, day: int, scores: Array, learned: int, total: int) -> Markup:
    series, entered = weeks.series, ~np.isnan(scores)
    labels = weeks.label.mark(series, day) > 0
    is_likely = np.nan_to_num(scores) >= _LIKELY
    steps = (
        ("accesses in the days before", int(series.accesses[:day].sum())),
        ("days of datasets with an access", int((series.accesses[:day] > 0).sum())),
        ("rows to learn from: a dataset on a day", total),
        ("rows that the model learned from", learned),
        ("datasets that had entered before the week", int(entered.sum())),
        (
            "of these used in the seven days before",
            int((series.accesses[max(day - 7, 0) : day, entered] > 0).any(0).sum()),
        ),
        ("predicted with a probability of 50 % and more", int(is_likely.sum())),
        ("of these popular", int((is_likely & labels).sum())),
        ("popular, of those that had entered", int((labels & entered).sum())),
        ("popular, but only entered in the week", int((labels & ~entered).sum())),
    )
    return table(("step", "number"), [(name, f"{count:,}") for name, count in steps])


def _datasets(weeks: Weeks, day: int, scores: Array, entered: Array, moved: Array | None, seed: int) -> Markup:
    series = weeks.series
    first = np.argsort(-scores[entered], kind="stable")[:_DATASETS]
    explanations = reasons(weeks.until(day).columns, None if moved is None else moved[first]) or [None] * len(first)
    amounts = expected(weeks, day, "accesses", seed=seed)
    happened = series.accesses[day : day + weeks.label.days].sum(0)
    lines = []
    for number, reason in zip(entered[first].tolist(), explanations, strict=True):
        site = () if series.sites is None else (series.sites[number],)
        quantiles = "–" if amounts is None else ", ".join(f"{value:,.0f}" for value in amounts.quantiles[number])
        name = series.datasets[number]
        lines.append((name, *site, f"{scores[number]:.3f}", quantiles, f"{happened[number]:,.0f}", reason))
    end = series.days[day] + timedelta(days=weeks.label.days - 1)
    headings = ("probability", "accesses: 10, 50, 90 %", f"accesses to {end}", "moved by")
    names = ("dataset",) if series.sites is None else ("dataset", "site")
    return table((*names, *headings), lines, (*range(len(names)), len(names) + 3))
