"""The fast reader by keys, for producers whose records leave out empty fields or have
over a thousand of them.

Where :mod:`cmsspark.sources.formats.key_reader` was not compiled, both functions return
None and the decoder reads every line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from cmsspark.base import dates
from cmsspark.base.access import AccessBatch
from cmsspark.base.compiled import compiled
from cmsspark.sources.fields import as_is
from cmsspark.sources.formats.chunk import Content
from cmsspark.sources.formats.fast_json import Numbers

_packed: Final[Any] = compiled("sources.formats.packed")
_key_reader: Final[Any] = compiled("sources.formats.key_reader")


class AccessKeys(NamedTuple):
    """The keys of a record of an access, in its ``data`` or, where it has none, in the
    record itself.
    """

    #: The file's name.
    name: str
    #: Texts that make an access's group.
    shared: tuple[str, ...]
    #: Those of them that decide an access's site (the server's, where it names none)
    #: and whether it is remote: site, server, source, target, and the statuses of these
    #: two, which are null, empty or begin with ``resolved``.
    ends: tuple[str, ...]
    #: Sizes read: the first that is not 0 counts.
    read: tuple[str, ...]
    #: Sizes written.
    written: tuple[str, ...]
    #: Values that stand for no name.
    no_names: tuple[str, ...]


class JobKeys(NamedTuple):
    """The keys of a record of a job, in its ``data``, in the order in which compiled
    code returns their values.
    """

    #: Id, status, type and site; subsite, where costs are read; and other texts.
    texts: tuple[str, ...]
    #: CPU and wall-clock time; cores and core hours, where costs are read; and other
    #: numbers.
    hours: tuple[str, ...]
    #: The exit code, and flags.
    wholes: tuple[str, ...]
    #: The record's time, and others.
    longs: tuple[str, ...]


class FastKeyReader:
    """Reads lines into batches by their keys; the lines that it is not certain of are
    left to the decoder.

    ``finish`` adds to a batch what the compiled reader has collected besides accesses.
    """

    def __init__(
        self, lines: Any, finish: Callable[[AccessBatch], None], *, has_accesses: bool
    ) -> None:
        self._lines = lines
        self._finish = finish
        self._has_accesses = has_accesses

    def read(self, content: Content, batch: AccessBatch) -> tuple[int, bytes, list[int]]:
        """Add the records of plain lines to ``batch``.

        Returns the number of all lines, the lines that are left, and the number of each of these.
        """
        if self._has_accesses and batch.packed is None:
            batch.packed = _packed.Columns()
        result: tuple[int, bytes, list[int]] = self._lines.read(content, batch.packed)
        batch.read += self._lines.taken()
        for timestamp in self._lines.days():
            batch.count_out_of_day(dates.day_number(timestamp))
        self._finish(batch)
        return result


def fast_access_lines(
    day: int,
    keys: AccessKeys,
    meanings: Sequence[Callable[[str | None], Any]],
    group: Callable[[tuple[Any, ...]], int],
) -> FastKeyReader | None:
    """Return the reader of accesses of ``day`` (its number, from 1970 on); None where
    it is not compiled.

    ``meanings``: for each of the shared texts, the function that maps its value;
    ``group`` numbers a group of mapped values.
    """
    if _key_reader is None:
        return None
    numbers = Numbers(meanings, group)
    longs = (*keys.read, *keys.written)
    texts = (keys.name, *keys.shared)
    lines = _key_reader.AccessLines(
        texts,
        (),
        (),
        longs,
        True,
        day,
        len(keys.read),
        numbers.shared,
        numbers.group,
        keys.no_names,
        [texts.index(key) for key in keys.ends],
    )

    def finish(batch: AccessBatch) -> None:
        write_only, no_lfn = lines.bins()
        batch.write_only += write_only
        batch.no_lfn += no_lfn

    return FastKeyReader(lines, finish, has_accesses=True)


def fast_job_lines(
    day: int,
    keys: JobKeys,
    add: Callable[[list[tuple[Any, ...]], AccessBatch], None],
    group: Callable[[tuple[Any, ...]], int] | None = None,
) -> FastKeyReader | None:
    """Return the reader of jobs of ``day``; None where it is not compiled.

    ``add`` takes the records that are in no bin: their values and the time in ms.
    ``group``, where costs are read, numbers (site, subsite, type, cores) of a running
    job, as logged.
    """
    if _key_reader is None:
        return None
    if group is None:
        lines = _key_reader.JobLines(*keys, False, day)
    else:
        numbers = Numbers([as_is] * 4, group)
        lines = _key_reader.CostLines(*keys, False, day, numbers.shared, numbers.group)

    def finish(batch: AccessBatch) -> None:
        if group is not None:
            batch.windows |= lines.windows()
        for name, count in lines.bins().items():
            batch.count_job(name, count)
        add(lines.ended(), batch)

    return FastKeyReader(lines, finish, has_accesses=group is not None)
