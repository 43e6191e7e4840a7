"""Event logs on another file system: found by the application or by the run, read when
somebody wants the run.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from cmsspark.apps.monitor import measured_runs as event_log_search
from cmsspark.apps.monitor.measured_runs import completed, find_event_log, pending_note
from cmsspark.apps.monitor.spark_watch import finish
from cmsspark.base.errors import InputMissing, NotReady
from cmsspark.filesystems.storage import Entry, Files, LocalFiles
from cmsspark.main import command
from cmsspark.store import lease, run_metrics
from cmsspark.store.run_metrics import RunMetrics
from tests.apps.monitor.event_logs import BEGAN, application

HDFS = "hdfs://name/logs"


class Far(LocalFiles):
    """A folder of this host under the name of one on HDFS."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _here(self, path: str) -> str:
        assert path.startswith(HDFS), path
        return f"{self._folder}{path.removeprefix(HDFS)}"

    def _there(self, entry: Entry) -> Entry:
        return Entry(
            entry.path.replace(str(self._folder), HDFS), entry.is_dir, entry.size, entry.mtime_ms
        )

    def stat(self, path: str) -> Entry | None:
        entry = super().stat(self._here(path))
        return entry and self._there(entry)

    def list_dir(self, path: str) -> list[Entry]:
        return [self._there(entry) for entry in LocalFiles().list_dir(self._here(path))]

    def read_range(self, path: str, offset: int, count: int) -> bytes:
        return super().read_range(self._here(path), offset, count)


def run_of(**fields: object) -> RunMetrics:
    """A run whose log is on HDFS."""
    options = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": HDFS}
    metrics = RunMetrics(
        "20260115-aaa", "job.py", "spark", 1000, "DONE", ended_ms=2000, exit_code=0, master="yarn"
    )
    for name, value in fields.items():
        setattr(metrics, name, value)
    return finish(metrics, Path("/nowhere"), options, {})


def write(folder: Path, name: str, *, until: int | None = None, **options: str) -> Path:
    file = folder / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(b"\n".join([*application(40, **options)][:until]))
    return file


def test_a_log_on_hdfs_waits_and_is_read_and_stored_when_the_run_is_shown(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    write(logs, "application_1_00010")
    write(logs, "eventlog_v2_application_1_0001_1").rename(tmp_path / "part")
    (logs / "eventlog_v2_application_1_0001_1").mkdir()
    (tmp_path / "part").rename(
        logs / "eventlog_v2_application_1_0001_1" / "events_1_application_1_0001_1"
    )
    metrics = run_of(application="application_1_0001", deploy_mode="cluster")
    assert metrics.pending_events == HDFS and metrics.notes == [pending_note(HDFS)]
    result = completed(tmp_path, metrics, lambda _: Far(logs))
    assert result.totals.tasks == 40 and result.notes == [] and result.pending_events is None
    assert [finding.code for finding in result.findings] == ["skewed_stage"]
    assert result.event_log == f"{HDFS}/eventlog_v2_application_1_0001_1"
    assert (result.began_ms, result.ended_ms) == (1000, BEGAN + 4000), (
        "nobody waited for the application"
    )
    stored = run_metrics.read(run_metrics.run_file(tmp_path, metrics.run))
    assert stored.totals.tasks == 40

    def no_files(_: str) -> Files:
        raise AssertionError("it is read already")

    assert completed(tmp_path, stored, no_files) is stored


def test_without_the_id_of_the_application_the_head_of_a_log_names_the_run(tmp_path: Path) -> None:
    write(tmp_path, "app-1", measured="another")
    write(tmp_path, "app-2", measured="20260115-aaa")
    write(tmp_path, "app-3", spark_cmsspark_run="20260115-bbb")
    (tmp_path / "app-4").write_bytes(b"no event\n" * 100)
    metrics = run_of()
    assert find_event_log(HDFS, metrics, Far(tmp_path)) == f"{HDFS}/app-2"
    metrics.run = "20260115-bbb"
    assert find_event_log(HDFS, metrics, Far(tmp_path)) == f"{HDFS}/app-3", (
        "the option of a driver on another host"
    )
    for file in tmp_path.iterdir():
        os.utime(file, (0, 0))
    metrics.began_ms = 100_000
    assert find_event_log(HDFS, metrics, Far(tmp_path)) is None, (
        "logs that are older than the run are not looked into"
    )


def test_a_log_without_an_end_is_read_again_until_it_has_one(tmp_path: Path) -> None:
    file = write(tmp_path / "logs", "application_1_0001.inprogress", until=20)
    metrics = run_of(application="application_1_0001")
    run_metrics.write(run_metrics.run_file(tmp_path, metrics.run), metrics)
    result = completed(tmp_path, metrics, lambda _: Far(tmp_path / "logs"))
    assert 0 < result.totals.tasks < 40 and any("no end" in note for note in result.notes)
    stored = run_metrics.read(run_metrics.run_file(tmp_path, metrics.run))
    assert stored.pending_events == HDFS and stored.totals.tasks == 0
    os.utime(file, (0, 0))
    completed(tmp_path, stored, lambda _: Far(tmp_path / "logs"))
    stored = run_metrics.read(run_metrics.run_file(tmp_path, metrics.run))
    assert stored.pending_events is None and stored.totals.tasks == result.totals.tasks, (
        "the driver was killed"
    )


def test_a_log_that_is_gone_is_named_and_the_run_stays_as_it_is(tmp_path: Path) -> None:
    metrics = run_of(application="application_1_0001")
    with pytest.raises(InputMissing, match="application_1_0001"):
        completed(tmp_path, metrics, lambda _: Far(tmp_path))
    assert metrics.pending_events == HDFS and metrics.notes == [pending_note(HDFS)]


def test_the_commands_read_it_and_say_where_they_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = tmp_path / "logs"
    metrics = run_of(application="application_1_0001", process=lease.identity())
    run_metrics.write(run_metrics.run_file(tmp_path, metrics.run), metrics)
    monkeypatch.setenv("CMSSPARK_STATE_DIR", str(tmp_path))

    def away(location: str) -> Files:
        raise NotReady("the cluster does not answer", where=location)

    monkeypatch.setattr("cmsspark.apps.monitor.measured_runs.event_files", away)
    shown = CliRunner().invoke(command, ["show", "application_1_0001"])
    assert (
        shown.exit_code == 0
        and "without the event log: the cluster does not answer" in shown.stderr
    )
    assert pending_note(HDFS) in shown.stdout
    write(logs, "application_1_0001")
    monkeypatch.setattr("cmsspark.apps.monitor.measured_runs.event_files", lambda _: Far(logs))
    advised = CliRunner().invoke(command, ["lab", "advise", "job.py", "--json"])
    assert advised.exit_code == 0 and json.loads(advised.stdout)["advice"][0]["conf"]
    assert "tasks => 40" in CliRunner().invoke(command, ["show", "20260115-aaa"]).stdout


def test_a_cluster_driver_s_log_in_a_local_folder_is_on_its_host(tmp_path: Path) -> None:
    metrics = RunMetrics("20260115-aaa", "job.py", "spark", 1000, "DONE", deploy_mode="cluster")
    result = event_log_search.with_event_log(metrics, str(tmp_path / "none"))
    assert result.notes == [
        "Spark wrote no event log here: the driver's host has it, if there is one"
    ]
