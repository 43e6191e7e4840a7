"""``cmsspark lint``: scripts for Spark, before they run."""

from __future__ import annotations

from pathlib import Path

import click

from cmsspark.errors import DataError, Exit, InputMissing, NotAllowed
from cmsspark.readable import json_text, readable


@click.command("lint")
@click.argument("scripts", nargs=-1, required=True, metavar="SCRIPT…")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one problem a line.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def command(scripts: tuple[str, ...], as_json: bool, debug: bool) -> int:
    """Find in scripts for Spark what makes them slow or large: the line, why, and the cure.

    SCRIPT is a file or a folder with *.py files. Nothing is run. `# noqa` or `# noqa: SPK101` silences a line. Ends
    with 0 where nothing was found, 65 where something was, 66 for a file that does not exist.
    """
    from cmsspark.monitor.lint import lint

    count = 0
    for path in _files(scripts):
        try:
            problems = lint(path.read_bytes())
        except (SyntaxError, ValueError, RecursionError) as error:
            place = f"{path}:{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else str(path)
            raise DataError(
                "a script in Python is wanted",
                where=place,
                found=str(error),
                next_step="correct the script, or leave it out",
            ) from None
        except OSError as error:
            raise NotAllowed("the script cannot be read", where=path, found=error.strerror) from None
        count += len(problems)
        for problem in problems:
            rule = problem.rule
            if as_json:
                fields = {"file": str(path), "line": problem.line, "column": problem.column, "code": problem.code}
                click.echo(json_text({**fields, "detail": problem.detail, **rule._asdict()}))
                continue
            detail = f" ({problem.detail})" if problem.detail else ""
            click.echo(readable(f"{path}:{problem.line}:{problem.column}: {problem.code} {rule.what}{detail}"))
            click.echo(f"    why:  {rule.why}\n    cure: {rule.cure}")
    return int(Exit.DATA) if count else 0


def _files(scripts: tuple[str, ...]) -> list[Path]:
    found: list[Path] = []
    for name in scripts:
        path = Path(name)
        if path.is_dir():
            found += sorted(path.rglob("*.py"))
        elif path.exists():
            found.append(path)
        else:
            raise InputMissing(
                "a script is wanted", where=name, found="no such file", next_step="name a *.py file or a folder"
            )
    return found
