"""An error of a page above the page's form, which keeps what was chosen: so it can be
corrected where it was made.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from werkzeug.datastructures import MultiDict

from cmsspark.apps.dashboard.widgets import Content, Control, Note
from cmsspark.base.errors import CmssparkError
from cmsspark.base.text.readable import readable

#: Field of a form → the parameter that it takes where it has none of its own: an
#: unknown name is searched.
_INSTEAD: Final = {"q": "name"}


def title(error: CmssparkError) -> str:
    """Return the first sentence of an error, which begins with a capital."""
    text = readable(error.problem)
    return text[:1].upper() + text[1:]


def facts(error: CmssparkError) -> dict[str, str]:
    """Return where, what was found and the next step, as far as the error has them."""
    labels = (("where", error.where), ("found", error.found), ("next", error.next_step))
    return {label: readable(str(value)) for label, value in labels if value is not None}


def make_content(page: Content, error: CmssparkError, chosen: MultiDict[str, str]) -> Content:
    """Return a page with the error and the form of ``page``, filled with the parameters
    of the address.
    """
    notes = [Note(f"{label}: {value}") for label, value in facts(error).items()]
    controls = [_filled(control, chosen) for control in page.controls]
    return Content(title(error), [], "", controls, notes, page.button)


def _filled(control: Control, chosen: MultiDict[str, str]) -> Control:
    values = chosen.getlist(control.name) or chosen.getlist(_INSTEAD.get(control.name, ""))
    if not values or control.kind == "links":
        return control
    if control.kind == "many":
        return replace(control, chosen=values)
    return replace(control, value=values[0])
