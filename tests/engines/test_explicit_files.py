"""Files given to Spark's readers are read once each, whatever their names hold."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import pytest

from cmsspark.base.errors import DataError
from cmsspark.engines.scan import groups, read_explicit_files, whole_folders
from cmsspark.filesystems.storage import Entry, LocalFiles


def test_names_that_look_like_patterns_are_loaded_alone() -> None:
    assert groups(["/a", "/b*", "/c", "/{d}"]) == [["/a", "/c"], ["/b*"], ["/{d}"]]
    assert groups(["/b*"]) == [["/b*"]]
    assert groups([]) == []


def test_each_file_is_read_once_whatever_its_name_holds(spark: Any, tmp_path: Path) -> None:
    names = ["plain", "a b", "50%20", "x*", "{y}", "[z]", "q?", "back\\slash", "ä"]
    for name in names:
        (tmp_path / name).write_text(name + "\n")
    paths = [f"file://{tmp_path}/{name}" for name in names]
    assert sorted(
        row.value for row in read_explicit_files(spark, "text", paths).select("value").collect()
    ) == sorted(names)
    assert read_explicit_files(spark, "binaryFile", paths).count() == len(names)
    assert read_explicit_files(spark, "text", paths[:1]).columns == [
        "value",
        "file_path",
        "file_size",
    ]


def test_a_name_that_java_cannot_open_is_refused_by_name() -> None:
    with pytest.raises(DataError, match=r"part-\\xff") as error:
        read_explicit_files(cast("Any", None), "text", ["/a/part-0", os.fsdecode(b"/a/part-\xff")])
    assert error.value.exit_code == 65


class Listed(LocalFiles):
    """The folders of a file system that is not local."""

    def __init__(self, **folders: list[str]) -> None:
        self.folders = folders

    def list_dir(self, path: str) -> list[Entry]:
        return [
            Entry(f"{path}/{name.strip('/')}", name.endswith("/"), 1, 0)
            for name in self.folders[path[-1]]
        ]


@pytest.mark.parametrize(
    ("names", "is_whole"),
    [
        (["p1", "p2"], True),
        (["p1", "p2", "_SUCCESS", ".hidden", "p3._COPYING_"], True),
        (["p1", "p2", "p3"], False),
        (["p1", "p2", "p3.tmp"], False),
        (["p1", "p2", "sub/"], False),
        (["p1"], False),
    ],
)
def test_a_folder_is_loaded_at_once_only_where_it_holds_nothing_else(
    names: list[str], is_whole: bool
) -> None:
    files = Listed(a=names, b=["q"])
    paths = ["hdfs://nn/a/p1", "hdfs://nn/a/p2", "hdfs://nn/b/q"]
    assert whole_folders(files, paths) == (["hdfs://nn/a", "hdfs://nn/b"] if is_whole else None)
    assert whole_folders(files, [*paths, "/local/p"]) is None
    assert whole_folders(files, ["hdfs://nn/{a/p1"]) is None
