"""The demo's CMS: believable, the same each time, and counted right by whoever counts it."""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from cmsspark.apps.cache import xcache_job
from cmsspark.apps.crab import tape_recalls, tasks
from cmsspark.apps.demo import LogLayout, Made, make
from cmsspark.apps.demo.activity import STREAMS
from cmsspark.apps.demo.logs import PIECE, find_log_folder, pieces, write_piece
from cmsspark.apps.demo.world import make_world
from cmsspark.apps.replicas import rules_day
from cmsspark.apps.replicas.storage_usage import ACCOUNT_USAGE, RSE_USAGE
from cmsspark.base.resources import resource
from cmsspark.base.schemas import input_table
from cmsspark.dumps.process_transport import ProcessTransport
from cmsspark.filesystems.storage import LocalFiles
from cmsspark.run.row_job import RowRequest
from cmsspark.settings.settings import Settings
from cmsspark.sources.layout import Layout
from tests.oracle import rucio
from tests.oracle import usage as usage_oracle
from tests.oracle.count import count_day

DAY = date(2026, 1, 15)

LAYOUTS = {
    "mixed": LogLayout(),
    "plain": LogLayout(gzip="none", aaa="both", per_part=300),
    "legacy": LogLayout(
        gzip="all",
        aaa="raw",
        eos="old",
        cmssw="avro",
        dbs="current",
        avro_codec="deflate",
        per_part=500,
    ),
}


def small(root: Path, layout: LogLayout | None = None, **options: object) -> Made:
    sizes = {
        "records": 2_000,
        "files": 500,
        "datasets": 40,
        "people": 30,
        "streams": STREAMS,
    } | options
    return make(root, DAY, layout=layout, **sizes)  # type: ignore[arg-type]  # sizes are ints, streams a tuple


def digests(root: Path) -> dict[str, str]:
    files = sorted(path for path in root.rglob("*") if path.is_file())
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


def text(path: Path) -> str:
    content = path.read_bytes()
    return (gzip.decompress(content) if path.suffix == ".gz" else content).decode()


def rows(folder: Path) -> list[list[str]]:
    lines = [line for path in sorted(folder.glob("part-*")) for line in text(path).splitlines()]
    return list(csv.reader(lines, escapechar="\\", doublequote=False))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return small(tmp_path_factory.mktemp("cms"))


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_the_bins_known_beforehand_are_those_that_an_independent_count_finds(
    tmp_path: Path, layout: LogLayout
) -> None:
    made = small(tmp_path, layout)
    counted = count_day(tmp_path, DAY)
    assert {
        stream: counted.streams[stream].reconciliation() for stream in STREAMS
    } == made.reconciliation(DAY)


def test_days_of_rucio_have_records_of_caches_and_the_job_sums_them(tmp_path: Path) -> None:
    small(tmp_path / "cms", streams=None)
    folder = tmp_path / "cms/project/monitoring/archive/cms-xrootd-cache/raw/metric/2026/01/15"
    records = [
        json.loads(line)["data"]
        for path in sorted(folder.glob("part-*"))
        for line in text(path).splitlines()
    ]
    assert len(records) == 20
    settings = Settings(None, None, tmp_path / "state", tmp_path / "cache")
    done = xcache_job.run(
        DAY, str(tmp_path / "store"), settings, root=str(tmp_path / "cms"), log=lambda _: None
    )
    rows = pq.read_table(Path(done.path) / "xcache").to_pylist()
    assert done.manifest.document["records"] == {"read": 20, "malformed": 0, "out_of_day": 0}
    for column, names in (
        ("close_count", ()),
        ("access_count", ("access_count",)),
        ("hit_bytes", ("bytes_hit_cache",)),
        ("missed_bytes", ("bytes_miss_cache",)),
        ("bypass_bytes", ("bytes_bypass_cache",)),
        ("remote_bytes", ("bytes_read_by_remote",)),
        ("explicit_remote_bytes", ("bytes_explicit_remote_read",)),
    ):
        wanted = sum(sum(record[name] for name in names) if names else 1 for record in records)
        assert sum(row[column] for row in rows) == wanted > 0, column
    assert {"unknown"} < {row["site_name"] for row in rows}
    # What was asked for is a part of the file.
    assert all(
        record["bytes_hit_cache"] + record["bytes_miss_cache"] <= record["size"]
        for record in records
    )


