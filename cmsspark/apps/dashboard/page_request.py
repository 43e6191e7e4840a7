"""What a page gets: the parameters of the address, the rollups, the store, and how to
link to other pages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote, quote_plus, urlencode

import msgspec

from cmsspark.apps.dashboard import selection
from cmsspark.apps.dashboard.query_process import QueryPool
from cmsspark.apps.dashboard.selection import FILTERS, Selection
from cmsspark.apps.dashboard.snapshot import Snapshot
from cmsspark.apps.dashboard.tables import is_text
from cmsspark.apps.dashboard.widgets import Column, Content, Note, Table, shown
from cmsspark.base.periods import spans
from cmsspark.base.text.terminal import is_or_are
from cmsspark.settings.settings import Settings
from cmsspark.store.query.database import Database

T = TypeVar("T")
#: Parameters that other pages leave in an address. A page that does not use them shows
#: the same numbers.
_WITHOUT_HARM: Final = frozenset(
    (
        "from",
        "to",
        "step",
        "measure",
        "download",
        "format",
        "sort",
        "page",
    )
)


#: What file names are better without.
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9.+-]+")


class Parameters(dict[str, Any]):
    """The parameters of an address: a text, or a tuple of texts of a filter.
    :attr:`unread`: those that have a value and were never read by ``get``.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self._read: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of a parameter, which is then read."""
        self._read.add(name)
        return super().get(name, default)

    @property
    def unread(self) -> list[str]:
        return [name for name, value in self.items() if value and name not in self._read]


class PageDefinition(msgspec.Struct, frozen=True):
    """A page: its title in the navigation, a sentence, and ``view``, which makes its content.

    ``needs_use``: it shows nothing without a stored day of accesses. ``needs``: stored
    tables, of which one must have a day, else the page is the sentence ``empty``.
    ``is_quick``: a few such pages are made at a time and the others wait, as they all need
    the same processors.
    """

    title: str
    about: str
    view: Callable[[PageRequest], Content]
    needs_use: bool = True
    is_quick: bool = True
    needs: Sequence[str] = ()
    empty: str = ""

    def content(self, request: PageRequest) -> Content:
        """Return the page. Raises UsageError (2) for wrong parameters."""
        if self.needs and not any(map(request.database.days, self.needs)):
            return Content(self.title, [], notes=[Note(self.empty)])
        return self.view(request)


class PageRequest(msgspec.Struct, frozen=True, dict=True):
    """One request for a page; one that reads no rollups needs not wait for them.
    ``prefix``: what stands before all paths; ``state_dir``: of the run history.
    ``settings`` name the destination of publishing. ``visitor``: who asks, as far as
    limits for each visitor need it. ``private``: the store with its partials, of which a
    page shows numbers of people, and never a row.
    """

    name: str
    parameters: Mapping[str, Any]
    take_snapshot: Callable[[], Snapshot]
    database: Database
    state_dir: Path
    prefix: str = ""
    is_cross_site: bool = False
    settings: Settings | None = None
    query_pool: QueryPool | None = None
    is_gone: Callable[[], bool] = lambda: False
    visitor: str = ""
    private: Database | None = None

    @property
    def people(self) -> Database:
        """The store with the partials."""
        assert self.private is not None
        return self.private

    @property
    def queries(self) -> QueryPool:
        """What runs people's queries."""
        assert self.query_pool is not None
        return self.query_pool

    @cached_property
    def snapshot(self) -> Snapshot:
        """The rollups, the same for the whole request. Raises NotReady (75) while the
        first ones are being built.
        """
        return self.take_snapshot()

    @cached_property
    def chosen(self) -> Selection:
        """The period and filters. Raises UsageError (2) for wrong ones."""
        return selection.parse_selection(self.parameters, self.snapshot.stored_days)

    def link(self, page: str, /, **parameters: Any) -> str:
        """Return the address of a page. Parameters that are None or empty are left out."""
        query = {name: value for name, value in parameters.items() if value not in (None, "", ())}
        return f"{self.prefix}/{quote(page)}" + (
            f"?{urlencode(query, doseq=True)}" if query else ""
        )

    def values(self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> list[Any]:
        """Return the first column of a query over the store."""
        return [row[0] for row in self.database.query(sql, parameters).rows]

    def table(
        self,
        name: str,
        columns: Sequence[Column],
        sql: str,
        parameters: Sequence[Any],
        caption: str,
        **more: Any,
    ) -> Table:
        """Return the rows of a query over the store as a table."""
        return Table(name, columns, self.database.query(sql, parameters).table, caption, **more)

    @property
    def path(self) -> str:
        """The path of this page."""
        return f"{self.prefix}/{quote(self.name)}"

    @property
    def file_stem(self) -> str:
        """What the names of its downloads begin with: the page, what it is about, and the period."""
        words = [
            self.name,
            *(str(self.parameters.get(key) or "") for key in ("name", "site", "day")),
        ]
        used: Selection | None = self.__dict__.get("chosen")
        ends = [used.first.isoformat(), used.last.isoformat()] if used is not None else []
        text = "-".join(word for word in ("cmsspark", *words, *ends) if word)
        return _UNSAFE.sub("_", text)[:120]

    def dataset_link(self, name: str | None) -> str:
        """Return the address of a dataset's page, with the period, steps and streams of this page."""
        return self._link_with_period("dataset", "name", name)

    def site_link(self, name: str | None) -> str:
        """Return the address of a site's page, with the period, steps and streams of this page."""
        return self._link_with_period("sites", "site", name)

    @property
    def links(self) -> dict[str, Callable[[Mapping[str, Any]], str]]:
        """The addresses of datasets and sites in tables, by the name of the column."""
        return {
            "dataset_name": lambda row: self.dataset_link(row["dataset_name"]),
            "site_name": lambda row: self.site_link(row["site_name"]),
        }

    def _link_with_period(self, page: str, key: str, name: str | None) -> str:
        selection = f"{key}={quote_plus(name)}" if name else ""
        query = "&".join(filter(None, (selection, self._period)))
        return f"{self.prefix}/{page}" + (f"?{query}" if query else "")

    @cached_property
    def _period(self) -> str:
        """The period, steps and streams of this page as a part of an address: tables
        have thousands of links.
        """
        address = self.link(
            "", **{key: self.parameters.get(key) for key in ("from", "to", "step", "stream")}
        )
        return address.partition("?")[2]

    def other_parameters(self, *names: str) -> list[tuple[str, str]]:
        """Return the parameters of the address without some, and without the page of a
        table, for a form of its own.
        """
        return [
            (name, text)
            for name, value in self.parameters.items()
            for text in ((value,) if isinstance(value, str) else value)
            if name not in (*names, "page", "download", "format")
        ]

    def sorted_by(self, table: Table, column: Column) -> str:
        """Return the address that sorts by a column: numbers from the largest, a second
        time the other way.
        """
        is_down = not is_text(column)
        if table.order.column == column.name:
            is_down = not table.order.is_descending
        return self.link_here(
            sort=f"{table.name}.{'-' if is_down else ''}{column.name}", page=None
        )

    def link_here(self, **changes: Any) -> str:
        """Return the address of this page with some parameters changed."""
        return self.link(self.name, **{**self.parameters, **changes})

    def unread_notes(self, content: Content) -> list[Note]:
        """Return a note on parameters that the page does not use, such as a filter that
        its form lacks.
        """
        fields = {control.name for control in content.controls}
        unread = set(self.parameters.unread) if isinstance(self.parameters, Parameters) else set()
        # Every page with a period reads all filters, and some use only a few of them.
        unread |= {
            name for name in FILTERS if fields and self.parameters.get(name) and name not in fields
        }
        names = [name for name in self.parameters if name in unread - _WITHOUT_HARM]
        # Without sections nothing is stored yet that could be chosen from.
        if not names or not content.sections:
            return []
        text = ", ".join(shown(name[:40]) for name in names[:8]) + (" …" if len(names) > 8 else "")
        return [
            Note(
                f"This page has no such choice, and the address is shown without it: {text}",
                "warn",
            )
        ]

    def use_notes(self, chosen: Selection) -> list[Note]:
        """Return notes on a selection: days that are missing, partial or damaged, and
        filters without any access.
        """
        stored = set(self.snapshot.days)
        state = self.snapshot.state
        days = [
            date.fromordinal(n)
            for n in range(chosen.first.toordinal(), chosen.last.toordinal() + 1)
        ]
        pending = [day for day in days if day in state.pending]
        missing = [
            day
            for day in days
            if day not in stored and day not in state.faults and day not in state.pending
        ]
        notes = []
        if pending:
            text = f"{len(pending):,} of {len(days):,} days {is_or_are(len(pending))} not in these numbers yet: {spans(pending)}."
            notes.append(Note(f"{text} Being summed up now.", "warn"))
        if missing:
            verb, pronoun = ("is", "it") if len(missing) == 1 else ("are", "them")
            text = f"{len(missing):,} of {len(days):,} days {verb} not stored: {spans(missing)}"
            text = f"{missing[0]} is not stored" if len(days) == 1 else text
            command = f"cmsspark daily --from {missing[0]} --to {missing[-1]}"
            notes.append(Note(f"{text}. To count {pronoun}: {command}", "warn"))
        by_reason: dict[str, list[date]] = {}
        for day, reason in state.partial.items():
            if chosen.first <= day <= chosen.last:
                by_reason.setdefault(reason, []).append(day)
        notes += [
            Note(f"Partial ({reason}): {spans(days)}.", "warn")
            for reason, days in by_reason.items()
        ]
        for day, fault in state.faults.items():
            if chosen.first <= day <= chosen.last:
                notes.append(Note(f"{day} is left out: {shown(fault)}", "bad"))
        for name, value in chosen.filters:
            if name in self.snapshot.names and value not in self.snapshot.names[name]:
                text = f"No stored access has the {FILTERS[name].lower()} {shown(value)}."
                notes.append(Note(text, "warn"))
        return notes
