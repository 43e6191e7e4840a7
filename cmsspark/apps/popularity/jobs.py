"""The jobs of popularity: features, evaluations, forecasts; and the options that they
share with the commands, such as what popular means.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from datetime import date
from typing import TYPE_CHECKING, Any, Final

import click
from click import IntRange, option

from cmsspark.base.errors import UsageError
from cmsspark.cli.options import (
    FiniteRange,
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


#: Models that are judged by default.
EVALUATED: Final = ("average", "blend")
_OPTIONS: Final = (
    option("--weeks", "horizon", type=IntRange(1, 52), default=1, help="Horizon in weeks."),
    option(
        "--top-bytes",
        type=IntRange(1),
        metavar="K",
        help="Popular: among the K datasets with the most bytes read. Excludes --threshold and --users.",
    ),
    option("--users", type=FiniteRange(0), help="Popular also needs more than this many users."),
    option(
        "--threshold", type=FiniteRange(0), default=10, help="Popular: more accesses than this."
    ),
)
model_option = option(
    "--model", default="blend", help="Model; cmsspark popularity models lists them."
)
models_option = option(
    "--model",
    "models",
    multiple=True,
    help=f"Model to judge beside the baselines; repeatable. [default: {', '.join(EVALUATED)}]",
)
seed_option = option("--seed", type=int, default=0, help="Seed of models and intervals.")


def label_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--threshold``, ``--users``, ``--top-bytes`` and ``--weeks``; the command
    gets a ``label``.

    Raises UsageError (2) where they exclude each other.
    """

    @functools.wraps(command)
    def with_label(
        *arguments: Any,
        threshold: float,
        users: float | None,
        top_bytes: int | None,
        horizon: int,
        **options: Any,
    ) -> Any:
        # Not at import: numpy comes with it.
        from cmsspark.apps.popularity.training import Label

        if top_bytes is not None and users is not None:
            raise UsageError("--top-bytes excludes --users", next_step="give only one of them")
        return command(*arguments, label=Label(threshold, users, horizon, top_bytes), **options)

    decorated: Callable[..., Any] = with_label
    for decorate in _OPTIONS:
        decorated = decorate(decorated)
    return decorated


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
    is_on_spark = _kind(job.name) == "evaluate"

    def command(
        day: date, fout: str | None, settings_file: str | None, as_json: bool, **options: Any
    ) -> None:
        settings = load_settings(settings_file)
        store = require_store(fout, settings)
        if is_on_spark:
            from cmsspark.engines.session import session

            options["spark"] = session(f"cmsspark {job.name}")
            options["models"] = options["models"] or EVALUATED
        print_outcome(
            job.name,
            day,
            as_json,
            lambda: run(job.name, day, store, settings, **options),
        )

    decorators = (
        output_options,
        store_options,
        label_options,
        *reversed(_OF_KIND[_kind(job.name)]),
        date_option,
    )
    decorated: Callable[..., Any] = functools.reduce(
        lambda function, decorate: decorate(function), decorators, command
    )
    about = f"{job.about}.{' Needs cmsspark[popularity].' if is_on_spark else ''}"
    text = f"{about} Exit codes: cmsspark help exit-codes."
    return click.command(job.name, help=text, context_settings={"show_default": True})(decorated)


def _kind(name: str) -> str:
    return name.rpartition("_")[2]


_LAST_HELP: Final = "Only the last so many weeks before --date"
#: The last part of a job's name → its options.
_OF_KIND: Final[Mapping[str, tuple[Callable[..., Any], ...]]] = {
    "features": (option("--last", type=IntRange(1), help=f"{_LAST_HELP}, and that from it on."),),
    "forecast": (
        model_option,
        option("--judged", "weeks", type=IntRange(0), default=4, help="Past weeks to judge."),
        option("--top", type=IntRange(1), default=2000, help="Ranks that can be published."),
        seed_option,
    ),
    "evaluate": (
        models_option,
        option("--last", type=IntRange(1), help=f"{_LAST_HELP}."),
        seed_option,
    ),
}


_on_host: Final = functools.partial(Job, needs_spark=False, module=__name__)
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
):
    declare(_job, functools.partial(make_command, _job))
