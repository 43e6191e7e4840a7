"""Removes secrets from command lines: passwords, tokens, keys, in whatever form
programs take them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

HIDDEN: Final = "***"
#: Parts of names whose values are secret. A file that holds a secret is none: its path stays.
_WORDS: Final = (
    r"passwo?r?d|passwd|pwd|passcode|passphrase|pass|secret|token|bearer|credentials?|authorization|api[-_.]?key|"
    r"access[-_.]?key(?:[-_.]?id)?|private[-_.]?key|session[-_.]?id|signature|sig|jwt|otp|pw|cookie|key|authz|cred|pin"
)
_NAME: Final = rf"(?:[\w.\-]*[\w.\-])?(?<![a-z])(?:{_WORDS})s?(?![a-z])"
_CAMEL: Final = (
    r"[\w.\-]*[a-z0-9](?:Password|Passwd|Passcode|Passphrase|Secret|Token|Credentials?|ApiKey|AccessKey|SecretKey"
    r"|PrivateKey|Key|Pwd)"
)
#: Words run together, such as ``mysecret``, ``dbpassword``, ``accesstoken``.
_JOINED: Final = r"[\w.\-]*(?:password|passwd|passcode|passphrase|pass|pwd|secret|token|apikey|accesskey|privatekey)s?"
_IS_SECRET: Final = re.compile(
    rf"(?:(?i:-{{0,2}}{_NAME})|-{{0,2}}{_CAMEL}|(?i:-{{0,2}}{_JOINED}))(?P<end>(?:[-_.A-Z\d][\w.\-]*)?)"
)
_NOT_SECRET: Final = re.compile(
    r"(?i)[-_.]?(?:files?|path|dir|folder|url|uri|class|type|name|enabled|length|size|expiration|renewer|interval|max"
    r"|min|limit|regex|algorithm|provider|location|store|memory)"
)
_ASSIGNED: Final = re.compile(
    r"^(?P<name>-{0,2}[\w.\-\[\]]+)(?P<sign>\s*[=:]\s*)(?P<value>.*)$", re.DOTALL
)
#: A text in a text has backslashes before its quotes.
_VALUE: Final = (
    r"\\{0,3}(?P<value>\"(?:[^\"\\]|\\.)*(?:\"|$)|'(?:[^'\\]|\\.)*(?:'|$)|[^\s\"',;&]+)"
)
_IN_TEXT: Final = re.compile(
    r"(?P<name>(?<![\w.\-])[\w.\-]{2,120})(?P<sign>\\{0,3}[\"']?\s{0,3}(?:=|:)\s{0,3})" + _VALUE
)
_OPTION_IN_TEXT: Final = re.compile(
    r"(?P<name>(?<![\w\-])--?[\w.\-]{2,80})(?P<sign>\s{1,3})" + _VALUE
)
#: (pattern, replacement) of what is secret whatever its name.
_ANYWHERE: Final = (
    (
        re.compile(
            r"-----BEGIN [A-Z ]*(?:PRIVATE KEY|CERTIFICATE)[A-Z ]*--.*?(?:-----END [A-Z ]*-----|$)",
            re.S,
        ),
        HIDDEN,
    ),
    (
        re.compile(r"(?i)\b(bearer|basic|digest|negotiate|token)\s+[A-Za-z0-9+/=._~\-]{6,}"),
        rf"\1 {HIDDEN}",
    ),
    (re.compile(r"([a-zA-Z][a-zA-Z0-9+.\-]*://)[^\s/@?#'\"]+@"), rf"\1{HIDDEN}@"),
    (
        re.compile(r"(?<![\w.\-/])([\w.\-]{1,60}:)[^\s/@:'\"]{1,200}@(?=[\w.\-]+(?:[:/\s]|$))"),
        rf"\1{HIDDEN}@",
    ),
    (re.compile(r"(?i)\b(jdbc:oracle:\w+:)[^\s@]{1,200}@"), rf"\1{HIDDEN}@"),
    # user/password@database, but neither a Kerberos principal, host/name@REALM, nor an
    # image by its digest.
    (
        re.compile(
            r"(?<![\w.\-/:@])([\w.\-$#]{1,60}/)(?!(?:[\w\-]+(?:\.[\w\-]+)+|_HOST)@[A-Z0-9\-]+(?:\.[A-Z0-9\-]+)+(?![\w.]))"
            r"[^\s/@'\"]{1,200}@(?!sha256:)(?=[\w.\-/(])"
        ),
        rf"\1{HIDDEN}@",
    ),
    (re.compile(r"(?i)\b(oracle[\w+]{0,20}://)[^\s@]{1,200}@"), rf"\1{HIDDEN}@"),
    (
        re.compile(r"(?i)(<[\w.\-]{0,60}(?:password|secret|token)[\w.\-]{0,60}>)[^<]+"),
        rf"\1{HIDDEN}",
    ),
    (
        re.compile(
            r"\b((?:mysql|mariadb|sshpass)[\w\-]{0,20}(?:\s[^|;&]{0,300}?)?\s-p\s?)[^\s|;&]+"
        ),
        rf"\1{HIDDEN}",
    ),
    (re.compile(r"\b(curl\s(?:[^|;&]{0,300}?\s)?-u\s?)[^\s:]+:[^\s|;&]+"), rf"\1{HIDDEN}"),
    (
        re.compile(
            r"\b((?:mosquitto_|sqlcmd|tsql|isql|bcp|ipmitool|ldap)[\w\-]{0,20}(?:\s[^|;&]{0,300}?)?\s-[Pw]\s?)[^\s|;&]+"
        ),
        rf"\1{HIDDEN}",
    ),
    (re.compile(r"\bhf_[A-Za-z0-9]{10,}"), HIDDEN),
    (re.compile(r"\beyJ[A-Za-z0-9_\-]{5,}\.[A-Za-z0-9_\-]+(?:\.[A-Za-z0-9_\-]*)?"), HIDDEN),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"), HIDDEN),
    (re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{20,}|glpat-[\w\-]{16,})"), HIDDEN),
    (re.compile(r"\b(?:xox[abprs]-[\w\-]{10,}|hvs\.[\w\-]{16,})"), HIDDEN),
)
#: Options of programs with one letter that take ``user:password`` or a password.
_USER: Final = frozenset({"-u", "-U", "--user", "--auth", "--proxy-user"})
_USER_WORDS: Final = ("--user=", "--proxy-user=")
#: Program → its option of one letter that takes a secret, in most of them also without a blank.
_SHORT_PASSWORD: Final = {
    **dict.fromkeys(
        (
            "mysql",
            "mysqldump",
            "mysqladmin",
            "mariadb",
            "mariadb-dump",
            "sshpass",
            "mongo",
            "mongosh",
        ),
        "-p",
    ),
    **dict.fromkeys(("ldapsearch", "ldapmodify", "ldapadd", "ldapwhoami"), "-w"),
    **dict.fromkeys(
        ("sqlcmd", "tsql", "isql", "bcp", "ipmitool", "mosquitto_pub", "mosquitto_sub"), "-P"
    ),
    **{"beeline": "-p", "login": "-p", "redis-cli": "-a", "curl": "-b"},
}
#: Option of one letter that takes a password in many programs → programs in which it does not.
_OFTEN_PASSWORD: Final = {
    "-P": frozenset(
        (
            "scp",
            "sftp",
            "wget",
            "xargs",
            "rsync",
            "cp",
            "nmap",
            "mysql",
            "mysqldump",
            "mariadb",
            "curl",
        )
    ),
    "-w": frozenset(
        (
            "grep",
            "egrep",
            "fgrep",
            "zgrep",
            "rg",
            "curl",
            "docker",
            "podman",
            "psql",
            "iptables",
            "diff",
        )
    ),
}
#: A port, a number of processes, or a path.
_NO_PASSWORD: Final = re.compile(r"\d{1,5}|\.{0,2}/.*")
#: A bare word that names what follows, as in ``aws configure set aws_secret_access_key …``.
_NAME_OF_NEXT: Final = re.compile(
    r"(?i)\w+_(?:password|passwd|secret|token|(?:access|api|private)_key)"
)
_LONGEST_NAME: Final = 120
_LONGEST: Final = 4_000


def redacted(words: Sequence[str]) -> str:
    """Return a command line as one text without secrets, at most 4,000 characters."""
    return " ".join(" ".join(redacted_words(words)).split())[:_LONGEST]


def redacted_words(words: Sequence[str]) -> list[str]:
    """Return the words of a command line without secrets, up to about 8,000 characters.

    Example:
        >>> redacted_words(["--epochs", "3", "--token", "abc"])
        ['--epochs', '3', '--token', '***']
    """
    result: list[str] = []
    hide_next = False
    before = ""
    short = ""
    length = 0
    often = set(_OFTEN_PASSWORD)
    for full_word in words:
        # What is cut here would not be kept; a word may have megabytes.
        word = full_word[:_LONGEST]
        length += len(word)
        if length > 2 * _LONGEST:
            break
        program = word.rpartition("/")[2]
        short = _SHORT_PASSWORD.get(program, short)
        often -= {option for option in often if program in _OFTEN_PASSWORD[option]}
        if short and word.startswith(short):
            result.append(f"{short}{HIDDEN}" if len(word) > 2 else word)
            hide_next = len(word) == 2
        elif hide_next and not word.startswith("--"):
            result.append(HIDDEN)
            hide_next = False
        elif before in often and not _NO_PASSWORD.fullmatch(word):
            result.append(HIDDEN)
        else:
            # Whether the word after this one is a secret.
            if word in ("=", ":", "=="):
                hide_next = is_secret(before)
            else:
                is_name = (
                    word.startswith("-")
                    or word.endswith((":", "="))
                    or (before != "-m" and _NAME_OF_NEXT.fullmatch(word))
                )
                hide_next = bool(is_name) and "=" not in word[:-1] and is_secret(word.rstrip(":="))
            result.append(_word(word, before))
        before = word
    return result


def is_secret(name: str) -> bool:
    """Return whether the value of an option or variable of that name is secret."""
    match = _IS_SECRET.fullmatch(name[-_LONGEST_NAME:])
    if match is None:
        return False
    end = match["end"]
    return not _NOT_SECRET.fullmatch(end) and not re.search(
        r"(?i)(?:(?:key|token|trust)store|keytab)$", name
    )


def _word(word: str, before: str) -> str:
    if (before in _USER and ":" in word) or word.startswith(_USER_WORDS):
        return f"{word.partition(':')[0]}:{HIDDEN}"
    if before in _USER and "%" in word:
        return f"{word.partition('%')[0]}%{HIDDEN}"
    if word.startswith("-u") and ":" in word and "://" not in word:
        return f"{word.partition(':')[0]}:{HIDDEN}"
    match = _ASSIGNED.match(word)
    if match and "\n" not in match["name"] and is_secret(match["name"]):
        return f"{match['name']}{match['sign']}{HIDDEN}"
    for pattern, replacement in _ANYWHERE:
        word = pattern.sub(replacement, word)
    word = _IN_TEXT.sub(_hidden, word)
    return _OPTION_IN_TEXT.sub(
        lambda match: _hidden(match) if is_secret(match["name"]) else match[0], word
    )


def _hidden(match: re.Match[str]) -> str:
    name, sign, value = match["name"], match["sign"], match["value"]
    if is_secret(name):
        quote = value[0] if value[:1] in "\"'" else ""
        return f"{name}{sign}{quote}{HIDDEN}{quote}"
    # A value may hold another assignment: ``--conf=spark.x.secret=y`` in one word.
    return f"{name}{sign}{_IN_TEXT.sub(_hidden, value)}"
