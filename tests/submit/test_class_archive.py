"""The JVM's class archive: named for what it belongs to, made once, left out wherever it would not fit."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from cmsspark.base.errors import OutputError
from cmsspark.submit.class_archive import SWITCH, WORTH, make, note_start, usable
from cmsspark.submit.host import Host, Java, Spark
from tests.submit.hosts import HOST

JAVA = Java(Path("/jdk/bin/java"), 17, "17.0.15+6")
#: Stands for spark-submit: finds the archive's name in its arguments and writes it, as Java does at its exit.
MAKES = """#!/usr/bin/env python3
import pathlib, re, sys
pathlib.Path(re.search(r'ArchiveClassesAtExit="([^"]+)"', " ".join(sys.argv)).group(1)).write_text("classes")
"""


def host(folder: Path, submit: str = MAKES, jar: str = "a") -> Host:
    home = folder / "spark home"
    (home / "jars" / "inner").mkdir(parents=True)
    (home / "jars" / "a.jar").write_text(jar)
    (home / "jars" / "inner" / "b.jar").write_text("b")
    (home / "bin").mkdir()
    program = home / "bin" / "spark-submit"
    program.write_text(submit)
    program.chmod(0o755)
    return replace(HOST, spark=Spark(home, "4.3.0", "2.13"), environ={"PATH": os.environ["PATH"]})


def names(cache: Path, ending: str) -> list[str]:
    return sorted(path.name for path in (cache / "jvm").glob(f"*{ending}"))


def test_it_is_made_once_and_then_used(tmp_path: Path) -> None:
    here, cache = host(tmp_path), tmp_path / "cache"
    assert usable(here, JAVA, cache) is None
    made = make(here, JAVA, cache)
    assert usable(here, JAVA, cache) == made
    begun = made.path.stat().st_mtime_ns
    assert make(here, JAVA, cache).path.stat().st_mtime_ns == begun
    assert names(cache, ".part") == []


def test_another_checkout_with_the_same_spark_uses_it_and_java_gets_the_very_jars_it_was_made_with(
    tmp_path: Path,
) -> None:
    first, second, cache = host(tmp_path / "one"), host(tmp_path / "two"), tmp_path / "cache"
    made = make(first, JAVA, cache)
    assert usable(second, JAVA, cache) == make(second, JAVA, cache) == made
    jars = [spark / "jars" / "a.jar" for spark in (made.spark_home, first.spark.home, second.spark.home)]
    assert jars[0].samefile(jars[1]), "a hard link"
    assert not jars[0].samefile(jars[2])
    shutil.rmtree(first.spark.home)
    assert usable(second, JAVA, cache) == made, "the environment that it was made in may go"


def test_another_java_other_jars_or_a_jar_more_have_another_archive(tmp_path: Path) -> None:
    here, cache = host(tmp_path / "one"), tmp_path / "cache"
    make(here, JAVA, cache)
    assert usable(here, replace(JAVA, version="17.0.16+1"), cache) is None
    assert usable(host(tmp_path / "two", jar="b"), JAVA, cache) is None, "the same name and size"
    (here.spark.home / "jars" / "c.jar").write_text("c")
    assert usable(here, JAVA, cache) is None
    assert len({make(here, JAVA, cache).path, *(cache / "jvm").glob("*.jsa")}) == 2


def test_a_jar_that_is_changed_in_place_is_noticed(tmp_path: Path) -> None:
    here, other, cache = host(tmp_path / "one"), host(tmp_path / "two"), tmp_path / "cache"
    made = make(here, JAVA, cache)
    (here.spark.home / "jars" / "a.jar").write_text("z")
    assert usable(here, JAVA, cache) is None
    assert usable(other, JAVA, cache) is None, "the link has the new content"
    again = make(other, JAVA, cache)
    assert again.path == made.path
    assert usable(other, JAVA, cache) == again
    assert (again.spark_home / "jars" / "a.jar").read_text() == "a"


@pytest.mark.parametrize("damage", ["cut", "changed", "zeros", "undescribed"])
def test_a_damaged_archive_is_left_out_and_made_anew(damage: str, tmp_path: Path) -> None:
    here, cache = host(tmp_path), tmp_path / "cache"
    made = make(here, JAVA, cache)
    if damage == "undescribed":
        made.description.write_text("{")
    else:
        made.path.write_text({"cut": "class", "changed": "classeZ", "zeros": "\0" * 7}[damage])
    assert usable(here, JAVA, cache) is None
    assert make(here, JAVA, cache) == made
    assert usable(here, JAVA, cache) == made


def test_a_spark_that_spark_home_names_and_one_that_cannot_be_linked_have_archives_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, cache = host(tmp_path), tmp_path / "cache"
    named = replace(here, environ={**here.environ, "SPARK_HOME": str(here.spark.home)})
    assert make(named, JAVA, cache).spark_home == here.spark.home
    assert usable(named, JAVA, cache) is not None
    shutil.rmtree(cache)

    def refuse(*_: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    made = make(here, JAVA, cache)
    assert made.spark_home == here.spark.home
    assert usable(here, JAVA, cache) == made
    assert names(cache, ".part") == []
    assert [path for path in (cache / "jvm").iterdir() if path.is_dir()] == []


def test_a_cache_that_cannot_be_written_serves_what_is_in_it_and_a_new_one_says_what_to_do(tmp_path: Path) -> None:
    here, other, cache = host(tmp_path / "one"), host(tmp_path / "two"), tmp_path / "cache"
    made = make(here, JAVA, cache)
    (tmp_path / "file").touch()
    with read_only(cache / "jvm"):
        assert usable(other, JAVA, cache) == made
    with pytest.raises(OutputError) as caught:
        make(here, JAVA, tmp_path / "file")
    assert "CMSSPARK_CACHE_DIR" in str(caught.value.next_step)


def test_of_two_processes_at_once_one_makes_it_and_the_other_waits_for_it(tmp_path: Path) -> None:
    # The first one waits until the second one stands at the lock; each start of the job adds a line.
    submit = MAKES.replace(
        "import pathlib, re, sys",
        "import pathlib, re, sys, time\n"
        "with open(pathlib.Path(__file__).parents[2] / 'starts', 'a') as log: log.write('x')\n"
        f"while not pathlib.Path({str(tmp_path / 'go')!r}).exists(): time.sleep(0.01)",
    )
    here, cache = host(tmp_path, submit), tmp_path / "cache"
    with ThreadPoolExecutor(2) as pool:
        made = [pool.submit(make, here, JAVA, cache) for _ in range(2)]
        lock = cache / "jvm" / "spark-4.3.0-java-17.lock"
        while not (lock.exists() and waits_for(lock)):
            assert not any(future.done() for future in made), [future.result() for future in made]
        (tmp_path / "go").touch()
        assert made[0].result() == made[1].result()
    assert (cache / "jvm" / "starts").read_text() == "x"


def waits_for(lock: Path) -> bool:
    """Whether the kernel lists somebody who waits for the lock of this file."""
    inode = f":{lock.stat().st_ino} "
    return any("->" in line and inode in line for line in Path("/proc/locks").read_text().splitlines())


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    # Root may write anywhere: for it the folder's rights show nothing, but they do for other accounts.
    folder.chmod(0o555)
    try:
        yield
    finally:
        folder.chmod(0o755)


def test_archives_that_nothing_used_for_a_month_go_with_their_jars_and_what_killed_runs_left(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    made = [make(host(tmp_path / jar, jar=jar), JAVA, cache) for jar in "abcd"]
    assert len(names(cache, ".jsa")) == 4, "all were used today"
    old = time.time() - 32 * 24 * 3600
    for archive in made[:3]:
        for path in (archive.path, archive.description, archive.spark_home):
            os.utime(path, (old, old))
    killed, running = (cache / "jvm" / f"spark-4.3.0-java-17-abc.{pid}.part" for pid in (1, 2))
    killed.touch()
    os.utime(killed, (old, old))
    running.touch()
    make(host(tmp_path / "e", jar="e"), JAVA, cache)
    assert len(names(cache, ".jsa")) == 2
    assert names(cache, ".part") == [running.name]
    assert [archive.spark_home.exists() for archive in made] == [False, False, False, True]


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
    assert names(tmp_path / "cache", ".jsa") == names(tmp_path / "cache", ".part") == []


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
