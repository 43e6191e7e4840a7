"""Rules 17 to 21: the dumps, read character by character, and what they say about an lfn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

from tests.oracle import files, rucio

_FILES = {"file_id": 0, "logical_file_name": 1, "dataset_id": 3, "block_id": 4}
_BLOCKS = {"block_id": 0, "block_name": 1}
_DATASETS = {"dataset_id": 0, "dataset": 1}
_REPLICAS = {"block_name": 6, "node_name": 13, "br_node_files": 20}
_KINDS = (("_Disk", "disk"), ("_MSS", "tape"), ("_Buffer", "buffer"), ("_Export", "buffer"))

#: Rule 28: the first day whose replicas are Rucio's.
RUCIO_SINCE = date(2020, 11, 18)

Row = list[str | None]


def csv_rows(text: str) -> Iterator[Row]:
    r"""Rule 19: fields between commas, rows between newlines; text in `"` is taken
    whole; `\` escapes; `null` is null.

    One character at a time: a field that is opened by a quote ends at the next quote
    that is not escaped.
    """
    row: Row = []
    value: list[str] = []
    quoted = was_quoted = escaped = False

    def finish() -> None:
        nonlocal value, was_quoted
        written = "".join(value)
        row.append(None if written == "null" else written)
        value, was_quoted = [], False

    for character in text:
        if escaped:
            value.append(character)
            escaped = False
        elif character == "\\":
            escaped = True
        elif quoted:
            if character == '"':
                quoted = False
            else:
                value.append(character)
        elif character == '"' and not value and not was_quoted:
            quoted = was_quoted = True
        elif character == ",":
            finish()
        elif character == "\n":
            finish()
            yield row
            row = []
        else:
            value.append(character)
    if value or was_quoted or row:
        finish()
        yield row


@dataclass
class Catalogue:
    """What the dumps say: an lfn's dataset and block, and the sites that hold a block on disk."""

    #: lfn → (dataset name, block name or None)
    files: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    #: (block name, site) with a disk replica
    disk: set[tuple[str, str]] = field(default_factory=set)
    #: FILES rows whose dataset is not in DATASETS
    orphans: int = 0
    #: Rule 72: of sites of jobs, the other sites that hold their data.
    storage: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def on_disk(self, lfn: str, site: str) -> bool:
        """Whether the file's block has a disk replica at the site; a block nobody knows has none."""
        block = self.files[lfn][1]
        places = (site, *self.storage.get(site, ()))
        return block is not None and any((block, place) in self.disk for place in places)


def site_and_kind(node: str) -> tuple[str, str]:
    """Rule 20: exactly one known ending is cut from a node's name."""
    for ending, kind in _KINDS:
        if node.endswith(ending):
            return node.removesuffix(ending), kind
    return node, "disk"


def read_catalogue(root: Path, day: date) -> Catalogue:
    """The catalogue that belongs to a log day, from the dumps under the root."""
    dump = files.dbs_folder(root, day, ("FILES", "BLOCKS", "DATASETS"))
    is_rucio = day >= RUCIO_SINCE
    found = build(
        _table(dump / "FILES", _FILES),
        _table(dump / "BLOCKS", _BLOCKS),
        _table(dump / "DATASETS", _DATASETS),
        iter(()) if is_rucio else _table(files.phedex_folder(root, day), _REPLICAS),
    )
    if is_rucio:
        found.disk = rucio.read(rucio.table_folder(root, day)).on_disk()
    return found


def _table(folder: Path, columns: dict[str, int]) -> Iterator[dict[str, str | None]]:
    for file in files.data_files(folder):
        for row in csv_rows(files.content(file).decode("utf-8")):
            yield {name: row[position] for name, position in columns.items()}


def build(
    files_table: Iterator[dict[str, str | None]],
    blocks_table: Iterator[dict[str, str | None]],
    datasets_table: Iterator[dict[str, str | None]],
    replicas_table: Iterator[dict[str, str | None]],
) -> Catalogue:
    """Rules 18, 20 and 21 over the tables' rows."""
    found = Catalogue()
    datasets = {row["dataset_id"]: row["dataset"] for row in datasets_table}
    blocks = {row["block_id"]: row["block_name"] for row in blocks_table}
    newest: dict[str, int] = {}
    for row in files_table:
        dataset = None if row["dataset_id"] is None else datasets.get(row["dataset_id"])
        if dataset is None:
            found.orphans += 1
            continue
        lfn, file_id = row["logical_file_name"], int(row["file_id"] or -1)
        if lfn is not None and file_id > newest.get(lfn, -1):
            newest[lfn] = file_id
            found.files[lfn] = (
                dataset,
                None if row["block_id"] is None else blocks.get(row["block_id"]),
            )
    for row in replicas_table:
        site, kind = site_and_kind(row["node_name"] or "")
        if kind == "disk" and int(row["br_node_files"] or 0) > 0 and row["block_name"] is not None:
            found.disk.add((row["block_name"], site))
    return found
