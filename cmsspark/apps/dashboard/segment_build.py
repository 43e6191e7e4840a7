"""Builds one segment of the rollups from the stored partials of some days.

Names are numbers until rows are written. A day is read once and reduced to what each
file needs of it. Files by day are complete then; those by dataset or site need all
days, which meet in :mod:`sorted_parts`: memory does not grow with the rows of a month.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import numpy as np

from cmsspark.apps.dashboard import segment
from cmsspark.apps.dashboard.child_process import Child, answered
from cmsspark.apps.dashboard.day_rows import Rows
from cmsspark.apps.dashboard.segment import NULL, SUMS, SegmentIndex
from cmsspark.apps.dashboard.segment_days import Days, Groups
from cmsspark.apps.dashboard.segment_writer import SegmentWriter
from cmsspark.apps.dashboard.sorted_parts import SortedParts
from cmsspark.base.errors import OutputError
from cmsspark.base.memory import share_freed
from cmsspark.counting.packing import distinct, pack
from cmsspark.store.query.stored_parts import StoredInterval

#: Pages come first where both need the processors.
_NICE: Final = 5


def build(days: Sequence[StoredInterval], store: str, folder: Path) -> SegmentIndex:
    """Build the segment of some stored days in ``folder``, which appears only when all
    its files are written.

    Raises DataError (65) where a day cannot be read or has another number of rows than
    its manifest says, OutputError (73) where the segment cannot be written.
    """
    aside = folder.parent / f".building-{uuid.uuid4().hex}"
    try:
        aside.mkdir(parents=True, mode=0o700)
        index = _build(days, store, aside)
        segment.write_index(aside, index)
        if folder.exists():
            shutil.rmtree(folder, ignore_errors=True)
        os.rename(aside, folder)
    except OSError as error:
        if folder.exists():
            return segment.read_index(folder)  # another dashboard was quicker
        raise OutputError(
            "the rollups cannot be written", where=folder, found=error.strerror or str(error)
        ) from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return index


def _build(days: Sequence[StoredInterval], store: str, folder: Path) -> SegmentIndex:
    scratch = folder / "scratch"
    scratch.mkdir()
    collected = Days(scratch)
    keys = {str(entry.interval): collected.add(entry) for entry in days}
    writer = SegmentWriter(folder, collected.names, collected.totals)
    _write_days(collected, writer)
    _Datasets(collected, scratch, writer).write()
    shutil.rmtree(scratch)
    files = {
        path.name: (path.stat().st_size, segment.file_digest(path))
        for path in sorted(folder.iterdir())
    }
    runs = {str(entry.interval): entry.run for entry in days}
    return SegmentIndex(
        segment.VERSION, store, runs, keys, sum(entry.rows for entry in days), files
    )


def _write_days(collected: Days, writer: SegmentWriter) -> None:
    """Write the files by day, that of sites by day, and the users."""
    import pyarrow as pa

    writer.write("cube", [_joined(collected.cube)])
    keys, counts, users = zip(*collected.cube_users, strict=True)
    offsets = np.concatenate(([0], np.cumsum(np.concatenate(counts))))
    lists = pa.ListArray.from_arrays(
        pa.array(offsets, pa.int32()), pa.array(np.concatenate(users))
    )
    writer.write("cube_users", [{**_joined(keys), "users": lists}])
    names = collected.names.texts("user")
    # Sets are of 64-bit words.
    width = max(1, -(-len(names) // 64)) * 8
    for name, of_days in collected.sets.items():
        bits = np.concatenate(
            [np.pad(bits, ((0, 0), (0, width - bits.shape[1]))) for _, bits in of_days]
        )
        sets = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(width), len(bits), [None, pa.py_buffer(bits)]
        )
        writer.write(name, [{**_joined([keys for keys, _ in of_days]), "users": sets}])
    numbers = np.arange(len(names), dtype=np.uint32)
    writer.write("users", [{"user_id": numbers, "user_key": pa.array(names, pa.string())}])
    days, (sites, _) = np.array(collected.days), collected.names.order("site_name")
    batches = collected.site_days.batches(sites)
    writer.write(
        "site_days",
        (
            {"site_name": sites[rows["place"]], "day": days[rows["part"]], **rows}
            for rows in batches
        ),
    )


def _joined(parts: Sequence[Rows]) -> Rows:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


class _Datasets:
    """Writes the files of a segment by dataset."""

    def __init__(self, collected: Days, scratch: Path, writer: SegmentWriter) -> None:
        self._collected, self._writer = collected, writer
        self._days = np.array(collected.days)
        self._names = names = collected.names
        self._order, _ = names.order("dataset_name")
        self._sites, self._site_places = names.order("site_name")
        self._at_sites = SortedParts(scratch / "site_datasets")
        self._tiers = len(names.texts("site_tier"))
        self._sums: list[Rows] = []
        self._people: list[Rows] = []

    def write(self) -> None:
        """Write the files."""
        collected, writer = self._collected, self._writer
        groups = {
            "detail": writer.write_lookup("detail", self._detail(), collected.detail.rows),
            "dataset_users": writer.write_lookup(
                "dataset_users", self._users(), collected.users.rows
            ),
        }
        batches = self._at_sites.batches(self._sites)
        writer.write(
            "site_datasets",
            ({"site_name": self._sites[rows["place"]], **rows} for rows in batches),
        )
        writer.write(Path(segment.NAMES_FILE).stem, [{"name": writer.texts["dataset_name"]}])
        self._write_sums(groups)
        self._write_people()

    def _detail(self) -> Iterator[Rows]:
        """Give the rows of ``detail``; the sums of datasets, and of these at sites, are
        made of the same batches.
        """
        for batch in self._collected.detail.batches(self._order):
            rows = {"dataset_name": batch["place"], "day": self._days[batch["part"]], **batch}
            self._add_sums(rows)
            yield rows

    def _add_sums(self, rows: Rows) -> None:
        groups = Groups(
            [self._site_places[rows["site_name"]], rows["dataset_name"], rows["stream"]]
        )
        site, dataset, stream = groups.keys
        sums, site = groups.sums(rows), self._sites[site]
        last_day = groups.largest(rows["day"])
        self._at_sites.add(
            site, {"dataset_name": dataset, "stream": stream, "last_day": last_day, **sums}
        )
        is_used = (rows["nacc"] > 0) | (rows["job_count"] > 0)
        last_used = groups.largest(np.where(is_used, rows["day"], NULL))
        groups = Groups([dataset, stream, self._names.derived_codes("site_tier")[site]])
        keys = dict(zip(("dataset", "stream", "site_tier"), groups.keys, strict=True))
        self._sums.append({**keys, "last_day": groups.largest(last_used), **groups.sums(sums)})

    def _users(self) -> Iterator[Rows]:
        """Give the rows of ``dataset_users``; the people of each dataset are those of
        the same batches.
        """
        kind: Any = np.uint16 if len(self._names.texts("user")) <= 1 << 16 else np.uint32
        for batch in self._collected.users.batches(self._order):
            dataset, user = batch["place"], batch.pop("user")
            packed, unpack = pack(
                [dataset, batch["stream"] * self._tiers + batch["site_tier"], user], len(user)
            )
            people, pairs, users = unpack(distinct(packed))
            user_rows: Rows = {
                "dataset": people.astype(np.int32),
                "pair": pairs.astype(np.uint16),
                "user": users.astype(kind),
            }
            self._people.append(user_rows)
            days = self._days[batch["part"]]
            yield {
                "dataset_name": dataset,
                "day": days,
                **batch,
                "user_id": user.astype(np.uint32),
            }

    def _write_sums(self, groups: dict[str, list[tuple[int, int]]]) -> None:
        rows = _joined(self._sums)
        columns: dict[str, Any] = {"dataset": rows["dataset"].astype(np.uint32)}
        for name in ("stream", "site_tier"):
            columns[name] = self._names.order(name)[1][rows[name]].astype(np.uint16)
        columns["last_day"] = rows["last_day"].astype(np.int32)
        columns |= {name: self._writer.with_nulls(rows, name) for name in SUMS}
        totals = {name: str(total) for name, total in self._collected.totals.items()}
        self._writer.write_mapped(segment.SUMS_FILE, columns, totals=totals, groups=groups)

    def _write_people(self) -> None:
        import pyarrow as pa

        rows = _joined(self._people)
        counts = np.bincount(rows["dataset"], minlength=len(self._order))
        offsets = pa.array(np.concatenate(([0], np.cumsum(counts))), pa.int64())
        streams, tiers = (self._names.order(name)[1] for name in ("stream", "site_tier"))
        columns = {
            "users": pa.LargeListArray.from_arrays(offsets, pa.array(rows["user"])),
            "pairs": pa.LargeListArray.from_arrays(offsets, pa.array(rows["pair"])),
        }
        numbers = [(int(stream), int(tier)) for stream in streams for tier in tiers]
        self._writer.write_mapped(segment.PEOPLE_FILE, columns, pairs=numbers)


class RollupProcess:
    """Calls :func:`build` in a process that starts when needed and ends with :meth:`close`."""

    def __init__(self) -> None:
        self._child: Child | None = None

    def __call__(self, days: Sequence[StoredInterval], store: str, folder: Path) -> SegmentIndex:
        """Build a segment. Raises MemoryError where the system killed the process, else
        what the function raises.
        """
        if self._child is None or not self._child.is_alive:
            self._child = Child(_serve)
        child = self._child
        try:
            child.pipe.send((days, store, folder))
            index: SegmentIndex = child.receive()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            raise MemoryError(
                f"the process that builds rollups ended with code {child.exit_code}"
            ) from None
        return index

    def close(self) -> None:
        """End the process; what it builds is dropped."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()


def _serve(pipe: Connection) -> None:
    os.nice(_NICE)
    share_freed()
    with suppress(EOFError, OSError):
        while True:
            values = pipe.recv()
            pipe.send(answered(lambda values=values: build(*values)))  # type: ignore[misc]