def test_days_of_phedex_and_logs_of_chosen_streams_have_no_records_of_caches(
    made: Made, tmp_path: Path
) -> None:
    make(tmp_path, date(2020, 11, 17), records=1_000, files=300, datasets=20, people=20)
    for root in (made.root, tmp_path):
        assert not (root / "project/monitoring/archive/cms-xrootd-cache").exists()


def times(root: Path) -> dict[str, float]:
    return {
        str(path.relative_to(root)): path.stat().st_mtime
        for path in root.rglob("*")
        if path.is_file()
    }


def test_the_same_arguments_give_the_same_bytes_and_times(made: Made, tmp_path: Path) -> None:
    small(tmp_path)
    assert digests(tmp_path) == digests(made.root)
    assert times(tmp_path) == times(made.root)


def test_another_seed_gives_another_cms_of_the_same_shape(made: Made, tmp_path: Path) -> None:
    other = small(tmp_path, seed=2)
    assert other.records() == made.records()
    assert digests(tmp_path).keys() == digests(made.root).keys()
    assert not set(digests(tmp_path / "project/monitoring").values()) & {
        digest
        for name, digest in digests(made.root / "project/monitoring").items()
        if "part" in name
    }


def test_making_it_again_replaces_what_was_there(tmp_path: Path) -> None:
    small(tmp_path, LogLayout(aaa="both", per_part=100))
    small(tmp_path)
    again = digests(tmp_path)
    assert not [name for name in again if "xrootd/raw" in name]
    assert len([name for name in again if "xrootd/enr" in name]) == 2


def test_asking_for_fewer_streams_changes_none_of_the_others(made: Made, tmp_path: Path) -> None:
    small(tmp_path, streams=("cmssw", "crab"))
    fewer = digests(tmp_path)
    assert not [name for name in fewer if "xrootd" in name or "eos" in name]
    assert fewer.items() <= digests(made.root).items()


def test_a_second_day_is_another_day_with_one_set_of_dumps_after_it(tmp_path: Path) -> None:
    made = small(tmp_path, days=2)
    assert made.days == [DAY, date(2026, 1, 16)]
    assert made.records() == {stream: 2 * count for stream, count in made.records(DAY).items()}
    assert [path.name for path in (tmp_path / "project/awg/cms/dbs/PROD_GLOBAL").iterdir()] == [
        "2026-01-17"
    ]
    for day in made.days:
        counted = count_day(tmp_path, day, ("cmssw", "crab"))
        assert counted.streams["cmssw"].reconciliation() == made.reconciliation(day)["cmssw"]


def test_folders_are_those_of_production(made: Made) -> None:
    assert {stream: str(path.relative_to(made.root)) for stream, path in made.folders.items()} == {
        "aaa": "project/monitoring/archive/xrootd/enr/gled/2026/01/15",
        "eos": "project/monitoring/archive/eos-report/logs/cms/2026/01/15",
        "cmssw": "project/monitoring/archive/cmssw_pop/raw/metric/2026/01/15",
        "crab": "project/awg/cms/jm-data-popularity/avro-snappy/year=2026/month=1/day=15",
        "dbs": "project/awg/cms/dbs/PROD_GLOBAL/2026-01-16",
        "rucio": "project/awg/cms/rucio/2026-01-16",
    }


