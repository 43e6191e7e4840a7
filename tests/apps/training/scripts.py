"""Scripts for tests of the launcher, and a run of one."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from cmsspark.apps.training.launch import Backend, RunFolder, launch
from cmsspark.apps.training.local_backend import LocalBackend
from cmsspark.apps.training.script_check import TrainingRun

#: Prints what it was given, and leaves a file.
HELLO = """
import json, os, pathlib, sys
rank = os.environ["RANK"]
print(json.dumps({"argv": sys.argv[1:], "rank": rank, "tf": json.loads(os.environ["TF_CONFIG"])}))
pathlib.Path(os.environ["CMSSPARK_TRAIN_OUTPUT"], "model.txt").write_text(f"model of {rank}")
"""
#: Worker 1 fails, all others would wait for ever.
FAILS = """
import os, sys, time
if os.environ["RANK"] == "1":
    print("about to fail", flush=True)
    sys.exit(7)
time.sleep(600)
"""
#: Leaves a process behind that ignores signals and left the group; its id comes as a line.
LEAVES_ORPHANS = """
import os, subprocess, sys, time
code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
for own_session in (False, True):
    child = subprocess.Popen([sys.executable, "-c", code], start_new_session=own_session, stdout=subprocess.PIPE)
    child.stdout.readline()
    print("child", child.pid, flush=True)
print("ready", flush=True)
if "wait" in sys.argv:
    time.sleep(600)
"""

#: Imports a module of --files, which reads a file beside it.
USES_FILES = "import own.helper\nprint('helped by', own.helper.text())"


def with_files(folder: Path) -> Path:
    """A folder for --files: a package that reads a file of data; caches and hidden
    files stay behind.
    """
    (folder / "own" / "__pycache__").mkdir(parents=True)
    (folder / "own/__init__.py").write_text("")
    text = "import os\ndef text():\n    return open(os.environ['CMSSPARK_TRAIN_FILES'] + '/data/x.txt').read()\n"
    (folder / "own/helper.py").write_text(text)
    (folder / "own/__pycache__/a.pyc").write_bytes(b"x")
    (folder / "data").mkdir()
    (folder / "data/x.txt").write_text("data 7")
    (folder / ".hidden.py").write_text("(")
    return folder


def run_of(folder: Path, text: str, **values: Any) -> TrainingRun:
    """A run of a script with this text."""
    script = folder / values.pop("file", "script.py")
    script.write_text(text, encoding="utf-8")
    return replace(TrainingRun(name="test-run", script=script, grace=1.0), **values)


def launched(
    folder: Path, run: TrainingRun, backend: Backend | None = None, lines: list[str] | None = None
) -> tuple[RunFolder, list[str]]:
    """Launch a run to its end; its folder and the merged lines."""
    lines = [] if lines is None else lines
    where = RunFolder.create(folder / "training", run)
    launch(run, backend or LocalBackend(), where, lines.append)
    return where, lines


def is_running(pid: int) -> bool:
    """Whether a process runs; one that ended and was not waited for does not."""
    try:
        with open(f"/proc/{pid}/stat", encoding="latin-1") as stream:
            return stream.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def children(lines: list[str]) -> list[int]:
    """The processes that ``LEAVES_ORPHANS`` started."""
    return [int(line.split()[-1]) for line in lines if " child " in line]


def with_path() -> dict[str, str]:
    """The environment of a process that imports this tree."""
    top = Path(__file__).resolve().parents[3]
    return {**os.environ, "PYTHONPATH": str(top)}
