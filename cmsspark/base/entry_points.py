"""Entry points of installed packages, by group. Groups of ours begin with ``cmsspark.``."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, TypeVar

from cmsspark.base.errors import SettingsError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

Entry = TypeVar("Entry")


def of_group(group: str) -> list[EntryPoint]:
    """Return the entry points of a group, sorted by name.

    Raises SettingsError (78) where two packages give the same name.
    """
    if not _is_named(group, tuple(sys.path)):
        return []
    # Not at import: it takes longer than most of a command's start.
    from importlib import metadata

    points = sorted(metadata.entry_points(group=group), key=lambda entry: entry.name)
    for first, second in itertools.pairwise(points):
        if first.name == second.name and first.value != second.value:
            raise SettingsError(
                f"two packages give {first.name} of {group}",
                found=f"{first.value} and {second.value}",
                next_step="uninstall one of them",
            )
    return points


def with_packages(
    group: str, built_in: Mapping[str, Entry], make: Callable[[EntryPoint], Entry]
) -> dict[str, Entry]:
    """Return a registry: the built-in entries, then those of installed packages, which
    ``make`` makes of an entry point.

    Raises SettingsError (78) for a package that takes a built-in name, or cannot be
    loaded.

    Example:
        >>> with_packages("cmsspark.nothing", {"file": 1}, lambda entry: 2)
        {'file': 1}
    """
    entries = dict(built_in)
    for point in of_group(group):
        where = f"entry point {point.name} of {group}: {point.value}"
        if point.name in built_in:
            raise SettingsError(
                f"{point.name} is a built-in name of {group}",
                where=where,
                next_step="the package must take another name, or be uninstalled",
            )
        try:
            entries[point.name] = make(point)
        except Exception as error:  # whatever the package raises
            raise SettingsError(
                "a package's entry point cannot be loaded",
                where=where,
                found=f"{type(error).__name__}: {' '.join(str(error).split())[:200]}",
                next_step="correct the package, or uninstall it",
            ) from error
    return entries


@cache
def _is_named(group: str, path: tuple[str, ...]) -> bool:
    """Return whether any distribution names the group. Looking for a text is quicker
    than to parse all of them.
    """
    text = f"[{group}]".encode()
    for folder in path:
        try:
            with os.scandir(folder or ".") as entries:
                infos = [
                    entry.path
                    for entry in entries
                    if entry.name.endswith((".dist-info", ".egg-info"))
                ]
        except OSError:
            continue
        for info in infos:
            try:
                # A path of pathlib takes longer than the file.
                with open(f"{info}/entry_points.txt", "rb") as stream:
                    if text in stream.read():
                        return True
            except OSError:
                continue
    return False
