"""The jobs on dumps, by processes and in Spark: against DuckDB, what is stored, what
goes wrong, hostile dumps.
"""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from cmsspark.apps.demo.make import make
from cmsspark.apps.replicas import dbs_events, site_tier_usage
from cmsspark.apps.replicas.replica_jobs import DBS_PHEDEX, PHEDEX
from cmsspark.base.errors import DataError, InputMissing, NotReady, OutputError, UsageError
from cmsspark.base.schemas import input_table
from cmsspark.dumps.process_transport import spill_folder
from cmsspark.filesystems.storage import LocalFiles
from cmsspark.run import dump_day
from cmsspark.run.dump_day import DumpJob
from cmsspark.run.request import JobRequest
from cmsspark.settings.settings import Settings, load_settings
from cmsspark.sources.folders import Layout, choose_dbs_dump, choose_phedex_dump
from cmsspark.sources.formats.sqoop_csv import read_table

DAY = date(2015, 1, 15)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("demo")
    make(root, DAY, records=200, files=3_000, datasets=60, seed=5)
    return root


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    written = tmp_path / "cmsspark.yaml"
    written.write_text(f"state_dir: {tmp_path}/state\ncache_dir: {tmp_path}/cache\n")
    return load_settings(str(written))


@pytest.fixture(scope="module")
def sql(demo: Path) -> duckdb.DuckDBPyConnection:
    """The same dumps in DuckDB, with replicas that have their site and kind."""
    layout = Layout.load({}, str(demo))
    base = duckdb.connect()
    dump = choose_dbs_dump(
        LocalFiles(), layout, DAY, dbs_events.DBS.keys() | DBS_PHEDEX.dbs.keys()
    )
    for name, files in dump.tables.items():
        table = input_table(f"dbs/{name}")
        rows = pa.concat_tables(
            [piece for file in files for piece in read_table(file.path, table, table.names)]
        )
        base.from_arrow(rows).create(name)
    snapshot = choose_phedex_dump(LocalFiles(), layout, DAY)
    table = input_table("phedex/block_replicas")
    files = snapshot.tables["block_replicas"]
    rows = pa.concat_tables(
        [piece for file in files for piece in read_table(file.path, table, table.names)]
    )
    base.from_arrow(rows).create("snapshot")
    base.execute(
        """
        create view nodes as select dataset_name as dataset, block_name as block, block_files, block_bytes,
            br_node_files as files, br_node_bytes as bytes, cast(round(replica_time_create * 1000) as bigint) as made,
            regexp_replace(node_name, '(_Disk|_MSS|_Buffer|_Export)$', '') as site,
            case when node_name like '%\\_MSS' escape '\\' then 'tape'
                 when regexp_matches(node_name, '(_Buffer|_Export)$') then 'buffer' else 'disk' end as kind
        from snapshot;
        create view kept as select distinct on (logical_file_name) f.*, d.dataset from FILES f
            join (select distinct dataset_id, dataset from DATASETS) d using (dataset_id)
            order by logical_file_name, file_id desc;
        create view sizes as select dataset, sum(event_count) as events, sum(file_size)::bigint as bytes,
            count(*) as files from kept group by all;
        """
    )
    return base


@pytest.fixture(params=["processes", "spark"])
def engine(request: pytest.FixtureRequest) -> str:
    """Each engine; for Spark there is a session."""
    if request.param == "spark":
        request.getfixturevalue("spark")
    return str(request.param)


def stored(
    job: DumpJob, demo: Path, out: Path, settings: Settings, engine: str = "auto"
) -> tuple[pa.Table, dict[str, Any]]:
    done = dump_day.run(
        job,
        JobRequest(job.name, DAY, str(out), settings, str(demo), engine=engine),
        lambda _: None,
    )
    assert not list(settings.cache_dir.glob("dumps/*"))
    return pq.read_table(Path(done.path) / job.name), done.manifest.document


