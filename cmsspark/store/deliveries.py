"""Publication as a state by destination: what became of a stored run's documents at each."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Final

import msgspec

from cmsspark.store.run_history import Published

#: State → its meaning.
STATES: Final = {
    "confirmed": "all documents confirmed",
    "refused": "some documents were refused; all others are confirmed",
    "waiting": "documents are not confirmed yet",
    "not sent": "nothing was sent to it yet",
}
_KINDS: Final = (
    ("stomp", re.compile(r"stomp(\+ssl)?://")),
    ("http", re.compile(r"https?://")),
    ("file", re.compile(r"/.*/[^/]+/[0-9]{4}-[^/]+$")),
)


class Target(msgspec.Struct, frozen=True):
    """The destination that the settings name. ``outbox``: its folder in the outbox, None
    if nothing was ever sent to it; ``where`` names it for people. ``credentials``:
    the sink and its credentials file, as a publication that could not log in names it.
    """

    sink: str
    outbox: str | None
    where: str
    credentials: str = ""

    def concerns(self, entry: Published) -> bool:
        """Return whether a publication went to this destination.

        Publications of earlier versions name it in words only: another kind of sink or
        another address is another destination.
        """
        if entry.outbox:
            return entry.outbox == self.outbox
        if entry.destination == self.credentials:
            return True
        kind = next((kind for kind, form in _KINDS if form.match(entry.destination)), None)
        if kind is None:
            return not entry.destination.startswith(("stomp ", "http ", "file "))
        is_below = kind == "file" and entry.destination.startswith(f"{self.where}/")
        return kind == self.sink and (is_below or entry.destination == self.where)


class Delivery(msgspec.Struct, frozen=True):
    """The state of a stored run's documents at a destination: a key of :data:`STATES`.

    ``reason``: why they wait or were refused. ``is_configured``: whether the settings
    name this destination.
    """

    destination: str
    state: str
    confirmed: int = 0
    waiting: int = 0
    refused: int = 0
    reason: str = ""
    at_ms: int | None = None
    is_configured: bool = False

    def text(self) -> str:
        """Return the state in a line.

        Example:
            >>> Delivery("stomp://mb:61613 /topic/cms", "waiting", 3, 2, reason="refused the connection").text()
            'waiting: 2 documents for stomp://mb:61613 /topic/cms: refused the connection'
        """
        reason = f": {self.reason}" if self.reason else ""
        if self.state == "confirmed":
            return f"confirmed: {self.confirmed:,} by {self.destination}"
        if self.state == "not sent":
            return f"not sent to {self.destination}{reason}"
        count = self.waiting if self.state == "waiting" else self.refused
        noun = "document" if count == 1 else "documents"
        preposition = "for" if self.state == "waiting" else "by"
        return f"{self.state}: {count:,} {noun} {preposition} {self.destination}{reason}"


def deliveries(
    published: Iterable[Published], tables: Collection[str], target: Target | None
) -> list[Delivery]:
    """Return the state at each destination, the configured one first.

    ``published``: of one stored run. ``tables``: those of it that are published, all of
    which a destination must have.
    """
    by_destination: dict[str, dict[str, Published]] = {}
    names: dict[str, str] = {}
    for entry in sorted(published, key=lambda entry: entry.at_ms):
        is_configured = target is not None and target.concerns(entry)
        key = "" if is_configured else entry.outbox or destination_name(entry)
        by_destination.setdefault(key, {})[entry.table] = entry
        names[key] = destination_name(entry)
    if target is not None:
        names[""] = target.where
        by_destination.setdefault("", {})
    return [
        _delivery(
            names[key],
            by_destination[key].values(),
            tables,
            is_configured=key == "" and target is not None,
        )
        for key in sorted(by_destination)
    ]


def is_delivered(deliveries: Iterable[Delivery]) -> bool:
    """Return whether the configured destination has nothing left to be sent."""
    return any(
        entry.is_configured and entry.state in ("confirmed", "refused") for entry in deliveries
    )


def destination_name(entry: Published) -> str:
    """Return the destination without the table and the period, which a file's path ends with."""
    parts = entry.destination.rsplit("/", 2)
    is_file = entry.destination.startswith("/") and parts[1:2] == [entry.table]
    return parts[0] if is_file else entry.destination


def _delivery(
    name: str, entries: Collection[Published], tables: Collection[str], *, is_configured: bool
) -> Delivery:
    confirmed = sum(entry.confirmed for entry in entries)
    waiting = sum(entry.waiting for entry in entries)
    refused = sum(entry.refused for entry in entries)
    reason = next((entry.reason for entry in reversed(list(entries)) if entry.reason), "")
    at_ms = max((entry.at_ms for entry in entries), default=None)
    if any(entry.reason and not (entry.outbox or entry.confirmed) for entry in entries):
        state = "not sent"
    elif waiting:
        state = "waiting"
    elif not set(tables) <= {entry.table for entry in entries}:
        state = "not sent"
    else:
        state = "refused" if refused else "confirmed"
    return Delivery(name, state, confirmed, waiting, refused, reason, at_ms, is_configured)
