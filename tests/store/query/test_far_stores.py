"""A store on another file system: the same rows, read in ranges, through ``storage.Files`` alone."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from cmsspark.base.errors import DataError
from cmsspark.filesystems.hadoop import HadoopFiles
from cmsspark.filesystems.opening import AnyFiles
from cmsspark.filesystems.storage import LocalFiles
from cmsspark.store.query.database import Database
from tests.store.query.far_files import FAR, FarFiles
from tests.store.query.stores import days, make_store


def test_a_far_store_has_the_same_rows_and_fetches_few_of_its_bytes(tmp_path: Path) -> None:
    store = make_store(tmp_path, 4)
    far = FarFiles(store)
    sql = "select day, stream, sum(accesses) as n from partials where day > ? group by all order by all"
    with Database(store) as near, Database(FAR, files=far) as database:
        wanted = near.query(sql, [days(4)[1]]).rows
        assert database.query(sql, [days(4)[1]]).rows == wanted
        assert len(wanted) == 8
    fetched = sum(count for _, count in far.ranges)
    assert {path.split("/")[5] for path, _ in far.ranges} == {str(day) for day in days(4)[2:]}
    parts = [
        part
        for day in days(4)[2:]
        for part in Path(store).glob(f"data_aggregation/{day}/runs/*/partials/part-*")
    ]
    columns = {name for part in parts for name in pq.read_schema(part).names}
    assert len(columns) == 11
    assert fetched < 2 * sum(part.stat().st_size for part in parts)


def test_a_part_that_is_gone_or_damaged_is_named_by_its_far_path(tmp_path: Path) -> None:
    store = make_store(tmp_path, 2)
    (part,) = Path(store).glob("data_aggregation/2026-01-05/runs/*/partials/part-*")
    content = part.read_bytes()
    part.write_bytes(b"\0" * len(content))
    with Database(FAR, files=FarFiles(store)) as database:
        with pytest.raises(DataError, match=FAR):
            database.query("select sum(accesses) from partials")
        assert database.query("select count(*) from partials where day = '2026-01-06'").rows == [
            (300,)
        ]


@pytest.mark.smoke
def test_hadoop_reads_ranges_as_the_disk_does(spark: object, tmp_path: Path) -> None:
    path = tmp_path / "part 1"
    path.write_bytes(bytes(range(256)) * 1_000)
    hadoop, local = HadoopFiles(spark), LocalFiles()  # type: ignore[arg-type]
    for offset, count in ((0, 4), (100, 70_000), (255_990, 100), (256_000, 5)):
        assert hadoop.read_range(f"file:{path}", offset, count) == local.read_range(
            str(path), offset, count
        )
    assert AnyFiles(spark).read_range(str(path), 3, 2) == b"\x03\x04"  # type: ignore[arg-type]
