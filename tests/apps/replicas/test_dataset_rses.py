"""``dataset_rses`` beside its oracle, on worlds with what dumps have at their worst:
blocks in two containers, two rules of one account, locks without a replica, last copies
on tape, copies that do not count, sizes that nobody knows, elements that are gone.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import fastavro
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cmsspark.apps.replicas.dataset_rses import JOB, checks
from cmsspark.base.errors import DataError, NotReady
from cmsspark.base.schemas import stored_table
from cmsspark.run import dump_day
from cmsspark.run.request import JobRequest
from cmsspark.settings.settings import load_settings
from tests.apps.usage.test_rucio_jobs import write_dbs
from tests.apps.usage.test_spark_costs import jobs_of
from tests.corpus.tree import AWG
from tests.oracle import holds as oracle

DAY = date(2026, 1, 15)
#: The dump is of the day after.
START_MS = 1_768_521_600_000
DATASET = "/A/Run2026A-v1/AOD"
OTHER = "/B/Run2026A-v1/RAW"
RSES = {
    "T1_US_FNAL_Disk": "DISK",
    "T1_US_FNAL_Tape": "TAPE",
    "T2_X": "DISK",
    "T2_Y": "DISK",
    "T2_Z_Test": "DISK",
}
_TYPES = {name: "bytes" for name in ("ID", "RSE_ID", "RULE_ID")} | {
    name: "long"
    for name in (
        "CREATED_AT",
        "ACCESSED_AT",
        "UPDATED_AT",
        "TOMBSTONE",
        "DELETED_AT",
        "EXPIRES_AT",
    )
}
_FIELDS = {
    "RSES": "ID RSE RSE_TYPE DELETED_AT",
    "REPLICAS": "RSE_ID SCOPE NAME BYTES STATE LOCK_CNT TOMBSTONE CREATED_AT ACCESSED_AT",
    "CONTENTS": "SCOPE NAME CHILD_SCOPE CHILD_NAME DID_TYPE CHILD_TYPE BYTES",
    "DATASET_LOCKS": "SCOPE NAME RULE_ID RSE_ID ACCOUNT STATE LENGTH BYTES CREATED_AT UPDATED_AT",
    "RULES": "ID ACCOUNT EXPIRES_AT",
}
Rows = dict[str, list[dict[str, Any]]]


def rse_id(name: str) -> bytes:
    return name.encode().ljust(16, b".")[:16]


def rule_id(name: str) -> bytes:
    return name.encode().rjust(16, b"r")


def replica(rse: str, name: str, **more: Any) -> dict[str, Any]:
    return {
        "RSE_ID": rse_id(rse),
        "SCOPE": "cms",
        "NAME": name,
        "BYTES": "10",
        "STATE": "A",
        "LOCK_CNT": "0",
        "TOMBSTONE": None,
        "CREATED_AT": START_MS - 5,
        "ACCESSED_AT": None,
    } | more


def content(block: str, name: str, size: int | None = None, kinds: str = "DF") -> dict[str, Any]:
    return {
        "SCOPE": "cms",
        "NAME": block,
        "CHILD_SCOPE": "cms",
        "CHILD_NAME": name,
        "DID_TYPE": kinds[0],
        "CHILD_TYPE": kinds[1],
        "BYTES": None if size is None else str(size),
    }


def lock(
    block: str, rse: str, rule: str, account: str | None, state: str, **more: Any
) -> dict[str, Any]:
    return {
        "SCOPE": "cms",
        "NAME": block,
        "RULE_ID": rule_id(rule),
        "RSE_ID": rse_id(rse),
        "ACCOUNT": account,
        "STATE": state,
    } | more


def rses() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [
        {"ID": rse_id(name), "RSE": name, "RSE_TYPE": kind} for name, kind in RSES.items()
    ]
    return [
        *rows,
        {"ID": rse_id("T2_Gone"), "RSE": "T2_Gone", "RSE_TYPE": "DISK", "DELETED_AT": 5},
    ]


def write_world(root: Path, rucio: Rows, datasets: Any = (), files: Any = ()) -> Path:
    """A root with a dump of Rucio and one of DBS: datasets (id, name), files (lfn,
    file_id, dataset_id, is_file_valid). A table with no rows is not there.
    """
    folder = root / AWG / "rucio/2026-01-16"
    unused = {"ID": rule_id("unused"), "ACCOUNT": "ops"}
    for table, rows in ({"RSES": rses(), "RULES": [unused]} | rucio).items():
        write_table(folder, table, rows)
    dbs = {
        "DATASETS": [{"dataset_id": number, "dataset": name} for number, name in datasets],
        "FILES": [
            {
                "logical_file_name": lfn,
                "file_id": file_id,
                "dataset_id": dataset_id,
                "is_file_valid": valid,
            }
            for lfn, file_id, dataset_id, valid in files
        ],
    }
    write_dbs(root / AWG / "dbs/PROD_GLOBAL/2026-01-16", dbs)
    return folder


def write_table(
    folder: Path, table: str, rows: Sequence[Mapping[str, Any]], fields: str = ""
) -> None:
    names = (fields or _FIELDS[table]).split()
    schema = {
        "type": "record",
        "name": table,
        "fields": [{"name": name, "type": ["null", _TYPES.get(name, "string")]} for name in names],
    }
    place = folder / table.lower()
    place.mkdir(parents=True, exist_ok=True)
    # In two parts: what belongs together is read apart.
    for part in range(2 if rows else 0):
        some = [{name: row.get(name) for name in names} for row in rows[part::2]]
        with (place / f"part-m-{part:05d}.avro").open("wb") as stream:
            fastavro.writer(stream, fastavro.parse_schema(schema), some)


def run(root: Path, out: Path, engine: str = "processes", job: Any = JOB) -> Any:
    out.mkdir(parents=True, exist_ok=True)
    written = out / "cmsspark.yaml"
    written.write_text(f"state_dir: {out}/state\ncache_dir: {out}/cache\n")
    request = JobRequest(
        job.name, DAY, str(out / "store"), load_settings(str(written)), str(root), engine=engine
    )
    return dump_day.run(job, request, lambda _: None)


def rows_of(done: Any) -> dict[tuple[str, str], dict[str, Any]]:
    table = pq.read_table(Path(done.path) / "dataset_rses")
    assert table.schema.names == stored_table("dataset_rses").names
    return {(row["rse"], row["dataset_name"]): row for row in table.to_pylist()}


def oracle_rows(folder: Path, datasets: Any = (), files: Any = ()) -> Any:
    places = {
        rse_id(name).hex(): (name, name.removesuffix("_Disk").removesuffix("_Tape"), kind.lower())
        for name, kind in RSES.items()
        if not name.endswith("_Test")
    }
    return oracle.dataset_rses(folder, places, datasets, files, START_MS)


def assert_as_oracle(done: Any, expected: Any) -> None:
    rows = rows_of(done)
    assert set(rows) == set(expected)
    for key, cells in expected.items():
        assert {name: rows[key][name] for name in cells} == cells, key


B1, B2 = f"{DATASET}#1", f"{DATASET}#2"


def test_the_example_of_rule_66(tmp_path: Path) -> None:
    world: Rows = {
        "REPLICAS": [
            replica("T2_X", "/f1", BYTES="100", LOCK_CNT="1"),
            replica("T2_X", "/f2", BYTES="50"),
            replica("T2_X", "/f3", STATE="C"),
        ],
        "CONTENTS": [content(B1, "/f1"), content(B1, "/f2"), content(B2, "/f3", 10)],
        "DATASET_LOCKS": [
            lock(B1, "T2_X", "r1", "wmcore_output", "O"),
            lock(B1, "T2_X", "r2", "ann", "R"),
            lock(B2, "T2_X", "r1", "wmcore_output", "R"),
        ],
    }
    files = [(name, number, 1, 1) for number, name in enumerate(("/f1", "/f2", "/f3"))]
    write_world(tmp_path / "root", world, [(1, DATASET)], files)
    done = run(tmp_path / "root", tmp_path / "out")
    (row,) = rows_of(done).values()
    assert (row["file_count"], row["bytes"], row["block_count"], row["full_block_count"]) == (
        2,
        150,
        1,
        1,
    )
    assert (row["dataset_block_count"], row["dbs_file_count"], row["dbs_present_count"]) == (
        2,
        3,
        2,
    )
    assert (row["is_complete"], row["locked_file_count"], row["locked_bytes"]) == (False, 1, 100)
    states = [row[f"lock_blocks_{name}"] for name in ("ok", "replicating", "stuck")]
    classes = [row[f"lock_blocks{name}"] for name in ("", "_production", "_sync", "_other")]
    assert (states, classes, row["rule_count"]) == ([1, 2, 0], [2, 2, 0, 1], 2)
    assert (row["production_accounts"], row["lock_state"]) == ("wmcore_output", "full")
    assert (row["site_name"], row["kind"], row["data_tier"], row["day"]) == (
        "T2_X",
        "disk",
        "AOD",
        DAY,
    )
    assert done.manifest.document["checks"]["locks_without_rule"] == 3


@pytest.mark.parametrize(
    ("copies", "deletable", "on_disk", "only", "only_disk"),
    [
        ("X Y", (0, 10), (0, 10), (0, 0), (0, 0)),
        ("X Y tape", (10, 10, 0), (0, 10, 0), (0, 0, 0), (0, 0, 0)),
        ("X Y! tape", (10, 0, 10), (10, 0, 0), (0, 0, 0), (0, 0, 0)),
        ("X", (0,), (0,), (10,), (10,)),
        ("X tape", (10, 0), (0, 0), (0, 0), (10, 0)),
        ("X tape!", (10, 0), (0, 0), (0, 0), (10, 0)),
        ("X! Y!", (0, 0), (0, 0), (0, 0), (0, 0)),
        ("tape", (0,), (0,), (10,), (0,)),
    ],
)
def test_the_examples_of_rule_67(
    tmp_path: Path, copies: str, deletable: Any, on_disk: Any, only: Any, only_disk: Any
) -> None:
    names = {"X": "T2_X", "Y": "T2_Y", "tape": "T1_US_FNAL_Tape"}
    at = [
        (names[copy.rstrip("!")], "1" if copy.endswith("!") else None) for copy in copies.split()
    ]
    world: Rows = {
        # Copies that do not count keep nothing.
        "REPLICAS": [replica(rse, "/f", LOCK_CNT=count) for rse, count in at]
        + [
            replica("T2_Z_Test", "/f"),
            replica("T2_Gone", "/f"),
            replica("T1_US_FNAL_Disk", "/f", STATE="B"),
        ],
        "CONTENTS": [content(B1, "/f")],
        "DATASET_LOCKS": [lock(f"{OTHER}#1", "T2_X", "r", "ann", "O")],
    }
    write_world(tmp_path / "root", world, [(1, DATASET)], [("/f", 1, 1, 1)])
    rows = rows_of(run(tmp_path / "root", tmp_path / "out"))
    names_of = ("deletable_bytes", "deletable_disk_bytes", "only_copy_bytes", "only_disk_bytes")
    cells = [tuple(rows[rse, DATASET][name] for rse, _ in at) for name in names_of]
    assert cells == [deletable, on_disk, only, only_disk]


NAMES = [f"/store/{number}.root" for number in range(6)]
BLOCKS = [B1, B2, f"{OTHER}#1", f"{OTHER}#2"]
_TIMES = st.sampled_from([None, START_MS - 1, START_MS, START_MS - 86_400_000])
_PLACES = st.sampled_from([*RSES, "T2_Gone", "T2_Nobody"])
_REPLICAS = st.builds(
    replica,
    _PLACES,
    st.sampled_from([*NAMES, "/store/loose.root", None]),
    SCOPE=st.sampled_from(["cms"] * 6 + ["user.ann"]),
    BYTES=st.sampled_from(["0", "7", "1000", str(2**40), None]),
    STATE=st.sampled_from([*"AAAAAACBUDT", "AVAILABLE", " a", "BEING_DELETED"]),
    LOCK_CNT=st.sampled_from(["0", "0", "1", "3", None]),
    TOMBSTONE=st.sampled_from([None, 0, START_MS - 1, START_MS, START_MS + 1]),
    CREATED_AT=_TIMES,
    ACCESSED_AT=_TIMES,
)
_CONTENTS = st.one_of(
    st.builds(
        content,
        st.sampled_from([*BLOCKS, BLOCKS[0], "no block", DATASET, None]),
        st.sampled_from(NAMES),
        st.sampled_from([None, 0, 7, 1000]),
        st.sampled_from(["DF", "DF", "DF", "XF", "DA"]),
    ),
    st.builds(
        content,
        # A block may be in two containers, which makes no file twice.
        st.sampled_from([DATASET, OTHER, f"{DATASET}-partial"]),
        st.sampled_from(BLOCKS),
        st.none(),
        st.just("CD"),
    ),
)
_LOCKS = st.builds(
    lock,
    st.sampled_from([*BLOCKS, f"{DATASET}#gone", "/C/only/LOCKED#1", "no block", None]),
    _PLACES,
    st.sampled_from(["r1", "r2", "r3"]),
    st.sampled_from(
        ["transfer_ops", "crab_input", "sync_t2_x", "sync_", "ann", "synchronous", None]
    ),
    st.sampled_from(["O", "R", "S", "stuck", " ok ", "REPLICATING"]),
    SCOPE=st.sampled_from(["cms"] * 6 + ["group.x"]),
    LENGTH=st.sampled_from([None, "5"]),
    UPDATED_AT=st.sampled_from([None, 1, 2]),
)
_DATASETS = st.lists(
    st.tuples(st.integers(1, 4), st.sampled_from([DATASET, OTHER, "/D/none/RAW"])),
    unique_by=lambda row: row[0],
)
_FILES = st.lists(
    st.tuples(
        st.sampled_from(NAMES), st.integers(1, 9), st.integers(1, 5), st.sampled_from([0, 1, 1])
    ),
    unique_by=lambda row: row[:2],
    max_size=10,
)


@given(
    st.lists(_REPLICAS, min_size=1, max_size=25),
    st.lists(_CONTENTS, min_size=1, max_size=14),
    st.lists(_LOCKS, min_size=1, max_size=8),
    _DATASETS,
    _FILES,
)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_cell_is_the_oracles(
    replicas: Any, contents: Any, locks: Any, datasets: Any, files: Any
) -> None:
    # Something of each table counts: none of many rows is never a result.
    replicas = [*replicas, replica("T2_Y", NAMES[0])]
    contents = [*contents, content(B1, NAMES[0])]
    locks = [*locks, lock(B1, "T2_Y", "r0", "ann", "O")]
    datasets = [*datasets, (9, "/E/some/AOD")]
    files = [*files, ("/store/e.root", 1, 9, 1)]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        world = {"REPLICAS": replicas, "CONTENTS": contents, "DATASET_LOCKS": locks}
        dump = write_world(root / "root", world, datasets, files)
        done = run(root / "root", root / "out")
        assert_as_oracle(done, oracle_rows(dump, datasets, files))


def test_each_kind_of_row_that_is_ignored_is_counted(tmp_path: Path) -> None:
    world: Rows = {
        "REPLICAS": [
            replica("T2_X", "/f"),
            replica("T2_Z_Test", "/f"),
            replica("T2_Gone", "/f"),
            replica("T2_X", "/loose", BYTES="33"),
        ],
        "CONTENTS": [content(B1, "/f")],
        "DATASET_LOCKS": [
            lock(B1, "T2_X", "r", "ann", "O"),
            lock(B1, "T2_Z_Test", "r", "ann", "O"),
            lock(B1, "T2_Gone", "r", "ann", "O"),
            lock("no block", "T2_X", "r", "ann", "O"),
            lock(B1, "T2_X", "r", "ann", "O", SCOPE="user.ann"),
            lock(B1, "T2_X", "r", "ann", "Q"),
        ],
        "RULES": [{"ID": rule_id("r"), "ACCOUNT": "ann"}],
    }
    write_world(tmp_path / "root", world, [(1, DATASET)], [("/f", 1, 1, 1)])
    document = run(tmp_path / "root", tmp_path / "out").manifest.document
    read = {entry["table"] for entry in document["inputs"]}
    assert read == {"DATASETS", "FILES", "CONTENTS", "REPLICAS", "RSES", "DATASET_LOCKS", "RULES"}
    locks = document["rucio"]["tables"]["DATASET_LOCKS"]
    assert (locks["rows"], locks["damaged"]) == (6, 1)
    assert locks["examples"] == ["DATASET_LOCKS.STATE is 'Q'"]
    assert locks["ignored"] == {
        "not_a_block": 1,
        "other_scope": 1,
        "test_rse": 1,
        "unknown_rse": 1,
    }
    assert document["checks"] == {
        "rses_with_other_sums": 0,
        "rows_locked_beyond_bytes": 0,
        "rows_deletable_beyond_bytes": 0,
        "files_lost": 0,
        "last_copies_deletable": 0,
        "files_with_copy": 2,
        "files_in_no_block": {"file_count": 1, "bytes": 33},
        "locks": 1,
        "locks_without_rule": 0,
    }


@pytest.mark.parametrize("table", ["REPLICAS", "CONTENTS", "DATASET_LOCKS"])
def test_many_codes_that_rucio_does_not_have_fail_the_day(tmp_path: Path, table: str) -> None:
    world: Rows = {
        "REPLICAS": [replica("T2_X", "/f")],
        "CONTENTS": [content(B1, "/f")],
        "DATASET_LOCKS": [lock(B1, "T2_X", "r", "ann", "O")],
    }
    odd = {
        "REPLICAS": replica("T2_X", "/f", STATE="Q"),
        "CONTENTS": content(B1, "/f", kinds="DQ"),
        "DATASET_LOCKS": lock(B1, "T2_X", "r", "ann", "LOCKED"),
    }
    for count, fails in ((10, False), (11, True)):
        root = tmp_path / str(count)
        write_world(
            root,
            {**world, table: world[table] + count * [odd[table]]},
            [(1, DATASET)],
            [("/f", 1, 1, 1)],
        )
        if fails:
            with pytest.raises(DataError, match=f"{table} has more damaged rows"):
                run(root, tmp_path / f"out {count}")
        else:
            assert (
                rows_of(run(root, tmp_path / f"out {count}"))["T2_X", DATASET]["file_count"] == 1
            )


@pytest.mark.parametrize("table", ["DATASET_LOCKS", "RULES"])
def test_a_dump_without_locks_ends_this_job_alone_with_75(tmp_path: Path, table: str) -> None:
    world: Rows = {
        "REPLICAS": [replica("T2_X", "/f")],
        "CONTENTS": [content(B1, "/f")],
        "DATASET_LOCKS": [lock(B1, "T2_X", "r", "ann", "O")],
    }
    write_world(tmp_path / "root", {**world, table: []}, [(1, DATASET)], [("/f", 1, 1, 1)])
    with pytest.raises(NotReady, match="no complete rucio dump") as raised:
        run(tmp_path / "root", tmp_path / "out")
    assert f"{table} is empty" in str(raised.value.found)
    from cmsspark.apps.replicas.replica_jobs import RUCIO_DAILY

    assert run(tmp_path / "root", tmp_path / "out", job=RUCIO_DAILY).path


def test_a_dump_of_locks_may_lack_what_only_repeated_keys_need(tmp_path: Path) -> None:
    world: Rows = {"REPLICAS": [replica("T2_X", "/f")], "CONTENTS": [content(B1, "/f")]}
    folder = write_world(tmp_path / "root", world, [(1, DATASET)], [("/f", 1, 1, 1)])
    rows = [lock(B1, "T2_X", "r", "ann", "O"), lock(B1, "T2_X", "r", "ann", "S")]
    write_table(folder, "DATASET_LOCKS", rows, "SCOPE NAME RULE_ID RSE_ID ACCOUNT STATE")
    row = rows_of(run(tmp_path / "root", tmp_path / "out"))["T2_X", DATASET]
    assert (row["lock_blocks_ok"], row["lock_blocks_stuck"]) == (0, 1), "the larger state counts"


def test_a_check_that_does_not_hold_fails_the_run(tmp_path: Path) -> None:
    import polars as pl

    copies = pl.DataFrame(
        {
            "rse": ["T2_X"],
            "file_count": [2],
            "bytes": [100],
            "locked_bytes": [60],
            "deletable_bytes": [40],
            "deletable_disk_bytes": [40],
        }
    )
    by_rse = pl.DataFrame(
        {
            "rse": ["T2_X"],
            "file_count": [3],
            "bytes": [110],
            "loose_file_count": [1],
            "loose_bytes": [10],
        }
    )
    counts = pl.DataFrame(
        [{"files": 3, "lost": 0, "only_and_deletable": 0, "locks": 0, "without_rule": 0}]
    )
    frames = {"copies": copies, "copies_by_rse": by_rse, "copy_checks": counts}
    assert checks(frames)["checks"]["files_in_no_block"] == {"file_count": 1, "bytes": 10}
    wrong = {
        "rses_with_other_sums": {"copies_by_rse": by_rse.with_columns(bytes=pl.lit(111))},
        "rows_locked_beyond_bytes": {"copies": copies.with_columns(locked_bytes=pl.lit(101))},
        "rows_deletable_beyond_bytes": {"copies": copies.with_columns(deletable_bytes=pl.lit(41))},
        "files_lost": {"copy_checks": counts.with_columns(lost=pl.lit(1))},
        "last_copies_deletable": {
            "copy_checks": counts.with_columns(only_and_deletable=pl.lit(1))
        },
    }
    for name, frame in wrong.items():
        with pytest.raises(DataError) as raised:
            checks(frames | frame)
        assert name in str(raised.value.found)


def test_spark_makes_the_same_cells(spark: Any, tmp_path: Path) -> None:
    world: Rows = {
        "REPLICAS": [
            replica(rse, name, LOCK_CNT=str(number % 3), TOMBSTONE=number)
            for number, (rse, name) in enumerate(
                (rse, name) for rse in RSES for name in NAMES if (rse, name) != ("T2_X", NAMES[2])
            )
        ],
        "CONTENTS": [content(BLOCKS[number % 3], name) for number, name in enumerate(NAMES)],
        "DATASET_LOCKS": [
            lock(block, rse, f"r{number % 4}", account, "ORS"[number % 3])
            for number, (block, rse, account) in enumerate(
                (block, rse, account)
                for block in BLOCKS
                for rse in RSES
                for account in ("ann", "sync_x", "wma_prod")
            )
        ],
    }
    datasets = [(1, DATASET), (2, OTHER), (3, DATASET)]
    files = [(name, number, number % 4, 1) for number, name in enumerate(NAMES)]
    folder = write_world(tmp_path / "root", world, datasets, files)
    by_processes = run(tmp_path / "root", tmp_path / "out")
    assert_as_oracle(by_processes, oracle_rows(folder, datasets, files))
    done: list[Any] = []
    jobs = jobs_of(
        spark, lambda: done.append(run(tmp_path / "root", tmp_path / "spark", engine="spark"))
    )
    assert jobs.stages <= 6
    (in_spark,) = done
    assert json.dumps(list(rows_of(in_spark).values()), default=str) == json.dumps(
        list(rows_of(by_processes).values()), default=str
    )


def test_the_demo_has_the_locks_that_it_says_it_has(tmp_path: Path) -> None:
    import numpy as np

    from cmsspark.apps.demo import make
    from cmsspark.apps.demo.world import make_world
    from cmsspark.apps.demo.write_rucio import ACCOUNTS, find_rse, lock_count
    from cmsspark.apps.replicas.replica_jobs import RUCIO_DAILY

    sizes = {"files": 500, "datasets": 40, "people": 30}
    made = make(tmp_path / "root", DAY, records=2_000, seed=1, **sizes)
    world = make_world(np.random.default_rng([1, 0]), **sizes)
    at = [(i, rse, one) for i, one in enumerate(world.replicas) if (rse := find_rse(one.node))]
    done = run(made.root, tmp_path / "out")
    rows = rows_of(done).values()

    def total(name: str) -> int:
        return sum(row[name] for row in rows)

    def of_accounts(begins: str) -> int:
        accounts = [ACCOUNTS[i % len(ACCOUNTS)] for i, _, _ in at if lock_count(i)]
        return sum(account.startswith(begins) for account in accounts)

    assert total("lock_blocks") == sum(lock_count(i) > 0 for i, _, _ in at)
    assert total("rule_count") == sum(lock_count(i) for i, _, _ in at)
    assert total("lock_blocks_sync") == of_accounts("sync_") > 0
    assert total("lock_blocks_production") == of_accounts("transfer_ops") + of_accounts("wmcore")
    assert total("locked_file_count") == sum(one.files for i, _, one in at if lock_count(i))
    assert total("deletable_bytes") > 0 < total("only_copy_bytes")
    daily = pq.read_table(
        Path(run(made.root, tmp_path / "out", job=RUCIO_DAILY).path) / "rucio_daily"
    )
    in_blocks = [row for row in daily.to_pylist() if row["dataset_name"] is not None]
    assert total("bytes") == sum(row["bytes"] for row in in_blocks)
    assert done.manifest.document["checks"]["locks_without_rule"] == 0


def test_the_view_has_the_names_of_cmssparks_index(tmp_path: Path) -> None:
    from cmsspark.store.query.database import Database

    world: Rows = {
        "REPLICAS": [
            replica("T2_X", "/f1", BYTES="100", ACCESSED_AT=START_MS - 500),
            replica("T1_US_FNAL_Tape", "/f1", BYTES="100"),
        ],
        "CONTENTS": [content(B1, "/f1"), content(B2, "/f2")],
        "DATASET_LOCKS": [
            lock(B1, "T2_X", "r1", "wma_prod", "O"),
            lock(B1, "T2_X", "r2", "sync_t2_x", "O"),
            lock(B2, "T2_Y", "r1", "ann", "O"),
            lock(B1, "T2_Y", "r1", "ann", "O"),
        ],
    }
    files = [("/f1", 1, 1, 1), ("/f2", 2, 1, 1), ("/f3", 3, 1, 1)]
    write_world(tmp_path / "root", world, [(1, DATASET)], files)
    run(tmp_path / "root", tmp_path / "out")
    database = Database(str(tmp_path / "out" / "store"))
    rows = database.query('select * from cmsspark_rucio_datasets order by "RSE"').dicts
    tape, x, y = rows
    assert x == {
        "day": DAY,
        "Type": "DISK",
        "Dataset": DATASET,
        "RSE": "T2_X",
        "Tier": "T2",
        "Country": "X",
        "RseKind": "prod",
        "SizeBytes": 100,
        "LastAccess": START_MS // 1000 - 1,
        "LastCreate": START_MS // 1000 - 1,
        "IsFullyReplicated": False,
        "IsLocked": "PARTIAL",
        "FilePercentage": 33.33,
        "FileCount": 1,
        "AccessedFileCount": 1,
        "BlockCount": 2,
        "ProdLockedBlockCount": 1,
        "ProdAccounts": "sync,wma_prod",
        "BlockRuleIDs": f"{rule_id('r1').hex()},sync-rules",
    }
    assert (tape["IsLocked"], tape["Type"], tape["Country"]) == ("DYNAMIC", "TAPE", "US")
    assert (y["IsLocked"], y["FileCount"], y["ProdAccounts"]) == ("FULLY", 0, None)
    described = database.views["cmsspark_rucio_datasets"]
    assert described.names == list(x)
