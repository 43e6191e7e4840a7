"""When a day of logs is counted without Spark, and when not."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from cmsspark.errors import UsageError
from cmsspark.jobs import find_job
from cmsspark.jobs.engine import WORDS
from cmsspark.submit.arguments import split
from cmsspark.submit.wrapper import instead, signature_of, without_spark
from tests.submit.hosts import HOST, SETTINGS, command

DAY = ("--date", "20260115")


def mode_of(*words: str, **settings: object) -> str:
    request = split(words, signature_of)
    given = replace(SETTINGS, **settings)  # type: ignore[arg-type]
    built = command(*words, settings=given)
    assert request.job is not None
    return without_spark(request, given, find_job(request.job), built, HOST).mode


@pytest.mark.parametrize("job", ["data_aggregation.py", "dbs_aaa", "dbs_eos", "dbs_cmssw", "dbs_jm"])
def test_a_day_of_logs_on_this_hosts_disks_needs_no_spark(job: str) -> None:
    assert mode_of(job, *DAY) == "python"
    assert (
        mode_of(job, *DAY, "--local", "--debug", "--fout", "/out", "--root=file:///in", "--engine", "auto") == "python"
    )
    assert mode_of(job, *DAY, "--engine=processes") == "python"


@pytest.mark.parametrize("job", ["dbs_phedex", "site_tier_usage", "dbs_events", "phedex"])
def test_jobs_on_dumps_need_no_spark_here_either(job: str) -> None:
    assert mode_of(job, *DAY) == "python"
    assert mode_of(job, *DAY, "--engine=processes", "--fout", "/out") == "python"
    for words in (("--engine", "spark"), ("--format", "csv"), ("--fout", "hdfs:///out"), ("--conf", "spark.a=1")):
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
    assert mode_of("data_aggregation", *DAY, "--fout", "/out", store="hdfs:///out") == "python"


@pytest.mark.parametrize("words", [("--engine", "processes", "--yarn"), ("--engine=processes", "--format=csv")])
def test_processes_are_refused_where_only_spark_can(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="--engine processes cannot do that"):
        mode_of("data_aggregation", *DAY, *words)


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(UsageError, match="auto, processes or spark"):
        mode_of("data_aggregation", *DAY, "--engine", "duck")


def test_the_words_travel_so_that_spark_can_still_be_asked() -> None:
    words = ("data_aggregation", *DAY, "--dry-run", "--streams", "aaa")
    request = split(words, signature_of)
    built = command(*words)
    found = without_spark(request, SETTINGS, find_job("data_aggregation"), built, HOST)
    assert json.loads(found.env[WORDS]) == ["data_aggregation", *DAY, "--streams", "aaa"]
    assert found.argv[1:] == ["-m", "cmsspark.jobs.launch", "data_aggregation", *DAY, "--streams", "aaa"]
    assert "spark-submit" in instead(built) and all(line.startswith("#") for line in instead(built).splitlines())
