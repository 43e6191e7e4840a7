"""The store: a day's tables become current together, or not at all."""

from __future__ import annotations

import json
import os
import shutil
import stat
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pandas
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from cmsspark import notebook
from cmsspark.base.errors import DataError, InputMissing, OutputError
from cmsspark.base.periods import week
from cmsspark.base.schemas import stored_table
from cmsspark.filesystems.hadoop import HadoopFiles
from cmsspark.filesystems.storage import LocalFiles
from cmsspark.main import command as cmsspark
from cmsspark.store import results, staged_runs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DAY = date(2019, 6, 15)
JOB = "data_aggregation"
FILES = LocalFiles()


def write(
    folder: Path,
    run_id: str,
    tables: tuple[str, ...] = ("data_aggregation", "partials"),
    day: date = DAY,
) -> staged_runs.StagedRun:
    """A run with tables of one file each, as far as the layout goes; needs no JVM."""
    run = staged_runs.StagedRun(FILES, f"{folder}/{JOB}/{day}", run_id, JOB, day)
    for table in tables:
        FILES.write_bytes(f"{run.table_path(table)}/part-0.parquet", run_id.encode())
        run.tables[table] = {"rows": 1, "format": "parquet", "files": 1, "bytes": 5}
    return run


def write_run(
    folder: Path,
    day: date,
    rows: DataFrame,
    manifest: dict[str, Any] | None = None,
    fmt: str = "parquet",
) -> results.CurrentTable:
    """A run of the table ``partials``, written by Spark."""
    run = staged_runs.stage(FILES, str(folder), JOB, day)
    try:
        run.write(rows, "partials", fmt)
        return run.commit(manifest or {})
    except BaseException:
        run.abandon()
        raise


def test_a_run_counts_from_its_commit_on(tmp_path: Path) -> None:
    write(tmp_path, "run-1").commit({"note": "ü"})
    second = write(tmp_path, "run-2")
    assert results.current(FILES, str(tmp_path), JOB, "partials", DAY).path.endswith(
        "/runs/run-1/partials"
    )
    done = second.commit({})
    for table in ("data_aggregation", "partials"):
        found = results.current(FILES, str(tmp_path), JOB, table, DAY)
        assert found.path == f"{done.path}/{table}"
        assert found.manifest.document["run"] == "run-2"
    assert json.loads((tmp_path / JOB / "2019-06-15" / "CURRENT").read_text()) == {"run": "run-2"}


def test_a_run_that_is_abandoned_leaves_the_previous_result(tmp_path: Path) -> None:
    write(tmp_path, "run-1").commit({})
    write(tmp_path, "run-2").abandon()
    assert (
        results.current(FILES, str(tmp_path), JOB, "partials", DAY).manifest.document["run"]
        == "run-1"
    )
    assert [run.name for run in (tmp_path / JOB / "2019-06-15" / "runs").iterdir()] == ["run-1"]


def test_a_run_that_is_current_stays_whatever_fails_after_its_commit(tmp_path: Path) -> None:
    write(tmp_path, "run-1").commit({})
    second = write(tmp_path, "run-2")
    second.commit({})
    second.abandon()
    assert (
        results.current(FILES, str(tmp_path), JOB, "partials", DAY).manifest.document["run"]
        == "run-2"
    )


def test_the_manifest_says_what_it_is_of(tmp_path: Path) -> None:
    write(tmp_path, "run-1").commit({"reconciliation": {"aaa": {"read": 1}}})
    manifest = results.current(FILES, str(tmp_path), JOB, "partials", DAY).manifest.document
    assert (manifest["store_version"], manifest["job"], manifest["day"]) == (1, JOB, "2019-06-15")
    assert manifest["tables"]["partials"]["rows"] == 1
    assert manifest["reconciliation"] == {"aaa": {"read": 1}}


def test_a_manifest_never_holds_what_is_no_json(tmp_path: Path) -> None:
    write(tmp_path, "run-1").commit({})
    with pytest.raises(ValueError, match="JSON"):
        write(tmp_path, "run-2").commit({"reduction_factor": float("nan")})
    assert (
        results.current(FILES, str(tmp_path), JOB, "partials", DAY).manifest.document["run"]
        == "run-1"
    )


def test_a_day_that_is_not_there_is_reported_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(InputMissing, match="no result of partials") as error:
        results.current(FILES, str(tmp_path), JOB, "partials", DAY)
    assert error.value.found == "nothing of data_aggregation"
    for number in range(1, 14):
        write(tmp_path, "run-1", day=date(2019, 5, number)).commit({})
    write(tmp_path, "run-1", day=DAY).abandon()
    with pytest.raises(InputMissing) as error:
        results.current(FILES, str(tmp_path), JOB, "partials", DAY)
    shown = ", ".join(f"2019-05-{number:02}" for number in range(4, 14))
    assert error.value.found == f"days {shown} and 3 before"
    assert error.value.exit_code == 66
    assert "run_spark data_aggregation --date 2019-06-15" in str(error.value)


