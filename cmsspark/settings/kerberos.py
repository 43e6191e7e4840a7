"""Kerberos: whether there is a usable ticket or keytab, before anything starts, and
what its errors mean later.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from cmsspark.base.errors import CmssparkError, NotAllowed, NotReady, SettingsError
from cmsspark.settings.secrets import open_private

_PROPERTY: Final = re.compile(
    r"<property>\s*<name>\s*hadoop\.security\.authentication\s*</name>\s*<value>\s*(\w+)\s*</value>"
)
#: What Java, Hadoop and the GSSAPI say where there is no ticket or token, or one that expired.
_REFUSED: Final = re.compile(
    r"No valid credentials provided[^\n|;]{0,80}|Failed to find any Kerberos tgt|[Tt]icket expired"
    r"|Client cannot authenticate via: ?\[[^\]]*KERBEROS[^\]]*\]|SIMPLE authentication is not enabled(?!\.\s+Available:\[TOKEN\])"
    r"|Integrity check on decrypted field failed|No credentials were supplied[^\n|;]{0,40}"
    r"|SecretManager\$InvalidToken|token \([^)]*\) is expired|Unable to obtain password from user|Clock skew too great"
)
#: What they say beside it where no ticket would help: of a KDC that does not answer, and
#: of servers or a realm that are known by other names.
_NO_ANSWER: Final = re.compile(
    r"Cannot contact any KDC[^\n|;\"]{0,80}"
    r"|(?:Mechanism level|LoginException): (?:Connection refused|[\w ]*timed out|No route to host)[^\n|;]{0,40}"
)
_UNKNOWN: Final = re.compile(
    r"Server not found in Kerberos database[^\n|;]{0,40}|Server has invalid Kerberos principal[^\n|;]{0,160}"
    r"|Cannot (?:find|locate) KDC[^\n|;]{0,80}|Failed to specify server's Kerberos principal name"
)
#: What kinit says where the realm does not accept a keytab. Anything else, such as a
#: KDC that does not answer, is left to Java, which may be configured to ask another
#: one.
_KEYTAB_REFUSED: Final = re.compile(
    r"Preauthentication failed|Client '[^']*' not found[^\n]*|Keytab contains no suitable keys[^\n]*"
    r"|Password has expired|Client's (?:credentials|entry)[^\n]*(?:revoked|expired)[^\n]*|Password incorrect"
)
_NEXT: Final = "kinit, or give --principal NAME@REALM and --keytab FILE; then run it again"


def refused(text: str) -> CmssparkError | None:
    """Return what a text about Kerberos of Java, Hadoop or a library comes to: NotAllowed
    (77) without a ticket, NotReady (75) for a KDC that does not answer, SettingsError (78)
    for a realm or server of another name; None for other texts.
    """
    if (match := _NO_ANSWER.search(text)) is not None:
        return NotReady(
            "no Kerberos server (KDC) answers",
            found=match[0].strip(),
            next_step="run it again later; [realms] in krb5.conf names the servers",
        )
    if (match := _UNKNOWN.search(text)) is not None:
        return SettingsError(
            "Kerberos knows the cluster's servers, or their realm, by other names",
            found=match[0].strip(),
            next_step="fetch krb5.conf and the files in HADOOP_CONF_DIR from the cluster: *.kerberos.principal "
            "and [realms] must be its own",
        )
    if (match := _REFUSED.search(text)) is not None:
        return NotAllowed(
            "a valid Kerberos ticket is needed", found=match[0].strip(), next_step=_NEXT
        )
    return None


def is_needed(environ: Mapping[str, str]) -> bool:
    """Return whether the cluster's ``core-site.xml`` asks for Kerberos."""
    for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR"):
        try:
            text = Path(environ[name], "core-site.xml").read_text(encoding="utf-8")
        except (KeyError, OSError, UnicodeDecodeError):
            continue
        match = _PROPERTY.search(re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL))
        return match is not None and match[1].lower() == "kerberos"
    return False


def check(
    environ: Mapping[str, str], principal: str | None = None, keytab: str | None = None
) -> None:
    """Raise NotAllowed (77) without a ticket, or a private keytab that the realm
    accepts; SettingsError (78) for one option without the other.

    For clusters without Kerberos only the keytab is looked at, which Spark reads all the
    same. Where ``klist`` and ``kinit`` are not installed, tickets and keytabs are left to
    Java.
    """
    if (principal is None) != (keytab is None):
        raise SettingsError(
            "a keytab and its principal belong together",
            found="only one of spark.kerberos.principal and spark.kerberos.keytab",
            next_step="give both --principal NAME@REALM and --keytab FILE",
        )
    if keytab is not None:
        assert principal is not None
        _check_keytab(Path(keytab), principal, environ)
    if keytab is not None or not is_needed(environ):
        return
    # Exit code 1: no cache, no ticket of the realm's, or an expired one.
    done = _run(environ, "klist", "-s")
    if done is not None and done.returncode:
        raise NotAllowed(
            "a valid Kerberos ticket is needed",
            where=environ.get("KRB5CCNAME") or f"the default cache of user {os.getuid()}",
            found="no ticket, or an expired one",
            next_step=_NEXT,
        )


def _check_keytab(path: Path, principal: str, environ: Mapping[str, str]) -> None:
    try:
        open_private(path, "a keytab").close()
    except OSError as error:
        reason = error.strerror
        raise NotAllowed(
            "the keytab cannot be read", where=path, found=reason, next_step="check --keytab"
        ) from None
    if not is_needed(environ):
        return
    # Its key may be older than the realm's: Java would say so in a trace, after some seconds.
    done = _run(environ, "kinit", "-k", "-t", str(path), "-c", "MEMORY:cmsspark", principal)
    refusal = _KEYTAB_REFUSED.search(done.stderr) if done is not None and done.returncode else None
    if refusal is not None:
        raise NotAllowed(
            f"the keytab gives {principal} no Kerberos ticket",
            where=path,
            found=refusal[0],
            next_step=f"klist -k {path} lists its principals; make it anew if the password changed, or kinit and leave "
            "out --principal and --keytab",
        )


def _run(environ: Mapping[str, str], *words: str) -> subprocess.CompletedProcess[str] | None:
    """Return what a command of Kerberos ended with; None where it is not installed or
    does not end in time.
    """
    program = shutil.which(words[0], path=environ.get("PATH"))
    if program is None:
        return None
    variables = {
        name: environ[name]
        for name in ("PATH", "HOME", "KRB5CCNAME", "KRB5_CONFIG")
        if name in environ
    }
    command = [program, *words[1:]]
    try:
        return subprocess.run(
            command,
            env={**variables, "LC_ALL": "C"},
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
