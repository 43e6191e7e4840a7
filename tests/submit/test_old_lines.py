"""Lines of CMSSpark's crontabs and scripts, of all its years, with what they do there:
its shell scripts have words by position, days of their own and several selections.
"""

# ruff: noqa: E501 -- lines as they are typed
from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from datetime import date
from pathlib import Path

import pytest

from cmsspark.base import dates
from cmsspark.base.errors import UsageError
from cmsspark.submit.wrapper import run_spark

#: line → texts of the lines to type, on 27 November 2026.
LINES = {
    # Words by position.
    "run_aggregation etc/conf.json 20170925": "cmsspark daily --date 20170925",
    "src/bash/run_aggregation.sh 20170411": "cmsspark daily --date 20170411",
    "cron_CRABpopularity.sh out 2020-01-01 2020-02-01": "dbs_condor --date 20200101..20200131 --fout out\ncrab_popularity --from 2020-01-01 --to 2020-01-31 --fout out",
    "cron_crab_unique_users.sh out 2019-01-01 2020-01-01": "crab_users --from 2019-01-01 --to 2019-12-31 --fout out",
    "cron_hpc_at_cms.sh out 2020/01/01 2020/03/01": "job_efficiency --date 20200101..20200229 --fout out",
    "cron4hpc_usage.sh out https://example.org/hpc_usage": "job_efficiency --date 20261001..20261124 --fout out",
    "cron4hpc_usage.sh out 2 https://example.org/hpc_usage": "job_efficiency --date 20260901..20261124 --fout out",
    "cron4hpc_monthly_stats.sh out 2020-01-01 2020-03-01 https://example.org": "20200101..20200229 --fout out",
    "k8s_condor_cpu_efficiency.sh www 15": "job_efficiency --date 20261111..20261125 --fout www\nselect type, outcome, workflow",
    "k8s_stepchain_cpu_eff.sh www 15": "step_efficiency --date 20261111..20261125 --fout www",
    "cron_EOSdataset.sh out 2020/11 append": "dbs_eos --date 20201101..20201130\nday between '2019-12-01' and '2020-11-30'\nout/dataset_totals_20201101_20201130.csv",
    "cron_genCRSGplots.sh out pdf": "crsg_event_counts --date yesterday --fout out\n--pictures out/F9\n--format pdf",
    "backfill_dbs_condor.sh 20260115 30 /data/pop": "dbs_condor --date 20251217..20260115",
    "src/bash/report_tiers/aggregate 20170228": "site_tier_usage --date 20170228\ndbs_events --date 20170228",
    "src/bash/report_campaigns/aggregate 20170228": "event_counts --date 20170228",
    # Days that the shell script chooses.
    "backfill_dbs_condor.sh": "dbs_condor --date 20261120..20261126",
    "cron_CRABpopularity.sh out": "dbs_condor --date 20251101..20261031 --fout out",
    "cron4crab_unique_users.sh --keytab ./keytab --output out --p1 1 --p2 2 --host n --wdir /w": "dbs_condor --date 20251101..20261031 --fout out",
    "cron4eos_dataset.sh --keytab k --output out": "dbs_eos --date 20261001..20261031\nout/dataset_totals_yearly_20251101_20261031.csv",
    "cron4hpc_at_cms.sh --keytab k --output out": "job_efficiency --date 20251101..20261031 --fout out",
    "cron4wma_agent_count.sh --keytab k --conf ./secret --p1 1": "step_efficiency --date 20261117..20261123\ncern_monit --job step_efficiency",
    "cron4phedex_df": "--out phedex_20251128_20261127.csv",
    "cron4cpueff_goweb.sh --keytab k --wdir /w": "job_efficiency --date 20261027..20261125\nstep_efficiency --date 20261027..20261125",
    # Selections that it starts one after the other.
    "cron4hs06_cputime_plot.sh --output out": "--month 2025-11 --fout out\n--week 2026-W43 --fout out\nregexp_matches(site, '^T2_.*$')\nregexp_matches(site, 'T1_.*')",
    "dataset_stats.sh": "dbs_events --antipatterns '*BUNNIES*,*Commissioning*,*RelVal*'\n/*/*/MINIAOD\ncern_monit --job dbs_events",
    "dbs_phedex_stats.sh": "dbs_phedex --antipatterns '*BUNNIES*'",
    "cron4rucio_datasets_stats.sh --keytab k --cmsr c --rucio r --amq amq.json --cmsmonitoring C.zip --stomp s.zip --eos /eos/x": "dataset_rses --fout /eos/x\n--amq amq.json",
    # Forms of older commits.
    "dbs_hdfs_crab.py --output_folder out 2020-01-01 2020-02-01": "20200101..20200131 --fout out",
    "condor_hs06coreHrPlot.py --by month --output_folder out 2019-12-01 2020-02-01": "--month 2019-12 --fout out\n--month 2020-01 --fout out",
    "condor_cpu_efficiency.py --offset_days 5 --output_folder out": "20261023..20261121 --fout out",
    "hpc_running_cores_and_corehr.py --output_dir out --last_n_months 19": "20250401..20261124 --fout out",
    "dbs_spark.py --hdir=hdfs:///project/awg/cms/CMS_DBS3_PROD_GLOBAL/current --fout=x --tier=AOD": "dbs_events --fout=x --patterns '/*/*/AOD'",
    "spark-submit --master yarn --conf spark.executor.memory=8g hpc_at_cms.py --output_folder out 2021-01-01 2021-02-01": "20210101..20210131 --fout out --master yarn --conf spark.executor.memory=8g",
    "python src/python/CMSSpark/dates.py --range --ndays=24 --start=20180124": "20180101..20180124",
}


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, str]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(dates, "today", lambda: date(2026, 11, 27))
    return {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}


