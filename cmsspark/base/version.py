"""The version: the release of ``CHANGELOG.md`` and the commit, such as ``0.2.0+g1a2b3c4``.

A built package and the zip for a cluster have both in the file ``VERSION``. A checkout
reads the commit from the files of ``.git``, so that no git is needed and a start takes
no longer.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any, Final

#: The file of a built package, beside its modules.
FILE: Final = "VERSION"
_HEADING: Final = re.compile(r"^## (\d+\.\d+\.\d+)\b", re.MULTILINE)
_COMMIT: Final = re.compile(r"[0-9a-f]{40,64}")
#: So far from its beginning the change log has its first heading.
_HEAD_CHARACTERS: Final = 2_000


@cache
def version() -> str:
    """Return the version of this installation."""
    package = Path(__file__).parent.parent
    loader: Any = getattr(__spec__, "loader", None)
    try:
        # Also from within a zip.
        return str(loader.get_data(str(package / FILE)).decode("ascii").strip())
    except (OSError, AttributeError, UnicodeDecodeError):
        return of_checkout(package.parent)


def of_checkout(top: Path) -> str:
    """Return the version of a checkout or of unpacked sources in ``top``."""
    packed = _text(top / "cmsspark" / FILE).strip()
    if packed:
        return packed
    match = _HEADING.search(_text(top / "CHANGELOG.md")[:_HEAD_CHARACTERS])
    release, commit = match[1] if match else "0.0.0", checkout_commit(top)
    return f"{release}+g{commit[:7]}" if commit else release


def checkout_commit(top: Path) -> str:
    """Return the commit that a checkout is at; empty where it is none."""
    git = top / ".git"
    if git.is_file():  # of a further working tree
        git = top / _text(git).partition("gitdir: ")[2].strip()
    head = _text(git / "HEAD").strip()
    if not head.startswith("ref: "):
        return head if _COMMIT.fullmatch(head) else ""
    name = head.removeprefix("ref: ")
    common = git / (_text(git / "commondir").strip() or ".")
    for folder in (git, common):
        commit = _text(folder / name).strip()
        if _COMMIT.fullmatch(commit):
            return commit
    packed = re.search(rf"^([0-9a-f]+) {re.escape(name)}$", _text(common / "packed-refs"), re.M)
    return packed[1] if packed else ""


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
