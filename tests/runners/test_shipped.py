"""A snapshot's archive for executors: its files alone, made once, gone with its snapshot."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest

from cmsspark.errors import OutputError
from cmsspark.runners.shipped import archive, local_folder


def snapshot(cache: Path, name: str) -> Path:
    folder = cache / name
    folder.mkdir()
    (folder / "hashes.npy").write_bytes(b"1234")
    (folder / "report.json").write_text("{}")
    return folder


def test_the_archive_has_the_files_and_no_entry_for_the_folder_which_hadoop_refuses(tmp_path: Path) -> None:
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
