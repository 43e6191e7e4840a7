"""The inputs of a job on log streams: each stream's files and the dumps, fixed before
anything is read.

Imports neither pyspark nor Arrow: ``run_spark`` chooses the engine with the same functions.
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Final
from urllib.parse import unquote

from cmsspark.base.errors import (
    CmssparkError,
    DataError,
    InputMissing,
    NotReady,
    SettingsError,
    UsageError,
)
from cmsspark.base.manifests import Manifest
from cmsspark.base.text.terminal import pluralize
from cmsspark.filesystems.storage import Files, is_local, local_path
from cmsspark.run.earlier_jobs import find_earlier
from cmsspark.run.request import DayRequest, Inputs
from cmsspark.settings.settings import Settings
from cmsspark.sources import folders
from cmsspark.sources.folders import DayInput, Dump, Layout
from cmsspark.sources.layout import REPLICAS_ROLE
from cmsspark.sources.registry import DUMPS, STREAMS_NEEDING_REPLICAS, STREAMS_OF_JOBS
from cmsspark.store import results

#: More files are joined by shuffle. The index of so many has 2.6 GB.
INDEX_FILES: Final = 200_000_000
#: The key below ``spark`` in the settings that sets another limit.
INDEX_FILES_KEY: Final = "spark.cmsspark.indexFiles"
#: Bytes of the index for a file.
INDEX_BYTES_A_FILE: Final = 13
#: Bytes of a row of FILES on disk, at least, however it is packed.
_LEAST_ROW_BYTES: Final = 16
#: Bytes at the start of a part of FILES whose rows are counted, and parts that are
#: looked at.
_SAMPLE_BYTES: Final = 1 << 20
_SAMPLED_PARTS: Final = 8


def resolve(request: DayRequest, layout: Layout, files: Files) -> Inputs:
    """Fix what is read: each stream's files, and the dumps. Raises InputMissing (66)
    and NotReady (75).
    """
    streams: list[DayInput] = []
    missing: list[str] = []
    warnings: list[str] = []
    for stream in request.streams:
        try:
            streams.append(
                folders.resolve_day(
                    files, layout, stream, request.day, allow_tmp=request.allow_tmp
                )
            )
        except (InputMissing, NotReady) as error:
            if not request.allow_missing:
                raise
            missing.append(stream)
            warnings.append(f"{stream} is left out: {error.problem}")
    if not streams:
        raise InputMissing(
            f"none of {', '.join(request.streams)} is there for {request.day}",
            found="; ".join(warnings),
        )
    before = _replaced(request, files)
    if before is not None and (
        lost := [stream for stream in before.streams if stream not in request.streams]
    ):
        warnings.append(f"the result that this one replaces also has {', '.join(lost)}")
    served = layout.epochs.source(REPLICAS_ROLE, request.day)
    dumps = _kept_dumps(request, layout, files, ("dbs", served))
    dbs = dumps.get("dbs") or folders.choose_dbs_dump(
        files, layout, request.day, dbs_tables(request)
    )
    replicas = None
    if any(source.stream in STREAMS_NEEDING_REPLICAS for source in streams):
        try:
            replicas = dumps.get(served) or folders.choose_replica_dump(files, layout, request.day)
        except (InputMissing, NotReady) as error:
            if not request.allow_missing:
                raise
            missing.append(served)
            left_out = f"{served} is left out, remote_nacc of {' and '.join(STREAMS_NEEDING_REPLICAS)} is null"
            warnings.append(f"{left_out}: {error.problem}")
    earlier = [
        find_earlier(files, layout, request.fout, source.stream, request.day)
        for source in streams
        if source.stream in STREAMS_OF_JOBS
    ]
    warnings += [text for day in earlier for text in day.warnings]
    readable = [*streams, *(day.to_read for day in earlier if day.to_read is not None)]
    accepted = accepted_files(request.accept_damaged, readable)
    names = [*(source.stream for source in streams), *([replicas.kind] if replicas else [])]
    epochs = layout.epochs.of_day(request.day, names)
    meanings = layout.epochs.meanings_of_day(request.day, names)
    inputs = Inputs(
        files, streams, missing, dbs, replicas, warnings, accepted, epochs, meanings, earlier
    )
    for texts in (
        *(source.warnings for source in streams),
        *(dump.warnings for dump in inputs.dumps),
    ):
        warnings += texts
    return inputs


def resolve_dbs_dump(request: DayRequest, layout: Layout, files: Files) -> Dump:
    """Return the DBS dump that :func:`resolve` fixes. Raises InputMissing (66) and NotReady (75)."""
    dumps = _kept_dumps(request, layout, files, ("dbs",))
    return dumps.get("dbs") or folders.choose_dbs_dump(
        files, layout, request.day, dbs_tables(request)
    )


def dbs_tables(request: DayRequest) -> tuple[str, ...]:
    """Return the tables of DBS that the request needs. Jobs name their dataset, so that
    no file is looked up.
    """
    is_of_jobs = all(stream in STREAMS_OF_JOBS for stream in request.streams)
    return tuple(table for table in DUMPS["dbs"].for_streams if not is_of_jobs or table != "FILES")


def uses_index(request: DayRequest, dbs: Dump, files: Files) -> bool:
    """Return whether files find their dataset in the index: as ``--join`` says, or
    where FILES is small enough for an index on each host. Raises SettingsError (78)
    if the limit is no number, and what ``files`` raises.
    """
    if request.join != "auto":
        return request.join == "index"
    limit = index_files(request.settings)
    is_surely_small = sum(part.size for part in dbs.tables.get("FILES", ())) <= (
        limit * _LEAST_ROW_BYTES
    )
    return is_surely_small or files_in_dbs(files, dbs) <= limit


def files_in_dbs(files: Files, dbs: Dump) -> int:
    """Return about how many files a dump of DBS has, by the rows at the start of some
    parts of FILES and the bytes of all; 0 where the request does not need that table.
    """
    # Not above: `run_spark` starts quicker without.
    from cmsspark.sources.formats.lines import unpacked

    parts = sorted(dbs.tables.get("FILES", ()), key=lambda part: (part.size, part.path))
    count = len(parts)
    sample = (
        {parts[count * (number + 1) // _SAMPLED_PARTS - 1] for number in range(_SAMPLED_PARTS)}
        if parts
        else ()
    )
    rows = read_bytes = 0
    for part in sample:
        head = files.read_range(part.path, 0, min(part.size, _SAMPLE_BYTES))
        # The packed data end where the sample does, as those of a file that was cut.
        with suppress(CmssparkError, OSError, EOFError):
            text = unpacked(io.BytesIO(head), part.path)
            while chunk := text.read(65_536):
                rows += chunk.count(b"\n")
        read_bytes += len(head)
    return sum(part.size for part in parts) * rows // max(1, read_bytes)


def index_files(settings: Settings) -> int:
    """Return the most files in DBS that an index is made of. Raises SettingsError (78)."""
    value = settings.spark.get(INDEX_FILES_KEY)
    if value is None:
        return INDEX_FILES
    try:
        return int(value)
    except ValueError:
        raise SettingsError(
            f"{INDEX_FILES_KEY} is not a number of files",
            where=settings.where("spark", INDEX_FILES_KEY),
            found=repr(value),
            next_step=f"write a whole number, such as {INDEX_FILES}",
        ) from None


def _replaced(request: DayRequest, files: Files) -> Manifest | None:
    """Return the manifest of the day's current result."""
    if not request.fout:
        return None
    try:
        return results.current(
            files, request.fout, request.job, request.tables[0], request.day
        ).manifest
    except (InputMissing, DataError):
        return None


