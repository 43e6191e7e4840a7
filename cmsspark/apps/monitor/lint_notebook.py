"""The code of a Jupyter notebook as one script, with the cell and line that each of its lines comes from."""

from __future__ import annotations

import ast
import re
import warnings
from dataclasses import dataclass
from typing import Final

import msgspec

_MAGIC: Final = re.compile(r"(?P<indent>\s*)(?:[%!?]|[\w.]+\s*=\s*(?:!|%\w))")
#: Magics of a whole cell whose rest is Python.
_PYTHON_MAGICS: Final = ("%%time", "%%timeit", "%%capture", "%%prun", "%%local", "%%pyspark")


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


def read_notebook(content: bytes) -> NotebookScript:
    """Return the code cells of a notebook; lines for IPython and the shell do nothing.

    Raises ValueError for no notebook.
    """
    notebook = msgspec.json.decode(content, type=_Notebook)
    lines: list[str] = []
    places: list[tuple[int, int]] = []
    for number, cell in enumerate(notebook.cells, 1):
        if cell.cell_type != "code":
            continue
        text = cell.source if isinstance(cell.source, str) else "".join(cell.source)
        # Only these end a line of Python: a form feed or U+2028 may stand in a text.
        rows = re.split(r"\r\n|\r|\n", text)
        is_python = not text.lstrip().startswith("%%") or text.lstrip().startswith(_PYTHON_MAGICS)
        lines += _plain(rows) if is_python else [""] * len(rows)
        places += [(number, inside) for inside in range(1, len(rows) + 1)]
    return NotebookScript("\n".join([*lines, ""]).encode("utf-8", "replace"), places)


def _plain(rows: list[str]) -> list[str]:
    """Return the lines of a cell without those for IPython.

    In a cell that is Python a line may begin with ``%``, too.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse("\n".join(rows))
        return rows
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        pass
    lines: list[str] = []
    goes_on = False
    for row in rows:
        match = _MAGIC.match(row)
        if goes_on or match is not None:
            lines.append("" if goes_on or match is None else f"{match['indent']}pass")
            goes_on = row.rstrip().endswith("\\")
        else:
            is_help = row.rstrip().endswith("?") and not row.lstrip().startswith("#")
            lines.append(row.rstrip().rstrip("?") if is_help else row)
    return lines
