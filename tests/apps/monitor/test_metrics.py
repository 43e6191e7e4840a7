"""Live metrics: Spark's Graphite sink in a real VictoriaMetrics by our templates, our own
lines, and every panel's query.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from cmsspark.apps.monitor.processes import watch as processes_watch
from cmsspark.apps.monitor.processes.live_metrics import (
    GraphiteSender,
    LiveSender,
    counter_lines,
    part,
    process_lines,
    run_annotations,
    send_annotations,
    send_run,
)
from cmsspark.apps.monitor.processes.watch import WatchOptions
from cmsspark.base import dates, self_metrics
from cmsspark.base.errors import DataError, InputMissing, SettingsError
from cmsspark.settings.settings import MetricsSettings, parse
from cmsspark.store import run_metrics
from cmsspark.store.process_samples import ProcessSample
from cmsspark.store.run_metrics import Query, Reported, RunMetrics, StageEntry
from cmsspark.submit.spark_options import metrics_options
from tests import victoriametrics
from tests.commands import LIGHT_JVM
from tests.victoriametrics import Receiver

METRICS = victoriametrics.TOP / "etc" / "metrics"
DASHBOARD = json.loads(
    (victoriametrics.TOP / "etc" / "dashboards" / "grafana-spark.json").read_text()
)
RUN = "from cmsspark.submit import main; main()"
#: A shuffle, and tasks in Python; then it lasts until the receiver has its counters
#: twice, and its processes.
SCRIPT = """
import os, time, urllib.parse, urllib.request
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
application = spark.sparkContext.applicationId

def count(selector, since):
    words = urllib.parse.urlencode({"match[]": selector, "start": since})
    with urllib.request.urlopen(os.environ["RECEIVER"] + "/api/v1/export?" + words, timeout=300) as answer:
        return sum(len(__import__("json").loads(line)["values"]) for line in answer)

def work():
    spark.range(20000).repartition(4).groupBy("id").count().count()
    spark.sparkContext.parallelize(range(4), 2).map(lambda x: x).count()

for _ in range(2):
    work()
    now = int(time.time()) + 1
    end = time.monotonic() + 300
    written = f'spark_shuffleBytesWritten_count{{applicationid="{application}"}}'
    while count(written, now) < 2 or not all(
        count(f'spark_rss_bytes{{namespace="processes", role="{role}"}}', now)
        for role in ("java_driver", "python_driver")
    ):
        assert time.monotonic() < end, "the receiver got nothing"
        time.sleep(0.2)
print(application)
"""


@pytest.fixture(scope="module")
def receiver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Receiver]:
    program = victoriametrics.installed()
    if program is None:
        pytest.skip("no VictoriaMetrics; next: sudo apt-get install victoria-metrics")
    with victoriametrics.running(tmp_path_factory.mktemp("metrics"), program) as server:
        yield server


@pytest.fixture(scope="module")
def application(receiver: Receiver, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The id of an application that sent its metrics."""
    folder = tmp_path_factory.mktemp("live")
    (folder / "job.py").write_text(SCRIPT)
    metrics = {
        "host": "127.0.0.1",
        "port": receiver.graphite,
        "period_seconds": 1,
        "prometheus": False,
    }
    settings = folder / "settings.yaml"
    settings.write_text(yaml.safe_dump({"metrics": metrics, "state_dir": str(folder / "state")}))
    command = [
        sys.executable,
        "-c",
        RUN,
        "--settings",
        str(settings),
        *("--driver-memory", "600m", "--conf", "spark.sql.shuffle.partitions=4", *LIGHT_JVM),
        str(folder / "job.py"),
    ]
    environ = {
        **os.environ,
        "CMSSPARK_MONITOR": "1",
        "RECEIVER": f"http://127.0.0.1:{receiver.http}",
    }
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=600, env=environ, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.split()[-1]


