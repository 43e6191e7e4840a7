"""Pseudonyms, which replace the names of people outside a task.

A pseudonym is ``<key id>:<32 hex digits>``, an HMAC-SHA256 of the name under a key that is created at first use in a
private file. A person has the same pseudonym as long as the key exists; without the key it cannot be computed.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
from dataclasses import dataclass
from pathlib import Path

from cmsspark.errors import NotAllowed, OutputError, SettingsError

KEY_FILE = "pseudonym.key"


@dataclass(frozen=True, repr=False)
class Pseudonyms:
    """The key; its ``repr`` does not show it."""

    key: bytes

    @property
    def key_id(self) -> str:
        """Eight hex digits that identify the key without revealing it."""
        return hashlib.sha256(b"cmsspark key id" + self.key).hexdigest()[:8]

    def of(self, name: str) -> str:
        """The pseudonym of a person's name."""
        digest = hmac.digest(self.key, name.encode(), "sha256").hex()
        return f"{self.key_id}:{digest[:32]}"

    def __repr__(self) -> str:
        return f"Pseudonyms(key_id={self.key_id})"


def load_or_make(path: Path) -> Pseudonyms:
    """The key in ``path``, created there (mode 0600) if the file does not exist.

    Raises NotAllowed (77) when others can read it, SettingsError (78) when it is not a key, OutputError (73) when it
    cannot be created.
    """
    try:
        if not path.exists():
            _create(path)
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise NotAllowed(
                "the pseudonym key must be private",
                where=path,
                found="others can read it",
                next_step=f"chmod 600 {path}",
            )
        content = path.read_text(encoding="ascii", errors="replace").strip()
    except OSError as error:
        raise OutputError("the pseudonym key cannot be created or read", where=path, found=error.strerror) from None
    try:
        key = bytes.fromhex(content)
    except ValueError:
        key = b""
    if len(key) != 32:
        raise SettingsError("a pseudonym key of 64 hex digits is wanted", where=path, found="something else")
    return Pseudonyms(key)


def _create(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w") as stream:
        stream.write(secrets.token_hex(32) + "\n")
        stream.flush()
        os.fsync(stream.fileno())
    try:
        # Two concurrent first uses must agree on one key: link() does not replace a file.
        os.link(part, path)
    except FileExistsError:
        pass
    finally:
        part.unlink()
