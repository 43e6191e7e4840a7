"""Where the compiled modules come from, and that all goes on where they are missing, foreign or broken."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import pytest

from cmsspark import compiled
from cmsspark.submit.package import ship

PACKAGE = Path(compiled.__file__).resolve().parent
NAMES = [".".join(path.relative_to(PACKAGE).with_suffix("").parts) for path in sorted(PACKAGE.rglob("*.pyx"))]
SUFFIX = EXTENSION_SUFFIXES[0]

#: Reads two lines twice, and says by what.
LOOK = """
import json
from datetime import date
from cmsspark.sources import known
from cmsspark.sources.cmssw import CmsswDecoder
from cmsspark.sources.fields import Apps
decoder = CmsswDecoder(date(2019, 6, 15), Apps.load())
line = b'{"data":{"file_lfn":"/store/a","read_bytes":%d,"user_dn":"B"}}\\n'
found = [decoder.decode(line % 1 + line % 2, "f") for _ in range(2)]
assert [batch.lfns for batch in found] == [["/store/a"] * 2] * 2
assert [sorted(batch.read_bytes) for batch in found] == [[1, 2]] * 2
assert decoder.groups[0].user == "B" and len(decoder.groups) == 1
file = known._shaped and known._shaped.__file__
print(json.dumps({"compiled": known.COMPILED, "from": file, "known": decoder._known is not None}))
"""


def look(path: Path | str, before: str = "", cwd: Path | str = "/", **environment: str) -> dict[str, Any]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "CMSSPARK"))}
    run = subprocess.run(
        [sys.executable, "-c", before + LOOK],
        capture_output=True,
        text=True,
        cwd=cwd,
        check=False,
        env={**kept, "PYTHONPATH": str(path), **environment},
    )
    assert (run.returncode, run.stderr) == (0, "")
    found: dict[str, Any] = json.loads(run.stdout)
    return found


@pytest.fixture
def there() -> None:
    """Skips, which CI does not allow, where nothing was compiled."""
    if not all(map(compiled.compiled, NAMES)):
        pytest.skip("not compiled: python setup.py build_ext --inplace")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.skipif(os.environ.get("CI") != "true", reason="for CI")
def test_ci_tests_the_compiled_way(name: str) -> None:
    assert compiled.compiled(name) is not None, (
        f"cmsspark.{name} was not compiled for this Python: CI would test the slow way only. "
        "Is there a C compiler with Python's headers (bin/setup says so), and what does python setup.py build_ext say?"
    )


def test_a_module_that_is_not_there_is_none() -> None:
    assert compiled.compiled("sources.no_such_module") is None
    assert compiled.compiled("no_such_room.module") is None


def test_a_checkout_reads_by_compiled_code(there: None) -> None:
    found = look(PACKAGE.parent)
    assert (found["compiled"], found["known"]) == (True, True)
    assert Path(found["from"]).parent == PACKAGE / "sources"


def test_it_can_be_told_to_do_without(there: None) -> None:
    assert look(PACKAGE.parent, CMSSPARK_COMPILED="0") == {"compiled": False, "from": None, "known": False}
    assert look(PACKAGE.parent, CMSSPARK_COMPILED="1")["compiled"] is True
    assert look(PACKAGE.parent, CMSSPARK_COMPILED="")["compiled"] is True


def test_the_zip_that_goes_to_executors_reads_by_compiled_code(there: None, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    found = look(ship(PACKAGE, tmp_path), TMPDIR=str(scratch))
    assert (found["compiled"], found["known"]) == (True, True)
    assert Path(found["from"]).parent == scratch
    assert list(scratch.iterdir()) == []


def test_the_zip_may_have_a_dot_before_its_name_as_on_yarn(there: None, tmp_path: Path) -> None:
    before = f"import sys; sys.path.insert(0, './{Path(ship(PACKAGE, tmp_path)).relative_to(tmp_path)}')"
    assert look("", before, tmp_path)["compiled"] is True


def _zip(path: Path, suffix: str, content: bytes | None = None) -> Path:
    """The package as a zip whose compiled modules have this suffix and content (None: their own)."""
    with zipfile.ZipFile(ship(PACKAGE, path)) as whole, zipfile.ZipFile(path / "other.zip", "w") as changed:
        for name in whole.namelist():
            if name.endswith(SUFFIX):
                inside = whole.read(name) if content is None else content
                changed.writestr(name.removesuffix(SUFFIX) + suffix, inside)
            else:
                changed.writestr(name, whole.read(name))
    return path / "other.zip"


@pytest.mark.parametrize("suffix", [".cpython-399-x86_64-linux-gnu.so", ".cp399-win_amd64.pyd"])
def test_what_was_compiled_for_another_python_is_not_looked_at(there: None, tmp_path: Path, suffix: str) -> None:
    assert look(_zip(tmp_path, suffix))["compiled"] is False


@pytest.mark.parametrize("content", [b"", b"not a library", b"\x7fELF" + bytes(100)])
def test_a_broken_library_is_as_good_as_none(there: None, tmp_path: Path, content: bytes) -> None:
    assert look(_zip(tmp_path, SUFFIX, content))["compiled"] is False
    with zipfile.ZipFile(tmp_path / "other.zip") as whole:
        whole.extractall(tmp_path / "checkout")
    assert look(tmp_path / "checkout")["compiled"] is False


def test_a_library_of_another_module_is_as_good_as_none(there: None, tmp_path: Path) -> None:
    import _json  # built in or a library of its own: in no case does it hold our module

    library = Path(getattr(_json, "__file__", "") or sys.executable)
    assert look(_zip(tmp_path, SUFFIX, library.read_bytes()))["compiled"] is False


def test_a_zip_without_libraries_reads_the_other_way(there: None, tmp_path: Path) -> None:
    assert look(_zip(tmp_path, ".txt"))["compiled"] is False


def test_no_place_for_a_file_is_no_end(there: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled.tempfile, "tempdir", str(tmp_path / "gone"))
    assert compiled._loaded("cmsspark.sources.shaped", b"", SUFFIX) is None
