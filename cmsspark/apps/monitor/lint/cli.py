"""``cmsspark lab lint``: scripts and notebooks for Spark, before they run."""

from __future__ import annotations

import ast
import os
import re
import stat
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import msgspec

from cmsspark.base.errors import CmssparkError, DataError, Exit, InputMissing, NotAllowed
from cmsspark.base.text.readable import json_text, readable
from cmsspark.cli.options import debug_option

if TYPE_CHECKING:
    from cmsspark.apps.monitor.lint.rules import Problem


#: A notebook with pictures has some megabytes.
_MAX_BYTES: Final = 100_000_000


@click.command("lint")
@click.argument("scripts", nargs=-1, required=True, metavar="SCRIPT…")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one problem a line.")
@debug_option
def command(scripts: tuple[str, ...], as_json: bool) -> int:
    """Find in scripts for Spark what makes them slow or large: the line, why, and the cure.

    SCRIPT is a file, a notebook, or a folder with *.py and *.ipynb files. Nothing is
    run. `# noqa` or `# noqa: SPK101` silences a line. Ends with 0 where nothing was
    found, 65 where something was, 66 for a file that does not exist, or a folder
    without scripts.
    """
    count = 0
    refused: list[CmssparkError] = []
    for path in _files(scripts):
        try:
            problems, script = _lint(path)
        except CmssparkError as error:
            # One file that is no Python does not hide what the others have.
            refused.append(error)
            continue
        # One cell that is no Python does not hide what the others have.
        refused += [_damaged_cell(path, *cell) for cell in script.damaged]
        count += len(problems)
        for problem in problems:
            rule = problem.rule
            cell, number = script.position(problem.line)
            if as_json:
                fields = {"file": str(path), "line": number, "column": problem.column}
                fields |= {"code": problem.code, **({"cell": cell} if script.positions else {})}
                click.echo(
                    json_text({**fields, "detail": problem.detail, **msgspec.structs.asdict(rule)})
                )
                continue
            detail = f" ({problem.detail})" if problem.detail else ""
            where = f"{path}:{script.describe(problem.line)}:{problem.column}"
            click.echo(readable(f"{where}: {problem.code} {rule.what}{detail}"))
            click.echo(f"    why:  {rule.why}\n    cure: {rule.cure}")
    for refusal in refused[:-1]:
        click.echo(f"cmsspark: {refusal}", err=True)
    if refused:
        raise refused[-1]
    return int(Exit.DATA) if count else 0


def _lint(path: Path) -> tuple[list[Problem], Script]:
    """Return the problems of a file, and what it has."""
    from cmsspark.apps.monitor.lint.checker import lint

    script, form = Script(b""), "a script in Python 3"
    try:
        script = Script(_content(path))
        if path.suffix == ".ipynb":
            form = "a notebook of Jupyter (nbformat 4)"
            script = read_notebook(script.source)
        return lint(script.source), script
    except SyntaxError as error:
        where = f"{path}:{script.describe(error.lineno)}" if error.lineno else str(path)
        next_step = "Spark 3.5 and 4 run Python 3; `2to3` converts scripts for Python 2"
        raise DataError(
            "the script is not in Python 3", where=where, found=error.msg, next_step=next_step
        ) from None
    # The parser has no memory for what is nested deep.
    except (ValueError, RecursionError, MemoryError) as error:
        raise DataError(
            f"the file is not {form}", where=path, found=str(error) or "nested too deep"
        ) from None
    except OSError as error:
        raise NotAllowed("the script cannot be read", where=path, found=error.strerror) from None


def _damaged_cell(path: Path, number: int, line: int, reason: str) -> DataError:
    return DataError(
        "the cell is not in Python 3, and was left out",
        where=f"{path}:cell {number}:{line}",
        found=reason,
        next_step="the other cells were read; correct it, or make it a text",
    )


def _content(path: Path) -> bytes:
    """Return the bytes of a script. Raises DataError (65) for a pipe, a device and a
    file that is too large.
    """
    # Without O_NONBLOCK, opening a FIFO waits for a writer.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise DataError(
                "a script is a regular file",
                where=path,
                found="a pipe, a socket or a device",
                next_step="write it to a file first",
            )
        content = stream.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise DataError(
            f"a script has at most {_MAX_BYTES:,} bytes", where=path, found="a larger file"
        )
    return content


