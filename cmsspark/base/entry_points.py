"""Entry points of installed packages, by group. Groups of ours begin with ``cmsspark.``."""

from __future__ import annotations

import itertools
import os
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from cmsspark.base.errors import SettingsError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


def of_group(group: str) -> list[EntryPoint]:
    """Return the entry points of a group, sorted by name.

    Raises SettingsError (78) where two packages give the same name.
    """
    if not _is_named(group, tuple(sys.path)):
        return []
    # Not at import: it takes longer than most of a command's start.
    from importlib import metadata

    found = sorted(metadata.entry_points(group=group), key=lambda entry: entry.name)
    for first, second in itertools.pairwise(found):
        if first.name == second.name and first.value != second.value:
            raise SettingsError(
                f"two packages give {first.name} of {group}",
                found=f"{first.value} and {second.value}",
                next_step="uninstall one of them",
            )
    return found


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
                if text in Path(info, "entry_points.txt").read_bytes():
                    return True
            except OSError:
                continue
    return False
