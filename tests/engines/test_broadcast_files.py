"""A snapshot's archive for executors: its files alone, made once, gone with its snapshot."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest

from cmsspark.base.errors import OutputError, SettingsError
from cmsspark.engines import broadcast_files
from cmsspark.engines.broadcast_files import archive, local_folder, shared
from cmsspark.filesystems.storage import LocalFiles


def snapshot(cache: Path, name: str) -> Path:
    folder = cache / name
    folder.mkdir()
    (folder / "hashes.npy").write_bytes(b"1234")
    (folder / "report.json").write_text("{}")
    return folder


def test_the_archive_has_the_files_and_no_entry_for_the_folder_which_hadoop_refuses(
    tmp_path: Path,
) -> None:
    with tarfile.open(archive(snapshot(tmp_path, "catalogue-v1-a"))) as stream:
        assert stream.getnames() == ["hashes.npy", "report.json"]
        assert {member.isfile() for member in stream} == {True}


def test_it_is_made_once_and_those_of_snapshots_that_are_gone_go(tmp_path: Path) -> None:
    old, kept = snapshot(tmp_path, "catalogue-v1-old"), snapshot(tmp_path, "catalogue-v1-kept")
    first, second = archive(old), archive(kept)
    made = second.stat().st_mtime_ns
    (old / "hashes.npy").unlink()
    (old / "report.json").unlink()
    old.rmdir()
    assert archive(kept) == second and second.stat().st_mtime_ns == made
    assert not first.exists()
    assert os.listdir(first.parent) == [second.name]


def test_where_it_cannot_be_written_is_reported(tmp_path: Path) -> None:
    folder = snapshot(tmp_path, "catalogue-v1-a")
    (tmp_path / "shipped").write_text("in the way")
    with pytest.raises(OutputError, match="archive cannot be written"):
        archive(folder)


def test_a_folder_of_this_host_is_opened_where_it_is(tmp_path: Path) -> None:
    assert local_folder(str(tmp_path)) == tmp_path


class Home(LocalFiles):
    """A cluster's file system with a home in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def uri(self, path: str) -> str:
        return str(self.folder / path)


def test_a_large_archive_is_copied_to_the_cluster_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broadcast_files, "SHARED_FOLDER", str(tmp_path / "home"))
    files, packed = Home(tmp_path / "home"), archive(snapshot(tmp_path, "catalogue-v1-a"))
    old, other = (
        tmp_path / "home" / "catalogue-v1-old.tar",
        tmp_path / "home" / "catalogue-v1-b.tar",
    )
    old.parent.mkdir()
    for path in (old, other):
        path.write_bytes(b"of another host")
    os.utime(old, (1_600_000_000, 1_600_000_000))
    location = shared(files, packed)
    assert location is not None and Path(location).read_bytes() == packed.read_bytes()
    copied = Path(location).stat().st_mtime_ns
    assert shared(files, packed) == location and Path(location).stat().st_mtime_ns == copied
    assert sorted(path.name for path in old.parent.iterdir()) == [
        "catalogue-v1-a.tar",
        "catalogue-v1-b.tar",
    ]


def test_the_driver_serves_an_archive_where_the_cluster_takes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broadcast_files, "SHARED_FOLDER", str(tmp_path / "home"))
    (tmp_path / "home").write_text("in the way")
    assert shared(Home(tmp_path / "home"), archive(snapshot(tmp_path, "catalogue-v1-a"))) is None


class Session:
    """A session of YARN with one option."""

    def __init__(self, value: str) -> None:
        self.conf = {broadcast_files.SHARED_BYTES_KEY: value}


def test_another_limit_is_a_whole_number() -> None:
    assert broadcast_files._shared_bytes(Session("0")) == 0
    for value in ("1g", "-1", "", "²"):
        with pytest.raises(SettingsError, match="is not a number of bytes"):
            broadcast_files._shared_bytes(Session(value))
