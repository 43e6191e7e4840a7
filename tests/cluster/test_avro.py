"""A user's own job on YARN with spark-avro from Maven reads the rows that our own Avro
reading reads.
"""

from __future__ import annotations

import io
import subprocess
import sys
from datetime import date
from pathlib import Path

import fastavro
import polars as pl
import pytest

from cmsspark.apps.demo import LogLayout, make
from cmsspark.sources.record_schema import load_schema
from tests.cluster.artifacts import cache
from tests.cluster.conftest import World
from tests.cluster.daemons import zipped

pytestmark = pytest.mark.cluster

SCRIPT = Path(__file__).with_name("scripts") / "own_avro.py"
#: The newest Spark 4 whose spark-avro Maven has.
SPARK = "4.1.1"
FIELDS = list(load_schema("crab/avro").keys("lfn", "site", "user", "app", "cpu_ms", "wall_ms"))


@pytest.fixture(scope="module")
def older_spark(world: World) -> Path:
    """That Spark's folder; its jars lie on HDFS."""
    target = cache().parent / f"pyspark-{SPARK}"
    home = target / "pyspark"
    if not home.is_dir():
        words = [
            "-m",
            "pip",
            "install",
            "-q",
            "--no-deps",
            "--target",
            str(target),
            f"pyspark=={SPARK}",
        ]
        subprocess.run([sys.executable, *words], check=True)
    archive = zipped(home, world.folder / "older.zip")
    world.cluster.hdfs.put(archive, f"/spark/spark-{SPARK}.zip")
    archive.unlink()
    return home


def test_spark_avro_has_the_rows_of_our_reader(
    world: World, older_spark: Path, tmp_path: Path
) -> None:
    # The days of the world are of HTCondor's jobs.
    make(
        tmp_path,
        date(2019, 1, 15),
        records=4_000,
        files=500,
        datasets=20,
        people=10,
        layout=LogLayout(per_part=200),
    )
    world.cluster.hdfs.put_tree(tmp_path, "/years-before")
    files = sorted(tmp_path.rglob("*.avro"))
    day = files[0].parent.relative_to(tmp_path)
    archive = ("--conf", f"spark.yarn.archive=hdfs:///spark/spark-{SPARK}.zip")
    ended = world.run(
        *(str(SCRIPT), "--yarn", *archive, f"hdfs:///years-before/{day}", "hdfs:///cms/own"),
        SPARK_HOME=str(older_spark),
    )
    assert ended.code == 0
    assert f"by Spark {SPARK}" in ended.out
    by_spark = pl.read_parquet(sorted(world.fetched("/cms/own").glob("*.parquet"))).select(FIELDS)
    contents = [file.read_bytes() for file in files]
    by_polars = pl.concat(
        [pl.read_avro(io.BytesIO(content), columns=FIELDS) for content in contents]
    ).select(FIELDS)
    records = [record for content in contents for record in fastavro.reader(io.BytesIO(content))]
    by_fastavro = pl.DataFrame(
        [{name: record[name] for name in FIELDS} for record in records], by_polars.schema
    )
    in_order = [rows.sort(FIELDS, nulls_last=True) for rows in (by_spark, by_polars, by_fastavro)]
    assert in_order[0].height > 100
    assert in_order[0].equals(in_order[1]) and in_order[1].equals(in_order[2])


def test_a_spark_without_spark_avro_in_maven_is_78_with_the_next_step(world: World) -> None:
    ended = world.run(str(SCRIPT), "--yarn", "hdfs:///x", "hdfs:///y")
    assert ended.code == 78
    assert (
        "no Maven repository gave org.apache.spark" in ended.err
        and "our own jobs read Avro with no jar" in ended.err
    )
