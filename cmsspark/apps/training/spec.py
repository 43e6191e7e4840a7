"""What is to be trained: the script, its workers, their resources and secrets, all checked."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from cmsspark.base.errors import InputMissing, NotAllowed, SettingsError, UsageError
from cmsspark.settings.secrets import read_private

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
