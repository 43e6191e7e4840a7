"""Traces of files with unusual names and times; the size that reaches a target, against
every size of small traces.
"""

from __future__ import annotations

import gzip
import json
import math
from datetime import date
from fractions import Fraction
from pathlib import Path
from typing import Any

import cramjam
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from cmsspark.apps.cache import trace as trace_module
from cmsspark.apps.cache.cli import command
from cmsspark.apps.cache.replay import Simulation, least_capacity, parse_size
from cmsspark.apps.cache.trace import (
    Trace,
    is_xcache,
    read_trace,
    site_traces,
    xcache_batches,
)
from cmsspark.base import errors
from cmsspark.base.errors import DataError
from cmsspark.base.periods import between
from cmsspark.filesystems.storage import LocalFiles
from cmsspark.store.stored_days import find_days
from tests.run.partial_days import partial, store_partials, store_table

HEADER = "time,object,size\n"


def csv_of(folder: Path, *names: str) -> Path:
    path = folder / "t.csv"
    path.write_text(HEADER + "".join(f"{number},{name},3\n" for number, name in enumerate(names)))
    return path


@pytest.mark.parametrize(
    "names",
    [
        ("18446744073709551615", "18446744073709551614"),
        ("1", "01", "+1", "1.0", "1e0"),
        ("2026-01-01", "2026-01-01 00:00:00"),
        ("true", "True", "1"),
        ("-1", "-01"),
    ],
)
def test_names_of_a_csv_that_differ_are_different_objects(
    names: tuple[str, ...], tmp_path: Path
) -> None:
    trace = read_trace(csv_of(tmp_path, *names, *names))
    assert len(trace.sizes) == len(names)
    assert trace.objects[: len(names)].tolist() == trace.objects[len(names) :].tolist()


@pytest.mark.parametrize("names", [("", "5"), ("", "a")])
def test_an_empty_name_is_a_null_among_numbers_and_among_texts(
    names: tuple[str, str], tmp_path: Path
) -> None:
    trace = read_trace(csv_of(tmp_path, *names))
    assert (len(trace.objects), trace.dropped) == (1, {"null": 1})


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_timestamps_of_any_unit_are_rounded_down_to_milliseconds(
    unit: str, tmp_path: Path
) -> None:
    parts = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    times = pa.array([1_767_600_000 * parts + parts - 1, -1], pa.timestamp(unit, tz="UTC"))
    pq.write_table(
        pa.table({"time": times, "object": ["a", "b"], "size": [1, 2]}), tmp_path / "t.parquet"
    )
    later = 1_767_600_000_000 + (999 if unit != "s" else 0)
    assert read_trace(tmp_path / "t.parquet").times_ms.tolist() == [
        -1000 if unit == "s" else -1,
        later,
    ]


def test_texts_of_timestamps_may_have_microseconds(tmp_path: Path) -> None:
    text = "2026-01-05 10:00:00.123456,a,3\n2026-01-05 10:00:00.123999,b,3\n"
    (tmp_path / "t.csv").write_text(HEADER + text)
    assert read_trace(tmp_path / "t.csv").times_ms.tolist() == [1_767_607_200_123] * 2
    texts = pa.array(
        ["2026-01-05T10:00:00.123456Z", "2026-01-05T12:00:00.5+02:00"]
    ).dictionary_encode()
    pq.write_table(
        pa.table({"time": texts, "object": ["a", "b"], "size": [1, 2]}), tmp_path / "t.parquet"
    )
    assert read_trace(tmp_path / "t.parquet").times_ms.tolist() == [
        1_767_607_200_123,
        1_767_607_200_500,
    ]


def test_times_of_a_csv_may_be_whole_at_first_and_have_fractions_later(tmp_path: Path) -> None:
    lines = "".join(f"{number},a,3\n" for number in range(1_700_000))
    (tmp_path / "t.csv").write_text(f"{HEADER}{lines}1700000.5,a,3\n")
    assert read_trace(tmp_path / "t.csv").times_ms[-2:].tolist() == [1_699_999_000, 1_700_000_500]


