"""The publisher is killed at each numbered step of the protocol, and started again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.publish.days import ids
from tests.publish.fake_broker import broker

ROWS = 1_100


def run(folder: Path, port: int, step: int) -> int:
    """The publisher's return code: -9 where the step was reached, 0 where it ended as it should."""
    command = [
        sys.executable,
        "-m",
        "tests.publish.killed_publisher",
        str(folder),
        str(port),
        str(step),
        str(ROWS),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2]
    )
    assert done.returncode in (0, -9), done.stderr
    return done.returncode


def check(folder: Path, step: int) -> bool:
    """Kill at ``step``, resume, compare. False when there is no such step."""
    with broker() as fake:
        killed = run(folder, fake.port, step)
        if killed:
            assert run(folder, fake.port, 0) == 0
        assert len(set(ids(fake.stored))) == ROWS + 1, "lost"
        assert len(fake.stored) - (ROWS + 1) <= 500, "more than a batch double"
        return bool(killed)


@pytest.mark.parametrize("step", [1, 2, 4, 7, 8, 9, 10, 12])
def test_killed_at_a_step_nothing_is_lost_and_at_most_one_batch_double(
    tmp_path: Path, step: int
) -> None:
    assert check(tmp_path, step)


@pytest.mark.long
def test_killed_at_every_step_nothing_is_lost_and_at_most_one_batch_double(tmp_path: Path) -> None:
    step = 1
    while check(tmp_path / str(step), step):
        step += 1
    # Three of the spool and seven for each of three batches, each of which was reached.
    assert step - 1 >= 3 + 3 * 7
