"""What bin/* tell on a machine that lacks something, and that they do nothing twice.
Made-up programs stand on PATH.
"""

from __future__ import annotations

import os
import subprocess
import sys
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
        for name in (
            "dirname",
            "readlink",
            "sed",
            "head",
            "id",
            "cat",
            "env",
            "sha256sum",
            "cut",
            "df",
            "find",
        ):
            (place / name).symlink_to(
                next(p for p in (Path("/usr/bin") / name, Path("/bin") / name) if p.exists())
            )
    return place


def program(folder: Path, name: str, body: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text(f"#!/bin/sh\n{body}\n")
    file.chmod(0o755)
    return file


def apt(folder: Path, packages: str, os_release: str) -> None:
    """A distribution whose package lists have these packages."""
    program(folder, "apt-get", "exit 1")
    program(
        folder,
        "apt-cache",
        f'case "$1" in pkgnames) echo some;; show) case " {packages} " in *" $3 "*) exit 0;; esac; exit 100;; esac',
    )
    (folder / "os-release").write_text(os_release)


DEBIANS = {
    "12": (
        "ID=debian\nVERSION_ID=12\n",
        "openjdk-17-jre-headless python3-venv",
        "openjdk-17-jre-headless",
    ),
    "13": (
        "ID=debian\nVERSION_ID=13\n",
        "openjdk-21-jre-headless python3-venv",
        "openjdk-21-jre-headless",
    ),
}


@pytest.mark.parametrize("version", DEBIANS)
def test_all_that_lacks_is_named_at_once_in_one_line_with_packages_of_this_distribution(
    version: str, tmp_path: Path
) -> None:
    os_release, packages, java = DEBIANS[version]
    apt(tmp_path, packages, os_release)
    program(tmp_path, "python3", 'case "$1" in --version) echo Python 3.9.2;; *) exit 1;; esac')
    program(tmp_path, "id", "echo 1000")
    environ = {"OS_RELEASE": str(tmp_path / "os-release"), "CMSSPARK_VENV": str(tmp_path / "venv")}
    run = setup(
        'check_room() { :; }; find_java() { return 1; }; prepare "" java', tmp_path, **environ
    )
    assert run.returncode == 78
    assert "Python 3.11, 3.12 or 3.13" in run.stderr and "found: Python 3.9.2" in run.stderr
    (line,) = [line for line in run.stderr.splitlines() if "next:" in line]
    assert (
        line.startswith("  next: sudo apt-get install -y python3")
        and java in line
        and "gcc" in line
    )
    assert "Installing" not in run.stderr, "this account may not"


def test_a_python_that_is_named_and_does_not_fit_is_refused(tmp_path: Path) -> None:
    old = program(
        tmp_path / "old", "python3", 'case "$1" in --version) echo Python 3.9.2;; *) exit 1;; esac'
    )
    program(tmp_path, "python3", "exit 0")
    run = setup('prepare ""', tmp_path, PYTHON=str(old))
    assert run.returncode == 78
    assert f"PYTHON={old} does not fit: it is Python 3.9.2" in run.stderr
    without = program(
        tmp_path / "bare",
        "python3",
        'case "$1" in --version) echo Python 3.12.1;; *) exit 1;; esac',
    )
    assert (
        "Python 3.12.1 without its venv module"
        in setup('prepare ""', tmp_path, PYTHON=str(without)).stderr
    )


def test_what_is_installed_already_asks_for_nothing(tmp_path: Path) -> None:
    program(tmp_path, "python3", "exit 0")
    folder = tmp_path / "venv"
    folder.mkdir()
    run = setup(
        f"stamp_of {tmp_path}/python3 {REPO}/constraints.txt >{folder}/.stamp.base\n"
        'install_packages() { echo installs; }; make_venv() { echo makes; }; prepare "" && echo $VENV',
        tmp_path,
        CMSSPARK_VENV=str(folder),
    )
    assert (run.returncode, run.stdout.split()) == (0, [str(folder)]), run.stderr


def test_a_disk_without_room_ends_in_73_before_anything_is_installed(tmp_path: Path) -> None:
    run = setup(f"VENV_MB=99999999; check_disk {tmp_path}/a/b", tmp_path)
    assert run.returncode == 73
    assert f"{tmp_path} has" in run.stderr and "CMSSPARK_VENV=" in run.stderr
    run = setup(f"TMP_MB=99999999; check_disk {tmp_path}", tmp_path, TMPDIR=str(tmp_path))
    assert run.returncode == 73 and "TMPDIR=" in run.stderr


def test_an_index_that_does_not_answer_ends_in_75(tmp_path: Path) -> None:
    words = f"check_index {sys.executable}"
    run = setup(words, tmp_path, PIP_INDEX_URL="http://127.0.0.1:9/simple", http_proxy="")
    assert run.returncode == 75
    assert (
        "http://127.0.0.1:9/simple does not answer" in run.stderr and "PIP_INDEX_URL" in run.stderr
    )
    assert (
        setup(words, tmp_path, PIP_NO_INDEX="1", PIP_INDEX_URL="http://127.0.0.1:9").returncode
        == 0
    )


def test_a_checkout_that_cannot_be_written_has_its_environment_elsewhere(tmp_path: Path) -> None:
    words = f"HERE={tmp_path}/none; venv_folder"
    assert setup(words, tmp_path).stdout.startswith(f"{tmp_path}/.local/share/cmsspark/venv-")
    assert setup(words, tmp_path, CMSSPARK_VENV="/x/y").stdout.strip() == "/x/y"
    assert setup("venv_folder", tmp_path).stdout.strip() == f"{REPO}/.venv"


@pytest.mark.parametrize("way", ["symlink", "sh"])
def test_scripts_start_by_a_symlink_and_by_sh(way: str, tmp_path: Path) -> None:
    checkout = tmp_path / "checkout" / "bin"
    checkout.mkdir(parents=True)
    for name in ("run_spark", "needs"):
        (checkout / name).write_bytes((REPO / "bin" / name).read_bytes())
        (checkout / name).chmod(0o755)
    (checkout / "setup").write_text(f"HERE={tmp_path}\nprepare() {{ VENV=$HERE/venv; }}\n")
    program(tmp_path / "venv" / "bin", "run_spark", 'echo "$@"')
    link = tmp_path / "run_spark"
    link.symlink_to(checkout / "run_spark")
    command = ["sh", str(checkout / "run_spark")] if way == "sh" else [str(link)]
    run = subprocess.run([*command, "job", "--x"], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (0, "job --x\n"), run.stderr


def test_a_newer_python_beside_the_old_one_is_found(tmp_path: Path) -> None:
    program(tmp_path, "python3", "exit 1")
    good = program(tmp_path, "python3.12", "exit 0")
    assert setup("find_python", tmp_path).stdout.strip() == str(good)
    chosen = program(tmp_path / "own", "mine", "exit 0")
    assert setup("find_python", tmp_path, PYTHON=str(chosen)).stdout.strip() == str(chosen)


def test_no_java_is_reported_with_the_exact_command(tmp_path: Path) -> None:
    apt(tmp_path, *DEBIANS["13"][1::-1])
    run = setup(
        "find_java() { return 1; }; use_java 17", tmp_path, OS_RELEASE=str(tmp_path / "os-release")
    )
    assert run.returncode == 78
    assert "Java 17 or 21 is needed" in run.stderr
    assert "apt-get install -y openjdk-21-jre-headless" in run.stderr


@pytest.mark.parametrize(
    ("version", "major"),
    [("17.0.15", "17"), ("21", "21"), ("1.8.0_452", "8"), ("21-ea", "21"), ("25.0.1", "25")],
)
def test_javas_major_version_is_read(version: str, major: str, tmp_path: Path) -> None:
    java = program(tmp_path, "java", f"echo 'openjdk version \"{version}\" 2026-01-01' >&2")
    assert setup(f"java_major {java}", tmp_path).stdout.strip() == major


def test_java_home_comes_first_and_one_that_does_not_fit_is_passed_over(tmp_path: Path) -> None:
    for home, version in (("old", "11.0.1"), ("new", "21.0.1"), ("other", "17.0.1")):
        program(tmp_path / home / "bin", "java", f"echo 'openjdk version \"{version}\"' >&2")
    words = "use_java && echo $JAVA_HOME"
    path = tmp_path / "other" / "bin"
    assert setup(words, path, JAVA_HOME=str(tmp_path / "new")).stdout.strip() == str(
        tmp_path / "new"
    )
    assert setup(words, path, JAVA_HOME=str(tmp_path / "old")).stdout.strip() == str(
        tmp_path / "other"
    )


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
    assert len(without) == 33 and setup(words, tmp_path).stdout == without, (
        "Python's headers are missing still"
    )
    (headers / "Python.h").touch()
    assert setup(words, tmp_path).stdout not in ("", without)


def test_every_script_is_sound_shell() -> None:
    for script in (*sorted((REPO / "bin").iterdir()), REPO / ".ci" / "run"):
        if script.read_text(encoding="utf-8").startswith("#!/usr/bin/env bash"):
            run = subprocess.run(
                ["bash", "-n", str(script)], capture_output=True, text=True, check=False
            )
            assert (run.returncode, run.stderr) == (0, ""), script


def test_cron_daily_passes_its_options_on_with_crons_short_path(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "cron_daily").write_bytes((REPO / "bin" / "cron_daily").read_bytes())
    stub = f"HERE={tmp_path}\nprepare() {{ VENV=$HERE/.venv; }}\n"
    (tmp_path / "bin" / "setup").write_text(stub)
    program(tmp_path / ".venv" / "bin", "cmsspark", 'echo "$@" in $TZ')
    command = ["/bin/bash", f"{tmp_path}/bin/cron_daily", "--to", "20260115", "--job", "a b"]
    run = subprocess.run(
        command, capture_output=True, text=True, check=False, env={"PATH": "/nowhere"}
    )
    assert run.stdout.splitlines() == ["daily --to 20260115 --job a b in UTC"], run.stderr


def test_the_example_for_cron_names_programs_that_are_there_and_no_percent_sign() -> None:
    lines = [
        line
        for line in (REPO / "etc" / "crontab").read_text().splitlines()
        if not line.startswith("#")
    ]
    jobs = [line.split(None, 5) for line in lines if "=" not in line.split()[0]]
    assert jobs
    for *when, command in jobs:
        assert len(when) == 5
        assert "%" not in command, "cron makes it a newline"
        assert (REPO / "bin" / Path(command.split()[0]).name).is_file()


@pytest.mark.parametrize("option", [["--out", "FOLDER/new"], ["--out=FOLDER/new"]])
def test_a_demo_that_cannot_be_written_is_refused_before_set_up(
    tmp_path: Path, option: list[str]
) -> None:
    folder = tmp_path / "a file"
    folder.touch()
    words = [word.replace("FOLDER", str(folder)) for word in option]
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "CMSSPARK_VENV": str(tmp_path / "venv"),
    }
    command = ["bash", str(REPO / "bin" / "demo"), *words]
    run = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert run.returncode == 73 and "bin/demo --out DIR" in run.stderr
    assert not (tmp_path / "venv").exists()


def test_lists_that_name_only_what_is_installed_are_empty_and_are_fetched_once(
    tmp_path: Path,
) -> None:
    """As in each image of a container: `apt-cache pkgnames` has what is installed."""
    log = tmp_path / "apt.log"
    lists = tmp_path / "lists"
    program(tmp_path, "apt-get", f'echo "$*" >>{log}; case "$*" in *update*) : >{lists};; esac')
    program(
        tmp_path,
        "apt-cache",
        f'case "$1" in pkgnames) echo bash;; show) exit 100;; policy) echo " 100 /var/lib/dpkg/status";'
        f' [ ! -e {lists} ] || echo " 500 http://deb.debian.org/debian bookworm/main amd64 Packages";; esac',
    )
    program(tmp_path, "dpkg-query", "echo bash")
    program(tmp_path, "id", "echo 0")
    done = setup(
        "has_lists || echo empty; update_lists; update_lists; has_lists && echo there", tmp_path
    )
    assert done.stdout.split() == ["empty", "there"], done.stderr
    assert log.read_text().count("update") == 1
    assert "Fetching the lists of packages, which are empty here" in done.stderr


def test_extras_install_without_pyspark(tmp_path: Path) -> None:
    found = setup(
        f'requirements {sys.executable} without-spark,sql; without_spark "without-spark,sql" && echo yes',
        tmp_path,
    )
    lines = found.stdout.split("\n")
    assert any(line.startswith("duckdb") for line in lines), found.stderr
    assert not any(line.startswith("pyspark") for line in lines)
    assert "yes" in lines


def test_lists_and_help_of_run_spark_need_no_pyspark() -> None:
    text = (REPO / "bin/run_spark").read_text()
    assert "extras=$WITHOUT_SPARK" in text
    for name in ("cmsspark", "run_spark"):
        assert os.access(REPO / "bin" / name, os.X_OK)