def test_columns_that_are_no_names_or_twice_there_are_refused(tmp_path: Path) -> None:
    nested = pa.table({"time": [1], "object": [[1]], "size": [1]})
    doubled = pa.Table.from_arrays([pa.array([1])] * 4, names=["time", "object", "size", "size"])
    for table, message in (
        (nested, "objects of the trace are not names"),
        (doubled, "column size more than once"),
    ):
        pq.write_table(table, tmp_path / "t.parquet")
        with pytest.raises(errors.DataError, match=message):
            read_trace(tmp_path / "t.parquet")
    (tmp_path / "t.csv").write_text("time,object,size,time\n1,a,3,4\n")
    with pytest.raises(errors.DataError, match="column time more than once"):
        read_trace(tmp_path / "t.csv")


def test_a_packed_csv_is_not_taken_for_records(tmp_path: Path) -> None:
    content = (HEADER + "1,a,3\n").encode()
    with pa.output_stream(tmp_path / "t.csv.zst", compression="zstd") as out:
        out.write(content + b"\n" * (-len(content) % 24))
    with pytest.raises(errors.UsageError) as caught:
        read_trace(tmp_path / "t.csv.zst")
    assert caught.value.found == ".csv.zst"


def small_trace(seed: int) -> Trace:
    generator = np.random.default_rng(seed)
    count = int(generator.integers(1, 6))
    objects = np.unique(
        generator.integers(0, count, int(generator.integers(2, 30))), return_inverse=True
    )[1]
    sizes = generator.integers(1, 40, int(objects.max()) + 1)
    return Trace(
        objects.astype(np.int32), np.arange(len(objects), dtype=np.int64), sizes.astype(np.int64)
    )


@pytest.mark.parametrize("seed", range(12))
def test_the_size_for_a_target_reaches_it(
    seed: int,
) -> None:
    trace = small_trace(seed)
    simulation, requested = Simulation(trace), int(trace.sizes[trace.objects].sum())
    for target in (0.29, 0.5, 0.75, 1.0):
        allowed = math.floor(Fraction(str(target)) * requested)
        reaching = [
            size
            for size in range(1, trace.footprint + 1)
            if simulation.replay("lru", size).missed_bytes <= allowed
        ]
        for policy in ("lru", "fifo", "s3fifo", "gdsf"):
            found = least_capacity(trace, target, policy)
            assert (found is None) == (not reaching)
            assert found is None or simulation.replay(policy, found).missed_bytes <= allowed, (
                policy,
                target,
            )


def test_a_target_that_first_requests_reach_exactly_is_within_reach() -> None:
    trace = Trace(np.zeros(100, np.int32), np.arange(100), np.ones(1, np.int64))
    trace = Trace(
        np.append(np.arange(29), np.repeat(0, 71)).astype(np.int32),
        trace.times_ms,
        np.ones(29, np.int64),
    )
    assert least_capacity(trace, 0.29) is not None and least_capacity(trace, 0.28) is None


def test_a_small_share_of_few_bytes_is_a_byte_and_absurd_sizes_are_refused(tmp_path: Path) -> None:
    assert [parse_size(text, 30) for text in ("1%", "0.5%", "10%")] == [1, 1, 3]
    for text in ("99999999PB", "9223372036854775807", "9" * 400, "9" * 400 + "%"):
        with pytest.raises(errors.UsageError, match="beyond 64 bits"):
            parse_size(text, 30)
    done = CliRunner().invoke(command, ["compare", str(csv_of(tmp_path, "a", "b"))])
    assert done.exit_code == 0


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_numbers_that_are_none_are_usage_errors(value: str, tmp_path: Path) -> None:
    words = ["size", str(csv_of(tmp_path, "a")), "--target", value]
    assert CliRunner().invoke(command, words).exit_code == 2


