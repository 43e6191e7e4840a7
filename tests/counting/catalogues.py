"""Small catalogues for tests: FILES, DATASETS and replicas as plain Python rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from cmsspark.counting.catalogue import Catalogue, Hash, Replicas, Report, name_hash
from cmsspark.counting.catalogue_build import ROWS, build_catalogue, build_replicas

#: lfn, block_id, dataset_id, file_id
File = tuple[str | None, int | None, int | None, int | None]
Dataset = tuple[int | None, str | None]


def file_tables(files: Sequence[File], part: int = 3) -> Iterator[pa.Table]:
    """FILES in parts, as the dumps' reader gives them."""
    kinds = (pa.string(), pa.int64(), pa.int64(), pa.int64())
    for start in range(0, max(len(files), 1), part):
        columns = list(zip(*files[start : start + part], strict=True)) or [()] * 4
        arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
        yield pa.table(arrays, names=["lfn", "block_id", "dataset_id", "file_id"])


def dataset_tables(datasets: Sequence[Dataset]) -> Iterator[pa.Table]:
    columns = list(zip(*datasets, strict=True)) or [(), ()]
    yield pa.table(
        [pa.array(columns[0], pa.int64()), pa.array(columns[1], pa.string())],
        names=["dataset_id", "dataset"],
    )


def build(
    folder: Path,
    files: Sequence[File],
    datasets: Sequence[Dataset],
    hash_name: Hash = name_hash,
    part: int = 3,
    rows: int = ROWS,
) -> Report:
    folder.mkdir(parents=True, exist_ok=True)
    # Two parts with several tables each, as dumps have them.
    half = len(files) // 2
    parts = [lambda: file_tables(files[:half], part), lambda: file_tables(files[half:], part)]
    return build_catalogue(folder, parts, dataset_tables(datasets), hash_name, rows=rows)


def opened(
    folder: Path,
    files: Sequence[File],
    datasets: Sequence[Dataset],
    hash_name: Hash = name_hash,
    part: int = 3,
    rows: int = ROWS,
) -> Catalogue:
    build(folder, files, datasets, hash_name, part, rows)
    return Catalogue(folder, hash_name)


def found(catalogue: Catalogue, names: Sequence[str]) -> list[tuple[int, str] | None]:
    """The (block, dataset name) of each name, None for those that are not there."""
    told: list[tuple[int, str] | None] = []
    for pair in catalogue.lookup([name.encode() for name in names]).tolist():
        if pair < 0:
            told.append(None)
            continue
        dataset = catalogue.pair_datasets[pair : pair + 1]
        told.append((int(catalogue.pair_blocks[pair]), catalogue.dataset_names(dataset)[0]))
    return told


def opened_replicas(
    folder: Path,
    blocks: Sequence[tuple[int | None, str | None]],
    replicas: Sequence[tuple[str | None, str | None]],
) -> Replicas:
    folder.mkdir(parents=True, exist_ok=True)
    ids, names = list(zip(*blocks, strict=True)) or [(), ()]
    where = list(zip(*replicas, strict=True)) or [(), ()]
    block_table = pa.table(
        [pa.array(ids, pa.int64()), pa.array(names, pa.string())], names=["block_id", "block_name"]
    )
    replica_table = pa.table(
        [pa.array(column, pa.string()) for column in where], names=["block_name", "site"]
    )
    build_replicas(folder, [lambda: iter([block_table])], [lambda: iter([replica_table])])
    return Replicas(folder)
