"""What people type wrongly ends in 2 with what would be right, whatever it is and
whichever command takes it.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from cmsspark import main
from cmsspark.base import dates, errors, reporting
from cmsspark.base.errors import UsageError
from cmsspark.store.own_jobs import JOBS, find_job
from cmsspark.submit.job_help import load_command

WRONG_DAYS = (
    "",
    " ",
    "2026",
    "202601",
    "2026011",
    "202601155",
    "2026-1-15",
    "2026-01-1",
    "26-01-15",
    "2026/01-15",
    "15-01-2026",
    "15.01.2026",
    "2026-01-15T00:00:00",
    "2026-01-15 ",
    " 20260115",
    "20260115\n",
    "2026-0115",
    "202601-15",
    "20260230",
    "2026-02-29",
    "20261301",
    "20260100",
    "20260001",
    "00000101",
    "-20260115",
    "+2026015",
    "0x20260115",
    "1768435200",
    "yesterday",
    "today",
    "null",
    "None",
    "*",
    "2026-01-*",
    "20260115,20260116",
    "20260115-20260116",
    "../20260115",
    "$(date)",
    "`date`",
    "20260115; ls",
    "２０２６０１１５",
    "٢٠٢٦٠١١٥",
    "2026−01−15",
    "\udcff",
    "2026-01-15\0",
)
HOSTILE_NAMES = (
    "../dbs_aaa",
    "dbs_aaa/../dbs_aaa",
    "/etc/passwd",
    "dbs_aaa;ls",
    "dbs_aaa && ls",
    "$(ls)",
    "`ls`",
    "dbs_aaa|cat",
    "*",
    "dbs_*",
    "",
    " ",
    ".",
    "..",
    "dbs_aaa ",
    "DBS_AAA",
    "dbs_aaa.py.py",
    "dbs_aaa\n",
    "-x",
    "~",
    "a\0b",
    "<script>",
    "=cmd()",
)


@pytest.mark.parametrize("text", WRONG_DAYS)
def test_a_day_in_another_form_is_refused_with_the_right_one(text: str) -> None:
    with pytest.raises(UsageError) as error:
        dates.parse_day(text, latest=dates.today())
    assert error.value.exit_code == 2
    assert "20260115 or 2026-01-15" in str(error.value)


@pytest.mark.parametrize("job", [job.name for job in JOBS.values()])
def test_every_job_refuses_wrong_days_and_days_to_come(job: str) -> None:
    tomorrow = (dates.today() + timedelta(days=1)).isoformat()
    for text, said in (
        ("20260230", "calendar"),
        ("15.01.2026", "20260115"),
        (tomorrow, "future"),
        ("29991231", "future"),
    ):
        option = "--from" if find_job(job).of_periods else "--date"
        ended = CliRunner().invoke(load_command(find_job(job)), [option, text])
        assert ended.exit_code == 2, (text, ended.output)
        assert said in ended.output
        assert "Traceback" not in ended.output


def test_the_last_day_of_a_range_alone_asks_for_the_first(tmp_path: Path) -> None:
    arguments = ["period", "--to", "20260112", "--fout", str(tmp_path)]
    ended = CliRunner().invoke(main.command, arguments)
    assert isinstance(ended.exception, UsageError)
    assert ended.exception.problem == "--to is the last day of a range"
    assert "--from DAY --to DAY" in str(ended.exception)


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_a_job_of_no_known_name_is_refused_with_what_lists_them(name: str) -> None:
    with pytest.raises(UsageError) as error:
        find_job(name)
    assert repr(name) in str(error.value)
    assert "run_spark --list names the jobs" in str(error.value)


@settings(deadline=None, max_examples=300)
@given(st.text(max_size=12))
def test_any_text_is_a_day_of_the_calendar_or_refused(text: str) -> None:
    try:
        day = dates.parse_day(text)
    except UsageError:
        return
    assert text in (f"{day:%Y%m%d}".zfill(8), day.isoformat())


@pytest.mark.parametrize(
    "value",
    ["/x;ls", "$(ls)", "`ls`", "a b", "*", "<script>", "=cmd()", "{x}", "%2e%2e", "'", '"'],
)
def test_what_shells_read_in_a_folders_name_is_a_name(tmp_path: Path, value: str) -> None:
    root = tmp_path / value.lstrip("/")
    own = tmp_path / "cmsspark.yaml"
    own.write_text(f"state_dir: {tmp_path}/state\ncache_dir: {tmp_path}/cache\n")
    arguments = [
        "--date",
        "20190615",
        "--root",
        str(root),
        "--fout",
        str(tmp_path / "out"),
        "--settings",
        str(own),
    ]
    with pytest.raises(errors.InputMissing) as error:
        reporting.run_click(load_command(find_job("dbs_aaa")), "dbs_aaa", arguments)
    assert str(root) in str(error.value)
    assert {path.name for path in tmp_path.iterdir()} <= {"cmsspark.yaml", "out", "state"}
