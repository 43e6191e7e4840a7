"""The page of a run that failed: what failed, where, and the next step. Without scripts, with all text escaped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from cmsspark.base.errors import Exit
from cmsspark.base.text.readable import readable
from cmsspark.pages.page import document


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
    return document(failure.title, "\n".join(_body(failure)))


def _body(failure: Failure) -> Iterator[str]:
    yield f"<h1>{_text(failure.title)}</h1>"
    badge = f'<span class="badge bad">failed with {failure.exit_code}</span>'
    yield f"<p>run <code>{_text(failure.run)}</code> {badge}</p>"
    error = f"<p><b>{_text(failure.problem)}</b></p>{_list(failure.parts)}"
    yield f"<section class=warnings><h2>What failed</h2>{error}</section>"
    try:
        code = Exit(failure.exit_code)
        meaning = f"<p>{failure.exit_code}: {_text(code.meaning)}. Next: {_text(code.next_step)}.</p>"
    except ValueError:
        meaning = ""
    yield f"<section><h2>What the code means</h2>{meaning}</section>"
    yield f"<section><h2>The run</h2>{_list(failure.facts)}</section>"


def _list(items: dict[str, str]) -> str:
    rows = "".join(
        f"<tr><td class=text>{_text(name)}</td><td class=text>{_text(value)}</td></tr>" for name, value in items.items()
    )
    return f"<table>{rows}</table>" if rows else ""


def _text(value: str) -> str:
    return escape(readable(value)).replace("\n", "<br>")
