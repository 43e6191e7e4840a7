"""The code of a Jupyter notebook as one script, with the cell and line that each of its lines comes from."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import msgspec

_MAGIC: Final = re.compile(r"(?P<indent>\s*)[%!?]")
#: Magics of a whole cell whose rest is Python.
_PYTHON_MAGICS: Final = ("%%time", "%%timeit", "%%capture", "%%prun")


class _Cell(msgspec.Struct):
    cell_type: str = ""
    source: list[str] | str = ""


class _Notebook(msgspec.Struct):
    cells: list[_Cell]


@dataclass(frozen=True)
class NotebookScript:
    """``places``: for each line of ``source`` the number of its cell and its line there, both from 1."""

    source: bytes
    places: list[tuple[int, int]]


def script_of(content: bytes) -> NotebookScript:
    """The code cells of a notebook; lines for IPython and the shell do nothing. Raises ValueError for no notebook."""
    notebook = msgspec.json.decode(content, type=_Notebook)
    lines: list[str] = []
    places: list[tuple[int, int]] = []
    for number, cell in enumerate(notebook.cells, 1):
        if cell.cell_type != "code":
            continue
        text = cell.source if isinstance(cell.source, str) else "".join(cell.source)
        rows = text.splitlines()
        is_python = not text.lstrip().startswith("%%") or text.lstrip().startswith(_PYTHON_MAGICS)
        lines += [_plain(row) if is_python else "" for row in rows]
        places += [(number, inside) for inside in range(1, len(rows) + 1)]
    return NotebookScript("\n".join([*lines, ""]).encode("utf-8", "replace"), places)


def _plain(line: str) -> str:
    match = _MAGIC.match(line)
    if match is not None:
        return f"{match['indent']}pass"
    return line[:-1] if line.rstrip().endswith("?") and not line.lstrip().startswith("#") else line
