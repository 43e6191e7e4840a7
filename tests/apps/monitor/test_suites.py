"""Suites: files with errors at their line, real runs with marks and maxima,
comparisons, pages.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from cmsspark.apps.monitor.suites.results import (
    Maxima,
    SuiteResult,
    broken_limits,
    change_lines,
    compute_maxima,
    differences,
    hosts_page,
    latest_by_size,
    load_result,
    results_page,
    step_times,
    trend_page,
)
from cmsspark.apps.monitor.suites.suite import Limit, read_suite
from cmsspark.base.errors import InputMissing
from cmsspark.base.resources import resource
from cmsspark.store.process_samples import LogEntry, ProcessSample, WatchedRun, open_processes
from tests.apps.monitor.test_processes_watch import lives, until

MB = 1_000_000
CLI = "from cmsspark.main import main; main()"
#: The words of a step that holds so many MB until a sample has seen it. The database is
#: beside the suite.
HELD = (
    f'"{{python}}", "{Path(__file__).with_name("held.py")}", "{{suite_folder}}/processes.sqlite"'
)


def suite_file(folder: Path, steps: str, more: str = "") -> Path:
    file = folder / "suite.yaml"
    file.write_text(f"suite: mine\ninterval_seconds: 0.1\nsteps:\n{steps}{more}", encoding="utf-8")
    return file


def perf(state: Path, *words: str, check: int | None = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", CLI, "lab", "perf", *words]
    environ = {**os.environ, "CMSSPARK_STATE_DIR": str(state)}
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=900, env=environ, cwd=state, check=False
    )
    assert check is None or ended.returncode == check, ended.stdout + ended.stderr
    return ended


def test_a_missing_suite_is_66(tmp_path: Path) -> None:
    with pytest.raises(InputMissing):
        read_suite(tmp_path / "none.yaml")


def test_the_release_gate_is_a_suite() -> None:
    suite = read_suite(Path(str(resource("etc/suites/release.yaml"))))
    assert (
        suite.suite == "release"
        and len(suite.sizes) >= 3
        and len(suite.steps) >= 3
        and suite.limits
    )


def test_a_suite_runs_marks_its_steps_measures_them_and_compares(tmp_path: Path) -> None:
    steps = f'  - {{name: load, command: [{HELD}, "{{size}}"]}}\n'
    steps += f'  - {{name: rest, command: [{HELD}, "1", --password, hunter2]}}\n'
    file = suite_file(
        tmp_path, steps, "sizes: [30, 60, 120]\nlimits:\n  - {step: load, rss_bytes: 900000000}\n"
    )
    shown = perf(tmp_path, "run", str(file), "--release", "one").stdout
    assert shown.count("DONE") == 3 and "load" in shown and "python_driver" in shown
    with open_processes(tmp_path) as database:
        results = latest_by_size(database, "mine", "one")
        marks = [
            entry.message for entry in database.log(results[30.0].run.run) if entry.type == "mark"
        ]
        commands = [sample.long_command for sample in database.samples(results[30.0].run.run)]
    assert marks == ["begin load", "end load exit 0", "begin rest", "end rest exit 0"]
    assert not any("hunter2" in (command or "") for command in commands)
    peaks = [results[size].maxima["load", "all"].rss_bytes for size in (30.0, 60.0, 120.0)]
    assert 25 * MB < peaks[1] - peaks[0] < 35 * MB and 55 * MB < peaks[2] - peaks[1] < 65 * MB
    more = steps.replace("{size}", "90")
    perf(tmp_path, "run", str(suite_file(tmp_path, more, "sizes: [30]\n")), "--release", "two")
    ended = perf(tmp_path, "compare", "mine", "one", "two", "--tolerance", "0.3", check=65)
    assert "load all rss_bytes ×" in ended.stderr and "rest all rss_bytes" not in ended.stderr
    for page in ("results", "trend"):
        perf(tmp_path, page, "mine", "--out", str(tmp_path / f"{page}.html"))
        text = (tmp_path / f"{page}.html").read_text(encoding="utf-8")
        assert "<script" not in text and "<svg" in text and "src=" not in text


def test_a_broken_limit_is_65_and_a_failed_step_has_its_own_code(tmp_path: Path) -> None:
    steps = f'  - {{name: a, command: [{HELD}, "1"]}}\n'
    file = suite_file(tmp_path, steps, "limits:\n  - {step: a, rss_bytes: 1000}\n")
    assert "over the limit of 1,000" in perf(tmp_path, "run", str(file), check=65).stderr
    steps = '  - {name: a, command: ["{python}", -c, "print(1); raise SystemExit(7)"]}\n'
    steps += "  - {name: b, command: [\"{python}\", -c, \"open('{suite_folder}/ran', 'w')\"]}\n"
    ended = perf(tmp_path, "run", str(suite_file(tmp_path, steps)), check=7)
    assert "a ended with 7; its output:" in ended.stderr
    assert Path(ended.stderr.rpartition("its output: ")[2].strip()).read_text() == "1\n"
    assert not (tmp_path / "ran").exists()
    steps = '  - {name: a, timeout_seconds: 0.3, command: ["{python}", -c, "import time; time.sleep(60)"]}\n'
    assert (
        "more than 0.3 s"
        in perf(tmp_path, "run", str(suite_file(tmp_path, steps)), check=75).stderr
    )
    missing = suite_file(tmp_path, "  - {name: a, command: [no-such-program]}\n")
    assert "cannot be started" in perf(tmp_path, "run", str(missing), check=78).stderr


def test_an_interrupted_suite_leaves_no_process(tmp_path: Path) -> None:
    child = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']).wait()"
    steps = f'  - {{name: a, command: ["{{python}}", -c, "{child}"]}}\n'
    command = [sys.executable, "-c", CLI, "lab", "perf", "run", str(suite_file(tmp_path, steps))]
    environ = {**os.environ, "CMSSPARK_STATE_DIR": str(tmp_path)}
    with subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True) as process:
        # The guard, the step, and what the step started.
        until(lambda: len(psutil.Process(process.pid).children(recursive=True)) >= 3)
        below = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=300)
    assert process.returncode == 75
    until(lambda: not any(map(lives, below)))
    with open_processes(tmp_path) as database:
        assert [run.status for run in database.runs()] == ["ENDED"]


def test_nodes_are_watched_for_the_run_and_their_monitors_end_with_it(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text("a-token-of-these-tests-0123456789")
    trees = [
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        for _ in range(2)
    ]
    start = f'["{{python}}", -c, "{CLI}", monitor, node, --collector, "{{collector}}", --token-file, "{token}", '
    start += f'--run, "{{run}}", --ttl, "{{ttl}}", --pid, "{{host}}", --interval, "0.2", --buffer, "{tmp_path}/b-{{host}}"]'
    hosts = ", ".join(f'"{tree.pid}"' for tree in trees)
    # The step ends when both nodes were heard.
    waits = (
        "import sqlite3, time\\ndb = sqlite3.connect('{suite_folder}/processes.sqlite', timeout=300)\\n"
        "while db.execute('SELECT count(DISTINCT pid) FROM ProcessMonitor "
        f"WHERE pid IN ({trees[0].pid}, {trees[1].pid})').fetchone()[0] < 2: time.sleep(0.1)"
    )
    steps = f'  - {{name: a, timeout_seconds: 300, command: ["{{python}}", -c, "{waits}"]}}\n'
    more = f"nodes:\n  hosts: [{hosts}]\n  start: {start}\n  token_file: token\n"
    try:
        ended = perf(tmp_path, "run", str(suite_file(tmp_path, steps, more)))
        assert ended.stderr.count("its run has ended (DONE)") == 2, ended.stderr
    finally:
        for tree in trees:
            tree.communicate(b"\n")


def samples(
    tick: int, rss: dict[int, int], role: str = "java_driver", host: str = "h"
) -> list[ProcessSample]:
    return [
        ProcessSample(
            "r",
            tick,
            host,
            pid,
            0,
            0,
            role,
            50.0,
            1.0,
            1.0,
            size,
            size // 2,
            virtual_bytes=2 * size,
        )
        for pid, size in rss.items()
    ]


def test_maxima_are_sums_over_a_role_at_one_time_on_one_host_within_the_step() -> None:
    log = [
        LogEntry("r", time, "mark", text)
        for time, text in (
            (10, "begin a"),
            (20, "end a exit 0"),
            (20, "begin b"),
            (40, "end b exit 3"),
        )
    ]
    steps = step_times(log)
    assert [(one.name, one.seconds, one.exit_code) for one in steps] == [
        ("a", 0.01, 0),
        ("b", 0.02, 3),
    ]
    rows = [
        *samples(5, {1: 999}),
        *samples(12, {1: 100, 2: 50}),
        *samples(14, {1: 120}),
        *samples(14, {9: 130}, host="g"),
        *samples(14, {3: 7}, "python_worker"),
        *samples(30, {1: 10}),
    ]
    found = compute_maxima(rows, steps)
    assert found["a", "java_driver"].rss_bytes == 150 and found["a", "java_driver"].processes == 2
    assert (
        found["a", "java_driver"].cpu_percent == 100.0
        and found["a", "java_driver"].virtual_bytes == 300
    )
    assert found["a", "all"].rss_bytes == 150 and found["a", "python_worker"].rss_bytes == 7
    assert found["b", "all"].rss_bytes == 10 and ("b", "python_worker") not in found


def result(release: str, seconds: int, rss: int, size: float | None = None) -> SuiteResult:
    log = [
        LogEntry("r", 0, "mark", "begin a"),
        LogEntry("r", seconds * 1000, "mark", "end a exit 0"),
    ]
    steps = step_times(log)
    run = WatchedRun(
        "r",
        0,
        "h",
        release=release,
        suite="s",
        input_size=size,
        end_ms=seconds * 1000,
        status="DONE",
    )
    return SuiteResult(run, steps, compute_maxima(samples(1, {1: rss}), steps))


def test_differences_and_limits_are_exact() -> None:
    rows = {
        (row.role, row.measure): row.ratio
        for row in differences({None: result("1", 2, 100)}, {None: result("2", 3, 150)})
    }
    assert rows["all", "seconds"] == 1.5 and rows["java_driver", "rss_bytes"] == 1.5
    assert differences({1.0: result("1", 2, 100)}, {2.0: result("2", 3, 150)}) == []
    limits = [
        Limit("a", rss_bytes=99),
        Limit("a", seconds=2.0),
        Limit("a", "python_worker", cpu_percent=1.0),
    ]
    lines = broken_limits(result("1", 2, 100), limits)
    assert lines == [
        "a, all, rss_bytes: 100 is over the limit of 99",
        "a, python_worker, cpu_percent: nothing was measured; the limit is 1",
    ]


def test_a_step_concludes_with_what_its_runs_found(tmp_path: Path) -> None:
    program = tmp_path / "step.py"
    program.write_text(
        "import os\nfrom pathlib import Path\nfrom cmsspark.apps.monitor import spark_watch\n"
        "state = Path(os.environ['CMSSPARK_STATE_DIR'])\n"
        "measure = spark_watch.begin(state, 'driver.py', {}, has_jvm=True)\n"
        "measure.line('at py4j.Protocol.getOutputCommand(Protocol.java:316)')\n"
        "measure.ended(0)\n"
    )
    steps = f'  - {{name: blown, command: ["{{python}}", "{program}"]}}\n'
    ended = perf(tmp_path, "run", str(suite_file(tmp_path, steps)))
    assert "blown: py4j_object: py4j.Protocol.getOutputCommand" in ended.stdout
    perf(tmp_path, "results", "mine", "--out", str(tmp_path / "r.html"))
    assert "blown: py4j_object" in (tmp_path / "r.html").read_text(encoding="utf-8")


def repeated(*rss: int, launcher: int = 0) -> SuiteResult:
    """A step that ran so many times, each with so much memory of Python at ten times;
    ``launcher``: virtual memory of one that was seen once.
    """
    log, rows = [], []
    for number, size in enumerate(rss):
        begin = number * 100
        log += [
            LogEntry("r", begin, "mark", "begin a"),
            LogEntry("r", begin + 90, "mark", "end a exit 0"),
        ]
        for tick in range(10):
            rows += samples(begin + tick, {1: size}, "python_driver")
    rows += samples(3, {7: launcher // 2}, "yarn_launcher") if launcher else []
    steps = step_times(log)
    repeats: dict[tuple[str, str], list[Maxima]] = {}
    for step in steps if len(steps) > 1 else ():
        for key, maxima in compute_maxima(rows, [step]).items():
            repeats.setdefault(key, []).append(maxima)
    run = WatchedRun("r", 0, "h", suite="s", status="DONE")
    return SuiteResult(run, steps, compute_maxima(rows, steps), repeats)


def test_a_comparison_names_the_gain_and_no_process_that_passed_by() -> None:
    before = repeated(261 * MB, 262 * MB, 260 * MB, launcher=100 * MB)
    after = repeated(216 * MB, 215 * MB, 217 * MB, launcher=621 * 100 * MB)
    rows = differences({None: before}, {None: after})
    assert change_lines(rows)[0] == (
        "a, python_driver: resident 261.0 MB → 216.0 MB (-17%)"
    ) or change_lines(rows)[1].startswith("a, python_driver: resident 261.0 MB → 216.0 MB")
    assert all(row.role != "yarn_launcher" for row in rows)
    (row,) = [row for row in rows if (row.role, row.measure) == ("python_driver", "rss_bytes")]
    assert row.noise == 2 * MB


def test_with_one_run_a_side_noise_is_not_known() -> None:
    rows = differences({None: repeated(261 * MB)}, {None: repeated(216 * MB)})
    assert all(row.noise is None for row in rows) and change_lines(rows) == []


def test_pages_escape_what_they_show() -> None:
    one = result("<b>1</b>", 2, 100, 1.0)
    rows = [ProcessSample("r", 1, "<i>h</i>", 1, 0, 0, "java", rss_bytes=5)]
    texts = [
        results_page(one, rows, [one, one]),
        trend_page("<u>s</u>", [one]),
        hosts_page(rows, int(time.time() * 1000), [("<s>x</s>", "y")]),
    ]
    for text in texts:
        for tag in ("<b>", "<i>", "<u>", "<s>"):
            assert tag not in text


def test_a_trend_has_a_line_for_each_input_size() -> None:
    results = [
        result(release, 2, rss * 1000, size)
        for release in "12"
        for rss, size in ((5, 10.0), (900, 1000.0))
    ]
    page = trend_page("s", results)
    assert page.count("<polyline") == 4, "memory and seconds"
    assert "a, 10<" in page and "a, 1000<" in page and ">a<" not in page
    assert ">a<" in trend_page("s", [result("1", 2, 100)])


def test_containers_of_a_role_are_those_in_which_it_runs() -> None:
    rows = [
        ProcessSample("r", 1, "h", pid, 0, 0, role, container=container)
        for pid, role, container in (
            (1, "java_executor", "c1"),
            (2, "java_executor", "c2"),
            (3, "python_worker", "c1"),
        )
    ]
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", hosts_page(rows, 1, []))
    of_role = {cells[place]: cells[place + 2] for place in range(2, len(cells), 9)}
    assert of_role == {"java_executor": "2", "python_worker": "1"}


def test_a_release_without_a_run_names_those_that_there_are(tmp_path: Path) -> None:
    with open_processes(tmp_path) as database:
        database.put_run(WatchedRun("r", 1, "h", suite="s", release="1.0", status="DONE"))
        with pytest.raises(InputMissing, match=r"runs of releases: 1\.0"):
            latest_by_size(database, "s", "2.0")
        assert load_result(database, database.runs()[0]).maxima == {}
