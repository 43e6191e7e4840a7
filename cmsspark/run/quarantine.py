"""The quarantine of malformed records: whole records in private files, removed after 90 days."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from cmsspark.base import clock

#: Days after which a file is removed: the records contain names of people.
DAYS_KEPT: Final = 90
_EXAMPLES: Final = 5


def quarantine(folder: Path, records: Iterator[Mapping[str, Any]]) -> tuple[str, dict[str, list[str]]]:
    """Write malformed records to a private file in ``folder``, ``<state>/quarantine/<job>/<day>``, and prune it.

    Returns the file, and by stream a few examples without values. Raises OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for private in (folder, *list(folder.parents)[:2]):
        private.chmod(0o700)
    target = folder / f"{clock.now_ms()}-{os.getpid()}.jsonl"
    examples: dict[str, list[str]] = {}
    with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as sink:
        for record in records:
            sink.write(json.dumps(record) + "\n")
            shown = examples.setdefault(record["stream"], [])
            if len(shown) < _EXAMPLES:
                shown.append(f"{Path(record['file']).name}, record {record['position']}: {record['reason']}")
    prune(folder.parents[1], clock.now_ms() / 1000)
    return str(target), examples


def prune(root: Path, now: float, days: int = DAYS_KEPT) -> None:
    """Remove files below the quarantine ``root`` that are older than ``days``; ``now`` in seconds since 1970.

    Files that cannot be removed stay until the next run.
    """
    for file in root.glob("*/*/*.jsonl"):
        with suppress(OSError):
            if now - file.lstat().st_mtime > days * 86_400:
                file.unlink()
                file.parent.rmdir()  # fails unless the file was the last
