"""Every line that people typed with CMSSpark: it runs, or is answered whole, once, with
lines to type that run.
"""

# ruff: noqa: E501 -- lines as they are typed
from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from cmsspark.base import dates
from cmsspark.base.errors import UsageError
from cmsspark.main import command
from cmsspark.submit import script_lines
from cmsspark.submit.wrapper import run_spark

RUN = """
dbs_phedex.py --fout=hdfs:///cms/dbs_phedex --antipatterns=*BUNNIES*,*Commissioning* --yarn --verbose
dbs_cmssw.py --verbose --yarn --fout=hdfs:///cms/cmssw --date=20170411
dbs_aaa.py --verbose --yarn --fout=hdfs:///cms/aaa --date=20170411
dbs_eos.py --verbose --yarn --fout=hdfs:///cms/eos --date=20170411
dbs_condor.py --yarn --fout=hdfs:///cms/dbs_condor --date=20180124
dbs_events.py --yarn --fout=hdfs:///cms/dbs_events
phedex.py --yarn --fout=hdfs:///cms/phedex --date=20171231
data_aggregation.py --date 20200115 --fout /cms/aggregation
cern_monit3.py --hdir /cms/aggregation/2020/01/15 --amq amq.json --verbose --aggregation_schema --py-files=stomp.zip
rucio_daily.py --verbose --output hdfs:///cms/rucio_daily --fdate 2026-01-15
src/python/CMSSpark/dbs_events.py --fout=x --date 20260115 --no-log4j --yes-log4j --py-files=x.zip
/data/cms/CMSSpark/src/python/CMSSpark/phedex.py --yes-log4j --yarn --fout=hdfs:///cms/phedex --date=20171231
""".strip().splitlines()