def cells(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(rows, key=repr)


def test_dbs_phedex_of_a_demo_has_the_cells_that_duckdb_counts(
    engine: str, demo: Path, sql: duckdb.DuckDBPyConnection, tmp_path: Path, settings: Settings
) -> None:
    found, manifest = stored(DBS_PHEDEX, demo, tmp_path, settings, engine)
    names = [
        "dataset_name",
        "site_name",
        "kind",
        "present_bytes",
        "present_file_count",
        "newest_replica_ms",
    ]
    names += ["events", "dataset_bytes", "dataset_file_count", "is_complete"]
    expected = sql.execute(
        """
        with named as (select dataset, block_name as block from BLOCKS join DATASETS using (dataset_id)
                       union select dataset, block from nodes),
        wanted as (select dataset, count(*) as blocks from named group by all),
        whole as (select dataset, site, count(distinct block) as blocks from nodes
                  where files >= block_files and bytes >= block_bytes group by all)
        select n.dataset, n.site, n.kind, sum(n.bytes)::bigint, sum(n.files)::bigint, max(n.made),
               any_value(s.events)::bigint, any_value(s.bytes), any_value(s.files),
               coalesce(any_value(h.blocks), 0) = any_value(w.blocks)
        from nodes n left join sizes s using (dataset) left join wanted w using (dataset)
        left join whole h on h.dataset = n.dataset and h.site = n.site group by 1, 2, 3
        """
    ).fetchall()
    assert cells([tuple(row[name] for name in names) for row in found.to_pylist()]) == cells(
        expected
    )
    assert {row["is_complete"] for row in found.to_pylist()} == {True, False}
    assert manifest["dumps"]["dbs"]["day"] == manifest["dumps"]["phedex"]["day"] == "2015-01-16"
    assert manifest["tables"]["dbs_phedex"]["rows"] == found.num_rows


def test_site_tier_usage_of_a_demo_has_the_totals_that_duckdb_counts(
    engine: str, demo: Path, sql: duckdb.DuckDBPyConnection, tmp_path: Path, settings: Settings
) -> None:
    found, _ = stored(site_tier_usage.JOB, demo, tmp_path, settings, engine)
    names = [
        "site_tier",
        "kind",
        "data_tier",
        "dataset_count",
        "site_count",
        "replica_bytes",
        "events",
        "replica_events",
    ]
    expected = sql.execute(
        """
        with here as (select dataset, site, kind, sum(bytes) as bytes from nodes group by all
                      having sum(bytes) > 0 or sum(files) > 0),
        known as (select h.*, s.events, round(s.events * least(1.0, h.bytes / s.bytes)) as held,
                  split_part(site, '_', 1) as tier, split_part(dataset, '/', 4) as data
                  from here h left join sizes s using (dataset)),
        once as (select distinct tier, kind, data, dataset, events from known)
        select tier, kind, data, count(distinct dataset), count(distinct site), sum(bytes)::bigint,
          (select sum(events)::bigint from once o where (o.tier, o.kind, o.data) = (k.tier, k.kind, k.data)),
          sum(held)::bigint
        from known k group by tier, kind, data
        """
    ).fetchall()
    assert cells([tuple(row[name] for name in names) for row in found.to_pylist()]) == cells(
        expected
    )


def test_dbs_events_and_phedex_of_a_demo_have_the_totals_that_duckdb_counts(
    engine: str, demo: Path, sql: duckdb.DuckDBPyConnection, tmp_path: Path, settings: Settings
) -> None:
    found, manifest = stored(dbs_events.JOB, demo, tmp_path, settings, engine)
    names = ["dataset_name", "events", "dataset_bytes", "file_count"]
    expected = sql.execute("select dataset, events::bigint, bytes, files from sizes").fetchall()
    assert cells(
        [tuple(row[name] for name in names) for row in found.to_pylist() if row["file_count"]]
    ) == cells(expected)
    assert set(manifest["dumps"]) == {"dbs"}
    assert manifest["engine"] == engine
    assert manifest.get("compiled") == (True if engine == "processes" else None)
    found, manifest = stored(PHEDEX, demo, tmp_path, settings, engine)
    names = ["dataset_name", "site_name", "kind", "present_bytes", "present_file_count"]
    expected = sql.execute(
        "select dataset, site, kind, sum(bytes)::bigint, sum(files)::bigint from nodes group by all"
    ).fetchall()
    assert cells([tuple(row[name] for name in names) for row in found.to_pylist()]) == cells(
        expected
    )
    assert set(manifest["dumps"]) == {"phedex"}


def test_a_damaged_dump_fails_the_run_by_name_and_the_previous_result_stays(
    engine: str, tmp_path: Path, settings: Settings
) -> None:
    root, out = tmp_path / "cms", tmp_path / "out"
    make(root, DAY, records=50, files=200, datasets=10, seed=6)
    before, _ = stored(PHEDEX, root, out, settings, engine)
    current = (out / "phedex" / DAY.isoformat() / "CURRENT").read_text()
    (part, *_) = sorted(root.glob("project/awg/cms/phedex/**/part-*"))
    part.write_bytes(b"1,2,3\n")
    with pytest.raises(DataError) as raised:
        stored(PHEDEX, root, out, settings, engine)
    assert part.name in str(raised.value.where)
    assert (out / "phedex" / DAY.isoformat() / "CURRENT").read_text() == current
    assert before.num_rows > 0
    assert len(list((out / "phedex" / DAY.isoformat() / "runs").iterdir())) == 1


def test_a_missing_or_half_written_dump_is_reported_before_anything_starts(
    tmp_path: Path, settings: Settings
) -> None:
    with pytest.raises(InputMissing):
        stored(PHEDEX, tmp_path / "nothing", tmp_path / "out", settings)
    root = tmp_path / "cms"
    make(root, DAY, records=50, files=200, datasets=10, seed=6)
    for part in root.glob("project/awg/cms/dbs/PROD_GLOBAL/*/PHYSICS_GROUPS/*"):
        part.write_bytes(b"")
    with pytest.raises(NotReady, match="PHYSICS_GROUPS is empty"):
        stored(dbs_events.JOB, root, tmp_path / "out", settings)


def test_run_spark_starts_no_jvm_where_the_dumps_lie_here(
    demo: Path, tmp_path: Path, settings: Settings
) -> None:
    words = [
        "dbs_events.py",
        "--date",
        "20150115",
        "--root",
        str(demo),
        "--fout",
        str(tmp_path / "out"),
    ]
    run = subprocess.run(
        [sys.executable, "-c", "from cmsspark.submit import main; main()", *words],
        env={
            "PATH": "/nowhere",
            "JAVA_HOME": "/nowhere",
            "PYTHONPATH": ":".join(sys.path),
            "HOME": str(tmp_path),
            "CMSSPARK_STATE_DIR": str(tmp_path / "state"),
            "CMSSPARK_CACHE_DIR": str(tmp_path / "cache"),
            "CMSSPARK_COMPILED": "0",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    (manifest,) = tmp_path.glob("out/dbs_events/2015-01-15/runs/*/manifest.json")
    told = json.loads(manifest.read_text())
    assert told["engine"] == "processes"
    assert told["compiled"] is False and set(told["readers"]) == {"off"}


def test_processes_are_refused_where_only_spark_can(
    demo: Path, tmp_path: Path, settings: Settings
) -> None:
    with pytest.raises(UsageError, match="--engine processes cannot do that"):
        dump_day.run(
            PHEDEX,
            JobRequest(
                "phedex", DAY, str(tmp_path), settings, str(demo), fmt="csv", engine="processes"
            ),
        )


def test_a_folder_of_rows_is_gone_at_the_end_and_so_are_those_of_killed_runs(
    tmp_path: Path,
) -> None:
    killed = tmp_path / "dumps" / "rows-killed"
    killed.mkdir(parents=True)
    (killed / "lock").write_bytes(b"")
    (killed / "left.run").write_bytes(b"rows")
    with spill_folder(tmp_path) as folder:
        assert not killed.exists()
        with spill_folder(tmp_path) as other:
            assert folder.exists() and other.exists() and folder != other
        assert folder.exists()
    assert list((tmp_path / "dumps").iterdir()) == []
    with (
        pytest.raises(OutputError, match="cache folder cannot be written"),
        spill_folder(Path("/proc/nowhere")),
    ):
        assert False


def test_the_command_stores_the_day(spark: Any, demo: Path, tmp_path: Path) -> None:
    arguments = [
        "--date",
        "20150115",
        "--root",
        str(demo),
        "--fout",
        str(tmp_path),
        "--format",
        "csv",
    ]
    shown = CliRunner().invoke(PHEDEX.command(), arguments, catch_exceptions=False)
    assert shown.exit_code == 0
    (manifest,) = tmp_path.glob("phedex/2015-01-15/runs/*/manifest.json")
    told = json.loads(manifest.read_text())
    assert told["tables"]["phedex"]["format"] == "csv"
