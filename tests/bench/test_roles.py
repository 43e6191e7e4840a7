"""The roles of processes, by which the CPU seconds of an application on YARN are divided."""

from __future__ import annotations

import pytest

from bench.cluster_report import Result, parts, ratios
from bench.event_log import Application
from bench.meter import Cost
from bench.roles import DAEMONS, IN_CLIENT, IN_CONTAINERS, Use, role_of

JAVA = "/usr/lib/jvm/bin/java"
EXECUTOR = "org.apache.spark.executor.YarnCoarseGrainedExecutorBackend"


@pytest.mark.parametrize(
    ("words", "above", "role", "is_final"),
    [
        (["/venv/bin/python", "/venv/bin/run_spark", "dbs_aaa"], "meter", "run_spark", False),
        (["bash", "/spark/bin/spark-submit", "--master", "yarn"], "run_spark", "scripts", False),
        (
            ["java", "-Xmx128m", "-cp", "x", "org.apache.spark.launcher.Main"],
            "scripts",
            "launcher JVM",
            True,
        ),
        (
            [JAVA, "-cp", "x", "org.apache.spark.deploy.SparkSubmit", "launch.py"],
            "run_spark",
            "driver JVM",
            True,
        ),
        (["/venv/bin/python", "launch.py", "dbs_aaa"], "driver JVM", "driver Python", True),
        (["bash", "-c", f"{JAVA} -cp x {EXECUTOR}"], DAEMONS[1], "containers' scripts", False),
        (
            [JAVA, "org.apache.spark.deploy.yarn.ExecutorLauncher"],
            "containers' scripts",
            "master JVM",
            True,
        ),
        ([JAVA, "-Xmx2g", EXECUTOR, "--cores", "2"], "containers' scripts", "executor JVM", True),
        ([JAVA, "-Xmx2g", EXECUTOR], "executor JVM", "containers' scripts", False),
        (
            ["./environment/bin/python", "-m", "pyspark.daemon"],
            "executor JVM",
            "Python daemon",
            True,
        ),
        (
            ["./environment/bin/python", "-m", "pyspark.daemon"],
            "Python daemon",
            "Python workers",
            True,
        ),
    ],
)
def test_the_role_of_a_process(words: list[str], above: str, role: str, is_final: bool) -> None:
    assert role_of(words, above) == (role, is_final)


def result(records: int, way: str, client: float, executor: float = 0.0) -> Result:
    cost = Cost(1.0, client, 0, 0.0, 0)
    if way.startswith("processes"):
        return Result(records, "day", way, cost, 2)
    uses = {role: Use() for role in (*IN_CLIENT, *IN_CONTAINERS, *DAEMONS)}
    uses["executor JVM"] = Use(executor, threads={"JIT": executor / 2})
    uses["driver JVM"], uses["DataNode"] = Use(client - 1), Use(50.0)
    return Result(records, "day" if records else "none", way, cost, 2, Application(), uses)


def test_the_parts_of_an_application_add_up_to_its_sum_without_the_daemons() -> None:
    head, rows = parts([result(0, "YARN, warm", 10.0, 4.0), result(0, "YARN, warm", 12.0, 6.0)])
    assert head == ("CPU s", "nothing, YARN, warm")
    assert {name: value for name, value in rows} == {
        "driver JVM": "10.0",
        "executor JVM": "5.0",
        "– executor JVM: JIT": "2.5",
        "not seen (ended between two samples)": "1.0",
        "sum": "16.0",
        "DataNode and other daemons": "50.0",
    }


def test_a_day_is_compared_with_processes_beyond_an_empty_application() -> None:
    runs = [result(0, "YARN, warm", 10.0), result(8, "processes, warm", 20.0)]
    runs += [result(8, "YARN, cold", 90.0), result(8, "YARN, warm", 30.0, 4.0)]
    assert ratios(runs) == [
        "8 records, day: 34.0 CPU s on YARN, 1.70 times the 20.0 of processes; "
        "24.0 beyond an empty application, 1.20 times"
    ]
