"""The JVM's class archive: named for what it belongs to, made once, left out wherever it would not fit."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from cmsspark.errors import OutputError
from cmsspark.submit.class_archive import SWITCH, WORTH, archive_path, make, note_start, usable
from cmsspark.submit.host import Host, Java, Spark
from tests.submit.hosts import HOST

JAVA = Java(Path("/jdk/bin/java"), 17, "17.0.15+6")
#: Stands for spark-submit: finds the archive's name in its arguments and writes it, as Java does at its exit.
MAKES = """#!/usr/bin/env python3
import pathlib, re, sys
pathlib.Path(re.search(r'ArchiveClassesAtExit="([^"]+)"', " ".join(sys.argv)).group(1)).write_text("classes")
"""


def host(folder: Path, submit: str = MAKES) -> Host:
    home = folder / "spark home"
    (home / "jars").mkdir(parents=True)
    (home / "jars" / "a.jar").write_text("a")
    (home / "bin").mkdir()
    program = home / "bin" / "spark-submit"
    program.write_text(submit)
    program.chmod(0o755)
    return replace(HOST, spark=Spark(home, "4.3.0", "2.13"), environ={"PATH": os.environ["PATH"]})


def test_it_is_made_once_and_then_used(tmp_path: Path) -> None:
    here, cache = host(tmp_path), tmp_path / "cache"
    assert usable(here, JAVA, cache) is None
    made = make(here, JAVA, cache)
    assert usable(here, JAVA, cache) == str(made)
    begun = made.stat().st_mtime_ns
    assert make(here, JAVA, cache).stat().st_mtime_ns == begun
    assert [path.name for path in made.parent.iterdir()] == [made.name]


def test_another_java_or_other_jars_have_another_archive(tmp_path: Path) -> None:
    here = host(tmp_path)
    first = archive_path(here, JAVA, tmp_path)
    assert archive_path(here, replace(JAVA, version="17.0.16+1"), tmp_path) != first
    (here.spark.home / "jars" / "b.jar").write_text("b")
    assert archive_path(here, JAVA, tmp_path) != first


@pytest.mark.parametrize("name", ["HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_CONF_DIR", "SPARK_DIST_CLASSPATH"])
def test_it_is_left_out_where_folders_are_on_the_class_path(name: str, tmp_path: Path) -> None:
    here, cache = host(tmp_path), tmp_path / "cache"
    make(here, JAVA, cache)
    assert usable(replace(here, environ={name: "/etc/hadoop"}), JAVA, cache) is None
    assert usable(here, None, cache) is None


@pytest.mark.parametrize("submit", ["#!/bin/sh\necho 'it broke' >&2; exit 1\n", "#!/bin/sh\necho 'it broke'\n"])
def test_a_failure_is_reported_and_leaves_nothing(submit: str, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="it broke"):
        make(host(tmp_path, submit), JAVA, tmp_path / "cache")
    assert list((tmp_path / "cache" / "jvm").iterdir()) == []


def test_it_is_made_once_java_has_started_often_enough_to_be_worth_it(tmp_path: Path) -> None:
    made: list[int] = []
    machine = replace(host(tmp_path), environ={})
    starts = [note_start(machine, JAVA, tmp_path / "cache", lambda: made.append(1)) for _ in range(2 * WORTH + 1)]
    assert [number for number, is_called in enumerate(starts, start=1) if is_called] == [WORTH, 2 * WORTH]
    assert len(made) == 2


def test_nothing_is_counted_where_an_archive_would_not_be_used(tmp_path: Path) -> None:
    machine = replace(host(tmp_path), environ={})
    for java, environ in ((None, {}), (JAVA, {SWITCH: "0"}), (JAVA, {"HADOOP_CONF_DIR": "/etc/hadoop"})):
        for _ in range(WORTH):
            assert not note_start(replace(machine, environ=environ), java, tmp_path / "cache", lambda: None)
    (tmp_path / "file").touch()
    assert not note_start(machine, JAVA, tmp_path / "file", lambda: None), "a cache that cannot be written"
