"""The launcher on this host: what workers are given, merged logs, failures, retries,
and that nothing is left.
"""

from __future__ import annotations

import hashlib
import json
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from cmsspark.apps.training import worker
from cmsspark.apps.training.launch import RunFolder, RunState, WorkerFailed, brought_back
from cmsspark.apps.training.script_check import Secret
from tests.apps.training.scripts import (
    FAILS,
    HELLO,
    LEAVES_ORPHANS,
    USES_FILES,
    children,
    is_running,
    launched,
    run_of,
    with_files,
    with_path,
)


def test_each_worker_gets_its_rank_and_the_addresses_of_all(tmp_path: Path) -> None:
    folder, _ = launched(tmp_path, run_of(tmp_path, HELLO, workers=3, arguments=("--a", "b c")))
    said = [json.loads(folder.worker_log(rank).read_text()) for rank in range(3)]
    assert [each["rank"] for each in said] == ["0", "1", "2"]
    assert [each["tf"]["task"]["index"] for each in said] == [0, 1, 2]
    addresses = said[0]["tf"]["cluster"]["worker"]
    assert len(set(addresses)) == 3 and all(
        each["tf"]["cluster"]["worker"] == addresses for each in said
    )
    assert said[0]["argv"] == ["--a", "b c"]


def test_variables_of_the_three_frameworks_name_worker_0_as_the_one_to_meet() -> None:
    job = {
        "rank": 1,
        "addresses": ["a:1", "b:2"],
        "cpus": 3,
        "run": "r",
        "attempt": 1,
        "output": "/o",
    }
    found = worker.worker_environment(job)
    assert json.loads(found["TF_CONFIG"]) == {
        "cluster": {"worker": ["a:1", "b:2"]},
        "task": {"type": "worker", "index": 1},
    }
    assert (
        found["JAX_COORDINATOR_ADDRESS"],
        found["JAX_NUM_PROCESSES"],
        found["JAX_PROCESS_ID"],
    ) == ("a:1", "2", "1")
    assert (found["MASTER_ADDR"], found["MASTER_PORT"], found["RANK"], found["WORLD_SIZE"]) == (
        "a",
        "1",
        "1",
        "2",
    )
    assert found["OMP_NUM_THREADS"] == "3"


def test_lines_of_all_workers_are_merged_with_their_names_and_what_they_leave_comes_back(
    tmp_path: Path,
) -> None:
    folder, lines = launched(tmp_path, run_of(tmp_path, HELLO, workers=2))
    assert {line.partition(" | ")[0] for line in lines} == {"worker 0", "worker 1"}
    assert folder.merged_log.read_text().splitlines() == lines
    assert list(map(str, brought_back(folder))) == ["worker-0/model.txt", "worker-1/model.txt"]
    assert (folder.output / "worker-1/model.txt").read_text() == "model of 1"
    assert folder.state().state == "done" and folder.state().workers == ["done", "done"]


def test_a_failed_worker_ends_the_run_at_once_with_its_last_lines(tmp_path: Path) -> None:
    with pytest.raises(WorkerFailed, match="worker 1 of test-run ended with exit code 7") as error:
        launched(tmp_path, run_of(tmp_path, FAILS, workers=3))
    assert "about to fail" in str(error.value) and error.value.exit_code == 65
    state = RunFolder.find(tmp_path / "training", "test-run").state()
    assert (state.state, state.workers) == ("failed", ["stopped", "failed", "stopped"])


def test_a_killed_worker_is_named_with_its_signal(tmp_path: Path) -> None:
    text = "import os, signal, time\nif os.environ['RANK'] == '0': os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(600)"
    with pytest.raises(WorkerFailed, match="worker 0 of test-run was killed by SIGKILL"):
        launched(tmp_path, run_of(tmp_path, text, workers=2))