def test_every_bin_occurs_and_bad_records_stay_far_below_the_tolerance(tmp_path: Path) -> None:
    made = small(tmp_path, records=20_000)
    for counts in made.bins[DAY].values():
        total = sum(counts.values())
        assert counts["malformed"] <= max(1, total // 2_000)
        assert counts["out_of_day"] < 0.01 * total
        assert counts["matched"] > 0.6 * total
    everywhere = {
        name: sum(bins[name] for bins in made.bins[DAY].values()) for name in made.bins[DAY]["aaa"]
    }
    assert all(everywhere.values())


@pytest.mark.parametrize(
    ("stream", "narrow", "wide"),
    [("aaa", 1_800, 2_300), ("eos", 1_700, 2_800), ("cmssw", 1_200, 1_600)],
)
def test_records_are_as_wide_as_those_of_production(
    made: Made, stream: str, narrow: int, wide: int
) -> None:
    sizes = [
        len(line)
        for path in sorted(made.folders[stream].glob("part-*"))
        for line in text(path).splitlines()
    ]
    assert narrow < sum(sizes) / len(sizes) < wide


def test_all_forms_of_eos_records_stand_in_one_day(made: Made) -> None:
    forms = set()
    for line in (
        line for path in made.folders["eos"].glob("part-*") for line in text(path).splitlines()
    ):
        try:
            data = json.loads(line)["data"]
        except (ValueError, TypeError, KeyError):
            continue
        if isinstance(data, str):
            forms.add("G1 quoted" if data.startswith('"') else "G1")
        elif data:
            forms.add("G2 prefixed" if "eos.rb" in data else "G2" if "raw" in data else "G3")
    assert forms == {"G1", "G1 quoted", "G2 prefixed", "G2", "G3"}


def test_crab_records_have_the_44_fields_of_the_format_and_numbers_as_text(made: Made) -> None:
    with next(made.folders["crab"].glob("*.avro")).open("rb") as stream:
        reader = fastavro.reader(stream)
        records = list(reader)
        assert reader.codec == "snappy"
    assert {len(record) for record in records} == {44}
    assert any(record["GridName"] is None for record in records)
    assert all(isinstance(record["WrapWC"], str) for record in records)


def test_each_crab_record_of_a_day_is_of_a_job_of_its_own(tmp_path: Path) -> None:
    layout = LogLayout(per_part=PIECE)
    world = make_world(np.random.default_rng(1), datasets=3, files=20, people=3)
    jobs: list[str] = []
    for piece in pieces("crab", DAY, 3 * PIECE, PIECE):
        write_piece(world, tmp_path, 1, replace(piece, records=500), layout)
    for part in find_log_folder(tmp_path, "crab", DAY, layout).iterdir():
        with part.open("rb") as stream:
            jobs += [record["JobId"] for record in fastavro.reader(stream)]
    assert len(jobs) == len(set(jobs)) == 1_500


def test_dumps_have_all_tables_with_nulls_duplicates_and_orphans(made: Made) -> None:
    dbs = made.folders["dbs"]
    tables = {table.name: {len(row) for row in rows(table)} for table in dbs.iterdir()}
    listed = [path.name.removesuffix(".yaml") for path in resource("schemas/inputs/dbs").iterdir()]
    assert tables == {name: {len(input_table(f"dbs/{name}").names)} for name in listed}
    files = rows(dbs / "FILES")
    assert any("null" in row for row in files)
    known = {row[0] for row in rows(dbs / "DATASETS")}
    assert [row for row in files if row[3] not in known]


def test_replicas_lie_on_disk_tape_and_buffer_some_incomplete(tmp_path: Path) -> None:
    made = make(tmp_path, date(2019, 6, 15), records=100, files=800, datasets=20, people=10)
    assert set(made.folders) >= {"phedex"} and "rucio" not in made.folders
    replicas = rows(made.folders["phedex"])
    assert (
        {len(row) for row in replicas} == {28} == {len(input_table("phedex/block_replicas").names)}
    )
    ends = {row[13].rsplit("_", 1)[-1] for row in replicas}
    assert {"Disk", "MSS", "Buffer"} <= ends
    assert any(int(row[20]) < int(row[8]) and int(row[21]) < int(row[9]) for row in replicas)
    assert all((int(row[20]) == int(row[8])) == (int(row[21]) == int(row[9])) for row in replicas)


def test_days_on_both_sides_of_the_boundary_have_the_dumps_of_both_sources(tmp_path: Path) -> None:
    made = make(
        tmp_path, date(2020, 11, 17), days=2, records=400, files=800, datasets=20, people=10
    )
    assert made.folders["phedex"].name.startswith("time=2020-11-19_")
    assert made.folders["rucio"].name == "2020-11-19"
    for day in made.days:
        assert (
            count_day(tmp_path, day, ("cmssw",)).streams["cmssw"].reconciliation()
            == made.reconciliation(day)["cmssw"]
        )


def test_rucio_has_the_same_replicas_and_what_it_has_beside_them(made: Made) -> None:
    found = rucio.read(made.folders["rucio"])
    assert {kind for _, kind in found.places.values()} == {"disk", "tape"}
    assert {"other_scope", "not_available", "test_rse", "unknown_rse"} <= found.ignored.keys()
    assert any(
        one.node_files < found.block_files[block]
        for (_, block), one in found.block_replicas.items()
    )
    assert found.unattached and found.accessed and not found.damaged
    assert {name for _, name in found.replicas} - found.blocks.keys(), "files in no block"


def test_locks_and_counters_of_rucio_are_the_sums_of_its_replicas(
    made: Made, tmp_path: Path
) -> None:
    transport = ProcessTransport(tmp_path)
    settings = Settings(None, None, tmp_path / "state", tmp_path / "cache")
    request = RowRequest("", DAY, "", settings, str(made.root))
    found: dict[str, list[dict[str, Any]]] = {}
    for job in (ACCOUNT_USAGE, RSE_USAGE, rules_day.JOB, tape_recalls.JOB, tasks.JOB):
        dumps = job.choose(LocalFiles(), Layout.load({}, str(made.root)), DAY)
        tables, manifest = job.make(request, transport, LocalFiles(), dumps, [])
        assert not manifest.get("checks", {}).get("share_with_other_lock_cnt")
        found |= {name: table.to_pylist() for name, table in tables.items()}
        assert all(table.num_rows for table in tables.values())
    replicas = usage_oracle.rows(made.folders["rucio"] / "replicas", "REPLICAS")
    counts = sum(row["LOCK_CNT"] for row in replicas)
    assert sum(row["lock_count"] for row in found["account_usage"]) == counts > 0
    usage = {row["rse"]: row for row in found["rse_usage"] if row["rucio_bytes"] is not None}
    for row in usage.values():
        assert row["rucio_bytes"] == row["replica_bytes"] + row["other_bytes"]
        assert (row["expired_bytes"] or 0) == row["own_expired_bytes"] and not row["is_stale"]
    assert {row["limit_kind"] for row in found["account_usage"]} == {"limit", "none", "unlimited"}
    assert {"new", "stuck", "suspended", "expiring", "endless"} <= {
        row["event"] for row in found["rules_day"]
    }
    assert sum(row["task_count"] for row in found["tape_recalls"]) > 0


def test_a_name_that_stands_twice_in_files_keeps_its_larger_id(tmp_path: Path) -> None:
    made = small(tmp_path, records=100, files=20_000)
    names = [row[1] for row in rows(made.folders["dbs"] / "FILES")]
    assert len(names) > len(set(names))


def test_several_processes_write_the_same_bytes(made: Made, tmp_path: Path) -> None:
    again = small(tmp_path, processes=2)
    assert digests(tmp_path) == digests(made.root)
    assert again.bins == made.bins


def test_a_long_day_is_made_in_pieces_of_whole_parts_none_of_them_like_another() -> None:
    made = list(pieces("aaa", DAY, 250_000, 12_500))
    assert [(piece.records, piece.first_part) for piece in made] == [
        (100_000, 0),
        (100_000, 8),
        (50_000, 16),
    ]
    assert len({piece.rng(1).integers(0, 1 << 60) for piece in made}) == 3


def test_todays_eos_records_are_of_one_form_and_as_wide_as_those_before(tmp_path: Path) -> None:
    made = small(tmp_path, LogLayout(gzip="none", eos_forms="today"), streams=("eos",))
    lines = [
        line for path in made.folders["eos"].glob("part-*") for line in text(path).splitlines()
    ]
    assert 2_400 < sum(map(len, lines)) / len(lines) < 2_800
    assert sum('"path":' in line and '"raw":' not in line for line in lines) > 0.99 * len(lines)
    assert (
        count_day(tmp_path, DAY, ("eos",)).streams["eos"].reconciliation()
        == made.reconciliation(DAY)["eos"]
    )


def test_a_favourite_dataset_gets_its_share_of_the_accesses(tmp_path: Path) -> None:
    made = small(tmp_path, streams=("crab",), records=8_000, favourite=0.9)
    count = count_day(tmp_path, DAY, ("crab",))
    assert count.streams["crab"].reconciliation() == made.reconciliation(DAY)["crab"]
    by_dataset = Counter[str]()
    for row in count.data_aggregation:
        by_dataset[str(row["dataset_name"])] += int(str(row["nacc"]))
    share = by_dataset.most_common(1)[0][1] / by_dataset.total()
    assert 0.8 < share < 0.97
