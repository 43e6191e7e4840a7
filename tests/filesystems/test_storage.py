"""Files on the local disk and through Hadoop: one interface, one behaviour, errors of ours."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cmsspark.base.errors import InputMissing, OutputError, SettingsError, UsageError
from cmsspark.filesystems.hadoop import HadoopFiles
from cmsspark.filesystems.opening import files_for
from cmsspark.filesystems.storage import (
    Files,
    LocalFiles,
    absolute,
    disk_rate,
    is_local,
    is_same_place,
    join,
    local_path,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize(
    ("base", "parts", "wanted"),
    [
        ("/a", ["b", "c"], "/a/b/c"),
        ("/a/", ["/b"], "/a/b"),
        ("hdfs://nn/x", ["y"], "hdfs://nn/x/y"),
        ("hdfs://", ["/x"], "hdfs://x"),
        ("s3a://bucket/", ["a b%", "c"], "s3a://bucket/a b%/c"),
        ("", ["a"], "/a"),
    ],
)
def test_parts_are_joined_by_single_slashes(base: str, parts: list[str], wanted: str) -> None:
    assert join(base, *parts) == wanted


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("store", "/here/store", True),
        ("file:///here/store/", "store", True),
        ("store", "/elsewhere/store", False),
        ("hdfs://nn/cms/", "hdfs://nn/cms", True),
        ("hdfs:///cms", "hdfs://nn/cms", True),
        ("hdfs://other/cms", "hdfs://nn/cms", False),
        ("s3a://bucket/cms", "hdfs://bucket/cms", False),
        ("/cms", "hdfs:///cms", False),
    ],
)
def test_two_locations_are_compared_as_places(
    first: str, second: str, same: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first, second = (location.replace("/here", str(tmp_path)) for location in (first, second))
    assert is_same_place(first, second) is same
    assert is_same_place(absolute(first), second) is same


@pytest.mark.parametrize(
    ("location", "local"),
    [
        ("/a", True),
        ("a/b", True),
        ("file:/a", True),
        ("file:///a", True),
        ("hdfs://nn/a", False),
        ("s3a://b/a", False),
    ],
)
def test_plain_paths_and_file_uris_are_local(location: str, local: bool) -> None:
    assert is_local(location) is local


@pytest.mark.parametrize(
    ("location", "place"),
    [
        ("/a b%20", "/a b%20"),
        ("file:/a%20b", "/a b"),
        ("file:///a%25b", "/a%b"),
        ("file://localhost/a", "/a"),
        ("rel/x", "rel/x"),
        ("file:///", "/"),
    ],
)
def test_a_path_is_taken_as_it_is_and_a_uri_unquoted(location: str, place: str) -> None:
    assert local_path(location) == place


def test_a_location_that_is_not_local_needs_a_session() -> None:
    assert isinstance(files_for("/a"), LocalFiles)
    with pytest.raises(UsageError, match="Spark session"):
        files_for("hdfs://nn/a")


LOCAL = LocalFiles()


def test_what_is_not_there_is_none_or_missing(tmp_path: Path) -> None:
    assert LOCAL.stat(str(tmp_path / "no")) is None
    (tmp_path / "file").write_bytes(b"x")
    assert LOCAL.stat(str(tmp_path / "file" / "below")) is None
    for place in ("no", "file"):
        with pytest.raises(InputMissing) as error:
            LOCAL.list_dir(str(tmp_path / place))
        assert error.value.where == str(tmp_path / place)
    with pytest.raises(InputMissing):
        LOCAL.read_bytes(str(tmp_path / "no"))
    with pytest.raises(InputMissing):
        LOCAL.read_range(str(tmp_path / "no"), 0, 1)
    with pytest.raises(InputMissing):
        LOCAL.fetch(str(tmp_path / "no"), tmp_path / "target")
    LOCAL.delete(str(tmp_path / "no"))


def test_a_folder_is_listed_by_name_with_dangling_links_reported(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"xyz")
    (tmp_path / "a").mkdir()
    (tmp_path / "c").symlink_to(tmp_path / "nowhere")
    (tmp_path / "d").symlink_to(tmp_path / "b")
    os.utime(tmp_path / "b", (1, 1.5))
    listed = LOCAL.list_dir(str(tmp_path))
    assert [(entry.name, entry.is_dir, entry.size) for entry in listed if not entry.is_dir] == [
        ("b", False, 3),
        ("c", False, -1),
        ("d", False, 3),
    ]
    assert [entry.name for entry in listed] == ["a", "b", "c", "d"]
    assert listed[1].mtime_ms == 1500


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    target = str(tmp_path / "new" / "file")
    LOCAL.write_bytes(target, b"one")
    LOCAL.write_bytes(target, b"two")
    assert LOCAL.read_bytes(target) == b"two"
    assert [LOCAL.read_range(target, 1, count) for count in (1, 2, 100)] == [b"w", b"wo", b"wo"]
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["file"]
    with pytest.raises(OutputError):
        LOCAL.write_bytes(f"{target}/below", b"x")
    (tmp_path / "folder" / "x").mkdir(parents=True)
    with pytest.raises(OutputError):
        LOCAL.write_bytes(str(tmp_path / "folder"), b"x")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "new"]
    with pytest.raises(OutputError):
        LOCAL.make_dirs(f"{target}/below")
    with pytest.raises(OutputError):
        LOCAL.replace(str(tmp_path / "no"), target)


def test_deleting_a_link_leaves_what_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "x").write_bytes(b"")
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    LOCAL.delete(str(tmp_path / "link"))
    assert (tmp_path / "kept" / "x").exists()
    LOCAL.delete(str(tmp_path / "kept"))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OutputError):
        LOCAL.delete("/proc/self/status")


@pytest.mark.parametrize(
    ("name", "shown"),
    [("plain", "file://{}/plain"), ("a b", "{}/a b"), ("a%20", "{}/a%20"), ("é", "{}/é")],
)
def test_a_location_is_shown_so_that_readers_take_it_as_it_is(
    tmp_path: Path, name: str, shown: str
) -> None:
    assert LOCAL.uri(str(tmp_path / name)) == shown.format(tmp_path)
    assert LOCAL.uri((tmp_path / name).as_uri()) == shown.format(tmp_path)


# The same by Hadoop
# ------------------------------------------------------------------------------------------------


@pytest.fixture
def hadoop(spark: SparkSession) -> Files:
    return HadoopFiles(spark)


@pytest.mark.parametrize("name", ["plain", "a b", "a%20b", "é{x}*"])
def test_hadoop_lists_reads_writes_replaces_and_deletes(
    hadoop: Files, tmp_path: Path, name: str
) -> None:
    folder = f"file://{tmp_path}/{name}"
    hadoop.make_dirs(f"{folder}/deep/er")
    hadoop.write_bytes(f"{folder}/file", b"one\x00\xff")
    assert (tmp_path / name / "file").read_bytes() == b"one\x00\xff"
    hadoop.write_bytes(f"{folder}/file", b"two")
    assert hadoop.read_bytes(f"{folder}/file") == b"two"
    assert [hadoop.read_range(f"{folder}/file", 1, count) for count in (1, 2, 100)] == [
        b"w",
        b"wo",
        b"wo",
    ]
    hadoop.write_bytes(f"{folder}/other", b"")
    assert hadoop.read_bytes(f"{folder}/other") == b""
    listed = hadoop.list_dir(folder)
    assert [(entry.name, entry.is_dir) for entry in listed] == [
        ("deep", True),
        ("file", False),
        ("other", False),
    ]
    assert (listed[1].size, listed[1].mtime_ms // 1000) == (
        3,
        int((tmp_path / name / "file").stat().st_mtime),
    )
    assert hadoop.stat(listed[1].path) == listed[1]
    assert hadoop.read_bytes(listed[1].path) == b"two"
    hadoop.replace(f"{folder}/file", f"{folder}/other")
    assert hadoop.stat(f"{folder}/file") is None
    assert hadoop.read_bytes(f"{folder}/other") == b"two"
    hadoop.fetch(f"{folder}/other", tmp_path / "fetched")
    assert (tmp_path / "fetched").read_bytes() == b"two"
    hadoop.put(tmp_path / "fetched", f"{folder}/put")
    assert hadoop.read_bytes(f"{folder}/put") == b"two"
    hadoop.delete(folder)
    assert not (tmp_path / name).exists()
    hadoop.delete(folder)


def test_hadoop_reports_what_is_not_there(hadoop: Files, tmp_path: Path) -> None:
    there = f"file://{tmp_path}"
    (tmp_path / "file").write_bytes(b"x")
    assert hadoop.stat(f"{there}/no") is None
    for path in (f"{there}/no", f"{there}/file"):
        with pytest.raises(InputMissing):
            hadoop.list_dir(path)
    with pytest.raises(InputMissing):
        hadoop.read_bytes(f"{there}/no")
    with pytest.raises(InputMissing):
        hadoop.fetch(f"{there}/no", tmp_path / "target")


def test_hadoop_reports_what_cannot_be_written(hadoop: Files, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    below = f"file://{tmp_path}/file/below"
    for attempt in (lambda: hadoop.write_bytes(below, b""), lambda: hadoop.make_dirs(below)):
        with pytest.raises(OutputError) as error:
            attempt()
        assert error.value.exit_code == 73


@pytest.mark.parametrize(
    "location", ["hdfs://no-such-name-service/x", "hdfs:///x", "nothing://x/y"]
)
def test_a_location_that_needs_another_configuration_is_reported(
    hadoop: Files, location: str
) -> None:
    with pytest.raises(SettingsError) as error:
        hadoop.stat(location)
    assert error.value.where == location
    assert "HADOOP_CONF_DIR" in str(error.value)


def test_the_rate_of_a_disk_is_that_of_a_file_of_some_size(tmp_path: Path) -> None:
    small, large = tmp_path / "small", tmp_path / "large"
    small.write_bytes(bytes(10_000))
    large.write_bytes(bytes(9 << 20))
    assert disk_rate(str(small)) is None
    assert disk_rate(str(tmp_path / "missing")) is None
    # A file system may have no reads past the page cache.
    rate = disk_rate(str(large))
    assert rate is None or rate > 1e6


def test_hadoop_lists_a_large_folder_by_few_calls(
    spark: SparkSession, hadoop: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(100):
        (tmp_path / f"part {number}").write_bytes(b"x" * number)
    hadoop.list_dir(f"file://{tmp_path}")
    client = type(spark.sparkContext._gateway._gateway_client)
    send, calls = client.send_command, []
    this_thread = threading.get_ident()

    def counted(self: Any, command: str, *given: Any, **more: Any) -> Any:
        # A thread of Py4J tells the JVM of each Java object that Python has freed,
        # those of earlier tests among them.
        if threading.get_ident() == this_thread:
            calls.append(command)
        return send(self, command, *given, **more)

    monkeypatch.setattr(client, "send_command", counted)
    listed = hadoop.list_dir(f"file://{tmp_path}")
    assert sorted((entry.name, entry.size) for entry in listed) == sorted(
        (f"part {n}", n) for n in range(100)
    )
    assert len(calls) < 200, calls


@pytest.mark.parametrize("location", ["webhdfs://n:9870/x", "swebhdfs://n:9871/x"])
def test_webhdfs_is_refused_with_what_to_give_instead(hadoop: Files, location: str) -> None:
    with pytest.raises(SettingsError, match="WebHDFS is not supported") as error:
        hadoop.stat(location)
    assert error.value.where == location and "hdfs://" in str(error.value.next_step)
