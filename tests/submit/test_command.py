"""The command line of every profile and mode, word for word, against golden files.

``CMSSPARK_UPDATE_GOLDEN=1 pytest tests/submit/test_command.py`` writes them anew; read
the difference then.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest
from msgspec.structs import replace

from cmsspark.base.errors import UsageError
from tests.submit.hosts import HOST, SETTINGS, command

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "submit"
DAY = ("--date", "20260115", "--fout", "hdfs:///out put")

CASES: dict[str, tuple[str, ...]] = {
    "local": ("data_aggregation.py", *DAY),
    "local-own-script": ("./my job.py", "--title", 'it\'s "quoted"', "--", "--yarn", ""),
    "local-avro": ("./own.py", "--avro"),
    "local-many": (
        "dbs_aaa",
        "--local",
        "--conf",
        "spark.x=a b",
        "--files",
        "/f 1,/f2",
        "--py-files",
        "/m.py",
        *DAY,
    ),
    "yarn-client": ("dbs_aaa.py", "--yarn", *DAY),
    "yarn-cluster": (
        "dbs_aaa.py",
        "--yarn",
        "--deploy-mode",
        "cluster",
        "--settings",
        "/s.yaml",
        *DAY,
    ),
    "yarn-environment": ("dbs_aaa", "--yarn", "--env", "/env.tgz", "--queue", "cms"),
    "yarn-kerberos": ("dbs_aaa", "--yarn", "--keytab", "/k", "--principal", "p"),
    "yarn-own-script": ("./own.py", "--yarn", "--avro", "--py-files", "/lib.zip", "--verbose"),
    "k8s-cluster": ("dbs_eos", "--k8s", "--master", "k8s://https://api:6443", *DAY),
    "k8s-client": (
        "dbs_eos",
        "--k8s",
        "--master",
        "k8s://https://api:6443",
        "--deploy-mode",
        "client",
        *DAY,
    ),
    "k8s-image": (
        "dbs_eos",
        "--k8s",
        "--master",
        "k8s://https://api:6443",
        "--conf",
        "spark.kubernetes.container.image=registry/cmsspark:1",
        "--conf",
        "spark.kubernetes.file.upload.path=hdfs://nn/user/me/upload",
        "--no-wait",
        *DAY,
    ),
    "yarn-two-namenodes": (
        "dbs_aaa",
        "--yarn",
        "--keytab",
        "/k",
        "--principal",
        "p",
        "--conf",
        "spark.kerberos.access.hadoopFileSystems=hdfs://nn,hdfs://other",
        "--start-within",
        "600",
    ),
    "yarn-cluster-uncompiled": ("dbs_aaa.py", "--yarn", "--deploy-mode", "cluster", *DAY),
    "k8s-cluster-uncompiled": ("dbs_eos", "--k8s", "--master", "k8s://https://api:6443", *DAY),
    "python": ("cern_monit.py", "--date", "20260115"),
    "python-on-yarn": ("cern_monit", "--date", "20260115", "--yarn"),
}


@pytest.mark.parametrize("job", ["period", "popularity_features", "xcache"])
def test_a_job_that_spreads_nothing_says_so_and_runs_here_unless_it_is_sent_away(job: str) -> None:
    here = command(job, *DAY, "--yarn")
    assert here.mode == "python" and "no work to spread" in here.notes[0]
    assert command(job, *DAY).notes == ()
    assert command(job, *DAY, "--yarn", "--deploy-mode", "cluster").mode == "cluster"
    keytab = ("--principal", "me@CERN.CH", "--keytab", "/me.keytab")
    assert command(job, *DAY, "--yarn", *keytab).mode == "client"


@pytest.mark.smoke
@pytest.mark.parametrize("name", CASES)
def test_the_command_line_is_the_golden_one(name: str) -> None:
    settings = replace(SETTINGS, origin="/s.yaml") if "/s.yaml" in CASES[name] else SETTINGS
    environ = {"CMSSPARK_COMPILED": "0"} if name.endswith("-uncompiled") else {}
    text = command(*CASES[name], settings=settings, environ=environ).shell() + "\n"
    file = GOLDEN / f"{name}.txt"
    if os.environ.get("CMSSPARK_UPDATE_GOLDEN"):
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", CASES)
def test_a_shell_reads_the_printed_command_as_the_same_words(name: str) -> None:
    built = command(*CASES[name])
    words = [word for word in shlex.split(built.shell().replace("\\\n", " "))]
    assert words == [*(f"{key}={value}" for key, value in built.env.items()), *built.argv]


def test_a_job_without_spark_runs_in_plain_python_unless_a_cluster_is_named() -> None:
    assert command("cern_monit").mode == "python"
    assert command("cern_monit", "--local").mode == "python"
    assert command("cern_monit", "--yarn").mode == "client"


def test_the_master_chooses_the_profile_where_none_is_named() -> None:
    assert command("dbs_aaa", "--master", "yarn").profile == "yarn"
    assert command("dbs_aaa", "--master", "local[2]").profile == "local"
    assert command("dbs_aaa", "--master", "spark://host:7077").profile == "cluster"
    assert command("dbs_aaa", settings=replace(SETTINGS, profile="yarn")).profile == "yarn"
    assert (
        command("dbs_aaa", "--local", settings=replace(SETTINGS, profile="yarn")).profile
        == "local"
    )


@pytest.mark.parametrize(
    "words",
    [
        ("dbs_aaa", "--yarn", "--k8s"),
        ("dbs_aaa", "--deploy-mode", "both"),
        ("dbs_aaa", "--deploy-mode", "cluster"),
        ("dbs_aaa", "--k8s"),
    ],
)
def test_what_does_not_go_together_is_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError):
        command(*words)


def test_in_cluster_mode_settings_travel_as_a_file_and_not_as_a_path_of_this_host() -> None:
    settings = replace(SETTINGS, origin="/home/me/s.yaml")
    words = (
        "dbs_aaa",
        "--yarn",
        "--deploy-mode",
        "cluster",
        "--settings",
        "/home/me/s.yaml",
        "--date",
        "20260115",
    )
    built = command(*words, settings=settings, environ={"CMSSPARK_ROOT": "hdfs://nn"})
    assert built.options.get("spark.files") == "/home/me/s.yaml,/state/pseudonym.key"
    assert built.options.get("spark.yarn.appMasterEnv.CMSSPARK_SETTINGS") == "s.yaml"
    assert built.options.get("spark.yarn.appMasterEnv.CMSSPARK_STATE_DIR") == "."
    assert built.argv[-3:] == ["dbs_aaa", "--date", "20260115"]
    assert built.options.get("spark.yarn.appMasterEnv.CMSSPARK_ROOT") == "hdfs://nn"


def test_executors_run_without_compiled_code_where_the_driver_does() -> None:
    name, environ = "spark.executorEnv.CMSSPARK_COMPILED", {"CMSSPARK_COMPILED": "0"}
    assert command("dbs_aaa", "--yarn", environ=environ).options.get(name) == "0"
    assert (
        command("dbs_aaa", "--yarn", "--conf", f"{name}=1", environ=environ).options.get(name)
        == "1"
    )
    assert command("dbs_aaa", "--yarn").options.get(name) is None
    assert command("dbs_aaa", environ=environ).options.get(name) is None, (
        "they are this process's own"
    )


def test_a_users_java_options_come_after_ours() -> None:
    built = command("dbs_aaa", "--conf", "spark.driver.defaultJavaOptions=-Xss4m")
    assert (built.options.get("spark.driver.defaultJavaOptions") or "").endswith(
        "log4j2.properties -Xss4m"
    )


def test_spark_avro_comes_from_sparks_jars_the_settings_folder_or_maven(tmp_path: Path) -> None:
    name = "spark-avro_2.13-4.3.0.jar"
    (tmp_path / name).touch()
    by_folder = command("./own.py", "--avro", settings=replace(SETTINGS, jars=str(tmp_path)))
    assert by_folder.options.get("spark.jars") == str(tmp_path / name)
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / name).touch()
    host = replace(HOST, spark=replace(HOST.spark, home=tmp_path))
    by_spark = command("./own.py", "--avro", host=host)
    assert (
        by_spark.options.get("spark.jars") is None
        and by_spark.options.get("spark.jars.packages") is None
    )
    older = replace(HOST, spark=replace(HOST.spark, version="3.5.7", scala="2.12"))
    by_maven = command("./own.py", "--avro", host=older)
    assert by_maven.options.get("spark.jars.packages") == "org.apache.spark:spark-avro_2.12:3.5.7"


def test_our_own_jobs_need_no_spark_avro() -> None:
    built = command("dbs_crab", "--avro")
    assert built.options.get("spark.jars.packages") is None
    assert "without it" in built.notes[0]


def test_the_progress_bar_is_for_terminals() -> None:
    name = "spark.ui.showConsoleProgress"
    assert command("dbs_aaa").options.get(name) == "false"
    # A built-in job shows its own progress.
    assert command("dbs_aaa", host=replace(HOST, is_terminal=True)).options.get(name) == "false"
    assert command("./own.py", host=replace(HOST, is_terminal=True)).options.get(name) == "true"
