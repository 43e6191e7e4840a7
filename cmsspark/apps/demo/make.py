"""Make a small CMS: a mirror of the production folders with some days of logs and the
dumps that belong to them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from datetime import date, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import numpy as np
from isal import isal_zlib
from msgspec.structs import replace

from cmsspark.apps.demo.activity import STREAMS, Stream
from cmsspark.apps.demo.condor_records import write_reports
from cmsspark.apps.demo.logs import CONDOR, Counts, LogLayout, find_log_folder, pieces, write_piece
from cmsspark.apps.demo.narration import forked_map
from cmsspark.apps.demo.world import World, make_world
from cmsspark.apps.demo.write import TABLES, dbs_folder, write_dbs_table, write_phedex
from cmsspark.apps.demo.write_rucio import TABLES as RUCIO_TABLES
from cmsspark.apps.demo.write_rucio import rucio_folder, write_rucio_table
from cmsspark.apps.demo.write_usage import TABLES as USAGE_TABLES
from cmsspark.apps.demo.write_usage import write_cache_records, write_tasks, write_usage_table
from cmsspark.base.access import UNMATCHED_JOB_BINS
from cmsspark.base.dates import start_ms
from cmsspark.sources.layout import REPLICAS_ROLE, Epochs
from cmsspark.sources.registry import STREAMS_BY_NAME, STREAMS_OF_JOBS

#: What part of a day's records each stream has.
SHARES: Final[dict[str, float]] = {
    "aaa": 0.40,
    "eos": 0.25,
    "cmssw": 0.225,
    "crab": 0.125,
    CONDOR: 0.125,
}
#: Records of caches beside them: a small feed, of no stream.
CACHE_SHARE: Final = 0.01
#: Reports of WMArchive beside them.
REPORT_SHARE: Final = 0.01

Progress = Callable[[str], None]
#: Something to write of a world; what it returns is its own affair.
Task = Callable[[World], Any]


class Made(msgspec.Struct, frozen=True):
    """What was made: where, and what a right count of it finds."""

    root: Path
    #: Bins of ``cmsspark.apps.demo.activity.BINS`` by day and stream.
    bins: dict[date, dict[str, Counts]]
    #: Folders by stream for the first day, and of the dumps: ``dbs``, and ``phedex`` or
    #: ``rucio``, which serve the days.
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
        return {
            stream: _reconciliation(stream, counts) for stream, counts in self.bins[day].items()
        }


def _reconciliation(stream: str, counts: Counts) -> dict[str, int | Counts]:
    if stream in STREAMS_OF_JOBS:
        unmatched = {name: counts[name] for name in UNMATCHED_JOB_BINS}
        return {
            "read": sum(counts.values()),
            "unmatched": unmatched,
            **{name: count for name, count in counts.items() if name not in unmatched},
        }
    return {
        "read": sum(counts.values()),
        "matched": counts["matched"],
        "unmatched": {
            name: counts[name] for name in ("no_lfn", "user_file", "temporary", "not_in_dbs")
        },
        "malformed": counts["malformed"],
        "out_of_day": counts["out_of_day"],
        # The demo removes no file, and its jobs name each file once.
        **dict.fromkeys(STREAMS_BY_NAME[stream].bins, 0),
        "write_only": counts["write_only"],
    }


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
    streams: Sequence[str] | None = None,
    favourite: float = 0.0,
    layout: LogLayout | None = None,
    processes: int = 1,
    progress: Progress | None = None,
) -> Made:
    """Write a small CMS under ``root``; what stood in its folders before is replaced.

    ``records`` is a day's total over all streams, ``streams`` which are written: by
    default those that serve each day, so that jobs are CRAB's or HTCondor's, with the
    records of caches on days of Rucio. ``favourite``: the share of accesses that the
    most popular dataset gets, where that is more than it has anyway. With several
    ``days`` the dumps are dated the day after the last. The same arguments give the
    same bytes (with the same versions of numpy and isal), also with more ``processes``;
    those are forked, so a caller that runs threads keeps to one.
    """
    layout = layout or LogLayout()
    report = progress or (lambda _: None)
    shutil.rmtree(root / "project", ignore_errors=True)
    report("datasets, files and replicas")
    world = make_world(
        np.random.default_rng([seed, 0]), datasets=datasets, files=files, people=people
    )
    if favourite:
        world = _with_favourite(world, favourite)
    after = day + timedelta(days=days)
    served = {
        Epochs.load().source(REPLICAS_ROLE, day + timedelta(days=offset)) for offset in range(days)
    }
    tasks = _dumps(root, after, layout, served)
    for today in (day + timedelta(days=offset) for offset in range(days)):
        tasks += _logs(
            root,
            today,
            records,
            seed,
            streams or served_streams(today),
            layout,
            is_first=today == day,
        )
        if streams is None and (Epochs.load().source(REPLICAS_ROLE, today) == "rucio"):
            tasks += _feeds(root, today, records, seed, layout)
    bins: dict[date, dict[str, Counts]] = {
        day + timedelta(days=offset): {} for offset in range(days)
    }
    dumps: dict[str, Path] = {}
    log_bytes = 0
    for done in _written(world, tasks, processes, report):
        if isinstance(done, Path):
            dumps["rucio" if done == rucio_folder(root, after) else "phedex"] = done
        elif done is not None:
            piece, counts, size = done
            before = bins[piece.day].get(piece.stream, {})
            bins[piece.day][piece.stream] = {
                name: count + before.get(name, 0) for name, count in counts.items()
            }
            log_bytes += size
    _set_times(root, after)
    logs = map(_find_stream, streams or served_streams(day))
    folders: dict[str, Path] = {
        stream: find_log_folder(root, stream, day, layout) for stream in logs
    }
    folders |= {"dbs": dbs_folder(root, after, layout.dbs), **dumps}
    return Made(
        root, bins, folders, len(world.names), len(world.block_names), len(world.lfns), log_bytes
    )


def served_streams(day: date) -> tuple[str, ...]:
    """Return the streams that serve a day: jobs come from CRAB or from HTCondor."""
    return Epochs.load().streams_of_day(day, (*STREAMS, CONDOR))


def _find_stream(stream: str) -> Stream | Literal["condor"]:
    """Return a stream that the demo writes. Raises ValueError."""
    if stream == CONDOR:
        return CONDOR
    for stream_entry in STREAMS:
        if stream_entry == stream:
            return stream_entry
    raise ValueError(f"the demo does not write {stream}")


def _with_favourite(world: World, share: float) -> World:
    popularity = world.popularity.copy()
    first = int(popularity.argmax())
    before = popularity[first]
    if before < share < 1:
        popularity *= (1 - share) / (1 - before)
        popularity[first] = share
    return replace(world, popularity=popularity)


def _dumps(root: Path, day: date, layout: LogLayout, served: set[str]) -> list[tuple[str, Task]]:
    """Return what there is to write of the dumps, the largest table first. ``served``:
    the sources of replicas.
    """
    names = {"phedex": "PhEDEx", "rucio": "Rucio"}
    title, compression = (
        f"dumps of DBS and {' and '.join(names[origin] for origin in sorted(served))}",
        layout.gzip,
    )
    tables: list[tuple[str, Task]] = [
        (
            title,
            partial(
                write_dbs_table,
                root=root,
                day=day,
                layout=layout.dbs,
                compression=compression,
                name=name,
            ),
        )
        for name in TABLES
    ]
    if "rucio" in served:
        codec = layout.avro_codec
        tables += [
            (title, partial(write_rucio_table, root=root, day=day, codec=codec, name=name))
            for name in RUCIO_TABLES
        ]
        tables += [
            (title, partial(write_usage_table, root=root, day=day, codec=codec, name=name))
            for name in USAGE_TABLES
        ]
        tables.append((title, partial(write_tasks, root=root, day=day, codec=codec)))
    if "phedex" in served:
        tables.append((title, partial(write_phedex, root=root, day=day, compression=compression)))
    return tables


def _logs(
    root: Path,
    day: date,
    records: int,
    seed: int,
    streams: Sequence[str],
    layout: LogLayout,
    *,
    is_first: bool,
) -> list[tuple[str, Task]]:
    """Return what there is to write of a day's logs."""
    return [
        (
            f"{stream}: {count:,} records of {day}",
            partial(
                write_piece, root=root, seed=seed, piece=piece, layout=layout, is_first=is_first
            ),
        )
        for stream in streams
        for count in [round(records * SHARES[stream])]
        for piece in pieces(_find_stream(stream), day, count, layout.per_part)
    ]


