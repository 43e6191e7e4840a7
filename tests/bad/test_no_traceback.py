"""What a person sees of a run that fails: the error in our words, and no trace of a
program but with ``--debug``.
"""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import LIGHT_JVM
from tests.corpus.json_lines import aaa
from tests.run.places import Place

TRACES = (
    "Traceback",
    '  File "',
    "\tat ",
    "Caused by:",
    "java.lang",
    "panicked",
    ".py:",
    ".scala:",
)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def run_spark(place: Place, *words: str) -> tuple[int, str]:
    """The exit code and all that is printed, as a person types it."""
    command = [
        sys.executable,
        "-c",
        "from cmsspark.submit import main; main()",
        "dbs_aaa.py",
        "--date",
        "20190615",
    ]
    command += ["--root", f"{place.folder}/root", "--settings", str(place.settings), *words]
    environ = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SPARK_", "PYSPARK_"))
    }
    top = str(Path(__file__).resolve().parents[2])
    done = subprocess.run(
        command,
        cwd=place.folder,
        env={**environ, "PYTHONPATH": top},
        capture_output=True,
        text=True,
        timeout=300,
    )
    return done.returncode, done.stdout + done.stderr


def cut(place: Place) -> Path:
    """A day of many small parts, one of them cut: its task fails while others are at
    work or start.
    """
    folder = place.tree.folder("aaa enr")
    whole = gzip.compress(b"\n".join([aaa()] * 3000), mtime=0)
    for number in range(60):
        (folder / f"part-{number:05}.json.gz").write_bytes(whole)
    file = folder / "part-00030.json.gz"
    file.write_bytes(
        gzip.compress(b"\n".join([aaa({"unique_id": "another"})] * 3000), mtime=0)[:-20]
    )
    return file


#: An option of Spark's own, so that its tasks read the logs.
BY_SPARK = ("--conf", "spark.sql.shuffle.partitions=3", *LIGHT_JVM)


@pytest.mark.parametrize(
    "words",
    [(), BY_SPARK, (*BY_SPARK, "--feed", "spark")],
    ids=["as it is", "tasks of Spark", "files read by Spark"],
)
def test_a_damaged_file_is_reported_once_and_without_noise(
    place: Place, words: tuple[str, ...]
) -> None:
    file = cut(place)
    code, said = run_spark(place, "--fout", place.fout, *words)
    assert code == 65, said
    assert not [trace for trace in TRACES if trace in said], said
    lines = [line for line in said.splitlines() if not line.startswith("catalogue of ")]
    assert lines[0].startswith("run_spark: "), said
    assert str(file) in said
    assert len(lines) == 4, said


def test_a_trace_is_shown_with_debug(place: Place) -> None:
    file = cut(place)
    code, said = run_spark(place, "--fout", place.fout, "--debug")
    assert code == 65
    assert "Traceback" in said
    assert str(file) in said


@pytest.mark.long
def test_a_trace_of_sparks_is_shown_with_debug(place: Place) -> None:
    file = cut(place)
    code, said = run_spark(place, "--fout", place.fout, "--debug", *BY_SPARK)
    assert code == 65
    assert "Lost task" in said
    assert "\tat " in said
    assert str(file) in said


def test_what_is_no_folder_is_reported_before_anything_starts(place: Place) -> None:
    folder = place.tree.folder("aaa enr")
    folder.rmdir()
    folder.write_text("a file")
    code, said = run_spark(place, "--fout", place.fout)
    assert (code, "a file, not a folder" in said) == (66, True), said
    assert not [trace for trace in TRACES if trace in said], said
    assert len(said.splitlines()) == 4
