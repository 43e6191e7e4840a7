"""The spool: a day's documents as JSON Lines parts with a manifest, on the disk before
the first one is sent.

``<day folder>/g0001/`` is a snapshot of the day. It holds ``part-0001.jsonl …``,
``quarantine.jsonl`` if rows made no valid document, and ``manifest.json`` with the
sha256 of every part and the bounds of every batch. A snapshot is written in a folder of
another name and renamed when it is complete, so an incomplete one is never seen and
never sent.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

from cmsspark.base.errors import DataError, OutputError
from cmsspark.base.private_folders import make_private
from cmsspark.publish.batch_log import Batch, BatchState

VERSION: Final = 1
BATCH_DOCUMENTS: Final = 500
BATCH_BYTES: Final = 4_000_000
PART_BYTES: Final = 64_000_000


@dataclass
class _OpenBatch:
    offset: int
    count: int = 0
    length: int = 0
    sha: Any = field(default_factory=hashlib.sha256)


class SpoolWriter:
    """Writes one snapshot aside. Only :meth:`finish` makes it visible; without it
    nothing was spooled.
    """

    def __init__(self, day_folder: Path, snapshot_no: int, part_bytes: int = PART_BYTES) -> None:
        self.snapshot_no = snapshot_no
        self.final = day_folder / f"g{snapshot_no:04d}"
        self.folder = day_folder / f".spooling-{snapshot_no:04d}"
        self.parts: list[dict[str, Any]] = []
        self.quarantined = 0
        self._part_bytes = part_bytes
        self._stream: BinaryIO | None = None
        self._quarantine: BinaryIO | None = None
        self._sha: Any = None
        self._batch: _OpenBatch | None = None
        with disk_errors(day_folder):
            shutil.rmtree(self.folder, ignore_errors=True)
            make_private(self.folder)

    def add(self, document: bytes) -> tuple[str, int, int]:
        """Append a document; returns its part, offset and length (without the newline)."""
        line = document + b"\n"
        with disk_errors(self._part_path):
            batch = self._batch_with_room(len(line))
            assert self._stream is not None
            self._stream.write(line)
        position = (self.parts[-1]["name"], self.parts[-1]["size"], len(document))
        self._sha.update(line)
        batch.sha.update(line)
        batch.count += 1
        batch.length += len(line)
        self.parts[-1]["size"] += len(line)
        self.parts[-1]["count"] += 1
        return position

    def quarantine(self, position: int, reason: str, row: Mapping[str, Any]) -> None:
        """Keep a row with an invalid document aside, with the reason; it is never sent."""
        path = self.folder / "quarantine.jsonl"
        text = json.dumps(
            {"row": position, "reason": reason, "values": row}, default=str, ensure_ascii=True
        )
        with disk_errors(path):
            if self._quarantine is None:
                self._quarantine = _open_private(path)
            self._quarantine.write(text.encode() + b"\n")
        self.quarantined += 1

    def finish(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Make the snapshot complete and durable under its final name; returns its manifest."""
        with disk_errors(self._part_path):
            self._end_part()
        with disk_errors(self.folder):
            if self._quarantine is not None:
                _sync_close(self._quarantine)
            complete = {
                "spool_version": VERSION,
                "snapshot": self.snapshot_no,
                "quarantined": self.quarantined,
                **manifest,
                "parts": self.parts,
            }
            with _open_private(self.folder / "manifest.json") as stream:
                stream.write(json.dumps(complete, ensure_ascii=False, allow_nan=False).encode())
                stream.flush()
                os.fsync(stream.fileno())
            sync_folder(self.folder)
            os.rename(self.folder, self.final)
            sync_folder(self.final.parent)
        return complete

    def abandon(self) -> None:
        """Remove what was written so far."""
        for stream in (self._stream, self._quarantine):
            if stream is not None:
                # Closing writes what is buffered, which a full disk refuses again: the
                # files go all the same.
                with suppress(OSError):
                    stream.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def _part_path(self) -> Path:
        """The part that is being written, for errors."""
        return self.folder / self.parts[-1]["name"] if self.parts else self.folder

    def _batch_with_room(self, size: int) -> _OpenBatch:
        if self._stream is not None and self.parts[-1]["size"] + size > self._part_bytes:
            self._end_part()
        if self._stream is None:
            name = f"part-{len(self.parts) + 1:04d}.jsonl"
            self._stream = _open_private(self.folder / name)
            self._sha = hashlib.sha256()
            self.parts.append({"name": name, "size": 0, "count": 0, "sha256": "", "batches": []})
        batch = self._batch
        if batch is not None and (
            batch.count >= BATCH_DOCUMENTS or batch.length + size > BATCH_BYTES
        ):
            self._end_batch()
        if self._batch is None:
            self._batch = _OpenBatch(self.parts[-1]["size"])
        return self._batch

    def _end_batch(self) -> None:
        if self._batch is not None:
            batch = self._batch
            self.parts[-1]["batches"].append(
                [batch.offset, batch.length, batch.count, batch.sha.hexdigest()]
            )
        self._batch = None

    def _end_part(self) -> None:
        if self._stream is None:
            return
        self._end_batch()
        self.parts[-1]["sha256"] = self._sha.hexdigest()
        _sync_close(self._stream)
        self._stream = None


