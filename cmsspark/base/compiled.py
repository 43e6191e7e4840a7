"""The package's compiled modules: either all of them are used or none.

None is used where no compiler was available, under another version of Python, and where
the modules were built from other sources than the installed ones: stale compiled code
must not run with new Python code, nor a module with stale classes of another one.
Results are the same without compiled modules, only slower; CMSSPARK_COMPILED=0 in the
environment turns them off.

Python cannot load compiled modules from the zip for executors, so each is written to a
temporary file first. ``setup.py`` runs this file for :func:`digests`, so it imports
only the standard library.
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

#: In order of dependencies: a module comes after those whose classes it uses.
NAMES: Final = (
    "base.hashed",
    "sources.formats.packed",
    "sources.formats.key_reader",
    "sources.formats.avro_columns",
    "sources.formats.plain_avro",
    "sources.formats.plain_csv",
    "sources.formats.template_reader",
)
#: Sources that all modules include.
SHARED: Final = (
    "base/source_digest.pxi",
    "base/object_memory.pxi",
    "base/xxh64.pxd",
    "sources/values.pxd",
    "sources/formats/packed.pxd",
    "sources/formats/avro_values.pxd",
    "sources/formats/json_values.pxd",
    "sources/formats/line_reader.pxi",
)
#: Reasons why compiled code is unavailable.
OFF, MISSING, STALE = "off", "missing", "stale"


def compiled(name: str) -> ModuleType | None:
    """Return the module ``cmsspark.<name>``, or None where it is unavailable or turned off."""
    return None if unavailable_reason() else _modules()[0].get(name)


def unavailable_reason() -> str:
    """Return why compiled code is not used: OFF, MISSING or STALE; empty where it is used."""
    return OFF if os.environ.get("CMSSPARK_COMPILED") == "0" else _modules()[1]


def digests(read: Callable[[str], bytes]) -> dict[str, str]:
    """Return the source digest of each module: that of the shared sources and its own.

    ``read``: reads a package file.
    """
    shared = _digest(*map(read, SHARED))
    return {name: f"{shared} {_digest(read(name.replace('.', '/') + '.pyx'))}" for name in NAMES}


def _digest(*contents: bytes) -> str:
    # Newlines separate the files, so that moving text from one file to the next changes
    # the digest.
    return hashlib.sha256(b"\n".join(contents)).hexdigest()[:24]


@cache
def _modules() -> tuple[dict[str, ModuleType], str]:
    """Return all modules, or the reason why they are unavailable."""
    try:
        expected = digests(_read)
    except OSError:
        # Installed without sources: only check that all modules were built together.
        expected = {}
    modules: dict[str, ModuleType] = {}
    shared = ""
    for name in NAMES:
        try:
            module = _imported(name)
        except (TypeError, ValueError):
            # Cython raises these where the classes of another module have changed.
            return {}, STALE
        except (ImportError, OSError):
            # A library that the module links to is missing, or the temporary file
            # cannot be written.
            return {}, MISSING
        source_digest = str(getattr(module, "SOURCES", "unknown"))
        shared = shared or source_digest.split()[0]
        if source_digest != expected[name] if expected else source_digest.split()[0] != shared:
            return {}, STALE
        modules[name] = module
    return modules, ""


def _imported(name: str) -> ModuleType:
    full = f"cmsspark.{name}"
    with contextlib.suppress(ModuleNotFoundError):
        module = importlib.import_module(full)
        if str(module.__file__).startswith(str(Path(__file__).parents[1])):
            return module
        # An editable install provides modules of its checkout that this copy of the
        # package does not have.
        del sys.modules[full]
    if not isinstance(_loader(), zipimporter):
        raise ModuleNotFoundError(full)
    for suffix in EXTENSION_SUFFIXES:
        try:
            content = _read(name.replace(".", "/") + suffix)
        except OSError:
            continue
        # The file is not needed after loading.
        with tempfile.NamedTemporaryFile(suffix=suffix) as file:
            file.write(content)
            file.flush()
            loader = ExtensionFileLoader(full, file.name)
            spec = importlib.util.spec_from_file_location(full, file.name, loader=loader)
            assert spec is not None
            extension = importlib.util.module_from_spec(spec)
            loader.exec_module(extension)
        sys.modules[full] = extension
        return extension
    raise ModuleNotFoundError(full)


def _loader() -> object:
    return __spec__.loader


def _read(name: str) -> bytes:
    """Return a file of the package, which may be a zip. Raises OSError."""
    loader = _loader()
    if isinstance(loader, zipimporter):
        # By its name in the archive: YARN adds a dot to the path of the archive, which
        # the loader does not know.
        return loader.get_data(f"cmsspark/{name}")
    return Path(__file__).parents[1].joinpath(name).read_bytes()
