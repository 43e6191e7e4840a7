"""What may go, what would be lost, and who holds it: answers from the table of locked
copies and from the dump of Rucio.
"""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cmsspark.apps.ask.cli import command
from cmsspark.apps.replicas.dataset_last_access import JOB as LAST_ACCESS
from cmsspark.base.errors import InputMissing
from tests.apps.ask.test_cli import lying, store_table
from tests.apps.replicas.test_dataset_rses import (
    B1,
    B2,
    DATASET,
    DAY,
    OTHER,
    START_MS,
    Rows,
    content,
    lock,
    replica,
    rule_id,
    run,
    write_table,
    write_world,
)

OLD_MS = START_MS - 800 * 86_400_000
SMALL = "/C/Run2026A-v1/RAW"


def old(rse: str, name: str, size: int, **more: Any) -> dict[str, Any]:
    return replica(rse, name, BYTES=str(size), CREATED_AT=OLD_MS, **more)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Datasets that nobody reads: one locked at T2_X, one with copies at T2_X, T2_Y and
    on tape, one at T2_X alone.
    """
    world: Rows = {
        "REPLICAS": [
            old("T2_X", "/locked", 900, LOCK_CNT="1"),
            old("T2_X", "/free1", 500),
            old("T2_X", "/free2", 40),
            old("T2_Y", "/free1", 500),
            old("T1_US_FNAL_Tape", "/free1", 500),
            old("T1_US_FNAL_Disk", "/free2", 40),
            old("T2_X", "/small", 70),
        ],
        "CONTENTS": [
            content(B1, "/locked"),
            content(f"{OTHER}#1", "/free1"),
            content(f"{OTHER}#2", "/free2"),
            content(f"{SMALL}#1", "/small"),
        ],
        "DATASET_LOCKS": [
            lock(B1, "T2_X", "r1", "wmcore_output", "O"),
            lock(B2, "T2_X", "r1", "wmcore_output", "R"),
            lock(B1, "T2_X", "r2", "ann", "S"),
            lock(f"{OTHER}#9", "T2_Gone", "r3", "ann", "O"),
        ],
        "RULES": [
            {"ID": rule_id("r1"), "ACCOUNT": "wmcore_output", "EXPIRES_AT": None},
            {"ID": rule_id("r2"), "ACCOUNT": "ann", "EXPIRES_AT": START_MS},
        ],
        "DIDS": [],
    }
    del world["DIDS"]
    datasets = [(1, DATASET), (2, OTHER), (3, SMALL)]
    folder = write_world(tmp_path / "root", world, datasets, [("/small", 1, 3, 1)])
    dids = [{"SCOPE": "cms", "NAME": "/none", "DID_TYPE": "F"}]
    write_table(folder, "DIDS", dids, "SCOPE NAME DID_TYPE DELETED_AT ACCESSED_AT")
    return tmp_path / "root"


def ask(out: Path, *arguments: str) -> Any:
    words = [*arguments, "--fout", str(out / "store"), "--settings", str(out / "cmsspark.yaml")]
    return CliRunner().invoke(command, words, catch_exceptions=False)


def rows_of(out: Path, *arguments: str) -> list[tuple[Any, ...]]:
    answer = json.loads(ask(out, *arguments, "--json").stdout)
    return [
        (row["dataset_name"], row["rse"], row["deletable_bytes"], row["freed_bytes"])
        for row in answer["rows"]
    ]


def test_what_a_rule_holds_and_what_is_a_last_copy_is_not_deletable(
    root: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    run(root, out)
    run(root, out, job=LAST_ACCESS)
    # /free1 stays on tape; of /free2 the copy at T1_US_FNAL_Disk, the first by name, stays.
    assert rows_of(out, "deletable", "T2_*") == [
        (OTHER, "T2_X", 540, 540),
        (OTHER, "T2_Y", 500, 1_040),
    ]
    assert rows_of(out, "deletable", "T1_*", "--kind", "tape") == []
    assert "these 1 dataset free 1.0 kB at T2_*" in ask(out, "deletable", "T2_*").stdout
    assert rows_of(out, "deletable", "T2_*", "--free", "540B") == [(OTHER, "T2_X", 540, 540)]
    assert len(rows_of(out, "deletable", "T2_*", "--free", "541B")) == 2
    assert "2.0 TB cannot be freed" in ask(out, "deletable", "T2_*", "--free", "2TB").stdout


def test_a_candidate_is_a_dataset_of_which_something_may_go(root: Path, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    def candidates(out: Path) -> dict[str, tuple[bool, int | None]]:
        done = run(root, out, job=LAST_ACCESS)
        rows = pq.read_table(Path(done.path) / "dataset_last_access").to_pylist()
        return {row["dataset_name"]: (row["is_candidate"], row["deletable_bytes"]) for row in rows}

    # Without dataset_rses of the day nothing is known of locks.
    every = dict.fromkeys((DATASET, OTHER, SMALL), (True, None))
    assert candidates(tmp_path / "a") == every
    run(root, tmp_path / "b")
    by_locks = {DATASET: (False, 0), OTHER: (True, 1_040), SMALL: (False, 0)}
    assert candidates(tmp_path / "b") == by_locks


def test_without_the_table_of_locks_an_answer_says_so(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(root, out)
    with pytest.raises(InputMissing, match="no day of dataset_last_access"):
        ask(out, "deletable", "T2_X")
    other = tmp_path / "other"
    run(root, other, job=LAST_ACCESS)
    copy = lying(OTHER, "T2_X") | {"day": DAY}
    store_table(other / "store", "dbs_rucio", "dbs_rucio", DAY, [copy])
    done = ask(other, "deletable", "T2_X")
    assert "no day of dataset_rses is stored: what rules hold" in done.stderr


def test_unique_is_what_would_be_lost_with_an_element(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(root, out)

    def lost(name: str) -> Any:
        answer = json.loads(ask(out, "unique", name, "--json").stdout)
        return answer["only_copy_bytes"], answer["only_disk_bytes"], answer["bytes"]

    assert lost("T2_X") == (970, 970, 1_510)
    assert lost("T2_Y") == (0, 0, 500)
    # A site stands for its elements.
    assert lost("T1_US_FNAL") == (0, 0, 540)
    rows = json.loads(ask(out, "unique", "T2_X", "--json").stdout)["rows"]
    assert [(row["dataset_name"], row["only_copy_bytes"], row["lock_state"]) for row in rows] == [
        (DATASET, 900, "full"),
        (SMALL, 70, "none"),
    ]
    with pytest.raises(InputMissing, match="there is no rse 'T2_Q'"):
        ask(out, "unique", "T2_Q")


def test_holds_names_rules_and_production_and_never_people(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(root, out)
    arguments = ("holds", DATASET, "--root", str(root), "--date", DAY.isoformat())
    answer = json.loads(ask(out, *arguments, "--json").stdout)
    first, second = answer["rows"]
    assert (first["account"], first["block_count"], first["expires_at"]) == (
        "wmcore_output",
        2,
        "never",
    )
    assert (first["state"], first["rse"]) == ("ok,replicating", "T2_X")
    assert (second["account_class"], second["state"]) == ("unknown", "stuck")
    assert second["expires_at"] == "2026-01-16T00:00:00Z"
    text = ask(out, *arguments).stdout
    assert "ann" not in text and ":" in second["account"] and "2 rules of 2 accounts" in text
    # The dump has the answer: no store is needed.
    words = [*arguments, "--json", "--settings", str(out / "cmsspark.yaml")]
    assert json.loads(CliRunner().invoke(command, words).stdout)["rows"] == answer["rows"]
    with pytest.raises(InputMissing, match="no lock of a dataset"):
        ask(out, "holds", SMALL, "--root", str(root), "--date", DAY.isoformat())


def test_a_store_without_the_table_says_what_to_run(tmp_path: Path) -> None:
    (tmp_path / "cmsspark.yaml").write_text(f"state_dir: {tmp_path}/state\n")
    store_table(tmp_path / "store", "phedex", "phedex", date(2026, 1, 1), [])
    with pytest.raises(InputMissing) as raised:
        ask(tmp_path, "unique", "T2_X")
    assert "run_spark dataset_rses" in str(raised.value.next_step)