_DBS = "--fout=hdfs:///cms/report --yarn --verbose"
_OLD = f"{_DBS} --date=20190101"
_WMA = "/path/to/CMSSpark/src/python/CMSSpark/wmarchive.py"
_CONDOR_2025 = "run_spark dbs_condor --date 20250101..20251231 --fout out\nrun_spark crab_users --from 2025-01-01 --to 2025-12-31 --fout out"
#: line → the lines to type.
ANSWERED = {
    "cern_monit.py --hdir=hdfs:///cms/dbs_phedex --stomp=static/stomp.py-4.1.15-py2.7.egg --amq=amq_broker.json": "run_spark cern_monit.py --fout hdfs:///cms/dbs_phedex --amq=amq_broker.json --date yesterday --job dbs_phedex",
    "cern_monit.py --hdir=/cms/users/vk/datasets --amq=amq_broker.json --stomp=/path/stomp.py-4.1.15-py2.7.egg": "run_spark cern_monit.py --fout /cms/users/vk/datasets --amq=amq_broker.json --date yesterday --job JOB",
    "wmarchive.py --fout=hdfs:///cms/wma --date=20170411": f"run_spark {_WMA} --fout=hdfs:///cms/wma --date=20170411",
    "wmarchive.py --fout=hdfs:///cms/wma --date=20170411,20170420 --yarn": f"run_spark {_WMA} --fout=hdfs:///cms/wma --date=20170411,20170420 --yarn",
    "wmarchive.py --fout=hdfs:///cms/wma --date=20170411-20170420 --yarn": f"run_spark {_WMA} --fout=hdfs:///cms/wma --date=20170411-20170420 --yarn",
    "hdfs_an.py --yarn --fout=hdfs:///cms/hdfs_an --attrs=data.user,data.path --hdir=hdfs:///project/monitoring/archive/hdfs": "run_spark /path/to/CMSSpark/src/python/CMSSpark/hdfs_an.py --yarn --fout=hdfs:///cms/hdfs_an --attrs=data.user,data.path --hdir=hdfs:///project/monitoring/archive/hdfs",
    f"/reports/aggregate_dbs.py {_DBS}": f"run_spark dbs_events {_DBS} --date YESTERDAY",
    f"/reports/aggregate_phedex.py {_OLD}": f"run_spark site_tier_usage {_OLD}",
    f"/reports/aggregate_campaigns.py {_OLD}": f"run_spark event_counts {_OLD}",
    f"/reports/aggregate_campaign_tier.py {_OLD}": f"run_spark event_counts {_OLD}",
    f"/reports/aggregate_leftovers.py {_OLD} --inst=all": "\n".join(
        f"run_spark leftovers --yarn --verbose --date=20190101 --fout hdfs:///cms/report/{name} --inst {name}"
        for name in ("global", "phys01", "phys02", "phys03")
    ),
    "src/python/CMSSpark/mergePhedex.py --idir=/data/phedex --fout=phedex_20170101_20171231.csv --dates 20170101-20171231": "cmsspark sql \"select * from phedex where day between '2017-01-01' and '2017-12-31' order by day\" --fout /data/phedex --out phedex_20170101_20171231.csv",
    "src/python/CMSSpark/dates.py --range --format=%Y%m%d --ndays=24 --start=20180124": "run_spark JOB --date 20180101..20180124",
    "dbs_hdfs_crab.py --generate_plots --output_folder out --start_date 2026-01-01 --end_date 2026-02-01": "run_spark dbs_condor --date 20260101..20260131 --fout out\nrun_spark crab_popularity --from 2026-01-01 --to 2026-01-31 --fout out",
    "condor_crab_unique_users.py --generate_plots --by month --output_folder out --start_date 2025-01-01 --end_date 2026-01-01": _CONDOR_2025,
    "condor_crab_unique_users.py --generate_plots --by weekofyear --output_folder out --start_date 2025-01-01 --end_date 2026-01-01": _CONDOR_2025,
    "dbs_hdfs_eos.py run-update --mode append --date 2026/01/*": "run_spark dbs_eos --date 20260101..20260131 --fout hdfs:///cms/eos",
    "dbs_hdfs_eos.py run-report-totals --outputDir out --period 20250101 20260101": "cmsspark sql \"select dataset_name, app, sum(accesses) as accesses, sum(read_bytes) as read_bytes from dbs_eos where day between '2025-01-01' and '2026-01-01' group by all order by read_bytes desc\" --fout hdfs:///cms/eos --out out/dataset_totals.csv",
    "rucio_datasets_monitoring.py --hdfs_out_dir /tmp/u/rucio_ds_mon --opensearch_host os-cms.example.org/os --opensearch_index test-rucio-ds --opensearch_secret_file secret": "run_spark dataset_rses --fout /tmp/u/rucio_ds_mon --date YESTERDAY\nrun_spark cern_monit --job dataset_rses --date YESTERDAY --fout /tmp/u/rucio_ds_mon --amq amq_broker.json",
    "rucio_datasets_stats.py --creds creds.json --base_eos_dir out --cmsspark_git_tag v1 --amq_batch_size 1000 --fdate 2026-01-15": "run_spark dataset_rses --fout out --date 2026-01-15\nrun_spark cern_monit --job dataset_rses --date 2026-01-15 --fout out --amq creds.json",
    "rucio_ds_summary.py --creds creds.json --amq_batch_size 1000": "run_spark dataset_last_access --fout DIR --date YESTERDAY\nrun_spark cern_monit --job dataset_last_access --date YESTERDAY --fout DIR --amq creds.json",
    "data_collection.py --yarn --date=20170925": "run_spark data_aggregation --yarn --date=20170925 --fout DIR",
}


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, str]:
    monkeypatch.chdir(tmp_path)
    inherited = {
        name: os.environ[name]
        for name in ("PATH", "JAVA_HOME", "SPARK_HOME")
        if name in os.environ
    }
    return {**inherited, "HOME": str(tmp_path)}


