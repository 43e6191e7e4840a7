"""The wheel and the zip work from anywhere: schemas, profiles and templates travel with them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from cmsspark.submit.package import ship

REPO = Path(__file__).resolve().parent.parent
#: Reads one resource of each kind, and says where the package came from.
LOOK = """
import cmsspark, cmsspark.submit
from cmsspark.base.resources import read_text, read_yaml, resource
from cmsspark.base.schemas import stored_table
from cmsspark.submit.spark_options import load_profile
from cmsspark.store.own_jobs import JOBS
from cmsspark.submit.job_help import load_command
assert load_profile("yarn").settled("master") == "yarn"
assert "day" in stored_table("partials").names
assert read_yaml("etc/sources.yaml") and read_text("etc/log4j2.properties")
assert [entry.name for entry in resource("etc/spark").iterdir()]
for job in JOBS.values():
    load_command(job)
print(cmsspark.__file__)
"""


def copy_of_the_checkout(target: Path) -> Path:
    """What is built of it, without what was compiled in it."""
    target.mkdir()
    for name in ("setup.py", "pyproject.toml", "MANIFEST.in", "LICENSE", "README.md"):
        shutil.copy(REPO / name, target / name)
    for name in ("cmsspark", "etc", "schemas"):
        shutil.copytree(
            REPO / name, target / name, ignore=shutil.ignore_patterns("__pycache__", "*.so")
        )
    return target


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, built from a copy so that nothing is left in it."""
    folder = tmp_path_factory.mktemp("wheel")
    source = copy_of_the_checkout(folder / "source")
    command = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        str(folder),
        str(source),
    ]
    # Without compiled modules, which take a minute: .ci/run builds a wheel that has
    # them, installs it and runs it.
    environment = {**os.environ, "CC": "/bin/false"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-2000:]
    (built,) = folder.glob("cmsspark-*.whl")
    return built


def clean_environment() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "CMSSPARK"))
    }


@pytest.mark.smoke
def test_the_zip_runs_from_anywhere_without_the_checkout(tmp_path: Path) -> None:
    packed = ship(REPO / "cmsspark", tmp_path)
    run = subprocess.run(
        [sys.executable, "-c", LOOK],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
        env={**clean_environment(), "PYTHONPATH": packed},
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.startswith(packed)


def test_the_wheel_holds_resources_inside_the_package_and_nothing_beside_it(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert (
        "cmsspark/etc/spark/local.yaml" in names
        and "cmsspark/schemas/tables/partials.yaml" in names
    )
    pages = REPO / "cmsspark" / "apps" / "dashboard"
    files = {str(path.relative_to(REPO)) for path in pages.rglob("*.*") if path.suffix != ".pyc"}
    assert files <= set(names) and "cmsspark/apps/dashboard/templates/page.html" in files
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"cmsspark"}
    assert not [name for name in names if "__pycache__" in name]


def test_the_wheel_gives_the_two_commands_which_run_from_anywhere(
    wheel: Path, tmp_path: Path
) -> None:
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    python = tmp_path / "venv" / "bin" / "python"
    site = next((tmp_path / "venv" / "lib").glob("python3.*/site-packages"))
    # The dependencies are those of this environment; only the package is the wheel's.
    (site / "dependencies.pth").write_text(f"{Path(pytest.__file__).parent.parent}\n")
    install = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "--no-deps",
        "--no-index",
        str(wheel),
    ]
    run = subprocess.run(
        install, capture_output=True, text=True, check=False, env=clean_environment()
    )
    assert run.returncode == 0, run.stderr
    looked = subprocess.run(
        [str(python), "-c", LOOK],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
        env=clean_environment(),
    )
    assert (looked.returncode, looked.stderr) == (0, "")
    assert looked.stdout.startswith(str(site))
    for command in ("cmsspark", "run_spark"):
        words = [str(tmp_path / "venv" / "bin" / command), "--help"]
        run = subprocess.run(
            words,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            check=False,
            env=clean_environment(),
        )
        assert run.returncode == 0 and "Usage" in run.stdout, run.stderr
