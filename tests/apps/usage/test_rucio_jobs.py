"""The jobs on Rucio's dumps: tables of hostile dumps beside the oracle, and hand-made
rows for what it leaves out.
"""

from __future__ import annotations

import json
import random
import shutil
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from cmsspark.apps.replicas import dataset_last_access, replica_jobs, site_tier_usage
from cmsspark.apps.replicas.replica_jobs import (
    CATALOGUE_CHECK,
    DBS_PHEDEX,
    DBS_RUCIO,
    LEFTOVERS,
    PHEDEX,
    RUCIO_DAILY,
)
from cmsspark.base.errors import DataError, InputMissing
from cmsspark.base.schemas import input_table, stored_table
from cmsspark.dumps import dump_plan, rucio_scan, spark_transport
from cmsspark.filesystems.storage import LocalFiles
from cmsspark.run import dump_day
from cmsspark.run.dump_day import DumpJob
from cmsspark.run.request import JobRequest
from cmsspark.settings.settings import Settings, load_settings
from cmsspark.store import staged_runs
from cmsspark.store.own_jobs import find_job
from cmsspark.submit.job_help import load_command
from tests.corpus import rucio as corpus
from tests.corpus import tables
from tests.corpus.tree import AWG
from tests.engines.test_hdfs_scan import Disk
from tests.oracle import rucio as oracle

DAY = date(2026, 1, 15)
DAY_MS = 1_768_435_200_000
JOBS = (
    RUCIO_DAILY,
    DBS_RUCIO,
    site_tier_usage.JOB,
    LEFTOVERS,
    CATALOGUE_CHECK,
    replica_jobs.JOB,
    dataset_last_access.JOB,
)
#: Datasets of the corpus, and some that only DBS has.
NAMES = [
    "/P0/Run2016A-v0/AOD",
    "/P1/Run2016B-v1/RAW",
    "/P2/Run2016C-v2/É",
    "/Only/DBS-v1/AOD",
    "/MyTest/Era-v1/AOD",
]


def dbs_rows(rng: random.Random, files: int) -> dict[str, list[dict[str, Any]]]:
    """A small DBS: some datasets twice, orphans, repeated names, sizes and blocks that
    differ from Rucio's.
    """
    types_of = [1, 2, None, 1, 1]
    datasets = [
        {
            "dataset_id": number,
            "dataset": name,
            "is_dataset_valid": number % 3 != 2,
            "dataset_access_type_id": kind,
        }
        for number, (name, kind) in enumerate(zip(NAMES, types_of, strict=True))
    ]
    datasets.append(
        {"dataset_id": 9, "dataset": NAMES[0], "is_dataset_valid": 1, "dataset_access_type_id": 1}
    )
    blocks = [
        {
            "block_id": 10 * number + x,
            "block_name": f"{name}#{'abcd'[x]}",
            "dataset_id": number,
            "creation_date": [1_735_689_599, 1_735_689_600.5, None, 1e300][x],
        }
        for number, name in enumerate(NAMES)
        for x in range(4)
    ]
    rows = []
    for number in range(files):
        dataset = rng.choice([0, 0, 1, 2, 3, 4, 9, 77])
        rows.append(
            {
                "file_id": number,
                "logical_file_name": f"/store/data/{number % 7}/é{number}.root",
                "is_file_valid": rng.choice([0, 1, 1]),
                "dataset_id": dataset,
                "event_count": rng.choice([None, 5, 10]),
                "block_id": rng.choice([10 * (dataset % 9) + x for x in range(4)] + [999, None]),
                "file_size": rng.choice([None, 0, 1, 1_000, 2**40]),
            }
        )
        if number % 9 == 0:
            rows.append(
                {
                    **rows[-1],
                    "file_id": 10_000 + number,
                    "dataset_id": 1,
                    "is_file_valid": 0,
                    "block_id": 11,
                }
            )
    types = [
        {"dataset_access_type_id": 1, "dataset_access_type": "VALID"},
        {"dataset_access_type_id": 2, "dataset_access_type": "INVALID"},
    ]
    made = {"DATASETS": datasets, "BLOCKS": blocks, "FILES": rows, "DATASET_ACCESS_TYPES": types}
    return {name: [] for name in DBS_PHEDEX.dbs} | made


def write_dbs(folder: Path, rows: dict[str, list[dict[str, Any]]]) -> None:
    for table, of_table in rows.items():
        columns = input_table(f"dbs/{table}").columns
        texts = [[_text(row.get(column.name)) for column in columns] for row in of_table or [{}]]
        (folder / table).mkdir(parents=True)
        (folder / table / "part-0").write_bytes(tables.plain_csv(texts))