def _kept_dumps(
    request: DayRequest, layout: Layout, files: Files, kinds: Sequence[str]
) -> dict[str, Dump]:
    """Return the dumps that the day's current result was made with; they stay chosen
    until ``--refresh-dumps`` (rule 17).

    Dumps outside this run's folders are not kept: with another root all inputs are different.
    """
    before = _replaced(request, files)
    if before is None or request.refresh_dumps:
        return {}
    dumps = {}
    for kind, dump in before.dumps.items():
        if kind not in kinds or not any(
            location.holds(dump.folder) for location in layout.locations[kind]
        ):
            continue
        tables = dbs_tables(request) if kind == "dbs" else DUMPS[kind].for_streams
        kept_dump = folders.dump_at(files, kind, dump.folder, request.day, dump.day, tables)
        if kept_dump is not None:
            dumps[kind] = kept_dump
    return dumps


def accepted_files(named: Sequence[str], streams: Sequence[DayInput]) -> frozenset[str]:
    """Return the listed files that ``--accept-damaged`` names, by path or by their name alone.

    Raises UsageError (2) for one that is not in the day's list, or stands for several.
    """
    listed = [file.path for source in streams for file in source.files]
    accepted = set()
    for name in named:
        names = spellings(name)
        fits = [
            path
            for path in listed
            if path in names or ("/" not in name and path.endswith(f"/{name}"))
        ]
        if len(fits) != 1:
            raise UsageError(
                f"--accept-damaged {name!r} does not name one file of the day's logs",
                where=", ".join(source.folder for source in streams),
                found=f"{pluralize(len(fits), 'file')} of that name: {', '.join(fits[:3])}"
                if fits
                else "no file of that name",
                next_step="give the path that the error about its damage shows",
            )
        accepted.add(fits[0])
    return frozenset(accepted)


def spellings(path: str) -> set[str]:
    """Return a path as it may stand in a list of files: Spark names files by URIs with
    ``%20`` for a space.
    """
    return {path, os.path.abspath(local_path(path))} if is_local(path) else {path, unquote(path)}
