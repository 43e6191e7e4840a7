"""Rows and seconds of each step from stored partials to predictions, and the window
study, on a synthetic past.

``python -m bench.popularity`` from the top of a checkout. Makes half a year of days
once (seeded, in --store), then runs the chain: accesses → partials → dataset-days →
dataset-weeks → samples → model → predictions. With --windows it predicts one, two and
three weeks ahead with the same model. The past is simulated: its seconds and rows are
measurements, its precision is not one of CMS.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from cmsspark.apps.demo.history_2015 import History
from cmsspark.apps.demo.narration import store_history
from cmsspark.apps.popularity.evaluate import fit, predict
from cmsspark.apps.popularity.scores import average_precision
from cmsspark.apps.popularity.series import Series, stored_series
from cmsspark.apps.popularity.training import FIRST_DAY, Label, Weeks
from cmsspark.base.periods import between
from cmsspark.filesystems.storage import LocalFiles
from cmsspark.settings.pseudonyms import Pseudonyms
from cmsspark.store import stored_days

LAST = date(2026, 1, 11)  # a Sunday


def timed(name: str, rows: Callable[[Any], int], work: Callable[[], Any]) -> Any:
    """Do the work, and print its rows and seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = work()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(f"{name:42} {rows(result):>13,} {wall:8.1f} {cpu:8.1f}", flush=True)
    return result


def make_store(store: Path, days: int, rows: int, datasets: int) -> stored_days.StoredDays:
    """The stored days of the past."""
    pseudonyms = Pseudonyms(b"bench, no secret at all: 32 bytes")
    history = History(pseudonyms.pseudonym, rows=rows, datasets=datasets)
    chosen = [LAST - timedelta(days=number) for number in range(days)]
    store_history(history, str(store), chosen, pseudonyms.key_id, processes=2)
    return stored_days.find_days(LocalFiles(), str(store), between(chosen[-1], LAST))


def chain(days: stored_days.StoredDays, model: str) -> Series:
    """Each step with its rows and seconds; returns the series."""
    print(f"{'step':42} {'rows':>13} {'wall s':>8} {'CPU s':>8}")
    partials = sum(table.manifest.tables["partials"].rows for table in days.partials.values())
    print(f"{'partials (dataset, site, app, user, day)':42} {partials:>13,}")
    series: Series = timed(
        "dataset-days with an access",
        lambda result: int((result.accesses > 0).sum()),
        lambda: stored_series(days),
    )
    print(f"{'accesses':42} {int(series.accesses.sum()):>13,}")
    weeks = Weeks(series, Label(10))
    day = len(series.days)
    dataset_weeks = day // 7 * len(series.datasets)
    print(f"{'dataset-weeks':42} {dataset_weeks:>13,}")
    training = timed(
        "samples with features and labels",
        lambda result: len(result.rows),
        lambda: weeks.training(day),
    )
    shape = f"{training.rows.shape[1]} columns, {training.rows.nbytes / 1e9:.2f} GB, of {training.total:,} dataset-days"
    print(f"{'':42} {shape}")
    fitted = timed(
        f"model ({model}), with its calibration",
        lambda result: len(result.training.rows),
        lambda: fit(weeks, day, model),
    )
    timed("predictions", len, lambda: fitted.model.predict(weeks.rows(day)))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"peak memory {peak:.2f} GB")
    return series


def windows(series: Series, model: str, count: int) -> None:
    """Average precision and Brier score of the last weeks, for horizons of one to three weeks."""
    print(
        f"\n{'horizon':>8} {'popular':>8} {'average precision':>18} {'of persistence':>15} {'Brier':>7} {'seconds':>8}"
    )
    for horizon in (1, 2, 3):
        label, began = Label(10, weeks=horizon), time.perf_counter()
        weeks, rows = Weeks(series, label), []
        mondays = [day for day in series.mondays(horizon) if day - label.days >= FIRST_DAY + 7]
        if not mondays:
            print(f"{horizon:>8} too few days")
            continue
        for day in mondays[-count:]:
            labels = label.mark(series, day)
            scores, baseline = predict(weeks, day, model), predict(weeks, day, "persistence")
            entered = weeks.until(day).population(day)
            labels, scores, baseline = labels[entered], scores[entered], baseline[entered]
            rows.append(
                (
                    labels.mean(),
                    average_precision(labels, scores),
                    average_precision(labels, baseline),
                    ((scores - labels) ** 2).mean(),
                )
            )
        share, own, base, brier = np.mean(rows, axis=0)
        seconds = time.perf_counter() - began
        print(
            f"{horizon:>8} {share:8.1%} {own:18.3f} {base:15.3f} {brier:7.3f} {seconds:8.1f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--store", type=Path, default=Path("build/bench-popularity"), help="kept between runs"
    )
    parser.add_argument("--days", type=int, default=182)
    parser.add_argument("--datasets", type=int, default=20_000)
    parser.add_argument("--rows", type=int, default=20_000, help="partials a day")
    parser.add_argument("--model", default="boosting")
    parser.add_argument(
        "--windows", type=int, metavar="WEEKS", help="study horizons on so many weeks"
    )
    asked = parser.parse_args()
    days = make_store(asked.store, asked.days, asked.rows, asked.datasets)
    series = chain(days, asked.model)
    if asked.windows:
        windows(series, asked.model, asked.windows)


if __name__ == "__main__":
    main()
