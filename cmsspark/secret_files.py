"""Passwords come from files that their owner alone can read; never from settings, arguments or the environment."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from cmsspark.errors import NotAllowed, SettingsError


def read_password(path: Path) -> str:
    """The first line of ``path``, without blanks around it.

    Raises NotAllowed (77) where group or others can use the file, SettingsError (78) where it is not there or empty.
    """
    try:
        with open(path, "rb") as stream:
            # Of the opened file, so that it is the one that is read.
            mode = stat.S_IMODE(os.fstat(stream.fileno()).st_mode)
            if mode & 0o077:
                raise NotAllowed(
                    "a file with a password is for its owner alone",
                    where=path,
                    found=f"mode {mode:04o}: group or others can use it",
                    next_step=f"chmod 600 {path}",
                )
            line = stream.readline(4096).decode("utf-8").strip()
    except OSError as error:
        raise SettingsError("a file with a password cannot be read", where=path, found=error.strerror) from None
    except UnicodeDecodeError:
        line = ""
    if not line:
        raise SettingsError("a password is wanted in the first line", where=path, found="no text")
    return line


def blanked(text: str, *secrets: str | None) -> str:
    """``text``, for example a server's answer, with the secrets blanked."""
    for secret in secrets:
        if secret:
            text = text.replace(secret, "***")
    return text