def _text(value: Any) -> str:
    return "null" if value is None else str(int(value) if isinstance(value, bool) else value)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("rucio")
    rng = random.Random(17)
    corpus.write_dump(root / AWG / "rucio/2026-01-16", corpus.hostile_rows(rng, 90, DAY_MS))
    write_dbs(root / AWG / "dbs/PROD_GLOBAL/2026-01-16", dbs_rows(rng, 120))
    return root


@pytest.fixture(scope="module")
def found(world: Path) -> oracle.Rucio:
    return oracle.read(world / AWG / "rucio/2026-01-16")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    written = tmp_path / "cmsspark.yaml"
    written.write_text(f"state_dir: {tmp_path}/state\ncache_dir: {tmp_path}/cache\n")
    return load_settings(str(written))


def stored(
    job: DumpJob, world: Path, settings: Settings, out: Path, engine: str = "processes"
) -> list[dict[str, Any]]:
    request = JobRequest(job.name, DAY, str(out), settings, str(world), engine=engine)
    done = dump_day.run(job, request, lambda _: None)
    table = pq.read_table(Path(done.path) / job.name)
    assert table.schema.names == stored_table(job.name).names
    not_null = [column.name for column in stored_table(job.name).columns if not column.nullable]
    assert not [name for name in not_null if table[name].null_count]
    return table.to_pylist()


def test_rucio_daily_is_the_oracles(
    world: Path, found: oracle.Rucio, settings: Settings, tmp_path: Path
) -> None:
    rows = stored(RUCIO_DAILY, world, settings, tmp_path)
    names = (
        "file_count",
        "bytes",
        "new_file_count",
        "new_bytes",
        "accessed_file_count",
        "last_access_ms",
    )
    keys = ("rse", "site_name", "kind", "dataset_name")
    assert {
        tuple(row[name] for name in keys): tuple(row[name] for name in names) for row in rows
    } == oracle.rucio_daily(found, DAY)
    assert len(rows) == len(oracle.rucio_daily(found, DAY)) and any(
        row["dataset_name"] is None for row in rows
    )


@pytest.mark.parametrize("job", [DBS_RUCIO, DBS_PHEDEX], ids=lambda job: job.name)
def test_replicas_are_those_of_the_oracle(
    world: Path, found: oracle.Rucio, settings: Settings, tmp_path: Path, job: DumpJob
) -> None:
    rows = stored(job, world, settings, tmp_path)
    names = (
        "present_bytes",
        "present_file_count",
        "present_block_count",
        "block_count",
        "is_complete",
        "newest_replica_ms",
    )
    dbs_blocks = {f"{name}#{x}" for name in NAMES for x in "abcd"}
    rng = random.Random(17)
    corpus.hostile_rows(rng, 90, DAY_MS)
    dbs = dbs_rows(rng, 120)
    known = {row["dataset_id"] for row in dbs["DATASETS"]}
    valid = {
        row["block_id"]
        for row in dbs["FILES"]
        if row["is_file_valid"] and row["dataset_id"] in known
    }
    without_valid = {row["block_name"] for row in dbs["BLOCKS"] if row["block_id"] not in valid}
    assert without_valid
    wanted = oracle.presence(found, dbs_blocks, without_valid)
    assert {
        (row["dataset_name"], row["site_name"], row["kind"]): tuple(row[name] for name in names)
        for row in rows
    } == wanted
    assert {kind for _, _, kind in wanted} == {"disk", "tape"}


def test_the_catalogues_are_compared_as_by_the_oracle(
    world: Path, found: oracle.Rucio, settings: Settings, tmp_path: Path
) -> None:
    rng = random.Random(17)
    corpus.hostile_rows(rng, 90, DAY_MS)
    dbs = dbs_rows(rng, 120)
    datasets = {row["dataset_id"]: row["dataset"] for row in dbs["DATASETS"]}
    blocks = {row["block_id"]: row["block_name"] for row in dbs["BLOCKS"]}
    files: dict[str, tuple[str, str | None, int | None, int | None]] = {}
    for row in sorted(dbs["FILES"], key=lambda row: row["file_id"]):
        if row["dataset_id"] in datasets:
            block = blocks.get(row["block_id"])
            name = row["logical_file_name"]
            files[name] = (
                datasets[row["dataset_id"]],
                block,
                row["is_file_valid"],
                row["file_size"],
            )
    rows = stored(CATALOGUE_CHECK, world, settings, tmp_path)
    made = {
        (row["difference"], row["dataset_name"]): (
            row["file_count"],
            row["dbs_bytes"],
            row["rucio_bytes"],
        )
        for row in rows
    }
    assert made == oracle.differences(found, files)
    assert {difference for difference, _ in made} == {
        "only_dbs",
        "only_dbs_invalid",
        "only_rucio",
        "block",
        "size",
    }


