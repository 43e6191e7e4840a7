"""A log that lies on a full disk: the exit code still tells, and the result before stays (R3)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cmsspark.store.run_history import State, open_history
from tests.run.places import Place, write_streams

FULL = Path("/dev/full")
#: A run_spark that goes on from a line with the beginning LAST_LINE only when nobody
#: reads its log any more: else it could write all the rest into the pipe before the
#: test closes that.
LEFT_ALONE = """
import io, os, re, select, sys
from cmsspark.submit import main

class Log(io.TextIOWrapper):
    said = ""

    def write(self, text):
        count = super().write(text)
        self.said += text
        if re.search("^" + re.escape(os.environ["LAST_LINE"]) + ".*\\n", self.said, re.M):
            ended = select.poll()
            ended.register(2, 0)
            ended.poll()
        return count

sys.stderr = Log(sys.stderr.buffer, encoding="utf-8", line_buffering=True, write_through=True)
main()
"""


def main(place: Place, module: str, *words: str, log: Path | None = None) -> int:
    """The exit code of a command line whose stderr is ``log``."""
    command = [
        sys.executable,
        "-c",
        f"from {module} import main; main()",
        *words,
        "--settings",
        str(place.settings),
    ]
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with open(log or os.devnull, "w") as stream:
        done = subprocess.run(
            command, stdout=stream, stderr=stream, check=False, env=environ, cwd=place.folder
        )
    return done.returncode


def test_a_run_whose_log_is_full_ends_in_73_and_leaves_the_result_before(tmp_path: Path) -> None:
    place = Place(tmp_path)
    write_streams(place.tree)
    words = ("dbs_eos", "--date", "20190615", "--root", f"{tmp_path}/root", "--fout", place.fout)
    assert main(place, "cmsspark.submit", *words) == 0
    before = place.manifest("dbs_eos")
    assert main(place, "cmsspark.submit", *words, log=FULL) == 73
    assert place.manifest("dbs_eos") == before
    with open_history(tmp_path / "state") as book:
        latest, first = book.runs()
    assert (latest.state, latest.exit_code, first.state) == (State.FAILED, 73, State.DONE)
    assert main(place, "cmsspark.submit", *words) == 0


@pytest.mark.parametrize(
    "last_line", ["catalogue of", "dbs_eos: "], ids=["before the commit", "behind it"]
)
def test_a_run_whose_log_nobody_reads_any_more_ends_in_73_and_leaves_a_result(
    tmp_path: Path, last_line: str
) -> None:
    place = Place(tmp_path)
    write_streams(place.tree)
    words = ["dbs_eos", "--date", "20190615", "--root", f"{tmp_path}/root", "--fout", place.fout]
    assert main(place, "cmsspark.submit", *words) == 0
    shutil.rmtree(tmp_path / "cache")
    command = [sys.executable, "-c", LEFT_ALONE, *words]
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "LAST_LINE": last_line}
    with subprocess.Popen(
        [*command, "--settings", str(place.settings)],
        stderr=subprocess.PIPE,
        text=True,
        env=environ,
        cwd=place.folder,
    ) as process:
        assert process.stderr is not None
        assert any(line.startswith(last_line) for line in process.stderr)
        process.stderr.close()
    assert process.returncode == 73
    assert place.rows("dbs_eos")


def test_an_error_that_cannot_be_reported_keeps_its_code(tmp_path: Path) -> None:
    place = Place(tmp_path)
    assert main(place, "cmsspark.main", "show", "nothing", "--fout", place.fout, log=FULL) == 2
    assert main(place, "cmsspark.main", "status", "--fout", place.fout, log=FULL) == 73


@pytest.mark.parametrize(("day", "code"), [("20190615..20190616", 73), ("20190615", 0)])
def test_a_line_of_several_days_whose_notes_nobody_reads_ends_in_73(
    tmp_path: Path, day: str, code: int
) -> None:
    command = [sys.executable, "-c", "from cmsspark.submit import main; main()", "dbs_eos"]
    words = ["--date", day, "--fout", str(tmp_path), "--dry-run"]
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as closed:
        done = subprocess.run(
            [*command, *words], stdout=closed, stderr=closed, env=environ, check=False
        )
    assert done.returncode == code
