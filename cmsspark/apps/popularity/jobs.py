"""The jobs of popularity: features, models, evaluations, forecasts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, Final

import click

from cmsspark.apps.popularity.label_options import (
    FOLDER,
    label_options,
    model_option,
    models_option,
    seed_option,
)
from cmsspark.cli.options import (
    date_option,
    output_options,
    print_outcome,
    require_store,
    store_options,
)
from cmsspark.settings.settings import load_settings
from cmsspark.store.own_jobs import Job, declare

if TYPE_CHECKING:
    from cmsspark.apps.popularity.training import Label
    from cmsspark.settings.settings import Settings
    from cmsspark.store.results import CurrentTable


def run(
    name: str,
    day: date,
    fout: str,
    settings: Settings,
    *,
    label: Label | None = None,
    log: Callable[[str], None] | None = None,
    **options: Any,
) -> CurrentTable:
    """Run a job on the stored days before ``day``; on any failure the previous result
    stays. ``label``: what popular means, by default more than 10 accesses in one week;
    ``options``: those of the job.

    Raises InputMissing (66) where the day before is not stored or there are too few
    days, DataError (65) where a day is damaged, a feature knows its week, or the days
    lack what the label is made of, UsageError (2) for an unknown model, NotReady (75),
    OutputError (73).
    """
    # Not at import: `--help` must answer at once.
    from cmsspark.apps.popularity import stored_run
    from cmsspark.apps.popularity.series import stored_series
    from cmsspark.apps.popularity.training import Label

    with stored_run.stored_run(name, day, fout, settings, log) as stored:
        series = stored_series(stored.days)
        return stored_run.STORE[_kind(name)](stored, series, label or Label(), **options)


def make_command(job: Job) -> click.Command:
    """Return the click command of a job."""
    kind = _KINDS[_kind(job.name)]

    def command(
        day: date, fout: str | None, settings_file: str | None, as_json: bool, **options: Any
    ) -> None:
        settings = load_settings(settings_file)
        store = require_store(fout, settings)
        if kind.is_on_spark:
            from cmsspark.engines.session import session

            options["spark"] = session(f"cmsspark {job.name}")
        print_outcome(
            job.name,
            day,
            as_json,
            lambda: run(job.name, day, store, settings, **options),
            kind.folder,
        )

    decorators = (
        output_options,
        store_options,
        label_options,
        *reversed(kind.options),
        date_option,
    )
    decorated: Callable[..., Any] = reduce(
        lambda function, decorate: decorate(function), decorators, command
    )
    about = f"{job.about}.{' Needs cmsspark[popularity].' if kind.needs_extra else ''}"
    return click.command(job.name, help=f"{about} Exit codes: cmsspark help exit-codes.")(
        decorated
    )


@dataclass(frozen=True)
class _Kind:
    """A kind of job: its options, and the folder of its run that the command prints."""

    options: tuple[Callable[..., Any], ...]
    folder: str | None = None
    needs_extra: bool = False
    is_on_spark: bool = False


def _kind(name: str) -> str:
    return name.rpartition("_")[2]


_LAST_HELP: Final = "Only the last so many weeks before --date"
_CARD_HELP: Final = "Past weeks for the model card."
#: The last part of a job's name → its kind.
_KINDS: Final[Mapping[str, _Kind]] = {
    "features": _Kind(
        (
            click.option(
                "--last", type=click.IntRange(1), help=f"{_LAST_HELP}, and that from it on."
            ),
        )
    ),
    "forecast": _Kind(
        (
            model_option,
            click.option(
                "--judged",
                "weeks",
                type=click.IntRange(0),
                default=4,
                show_default=True,
                help="Past weeks to judge.",
            ),
            click.option(
                "--top",
                type=click.IntRange(1),
                default=2000,
                show_default=True,
                help="Ranks that can be published.",
            ),
            seed_option,
        )
    ),
    "train": _Kind(
        (
            model_option,
            click.option(
                "--judged", type=click.IntRange(1), default=4, show_default=True, help=_CARD_HELP
            ),
            seed_option,
        ),
        folder=FOLDER,
        needs_extra=True,
    ),
    "evaluate": _Kind(
        (
            models_option,
            click.option("--last", type=click.IntRange(1), help=f"{_LAST_HELP}."),
            seed_option,
        ),
        needs_extra=True,
        is_on_spark=True,
    ),
}


_on_host: Final = partial(Job, needs_spark=False, module=__name__)
for _job in (
    _on_host(
        "popularity_forecast",
        "The datasets that will be popular in a week, and how good such forecasts were",
        ("popularity_forecast", "popularity_quality", "popularity_predictions"),
    ),
    Job(
        "popularity_evaluate",
        "How good forecasts of popularity were in past weeks, one Spark task each",
        ("popularity_evaluation",),
        module=__name__,
    ),
    _on_host(
        "popularity_features",
        "Features and labels of each dataset and week, from the stored days before a day",
        ("popularity_features",),
    ),
    _on_host(
        "popularity_train",
        "A model of popularity with its model card, to predict with later",
        ("popularity_models",),
    ),
):
    declare(_job, partial(make_command, _job))