@pytest.mark.parametrize("line", RUN)
def test_a_line_runs_as_it_stands(
    line: str, environ: Mapping[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_spark([*shlex.split(line), "--explain"], environ) == 0
    assert "not supported" not in capsys.readouterr().err


def check(line: str, environ: Mapping[str, str]) -> None:
    """Check that a new line is accepted; JOB and paths of CMSSpark stand for what its reader has."""
    program, *words = shlex.split(line)
    words = [word.replace("JOB", "dbs_phedex") for word in words]
    if program == "cmsspark":
        name, *rest = words
        subcommand = command.get_command(click.Context(command), name)
        assert subcommand is not None
        subcommand.make_context(name, [*rest])
        if name == "sql":
            # Any folder is a store whose tables have no rows.
            Path("store/any").mkdir(parents=True, exist_ok=True)
            assert (
                CliRunner()
                .invoke(subcommand, [rest[0], "--fout", "store"], catch_exceptions=False)
                .exit_code
                == 0
            )
    elif not words[0].startswith("/path/to/CMSSpark/"):
        # A range is one run for each day.
        words = [word.partition("..")[0] for word in words]
        assert run_spark([*words, "--explain"], environ) == 0


@pytest.mark.parametrize("line", ANSWERED)
def test_a_line_is_answered_once_with_lines_that_run(
    line: str, environ: Mapping[str, str]
) -> None:
    with pytest.raises(UsageError) as error:
        run_spark(shlex.split(line), environ)
    yesterday = (dates.today() - timedelta(days=1)).isoformat()
    lines = [text.strip() for text in (error.value.next_step or "").splitlines()]
    assert lines == ANSWERED[line].replace("YESTERDAY", yesterday).splitlines()
    for new_line in lines:
        check(new_line, environ)


def test_what_an_old_line_said_and_is_not_needed_is_named(environ: Mapping[str, str]) -> None:
    with pytest.raises(UsageError) as error:
        run_spark(
            shlex.split(
                next(line for line in ANSWERED if line.startswith("rucio_datasets_stats"))
            ),
            environ,
        )
    for option in ("--amq", "publish the stored table"):
        assert option in str(error.value.found)


def test_a_start_behind_the_end_is_refused(environ: Mapping[str, str]) -> None:
    for line in (
        "dbs_hdfs_crab.py --start_date 2026-02-01 --end_date 2026-02-01",
        "data_collection.py --start_date 2026-02-02 --end_date 2026-02-01",
    ):
        with pytest.raises(UsageError) as error:
            run_spark(line.split(), environ)
        assert "swap the days" in error.value.text()


def test_a_script_of_cmsspark_gets_what_it_imports_from_its_checkout(tmp_path: Path) -> None:
    library = tmp_path / "CMSSpark/src/python/CMSSpark"
    library.mkdir(parents=True)
    (library / "__init__.py").touch()
    script = library / "reports" / "own.py"
    script.parent.mkdir()
    script.write_text("import os\nfrom CMSSpark.spark_utils import get_spark_session\n")
    assert script_lines.python_path(script, {"PYTHONPATH": "/x"}) == f"{library.parent}:/x"
    assert script_lines.python_path(script, {"PYTHONPATH": str(library.parent)}) is None
    other = tmp_path / "CMSSpark" / "docker" / "job.py"
    other.parent.mkdir()
    other.write_text("import CMSSpark\n")
    assert script_lines.python_path(other, {}) == str(library.parent)
    other.write_text("print('CMSSpark')\n")
    assert script_lines.python_path(other, {}) is None


def test_a_script_of_cmsspark_without_its_checkout_says_what_lacks(tmp_path: Path) -> None:
    script = tmp_path / "alone.py"
    script.write_text("from CMSSpark import conf\n")
    with pytest.raises(
        UsageError, match=r"alone.py imports CMSSpark, which is not there"
    ) as error:
        script_lines.python_path(script, {})
    assert "PYTHONPATH=/path/to/CMSSpark/src/python run_spark" in str(error.value.next_step)
