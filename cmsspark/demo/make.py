"""Make a small CMS: a mirror of the production folders with some days of logs and the dumps that belong to them."""

from __future__ import annotations

import os
import shutil
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Literal

import numpy as np

from cmsspark.access import STREAMS
from cmsspark.days import start_ms
from cmsspark.demo.activity import Activity, Stream, draw
from cmsspark.demo.avro_records import CMSSW_SCHEMA, CRAB_SCHEMA, cmssw_avro_records, crab_records
from cmsspark.demo.dumps import DbsLayout, write_dbs, write_phedex
from cmsspark.demo.eos_records import eos_lines
from cmsspark.demo.json_records import aaa_lines, cmssw_lines
from cmsspark.demo.world import World, make_world
from cmsspark.demo.write import Compression, write_avro, write_lines

#: What part of a day's records each stream has.
SHARES: dict[str, float] = {"aaa": 0.40, "eos": 0.25, "cmssw": 0.225, "crab": 0.125}
#: Records a part file holds.
PER_PART = 12_500

Progress = Callable[[str], None]
Counts = dict[str, int]


@dataclass(frozen=True)
class Made:
    """What was made: where, and what a right count of it finds."""

    root: Path
    #: Bins of ``cmsspark.demo.activity.BINS`` by day and stream.
    bins: dict[date, dict[str, Counts]]
    #: Folders by stream for the first day, and of the dumps ``dbs`` and ``phedex``.
    folders: dict[str, Path]
    datasets: int
    blocks: int
    files: int
    #: Bytes of log files on disk.
    log_bytes: int

    @property
    def days(self) -> list[date]:
        """The days, in order."""
        return sorted(self.bins)

    def records(self, day: date | None = None) -> Counts:
        """Records by stream on ``day``, or on all days."""
        chosen = [self.bins[day]] if day else list(self.bins.values())
        return {stream: sum(sum(bins[stream].values()) for bins in chosen) for stream in chosen[0]}

    def reconciliation(self, day: date) -> dict[str, dict[str, int | Counts]]:
        """By stream what a job's manifest must say of ``day``."""
        return {stream: _reconciliation(counts) for stream, counts in self.bins[day].items()}


def _reconciliation(counts: Counts) -> dict[str, int | Counts]:
    return {
        "read": sum(counts.values()),
        "matched": counts["matched"],
        "unmatched": {name: counts[name] for name in ("no_lfn", "user_file", "temporary", "not_in_dbs")},
        "malformed": counts["malformed"],
        "out_of_day": counts["out_of_day"],
        "write_only": counts["write_only"],
    }


@dataclass(frozen=True)
class Layout:
    """Which of the forms that production has had are written."""

    gzip: Compression = "mixed"
    aaa: Literal["enr", "raw", "both"] = "enr"
    #: None: the folder that belongs to the day's year.
    eos: Literal["new", "old"] | None = None
    cmssw: Literal["json", "avro"] = "json"
    dbs: DbsLayout = "dated"
    avro_codec: Literal["snappy", "deflate", "null"] = "snappy"
    per_part: int = PER_PART


def make(
    root: Path,
    day: date,
    *,
    records: int = 200_000,
    seed: int = 1,
    days: int = 1,
    files: int = 40_000,
    datasets: int = 500,
    people: int = 300,
    streams: Sequence[str] = STREAMS,
    layout: Layout | None = None,
    progress: Progress | None = None,
) -> Made:
    """Write a small CMS under ``root``; what stood in its folders before is replaced.

    ``records`` is a day's total over all four streams; ``streams`` asks for less of them. With several ``days`` the
    dumps are dated the day after the last. The same arguments give the same bytes (with the same versions of numpy
    and isal).
    """
    layout = layout or Layout()
    tell = progress or (lambda _: None)
    shutil.rmtree(root / "project", ignore_errors=True)
    tell("datasets, files and replicas")
    world = make_world(np.random.default_rng([seed, 0]), datasets=datasets, files=files, people=people)
    folders: dict[str, Path] = {}
    bins: dict[date, dict[str, Counts]] = {}
    log_bytes = 0
    for offset in range(days):
        today = day + timedelta(days=offset)
        bins[today] = {}
        for stream in streams:
            # Each stream of each day has its own random numbers, so asking for fewer streams changes none of them.
            rng = np.random.default_rng([seed, 1 + STREAMS.index(stream), today.toordinal()])
            count = round(records * SHARES[stream])
            tell(f"{stream}: {count:,} records of {today}")
            folder, counts, size = _write_stream(root, world, rng, stream, today, count, layout)
            folders.setdefault(stream, folder)
            bins[today][stream] = counts
            log_bytes += size
    tell("dumps of DBS and PhEDEx")
    after = day + timedelta(days=days)
    folders["dbs"] = write_dbs(root, world, after, layout=layout.dbs, compression=layout.gzip)
    folders["phedex"] = write_phedex(root, world, after, compression=layout.gzip)
    _set_times(root, after)
    return Made(root, bins, folders, len(world.names), len(world.block_names), len(world.lfns), log_bytes)


