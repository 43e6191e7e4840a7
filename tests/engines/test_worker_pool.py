"""Processes of this host: what becomes of their errors, their end, and ours."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import date
from multiprocessing import Pipe
from pathlib import Path
from typing import IO

import pyarrow as pa
import pytest
from msgspec.structs import replace

from cmsspark.base import self_metrics
from cmsspark.base.access import AccessBatch, Group
from cmsspark.base.errors import CmssparkError, DataError, NotAllowed, NotReady
from cmsspark.counting.crab_rows import merge_rows
from cmsspark.engines.tasks import StreamFiles, Task, TaskContext, pack_tasks
from cmsspark.engines.worker_pool import WorkerFailed, WorkerPool, _Rows
from cmsspark.settings.pseudonyms import Pseudonyms
from cmsspark.sources.formats.fast_json import Groups
from tests.counting.catalogues import opened

DAY = date(2026, 1, 15)


class Says:
    """A reader that does what the file's text says."""

    def __init__(self, stream: str, form: str, day: date) -> None:
        self.groups = Groups([Group("T2_X", "crab", "Ann", 0)])

    def file(self, stream: IO[bytes], file: str, *, accept_damaged: bool) -> Iterator[AccessBatch]:
        text = stream.read().decode()
        if text == "damaged":
            raise DataError("a file is damaged", where=file, found="so", next_step="fetch it")
        if text.startswith("error "):
            raise OSError(int(text[6:]), "of the system", "/cache/of/a/task")
        if text == "bug":
            raise ZeroDivisionError("of a reader")
        if text == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if "crab" in file:
            yield AccessBatch(
                read=1,
                lfns=["/store/a"],
                groups=[0],
                cpu_ms=[1],
                wall_ms=[2],
                job_hashes=[int(text)],
                positions=[0],
            )
            return
        yield AccessBatch(read=1, lfns=["/store/a"], groups=[0], read_bytes=[int(text)])

    def chunk(self, chunk: bytes, file: str) -> AccessBatch:
        raise NotImplementedError

    def notes(self) -> list[tuple[str, str, int, str]]:
        return [("note", "pid", 1, str(os.getpid()))]


@pytest.fixture
def context(tmp_path: Path) -> TaskContext:
    opened(tmp_path / "catalogue", [("/store/a", 1, 1, 1)], [(1, "/x/y/RAW")])
    return TaskContext(DAY, str(tmp_path / "catalogue"), None, Pseudonyms(b"k" * 32), Says)


def tasks(folder: Path, *texts: str) -> list[Task]:
    found = []
    for number, text in enumerate(texts):
        path = folder / f"part-{number}"
        path.write_text(text)
        found.append(Task("aaa", "enr", (str(path),)))
    return found


def test_all_tasks_are_read_and_each_process_hands_over_a_stream_once(
    tmp_path: Path, context: TaskContext
) -> None:
    with WorkerPool(2) as pool:
        rows = [
            row
            for batch in pool.scan(tasks(tmp_path, *"1234567"), context)
            for row in batch.to_pylist()
        ]
    accesses = [row for row in rows if row["kind"] == "access"]
    assert sum(row["nacc"] for row in accesses) == 7
    assert sum(row["read_bytes"] for row in accesses) == 28
    processes = {row["detail"] for row in rows if row["kind"] == "note"}
    assert len(accesses) == len(processes) <= 2


