"""The spool: documents of a day as JSON Lines parts, with a manifest, on the disk before the first one is sent.

``<day folder>/g0001/`` holds ``part-0001.jsonl …``, ``quarantine.jsonl`` where there is reason for it, and
``manifest.json`` with the sha256 of every part and the cut of every batch. A generation is written in a folder of
another name and renamed when it is whole: a half spool is never seen, so it is never sent.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

from cmsspark.errors import DataError, OutputError
from cmsspark.publish.ledger import Batch, State

VERSION: Final = 1
BATCH_DOCUMENTS: Final = 500
BATCH_BYTES: Final = 4_000_000
PART_BYTES: Final = 64_000_000


@dataclass
class _Cut:
    offset: int
    count: int = 0
    length: int = 0
    sha: Any = field(default_factory=hashlib.sha256)


class SpoolWriter:
    """Writes one generation aside. :meth:`finish` makes it count; without it nothing was spooled."""

    def __init__(self, day_folder: Path, generation: int, part_bytes: int = PART_BYTES) -> None:
        self.generation = generation
        self.final = day_folder / f"g{generation:04d}"
        self.folder = day_folder / f".spooling-{generation:04d}"
        self.parts: list[dict[str, Any]] = []
        self.quarantined = 0
        self._part_bytes = part_bytes
        self._stream: BinaryIO | None = None
        self._quarantine: BinaryIO | None = None
        self._sha: Any = None
        self._cut: _Cut | None = None
        with writing(day_folder):
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(mode=0o700, parents=True)

    def add(self, document: bytes) -> tuple[str, int, int]:
        """Append a document; returns its part, offset and length (without the newline)."""
        line = document + b"\n"
        with writing(self.folder):
            cut = self._room_for(len(line))
            assert self._stream is not None
            self._stream.write(line)
        place = (self.parts[-1]["name"], self.parts[-1]["size"], len(document))
        self._sha.update(line)
        cut.sha.update(line)
        cut.count += 1
        cut.length += len(line)
        self.parts[-1]["size"] += len(line)
        self.parts[-1]["count"] += 1
        return place

    def refuse(self, position: int, reason: str, row: Mapping[str, Any]) -> None:
        """Keep a row that makes no valid document aside, with the reason; it is never sent."""
        if self._quarantine is None:
            self._quarantine = _open_private(self.folder / "quarantine.jsonl")
        text = json.dumps({"row": position, "reason": reason, "values": row}, default=str, ensure_ascii=True)
        with writing(self.folder):
            self._quarantine.write(text.encode() + b"\n")
        self.quarantined += 1

    def finish(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Make the generation whole and durable under its final name; returns its manifest."""
        with writing(self.folder):
            self._end_part()
            if self._quarantine is not None:
                _sync_close(self._quarantine)
            whole = {
                "spool_version": VERSION,
                "generation": self.generation,
                "quarantined": self.quarantined,
                **manifest,
                "parts": self.parts,
            }
            with _open_private(self.folder / "manifest.json") as stream:
                stream.write(json.dumps(whole, ensure_ascii=False, allow_nan=False).encode())
                stream.flush()
                os.fsync(stream.fileno())
            sync_folder(self.folder)
            os.rename(self.folder, self.final)
            sync_folder(self.final.parent)
        return whole

    def abandon(self) -> None:
        """Remove what was written so far."""
        for stream in (self._stream, self._quarantine):
            if stream is not None:
                stream.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _room_for(self, size: int) -> _Cut:
        if self._stream is not None and self.parts[-1]["size"] + size > self._part_bytes:
            self._end_part()
        if self._stream is None:
            name = f"part-{len(self.parts) + 1:04d}.jsonl"
            self._stream = _open_private(self.folder / name)
            self._sha = hashlib.sha256()
            self.parts.append({"name": name, "size": 0, "count": 0, "sha256": "", "batches": []})
        cut = self._cut
        if cut is not None and (cut.count >= BATCH_DOCUMENTS or cut.length + size > BATCH_BYTES):
            self._end_batch()
        if self._cut is None:
            self._cut = _Cut(self.parts[-1]["size"])
        return self._cut

    def _end_batch(self) -> None:
        if self._cut is not None:
            cut = self._cut
            self.parts[-1]["batches"].append([cut.offset, cut.length, cut.count, cut.sha.hexdigest()])
        self._cut = None

    def _end_part(self) -> None:
        if self._stream is None:
            return
        self._end_batch()
        self.parts[-1]["sha256"] = self._sha.hexdigest()
        _sync_close(self._stream)
        self._stream = None


