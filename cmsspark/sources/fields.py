"""What the log sources' fields mean, whatever format carries them (``docs/counting.md``, rules 12 to 14)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import msgspec

from cmsspark import config_files
from cmsspark.resources import read_text

UNKNOWN: Final = "unknown"
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

_DIGITS = re.compile(r"[0-9]+", re.ASCII)
_PROXIES = frozenset(("proxy", "limited proxy"))


def person(identity: str | None) -> str | None:
    """The person's name in a certificate's DN, or the text itself where it is no DN (rule 13); None for nobody."""
    if identity is None:
        return None
    name = identity.partition("&")[0].strip()
    if not name.startswith("/"):
        return name or None
    for part in reversed(name.split("/CN=")[1:]):
        value = part.partition("/")[0]
        if _DIGITS.fullmatch(value) is None and value not in _PROXIES:
            return value or None
    return None


def itself(text: str | None) -> str | None:
    """What a text means that stands for itself."""
    return text


class Remembered(dict[_Key, _Value]):
    """``remembered[key]`` is ``make(key)``, asked once; with a ``limit`` all is forgotten before there are more.

    Looking up is a dict's own: in ``map`` it costs no call of Python.
    """

    def __init__(self, make: Callable[[_Key], _Value], limit: int | None = None) -> None:
        super().__init__()
        self._make = make
        self._limit = limit

    def __missing__(self, key: _Key) -> _Value:
        if self._limit is not None and len(self) >= self._limit:
            self.clear()
        found = self[key] = self._make(key)
        return found


class _AppRule(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    app: str
    words: tuple[str, ...]


class _AppsFile(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    apps: list[_AppRule]


class Apps:
    """Classifies application texts by ``etc/apps.yaml`` (rule 14), remembering what it has seen."""

    #: CRAB's texts differ in every job: the memory is emptied at this size.
    REMEMBERED: Final = 50_000

    def __init__(self, rules: Sequence[tuple[str, tuple[str, ...]]], remembered: int = REMEMBERED) -> None:
        self._rules = [(app, tuple(word.lower() for word in words)) for app, words in rules]
        #: text → the application's name
        self.of: Remembered[str | None, str] = Remembered(self._classify, remembered)

    @classmethod
    def load(cls) -> Apps:
        """The rules of the installation."""
        name = "etc/apps.yaml"
        file = config_files.parse(read_text(name).encode(), name).convert(_AppsFile)
        return cls([(rule.app, rule.words) for rule in file.apps])

    def _classify(self, text: str | None) -> str:
        if not text:
            return UNKNOWN
        lowered = text.lower()
        for app, words in self._rules:
            for word in words:
                if word in lowered:
                    return app
        return "other"
