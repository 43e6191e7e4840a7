"""The options that say what popular means, the same in commands and jobs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from cmsspark.cli.options import FiniteRange

if TYPE_CHECKING:
    from cmsspark.apps.popularity.training import Label

_OPTIONS = (
    click.option(
        "--weeks", "horizon", type=click.IntRange(1, 52), default=1, show_default=True, help="Horizon in weeks."
    ),
    click.option(
        "--top-bytes", type=click.IntRange(1), metavar="K",
        help="Popular: among the K datasets with the most bytes read. Excludes --threshold and --users.",
    ),
    click.option("--users", type=FiniteRange(0), help="Popular also needs more than this many users."),
    click.option(
        "--threshold", type=FiniteRange(0), default=10, show_default=True, help="Popular: more accesses than this."
    ),
)  # fmt: skip


def label_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--threshold``, ``--users``, ``--top-bytes`` and ``--weeks``, for :func:`label_of`."""
    for option in _OPTIONS:
        command = option(command)
    return command


def label_of(threshold: float, users: float | None, top_bytes: int | None, horizon: int) -> Label:
    """Return the label of these options. Raises UsageError (2) where they exclude each other."""
    from cmsspark.apps.popularity.training import Label
    from cmsspark.base.errors import UsageError

    if top_bytes is not None and users is not None:
        raise UsageError("--top-bytes excludes --users", next_step="give only one of them")
    return Label(threshold, users, horizon, top_bytes)
