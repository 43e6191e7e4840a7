"""What the log sources' fields mean, whatever format carries them (``docs/counting.md``, rules 6 and 10 to 14)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from cmsspark.resources import read_yaml

UNKNOWN: Final = "unknown"

_ROOT_URL = re.compile(r"\Aroot://[^/]+/")
_SLASHES = re.compile(r"/{2,}")
_DIGITS = re.compile(r"[0-9]+", re.ASCII)
_PROXIES = frozenset(("proxy", "limited proxy"))


def normalise_lfn(name: str) -> str:
    """The logical file name in a logged one (rule 10); may be empty.

    In this order, each once: a leading ``file:`` goes, ``root://host[:port]/`` becomes ``/``, runs of slashes become
    one, a leading ``/eos/cms`` before a slash goes.
    """
    if name.startswith("file:"):
        name = name[5:]
    if name.startswith("root://"):
        name = _ROOT_URL.sub("/", name, count=1)
    if "//" in name:
        name = _SLASHES.sub("/", name)
    if name.startswith("/eos/cms/"):
        name = name[8:]
    return name


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


class Apps:
    """Classifies application texts by ``etc/apps.yaml`` (rule 14), remembering what it has seen."""

    #: CRAB's texts differ in every job: the memory is emptied at this size.
    REMEMBERED = 50_000

    def __init__(self, rules: Sequence[tuple[str, tuple[str, ...]]]) -> None:
        self._rules = [(app, tuple(word.lower() for word in words)) for app, words in rules]
        self._seen: dict[str | None, str] = {}

    @classmethod
    def load(cls) -> Apps:
        """The rules of the installation."""
        return cls([(rule["app"], tuple(rule["words"])) for rule in read_yaml("etc/apps.yaml")["apps"]])

    def classify(self, text: str | None) -> str:
        """The application's name for ``text``."""
        found = self._seen.get(text)
        if found is None:
            if len(self._seen) >= self.REMEMBERED:
                self._seen.clear()
            found = self._seen[text] = self._classify(text)
        return found

    def _classify(self, text: str | None) -> str:
        if not text:
            return UNKNOWN
        lowered = text.lower()
        for app, words in self._rules:
            if any(word in lowered for word in words):
                return app
        return "other"
