"""Which engine counts a day: chosen once, from the request and the folders, as the job
then reads them.
"""

from __future__ import annotations

import bz2
import gzip
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from cmsspark.base.errors import NotReady, SettingsError, UsageError
from cmsspark.engines.names import PROCESSES, SPARK
from cmsspark.filesystems.storage import Files, LocalFiles
from cmsspark.run import engine_choice
from cmsspark.run.inputs import (
    INDEX_FILES_KEY,
    files_in_dbs,
    resolve,
    resolve_dbs_dump,
    uses_index,
)
from cmsspark.run.request import DayRequest
from cmsspark.sources.dumps import Dump
from cmsspark.sources.layout import InputFile, Layout
from tests.corpus.tree import write_case_tables
from tests.run.places import Place, write_streams


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(tmp_path)
    write_streams(made.tree)
    return made


def layout_of(request: DayRequest) -> Layout:
    return Layout.load(request.settings.sources, request.root)


def chosen(request: DayRequest, spark_reason: str = "") -> str:
    return engine_choice.choose(request, layout_of(request), spark_reason).engine


def limited(request: DayRequest, limit: object) -> DayRequest:
    """The request with another limit for an index, in files of DBS, in its settings."""
    return replace(
        request, settings=replace(request.settings, spark={INDEX_FILES_KEY: str(limit)})
    )


def test_processes_count_local_files_and_spark_all_others(place: Place) -> None:
    request = place.request()
    assert chosen(request) == chosen(replace(request, engine=PROCESSES)) == PROCESSES
    assert chosen(replace(request, engine=SPARK)) == SPARK
    others: list[dict[str, Any]] = [{"join": "shuffle"}, {"feed": "spark"}, {"fmt": "csv"}]
    for changes in (*others, {"root": None}, {"fout": "hdfs:///out"}, {"root": "s3a://bucket"}):
        assert chosen(replace(request, **changes)) == SPARK
        with pytest.raises(UsageError, match="--engine processes cannot"):
            chosen(replace(request, engine=PROCESSES, **changes))
    assert chosen(request, "profile yarn") == SPARK


def test_the_reason_says_what_only_spark_does(place: Place) -> None:
    request = place.request()

    def reason(**changes: Any) -> str:
        changed = replace(request, **changes)
        return engine_choice.choose(changed, layout_of(changed)).reason

    assert reason() == ""
    assert reason(join="shuffle", fmt="csv") == "--join shuffle, --format csv"
    assert reason(fout="hdfs:///out") == "--fout hdfs:///out is not on this host's disks"
    assert reason(root="s3a://bucket") == "--root s3a://bucket is not on this host's disks"
    assert reason(root=None) == "without --root, the input is not on this host's disks"
    found = engine_choice.choose(limited(request, 7), layout_of(request)).reason
    assert str(place.tree.dbs()) in found and found.endswith("an index is made of 7 at most")


