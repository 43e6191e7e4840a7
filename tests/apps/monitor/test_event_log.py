"""Event logs: what is summed, whoever wrote them, and what is left of cut and damaged ones."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from click.testing import CliRunner

from cmsspark.apps.monitor.logs import files as event_log_files
from cmsspark.apps.monitor.logs.files import find_log
from cmsspark.apps.monitor.logs.reader import EventLogReader, QuantileSketch, Spans, read_event_log
from cmsspark.base.errors import InputMissing, UsageError
from cmsspark.main import command
from cmsspark.store.run_metrics import RunMetrics, Spread
from tests.apps.monitor.event_logs import BEGAN, MB, application, begin, event, stage, task

LOGS = Path(__file__).parent / "logs"


def read(lines: Iterable[bytes]) -> RunMetrics:
    reader = EventLogReader()
    reader.read(lines)
    return reader.metrics()


def test_tasks_are_summed_and_spread_by_stage_and_executor() -> None:
    metrics = read(application(40))
    totals, only = metrics.totals, metrics.stages[0]
    assert (metrics.application, metrics.spark_version, metrics.jobs) == (
        "application_1_0001",
        "4.1.1",
        1,
    )
    assert (totals.tasks, totals.run_ms, totals.cpu_ms, totals.input_bytes) == (
        40,
        40_000,
        20_000,
        440,
    )
    assert totals.shuffle_read_bytes == 79 * MB
    assert (totals.shuffle_write_bytes, totals.shuffle_write_ms, totals.result_bytes) == (
        280,
        80,
        4000,
    )
    assert only.totals == totals
    assert only.shuffle_read_bytes == Spread(
        MB, only.shuffle_read_bytes.median, 40 * MB, 39, "node1"
    )
    assert only.shuffle_read_bytes.median == pytest.approx(MB, rel=0.01)
    assert metrics.executors[0].peaks == {
        "JVMHeapMemory": 500 * MB,
        "OnHeapUnifiedMemory": 90 * MB,
    }
    assert metrics.task_spans == [(BEGAN + 1000, BEGAN + 2000)]


def test_failed_tasks_count_and_do_not_change_the_spread() -> None:
    lines = [*begin(), event("StageSubmitted", Stage_Info=stage(0, 2))]
    trace = 'Traceback (most recent call last):\n  File "x.py", line 1\nValueError: planted\n'
    metrics = read([*lines, task(0, run=10), task(1, run=90_000, failed=trace), task(1, run=12)])
    assert (metrics.totals.tasks, metrics.totals.failed_tasks) == (3, 1)
    assert metrics.stages[0].task_ms.max == 12
    assert metrics.failures == {"ExceptionFailure: ValueError: planted": 1}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("spark-3.5.7.zstd", ("3.5.7", 5, 1, 874, 3)),
        ("spark-4.3.0.zstd", ("4.3.0", 279, 0, 4_198_925, 30)),
    ],
)
def test_logs_that_spark_wrote_are_read(name: str, expected: tuple[object, ...]) -> None:
    """The numbers were summed from the lines by hand."""
    metrics = read_event_log(find_log(str(LOGS / name))).metrics()
    totals = metrics.totals
    found = (
        metrics.spark_version,
        totals.tasks,
        totals.failed_tasks,
        totals.shuffle_read_bytes,
        metrics.jobs,
    )
    assert found == expected
    assert metrics.notes == []
    assert metrics.executors[0].peaks["ProcessTreePythonRSSMemory"] > 50 * MB


def test_keys_in_another_order_and_unknown_events_are_no_fault() -> None:
    lines = [
        json.dumps(dict(sorted(json.loads(line).items(), reverse=True))).encode()
        for line in application(3)
    ]
    lines.insert(2, b'{"Weight": 1, "Event": "com.example.Mine"}')
    reader = EventLogReader()
    reader.read(lines)
    assert (reader.metrics().totals.tasks, reader.damaged, reader.skipped) == (3, 0, 1)


@pytest.mark.parametrize("cut", [1, 40, 300])
def test_a_last_line_that_is_cut_is_left_out_and_said(tmp_path: Path, cut: int) -> None:
    log = tmp_path / "app.inprogress"
    log.write_bytes(b"\n".join([*begin(), task(0), task(1)])[:-cut])
    metrics = read_event_log(find_log(str(log))).metrics()
    assert metrics.totals.tasks == 1
    assert any("last line of the event log is cut" in note for note in metrics.notes)
    assert any("has no end" in note for note in metrics.notes)


def test_damaged_lines_are_counted_and_the_others_read(tmp_path: Path) -> None:
    log = tmp_path / "app"
    lines = [*application(3)]
    wrong = event("TaskEnd", Stage_ID="none")
    log.write_bytes(b"\n".join([*lines[:6], b"\xff\xfe{", b"[1]", wrong, *lines[6:]]) + b"\n")
    metrics = read_event_log(find_log(str(log))).metrics()
    assert metrics.totals.tasks == 3
    assert metrics.notes == ["3 lines of the event log are damaged and were left out"]


def test_a_line_that_is_too_long_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_log_files, "MOST_LINE", 1_000_000)
    log = tmp_path / "app"
    lines = [*application(3)]
    log.write_bytes(
        b"\n".join([*lines[:6], b'{"Event":"x","a":"' + b"y" * 3_000_000 + b'"}', *lines[6:]])
        + b"\n"
    )
    metrics = read_event_log(find_log(str(log))).metrics()
    assert metrics.totals.tasks == 3 and "1 lines of the event log are longer" in metrics.notes[0]


def test_a_rolling_folder_is_read_in_the_order_of_its_numbers_from_the_last_compact_file(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "eventlog_v2_app"
    folder.mkdir()
    lines = [*application(30)]
    (folder / "appstatus_app").touch()
    (folder / "events_2_app").write_bytes(b"never read\n")
    (folder / "events_9_app.compact").write_bytes(b"\n".join(lines[:20]) + b"\n")
    (folder / "events_10_app").write_bytes(b"\n".join(lines[20:]) + b"\n")
    assert read_event_log(find_log(str(folder))).metrics().totals.tasks == 30
    assert read_event_log(find_log(str(tmp_path))).metrics().totals.tasks == 30, (
        "the only log of a folder"
    )
    (tmp_path / "another").write_bytes(b"")
    with pytest.raises(UsageError, match="another, eventlog_v2_app"):
        find_log(str(tmp_path))


def test_a_log_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputMissing):
        find_log(str(tmp_path / "none"))
    with pytest.raises(InputMissing, match="the folder has no event log"):
        find_log(str(tmp_path))


def test_only_the_stages_with_the_most_task_time_are_kept() -> None:
    lines = [*begin()]
    for number in range(1200):
        lines.append(event("StageSubmitted", Stage_Info=stage(number, 1)))
        lines.append(task(0, run=number, of=number))
        lines.append(event("StageCompleted", Stage_Info=stage(number, 1)))
    metrics = read(lines)
    assert (metrics.stage_count, len(metrics.stages), metrics.totals.tasks) == (1200, 1000, 1200)
    assert metrics.stages[0].stage == 200


def test_a_sketch_gives_least_and_largest_exactly_and_the_median_to_one_percent() -> None:
    sketch = QuantileSketch()
    for value in [*range(1, 100_002, 2), 0]:
        sketch.add(value)
    assert (sketch.spread().min, sketch.spread().max) == (0, 100_001)
    assert sketch.spread().median == pytest.approx(50_000, rel=0.01)


def test_spans_are_joined_and_never_more_than_asked_for() -> None:
    spans = Spans(most=3)
    for first, last in ((50, 60), (0, 10), (5, 20), (200, 210), (400, 410), (70, 80)):
        spans.add(first, last)
    merged = spans.merged()
    assert len(merged) <= 3 and merged[0][0] == 0 and merged[-1][1] == 410


GENERATED = """
import resource, sys
from pathlib import Path
from cmsspark.apps.monitor.logs.reader import read_event_log
from cmsspark.apps.monitor.logs.files import LogLines
from tests.apps.monitor.event_logs import application, task

