"""Which folder of the outbox belongs to a destination, whatever addresses it has today.

A destination is known by its ``name`` in the credentials file, or else by its topic (or
path), its producer and its hosts: it stays the same while one host is still among them,
so that a broker may be added or a port changed. Each folder says in
``destination.json`` what it belongs to.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Final

import msgspec

from cmsspark.base.errors import CmssparkError
from cmsspark.base.private_folders import make_private
from cmsspark.publish.batch_log import FILE_NAME, OPEN, BatchLog
from cmsspark.publish.spool import disk_errors

MARK: Final = "destination.json"


class Destination(msgspec.Struct, frozen=True):
    """What identifies a destination. ``target``: topic, queue or path; ``hosts``:
    names, without ports.
    """

    sink: str
    target: str
    producer: str
    hosts: tuple[str, ...]
    name: str | None = None

    def is_same(self, destination: Destination) -> bool:
        """Return whether both are one destination."""
        if self.sink != destination.sink:
            return False
        if self.name and destination.name:
            return self.name == destination.name
        is_equal = (self.target, self.producer) == (destination.target, destination.producer)
        return is_equal and not set(self.hosts).isdisjoint(destination.hosts)


@dataclass(frozen=True)
class OutboxLocation:
    """An outbox on the disk: a table's day at a destination, which is the name of a folder."""

    destination: str
    table: str
    period: str
    folder: Path

    def open_documents(self) -> int:
        """Return documents that are still to be confirmed; 0 where there is no readable batch log."""
        path = self.folder / FILE_NAME
        if path.exists():
            with suppress(CmssparkError), closing(BatchLog(path)) as log:
                return sum(
                    documents for state, (_, documents) in log.counts().items() if state in OPEN
                )
        return 0


def outbox_folder(state_dir: Path, destination: Destination, label: str, identity: str) -> str:
    """Return the name of the destination's folder in the outbox, and mark the folder as
    the destination's.

    A new one is named for the sink, a readable ``label`` and a digest of ``identity``.
    """
    root = state_dir / "outbox"
    for folder, marked in _marked(root, destination):
        hosts = tuple(sorted({*marked.hosts, *destination.hosts}))
        _mark(
            folder,
            msgspec.structs.replace(
                destination, hosts=hosts, name=destination.name or marked.name
            ),
        )
        return folder.name
    name = f"{destination.sink}-{re.sub(r'[^A-Za-z0-9.-]', '-', label)}-{_digest(identity)}"
    if _load(root / name / MARK) is not None:  # another destination's: of another name or producer
        name += f"-{_digest(f'{destination.name} {destination.producer}')}"
    _mark(root / name, destination)
    return name


def known_folder(state_dir: Path, destination: Destination) -> str | None:
    """Return the name of the destination's folder in the outbox; None where it has none yet."""
    return next((folder.name for folder, _ in _marked(state_dir / "outbox", destination)), None)


def _marked(root: Path, destination: Destination) -> Iterator[tuple[Path, Destination]]:
    for mark in sorted(root.glob(f"*/{MARK}")):
        marked = _load(mark)
        if marked is not None and marked.is_same(destination):
            yield mark.parent, marked


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
        is_chosen = (day is None or location.period == day.isoformat()) and table in (
            None,
            location.table,
        )
        if is_chosen and location.destination.startswith(to or ""):
            yield location


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _load(mark: Path) -> Destination | None:
    try:
        return msgspec.json.decode(mark.read_bytes(), type=Destination)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None  # a damaged mark is none: it is written again


def _mark(folder: Path, destination: Destination) -> None:
    if _load(folder / MARK) == destination:
        return
    aside = folder / f".{MARK}.{os.getpid()}"
    with disk_errors(folder / MARK):
        make_private(folder)
        aside.write_bytes(msgspec.json.encode(destination))
        aside.replace(folder / MARK)
