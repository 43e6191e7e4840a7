"""Where the compiled modules come from, and that all goes on where they are missing,
foreign or broken.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import pytest

from cmsspark.base import compiled
from cmsspark.submit.package import ship

PACKAGE = Path(compiled.__file__).resolve().parents[1]
SUFFIX = EXTENSION_SUFFIXES[0]

#: Reads two lines twice, and says by what.
LOOK = """
import json
from datetime import date
from cmsspark.base import compiled
from cmsspark.sources.formats import fast_json
from cmsspark.sources.decoders import load_decoder
from cmsspark.sources.values import Apps
decoder = load_decoder("cmssw", "json")(date(2019, 6, 15), Apps.load())
line = b'{"data":{"file_lfn":"/store/a","read_bytes":%d,"user_dn":"B"}}\\n'
found = [decoder.decode(line % 1 + line % 2, "f") for _ in range(2)]
assert [batch.lfns for batch in found] == [["/store/a"] * 2] * 2
assert [sorted(batch.read_bytes) for batch in found] == [[1, 2]] * 2
assert decoder.groups[0].user == "B" and len(decoder.groups) == 1
file = fast_json._template_reader and fast_json._template_reader.__file__
assert (decoder._fast_lines is not None) == fast_json.COMPILED == (not compiled.unavailable_reason())
print(json.dumps({"why not": compiled.unavailable_reason(), "from": file}))
"""


def look(
    path: Path | str, before: str = "", cwd: Path | str = "/", **environment: str
) -> dict[str, Any]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "CMSSPARK"))
    }
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
    """Skips, which CI does not allow, where nothing is compiled."""
    if compiled.unavailable_reason():
        pytest.skip(f"{compiled.unavailable_reason()}: python setup.py build_ext --inplace")


@pytest.mark.skipif(os.environ.get("CI") != "true", reason="for CI")
def test_ci_tests_the_compiled_way() -> None:
    assert compiled.unavailable_reason() == "", (
        "there is no compiled code of these sources for this Python: CI would test the slow way only. "
        "next: python setup.py build_ext --inplace, which needs a C compiler and Python's headers (bin/setup says so)"
    )


def test_every_source_is_known() -> None:
    modules = [
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        for path in PACKAGE.rglob("*.pyx")
    ]
    assert sorted(compiled.NAMES) == sorted(modules)
    shared = [
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.p[xy][di]")
        if path.suffix != ".pyd"
    ]
    assert sorted(compiled.SHARED) == sorted(shared)


def test_a_module_that_is_not_there_is_none() -> None:
    assert compiled.compiled("sources.no_such_module") is None
    assert compiled.compiled("no_such_room.module") is None


def test_a_checkout_reads_by_compiled_code(there: None) -> None:
    found = look(PACKAGE.parent)
    assert found["why not"] == ""
    assert Path(found["from"]).parent == PACKAGE / "sources" / "formats"


def test_compiled_code_can_be_switched_off(there: None) -> None:
    assert look(PACKAGE.parent, CMSSPARK_COMPILED="0") == {"why not": "off", "from": None}
    assert look(PACKAGE.parent, CMSSPARK_COMPILED="1")["why not"] == ""
    assert look(PACKAGE.parent, CMSSPARK_COMPILED="")["why not"] == ""


def test_the_zip_that_goes_to_executors_reads_by_compiled_code(
    there: None, tmp_path: Path
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    found = look(ship(PACKAGE, tmp_path), TMPDIR=str(scratch))
    assert found["why not"] == ""
    assert Path(found["from"]).parent == scratch
    assert list(scratch.iterdir()) == []


def test_the_zip_may_have_a_dot_before_its_name_as_on_yarn(there: None, tmp_path: Path) -> None:
    before = f"import sys; sys.path.insert(0, './{Path(ship(PACKAGE, tmp_path)).relative_to(tmp_path)}')"
    assert look("", before, tmp_path)["why not"] == ""


#: What becomes of a file of the package: its name and content, or nothing of it.
Change = Callable[[str, bytes], tuple[str, bytes] | None]


def _zip(path: Path, change: Change) -> Path:
    with (
        zipfile.ZipFile(ship(PACKAGE, path)) as whole,
        zipfile.ZipFile(path / "other.zip", "w") as changed,
    ):
        for name in whole.namelist():
            if (made := change(name, whole.read(name))) is not None:
                changed.writestr(*made)
    return path / "other.zip"


def _looks(path: Path, change: Change) -> set[str]:
    """Why a zip with this change does not read by compiled code, and why what was
    unpacked of it does not.
    """
    changed = _zip(path, change)
    with zipfile.ZipFile(changed) as whole:
        whole.extractall(path / "unpacked")
    return {look(place)["why not"] for place in (changed, path / "unpacked")}


def _libraries(suffix: str, content: bytes | None = None) -> Change:
    """Compiled modules of this suffix and content (None: their own)."""

    def change(name: str, found: bytes) -> tuple[str, bytes]:
        if not name.endswith(SUFFIX):
            return name, found
        return name.removesuffix(SUFFIX) + suffix, found if content is None else content

    return change


@pytest.mark.parametrize(
    "suffix", [".cpython-399-x86_64-linux-gnu.so", ".cp399-win_amd64.pyd", ".txt"]
)
def test_what_was_compiled_for_another_python_is_ignored(
    there: None, tmp_path: Path, suffix: str
) -> None:
    assert _looks(tmp_path, _libraries(suffix)) == {"missing"}


@pytest.mark.parametrize("content", [b"", b"not a library", b"\x7fELF" + bytes(100)])
def test_a_broken_library_is_as_good_as_none(there: None, tmp_path: Path, content: bytes) -> None:
    assert _looks(tmp_path, _libraries(SUFFIX, content)) == {"missing"}


def test_a_library_of_another_module_is_as_good_as_none(there: None, tmp_path: Path) -> None:
    import _json  # built in or a library of its own: in no case does it hold our module

    library = Path(getattr(_json, "__file__", "") or sys.executable)
    assert look(_zip(tmp_path, _libraries(SUFFIX, library.read_bytes())))["why not"] == "missing"


def test_without_one_of_the_libraries_the_others_are_not_used(there: None, tmp_path: Path) -> None:
    gone = f"cmsspark/base/hashed{SUFFIX}"
    assert _looks(tmp_path, lambda name, content: None if name == gone else (name, content)) == {
        "missing"
    }


@pytest.mark.parametrize(
    "source",
    [
        "base/xxh64.pxd",
        "sources/formats/packed.pxd",
        "sources/values.pxd",
        "base/source_digest.pxi",
        "base/object_memory.pxi",
        "sources/formats/avro_values.pxd",
        "sources/formats/json_values.pxd",
        "sources/formats/line_reader.pxi",
        "sources/formats/plain_csv.pyx",
    ],
)
def test_what_is_made_of_other_sources_than_those_beside_it_is_not_used(
    there: None, tmp_path: Path, source: str
) -> None:
    def change(name: str, content: bytes) -> tuple[str, bytes]:
        return name, content + b"# changed\n" if name == f"cmsspark/{source}" else content

    assert _looks(tmp_path, change) == {"stale"}


def _installed(name: str, content: bytes) -> tuple[str, bytes] | None:
    """As a wheel has it: no sources."""
    return None if name.endswith((".pyx", ".pxd", ".pxi")) else (name, content)


def test_without_sources_what_was_made_together_is_used(there: None, tmp_path: Path) -> None:
    assert _looks(tmp_path, _installed) == {""}


@pytest.mark.parametrize("module", compiled.NAMES)
def test_without_sources_what_was_not_made_together_is_not_used(
    there: None, tmp_path: Path, module: str
) -> None:
    shared = compiled.digests(compiled._read)[module].split()[0].encode()
    library = f"cmsspark/{module.replace('.', '/')}{SUFFIX}"

    def change(name: str, content: bytes) -> tuple[str, bytes] | None:
        if name == library:
            assert content.count(shared) == 1
            content = content.replace(shared, shared[::-1])
        return _installed(name, content)

    assert look(_zip(tmp_path, change))["why not"] == "stale"


@pytest.mark.parametrize("error", ["TypeError", "ValueError"])
def test_classes_of_another_module_that_are_not_what_they_were_are_stale(
    there: None, tmp_path: Path, error: str
) -> None:
    def change(name: str, content: bytes) -> tuple[str, bytes]:
        if name == f"cmsspark/sources/formats/template_reader{SUFFIX}":
            return (
                "cmsspark/sources/formats/template_reader.py",
                f"raise {error}('size changed')".encode(),
            )
        return name, content

    assert _looks(tmp_path, change) == {"stale"}


def test_no_place_for_a_file_is_no_end(there: None, tmp_path: Path) -> None:
    before = f"import tempfile; tempfile.tempdir = {str(tmp_path / 'gone')!r}"
    assert look(ship(PACKAGE, tmp_path), before)["why not"] == "missing"