def test_last_accesses_are_the_oracles_and_none_is_after_the_day_after(
    world: Path, settings: Settings, tmp_path: Path
) -> None:
    found = oracle.read(
        world / AWG / "rucio/2026-01-16", accessed_before_ms=DAY_MS + 2 * corpus.DAY_MS
    )
    rows = stored(dataset_last_access.JOB, world, settings, tmp_path)
    counts = rucio_of_manifest(tmp_path, "dataset_last_access")["tables"]
    assert min(counts[table]["ignored"]["future_access"] for table in ("REPLICAS", "DIDS")) > 0
    (manifest,) = tmp_path.glob("dataset_last_access/*/runs/*/manifest.json")
    warnings = json.loads(manifest.read_text())["warnings"]
    (warning,) = (text for text in warnings if "dataset_rses" in text)
    assert "is_candidate ignores rules and last copies; run_spark dataset_rses" in warning
    made = {row["dataset_name"]: row["rucio_last_access_ms"] for row in rows}
    wanted = oracle.last_access(found)
    assert wanted[NAMES[0]] >= DAY_MS + corpus.DAY_MS + 7
    assert {name: time for name, time in made.items() if time is not None} == wanted
    assert made.keys() == {block.split("#")[0] for _, block in found.block_replicas}
    for row in rows:
        replicas = {
            (rse, block): one
            for (rse, block), one in found.block_replicas.items()
            if block.split("#")[0] == row["dataset_name"]
        }
        assert row["site_names"] == ",".join(
            sorted({found.places[rse][0] for rse, _ in replicas}, key=str.encode)
        )
        for kind in ("disk", "tape"):
            total = sum(
                one.node_bytes
                for (rse, _), one in replicas.items()
                if found.places[rse][1] == kind
            )
            assert row[f"{kind}_bytes"] == total


def frames(**days: Any) -> Any:
    """Frames of :func:`dataset_last_access.build`: replicas made, traces and logs, one
    dataset each.
    """
    import polars as pl

    count = len(days["newest"])
    names = [f"/d/{number}/AOD" for number in range(count)]
    presence = {
        "dataset_name": names,
        "site_name": ["T2_X"] * count,
        "kind": ["disk"] * count,
        "present_bytes": [1] * count,
        "present_file_count": [1] * count,
    }
    newest = pl.Series(days["newest"], dtype=pl.Int64)
    traces = pl.DataFrame(
        {"dataset_name": names, "rucio_last_access_ms": pl.Series(days["traced"], dtype=pl.Int64)}
    )
    logs = pl.DataFrame(
        {"dataset_name": names, "log_last_access_day": pl.Series(days["logged"], dtype=pl.Date)}
    )
    return {
        "dataset_replicas": pl.DataFrame(presence).with_columns(newest_replica_ms=newest),
        "last_access": traces.drop_nulls(),
        "log_last_access": logs.drop_nulls(),
    }


def test_a_dataset_is_unread_before_the_cutoff_and_a_candidate_without_newer_replicas() -> None:
    cutoff_ms = 1_736_899_200_000  # 2025-01-15
    rows = dataset_last_access.build(
        frames(
            newest=[None, cutoff_ms - 1, cutoff_ms, None, None, None],
            traced=[None, cutoff_ms - 1, cutoff_ms - 1, cutoff_ms, 1, None],
            logged=[None, None, None, None, date(2025, 1, 15), date(2025, 1, 14)],
        ),
        DAY,
        12,
    ).sort("dataset_name")
    assert rows["state"].to_list() == ["never", "unread", "unread", "read", "read", "unread"]
    assert rows["is_candidate"].to_list() == [True, True, False, False, False, True]
    before, after = [date(2025, 1, 14)], [date(2025, 1, 15)]
    assert rows["last_access_day"].to_list()[1:] == before * 2 + after * 2 + before


def test_the_last_stored_day_of_logs_counts_not_after_the_day(
    world: Path, settings: Settings, tmp_path: Path
) -> None:
    schema = stored_table("data_aggregation")
    for day, count in ((date(2025, 12, 30), 3), (date(2026, 1, 2), 0), (date(2026, 1, 16), 5)):
        row = {
            "day": day,
            "stream": "aaa",
            "dataset_name": NAMES[0],
            "site_name": "T2_X",
            "app": "crab",
            "nacc": count,
        }
        run = staged_runs.stage(LocalFiles(), str(tmp_path), "data_aggregation", day)
        run.write_arrow(pa.Table.from_pylist([row], schema.arrow()), "data_aggregation")
        run.commit({"streams": ["aaa"]})
    rows = stored(dataset_last_access.JOB, world, settings, tmp_path)
    logged = {row["dataset_name"]: row["log_last_access_day"] for row in rows}
    assert logged[NAMES[0]] == date(2025, 12, 30)
    assert {day for name, day in logged.items() if name != NAMES[0]} == {None}


