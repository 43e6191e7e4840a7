"""The manifest of a stored run: its tables, what it was made from, and what was counted.

Jobs write it as JSON (``manifest.json`` in the run's folder). All keys of a run of
logs, of dumps or of a period are optional here, as old runs lack some; keys that are
not named here are in ``document`` only.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from datetime import date
from typing import Any, Final

import msgspec

#: The number of the rules by which logs are counted; docs/counting.md lists what each
#: number changed. Manifests without one are of 1.
COUNTING_RULES: Final = 2


class TableEntry(msgspec.Struct, frozen=True):
    """A table of a run. ``schema``: the digest of its columns; ``bytes`` of its part
    files; ``sha256`` of each part file by its name, None in manifests of old versions.
    """

    rows: int = 0
    format: str = "parquet"
    schema: str = ""
    files: int = 0
    bytes: int | None = None
    sha256: dict[str, str] | None = None


class InputEntry(msgspec.Struct, frozen=True):
    """What a run read of a stream, a dump's table or a day: each file's path, size in
    bytes and mtime in UTC ms.
    """

    stream: str | None = None
    table: str | None = None
    format_name: str | None = msgspec.field(name="form", default=None)
    folder: str | None = None
    is_tmp: bool = False
    files: tuple[tuple[str, int | None, int | None], ...] = ()

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(size or 0 for _, size, _ in self.files)


def with_short_files(inputs: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return inputs as a manifest's file has them: a file is one text, ``NAME BYTES
    MTIME``, without what all paths of the input begin with, which is ``base``.

    Example:
        >>> files = [["/logs/part-0", 5, 70], ["/logs/part-1", 6, None]]
        >>> short = with_short_files([{"stream": "eos", "files": files}])
        >>> short
        [{'stream': 'eos', 'files': ['0 5 70', '1 6 -'], 'base': '/logs/part-'}]
        >>> with_long_files(short) == [{"stream": "eos", "files": files}]
        True
    """
    entries = []
    for entry in inputs:
        files = entry.get("files") or ()
        # Of texts, not of folders: names begin alike, too.
        base = os.path.commonprefix([path for path, _, _ in files])  # noqa: RUF071
        short = [
            " ".join([path[len(base) :], *("-" if n is None else str(n) for n in (size, mtime))])
            for path, size, mtime in files
        ]
        entries.append({**entry, **({"base": base, "files": short} if files else {})})
    return entries


def with_long_files(inputs: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the inputs of a manifest's file with each file as its path, bytes and mtime,
    as manifests of earlier versions list them.

    Raises ValueError for a text that lists no file.
    """
    entries = []
    for entry in inputs:
        is_short = entry.get("base") is not None
        files = [_long_file(entry["base"], text) for text in entry["files"]] if is_short else None
        plain = {name: value for name, value in entry.items() if name != "base"}
        entries.append(plain if files is None else {**plain, "files": files})
    return entries


def _long_file(base: str, text: str) -> list[Any]:
    name, *numbers = text.rsplit(" ", 2)
    size, mtime = (None if number == "-" else int(number) for number in numbers)
    return [base + name, size, mtime]


class DumpEntry(msgspec.Struct, frozen=True):
    """A dump that a run read; ``day`` is None for the legacy ``current`` folder."""

    folder: str
    day: date | None = None


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A manifest. What a job of that kind does not write, or an old version did not, is
    empty or None.

    ``reconciliation``: by stream, the bins as
    :meth:`cmsspark.counting.reconciliation.StreamBins.as_dict` has them.
    ``unmatched_prefixes``: by stream, [prefix, records]. ``unmatched_sites``: by stream,
    the unmatched records of each site; None in manifests of old versions. ``set_aside``: by stream, the
    accesses without bytes of their own and the bytes of their records. ``jobs_once``: by
    stream of rows of jobs, how many these are, and their seconds. ``earlier_jobs``: by stream of
    jobs, the day before. ``rows_of``: of a compacted run, the run that made its rows.
    ``days``: of a period, each day's run. ``document``: the manifest as it stands in
    the file, with the paths of all inputs written out.
    """

    document: dict[str, Any]
    run: str = ""
    job: str = ""
    day: str = ""
    period: str | None = None
    tables: dict[str, TableEntry] = {}
    inputs: tuple[InputEntry, ...] = ()
    earlier_jobs: dict[str, dict[str, Any]] = {}
    dumps: dict[str, DumpEntry] = {}
    streams: tuple[str, ...] = ()
    missing_streams: tuple[str, ...] = ()
    partial: bool = False
    damaged: tuple[Any, ...] = ()
    reconciliation: dict[str, dict[str, Any]] = {}
    out_of_day_by_day: dict[str, dict[str, int]] = {}
    generations: dict[str, dict[str, int]] = {}
    drift: dict[str, list[Any]] = {}
    unmatched_prefixes: dict[str, list[Any]] = {}
    unmatched_sites: dict[str, dict[str, int]] | None = None
    set_aside: dict[str, dict[str, int]] = {}
    jobs_once: dict[str, dict[str, float]] = {}
    quarantine: str | None = None
    join: str | None = None
    days: dict[date, str | None] = {}
    pseudonym_key_id: str | None = None
    warnings: tuple[str, ...] = ()
    versions: dict[str, Any] = {}
    seconds: float | None = None
    rows_of: str | None = None

    @property
    def rows_run(self) -> str:
        """The run that made the rows, in a compacted run another one. Who has published
        these rows, or made a period of them, need not do it again.
        """
        return self.rows_of or self.run

    @property
    def rules(self) -> int | None:
        """The number of the rules by which its logs were counted; None without logs."""
        return int(self.versions.get("rules", 1)) if self.reconciliation else None

    @property
    def has_earlier_rules(self) -> bool:
        """Whether a count of the same logs may give other numbers today."""
        return self.rules is not None and self.rules < COUNTING_RULES

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Manifest:
        """Return the manifest of a JSON object; null means "not set".

        Raises ValueError where a part has another type.
        """
        if document.get("inputs"):
            try:
                document = {**document, "inputs": with_long_files(document["inputs"])}
            except (AttributeError, KeyError, TypeError) as error:
                raise ValueError(f"inputs: {error}") from None
        values = {
            name: document[name]
            for name in cls.__struct_fields__
            if document.get(name) is not None
        }
        return msgspec.convert({**values, "document": dict(document)}, cls)

    def find_input(self, source: str) -> InputEntry | None:
        """Return what the run read of a stream, or of a dump's table or another feed by its name."""
        return next(
            (entry for entry in self.inputs if source in (entry.stream, entry.table)), None
        )