def test_the_next_step_for_an_interval_of_the_other_kind_is_no_command(tmp_path: Path) -> None:
    with pytest.raises(InputMissing) as of_days:
        results.current(FILES, str(tmp_path), JOB, JOB, week("2019-W02", DAY))
    assert of_days.value.next_step == "results of data_aggregation are of days: give --date"
    with pytest.raises(InputMissing) as of_periods:
        results.current(FILES, str(tmp_path), "period", "period_aggregation", DAY)
    assert (
        of_periods.value.next_step
        == "results of period are of periods: give --week, --month or --from"
    )


def test_a_run_without_the_table_is_reported_with_those_it_has(tmp_path: Path) -> None:
    write(tmp_path, "run-1", ("data_aggregation",)).commit({})
    with pytest.raises(InputMissing, match="no table partials") as error:
        results.current(FILES, str(tmp_path), JOB, "partials", DAY)
    assert error.value.found == "data_aggregation"


@pytest.mark.parametrize(
    "harm",
    [
        lambda day: (day / "CURRENT").write_text(""),
        lambda day: (day / "CURRENT").write_text("[]"),
        lambda day: (day / "CURRENT").write_text('{"run": 5}'),
        lambda day: (day / "CURRENT").write_bytes(b"\xff\xfe"),
        lambda day: (day / "runs/run-1/manifest.json").unlink(),
        lambda day: (day / "runs/run-1/manifest.json").write_text("{"),
        lambda day: (day / "runs/run-1/manifest.json").write_text("{}"),
        lambda day: (day / "runs/run-1/manifest.json").write_text('{"tables": {"partials": []}}'),
        lambda day: shutil.rmtree(day / "runs/run-1/partials"),
        lambda day: shutil.rmtree(day / "runs"),
    ],
    ids=[
        "empty",
        "list",
        "no name",
        "no text",
        "no manifest",
        "cut manifest",
        "bare manifest",
        "other types",
        "no table",
        "no runs",
    ],
)
def test_a_damaged_store_is_reported_as_such(tmp_path: Path, harm: Any) -> None:
    write(tmp_path, "run-1").commit({})
    harm(tmp_path / JOB / "2019-06-15")
    with pytest.raises(DataError) as error:
        results.current(FILES, str(tmp_path), JOB, "partials", DAY)
    assert error.value.exit_code == 65
    assert str(tmp_path) in str(error.value.where)


def test_a_store_that_cannot_be_written_is_reported_before_anything_is(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OutputError):
        staged_runs.stage(FILES, str(tmp_path / "file" / "store"), JOB, DAY)


