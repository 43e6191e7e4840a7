"""Secrets: private files, passwords, TLS contexts, and texts without any secret.

Passwords come from files that only their owner can use; never from settings, arguments or the environment.
"""

from __future__ import annotations

import base64
import os
import ssl
import stat
from pathlib import Path
from typing import BinaryIO, Final

from cmsspark.errors import NotAllowed, SettingsError

_MAX_BYTES: Final = 1_000_000


def open_private(path: Path, what: str = "a file with credentials") -> BinaryIO:
    """``path`` opened for reading, after a check that only its owner can use it.

    The check is made on the opened file, so that the file checked is the file read. Raises OSError where it cannot be
    opened, NotAllowed (77) where group or others can use it, SettingsError (78) where it is no regular file.
    """
    # Without O_NONBLOCK a FIFO would wait for a writer.
    stream = os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb")
    try:
        found = os.fstat(stream.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise SettingsError(f"{what} must be a regular file", where=path, found="another kind of file")
        mode = stat.S_IMODE(found.st_mode)
        if mode & 0o077:
            raise NotAllowed(
                f"{what} must be for its owner alone",
                where=path,
                found=f"mode {mode:04o}: group or others can use it",
                next_step=f"chmod 600 {path}",
            )
    except BaseException:
        stream.close()
        raise
    return stream


def read_private(path: Path, what: str = "a file with credentials") -> bytes:
    """The content of a private file, at most 1 MB of it. Raises as :func:`open_private`."""
    with open_private(path, what) as stream:
        return stream.read(_MAX_BYTES)


def read_password(path: Path) -> str:
    """The first line of ``path``, stripped.

    Raises NotAllowed (77) where group or others can use the file, SettingsError (78) where it is missing or empty.
    """
    try:
        content = read_private(path, "a file with a password")
        line = content.partition(b"\n")[0].decode("utf-8").strip()
    except OSError as error:
        raise SettingsError("a file with a password cannot be read", where=path, found=error.strerror) from None
    except UnicodeDecodeError:
        line = ""
    if not line:
        raise SettingsError("the first line must hold a password", where=path, found="no text")
    return line


def tls_context(ca: Path | None = None, cert: Path | None = None, key: Path | None = None) -> ssl.SSLContext:
    """A client's TLS context, 1.2 or newer, that checks the server's certificate and its name.

    ``ca``: a file or folder of the certificates to trust; without it those that the system trusts. ``cert`` and
    ``key``: the client's; ``key`` may be part of ``cert``, and must be private. Raises SettingsError (78) for files
    that are missing, encrypted or no certificates, NotAllowed (77) for a key that others can use.
    """
    try:
        trust = {} if ca is None else {"capath": str(ca)} if ca.is_dir() else {"cafile": str(ca)}
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, **trust)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if cert is not None:
            with open_private(key or cert, "a file with a private key") as stream:
                # OpenSSL opens files by name: this name is the file that was checked.
                private = f"/dev/fd/{stream.fileno()}"
                if key is None:
                    context.load_cert_chain(private, password=_no_pass_phrase)
                else:
                    context.load_cert_chain(cert, private, password=_no_pass_phrase)
    except ssl.SSLError as error:
        raise SettingsError("certificates must be in PEM form", found=error.reason or str(error)) from None
    except OSError as error:
        where = error.filename or cert
        raise SettingsError("a certificate file cannot be read", where=where, found=error.strerror) from None
    return context


def _no_pass_phrase() -> str:
    # Without this OpenSSL prompts on the terminal and waits forever.
    raise SettingsError("the client's key must have no pass phrase", found="an encrypted key")


def basic_credentials(user: str | None, password: str | None) -> str:
    """User and password as HTTP's Basic scheme writes them."""
    return base64.b64encode(f"{user}:{password}".encode()).decode()


def safe_text(text: str, *secrets: str | None, limit: int = 300) -> str:
    """A text of somebody else, for example a server's answer, in one line that is safe for terminals and logs.

    Control characters, line ends and invisible formatting become blanks, secrets become ``***``, and what is longer
    than ``limit`` characters is cut.
    """
    # Before and after: a control character may stand inside a secret, and cutting first could leave half of one.
    text = "".join(letter if letter.isprintable() else " " for letter in blanked(text, *secrets))
    return blanked(" ".join(text.split()), *secrets)[:limit]


def blanked(text: str, *secrets: str | None) -> str:
    """``text``, for example a server's answer, with the secrets replaced by ``***``."""
    for secret in secrets:
        if secret:
            text = text.replace(secret, "***")
    return text