class Spool:
    """Reads the complete snapshots below a day's folder."""

    def __init__(self, day_folder: Path) -> None:
        self.day_folder = day_folder
        self._verified: set[tuple[int, str]] = set()
        self._manifests: dict[int, dict[str, Any]] = {}

    def remove_leftovers(self) -> None:
        """Remove snapshots that killed processes left incomplete. Only the holder of
        the outbox may call this.
        """
        for folder in self.day_folder.glob(".spooling-*"):
            shutil.rmtree(folder, ignore_errors=True)

    def snapshots(self) -> list[int]:
        """Return the numbers of the snapshots, oldest first."""
        names = [
            entry.name
            for entry in self.day_folder.glob("g[0-9]*")
            if (entry / "manifest.json").is_file()
        ]
        return sorted(int(name[1:]) for name in names)

    def manifest(self, snapshot_no: int) -> dict[str, Any]:
        """Return a snapshot's manifest. Raises DataError (65) if it is damaged."""
        if snapshot_no not in self._manifests:
            path = self.folder(snapshot_no) / "manifest.json"
            try:
                loaded = json.loads(path.read_bytes())
            except (OSError, ValueError) as error:
                raise _damaged(path, str(error)) from None
            self._manifests[snapshot_no] = loaded
        return self._manifests[snapshot_no]

    def folder(self, snapshot_no: int) -> Path:
        """Return the folder of a snapshot."""
        return self.day_folder / f"g{snapshot_no:04d}"

    def batches(self, snapshot_no: int) -> Iterator[Batch]:
        """Yield the batches as the manifest bounds them, READY, without numbers."""
        for part in self.manifest(snapshot_no)["parts"]:
            for offset, length, count, sha256 in part["batches"]:
                yield Batch(0, snapshot_no, part["name"], offset, length, count, sha256)

    def verify(self, snapshot_no: int, part: str) -> None:
        """Raise DataError (65) unless the part is, byte for byte, what the manifest
        says. Reads each part once.
        """
        if (snapshot_no, part) in self._verified:
            return
        expected = next(
            p["sha256"] for p in self.manifest(snapshot_no)["parts"] if p["name"] == part
        )
        path = self.folder(snapshot_no) / part
        try:
            with open(path, "rb") as stream:
                actual = hashlib.file_digest(stream, "sha256").hexdigest()
        except OSError as error:
            raise _damaged(path, error.strerror) from None
        if actual != expected:
            raise _damaged(path, f"sha256 {actual[:12]}…, the manifest says {expected[:12]}…")
        self._verified.add((snapshot_no, part))

    def read(self, batch: Batch) -> list[bytes]:
        """Return the documents of a batch. Raises DataError (65) if the part is
        damaged: nothing of it is sent.
        """
        self.verify(batch.snapshot_no, batch.part)
        content = self.slice(batch.snapshot_no, batch.part, batch.offset, batch.length)
        lines = content.split(b"\n")[:-1]
        if hashlib.sha256(content).hexdigest() != batch.sha256 or len(lines) != batch.count:
            raise _damaged(
                self.folder(batch.snapshot_no) / batch.part,
                f"batch {batch.number} differs from the spool",
            )
        return lines

    def slice(self, snapshot_no: int, part: str, offset: int, length: int) -> bytes:
        """Return ``length`` bytes of a part from ``offset`` on."""
        with open(self.folder(snapshot_no) / part, "rb") as stream:
            stream.seek(offset)
            return stream.read(length)


def split(batch: Batch, documents: list[bytes]) -> list[Batch]:
    """Return the two halves of a batch, each in the state in which it has to be sent."""
    middle = len(documents) // 2
    halves, offset = [], batch.offset
    for piece in (documents[:middle], documents[middle:]):
        content = b"".join(document + b"\n" for document in piece)
        sha256 = hashlib.sha256(content).hexdigest()
        state = BatchState.IN_DOUBT if batch.doubtful else BatchState.READY
        half = Batch(
            0,
            batch.snapshot_no,
            batch.part,
            offset,
            len(content),
            len(piece),
            sha256,
            state,
            0,
            batch.doubtful,
        )
        halves.append(half)
        offset += len(content)
    return halves


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class disk_errors:
    """A context that turns an OSError of the disk into an OutputError (73) with the path."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            raise OutputError(
                "the spool cannot be written",
                where=self.path,
                found=error.strerror,
                next_step="make room or set `state_dir` to another disk, then run the same command again",
            ) from None


def _open_private(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def _sync_close(stream: BinaryIO) -> None:
    stream.flush()
    os.fsync(stream.fileno())
    stream.close()


def _damaged(path: Path, actual: str | None) -> DataError:
    return DataError(
        "a part of the spool is damaged; nothing of it is sent",
        where=path,
        found=actual,
        next_step="cmsspark outbox discard, then publish the day again",
    )
