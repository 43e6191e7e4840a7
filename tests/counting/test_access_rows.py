"""Accesses one by one: each with its file, block and dataset where DBS knows them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cmsspark.base.access import AccessBatch, Group, Remote
from cmsspark.counting.catalogue import Replicas
from cmsspark.counting.folded_accesses import ACCESS_COLUMNS, AccessRows
from cmsspark.counting.pre_aggregate import record_batch
from cmsspark.sources.formats.fast_json import Groups
from tests.counting.catalogues import opened, opened_replicas

GROUPS = [
    Group("T2_X", "crab", "Ann", Remote.BY_REPLICA),
    Group("T1_Y", "other", None, Remote.BY_REPLICA),
    Group("T1_Y", "other", None, Remote.YES),
    Group("unknown", "other", None, Remote.UNKNOWN),
]
LFNS = ["/store/a", "/store/a", "/other", "/store/b", "/store/a", "/store/a"]
NUMBERS = [0, 1, 0, 0, 2, 3]


def rows_of(task: AccessRows, replicas: Replicas | None) -> list[dict[str, Any]]:
    columns = task.drain(Groups(GROUPS), replicas, lambda name: f"hidden {name}")
    return record_batch(columns, ACCESS_COLUMNS).to_pylist() if columns else []


def test_each_access_has_its_block_and_dataset(tmp_path: Path) -> None:
    catalogue = opened(
        tmp_path / "c", [("/store/a", 1, 1, 1), ("/store/b", None, 1, 2)], [(1, "/x/y/RAW")]
    )
    replicas = opened_replicas(tmp_path / "r", [(1, "/x/y/RAW#1")], [("/x/y/RAW#1", "T2_X")])
    task = AccessRows("cmssw", catalogue)
    task.add(AccessBatch(LFNS, NUMBERS, [1, 2, 3, 4, 5, 6], read=6))
    rows = rows_of(task, replicas)
    assert [
        (row["lfn"], row["dataset_name"], row["block_id"], row["is_remote"]) for row in rows
    ] == [
        ("/store/a", "/x/y/RAW", 1, False),
        ("/store/a", "/x/y/RAW", 1, True),
        ("/other", None, None, None),
        ("/store/b", "/x/y/RAW", None, True),
        ("/store/a", "/x/y/RAW", 1, True),
        ("/store/a", "/x/y/RAW", 1, None),
    ]
    assert [row["user"] for row in rows] == [
        "hidden Ann",
        None,
        "hidden Ann",
        "hidden Ann",
        None,
        None,
    ]
    assert [row["read_bytes"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert {row["cpu_ms"] for row in rows} == {None}
    assert rows_of(task, replicas) == []


def test_without_replicas_it_is_not_known_what_is_remote(tmp_path: Path) -> None:
    catalogue = opened(tmp_path / "c", [("/store/a", 1, 1, 1)], [(1, "/x/y/RAW")])
    task = AccessRows("cmssw", catalogue)
    task.add(AccessBatch(LFNS, NUMBERS, read=6))
    assert [row["is_remote"] for row in rows_of(task, None)] == [
        None,
        None,
        None,
        None,
        True,
        None,
    ]


@pytest.mark.parametrize("datasets", [[], [(1, "/x/y/RAW")]])
def test_an_empty_catalogue_knows_none(
    tmp_path: Path, datasets: list[tuple[int | None, str | None]]
) -> None:
    task = AccessRows("cmssw", opened(tmp_path / "c", [("/store/a", 1, 2, 1)], datasets))
    task.add(AccessBatch(LFNS, NUMBERS, read=6))
    assert {row["dataset_name"] for row in rows_of(task, None)} == {None}
