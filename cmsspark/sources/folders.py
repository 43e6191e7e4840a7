"""The files of a day (``docs/counting.md``, rule 16), and detection of changes during a run.

The files are listed once, with size and mtime, before any is read; :func:`changed`
compares this list with the folder afterwards. Pure Python over
:class:`cmsspark.filesystems.storage.Files`. ``dumps`` chooses the dumps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date
from itertools import groupby

import msgspec
from msgspec.structs import replace

from cmsspark.base.errors import InputMissing, NotReady
from cmsspark.base.text.terminal import pluralize
from cmsspark.filesystems.storage import Files
from cmsspark.sources.dumps import (
    Dump,
    choose_dbs_dump,
    choose_phedex_dump,
    choose_replica_dump,
    dump_at,
)
from cmsspark.sources.layout import (
    COPYING,
    TMP,
    InputFile,
    InputLocation,
    Layout,
    absence,
    data_files,
    days_near,
    digest,
    hold_data,
    is_hidden,
    setting,
    shown,
)
from cmsspark.sources.registry import STREAMS_BY_NAME

__all__ = [
    "DayInput",
    "Dump",
    "InputFile",
    "Layout",
    "changed",
    "choose_dbs_dump",
    "choose_phedex_dump",
    "choose_replica_dump",
    "dump_at",
    "is_hidden",
    "resolve_day",
]


class DayInput(msgspec.Struct, frozen=True):
    """A stream's files of one day. ``format_name``: enr, raw (aaa), eos, json, avro
    (cmssw), avro (crab).
    """

    stream: str
    format_name: str
    folder: str
    files: tuple[InputFile, ...]
    is_tmp: bool
    warnings: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    def fingerprint(self) -> str:
        """Return a digest over path, size and mtime of each file."""
        return digest({"": self.files})

    def file_sums(self) -> dict[str, int]:
        """Return the number of files, their bytes and the latest mtime, which do not
        depend on the folder's name.
        """
        newest_ms = max((file.mtime_ms for file in self.files), default=0)
        return {"file_count": len(self.files), "bytes": self.size, "newest_ms": newest_ms}


def resolve_day(
    files: Files,
    layout: Layout,
    stream: str,
    day: date,
    *,
    allow_tmp: bool = False,
    any_epoch: bool = False,
) -> DayInput:
    """Return the stream's files of the day, in the first format that has the day: its
    final folder, else ``.tmp`` if allowed.

    Only files directly in the folder count; a sub-folder gives a warning. Raises
    InputMissing (66) where no folder has the day, with the searched folders and the
    available days; NotReady (75) where the folder exists without data.

    ``any_epoch``: also where another source serves the day.
    """
    locations = layout.locations[stream] if any_epoch else layout.day_locations(stream, day)
    for _, same_format in groupby(locations, key=lambda location: location.format_name):
        alternatives = list(same_format)
        for ending in ("", TMP) if allow_tmp else ("",):
            for location in alternatives:
                entry = files.stat(location.day_folder(day) + ending)
                if entry is not None and entry.is_dir:
                    source, folder = location.source, location.day_folder(day) + ending
                    listed, inner, copying, unfinished = data_files(files, folder)
                    warnings = [
                        f"{source}: the folder {path} inside the day is not read" for path in inner
                    ]
                    warnings += [
                        f"{source}: {path} is still being written and is not read"
                        for path in unfinished
                    ]
                    if copying:
                        raise NotReady(
                            f"{source} of {day} is still being copied",
                            where=copying[0],
                            found=f"{pluralize(len(copying), 'file')} with the ending {COPYING}",
                            next_step="run again when the copy is complete; remove the files if it was aborted",
                        )
                    if not hold_data(files, listed):
                        content = "no data files"
                        if listed:
                            size = max(file.size for file in listed)
                            content = f"{pluralize(len(listed), 'file')} " + (
                                "without any record" if size else "of 0 bytes"
                            )
                        raise NotReady(
                            f"{source} of {day} is there but has no data",
                            where=shown(folder),
                            found=content,
                            next_step="run again when the day is written; a job on several streams can leave it out with --streams",
                        )
                    day_input = DayInput(
                        source, location.format_name, folder, listed, bool(ending), tuple(warnings)
                    )
                    return replace(
                        day_input,
                        warnings=(*day_input.warnings, *_not_read(files, layout, stream, day)),
                    )
    if not locations:
        # The error of a stream that has no part in its role on the day.
        role = STREAMS_BY_NAME[stream].role
        serving = STREAMS_BY_NAME.get(layout.epochs.source(role, day))
        instead = "give another day"
        if serving is not None and serving.has_report:
            instead = f"run_spark {serving.report} --date {day}, or --streams {serving.name}"
        raise InputMissing(
            f"no {stream} log for {day}",
            found=layout.epochs.why(role, day),
            next_step=f"{instead}; the settings change it: {setting(role, stream, day)}",
        )
    raise _other_has_it(files, layout, stream, day) or _no_day(
        files, locations, stream, day, allow_tmp
    )


def _not_read(files: Files, layout: Layout, stream: str, day: date) -> list[str]:
    """Warnings about the day's folders that belong to sources of other epochs."""
    folders = [location.day_folder(day) for location in layout.other_locations(stream, day)]
    reason = layout.epochs.why(STREAMS_BY_NAME[stream].role, day) if folders else ""
    return [
        f"{stream}: {folder} is there and is not read: {reason}"
        for folder in folders
        if files.stat(folder)
    ]