@pytest.mark.parametrize("name", ["plain", "sp ace", "per%20cent", "ünï"])
def test_a_store_may_be_named_by_path_or_uri(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    write(folder, "run-1").commit({})
    for fout in (str(folder), f"{folder}/", folder.as_uri()):
        found = results.current(FILES, fout, JOB, "partials", DAY)
        assert FILES.read_bytes(f"{found.path}/part-0.parquet") == b"run-1"
        staged = staged_runs.stage(FILES, fout, JOB, DAY)
        assert Path(staged.folder).is_dir()
        assert folder in Path(staged.folder).parents


# With a JVM
# ------------------------------------------------------------------------------------------------------


def partials_of(spark: SparkSession, rows: list[tuple[Any, ...]]) -> DataFrame:
    return spark.createDataFrame(rows, stored_table("partials").spark())


ROWS: list[tuple[Any, ...]] = [
    (DAY, "crab", "/a/b/RAW", "T2_X", "crab", "k:1", 2, 1, None, 1.5, 2.001),
    (DAY, "aaa", '/a,"b\\/c d/RAW', "T2_\nX", "ünï", None, 3, None, 2**63 - 1, None, None),
    (DAY, "eos", "/a/b/RAW", "", "'", "", 1, 0, 0, None, None),
]


@pytest.fixture(scope="module")
def stored(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose name has a space and a percent sign."""
    folder = tmp_path_factory.mktemp("sto re%20")
    rows = partials_of(spark, ROWS)
    write_run(folder, DAY, rows)
    write_run(folder, date(2019, 6, 16), rows, {}, "csv")
    return folder


def output_of(*arguments: str) -> str:
    result = CliRunner().invoke(cmsspark, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output.strip()


def test_plain_pandas_duckdb_and_spark_read_what_cmsspark_path_prints(
    spark: SparkSession, stored: Path
) -> None:
    names = stored_table("partials").names
    place = output_of("show", "partials", "--date", "20190615", "--path", "--fout", str(stored))
    wanted = sorted(ROWS, key=repr)
    by_spark = [tuple(row) for row in spark.read.parquet(place).select(*names).collect()]
    assert sorted(by_spark, key=repr) == wanted
    assert spark.read.parquet(place).columns == names
    found = duckdb.sql(f"SELECT * FROM read_parquet('{place}/*.parquet')")
    assert found.columns == names
    assert sorted(found.fetchall(), key=repr) == wanted
    by_pandas = pandas.read_parquet(place)
    assert list(by_pandas.columns) == names
    assert sorted(by_pandas["nacc"]) == [1, 2, 3]
    assert sorted(by_pandas["read_bytes"].dropna()) == [0, float(2**63 - 1)]


def test_a_plain_path_is_printed_as_a_uri_and_read_as_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_run(tmp_path, DAY, partials_of(spark, ROWS))
    place = output_of(
        "show", "partials", "--date", "2019-06-15", "--path", "--fout", str(tmp_path)
    )
    assert place.startswith(f"file://{tmp_path}/")
    assert len(pandas.read_parquet(place)) == spark.read.parquet(place).count() == 3
    assert duckdb.sql(f"SELECT count(*) FROM read_parquet('{place}/*.parquet')").fetchall() == [
        (3,)
    ]
    manifest = json.loads(
        output_of("show", "partials", "--manifest", "--date", "20190615", "--fout", str(tmp_path))
    )
    assert manifest["tables"]["partials"]["rows"] == 3


def test_csv_keeps_every_text(spark: SparkSession, stored: Path) -> None:
    found = results.current(FILES, str(stored), JOB, "partials", date(2019, 6, 16))
    assert found.manifest.document["tables"]["partials"]["format"] == "csv"
    read = pandas.concat(
        pandas.read_csv(part, dtype={"user": str}, keep_default_na=False, na_values={"nacc": []})
        for part in sorted(Path(found.path).glob("part-*.csv"))
    )
    assert list(read.columns) == stored_table("partials").names
    assert sorted(read["dataset_name"]) == sorted(row[2] for row in ROWS)
    assert sorted(read["site_name"]) == sorted(row[3] for row in ROWS)
    assert sorted(map(str, read["read_bytes"])) == sorted(["", "9223372036854775807", "0"])


#: Texts that writers and readers of CSV change unless they are told not to.
HOSTILE_TEXTS = (
    *(
        " T2_DE",
        "T2_DE ",
        " ",
        "\tx",
        "x\t",
        "",
        '"',
        '""',
        'a"b',
        "\\",
        '\\"',
        "a,b",
        "a\nb",
        "a\r\nb",
        "\r",
        "\n",
        "\ra",
    ),
    *(
        "#x",
        "null",
        "NULL",
        "NA",
        "nan",
        "\\N",
        "\x01a",
        "\x0b",
        "\u00a0x",
        "\ufeffx",
        "é😀",
        "'x'",
        "=1+1",
        "a\\",
        ",",
    ),
    *('"a","a"', "true", "1e5", "\x1f", "\u2028", "\u0085", "-", ' "x" ', '\\\\"', "\\,"),
)


def test_csv_has_the_rows_of_parquet_whatever_the_names_are(
    spark: SparkSession, tmp_path: Path
) -> None:
    from cmsspark import notebook
    from cmsspark.store.query.database import Database

    rows = partials_of(
        spark,
        [
            (
                DAY,
                "aaa",
                f"/{text}/Run/AOD{number}",
                text,
                text,
                text or None,
                number + 1,
                None,
                None,
                number / 7,
                None,
            )
            for number, text in enumerate(HOSTILE_TEXTS)
        ],
    )
    csv_store, parquet_store = tmp_path / "csv", tmp_path / "parquet"
    write_run(csv_store, DAY, rows, {}, "csv")
    write_run(parquet_store, DAY, rows, {}, "parquet")
    expected = notebook.read("partials", DAY, fout=str(parquet_store), to="arrow").sort_by(
        "dataset_name"
    )
    assert sorted(expected["site_name"].to_pylist()) == sorted(HOSTILE_TEXTS)
    assert (
        notebook.read("partials", DAY, fout=str(csv_store), to="arrow")
        .sort_by("dataset_name")
        .equals(expected)
    )
    with Database(str(csv_store)) as database:
        assert (
            database.query("from partials").table.sort_by("dataset_name").to_pylist()
            == expected.to_pylist()
        )
    by_spark = [
        row.asDict()
        for row in notebook.table("partials", DAY.isoformat(), fout=str(csv_store)).collect()
    ]
    assert sorted(by_spark, key=lambda row: str(row["dataset_name"])) == expected.to_pylist()


@pytest.mark.parametrize("fmt", ["parquet", "csv"])
def test_a_table_without_rows_is_stored_with_its_columns(
    spark: SparkSession, tmp_path: Path, fmt: str
) -> None:
    empty = partials_of(spark, ROWS).where("nacc < 0")
    done = write_run(tmp_path, DAY, empty, {}, fmt)
    assert done.manifest.document["tables"]["partials"]["rows"] == 0
    if fmt == "parquet":
        assert (
            list(pandas.read_parquet(f"{done.path}/partials").columns)
            == stored_table("partials").names
        )


def test_a_write_that_fails_leaves_the_previous_result(
    spark: SparkSession, tmp_path: Path
) -> None:
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as F

    rows = partials_of(spark, ROWS)
    write_run(tmp_path, DAY, rows, {"number": 1})
    broken = rows.withColumn("nacc", F.raise_error(F.lit("while writing")).cast("long"))
    with pytest.raises(PySparkException, match="while writing"):
        write_run(tmp_path, DAY, broken, {"number": 2})
    with pytest.raises(RuntimeError, match="wants columns"):
        write_run(tmp_path, DAY, rows.drop("user"), {"number": 3})
    found = results.current(FILES, str(tmp_path), JOB, "partials", DAY)
    assert found.manifest.document["number"] == 1
    assert len(pandas.read_parquet(found.path)) == 3
    assert len(list((tmp_path / JOB / "2019-06-15" / "runs").iterdir())) == 1


def modes(table: Path) -> set[int]:
    return {stat.S_IMODE(path.stat().st_mode) for path in (table, *table.glob("part-*"))}


@pytest.mark.parametrize("engine", ["spark", "arrow"])
def test_tables_with_rows_of_people_are_private_whatever_the_umask(
    engine: str, tmp_path: Path, spark: SparkSession
) -> None:
    rows = partials_of(spark, ROWS)
    before = os.umask(0)
    try:
        run = staged_runs.stage(FILES, str(tmp_path), JOB, DAY)
        if engine == "spark":
            run.write(rows, "partials")
        else:
            run.write_arrow(stored_table("partials").arrow().empty_table(), "partials")
        run.write_arrow(stored_table("data_aggregation").arrow().empty_table(), "data_aggregation")
    finally:
        os.umask(before)
    assert modes(Path(run.table_path("partials"))) == {0o700, 0o600}
    assert modes(Path(run.table_path("data_aggregation"))) == {0o777, 0o666}


def test_pages_that_spark_writes_have_checksums_that_readers_compare(
    tmp_path: Path, spark: SparkSession
) -> None:
    table = write_run(tmp_path, DAY, partials_of(spark, ROWS * 200))
    part = next(Path(table.path).rglob("partials/part-*.parquet"))
    column = pq.ParquetFile(part).metadata.row_group(0).column(3)
    content = bytearray(part.read_bytes())
    content[
        (column.dictionary_page_offset or column.data_page_offset)
        + column.total_compressed_size
        - 1
    ] ^= 1
    part.write_bytes(content)
    with pytest.raises(OSError, match="CRC"):
        pq.read_table(part, page_checksum_verification=True, partitioning=None)


def test_hadoop_gives_the_same_sha256_and_sets_modes(tmp_path: Path, spark: SparkSession) -> None:
    path = tmp_path / "part"
    path.write_bytes(bytes(range(256)) * 1_000)
    hadoop = HadoopFiles(spark)
    assert hadoop.sha256(path.as_uri()) == FILES.sha256(str(path))
    hadoop.set_mode(path.as_uri(), 0o600)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(InputMissing):
        hadoop.sha256((tmp_path / "nothing").as_uri())


def test_spark_reads_no_damaged_part_for_a_notebook(tmp_path: Path, spark: SparkSession) -> None:
    table = write_run(tmp_path, DAY, partials_of(spark, ROWS))
    assert notebook.table("partials", str(DAY), fout=str(tmp_path)).count() == len(ROWS)
    part = next(Path(table.path).rglob("partials/part-*.parquet"))
    part.write_bytes(part.read_bytes()[:-1] + b"2")
    with pytest.raises(DataError, match="is damaged"):
        notebook.table("partials", str(DAY), fout=str(tmp_path))
