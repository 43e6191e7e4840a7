"""``cmsspark lab lint``: scripts for Spark, before they run."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from cmsspark.base.errors import CmssparkError, DataError, Exit, InputMissing, NotAllowed
from cmsspark.base.text.readable import json_text, readable

if TYPE_CHECKING:
    from cmsspark.apps.monitor.lint_rules import Problem

    PlaceOf = Callable[[int], tuple[int, int]]


#: A notebook with pictures has some megabytes.
_MAX_BYTES: Final = 100_000_000


@click.command("lint")
@click.argument("scripts", nargs=-1, required=True, metavar="SCRIPT…")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one problem a line.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def command(scripts: tuple[str, ...], as_json: bool, debug: bool) -> int:
    """Find in scripts for Spark what makes them slow or large: the line, why, and the cure.

    SCRIPT is a file, a notebook, or a folder with *.py and *.ipynb files. Nothing is run. `# noqa` or `# noqa: SPK101`
    silences a line. Ends with 0 where nothing was found, 65 where something was, 66 for a file that does not exist, or
    a folder without any.
    """
    count = 0
    refused: list[CmssparkError] = []
    for path in _files(scripts):
        try:
            problems, place_of = _lint(path)
        except CmssparkError as error:
            # One file that is no Python does not hide what the others have.
            refused.append(error)
            continue
        count += len(problems)
        for problem in problems:
            rule = problem.rule
            if as_json:
                fields = {"file": str(path), "line": problem.line, "column": problem.column, "code": problem.code}
                if path.suffix == ".ipynb":
                    fields["cell"], fields["line"] = place_of(problem.line)
                click.echo(json_text({**fields, "detail": problem.detail, **rule._asdict()}))
                continue
            detail = f" ({problem.detail})" if problem.detail else ""
            line = _line(place_of(problem.line))
            click.echo(readable(f"{path}:{line}:{problem.column}: {problem.code} {rule.what}{detail}"))
            click.echo(f"    why:  {rule.why}\n    cure: {rule.cure}")
    for refusal in refused[:-1]:
        click.echo(f"cmsspark: {refusal}", err=True)
    if refused:
        raise refused[-1]
    return int(Exit.DATA) if count else 0


def _lint(path: Path) -> tuple[list[Problem], PlaceOf]:
    """Return the problems of a file, and what gives the cell (0 in a script) and the line in it for a line."""
    from cmsspark.apps.monitor.lint import lint
    from cmsspark.apps.monitor.lint_notebook import NotebookScript, read_notebook

    notebook = NotebookScript(b"", [])

    def place_of(line: int) -> tuple[int, int]:
        return notebook.places[min(line, len(notebook.places)) - 1] if notebook.places else (0, line)

    try:
        content = _content(path)
        if path.suffix == ".ipynb":
            notebook = read_notebook(content)
            content = notebook.source
        return lint(content), place_of
    except SyntaxError as error:
        where = f"{path}:{_line(place_of(error.lineno))}" if error.lineno else str(path)
        next_step = "Spark 3.5 and 4 run Python 3; `2to3` converts scripts for Python 2"
        raise DataError("the script is not in Python 3", where=where, found=error.msg, next_step=next_step) from None
    except (ValueError, RecursionError, MemoryError) as error:  # the parser has no memory for what is nested deep
        form = "a notebook of Jupyter (nbformat 4)" if path.suffix == ".ipynb" else "a script in Python 3"
        raise DataError(f"the file is not {form}", where=path, found=str(error) or "nested too deep") from None
    except OSError as error:
        raise NotAllowed("the script cannot be read", where=path, found=error.strerror) from None


def _content(path: Path) -> bytes:
    """Return the bytes of a script. Raises DataError (65) for a pipe, a device and a file that is too large."""
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
        raise DataError(f"a script has at most {_MAX_BYTES:,} bytes", where=path, found="a larger file")
    return content


def _line(position: tuple[int, int]) -> str:
    return f"cell {position[0]}:{position[1]}" if position[0] else str(position[1])


#: Folders in a folder of scripts: copies of notebooks, and packages of an environment.
_NOT_OURS: Final = {".ipynb_checkpoints", "site-packages"}


def _files(scripts: tuple[str, ...]) -> list[Path]:
    chosen: list[Path] = []
    for name in scripts:
        path = Path(name)
        if path.is_dir():
            files = [*path.rglob("*.py"), *path.rglob("*.ipynb")]
            inside = sorted(file for file in files if not _NOT_OURS.intersection(file.relative_to(path).parts))
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
                "the script cannot be read", where=name, found="no such file", next_step="name a *.py file or a folder"
            )
    return chosen
