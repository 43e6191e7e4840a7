"""Log days whose replicas are Rucio's: every cell of accesses and of jobs beside the
oracle, by each engine.
"""

from __future__ import annotations

import random
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from cmsspark.base.errors import DataError
from cmsspark.run.log_day import run
from cmsspark.run.request import DayRequest
from cmsspark.settings.settings import Settings
from tests.apps.usage.test_data_aggregation_cells import REPORT_KEY, _same_rows
from tests.apps.usage.test_rucio_jobs import DAY, DAY_MS, NAMES, dbs_rows, write_dbs
from tests.corpus import jobs
from tests.corpus import rucio as corpus
from tests.corpus.json_lines import cmssw
from tests.corpus.tree import AWG, Tree
from tests.oracle.catalogue import read_catalogue
from tests.oracle.count import StreamCount, count_stream, report_rows
from tests.oracle.jobs import count_day_of_jobs

ENGINES = {
    "processes": ("processes", "index", "auto"),
    "spark by index": ("spark", "index", "auto"),
    "spark fed by Spark": ("spark", "index", "spark"),
    "spark by shuffle": ("spark", "shuffle", "auto"),
    "spark by shuffle, fed by Spark": ("spark", "shuffle", "spark"),
}
SITES = (
    "T0_CH_CERN",
    "T1_US_FNAL",
    "T1_DE_KIT",
    "T2_UK_London_IC",
    "T2_US_Caltech",
    "T2_É",
    "T2_CH_CERN",
    None,
    "",
)
STREAMS = ("cmssw", "condor")


def write_logs(root: Path, rng: random.Random) -> None:
    tree = Tree(root, DAY)
    start = DAY_MS // 1000
    tree.write_lines(
        "cmssw json",
        [
            cmssw(
                {
                    "file_lfn": f"/store/data/{number % 7}/é{number}.root",
                    "site_name": rng.choice(SITES),
                    "start_time": start + 5,
                    "end_time": start + 60,
                },
                metadata={"timestamp": DAY_MS + 5},
            )
            for number in (rng.randrange(130) for _ in range(900))
        ],
    )
    blocks = [f"{name}#{x}" for name in NAMES for x in ("a", "b", "#c/d", "é")]
    tree.write_lines(
        "condor",
        [
            jobs.job(
                {
                    "GlobalJobId": f"job-{rng.randrange(400)}",
                    "Status": rng.choice(("Completed", "Removed", "Running")),
                    "Site": rng.choice(SITES),
                    "CRAB_DataBlock": rng.choice((*blocks, "MCFakeBlock", None)),
                    "DESIRED_CMSDataset": rng.choice((*NAMES, None)),
                    "RecordTime": DAY_MS + rng.randrange(9),
                },
                {"timestamp": DAY_MS + 5},
            )
            for _ in range(900)
        ],
    )


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("rucio")
    rng = random.Random(23)
    corpus.write_dump(root / AWG / "rucio/2026-01-16", corpus.hostile_rows(rng, 120, DAY_MS))
    write_dbs(root / AWG / "dbs/PROD_GLOBAL/2026-01-16", dbs_rows(rng, 120))
    write_logs(root, rng)
    return root


@pytest.fixture(scope="module")
def wanted(world: Path) -> list[dict[str, object]]:
    accesses = count_stream(world, "cmssw", DAY, read_catalogue(world, DAY))
    of_jobs = count_day_of_jobs(world, DAY)
    condor = StreamCount(
        accesses=[job.access() for job in of_jobs.jobs if job.dataset is not None]
    )
    return report_rows({"cmssw": accesses, "condor": condor}, DAY)


def day_request(
    root: Path, private: Path, engine: str, join: str, feed: str, day: date = DAY
) -> DayRequest:
    settings = Settings(None, None, private / "state", private / "cache")
    return DayRequest(
        "data_aggregation",
        day,
        str(private / "store"),
        settings,
        root=str(root),
        streams=STREAMS,
        max_malformed="100%",
        engine=engine,
        join=join,
        feed=feed,
    )


@pytest.mark.parametrize("name", ENGINES)
def test_every_cell_is_the_oracles(
    name: str,
    world: Path,
    wanted: list[dict[str, object]],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    engine, join, feed = ENGINES[name]
    if engine == "spark":
        request.getfixturevalue("spark")
    done = run(day_request(world, tmp_path, engine, join, feed), log=lambda _: None)
    rows = pq.read_table(Path(done.path) / "data_aggregation").to_pylist()
    _same_rows(rows, wanted, REPORT_KEY)
    assert done.manifest.document["join"] == join
    remote: dict[Any, int] = {}
    for row in rows:
        remote[row["stream"], bool(row["remote_nacc"])] = (
            remote.get((row["stream"], bool(row["remote_nacc"])), 0) + 1
        )
    assert len(remote) == 4, "both streams have rows with and without remote accesses"


@pytest.mark.parametrize("join", ["index", "shuffle"])
def test_too_many_damaged_rows_of_rucio_are_an_error_in_spark(
    spark: Any, tmp_path: Path, join: str
) -> None:
    root = tmp_path / "root"
    rng = random.Random(23)
    rows = corpus.hostile_rows(rng, 120, DAY_MS)
    for row in rows["REPLICAS"][:11]:
        row["BYTES"] = "12x"
    corpus.write_dump(root / AWG / "rucio/2026-01-16", rows)
    write_dbs(root / AWG / "dbs/PROD_GLOBAL/2026-01-16", dbs_rows(rng, 120))
    write_logs(root, rng)
    with pytest.raises(DataError, match="more damaged rows"):
        run(day_request(root, tmp_path, "spark", join, "auto"), log=lambda _: None)