def test_sparks_sink_arrives_with_the_tags_of_our_templates(
    receiver: Receiver, application: str
) -> None:
    labels = f'applicationid="{application}", prefix="cmsspark", process="driver"'
    for name, namespace in (
        ("JVMHeapMemory", "ExecutorMetrics"),
        ("runningStages", "DAGScheduler_stage"),
        ("used", "jvm_heap"),
        ("cpuTime_count", "executor"),
        ("shuffleBytesWritten_count", "executor"),
    ):
        receiver.until(f'spark_{name}{{{labels}, namespace="{namespace}"}}')
    (written,) = receiver.samples(f"spark_shuffleBytesWritten_count{{{labels}}}")
    assert max(written["values"]) > 0
    assert len(receiver.samples(f'{{applicationid="{application}"}}')) > 200


@pytest.mark.usefixtures("application")
def test_the_python_driver_is_among_the_metrics_of_ours(receiver: Receiver) -> None:
    largest = {
        role: max(
            value
            for series in receiver.until(f'spark_rss_bytes{{role="{role}"}}')
            for value in series["values"]
        )
        for role in ("java_driver", "python_driver")
    }
    assert largest["java_driver"] > largest["python_driver"] > 10_000_000


def test_stages_of_a_run_are_on_the_time_axis_without_a_command(
    receiver: Receiver, application: str
) -> None:
    series = receiver.until(f'spark_begin{{applicationid="{application}", namespace="events"}}')
    assert any(entry["metric"]["name"].startswith("stage_") for entry in series)


