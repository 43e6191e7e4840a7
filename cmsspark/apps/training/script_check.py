"""Looks at a training script before anything starts: it compiles, its imports exist,
its arguments parse.

Only ``--dry-run`` of the script itself runs code of it. This file is sent to pods,
where it checks the imports against the image: it imports the standard library only.
"""

from __future__ import annotations

import ast
import gzip
import importlib
import importlib.machinery
import importlib.util
import io
import os
import re
import subprocess
import sys
import tarfile
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from cmsspark.apps.training.worker import files_environment
from cmsspark.base.errors import DataError, InputMissing, NotAllowed, SettingsError, UsageError
from cmsspark.settings.secrets import read_private

#: What a handler around an import catches where the module may be missing.
_OPTIONAL = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}


def find_imports(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the modules that a script needs, with the line; not those in ``except
    ImportError`` or for types.
    """
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.module and not node.level:
                yield node.module, node.lineno
        elif isinstance(node, ast.Try) and any(_is_optional(handler) for handler in node.handlers):
            for part in (*node.handlers, *node.finalbody):
                yield from find_imports(part)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for part in node.orelse:
                yield from find_imports(part)
        else:
            yield from find_imports(node)


def _is_optional(handler: ast.ExceptHandler) -> bool:
    return handler.type is None or any(name in ast.unparse(handler.type) for name in _OPTIONAL)


def missing_imports(source: str, *folders: str) -> list[tuple[str, int]]:
    """Return the modules of :func:`find_imports` that this Python does not find, in order.

    ``folders``: that of the script, and others on its path.
    """
    missing = []
    path = [*folders, *sys.path]
    for name, line in dict(reversed(list(find_imports(ast.parse(source))))).items():
        if not _is_found(name, path):
            missing.append((name, line))
    return sorted(missing, key=lambda entry: (entry[1], entry[0]))


def _is_found(name: str, path: list[str]) -> bool:
    """Return whether a module exists.

    Nothing of it is imported, unless it is a part of a package that makes such parts.
    """
    first, *parts = name.split(".")
    if first in sys.builtin_module_names or first in sys.stdlib_module_names:
        return _can_import(name) if parts else True
    spec = importlib.machinery.PathFinder.find_spec(first, path)
    if spec is None:
        return _is_by_hook(first)
    for i in range(len(parts)):
        inside = None
        if spec.submodule_search_locations is not None:
            full = ".".join((first, *parts[: i + 1]))
            inside = importlib.machinery.PathFinder.find_spec(
                full, list(spec.submodule_search_locations)
            )
        if inside is None:
            return _can_import(name)
        spec = inside
    return True


def _is_by_hook(name: str) -> bool:
    """Return whether an import hook, as editable installations have, finds a module
    that is on no path.
    """
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _can_import(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    except Exception:  # it is there; what is wrong with it the script will say
        return True
    return True


# ``--files DIR``: the folder that travels with a script, packed into one archive.

#: Bytes of the archive: in a ConfigMap, which holds 1 MiB as base64 with all else, and
#: in tasks of Spark.
K8S_BYTES: Final = 500_000
SPARK_BYTES: Final = 64 * 2**20
_LEFT_OUT: Final = ("__pycache__", ".git")


def files_in(folder: Path) -> Iterator[Path]:
    """Return the files of a folder, sorted, without caches and hidden ones.

    Raises DataError (65) for links that leave the folder, and for what is no file.
    """
    top = folder.resolve()
    for base, folders, names in os.walk(folder):
        folders[:] = sorted(
            name for name in folders if name not in _LEFT_OUT and not name.startswith(".")
        )
        for name in sorted(names):
            path = Path(base, name)
            if name.startswith("."):
                continue
            if not path.is_file() or not path.resolve().is_relative_to(top):
                raise DataError(
                    "--files holds regular files",
                    where=path,
                    found="a link out of the folder, or no file",
                    next_step="copy the file into the folder",
                )
            yield path


def pack_files(folder: Path, most: int) -> bytes:
    """Return a folder as an archive, the same bytes for the same files. Raises
    DataError (65) above ``most`` bytes.
    """
    stream = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=stream, mode="wb", compresslevel=6, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", dereference=True) as archive,
    ):
        for path in files_in(folder):
            info = archive.gettarinfo(path, str(path.relative_to(folder)))
            info.mtime, info.uid, info.gid, info.uname, info.gname = 0, 0, 0, "", ""
            try:
                with open(path, "rb") as source:
                    archive.addfile(info, source)
            except PermissionError as error:
                raise NotAllowed(
                    "a file of --files cannot be read", where=path, found=error.strerror
                ) from None
    content = stream.getvalue()
    if len(content) > most:
        raise DataError(
            f"--files has at most {most:,} bytes, compressed",
            where=folder,
            found=f"{len(content):,} bytes",
            next_step="put data on a volume (--volume CLAIM:/data), and large packages into the image",
        )
    return content


# The checks of a script and its files: each problem is reported before a worker, a pod
# or a JVM exists.

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


# What is to be trained: the script, its workers, their resources and secrets, all
# checked.

BackendName = Literal["local", "spark", "k8s"]
#: Names of runs are names of Kubernetes objects, whose pods are named `NAME-WORKER` and
#: whose hosts have 63 letters.
_NAME: Final = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?")
#: What Kubernetes allows as a name of a Secret, and as a key of one.
_SECRET: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_KEY: Final = re.compile(r"[A-Za-z0-9._-]{1,253}")
_MEMORY: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(Ki|Mi|Gi|Ti|k|M|G|T)?")
_UNITS: Final = {
    "": 1,
    **{unit: 1000**power for power, unit in enumerate("kMGT", 1)},
    **{f"{unit}i": 1024**power for power, unit in enumerate("KMGT", 1)},
}
_MIN_MEMORY: Final = 64 * 2**20


@dataclass(frozen=True)
class Secret:
    """Credentials: ``values`` by key, or None where they are in the cluster already.
    They are never shown.
    """

    name: str
    values: Mapping[str, str] | None = field(default=None, repr=False)


@dataclass(frozen=True)
class TrainingRun:
    """A request for a training run. ``memory``: bytes a worker; ``retries``: further
    attempts after a failed one.

    ``files``: a folder that travels with the script; ``gpus``: of each worker.
    ``shown_arguments``: those of the script without secrets, for records and messages.
    """

    name: str
    script: Path
    arguments: tuple[str, ...] = ()
    workers: int = 1
    backend: BackendName = "local"
    secrets: tuple[Secret, ...] = ()
    cpus: int = 1
    memory: int = 2 * 2**30
    retries: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)
    grace: float = 10.0
    shown_arguments: tuple[str, ...] = ()
    files: Path | None = None
    gpus: int = 0

    def job(self, rank: int, addresses: list[str], output: str, attempt: int) -> dict[str, Any]:
        """Return what :mod:`cmsspark.apps.training.worker` reads, for one worker."""
        return {
            "run": self.name,
            "attempt": attempt,
            "rank": rank,
            "addresses": addresses,
            "output": output,
            "script": str(self.script),
            "arguments": list(self.arguments),
            "cpus": self.cpus,
            "environment": dict(self.environment),
            "grace": self.grace,
            "secrets_folder": None,
            "files": None if self.files is None else str(self.files.absolute()),
            "secrets": {secret.name: dict(secret.values or {}) for secret in self.secrets},
        }


def run_name(script: Path, name: str | None) -> str:
    """Return the name of a run: the given one, or one from the script's with a random end.

    Raises UsageError (2) for a name that could be no name of a pod.
    """
    if name is not None:
        if not _NAME.fullmatch(name):
            raise UsageError(
                "a name has up to 40 small letters, digits and dashes, and begins with a letter",
                found=repr(name),
            )
        return name
    stem = re.sub(r"[^a-z0-9]+", "-", script.stem.lower()).strip("-")[:30].strip("-")
    stem = stem if stem and stem[0].isalpha() else f"train-{stem}".rstrip("-")
    return f"{stem}-{uuid.uuid4().hex[:6]}"


def is_object_name(text: str) -> bool:
    """Return whether Kubernetes allows a text as the name of a Secret or a claim."""
    return _SECRET.fullmatch(text) is not None


def parse_memory(text: str) -> int:
    """``8Gi`` as bytes. Raises UsageError (2)."""
    match = _MEMORY.fullmatch(text)
    size = int(float(match[1]) * _UNITS[match[2] or ""]) if match else 0
    if size < _MIN_MEMORY:
        raise UsageError(
            "--memory must be a size of 64Mi or more, such as 512Mi, 8Gi or 8G", found=repr(text)
        )
    return size


def parse_secret(text: str, folder: Path, backend: str) -> Secret:
    """Return the secret ``NAME`` or ``NAME=FOLDER``: a folder with one private file for each key.

    Without FOLDER it is ``folder``/NAME; on Kubernetes a Secret of that name in the
    cluster, where there is no such folder. Raises UsageError (2), InputMissing (66),
    NotAllowed (77) for files that others can read.
    """
    name, separator, source = text.partition("=")
    if not _SECRET.fullmatch(name):
        raise UsageError(
            "a secret's name has small letters, digits, dashes and dots", found=repr(name)
        )
    path = Path(source).expanduser() if separator else folder / name
    if not separator and backend == "k8s" and not path.exists():
        return Secret(name)
    try:
        files = sorted(entry for entry in path.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise InputMissing(
            f"the secret {name} is a folder with a private file for each key",
            where=path,
            found=error.strerror,
            next_step=f"mkdir -m 700 -p {path}, put a file for each key into it (chmod 600), or give {name}=FOLDER",
        ) from None
    if not files:
        raise InputMissing(
            f"the secret {name} needs at least one key", where=path, found="no file"
        )
    values = {}
    for file in files:
        if not _KEY.fullmatch(file.name):
            raise UsageError(
                "a key of a secret has letters, digits, dots, dashes and underscores",
                where=path,
                found=repr(file.name),
            )
        try:
            values[file.name] = read_private(
                file, f"the key {file.name} of the secret {name}"
            ).decode("utf-8")
        except UnicodeDecodeError:
            raise SettingsError(
                "the value of a key must be UTF-8 text", where=file, found="other bytes"
            ) from None
        except PermissionError as error:
            raise NotAllowed(
                f"the secret {name} cannot be read", where=file, found=error.strerror
            ) from None
    return Secret(name, values)
