"""Options that the commands on runs share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import click

#: ``--debug`` is read from the command line where an error is reported.
debug_option: Final = click.option(
    "--debug", is_flag=True, expose_value=False, help="Show tracebacks."
)


def run_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """``--settings`` and ``--debug``, for commands that read the state directory."""
    return click.option("--settings", "settings_file", metavar="FILE", help="The settings file.")(
        debug_option(function)
    )
