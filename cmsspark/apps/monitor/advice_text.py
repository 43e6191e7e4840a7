"""One piece of advice, and advice as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct


class Advice(Struct, frozen=True):
    """One piece of advice. ``conf``: the exact option; None where the value should stay, or nothing can be known."""

    subject: str
    #: What the option is now and what it should be, or why no advice is possible.
    text: str
    conf: str | None = None
    inputs: str = ""
    formula: str = ""
    #: ``high``, ``medium``, ``low``, or ``none`` where nothing can be known.
    confidence: str = "none"


def lines(advice: Sequence[Advice]) -> Iterator[str]:
    """Yield advice as text."""
    for one in advice:
        yield f"{one.subject}: {one.text}"
        if one.conf:
            yield f"  --conf {one.conf}"
        if one.inputs:
            yield f"  inputs      {one.inputs}"
        if one.formula:
            yield f"  formula     {one.formula}"
        if one.confidence != "none":
            yield f"  confidence  {one.confidence}"
