"""Tables of locks, rules, usage and tasks are cell by cell those of plain Python (rules 64 to 72)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec.structs import replace

from cmsspark.apps.crab import tape_recalls, tasks
from cmsspark.apps.replicas import rules_day, storage_usage
from cmsspark.base.errors import DataError, NotReady
from cmsspark.base.schemas import stored_table
from cmsspark.dumps.dump_plan import Transport
from cmsspark.dumps.process_transport import ProcessTransport
from cmsspark.filesystems.storage import LocalFiles
from cmsspark.run.row_job import RowJob, RowRequest
from cmsspark.settings import pseudonyms
from cmsspark.settings.settings import Settings, load_settings
from cmsspark.sources.layout import Layout
from tests.apps.replicas.usage_world import (
    AWG,
    DAY,
    DUMP_DAY,
    T0,
    Row,
    identity,
    random_world,
    write_world,
)
from tests.oracle import usage as oracle

JOBS: Final = (
    storage_usage.ACCOUNT_USAGE,
    storage_usage.RSE_USAGE,
    rules_day.JOB,
    tasks.JOB,
    tape_recalls.JOB,
)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    written = tmp_path / "cmsspark.yaml"
    written.write_text(f"state_dir: {tmp_path}/state\ncache_dir: {tmp_path}/cache\n")
    return load_settings(str(written))


def made(
    job: RowJob, root: Path, settings: Settings, transport: Transport
) -> tuple[dict[str, list[Row]], dict[str, Any]]:
    """The rows of each table of a job, and its entries of the manifest."""
    dumps = job.choose(LocalFiles(), Layout.load({}, str(root)), DAY)
    request = RowRequest(job.name, DAY, "", settings, str(root))
    tables, manifest = job.make(request, transport, LocalFiles(), dumps, [])
    return {name: table.to_pylist() for name, table in tables.items()}, manifest


def by_processes(tmp_path: Path, key_bytes: int = 128 * 1024 * 1024) -> ProcessTransport:
    folder = tmp_path / "spill"
    folder.mkdir(exist_ok=True)
    return ProcessTransport(folder, key_bytes=key_bytes)


def expected(root: Path, settings: Settings) -> dict[str, dict[Any, Row]]:
    """What plain Python makes of a world."""
    rucio = root / AWG / "rucio"
    key = pseudonyms.load_or_make(settings.state_dir / pseudonyms.KEY_FILE, DAY)
    world = oracle.World(rucio / DUMP_DAY.isoformat(), T0, key.pseudonym)
    of_tasks = oracle.rows(root / AWG / "crab/tasks" / DUMP_DAY.isoformat(), "TASKS")
    before = oracle.rows(rucio / DAY.isoformat() / "rules", "RULES")
    states = {
        row["ID"]: row["STATE"] for row in before if row["ACTIVITY"] == "Analysis TapeRecall"
    }
    return {
        "account_usage": oracle.account_usage(world),
        "account_activity_usage": oracle.account_activity_usage(world),
        "rse_usage": oracle.rse_usage(world),
        "rules_day": oracle.rules_day(world),
        "rules_stuck": oracle.rules_stuck(world),
        "crab_tasks": oracle.crab_tasks(of_tasks, T0, key.pseudonym),
        "tape_recalls": oracle.tape_recalls(world, of_tasks, states, DAY),
    }


def by_keys(table: str, rows: list[Row]) -> dict[Any, Row]:
    """Rows by their keys, each once, without the day of the table."""
    keys = stored_table(table).keys
    found = {}
    for row in rows:
        key = tuple(row.pop(name) for name in keys)
        assert key not in found, f"{table} has {key} twice"
        found[key] = {
            name: value for name, value in row.items() if name not in ("day", "timestamp")
        }
    return found


def check(rows: Mapping[str, list[Row]], of_plain: Mapping[str, dict[Any, Row]]) -> None:
    for table, of_table in rows.items():
        assert len(of_table) > 1, table
        assert by_keys(table, of_table) == of_plain[table], table


def two_days(tmp_path: Path, seed: int, parts: int = 3) -> Path:
    root = tmp_path / f"world-{seed}"
    write_world(root, random_world(seed), parts=parts)
    write_world(root, {"RULES": random_world(seed + 1_000)["RULES"]}, DAY)
    return root


@pytest.mark.parametrize("seed", range(8))
def test_cells_are_those_of_plain_python_however_many_keys_divide_the_rows(
    tmp_path: Path, settings: Settings, seed: int
) -> None:
    root = two_days(tmp_path, seed)
    of_plain = expected(root, settings)
    key_bytes = 2_000 if seed % 2 else 128 * 1024 * 1024
    for job in JOBS:
        rows, _ = made(job, root, settings, by_processes(tmp_path, key_bytes))
        assert list(rows) == list(job.tables or (job.name,))
        check(rows, of_plain)


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_spark_makes_the_same_cells(
    spark: Any, tmp_path: Path, settings: Settings, job: RowJob
) -> None:
    from cmsspark.dumps.spark_transport import SparkTransport

    root = two_days(tmp_path, 77)
    rows, _ = made(job, root, settings, SparkTransport(spark, key_bytes=4_000))
    check(rows, expected(root, settings))


RULES: Final = [
    {"ID": identity(1), "ACCOUNT": "ann", "STATE": "O", "ACTIVITY": "a"},
    {"ID": identity(2), "ACCOUNT": "ann", "STATE": "O", "ACTIVITY": "b"},
]


def test_a_file_under_two_rules_counts_twice_in_the_quota_and_once_in_bytes(
    tmp_path: Path, settings: Settings
) -> None:
    lock = {"SCOPE": "cms", "NAME": "f", "ACCOUNT": "ann", "STATE": "O", "BYTES": 10}
    there = identity("X")
    write_world(
        tmp_path / "root",
        {
            "RSES": [{"ID": there, "RSE": "X"}],
            "RULES": RULES,
            "LOCKS": [lock | {"RSE_ID": there, "RULE_ID": identity(n)} for n in (1, 2)],
            "ACCOUNTS": [{"ACCOUNT": "ann", "ACCOUNT_TYPE": "USER"}],
            "ACCOUNT_LIMITS": [{"ACCOUNT": "ann", "RSE_ID": there, "BYTES": -1}],
        },
    )
    rows, manifest = made(
        storage_usage.ACCOUNT_USAGE, tmp_path / "root", settings, by_processes(tmp_path)
    )
    (row,) = rows["account_usage"]
    counts = {name: row[name] for name in ("lock_count", "lock_bytes", "file_count", "bytes")}
    assert counts == {"lock_count": 2, "lock_bytes": 20, "file_count": 1, "bytes": 10}
    assert (row["cms_bytes"], row["rule_count"]) == (10, 2)
    assert (row["limit_bytes"], row["limit_kind"]) == (None, "unlimited")
    assert [cell["bytes"] for cell in rows["account_activity_usage"]] == [10, 10]
    assert manifest["checks"]["lock_count"] == 2


def test_no_login_is_stored_where_tables_are_published(tmp_path: Path, settings: Settings) -> None:
    root = two_days(tmp_path, 5)
    for job in JOBS:
        rows, _ = made(job, root, settings, by_processes(tmp_path))
        for table, of_table in rows.items():
            if table != "rules_stuck":
                assert not {"ann", "bob", "nobody"} & {
                    value for row in of_table for value in row.values() if isinstance(value, str)
                }, table


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_a_table_that_the_dump_lacks_or_that_is_empty_ends_75_for_its_jobs_alone(
    tmp_path: Path, settings: Settings, job: RowJob
) -> None:
    world = random_world(1)
    for table in job.rucio:
        without = {name: rows for name, rows in world.items() if name != table}
        root = tmp_path / table
        write_world(root, without)
        with pytest.raises(NotReady, match="no complete rucio dump"):
            job.choose(LocalFiles(), Layout.load({}, str(root)), DAY)
        folder = root / AWG / "rucio" / DUMP_DAY.isoformat() / table.lower()
        folder.mkdir()
        (folder / "part-m-00000.avro").touch()
        with pytest.raises(NotReady):
            job.choose(LocalFiles(), Layout.load({}, str(root)), DAY)
        others = [other for other in JOBS if table not in other.rucio]
        for other in others:
            other.choose(LocalFiles(), Layout.load({}, str(root)), DAY)


def test_unknown_states_and_limits_below_minus_one_are_damaged_rows(
    tmp_path: Path, settings: Settings
) -> None:
    world = random_world(3)
    world["RULES"] = [row | {"ID": identity(100 + n)} for n, row in enumerate(world["RULES"])]
    for row in world["RULES"][:10]:
        row["STATE"] = "X"
    root = tmp_path / "ten"
    write_world(root, world)
    rows, manifest = made(rules_day.JOB, root, settings, by_processes(tmp_path))
    assert manifest["rows"]["tables"]["RULES"]["damaged"] == 10
    check(rows, expected(root, settings))
    world["RULES"][10]["STATE"] = None
    write_world(tmp_path / "eleven", world)
    with pytest.raises(DataError, match="RULES has more damaged rows"):
        made(rules_day.JOB, tmp_path / "eleven", settings, by_processes(tmp_path))
    limit = {"ACCOUNT": "ann", "RSE_ID": identity("T2_CH_CERN"), "BYTES": -2}
    world["ACCOUNT_LIMITS"] = [limit | {"ACCOUNT": f"a{n}"} for n in range(11)]
    world["RULES"] = RULES
    write_world(tmp_path / "limits", world)
    with pytest.raises(DataError, match="ACCOUNT_LIMITS has more damaged rows"):
        made(storage_usage.ACCOUNT_USAGE, tmp_path / "limits", settings, by_processes(tmp_path))


def test_a_sum_beyond_64_bits_is_an_error_that_names_its_column(
    tmp_path: Path, settings: Settings
) -> None:
    world = random_world(4)
    world["LOCKS"] = [row | {"BYTES": 2**62} for row in world["LOCKS"]]
    write_world(tmp_path / "root", world)
    with pytest.raises(DataError, match="bytes"):
        made(
            storage_usage.ACCOUNT_USAGE, tmp_path / "root", settings, by_processes(tmp_path, 2_000)
        )


def test_counters_that_differ_by_more_than_5_percent_are_told(
    tmp_path: Path, settings: Settings
) -> None:
    there = {"RSE_ID": identity("X")}
    replica = there | {"SCOPE": "cms", "NAME": "f", "STATE": "A", "BYTES": 100, "LOCK_CNT": 1}
    for counter, told in ((105, False), (106, True)):
        root = tmp_path / str(counter)
        write_world(
            root,
            {
                "RSES": [{"ID": identity("X"), "RSE": "X"}],
                "REPLICAS": [replica],
                "RSE_USAGE": [there | {"SOURCE": "rucio", "USED": counter}],
            },
        )
        _, manifest = made(storage_usage.RSE_USAGE, root, settings, by_processes(tmp_path))
        assert ("checks" in manifest) == told
        assert (
            any(text.startswith("X: RSE_USAGE has 106") for text in manifest["warnings"]) == told
        )


def test_the_share_of_replicas_with_another_lock_count_is_in_the_manifest(
    tmp_path: Path, settings: Settings
) -> None:
    world = random_world(6)
    world["REPLICAS"] = [
        {
            "SCOPE": "cms",
            "NAME": f"g{n}",
            "RSE_ID": identity("T2_CH_CERN"),
            "STATE": "A",
            "LOCK_CNT": n,
        }
        for n in (0, 1, 2, 0)
    ]
    world["LOCKS"] = [
        {"SCOPE": "cms", "NAME": f"g{n}", "RSE_ID": identity("T2_CH_CERN"), "STATE": "O"}
        | {"RULE_ID": identity(rule), "ACCOUNT": "ann", "BYTES": 1}
        for n, rule in ((1, 1), (2, 1), (2, 1_002), (3, 9_999))
    ]
    world["RULES"] = [RULES[0], RULES[0] | {"ID": identity(1_002)}]
    write_world(tmp_path / "root", world)
    _, manifest = made(
        storage_usage.ACCOUNT_USAGE, tmp_path / "root", settings, by_processes(tmp_path)
    )
    checks = manifest["checks"]
    # A replica that has LOCK_CNT 0 and a row in LOCKS is one of three names.
    assert (checks["replicas"], checks["replicas_with_other_lock_cnt"]) == (3, 0)
    assert checks["locks_without_rule"] == 1
    world["REPLICAS"][0]["NAME"] = "g3"
    write_world(tmp_path / "root", world)
    _, manifest = made(
        storage_usage.ACCOUNT_USAGE, tmp_path / "root", settings, by_processes(tmp_path)
    )
    assert manifest["checks"]["share_with_other_lock_cnt"] > 0


def test_days_of_another_window_are_those_that_the_option_names(
    tmp_path: Path, settings: Settings
) -> None:
    root = two_days(tmp_path, 9)
    job = replace(tasks.JOB, build=tasks.JOB.configured({"days": 2}))  # type: ignore[misc]
    rows, manifest = made(job, root, settings, by_processes(tmp_path))
    key = pseudonyms.load_or_make(settings.state_dir / pseudonyms.KEY_FILE, DAY)
    of_tasks = oracle.rows(root / AWG / "crab/tasks" / DUMP_DAY.isoformat(), "TASKS")
    found = by_keys_with_day(rows["crab_tasks"])
    assert found == oracle.crab_tasks(of_tasks, T0, key.pseudonym, 2)
    assert min(day for day, *_ in found) >= DUMP_DAY - timedelta(days=1)
    outside = manifest["tasks_outside"]
    counted = sum(row["task_count"] for row in found.values())
    assert sum(outside.values()) + counted == len(of_tasks)


def by_keys_with_day(rows: list[Row]) -> dict[Any, Row]:
    return by_keys("crab_tasks", rows)