def test_a_worker_program_that_is_killed_takes_its_script_with_it(tmp_path: Path) -> None:
    text = (
        "import os, pathlib, signal, time\n"
        "pathlib.Path(os.environ['CMSSPARK_TRAIN_OUTPUT'], 'pid').write_text(str(os.getpid()))\n"
        "os.kill(os.getppid(), signal.SIGKILL)\ntime.sleep(600)"
    )
    with pytest.raises(
        WorkerFailed, match="worker 0 of test-run is gone: its process was killed by SIGKILL"
    ):
        launched(tmp_path, run_of(tmp_path, text))
    pid = RunFolder.find(tmp_path / "training", "test-run").output / "worker-0/pid"
    # The kernel has killed it; on a busy machine it takes a moment until it is gone.
    never = threading.Event()
    for _ in range(3_000):
        if is_running(int(pid.read_text())):
            never.wait(0.1)
    assert not is_running(int(pid.read_text()))


def test_a_retry_goes_on_from_what_the_attempt_before_left(tmp_path: Path) -> None:
    text = (
        "import os, pathlib, sys\nkept = pathlib.Path(os.environ['CMSSPARK_TRAIN_OUTPUT'], 'n')\n"
        "n = int(kept.read_text()) + 1 if kept.exists() else 1\nkept.write_text(str(n))\n"
        "print('attempt', os.environ['CMSSPARK_TRAIN_ATTEMPT'], 'n', n)\nsys.exit(n < 3)"
    )
    folder, lines = launched(tmp_path, run_of(tmp_path, text, retries=2))
    assert [line for line in lines if "launcher" not in line] == [
        f"worker 0 | attempt {i} n {i}" for i in (1, 2, 3)
    ]
    assert "launcher | worker 0 ended with exit code 1; attempt 2 of 3" in lines
    assert folder.state().attempt == 3 and folder.state().state == "done"


@pytest.mark.parametrize("is_other", [False, True])
def test_processes_that_a_script_leaves_behind_end_with_it(tmp_path: Path, is_other: bool) -> None:
    lines: list[str] = []
    ends = (
        "import os, sys, time\nif os.environ['RANK'] == '1': sys.exit(3)\ntime.sleep(600)"
        if is_other
        else "sys.exit(3)"
    )
    with pytest.raises(WorkerFailed, match="exit code 3"):
        launched(
            tmp_path,
            run_of(tmp_path, f"{LEAVES_ORPHANS}\n{ends}", workers=1 + is_other),
            lines=lines,
        )
    assert len(children(lines)) >= 2
    assert not [pid for pid in children(lines) if is_running(pid)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_or_killed_launcher_leaves_no_process(
    tmp_path: Path, number: signal.Signals
) -> None:
    script = tmp_path / "script.py"
    script.write_text("import os\nprint('script', os.getpid(), flush=True)\n" + LEAVES_ORPHANS)
    command = [
        sys.executable,
        "-m",
        "cmsspark",
        "lab",
        "train",
        "run",
        str(script),
        "--workers",
        "2",
        "--name",
        "r",
        "--",
        "wait",
    ]
    environ = {**with_path(), "CMSSPARK_STATE_DIR": str(tmp_path / "state")}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ
    ) as launcher:
        assert launcher.stdout is not None and launcher.stderr is not None
        pids: list[int] = []
        ready = 0
        for line in launcher.stdout:
            pids += [int(line.split()[-1])] if " child " in line or " script " in line else []
            ready += line.endswith("ready\n")
            if ready == 2:
                break
        launcher.send_signal(number)
        code = launcher.wait(300)
        error = launcher.stderr.read()
    assert len(pids) == 6
    if number == signal.SIGKILL:
        # Nobody waits for the workers now: they end by themselves, soon.
        never = threading.Event()
        for _ in range(3_000):
            if any(map(is_running, pids)):
                never.wait(0.1)
    else:
        assert code == 75 and "Traceback" not in error
        assert "interrupted; cmsspark lab train run --resume r goes on" in error
    assert not [pid for pid in pids if is_running(pid)]
    state = RunFolder.find(tmp_path / "state/training", "r").state().state
    assert state == ("lost" if number == signal.SIGKILL else "stopped")


