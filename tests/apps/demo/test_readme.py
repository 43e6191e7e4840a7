"""The README's commands and its Python do what it says, on a small CMS instead of /data."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest

from cmsspark.apps.demo import make
from cmsspark.apps.demo.cli import installed

README = Path(__file__).parents[3] / "README.md"
BLOCKS = re.findall(
    r"^```(\w*)\n(.*?)^```", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
)
COMMANDS = [
    line
    for language, block in BLOCKS
    if not language
    for line in block.splitlines()
    if line.startswith(("run_spark ", "cmsspark "))
]
MODULES = {"run_spark": "cmsspark.submit", "cmsspark": "cmsspark.main"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a mirror to read, somebody's own job, and credentials."""
    place = tmp_path_factory.mktemp("readme")
    make(place / "mirror", date(2026, 1, 15), records=2_000, files=500, datasets=40, people=30)
    (place / "my_analysis.py").write_text("")
    broker = {
        "username": "u",
        "password": "p",
        "producer": "cms",
        "topic": "/topic/cms.test",
        "host_and_ports": "127.0.0.1:1",
    }
    (place / "amq_broker.json").write_text(json.dumps(broker))
    (place / "amq_broker.json").chmod(0o600)
    return place


def run(command: list[str], place: Path) -> subprocess.CompletedProcess[str]:
    environment = {
        "PYTHONPATH": str(README.parent),
        "XDG_STATE_HOME": str(place / "state"),
        "XDG_CACHE_HOME": str(place / "cache"),
    }
    return subprocess.run(
        command,
        cwd=place,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


def test_the_readme_shows_commands_of_both_kinds() -> None:
    assert {command.split()[0] for command in COMMANDS} == set(MODULES)


def test_each_document_that_the_readme_names_is_there() -> None:
    named = set(
        re.findall(r"`(docs/[\w/.-]+|[A-Z]+\.md|etc/[\w.-]+)`", README.read_text(encoding="utf-8"))
    )
    assert named
    assert not [name for name in sorted(named) if not (README.parent / name).exists()]


# One test, as the commands build on each other.
def test_each_command_of_the_readme_works(place: Path) -> None:
    for command in COMMANDS:
        name, *arguments = shlex.split(command.replace("/data/", f"{place}/"))
        if ("--yarn" in arguments or "stomp" in arguments) and "--dry-run" not in arguments:
            # No cluster and no broker here: what would be started or sent.
            arguments.insert(1, "--dry-run")
        ended = run([*installed(name, MODULES[name]), *arguments], place)
        assert ended.returncode == 0, f"{command}\n{ended.stdout}{ended.stderr}"
        assert ended.stdout or ended.stderr


def test_the_readmes_python_works_on_what_the_commands_left(place: Path) -> None:
    source = "\n".join(block for language, block in BLOCKS if language == "python")
    source = source.replace("/data/", f"{place}/")
    source = source.replace('["cmsspark", ', f"[*{installed('cmsspark', 'cmsspark.main')!r}, ")
    checks = (
        'assert len(usage) > 40\nassert accesses.where("block_name is not null").count() > 500\n'
    )
    ended = run([sys.executable, "-c", f"{source}\n{checks}"], place)
    assert ended.returncode == 0, ended.stderr
