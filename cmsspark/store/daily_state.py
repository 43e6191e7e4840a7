"""What ``cmsspark daily`` remembers of days that are not done: failures, attempts,
acknowledgements, skipped days.

The file is ``<state>/daily.json``. It is memory, not the truth: what is to be done is
read from the store and the inputs each time, and a day that is done has no record. A
damaged file is set aside and a new one is begun.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import date
from pathlib import Path
from typing import Final

import msgspec

from cmsspark.base import dates
from cmsspark.base.errors import NotAllowed, OutputError
from cmsspark.base.private_folders import make_private
from cmsspark.filesystems.storage import absolute

FILE: Final = "daily.json"
#: Follows the signature of a day that failed too often; in texts of earlier versions it
#: stands before what follows from that, which is no other trouble.
GIVEN_UP: Final = "; given up"
_NUMBER: Final = re.compile(r"\d+")
_DETAIL: Final = re.compile(r" *\([^()]*\)")


class Note(msgspec.Struct, kw_only=True):
    """Who acknowledged or skipped a day, when (UTC ms) and why."""

    reason: str
    user: str
    at_ms: int


class DayRecord(msgspec.Struct, kw_only=True):
    """A day of a job that is not done.

    ``word``, ``code`` and ``text`` are those of the last outcome. ``attempts`` counts
    the failed runs of the inputs with ``fingerprint``. ``mailed`` is the signature that
    was last mailed, ``acknowledged_signature`` the one that was acknowledged: an
    outcome of another signature is reported again. ``where``, ``next_step`` and ``run``
    are the file, what to do, and the run of the last failure.
    """

    word: str = ""
    code: int = 0
    text: str = ""
    where: str = ""
    next_step: str = ""
    run: str = ""
    is_overdue: bool = False
    is_given_up: bool = False
    first_ms: int = 0
    last_ms: int = 0
    attempts: int = 0
    fingerprint: str = ""
    mailed: str = ""
    acknowledged_signature: str = ""
    acknowledged: Note | None = None
    skipped: Note | None = None

    @property
    def signature(self) -> str:
        """What identifies the trouble. Numbers and details in the reason of a day that
        waits, such as the days that are there, change with the time.
        """
        return signature(self.word, self.code, self.text)

    @property
    def trouble(self) -> str:
        """What a mail was sent of: that a day is given up is told once more."""
        return self.signature + (GIVEN_UP if self.is_given_up else "")

    @property
    def is_acknowledged(self) -> bool:
        """Whether somebody acknowledged exactly this trouble."""
        return self.acknowledged is not None and self.acknowledged_signature == self.signature


class StoreState(msgspec.Struct, kw_only=True):
    """The records of one store. ``planned_until``: the last day that a daily looked at.
    ``not_begun``: the signature of the last error that kept daily from beginning, when
    it was mailed. ``silent``: the sites that fell silent, when that was mailed.
    """

    days: dict[str, DayRecord] = {}
    planned_until: date | None = None
    not_begun: str = ""
    silent: str = ""


class _StateFile(msgspec.Struct, kw_only=True):
    version: int = 1
    stores: dict[str, StoreState] = {}


def signature(word: str, code: int, text: str) -> str:
    """Return the trouble of an outcome as one text; equal for the same trouble at another time."""
    text = text.partition(GIVEN_UP)[0]
    if word == "waiting":
        text = _NUMBER.sub("#", _DETAIL.sub("", text))
    return f"{word} {code} {text}"


def day_key(day: date, job: str) -> str:
    """Return the key of a record."""
    return f"{day.isoformat()} {job}"


def split_key(key: str) -> tuple[date, str]:
    """Return the day and the job of a record's key."""
    day, _, job = key.partition(" ")
    return date.fromisoformat(day), job


class DailyState:
    """The records of one store in the state directory. ``store`` None: of all stores,
    for reading only.
    """

    def __init__(self, state_dir: Path, store: str | None) -> None:
        self.path = state_dir / FILE
        self.store = None if store is None else absolute(store)

    def read(self) -> StoreState:
        """Return the state; an empty one where there is none or it is damaged. Raises
        NotAllowed (77).
        """
        stores = _load(self.path).stores
        if self.store is not None:
            return stores.get(self.store, StoreState())
        return StoreState(
            days={key: record for state in stores.values() for key, record in state.days.items()}
        )

    def record(self, day: date, job: str) -> DayRecord:
        """Return the record of a day, empty if there is none."""
        return self.read().days.get(day_key(day, job), DayRecord())

    @contextmanager
    def change(self) -> Iterator[StoreState]:
        """Yield the state to be changed; it is written at the end, whole or not at all.

        Raises OutputError (73) if it cannot be written.
        """
        assert self.store is not None
        try:
            make_private(self.path.parent)
            with open(self.path.with_name(f"{FILE}.lock"), "a", encoding="utf-8") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                content = _load(self.path, set_aside=True)
                state = content.stores.setdefault(self.store, StoreState())
                yield state
                self._write(msgspec.json.format(msgspec.json.encode(content), indent=1))
        except OSError as error:
            raise OutputError(
                "the state of daily cannot be written", where=self.path, found=error.strerror
            ) from None

    def _write(self, content: bytes) -> None:
        aside = self.path.with_name(f".{FILE}.{os.getpid()}")
        try:
            # Messages of failed runs are private.
            with open(
                os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb"
            ) as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
            aside.replace(self.path)
        except BaseException:
            with suppress(OSError):
                aside.unlink()
            raise


def _load(path: Path, set_aside: bool = False) -> _StateFile:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_StateFile)
    except FileNotFoundError:
        return _StateFile()
    except msgspec.DecodeError:
        if set_aside:
            path.rename(path.with_name(f"{path.name}.damaged-{dates.stamp()}"))
        return _StateFile()
    except OSError as error:
        raise NotAllowed(
            "the state of daily cannot be read", where=path, found=error.strerror
        ) from None
