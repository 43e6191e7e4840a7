"""``run_spark JOB … --plan``: what a run is expected to need, without a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from cmsspark.base.errors import InputMissing, UsageError
from cmsspark.submit.wrapper import run_spark
from tests.run.places import Place, write_streams


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    place = Place(tmp_path)
    write_streams(place.tree)
    where = [
        "--root",
        f"{tmp_path}/root",
        "--fout",
        place.fout,
        "--settings",
        str(place.settings),
        "--plan",
    ]
    return ["data_aggregation", "--date", "20190615", *where]


def test_a_plan_lists_the_input_and_starts_nothing(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_spark(words, {"HOME": str(tmp_path)}) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "plan of data_aggregation of 2019-06-15, by processes"
    assert lines[1].startswith("  input      ") and lines[1].endswith(" files")
    assert [line.split()[0] for line in lines[2:]] == ["processes", "memory", "time", "cost"]
    assert "no earlier run to compare with" in lines[4]
    assert (
        not (tmp_path / "state" / "monitor" / "runs").exists()
        and not (tmp_path / "store").exists()
    )


def test_a_plan_for_yarn_has_executors(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_spark([*words, "--yarn", "--executor-cores", "2"], {"HOME": str(tmp_path)}) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("in Spark on yarn")
    assert lines[2] == "  executors  1 executor of 2 cores, 1 task at once"


def test_a_plan_of_a_day_that_is_not_there_ends_as_the_run_would(
    words: list[str], tmp_path: Path
) -> None:
    with pytest.raises(InputMissing):
        run_spark(
            [word.replace("20190615", "20190616") for word in words], {"HOME": str(tmp_path)}
        )


def test_only_jobs_on_logs_have_a_plan(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--plan is for jobs on logs"):
        run_spark(
            ["dbs_events", "--date", "20190615", "--fout", f"{tmp_path}", "--plan"],
            {"HOME": str(tmp_path)},
        )
