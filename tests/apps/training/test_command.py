"""``cmsspark lab train`` as people type it: dry runs, status, logs, stop, fetch,
forget, and wrong command lines.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cmsspark.apps.training.run_command import command
from cmsspark.base import errors
from tests.apps.training.scripts import FAILS, HELLO, with_path


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CMSSPARK_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hello.py").write_text(HELLO)
    (tmp_path / "fails.py").write_text(FAILS)
    return tmp_path


def train(*words: str) -> Result:
    return CliRunner().invoke(command, words, catch_exceptions=False)


def refused(*words: str) -> errors.CmssparkError:
    with pytest.raises(errors.CmssparkError) as error:
        train(*words)
    return error.value


def test_memory_that_is_not_enforced_is_reported_to_those_who_set_it(home: Path) -> None:
    (home / "quiet.py").write_text("print('no file')")
    note = "--memory is not enforced on this host"
    ended = train("run", "quiet.py", "--memory", "128Mi", "--name", "small")
    assert note in ended.stderr and "in " in ended.stderr and "train fetch" not in ended.stderr
    assert note in train("run", "quiet.py", "--memory", "2Gi", "--dry-run").stderr
    assert note not in train("run", "quiet.py", "--name", "usual").stderr


def test_a_run_from_start_to_fetch(home: Path) -> None:
    ended = train("run", "hello.py", "--workers", "2", "--name", "first", "--", "--epochs", "3")
    assert ended.exit_code == 0 and '"argv": ["--epochs", "3"]' in ended.stdout
    assert "first: done" in ended.stderr
    assert (
        "first" in train("status").stdout and "worker 1  done" in train("status", "first").stdout
    )
    assert train("logs", "first").stdout == ended.stdout
    assert train("logs", "first", "--worker", "1", "--follow").stdout.count('"rank": "1"') == 1
    assert train("stop", "first").stdout == "first: done; nothing to stop\n"
    assert train("fetch", "first", "--to", "here").stdout == "2 files in here\n"
    assert Path("here/model.txt").read_text() == "model of 0"
    assert Path("here/worker-1/model.txt").read_text() == "model of 1"
    assert refused("fetch", "first", "--to", "here").exit_code == 73
    assert refused("run", "hello.py", "--name", "first").exit_code == 2
    train("forget", "first")
    assert refused("status", "first").exit_code == 66


def test_a_failed_run_ends_with_65_and_says_so_afterwards(home: Path) -> None:
    error = refused("run", "fails.py", "--workers", "2", "--name", "bad")
    assert error.exit_code == 65 and "about to fail" in str(error)
    assert "bad: failed: worker 1 of bad ended with exit code 7" in train("status", "bad").stdout
    assert refused("fetch", "bad", "--to", "x").exit_code == 66


def test_stop_ends_a_run_of_another_process(home: Path) -> None:
    (home / "long.py").write_text("import time\nprint('up', flush=True)\ntime.sleep(600)")
    words = [sys.executable, "-m", "cmsspark", "lab", "train", "run", "long.py", "--name", "long"]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=with_path()
    ) as launcher:
        assert launcher.stdout is not None and launcher.stdout.readline() == b"worker 0 | up\n"
        assert refused("forget", "long").exit_code == 75
        assert train("stop", "long").stdout == "long: stopped\n"
        assert launcher.wait(300) == 75
        assert launcher.stderr is not None
        launcher.stderr.read()


GOES_ON = """
import os, pathlib, sys, time
mark = pathlib.Path(os.environ["CMSSPARK_TRAIN_OUTPUT"], "mark.txt")
if mark.exists():
    print("goes on", os.environ["CMSSPARK_TRAIN_ATTEMPT"], os.environ["OWN"], sys.argv[1:])
else:
    mark.write_text("made before")
    print("up", flush=True)
    time.sleep(600)
"""


def test_a_run_whose_launcher_died_is_resumed_with_what_its_workers_left(home: Path) -> None:
    (home / "goes_on.py").write_text(GOES_ON)
    words = ["run", "goes_on.py", "--name", "lost", "--env", "OWN=7", "--", "--epochs", "3"]
    with subprocess.Popen(
        [sys.executable, "-m", "cmsspark", "lab", "train", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=with_path(),
    ) as launcher:
        assert launcher.stdout is not None and launcher.stdout.readline() == b"worker 0 | up\n"
        assert refused("run", "--resume", "lost").exit_code == 75
        launcher.kill()
    ended = train("run", "--resume", "lost")
    assert ended.stdout == "worker 0 | goes on 2 7 ['--epochs', '3']\n"
    assert train("logs", "lost").stdout.splitlines() == ["worker 0 | up", ended.stdout.strip()]
    assert "lost: done" in train("status", "lost").stdout
    assert refused("run", "--resume", "lost").exit_code == 2


STUBBORN = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
with open(os.environ["CMSSPARK_TRAIN_OUTPUT"] + "/log", "a", buffering=1) as log:
    log.write("begin\\n")
    print("up", flush=True)
    time.sleep(4)
    log.write("end\\n")
"""


