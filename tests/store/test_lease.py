"""Leases (R2): of several, one works; a dead one holds nothing; who was overtaken finds
out before it counts.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cmsspark.base.errors import NotReady
from cmsspark.filesystems.storage import LocalFiles
from cmsspark.store import lease
from cmsspark.store.lease import Lease

ELSEWHERE = {"host": "other.example.org", "pid": 7, "kernel": "another boot", "started": 1}


class Clock:
    def __init__(self) -> None:
        self.s = 1_780_000_000.0

    def __call__(self) -> float:
        return self.s


def of(folder: Path, clock: Clock, process: dict[str, Any] | None = None) -> Lease:
    return Lease(
        LocalFiles(),
        str(folder),
        "the day",
        now=clock,
        process=process or lease.identity(),
    )


def test_a_held_lease_is_refused_and_its_holder_named(tmp_path: Path) -> None:
    clock = Clock()
    of(tmp_path, clock, ELSEWHERE).take()
    with pytest.raises(NotReady, match=r"process 7 on other\.example\.org"):
        of(tmp_path, clock).take()


def test_a_released_lease_is_free_at_once(tmp_path: Path) -> None:
    clock = Clock()
    first = of(tmp_path, clock, ELSEWHERE)
    first.take()
    first.release()
    of(tmp_path, clock).take()


def test_a_lease_held_elsewhere_is_free_once_it_has_expired_and_not_before(tmp_path: Path) -> None:
    clock = Clock()
    of(tmp_path, clock, ELSEWHERE).take()
    clock.s += lease.TTL_S - 1
    with pytest.raises(NotReady):
        of(tmp_path, clock).take()
    clock.s += 1
    of(tmp_path, clock).take()


def test_renewing_holds_it_for_longer(tmp_path: Path) -> None:
    clock = Clock()
    first = of(tmp_path, clock, ELSEWHERE)
    first.take()
    clock.s += lease.TTL_S - 1
    first.renew()
    clock.s += lease.TTL_S - 1
    with pytest.raises(NotReady):
        of(tmp_path, clock).take()


def test_a_clock_that_jumps_takes_nothing_from_a_living_process_here(tmp_path: Path) -> None:
    clock = Clock()
    of(tmp_path, clock).take()
    clock.s += 10 * 365 * 86_400
    with pytest.raises(NotReady, match="running since"):
        of(tmp_path, clock).take()
    clock.s = 0
    with pytest.raises(NotReady, match="running since"):
        of(tmp_path, clock).take()


def test_a_number_given_to_another_process_is_no_holder(tmp_path: Path) -> None:
    clock = Clock()
    of(tmp_path, clock, {**lease.identity(), "started": 1}).take()
    of(tmp_path, clock).take()


def test_a_process_that_was_killed_holds_nothing(tmp_path: Path) -> None:
    code = (
        "import sys, time\nfrom cmsspark.store.lease import Lease\n"
        "from cmsspark.filesystems.storage import LocalFiles\n"
        "Lease(LocalFiles(), sys.argv[1], 'the day').take()\nprint('held', flush=True)\nsys.stdin.read()\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"
        with pytest.raises(NotReady, match=f"process {child.pid} on"):
            of(tmp_path, Clock()).take()
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        of(tmp_path, Clock()).take()


def test_a_process_that_lost_the_lease_detects_it_and_leaves_it_alone(tmp_path: Path) -> None:
    clock = Clock()
    slow = of(tmp_path, clock, ELSEWHERE)
    slow.take()
    clock.s += 2 * lease.TTL_S
    quick = of(tmp_path, clock)
    quick.take()
    for asked in (slow.check, slow.renew):
        with pytest.raises(NotReady, match="took over"):
            asked()
    slow.release()
    quick.check()


def test_a_lease_that_was_removed_is_not_said_to_be_taken_over(tmp_path: Path) -> None:
    lease_here = of(tmp_path / "lease", Clock())
    lease_here.take()
    shutil.rmtree(tmp_path / "lease")
    with pytest.raises(NotReady, match="was removed while it was held"):
        lease_here.check()


def test_who_made_a_number_that_was_passed_long_ago_holds_nothing(tmp_path: Path) -> None:
    clock = Clock()

    class Late(LocalFiles):
        """Between the look and the making of the next number, two others take the lease
        and the last holds it.
        """

        done = False

        def create(self, path: str, content: bytes) -> bool:
            if not self.done:
                self.done = True
                first = of(tmp_path, clock)
                first.take()
                first.release()
                of(tmp_path, clock, ELSEWHERE).take()
            return super().create(path, content)

    late = Lease(Late(), str(tmp_path), "the day", now=clock)
    with pytest.raises(NotReady, match=r"other\.example\.org"):
        late.take()
    assert [path.name for path in tmp_path.iterdir()] == ["00000002.json"]


def test_a_file_that_is_no_lease_holds_as_long_as_one(tmp_path: Path) -> None:
    (tmp_path / "00000001.json").write_bytes(b"\0garbage")
    clock = Clock()
    clock.s = (tmp_path / "00000001.json").stat().st_mtime + 1
    with pytest.raises(NotReady):
        of(tmp_path, clock).take()
    clock.s += lease.TTL_S
    of(tmp_path, clock).take()


def test_of_many_at_once_one_gets_it(tmp_path: Path) -> None:
    clock = Clock()
    barrier = threading.Barrier(8)

    def one(number: int) -> bool:
        barrier.wait()
        try:
            of(tmp_path, clock, {**ELSEWHERE, "pid": number}).take()
        except NotReady:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(one, range(8))) == 1


def test_a_block_holds_renews_and_releases(tmp_path: Path) -> None:
    renewed = threading.Event()

    class Watched(LocalFiles):
        def write_bytes(self, path: str, content: bytes) -> None:
            super().write_bytes(path, content)
            if "part" not in path:
                renewed.set()

    with lease.hold(Watched(), str(tmp_path), "the day", ttl_s=0.3):
        renewed.clear()
        assert renewed.wait(300)
    assert json.loads((tmp_path / "00000001.json").read_bytes())["released"] is True
    assert not [thread for thread in threading.enumerate() if "the day" in thread.name]


def test_the_lease_works_on_hadoop_file_systems(tmp_path: Path, spark: Any) -> None:
    from cmsspark.filesystems.hadoop import HadoopFiles

    clock = Clock()
    folder = f"file://{tmp_path}/a b"
    first = Lease(HadoopFiles(spark), folder, "the day", now=clock, process=ELSEWHERE)
    first.take()
    with pytest.raises(NotReady, match=r"other\.example\.org"):
        Lease(HadoopFiles(spark), folder, "the day", now=clock).take()
    first.release()
    Lease(HadoopFiles(spark), folder, "the day", now=clock).take()
    assert not HadoopFiles(spark).create(f"{folder}/00000002.json", b"x")
    assert [entry.name for entry in HadoopFiles(spark).list_dir(folder)] == ["00000002.json"]
