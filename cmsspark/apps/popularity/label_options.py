"""The options that say what popular means, and other options and defaults that commands
and jobs share.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import click

from cmsspark.base.errors import UsageError
from cmsspark.cli.options import FiniteRange

#: Models that are judged by default.
EVALUATED: Final = ("average", "blend")
#: The folder of a run with the saved model: ``cmsspark popularity predict --model`` takes it.
FOLDER: Final = "models"
_OPTIONS: Final = (
    click.option(
        "--weeks",
        "horizon",
        type=click.IntRange(1, 52),
        default=1,
        show_default=True,
        help="Horizon in weeks.",
    ),
    click.option(
        "--top-bytes",
        type=click.IntRange(1),
        metavar="K",
        help="Popular: among the K datasets with the most bytes read. Excludes --threshold and --users.",
    ),
    click.option(
        "--users", type=FiniteRange(0), help="Popular also needs more than this many users."
    ),
    click.option(
        "--threshold",
        type=FiniteRange(0),
        default=10,
        show_default=True,
        help="Popular: more accesses than this.",
    ),
)
model_option = click.option(
    "--model",
    default="blend",
    show_default=True,
    help="Model; cmsspark popularity models lists them.",
)
models_option = click.option(
    "--model",
    "models",
    multiple=True,
    help=f"Model to judge beside the baselines; repeatable. [default: {', '.join(EVALUATED)}]",
)
seed_option = click.option(
    "--seed", type=int, default=0, show_default=True, help="Seed of models and intervals."
)


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
    for option in _OPTIONS:
        decorated = option(decorated)
    return decorated
