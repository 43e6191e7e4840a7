"""Processes without room: little memory, full disks, signals while modules are
imported. One line, one code.
"""

from __future__ import annotations

import errno
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest

from cmsspark.apps.demo import make
from cmsspark.base.errors import Exit, NotAllowed, NotReady, OutputError, as_ours
from cmsspark.base.memory import is_shortage
from cmsspark.base.schemas import stored_table
from cmsspark.engines.session import unwrap_cause
from cmsspark.store.stored_columns import stored_rows
from tests.publish.days import row, store_day

TOP = Path(__file__).resolve().parents[2]
DAY = date(2026, 1, 15)
CODES = {int(code) for code in Exit} - {int(Exit.BUG)}
CMSSPARK = "from cmsspark.entry import cmsspark; cmsspark()"
RUN_SPARK = "from cmsspark.entry import run_spark; run_spark()"


@pytest.fixture(scope="module")
def cms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small day of logs and dumps."""
    folder = tmp_path_factory.mktemp("small") / "cms"
    make(folder, DAY, records=2_000, files=800, datasets=30, people=20)
    return folder


def run(
    folder: Path,
    program: str,
    *words: str,
    megabytes: int | None = None,
    before: tuple[str, ...] = (),
) -> subprocess.CompletedProcess[str]:
    """A command in ``folder``, which has its settings; ``megabytes``: of address space."""

    def limit() -> None:
        if megabytes is not None:
            resource.setrlimit(resource.RLIMIT_AS, (megabytes * 1_000_000,) * 2)

    settings = folder / "cmsspark.yaml"
    if not settings.exists():
        settings.write_text("store: store\nstate_dir: state\ncache_dir: cache\n")
    environ = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": str(TOP)}
    command = [*before, sys.executable, "-c", program, *words]
    return subprocess.run(
        command,
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=limit,
        timeout=600,
    )


def assert_orderly(done: subprocess.CompletedProcess[str]) -> None:
    """A documented code; an error is one message, never a traceback, and no bug of ours."""
    assert done.returncode in CODES, done.stderr
    assert "Traceback" not in done.stderr
    assert "bug in cmsspark" not in done.stderr
    if done.returncode:
        assert len(re.findall(r"^(?:cmsspark|run_spark): ", done.stderr, re.MULTILINE)) == 1, (
            done.stderr
        )


# -- memory
# ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("megabytes", [30, 40, 60, 90, 120, 150, 200, 260])
def test_too_little_memory_is_one_line_and_a_documented_code(
    tmp_path: Path, cms: Path, megabytes: int
) -> None:
    store_day(tmp_path / "store", [row(number) for number in range(50)])
    day = ("--date", "2026-01-15")
    assert_orderly(run(tmp_path, CMSSPARK, "status", megabytes=megabytes))
    assert_orderly(run(tmp_path, CMSSPARK, "publish", *day, megabytes=megabytes))
    job = (
        "data_aggregation",
        *day,
        "--root",
        str(cms),
        "--fout",
        str(tmp_path / "new"),
        "--local",
    )
    done = run(tmp_path, RUN_SPARK, *job, megabytes=megabytes)
    assert_orderly(done)
    if done.returncode:
        assert done.returncode in (int(Exit.NOT_ALLOWED), int(Exit.NOT_READY)), done.stderr
        assert not list((tmp_path / "new").rglob("CURRENT"))


def test_a_limit_of_the_process_is_named_and_a_full_host_may_have_room_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for error in (
        MemoryError(),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        ImportError("libarrow.so: failed to map segment from shared object"),
        RuntimeError("can't start new thread"),
        OSError("Unknown error: Failed to launch worker thread: Resource temporarily unavailable"),
    ):
        monkeypatch.setattr(resource, "getrlimit", lambda kind: (resource.RLIM_INFINITY,) * 2)
        assert isinstance(as_ours(error), NotReady)
        monkeypatch.setattr(resource, "getrlimit", lambda kind: (150_000_000,) * 2)
        ours = as_ours(error)
        assert isinstance(ours, NotAllowed) and "150 MB" in str(ours)


def test_other_errors_are_no_shortage_of_memory() -> None:
    for error in (
        ValueError("out of memory"),
        ImportError("No module named 'x'"),
        BlockingIOError(errno.EAGAIN, "locked"),
    ):
        assert not is_shortage(error)


def test_a_table_that_no_memory_is_left_for_is_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cmsspark.filesystems.storage import LocalFiles
    from cmsspark.store.results import current

    store_day(tmp_path, [row(1)])
    stored = current(LocalFiles(), str(tmp_path), "data_aggregation", "data_aggregation", DAY)

    def refuse(*arguments: object, **options: object) -> None:
        raise OSError(
            "Unknown error: Failed to launch worker thread: Resource temporarily unavailable"
        )

    monkeypatch.setattr("pyarrow.parquet.ParquetFile", refuse)
    with pytest.raises(OSError) as error:
        list(stored_rows(stored, stored_table("data_aggregation")))
    assert isinstance(as_ours(error.value), NotReady)


# -- disks
# -----------------------------------------------------------------------------------------------------


def test_a_full_store_is_not_reported_as_spark_s_folder() -> None:
    full = OSError(errno.ENOSPC, "No space left on device", "/store/part-00000")
    for error in (
        full,
        OutputError(
            "this cannot be written", where="/store/part-00000", found="No space left on device"
        ),
    ):
        found = unwrap_cause(error)
        assert isinstance(found, OutputError) and found.where == "/store/part-00000"
        assert "spark.local.dir" not in str(found)
    text = "java.io.IOException: No space left on device\n\tat {}"
    for at in (
        "o.a.s.sql.execution.datasources.FileFormatWriter$.write",
        "o.a.h.mapreduce.lib.output.FileOutputCommitter.x",
    ):
        found = unwrap_cause(Exception(text.format(at)))
        assert (
            isinstance(found, OutputError)
            and "spark.local.dir" not in str(found)
            and "store" in str(found)
        )
    spilling = unwrap_cause(
        Exception(text.format("o.a.s.util.collection.unsafe.sort.UnsafeSorterSpillWriter.write"))
    )
    assert "spark.local.dir" in str(spilling)


def _can_mount() -> bool:
    words = ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"]
    return (
        shutil.which("unshare") is not None
        and not subprocess.run(words, capture_output=True, check=False).returncode
    )


if _can_mount():  # an account that may not has the test above

    @pytest.mark.parametrize("kilobytes", [8, 40, 100])
    @pytest.mark.parametrize("name", ["store", "state", "cache"])
    def test_a_full_disk_is_named_and_keeps_no_stray_file(
        tmp_path: Path, cms: Path, name: str, kilobytes: int
    ) -> None:
        disk = tmp_path / name
        disk.mkdir()
        kept = tmp_path / "kept"
        script = (
            f'mount -t tmpfs -o size={kilobytes}k none "{disk}"; "$@"; code=$?; '
            f'find "{disk}" -type f -size +0 >"{kept}"; exit $code'
        )
        before = ("unshare", "--mount", "sh", "-c", script, "sh")
        job = (
            "data_aggregation",
            "--date",
            "2026-01-15",
            "--root",
            str(cms),
            "--fout",
            str(tmp_path / "store"),
            "--local",
        )
        done = run(tmp_path, RUN_SPARK, *job, before=before)
        assert_orderly(done)
        assert done.returncode in (0, int(Exit.NO_OUTPUT)), done.stderr
        if done.returncode:
            assert str(disk) in done.stderr
            assert "spark.local.dir" not in done.stderr
            left = [Path(line).relative_to(disk) for line in kept.read_text().splitlines()]
            databases = [
                f"{name}.sqlite{end}"
                for name in ("runs", "processes")
                for end in ("", "-wal", "-shm")
            ]
            # What a run used is kept with the run, of as many runs and bytes as
            # `monitor` of the settings says.
            known = (".leases", *databases, "monitor", "pseudonym.key")
            # A snapshot that is complete has a meta.json; a later one had no room.
            whole = {path.parent for path in left if path.name == "meta.json"}
            assert not [
                path for path in left if path.parts[0] not in known and path.parent not in whole
            ], left


# -- signals
# ---------------------------------------------------------------------------------------------------

_SIGNALLED = """
import importlib.abc, os, sys

