"""Pseudonyms, which replace the names of people outside a task.

A pseudonym is ``<key id>:<32 hex digits>``, an HMAC-SHA256 of the name under a key that
is created at first use in a private file. A person has the same pseudonym as long as
the key exists; without the key it cannot be computed.

The file's first line is the current key. After a rotation, lines ``<day> <key>``
follow, the newest first: keys of the logs before that day. A day that is counted again
has the pseudonyms that it had.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import os
import re
import secrets
import stat
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Final

from cmsspark.base.errors import NotAllowed, NotReady, OutputError, SettingsError
from cmsspark.base.private_folders import make_private

KEY_FILE: Final = "pseudonym.key"
#: The file's content in the environment of a driver on Kubernetes.
KEY_VARIABLE: Final = "CMSSPARK_PSEUDONYM_KEY"
_LINE: Final = re.compile(r"(?:(\d{4}-\d{2}-\d{2}) )?([0-9a-fA-F]{64})")


@dataclass(frozen=True, repr=False)
class Pseudonyms:
    """The key; its ``repr`` does not show it."""

    key: bytes

    @property
    def key_id(self) -> str:
        """Eight hex digits that identify the key without revealing it."""
        return hashlib.sha256(b"cmsspark key id" + self.key).hexdigest()[:8]

    def pseudonym(self, name: str) -> str:
        """Return the pseudonym of a person's name."""
        digest = hmac.digest(self.key, name.encode(), "sha256").hex()
        return f"{self.key_id}:{digest[:32]}"

    def __repr__(self) -> str:
        return f"Pseudonyms(key_id={self.key_id})"


@dataclass(frozen=True)
class KeyFile:
    """All keys of a file. ``older``: each with the day that it ends before, the newest first."""

    current: Pseudonyms
    older: tuple[tuple[date, Pseudonyms], ...] = ()

    def of_day(self, day: date) -> Pseudonyms:
        """Return the key of the logs of a day."""
        key = self.current
        for end, older in self.older:
            if day >= end:
                break
            key = older
        return key

    def rotated(self, first: date) -> KeyFile:
        """Return the file with a new key for the days from ``first`` on. Keys of no day
        before it are dropped.
        """
        older_keys = tuple((end, key) for end, key in self.older if end < first)
        return KeyFile(
            _new_key(),
            ((first, self.of_day(date.fromordinal(first.toordinal() - 1))), *older_keys),
        )

    def without(self, before: date) -> KeyFile:
        """Return the file without the keys that are only of days before ``before``: the
        next key stands for them.
        """
        return KeyFile(self.current, tuple((end, key) for end, key in self.older if end > before))

    def text(self) -> str:
        """Return the file's content."""
        lines = [
            self.current.key.hex(),
            *(f"{end.isoformat()} {key.key.hex()}" for end, key in self.older),
        ]
        return "".join(f"{line}\n" for line in lines)


def load_or_make(path: Path, day: date | None = None) -> Pseudonyms:
    """Return the key in ``path`` for the logs of ``day``, or the current one; made
    (mode 0600) if the file does not exist.

    Raises as :func:`load`.
    """
    keys = load(path)
    return keys.current if day is None else keys.of_day(day)


def take_from_environment(environ: MutableMapping[str, str]) -> None:
    """Move the keys that a driver on Kubernetes has in its environment to its private
    file: processes that it starts do not inherit them.

    Raises OutputError (73) where the file cannot be written.
    """
    content = environ.pop(KEY_VARIABLE, None)
    if content is None:
        return
    path = Path(environ.get("CMSSPARK_STATE_DIR", "."), KEY_FILE)
    with disk_error(path):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        _write(path, content)


def load(path: Path) -> KeyFile:
    """Return the keys in ``path``, with one made there (mode 0600) if the file does not exist.

    Raises NotAllowed (77) when others can read it, SettingsError (78) when it has no
    keys, OutputError (73) when it cannot be created.
    """
    try:
        if not path.exists():
            make_private(path.parent)
            part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
            try:
                _write(part, KeyFile(_new_key()).text())
                # Two concurrent first uses must agree on one key: link() does not replace a file.
                os.link(part, path)
                _sync_folder(path)
            except FileExistsError:
                pass
            except FileNotFoundError:
                # A process that changes the keys, which are there by now, removed the part.
                if not path.exists():
                    raise
            finally:
                part.unlink(missing_ok=True)
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise NotAllowed(
                "the pseudonym key must be private",
                where=path,
                found="others can read it",
                next_step=f"chmod 600 {path}",
            )
        content = path.read_text(encoding="ascii", errors="replace").strip()
    except OSError as error:
        raise OutputError(
            "the pseudonym key cannot be created or read", where=path, found=error.strerror
        ) from None
    keys = _parsed(content)
    if keys is None:
        raise SettingsError(
            "a pseudonym key has 64 hex digits", where=path, found="something else"
        )
    return keys


def _parsed(content: str) -> KeyFile | None:
    """Return the keys of a file's content; None where it holds anything else."""
    matches = [_LINE.fullmatch(line.strip()) for line in content.split("\n")]
    if None in matches:
        return None
    ends, keys = zip(
        *((match[1], Pseudonyms(bytes.fromhex(match[2]))) for match in matches if match),
        strict=True,
    )
    try:
        dated = [date.fromisoformat(end) for end in ends[1:]]
    except (TypeError, ValueError):
        return None
    if ends[0] is not None or dated != sorted(set(dated), reverse=True):
        return None
    return KeyFile(keys[0], tuple(zip(dated, keys[1:], strict=True)))


@contextmanager
def changing(path: Path) -> Iterator[None]:
    """Lock the file, made where there is none, while a process changes it; the lock ends
    with the process, however that ends. Files that killed processes left, which have
    keys, are removed.

    Raises NotReady (75) where another process changes it, else as :func:`load`.
    """
    load(path)
    with disk_error(path), _locked(path):
        for part in path.parent.glob(f".{path.name}.*"):
            part.unlink(missing_ok=True)
        yield


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    while True:
        handle = os.open(path, os.O_RDWR)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise NotReady(
                    "the pseudonym keys are being changed",
                    where=path,
                    found="another process has locked the file",
                    next_step="wait for it, then run it again",
                ) from None
            # Another process may have put a new file there before this one had the lock.
            if os.path.samestat(os.fstat(handle), os.stat(path)):
                yield
                return
        finally:
            os.close(handle)


def replace(path: Path, keys: KeyFile) -> None:
    """Write the keys in place of those in ``path``, inside :func:`changing`. Raises
    OutputError (73), which says whether they were replaced.
    """
    with disk_error(path):
        part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        _write(part, keys.text())
        try:
            os.replace(part, path)
        except OSError:
            part.unlink(missing_ok=True)
            raise
    try:
        _sync_folder(path)
    except OSError as error:
        raise OutputError(
            "the pseudonym keys were changed, but the disk did not confirm it",
            where=path,
            found=error.strerror,
            next_step="check the disk, then cmsspark lab pseudonyms list",
        ) from None


def _sync_folder(path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def disk_error(path: Path) -> Iterator[None]:
    """Turn an error of the disk into an OutputError (73) that names the file."""
    try:
        yield
    except OSError as error:
        raise OutputError(
            "the pseudonym keys cannot be written",
            where=path,
            found=error.strerror,
            next_step="make room or get permission there, then run it again; the keys are unchanged",
        ) from None


def _new_key() -> Pseudonyms:
    return Pseudonyms(secrets.token_bytes(32))


def _write(path: Path, content: str) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "w") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
    except BaseException:
        path.unlink(missing_ok=True)
        raise
