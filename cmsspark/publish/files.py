"""The file spool as a sink: confirmed documents as JSON Lines, one file a batch, each written whole or not at all.

A batch that is sent again replaces its file, so nothing doubles here.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

from cmsspark.errors import NotAllowed, OutputError
from cmsspark.publish.ledger import Batch
from cmsspark.publish.sink import Unconfirmed
from cmsspark.publish.spool import sync_folder


class FileSink:
    """Writes below ``folder``: ``<table>/<day>/g<generation>-<batch>.jsonl``."""

    def __init__(self, folder: Path, table: str, period: str) -> None:
        self.folder = folder.absolute() / table / period
        self.where = str(self.folder)
        self._root = folder.absolute()

    @property
    def slug(self) -> str:
        """Of the folder and of its mark: a folder that was emptied is another destination, which has nothing yet."""
        mark = self._root / ".spool"
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            if not mark.exists():
                mark.write_text(f"{uuid.uuid4().hex}\n")
            return f"file-{hashlib.sha256(f'{self._root} {mark.read_text()}'.encode()).hexdigest()[:8]}"
        except PermissionError as error:
            raise _not_allowed(self._root, error) from None
        except OSError as error:
            raise OutputError("the file spool cannot be written", where=self._root, found=error.strerror) from None

    def open(self) -> None:
        """Make the folder."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except PermissionError as error:
            raise _not_allowed(self.folder, error) from None
        except OSError as error:
            raise Unconfirmed(f"{self.folder}: {error.strerror}") from None

    def send(self, batch: Batch, documents: Sequence[bytes], meanwhile: Callable[[], None] = lambda: None) -> None:
        """Write the batch's file; it is on the disk when this returns."""
        target = self.folder / f"g{batch.generation:04d}-{batch.number:06d}.jsonl"
        aside = target.with_suffix(".part")
        try:
            with open(aside, "wb") as stream:
                for document in documents:
                    stream.write(document + b"\n")
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(aside, target)
            sync_folder(self.folder)
        except PermissionError as error:
            raise _not_allowed(target, error) from None
        except OSError as error:
            raise Unconfirmed(f"{target}: {error.strerror}") from None

    def stage(self, batch: Batch, documents: Sequence[bytes]) -> None:
        """Nothing is written ahead: a file is there whole or not at all."""

    def close(self) -> None:
        """Nothing is open between batches."""


def _not_allowed(place: Path, error: OSError) -> NotAllowed:
    return NotAllowed("the file spool cannot be written", where=place, found=error.strerror)