def answer(line: str, environ: Mapping[str, str]) -> UsageError:
    with pytest.raises(UsageError) as error:
        run_spark(shlex.split(line), environ)
    return error.value


@pytest.mark.parametrize("line", LINES)
def test_a_line_is_answered_by_the_lines_that_its_script_starts(
    line: str, environ: Mapping[str, str]
) -> None:
    error = answer(line, environ)
    for text in LINES[line].splitlines():
        assert text in str(error.next_step), error.text()
    assert not re.search("no such (word|option)", str(error.found)), error.text()
    for new_line in str(error.next_step).splitlines():
        assert shlex.split(new_line)[0] in ("run_spark", "cmsspark")


def test_what_a_shell_script_takes_and_nothing_here_needs_is_named_once(
    environ: Mapping[str, str],
) -> None:
    line = "cron4crab_popularity.sh --keytab k --output o --p1 1 --p2 2 --host n --wdir /w --test"
    about = str(answer(line, environ).found)
    assert "--p1, --p2, --host are not needed: a job on Kubernetes takes no ports" in about
    assert "not supported: --test: name fewer days (--start_date)" in about
    error = answer("cron4rucio_datasets_monitoring.sh --conf ./secret --p1 1", environ)
    assert "--conf is not needed: cmsspark publish has credentials" in str(error.found)
    about = str(answer("run_aggregation etc/conf.json", environ).found)
    assert "etc/conf.json: its folders, store and credentials are in the settings" in about


def test_words_that_no_script_takes_are_refused(environ: Mapping[str, str]) -> None:
    about = str(answer("cron_hpc_at_cms.sh out 2020/01/01 2020/03/01 more", environ).found)
    assert "more: a line here has no such word" in about
    error = answer("cron_EOSdataset.sh out 2020/13", environ)
    assert error.problem == "there is no such month"


@pytest.mark.parametrize(
    "launcher", ["spark-submit", "/usr/bin/spark-submit", "PYTHONPATH=/x bin/run_spark", "python3"]
)
def test_a_line_pasted_with_its_program_runs_without_it(
    launcher: str, environ: Mapping[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    line = f"{launcher} --yarn dbs_aaa.py --date=20170411 --fout=x --explain"
    assert run_spark(shlex.split(line), environ) == 0
    assert "is not needed in this line" in capsys.readouterr().err
