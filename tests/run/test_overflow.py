"""A sum beyond 64 bits is explained by the largest record, wherever the logs lie."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import pytest

from cmsspark.base.errors import DataError
from cmsspark.filesystems.storage import LocalFiles
from cmsspark.run import scan_summary
from cmsspark.run.inputs import resolve
from cmsspark.run.request import DayRequest, Inputs
from cmsspark.sources.folders import Layout
from tests.corpus import jobs
from tests.corpus.json_lines import aaa
from tests.run.places import Place

FAILED = DataError("a sum of read_bytes is beyond 2^63-1")


class FarFiles(LocalFiles):
    """As another file system: its files are only copied. ``copied``: those that were."""

    def __init__(self) -> None:
        super().__init__()
        self.copied: list[str] = []

    def fetch(self, path: str, target: Path) -> None:
        if path.startswith("hdfs://far"):
            self.copied.append(path.rsplit("/", 1)[-1])
        super().fetch(path.removeprefix("hdfs://far"), target)


@pytest.fixture
def far(tmp_path: Path) -> tuple[DayRequest, Inputs, FarFiles]:
    """A day of two files on another file system; the largest record is of a file that
    is not in DBS.
    """
    place = Place(tmp_path)
    unknown = aaa({"file_lfn": "/store/data/nowhere", "read_bytes_at_close": 9 * 10**18})
    largest = aaa({"read_bytes_at_close": 5 * 10**18 + 1, "read_bytes": 0})
    place.tree.write("aaa enr", "part-0.json", b"\n".join([aaa(), unknown]) + b"\n")
    place.tree.write("aaa enr", "part-1.json", b"\n".join([aaa(), aaa(), largest]) + b"\n")
    request = place.request()
    inputs = resolve(request, Layout.from_settings(request.settings, request.root), LocalFiles())
    (source,) = inputs.streams
    files = tuple(
        dataclasses.replace(file, path=f"hdfs://far{file.path}") for file in source.files
    )
    elsewhere = FarFiles()
    return (
        request,
        msgspec.structs.replace(
            inputs, files=elsewhere, streams=[msgspec.structs.replace(source, files=files)]
        ),
        elsewhere,
    )


def test_the_largest_record_of_files_elsewhere_is_named_without_a_catalogue(
    far: tuple[DayRequest, Inputs, FarFiles],
) -> None:
    request, inputs, files = far
    error = scan_summary.explained(FAILED, request, inputs, None)
    assert isinstance(error, DataError)
    assert error.problem.startswith("aaa, dataset /")
    assert str(error.where).startswith("hdfs://far") and str(error.where).endswith(
        "part-1.json, line 3"
    )
    assert str(error.next_step).startswith("--quarantine-above 5000000000000000000 ")
    assert files.copied == ["part-0.json", "part-1.json", "part-1.json"]


def test_more_bytes_than_the_limit_are_not_copied(
    far: tuple[DayRequest, Inputs, FarFiles], monkeypatch: pytest.MonkeyPatch
) -> None:
    request, inputs, files = far
    monkeypatch.setattr(scan_summary, "MOST_COPIED_BYTES", 100)
    error = scan_summary.explained(FAILED, request, inputs, None)
    assert isinstance(error, DataError)
    assert (error.problem, files.copied) == (FAILED.problem, [])
    assert "--quarantine-above BYTES " in str(error.next_step)


@pytest.mark.parametrize(
    ("key", "values", "words"),
    [
        (
            "ChirpCMSSWReadBytes",
            (5 * 10**18, 5 * 10**18 + 1, 6 * 10**18),
            "read_bytes of the day, 6,000,000,000,000",
        ),
        (
            "WallClockHr",
            (1.5e12, 1.6e12, 1.7e12),
            "wc_time of the day, 6,120,000,000,000,000 seconds",
        ),
        (
            "CpuTimeHr",
            (1.5e12, 1.5e12, 1.5e12),
            "cpu_time of the day, 5,400,000,000,000,000 seconds",
        ),
    ],
)
def test_a_sum_of_jobs_names_the_job_and_the_column_and_the_advice_makes_the_day_count(
    tmp_path: Path, key: str, values: tuple[object, ...], words: str
) -> None:
    place = Place(tmp_path)
    place.settings.write_text(
        place.settings.read_text() + "sources: {epochs: {jobs: {condor: {from: always}}}}\n"
    )
    lines = [
        jobs.job({"GlobalJobId": f"job-{number}", key: value})
        for number, value in enumerate(values)
    ]
    usual = [jobs.job({"GlobalJobId": f"usual-{number}"}) for number in range(3)]
    place.tree.write("condor", "part-0.json", b"\n".join([*usual, *lines]) + b"\n")
    error = place.fails(DataError, "dbs_condor")
    assert words in str(error.found)
    assert "condor, job job-" in error.problem
    assert "part-0.json, line " in str(error.where)
    option, limit, *_ = str(error.next_step).split()
    assert place.run("dbs_condor", option, limit) == 0
    manifest = place.manifest("dbs_condor")
    assert (manifest["partial"], manifest["reconciliation"]["condor"]["matched"] >= 3) == (
        True,
        True,
    )


def test_the_limit_leaves_sums_that_fit() -> None:
    # Without the two largest the rest fits; equal values exceed a limit together.
    assert scan_summary._least([2**62, 2**62 - 1, 2**62 - 2], 3 * 2**62 - 3) == (2**62, 1)
    assert scan_summary._least([2**62] * 4, 4 * 2**62) == (2**62, 4)
    assert scan_summary._least([9], 2**70) == (9, 1)
