"""The package's compiled modules: all of them, or none.

None where no compiler was there, where another Python runs, and where they were made of other sources than those beside
them: old compiled code must not run beside new Python, nor one module with another's old classes. All gives the same
without them, only slower; CMSSPARK_COMPILED=0 in the environment says so, for who doubts it.

Python does not load compiled modules from the zip that goes to executors: they are put into a file for that moment.
``setup.py`` runs this file for :func:`digests`: it imports nothing beyond Python itself and the bare package.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader
from pathlib import Path
from types import ModuleType
from typing import Final
from zipimport import zipimporter

#: A module comes after those whose classes it uses.
NAMES: Final = (
    "hashed",
    "sources.formats.packed",
    "sources.formats.plain_avro",
    "sources.formats.plain_csv",
    "sources.formats.template_reader",
)
#: What they share.
SHARED: Final = ("source_digest.pxi", "xxh64.pxd", "sources/values.pxd", "sources/formats/packed.pxd")
#: Why there is none.
OFF, MISSING, STALE = "off", "missing", "stale"


def compiled(name: str) -> ModuleType | None:
    """The module ``cmsspark.<name>``, or None where this Python has none or is told to do without."""
    return None if unavailable_reason() else _modules()[0].get(name)


def unavailable_reason() -> str:
    """Why no compiled code is used here: OFF, MISSING or STALE; empty where it is used."""
    return OFF if os.environ.get("CMSSPARK_COMPILED") == "0" else _modules()[1]


def digests(read: Callable[[str], bytes]) -> dict[str, str]:
    """The source digest of each module: one of what all share, and one of its own. ``read``: a file of the package."""
    shared = _digest(*map(read, SHARED))
    return {name: f"{shared} {_digest(read(name.replace('.', '/') + '.pyx'))}" for name in NAMES}


def _digest(*contents: bytes) -> str:
    # Newlines between, so that nothing moves from one file to the next unseen.
    return hashlib.sha256(b"\n".join(contents)).hexdigest()[:24]


@cache
def _modules() -> tuple[dict[str, ModuleType], str]:
    """All modules, or why there are none."""
    try:
        wanted = digests(_read)
    except OSError:
        # Installed without sources: that they are of one make must do.
        wanted = {}
    found: dict[str, ModuleType] = {}
    shared = ""
    for name in NAMES:
        try:
            module = _imported(name)
        except (TypeError, ValueError):
            # Cython's word for another module's classes that are not what they were.
            return {}, STALE
        except (ImportError, OSError):
            # Of another system: what it links to is not here. Or there is no place for the file.
            return {}, MISSING
        source_digest = str(getattr(module, "SOURCES", "unknown"))
        shared = shared or source_digest.split()[0]
        if source_digest != wanted[name] if wanted else source_digest.split()[0] != shared:
            return {}, STALE
        found[name] = module
    return found, ""


def _imported(name: str) -> ModuleType:
    full = f"cmsspark.{name}"
    with contextlib.suppress(ModuleNotFoundError):
        module = importlib.import_module(full)
        if str(module.__file__).startswith(str(Path(__file__).parent)):
            return module
        # A checkout that is installed as such answers for what is not here.
        del sys.modules[full]
    if not isinstance(_loader(), zipimporter):
        raise ModuleNotFoundError(full)
    for suffix in EXTENSION_SUFFIXES:
        try:
            content = _read(name.replace(".", "/") + suffix)
        except OSError:
            continue
        return _loaded(full, content, suffix)
    raise ModuleNotFoundError(full)


def _loaded(name: str, content: bytes, suffix: str) -> ModuleType:
    # Once it is loaded the file may go.
    with tempfile.NamedTemporaryFile(suffix=suffix) as file:
        file.write(content)
        file.flush()
        loader = ExtensionFileLoader(name, file.name)
        spec = importlib.util.spec_from_file_location(name, file.name, loader=loader)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    sys.modules[name] = module
    return module


def _loader() -> object:
    return __spec__.loader


def _read(inside: str) -> bytes:
    """A file of the package, which may be a zip. Raises OSError."""
    loader = _loader()
    if isinstance(loader, zipimporter):
        # By its name in the archive: YARN spells the archive's own name with a dot in front, and knows it by no other.
        return loader.get_data(f"cmsspark/{inside}")
    return Path(__file__).parent.joinpath(inside).read_bytes()
