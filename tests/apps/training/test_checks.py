"""What is refused before anything starts: scripts, imports, arguments, names, secrets."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cmsspark.apps.training.script_check import (
    MAX_BYTES,
    check_script,
    missing_imports,
    parse_memory,
    parse_secret,
    run_name,
)
from cmsspark.base.errors import CmssparkError, DataError, InputMissing, NotAllowed, UsageError
from tests.apps.training.scripts import with_files


def check(folder: Path, text: str | bytes, *arguments: str) -> str:
    script = folder / "script.py"
    script.write_bytes(text if isinstance(text, bytes) else text.encode())
    return check_script(script, arguments, checks_imports=True)


def test_a_script_that_does_not_compile_is_refused_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not compile") as error:
        check(tmp_path, "x = 1\ndef f(:\n")
    assert str(error.value.where).endswith("script.py, line 2")


@pytest.mark.parametrize("content", [b"\xff\xfe", b"x = 1\0", b"#" * (MAX_BYTES + 1)])
def test_what_is_no_text_or_too_large_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(DataError):
        check(tmp_path, content)


def test_a_script_that_is_not_there_is_66(tmp_path: Path) -> None:
    for path in (tmp_path / "no.py", tmp_path, tmp_path / ("x" * 300), Path("/dev/null")):
        with pytest.raises(InputMissing, match="no Python script"):
            check_script(path, (), checks_imports=True)


def test_missing_modules_are_named_with_their_lines_and_optional_ones_are_not(
    tmp_path: Path,
) -> None:
    text = """
import os, json.decoder, no_such_a
from no_such_b.part import x
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import no_such_c
try:
    import no_such_d
except ImportError:
    no_such_d = None
def later():
    import no_such_e
import xml.no_such_part
from . import sibling
import beside
import importlib.metadata
import os.path
"""
    (tmp_path / "beside.py").write_text("")
    missing = [
        ("no_such_a", 2),
        ("no_such_b.part", 3),
        ("no_such_e", 12),
        ("xml.no_such_part", 13),
    ]
    assert missing_imports(text, str(tmp_path)) == missing
    with pytest.raises(UsageError, match="not installed") as error:
        check(tmp_path, text)
    assert "no_such_b.part (line 3)" in str(error.value.found)


def test_checking_imports_runs_nothing_of_them(tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text("raise SystemExit('imported')")
    (tmp_path / "package").mkdir()
    (tmp_path / "package/__init__.py").write_text("raise SystemExit('imported')")
    (tmp_path / "package/part.py").write_text("raise SystemExit('imported')")
    assert missing_imports("import loud, package.part", str(tmp_path)) == []


ARGPARSE = """
import argparse, pathlib
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int)
parser.add_argument("--dry-run", action="store_true")
if not parser.parse_args().dry_run:
    pathlib.Path("trained").write_text("")
"""


def test_arguments_are_tried_with_the_scripts_own_dry_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    check(tmp_path, ARGPARSE, "--epochs", "3")
    with pytest.raises(UsageError, match="refuses its arguments") as error:
        check(tmp_path, ARGPARSE, "--epochs", "three")
    assert "invalid int value: 'three'" in str(error.value.found)
    assert not (tmp_path / "trained").exists()


def test_a_script_without_a_dry_run_is_not_run(tmp_path: Path) -> None:
    assert check(tmp_path, "raise SystemExit(1)", "--anything")


@pytest.mark.parametrize(
    "name", ["", "A", "-a", "a-", "a_b", "../a", "a/b", "a" * 41, "1a", "a\n", "ä"]
)
def test_names_that_pods_cannot_have_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="small letters"):
        run_name(Path("x.py"), name)


@pytest.mark.parametrize(
    "script", ["fit.py", "-c.py", "3 d.py", "ü.py", ".py", "$(rm).py", "X" * 200 + ".py"]
)
def test_names_that_are_made_fit_pods_and_differ(script: str) -> None:
    names = {run_name(Path(script), None) for _ in range(20)}
    assert len(names) == 20
    assert all(run_name(Path(), name) == name for name in names)


def test_sizes_are_those_of_kubernetes() -> None:
    assert [parse_memory(text) for text in ("8Gi", "512Mi", "1.5G", "100000000")] == [
        2**33,
        2**29,
        15 * 10**8,
        10**8,
    ]
    for text in ("", "8", "8gb", "-1Gi", "1e9", "8 Gi", "1Ki", "nan"):
        with pytest.raises(UsageError, match="--memory"):
            parse_memory(text)


def test_secrets_are_folders_of_private_files(tmp_path: Path) -> None:
    folder = tmp_path / "s3"
    folder.mkdir()
    (folder / "KEY").write_text("value")
    (folder / "KEY").chmod(0o600)
    (folder / ".hidden").write_text("x")
    assert parse_secret("s3", tmp_path, "local").values == {"KEY": "value"}
    assert parse_secret(f"other={folder}", tmp_path, "k8s").name == "other"
    assert "value" not in repr(parse_secret("s3", tmp_path, "local"))
    (folder / "KEY").chmod(0o644)
    with pytest.raises(NotAllowed, match="others than its owner"):
        parse_secret("s3", tmp_path, "local")


def test_a_secret_without_a_folder_is_the_clusters_and_nowhere_else(tmp_path: Path) -> None:
    assert parse_secret("s3", tmp_path, "k8s").values is None
    with pytest.raises(InputMissing, match="private file"):
        parse_secret("s3", tmp_path, "local")


@pytest.mark.parametrize("text", ["", "../x", "a/b", "A", "a b", "=x", "-", "a" * 254])
def test_names_that_secrets_cannot_have_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match="secret's name"):
        parse_secret(text, tmp_path, "k8s")


def test_keys_that_are_no_names_and_empty_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(CmssparkError, match="needs at least one key"):
        parse_secret("empty", tmp_path, "local")
    os.mkfifo(tmp_path / "empty/KEY", 0o600)
    with pytest.raises(CmssparkError, match="regular file"):
        parse_secret("empty", tmp_path, "local")
    (tmp_path / "empty/KEY").unlink()
    (tmp_path / "empty/a b").touch(0o600)
    with pytest.raises(UsageError, match="a key of a secret"):
        parse_secret("empty", tmp_path, "local")


def test_files_that_cannot_travel_are_refused_before_anything_starts(tmp_path: Path) -> None:
    from cmsspark.apps.training.script_check import check_files, files_in, pack_files

    folder = with_files(tmp_path / "files")
    check_files(folder, checks_imports=True)
    names = ["data/x.txt", "own/__init__.py", "own/helper.py"]
    assert [str(path.relative_to(folder)) for path in files_in(folder)] == names
    assert pack_files(folder, 10_000) == pack_files(folder, 10_000)
    with pytest.raises(DataError, match="at most 100 bytes"):
        pack_files(folder, 100)
    with pytest.raises(InputMissing, match="--files is not a folder"):
        check_files(tmp_path / "none", checks_imports=True)
    (folder / "bad.py").write_text("import own.helper, no_such_module_here")
    with pytest.raises(UsageError, match="no_such_module_here"):
        check_files(folder, checks_imports=True)
    check_files(folder, checks_imports=False)
    (folder / "bad.py").write_text("x = (")
    with pytest.raises(DataError, match=r"bad\.py, line 1"):
        check_files(folder, checks_imports=False)
    (folder / "bad.py").unlink()
    (folder / "link").symlink_to("/etc/hostname")
    with pytest.raises(DataError, match="link out of the folder"):
        check_files(folder, checks_imports=False)
