"""CRAB jobs from JobMonitoring: Avro, every field a nullable text (``docs/feeds.md``)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import date
from itertools import compress
from typing import Any, NamedTuple

import numpy as np

from cmsspark.access import AccessBatch, Group, Remote
from cmsspark.sources.fields import UNKNOWN, Apps, Remembered, itself
from cmsspark.sources.formats.avro import avro_text
from cmsspark.sources.formats.fast_avro import AvroNeeds, KnownAvro
from cmsspark.sources.formats.json_lines import Coder, named
from cmsspark.sources.formats.strict_json import MAX_LONG, Malformed

#: Lines of nothing, or of seconds of which whole milliseconds are exact in a float.
_PLAIN_LINES = re.compile(r"(?:(?:[0-9]{1,12}(?:\.[0-9]{1,9})?)?\n)*", re.ASCII)
_SECONDS = re.compile(r"-?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", re.ASCII)


_REQUIRED = AvroNeeds("FileName", ("SiteName", "GridName", "SubmissionTool"), times=("WrapCPU", "WrapWC"))


class Record(NamedTuple):
    """Needed fields of a job's file access; times in seconds as text."""

    lfn: str | None
    site: str | None
    user: str | None
    tool: str | None
    cpu_ms: int | None
    wall_ms: int | None


class CrabDecoder:
    """Decodes CRAB records. Whether an access was remote is for the catalogue to say."""

    stream = "crab"
    avro_fields = ("FileName", "SiteName", "GridName", "SubmissionTool", "WrapCPU", "WrapWC")
    avro_required = "FileName"

    def __init__(self, day: date, apps: Apps, format_name: str = "avro") -> None:
        del day, format_name  # CRAB records carry no delivery time: the folder's day is theirs (rule 6).
        self.apps = apps
        self.coder = Coder()
        self._codes = Remembered(self._number)
        meanings = (itself, itself, self.apps.of.__getitem__)
        self.known_avro = KnownAvro(_REQUIRED, meanings, self._number)

    @property
    def groups(self) -> list[Group]:
        """The groups that batches refer to."""
        return self.coder.groups

    def avro_record(self, row: Mapping[str, Any]) -> Record:
        """An Avro record's needed fields. Raises Malformed."""
        return Record(
            avro_text(row, "FileName"),
            avro_text(row, "SiteName"),
            avro_text(row, "GridName"),
            avro_text(row, "SubmissionTool"),
            milliseconds(avro_text(row, "WrapCPU"), "WrapCPU"),
            milliseconds(avro_text(row, "WrapWC"), "WrapWC"),
        )

    def take(self, records: list[Record], batch: AccessBatch) -> None:
        """Bin no_lfn; all else are accesses."""
        self._take(*map(list, zip(*records, strict=True)) if records else [[] for _ in Record._fields], batch=batch)

    def take_columns(self, columns: Mapping[str, list[str | None]], batch: AccessBatch) -> dict[int, str]:
        """As ``take``, of columns that are known to be text or null; the reasons of malformed rows, in order.

        These are left out.
        """
        bad: dict[int, str] = {}
        wall = _all_milliseconds(columns["WrapWC"], "WrapWC", bad)
        cpu = _all_milliseconds(columns["WrapCPU"], "WrapCPU", bad)  # its reason is told where both are bad
        taken: list[list[Any]] = [*(columns[name] for name in self.avro_fields[:4]), cpu, wall]
        if bad:
            kept = bytearray(b"\1") * len(cpu)
            for row in bad:
                kept[row] = 0
            taken = [list(compress(column, kept)) for column in taken]
        self._take(*taken, batch=batch)
        return dict(sorted(bad.items()))

    def _take(
        self,
        lfns: list[str | None],
        sites: list[str | None],
        users: list[str | None],
        tools: list[str | None],
        cpu_ms: list[int | None],
        wall_ms: list[int | None],
        *,
        batch: AccessBatch,
    ) -> None:
        apps = map(self.apps.of.__getitem__, tools)
        groups = map(self._codes.__getitem__, zip(sites, users, apps, strict=True))
        # A record without a name counts nowhere else: its group is one for nothing, at worst.
        found = named(list(zip(groups, cpu_ms, wall_ms, strict=True)), lfns, batch)
        batch.groups += [group for group, _, _ in found]
        if batch.cpu_ms is None or batch.wall_ms is None:
            batch.cpu_ms, batch.wall_ms = [], []
        batch.cpu_ms += [cpu for _, cpu, _ in found]
        batch.wall_ms += [wall for _, _, wall in found]

    def _number(self, key: tuple[str | None, str | None, str]) -> int:
        logged, user, app = key
        site = logged or UNKNOWN
        remote = Remote.UNKNOWN if site == UNKNOWN else Remote.BY_REPLICA
        return self.coder.number(site, app, user or None, remote)


def _all_milliseconds(seconds: list[str | None], field: str, bad: dict[int, str]) -> list[int | None]:
    """:func:`milliseconds` of each; the reasons for which rows are malformed go to ``bad``."""
    texts = [text or "" for text in seconds]
    special = _odd(texts)
    if "" in texts:
        special.update(row for row, text in enumerate(texts) if not text)
    plain = texts.copy()
    for row in special:
        plain[row] = "0"  # until it is known better
    numbers = np.fromiter(map(float, plain), np.float64, len(plain))
    found: list[int | None] = np.floor(numbers * 1000 + 0.5).astype(np.int64).tolist()
    for row in special:
        try:
            found[row] = milliseconds(texts[row], field)
        except Malformed as error:
            bad[row] = str(error)
    return found


def _odd(texts: list[str]) -> set[int]:
    """Which texts are neither empty nor plain seconds; found by one search over all of them."""
    lines = "\n".join(texts) + "\n"
    if lines.count("\n") != len(texts):
        return set(range(len(texts)))
    odd: set[int] = set()
    row = begin = 0
    while True:
        found = _PLAIN_LINES.match(lines, begin)
        assert found is not None  # it matches nothing, too
        if found.end() == len(lines):
            return odd
        row += lines.count("\n", begin, found.end())
        odd.add(row)
        row, begin = row + 1, lines.index("\n", found.end()) + 1


def milliseconds(seconds: str | None, field: str) -> int | None:
    """Seconds as text in whole milliseconds, halves up; null and empty are null (rules 9 and 11). Raises Malformed."""
    if not seconds:
        return None
    # Of so few digits the double is exact: no other way gives the same milliseconds.
    if seconds.isascii() and seconds.isdigit() and len(seconds) <= 12:
        return int(seconds) * 1000
    if _SECONDS.fullmatch(seconds) is None:
        raise Malformed(f"{field}: seconds as text are wanted, found other text")
    value = float(seconds)
    if value < 0 or not math.isfinite(value):
        raise Malformed(f"{field}: finite seconds from 0 on are wanted")
    if value * 1000 > MAX_LONG:
        raise Malformed(f"{field}: seconds beyond 2^63 ms")
    return math.floor(value * 1000 + 0.5)
