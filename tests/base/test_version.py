"""The version has the release and the commit, without git and in every form of the package."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import cmsspark
from cmsspark.base.version import checkout_commit, of_checkout
from cmsspark.submit.package import ship

COMMIT = "1a2b3c4" + "0" * 33


@pytest.fixture
def top(tmp_path: Path) -> Path:
    (tmp_path / "CHANGELOG.md").write_text("# Changes\n\n## 0.2.0 (unreleased)\n\n## 0.1.0\n")
    (tmp_path / ".git" / "refs/heads").mkdir(parents=True)
    (tmp_path / ".git/HEAD").write_text("ref: refs/heads/main\n")
    (tmp_path / ".git/refs/heads/main").write_text(COMMIT + "\n")
    return tmp_path


def test_a_checkout_has_the_release_of_the_change_log_and_its_commit(top: Path) -> None:
    assert of_checkout(top) == "0.2.0+g1a2b3c4"


def test_a_commit_is_found_where_git_keeps_it(top: Path) -> None:
    (top / ".git/refs/heads/main").unlink()
    (top / ".git/packed-refs").write_text(f"# pack-refs\n{COMMIT} refs/heads/main\n")
    assert checkout_commit(top) == COMMIT
    (top / ".git/HEAD").write_text(COMMIT)
    assert checkout_commit(top) == COMMIT
    # A further working tree: .git is a file, and the branch is beside the others.
    tree = top / "tree"
    (top / ".git/worktrees/tree").mkdir(parents=True)
    (top / ".git/worktrees/tree/HEAD").write_text("ref: refs/heads/main\n")
    (top / ".git/worktrees/tree/commondir").write_text("../..\n")
    tree.mkdir()
    (tree / ".git").write_text(f"gitdir: {top}/.git/worktrees/tree\n")
    assert checkout_commit(tree) == COMMIT


def test_sources_without_a_commit_have_the_release_alone(tmp_path: Path) -> None:
    (tmp_path / "CHANGELOG.md").write_text("## 1.2.3\n")
    assert of_checkout(tmp_path) == "1.2.3"
    (tmp_path / "cmsspark").mkdir()
    (tmp_path / "cmsspark/VERSION").write_text("0.2.0+gabcdef0\n")
    assert of_checkout(tmp_path) == "0.2.0+gabcdef0"


def test_the_zip_for_a_cluster_knows_the_version_of_the_checkout(tmp_path: Path) -> None:
    archive = ship(Path(cmsspark.__file__).parent, tmp_path)
    with zipfile.ZipFile(archive) as opened:
        assert opened.read("cmsspark/VERSION").decode().strip() == cmsspark.__version__
    command = [
        sys.executable,
        "-I",
        "-c",
        f"import sys; sys.path.insert(0, {archive!r}); import cmsspark; print(cmsspark.__version__)",
    ]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert shown.stdout.strip() == cmsspark.__version__
