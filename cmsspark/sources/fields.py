"""The meaning of log fields, independent of the format (``docs/counting.md``, rules 12 to 14)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import msgspec

from cmsspark.base import config_files
from cmsspark.base.resources import read_text

UNKNOWN: Final = "unknown"
#: Words, in lower case, that producers of any stream write for a site and for a person
#: that they do not know (rules 12 and 13).
NO_SITES: Final = frozenset((UNKNOWN, "n/a", "none", "null", "-"))
NOBODY: Final = NO_SITES | {"not reported", "nobody"}
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

_DIGITS = re.compile(r"[0-9]+", re.ASCII)
_PROXIES = frozenset(("proxy", "limited proxy"))


def site_name(logged: str | None) -> str:
    """Return a site without outer blanks and one ``_Disk`` at its end, or ``unknown``
    (rule 12).
    """
    name = (logged or "").strip().removesuffix("_Disk")
    return name if name and name.lower() not in NO_SITES else UNKNOWN


def person_name(logged: str | None) -> str | None:
    """Return a name that is no DN without outer blanks; None for nobody (rule 13)."""
    name = (logged or "").strip()
    return name if name and name.lower() not in NOBODY else None


def user_name(identity: str | None) -> str | None:
    """Return the user's name in a certificate's DN, or the whole text of another form
    (rule 13); None for nobody.
    """
    name = (identity or "").partition("&")[0].strip()
    if not name.startswith("/"):
        return person_name(name)
    for part in reversed(name.split("/CN=")[1:]):
        value = part.partition("/")[0]
        if _DIGITS.fullmatch(value) is None and value not in _PROXIES:
            return value if value and value.lower() not in NOBODY else None
    return None


def as_is(text: str | None) -> str | None:
    """Return the text unchanged, for fields whose values need no mapping."""
    return text


class MemoDict(dict[_Key, _Value]):
    """A dict that computes a missing value with ``make(key)``. With a ``limit`` it is
    cleared when it is full.

    A lookup of an existing key is that of dict: in ``map`` it makes no Python call.
    """

    def __init__(self, make: Callable[[_Key], _Value], limit: int | None = None) -> None:
        super().__init__()
        self._make = make
        self._limit = limit

    def __missing__(self, key: _Key) -> _Value:
        if self._limit is not None and len(self) >= self._limit:
            self.clear()
        value = self[key] = self._make(key)
        return value


class AppRule(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """An application and the lower-case texts that it contains, begins with, or is."""

    app: str
    words: tuple[str, ...] = ()
    begins: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    def fits(self, text: str) -> bool:
        """Return whether a text in lower case is of the application."""
        return (
            any(word in text for word in self.words)
            or text.startswith(self.begins)
            or text in self.names
        )


class _AppsFile(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    apps: list[AppRule]


class Apps:
    """Classifies application texts by ``etc/apps.yaml`` (rule 14) and caches the results."""

    #: The cache is cleared at this size, as the texts of CRAB differ in every job.
    CACHE_SIZE: Final = 50_000

    def __init__(self, rules: Sequence[AppRule], cache_size: int = CACHE_SIZE) -> None:
        self._rules = rules
        #: text → the application's name
        self.of: MemoDict[str | None, str] = MemoDict(self._classify, cache_size)

    @classmethod
    def load(cls) -> Apps:
        """Return the rules of the installation."""
        name = "etc/apps.yaml"
        file = config_files.parse(read_text(name).encode(), name).convert(_AppsFile)
        return cls(file.apps)

    def _classify(self, text: str | None) -> str:
        if not text:
            return UNKNOWN
        lowered = text.lower()
        return next((rule.app for rule in self._rules if rule.fits(lowered)), "other")
