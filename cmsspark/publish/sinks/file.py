"""The file sink: confirmed documents as JSON Lines, one file per batch, each written
completely or not at all.

A batch that is sent again replaces its file, so nothing doubles here.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from cmsspark.base.errors import OutputError
from cmsspark.publish.batch_log import Batch, sync_folder
from cmsspark.publish.sink import ForbiddenError, RetryableError, Sink, SinkOptions


def read_credentials(path: Path | None) -> None:
    """Return None: files need no credentials."""


def build(credentials: None, options: SinkOptions) -> FileSink:
    """Return the sink below ``options.spool``."""
    return FileSink(options.spool, options.table, options.period)


class FileSink(Sink):
    """Writes below ``folder``: ``<table>/<day>/g<snapshot>-<batch>.jsonl``."""

    def __init__(self, folder: Path, table: str, period: str) -> None:
        self.folder = folder.absolute() / table / period
        self.where = str(self.folder)
        self._root = folder.absolute()

    def outbox_name(self, state_dir: Path) -> str:
        """Name it by the folder and a mark in it: a folder that was emptied is a new destination."""
        mark = self._root / ".spool"
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            if not mark.exists():
                mark.write_text(f"{uuid.uuid4().hex}\n")
            return self._name(mark.read_text())
        except PermissionError as error:
            raise _not_allowed(self._root, error) from None
        except OSError as error:
            raise OutputError(
                "the file spool cannot be written", where=self._root, found=error.strerror
            ) from None

    def known_outbox(self, state_dir: Path) -> str | None:
        """Return that name; None for a folder without a mark."""
        try:
            return self._name((self._root / ".spool").read_text())
        except OSError:
            return None

    def _name(self, mark: str) -> str:
        return f"file-{hashlib.sha256(f'{self._root} {mark}'.encode()).hexdigest()[:8]}"

    def open(self) -> None:
        """Create the folder."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except PermissionError as error:
            raise _not_allowed(self.folder, error) from None
        except OSError as error:
            raise RetryableError(f"{self.folder}: {error.strerror}") from None

    def send(
        self,
        batch: Batch,
        documents: Sequence[bytes],
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        """Write the batch's file durably: it is on the disk when this returns."""
        target = self.folder / f"g{batch.snapshot_no:04d}-{batch.number:06d}.jsonl"
        aside = target.with_suffix(".part")
        try:
            with open(aside, "wb") as stream:
                for document in documents:
                    stream.write(document + b"\n")
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(aside, target)
            sync_folder(self.folder)
        except OSError as error:
            with suppress(OSError):
                aside.unlink()  # on a full disk it would keep it full
            if isinstance(error, PermissionError):
                raise _not_allowed(target, error) from None
            raise RetryableError(f"{target}: {error.strerror}") from None


def _not_allowed(path: Path, error: OSError) -> ForbiddenError:
    return ForbiddenError("the file spool cannot be written", where=path, found=error.strerror)
