"""What is found on a machine: memory within control groups, Java, Spark; from folders made here."""

from __future__ import annotations

from pathlib import Path

import pytest

from cmsspark.base.errors import SettingsError
from cmsspark.submit import host
from cmsspark.submit.host import (
    NO_SPARK,
    Java,
    Spark,
    check_java,
    find_java,
    find_spark,
    memory,
    this_host,
)

MEMINFO = "MemTotal:       16000000 kB\nMemFree: 1 kB\n"


def machine(folder: Path, groups: str = "") -> tuple[Path, Path]:
    proc, cgroups = folder / "proc", folder / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(MEMINFO)
    (proc / "self" / "cgroup").write_text(groups)
    cgroups.mkdir()
    return proc, cgroups


def test_memory_is_the_machines_where_no_group_limits_it(tmp_path: Path) -> None:
    proc, groups = machine(tmp_path, "0::/a/b\n")
    (groups / "memory.max").write_text("max\n")
    assert memory(proc, groups) == 16_000_000 * 1024


def test_memory_is_the_smallest_limit_of_the_groups_around(tmp_path: Path) -> None:
    proc, groups = machine(tmp_path, "0::/a/b\n")
    (groups / "a" / "b").mkdir(parents=True)
    (groups / "a" / "b" / "memory.max").write_text("max\n")
    (groups / "a" / "memory.max").write_text("4000000000\n")
    assert memory(proc, groups) == 4_000_000_000


def test_memory_knows_the_older_control_groups(tmp_path: Path) -> None:
    proc, groups = machine(tmp_path, "4:memory:/docker/x\n3:cpuset:/\n0::/\n")
    (groups / "memory").mkdir()
    (groups / "memory" / "memory.limit_in_bytes").write_text("2000000000\n")
    assert memory(proc, groups) == 2_000_000_000


def java(folder: Path, release: str | None, answer: str = "") -> Path:
    home = folder / "jdk"
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    program.write_text(f"#!/bin/sh\necho '{answer}' >&2\n")
    program.chmod(0o755)
    if release is not None:
        (home / "release").write_text(release)
    return home


@pytest.mark.parametrize(
    ("release", "answer", "major"),
    [
        ('JAVA_VERSION="17.0.15"\nJAVA_RUNTIME_VERSION="17.0.15+6"\n', "", 17),
        ('JAVA_VERSION="21"\n', "", 21),
        ('JAVA_VERSION="1.8.0_452"\n', "", 8),
        (None, 'openjdk version "11.0.2" 2019-01-15', 11),
        (None, "no version at all", 0),
    ],
)
def test_javas_version_comes_from_its_release_file_or_from_itself(
    release: str | None, answer: str, major: int, tmp_path: Path
) -> None:
    found = find_java({"JAVA_HOME": str(java(tmp_path, release, answer)), "PATH": ""})
    assert found is not None and found.major == major


def test_java_home_comes_before_path(tmp_path: Path) -> None:
    home = java(tmp_path, 'JAVA_VERSION="21"\n')
    assert find_java({"PATH": str(home / "bin")}) is not None
    assert find_java({"JAVA_HOME": "/nowhere", "PATH": str(home / "bin")}) is None
    assert find_java({"PATH": str(tmp_path)}) is None


@pytest.mark.parametrize(
    ("version", "major"),
    [("4.3.0", 17), ("4.3.0", 21), ("4.3.0", 25), ("3.5.9", 17), ("3.5.9", 11)],
)
def test_a_java_that_fits_is_accepted(version: str, major: int) -> None:
    check_java(Java(Path("/j"), major, str(major)), Spark(Path("/s"), version, "2.13"), {})


@pytest.mark.parametrize(
    ("version", "major"),
    [("4.3.0", 11), ("4.3.0", 24), ("4.1.1", 25), ("3.5.9", 21), ("4.3.0", None)],
)
def test_another_java_or_none_is_refused_with_the_next_step(
    version: str, major: int | None
) -> None:
    found = None if major is None else Java(Path("/j/bin/java"), major, f"{major}.0.1")
    with pytest.raises(SettingsError) as caught:
        check_java(found, Spark(Path("/s"), version, "2.13"), {"JAVA_HOME": "/j"})
    text = str(caught.value)
    assert (
        "JAVA_HOME=/j" in text
        and "apt-get install" in text
        and ("no Java" in text or f"{major}.0.1" in text)
    )


@pytest.mark.parametrize(
    ("version", "package"), [("12", "openjdk-17-jre"), ("13", "openjdk-21-jre")]
)
def test_the_package_of_java_is_one_that_this_distribution_has(
    version: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        host.platform, "freedesktop_os_release", lambda: {"ID": "debian", "VERSION_ID": version}
    )
    with pytest.raises(SettingsError, match=f"apt-get install {package}-headless"):
        check_java(None, Spark(Path("/s"), "4.3.0", "2.13"), {})


def test_spark_home_comes_before_the_installed_package(tmp_path: Path) -> None:
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-core_2.12-3.5.7.jar").touch()
    assert find_spark({"SPARK_HOME": str(tmp_path)}) == Spark(tmp_path, "3.5.7", "2.12")
    assert find_spark({}).home.name == "pyspark"


def test_a_spark_home_without_spark_is_reported(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="SPARK_HOME names no Spark"):
        find_spark({"SPARK_HOME": str(tmp_path)})


def test_without_spark_the_command_is_made_and_only_its_run_needs_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host.importlib.util, "find_spec", lambda name: None)
    assert this_host({}).spark == NO_SPARK
    assert this_host({}).spark.submit == "$SPARK_HOME/bin/spark-submit"
    with pytest.raises(SettingsError, match="Spark is not installed"):
        find_spark({})
