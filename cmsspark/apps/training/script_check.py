"""Looks at a training script before anything starts: it compiles, its imports exist,
its arguments parse.

Only ``--dry-run`` of the script itself runs code of it. This file is sent to pods,
where it checks the imports against the image: it imports the standard library only.
"""

from __future__ import annotations

import ast
import importlib
import importlib.machinery
import importlib.util
import sys
from collections.abc import Iterator

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
