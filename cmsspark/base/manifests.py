"""The manifest of a stored run: its tables, what it was made from, and what was counted.

Jobs write it as JSON (``manifest.json`` in the run's folder). All keys of a run of
logs, of dumps or of a period are optional here, as old runs lack some; keys that are
not named here are in ``document`` only.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
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


#: What ``files_read`` says of each file of a stream, after its path.
FILE_COUNTS: Final = (
    "bytes",
    "content_bytes",
    "records_read",
    "records_counted",
    "malformed_bytes",
)


def compact(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a manifest as its file has it: a file of ``inputs`` and ``files_read`` is one
    text, its name and numbers, without what all paths beside it begin with, which is ``base``.

    Example:
        >>> files = [["/logs/part-0", 5, 70], ["/logs/part-1", 6, None]]
        >>> short = compact({"inputs": [{"stream": "eos", "files": files}]})
        >>> short["inputs"]
        [{'stream': 'eos', 'files': ['0 5 70', '1 6 -'], 'base': '/logs/part-'}]
        >>> expand(short) == {"inputs": [{"stream": "eos", "files": files}]}
        True
    """
    short = dict(document)
    if inputs := document.get("inputs"):
        short["inputs"] = [
            {**entry, **_short(files)} if (files := entry.get("files")) else entry
            for entry in inputs
        ]
    if files_read := document.get("files_read"):
        short["files_read"] = {
            stream: {
                "counts": " ".join(FILE_COUNTS),
                **_short([[file["file"], *map(file.get, FILE_COUNTS)] for file in files]),
            }
            for stream, files in files_read.items()
        }
    return short


def expand(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a manifest's file with all that is known of each file in full, as manifests
    of earlier versions list them.

    Raises ValueError for a text that lists no file.
    """
    long = dict(document)
    if inputs := document.get("inputs"):
        long["inputs"] = [
            entry
            if entry.get("base") is None
            else {
                **{name: value for name, value in entry.items() if name != "base"},
                "files": _long(entry, 2),
            }
            for entry in inputs
        ]
    if files_read := document.get("files_read"):
        long["files_read"] = {
            stream: [
                dict(zip(("file", *entry["counts"].split()), file, strict=True))
                for file in _long(entry, len(entry["counts"].split()))
            ]
            if isinstance(entry, Mapping)
            else entry
            for stream, entry in files_read.items()
        }
    return long


def _short(files: Sequence[Sequence[Any]]) -> dict[str, Any]:
    # Of texts, not of folders: names begin alike, too.
    base = os.path.commonprefix([file[0] for file in files])  # noqa: RUF071
    return {
        "base": base,
        "files": [
            " ".join([path[len(base) :], *("-" if n is None else str(n) for n in numbers)])
            for path, *numbers in files
        ],
    }


def _long(entry: Mapping[str, Any], count: int) -> list[list[Any]]:
    return [
        [entry["base"] + name, *(None if n == "-" else int(n) for n in numbers)]
        for name, *numbers in (text.rsplit(" ", count) for text in entry["files"])
    ]


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
    the file, with its lists of files in full.
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
        try:
            document = expand(document)
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"inputs or files_read: {error}") from None
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
