"""Pseudonyms: what stands for a person outside a task.

A pseudonym is ``<key id>:<32 hex digits>``, an HMAC-SHA256 of the name under a key that is made at first use in a
private file. The same person has the same pseudonym as long as the key lives; without the key none can be told.
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
        """Eight hex digits that tell this key from others, and nothing of it."""
        return hashlib.sha256(b"cmsspark key id" + self.key).hexdigest()[:8]

    def of(self, name: str) -> str:
        """The pseudonym of a person's name."""
        digest = hmac.digest(self.key, name.encode(), "sha256").hex()
        return f"{self.key_id}:{digest[:32]}"

    def __repr__(self) -> str:
        return f"Pseudonyms(key_id={self.key_id})"


def load_or_make(path: Path) -> Pseudonyms:
    """The key in ``path``, made there (mode 0600) if there is none.

    Raises NotAllowed (77) when others can read it, SettingsError (78) when it is no key, OutputError (73) when it
    cannot be made.
    """
    try:
        if not path.exists():
            _make(path)
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise NotAllowed(
                "the pseudonym key must be private",
                where=path,
                found="others can read it",
                next_step=f"chmod 600 {path}",
            )
        written = path.read_text(encoding="ascii", errors="replace").strip()
    except OSError as error:
        raise OutputError("the pseudonym key cannot be made or read", where=path, found=error.strerror) from None
    try:
        key = bytes.fromhex(written)
    except ValueError:
        key = b""
    if len(key) != 32:
        raise SettingsError("a pseudonym key of 64 hex digits is wanted", where=path, found="something else")
    return Pseudonyms(key)


def _make(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w") as stream:
        stream.write(secrets.token_hex(32) + "\n")
        stream.flush()
        os.fsync(stream.fileno())
    try:
        # Two first uses at once must end with one key: link() refuses to replace.
        os.link(aside, path)
    except FileExistsError:
        pass
    finally:
        aside.unlink()