def test_what_was_read_is_counted_while_it_runs_where_live_metrics_are_wanted(
    tmp_path: Path, context: TaskContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(self_metrics.LiveCounters, "_sums", {})
    monkeypatch.setenv(self_metrics.VARIABLE, str(tmp_path))
    file = tmp_path / self_metrics.LIVE_FILE
    todo = [replace(task, size=number) for number, task in enumerate(tasks(tmp_path, *"1234567"))]
    with WorkerPool(2) as pool:
        list(pool.scan(todo, context))
    assert not file.exists(), "nobody wants it"
    file.touch()
    earlier = replace(todo[6], earlier_day=date(2026, 1, 14))
    for expected in (6, 12):
        with WorkerPool(2) as pool:
            list(pool.scan([*todo[:6], earlier], context))
        counts = json.loads(file.read_text())
        assert counts == {
            "records_read": expected,
            "input_files": expected,
            "input_bytes": 15 * expected // 6,
        }


def test_rows_of_jobs_come_first_and_are_merged_beside_the_rest(
    tmp_path: Path, context: TaskContext
) -> None:
    files = {stream: tmp_path / stream for stream in ("aaa", "crab")}
    for folder in files.values():
        folder.mkdir()
        for number in range(4):
            (folder / f"part-{number}").write_text(str(number // 2 + 1) * 9)
    streams = [
        StreamFiles(
            stream, form, tuple((str(path), 9) for path in sorted(files[stream].iterdir()))
        )
        for stream, form in (("aaa", "enr"), ("crab", "avro"))
    ]
    todo = pack_tasks(streams, 2, 9)
    assert [task.stream for task in todo] == ["crab"] * 4 + ["aaa"] * 4
    with WorkerPool(2) as pool:
        batches = list(pool.scan(todo, context))
    end = batches.index(None)
    assert batches.count(None) == 1
    before, after = (
        [row for batch in part for row in batch.to_pylist()]
        for part in (batches[:end], batches[end + 1 :])
    )
    assert len([row for row in before if row["kind"] == "crab"]) == 4
    assert {row["stream"] for row in after} <= {"aaa"}
    accesses = [row for row in before + after if row["kind"] == "access"]
    assert sum(row["nacc"] for row in accesses) == 4
    # Two of the four rows of a file repeat a job.
    merged = [row for batch in merge_rows(batches) for row in batch.to_pylist()]
    of_crab = [row for row in merged if row["stream"] == "crab"]
    assert sum(row["nacc"] for row in of_crab if row["kind"] == "access") == 2
    in_one_go = merge_rows(batch for batch in batches if batch is not None)
    assert sorted(map(str, merged)) == sorted(str(r) for b in in_one_go for r in b.to_pylist())


def test_more_processes_than_tasks_and_no_tasks_at_all(
    tmp_path: Path, context: TaskContext
) -> None:
    with WorkerPool(3) as pool:
        rows = [
            row for batch in pool.scan(tasks(tmp_path, "5"), context) for row in batch.to_pylist()
        ]
    assert [row["read_bytes"] for row in rows if row["kind"] == "access"] == [5]
    with WorkerPool(2) as pool:
        assert list(pool.scan([], context)) == []


def test_rows_arrive_as_they_were_sent_and_an_end_within_them_is_one_of_the_process() -> None:
    batch = pa.RecordBatch.from_pydict(
        {
            "text": pa.array(["é", None, ""] * 70_000).dictionary_encode(),
            "number": pa.array([None, -1, 2**62] * 70_000),
            "null": pa.nulls(210_000),
            "nothing": pa.array([""] * 210_000),
        }
    ).slice(1)
    here, there = Pipe()
    sender = threading.Thread(target=_Rows.send, args=(there, batch))
    sender.start()
    assert here.recv().receive(here).equals(batch)
    sender.join()
    there.send(_Rows(b"", [3, 4]))
    os.write(there.fileno(), b"abc12")
    there.close()
    rows = here.recv()
    with pytest.raises(EOFError):
        rows.receive(here)


def _half(number: int) -> tuple[float, int]:
    if number < 0:
        raise DataError("a number from 0 on is wanted", found=number)
    return number / 2, os.getpid()


def test_other_work_is_shared_and_its_results_come_in_order(
    tmp_path: Path, context: TaskContext
) -> None:
    with WorkerPool(2) as pool:
        found = pool.map(_half, range(20))
        assert [half for half, _ in found] == [number / 2 for number in range(20)]
        assert os.getpid() not in {process for _, process in found}
        assert pool.map(_half, []) == []
        assert sum(batch.num_rows > 0 for batch in pool.scan(tasks(tmp_path, "1"), context))
    with WorkerPool(2) as pool, pytest.raises(DataError, match="from 0 on"):
        pool.map(_half, [1, -1, 2])


def test_an_error_of_ours_crosses_whole(tmp_path: Path, context: TaskContext) -> None:
    with WorkerPool(2) as pool, pytest.raises(DataError) as caught:
        list(pool.scan(tasks(tmp_path, "1", "damaged", "3"), context))
    assert caught.value.where == str(tmp_path / "part-1")
    assert caught.value.next_step == "fetch it"


def test_a_file_that_is_gone_or_closed_to_us_is_named(
    tmp_path: Path, context: TaskContext
) -> None:
    with WorkerPool(1) as pool, pytest.raises(DataError, match="cannot be read") as caught:
        list(pool.scan([Task("aaa", "enr", (str(tmp_path / "none"),))], context))
    assert caught.value.where == str(tmp_path / "none")
    if os.geteuid():
        closed = tasks(tmp_path, "1")
        Path(closed[0].paths[0]).chmod(0)
        with WorkerPool(1) as pool, pytest.raises(NotAllowed):
            list(pool.scan(closed, context))


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.EIO, 65),
        (errno.ESTALE, 75),
        (errno.ENOENT, 65),
        (errno.EISDIR, 65),
        (errno.EACCES, 77),
    ],
)
def test_an_error_of_the_system_in_a_reader_has_its_code(
    number: int, code: int, tmp_path: Path, context: TaskContext
) -> None:
    with WorkerPool(1) as pool, pytest.raises(CmssparkError) as raised:
        list(pool.scan(tasks(tmp_path, f"error {number}"), context))
    assert raised.value.exit_code == code


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.EIO, 65),
        (errno.ESTALE, 75),
        (errno.ENOENT, 66),
        (errno.ENOTDIR, 65),
        (errno.EROFS, 73),
        (errno.EBUSY, 65),
    ],
)
def test_an_error_of_the_system_in_a_worker_names_its_file(number: int, code: int) -> None:
    with WorkerPool(1) as pool, pytest.raises(CmssparkError) as raised:
        list(pool.map(_fails_with, [number]))
    assert (raised.value.exit_code, raised.value.where) == (code, "/cache/of/a/task")


