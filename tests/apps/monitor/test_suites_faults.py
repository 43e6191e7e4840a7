"""Suites that go wrong: files, programs, nodes and processes that do not do what they
should, and odd comparisons.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from cmsspark.apps.monitor.processes import reaper as orphan_reaper
from cmsspark.apps.monitor.processes.sampler import STEP_VARIABLE
from cmsspark.apps.monitor.suites.results import (
    StepTime,
    SuiteResult,
    differences,
    only_in_one,
)
from cmsspark.apps.monitor.suites.suite import filled, read_suite, size_text
from cmsspark.base.errors import SettingsError
from cmsspark.store.process_samples import LogEntry, WatchedRun, open_processes
from tests.apps.monitor.test_processes_watch import lives, until
from tests.apps.monitor.test_suites import CLI, perf, result, suite_file

A = "  - {name: a, command: [x]}\n"


@pytest.mark.parametrize(
    ("steps", "more", "line", "message"),
    [
        ("  - {name: a}\n", "", 4, "needs `command`"),
        ("  - {name: a, command: [x], comand: y}\n", "", 4, "no setting 'comand'"),
        ("  - {name: a b, command: [x]}\n", "", 4, "name"),
        ("  - {name: a, command: [x]}\n  - {name: a, command: [x]}\n", "", 5, "a name of its own"),
        ("  - {name: a, command: []}\n", "", 4, "command"),
        ("  - {name: a, command: ['{sise}']}\n", "", 4, "a placeholder is one of"),
        ("  - {name: a, command: ['{size}']}\n", "", 4, "{size} needs `sizes`"),
        ("  - {name: a, command: [x], timeout_seconds: 0}\n", "", 4, "timeout_seconds"),
        (
            "  - {name: a, command: [x]}\n",
            "limits:\n  - {step: b, rss_bytes: 1}\n",
            6,
            "a limit names a step",
        ),
        (
            "  - {name: a, command: [x]}\n",
            "limits:\n  - {step: a, role: jvm, rss_bytes: 1}\n",
            6,
            "names a role",
        ),
        ("  - {name: a, command: [x]}\n", "limits:\n  - {step: a}\n", 6, "a limit has one of"),
        (
            "  - {name: a, command: [x]}\n",
            "nodes: {hosts: [h], start: ['{hots}'], token_file: t}\n",
            5,
            "placeholder",
        ),
        ("  []\n", "", 3, "steps is not a list with at least 1 in it"),
        ("  - {name: a/b, command: [x]}\n", "", 4, "such as 'a_b'"),
        ("  - {name: 'a b', command: [x]}\n", "", 4, "such as 'a_b'"),
        ('  - {name: "a\\nb", command: [x]}\n', "", 4, "a name has letters"),
        ("  - {name: '', command: [x]}\n", "", 4, "a name has letters"),
        ("  - {nam: a, command: [x]}\n", "", 4, "did you mean name?"),
        ("  - {name: a, command: ls -l}\n", "", 4, "write it as [VALUE, …]"),
        ("  - {name: a, command: ['']}\n", "", 4, "a command begins with a program"),
        ('  - {name: a, command: ["a\\0b"]}\n', "", 4, "no NUL"),
        ('  - {name: a, command: [x], env: {A: "a\\0b"}}\n', "", 4, "no NUL"),
        ("  - {name: a, command: [x], env: {A=B: c}}\n", "", 4, "a name without ="),
        ("  - {name: a, command: [x], env: {A: '{sise}'}}\n", "", 4, "did you mean {size}?"),
        ("  - {name: a, command: [awk, '{print}']}\n", "", 4, "other braces need a blank"),
        ("  - {name: a, command: [x], timeout_seconds: .inf}\n", "", 4, "timeout_seconds"),
        (
            "  - {name: a, command: [x], env: {B: b, OMP_NUM_THREADS: 1}}\n",
            "",
            4,
            "env.OMP_NUM_THREADS is not a text",
        ),
        ('  - {name: a, command: ["x\\ud800"]}\n', "", 4, "no half of a character"),
        (A, "limits:\n  - {step: a, seconds: .nan}\n", 6, "limits.seconds is not a number >= 0"),
        (
            A,
            "limits:\n  - {step: a, cpu_percent: -1}\n",
            6,
            "limits.cpu_percent is not a number >= 0",
        ),
        (
            A,
            "limits:\n  - {step: a, rss_bytes: -1}\n",
            6,
            "limits.rss_bytes is not a whole number >= 0",
        ),
        (A, "sizes: [.inf]\n", 5, "sizes"),
        (A, "sizes: [.nan]\n", 5, "sizes"),
        (A, "sizes: [1, 2, 1]\n", 5, "each input size is named once"),
        (A, "limits:\n  - {step: aa, rss_bytes: 1}\n", 6, "did you mean a?"),
        (
            A,
            "limits:\n  - {step: a, role: python_drivr, rss_bytes: 1}\n",
            6,
            "did you mean python_driver?",
        ),
        (A, "nodes: {hosts: [h, h], start: [s], token_file: t}\n", 5, "each host is named once"),
        (
            A,
            "nodes: {hosts: [-oProxyCommand=x], start: [s], token_file: t}\n",
            5,
            "does not begin with a dash",
        ),
        (
            A,
            "nodes: {hosts: [], start: [s], token_file: t}\n",
            5,
            "hosts is not a list with at least 1",
        ),
        ("  - {name: a, command: [x\n", "", 4, "plain YAML"),
    ],
)
def test_a_wrong_suite_is_refused_with_file_line_and_a_next_step(
    tmp_path: Path, steps: str, more: str, line: int, message: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        read_suite(suite_file(tmp_path, steps, more))
    assert f"suite.yaml, line {line}" in str(caught.value) and message in str(caught.value)


def test_values_are_filled_in_once_and_sizes_keep_their_digits() -> None:
    assert filled(["{folder}/{size}"], {"{size}": "3", "{folder}": "/x{size}"}) == ["/x{size}/3"]
    assert [size_text(size) for size in (1.0, 10_000_000, 1234567.5, 0.25)] == [
        "1",
        "10000000",
        "1234567.5",
        "0.25",
    ]


def test_names_of_all_letters_env_with_placeholders_and_steps_too_short_to_sample(
    tmp_path: Path,
) -> None:
    steps = "  - {name: größe_計, env: {N: 'n={size}'}, command: [sh, -c, 'echo $N; exit 3'], exit_codes: [3]}\n"
    shown = perf(
        tmp_path,
        "run",
        str(suite_file(tmp_path, steps, "sizes: [10000000]\n")),
        "--release",
        "v 1/ü",
    )
    assert (
        "größe_計" in shown.stdout
        and "size 10000000" in shown.stdout
        and "1e+07" not in shown.stdout
    )
    assert [file.read_text() for file in tmp_path.glob("perf/*/größe_計.log")] == ["n=10000000\n"]


@pytest.mark.parametrize("release", ["", " ", "a\nb", "a\x1b[31m", "x" * 101])
def test_a_release_is_a_printable_name(tmp_path: Path, release: str) -> None:
    ended = perf(tmp_path, "run", str(suite_file(tmp_path, A)), "--release", release, check=2)
    assert "--release is a name" in ended.stderr and "\x1b" not in ended.stderr


def test_a_step_that_takes_too_long_fails_also_where_its_code_is_allowed(tmp_path: Path) -> None:
    steps = '  - {name: a, timeout_seconds: 0.3, exit_codes: [0, 124], command: [sleep, "60"]}\n'
    perf(tmp_path, "run", str(suite_file(tmp_path, steps)), check=75)
    with open_processes(tmp_path) as database:
        assert [(run.status, run.exit_code) for run in database.runs()] == [("FAILED", 124)]


def test_a_command_that_a_shell_does_not_find_is_not_to_be_tried_again(tmp_path: Path) -> None:
    steps = "  - {name: a, command: [sh, -c, no-such-program]}\n"
    perf(tmp_path, "run", str(suite_file(tmp_path, steps)), check=127)


def marked(run: str = "") -> list[psutil.Process]:
    """Living processes of steps."""
    found = []
    for process in psutil.process_iter():
        try:
            marker = process.environ().get(STEP_VARIABLE, "")
            if marker and marker.startswith(run) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def words_of(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def test_what_a_step_leaves_is_ended_and_named_also_daemons(tmp_path: Path) -> None:
    # The second one is in a session of its own and has no parent any more.
    daemon = "import sys, time; open(*sys.argv[1:]); time.sleep(600)"
    # The step ends when the daemon is at work: a process that is about to start its
    # program has no environment yet.
    text = f'sleep 600 & setsid -f "{{python}}" -c "{daemon}" {{folder}}/up w; '
    text += "until [ -e {folder}/up ]; do sleep 0.1; done"
    ended = perf(
        tmp_path,
        "run",
        str(suite_file(tmp_path, f"  - {{name: a, command: [sh, -c, '{text}']}}\n")),
    )
    assert re.search(
        r"a left 2 processes, which are ended: ((sleep|python\S*) \(\d+\)(, )?){2}$",
        ended.stderr,
        re.M,
    )
    with open_processes(tmp_path) as database:
        run = database.runs()[0].run
        assert [entry.type for entry in database.log(run)] == ["mark", "mark", "info"]
    assert marked(run) == []


def test_ctrl_c_ends_a_step_that_ignores_it_and_what_it_started(tmp_path: Path) -> None:
    text = 'trap "" INT TERM; setsid sleep 600 & while true; do sleep 0.1; done'
    steps = f"  - {{name: a, command: [sh, -c, '{text}']}}\n  - {{name: b, command: [touch, '{tmp_path}/b']}}\n"
    command = [sys.executable, "-c", CLI, "lab", "perf", "run", str(suite_file(tmp_path, steps))]
    environ = {**os.environ, "CMSSPARK_STATE_DIR": str(tmp_path)}
    with subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        run = process.stderr.readline().split()[1]
        # A process that is about to start its program has no environment: it would not
        # be found, here and there.
        until(lambda: ["sleep", "600"] in map(words_of, marked(run)))
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=300)
    assert process.returncode != 0 and not (tmp_path / "b").exists()
    assert marked(run) == []
    with open_processes(tmp_path) as database:
        assert [one.status for one in database.runs()] == ["ENDED"]


def test_a_runner_that_is_killed_leaves_no_step_no_daemon_and_no_monitor(tmp_path: Path) -> None:
    text = 'trap "" TERM; setsid sleep 600 & env -i sleep 600 & touch {folder}/up; while true; do sleep 0.1; done'
    steps = f"  - {{name: a, command: [sh, -c, '{text}']}}\n"
    file = suite_file(
        tmp_path, steps, nodes(tmp_path, "h", "[sh, -c, 'exec sleep 600', '{host}']")
    )
    command = [sys.executable, "-c", CLI, "lab", "perf", "run", str(file)]
    environ = {**os.environ, "CMSSPARK_STATE_DIR": str(tmp_path), "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, env=environ, stderr=subprocess.DEVNULL) as runner:
        until(lambda: bool(list(tmp_path.glob("cmsspark-suite-*/up"))))
        # The step with its three programs, the monitor of a node, and the guard.
        until(lambda: len(psutil.Process(runner.pid).children(recursive=True)) >= 5)
        below = psutil.Process(runner.pid).children(recursive=True)
        runner.kill()
    until(lambda: not any(map(lives, below)))
    with open_processes(tmp_path) as database:
        (run,) = database.runs()
        assert run.status == "ENDED" and run.end_ms is not None
        assert "was killed" in database.log(run.run)[-1].message
    assert marked(run.run) == [] and list(tmp_path.glob("cmsspark-suite-*")) == []


def test_what_is_killed_is_gone_afterwards() -> None:
    with subprocess.Popen(
        ["sleep", "600"], env={**os.environ, STEP_VARIABLE: f"killed-{os.getpid()}/0/"}
    ) as process:
        orphan_reaper._kill((), f"killed-{os.getpid()}/")
        assert not psutil.pid_exists(process.pid)


def test_a_guard_that_does_not_end_in_time_changes_nothing_for_the_suite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orphan_reaper, "_PATIENCE_S", 0.0)
    monkeypatch.setattr(
        orphan_reaper, "_MAIN", "import sys, time; sys.stdin.read(); time.sleep(600)"
    )
    with orphan_reaper.OrphanReaper(tmp_path) as guard:
        guard.run_began("run", tmp_path / "scratch")
    assert guard._process is not None
    guard._process.kill()
    assert guard._process.wait(300) == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == []


def nodes(folder: Path, hosts: str, start: str) -> str:
    token = folder / "token"
    token.touch(mode=0o600)
    token.write_text("a-token-of-these-tests-0123456789")
    return f"nodes: {{hosts: [{hosts}], start: {start}, token_file: token}}\n"


def test_a_monitor_that_cannot_be_started_ends_the_run_before_its_first_step(
    tmp_path: Path,
) -> None:
    steps = "  - {name: a, command: [touch, '{suite_folder}/ran']}\n"
    file = suite_file(tmp_path, steps, nodes(tmp_path, "h", "[no-such-program, '{host}']"))
    ended = perf(tmp_path, "run", str(file), check=78)
    assert (
        "the command of the monitor of h cannot be started" in ended.stderr
        and "is it on PATH?" in ended.stderr
    )
    assert not (tmp_path / "ran").exists()


def test_a_node_that_cannot_be_reached_is_named_and_the_run_goes_on(tmp_path: Path) -> None:
    steps = "  - {name: a, command: [sleep, '0.1']}\n"
    file = suite_file(tmp_path, steps, nodes(tmp_path, "h", "[sh, -c, 'exit 255', '{host}']"))
    ended = perf(tmp_path, "run", str(file))
    assert "the monitor of h ended with 255: samples of this node may be missing" in ended.stderr
    with open_processes(tmp_path) as database:
        run = database.runs()[0]
        assert run.status == "DONE" and "error" in [entry.type for entry in database.log(run.run)]


def test_comparisons_that_say_nothing_are_refused(tmp_path: Path) -> None:
    with open_processes(tmp_path) as database:
        for release in ("1.0", "2.0"):
            database.put_run(
                WatchedRun(f"r{release}", 1, "h", suite="train", release=release, status="DONE")
            )
    assert "two releases" in perf(tmp_path, "compare", "train", "1.0", "1.0", check=2).stderr
    assert (
        "not a number"
        in perf(tmp_path, "compare", "train", "1.0", "2.0", "--tolerance", "nan", check=2).stderr
    )
    for words in (("compare", "trian", "1.0", "2.0"), ("results", "trian"), ("trend", "trian")):
        assert "did you mean train?" in perf(tmp_path, *words, check=66).stderr
    missing_release = perf(tmp_path, "compare", "train", "3.0", "1.0", check=66)
    assert "complete runs of releases: " in missing_release.stderr
    missing = tmp_path / "none" / "x.html"
    assert (
        "No such file"
        in perf(tmp_path, "results", "train", "--out", str(missing), check=73).stderr
    )


def test_the_same_release_twice_counts_with_its_latest_run(tmp_path: Path) -> None:
    with open_processes(tmp_path) as database:
        for run, start, release, seconds in (("a", 1, "1", 9), ("b", 2, "1", 2), ("c", 3, "2", 4)):
            database.put_run(
                WatchedRun(run, start, "h", suite="s", release=release, status="DONE")
            )
            database.add(
                [],
                [
                    LogEntry(run, 0, "mark", "begin x"),
                    LogEntry(run, seconds * 1000, "mark", "end x exit 0"),
                ],
            )
    rows = [
        json.loads(line)
        for line in perf(tmp_path, "compare", "s", "1", "2", "--json").stdout.splitlines()
    ]
    assert [(row["step"], row["measure"], row["ratio"]) for row in rows] == [("x", "seconds", 2.0)]


def test_steps_and_sizes_of_one_side_are_named() -> None:
    one, two = result("1", 2, 100), result("2", 3, 150)
    more = SuiteResult(two.run, [*two.steps, StepTime("new", 0, 5)], two.maxima)
    assert only_in_one({1.0: one, 4.0: one}, {1.0: more}) == [
        "only BEFORE has a run of the input size 4",
        "only AFTER has the step new",
    ]
    assert [row.ratio for row in differences({1.0: one}, {1.0: more}) if row.step == "new"] == [
        None
    ]
