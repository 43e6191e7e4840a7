"""Named views of the accesses: what is counted, by what, read from ``etc/views.yaml`` and from a file of one's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cmsspark import periods, settings
from cmsspark.errors import SettingsError
from cmsspark.periods import Period
from cmsspark.resources import read_text

if TYPE_CHECKING:
    from cmsspark.settings import Lines
    from cmsspark.transforms.rollup import Rollup

BUILT_IN: Final = "etc/views.yaml"
_KEYS: Final = ("about", "keys", "measures", "filter", "period", "sort")
#: What a view is of where no period is given.
_PERIODS: Final = ("week", "month")


@dataclass(frozen=True)
class View:
    """A view. ``period``: the last whole week or month where none is given; ``sort``: a key, upwards, or a measure,
    largest first.
    """

    name: str
    about: str
    rollup: Rollup
    period: str
    sort: str

    def last(self, today: date) -> Period:
        """The period that it is of where none is given."""
        return periods.week("last", today) if self.period == "week" else periods.month("last", today)


def load_views(own: str | None) -> dict[str, View]:
    """The built-in views, and those of the file ``own``, which come before built-in ones of the same name.

    Raises SettingsError (78) with file and line for what is unknown or of another form.
    """
    views = parse_views(read_text(BUILT_IN).encode(), BUILT_IN)
    if own is None:
        return views
    try:
        content = Path(own).read_bytes()
    except OSError as error:
        raise SettingsError("the file of views cannot be read", where=own, found=error.strerror) from None
    return views | parse_views(content, own)


def parse_views(content: bytes, name: str) -> dict[str, View]:
    """The views of a file's content. Raises SettingsError (78)."""
    values, lines = settings.plain(content, name)
    return {key: _view(key, value, _Place(name, lines)) for key, value in values.items()}


@dataclass(frozen=True)
class _Place:
    """Tells where a key of the file stands."""

    name: str
    lines: Lines

    def wrong(self, wanted: str, *path: str, found: object = None, next_step: str | None = None) -> SettingsError:
        where = f"{self.name}, line {self.lines[path]}"
        return SettingsError(wanted, where=where, found=None if found is None else repr(found), next_step=next_step)


def _view(name: str, given: Any, place: _Place) -> View:
    from cmsspark.transforms.rollup import KEYS, MEASURES, Rollup

    if not isinstance(given, dict):
        raise place.wrong(f"the view {name} has `key: value` lines below it", name, found=given)
    for key in given:
        if key not in _KEYS:
            raise place.wrong(f"a view has no {key!r}", name, key, next_step=f"use {', '.join(_KEYS)}")
    keys = _words(given, "keys", KEYS, name, place)
    measures = _words(given, "measures", MEASURES, name, place)
    period = given.get("period", "week")
    if period not in _PERIODS:
        raise place.wrong(f"a view's period is one of {', '.join(_PERIODS)}", name, "period", found=period)
    sort = given.get("sort", measures[0])
    if sort not in (*keys, *measures):
        raise place.wrong("a view is sorted by one of its keys or measures", name, "sort", found=sort)
    about = given.get("about", "")
    if not isinstance(about, str):
        raise place.wrong("about is a text", name, "about", found=about)
    return View(name, about, Rollup(keys, measures, _filters(given.get("filter"), name, place)), period, sort)


def _words(given: Mapping[str, Any], key: str, known: tuple[str, ...], name: str, place: _Place) -> tuple[str, ...]:
    if key not in given:
        raise place.wrong(f"the view {name} needs {key}", name, next_step=f"some of {', '.join(known)}")
    words = given[key]
    if not isinstance(words, list) or not words:
        raise place.wrong(f"{key} is a list", name, key, found=words, next_step=f"some of {', '.join(known)}")
    for word in words:
        if word == "user":
            raise place.wrong("a view never has single people", name, key, next_step="count them: distinct_users")
        if word not in known:
            raise place.wrong(f"there is no {word!r} among the {key}", name, key, next_step=f"use {', '.join(known)}")
    if len(set(words)) < len(words):
        raise place.wrong(f"each of the {key} stands once", name, key, found=words)
    return tuple(words)


def _filters(given: Any, name: str, place: _Place) -> dict[str, tuple[str, ...]]:
    """Column → patterns; one text stands for a list of one."""
    from cmsspark.transforms.rollup import KEYS

    if given is None:
        return {}
    if not isinstance(given, dict):
        raise place.wrong("filter has `column: patterns` below it", name, "filter", found=given)
    found = {}
    for column, patterns in given.items():
        path = (name, "filter", column)
        if column not in KEYS[1:]:
            raise place.wrong(f"nothing is filtered by {column!r}", *path, next_step=f"use {', '.join(KEYS[1:])}")
        texts = patterns if isinstance(patterns, list) else [patterns]
        if not texts or not all(isinstance(text, str) and text for text in texts):
            raise place.wrong("patterns are texts, with * and ?", *path, found=patterns, next_step="put them in quotes")
        found[column] = tuple(texts)
    return found