def test_what_spark_submit_started_is_counted_by_spark(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert chosen(place.request()) == SPARK
    assert chosen(place.request(engine=PROCESSES)) == PROCESSES


def test_a_dump_too_large_for_an_index_is_sparks(place: Place) -> None:
    request = place.request()
    count = files_in_dbs(LocalFiles(), resolve_dbs_dump(request, layout_of(request), LocalFiles()))
    # 38 files; some rows have a newline between quotes.
    assert 38 <= count <= 80
    assert chosen(limited(request, count)) == PROCESSES
    assert chosen(limited(request, count - 1)) == SPARK
    assert chosen(replace(limited(request, count - 1), join="index")) == PROCESSES
    with pytest.raises(UsageError, match="--engine processes cannot"):
        chosen(replace(limited(request, count - 1), engine=PROCESSES))


ROW = "/store/data/Run2026A/SingleMuon/AOD/v1/000/{0:012}/5F3C{0:08x}-9B1E-E411.root,{0},7,{0},1"


@dataclass
class LargeDump:
    """A file system whose parts of FILES begin as these rows and are very large."""

    rows: bytes

    def read_range(self, path: str, offset: int, count: int) -> bytes:
        assert offset == 0
        return self.rows[:count]


@pytest.mark.parametrize("packing", ["plain", "gzip", "bzip2"])
def test_rows_of_packed_and_of_plain_files_are_counted_not_their_bytes(packing: str) -> None:
    count = 40_000
    text = "".join(ROW.format(number) + "\n" for number in range(count)).encode()
    pack, ending = {
        "plain": (bytes, ""),
        "gzip": (gzip.compress, ".gz"),
        "bzip2": (bz2.compress, ".bz2"),
    }[packing]
    rows = pack(text)
    many = 10_000
    parts = tuple(InputFile(f"/FILES/part-{n}{ending}", len(rows), 0) for n in range(many))
    dump = Dump("dbs", None, "/dbs", {"FILES": parts}, None)
    estimate = files_in_dbs(cast("Files", LargeDump(rows)), dump)
    # The last block of bzip2 may be cut.
    assert estimate == pytest.approx(count * many, rel=0.35 if packing == "bzip2" else 0.05)


def test_a_small_dump_is_not_sampled(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(files: object, path: str, offset: int, count: int) -> bytes:
        raise AssertionError(path)

    request = place.request()
    dump = resolve_dbs_dump(request, layout_of(request), LocalFiles())
    monkeypatch.setattr(LocalFiles, "read_range", refuse)
    assert uses_index(request, dump, LocalFiles())


def test_the_dump_kept_from_the_days_last_run_decides(place: Place) -> None:
    place.tree.dbs().rename(place.tree.dbs().with_name("2019-06-20"))
    assert place.run("dbs_aaa") == 0
    write_case_tables(place.tree.dbs(1), place.tree.phedex(1, "09h00m00s"))
    part = place.tree.dbs(1) / "FILES" / "part-00009-1f0e.csv"
    with part.open("a") as stream:
        stream.writelines(ROW.format(number) + "\n" for number in range(1_000, 2_000))
    request = limited(place.request(), 999)
    assert chosen(request) == PROCESSES, "the run reads the dump that it has read before"
    assert chosen(replace(request, refresh_dumps=True)) == SPARK
    for one in (request, replace(request, refresh_dumps=True)):
        dump = resolve_dbs_dump(one, layout_of(one), LocalFiles())
        assert dump == resolve(one, layout_of(one), LocalFiles()).dbs


def test_a_report_that_is_taken_from_what_was_counted_needs_no_spark(place: Place) -> None:
    assert place.run("data_aggregation") == 0
    request = limited(place.request(), 1)
    assert chosen(request) == PROCESSES
    assert chosen(replace(request, recount=True)) == SPARK
    place.tree.write("aaa enr", "part-9.json", b"")
    assert chosen(request) == SPARK


def test_a_missing_dump_is_reported_without_a_jvm(place: Place) -> None:
    place.tree.dbs().rename(place.folder / "away")
    assert chosen(place.request()) == PROCESSES


def test_a_limit_that_is_no_number_is_78_and_names_its_place(place: Place) -> None:
    with place.settings.open("a") as stream:
        stream.write(f"spark:\n  {INDEX_FILES_KEY}: 30 GB\n")
    error = place.fails(SettingsError, "dbs_aaa")
    assert "cmsspark.yaml, line 4" in str(error) and "'30 GB'" in str(error)


def test_a_dump_that_grows_while_the_job_starts_is_75(place: Place) -> None:
    request = limited(place.request(), 1)
    with pytest.raises(NotReady, match="--engine spark"):
        engine_choice.check_index(request, resolve(request, layout_of(request), LocalFiles()))


def test_a_job_called_from_python_starts_no_small_spark_of_its_own(place: Place) -> None:
    with place.settings.open("a") as stream:
        stream.write(f"spark: {{{INDEX_FILES_KEY}: 1}}\n")
    words = ["dbs_aaa", "--date", "20190615", "--root", str(place.tree.root), "--fout", place.fout]
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "cmsspark.submit.launch",
            *words,
            "--settings",
            str(place.settings),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert run.returncode == 78
    assert run.stderr.startswith("run_spark: Spark is needed for this job\n")
    assert (
        "an index is made of 1 at most" in run.stderr and "run_spark --engine spark" in run.stderr
    )
    assert not Path(place.fout).exists()
