"""Small samples: the first events of a sample, for trying; and the arrays of a sample for models that fit in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

from cmsspark.apps.events.layout import FEATURES, HLF_COUNT, MATRIX, PARTICLES, event_schema
from cmsspark.apps.events.parts import PartWriter, matrix_of, sample_parts
from cmsspark.apps.events.sample_tasks import row_groups
from cmsspark.base.errors import InputMissing
from cmsspark.filesystems.storage import Files
from cmsspark.store.part_files import open_part, parts_of

Array = np.ndarray[Any, Any]

_CLASSES: Final = 3


def write_small(files: Files, folder: str, per_class: int, low_level: bool) -> dict[str, Any]:
    """Write the first ``per_class`` events of each class of a folder of parts into ``small_…`` beside it.

    Returns its entry for the manifest.
    """
    import pyarrow.parquet as pq

    head, _, name = folder.rstrip("/").rpartition("/")
    target, left = f"{head}/small_{name}", np.full(_CLASSES, per_class)
    files.make_dirs(target)
    schema = event_schema(low_level=low_level, origin=False)
    with PartWriter(target, 0, schema) as writer:
        for part in parts_of(files, folder):
            if not left.any():
                break
            with open_part(files, part.path) as stream:
                file = pq.ParquetFile(stream)
                for group in range(file.num_row_groups):
                    if not left.any():
                        break
                    rows = file.read_row_group(group)
                    labels = rows.column("label").to_numpy()
                    chosen = np.zeros(len(labels), bool)
                    for label in range(_CLASSES):
                        places = np.flatnonzero(labels == label)[: left[label]]
                        chosen[places] = True
                        left[label] -= len(places)
                    kept = rows.filter(chosen)
                    columns = {column: kept.column(column).combine_chunks() for column in ("label", "event_hash")}
                    columns["hlf"] = matrix_of(kept.column("hlf"), HLF_COUNT)
                    if low_level:
                        columns["low_level"] = matrix_of(kept.column("low_level"), MATRIX)
                    writer.write(columns)
    entries = parts_of(files, target)
    return {"rows": writer.rows, "files": len(entries), "bytes": sum(entry.size for entry in entries)}


def read_events(
    folder: str | Path, *, low_level: bool = False, limit: int | None = None
) -> tuple[Array, Array | None, Array]:
    """The events of a folder of parts on this host: HLF ``(n, 14)``, matrices ``(n, 801, 19)`` or None, labels ``(n)``.

    ``limit``: at most so many, the first ones: a random choice, as samples are shuffled. Raises InputMissing (66)
    without parts, DataError (65) where they have no matrices but those are wanted.
    """
    parts = sample_parts(folder)
    if not parts:
        raise InputMissing("a folder with parts of events is wanted", where=folder, next_step="run_spark events_sample")
    columns = ["hlf", "label", *(["low_level"] if low_level else [])]
    kept: list[tuple[Array, Array | None, Array]] = []
    count = 0
    for path in parts:
        for group in row_groups(path, columns):
            rows = group if limit is None else group.slice(0, limit - count)
            count += rows.num_rows
            matrices = None
            if low_level:
                matrices = matrix_of(rows.column("low_level"), MATRIX).reshape(-1, PARTICLES, FEATURES)
            kept.append((matrix_of(rows.column("hlf"), HLF_COUNT), matrices, rows.column("label").to_numpy()))
            if count == limit:
                break
        if count == limit:
            break
    matrices = np.concatenate([part for _, part, _ in kept if part is not None]) if low_level else None
    return np.concatenate([part for part, _, _ in kept]), matrices, np.concatenate([part for *_, part in kept])
