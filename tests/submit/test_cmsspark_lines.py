"""Command lines of CMSSpark's README, scripts and crontabs, as they stand there: what
they do here, or what is told.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from datetime import date, timedelta
from pathlib import Path

import polars as pl
import pytest

from cmsspark.base import dates
from cmsspark.base.errors import UsageError
from cmsspark.cli.options import with_sources
from cmsspark.run.request import NamePatterns
from cmsspark.settings.settings import load_settings
from cmsspark.sources.layout import Layout
from cmsspark.store.own_jobs import JOBS, find_job
from cmsspark.submit import script_lines
from cmsspark.submit.arguments import Request
from cmsspark.submit.cmsspark_lines import Translation, translate
from cmsspark.submit.days import parse_days
from cmsspark.submit.wrapper import job_options, load_signature, run_spark

DOCS = Path(__file__).resolve().parents[2] / "docs"
#: The variables of the scripts that the lines are from.
VARIABLES = {
    "apatterns": "*BUNNIES*,*Commissioning*,*RelVal*",
    "hdir": "hdfs:///cms/users/vk/datasets",
    "output_dir": "hdfs:///cms/aggregation",
    "output_dir_with_date": "hdfs:///cms/aggregation/2017/09/25",
    "aaa_date": "20170925",
    "stomp_path": "/data/cms/static/stomp.py-4.1.15-py2.7.egg",
    "credentials": "/data/cms/amq_broker.json",
    "odir": "hdfs:///cms",
    "date": "20180205",
    "d": "20180124",
    "wdir": "/data/cms/CMSSpark",
    "fout": "hdfs:///cms/users/vk/datasets",
}
#: (line, today's words of the job after its name, the Spark master). The words do not
#: hold options of the wrapper.
RUN = [
    (
        "run_spark dbs_phedex.py --fout=$hdir --antipatterns=$apatterns --yarn --verbose",
        [
            "--fout=hdfs:///cms/users/vk/datasets",
            "--antipatterns=*BUNNIES*,*Commissioning*,*RelVal*",
            "--verbose",
            "--date",
            "YESTERDAY",
        ],
    ),
    (
        "run_spark dbs_cmssw.py --verbose --yarn --fout=hdfs:///cms/users/vk/cmssw --date=20170411",
        ["--verbose", "--fout=hdfs:///cms/users/vk/cmssw", "--date=20170411"],
    ),
    (
        "run_spark dbs_aaa.py --verbose --yarn --fout=hdfs:///cms/users/vk/aaa --date=20170411",
        ["--verbose", "--fout=hdfs:///cms/users/vk/aaa", "--date=20170411"],
    ),
    (
        "run_spark dbs_eos.py --verbose --yarn --fout=hdfs:///cms/users/vk/eos --date=20170411",
        ["--verbose", "--fout=hdfs:///cms/users/vk/eos", "--date=20170411"],
    ),
    (
        'run_spark data_aggregation.py --yarn --date "$aaa_date" --fout "$output_dir"',
        ["--date", "20170925", "--fout", "hdfs:///cms/aggregation"],
    ),
    (
        "run_spark dbs_events.py --yarn --fout=$hdir",
        ["--fout=hdfs:///cms/users/vk/datasets", "--date", "YESTERDAY"],
    ),
    (
        "$wdir/bin/run_spark phedex.py --yarn --fout=$odir --date=$date",
        ["--fout=hdfs:///cms", "--date=20180205"],
    ),
    (
        "run_spark dbs_phedex.py --hdir=hdfs:///project/awg/cms --fout=$fout --antipatterns=*BUNNIES* --tier=AOD,RAW "
        "--yarn --no-log4j",
        [
            "--fout=hdfs:///cms/users/vk/datasets",
            "--antipatterns=*BUNNIES*",
            "--patterns",
            "/*/*/AOD,/*/*/RAW",
            "--date",
            "YESTERDAY",
        ],
    ),
    (
        "run_spark data_aggregation.py --inst=global --cvmfs --yarn --verbose --date=20170925 --fout=$output_dir "
        "--aaa_hdir=hdfs:///project/monitoring/archive/xrootd/enr/gled",
        [
            "--verbose",
            "--date=20170925",
            "--fout=hdfs:///cms/aggregation",
            "--source",
            "aaa.enr=hdfs:///project/monitoring/archive/xrootd/enr/gled",
        ],
    ),
]
#: (line, texts of the error). A line that cannot run says so at once, with the line to type.
TOLD = [
    (
        "run_spark cern_monit.py --hdir=$hdir --stomp=static/stomp.py-4.1.15-py2.7.egg --amq=amq_broker.json",
        (
            "names no day",
            "run_spark cern_monit.py --fout hdfs:///cms/users/vk/datasets --amq=amq_broker.json --date",
        ),
    ),
    (
        "run_spark dbs_events.py --yarn --fout=$hdir --date=20180205 --era=Run2017A --release=CMSSW_9 "
        "--amq=$credentials",
        (
            "3 options",
            "acquisition_era",
            "release_versions",
            "run_spark dbs_events.py --yarn --fout=hdfs:///cms/users/vk/datasets --date=20180205",
            "run_spark cern_monit --job dbs_events --date 20180205 --fout hdfs:///cms/users/vk/datasets "
            "--amq /data/cms/amq_broker.json",
        ),
    ),
    (
        "run_spark data_aggregation.py --inst=phys99 --date=20170925 --fout=$fout",
        ("global, phys01, phys02, phys03",),
    ),
]


def words_of(line: str) -> list[str]:
    """The words of a line as a shell gives them, without the program."""
    return shlex.split(re.sub(r"\$(\w+)", lambda match: VARIABLES[match[1]], line))[1:]


def translated(line: str, *, has_root: bool = False) -> Translation:
    words = words_of(line)
    return translate(words, find_job(words[0]), load_signature(words[0]) or {}, lambda: has_root)


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, str]:
    monkeypatch.chdir(tmp_path)
    kept = {
        name: os.environ[name]
        for name in ("PATH", "JAVA_HOME", "SPARK_HOME")
        if name in os.environ
    }
    return {**kept, "HOME": str(tmp_path)}


@pytest.mark.parametrize(("line", "job_words"), RUN, ids=[words_of(line)[0] for line, _ in RUN])
def test_an_old_line_runs_the_job_of_today(
    line: str, job_words: list[str], environ: Mapping[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    yesterday = (dates.today() - timedelta(days=1)).isoformat()
    assert run_spark([*words_of(line), "--dry-run"], environ) == 0
    command = shlex.split(capsys.readouterr().out.replace("\\\n", " "))
    launcher = next(
        position for position, word in enumerate(command) if word.endswith("launch.py")
    )
    assert command[launcher + 1 :] == [
        find_job(words_of(line)[0]).name,
        *(yesterday if word == "YESTERDAY" else word for word in job_words),
    ]
    assert command[command.index("--master") + 1] == "yarn"


@pytest.mark.parametrize(("line", "texts"), TOLD, ids=[line.split()[1] for line, _ in TOLD])
def test_what_has_no_counterpart_is_refused_at_once_with_the_line_to_type(
    line: str, texts: tuple[str, ...], environ: Mapping[str, str]
) -> None:
    with pytest.raises(UsageError) as error:
        run_spark(words_of(line), environ)
    for text in texts:
        assert text in error.value.text()


def test_cern_monit_of_run_aggregation_publishes_the_stored_day() -> None:
    line = 'run_spark cern_monit.py --hdir "$output_dir_with_date" --stomp="$stomp_path" --amq "$credentials" '
    made = translated(line + "--verbose --aggregation_schema")
    assert made.argv == [
        *("cern_monit.py", "--fout", "hdfs:///cms/aggregation", "--date", "20170925"),
        *("--amq", "/data/cms/amq_broker.json", "--verbose"),
    ]
    assert len(made.notes) == 2, "for --stomp and --aggregation_schema"


def test_the_new_line_that_is_suggested_runs() -> None:
    with pytest.raises(UsageError) as error:
        translated(TOLD[1][0])
    first, second = (error.value.next_step or "").splitlines()
    for line in (first, second.strip()):
        assert translated(line).argv == shlex.split(line)[1:]


@pytest.mark.parametrize(
    ("options", "folders"),
    [
        ("--inst=phys03", {"dbs": "hdfs:///project/awg/cms/dbs/PROD_PHYS03"}),
        ("--inst GLOBAL", {"dbs": "hdfs:///project/awg/cms/dbs/PROD_GLOBAL"}),
        (
            "--hdir=hdfs:///mirror",
            {
                "dbs": "hdfs:///mirror/dbs/PROD_GLOBAL",
                "phedex": "hdfs:///mirror/phedex/block-replicas-snapshots/csv",
            },
        ),
        ("--hdir=/mirror --inst=phys01", {"dbs": "hdfs:///mirror/dbs/PROD_PHYS01"}),
        (
            "--aaa_hdir=/a/raw/gled --eos_hdir=/e --jm_hdir=/j --cmssw_hdir=/c/avro-snappy",
            {"aaa": "hdfs:///project/monitoring/archive/xrootd/enr/gled", "crab": "hdfs:///j"},
        ),
    ],
)
def test_folders_of_an_old_line_are_read(options: str, folders: dict[str, str]) -> None:
    made = translated(f"run_spark data_aggregation.py --date=20170925 --fout=x {options}")
    sources = job_options(find_job("data_aggregation"), made.argv[1:])["source"]
    layout = Layout.load(
        with_sources(load_settings(environ={"HOME": "/nowhere"}), sources).sources, None
    )
    assert {source: layout.locations[source][0].folder for source in folders} == folders


def test_the_folder_of_a_stream_says_which_of_its_formats_it_is() -> None:
    made = translated(
        "run_spark dbs_aaa --date=20170925 --fout=x --aaa_hdir=/a/raw/gled --cmssw_hdir=/c/avro-snappy"
    )
    assert made.argv[-4:] == [
        "--source",
        "aaa.raw=hdfs:///a/raw/gled",
        "--source",
        "cmssw.avro=hdfs:///c/avro-snappy",
    ]


def test_a_path_without_a_scheme_is_of_hdfs_unless_a_root_or_this_host_has_it(
    tmp_path: Path,
) -> None:
    line = "run_spark dbs_aaa --date=20170925 --fout=x --aaa_hdir="
    assert translated(f"{line}/a").argv[-1] == "aaa.enr=hdfs:///a"
    assert translated(f"{line}/a", has_root=True).argv[-1] == "aaa.enr=/a"
    assert translated(f"{line}{tmp_path}").argv[-1] == f"aaa.enr={tmp_path}"


def test_lines_of_today_stay_as_they_are() -> None:
    for line in (
        "run_spark data_aggregation --date 2026-01-15 --fout /x --root /y --conf spark.a=--inst",
        "run_spark dbs_phedex --patterns --hdir --date 20260115",
        "run_spark period --week 2026-W03 --fout x",
        "run_spark cern_monit --job dbs_events --week last --amq x",
        "run_spark dbs_aaa --date 20260115 -- --inst phys03",
        # click refuses it, and suggests --date: no other day is named before.
        "run_spark dbs_aaa --dat 20260115 --fout x",
    ):
        made = translated(line)
        assert (made.argv, made.notes) == (shlex.split(line)[1:], [])


@pytest.mark.parametrize("option", ["--inst", "--hdir", "--aaa_hdir"])
def test_an_old_option_without_its_value_is_a_usage_error(option: str) -> None:
    with pytest.raises(UsageError, match=f"{option} needs a value"):
        translated(f"run_spark dbs_aaa --date 20170925 {option}")


@pytest.mark.parametrize(
    "text",
    [
        "20260114-20260116",
        "20260114..2026-01-16",
        "2026-01-14-2026-01-16",
        "20260114,20260115,20260116",
    ],
)
@pytest.mark.parametrize("equals", [True, False])
def test_a_range_of_days_is_one_run_a_day(text: str, equals: bool) -> None:
    words = [f"--date={text}"] if equals else ["--date", text]
    request = Request("dbs_aaa", argv=["dbs_aaa.py", *words, "--fout", "x"])
    assert parse_days(request, JOBS["dbs_aaa"]) == [date(2026, 1, day) for day in (14, 15, 16)]
    one_day = Request("dbs_aaa", argv=["dbs_aaa.py", "--date", "2026-01-14"])
    assert parse_days(one_day, JOBS["dbs_aaa"]) is None
    assert parse_days(request, None) is None, "a script of one's own has its own --date"


def test_days_after_one_that_failed_run_too(
    environ: Mapping[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    missing = [
        "dbs_aaa.py",
        "--date=20260114-20260115",
        "--root",
        environ["HOME"],
        "--fout",
        environ["HOME"] + "/out",
    ]
    environ = {**environ, "PYTHONPATH": str(DOCS.parent)}
    assert run_spark(missing, environ) == 66
    said = capfd.readouterr().err
    assert "day 2 of 2: 2026-01-15" in said
    assert "2 of 2 days failed: 2026-01-14 (66), 2026-01-15 (66)" in said


def test_patterns_choose_datasets_by_their_whole_names() -> None:
    names = ["/ZMM/Run1/AOD", "/ZMM/RelVal_1/AOD", "/a.b+c/x/RAW", "/axb+c/x/RAW", None]
    rows = pl.DataFrame({"dataset_name": names})
    for patterns, antipatterns, left in (
        (None, "*RelVal*", [names[0], *names[2:]]),
        ("/*/*/AOD", None, names[:2]),
        ("/*/*/AOD,/?.b+c/*", "*RelVal*", [names[0], names[2]]),
        ("ZMM", None, []),
        ("/*/*/AOD", "/*/*/*", []),
    ):
        chosen = NamePatterns.from_options(patterns, antipatterns)
        assert chosen is not None
        assert chosen.select(rows)["dataset_name"].to_list() == left
    assert NamePatterns.from_options("", " , ") is None


#: What the crontabs and deployments of CMSMonitoring, CRABServer and CMSRucio start.
SCHEDULED = {
    "phedex-blk-replicas-snapshot.sh",
    "phedex-file-catalog.sh",
    "rucio_replicas.sh",
    "rucio_table_dumps.sh",
    "rucio_ds_daily_stats.sh",
    "cms-dbs3-datasets.sh",
    "cms-dbs3-blocks.sh",
    "cms-dbs3-files.sh",
    "cms-dbs3-full-copy.sh",
    "cms-dbs3-full-copy-PHYS01.sh",
    "cms-dbs3-full-copy-PHYS02.sh",
    "cms-dbs3-full-copy-PHYS03.sh",
    "cms-aso.sh",
    "cms-tasks.sh",
    "monit",
    "cron4rucio_quotas.sh",
    "cron4cpueff_goweb.sh",
    "cron4rucio_spark2hdfs.sh",
    "cron4rucio_hdfs2mongo.sh",
    "cron4eos_usage.sh",
    "cron4openstack_accounting.sh",
    "cron4grafana_daily_backup.sh",
    "cron4grafana_production_copy.sh",
    "cronPopularityPlot.sh",
    "spider_cms_history.sh",
    "spider_cms_queues.sh",
    "hdfs_cleaner.sh",
    "crab_data_daily.py",
    "crab_tape_recall_updated_rules_daily.py",
    "crab_condor_daily.py",
    "crab_tape_recall_rules_history_daily.py",
    "GenerateMONIT.py",
    "ReportRecallQuota.py",
    "aso_metrics_ora.py",
    "rucio_account_usage.py",
    "rucio_account_usage_locks.py",
    "rucio_activity_account_usage.py",
    "rucio_activity_usage.py",
    "rucio_errors_volume.py",
    "rucio_local_usage.py",
    "rucio_locks_count_volume.py",
    "rucio_no_access.py",
    "rucio_rules_count_volume.py",
    "rucio_subscriptions.py",
    "access_daily_rollup.py",
    "residency_daily_rollup.py",
    "run_rucio_summary.sh",
    "run_wf_dashboard.sh",
}


def test_every_job_and_script_of_cmsspark_is_on_the_migration_page() -> None:
    text = (DOCS / "migration.md").read_text(encoding="utf-8")
    text, _, elsewhere = text.partition("## Scheduled jobs of other repositories")
    rows = [
        (name, here)
        for names, here in re.findall(
            r"^\| ((?:`\w+\.py`(?:, )?)+) \| (.*?) \|", text, re.MULTILINE
        )
        for name in re.findall(r"`(\w+)\.py`", names)
    ]
    assert script_lines.NO_SUCCESSOR | set(script_lines.SUCCESSORS) <= {name for name, _ in rows}
    for name, here in rows:
        if name in script_lines.NO_SUCCESSOR:
            assert here == "nothing", name
            continue
        job, _ = script_lines.SUCCESSORS.get(name) or (find_job(name).name, "")
        assert f"`{job}`" in here, name
    rows = re.findall(
        r"^\| (`.*?) \| (.*?) \| (.*?) \|$", elsewhere.partition("\n## ")[0], re.MULTILINE
    )
    assert len(rows) > 30
    assert all((here == "outside") != ("`" in here) for _, here, _ in rows)
    named = set(re.findall(r"`([\w./-]+)", " ".join(job for job, _, _ in rows)))
    assert named >= SCHEDULED, SCHEDULED - named
