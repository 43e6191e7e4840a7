"""What users see of ``run_spark``: help, lists and mistakes at once, without a JVM."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from cmsspark.base.compiled import MISSING, OFF, STALE
from cmsspark.base.errors import UsageError
from cmsspark.settings.settings import load_settings
from cmsspark.store.own_jobs import JOBS
from cmsspark.submit.arguments import _BY_NAME, SHARED
from cmsspark.submit.cluster_checks import check_root
from cmsspark.submit.explanation import uncompiled
from cmsspark.submit.wrapper import built_in, load_signature
from tests.commands import LIGHT_JVM, RUN_SPARK, run_command

REPO = Path(__file__).resolve().parent.parent.parent
WRAPPER = "from cmsspark.submit import main; main()"


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """An environment with a home of its own, in which ``run_spark`` of this checkout runs."""
    kept = {
        name: os.environ[name]
        for name in ("PATH", "JAVA_HOME", "LANG", "SPARK_HOME")
        if name in os.environ
    }
    return {**kept, "HOME": str(tmp_path), "PYTHONPATH": str(REPO)}


def run_spark(*words: str, env: Mapping[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
    return run_command(RUN_SPARK, *words, environ=env, folder=cwd, timeout=600)


def test_list_names_every_job(home: dict[str, str], tmp_path: Path) -> None:
    run = run_spark("--list", env=home, cwd=tmp_path)
    assert run.returncode == 0
    assert all(f"  {name} " in run.stdout for name in JOBS.built_in) and "dbs_jm" in run.stdout


@pytest.mark.smoke
@pytest.mark.parametrize("name", JOBS.built_in)
def test_help_of_a_job_shows_its_options_and_the_wrappers(
    name: str, home: dict[str, str], tmp_path: Path
) -> None:
    run = run_spark(f"{name}.py", "--help", env=home, cwd=tmp_path)
    assert (run.returncode, run.stderr) == (0, "")
    assert f"Usage: run_spark {name}" in run.stdout and "--yarn" in run.stdout


def test_help_comes_at_once(home: dict[str, str], tmp_path: Path) -> None:
    # A tenth of a second, if nothing that takes its time to import is imported;
    # docs/performance.md has the figure.
    code = (
        "import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr)); "
        + WRAPPER
    )
    words = [sys.executable, "-c", code, "data_aggregation", "--help"]
    run = subprocess.run(words, env=home, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "--date" in run.stdout
    slow = {"numpy", "pandas", "pyarrow", "polars", "pyspark", "fastavro", "jsonschema", "stomp"}
    assert not slow & set(run.stderr.split())


def test_help_without_a_job_is_the_wrappers(home: dict[str, str], tmp_path: Path) -> None:
    run = run_spark("--help", env=home, cwd=tmp_path)
    assert (
        run.returncode == 0 and "--deploy-mode" in run.stdout and "data_aggregation" in run.stdout
    )


def test_help_of_ones_own_script_does_not_run_it(home: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("raise SystemExit('it ran')\n")
    run = run_spark("own.py", "--help", env=home, cwd=tmp_path)
    assert run.returncode == 0 and "python own.py --help" in run.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "name a job"),
        (("nothing",), "no job 'nothing', and no file of that name here"),
        (("nothing",), "run_spark --list names the jobs"),
        (("../jobs/dbs_aaa",), "no such file"),
        (("dbs_aaa; rm -rf .",), "there is no job"),
        (("dbs_aaa", "--date", "2026-02-30"), "not a calendar day"),
        (("dbs_aaa", "--date", "tomorrow"), "20260115 or 2026-01-15"),
        (("dbs_aaa", "--nope"), "--nope"),
        (("dbs_phedex.py", "--era=Run2017A", "--date", "20260115"), "column acquisition_era"),
        (("data_aggregaton", "--date", "20260115"), "did you mean data_aggregation?"),
        (("--engin=spark", "dbs_aaa"), "did you mean --engine?"),
        (("--nope", "dbs_aaa"), "come after its name"),
        (("dbs_aaa", "--date", "20260115", "--conf", "x"), "KEY=VALUE"),
        (("dbs_aaa", "--date", "20260115", "--profile", "mars"), "local, yarn"),
    ],
)
def test_a_mistake_is_usage_and_says_what_would_be_right(
    words: tuple[str, ...], said: str, home: dict[str, str], tmp_path: Path
) -> None:
    run = run_spark(*words, env=home, cwd=tmp_path)
    assert run.returncode == 2
    assert said in run.stderr and "Traceback" not in run.stderr and run.stdout == ""


def test_settings_that_are_wrong_are_78_with_file_and_line(
    home: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "cmsspark.yaml").write_text("store: /s\nstroe: /s\n")
    run = run_spark("dbs_aaa", "--date", "20260115", "--dry-run", env=home, cwd=tmp_path)
    assert run.returncode == 78 and "cmsspark.yaml, line 2" in run.stderr


def test_a_wrong_java_is_78_before_anything_starts(home: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("")
    run = run_spark("own.py", env={**home, "JAVA_HOME": str(tmp_path)}, cwd=tmp_path)
    assert run.returncode == 78 and f"JAVA_HOME={tmp_path}" in run.stderr


def test_yarn_without_a_cluster_is_78(home: dict[str, str], tmp_path: Path) -> None:
    run = run_spark("dbs_aaa", "--date", "20260115", "--yarn", env=home, cwd=tmp_path)
    assert run.returncode == 78 and "HADOOP_CONF_DIR" in run.stderr


def test_a_configuration_that_is_not_there_is_78_before_anything_is_submitted(
    home: dict[str, str], tmp_path: Path
) -> None:
    env = {**home, "HADOOP_CONF_DIR": str(tmp_path / "none")}
    words = ("dbs_aaa", "--date", "20260115", "--yarn", "--fout", str(tmp_path / "store"))
    run = run_spark(*words, env=env, cwd=tmp_path)
    assert run.returncode == 78 and f"{tmp_path}/none" in run.stderr


def test_dry_run_starts_nothing_and_prints_the_command(
    home: dict[str, str], tmp_path: Path
) -> None:
    run = run_spark("dbs_aaa", "--date", "20260115", "--yarn", "--dry-run", env=home, cwd=tmp_path)
    assert (
        run.returncode == 0 and "bin/spark-submit" in run.stdout and "--master yarn" in run.stdout
    )


def test_explain_shows_value_origin_and_reason(home: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "cmsspark.yaml").write_text("spark:\n  spark.executor.memory: 10g\n")
    words = (
        "dbs_aaa",
        "--date",
        "20260115",
        "--yarn",
        "--conf",
        "spark.executor.cores=2",
        "--explain",
    )
    run = run_spark(*words, env=home, cwd=tmp_path)
    assert "spark.executor.memory = 10g" in run.stdout
    assert (
        f"from {tmp_path}/cmsspark.yaml, line 2; over 4g from etc/spark/cluster.yaml" in run.stdout
    )
    assert "from command line; over 4 from etc/spark/cluster.yaml" in run.stdout
    assert "why  a day is a UTC day" in run.stdout


def test_explain_shows_that_compiled_code_is_switched_off(
    home: dict[str, str], tmp_path: Path
) -> None:
    words = ("dbs_aaa", "--date", "20260115", "--explain")
    off = run_spark(*words, env={**home, "CMSSPARK_COMPILED": "0"}, cwd=tmp_path)
    assert (
        off.stdout.startswith("Logs are read without compiled code")
        and "CMSSPARK_COMPILED=0" in off.stdout
    )
    assert "pip install" not in off.stdout


def test_why_there_is_no_compiled_code_and_what_to_do_is_reported_of_jobs_that_read_logs_or_dumps(
    tmp_path: Path,
) -> None:
    reads, job = JOBS["dbs_aaa"], JOBS["period"]
    assert uncompiled(JOBS["dbs_events"], tmp_path, MISSING)[0].startswith(
        "Dumps are read without compiled code"
    )
    assert (
        uncompiled(reads, tmp_path, "")
        == uncompiled(job, tmp_path, MISSING)
        == uncompiled(None, tmp_path, OFF)
        == []
    )
    missing, stale = ("\n".join(uncompiled(reads, tmp_path, why)) for why in (MISSING, STALE))
    assert "none that this Python loads" in missing and "other sources" in stale
    assert all(
        "pip install --no-deps --force-reinstall --no-cache-dir ." in text
        for text in (missing, stale)
    )
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "hashed.pyx").touch()
    assert f"pip install --no-deps -e {tmp_path.parent}\n" in "\n".join(
        uncompiled(reads, tmp_path, STALE)
    )


def test_a_closed_pipe_is_no_error(home: dict[str, str], tmp_path: Path) -> None:
    line = f"{sys.executable} -c 'from cmsspark.submit import main; main()' --help | true; echo ${{PIPESTATUS[0]}}"
    run = subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, env=home, cwd=tmp_path, check=False
    )
    assert (run.stdout, run.stderr) == ("0\n", "")


def test_a_built_in_name_comes_before_a_file_and_a_path_is_always_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("dbs_aaa.py", "mine.py"):
        (tmp_path / name).touch()
    assert built_in("dbs_aaa.py") is JOBS["dbs_aaa"] and built_in("dbs_jm") is JOBS["dbs_crab"]
    assert built_in("./dbs_aaa.py") is None and built_in("mine.py") is None
    assert built_in("hdfs:///jobs/mine.py") is None
    with pytest.raises(UsageError):
        built_in("other.py")


@pytest.mark.parametrize("name", JOBS.built_in)
def test_no_job_takes_a_name_of_the_wrapper_but_those_that_both_hear(name: str) -> None:
    ours = set(_BY_NAME) - {*SHARED, "--help", "--dry-run"}
    assert not ours & set(load_signature(name) or {})


OWN = """
import os, sys
from pyspark.sql import SparkSession
import cmsspark
spark = SparkSession.builder.getOrCreate()
assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
assert spark.range(3).count() == 3
print("arguments", sys.argv[1:])
spark.stop()
sys.exit(65)
"""


@pytest.mark.smoke
def test_a_real_run_passes_arguments_through_and_ends_with_the_jobs_own_code(
    home: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "my job.py").write_text(OWN)
    words = ["a b", "it's", '"q"', "--x=$HOME", "", "--date"]
    run = run_spark(*LIGHT_JVM, "my job.py", "--name", "n", "--", *words, env=home, cwd=tmp_path)
    assert run.returncode == 65, run.stderr
    assert run.stdout == f"arguments {words}\n"
    assert run.stderr == ""


def test_a_real_built_in_job_prints_its_error_on_stderr_and_ends_with_its_own_code(
    home: dict[str, str], tmp_path: Path
) -> None:
    words = (
        "dbs_aaa",
        "--date",
        "20260115",
        "--root",
        str(tmp_path / "nothing"),
        "--fout",
        str(tmp_path / "out"),
    )
    run = run_spark(*words, env=home, cwd=tmp_path)
    assert run.returncode == 66, run.stderr
    assert run.stdout == "" and run.stderr.startswith("run_spark: ")


@pytest.mark.parametrize("mode", ["client", "cluster"])
def test_kubernetes_without_an_image_is_78_before_any_jvm(
    mode: str, home: dict[str, str], tmp_path: Path
) -> None:
    words = ("dbs_eos", "--k8s", "--master", "k8s://https://127.0.0.1:1", "--deploy-mode", mode)
    day = ("--date", "20260115", "--fout", str(tmp_path / "store"))
    run = run_spark(*words, *day, env=home, cwd=tmp_path)
    assert run.returncode == 78, run.stderr
    assert "--conf spark.kubernetes.container.image=" in run.stderr
    assert "Exception" not in run.stderr
    if mode == "cluster":
        conf = ("--conf", "spark.kubernetes.executor.container.image=x:1")
        run = run_spark(*words, *conf, *day, env=home, cwd=tmp_path)
        assert run.returncode == 78 and "no image for the driver" in run.stderr


def test_kubernetes_without_a_folder_to_upload_to_is_78(
    home: dict[str, str], tmp_path: Path
) -> None:
    words = ("dbs_eos", "--k8s", "--master", "k8s://https://127.0.0.1:1", "--date", "20260115")
    conf = ("--conf", "spark.kubernetes.container.image=x:1", "--fout", str(tmp_path / "store"))
    run = run_spark(*words, *conf, env=home, cwd=tmp_path)
    assert run.returncode == 78, run.stderr
    assert "--conf spark.kubernetes.file.upload.path=" in run.stderr
    assert "Exception" not in run.stderr


def test_kubernetes_that_does_not_answer_is_75_within_seconds(
    home: dict[str, str], tmp_path: Path
) -> None:
    words = ("dbs_eos", "--k8s", "--master", "k8s://https://127.0.0.1:1", "--date", "20260115")
    confs = ("container.image=x:1", f"file.upload.path=file://{tmp_path}")
    options = [word for conf in confs for word in ("--conf", f"spark.kubernetes.{conf}")]
    run = run_spark(*words, *options, "--fout", "hdfs:///x", env=home, cwd=tmp_path)
    assert run.returncode == 75, run.stderr
    assert run.stderr.startswith(
        "run_spark: the API server of Kubernetes does not answer\n  where: https://127.0.0.1:1"
    )
    assert "Exception" not in run.stderr


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(("words", "code"), [("--list", 0), ("dbs_eos --date nothing", 2)])
def test_a_closed_stream_changes_no_exit_code(
    closed: str, words: str, code: int, home: dict[str, str], tmp_path: Path
) -> None:
    line = f'"{sys.executable}" -c "{WRAPPER}" {words} {closed}'
    run = subprocess.run(
        line, shell=True, env=home, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert run.returncode == code
    assert "Traceback" not in run.stderr and "bug" not in run.stderr


def test_a_deleted_working_folder_and_few_descriptors_are_named(
    home: dict[str, str], tmp_path: Path
) -> None:
    day = "dbs_eos --date 20260101 --fout store --root root"
    run_it = f'"{sys.executable}" -c "{WRAPPER}" {day}'
    gone = f"mkdir gone && cd gone && rmdir ../gone && {run_it}"
    run = subprocess.run(
        gone, shell=True, env=home, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert run.returncode == 2
    assert "the working folder was deleted" in run.stderr
    few = f"ulimit -n 5; {run_it}"
    run = subprocess.run(
        few, shell=True, env=home, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert run.returncode == 77
    assert "ulimit -n" in run.stderr
    assert "bug" not in run.stderr


def test_without_java_and_without_a_root_the_error_is_about_the_root(tmp_path: Path) -> None:
    settings = load_settings(environ={"HOME": str(tmp_path)})
    options = {"root": None, "source": ()}
    with pytest.raises(UsageError, match="name the root of the inputs"):
        check_root(options, settings, JOBS["dbs_aaa"])
    check_root({**options, "root": "/mirror"}, settings, JOBS["dbs_aaa"])
    check_root({}, settings, JOBS["popularity_features"])
    check_root(options, settings, None)
