"""Questions in SQL to a year of stored days, beside Polars on the same part files.

``python -m bench.sql`` from the top of a checkout. Makes the year once (seeded, in
--store), asks each question both ways in turns, compares the rows, and prints medians
of wall and CPU seconds and their ratio to Polars. What each way needs to find the days
is part of its time.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import polars as pl

from cmsspark.apps.demo.history_2015 import History
from cmsspark.apps.demo.narration import store_history
from cmsspark.settings.pseudonyms import Pseudonyms
from cmsspark.store.query.database import Database

LAST = date(2026, 1, 15)


@dataclass(frozen=True)
class Question:
    """A question in SQL, and the same in Polars over the table's rows."""

    name: str
    table: str
    sql: str
    polars: Callable[[pl.LazyFrame], pl.LazyFrame]


def month(frame: pl.LazyFrame) -> pl.LazyFrame:
    return frame.filter(pl.col("day").is_between(date(2025, 6, 1), date(2025, 6, 30)))


QUESTIONS = (
    Question(
        "a year, by day and stream",
        "data_aggregation",
        "select day, stream, sum(coalesce(accesses, jobs)) as n from data_aggregation group by all",
        lambda rows: rows.group_by("day", "stream").agg(n=pl.col("nacc").sum()),
    ),
    Question(
        "a year, ten datasets",
        "data_aggregation",
        "select dataset_name, sum(coalesce(accesses, jobs)) as n from data_aggregation"
        " group by all order by n desc limit 10",
        lambda rows: rows.group_by("dataset_name").agg(n=pl.col("nacc").sum()).top_k(10, by="n"),
    ),
    Question(
        "a year, one dataset's days",
        "data_aggregation",
        "select day, sum(coalesce(accesses, jobs)) as n from data_aggregation"
        " where dataset_name = '/JetHT/Run2012B-22Jan2013-v1/AOD' group by all",
        lambda rows: (
            rows.filter(pl.col("dataset_name") == "/JetHT/Run2012B-22Jan2013-v1/AOD")
            .group_by("day")
            .agg(n=pl.col("nacc").sum())
        ),
    ),
    Question(
        "a month, users by stream",
        "partials",
        "select stream, count(distinct user) as n from partials"
        " where day between '2025-06-01' and '2025-06-30' group by all",
        lambda rows: month(rows).group_by("stream").agg(n=pl.col("user").drop_nulls().n_unique()),
    ),
    Question(
        "a month, by site",
        "data_aggregation",
        "select site_name, sum(remote_nacc) as n from data_aggregation"
        " where day between '2025-06-01' and '2025-06-30' group by all",
        lambda rows: month(rows).group_by("site_name").agg(n=pl.col("remote_nacc").sum()),
    ),
)


def by_sql(store: str, question: Question) -> list[tuple[Any, ...]]:
    with Database(store) as database:
        return sorted(database.query(question.sql).rows)


def by_polars(store: str, question: Question) -> list[tuple[Any, ...]]:
    # One run a day: what stands in the store is current.
    files = sorted(Path(store).glob(f"data_aggregation/*/runs/*/{question.table}/part-*.parquet"))
    return sorted(question.polars(pl.scan_parquet(files)).collect().rows())


def timed(ask: Callable[[], list[tuple[Any, ...]]]) -> tuple[float, float, list[tuple[Any, ...]]]:
    began, cpu = time.monotonic(), time.process_time()
    rows = ask()
    return time.monotonic() - began, time.process_time() - cpu, rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--store", type=Path, default=Path("bench-year"), help="where the year is made, once"
    )
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--rows", type=int, default=200_000, help="partials a day")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    key = Pseudonyms(b"x" * 32)
    days = [LAST - timedelta(days=back) for back in range(options.days - 1, -1, -1)]
    began = time.monotonic()
    made = store_history(
        History(key.pseudonym, 1, options.rows),
        str(options.store),
        days,
        key.key_id,
        processes=os.cpu_count() or 1,
    )
    print(f"{made} days made in {time.monotonic() - began:.0f} s")
    print("| question | SQL s | CPU s | Polars s | CPU s | wall to Polars | CPU to Polars |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for question in QUESTIONS:
        runs = [
            (
                timed(lambda q=question: by_sql(str(options.store), q)),
                timed(lambda q=question: by_polars(str(options.store), q)),
            )
            for _ in range(options.repeats)
        ]
        if any(ours[2] != theirs[2] for ours, theirs in runs):
            sys.exit(f"{question.name}: the rows differ")
        wall, cpu, their_wall, their_cpu = (
            statistics.median(pick(run) for run in runs)
            for pick in (
                lambda r: r[0][0],
                lambda r: r[0][1],
                lambda r: r[1][0],
                lambda r: r[1][1],
            )
        )
        print(
            f"| {question.name} | {wall:.2f} | {cpu:.2f} | {their_wall:.2f} | {their_cpu:.2f} |"
            f" {wall / their_wall:.2f} | {cpu / their_cpu:.2f} |"
        )


if __name__ == "__main__":
    main()
