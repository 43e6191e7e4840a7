"""Removes secrets from command lines: passwords, tokens, keys, in whatever form programs take them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

HIDDEN: Final = "***"
#: Parts of names whose values are secret. A file that holds a secret is none: its path stays.
_WORDS: Final = (
    r"passwo?r?d|passwd|pwd|passcode|passphrase|pass|secret|token|bearer|credentials?|authorization|api[-_.]?key|"
    r"access[-_.]?key(?:[-_.]?id)?|private[-_.]?key|session[-_.]?id|signature|cookie|key"
)
_NAME: Final = rf"(?:[\w.\-]*[\w.\-])?(?<![a-z])(?:{_WORDS})s?(?![a-z])"
_CAMEL: Final = (
    r"[\w.\-]*[a-z0-9](?:Password|Passwd|Passcode|Passphrase|Secret|Token|Credentials?|ApiKey|AccessKey|SecretKey"
    r"|PrivateKey|Key)"
)
#: Words run together, such as ``mysecret``, ``dbpassword``, ``accesstoken``.
_JOINED: Final = r"[\w.\-]*(?:password|passwd|passcode|passphrase|pass|secret|token|apikey|accesskey|privatekey)s?"
_IS_SECRET: Final = re.compile(
    rf"(?:(?i:-{{0,2}}{_NAME})|-{{0,2}}{_CAMEL}|(?i:-{{0,2}}{_JOINED}))(?P<end>(?:[-_.A-Z\d][\w.\-]*)?)"
)
_NOT_SECRET: Final = re.compile(
    r"(?i)[-_.]?(?:files?|path|dir|folder|url|uri|class|type|name|enabled|length|size|expiration|renewer|interval|max"
    r"|min|limit|regex|algorithm|provider|location|store)"
)
_ASSIGNED: Final = re.compile(r"^(?P<name>-{0,2}[\w.\-\[\]]+)(?P<sign>\s*[=:]\s*)(?P<value>.*)$", re.DOTALL)
_VALUE: Final = r"(?P<value>\"(?:[^\"\\]|\\.)*(?:\"|$)|'(?:[^'\\]|\\.)*(?:'|$)|[^\s\"',;&]+)"
_IN_TEXT: Final = re.compile(r"(?P<name>(?<![\w.\-])[\w.\-]{2,120})(?P<sign>[\"']?\s{0,3}(?:=|:)\s{0,3})" + _VALUE)
_OPTION_IN_TEXT: Final = re.compile(r"(?P<name>(?<![\w\-])--?[\w.\-]{2,80})(?P<sign>\s{1,3})" + _VALUE)
#: (pattern, replacement) of what is secret whatever its name.
_ANYWHERE: Final = (
    (re.compile(r"-----BEGIN [A-Z ]*(?:PRIVATE KEY|CERTIFICATE)-----.*?(?:-----END [A-Z ]*-----|$)", re.S), HIDDEN),
    (re.compile(r"(?i)\b(bearer|basic|digest|negotiate|token)\s+[A-Za-z0-9+/=._~\-]{6,}"), rf"\1 {HIDDEN}"),
    (re.compile(r"([a-zA-Z][a-zA-Z0-9+.\-]*://)[^\s/@?#'\"]+@"), rf"\1{HIDDEN}@"),
    (re.compile(r"\beyJ[A-Za-z0-9_\-]{5,}\.[A-Za-z0-9_\-]+(?:\.[A-Za-z0-9_\-]*)?"), HIDDEN),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"), HIDDEN),
    (re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{20,}|glpat-[\w\-]{16,})"), HIDDEN),
    (re.compile(r"\b(?:xox[abprs]-[\w\-]{10,}|hvs\.[\w\-]{16,})"), HIDDEN),
)  # fmt: skip
#: Options of programs with one letter that take ``user:password`` or a password.
_USER: Final = frozenset({"-u", "--user", "--proxy-user"})
_USER_WORDS: Final = ("--user=", "--proxy-user=")
#: Programs whose option -p takes a password, also without a blank.
_SHORT_PASSWORD: Final = ("mysql", "mysqldump", "mariadb", "sshpass")
_LONGEST_NAME: Final = 120
_LONGEST: Final = 4_000


def redacted(words: Sequence[str]) -> str:
    """A command line as one text without secrets, at most 4,000 characters."""
    result: list[str] = []
    hide_next = False
    before = ""
    is_short = bool(words) and words[0].rpartition("/")[2] in _SHORT_PASSWORD
    length = 0
    for whole in words:
        # What is cut here would not be kept; a word may have megabytes.
        word = whole[:_LONGEST]
        length += len(word)
        if length > 2 * _LONGEST:
            break
        if is_short and word.startswith("-p"):
            result.append(f"-p{HIDDEN}" if len(word) > 2 else word)
            hide_next = len(word) == 2
        elif hide_next and not word.startswith("--"):
            result.append(HIDDEN)
            hide_next = False
        else:
            hide_next = word.startswith("-") and "=" not in word and is_secret(word)
            result.append(_word(word, before))
        before = word
    return " ".join(" ".join(result).split())[:_LONGEST]


def is_secret(name: str) -> bool:
    """Whether the value of an option or variable of that name is secret."""
    match = _IS_SECRET.fullmatch(name[-_LONGEST_NAME:])
    if match is None:
        return False
    end = match["end"]
    return not _NOT_SECRET.fullmatch(end) and not re.search(r"(?i)(?:(?:key|token|trust)store|keytab)$", name)


def _word(word: str, before: str) -> str:
    if (before in _USER and ":" in word) or word.startswith(_USER_WORDS):
        return f"{word.partition(':')[0]}:{HIDDEN}"
    match = _ASSIGNED.match(word)
    if match and "\n" not in match["name"] and is_secret(match["name"]):
        return f"{match['name']}{match['sign']}{HIDDEN}"
    for pattern, replacement in _ANYWHERE:
        word = pattern.sub(replacement, word)
    word = _IN_TEXT.sub(_hidden, word)
    return _OPTION_IN_TEXT.sub(lambda match: _hidden(match) if is_secret(match["name"]) else match[0], word)


def _hidden(match: re.Match[str]) -> str:
    name, sign, value = match["name"], match["sign"], match["value"]
    if is_secret(name):
        quote = value[0] if value[:1] in "\"'" else ""
        return f"{name}{sign}{quote}{HIDDEN}{quote}"
    # A value may hold another assignment: ``--conf=spark.x.secret=y`` in one word.
    return f"{name}{sign}{_IN_TEXT.sub(_hidden, value)}"