def _set_times(root: Path, day: date) -> None:
    """Date every file to the night of ``day``, to a second that follows from its content: what is made again has the
    same size and time, so that an index built from it counts on; other content has another time.
    """
    night = start_ms(day) // 1000 + 3 * 3_600
    for path in (root / "project").rglob("*"):
        if path.is_file():
            seconds = night + zlib.crc32(path.read_bytes()) % 3_600
            os.utime(path, (seconds, seconds))


def _write_stream(
    root: Path, world: World, rng: np.random.Generator, stream: str, day: date, records: int, layout: Layout
) -> tuple[Path, Counts, int]:
    """One stream of one day: its folder, its records by bin, its bytes."""
    match stream:
        case "aaa":
            return _write_aaa(root, draw(world, rng, "aaa", day, records), rng, layout)
        case "eos":
            return _write_eos(root, draw(world, rng, "eos", day, records), rng, layout)
        case "cmssw":
            activity = draw(world, rng, "cmssw", day, records, is_dated=layout.cmssw == "json")
            return _write_cmssw(root, activity, rng, layout)
        case "crab":
            activity = draw(world, rng, "crab", day, records)
            folder = root / "project/awg/cms/jm-data-popularity/avro-snappy" / _hive_day(day)
            size = write_avro(
                folder, CRAB_SCHEMA, crab_records(activity, rng), per_part=layout.per_part, codec=layout.avro_codec
            )
            return folder, activity.counts(), size
        case _:
            raise ValueError(f"there is no stream {stream!r}: {', '.join(STREAMS)}")


def _write_aaa(root: Path, activity: Activity, rng: np.random.Generator, layout: Layout) -> tuple[Path, Counts, int]:
    folder, size = root, 0
    for form in ("raw", "enr"):
        if layout.aaa in (form, "both"):
            folder = root / f"project/monitoring/archive/xrootd/{form}/gled" / _slashed(activity.day)
            lines = aaa_lines(activity, rng, enriched=form == "enr")
            size += write_lines(folder, lines, per_part=layout.per_part, compression=layout.gzip)
    return folder, activity.counts(), size


def _write_eos(root: Path, activity: Activity, rng: np.random.Generator, layout: Layout) -> tuple[Path, Counts, int]:
    is_new = layout.eos == "new" if layout.eos else activity.day.year >= 2020
    archive = root / "project/monitoring/archive"
    folder = archive / ("eos-report/logs/cms" if is_new else "eos/logs/reports/cms") / _slashed(activity.day)
    lines = eos_lines(activity, rng)
    size = write_lines(folder, lines, per_part=layout.per_part, compression=layout.gzip, suffix="")
    return folder, activity.counts(), size


def _write_cmssw(root: Path, activity: Activity, rng: np.random.Generator, layout: Layout) -> tuple[Path, Counts, int]:
    if layout.cmssw == "avro":
        folder = root / "project/awg/cms/cmssw-popularity/avro-snappy" / _hive_day(activity.day)
        records = cmssw_avro_records(activity, rng)
        size = write_avro(folder, CMSSW_SCHEMA, records, per_part=layout.per_part, codec=layout.avro_codec)
        return folder, activity.counts(), size
    folder = root / "project/monitoring/archive/cmssw_pop/raw/metric" / _slashed(activity.day)
    lines = cmssw_lines(activity, rng)
    return folder, activity.counts(), write_lines(folder, lines, per_part=layout.per_part, compression=layout.gzip)


def _slashed(day: date) -> str:
    return f"{day:%Y/%m/%d}"


def _hive_day(day: date) -> str:
    # The legacy folders do not pad with zeros.
    return f"year={day.year}/month={day.month}/day={day.day}"


__all__ = ["Layout", "Made", "Stream", "make"]
