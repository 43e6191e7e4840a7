"""When ``run_spark`` has a day of logs counted without Spark, and when not."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from cmsspark.base.errors import UsageError
from cmsspark.run.inputs import INDEX_FILES_KEY
from cmsspark.store.own_jobs import find_job
from cmsspark.submit import cluster_checks, yarn
from cmsspark.submit.arguments import split
from cmsspark.submit.command import Command
from cmsspark.submit.wrapper import instead, job_options, load_signature, with_engine
from tests.run.places import Place, write_streams
from tests.submit.hosts import HOST, SETTINGS, command, requested

DAY = ("--date", "20260115")
HERE = replace(SETTINGS, root="/nothing/lies/here")


def engine_of(*words: str, settings: Mapping[str, object] | None = None) -> tuple[Command, str]:
    """The command that runs, and why Spark counts; inputs lie on this host's disks
    unless the words say else.
    """
    request = split(words, load_signature)
    given = replace(HERE, **(settings or {}))  # type: ignore[arg-type]
    assert request.job is not None
    job = find_job(request.job)
    options = job_options(job, request.arguments)
    return with_engine(command(*words, settings=given), request, job, options, given, HOST)


def mode_of(*words: str, **settings: object) -> str:
    return engine_of(*words, settings=settings)[0].mode


@pytest.mark.parametrize(
    "job", ["data_aggregation.py", "dbs_aaa", "dbs_eos", "dbs_cmssw", "dbs_jm"]
)
def test_a_day_of_logs_on_this_hosts_disks_needs_no_spark(job: str) -> None:
    assert mode_of(job, *DAY) == "python"
    assert (
        mode_of(
            job,
            *DAY,
            "--local",
            "--debug",
            "--fout",
            "/out",
            "--root=file:///in",
            "--engine",
            "auto",
        )
        == "python"
    )
    assert mode_of(job, *DAY, "--engine=processes") == "python"


@pytest.mark.parametrize("job", ["dbs_phedex", "site_tier_usage", "dbs_events", "phedex"])
def test_jobs_on_dumps_need_no_spark_here_either(job: str) -> None:
    assert mode_of(job, *DAY) == "python"
    assert mode_of(job, *DAY, "--engine=processes", "--fout", "/out") == "python"
    for words in (
        ("--engine", "spark"),
        ("--format", "csv"),
        ("--fout", "hdfs:///out"),
        ("--conf", "spark.a=1"),
    ):
        assert mode_of(job, *DAY, *words) == "client"
    with pytest.raises(UsageError, match="--engine processes cannot do that"):
        mode_of(job, *DAY, "--engine=processes", "--format=csv")


@pytest.mark.parametrize(
    "words",
    [
        ("--engine", "spark"),
        ("--yarn",),
        ("--master", "local[3]"),
        ("--conf", "spark.sql.shuffle.partitions=3"),
        ("--driver-memory", "2g"),
        ("--packages", "a:b:1"),
        ("--join", "shuffle"),
        ("--feed=spark",),
        ("--format", "csv"),
        ("--fout", "hdfs:///out"),
        ("--root", "s3a://bucket"),
    ],
)
def test_whatever_asks_for_spark_gets_it(words: tuple[str, ...]) -> None:
    assert mode_of("data_aggregation", *DAY, *words) == "client"


def test_settings_ask_for_spark_too() -> None:
    assert mode_of("data_aggregation", *DAY, spark={"spark.executor.cores": "3"}) == "client"
    assert mode_of("data_aggregation", *DAY, store="hdfs:///out") == "client"
    assert mode_of("data_aggregation", *DAY, root="hdfs:///in") == "client"
    assert mode_of("data_aggregation", *DAY, store="hdfs:///out", root="s3a://in") == "client"
    assert mode_of("data_aggregation", *DAY, root=None) == "client", (
        "the default folders lie on HDFS"
    )
    assert mode_of("data_aggregation", *DAY, "--root", "/in", root=None) == "python"
    assert mode_of("data_aggregation", *DAY, "--fout", "/out", store="hdfs:///out") == "python"


def test_an_option_counts_as_the_job_parses_it() -> None:
    # A value that looks like an option, an option given twice, one after `--`.
    assert mode_of("data_aggregation", *DAY, "--max-malformed", "--format=csv") == "python"
    assert mode_of("data_aggregation", *DAY, "--format", "csv", "--format", "parquet") == "python"
    assert mode_of("data_aggregation", *DAY, "--", "--format", "csv") == "client"
    assert mode_of("data_aggregation", *DAY, "--", "--engine", "spark") == "client"


def test_the_limit_for_an_index_in_the_settings_asks_for_no_engine_by_itself() -> None:
    limit = {INDEX_FILES_KEY: "5"}
    assert mode_of("data_aggregation", *DAY, spark=limit) == "python"
    assert mode_of("data_aggregation", *DAY, "--conf", f"{INDEX_FILES_KEY}=5") == "client"


@pytest.mark.parametrize(
    "words", [("--engine", "processes", "--yarn"), ("--engine=processes", "--format=csv")]
)
def test_processes_are_refused_where_only_spark_can(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="--engine processes cannot do that"):
        mode_of("data_aggregation", *DAY, *words)


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(UsageError, match="auto, processes or spark"):
        mode_of("data_aggregation", *DAY, "--engine", "duck")


def test_the_job_gets_the_engine_that_was_chosen() -> None:
    words = ("data_aggregation", *DAY, "--dry-run", "--streams", "aaa")
    found, reason = engine_of(*words)
    options = ["--engine", "processes", *DAY, "--streams", "aaa"]
    assert found.argv[1:] == ["-m", "cmsspark.submit.launch", "data_aggregation", *options]
    assert (
        set(found.env) == {"OPENBLAS_NUM_THREADS", "PYTHONPATH", "PYTHONSAFEPATH"} and reason == ""
    )
    spark, reason = engine_of(*words, "--engine", "spark")
    assert spark == command(*words, settings=HERE) and reason == "--engine spark"
    assert "spark-submit" in instead(spark) and all(
        line.startswith("#") for line in instead(spark).splitlines()
    )


# Runs
# ---------------------------------------------------------------------------------------------------------------


def run_spark(place: Place, *words: str) -> subprocess.CompletedProcess[str]:
    kept = {
        name: os.environ[name]
        for name in ("PATH", "JAVA_HOME", "LANG", "SPARK_HOME")
        if name in os.environ
    }
    return subprocess.run(
        [sys.executable, "-c", "from cmsspark.submit import main; main()", *words],
        capture_output=True,
        text=True,
        env={
            **kept,
            "HOME": str(place.folder),
            "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
        },
        cwd=place.folder,
        check=False,
        timeout=300,
    )


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(tmp_path)
    write_streams(made.tree)
    return made


def limit_index(place: Place, limit: int) -> None:
    with place.settings.open("a") as stream:
        stream.write(f"root: {place.folder}/root\nspark: {{{INDEX_FILES_KEY}: {limit}}}\n")


def test_explain_says_which_engine_counts_and_why(place: Place) -> None:
    job = ("data_aggregation", "--date", "20190615", "--fout", place.fout)
    limit_index(place, 1_000_000)
    assert run_spark(place, *job, "--explain").stdout.startswith(
        "Counted by processes of this host"
    )
    place.settings.write_text(place.settings.read_text().replace("1000000", "1"))
    explained = run_spark(place, *job, "--explain").stdout
    first, second, *options = explained.splitlines()
    assert first.startswith(f"Counted by Spark: FILES in {place.tree.dbs()} has ") and second == ""
    asked = run_spark(place, *job, "--engine", "spark", "--explain").stdout.splitlines()
    assert asked == ["Counted by Spark: --engine spark.", "", *options]


def test_a_large_dump_is_refused_to_processes_with_the_reason(place: Place) -> None:
    limit_index(place, 1)
    run = run_spark(
        place, "dbs_aaa", "--date", "20190615", "--fout", place.fout, "--engine", "processes"
    )
    assert run.returncode == 2
    assert "--engine processes cannot do that\n  found: FILES in " in run.stderr


def test_a_missing_store_is_reported_before_a_jvm_starts(place: Place) -> None:
    run = run_spark(place, "dbs_events", "--date", "20190615")
    assert run.returncode == 2 and run.stderr.startswith("run_spark: name the result folder\n")


def test_a_dump_too_large_for_an_index_runs_as_engine_spark_does(place: Place) -> None:
    chosen, by_processes = f"{place.folder}/chosen", f"{place.folder}/processes"
    place.run("data_aggregation", "--engine", "processes", fout=by_processes)
    limit_index(place, 1)
    job = ("data_aggregation", "--date", "20190615", "--fout")
    commands = [
        run_spark(place, *job, "FOUT", *words, "--dry-run").stdout
        for words in ((), ("--engine", "spark"))
    ]
    assert commands[0] == commands[1]
    assert "spark-submit" in commands[0] and "spark.driver.memory=" in commands[0]
    run = run_spark(place, *job, chosen)
    assert run.returncode == 0 and not re.search(
        r"WARN|Setting default log level|Stage \d", run.stderr
    ), run.stderr
    for table in ("data_aggregation", "partials"):
        assert place.rows(table, chosen) == place.rows(table, by_processes) != []
    manifest = place.manifest("partials", chosen)
    assert (manifest["engine"], manifest["join"]) == ("spark", "shuffle")


# Memory of the index on a cluster
# ---------------------------------------------------------------------------------------------------------------

GB = 1 << 30


def on_cluster(
    place: Place,
    monkeypatch: pytest.MonkeyPatch,
    files: int,
    *words: str,
    largest: int | None = 64 * GB,
    spark: dict[str, str] | None = None,
) -> Command:
    """The command of a day on a cluster whose DBS has so many files."""
    monkeypatch.setattr(cluster_checks, "files_in_dbs", lambda *ignored: files)
    monkeypatch.setattr(yarn, "largest_container", lambda environ: largest)
    settings = replace(SETTINGS, root=str(place.tree.root), spark=spark or {})
    where = words if any(word.startswith("--k8s") for word in words) else ("--yarn", *words)
    line = ("data_aggregation", "--date", "20190615", "--fout", "hdfs:///out", *where)
    built = command(*line, settings=settings)
    job = find_job("data_aggregation")
    options = job_options(job, list(requested(*line).arguments))
    return cluster_checks.with_index(built, job, options, settings, {})


def test_yarn_gives_an_executor_the_index_once_for_each_task(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = on_cluster(place, monkeypatch, 100_000_000)
    # 3 GiB beside a heap of 4 GiB, and four times 1.3 GB; rounded up to 64 MiB.
    expected = -(-(3 * GB + 4 * 1_300_000_000) // (64 << 20)) * 64
    assert built.options.get("spark.executor.memoryOverhead") == f"{expected}m"
    assert f"spark.executor.memoryOverhead={expected}m" in built.argv
    why = built.options.chosen["spark.executor.memoryOverhead"].reason
    assert "100,000,000 files" in why and "4 tasks" in why
    assert "--join" not in built.argv
    fewer = on_cluster(place, monkeypatch, 100_000_000, "--executor-cores", "2")
    expected = -(-(3 * GB + 2 * 1_300_000_000) // (64 << 20)) * 64
    assert fewer.options.get("spark.executor.memoryOverhead") == f"{expected}m"


def test_kubernetes_counts_the_pages_of_the_index_once(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("--k8s", "--master", "k8s://https://api:6443")
    built = on_cluster(place, monkeypatch, 100_000_000, *words)
    expected = -(-(3 * GB + 1_300_000_000) // (64 << 20)) * 64
    assert built.options.get("spark.executor.memoryOverhead") == f"{expected}m"


def test_a_small_index_changes_no_option(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    built = on_cluster(place, monkeypatch, 1_000_000)
    assert built.options.get("spark.executor.memoryOverhead") is None and not built.notes


@pytest.mark.parametrize(("files", "largest"), [(300_000_000, 64 * GB), (100_000_000, 10 * GB)])
def test_an_index_that_is_too_large_is_a_shuffle_join_and_a_note_before_the_start(
    files: int, largest: int, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = on_cluster(place, monkeypatch, files, largest=largest)
    assert built.argv[-2:] == ["--join", "shuffle"]
    assert len(built.notes) == 1 and f"{files:,} files" in built.notes[0]
    assert built.options.get("spark.executor.memoryOverhead") is None
    limited = on_cluster(place, monkeypatch, files, largest=largest, spark={INDEX_FILES_KEY: "5"})
    assert "an index is made of 5 at most" in limited.notes[0]
    asked = on_cluster(place, monkeypatch, files, "--join", "index", largest=largest)
    assert "shuffle" not in asked.argv


def test_a_given_overhead_stays_and_is_told_where_it_is_too_small(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    option = "spark.executor.memoryOverhead"
    small = on_cluster(place, monkeypatch, 100_000_000, "--conf", f"{option}=2g")
    assert small.options.get(option) == "2g" and "has 2g" in small.notes[0]
    large = on_cluster(place, monkeypatch, 100_000_000, "--conf", f"{option}=9g")
    assert large.options.get(option) == "9g" and not large.notes


def test_a_dump_that_cannot_be_looked_at_is_left_to_the_driver_with_a_note(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(place.tree.dbs())
    built = on_cluster(place, monkeypatch, 100_000_000)
    assert "--join" not in built.argv
    assert built.notes[0].startswith("the memory of an index is not known before the start: ")
