"""A process of queries that ends without an answer: the error says how, and names
memory only where it was short.
"""

from __future__ import annotations

import os
import signal
import sys
from multiprocessing.connection import Connection
from typing import Any

import pytest

from cmsspark.apps.dashboard.query_process import Child, Query, _ask
from cmsspark.base.errors import CmssparkError, NotReady, UsageError


def _end(pipe: Connection, code: int) -> None:
    """Take a query as a process of queries does, and end: negative codes are signals, 1
    is an error of Python.
    """
    pipe.send("ready")
    pipe.recv()
    if code < 0:
        os.kill(os.getpid(), -code)
    sys.exit(code)


def _lack_memory(pipe: Connection) -> None:
    pipe.send("ready")
    pipe.recv()
    raise MemoryError


def ask(child: Child) -> CmssparkError:
    with pytest.raises(CmssparkError) as raised:
        _ask(child, Query("SELECT 1", 1, 1, 60), lambda: False, lambda: None)
    return raised.value


@pytest.mark.parametrize(
    ("what", "found"),
    [((_lack_memory,), "it lacked memory"), ((_end, -signal.SIGKILL), "killed (SIGKILL)")],
    ids=["MemoryError", "SIGKILL"],
)
def test_a_process_that_lacked_memory_says_so(what: tuple[Any, ...], found: str) -> None:
    error = ask(Child(*what))
    assert isinstance(error, UsageError) and "needs more memory than it may use" in error.problem
    assert found in str(error)


@pytest.mark.parametrize(
    ("code", "found"),
    [(-signal.SIGTERM, "by signal 15 (Terminated)"), (1, "with code 1")],
    ids=["a signal", "an error"],
)
def test_a_process_that_ended_otherwise_says_how_and_what_to_do(code: int, found: str) -> None:
    error = ask(Child(_end, code))
    assert isinstance(error, NotReady) and "ended unexpectedly" in error.problem
    assert found in str(error) and "memory" not in str(error)
    assert str(error.next_step).startswith("run it again")


def test_a_query_that_the_end_of_the_dashboard_stops_does_not_lack_memory() -> None:
    child = Child(_end, 0)
    child.kill()
    assert "the dashboard ends" in str(ask(child))