def test_a_resumed_script_begins_when_the_one_before_has_left_its_folder(home: Path) -> None:
    (home / "stubborn.py").write_text(STUBBORN)
    with subprocess.Popen(
        [sys.executable, "-m", "cmsspark", "lab", "train", "run", "stubborn.py", "--name", "two"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=with_path(),
    ) as launcher:
        assert launcher.stdout is not None and launcher.stdout.readline() == b"worker 0 | up\n"
        launcher.kill()
    train("run", "--resume", "two")
    train("fetch", "two", "--to", "back")
    assert (home / "back/log").read_text().split() == ["begin", "end"] * 2


def test_what_cannot_be_resumed_is_refused(home: Path) -> None:
    assert refused("run").problem == "name a script, or a run with --resume"
    assert refused("run", "--resume", "none").exit_code == 66
    assert refused("run", "fails.py", "--workers", "2", "--name", "bad").exit_code == 65
    alone = refused("run", "--resume", "bad", "--workers", "3")
    assert (alone.exit_code, alone.found) == (2, "--workers")
    secret = ("--", "--token", "Xy7-hunter2")
    assert refused("run", "fails.py", "--workers", "2", "--name", "s", *secret).exit_code == 65
    assert "may be a secret" in refused("run", "--resume", "s").problem


def test_a_dry_run_starts_nothing_and_shows_no_secret(home: Path) -> None:
    (home / "s").mkdir()
    (home / "s/TOKEN").write_text("very-secret")
    (home / "s/TOKEN").chmod(0o600)
    for backend in (("local",), ("spark",), ("k8s", "--image", "registry/x:1")):
        shown = train(
            "run", "hello.py", "--on", *backend, "--workers", "2", "--secret", "s=s", "--dry-run"
        ).stdout
        assert "TOKEN" in shown and "very-secret" not in shown
    assert not (home / "state").exists()


def test_secrets_among_the_arguments_of_a_script_reach_it_and_are_stored_nowhere(
    home: Path,
) -> None:
    words = (
        "--",
        "--token",
        "Xy7-hunter2",
        "--url",
        "https://me:Xy7-hunter2@host",
        "hf_" + "a1B2" * 8,
    )
    shown = train("run", "hello.py", "--dry-run", "--env", "API_TOKEN=Xy7-hunter2", *words).stdout
    assert (
        "--token *** --url https://***@host ***" in shown
        and "hunter2" not in shown
        and "a1B2" not in shown
    )
    ended = train("run", "hello.py", "--name", "first", *words)
    assert '"--token", "Xy7-hunter2"' in ended.stdout
    record = (home / "state/training/first/run.json").read_text()
    assert "--token" in record and "hunter2" not in record and "a1B2" not in record


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("no.py",), 66),
        (("hello.py", "--workers", "2", "--memory", "lots"), 2),
        (("hello.py", "--image", "x"), 2),
        (("hello.py", "--master", "yarn"), 2),
        (("hello.py", "--on", "k8s"), 2),
        (("hello.py", "--on", "spark", "--master", "local[1]", "--workers", "2"), 2),
        (("hello.py", "--env", "X"), 2),
        (("hello.py", "--env", "CMSSPARK_TRAIN_RANK=7"), 2),
        (("hello.py", "--secret", "nothing"), 66),
        (("hello.py", "--name", "../x"), 2),
    ],
)
def test_wrong_command_lines_are_refused_before_anything_is_made(
    home: Path, words: tuple[str, ...], code: int
) -> None:
    assert refused("run", *words).exit_code == code
    assert not (home / "state").exists()


@pytest.mark.parametrize(
    "words", [("run", "hello.py", "--workers", "0"), ("run", "hello.py", "--on", "x")]
)
def test_command_lines_that_click_refuses_end_with_2(home: Path, words: tuple[str, ...]) -> None:
    assert train(*words).exit_code == 2


@pytest.mark.parametrize("name", ["../../etc", "..", "a/b", ""])
def test_names_that_lead_elsewhere_are_no_names(home: Path, name: str) -> None:
    for words in (("status",), ("logs",), ("stop",), ("forget",), ("fetch", "--to", "x")):
        assert refused(*words, name).exit_code == 2
