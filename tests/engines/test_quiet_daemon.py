"""The worker daemon imports what tasks need, and is quiet about connections that a
cancelled task's JVM has closed.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys

import pytest

from cmsspark.engines import quiet_daemon
from cmsspark.engines.quiet_daemon import import_for_tasks, print_trace


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


@pytest.mark.parametrize(
    "error", [OSError("disk"), ValueError("a bug"), EOFError(), TimeoutError(), MemoryError()]
)
def test_any_other_error_does(error: BaseException, capsys: pytest.CaptureFixture[str]) -> None:
    said = printed(error, capsys)
    assert said.startswith("Traceback")
    assert type(error).__name__ in said


IMPORTS = """
import gc, sys
from cmsspark.engines import quiet_daemon
assert not [name for name in sys.modules if name.startswith("cmsspark.engines.scan")]
quiet_daemon.import_for_tasks()
print(*sorted({"cmsspark.engines.scan", "cmsspark.sources.reader", "pyarrow.compute", "pandas"} & set(sys.modules)))
print(gc.get_freeze_count() > 20_000 > len(gc.get_objects()))
"""


def test_what_tasks_need_is_imported_and_not_what_is_slow() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True
    )
    names, is_left_out_of_collections = ran.stdout.splitlines()
    assert names.split() == ["cmsspark.engines.scan", "cmsspark.sources.reader", "pyarrow.compute"]
    assert is_left_out_of_collections == "True"


def test_what_is_not_installed_is_left_to_the_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quiet_daemon, "_IMPORTED", ("cmsspark.nothing_of_this_name", "wave"))
    sys.modules.pop("wave", None)
    import_for_tasks()
    assert "wave" in sys.modules
