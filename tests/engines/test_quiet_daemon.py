"""The worker daemon keeps quiet about connections that a cancelled task's JVM has closed, and about nothing else."""

from __future__ import annotations

import contextlib

import pytest

from cmsspark.engines.quiet_daemon import print_trace


def printed(error: BaseException, capsys: pytest.CaptureFixture[str]) -> str:
    with contextlib.suppress(type(error)):
        try:
            raise error
        except BaseException:
            print_trace()
            raise
    said = capsys.readouterr()
    return said.out + said.err


@pytest.mark.parametrize("kind", [ConnectionResetError, BrokenPipeError, ConnectionAbortedError])
def test_a_connection_that_was_closed_leaves_no_trace(
    kind: type[Exception], capsys: pytest.CaptureFixture[str]
) -> None:
    assert printed(kind(), capsys) == ""


@pytest.mark.parametrize("error", [OSError("disk"), ValueError("a bug"), EOFError(), TimeoutError(), MemoryError()])
def test_any_other_error_does(error: BaseException, capsys: pytest.CaptureFixture[str]) -> None:
    said = printed(error, capsys)
    assert said.startswith("Traceback")
    assert type(error).__name__ in said