def _feeds(
    root: Path, day: date, records: int, seed: int, layout: LogLayout
) -> Iterator[tuple[str, Task]]:
    """Yield the small feeds of a day: records of caches, and reports of WMArchive."""
    for title, share, write in (
        ("caches: {:,} records of {}", CACHE_SHARE, write_cache_records),
        ("WMArchive: {:,} reports of {}", REPORT_SHARE, write_reports),
    ):
        count = round(records * share)
        yield (
            title.format(count, day),
            partial(
                write,
                root=root,
                seed=seed,
                day=day,
                records=count,
                per_part=layout.per_part,
                compression=layout.gzip,
            ),
        )


def _written(
    world: World, tasks: list[tuple[str, Task]], processes: int, report: Progress
) -> Iterator[Any]:
    """Yield what the tasks return, in their order; what comes next is told."""
    title = ""
    results = forked_map(lambda task: task(world), [task for _, task in tasks], processes)
    for label, _ in tasks:
        if label != title:
            report(label)
            title = label
        yield next(results)


def _set_times(root: Path, day: date) -> None:
    """Date every file to the night of ``day``, to a second that follows from its
    content: what is made again has the same size and time, so that an index built from
    it counts on; other content has another time.
    """
    night = start_ms(day) // 1000 + 3 * 3_600
    for path in (root / "project").rglob("*"):
        if path.is_file():
            crc = 0
            with path.open("rb") as stream:
                while block := stream.read(1 << 24):
                    crc = isal_zlib.crc32(block, crc)
            seconds = night + crc % 3_600
            os.utime(path, (seconds, seconds))
