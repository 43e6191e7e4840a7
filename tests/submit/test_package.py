"""The zip that travels: named for its content, made once, equal bytes for equal content."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import cmsspark
from cmsspark.base.errors import OutputError
from cmsspark.submit.host import this_host
from cmsspark.submit.package import files, ship
from cmsspark.submit.wrapper import install_paths
from tests.submit.hosts import SETTINGS

PACKAGE = Path(cmsspark.__file__).resolve().parent


def small(folder: Path) -> Path:
    package = folder / "cmsspark"
    (package / "submit" / "__pycache__").mkdir(parents=True)
    (package / "__init__.py").write_text("x = 1\n")
    (package / "submit" / "__pycache__" / "a.pyc").write_text("")
    (folder / "etc").mkdir()
    (folder / "etc" / "sources.yaml").write_text("a: 1\n")
    (folder / "etc" / ".hidden").write_text("")
    return package


def test_resources_beside_the_package_go_inside_and_leftovers_stay_out(tmp_path: Path) -> None:
    assert [name for name, _ in files(small(tmp_path))] == [
        "cmsspark/__init__.py",
        "cmsspark/etc/sources.yaml",
    ]


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
    kept = list((cache / "package").rglob("*.zip"))
    assert len(kept) == 5 and Path(newest) in kept


def test_a_cache_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(OutputError, match="cannot be written"):
        ship(small(tmp_path), tmp_path / "cache")


def test_the_real_package_travels_with_its_schemas_and_profiles(tmp_path: Path) -> None:
    with zipfile.ZipFile(ship(PACKAGE, tmp_path)) as archive:
        names = set(archive.namelist())
    expected = {"submit/launch.py", "etc/spark/yarn.yaml", "schemas/tables/partials.yaml"}
    assert {f"cmsspark/{name}" for name in expected} <= names


def test_what_spark_submit_starts_stands_alone(tmp_path: Path) -> None:
    """A driver on a cluster has a copy of the file, and the package from its zip."""
    launcher = Path(install_paths(this_host({}), SETTINGS, None).launcher)
    copy = tmp_path / launcher.name
    copy.write_bytes(launcher.read_bytes())
    words = [sys.executable, "-I", str(copy), "dbs_eos", "--help"]
    code = f"import runpy, sys; sys.path.append({ship(PACKAGE, tmp_path)!r})\n"
    code += f"sys.argv = {words[2:]!r}; runpy.run_path({str(copy)!r}, run_name='__main__')"
    run = subprocess.run([*words[:2], "-c", code], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "") and "run_spark dbs_eos" in run.stdout


def pod_specs(node: Any) -> Iterator[dict[str, Any]]:
    """The specifications of pods in a manifest, however deep."""
    if isinstance(node, dict):
        if "containers" in node:
            yield node
        for value in node.values():
            yield from pod_specs(value)


def test_pods_keep_the_restricted_standard() -> None:
    files = sorted((PACKAGE.parent / "etc/k8s").glob("*.yaml"))
    specs = [
        spec
        for file in files
        for document in yaml.safe_load_all(file.read_text())
        for spec in pod_specs(document)
    ]
    assert len(specs) >= 2
    for spec in specs:
        for container in (*spec["containers"], *spec.get("initContainers", ())):
            context = {**spec["securityContext"], **container["securityContext"]}
            assert context["runAsNonRoot"] is True
            assert context["seccompProfile"] == {"type": "RuntimeDefault"}
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize("planted", ["other content", "one more", "no zip", "cut", "twice"])
def test_a_zip_in_the_cache_with_other_content_is_made_again(planted: str, tmp_path: Path) -> None:
    package, cache = small(tmp_path), tmp_path / "cache"
    path = Path(ship(package, cache))
    content = path.read_bytes()
    if planted == "other content":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("cmsspark/__init__.py", "import os\n")
            archive.writestr("cmsspark/etc/sources.yaml", "a: 1\n")
    elif planted == "one more":
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr("sitecustomize.py", "import os\n")
    elif planted == "twice":
        with (
            zipfile.ZipFile(path, "a") as archive,
            pytest.warns(UserWarning, match="Duplicate name"),
        ):
            archive.writestr("cmsspark/__init__.py", "import os\n")
    else:
        path.write_bytes(b"" if planted == "no zip" else content[:-40])
    assert ship(package, cache) == str(path)
    assert path.read_bytes() == content


def test_a_zip_that_others_can_write_is_made_again(tmp_path: Path) -> None:
    package, cache = small(tmp_path), tmp_path / "cache"
    path = Path(ship(package, cache))
    before = path.stat().st_ino
    assert Path(ship(package, cache)).stat().st_ino == before
    path.chmod(0o666)
    assert Path(ship(package, cache)).stat().st_mode & 0o022 == 0
