"""Small samples of made events for tests of networks: separable, but not trivially so."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cmsspark.apps.events.layout import TOPOLOGY
from cmsspark.apps.events.scalers import Moments
from cmsspark.base.arrays import Array
from tests.apps.events.events import (
    FEATURES,
    HLF_COUNT,
    LOW_LEVEL,
    PARTICLES,
    event_schema,
    write_schema,
)


def events(count: int, seed: int, particles: int = 0) -> tuple[Array, Array | None, Array, Array]:
    """``hlf``, ``low_level`` (None without particles), ``label``, ``event_hash`` of made events."""
    draw = np.random.default_rng(seed)
    label = draw.integers(0, 3, count).astype(np.int8)
    hlf = draw.normal(size=(count, HLF_COUNT)).astype(np.float32) * np.arange(
        1, 15, dtype=np.float32
    )
    hlf[:, 0] += 2.0 * label
    hlf[:, 3] += 6.0 * (label == 1)
    low_level = None
    if particles:
        low_level = np.zeros((count, PARTICLES, FEATURES), np.float32)
        used = draw.integers(particles // 2, particles + 1, count)
        low_level[:, :particles] = draw.normal(size=(count, particles, FEATURES)).astype(
            np.float32
        )
        # The mean momentum of an event's particles tells its class.
        low_level[:, :particles, LOW_LEVEL.index("pt")] += label[:, None].astype(np.float32)
        low_level[np.arange(PARTICLES)[None, :] >= used[:, None]] = 0.0
    return hlf, low_level, label, draw.integers(0, 2**63, count).astype(np.uint64)


def write_sample(
    folder: Path, count: int, *, seed: int = 1, particles: int = 0, groups: int = 8, parts: int = 2
) -> Path:
    """A folder as ``events_sample`` writes it; returns it."""
    moments = Moments.empty(TOPOLOGY)
    for name, rows in (("train", count), ("test", count // 4)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for part in range(parts):
            hlf, low_level, label, hashes = events(
                rows // parts, seed + 100 * part + (name == "test"), particles
            )
            if name == "train":
                moments.add(hlf, low_level)
            columns = {
                "hlf": hlf,
                "label": label,
                "event_hash": hashes,
                "weight": np.ones(len(label)),
            }
            if low_level is not None:
                columns["low_level"] = low_level.reshape(len(label), -1)
            schema = event_schema(low_level=bool(particles), origin=False)
            arrays = [
                pa.FixedSizeListArray.from_arrays(
                    pa.array(columns[field.name].reshape(-1)), field.type.list_size
                )
                if pa.types.is_fixed_size_list(field.type)
                else pa.array(columns[field.name], field.type)
                for field in schema
            ]
            table = pa.Table.from_arrays(arrays, names=schema.names)
            size = max(1, len(label) * parts // groups)
            pq.write_table(table, folder / name / f"part-{part:05d}.parquet", row_group_size=size)
    document = moments.scalers(low_level=bool(particles)).as_dict()
    (folder / "scalers.json").write_text(json.dumps(document), encoding="utf-8")
    write_schema(folder, low_level=bool(particles))
    return folder
