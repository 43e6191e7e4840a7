"""The checks of a script and its files: each problem is reported before a worker, a pod
or a JVM exists.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

from cmsspark.apps.training.script_check import missing_imports
from cmsspark.apps.training.shipped_files import files_in
from cmsspark.apps.training.worker import files_environment
from cmsspark.base.errors import DataError, InputMissing, NotAllowed, UsageError

#: Seconds that a script's own ``--dry-run`` may take.
DRY_RUN_SECONDS: Final = 120
#: Bytes of a script: it travels in a ConfigMap, which holds 1 MiB.
MAX_BYTES: Final = 900_000
_LAST_LINES: Final = 5


def check_script(
    script: Path, arguments: tuple[str, ...], *, checks_imports: bool, files: Path | None = None
) -> str:
    """Return the text of a script that can be started with these arguments.

    ``checks_imports`` is false where workers have another Python, in an image. A script
    that knows ``--dry-run`` is run with it here, and must end with 0. Raises
    InputMissing (66), NotAllowed (77), DataError (65) for what is no script, UsageError
    (2) for missing modules and refused arguments.
    """
    source = _read(script)
    _compile(source, script, "the script")
    if checks_imports:
        folders = [str(script.absolute().parent), *([str(files.absolute())] if files else [])]
        install = (
            f"install them for {sys.executable}, for example: {sys.executable} -m pip install {{}}"
        )
        _check_imports(source, script, "the script", folders, install)
        if knows_dry_run(source):
            _dry_run(script, arguments, files)
    return source


def check_files(folder: Path, *, checks_imports: bool) -> None:
    """Check that a folder can travel: its Python files compile, and what they import is
    installed or in it.

    Raises InputMissing (66), NotAllowed (77), DataError (65), UsageError (2) for missing modules.
    """
    if not folder.is_dir():
        raise InputMissing(
            "--files is not a folder",
            where=folder,
            next_step="name a folder of what the script needs",
        )
    for path in files_in(folder):
        if path.suffix != ".py":
            continue
        try:
            source = path.read_text(encoding="utf-8-sig")
        except PermissionError as error:
            raise NotAllowed(
                "a file of --files cannot be read", where=path, found=error.strerror
            ) from None
        except UnicodeDecodeError as error:
            raise DataError(
                "a file of --files does not compile", where=path, found=str(error)
            ) from None
        _compile(source, path, "a file of --files")
        if checks_imports:
            install = "put them into the folder, or install them"
            _check_imports(
                source, path, "a file of --files", [str(folder), str(path.parent)], install
            )


def _compile(source: str, path: Path, subject: str) -> None:
    try:
        compile(source, str(path), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise DataError(
            f"{subject} does not compile", where=f"{path}{line}", found=reason
        ) from None


def _check_imports(
    source: str, path: Path, subject: str, folders: list[str], next_step: str
) -> None:
    """Raise UsageError (2) for modules that are not installed; ``next_step`` may name
    the first of them.
    """
    if missing := missing_imports(source, *folders):
        raise UsageError(
            f"{subject} imports modules that are not installed",
            where=path,
            found=", ".join(f"{name} (line {line})" for name, line in missing),
            next_step=next_step.format(missing[0][0].partition(".")[0]),
        )


def knows_dry_run(source: str) -> bool:
    """Return whether a script has an option ``--dry-run``: then it says itself whether
    its arguments are right.
    """
    return (
        re.search(r"""["']--dry-run["'/]""", source) is not None
        or "cmsspark.apps.events.train_script" in source
    )


def _read(script: Path) -> str:
    try:
        if not script.is_file():
            problem = (
                "a folder"
                if script.is_dir()
                else "no such file"
                if not script.exists()
                else "no regular file"
            )
            raise InputMissing("no Python script", where=script, found=problem)
        content = script.read_bytes()
    except PermissionError as error:
        raise NotAllowed("the script cannot be read", where=script, found=error.strerror) from None
    except OSError as error:
        raise InputMissing(
            "no Python script", where=str(script)[:200], found=error.strerror
        ) from None
    if len(content) > MAX_BYTES:
        raise DataError(
            f"a script has at most {MAX_BYTES:,} bytes",
            where=script,
            found=f"{len(content):,} bytes",
        )
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            "a script must be UTF-8 text", where=script, found=f"byte {error.start} is not UTF-8"
        ) from None


def _dry_run(script: Path, arguments: tuple[str, ...], files: Path | None) -> None:
    """Run the script with ``--dry-run``. Raises UsageError (2) with its last lines
    where it refuses its arguments.
    """
    command = [sys.executable, str(script.absolute()), *arguments, "--dry-run"]
    environ = {**os.environ, "COLUMNS": "120"}
    if files is not None:
        environ |= files_environment(str(files.absolute()), environ)
    try:
        ended = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environ,
            check=False,
            timeout=DRY_RUN_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise UsageError(
            f"the script's --dry-run ends within {DRY_RUN_SECONDS} s",
            where=script,
            found="it still ran",
            next_step="let it parse its arguments before it reads data",
        ) from None
    if ended.returncode:
        lines = ended.stdout.decode("utf-8", "replace").strip().splitlines()[-_LAST_LINES:]
        raise UsageError(
            "the script refuses its arguments",
            where=f"{script} --dry-run ended with {ended.returncode}",
            found="\n    ".join(lines) or "no reason",
            next_step="put the script's arguments behind --",
        )
