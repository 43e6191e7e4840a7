"""Which files are a day's (``docs/counting.md``, rule 16), and whether they are still the same afterwards.

The list of files is fixed once, with size and mtime, before anything is read; :func:`changed` compares it with what
is there afterwards. Pure Python over :class:`cmsspark.storage.Files`. ``dumps`` chooses the dumps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import groupby

from cmsspark.errors import InputMissing, NotReady
from cmsspark.sources.dumps import Dump, choose_dbs_dump, choose_phedex_dump, dump_at
from cmsspark.sources.layout import InputLocation, Layout, days_near, shown
from cmsspark.sources.listing import COPYING, TMP, InputFile, data_files, digest, hold_data, is_hidden
from cmsspark.storage import Files

__all__ = [
    "DayInput",
    "Dump",
    "InputFile",
    "Layout",
    "changed",
    "choose_dbs_dump",
    "choose_phedex_dump",
    "dump_at",
    "is_hidden",
    "resolve_day",
]


@dataclass(frozen=True)
class DayInput:
    """A stream's files of one day. ``form``: enr, raw (aaa), eos, json, avro (cmssw), avro (crab)."""

    stream: str
    form: str
    folder: str
    files: tuple[InputFile, ...]
    is_tmp: bool
    warnings: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    def fingerprint(self) -> str:
        """A digest over path, size and mtime of each file."""
        return digest({"": self.files})


def resolve_day(files: Files, layout: Layout, stream: str, day: date, *, allow_tmp: bool = False) -> DayInput:
    """The stream's files of the day: of the first form that has the day, the final folder, else ``.tmp`` if allowed.

    Files directly in the folder count; sub-folders are told as a warning. Raises InputMissing (66) where no
    folder has the day, with the folders looked at and the days that are there; NotReady (75) where the folder is there
    and holds no byte of data.
    """
    places = layout.day_places(stream, day)
    for _, same_form in groupby(places, key=lambda place: place.form):
        roots = list(same_form)
        for ending in ("", TMP) if allow_tmp else ("",):
            for place in roots:
                found = files.stat(place.day_folder(day) + ending)
                if found is not None and found.is_dir:
                    return _day_input(files, place, day, ending)
    raise _no_day(files, places, stream, day, allow_tmp)


def _day_input(files: Files, place: InputLocation, day: date, ending: str) -> DayInput:
    folder = place.day_folder(day) + ending
    listed, inner, copying, unfinished = data_files(files, folder)
    warnings = [f"{place.source}: the folder {path} inside the day is not read" for path in inner]
    warnings += [f"{place.source}: {path} is still being written and not read" for path in unfinished]
    if copying:
        raise NotReady(
            f"{place.source} of {day} is still being copied",
            where=copying[0],
            found=f"{len(copying)} files that end in {COPYING}",
            next_step="run again when they are there; remove what a copy that was given up has left",
        )
    if not hold_data(files, listed):
        there = "no data files"
        if listed:
            size = max(file.size for file in listed)
            there = f"{len(listed)} files " + ("without any record" if size else "of 0 bytes")
        raise NotReady(
            f"{place.source} of {day} is there but has no data",
            where=shown(folder),
            found=there,
            next_step="run again when the day is written, or ask for other streams with --streams",
        )
    return DayInput(place.source, place.form, folder, listed, bool(ending), tuple(warnings))


def _no_day(files: Files, places: Sequence[InputLocation], stream: str, day: date, allow_tmp: bool) -> InputMissing:
    looked = []
    there = []
    next_step = "give another day, another --root, or fewer --streams"
    for place in places:
        folder = place.day_folder(day)
        looked.append(shown(folder) + (" (a file, no folder)" if files.stat(folder) is not None else ""))
        there.append(f"{place.name}: {', '.join(days_near(files, place, day)) or 'none'}")
        if not allow_tmp and files.stat(folder + TMP) is not None:
            next_step = f"wait until {shown(folder)}{TMP} is final, or read it as it is with --allow-tmp"
    return InputMissing(
        f"{stream} of {day} is wanted",
        where=" or ".join(looked),
        found=f"days there: {'; '.join(there)}",
        next_step=next_step,
    )


def changed(files: Files, inputs: Iterable[DayInput | Dump]) -> list[str]:
    """What is another than when it was listed: files grown, rewritten, gone or added, or ``.tmp`` turned final."""
    told = []
    for one in inputs:
        if isinstance(one, DayInput):
            told += _changed_folder(files, one.folder, one.files)
            if one.is_tmp and files.stat(one.folder.removesuffix(TMP)) is not None:
                told.append(f"{one.folder} was read, and is final now")
            continue
        for table, listed in one.tables.items():
            told += _changed_folder(files, one.folder_of(table), listed)
    return told


def _changed_folder(files: Files, folder: str, listed: Iterable[InputFile]) -> list[str]:
    try:
        there = data_files(files, folder)
    except InputMissing as error:
        return [f"{error.where}: {error.found}"]
    now = {file.path: file for file in there.files}
    told = [f"{path} is being copied" for path in there.copying]
    for file in listed:
        found = now.pop(file.path, None)
        if found is None:
            told.append(f"{file.path} is gone")
        elif found.size != file.size:
            told.append(f"{file.path} had {file.size} bytes and has {found.size}")
        elif found.mtime_ms != file.mtime_ms:
            told.append(f"{file.path} was written again")
    return [*told, *(f"{path} is new" for path in now)]
