"""Named views of the accesses, from ``etc/views.yaml`` and a file of one's own: what is
counted, by what.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec

from cmsspark.base import config_files, periods
from cmsspark.base.config_files import ConfigFile, nearest
from cmsspark.base.errors import SettingsError, UsageError
from cmsspark.base.periods import Period
from cmsspark.base.resources import read_text
from cmsspark.base.text.spelling import suggestion
from cmsspark.sources.registry import of_accesses

if TYPE_CHECKING:
    import polars as pl

    from cmsspark.counting.rollup import Rollup
    from cmsspark.store.stored_days import StoredDays

BUILT_IN: Final = "etc/views.yaml"


@dataclass(frozen=True)
class View:
    """A view. ``period``: by default the last whole week or month; ``sort``: a key, or
    a measure downwards.
    """

    name: str
    about: str
    rollup: Rollup
    period: str
    sort: str

    def last(self, today: date) -> Period:
        """Return the period that it is of where none is given."""
        return (
            periods.week("last", today) if self.period == "week" else periods.month("last", today)
        )

    def rows(self, stored: StoredDays) -> pl.DataFrame:
        """Return its sorted rows, keys and measures, from the partials of stored days.

        Raises DataError (65) where users have pseudonyms of two keys.
        """
        from cmsspark.counting.rollup import roll_up

        has_users = "distinct_users" in self.rollup.measures
        if has_users:
            stored.key_id()
        rows, aggregated = roll_up(self.rollup, stored.pieces(self.rollup.columns))
        if has_users:
            stored.check_users(aggregated.users)
        is_key = self.sort in self.rollup.keys
        return rows.sort(self.sort, descending=not is_key, nulls_last=True, maintain_order=True)


def load_views(path: str | None) -> dict[str, View]:
    """Return the built-in views, and those of the file ``own``, which come before
    built-in ones of the same name.

    Raises SettingsError (78) with file and line for what is unknown or of another form.
    """
    views = parse_views(read_text(BUILT_IN).encode(), BUILT_IN)
    if path is None:
        return views
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise SettingsError(
            "the file of views cannot be read", where=path, found=error.strerror
        ) from None
    return views | parse_views(content, path)


def find_view(views: Mapping[str, View], name: str) -> View:
    """Return the view of a name. Raises UsageError (2) with the nearest name where there is none."""
    if name not in views:
        hint = (
            suggestion(name, views)
            or "cmsspark period --view lists the views; docs/periods.md says how to add one"
        )
        raise UsageError(f"there is no view {name!r}", found=", ".join(views), next_step=hint)
    return views[name]


def parse_views(content: bytes, name: str) -> dict[str, View]:
    """Return the views of a file's content. Raises SettingsError (78)."""
    file = config_files.parse(content, name)
    return {key: _view(file, key) for key in file.values}


class _Entry(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A view as it is written. ``filter``: column → a pattern, or a list of them. A
    view that neither filters by ``stream`` nor has it as a key counts accesses, without
    jobs.
    """

    keys: Annotated[list[str], msgspec.Meta(min_length=1)]
    measures: Annotated[list[str], msgspec.Meta(min_length=1)]
    about: str = ""
    filter: dict[str, Any] | None = None
    period: Literal["week", "month"] = "week"
    sort: str | None = None


def _view(file: ConfigFile, name: str) -> View:
    from cmsspark.counting.rollup import KEYS, MEASURES, Rollup

    entry = file.convert(_Entry, name)
    keys = _columns(file, entry.keys, KEYS, name, "keys")
    measures = _columns(file, entry.measures, MEASURES, name, "measures")
    sort = measures[0] if entry.sort is None else entry.sort
    if sort not in (*keys, *measures):
        near = nearest(sort, (*keys, *measures))
        raise file.error(
            "a view is sorted by one of its keys or measures",
            name,
            "sort",
            found=sort,
            next_step=near,
        )
    filters = _filters(file, entry.filter or {}, name)
    # Rows that name their stream cannot add jobs to accesses.
    if "stream" not in keys:
        every = of_accesses(filters)
        filters = {name: every[name] for name in every if name != "app" or "app" not in keys}
    return View(name, entry.about, Rollup(keys, measures, filters), entry.period, sort)


def _columns(
    file: ConfigFile, names: list[str], allowed: tuple[str, ...], *key: str
) -> tuple[str, ...]:
    for name in names:
        if name == "user":
            raise file.error(
                "a view cannot show single people", *key, next_step="count them: distinct_users"
            )
        if name not in allowed:
            problem = f"there is no {name!r} among the {key[-1]}"
            raise file.error(problem, *key, next_step=nearest(name, allowed))
    if len(set(names)) < len(names):
        raise file.error(f"{key[-1]} must not repeat a name", *key, found=names)
    return tuple(names)


def _filters(
    file: ConfigFile, columns: Mapping[str, Any], name: str
) -> dict[str, tuple[str, ...]]:
    """Column → patterns; one text stands for a list of one."""
    from cmsspark.counting.rollup import KEYS

    filters = {}
    for column, patterns in columns.items():
        key = (name, "filter", column)
        if column not in KEYS[1:]:
            raise file.error(
                f"a view cannot filter by {column!r}", *key, next_step=nearest(column, KEYS[1:])
            )
        texts = patterns if isinstance(patterns, list) else [patterns]
        if not texts or not all(isinstance(text, str) and text for text in texts):
            raise file.error(
                "patterns are texts, with * and ?",
                *key,
                found=patterns,
                next_step="put them in quotes",
            )
        filters[column] = tuple(texts)
    return filters
