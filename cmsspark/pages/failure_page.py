"""The page of a run that failed: what failed, where, and the next step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from cmsspark.base.errors import Exit
from cmsspark.pages.layout import badge, code, document, safe, section, table


@dataclass(frozen=True)
class Failure:
    """A failed run. ``parts``: the error's parts by their names (where, found, next); ``facts``: what else is known."""

    title: str
    run: str
    exit_code: int
    problem: str
    parts: dict[str, str]
    facts: dict[str, str]


def failure_page(failure: Failure) -> str:
    """Return the page as HTML."""
    problem = Markup("<p><b>{}</b></p>").format(_lines(failure.problem))
    parts: list[Any] = [section("What failed", problem, _pairs(failure.parts), kind="warnings")]
    try:
        code_meant = Exit(failure.exit_code)
        meaning = f"{failure.exit_code}: {code_meant.meaning}. Next: {code_meant.next_step}."
    except ValueError:
        meaning = ""
    parts += [section("What the code means", about=meaning), section("The run", _pairs(failure.facts))]
    failed = badge("bad", f"failed with {failure.exit_code}")
    return document(failure.title, parts, Markup("run {} {}").format(code(failure.run), failed))


def _pairs(texts: dict[str, str]) -> Markup:
    return table((), [(name, _lines(words)) for name, words in texts.items()], (0, 1)) if texts else Markup()


def _lines(words: str) -> Markup:
    return Markup("<br>").join(safe(line) for line in words.split("\n"))
