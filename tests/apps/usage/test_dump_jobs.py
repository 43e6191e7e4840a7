"""The jobs on dumps: hand-made tables, counted by the rule, by processes and in Spark."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from cmsspark.apps.replicas import dbs_events, site_tier_usage
from cmsspark.apps.replicas.replica_jobs import DBS_PHEDEX, PHEDEX
from cmsspark.base.schemas import input_table, stored_table
from cmsspark.dumps import dump_frames
from cmsspark.dumps.dataset_replicas import REPLICA_COLUMNS
from cmsspark.dumps.dump_plan import read_dumps
from cmsspark.dumps.process_transport import PartSource, ProcessTransport
from cmsspark.dumps.spark_transport import SparkTransport, TableSource
from cmsspark.run.dump_day import DumpJob
from cmsspark.sources.formats.sqoop_csv import arrow_schema
from cmsspark.sources.registry import REPLICAS

DAY = date(2026, 1, 15)
#: What processes and Spark say of a sum beyond 64 bits.
TOO_LARGE = r"does not fit 64 bits"
A, B, C = "/a/x-v1/RAW", "/b/y-v1/AOD", "/c/z-v1/AOD"

DBS: dict[str, list[tuple[Any, ...]]] = {
    # dataset_id, dataset, is_dataset_valid, access type, era, processing era, physics
    # group, creation_date
    "DATASETS": [
        (1, A, 1, 1, 1, 1, 1, 1.5e9),
        (2, B, 0, 2, None, None, None, None),
        (2, B, 0, 2, None, None, None, None),
        (3, C, 1, 9, 9, 9, 9, 0.0),
        (None, None, None, None, None, None, None, None),
        (None, "/n/o/ID", 1, 1, 1, 1, 1, 0.0),
    ],
    # logical_file_name, file_id, dataset_id, is_file_valid, event_count, file_size, block_id
    "FILES": [
        ("/f1", 11, 1, 1, 100, 1000.0, 1),
        ("/f2", 12, 1, 0, 50, 500.0, 2),
        ("/f2", 10, 1, 1, 7777, 7777.0, 2),
        ("/f2", 12, 1, 0, 50, 500.0, 2),
        ("/f3", 13, 2, 1, None, 300.0, 3),
        ("/f4", 14, 99, 1, 9999, 9999.0, 9),
        (None, 15, 2, None, 5, None, None),
        (None, None, None, None, None, None, None),
    ],
    # block_name, dataset_id, block_id
    "BLOCKS": [
        (f"{A}#1", 1, 1),
        (f"{A}#2", 1, 2),
        (f"{A}#2", 1, 2),
        (f"{B}#1", 2, 3),
        (None, 2, 4),
        (f"{C}#1", 3, 5),
        (None, None, None),
    ],
    "DATASET_ACCESS_TYPES": [(1, "VALID"), (2, "INVALID"), (None, None), (1, "VALID")],
    "ACQUISITION_ERAS": [(1, "Run2026A"), (1, "Run2026A")],
    "PROCESSING_ERAS": [(1, 3.0)],
    "PHYSICS_GROUPS": [(1, "Higgs"), (None, "nobody")],
    "DATASET_OUTPUT_MOD_CONFIGS": [
        (1, 1),
        (1, 2),
        (1, 3),
        (1, 1),
        (2, 9),
        (None, None),
        (None, 1),
    ],
    "OUTPUT_MODULE_CONFIGS": [(1, 1), (2, 2), (3, 1), (1, 1), (None, None)],
    "RELEASE_VERSIONS": [(1, "CMSSW_9"), (2, "CMSSW_10"), (2, "CMSSW_10"), (None, "CMSSW_0")],
}

#: dataset, block, block files, block bytes, node, node files, node bytes, created (s)
SNAPSHOT: list[tuple[Any, ...]] = [
    # A: one block whole on disk, the other whole on tape of the same site: complete
    # there, on both its rows.
    (A, f"{A}#1", 2, 200, "T1_US_FNAL_Disk", 2, 200, 10),
    (A, f"{A}#2", 3, 300, "T1_US_FNAL_MSS", 3, 300, 20),
    (A, f"{A}#2", 3, 300, "T1_US_FNAL_Disk", 1, 100, 30),
    (A, f"{A}#2", 3, 300, "T1_US_FNAL_Disk", 1, 100, 30),
    # Half of a block on each of two nodes is not a whole block.
    (A, f"{A}#1", 2, 200, "T2_CH_CERN_HLT", 2, 200, 5),
    (A, f"{A}#2", 3, 300, "T2_CH_CERN_HLT", 2, 200, 5),
    (A, f"{A}#2", 3, 300, "T2_CH_CERN_HLT_Disk", 1, 100, None),
    # B: a block that DBS does not name counts for completeness too.
    (B, f"{B}#1", 1, 10, "T2_DE_DESY", 1, 10, 1),
    (B, f"{B}#9", 1, 10, "T1_DE_KIT_Buffer", 1, 10, 1),
    (B, f"{B}#1", 1, 10, "T1_DE_KIT_Export", 1, 10, 2),
    # Nothing there yet; numbers unknown.
    (C, f"{C}#1", 1, 10, "T2_DE_DESY", 0, 0, None),
    (C, f"{C}#1", 1, 10, "T3_X", None, None, None),
    # DBS does not know it.
    ("/not/in/DBS", "/not/in/DBS#1", 4, 40, "T2_DE_DESY", 4, 40, 7),
    (None, None, None, None, None, None, None, None),
]


def rows_of(
    name: str, dbs: dict[str, list[tuple[Any, ...]]]
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """The columns and rows of a hand-made table."""
    columns = {**dbs_events.DBS, **DBS_PHEDEX.dbs, "DATASETS": dbs_events.DBS["DATASETS"]}[name]
    return list(columns), dbs[name]


def tables_of(
    job: DumpJob, dbs: dict[str, list[tuple[Any, ...]]], snapshot: list[tuple[Any, ...]]
) -> dict[str, pa.Table]:
    """The tables that a job reads."""
    found = {}
    for name, columns in job.dbs.items():
        there, rows = rows_of(name, dbs)
        schema = arrow_schema(input_table(f"dbs/{name}"), there)
        arrays = [
            pa.array(values, field.type)
            for values, field in zip(zip(*rows, strict=True), schema, strict=True)
        ]
        found[name] = pa.table(arrays, schema=schema).select(list(columns))
    if job.replicas:
        schema = arrow_schema(input_table("phedex/block_replicas"), REPLICA_COLUMNS)
        rows = [
            (dataset, block, node, files, size, at, held, made)
            for dataset, block, files, size, node, at, held, made in snapshot
        ]
        arrays = [
            pa.array(values, field.type)
            for values, field in zip(zip(*rows, strict=True), schema, strict=True)
        ]
        found[REPLICAS] = pa.table(arrays, schema=schema)
    return found


def parts_of(tables: dict[str, pa.Table]) -> dict[str, PartSource]:
    """The tables as parts of two rows."""
    pieces = {
        name: [table.slice(start, 2) for start in range(0, table.num_rows, 2)]
        for name, table in tables.items()
    }
    return {
        name: PartSource([partial(iter, [piece]) for piece in of_table], 0, tables[name].schema)
        for name, of_table in pieces.items()
    }


def sources_of(spark: Any, tables: dict[str, pa.Table]) -> dict[str, TableSource]:
    """The tables in Spark, each in three tasks."""
    kinds = {"string": "string", "int64": "bigint", "double": "double"}
    sources = {}
    for name, table in tables.items():
        schema = ", ".join(f"`{field.name}` {kinds[str(field.type)]}" for field in table.schema)
        rows = spark.createDataFrame(
            [tuple(row.values()) for row in table.to_pylist()], schema
        ).repartition(3)
        sources[name] = TableSource(
            rows,
            lambda batches: (pa.Table.from_batches([batch]) for batch in batches),
            table.schema,
            table.nbytes,
        )
    return sources


Build = Callable[..., list[dict[str, Any]]]
Built = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module", params=["processes", "spark"])
def build(request: pytest.FixtureRequest) -> Build:
    """The rows that a job makes of hand-made tables; columns and nulls are as the schema says."""
    spark = request.getfixturevalue("spark") if request.param == "spark" else None

    def rows_of_job(
        job: DumpJob,
        dbs: dict[str, list[tuple[Any, ...]]] = DBS,
        snapshot: list[tuple[Any, ...]] = SNAPSHOT,
    ) -> list[dict[str, Any]]:
        schema = stored_table(job.name)
        tables = tables_of(job, dbs, snapshot)
        if spark is not None:
            # Several keys, with rows of one dataset under several.
            frames = read_dumps(SparkTransport(spark), sources_of(spark, tables), keys=8).frames
            rows = dump_frames.as_table(job.build(frames, DAY), job.name, DAY)
            return dump_frames.to_arrow(rows, schema.arrow()).to_pylist()  # type: ignore[no-any-return]
        with tempfile.TemporaryDirectory() as folder:
            frames = read_dumps(ProcessTransport(Path(folder)), parts_of(tables), keys=4).frames
            assert not list(Path(folder).iterdir())
        rows = dump_frames.as_table(job.build(frames, DAY), job.name, DAY)
        return dump_frames.to_arrow(rows, schema.arrow()).to_pylist()  # type: ignore[no-any-return]

    return rows_of_job


@pytest.fixture(scope="module")
def built(build: Build) -> Built:
    """The rows of each job on the hand-made tables."""
    made: Built = {}
    for job in (DBS_PHEDEX, site_tier_usage.JOB, dbs_events.JOB, PHEDEX):
        made[job.name] = build(job)
        for column in stored_table(job.name).columns:
            assert column.nullable or all(
                row[column.name] is not None for row in made[job.name]
            ), column.name
    return made


def test_dbs_phedex_has_one_row_for_each_dataset_site_and_kind(built: Built) -> None:
    rows = {
        (row["dataset_name"], row["site_name"], row["kind"]): row for row in built["dbs_phedex"]
    }
    expected = {
        # present bytes, files, blocks; blocks named; complete; newest
        (A, "T1_US_FNAL", "disk"): (300, 3, 2, 2, True, 30_000),
        (A, "T1_US_FNAL", "tape"): (300, 3, 1, 2, True, 20_000),
        (A, "T2_CH_CERN_HLT", "disk"): (500, 5, 2, 2, False, 5_000),
        (B, "T2_DE_DESY", "disk"): (10, 1, 1, 2, False, 1_000),
        (B, "T1_DE_KIT", "buffer"): (20, 2, 2, 2, True, 2_000),
        # Its only block has no file in DBS.
        (C, "T2_DE_DESY", "disk"): (0, 0, 0, 0, False, None),
        (C, "T3_X", "disk"): (0, 0, 0, 0, False, None),
        ("/not/in/DBS", "T2_DE_DESY", "disk"): (40, 4, 1, 1, True, 7_000),
        (None, None, "disk"): (0, 0, 0, None, False, None),
    }
    names = (
        "present_bytes",
        "present_file_count",
        "present_block_count",
        "block_count",
        "is_complete",
        "newest_replica_ms",
    )
    assert {key: tuple(row[name] for name in names) for key, row in rows.items()} == expected


def test_rule_71_a_block_that_is_empty_or_without_a_valid_file_need_not_be_there(
    build: Build,
) -> None:
    files = [
        ("/f1", 1, 1, 1, 10, 10.0, 1),
        ("/f2", 2, 1, 0, 10, 10.0, 2),
        ("/f3", 3, 1, None, 10, 10.0, 2),
        ("/f4", 4, 1, 0, 10, 10.0, 5),
        ("/f5", 5, 1, 1, 10, 10.0, 5),
    ]
    # 2 has no valid file, 3 none at all, 5 one of two; 4 is empty in the snapshot, 6
    # has no id in DBS.
    blocks = [(f"{A}#{number}", 1, number) for number in (1, 2, 3, 5)] + [(f"{A}#6", 1, None)]

    def at(node: str, *numbers: int) -> list[tuple[Any, ...]]:
        return [
            (A, f"{A}#{number}", size, 10 * size, node, size, 10 * size, 1)
            for number in numbers
            for size in [0 if number == 4 else 1]
        ]

    snapshot = [*at("T2_A", 1, 5, 6), *at("T2_B", 1, 2, 4, 5, 6), *at("T2_C", 1, 2, 4, 6)]
    rows = build(DBS_PHEDEX, {**DBS, "FILES": files, "BLOCKS": blocks}, snapshot)
    complete = {row["site_name"]: (row["block_count"], row["is_complete"]) for row in rows}
    assert complete == {"T2_A": (3, True), "T2_B": (3, True), "T2_C": (3, False)}
    assert {(row["invalid_file_count"], row["invalid_bytes"]) for row in rows} == {(3, 30)}


def test_dbs_phedex_adds_what_dbs_knows_and_keeps_datasets_that_it_does_not(built: Built) -> None:
    names = (
        "events",
        "dataset_bytes",
        "dataset_file_count",
        "release_versions",
        "access_type",
        "acquisition_era",
        "is_valid",
    )
    rows = {row["dataset_name"]: tuple(row[name] for name in names) for row in built["dbs_phedex"]}
    assert rows == {
        A: (150, 1500, 2, "CMSSW_10,CMSSW_9", "VALID", "Run2026A", True),
        B: (5, 300, 2, None, "INVALID", None, False),
        C: (None, None, 0, None, None, None, True),
        "/not/in/DBS": (None,) * 7,
        None: (None,) * 7,
    }


def test_dbs_events_has_one_row_for_each_dataset_valid_or_not(built: Built) -> None:
    names = (
        "events",
        "file_count",
        "invalid_file_count",
        "dataset_bytes",
        "invalid_events",
        "invalid_bytes",
        "is_valid",
        "access_type",
        "created_ms",
    )
    rows = built["dbs_events"]
    assert {row["dataset_name"]: tuple(row[name] for name in names) for row in rows} == {
        A: (150, 2, 1, 1500, 50, 500, True, "VALID", 1_500_000_000_000),
        B: (5, 2, 1, 300, 5, 0, False, "INVALID", None),
        C: (None, 0, 0, None, None, None, True, None, 0),
    }
    by_name = {row["dataset_name"]: row for row in rows}
    assert len(rows) == 3
    assert (by_name[A]["processing_version"], by_name[A]["physics_group"]) == (3, "Higgs")
    assert [by_name[A][part] for part in ("primary_name", "processing_name", "data_tier")] == [
        "a",
        "x-v1",
        "RAW",
    ]


def test_phedex_has_what_is_there_by_site_kind_and_dataset(built: Built) -> None:
    names = (
        "site_name",
        "kind",
        "dataset_name",
        "present_bytes",
        "present_file_count",
        "site_tier",
        "data_tier",
    )
    rows = {tuple(row[name] for name in names) for row in built["phedex"]}
    assert ("T2_CH_CERN_HLT", "disk", A, 500, 5, "T2", "RAW") in rows
    assert ("T1_DE_KIT", "buffer", B, 20, 2, "T1", "AOD") in rows
    assert len(rows) == 9


def test_site_tier_usage_counts_a_datasets_events_once_and_its_replicas_by_what_they_hold(
    built: Built,
) -> None:
    names = (
        "site_count",
        "dataset_count",
        "unknown_dataset_count",
        "events",
        "replica_events",
        "replica_bytes",
    )
    rows = {
        (row["site_tier"], row["kind"], row["data_tier"]): tuple(row[name] for name in names)
        for row in built["site_tier_usage"]
    }
    assert rows == {
        # 150 events in 1500 bytes: 300 bytes hold 30 of them.
        ("T1", "disk", "RAW"): (1, 1, 0, 150, 30, 300),
        ("T1", "tape", "RAW"): (1, 1, 0, 150, 30, 300),
        ("T2", "disk", "RAW"): (1, 1, 0, 150, 50, 500),
        ("T2", "disk", "AOD"): (1, 1, 0, 5, 0, 10),
        ("T1", "buffer", "AOD"): (1, 1, 0, 5, 0, 20),
        ("T2", "disk", "DBS"): (1, 1, 1, None, None, 40),
    }


def test_a_dataset_at_two_sites_of_a_tier_counts_once_in_events_and_twice_in_replicas(
    build: Build,
) -> None:
    snapshot = [
        (A, f"{A}#1", 2, 1500, node, 2, 1500, 1)
        for node in ("T2_DE_DESY", "T2_IT_Pisa", "T2_IT_Pisa_Disk")
    ]
    (row,) = build(site_tier_usage.JOB, snapshot=snapshot)
    assert (row["site_count"], row["dataset_count"], row["events"], row["replica_events"]) == (
        2,
        1,
        150,
        300,
    )
    assert (row["replica_bytes"], row["replica_file_count"]) == (4500, 6)


def test_of_two_rows_with_one_name_the_larger_id_describes_and_both_hold_files(
    build: Build,
) -> None:
    dbs = DBS | {
        "DATASETS": [*DBS["DATASETS"], (4, A, 0, 2, 1, 1, 1, 2e9)],
        "FILES": [*DBS["FILES"], ("/g", 20, 4, 1, 1, 1.0, None)],
    }
    (row,) = [one for one in build(dbs_events.JOB, dbs) if one["dataset_name"] == A]
    assert (row["file_count"], row["events"], row["is_valid"], row["access_type"]) == (
        3,
        151,
        False,
        "INVALID",
    )


def test_of_one_name_under_one_id_the_larger_values_count_and_null_is_the_smallest(
    build: Build,
) -> None:
    files = [
        ("/f", 1, 1, None, 9, 9.0, None),
        ("/f", 1, 1, 0, 7, 7.0, None),
        ("/f", 1, 1, 0, 8, None, None),
        ("/f", None, 2, 1, 99, 99.0, None),
        ("/g", -5, 2, 1, 1, 1.0, None),
        ("/g", -5, 1, 1, 2, 2.0, None),
        ("/h", 3, 99, 1, 5, 5.0, None),
        ("/h", 2, 2, 1, 4, 4, None),
        (None, None, 2, 1, 16, 0.0, None),
        (None, None, 2, 1, 32, 0.0, None),
        (None, 7, 2, 1, 64, 0.0, None),
    ]
    rows = {row["dataset_name"]: row for row in build(dbs_events.JOB, DBS | {"FILES": files})}
    names = ("file_count", "invalid_file_count", "events", "dataset_bytes")
    assert tuple(rows[A][name] for name in names) == (1, 1, 8, None)
    assert tuple(rows[B][name] for name in names) == (4, 0, 1 + 4 + 32 + 64, 1 + 4)


def test_a_sum_beyond_64_bits_fails_and_never_wraps(build: Build) -> None:
    events = 2**63 - 1
    files = [(f"/f{number}", number, 1, 1, events, 1.0, None) for number in range(3)]
    with pytest.raises(Exception, match=TOO_LARGE):
        build(dbs_events.JOB, DBS | {"FILES": files})
    (row,) = [
        one
        for one in build(dbs_events.JOB, DBS | {"FILES": files[:1]})
        if one["dataset_name"] == A
    ]
    assert row["events"] == events
    snapshot = [(A, f"{A}#1", 1, events, node, 1, events, 1) for node in ("T2_A", "T2_A_Disk")]
    with pytest.raises(Exception, match=TOO_LARGE):
        build(PHEDEX, snapshot=snapshot)


def test_sums_of_sites_beyond_64_bits_fail_too(build: Build) -> None:
    snapshot = [(A, f"{A}#1", 1, 2**62, node, 1, 2**62, 1) for node in ("T2_A", "T2_B")]
    assert len(build(PHEDEX, snapshot=snapshot)) == 2
    with pytest.raises(Exception, match=TOO_LARGE):
        build(site_tier_usage.JOB, snapshot=snapshot)


@pytest.mark.parametrize("job", [DBS_PHEDEX, site_tier_usage.JOB, dbs_events.JOB, PHEDEX])
def test_help_describes_what_a_job_makes(job: DumpJob) -> None:
    shown = CliRunner().invoke(job.command(), ["--help"])
    assert shown.exit_code == 0
    assert "--date" in shown.output