class Spool:
    """Reads the whole generations below a day's folder."""

    def __init__(self, day_folder: Path) -> None:
        self.day_folder = day_folder
        self._verified: set[tuple[int, str]] = set()
        self._manifests: dict[int, dict[str, Any]] = {}

    def generations(self) -> list[int]:
        """The generations there are, oldest first."""
        found = [entry.name for entry in self.day_folder.glob("g[0-9]*") if (entry / "manifest.json").is_file()]
        return sorted(int(name[1:]) for name in found)

    def manifest(self, generation: int) -> dict[str, Any]:
        """A generation's manifest. Raises DataError (65) where it is damaged."""
        if generation not in self._manifests:
            path = self.folder(generation) / "manifest.json"
            try:
                loaded = json.loads(path.read_bytes())
            except (OSError, ValueError) as error:
                raise _damaged(path, str(error)) from None
            self._manifests[generation] = loaded
        return self._manifests[generation]

    def folder(self, generation: int) -> Path:
        """Where a generation lies."""
        return self.day_folder / f"g{generation:04d}"

    def batches(self, generation: int) -> Iterator[Batch]:
        """The batches as the manifest cuts them, READY, without numbers."""
        for part in self.manifest(generation)["parts"]:
            for offset, length, count, sha256 in part["batches"]:
                yield Batch(0, generation, part["name"], offset, length, count, sha256)

    def verify(self, generation: int, part: str) -> None:
        """Raises DataError (65) unless the part is, byte for byte, what the manifest says. Looks once."""
        if (generation, part) in self._verified:
            return
        wanted = next(p["sha256"] for p in self.manifest(generation)["parts"] if p["name"] == part)
        path = self.folder(generation) / part
        try:
            with open(path, "rb") as stream:
                found = hashlib.file_digest(stream, "sha256").hexdigest()
        except OSError as error:
            raise _damaged(path, error.strerror) from None
        if found != wanted:
            raise _damaged(path, f"sha256 {found[:12]}…, the manifest says {wanted[:12]}…")
        self._verified.add((generation, part))

    def read(self, batch: Batch) -> list[bytes]:
        """The documents of a batch. Raises DataError (65) where the spool is damaged: nothing of that part is sent."""
        self.verify(batch.generation, batch.part)
        content = self.piece(batch.generation, batch.part, batch.offset, batch.length)
        lines = content.split(b"\n")[:-1]
        if hashlib.sha256(content).hexdigest() != batch.sha256 or len(lines) != batch.count:
            raise _damaged(self.folder(batch.generation) / batch.part, f"batch {batch.number} is another than spooled")
        return lines

    def piece(self, generation: int, part: str, offset: int, length: int) -> bytes:
        """Some bytes of a part."""
        with open(self.folder(generation) / part, "rb") as stream:
            stream.seek(offset)
            return stream.read(length)


def split(batch: Batch, documents: list[bytes]) -> list[Batch]:
    """The two halves of a batch, in the state in which they are to be sent."""
    middle = len(documents) // 2
    halves, offset = [], batch.offset
    for piece in (documents[:middle], documents[middle:]):
        content = b"".join(document + b"\n" for document in piece)
        sha256 = hashlib.sha256(content).hexdigest()
        state = State.IN_DOUBT if batch.doubtful else State.READY
        half = Batch(
            0, batch.generation, batch.part, offset, len(content), len(piece), sha256, state, 0, batch.doubtful
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


class writing:
    """Turns a failure of the disk into an error that names the place."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            raise OutputError(
                "the spool cannot be written",
                where=self.place,
                found=error.strerror,
                next_step="make room or set `state_dir` to another disk, then run the same command again",
            ) from None


def _open_private(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def _sync_close(stream: BinaryIO) -> None:
    stream.flush()
    os.fsync(stream.fileno())
    stream.close()


def _damaged(path: Path, found: str | None) -> DataError:
    return DataError(
        "a part of the spool is damaged; nothing of it is sent",
        where=path,
        found=found,
        next_step="cmsspark outbox discard, then publish the day again",
    )
