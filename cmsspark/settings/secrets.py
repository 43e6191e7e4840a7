"""Secrets: private files, passwords, TLS contexts, and removal of secrets from texts.

Passwords are read from files that only their owner can access, never from settings,
arguments or the environment.
"""

from __future__ import annotations

import base64
import os
import shlex
import stat
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from cmsspark.base.errors import NotAllowed, SettingsError

if TYPE_CHECKING:
    import ssl

_MAX_BYTES: Final = 1_000_000
_TOKEN_LETTERS: Final = 16


def open_private(path: Path, label: str = "a file with credentials") -> BinaryIO:
    """Open ``path`` for reading and check that only its owner can access it.

    The check uses the open file, so that the checked file is the one read. Raises
    OSError where it cannot be opened, NotAllowed (77) where group or others can access
    it, SettingsError (78) where it is not a regular file.
    """
    # Without O_NONBLOCK, opening a FIFO waits for a writer.
    stream = os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb")
    try:
        status = os.fstat(stream.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise SettingsError(
                f"{label} must be a regular file", where=path, found="another kind of file"
            )
        mode = stat.S_IMODE(status.st_mode)
        if mode & 0o077:
            raise NotAllowed(
                f"{label} can be accessed by others than its owner",
                where=path,
                found=f"mode {mode:04o}",
                next_step=f"chmod 600 {path}",
            )
    except BaseException:
        stream.close()
        raise
    return stream


def read_private(path: Path, label: str = "a file with credentials") -> bytes:
    """Return the content of a private file, at most 1 MB of it. Raises as :func:`open_private`."""
    with open_private(path, label) as stream:
        return stream.read(_MAX_BYTES)


def read_password(path: Path) -> str:
    """Return the first line of ``path``, stripped.

    Raises NotAllowed (77) where group or others can access the file, SettingsError (78)
    where it is missing or empty.
    """
    try:
        content = read_private(path, "a file with a password")
        line = content.partition(b"\n")[0].decode("utf-8").strip()
    except OSError as error:
        raise SettingsError(
            "a file with a password cannot be read", where=path, found=error.strerror
        ) from None
    except UnicodeDecodeError:
        line = ""
    if not line:
        raise SettingsError(
            "the file has no password in its first line",
            where=path,
            found="an empty line, or not UTF-8",
        )
    return line


def read_token(path: Path) -> str:
    """Return the token in the first line of ``path``. Raises SettingsError (78) for one
    that is guessed too easily, and as :func:`read_password`.
    """
    token = read_password(path)
    if len(token) < _TOKEN_LETTERS:
        raise SettingsError(
            f"a token must have at least {_TOKEN_LETTERS} characters",
            where=path,
            found=f"{len(token)} characters",
            next_step=f"(umask 077; openssl rand -hex 24 > {shlex.quote(str(path))})",
        )
    return token


def tls_context(
    ca: Path | None = None, cert: Path | None = None, key: Path | None = None
) -> ssl.SSLContext:
    """Return a TLS client context, version 1.2 or newer, that verifies the server's
    certificate and host name.

    ``ca``: a file or folder with the trusted certificates, by default those of the
    system. ``cert`` and ``key``: the client's; ``cert`` may contain the key, and the
    key's file must be private. Raises SettingsError (78) for files that are missing,
    encrypted or not certificates, NotAllowed (77) for a key that others can access.
    """
    # Not at import: most commands need no TLS.
    import ssl

    try:
        trust = {} if ca is None else {"capath": str(ca)} if ca.is_dir() else {"cafile": str(ca)}
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, **trust)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if cert is not None:
            with open_private(key or cert, "a file with a private key") as stream:
                # OpenSSL opens files by name. This name refers to the file that was checked.
                private = f"/dev/fd/{stream.fileno()}"
                if key is None:
                    context.load_cert_chain(private, password=_no_pass_phrase)
                else:
                    context.load_cert_chain(cert, private, password=_no_pass_phrase)
    except ssl.SSLError as error:
        raise SettingsError(
            "a certificate or key is not in PEM form", found=error.reason or str(error)
        ) from None
    except OSError as error:
        where = error.filename or cert
        raise SettingsError(
            "a certificate file cannot be read", where=where, found=error.strerror
        ) from None
    return context


def _no_pass_phrase() -> str:
    # Without this function OpenSSL prompts on the terminal and waits forever.
    raise SettingsError("the client's key must have no pass phrase", found="an encrypted key")


def basic_credentials(user: str | None, password: str | None) -> str:
    """Return user and password encoded for HTTP Basic authentication."""
    return base64.b64encode(f"{user}:{password}".encode()).decode()


def safe_text(text: str, *secrets: str | None, limit: int = 300) -> str:
    """Return an untrusted text, for example a server's answer, as one line that is safe
    for terminals and logs.

    Control characters, line ends and invisible formatting become blanks, secrets become
    ``***``, and the result is cut to ``limit`` characters.
    """
    # Before and after: a secret may contain a control character, and cutting first
    # could leave half of a secret.
    text = "".join(letter if letter.isprintable() else " " for letter in blanked(text, *secrets))
    return blanked(" ".join(text.split()), *secrets)[:limit]


def blanked(text: str, *secrets: str | None) -> str:
    """Return ``text``, for example a server's answer, with the secrets replaced by ``***``."""
    for secret in secrets:
        if secret:
            text = text.replace(secret, "***")
    return text
