"""What a page gets: the parameters of the address, the rollups, the store, and how to link to other pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Protocol
from urllib.parse import quote, urlencode

from cmsspark.apps.dashboard import selection, widgets
from cmsspark.apps.dashboard.selection import FILTERS, NO_PART, STEPS, Selection
from cmsspark.apps.dashboard.snapshot import Snapshot
from cmsspark.apps.dashboard.widgets import Content, Control, Note, shown
from cmsspark.base.periods import spans
from cmsspark.store.query.database import Database

#: Parameters that other pages leave in an address. A page that does not use them shows the same numbers.
_WITHOUT_HARM: Final = frozenset(
    ("from", "to", "step", "measure", "q", "name", "site", "weeks", "kind", "download", "format")
)


class Parameters(Mapping[str, str]):
    """The parameters of an address. :attr:`unread`: those that have a value and were never read by ``get``."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = dict(values)
        self._read: set[str] = set()

    def __getitem__(self, name: str) -> str:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a parameter, which is then read."""
        self._read.add(name)
        return self._values.get(name, default)

    @property
    def unread(self) -> list[str]:
        return [name for name, value in self._values.items() if value and name not in self._read]


class Page(Protocol):
    """A page: a title for the navigation, a sentence, and ``view``, which makes its content."""

    title: str
    about: str

    def view(self, request: PageRequest) -> Content: ...


@dataclass(frozen=True)
class PageDefinition:
    """A page as its module defines it. ``needs_use``: it shows nothing without a stored day of accesses. ``is_quick``:
    a few such pages are made at a time and the others wait, as they all need the same processors.
    """

    title: str
    about: str
    view: Any
    needs_use: bool = True
    is_quick: bool = True


@dataclass(frozen=True)
class PageRequest:
    """One request for a page; one that reads no rollups needs not wait for them. ``prefix``: what stands before all
    paths; ``state_dir``: of the run history. ``skipped``: (day, job) → why the daily run leaves it out.
    """

    name: str
    parameters: Mapping[str, str]
    take_snapshot: Callable[[], Snapshot]
    database: Database
    state_dir: Path
    prefix: str = ""
    is_cross_site: bool = False
    skipped: Callable[[], Mapping[tuple[date, str], str]] = dict

    @cached_property
    def snapshot(self) -> Snapshot:
        """The rollups, the same for the whole request. Raises NotReady (75) while the first ones are being built."""
        return self.take_snapshot()

    @property
    def widgets(self) -> ModuleType:
        """The parts of pages, for rooms that do not import this one."""
        return widgets

    def selection(self) -> Selection:
        """The period and filters. Raises UsageError (2) for wrong ones."""
        return selection.selection_of(self.parameters, self.snapshot.days)

    def link(self, page: str, **parameters: Any) -> str:
        """The address of a page. Parameters that are None or empty are left out."""
        kept = {name: str(value) for name, value in parameters.items() if value not in (None, "")}
        return f"{self.prefix}/{quote(page)}" + (f"?{urlencode(kept)}" if kept else "")

    def here(self, **changes: Any) -> str:
        """The address of this page with some parameters changed."""
        return self.link(self.name, **{**self.parameters, **changes})

    def period_controls(self, chosen: Selection, *, with_step: bool = True) -> list[Control]:
        """The form's fields for the period."""
        days = self.snapshot.days
        limits = (days[0].isoformat(), days[-1].isoformat())
        controls = [
            Control("from", "From", chosen.first.isoformat(), kind="date", limits=limits),
            Control("to", "To (included)", chosen.last.isoformat(), kind="date", limits=limits),
        ]
        if with_step:
            steps = [(name, label) for name, (label, _) in STEPS.items()]
            controls.append(Control("step", "In steps of", chosen.step, steps))
        return controls

    def filter_controls(self, chosen: Selection, names: Sequence[str] = tuple(FILTERS)) -> list[Control]:
        """The form's fields for the filters."""
        controls = []
        for name in names:
            value = chosen.value(name)
            current = "" if value is None else value or NO_PART
            values = list(self.snapshot.names[name])
            if value is not None and value not in values:
                values.insert(0, value)
            choices = [("", "all"), *((one or NO_PART, shown(one)) for one in values)]
            controls.append(Control(name, FILTERS[name], current, choices))
        return controls

    def unread_notes(self, content: Content) -> list[Note]:
        """A note that names the parameters that the page does not use, such as a filter that its form does not have."""
        fields = {control.name for control in content.controls}
        unread = set(self.parameters.unread) if isinstance(self.parameters, Parameters) else set()
        # Every page with a period reads all filters, and some use only a few of them.
        unread |= {name for name in FILTERS if fields and self.parameters.get(name) and name not in fields}
        names = [name for name in self.parameters if name in unread - _WITHOUT_HARM]
        # Without sections nothing is stored yet that could be chosen from.
        if not names or not content.sections:
            return []
        text = ", ".join(shown(name[:40]) for name in names[:8]) + (" …" if len(names) > 8 else "")
        return [Note(f"This page has no such choice, and the address is shown without it: {text}", "warn")]

    def use_notes(self, chosen: Selection) -> list[Note]:
        """What a reader must know of the days of a selection: missing, partial, damaged ones, unknown filters."""
        stored = set(self.snapshot.days)
        state = self.snapshot.state
        wanted = [date.fromordinal(n) for n in range(chosen.first.toordinal(), chosen.last.toordinal() + 1)]
        missing = [day for day in wanted if day not in stored and day not in state.faults]
        notes = []
        if missing:
            text = f"{len(missing):,} of {len(wanted):,} days are not stored: {spans(missing)}."
            notes.append(Note(f"{text} To count them: cmsspark daily --from {missing[0]} --to {missing[-1]}", "warn"))
        by_reason: dict[str, list[date]] = {}
        for day, reason in state.partial.items():
            if chosen.first <= day <= chosen.last:
                by_reason.setdefault(reason, []).append(day)
        notes += [Note(f"Partial ({reason}): {spans(days)}.", "warn") for reason, days in by_reason.items()]
        for day, fault in state.faults.items():
            if chosen.first <= day <= chosen.last:
                notes.append(Note(f"{day} is left out: {shown(fault)}", "bad"))
        for name, value in chosen.filters:
            if name in self.snapshot.names and value not in self.snapshot.names[name]:
                text = f"No stored access has the {FILTERS[name].lower()} {shown(value)}."
                notes.append(Note(text, "warn"))
        return notes
