"""Rules 9 to 14: types of needed fields, and what lfns, users, sites and apps are."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from fractions import Fraction

from tests.oracle.strict_json import Number, String, Value

LARGEST = 2**63 - 1
UNKNOWN = "unknown"
EOS_SITE = "T2_CH_CERN"

_NUMBER_TEXT = re.compile(r"-?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?")
_SECONDS_TEXT = re.compile(r"-?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_INTEGER_TEXT = re.compile(r"-?[0-9]+")
_DOOR = re.compile(r"(root|roots|dav|davs)://[^/]*/")
_SLASHES = re.compile(r"/+")
_CN = re.compile(r"/CN=([^/]*)")

_APPS = (
    ("crab", lambda text: "crab" in text),
    ("wmagent", lambda text: "wmagent" in text),
    ("cmsrun", lambda text: "cmsrun" in text),
    ("storage", lambda text: text.startswith("eos/") or text == "rainplugin"),
    (
        "transfer",
        lambda text: text == "tpc" or any(w in text for w in ("eoscp", "xrdcp", "gridftp", "fts")),
    ),
    ("fuse", lambda text: "fuse" in text),
)


class IllTyped(ValueError):
    """A needed field is not of its type: the record is malformed."""


# Types, rule 9: each function takes a value as the format holds it and gives it as
# Python knows it, None for null.


def text(value: Value) -> str | None:
    """Text: string or null, valid UTF-8 with paired surrogates."""
    if value is None:
        return None
    if not isinstance(value, String):
        raise IllTyped("text is wanted")
    try:
        return value.text()
    except ValueError as error:
        raise IllTyped(str(error)) from None


def byte_count(value: Value) -> int | None:
    """Bytes as a JSON number: an integer from 0 to 2^63-1, a float of whole value, or null."""
    if value is None:
        return None
    if not isinstance(value, Number):
        raise IllTyped("a number of bytes is wanted")
    return _byte_count(value.raw.decode())


def byte_count_text(written: str | None) -> int | None:
    """Bytes as EOS G1 and G2 hold them: the same as text, empty or ``-`` is null."""
    if written is None or written in ("", "-"):
        return None
    if not _NUMBER_TEXT.fullmatch(written):
        raise IllTyped("a number of bytes is wanted")
    return _byte_count(written)


def _byte_count(written: str) -> int:
    number = whole(written)
    if not 0 <= number <= LARGEST:
        raise IllTyped("a number of bytes lies between 0 and 2^63-1")
    return number


def whole(written: str) -> int:
    """A number's whole value; a number with a fraction or an exponent is what a double
    makes of it.
    """
    if _INTEGER_TEXT.fullmatch(written):
        digits = written.lstrip("-").lstrip("0") or "0"
        # Beyond every limit in use a number's size says enough, and Python refuses to
        # convert very long ones.
        size = int(digits) if len(digits) < 1000 else 10**1000
        return -size if written.startswith("-") else size
    number = float(written)
    if math.isinf(number) or not number.is_integer():
        raise IllTyped("a whole number is wanted")
    return int(number)


def timestamp(value: Value) -> int | None:
    """An integer or a whole float, not negative; or null."""
    if value is None:
        return None
    if not isinstance(value, Number):
        raise IllTyped("a timestamp is a number")
    number = whole(value.raw.decode())
    if number < 0:
        raise IllTyped("a timestamp is not negative")
    return number


def milliseconds(value: object) -> int | None:
    """CRAB's seconds in whole milliseconds: text, a finite number and not negative;
    null or empty is None.
    """
    if value is None or value == "":
        return None
    if not isinstance(value, str) or not _SECONDS_TEXT.fullmatch(value):
        raise IllTyped("seconds as text are wanted")
    seconds = float(value)
    if not math.isfinite(seconds) or seconds < 0:
        raise IllTyped("seconds are finite and not negative")
    rounded = seconds * 1000 + 0.5
    if rounded > LARGEST:
        raise IllTyped("more milliseconds than 63 bits hold")
    return math.floor(rounded)


def avro_text(value: object) -> str | None:
    """A string of an Avro record; bad UTF-8 arrives as lone surrogates."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise IllTyped("text is wanted")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise IllTyped(str(error)) from None
    return value


def avro_byte_count(value: object) -> int | None:
    """Bytes in an Avro record of the legacy CMSSW: text, a long, or a double of whole value."""
    if value is None:
        return None
    if isinstance(value, str):
        return byte_count_text(avro_text(value))
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise IllTyped("a number of bytes is wanted")
    if Fraction(value).denominator != 1 or not 0 <= value <= LARGEST:
        raise IllTyped("a number of bytes is whole and lies between 0 and 2^63-1")
    return int(value)


# What the fields mean, rules 10 to 14.


def lfn_of(name: str | None) -> str:
    """Rule 10; empty where there is none."""
    if name is None:
        return ""
    if name.startswith("file:"):
        name = name[len("file:") :]
    is_url = _DOOR.match(name)
    name = _DOOR.sub("/", name, count=1) if is_url else name
    name = name.split("?" if is_url else "?authz=")[0]
    name = _SLASHES.sub("/", name)
    if name.startswith("/eos/cms/"):
        name = name[len("/eos/cms") :]
    return name


def site_of(name: str | None) -> str:
    """Rule 12: for every stream alike."""
    name = (name or "").strip()
    if name.endswith("_Disk"):
        name = name[: -len("_Disk")]
    return UNKNOWN if name.lower() in ("", "unknown", "n/a", "none", "null", "-") else name


def is_nobody(name: str) -> bool:
    """Rule 13: words for a person who is not known."""
    return name.lower() in ("", "unknown", "not reported", "n/a", "none", "null", "nobody", "-")


def person_of(name: str | None) -> str | None:
    """Rule 13 of a text that is no DN."""
    name = (name or "").strip()
    return None if is_nobody(name) else name


def user_of(dn: str | None) -> str | None:
    """Rule 13: the person of a DN, or a text that is no DN as it stands."""
    if dn is None:
        return None
    dn = dn.split("&", 1)[0].strip(" \t")
    if not dn.startswith("/"):
        return None if is_nobody(dn) else dn
    values = [value for value in _CN.findall(dn) if not _is_proxy(value)]
    return None if not values or is_nobody(values[-1]) else values[-1]


def _is_proxy(value: str) -> bool:
    return value in ("proxy", "limited proxy") or (value.isascii() and value.isdigit())


def app_of(info: str | None) -> str:
    """Rule 14."""
    if not info:
        return UNKNOWN
    lower = info.lower()
    for app, fits in _APPS:
        if fits(lower):
            return app
    return "other"


def program_of(app: str | None) -> str:
    """Rules 4 and 14: EOS's ``sec.app`` up to its first ``?``, of which ``-`` is empty."""
    name = (app or "").split("?", 1)[0]
    return "" if name == "-" else name


def remote_by_sites(
    source: str, destination: str | None, storage: Mapping[str, tuple[str, ...]] | None = None
) -> bool | None:
    """Rules 21 and 72 for AAA enriched: null where the source is unknown."""
    if source == UNKNOWN:
        return None
    if destination in (None, "", UNKNOWN) or destination == source:
        return False
    return source not in (storage or {}).get(destination, ())