def test_event_counts_of_blocks_by_month(world: Path, settings: Settings, tmp_path: Path) -> None:
    rng = random.Random(17)
    corpus.hostile_rows(rng, 90, DAY_MS)
    dbs = dbs_rows(rng, 120)
    names = {row["dataset_id"]: row["dataset"] for row in dbs["DATASETS"]}
    valid = {row["dataset"]: row["is_dataset_valid"] for row in dbs["DATASETS"]}
    months = {1_735_689_599: "2024-12", 1_735_689_600.5: "2025-01"}
    newest = {
        row["logical_file_name"]: row
        for row in sorted(dbs["FILES"], key=lambda row: row["file_id"])
        if row["dataset_id"] in names
    }
    for only_valid in (False, True):
        wanted: dict[Any, list[Any]] = {}
        for block in dbs["BLOCKS"]:
            name = names[block["dataset_id"]]
            if not valid[name] or "test" in name.lower():
                continue
            key = (
                months.get(block["creation_date"]),
                name.split("/")[3],
                name.split("/")[2].split("-")[0],
            )
            sums = wanted.setdefault(key, [0, 0, None, 0])
            sums[0] += 1
            for row in newest.values():
                if row["block_id"] == block["block_id"] and (
                    row["is_file_valid"] or not only_valid
                ):
                    sums[1] += 1
                    if row["event_count"] is not None:
                        sums[2] = (sums[2] or 0) + row["event_count"]
                    sums[3] += row["file_size"] or 0
        job = replica_jobs.configured({"valid_files": only_valid, "skims": None}, settings)
        rows = stored(job, world, settings, tmp_path / str(only_valid))
        made = {
            (row["month"], row["data_tier"], row["campaign"]): [
                row["block_count"],
                row["file_count"],
                row["events"],
                row["bytes"],
            ]
            for row in rows
        }
        assert made == wanted
        (manifest,) = (tmp_path / str(only_valid)).glob("event_counts/*/runs/*/manifest.json")
        assert '"blocks_left_out": 4' in manifest.read_text().replace("\n", "")


@pytest.mark.parametrize(
    ("size", "words"), [(10**30, "column file_size"), (9 * 10**18, "64 bits")]
)
def test_sizes_beyond_64_bits_fail_event_counts_in_both_engines(
    spark: Any, settings: Settings, tmp_path: Path, size: int, words: str
) -> None:
    dbs = dbs_rows(random.Random(17), 20)
    files = [
        {**row, "dataset_id": 0, "block_id": block, "file_size": size}
        for row, block in zip(dbs["FILES"][-2:], (0, 0), strict=True)
    ]
    write_dbs(tmp_path / AWG / "dbs/PROD_GLOBAL/2026-01-16", {**dbs, "FILES": files})
    for engine in ("processes", "spark"):
        with pytest.raises(DataError, match=words):
            stored(replica_jobs.JOB, tmp_path, settings, tmp_path / engine, engine)


def test_leftovers_are_orphans_invalid_and_missing_datasets(
    world: Path, found: oracle.Rucio, settings: Settings, tmp_path: Path
) -> None:
    rows = {row["dataset_name"]: row for row in stored(LEFTOVERS, world, settings, tmp_path)}
    there = {block.split("#")[0] for _, block in found.block_replicas}
    states = {name: row["state"] for name, row in rows.items()}
    wanted = {
        "/P1/Run2016B-v1/RAW": "not_valid",
        "/P2/Run2016C-v2/É": "not_valid",
        "/Only/DBS-v1/AOD": "missing",
        "/MyTest/Era-v1/AOD": "missing",
    }
    assert states == wanted | {name: "orphan" for name in there - set(NAMES)}
    missing = rows["/Only/DBS-v1/AOD"]
    assert (missing["site_count"], missing["site_names"]) == (0, None)
    assert (missing["file_count"], missing["disk_bytes"]) == (0, 0)
    assert missing["dbs_file_count"] > 0 and missing["campaign"] == "DBS"


