"""The zip that travels: named for its content, made once, equal bytes for equal content."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

import cmsspark
from cmsspark.errors import OutputError
from cmsspark.submit.package import files, ship

PACKAGE = Path(cmsspark.__file__).resolve().parent


def small(folder: Path) -> Path:
    package = folder / "cmsspark"
    (package / "jobs" / "__pycache__").mkdir(parents=True)
    (package / "__init__.py").write_text("x = 1\n")
    (package / "jobs" / "__pycache__" / "a.pyc").write_text("")
    (folder / "etc").mkdir()
    (folder / "etc" / "sources.yaml").write_text("a: 1\n")
    (folder / "etc" / ".hidden").write_text("")
    return package


def test_resources_beside_the_package_go_inside_and_leftovers_stay_out(tmp_path: Path) -> None:
    assert [name for name, _ in files(small(tmp_path))] == ["cmsspark/__init__.py", "cmsspark/etc/sources.yaml"]


def test_equal_content_is_one_zip_and_new_content_another(tmp_path: Path) -> None:
    package, cache = small(tmp_path), tmp_path / "cache"
    first = ship(package, cache)
    assert ship(package, cache) == first
    content = Path(first).read_bytes()
    Path(first).unlink()
    assert Path(ship(package, cache)).read_bytes() == content
    (package / "__init__.py").write_text("x = 2\n")
    assert ship(package, cache) != first


def test_old_zips_go_and_no_half_ones_stay(tmp_path: Path) -> None:
    package, cache = small(tmp_path), tmp_path / "cache"
    for number in range(8):
        (package / "__init__.py").write_text(f"x = {number}\n")
        newest = ship(package, cache)
    kept = list((cache / "package").iterdir())
    assert len(kept) == 5 and Path(newest) in kept


def test_a_cache_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(OutputError, match="cannot be written"):
        ship(small(tmp_path), tmp_path / "cache")


def test_the_real_package_travels_with_its_schemas_and_profiles(tmp_path: Path) -> None:
    with zipfile.ZipFile(ship(PACKAGE, tmp_path)) as archive:
        names = set(archive.namelist())
    assert {"cmsspark/jobs/launch.py", "cmsspark/etc/spark/yarn.yaml", "cmsspark/schemas/tables/partials.yaml"} <= names
