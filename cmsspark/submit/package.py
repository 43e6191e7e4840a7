"""The package as one zip, for executors and drivers elsewhere: code, schemas and
profiles, named for its content.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cmsspark import __version__
from cmsspark.base.errors import OutputError
from cmsspark.base.version import FILE as VERSION_FILE
from cmsspark.settings.settings import Settings
from cmsspark.store import own_jobs
from cmsspark.store.own_jobs import Job
from cmsspark.submit.command import OwnFiles

_RESOURCES: Final = ("etc", "schemas")
#: The earliest time that a zip can hold: equal content gives equal bytes.
_TIME: Final = (1980, 1, 1, 0, 0, 0)
_KEPT: Final = 5


def files(package: Path) -> Iterator[tuple[str, Path]]:
    """Yield each file of the package with its name in the zip, sorted; resources beside
    the package go inside it.
    """
    entries = {name: path for name, path in _below(package, package.name)}
    for folder in _RESOURCES if package.name == "cmsspark" else ():
        resources = package.parent / folder
        if not (package / folder).is_dir() and resources.is_dir():
            entries.update(_below(resources, f"{package.name}/{folder}"))
    yield from sorted(entries.items())


def _below(folder: Path, prefix: str) -> Iterator[tuple[str, Path]]:
    for path in folder.rglob("*"):
        parts = path.relative_to(folder).parts
        if path.is_file() and not any(
            part.startswith(".") or part == "__pycache__" for part in parts
        ):
            yield "/".join([prefix, *parts]), path


def ship_own(job: Job, settings: Settings) -> OwnFiles:
    """Return what travels with a user's job."""
    # Not above: the list of jobs comes sooner without.
    from cmsspark.sources.own_streams import stream_files

    own_state = settings.state_dir / own_jobs.FILE_NAME
    return OwnFiles(
        tuple(_code_files(job, settings.cache_dir)),
        tuple(str(path) for path in stream_files(settings)),
        (str(own_state),) if own_state.is_file() else (),
    )


def _code_files(job: Job, cache_dir: Path) -> list[str]:
    """Return the file of a job with what it needs beside it, or a zip of the package
    that declares it.
    """
    if job.file:
        paths = [Path(file) for file in job.files]
        packages = [ship(path, cache_dir, path.name) for path in paths if path.is_dir()]
        return [job.file, *(str(path) for path in paths if path.is_file()), *packages]
    spec = importlib.util.find_spec(job.module.partition(".")[0])
    if spec is None or spec.origin is None:
        return []
    if not spec.submodule_search_locations:
        return [spec.origin]
    return [ship(Path(spec.origin).parent, cache_dir, job.module.partition(".")[0])]


def ship(package: Path, cache_dir: Path, name: str = f"cmsspark-{__version__}") -> str:
    """Return the zip of ``package`` in ``cache_dir/package``; made only when its content is new.

    A zip in the cache is used only where it has exactly this content; another one is
    replaced. Raises OutputError (73) where it cannot be written.
    """
    # The version is known where the package is; a zip has no commit beside it.
    name_of_version = f"{package.name}/{VERSION_FILE}"
    contents = [
        (entry, path.read_bytes()) for entry, path in files(package) if entry != name_of_version
    ]
    contents = sorted([*contents, (name_of_version, f"{__version__}\n".encode())])
    digest = hashlib.sha256()
    for entry, content in contents:
        digest.update(f"{entry}\0{len(content)}\0".encode() + content)
    target = cache_dir / "package" / f"{name}-{digest.hexdigest()[:12]}.zip"
    if _holds(target, contents):
        return str(target)
    aside = target.with_suffix(f".{os.getpid()}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(aside, "w", zipfile.ZIP_DEFLATED) as archive:
            for entry, content in contents:
                info = zipfile.ZipInfo(entry, _TIME)
                info.external_attr = 0o644 << 16
                archive.writestr(info, content, zipfile.ZIP_DEFLATED)
        # Whatever the umask: one that others can write would be made again each time.
        aside.chmod(0o644)
        os.replace(aside, target)
    except OSError as error:
        raise OutputError(
            "the package's zip cannot be written", where=target, found=error.strerror
        ) from None
    _forget_old(target, name.partition("-")[0])
    return str(target)


def _holds(archive: Path, contents: list[tuple[str, bytes]]) -> bool:
    """Return whether the zip has these files and no others: its code runs in every
    executor, whoever wrote it.
    """
    try:
        with archive.open("rb") as stream:
            status = os.fstat(stream.fileno())
            if status.st_uid not in (os.geteuid(), 0) or status.st_mode & 0o022:
                return False
            with zipfile.ZipFile(stream) as opened:
                # Names first: two entries of one name are read differently by different programs.
                is_same = opened.namelist() == [name for name, _ in contents]
                return is_same and all(
                    _content(opened, name, len(data)) == data for name, data in contents
                )
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError):
        return False


def _content(archive: zipfile.ZipFile, name: str, size: int) -> bytes:
    with archive.open(name) as stream:
        return stream.read(size + 1)


def _forget_old(newest: Path, name: str) -> None:
    """Keep the last few: a running job may still need the one it was started with."""
    packages = sorted(
        newest.parent.glob(f"{name}-*.zip"), key=lambda path: path.stat().st_mtime, reverse=True
    )
    for path in packages[_KEPT:]:
        path.unlink(missing_ok=True)
