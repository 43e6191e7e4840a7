"""Folding: a task's rows are what adding up record by record gives."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cmsspark.base.access import AccessBatch, Group, Quarantined, Remote
from cmsspark.base.errors import DataError
from cmsspark.counting import pre_aggregate, reconciliation
from cmsspark.counting.catalogue import Catalogue, Replicas, check_hash, hash_all
from cmsspark.counting.pre_aggregate import HASH_COLUMNS, HashAggregator, StreamAggregator
from cmsspark.sources.formats.fast_json import Groups
from cmsspark.sources.reader import Reader
from tests.corpus.json_lines import DAY, aaa
from tests.counting.catalogues import Dataset, File, opened, opened_replicas

FILES: list[File] = [
    ("/store/a", 1, 1, 1),
    ("/store/b", 2, 1, 2),
    ("/store/c", None, 2, 3),
    ("/store/user/d", 3, 3, 4),
    ("/store/a", 9, 2, 0),
]
#: Two ids of one name: their accesses are of one dataset.
DATASETS: list[Dataset] = [(1, "/x/y/RAW"), (2, "/z/y/AOD"), (3, "/x/y/RAW")]
BLOCK_OF = {"/store/a": 1, "/store/b": 2, "/store/c": -1, "/store/user/d": 3}
DATASET_OF = {
    "/store/a": "/x/y/RAW",
    "/store/b": "/x/y/RAW",
    "/store/c": "/z/y/AOD",
    "/store/user/d": "/x/y/RAW",
}
HERE = {(1, "T2_X"), (3, "T1_Y")}
GROUPS = [
    Group("T2_X", "crab", "Ann", Remote.BY_REPLICA),
    Group("T2_X", "crab", "Ann", Remote.YES),
    Group("T2_X", "crab", None, Remote.BY_REPLICA),
    Group("T1_Y", "crab", "Ann", Remote.BY_REPLICA),
    Group("T2_X", "other", "Bob", Remote.NO),
    Group("unknown", "other", "Bob", Remote.UNKNOWN),
    Group("T2_X", "crab", "Ann", Remote.UNKNOWN),
]


@pytest.fixture(scope="module")
def snapshots(tmp_path_factory: pytest.TempPathFactory) -> tuple[Catalogue, Replicas]:
    return _snapshots(tmp_path_factory.mktemp("snapshots"))


def _snapshots(folder: Path) -> tuple[Catalogue, Replicas]:
    catalogue = opened(folder / "catalogue", FILES, DATASETS)
    blocks = [(1, "/x/y/RAW#1"), (2, "/x/y/RAW#2"), (3, "/x/y/RAW#3")]
    replicas = opened_replicas(
        folder / "replicas", blocks, [("/x/y/RAW#1", "T2_X"), ("/x/y/RAW#3", "T1_Y")]
    )
    return catalogue, replicas


def pseudonym(name: str) -> str:
    return f"hidden {name}"


#: lfn, group, read bytes, cpu ms, wall ms
Record = tuple[str, int, int, int | None, int | None]
_LFNS = st.sampled_from(
    [*BLOCK_OF, "/store/user/x", "/store/group/x", "/store/temp/x", "/store/unmerged/x", "/other"]
)
_RECORDS = st.tuples(
    _LFNS,
    st.integers(0, len(GROUPS) - 1),
    st.integers(0, 2**52),
    st.none() | st.integers(0, 9),
    st.none() | st.integers(0, 9),
)
_BATCHES = st.lists(st.lists(_RECORDS, max_size=12), max_size=4)
#: Without compiled code accesses are sorted.
_SUMS = st.sampled_from([pre_aggregate.SortedSums, pre_aggregate.TableSums])


def batch_of(records: list[Record], bytes_: bool = True, times: bool = True) -> AccessBatch:
    lfns, groups, read, cpu, wall = (
        ([list(c) for c in zip(*records, strict=True)]) if records else [[]] * 5
    )
    return AccessBatch(
        lfns,
        groups,
        read if bytes_ else None,
        cpu if times else None,
        wall if times else None,
        read=len(records),
    )


def rows_of(columns: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """The rows of a scan's result, after they made an Arrow batch."""
    if not columns:
        return []
    named = [column for column in (*pre_aggregate.COLUMNS, *HASH_COLUMNS) if column[0] in columns]
    return pre_aggregate.record_batch(columns, named).to_pylist()


