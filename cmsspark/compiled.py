"""The package's compiled modules, which may be missing: no compiler was there, or another Python runs here.

Python does not load compiled modules from the zip that goes to executors: they are put into a file for that moment.
All gives the same without them, only slower; CMSSPARK_COMPILED=0 in the environment says so, for who doubts it.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import tempfile
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader
from types import ModuleType
from zipimport import zipimporter

import cmsspark


def compiled(name: str) -> ModuleType | None:
    """The module ``cmsspark.<name>``, or None where this Python has none or is told to do without."""
    if os.environ.get("CMSSPARK_COMPILED") == "0":
        return None
    try:
        return importlib.import_module(f"cmsspark.{name}")
    except ImportError:
        return _from_zip(name)


def _from_zip(name: str) -> ModuleType | None:
    loader: object = cmsspark.__spec__.loader
    if not isinstance(loader, zipimporter):
        return None
    for suffix in EXTENSION_SUFFIXES:
        # By its name in the archive: YARN spells the archive's own name with a dot in front, and knows it by no other.
        inside = "/".join(("cmsspark", *name.split("."))) + suffix
        try:
            content = loader.get_data(inside)
        except OSError:
            continue
        return _loaded(f"cmsspark.{name}", content, suffix)
    return None


def _loaded(name: str, content: bytes, suffix: str) -> ModuleType | None:
    try:
        # Once it is loaded the file may go.
        with tempfile.NamedTemporaryFile(suffix=suffix) as file:
            file.write(content)
            file.flush()
            spec = importlib.util.spec_from_file_location(name, file.name, loader=ExtensionFileLoader(name, file.name))
            if spec is None or spec.loader is None:
                return None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
    except (ImportError, OSError):
        # Of another system: what it links to is not here. Or there is no place for the file.
        return None
    sys.modules[name] = module
    return module