@pytest.mark.parametrize(
    "job",
    [DBS_RUCIO, RUCIO_DAILY, dataset_last_access.JOB, CATALOGUE_CHECK],
    ids=lambda job: job.name,
)
def test_a_job_on_rucio_of_a_day_of_phedex_is_missing(
    job: DumpJob, world: Path, settings: Settings, tmp_path: Path
) -> None:
    request = JobRequest(
        job.name, date(2020, 11, 17), str(tmp_path), settings, str(world), engine="processes"
    )
    with pytest.raises(InputMissing, match="needs the dumps of Rucio") as told:
        dump_day.run(job, request, lambda _: None)
    assert "come from phedex" in str(told.value.found)


def test_on_a_day_of_rucio_phedex_is_not_read(
    world: Path, settings: Settings, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    (root / AWG / "phedex/block-replicas-snapshots/csv/time=2026-01-16_03h").mkdir(parents=True)
    (root / AWG / "phedex/block-replicas-snapshots/csv/time=2026-01-16_03h/part-0").write_text(
        "1\n"
    )
    request = JobRequest("phedex", DAY, str(tmp_path), settings, str(root), engine="processes")
    with pytest.raises(InputMissing, match="no rucio dump for 2026-01-15"):
        dump_day.run(PHEDEX, request, lambda _: None)


@pytest.mark.parametrize("is_whole", [True, False], ids=["whole", "cut"])
def test_a_table_that_is_written_again_while_it_is_read_is_named(
    world: Path, settings: Settings, tmp_path: Path, is_whole: bool
) -> None:
    root = tmp_path / "root"
    shutil.copytree(world, root)
    part = root / AWG / "rucio/2026-01-16/replicas/part-m-00001.avro"

    def write_again(*_: Any) -> dict[str, Any]:
        content = (part.parent / "part-m-00000.avro").read_bytes()
        part.write_bytes(content if is_whole else content[:-5])
        return {}

    job = replace(RUCIO_DAILY, more=write_again)
    with pytest.raises(DataError, match="changed while it was read") as told:
        stored(job, root, settings, tmp_path / "out")
    assert f"{part} had" in str(told.value.found) or f"{part} was written again" in str(
        told.value.found
    )
    assert not list((tmp_path / "out").glob("rucio_daily/*/CURRENT"))


def test_a_command_takes_its_own_options(world: Path, settings: Settings, tmp_path: Path) -> None:
    arguments = [
        "--date",
        "20260115",
        "--root",
        str(world),
        "--fout",
        str(tmp_path),
        "--settings",
        str(settings.origin),
    ]
    done = CliRunner().invoke(
        load_command(find_job("dataset_last_access")),
        [*arguments, "--months", "1"],
        catch_exceptions=False,
    )
    assert done.exit_code == 0
    assert (
        CliRunner()
        .invoke(load_command(find_job("dataset_last_access")), [*arguments, "--months", "0"])
        .exit_code
        == 2
    )


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_processes_and_spark_make_the_same_rows(
    spark: Any, world: Path, job: Any, settings: Settings, tmp_path: Path
) -> None:
    rows = {
        engine: stored(job, world, settings, tmp_path / engine, engine)
        for engine in ("processes", "spark")
    }
    assert sorted(map(repr, rows["spark"])) == sorted(map(repr, rows["processes"]))


def rucio_of_manifest(out: Path, job: str) -> Any:
    (manifest,) = out.glob(f"{job}/*/runs/*/manifest.json")
    return json.loads(manifest.read_text())["rucio"]


@pytest.mark.parametrize("feed", ["direct", "spark", "client of HDFS"])
@pytest.mark.parametrize(
    "job", [dataset_last_access.JOB, CATALOGUE_CHECK, DBS_RUCIO], ids=lambda job: job.name
)
def test_spark_makes_the_same_rows_with_many_keys_ranges_and_feeds(
    spark: Any,
    world: Path,
    job: Any,
    settings: Settings,
    tmp_path: Path,
    feed: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wanted = stored(job, world, settings, tmp_path / "processes")
    monkeypatch.setattr(dump_plan, "key_count", lambda *_: 4)
    options: dict[str, Any] = {"feed": feed}
    if feed == "client of HDFS":
        monkeypatch.setattr(rucio_scan, "SCHEME", "file:")
        options = {"remote": Disk()}
    transport = partial(spark_transport.SparkTransport, range_bytes=20_000, **options)
    monkeypatch.setattr(spark_transport, "SparkTransport", transport)
    found = stored(job, world, settings, tmp_path / "spark", "spark")
    assert sorted(map(repr, found)) == sorted(map(repr, wanted))
    name = job.name
    assert rucio_of_manifest(tmp_path / "spark", name) == rucio_of_manifest(
        tmp_path / "processes", name
    )
