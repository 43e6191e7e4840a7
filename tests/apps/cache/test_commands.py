"""``cmsspark cache`` as users run it: files of all kinds, damaged ones, sizes, stored days."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from cmsspark.apps.cache import replay as replay_code
from cmsspark.apps.cache.cli import command
from cmsspark.apps.cache.replay import NAMES, Simulation
from cmsspark.apps.cache.trace import read_trace
from cmsspark.base import errors

DAY = 86_400


def rows() -> pa.Table:
    generator = np.random.default_rng(5)
    objects = np.minimum(generator.zipf(1.3, 4000), 500)
    return pa.table(
        {
            "time": np.sort(generator.integers(0, 40 * DAY, 4000)) + 1_700_000_000,
            "object": [f"/a/b{each}/C" for each in objects],
            "size": (objects * 10**9 + 10**9).astype(np.int64),
        }
    )


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "requests.parquet"
    pq.write_table(rows(), path)
    return path


def ask(*arguments: object) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def test_all_kinds_of_files_hold_the_same_trace(file: Path, tmp_path: Path) -> None:
    from pyarrow import csv

    table = rows()
    expected = read_trace(file)
    csv.write_csv(table, tmp_path / "t.csv")
    timestamps = pa.compute.multiply(table["time"], 1000).cast(pa.timestamp("ms"))
    pq.write_table(table.set_column(0, "time", timestamps), tmp_path / "stamped.parquet")
    number = np.unique(np.array(table["object"].to_pylist()), return_inverse=True)[1]
    records = np.zeros(
        len(table), [("time", "<u4"), ("object", "<u8"), ("size", "<u4"), ("next", "<i8")]
    )
    records["time"], records["object"], records["size"] = (
        table["time"],
        number,
        np.array(table["size"]) // 10**9,
    )
    (tmp_path / "t.oracleGeneral").write_bytes(records.tobytes())
    with pa.output_stream(tmp_path / "t.oracleGeneral.zst", compression="zstd") as out:
        out.write(records.tobytes())
    for name in ("t.csv", "stamped.parquet"):
        trace = read_trace(tmp_path / name)
        assert (trace.objects == expected.objects).all() and (
            trace.sizes == expected.sizes
        ).all(), name
        assert (trace.times_ms == expected.times_ms).all(), name
    for name in ("t.oracleGeneral", "t.oracleGeneral.zst"):
        trace = read_trace(tmp_path / name)
        assert (trace.objects == expected.objects).all() and (
            trace.sizes * 10**9 == expected.sizes
        ).all(), name


def test_damaged_files_are_refused_with_what_is_wrong(file: Path, tmp_path: Path) -> None:
    cases = {
        "cut.oracleGeneral": (b"x" * 50, "2 bytes after the last request"),
        "cut.parquet": (file.read_bytes()[:-100], "cannot be read"),
        "names.csv": (b"a,b\n1,2\n", "no column time, object, size"),
        "text.csv": (b"time,object,size\nnoon,x,1\n", "not numbers"),
        "empty.csv": (b"time,object,size\n", "no requests"),
    }
    for name, (content, message) in cases.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(errors.DataError) as caught:
            read_trace(tmp_path / name)
        assert message in caught.value.text(), name


def test_rows_with_nulls_are_left_out_and_counted(tmp_path: Path) -> None:
    table = pa.table({"time": [1, None, 3], "object": ["a", "b", None], "size": [5, 5, 5]})
    pq.write_table(table, tmp_path / "t.parquet")
    result = ask("compare", tmp_path / "t.parquet", "--policy", "lru", "--size", "10")
    assert result.exit_code == 0 and "left out: 2 (null)" in result.stderr


def test_compare_prints_each_policy_and_size(file: Path) -> None:
    result = ask(
        "compare",
        file,
        "--policy",
        "lru",
        "--policy",
        "sieve",
        "--size",
        "10%",
        "--size",
        "1TB",
        "--bound",
        "--json",
    )
    answer = json.loads(result.stdout)
    assert [(row["policy"], row["capacity"]) for row in answer][2:] == [
        ("lru", 10**12),
        ("sieve", 10**12),
    ]
    assert all(row["least_byte_miss_ratio"] <= row["byte_miss_ratio"] for row in answer)
    assert "byte misses" in ask("compare", file, "--size", "10%").stdout


def test_the_size_for_a_target_reaches_it_and_is_the_least_to_a_hundredth(file: Path) -> None:
    trace = read_trace(file)
    for policy in ("lru", "gdsf"):
        answer = json.loads(
            ask("size", file, "--target", "0.5", "--policy", policy, "--json").stdout
        )
        simulation = Simulation(trace)
        assert simulation.replay(policy, answer["bytes"]).byte_miss_ratio <= 0.5
        # A hundredth less does not reach it.
        assert simulation.replay(policy, answer["bytes"] * 98 // 100).byte_miss_ratio > 0.5
    assert "no cache reaches" in ask("size", file, "--target", "0.0001").stdout


@pytest.mark.parametrize(
    ("text", "size"),
    [("20%", 200), ("1.5TB", 15 * 10**11), ("2TiB", 2 * 1024**4), ("77", 77), ("3 gb", 3 * 10**9)],
)
def test_sizes_are_read_as_people_write_them(text: str, size: int) -> None:
    assert replay_code.parse_size(text, 1000) == size


@pytest.mark.parametrize("text", ["", "x", "-1", "0", "10 apples", "1e3"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(errors.UsageError):
        replay_code.parse_size(text, 1000)


def test_wrong_words_end_in_2_with_the_next_step(file: Path) -> None:
    for arguments in (
        ("compare", file, "--policy", "best", "--size", "1TB"),
        ("compare", file, "--size", "1TB", "--site", "T2_DE_DESY"),
        ("compare", "--size", "1TB"),
    ):
        result = ask(*arguments)
        assert isinstance(result.exception, errors.UsageError) and result.exception.next_step, (
            arguments
        )


def trace_of(folder: Path, text: str | bytes, name: str = "t.csv") -> Path:
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder / name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("time,object,size\n1767571200000,a,3\n", "found: 1,767,571,200,000 to 1,767,571,200,000"),
        ("time,object,size\n1767571200000,a,3\n", "not seconds since 1970"),
        ("time,object,size\ninf,a,3\n", "not seconds since 1970"),
        (
            "time,object,size\n1,a,9223372036854775807\n2,b,9223372036854775807\n",
            "do not fit into 64 bits",
        ),
        ("time,object,size\n1,a,99999999999999999999\n", "not numbers"),
        ("time,object,size\n1,a,3.5\n", "not numbers"),
        ("time,object,size\n1,a,0\n2,b,-3\n", "no request of the trace has a size"),
        ("", "cannot be read"),
        ("time,object,size\n", "has no requests"),
    ],
)
def test_traces_of_other_units_or_without_sizes_are_refused(
    text: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(errors.DataError) as caught:
        read_trace(trace_of(tmp_path, text))
    assert message in caught.value.text()


def test_traces_may_be_unsorted_before_1970_packed_and_with_zones(tmp_path: Path) -> None:
    text = "time,object,size\n5,b,4\n-5,a,3\n5,a,7\n"
    for name, content in (("t.csv", text.encode()), ("t.csv.gz", gzip.compress(text.encode()))):
        trace = read_trace(trace_of(tmp_path, content, name))
        assert trace.times_ms.tolist() == [-5000, 5000, 5000] and trace.sizes.tolist() == [3, 4]
        assert trace.objects.tolist() == [0, 1, 0] and trace.resized == 1, (
            "rows of one time keep their order"
        )
    zoned = read_trace(
        trace_of(
            tmp_path, "time,object,size\n2026-01-05T10:00:00Z,a,3\n2026-01-05T12:00:00+02:00,b,3\n"
        )
    )
    assert zoned.times_ms.tolist() == [1767607200000] * 2


def test_objects_of_a_csv_may_begin_as_numbers_and_go_on_as_names(tmp_path: Path) -> None:
    lines = "".join(f"{number},{number % 9},3\n" for number in range(2_000_000))
    trace = read_trace(trace_of(tmp_path, f"time,object,size\n{lines}2000000,/a/b/C,3\n"))
    assert len(trace.objects) == 2_000_001 and len(trace.sizes) == 10


def test_too_many_scores_say_what_to_do(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_code, "_MOST_SCORES", 10)
    simulation = Simulation(read_trace(file))
    with pytest.raises(errors.DataError, match="do not fit into memory"):
        simulation.replay("learned", 10**9)
    assert simulation.replay("lru", 10**9).misses


@pytest.mark.parametrize("size", ["0", "0%", "0.5", "-3GB", "much"])
def test_caches_that_hold_nothing_are_no_sizes(size: str, file: Path) -> None:
    assert isinstance(ask("compare", file, "--size", size).exception, errors.UsageError)


def test_a_cache_of_one_byte_misses_all_and_one_above_all_objects_the_first_requests(
    file: Path,
) -> None:
    simulation = Simulation(read_trace(file))
    for policy in NAMES:
        tiny = simulation.replay(policy, 1)
        assert tiny.misses == tiny.requests == tiny.bypassed, policy
        if policy != "s3fifo":
            whole = simulation.replay(policy, 20 * simulation.trace.footprint)
            assert whole.misses == whole.compulsory, policy
