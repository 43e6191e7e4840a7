"""The log files of a made-up day, in pieces: a piece is drawn, formatted and written at
a time, so that memory does not grow with the day, and each has its own random numbers,
so that several processes may write a day.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Final, Literal

import numpy as np

from cmsspark.apps.demo.activity import STREAMS, Activity, Stream, draw
from cmsspark.apps.demo.avro_records import (
    CMSSW_SCHEMA,
    CRAB_SCHEMA,
    cmssw_avro_records,
    crab_records,
)
from cmsspark.apps.demo.close_records import close_lines
from cmsspark.apps.demo.condor_records import condor_lines
from cmsspark.apps.demo.eos_records import EosForms, eos_lines
from cmsspark.apps.demo.json_records import aaa_lines, cmssw_lines
from cmsspark.apps.demo.world import World
from cmsspark.apps.demo.write import Compression, write_avro, write_lines
from cmsspark.apps.demo.write_dumps import DbsLayout

#: Records a part file holds.
PER_PART: Final = 12_500
#: Records of a piece, about: some 200 MB of text. The streams of a small day are one piece each.
PIECE: Final = 100_000
#: The stream of jobs, which :mod:`cmsspark.apps.demo.condor_records` draws by itself.
CONDOR: Final = "condor"

Counts = dict[str, int]


@dataclass(frozen=True)
class LogLayout:
    """Which of the forms that production has had are written."""

    gzip: Compression = "mixed"
    aaa: Literal["enr", "raw", "both", "aaa-ng"] = "enr"
    #: Fields of HTCondor's records that nobody reads; in production over a thousand.
    condor_fields: int = 60
    #: None: the folder that belongs to the day's year.
    eos: Literal["new", "old"] | None = None
    #: All generations in one day, or today's alone.
    eos_forms: EosForms = "mixed"
    cmssw: Literal["json", "avro"] = "json"
    dbs: DbsLayout = "dated"
    avro_codec: Literal["snappy", "deflate", "null"] = "snappy"
    per_part: int = PER_PART


@dataclass(frozen=True)
class Piece:
    """Consecutive records of one stream of one day: how many, and the number of their
    first part file.
    """

    stream: Stream | Literal["condor"]
    day: date
    number: int
    records: int
    first_part: int

    def rng(self, seed: int) -> np.random.Generator:
        """Random numbers of its own: asking for fewer streams, or more records, changes
        no piece before.
        """
        order = (*STREAMS, CONDOR)
        key = [seed, 1 + order.index(self.stream), self.day.toordinal()]
        return np.random.default_rng([*key, self.number] if self.number else key)


def pieces(
    stream: Stream | Literal["condor"], day: date, records: int, per_part: int
) -> Iterator[Piece]:
    """Yield a stream's day in pieces of whole parts; a day without records is one empty piece."""
    parts = max(1, PIECE // per_part)
    size = parts * per_part
    for number, first in enumerate(range(0, max(records, 1), size)):
        yield Piece(stream, day, number, min(size, records - first), number * parts)


def find_log_folder(
    root: Path, stream: Stream | Literal["condor"], day: date, layout: LogLayout
) -> Path:
    """Return where the logs of a stream's day lie; of both forms of AAA, the enriched one's place."""
    archive = root / "project/monitoring/archive"
    match stream:
        case "condor":
            return archive / "condor/raw/metric" / _slashed(day)
        case "aaa" if layout.aaa == "aaa-ng":
            return archive / "cms/raw/aaa-ng" / _slashed(day)
        case "aaa":
            return (
                archive / f"xrootd/{'raw' if layout.aaa == 'raw' else 'enr'}/gled" / _slashed(day)
            )
        case "eos":
            is_new = layout.eos == "new" if layout.eos else day.year >= 2020
            return (
                archive
                / ("eos-report/logs/cms" if is_new else "eos/logs/reports/cms")
                / _slashed(day)
            )
        case "cmssw" if layout.cmssw == "avro":
            return root / "project/awg/cms/cmssw-popularity/avro-snappy" / _hive_day(day)
        case "cmssw":
            return archive / "cmssw_pop/raw/metric" / _slashed(day)
        case "crab":
            return root / "project/awg/cms/jm-data-popularity/avro-snappy" / _hive_day(day)


def write_piece(
    world: World, root: Path, seed: int, piece: Piece, layout: LogLayout, *, is_first: bool = True
) -> tuple[Piece, Counts, int]:
    """Draw and write one piece; return it with its records by bin and its bytes on
    disk. ``is_first``: of the days.
    """
    rng = piece.rng(seed)
    if piece.stream == "condor":
        fields = layout.condor_fields
        lines, counts = condor_lines(
            world, rng, piece.day, piece.number, piece.records, is_first=is_first, fields=fields
        )
        return (
            piece,
            counts,
            _write_lines(find_log_folder(root, CONDOR, piece.day, layout), lines, piece, layout),
        )
    is_dated = (
        piece.stream == "aaa"
        or piece.stream == "eos"
        or (piece.stream == "cmssw" and layout.cmssw == "json")
    )
    activity = draw(world, rng, piece.stream, piece.day, piece.records, is_dated=is_dated)
    folder = find_log_folder(root, piece.stream, piece.day, layout)
    match piece.stream:
        case "aaa":
            size = _write_aaa(root, activity, rng, piece, layout)
        case "eos":
            size = _write_lines(
                folder, eos_lines(activity, rng, layout.eos_forms), piece, layout, suffix=""
            )
        case "cmssw" if layout.cmssw == "json":
            size = _write_lines(folder, cmssw_lines(activity, rng), piece, layout)
        case "cmssw" | "crab":
            schema, make = (
                (CRAB_SCHEMA, crab_records)
                if piece.stream == "crab"
                else (CMSSW_SCHEMA, cmssw_avro_records)
            )
            records = make(activity, rng)
            size = write_avro(
                folder,
                schema,
                records,
                per_part=layout.per_part,
                codec=layout.avro_codec,
                first_part=piece.first_part,
            )
    return piece, activity.counts(), size


def _write_aaa(
    root: Path, activity: Activity, rng: np.random.Generator, piece: Piece, layout: LogLayout
) -> int:
    size = 0
    if layout.aaa == "aaa-ng":
        # Of the two forms in which the records may lie, some parts have the one, some the other.
        lines = close_lines(activity, rng, is_flat=piece.number % 2 == 0)
        return _write_lines(find_log_folder(root, "aaa", piece.day, layout), lines, piece, layout)
    for variant in ("raw", "enr"):
        if layout.aaa in (variant, "both"):
            folder = (
                root / f"project/monitoring/archive/xrootd/{variant}/gled" / _slashed(piece.day)
            )
            size += _write_lines(
                folder, aaa_lines(activity, rng, enriched=variant == "enr"), piece, layout
            )
    return size


def _write_lines(
    folder: Path, lines: list[str], piece: Piece, layout: LogLayout, suffix: str = ".json"
) -> int:
    return write_lines(
        folder,
        lines,
        per_part=layout.per_part,
        compression=layout.gzip,
        suffix=suffix,
        first_part=piece.first_part,
    )


def _slashed(day: date) -> str:
    return f"{day:%Y/%m/%d}"


def _hive_day(day: date) -> str:
    # The legacy folders do not pad with zeros.
    return f"year={day.year}/month={day.month}/day={day.day}"