#: Folders in a folder of scripts: copies of notebooks, and packages of an environment.
_NOT_OURS: Final = {".ipynb_checkpoints", "site-packages"}


def _files(scripts: tuple[str, ...]) -> list[Path]:
    chosen: list[Path] = []
    for name in scripts:
        path = Path(name)
        if path.is_dir():
            files = [*path.rglob("*.py"), *path.rglob("*.ipynb")]
            inside = sorted(
                file for file in files if not _NOT_OURS.intersection(file.relative_to(path).parts)
            )
            if not inside:
                raise InputMissing(
                    "the folder has no script",
                    where=name,
                    found="no *.py and no *.ipynb file",
                    next_step="name a *.py file or another folder",
                )
            chosen += inside
        elif path.exists():
            chosen.append(path)
        else:
            raise InputMissing(
                "the script cannot be read",
                where=name,
                found="no such file",
                next_step="name a *.py file or a folder",
            )
    return chosen


_MAGIC: Final = re.compile(r"(?P<indent>\s*)(?:[%!?]|[\w.]+\s*=\s*(?:!|%\w))")
#: Magics of a whole cell whose rest is Python.
_PYTHON_MAGICS: Final = ("%%time", "%%timeit", "%%capture", "%%prun", "%%local", "%%pyspark")


class _Cell(msgspec.Struct):
    cell_type: str = ""
    source: list[str] | str = ""


class _Notebook(msgspec.Struct):
    cells: list[_Cell]


class Script(msgspec.Struct, frozen=True):
    """The source of a script. ``positions``, of a notebook: for each line of ``source`` the
    number of its cell and its line there, both from 1.
    """

    source: bytes
    positions: list[tuple[int, int]] = msgspec.field(default_factory=list)
    #: Cells that are no Python: number, line and reason.
    damaged: list[tuple[int, int, str]] = msgspec.field(default_factory=list)

    def position(self, line: int) -> tuple[int, int]:
        """Return the cell, 0 in a script, and the line in it."""
        if not self.positions:
            return 0, line
        return self.positions[min(line, len(self.positions)) - 1]

    def describe(self, line: int) -> str:
        """Return how a message names a line."""
        cell, number = self.position(line)
        return f"cell {cell}:{number}" if cell else str(number)


def read_notebook(content: bytes) -> Script:
    """Return the code cells of a notebook; lines for IPython and the shell do nothing.

    Raises ValueError for no notebook.
    """
    notebook = msgspec.json.decode(content, type=_Notebook)
    lines: list[str] = []
    positions: list[tuple[int, int]] = []
    damaged: list[tuple[int, int, str]] = []
    for number, cell in enumerate(notebook.cells, 1):
        if cell.cell_type != "code":
            continue
        text = cell.source if isinstance(cell.source, str) else "".join(cell.source)
        # Only these end a line of Python: a form feed or U+2028 may stand in a text.
        rows = re.split(r"\r\n|\r|\n", text)
        is_python = not text.lstrip().startswith("%%") or text.lstrip().startswith(_PYTHON_MAGICS)
        if is_python:
            rows = _plain(rows)
            if (error := _syntax_error(rows)) is not None:
                damaged.append((number, *error))
                is_python = False
        lines += rows if is_python else [""] * len(rows)
        positions += [(number, inside) for inside in range(1, len(rows) + 1)]
    source = "\n".join([*lines, ""]).encode("utf-8", "replace")
    return Script(source, positions, damaged)


def _syntax_error(rows: list[str]) -> tuple[int, str] | None:
    """Return the line and the reason for which lines are no Python; None if they are."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse("\n".join(rows))
    except SyntaxError as error:
        return error.lineno or 1, error.msg
    except (ValueError, RecursionError, MemoryError) as error:
        return 1, str(error) or "nested too deep"
    return None


def _plain(rows: list[str]) -> list[str]:
    """Return the lines of a cell without those for IPython.

    In a cell that is Python a line may begin with ``%``, too.
    """
    if _syntax_error(rows) is None:
        return rows
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
