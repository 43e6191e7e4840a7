"""Every option of every script of CMSSpark is carried over, named as dropped, or refused:
none is lost.
"""

# ruff: noqa: E501 -- lines as they are typed
from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import pytest

from cmsspark.base.errors import UsageError
from cmsspark.submit.old_scripts import (
    BUILT_IN_OPTIONS,
    MANY,
    SCRIPTS,
    read,
)
from cmsspark.submit.script_lines import BUILT_IN, NO_SUCCESSOR, SUCCESSORS
from cmsspark.submit.shell_scripts import SHELL, SHELL_WITHOUT_SUCCESSOR
from cmsspark.submit.wrapper import run_spark

#: The options that the scripts of CMSSpark's newest commit declare, without those of
#: its conf.py.
DECLARED = {
    "aggregate_campaigns": "inst limit",
    "aggregate_dbs": "inst",
    "cern_monit": "stomp amq aggregation_schema",
    "cern_monit3": "amq aggregation_schema",
    "condor_cpu_efficiency": "start_date end_date cms_type output_folder last_n_days cpu_eff_outlier",
    "condor_crab_unique_users": "start_date end_date by include_re exclude_re generate_plots output_folder",
    "condor_hs06coreHrPlot": "start_date end_date by include_re exclude_re generate_plots output_folder",
    "data_aggregation": "inst aaa_hdir",
    "data_collection": "inst",
    "dates": "start ndays format range",
    "dbs_aaa": "inst",
    "dbs_adler": "patterns antipatterns inst",
    "dbs_block_lumis": "patterns antipatterns inst",
    "dbs_cmssw": "inst",
    "dbs_condor": "inst",
    "dbs_eos": "inst",
    "dbs_event_count_plot": "start_month end_month output_folder output_format colors_file tiers remove skims attributes generate_csv only_valid_files test verbose",
    "dbs_events": "patterns antipatterns inst",
    "dbs_hdfs_crab": "start_date end_date generate_plots output_folder",
    "dbs_hdfs_eos": "verbose parquet_location mode date outputDir only_csv period appfilter",
    "dbs_jm": "inst",
    "dbs_lfn": "patterns antipatterns inst",
    "dbs_phedex": "patterns antipatterns inst",
    "hpc_at_cms": "start_date end_date output_folder",
    "hpc_running_cores_and_corehr": "output_dir start_date end_date iterative iterative_ndays_ago url_prefix html_template save_pickle",
    "jm_stats": "fin fout agg verbose",
    "mergePhedex": "idir fout dates",
    "rucio_daily": "fdate output verbose",
    "rucio_datasets_last_access_ts": "disk tape static_html_dir output_dir rses_pickle min_tb_limit",
    "rucio_datasets_monitoring": "hdfs_out_dir opensearch_host opensearch_secret_file opensearch_index",
    "rucio_datasets_stats": "creds base_eos_dir cmsspark_git_tag amq_batch_size fdate test",
    "rucio_ds_summary": "creds amq_batch_size test",
    "stepchain_cpu_eff": "output_folder start_date end_date last_n_days",
    "wma_agent_count_to_opensearch": "start_date end_date es_host es_secret_file es_index",
}
#: Values that an option may have, and what they are in a line of today.
VALUES = {
    "start_date": ("2026-01-05", "2026-?01-?05"),
    "end_date": ("2026-02-01", "2026-?01-?31"),
    "start_month": ("2025/03", "2025-03"),
    "start": ("20260110", "20260110"),
    "date": ("20260115", "20260115"),
    "fdate": ("2026-01-15", "2026-01-15"),
    "dates": ("20260101-20260103", "2026-01-01"),
    "period": ("20260101 20260131", "2026-01-31"),
    "ndays": ("7", ".."),
    "last_n_days": ("12", ".."),
    "last_n_months": ("12", ".."),
    "offset_days": ("3", ".."),
    "iterative_ndays_ago": ("12", ".."),
    "by": ("month", "month"),
    "mode": ("overwrite", "mode"),
    "inst": ("phys03", "(?i)phys03"),
    "cpu_eff_outlier": ("1", "outlier"),
    "output_format": ("svg", "svg"),
    "tiers": ("RAW AOD", "RAW,AOD"),
    "remove": ("zzz", "zzz"),
}


def answer(line: str, environ: Mapping[str, str]) -> UsageError:
    with pytest.raises(UsageError) as error:
        run_spark(shlex.split(line), environ)
    return error.value


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, str]:
    monkeypatch.chdir(tmp_path)
    return {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}


def test_the_table_has_every_option_that_cmsspark_s_scripts_declare() -> None:
    for script, names in DECLARED.items():
        known = {*SCRIPTS.get(script, {}), *BUILT_IN_OPTIONS.get(script, ())}
        assert {f"--{name}" for name in names.split()} <= known, script


CASES = [
    (script, option)
    for script in sorted(SCRIPTS)
    for option in sorted(SCRIPTS[script])
    if " " not in script
]


@pytest.mark.parametrize(
    ("script", "option"), CASES, ids=[f"{script} {option}" for script, option in CASES]
)
def test_no_option_is_lost(script: str, option: str, environ: Mapping[str, str]) -> None:
    """Its value is in a line to type, or the answer names the option."""
    plain, declared = option.lstrip("-"), SCRIPTS[script][option]
    value, shown = VALUES.get(plain, ("zzz", "zzz"))
    words = [option, *(shlex.split(value) if declared.values else [])]
    if script == "dbs_hdfs_eos" and plain in ("outputDir", "appfilter", "only_csv"):
        words = ["run-report-totals", "--period", "20260101", "20260131", *words]
    if plain == "end_date":
        words += ["--start_date", "2026-01-01"]
    if plain in ("iterative_ndays_ago",):
        words += ["--iterative"]
    error = answer(shlex.join([f"{script}.py", *words]), environ)
    assert "is replaced by" in error.problem, error.text()
    lines = str(error.next_step)
    is_in_a_line = (
        re.search(shown, lines)
        if declared.values
        else re.search(rf"{option}\b|--valid-files", lines)
    )
    assert is_in_a_line or option in str(error.found), error.text()


