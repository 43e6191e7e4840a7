"""Answers from the newest stored forecast: what will be popular, what deserves another
copy, and how good it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from cmsspark.apps.ask.use import Answer, Part, matching_names, page_address, read_frame
from cmsspark.base.errors import DataError, InputMissing
from cmsspark.base.periods import between
from cmsspark.base.text.terminal import percent, pluralize, volume
from cmsspark.filesystems.storage import Files
from cmsspark.store import results
from cmsspark.store.own_jobs import job_of_table
from cmsspark.store.stored_columns import newest, stored_days

if TYPE_CHECKING:
    import polars as pl

_TABLE: Final = "popularity_predictions"
_QUALITY: Final = "popularity_quality"
_JOB: Final = "popularity_forecast"
#: Columns that forecasts of older versions have not.
_SINCE_QUANTILES: Final = {
    **dict.fromkeys(("expected_nacc", "nacc_p10", "nacc_p90", "expected_bytes"), "number"),
    **dict.fromkeys(("basis", "reasons"), "text"),
}
#: A dataset is expected to be popular from this probability on.
LIKELY: Final = 0.5


class StoredForecast(msgspec.Struct, frozen=True):
    """A stored forecast: the first day of its weeks, its rows, those of its quality,
    what popular means in it, how many weeks it is for, and warnings of its run, such as
    that its history is short.
    """

    day: date
    rows: pl.DataFrame
    quality: pl.DataFrame
    label: str
    weeks: int
    notes: Sequence[str]

    @property
    def period(self) -> str:
        """The predicted weeks in words."""
        return self._from(self.day)

    def _from(self, day: date) -> str:
        return (
            f"the week from {day} on"
            if self.weeks == 1
            else f"the {pluralize(self.weeks, 'week')} from {day} on"
        )

    @property
    def last_week(self) -> dict[str, dict[str, Any]]:
        """Of the last judged week, over all datasets: model → its row of the quality;
        empty where none was judged.
        """
        import polars as pl

        is_last = pl.col("first_day") == pl.col("first_day").max()
        chosen = self.quality.filter(is_last, stratum="all")
        return {row["model"]: row for row in chosen.to_dicts()}

    def facts(self) -> list[str]:
        """Return how good such a forecast was last week, in a line or two, and warnings."""
        notes = [f"warning: {text}" for text in self.notes]
        scores = self.last_week
        model = self.rows["model"][0] if self.rows.height else None
        score, baseline = scores.get(str(model)), scores.get("persistence")
        if score is None or score["average_precision"] is None:
            return [
                "how good such forecasts are is not known: the store has too few days, or nothing was popular",
                *notes,
            ]
        interval = f"{score['average_precision_low']:.2f} to {score['average_precision_high']:.2f}"
        text = f"the forecast of {self._from(score['first_day'])} had an average precision of"
        text += f" {score['average_precision']:.2f} ({interval})"
        if (
            baseline is not None
            and baseline is not score
            and baseline["average_precision"] is not None
        ):
            text += f"; popular last week, popular next week: {baseline['average_precision']:.2f}"
        lines = [text]
        if score["tpr"] is not None and score["tnr"] is not None:
            lines.append(
                f"it found {percent(score['tpr'])} of the popular datasets, and {percent(score['tnr'])} of the others"
            )
        return lines + notes

    def summary(self) -> dict[str, Any]:
        """Return the forecast and its quality as JSON."""
        return {
            "first_day": self.day,
            "label": self.label,
            "weeks": self.weeks,
            "last_week": self.last_week,
        }

    def warnings(self, files: Files, fout: str) -> list[str]:
        """Return that newer days are stored than the forecast knows."""
        last, _ = newest(files, fout, "partials")
        if last < self.day:
            return []
        following = last + timedelta(days=1)
        return [
            f"the newest forecast is of {self.period}, and days up to {last} are stored: "
            f"run_spark {_JOB} --date {following} --fout {fout}"
        ]


def newest_forecast(files: Files, fout: str, day: date | None) -> StoredForecast:
    """Return the newest stored forecast, not after ``day``. Raises InputMissing (66)
    that says what to run.
    """
    import polars as pl

    try:
        newest_day, current = newest(files, fout, _TABLE, day)
    except InputMissing as error:
        from cmsspark.apps.popularity.training import FIRST_DAY, Label

        last, _ = newest(files, fout, "partials", day)
        first = stored_days(files, fout, job_of_table("partials").name)[0]
        following = max(last + timedelta(days=1), first + timedelta(days=FIRST_DAY))
        raise error.with_parts(
            found=f"days from {first} to {last}: {Label().rule(first)}",
            next_step=f"run_spark {_JOB} --date {following} --fout {fout}",
        ) from None
    columns = [
        "rank",
        "probability",
        "stratum",
        "last_week_nacc",
        "model",
        "threshold",
        "data_tier",
        "dataset_name",
    ]
    quality_columns = [
        *(
            "first_day",
            "model",
            "stratum",
            "average_precision",
            "average_precision_low",
            "average_precision_high",
        ),
        *("auc", "brier", "tpr", "tnr"),
    ]
    judged = results.current(files, fout, _JOB, _QUALITY, newest_day)
    try:
        rows = read_frame(files, current, _TABLE, [*columns, *_SINCE_QUANTILES])
    except DataError:
        # Forecasts of older versions have no quantiles and no reasons.
        rows = read_frame(files, current, _TABLE, columns)
        kinds = {"number": pl.Float64(), "text": pl.String()}
        rows = rows.with_columns(
            pl.lit(None, kinds[kind]).alias(name) for name, kind in _SINCE_QUANTILES.items()
        )
    quality = read_frame(files, judged, _QUALITY, quality_columns)
    about = current.manifest.document.get("forecast", {})
    threshold = rows["threshold"][0] if rows.height else 0
    # Forecasts of older versions have a threshold only, and are of one week.
    label = about.get("label") or f"more than {threshold:g} accesses in 1 week"
    weeks, notes = about.get("horizon", 1), current.manifest.document.get("warnings", ())
    return StoredForecast(newest_day, rows.sort("rank"), quality, label, weeks, notes)


def forecast_or_none(files: Files, fout: str, day: date | None) -> StoredForecast | None:
    """Return the newest stored forecast; None where none is stored."""
    try:
        return newest_forecast(files, fout, day)
    except InputMissing:
        return None


def will_be_popular(
    files: Files, fout: str, dataset: str | None, data_tier: str | None, day: date | None
) -> Answer:
    """Return the matching datasets by their probability.

    Raises InputMissing (66) with similar names for an unknown one.
    """
    import polars as pl

    forecast = newest_forecast(files, fout, day)
    rows, where = forecast.rows, f"{fout}, {_TABLE} of {forecast.day}"
    for column, value in (("dataset_name", dataset), ("data_tier", data_tier)):
        if value is not None:
            rows = rows.filter(
                pl.col(column).is_in(matching_names(value, rows[column].unique(), column, where))
            )
    likely = rows.filter(pl.col("probability") >= LIKELY).height
    verb = "be" if forecast.label.startswith("among") else "have"
    amounts = ("expected_nacc", "nacc_p10", "nacc_p90")
    shown = rows.select(
        "rank",
        "probability",
        *(pl.col(name).round(0).cast(pl.Int64, strict=False) for name in amounts),
        "last_week_nacc",
        "stratum",
        "reasons",
        "dataset_name",
    )
    facts = [f"{likely:,} of {rows.height:,} datasets are likely to {verb} {forecast.label}"]
    if unknown := rows["probability"].null_count():
        facts.append(
            f"of {pluralize(unknown, 'new dataset')} nothing is known: neither use nor siblings nor DBS"
        )
    if tied := rows.height - unknown - rows["probability"].drop_nulls().n_unique():
        facts.append(
            f"{tied:,} share their probability with another: the expected accesses order them"
        )
    summary = {
        **forecast.summary(),
        "dataset": dataset,
        "data_tier": data_tier,
        "likely": likely,
        "rows": rows.height,
    }
    parts = [Part.from_frame("by probability", "datasets", shown)]
    return Answer(
        f"popular in {forecast.period}",
        facts + forecast.facts(),
        parts,
        summary,
        forecast.warnings(files, fout),
        page_address("forecasts", day=forecast.day),
    )


def replicate(
    files: Files,
    fout: str,
    settings_file: str | None,
    site: str | None,
    space: Path | None,
    budget: str | None,
    day: date | None,
) -> Answer:
    """Copies to make for the week of the newest forecast, of matching sites, by the
    plan of ``cmsspark placement``, beside the forecast of their datasets.
    """
    import polars as pl

    from cmsspark.apps.placement.inputs import WEEKS, read_space, stored_inputs
    from cmsspark.apps.placement.plan import DEFAULT, recommend
    from cmsspark.base.text.sizes import parse_bytes
    from cmsspark.counting.rollup import matches

    forecast = newest_forecast(files, fout, day)
    last = forecast.day - timedelta(days=1)
    period = between(forecast.day - timedelta(days=7 * WEEKS), last)
    given_space = read_space(space) if space else {}
    weekly = float(parse_bytes(budget)) if budget else None
    inputs = stored_inputs(fout, settings_file, period, cooldown_days=7 * DEFAULT.lifetime)
    inputs = replace(inputs, given_space=given_space, budget=weekly)
    rows = recommend(inputs).rows.filter(action="copy")
    if site is not None:
        chosen = [matches(name, [site]) for name in rows["site"].to_list()]
        rows = rows.filter(pl.Series(chosen, dtype=pl.Boolean))
    of_datasets = forecast.rows.select("dataset_name", "probability").unique("dataset_name")
    frame = rows.select(
        pl.col("bytes").alias("replica_bytes"),
        pl.col("benefit").round(0).cast(pl.Int64).alias("served_bytes"),
        pl.col("accesses").round(1).alias("expected_nacc"),
        pl.col("site").alias("site_name"),
        pl.col("dataset").alias("dataset_name"),
    ).join(of_datasets, "dataset_name", "left", maintain_order="left")
    frame = frame.select(*frame.columns[:3], "probability", "site_name", "dataset_name")
    total = int(frame["replica_bytes"].sum())
    copies = pluralize(frame.height, "copy", "copies")
    facts = [f"{copies}, {volume(total)}; replicas as of {inputs.about.rpartition(' of ')[2]}"]
    summary = {**forecast.summary(), "site": site, "total_bytes": total, "copies": frame.height}
    about = f" at {site}" if site else ""
    parts = [Part.from_frame("copies to make", "rows", frame)]
    return Answer(
        f"worth another copy{about} in {forecast.period}",
        facts + forecast.facts(),
        parts,
        summary,
        forecast.warnings(files, fout),
    )
