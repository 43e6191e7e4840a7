"""Malformed records, kept whole where only their owner reads, and not for ever."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from cmsspark import clock

#: They hold names of people: what nobody looked at for so long goes.
DAYS_KEPT: Final = 90
_EXAMPLES: Final = 5


def keep(folder: Path, records: Iterator[Mapping[str, Any]]) -> tuple[str, dict[str, list[str]]]:
    """Write malformed records to a private file below ``<state>/quarantine/<job>/<day>``; what is too old there goes.

    Returns the file, and a few examples without values by stream. Raises OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for private in (folder, *list(folder.parents)[:2]):
        private.chmod(0o700)
    target = folder / f"{clock.now_ms()}-{os.getpid()}.jsonl"
    examples: dict[str, list[str]] = {}
    with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as sink:
        for record in records:
            sink.write(json.dumps(record) + "\n")
            told = examples.setdefault(record["stream"], [])
            if len(told) < _EXAMPLES:
                told.append(f"{Path(record['file']).name}, record {record['position']}: {record['reason']}")
    prune(folder.parents[1], clock.now_ms() / 1000)
    return str(target), examples


def prune(root: Path, now: float, days: int = DAYS_KEPT) -> None:
    """Remove files below the quarantine ``root`` that are older than ``days``; ``now`` in seconds since 1970.

    What cannot be removed stays for the next time: the run does not depend on it.
    """
    for file in root.glob("*/*/*.jsonl"):
        with suppress(OSError):
            if now - file.lstat().st_mtime > days * 86_400:
                file.unlink()
                file.parent.rmdir()  # where it was the last
