"""Files that may not be read, or are gone, are named with the code that fits. (Root,
who may run this, reads all.)
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pytest

from cmsspark.base import errors
from cmsspark.base.access import AccessBatch
from cmsspark.engines.scan import read_tasks
from cmsspark.engines.tasks import Task, TaskContext
from cmsspark.filesystems.storage import LocalFiles
from cmsspark.run import catalogue_snapshots
from cmsspark.settings.pseudonyms import Pseudonyms
from tests.corpus.hostile import DAY

#: What Spark hands to a worker that reads the first task.
NUMBERS = [pa.RecordBatch.from_pydict({"number": [0]})]


class Failing:
    """A reader whose files fail as a file system does."""

    groups: tuple[()] = ()

    def __init__(self, error: OSError) -> None:
        self.error = error

    def file(self, stream: IO[bytes], file: str, *, accept_damaged: bool) -> Iterator[AccessBatch]:
        raise self.error
        yield


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (PermissionError(13, "Permission denied"), errors.NotAllowed, 77),
        (OSError(5, "Input/output error"), errors.DataError, 65),
        (FileNotFoundError(2, "No such file or directory"), errors.DataError, 65),
        (OSError(116, "Stale file handle"), errors.NotReady, 75),
    ],
)
def test_a_log_that_cannot_be_read_is_named(
    tmp_path: Path, error: OSError, kind: type[errors.CmssparkError], code: int
) -> None:
    (tmp_path / "part 0").write_bytes(b"x")
    make: Any = lambda stream, form, day: Failing(error)  # noqa: E731  # a reader's maker, in one line
    task = Task("aaa", "enr", (str(tmp_path / "part 0"),))
    with pytest.raises(kind) as raised:
        list(
            read_tasks([task], TaskContext(DAY, None, None, Pseudonyms(b"k" * 32), make), NUMBERS)
        )
    assert (raised.value.exit_code, raised.value.where) == (code, str(tmp_path / "part 0"))
    assert raised.value.found == error.strerror


def test_a_log_that_is_gone_is_named(tmp_path: Path) -> None:
    task = Task("aaa", "enr", (str(tmp_path / "gone"),))
    make: Any = lambda stream, form, day: Failing(OSError())  # noqa: E731
    with pytest.raises(errors.DataError, match="gone"):
        list(
            read_tasks([task], TaskContext(DAY, None, None, Pseudonyms(b"k" * 32), make), NUMBERS)
        )


@pytest.mark.parametrize("name", ["stat", "listdir"])
@pytest.mark.parametrize(
    ("number", "kind", "code"),
    [
        (errno.EIO, errors.DataError, 65),
        (errno.ESTALE, errors.NotReady, 75),
        (errno.ELOOP, errors.InputMissing, 66),
    ],
)
def test_what_a_disk_or_a_file_server_refuses_is_named(
    tmp_path: Path,
    name: str,
    number: int,
    kind: type[errors.CmssparkError],
    code: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(place: object) -> None:
        raise OSError(number, os.strerror(number), place)

    ask = LocalFiles().stat if name == "stat" else LocalFiles().list_dir
    monkeypatch.setattr(os, name, refuse)
    with pytest.raises(kind) as raised:
        ask(str(tmp_path / "day"))
    monkeypatch.undo()
    assert (raised.value.exit_code, str(raised.value.where)) == (code, str(tmp_path / "day"))
    assert raised.value.found in (os.strerror(number), "a loop of links")


def test_a_dump_s_file_that_the_disk_refuses_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(files: object, path: str) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(catalogue_snapshots, "open_part", refuse)
    with pytest.raises(errors.DataError) as raised:
        list(catalogue_snapshots._read_rows(LocalFiles(), "FILES", ("file_id",), "/dumps/part-0"))
    assert (raised.value.where, raised.value.found) == ("/dumps/part-0", os.strerror(errno.EIO))


@pytest.mark.parametrize("name", ["stat", "listdir"])
def test_a_folder_that_may_not_be_listed_is_77(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(place: object) -> None:
        raise PermissionError(13, "Permission denied", place)

    ask = LocalFiles().stat if name == "stat" else LocalFiles().list_dir
    monkeypatch.setattr(os, name, refuse)
    with pytest.raises(errors.NotAllowed) as raised:
        ask(str(tmp_path / "day"))
    monkeypatch.undo()
    assert (raised.value.exit_code, str(raised.value.where)) == (77, str(tmp_path / "day"))
