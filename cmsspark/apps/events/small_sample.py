"""Small samples: the first events of a sample, for trying; and the arrays of a sample for models that fit in memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cmsspark.apps.events.layout import EventLayout
from cmsspark.apps.events.layout_files import layout_in
from cmsspark.apps.events.parts import PartWriter, read_weights, sample_parts, to_matrix
from cmsspark.apps.events.sample_tasks import row_groups
from cmsspark.base.errors import InputMissing
from cmsspark.filesystems.storage import Files
from cmsspark.store.part_files import list_parts, open_part

Array = np.ndarray[Any, Any]


def write_small(files: Files, folder: str, per_class: int, layout: EventLayout) -> dict[str, Any]:
    """Write the first ``per_class`` events of each class of a folder of parts into ``small_…`` beside it.

    Returns its entry for the manifest.
    """
    import pyarrow.parquet as pq

    head, _, name = folder.rstrip("/").rpartition("/")
    target, remaining = f"{head}/small_{name}", np.full(len(layout.classes), per_class)
    files.make_dirs(target)
    with PartWriter(target, 0, layout.schema(origin=False)) as writer:
        for part in list_parts(files, folder):
            if not remaining.any():
                break
            with open_part(files, part.path) as stream:
                file = pq.ParquetFile(stream)
                for group in range(file.num_row_groups):
                    if not remaining.any():
                        break
                    rows = file.read_row_group(group)
                    labels = rows.column("label").to_numpy()
                    chosen = np.zeros(len(labels), bool)
                    for label in range(len(layout.classes)):
                        positions = np.flatnonzero(labels == label)[: remaining[label]]
                        chosen[positions] = True
                        remaining[label] -= len(positions)
                    selected = rows.filter(chosen)
                    columns = {
                        column: selected.column(column).combine_chunks() for column in ("label", "event_hash", "weight")
                    }
                    columns["hlf"] = to_matrix(selected.column("hlf"), layout.hlf_count)
                    if layout.has_matrix:
                        columns["low_level"] = to_matrix(selected.column("low_level"), layout.matrix)
                    writer.write(columns)
    entries = list_parts(files, target)
    return {"rows": writer.rows, "files": len(entries), "bytes": sum(entry.size for entry in entries)}


@dataclass(frozen=True)
class Events:
    """Events in memory: ``hlf`` ``(n, features)``, ``low_level`` ``(n, rows, columns)`` or None, labels and weights."""

    layout: EventLayout
    hlf: Array
    low_level: Array | None
    labels: Array
    weights: Array


def read_events(folder: str | Path, *, low_level: bool = False, limit: int | None = None) -> Events:
    """Return the events of a folder of parts on this host, a part of a sample.

    ``limit``: at most so many, the first ones: a random choice, as samples are shuffled. Raises InputMissing (66)
    without parts, DataError (65) where they have no matrices, but ``low_level`` asks for them.
    """
    parts = sample_parts(folder)
    if not parts:
        raise InputMissing("no parts of events", where=folder, next_step="run_spark events_sample")
    layout = layout_in(Path(folder).parent)
    columns = ["hlf", "label", *(["low_level"] if low_level else [])]
    groups: list[tuple[Array, Array | None, Array, Array]] = []
    count = 0
    for path in parts:
        for group in row_groups(path, columns, optional=("weight",)):
            rows = group if limit is None else group.slice(0, limit - count)
            count += rows.num_rows
            matrices = (
                to_matrix(rows.column("low_level"), layout.matrix).reshape(-1, *layout.shape) if low_level else None
            )
            hlf = to_matrix(rows.column("hlf"), layout.hlf_count)
            groups.append((hlf, matrices, rows.column("label").to_numpy(), read_weights(rows)))
            if count == limit:
                break
        if count == limit:
            break
    return Events(
        layout,
        np.concatenate([group[0] for group in groups]),
        np.concatenate([group[1] for group in groups if group[1] is not None]) if low_level else None,
        np.concatenate([group[2] for group in groups]),
        np.concatenate([group[3] for group in groups]),
    )
