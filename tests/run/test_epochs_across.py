"""Days on both sides of the boundary between PhEDEx and Rucio: each reads its own
source, and a period has both.
"""

from __future__ import annotations

import json
from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from cmsspark.apps.demo import make
from cmsspark.apps.replicas.replica_jobs import PHEDEX
from cmsspark.apps.usage import period
from cmsspark.base.errors import InputMissing
from cmsspark.base.periods import between
from cmsspark.main import command
from cmsspark.run import dump_day, log_day
from cmsspark.run.request import DayRequest, JobRequest
from cmsspark.settings.settings import Settings, load_settings
from tests.oracle.catalogue import read_catalogue

LAST, FIRST = date(2020, 11, 17), date(2020, 11, 18)
STREAMS = ("cmssw",)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("both")
    made = make(
        root, LAST, days=2, records=4_000, files=1_500, datasets=40, people=20, streams=STREAMS
    )
    assert {"phedex", "rucio"} <= made.folders.keys()
    return root


def settings(folder: Path, text: str = "") -> Settings:
    folder.mkdir(parents=True, exist_ok=True)
    written = folder / "cmsspark.yaml"
    written.write_text(f"state_dir: {folder}/state\ncache_dir: {folder}/cache\n{text}")
    return load_settings(str(written))


def count(
    root: Path, folder: Path, day: date, text: str = ""
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The manifest and the report of a day."""
    request = DayRequest(
        "data_aggregation",
        day,
        str(folder / "store"),
        settings(folder, text),
        str(root),
        engine="processes",
        streams=STREAMS,
    )
    done = log_day.run(request, lambda _: None)
    manifest = json.loads((Path(done.path) / "manifest.json").read_text())
    return manifest, pq.read_table(Path(done.path) / "data_aggregation").to_pylist()


def test_each_day_reads_the_source_of_its_epoch(root: Path, tmp_path: Path) -> None:
    remote = {}
    for day, source in ((LAST, "phedex"), (FIRST, "rucio")):
        manifest, rows = count(root, tmp_path, day)
        assert manifest["epochs"] == {"replicas": source}
        assert set(manifest["dumps"]) == {"dbs", source}
        remote[day] = Counter(
            (row["dataset_name"], row["site_name"]) for row in rows if row["remote_nacc"]
        )
        disk = read_catalogue(root, day).disk
        sites = {(block.split("#")[0], site) for block, site in disk}
        for row in rows:
            if (
                row["site_name"] != "unknown"
                and (row["dataset_name"], row["site_name"]) not in sites
            ):
                assert row["remote_nacc"] == row["nacc"], (
                    "no block of the dataset is on disk there"
                )
    assert all(remote.values())


def test_a_period_across_the_boundary_has_both_days(root: Path, tmp_path: Path) -> None:
    days = [count(root, tmp_path, day)[1] for day in (LAST, FIRST)]
    done = period.run(
        between(LAST, FIRST), str(tmp_path / "store"), settings(tmp_path), log=lambda _: None
    )
    rows = pq.read_table(Path(done.path) / "period_aggregation").to_pylist()
    for name in ("nacc", "read_bytes", "remote_nacc"):
        assert sum(row[name] or 0 for row in rows) == sum(
            row[name] or 0 for day in days for row in day
        )
    dataset = max((row for day in days for row in day), key=lambda row: row["nacc"])[
        "dataset_name"
    ]
    asked = CliRunner().invoke(
        command,
        [
            "ask",
            "who-reads",
            dataset,
            "--from",
            "20201117",
            "--to",
            "20201118",
            "--fout",
            str(tmp_path / "store"),
            "--json",
        ],
        catch_exceptions=False,
    )
    wanted = sum(row["nacc"] for day in days for row in day if row["dataset_name"] == dataset)
    assert json.loads(asked.stdout)["totals"]["nacc"] == wanted


def test_settings_move_the_boundary_and_the_right_source_must_be_there(
    root: Path, tmp_path: Path
) -> None:
    moved = "sources: {epochs: {replicas: {rucio: {from: 2020-11-17}}}}\n"
    assert count(root, tmp_path / "moved", LAST, moved)[0]["epochs"] == {"replicas": "rucio"}
    (root / "project/awg/cms/rucio").rename(root / "away")
    try:
        with pytest.raises(InputMissing, match="no rucio dump for 2020-11-18") as told:
            count(root, tmp_path / "without", FIRST)
        assert (
            "replicas of 2020-11-18 come from rucio, which serves them from 2020-11-18 on"
            in str(told.value.found)
        )
    finally:
        (root / "away").rename(root / "project/awg/cms/rucio")


def test_a_job_on_dumps_takes_the_source_of_the_day(root: Path, tmp_path: Path) -> None:
    kinds = {}
    for day in (LAST, FIRST):
        request = JobRequest(
            "phedex", day, str(tmp_path), settings(tmp_path), str(root), engine="processes"
        )
        done = dump_day.run(PHEDEX, request, lambda _: None)
        rows = pq.read_table(Path(done.path) / "phedex").to_pylist()
        kinds[day] = {row["kind"] for row in rows}
        files = sum(row["present_file_count"] for row in rows if row["kind"] == "disk")
        assert files > 0
    assert kinds == {LAST: {"disk", "tape", "buffer"}, FIRST: {"disk", "tape"}}
