"""``--patterns`` and ``--antipatterns`` of jobs on dumps: which datasets are in the
result, by their names.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    import polars as pl


def pattern_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return the options; the command gets ``patterns`` and ``antipatterns``, None
    where not given.
    """
    for option in (
        click.option(
            "--antipatterns",
            metavar="LIST",
            help="Leave out datasets with these names, such as *RelVal*.",
        ),
        click.option(
            "--patterns",
            metavar="LIST",
            help="Only datasets with these names: /*/*/AOD,/ZMM*; marks it partial.",
        ),
    ):
        command = option(command)
    return command


@dataclass(frozen=True)
class NamePatterns:
    """Names of datasets: of ``patterns`` one must match, of ``antipatterns`` none may.
    ``*`` stands for any characters, ``?`` for one; the whole name must match. An empty
    tuple of patterns matches every name.
    """

    patterns: tuple[str, ...] = ()
    antipatterns: tuple[str, ...] = ()

    @classmethod
    def from_options(cls, patterns: str | None, antipatterns: str | None) -> NamePatterns | None:
        """Return the patterns of the options; None where neither is given.

        Example:
            >>> NamePatterns.from_options("/*/*/AOD, /ZMM*", None).patterns
            ('/*/*/AOD', '/ZMM*')
        """
        compiled = cls(_split(patterns), _split(antipatterns))
        return compiled if compiled.patterns or compiled.antipatterns else None

    def as_dict(self) -> dict[str, list[str]]:
        """Return the patterns as the manifest has them."""
        return {"patterns": list(self.patterns), "antipatterns": list(self.antipatterns)}

    def select(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the rows whose ``dataset_name`` stays; a null name stays only where
        there are no patterns.
        """
        import polars as pl

        name = pl.col("dataset_name")
        if self.patterns:
            rows = rows.filter(name.str.contains(_expression(self.patterns)).fill_null(False))
        if self.antipatterns:
            rows = rows.filter(~name.str.contains(_expression(self.antipatterns)).fill_null(False))
        return rows


def _split(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def _expression(patterns: tuple[str, ...]) -> str:
    """Return a regular expression."""
    return r"^(?:" + "|".join(_to_regex(pattern) for pattern in patterns) + r")$"


def _to_regex(pattern: str) -> str:
    return "".join(
        {"*": r"[^\n]*", "?": r"[^\n]"}.get(character) or re.escape(character)
        for character in pattern
    )
