"""What bin/* tell on a machine that lacks something, and that they do nothing twice. Made-up programs stand on PATH."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parent.parent


def setup(script: str, path: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run words of bin/setup with only ``path`` and the basic tools on PATH."""
    return subprocess.run(
        ["/bin/bash", "-c", f". {REPO}/bin/setup\n{script}"],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": f"{path}:{tools(path)}", "HOME": str(path), **environ},
    )


def tools(folder: Path) -> Path:
    """The basic tools, without Python, Java, apt-get and sudo."""
    place = folder / "tools"
    if not place.exists():
        place.mkdir()
        for name in ("dirname", "readlink", "sed", "head", "id", "cat", "env", "sha256sum", "cut"):
            (place / name).symlink_to(next(p for p in (Path("/usr/bin") / name, Path("/bin") / name) if p.exists()))
    return place


def program(folder: Path, name: str, body: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text(f"#!/bin/sh\n{body}\n")
    file.chmod(0o755)
    return file


def test_a_python_that_is_too_old_is_reported_with_the_next_step(tmp_path: Path) -> None:
    program(tmp_path, "python3", 'case "$1" in --version) echo Python 3.9.2;; *) exit 1;; esac')
    run = setup("find_python || no_python", tmp_path)
    assert run.returncode == 78
    assert "Python 3.11, 3.12 or 3.13" in run.stderr and "found: Python 3.9.2" in run.stderr
    assert "apt-get install python3" in run.stderr


def test_a_newer_python_beside_the_old_one_is_found(tmp_path: Path) -> None:
    program(tmp_path, "python3", "exit 1")
    good = program(tmp_path, "python3.12", "exit 0")
    assert setup("find_python", tmp_path).stdout.strip() == str(good)
    chosen = program(tmp_path / "own", "mine", "exit 0")
    assert setup("find_python", tmp_path, PYTHON=str(chosen)).stdout.strip() == str(chosen)


def test_no_java_is_reported_with_the_exact_command(tmp_path: Path) -> None:
    run = setup("no_java ' 17 21 '", tmp_path)
    assert run.returncode == 78
    assert "Java 17 or 21 is wanted" in run.stderr and "sudo apt-get install openjdk-17-jre-headless" in run.stderr


@pytest.mark.parametrize(
    ("version", "major"), [("17.0.15", "17"), ("21", "21"), ("1.8.0_452", "8"), ("21-ea", "21"), ("25.0.1", "25")]
)
def test_javas_major_version_is_read(version: str, major: str, tmp_path: Path) -> None:
    java = program(tmp_path, "java", f"echo 'openjdk version \"{version}\" 2026-01-01' >&2")
    assert setup(f"java_major {java}", tmp_path).stdout.strip() == major


def test_java_home_comes_first_and_one_that_does_not_fit_is_passed_over(tmp_path: Path) -> None:
    for home, version in (("old", "11.0.1"), ("new", "21.0.1"), ("other", "17.0.1")):
        program(tmp_path / home / "bin", "java", f"echo 'openjdk version \"{version}\"' >&2")
    words = "use_java && echo $JAVA_HOME"
    path = tmp_path / "other" / "bin"
    assert setup(words, path, JAVA_HOME=str(tmp_path / "new")).stdout.strip() == str(tmp_path / "new")
    assert setup(words, path, JAVA_HOME=str(tmp_path / "old")).stdout.strip() == str(tmp_path / "other")


def test_packages_are_not_installed_by_an_account_that_may_not(tmp_path: Path) -> None:
    program(tmp_path, "apt-get", "echo installed")
    program(tmp_path, "id", "echo 1000")
    run = setup("install_packages activemq || echo refused", tmp_path)
    assert run.stdout.strip() == "refused"


def test_an_environment_is_made_anew_once_there_is_a_c_compiler(tmp_path: Path) -> None:
    headers = tmp_path / "include"
    headers.mkdir()
    program(tmp_path, "python3", f"echo {headers}")
    words = f"stamp_of python3 {REPO}/constraints.txt"
    without = setup(words, tmp_path).stdout
    program(tmp_path, "cc", "exit 0")
    assert len(without) == 33 and setup(words, tmp_path).stdout == without, "Python's headers are missing still"
    (headers / "Python.h").touch()
    assert setup(words, tmp_path).stdout not in ("", without)


def test_every_script_is_sound_shell() -> None:
    for script in (*sorted((REPO / "bin").iterdir()), REPO / ".ci" / "run"):
        if script.read_text(encoding="utf-8").startswith("#!/usr/bin/env bash"):
            run = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True, check=False)
            assert (run.returncode, run.stderr) == (0, ""), script


def test_cron_daily_passes_its_options_on_with_crons_short_path(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "cron_daily").write_bytes((REPO / "bin" / "cron_daily").read_bytes())
    stub = f"HERE={tmp_path}\nsetup_venv() {{ :; }}\nuse_java() {{ echo java; }}\n"
    (tmp_path / "bin" / "setup").write_text(stub)
    program(tmp_path / ".venv" / "bin", "cmsspark", 'echo "$@" in $TZ')
    command = ["/bin/bash", f"{tmp_path}/bin/cron_daily", "--to", "20260115", "--job", "a b"]
    run = subprocess.run(command, capture_output=True, text=True, check=False, env={"PATH": "/nowhere"})
    assert run.stdout.splitlines() == ["java", "daily --to 20260115 --job a b in UTC"], run.stderr


def test_the_example_for_cron_names_programs_that_are_there_and_no_percent_sign() -> None:
    lines = [line for line in (REPO / "etc" / "crontab").read_text().splitlines() if not line.startswith("#")]
    jobs = [line.split(None, 5) for line in lines if "=" not in line.split()[0]]
    assert jobs
    for *when, command in jobs:
        assert len(when) == 5
        assert "%" not in command, "cron makes it a newline"
        assert (REPO / "bin" / Path(command.split()[0]).name).is_file()