def test_secrets_reach_the_script_and_no_log_record_or_command_line(tmp_path: Path) -> None:
    value = "s3cr3t-value\nsecond-line-of-it"
    text = (
        "import hashlib, os, sys\nvalue = os.environ['TOKEN']\n"
        "print('have', hashlib.sha256(value.encode()).hexdigest() == sys.argv[1])\n"
        "print(value); print('x' + value.split()[0] + 'y')\n"
        "print(open(f'/proc/{os.getppid()}/cmdline').read())"
    )
    secret = Secret("s3", {"TOKEN": value, "file.key": "a-file-only"})
    run = run_of(
        tmp_path, text, secrets=(secret,), arguments=(hashlib.sha256(value.encode()).hexdigest(),)
    )
    folder, lines = launched(tmp_path, run)
    assert lines[0] == "worker 0 | have True" and "x***y" in lines[-2]
    for file in (path for path in folder.path.rglob("*") if path.is_file()):
        assert (
            "s3cr3t-value" not in file.read_text() and "second-line-of-it" not in file.read_text()
        )
    assert "s3cr3t" not in repr(run)


@pytest.mark.parametrize(
    "file", ["-c.py", "a b.py", "$(touch x).py", "ü;rm.py", "a'b\".py", "new\nline.py"]
)
def test_a_scripts_name_is_a_name_and_nothing_else(
    tmp_path: Path, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = run_of(
        Path(),
        "import sys; print(sys.argv[1:])",
        file=file,
        arguments=("--", "-c", "$(touch y)", "a\nb", ""),
    )
    _, lines = launched(tmp_path, run)
    assert lines == ["worker 0 | " + repr(["--", "-c", "$(touch y)", "a\nb", ""])]
    assert not (tmp_path / "x").exists() and not (tmp_path / "y").exists()


def test_what_is_no_text_and_lines_without_end_are_passed_on(tmp_path: Path) -> None:
    text = "import os\nos.write(1, b'\\xff\\x1b[31m red\\n' + b'x' * 200_000 + b'\\nlast\\r50%\\r100%')"
    folder, lines = launched(tmp_path, run_of(tmp_path, text))
    assert lines[0] == "worker 0 | \ufffd\\x1b[31m red"
    assert "".join(line.removeprefix("worker 0 | ") for line in lines[1:-1]) == "x" * 200_000
    assert lines[-1] == "worker 0 | 100%"
    assert folder.worker_log(0).read_text().endswith("100%\n")


def test_a_framework_can_bind_its_port_with_any_options_and_the_kernel_gives_it_to_nobody_else() -> (
    None
):
    import socket

    from cmsspark.apps.training.barrier_task import free_addresses

    addresses = free_addresses(20)
    assert len(set(addresses)) == 20
    with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as stream:
        first = int(stream.read().split()[0])
    for address in addresses:
        host, _, port = address.rpartition(":")
        assert int(port) < first or first < 16_000
        with socket.socket() as plain:
            plain.bind((host, int(port)))
            plain.listen()
            socket.create_connection((host, int(port)), 5).close()


def test_files_travel_with_the_script_and_can_be_imported(tmp_path: Path) -> None:
    files = with_files(tmp_path / "files")
    folder, lines = launched(tmp_path, run_of(tmp_path, USES_FILES, files=files))
    assert "worker 0 | helped by data 7" in lines and folder.state().state == "done"


def test_gpus_of_workers_on_one_host_are_different_ones(tmp_path: Path) -> None:
    text = "import os; print('gpus', os.environ['CUDA_VISIBLE_DEVICES'])"
    _, lines = launched(tmp_path, run_of(tmp_path, text, workers=2, gpus=2))
    assert {line for line in lines if "gpus" in line} == {
        "worker 0 | gpus 0,1",
        "worker 1 | gpus 2,3",
    }


def test_a_run_and_its_workers_are_lost_with_their_launcher(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, run_of(tmp_path, "", workers=2))
    folder.write_state(RunState(workers=["running", "done"]))
    assert folder.state().state == "running"
    record = folder.path / "run.json"
    record.write_text(re.sub(r'"process_began": \d+', '"process_began": 1', record.read_text()))
    state = folder.state()
    assert (state.state, state.reason, state.workers) == (
        "lost",
        "its launcher is gone",
        ["lost", "done"],
    )
