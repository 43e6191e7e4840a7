"""CMSSpark's lines on what jobs cost are answered with the lines to type, which are right."""

# ruff: noqa: E501 - lines as they are typed
from __future__ import annotations

import os
import shlex
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from cmsspark import main
from cmsspark.base.errors import UsageError
from cmsspark.store.own_jobs import find_job
from cmsspark.submit.arguments import OPTIONS
from cmsspark.submit.job_help import load_command
from cmsspark.submit.wrapper import run_spark

LINES = [
    "hpc_running_cores_and_corehr.py --output_dir out --url_prefix https://example.org/hpc --html_template html_template.html --iterative --iterative_ndays_ago 10",
    "hpc_running_cores_and_corehr.py --start_date 2025-12-01 --end_date 2026-02-01 --output_dir out --url_prefix https://example.org/hpc --html_template x.html",
    "condor_hs06coreHrPlot.py --generate_plots --by month --output_folder out/T2 --start_date 2025-01-01 --end_date 2026-01-01",
    "condor_hs06coreHrPlot.py --generate_plots --by weekofyear --include_re T1_.* --exclude_re ^$ --output_folder out/T1 --start_date 2025-01-01 --end_date 2026-01-01",
    "wma_agent_count_to_opensearch.py --start_date 2026-01-08 --end_date 2026-01-15 --es_host os --es_secret_file secret --es_index test-wmarchive-agent-count",
    "src/python/CMSSpark/cpueff_condor_goweb.py --hdfs_out_dir /tmp/u/cpueff --last_n_days 30",
    "cpueff_stepchain_goweb.py --hdfs_out_dir /tmp/u/cpueff --last_n_days 30 --no-log4j --py-files=x.zip",
    "condor_cpu_efficiency.py --start_date 2021-01-01 --end_date 2021-02-01 --cms_type production --last_n_days 30 --cpu_eff_outlier 0 --output_folder out",
    "stepchain_cpu_eff.py --start_date 2021-01-01 --end_date 2021-02-01 --last_n_days 30 --output_folder out",
    "hpc_at_cms.py --output_folder out --start_date 2021-01-01 --end_date 2021-02-01",
    "dbs_event_count_plot.py --attributes etc/event_count_attributes.json --output_folder out/F9 --output_format png --generate_csv",
    "dbs_event_count_plot.py --start_month 2025/11 --output_folder out/F10 --output_format png --tiers RAW,AOD --skims PromptReco,Parking --remove test,Error/",
]


def _answer(line: str) -> tuple[UsageError, list[list[str]]]:
    with pytest.raises(UsageError) as caught:
        run_spark(shlex.split(line), os.environ)
    return caught.value, [shlex.split(text) for text in (caught.value.next_step or "").split("\n")]


@pytest.mark.parametrize("line", LINES)
def test_a_line_is_answered_with_lines_that_parse(line: str, tmp_path: Path) -> None:
    _, lines = _answer(line)
    assert len(lines) >= 2
    for program, command, *words in lines:
        assert program in ("run_spark", "cmsspark")
        if program == "run_spark":
            params = load_command(find_job(command)).params
        else:
            typed = main.command.get_command(click.Context(main.command), command)
            assert typed is not None
            params = typed.params
        if command == "sql":
            # Any folder is a store whose tables have no rows.
            (tmp_path / "any").mkdir(exist_ok=True)
            ended = CliRunner().invoke(
                main.command, ["sql", words[0], "--fout", str(tmp_path)], catch_exceptions=False
            )
            assert ended.exit_code == 0
        options = {name for option in params for name in option.opts}
        options |= {option.name for option in OPTIONS} if program == "run_spark" else set()
        assert {word.partition("=")[0] for word in words if word.startswith("--")} <= options, (
            words
        )


def test_the_end_of_a_range_is_not_part_of_it() -> None:
    _, lines = _answer(LINES[7])
    assert lines[0] == [
        "run_spark",
        "job_efficiency",
        "--date",
        "20210101..20210131",
        "--fout",
        "out",
    ]
    assert lines[1][2:6] == ["--from", "2021-01-01", "--to", "2021-01-31"]
    assert "outcome in ('ok') and type in ('production')" in lines[2][2]


def test_queries_of_days_are_of_the_range() -> None:
    for line in LINES[7:9]:
        _, lines = _answer(line)
        assert "day between '2021-01-01' and '2021-01-31'" in lines[-1][2]


def test_by_gives_a_line_for_each_month_or_week() -> None:
    _, lines = _answer(LINES[2])
    assert [words[3] for words in lines[1:-1]] == [f"2025-{month:02}" for month in range(1, 13)]
    _, lines = _answer(LINES[3])
    assert lines[1][2:5] == ["--week", "2025-W01", "--allow-missing"]  # it begins in 2024
    assert lines[2][2:5] == ["--week", "2025-W02", "--fout"]
    assert lines[-2][3] == "2026-W01"
    assert "regexp_matches(site, 'T1_.*') and not regexp_matches(site, '^$')" in lines[-1][2]


def test_what_is_not_needed_is_said_and_wrong_values_are_refused() -> None:
    error, _ = _answer(LINES[0])
    assert "--iterative is not needed" in str(error.found)
    assert "--url_prefix" in str(error.found)
    for line in (
        "hpc_at_cms.py --start_date",
        "hpc_at_cms.py --start_date 2026-02-30",
        "hpc_at_cms.py --last_n_days x",
        "hpc_at_cms.py --start_date 2026-01-02 --end_date 2026-01-01",
    ):
        with pytest.raises(UsageError):
            run_spark(shlex.split(line), os.environ)


@pytest.mark.parametrize("name", ["dbs_adler", "dbs_block_lumis", "dbs_lfn"])
def test_scripts_on_files_of_dbs_are_answered_with_a_query_of_the_dumps(name: str) -> None:
    error, ((*command, day, query),) = _answer(
        f"{name}.py --date 20260115 --fout hdfs:///cms/x --yarn"
    )
    assert command == ["cmsspark", "sql", "--dumps"]
    assert day == "20260115"
    assert query.startswith("select ") and " from dbs." in query
    assert "cmsspark sql --dumps has" in str(error.found)