def test_an_unknown_policy_is_refused_where_no_cache_reaches_the_target(tmp_path: Path) -> None:
    words = ["size", str(csv_of(tmp_path, "a")), "--target", "0.1", "--policy", "best"]
    assert isinstance(CliRunner().invoke(command, words).exception, errors.UsageError)


@pytest.mark.parametrize(
    ("stream", "size", "message"),
    [
        ("condor", 5, "the stored days have no access\n"),
        ("aaa", None, "no request has a size in dbs_events"),
        ("aaa", 2**62, "do not fit into 64 bits"),
    ],
)
def test_stored_days_without_accesses_or_sizes_say_so(
    stream: str, size: int | None, message: str, tmp_path: Path
) -> None:
    day = date(2026, 1, 5)
    store_partials(tmp_path, day, [partial(day, stream=stream)])
    events = {
        "day": day,
        "dataset_name": "/ZMM/Run2026A-v1/AOD",
        "file_count": 1,
        "invalid_file_count": 0,
    }
    store_table(
        tmp_path,
        "dbs_events",
        "dbs_events",
        day,
        [{**events, "dataset_bytes": size, "timestamp": 1}],
    )
    words = ["compare", "--fout", str(tmp_path), "--from", str(day), "--to", str(day)]
    error = CliRunner().invoke(command, words).exception
    assert isinstance(error, errors.CmssparkError) and message in error.text()


def test_an_access_of_stored_days_reads_a_file_of_its_dataset(tmp_path: Path) -> None:
    """Whole datasets for each of 10 million accesses would be more than 64 bits hold."""
    day, events = date(2026, 1, 5), []
    rows = []
    for name, files, accesses in (("/A/x/AOD", 4, 9), ("/B/x/AOD", 10**6, 10**7)):
        rows.append(partial(day, dataset_name=name, nacc=accesses))
        events.append({"day": day, "dataset_name": name, "dataset_bytes": 10**15})
        events[-1] |= {"file_count": files, "invalid_file_count": 0, "timestamp": 1}
    store_partials(tmp_path, day, rows)
    store_table(tmp_path, "dbs_events", "dbs_events", day, events)
    days = find_days(LocalFiles(), str(tmp_path), between(day, day))
    trace = site_traces(days).select()
    assert trace.reads is not None and sorted(trace.reads.tolist()) == [3, 10]


def test_names_of_many_parts_have_one_number(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(trace_module, "_BATCH_BYTES", 200)
    rows = np.zeros(1000, trace_module._ORACLE)
    rows["time"], rows["size"] = np.arange(1000), 3
    rows["object"] = np.random.default_rng(1).integers(0, 50, 1000) * 2**40
    rows.tofile(tmp_path / "t.bin")
    trace = read_trace(tmp_path / "t.bin")
    _, first = np.unique(rows["object"], return_index=True)
    assert rows["object"][np.sort(first)][trace.objects].tolist() == rows["object"].tolist()


@pytest.mark.parametrize("ending", ["", ".gz", ".zst", ".bz2", " packed without its ending"])
def test_records_of_caches_are_read_however_they_are_packed(tmp_path: Path, ending: str) -> None:
    lines = [
        json.dumps({"data": {"file_path": f"/f{number % 3}", "size": 10, "attach_time": number}})
        for number in range(1, 51)
    ]
    content = ("\ufeff" + "\r\n".join(lines)).encode()
    packed = {
        "": content,
        ".zst": bytes(cramjam.zstd.compress(content)),
        ".bz2": bytes(cramjam.bzip2.compress(content)),
    }.get(ending, gzip.compress(content))
    file = tmp_path / "records" / f"part-0.json{ending}"
    file.parent.mkdir()
    file.write_bytes(packed)
    batches = list(xcache_batches(file.parent, [0, 0]))
    assert sum(len(times) for times, *_ in batches) == 50
    assert not sum(left_out for *_, left_out in batches)
    assert is_xcache(file) == ("ending" not in ending)
    file.write_bytes(packed[: len(packed) // 2])
    if ending:
        with pytest.raises(DataError):
            list(xcache_batches(file.parent, [0, 0]))
