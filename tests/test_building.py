"""The package is built with a C compiler and without one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.test_compiled import look
from tests.test_packaging import clean_environment, copy_of_the_checkout


def test_without_a_compiler_the_package_is_installed_and_reads_logs(tmp_path: Path) -> None:
    source, target = copy_of_the_checkout(tmp_path / "source"), tmp_path / "installed"
    words = ["install", "--no-build-isolation", "--no-deps", "--no-index", "--target", str(target), str(source)]
    run = subprocess.run(
        [sys.executable, "-m", "pip", *words],
        capture_output=True,
        text=True,
        check=False,
        env={**clean_environment(), "CC": "/bin/false"},
    )
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-2000:]
    assert list(target.glob("cmsspark/**/*.so")) == []
    # By `look` itself: two lines, read twice.
    assert look(target) == {"compiled": False, "from": None, "known": False}