@pytest.mark.parametrize("option", ["--yarn", "--verbose", "--queue=root.cms"])
@pytest.mark.parametrize("script", sorted({*SUCCESSORS} - BUILT_IN - {"cern_monit3"}))
def test_options_of_run_spark_are_in_a_line_or_named(
    script: str, option: str, environ: Mapping[str, str]
) -> None:
    for line in (f"{script}.py {option}", f"{option} {script}.py"):
        error = answer(line, environ)
        name = option.partition("=")[0]
        assert name in str(error.next_step) or name in str(error.found), error.text()


def test_an_option_that_nobody_knows_is_refused_with_its_value(
    environ: Mapping[str, str],
) -> None:
    error = answer("condor_hs06coreHrPlot.py --includ_re T1 --start_date 2026-01-01", environ)
    assert "--includ_re T1: condor_hs06coreHrPlot.py has no such option" in str(error.found)
    assert "did you mean --include_re?" in str(error.found)


def test_a_default_of_cmsspark_that_chooses_is_in_the_line_and_named(
    environ: Mapping[str, str],
) -> None:
    dates = "--start_date 2025-01-01 --end_date 2025-02-01"
    error = answer(f"condor_hs06coreHrPlot.py {dates}", environ)
    assert "regexp_matches(site, '^T2_.*$')" in str(error.next_step)
    assert "CMSSpark's defaults: --include_re ^T2_.*$, --exclude_re .*_CERN.*" in str(error.found)
    error = answer(f"condor_crab_unique_users.py {dates}", environ)
    assert "CMSSpark's default is T2 sites without CERN" in str(error.found)
    error = answer(f"condor_cpu_efficiency.py {dates}", environ)
    assert "type production, CMSSpark's default" in str(error.found)


def test_a_wrong_value_is_the_answer_before_any_line(environ: Mapping[str, str]) -> None:
    for line in (
        "dbs_hdfs_crab.py --start_date 2026-13-01 --end_date 2026-02-01",
        "condor_hs06coreHrPlot.py --by day",
        "dbs_event_count_plot.py --start_month 2025-13",
        "aggregate_dbs.py --date 2026-02-30",
        "dbs_hdfs_eos.py run-report-totals --period 20260101",
        "aggregate_dbs.py --inst phys99",
    ):
        error = answer(line, environ)
        assert not re.search(r"run_spark \w+ --(?!help)", str(error.next_step)), line
        assert "is replaced by" not in error.problem, line


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("dbs_aaa.py –yarn --date 20260101", "'–yarn' begins with a long dash"),
        ("dbs_aaa.py --date = 20260101", "leave out the blanks around '='"),
    ],
)
def test_what_was_pasted_wrong_is_named(line: str, text: str, environ: Mapping[str, str]) -> None:
    assert text in answer(line, environ).text()


def test_values_are_taken_as_argparse_takes_them() -> None:
    line = read("dbs_event_count_plot", shlex.split("--tiers RAW AOD,RECO --remove=a,b --test x"))
    assert line.options == {"--tiers": "RAW,AOD,RECO", "--remove": "a,b"}
    assert line.positional == ["x"]
    assert SCRIPTS["dbs_event_count_plot"]["--tiers"].values == MANY
    assert read("dbs_hdfs_eos", ["--period", "20260101", "20260131"]).options == {
        "--period": "20260101 20260131"
    }
    assert read("hpc_at_cms", ["--start_d", "20260101"]).options == {"--start_date": "20260101"}


def test_shell_names_are_those_of_the_migration_page(environ: Mapping[str, str]) -> None:
    page = Path(__file__).parents[2] / "docs" / "migration.md"
    section = page.read_text(encoding="utf-8").partition("## Scripts and crontabs")[2]
    names = set(re.findall(r"`(?:bin/|src/bash/|bin/datasetmon/)?([\w]+)(?:\.sh)?`", section))
    assert {PurePosixPath(name).parts[0] for name in (*SHELL, *SHELL_WITHOUT_SUCCESSOR)} <= names


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("bin/cron4crab_popularity.sh", "run_spark crab_popularity"),
        ("src/bash/report_tiers", "run_spark site_tier_usage"),
        ("cron4aggregation", "cmsspark daily"),
        ("run_dbs_events.sh", "run_spark dbs_events"),
        ("run_dbs_condor.sh 20260101", "--date 20260101"),
        (
            "run_aggregation.sh --date 20260101 --fout /x",
            "cmsspark daily --date 20260101 --fout /x",
        ),
        (
            "bin/cern_monit --hdir /cms/x/2026/01/05",
            "run_spark cern_monit --fout /cms/x --date 20260105",
        ),
    ],
)
def test_shell_names_are_answered(name: str, line: str, environ: Mapping[str, str]) -> None:
    error = answer(name, environ)
    assert "is replaced by" in error.problem
    assert line in str(error.next_step)


def test_scripts_without_a_successor_run_from_their_checkout(environ: Mapping[str, str]) -> None:
    for name in sorted(NO_SUCCESSOR):
        error = answer(f"{name}.py --attrs a,b", environ)
        assert error.problem == f"no job here replaces {name}.py; run CMSSpark's own script:"
        assert str(error.next_step).endswith(f"{name}.py --attrs a,b")