class Signals(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), {number})

sys.meta_path.insert(0, Signals())
{program}
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("program", "module", "words"),
    [
        (CMSSPARK, "cmsspark.main", ()),
        (CMSSPARK, "click", ("status",)),
        (CMSSPARK, "cmsspark.base.errors", ("status",)),
        (CMSSPARK, "cmsspark.apps.results.status", ("status",)),
        (RUN_SPARK, "cmsspark.submit.wrapper", ("--list",)),
        (RUN_SPARK, "cmsspark.settings.settings", ("--list",)),
    ],
)
def test_a_signal_while_modules_are_imported_ends_with_75_and_one_line(
    tmp_path: Path, program: str, module: str, words: tuple[str, ...], number: int
) -> None:
    done = run(
        tmp_path, _SIGNALLED.format(module=module, number=int(number), program=program), *words
    )
    assert done.returncode == 75, done.stderr
    name = "run_spark" if program == RUN_SPARK else "cmsspark"
    assert done.stderr.strip() == f"{name}: interrupted; run the same command again to finish"


@pytest.mark.parametrize("job", ["data_aggregation", "dbs_rucio"])
def test_little_address_space_is_enough_for_a_day_and_ends_no_process_after_it_is_stored(
    tmp_path: Path, cms: Path, job: str
) -> None:
    options = (
        "--date",
        "2026-01-15",
        "--root",
        str(cms),
        "--fout",
        str(tmp_path / "new"),
        "--local",
    )
    done = run(tmp_path, RUN_SPARK, job, *options, megabytes=1_536)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    assert list((tmp_path / "new").rglob("CURRENT"))
