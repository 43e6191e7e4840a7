"""The package is built with a C compiler and without one, and nothing that was made of
other sources stays.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cmsspark.base.compiled import NAMES, digests
from tests.base.test_compiled import SUFFIX, look
from tests.test_packaging import clean_environment, copy_of_the_checkout

#: "Compiles" to its own command line, and notes what: a real one takes a minute.
COMPILER = """#!/bin/sh
for word; do
    [ "$last" = -o ] && target=$word
    case $word in *.o) [ "$last" = -o ] || objects="$objects $word";; esac
    last=$word
done
case " $* " in
    *" -c "*) echo "$target" >>"$NOTED"; echo "$*" >"$target";;
    *) cat $objects >"$target";;
esac
"""


@pytest.fixture(scope="module")
def translated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout, its modules translated to C, which is half of the time."""
    source = copy_of_the_checkout(tmp_path_factory.mktemp("translated") / "source")
    setup(source, "--version")
    assert len(list(source.glob("build/**/*.c"))) == len(NAMES)
    return source


@pytest.fixture
def checkout(translated: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(translated, tmp_path / "source"))


def setup(source: Path, *words: str, **environ: str) -> None:
    run = subprocess.run(
        [sys.executable, "setup.py", "-q", *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=source,
        env={**clean_environment(), **environ},
    )
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-2000:]


def test_without_a_compiler_the_package_is_installed_and_reads_logs(
    checkout: Path, tmp_path: Path
) -> None:
    target = tmp_path / "installed"
    words = [
        "install",
        "--no-build-isolation",
        "--no-deps",
        "--no-index",
        "--target",
        str(target),
        str(checkout),
    ]
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
    assert look(target) == {"why not": "missing", "from": None}


def test_what_changed_is_compiled_and_where_that_fails_nothing_old_stays(
    checkout: Path, tmp_path: Path
) -> None:
    package, noted, compiler = checkout / "cmsspark", tmp_path / "noted", tmp_path / "cc"
    compiler.write_text(COMPILER)
    compiler.chmod(0o755)

    def build(cc: Path | str = compiler) -> list[str]:
        noted.write_text("")
        setup(checkout, "build_ext", "--inplace", CC=str(cc), NOTED=str(noted))
        return sorted(Path(line).stem for line in noted.read_text().splitlines())

    def libraries() -> dict[str, bytes]:
        found = {
            path.relative_to(package).as_posix(): path.read_bytes()
            for path in package.rglob("*.so")
        }
        return {
            name.removesuffix(SUFFIX).replace("/", "."): content for name, content in found.items()
        }

    def are_of_these_sources() -> bool:
        wanted = digests(lambda inside: (package / inside).read_bytes())
        return all(wanted[name].encode() in content for name, content in libraries().items())

    assert build() == sorted(name.split(".")[-1] for name in NAMES)
    assert sorted(libraries()) == sorted(NAMES) and are_of_these_sources()
    # pip builds in a new folder each time: what is compiled already stays as it is.
    for folder in (checkout / "build").glob("lib*"):
        shutil.rmtree(folder)
    files = {path: path.stat().st_ino for path in package.rglob("*.so")}
    assert build() == [] and files == {path: path.stat().st_ino for path in package.rglob("*.so")}

    changed = package / "sources" / "formats" / "plain_csv.pyx"
    for added, cc, compiled in (
        ("ADDED_FIRST", compiler, ["plain_csv"]),
        ("ADDED_THEN", "/bin/false", []),
    ):
        changed.write_text(f"{changed.read_text()}{added} = 1\n")
        # As from an archive: its time says nothing.
        os.utime(changed, (1, 1))
        assert build(cc) == compiled and are_of_these_sources()
        assert (
            added
            in (
                checkout / "build" / "cmsspark" / "sources" / "formats" / "plain_csv.c"
            ).read_text()
        )
    assert set(NAMES) - set(libraries()) == {"sources.formats.plain_csv"}