def _other_has_it(files: Files, layout: Layout, stream: str, day: date) -> InputMissing | None:
    """Return the error where only a source of another epoch has the day: no source
    stands in for another (rule 47).
    """
    for location in layout.other_locations(stream, day):
        role = STREAMS_BY_NAME[stream].role
        folder = location.day_folder(day)
        if files.stat(folder) is None:
            continue
        return InputMissing(
            f"no {stream} log for {day} from {layout.epochs.source(role, day) or 'its source'}",
            where=" or ".join(
                shown(entry.day_folder(day)) for entry in layout.day_locations(stream, day)
            ),
            found=f"no folder of that day; {location.serves} has it: {shown(folder)}",
            next_step=setting(role, location.serves, day),
        )
    return None


def _no_day(
    files: Files, locations: Sequence[InputLocation], stream: str, day: date, allow_tmp: bool
) -> InputMissing:
    searched = []
    available = []
    next_step = "give another day or another --root"
    if stream in STREAMS_BY_NAME:
        next_step += "; a job on several streams can leave it out with --streams"
    for location in locations:
        folder = location.day_folder(day)
        searched.append(
            shown(folder) + (" (a file, not a folder)" if files.stat(folder) is not None else "")
        )
        available.append(", ".join(days_near(files, location, day)))
        if not allow_tmp and files.stat(folder + TMP) is not None:
            next_step = f"wait until {shown(folder)}{TMP} is final, or read the incomplete folder with --allow-tmp"
    return InputMissing(
        f"no {stream} log for {day}",
        where=" or ".join(searched),
        found=f"days there: {_by_location(locations, available)}"
        if any(available)
        else absence(files, locations[0].folder, "no day at all"),
        next_step=next_step,
    )


def _by_location(locations: Sequence[InputLocation], texts: Sequence[str]) -> str:
    """Return the texts of a source's locations; the names of locations tell several of them apart."""
    if len(locations) == 1:
        return texts[0]
    return "; ".join(
        f"{location.name}: {text or 'none'}"
        for location, text in zip(locations, texts, strict=True)
    )


def changed(files: Files, inputs: Iterable[DayInput | Dump]) -> list[str]:
    """Differences from the listing: changed, rewritten, removed or added files, or a
    ``.tmp`` folder made final.
    """
    changes = []
    for source in inputs:
        if isinstance(source, DayInput):
            changes += _changed_folder(files, source.folder, source.files)
            if source.is_tmp and files.stat(source.folder.removesuffix(TMP)) is not None:
                changes.append(f"{source.folder} was read, and is final now")
            continue
        for table, listed in source.tables.items():
            changes += _changed_folder(files, source.table_folder(table), listed)
    return changes


def _changed_folder(files: Files, folder: str, listed: Iterable[InputFile]) -> list[str]:
    try:
        current = data_files(files, folder)
    except InputMissing as error:
        return [f"{error.where}: {error.found}"]
    by_path = {file.path: file for file in current.files}
    changes = [f"{path} is being copied" for path in current.copying]
    for file in listed:
        latest = by_path.pop(file.path, None)
        if latest is None:
            changes.append(f"{file.path} is gone")
        elif latest.size != file.size:
            changes.append(f"{file.path} had {file.size} bytes and has {latest.size}")
        elif (latest.mtime_ms, latest.version) != (file.mtime_ms, file.version):
            changes.append(f"{file.path} was written again")
    return [*changes, *(f"{path} is new" for path in by_path)]
