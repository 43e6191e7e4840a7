"""Validation and conversion of single values: rules 9 and 10 of ``docs/counting.md``, in Python.

``values.pxd`` in this folder implements the same rules for compiled code. Tests read
the same records with both and compare the results: always change both together.

Rule 9 defines the types that a required field may have. There is one function for each
kind of value: of JSON (:func:`text`, :func:`whole`, :func:`long`, and the types that
msgspec checks), as text in EOS G1 and G2 (:func:`long_text`), of Avro
(:func:`avro_text`, :func:`avro_long`, :func:`avro_long_text`), and CRAB's seconds (:func:`milliseconds`). All
of them raise :class:`Malformed`, whose message contains no value of the record. Rule 10
converts a logged name to a logical file name (:func:`normalise_lfn`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Final, TypeVar

import msgspec
import numpy as np

from cmsspark.base import config_files
from cmsspark.base.resources import read_text

MAX_LONG: Final = 2**63 - 1

#: An integer from 0 to 2^63-1, or a float of whole value below 2^63 (rule 9).
Long = (
    Annotated[int, msgspec.Meta(ge=0, le=MAX_LONG)]
    | Annotated[float, msgspec.Meta(ge=0, lt=2.0**63, multiple_of=1)]
)
#: A number of hours from 0 on, few enough for 64 bits of milliseconds.
Hours = (
    Annotated[int, msgspec.Meta(ge=0, le=10**12)] | Annotated[float, msgspec.Meta(ge=0, le=1e12)]
)
#: A whole number of 64 bits, negative ones too.
WholeNumber = Annotated[int, msgspec.Meta(ge=-MAX_LONG - 1, le=MAX_LONG)]
#: 0 or 1.
Flag = Annotated[int, msgspec.Meta(ge=0, le=1)]
#: Milliseconds of an hour.
HOUR_MS: Final = 3_600_000
#: A number as plain digits; other spellings use the strict parser. (`$` would accept a
#: trailing newline.)
PlainText = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{0,18}\Z")]

_NUMBER_TEXT = re.compile(r"-?[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?", re.ASCII)
#: Lines that are empty, or seconds that a float converts to whole milliseconds exactly.
_PLAIN_LINES = re.compile(r"(?:(?:[0-9]{1,12}(?:\.[0-9]{1,9})?)?\n)*", re.ASCII)
_SECONDS = re.compile(r"-?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", re.ASCII)

#: How URLs of storage begin: XRootD and WebDAV, in the open and by TLS (rule 10).
_DOOR = re.compile(r"(?:root|dav)s?://")
#: A text between these begins with the first: two comparisons are quicker than a slice.
_STORE, _PAST_STORE = "/store/", "/store0"


class Malformed(ValueError):
    """A record that violates the rules; the message gives the reason without any value
    of the record.
    """


class Number(str):
    """The text of a JSON number."""

    __slots__ = ()


class Nested:
    """An object or array below the depth of required fields."""

    def __init__(self, kind: str) -> None:
        self.kind = kind


def name_type(value: Any) -> str:
    """Return the JSON type of a value, for error messages."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, Number):
        return "number"
    if isinstance(value, str):
        return "text"
    if isinstance(value, Nested):
        return value.kind
    return "object" if isinstance(value, dict) else type(value).__name__


