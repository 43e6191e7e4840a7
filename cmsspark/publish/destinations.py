"""Which folder of the outbox belongs to a destination, whatever addresses it has today.

A destination is known by its ``name`` in the credentials file, or else by its topic (or path), its producer and its
hosts: it stays the same while one host is still among them, so that a broker may be added or a port changed. Each
folder says in ``destination.json`` what it belongs to. Folders of older versions have none; they are named for a list
of addresses and are recognized by it, also after brokers were added.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from datetime import date
from itertools import combinations
from pathlib import Path
from typing import Any, Final

from cmsspark.base.errors import CmssparkError
from cmsspark.publish.batch_log import FILE_NAME, OPEN, BatchLog
from cmsspark.publish.spool import disk_errors

MARK: Final = "destination.json"
#: Of more addresses not every choice is tried.
_MAX_ADDRESSES: Final = 10


@dataclass(frozen=True)
class Destination:
    """What identifies a destination. ``target``: topic, queue or path; ``hosts``: names, without ports."""

    sink: str
    target: str
    producer: str
    hosts: tuple[str, ...]
    name: str | None = None

    def is_same(self, other: Destination) -> bool:
        """Return whether both are one destination."""
        if self.sink != other.sink:
            return False
        if self.name and other.name:
            return self.name == other.name
        same = (self.target, self.producer) == (other.target, other.producer)
        return same and not set(self.hosts).isdisjoint(other.hosts)


@dataclass(frozen=True)
class OutboxLocation:
    """An outbox on the disk: a table's day at a destination, which is the name of a folder."""

    destination: str
    table: str
    period: str
    folder: Path

    def open_documents(self) -> int:
        """Documents that are still to be confirmed; 0 where there is no readable batch log."""
        path = self.folder / FILE_NAME
        if path.exists():
            with suppress(CmssparkError), closing(BatchLog(path)) as log:
                return sum(documents for state, (_, documents) in log.counts().items() if state in OPEN)
        return 0


def slug_of(sink: str, label: str, identity: str) -> str:
    """Return the name of a folder: the sink, a readable label and a digest of ``identity``."""
    plain = re.sub(r"[^A-Za-z0-9.-]", "-", label)
    return f"{sink}-{plain}-{hashlib.sha256(identity.encode()).hexdigest()[:8]}"


def stomp_slugs(target: str, addresses: tuple[tuple[str, int], ...]) -> Iterator[str]:
    """Yield the folder's names for a list of brokers and for each choice of them, the whole list first."""
    ordered = sorted(addresses)
    sizes = range(len(ordered), 0, -1) if len(ordered) <= _MAX_ADDRESSES else [len(ordered)]
    for size in sizes:
        for chosen in combinations(ordered, size):
            yield slug_of("stomp", target.split("/", 2)[2], f"{target} {list(chosen)}")


def folder_of(state_dir: Path, destination: Destination, slugs: Iterator[str]) -> str:
    """Return the name of the destination's folder in the outbox, old or new; it is marked as the destination's.

    ``slugs``: names that the folder may have without a mark, the one for a new folder first.
    """
    root = state_dir / "outbox"
    for mark in sorted(root.glob(f"*/{MARK}")):
        marked = _load(mark)
        if marked is not None and marked.is_same(destination):
            hosts = tuple(sorted({*marked.hosts, *destination.hosts}))
            _mark(mark.parent, _with(destination, hosts=hosts, name=destination.name or marked.name))
            return mark.parent.name
    new = next(slugs)
    for slug in (new, *slugs):
        if (root / slug).is_dir() and _load(root / slug / MARK) is None:
            new = slug
            break
    if _load(root / new / MARK) is not None:  # another destination's: of another name or producer
        new += "-" + hashlib.sha256(f"{destination.name} {destination.producer}".encode()).hexdigest()[:8]
    _mark(root / new, destination)
    return new


def locations(
    state_dir: Path, day: date | None = None, table: str | None = None, to: str | None = None
) -> Iterator[OutboxLocation]:
    """Yield the outboxes below the state directory, by destination, table and day.

    ``to``: only destinations whose folder's name begins so.
    """
    for folder in sorted((state_dir / "outbox").glob("*/*/*")):
        if not folder.is_dir():
            continue
        location = OutboxLocation(folder.parts[-3], folder.parts[-2], folder.name, folder)
        is_chosen = (day is None or location.period == day.isoformat()) and table in (None, location.table)
        if is_chosen and location.destination.startswith(to or ""):
            yield location


def _with(destination: Destination, **changes: Any) -> Destination:
    return Destination(**{**asdict(destination), **changes})


def _load(mark: Path) -> Destination | None:
    try:
        loaded = json.loads(mark.read_bytes())
        return Destination(**{**loaded, "hosts": tuple(loaded["hosts"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None  # a damaged mark is none: it is written again


def _mark(folder: Path, destination: Destination) -> None:
    if _load(folder / MARK) == destination:
        return
    aside = folder / f".{MARK}.{os.getpid()}"
    with disk_errors(folder / MARK):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        aside.write_text(json.dumps(asdict(destination)))
        aside.replace(folder / MARK)