@pytest.fixture(scope="module")
def ended_job(receiver: Receiver, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A run of 10 seconds of one of our jobs, whose counters were sent: the labels that
    find them.
    """
    folder = tmp_path_factory.mktemp("ended")
    now = dates.now_ms() // 1000 * 1000
    metrics = RunMetrics(
        "run-1", "data_aggregation", "processes", now - 10_000, "DONE", ended_ms=now
    )
    for day in ("2026-01-01", "2026-01-02"):
        counts = {
            "input_bytes": 500,
            "input_files": 2,
            "input_records": 50,
            "malformed_records": 1,
        }
        metrics.reported.append(Reported("r", "data_aggregation", day, **counts))
    run_metrics.write(folder / "run.json", metrics)
    send_run(MetricsSettings("127.0.0.1", receiver.graphite), folder / "run.json")
    return '{applicationid="run-1", namespace="jobs", name="data_aggregation"}'


def test_counters_of_our_jobs_begin_at_zero_and_are_shown_as_rates(
    receiver: Receiver, ended_job: str
) -> None:
    for counter, total in (
        ("records_read", 100),
        ("records_malformed", 2),
        ("input_bytes", 1000),
        ("input_files", 4),
    ):
        (series,) = receiver.until(f"spark_{counter}{ended_job}")
        assert series["values"] == [0, total], counter
    (rate,) = receiver.query(f"rate(spark_records_read{ended_job}[1h])")
    assert float(rate["values"][-1][1]) == pytest.approx(10)
    assert counter_lines("x", RunMetrics("r", "job.py", "spark", 1000)) == [], (
        "a job that reports nothing has none"
    )


def test_counters_of_a_running_job_arrive_while_it_runs(
    receiver: Receiver, tmp_path: Path
) -> None:
    folder = tmp_path / "run-live"
    folder.mkdir()
    live, began_ms = folder / self_metrics.LIVE_FILE, dates.now_ms() - 5_000
    live.touch()
    sender = GraphiteSender(MetricsSettings("127.0.0.1", receiver.graphite, period_seconds=1))
    options = WatchOptions(
        tmp_path, "x", 0.1, on_samples=LiveSender(sender, folder, "dbs_aaa", began_ms).send
    )
    labels = 'applicationid="run-live", namespace="jobs", name="dbs_aaa"'
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as job:
        watch = processes_watch.start(job.pid, options)
        assert watch is not None
        receiver.until(f'spark_rss_bytes{{applicationid="{watch.run}", namespace="processes"}}')
        assert receiver.samples(f"spark_records_read{{{labels}}}") == [], "it has not counted yet"
        for records in (100, 250):
            live.write_text(json.dumps({"records_read": records, "input_files": 1}))
            end = time.monotonic() + victoriametrics.PATIENCE
            while not any(
                records in series["values"]
                for series in receiver.samples(f"spark_records_read{{{labels}}}")
            ):
                assert time.monotonic() < end
                time.sleep(0.1)
        live.write_text("{")
        job.communicate(b"\n")
    watch.end(0)
    (series,) = receiver.samples(f"spark_records_read{{{labels}}}")
    assert (series["timestamps"][0], series["values"][0]) == (began_ms // 1000 * 1000, 0)
    assert sorted(set(series["values"])) == [0, 100, 250]
    (files,) = receiver.samples(f"spark_input_files{{{labels}}}")
    assert set(files["values"]) == {0, 1}


def test_a_run_whose_receiver_is_away_or_whose_file_is_none_ends_as_it_would(
    tmp_path: Path,
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        settings = MetricsSettings("127.0.0.1", free.getsockname()[1])
        run_metrics.write(tmp_path / "run.json", RunMetrics("r", "job.py", "spark", 1000))
        send_run(settings, tmp_path / "run.json")
        send_run(settings, tmp_path / "none.json")


@pytest.mark.usefixtures("ended_job")
def test_every_query_of_the_dashboard_is_answered(receiver: Receiver, application: str) -> None:
    empty = set()
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            text = target["expr"].replace("$application", application).replace("$run", ".*")
            if not receiver.query(text.replace("$__rate_interval", "30s")):
                empty.add((panel["title"], target["legendFormat"]))
    # A counter that is 0 has a rate of 0.
    assert empty == set()
    for variable in DASHBOARD["templating"]["list"][1:]:
        name, label = re.findall(r"\w+", variable["query"]["query"].partition("(")[2])
        values = json.loads(receiver.get(f"/api/v1/label/{label}/values", **{"match[]": name}))
        assert values["data"]
    for note in DASHBOARD["annotations"]["list"]:
        assert receiver.query(note["expr"].replace("$application", application))


def test_stages_and_queries_stand_on_the_time_axis(
    receiver: Receiver, application: str, tmp_path: Path
) -> None:
    begun = 1_790_000_000_000
    metrics = RunMetrics("r", "job.py", "spark", begun, application=application)
    metrics.stages = [
        StageEntry(3, 0, "count at job.py:7", submitted_ms=begun, completed_ms=begun + 5_000),
        StageEntry(4, name="never submitted"),
    ]
    metrics.queries = [Query(1, "a\nb", begun)]
    file = tmp_path / "run.json"
    run_metrics.write(file, metrics)
    found = run_annotations("cmsspark", file)
    assert found.count == 2
    send_annotations(MetricsSettings("127.0.0.1", receiver.graphite), found)

    stage = "stage_3_0_count_at_job_py_7"

    def arrived(measure: str, *more: str) -> list[tuple[str, int, float]]:
        """(name, seconds, value) of that time."""
        labels = f'applicationid="{application}", namespace="events"'
        return sorted(
            (series["metric"]["name"], at // 1000, value)
            for name in (stage, *more)
            for series in receiver.until(f'spark_{measure}{{{labels}, name="{name}"}}')
            for at, value in zip(series["timestamps"], series["values"], strict=True)
            if begun <= at < begun + 1_000_000
        )

    seconds = begun // 1000
    assert arrived("end") == [(stage, seconds + 5, 1)]
    assert arrived("begin", "query_1_a_b") == [("query_1_a_b", seconds, 1), (stage, seconds, 1)]
    assert arrived("duration_ms") == [(stage, seconds, 5_000)]


def test_a_measured_run_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputMissing):
        run_annotations("x", tmp_path / "none.json")
    (tmp_path / "run.json").write_text('{"run": 5}')
    with pytest.raises(DataError):
        run_annotations("x", tmp_path / "run.json")


def test_a_receiver_that_is_away_drops_lines_and_holds_up_nobody() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        sender = GraphiteSender(MetricsSettings("127.0.0.1", free.getsockname()[1]))
        samples = [ProcessSample("r", 5_000, "h.x", 1, 0, 0, "java", rss_bytes=3)]
        sender.send_samples(samples)
        sender.send_samples(samples)
    assert sender.dropped == 2 * len(process_lines("x", samples))


def test_lines_are_sums_by_role_and_their_parts_hold_no_dots() -> None:
    samples = [
        ProcessSample("r.1", 5_000, "h.x", pid, 0, 0, "java", rss_bytes=pid, cpu_percent=0.5)
        for pid in (1, 2, 3)
    ]
    lines = process_lines("my.prefix", samples)
    assert "my_prefix.r_1.h_x.processes.java.rss_bytes 6 5" in lines
    assert "my_prefix.r_1.h_x.processes.java.cpu_percent 1.5 5" in lines
    assert part("a b\nc.d") == "a_b_c_d" and part("…") == "none"


def test_nothing_is_sent_unless_the_settings_name_a_host() -> None:
    assert metrics_options(MetricsSettings()) == {}
    options = metrics_options(MetricsSettings("collector", 2004, 5, "mine"))
    start = "spark.metrics.conf.*.sink.graphite."
    assert {name: value for name, (value, _) in options.items()} == {
        f"{start}class": "org.apache.spark.metrics.sink.GraphiteSink",
        f"{start}host": "collector",
        f"{start}port": "2004",
        f"{start}period": "5",
        f"{start}unit": "seconds",
        f"{start}prefix": "mine",
        "spark.metrics.conf.*.source.jvm.class": "org.apache.spark.metrics.source.JvmSource",
    }
    assert "spark.ui.prometheus.enabled" in metrics_options(MetricsSettings(prometheus=True))


@pytest.mark.parametrize(
    "text", ["{port: 0}", "{prefix: a.b}", "{period_seconds: 0}", "{hots: x}", "{port: x}"]
)
def test_wrong_settings_are_refused_with_their_line(text: str) -> None:
    with pytest.raises(SettingsError, match="line 2"):
        parse(f"profile: local\nmetrics: {text}\n".encode(), "file")


def test_all_files_for_receivers_have_the_same_templates_and_loopback_ports() -> None:
    def lines(name: str) -> list[str]:
        text = (METRICS / name).read_text(encoding="utf-8")
        return [line.strip(' -",') for line in text.splitlines() if "measurement*" in line]

    assert len(lines("telegraf.conf")) == 7
    assert lines("telegraf.conf") == lines("chart/values.yaml")
    compose = yaml.safe_load((METRICS / "compose.yaml").read_text(encoding="utf-8"))
    ports = [port for service in compose["services"].values() for port in service["ports"]]
    assert ports and all(port.startswith("127.0.0.1:") for port in ports)
    for service in compose["services"].values():
        files = [
            volume.partition(":")[0] for volume in service["volumes"] if volume.startswith(".")
        ]
        assert all((METRICS / file).is_file() for file in files)
    for file in METRICS.rglob("*.yaml"):
        assert yaml.safe_load(file.read_text(encoding="utf-8"))


def test_counters_are_shown_as_rates() -> None:
    units = set()
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            is_counter = "_count{" in target["expr"] or 'namespace="jobs"' in target["expr"]
            assert is_counter <= ("rate(" in target["expr"]), target["expr"]
            if "rate(" in target["expr"]:
                per = target["expr"].rpartition("]) ")[2].rstrip(")") or "/ 1"
                units.add((per, panel["fieldConfig"]["defaults"]["unit"]))
    # What grows by ns or ms in a second is a number of cores or tasks, and no share of them.
    assert {unit for _, unit in units} == {"Bps", "rps", "short"}
    assert {per for per, unit in units if unit == "short"} == {"/ 1e9", "/ 1e3"}