def remote_of(record: Record) -> bool | None:
    lfn, group = record[0], GROUPS[record[1]]
    if group.remote == Remote.BY_REPLICA:
        return (BLOCK_OF[lfn], group.site) not in HERE
    return {Remote.YES: True, Remote.NO: False, Remote.UNKNOWN: None}[group.remote]


def total(values: Iterator[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def by_dict(records: list[Record], bytes_: bool, times: bool) -> list[dict[str, Any]]:
    cells: dict[tuple[str, str, str, str | None], list[Record]] = {}
    for record in records:
        group = GROUPS[record[1]]
        if record[0] in DATASET_OF:
            cells.setdefault(
                (DATASET_OF[record[0]], group.site, group.app, group.user), []
            ).append(record)
    return [
        {
            "dataset_name": dataset,
            "site_name": site,
            "app": app,
            "user": None if user is None else pseudonym(user),
            "nacc": len(some),
            "remote_nacc": total(
                None if (remote := remote_of(one)) is None else int(remote) for one in some
            ),
            "read_bytes": sum(one[2] for one in some) if bytes_ else None,
            "cpu_ms": total(one[3] for one in some) if times else None,
            "wall_ms": total(one[4] for one in some) if times else None,
        }
        for (dataset, site, app, user), some in cells.items()
    ]


def added_up(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of one cell as one: what Spark does between tasks, and for two dataset ids of one name."""
    keys = ("dataset_name", "site_name", "app", "user")
    cells: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        cell = cells.setdefault(tuple(row[key] for key in keys), {key: row[key] for key in keys})
        for name in ("nacc", "remote_nacc", "read_bytes", "cpu_ms", "wall_ms"):
            cell[name] = total(iter([cell.get(name), row[name]]))
    return list(cells.values())


def by_cell(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {
        repr([row["dataset_name"], row["site_name"], row["app"], row["user"]]): row for row in rows
    }


@settings(deadline=None, max_examples=150)
@given(_BATCHES, st.booleans(), st.booleans(), st.sampled_from([1, 3, 1000]), _SUMS)
def test_a_fold_is_what_adding_record_by_record_gives(
    batches: list[list[Record]], bytes_: bool, times: bool, aggregate_at: int, sums: type[Any]
) -> None:
    with TemporaryDirectory() as folder:
        catalogue, replicas = _snapshots(Path(folder))
        task, known = StreamAggregator("aaa", catalogue, aggregate_at, _sums=sums()), 0
        for records in batches:
            task.add(batch_of(records, bytes_, times))
            # A decoder's groups become more from batch to batch.
            known = max([known, *(record[1] + 1 for record in records)])
            assert task.drain(Groups(GROUPS[:known]), replicas, pseudonym) == {}
        every = [record for records in batches for record in records]
        rows = rows_of(task.rows(Groups(GROUPS), replicas, pseudonym))
        cells = {(row["dataset_name"], row["site_name"], row["app"], row["user"]) for row in rows}
        assert len(rows) <= 2 * len(cells), "one for each cell, where a dataset's name has one id"
        assert {row["kind"] for row in rows} <= {"access"}
        assert {row["stream"] for row in rows} <= {"aaa"}
        assert by_cell(added_up(rows)) == by_cell(by_dict(every, bytes_, times))
        bins = {row["app"]: row["nacc"] for row in rows_of(task.bin_rows())}
        unmatched = Counter(
            pre_aggregate.unmatched_bin(record[0])
            for record in every
            if record[0] not in DATASET_OF
        )
        assert bins == {**({"read": len(every)} if every else {}), **unmatched}
        assert sum(row["nacc"] for row in rows) + unmatched.total() == len(every)
        notes = rows_of(task.note_rows([], Groups(GROUPS)))
        for kind in ("prefix", "unmatched_site"):
            counts = [row["nacc"] for row in notes if row["kind"] == kind]
            assert sum(counts) == unmatched.total()


@settings(deadline=None, max_examples=80)
@given(_BATCHES, st.booleans(), st.booleans())
def test_a_hashed_fold_keeps_every_access_under_its_files_hash(
    batches: list[list[Record]], bytes_: bool, times: bool
) -> None:
    task = HashAggregator("aaa")
    for records in batches:
        task.add(batch_of(records, bytes_, times))
    every = [record for records in batches for record in records]
    rows = rows_of(task.rows(Groups(GROUPS), None, pseudonym))
    hashes: dict[tuple[int, int], str] = {}
    for lfn in {record[0] for record in every}:
        both = [hash_all([lfn.encode()], 1), hash_all([lfn.encode()], 1, check_hash)]
        first, second = (int(hashed.view(np.int64)[0]) for hashed in both)
        hashes[first, second] = lfn
    wanted: dict[tuple[str, int], list[Record]] = {}
    for record in every:
        wanted.setdefault((record[0], record[1]), []).append(record)
    found = {}
    for row in rows:
        lfn = hashes[row["hash"], row["check"]]
        assert [row["prefix"]] == reconciliation.all_shown([lfn])
        assert row["dataset_name"] is None
        user = row["user"] and row["user"].removeprefix("hidden ")
        found[
            lfn, GROUPS.index(Group(row["site_name"], row["app"], user, row["block_remote"]))
        ] = row
    assert found.keys() == wanted.keys()
    for key, some in wanted.items():
        assert found[key]["nacc"] == len(some)
        assert found[key]["read_bytes"] == (sum(one[2] for one in some) if bytes_ else None)
        assert found[key]["cpu_ms"] == (total(one[3] for one in some) if times else None)


def test_a_sum_beyond_64_bits_is_an_error_and_one_up_to_it_is_not(
    snapshots: tuple[Catalogue, Replicas],
) -> None:
    most = 2**63 - 1
    task = StreamAggregator("eos", snapshots[0])
    task.add(batch_of([("/store/a", 0, most - 5, None, None), ("/store/b", 0, 5, None, None)]))
    (row,) = rows_of(task.rows(Groups(GROUPS[:1]), snapshots[1], pseudonym))
    assert row["read_bytes"] == most
    task.add(batch_of([("/store/a", 0, 1, None, None)]))
    with pytest.raises(DataError, match="read_bytes of eos"):
        task.rows(Groups(GROUPS[:1]), snapshots[1], pseudonym)


def test_large_values_of_different_cells_are_no_overflow(
    snapshots: tuple[Catalogue, Replicas],
) -> None:
    most = 2**63 - 1
    task = StreamAggregator("eos", snapshots[0], aggregate_at=1)
    task.add(
        batch_of(
            [
                ("/store/a", 0, most, 0, None),
                ("/store/c", 0, most, 0, None),
                ("/store/c", 3, most, 0, None),
            ]
        )
    )
    rows = rows_of(task.rows(Groups(GROUPS), snapshots[1], pseudonym))
    assert [row["read_bytes"] for row in rows] == [most] * 3


def test_an_overflow_while_folding_is_reported_too(snapshots: tuple[Catalogue, Replicas]) -> None:
    task = StreamAggregator("crab", snapshots[0], aggregate_at=2)
    task.add(batch_of([("/store/a", 0, 0, 2**62, None), ("/store/a", 0, 0, 2**62, None)]))
    with pytest.raises(DataError, match="cpu_ms of crab"):
        task.drain(Groups(GROUPS), snapshots[1], pseudonym)


#: Prints the bytes that a task holds after each of forty turns, and the accesses and
#: remote accesses that it counted.
_HOLDS = """
import json, pathlib, sys
from tests.counting.test_pre_aggregate import held_by_a_task
print(json.dumps(held_by_a_task(pathlib.Path(sys.argv[1]))))
"""


def held_by_a_task(folder: Path, blocks: int = 3_000) -> tuple[list[int], int, int]:
    files: list[File] = [(f"/store/{number}", number, 1, number) for number in range(blocks)]
    groups = [Group(f"T2_{number}", "crab", "Ann", Remote.BY_REPLICA) for number in range(10)]
    catalogue = opened(folder / "catalogue", files, DATASETS, part=blocks)
    replicas = opened_replicas(folder / "replicas", [(1, "/x/y/RAW#1")], [("/x/y/RAW#1", "T2_1")])
    task = StreamAggregator("cmssw", catalogue, aggregate_at=2 * blocks)
    held = []
    tracemalloc.start()
    for turn in range(40):
        # No two accesses of ten turns have the same block and group.
        task.add(batch_of([(f"/store/{n}", (n + turn) % 10, 1, 1, 1) for n in range(blocks)]))
        task.drain(Groups(groups), replicas, pseudonym)
        held.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    rows = rows_of(task.rows(Groups(groups), replicas, pseudonym))
    return held, sum(row["nacc"] for row in rows), sum(row["remote_nacc"] for row in rows)


def test_what_a_task_holds_does_not_grow_with_its_accesses(tmp_path: Path) -> None:
    # A process of its own: in this one, threads of other tests' servers hold and free
    # memory meanwhile.
    command, top = (
        [sys.executable, "-c", _HOLDS, str(tmp_path)],
        Path(__file__).resolve().parents[2],
    )
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=top)
    held, accesses, remote_accesses = json.loads(done.stdout)
    assert max(held[20:]) < 1.1 * max(held[:4])
    assert accesses == 40 * 3_000
    # Block 1 lies at T2_1, and was read there in four turns.
    assert remote_accesses == 40 * 3_000 - 4


def test_nothing_matched_gives_no_rows_and_its_bins(snapshots: tuple[Catalogue, Replicas]) -> None:
    task = StreamAggregator("aaa", snapshots[0])
    task.add(batch_of([("/other", 0, 1, None, None)] * 2))
    task.add(AccessBatch())
    assert rows_of(task.rows(Groups(GROUPS), snapshots[1], pseudonym)) == []
    assert {row["app"]: row["nacc"] for row in rows_of(task.bin_rows())} == {
        "read": 2,
        "not_in_dbs": 2,
    }


def test_bins_days_generations_and_quarantine_leave_as_rows(
    snapshots: tuple[Catalogue, Replicas],
) -> None:
    raw = bytes(range(256))
    for task in (StreamAggregator("eos", snapshots[0]), HashAggregator("eos")):
        for _ in range(2):
            task.add(
                AccessBatch(
                    read=9,
                    write_only=1,
                    unnamed=Counter({0: 2}),
                    out_of_day={18_000: 2, 2_932_897: 1},
                    malformed=[Quarantined("part-0", 7, "not a JSON object", raw)],
                    generations={"G1": 3},
                )
            )
        rows = rows_of(task.bin_rows())
        assert all(row["kind"] in ("bin", "quarantine") and row["stream"] == "eos" for row in rows)
        assert {
            (row["app"], row["detail"]): row["nacc"] for row in rows if row["kind"] == "bin"
        } == {
            ("read", None): 18,
            ("write_only", None): 2,
            ("no_lfn", None): 4,
            ("malformed", None): 2,
            ("out_of_day", "2019-04-14"): 4,
            ("out_of_day", "beyond 9999-12-31"): 2,
            ("generation G1", None): 6,
        }
        kept = [json.loads(row["detail"]) for row in rows if row["kind"] == "quarantine"]
        record = {
            "file": "part-0",
            "position": 7,
            "reason": "not a JSON object",
            "raw": raw.decode("latin-1"),
        }
        assert (
            kept
            == [{**record, "raw_encoding": "latin-1", "record_bytes": 256, "is_cut": False}] * 2
        )


def test_many_quarantined_records_leave_before_the_task_ends(
    snapshots: tuple[Catalogue, Replicas],
) -> None:
    for task in (StreamAggregator("eos", snapshots[0]), HashAggregator("eos")):
        told = []
        for position in range(200):
            record = Quarantined("part-0", position, "not a JSON object", b"x" * 1_000_000)
            task.add(AccessBatch(read=1, malformed=[record]))
            told += rows_of(task.drain(Groups(GROUPS), snapshots[1], pseudonym))
            assert len(task.quarantined) <= 17
        assert len(told) > 150
        assert {row["kind"] for row in told} == {"quarantine"}
        told += rows_of(task.bin_rows())
        kept = [
            json.loads(row["detail"])["position"] for row in told if row["kind"] == "quarantine"
        ]
        assert kept == list(range(200))
        assert {row["app"]: row["nacc"] for row in told if row["kind"] == "bin"} == {
            "read": 200,
            "malformed": 200,
        }


def test_a_name_leaves_a_task_as_a_pseudonym_only(snapshots: tuple[Catalogue, Replicas]) -> None:
    records: list[Record] = [
        (lfn, group, 1, None, None) for lfn in BLOCK_OF for group in range(len(GROUPS))
    ]
    for task in (StreamAggregator("aaa", snapshots[0]), HashAggregator("aaa")):
        task.add(batch_of(records))
        rows = rows_of(task.rows(Groups(GROUPS), snapshots[1], pseudonym))
        assert {row["user"] for row in rows} == {"hidden Ann", "hidden Bob", None}


@pytest.mark.parametrize(
    ("lfn", "wanted"),
    [
        ("/store/user/x", "user_file"),
        ("/store/group/x", "user_file"),
        ("/store/users/x", "not_in_dbs"),
        ("/store/user", "not_in_dbs"),
        ("/store/temp/user/x", "temporary"),
        ("/store/unmerged/x", "temporary"),
        ("/store/temporary/x", "not_in_dbs"),
        ("store/user/x", "not_in_dbs"),
        ("/STORE/USER/x", "not_in_dbs"),
        ("", "not_in_dbs"),
        ("/store/data/user/x", "not_in_dbs"),
    ],
)
def test_what_is_not_in_dbs_is_binned_by_its_name(lfn: str, wanted: str) -> None:
    assert pre_aggregate.unmatched_bin(lfn) == wanted


def test_without_replicas_remoteness_is_not_known(snapshots: tuple[Catalogue, Replicas]) -> None:
    task = StreamAggregator("cmssw", snapshots[0])
    task.add(batch_of([("/store/a", 0, 1, None, None), ("/store/a", 1, 1, None, None)]))
    (row,) = rows_of(task.rows(Groups(GROUPS), None, pseudonym))
    assert (row["nacc"], row["remote_nacc"]) == (2, 1)


def test_unmatched_files_are_in_their_bins_however_many_directories_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalogue, _ = _snapshots(tmp_path)
    names = [
        "/store/user/a/x",
        "/store/temp/b/x",
        "/store/mc/Run2/x",
        "/store/a",
        "/store/user/c/x",
    ]
    lines = b"".join(aaa({"file_lfn": name}) + b"\n" for name in names * 3)
    found = []
    for kept in (1, 10_000):
        monkeypatch.setattr(pre_aggregate, "HEADS_KEPT", kept)
        task, reader = (
            StreamAggregator("aaa", catalogue),
            Reader("aaa", "enr", date.fromisoformat(DAY)),
        )
        for _ in range(2):
            task.add(reader.chunk(lines, "part-0"))
        bins = {row["app"]: row["nacc"] for row in rows_of(task.bin_rows())}
        found.append(
            (
                bins,
                sorted(
                    (row["app"], row["nacc"]) for row in rows_of(task.note_rows([], reader.groups))
                ),
            )
        )
    assert found[0] == found[1]
    assert {
        name: found[0][0][name] for name in ("read", "user_file", "temporary", "not_in_dbs")
    } == {"read": 30, "user_file": 12, "temporary": 6, "not_in_dbs": 6}