def text(value: Any, field: str) -> str | None:
    """Text or null (rule 9); text must be valid Unicode (rule 2). Raises Malformed."""
    if value is None:
        return None
    if not isinstance(value, str) or isinstance(value, Number):
        raise Malformed(f"{field}: expected text, found {name_type(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Malformed(f"{field}: text is not valid UTF-8") from None
    return value


def integer(value: Any, field: str) -> int | None:
    """Return a number of whole value, not negative, of any size, or null. Raises Malformed."""
    if value is None:
        return None
    if not isinstance(value, Number):
        raise Malformed(f"{field}: expected a number, found {name_type(value)}")
    return _integer(value, field)


def long(value: Any, field: str) -> int | None:
    """Return an integer from 0 to 2^63-1, a float of whole value, or null (rule 9).
    Raises Malformed.
    """
    number = integer(value, field)
    if number is not None and number > MAX_LONG:
        raise Malformed(f"{field}: the number exceeds 2^63-1")
    return number


def long_text(value: Any, field: str) -> int | None:
    """As :func:`long` for a number in a text; an empty one and ``-`` are null (EOS G1
    and G2). Raises Malformed.
    """
    written = text(value, field)
    if not written or written == "-":
        return None
    if written.isascii() and written.isdigit() and len(written) < 19:
        return int(written)
    if _NUMBER_TEXT.fullmatch(written) is None:
        raise Malformed(f"{field}: the text is not a number")
    number = _integer(written, field)
    if number > MAX_LONG:
        raise Malformed(f"{field}: the number exceeds 2^63-1")
    return number


def hours(value: Any, field: str) -> float | None:
    """Return a finite number from 0 on, of hours, or null (rule 29). Raises Malformed."""
    if value is None:
        return None
    if not isinstance(value, Number):
        raise Malformed(f"{field}: expected a number, found {name_type(value)}")
    number = float(value)
    if not math.isfinite(number) or number < 0:
        raise Malformed(f"{field}: the hours are negative or not finite")
    if number * HOUR_MS + 0.5 >= MAX_LONG:
        raise Malformed(f"{field}: hours beyond 2^63 ms")
    return number


def hours_in_ms(number: float) -> int:
    """Hours in whole milliseconds, rounded half up (rule 33)."""
    return math.floor(number * HOUR_MS + 0.5)


def signed(value: Any, field: str) -> int | None:
    """Return a whole number, negative ones too, or null (rule 29); one beyond 64 bits
    as the nearest.

    Raises Malformed.
    """
    if value is None:
        return None
    if not isinstance(value, Number):
        raise Malformed(f"{field}: expected a whole number, found {name_type(value)}")
    size = _integer(value.removeprefix("-"), field)
    return max(-MAX_LONG - 1, min(-size if value.startswith("-") else size, MAX_LONG))


def flag(value: Any, field: str) -> int | None:
    """Return 0, 1 or None for null (rule 49). Raises Malformed."""
    number = integer(value, field)
    if number is not None and number > 1:
        raise Malformed(f"{field}: 0 or 1 is expected, found a larger number")
    return number


def _integer(written: str, field: str) -> int:
    if written.lstrip("-").isdigit():
        # int() rejects very long texts. Such a number exceeds every bound anyway.
        number = 10**400 if len(written) > 400 else int(written)
        negative = written.startswith("-") and number != 0
        if negative:
            raise Malformed(f"{field}: the number is negative")
        return number
    value = float(written)
    if not value.is_integer():
        raise Malformed(f"{field}: expected a whole number, found a fraction")
    if value < 0:
        raise Malformed(f"{field}: the number is negative")
    return int(value)


def avro_text(row: Mapping[str, Any], field: str) -> str | None:
    """Text or null (rule 9). Raises Malformed."""
    value = row.get(field)
    if value is None:
        return None
    if not isinstance(value, str):
        raise Malformed(f"{field}: expected text, found {type(value).__name__}")
    return text(value, field)


def avro_long(row: Mapping[str, Any], field: str) -> int | None:
    """Return a whole number from 0 to 2^63-1, or null (rule 9). Raises Malformed."""
    value = row.get(field)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise Malformed(f"{field}: expected a number, found {type(value).__name__}")
    if value != int(value) or not 0 <= value <= MAX_LONG:
        raise Malformed(f"{field}: expected a whole number from 0 to 2^63-1")
    return int(value)


def avro_long_text(row: Mapping[str, Any], field: str) -> int | None:
    """As :func:`avro_long`, or :func:`long_text` of a text (rule 9, the legacy CMSSW
    Avro). Raises Malformed.
    """
    value = row.get(field)
    return long_text(value, field) if isinstance(value, str) else avro_long(row, field)


def milliseconds(seconds: str | None, field: str) -> int | None:
    """Seconds as text in whole milliseconds, rounded half up; an empty text is null
    (rules 9, 11). Raises Malformed.
    """
    if not seconds:
        return None
    # With so few digits the double is exact, so the result is the same as below.
    if seconds.isascii() and seconds.isdigit() and len(seconds) <= 12:
        return int(seconds) * 1000
    if _SECONDS.fullmatch(seconds) is None:
        raise Malformed(f"{field}: the text is not a number of seconds")
    value = float(seconds)
    if value < 0 or not math.isfinite(value):
        raise Malformed(f"{field}: the seconds are negative or not finite")
    if value * 1000 > MAX_LONG:
        raise Malformed(f"{field}: seconds beyond 2^63 ms")
    return math.floor(value * 1000 + 0.5)


def milliseconds_of_all(
    seconds: list[str | None], field: str, reasons: dict[int, str]
) -> list[int | None]:
    """:func:`milliseconds` of each text. Adds the reasons of malformed rows to
    ``reasons``, by row.
    """
    texts = [text or "" for text in seconds]
    special = _not_plain(texts)
    if "" in texts:
        special.update(row for row, text in enumerate(texts) if not text)
    plain = texts.copy()
    for row in special:
        plain[row] = "0"  # a placeholder, replaced below
    numbers = np.fromiter(map(float, plain), np.float64, len(plain))
    result: list[int | None] = np.floor(numbers * 1000 + 0.5).astype(np.int64).tolist()
    for row in special:
        try:
            result[row] = milliseconds(texts[row], field)
        except Malformed as error:
            reasons[row] = str(error)
    return result


def _not_plain(texts: list[str]) -> set[int]:
    """Return the rows of texts that are neither empty nor plain seconds.

    One regular expression searches all texts at once.
    """
    lines = "\n".join(texts) + "\n"
    if lines.count("\n") != len(texts):
        return set(range(len(texts)))
    rows: set[int] = set()
    row = begin = 0
    while True:
        match = _PLAIN_LINES.match(lines, begin)
        assert match is not None  # the pattern also matches the empty text
        if match.end() == len(lines):
            return rows
        row += lines.count("\n", begin, match.end())
        rows.add(row)
        row, begin = row + 1, lines.index("\n", match.end()) + 1


def normalise_lfn(name: str) -> str:
    """Return the logical file name of a logged name (rule 10); may be empty.

    Applied once each, in this order: remove a leading ``file:``, replace the door of a
    URL (``root://[host[:port]]/`` and the like) by ``/`` and remove what follows its
    first ``?``, or without a door what follows ``?authz=``, replace runs of slashes by
    one, remove a leading ``/eos/cms`` before a slash.
    """
    if name.startswith("/eos/cms/store/") and "//" not in name and "?" not in name:
        return name[8:]  # most names of EOS
    if name.startswith("file:"):
        name = name[5:]
    query = "?authz="
    if door := _DOOR.match(name):
        end = name.find("/", door.end())
        if end >= 0:
            name, query = name[end:], "?"
    name = name.partition(query)[0]
    while "//" in name:
        name = name.replace("//", "/")
    if name.startswith("/eos/cms/"):
        name = name[8:]
    return name


def normalised_lfns(names: Sequence[str | None]) -> list[str]:
    """:func:`normalise_lfn` of each name; empty for null. Most names are normalised and
    cost two comparisons.
    """
    return [
        name
        if name and _STORE <= name < _PAST_STORE and "//" not in name and "?" not in name
        else normalise_lfn(name)
        if name
        else ""
        for name in names
    ]


# The meaning of log fields, independent of the format (``docs/counting.md``, rules 12
# to 14).

UNKNOWN: Final = "unknown"
#: Words, in lower case, that producers of any stream write for a site and for a person
#: that they do not know (rules 12 and 13).
NO_SITES: Final = frozenset((UNKNOWN, "n/a", "none", "null", "-"))
NOBODY: Final = NO_SITES | {"not reported", "nobody"}
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

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
    while True:
        name, is_part, part = name.rpartition("/CN=")
        if not is_part:
            return None
        value = part.partition("/")[0]
        if not (value.isascii() and value.isdigit()) and value not in _PROXIES:
            return value if value and value.lower() not in NOBODY else None


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
        # Each new text comes here: a loop takes half the time of ``any``.
        for word in self.words:
            if word in text:
                return True
        return text.startswith(self.begins) or text in self.names


class _AppsFile(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    apps: list[AppRule]


@cache
def _app_rules() -> list[AppRule]:
    name = "etc/apps.yaml"
    return config_files.parse(read_text(name).encode(), name).convert(_AppsFile).apps


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
        return cls(_app_rules())

    def _classify(self, text: str | None) -> str:
        if not text:
            return UNKNOWN
        lowered = text.lower()
        for rule in self._rules:
            if rule.fits(lowered):
                return rule.app
        return "other"
