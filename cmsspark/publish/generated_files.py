"""Files of this checkout that are generated: name those that are stale, or write them anew."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from cmsspark.base.resources import resource


def stale_files(folder: Path, texts: Mapping[str, str]) -> list[str]:
    """Return the files of ``folder`` that are missing, are not as ``texts`` has them, or are not in it."""
    stored = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    names = texts.keys() | stored.keys()
    return sorted(name for name in names if name not in texts or stored.get(name) != texts[name].encode())


def write_stale(folder_name: str, texts: Mapping[str, str], arguments: Sequence[str]) -> int:
    """Name or, with ``--write``, rewrite the stale files of a folder of this checkout; return the exit code."""
    folder = Path(str(resource(folder_name)))
    names = stale_files(folder, texts)
    if "--write" not in arguments:
        sys.stdout.writelines(f"{folder_name}/{name} is stale\n" for name in names)
        return 1 if names else 0
    for name in names:
        if name in texts:
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(texts[name], encoding="utf-8")
        else:
            (folder / name).unlink()
        sys.stdout.write(f"{'wrote' if name in texts else 'removed'} {folder_name}/{name}\n")
    return 0