class Made:
    # A file that is made while it is read: nothing of it is held anywhere.
    def __init__(self, wanted):
        lines = [*application(2)]
        self.first, self.last = b"\\n".join(lines[:6]) + b"\\n", b"\\n".join(lines[-4:]) + b"\\n"
        self.piece = b"".join(task(n, run=n, shuffle=n) + b"\\n" for n in range(500))
        self.left = wanted // len(self.piece)
        self.count = 500 * self.left
        self.buffer = self.first
    def __enter__(self): return self
    def __exit__(self, *_): pass
    def read(self, count):
        while len(self.buffer) < count and self.left:
            self.buffer += self.piece
            self.left -= 1
            if not self.left: self.buffer += self.last
        taken, self.buffer = self.buffer[:count], self.buffer[count:]
        return taken

made = Made(int(sys.argv[1]))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
lines = LogLines(["made"], lambda _: made)
metrics = read_event_log(lines).metrics()
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(metrics.totals.tasks - made.count, lines.plain_bytes, after - before)
"""


def grown(size: int) -> tuple[int, int, int]:
    """(tasks that are missing, bytes that were read, kB by which memory grew)"""
    command = [sys.executable, "-c", GENERATED, str(size)]
    run = subprocess.run(command, capture_output=True, text=True, check=True, cwd=LOGS.parents[3])
    missing, count, kilobytes = map(int, run.stdout.split())
    return missing, count, kilobytes


@pytest.mark.parametrize("size", [40 * MB, pytest.param(1_100 * MB, marks=pytest.mark.long)])
def test_memory_does_not_grow_with_a_log(size: int) -> None:
    missing, count, kilobytes = grown(size)
    assert missing == 0 and count > 0.99 * size
    assert kilobytes < 25_000


def test_the_command_shows_sums_stages_peaks_and_findings(tmp_path: Path) -> None:
    log = tmp_path / "app"
    log.write_bytes(b"\n".join(application(40)) + b"\n")
    done = CliRunner().invoke(command, ["monitor", "events", str(log)])
    assert done.exit_code == 0
    assert "shuffleBytesRead => 79000000 (79.0 MB)" in done.stdout
    assert re.search(r"JVMHeapMemory +500\.0 MB", done.stdout)
    assert "skewed_stage: one task has 40.0 MB read from the shuffle" in done.stdout
    as_json = CliRunner().invoke(command, ["monitor", "events", str(log), "--json"])
    assert json.loads(as_json.stdout)["totals"]["tasks"] == 40