def _fails_with(number: int) -> None:
    raise OSError(number, "of the system", "/cache/of/a/task")


def test_an_error_that_is_none_of_ours_brings_its_trace(
    tmp_path: Path, context: TaskContext
) -> None:
    with (
        WorkerPool(2) as pool,
        pytest.raises(WorkerFailed, match=r"(?s)in file.*ZeroDivisionError: of a reader"),
    ):
        list(pool.scan(tasks(tmp_path, "bug"), context))


def test_a_process_that_is_killed_is_reported_and_may_be_tried_again(
    tmp_path: Path, context: TaskContext
) -> None:
    with WorkerPool(2) as pool, pytest.raises(NotReady, match="was killed") as caught:
        list(pool.scan(tasks(tmp_path, "killed", "1"), context))
    assert "SIGKILL" in str(caught.value.found)


def test_no_process_outlives_the_one_that_made_it(tmp_path: Path) -> None:
    code = (
        "import os, sys\n"
        "from cmsspark.engines.worker_pool import WorkerPool\n"
        "pool = WorkerPool(3)\n"
        "print(*(member.pid for member, _ in pool._members), flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as maker:
        assert maker.stdout is not None
        pids = [int(word) for word in maker.stdout.readline().split()]
        assert len(pids) == 3
        maker.kill()
        # They hold its stdout: it ends when the last of them has.
        assert maker.stdout.read() == ""
