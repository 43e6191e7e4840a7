"""The prompt of ``cmsspark sql``: statements over several lines, a history, and
completion of names.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import msgspec

from cmsspark.base import reporting
from cmsspark.base.errors import CmssparkError, OutputError, UsageError
from cmsspark.base.private_folders import make_private
from cmsspark.base.text.readable import readable
from cmsspark.base.text.terminal import echo_table, pluralize
from cmsspark.store.query.cell_values import to_cell, to_json, to_text
from cmsspark.store.query.database import Database

if TYPE_CHECKING:
    import pyarrow as pa

    from cmsspark.store.query.database import QueryResult


# The rows of a query as a table on a terminal, as CSV, JSON or Markdown, or as a file.

_SUFFIXES: Final = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "jsonl",
    ".md": "markdown",
}


def echo_result(result: QueryResult) -> None:
    """Print a table that fits the terminal, below what it describes."""
    if result.note:
        click.echo(result.note)
    texts = [
        number for number, field in enumerate(result.table.schema) if not _is_number(field.type)
    ]
    if [*result.names] == ["explain_key", "explain_value"]:
        for _, plan in result.rows:
            click.echo(plan)
        return
    echo_table(
        result.names,
        [[to_cell(value) for value in row] for row in result.rows],
        texts=texts,
        optional=range(2, len(result.names)),
    )


def summary(result: QueryResult) -> str:
    """Return ``12 rows in 0.05 s``, and whether there are more."""
    count = result.table.num_rows
    rows = f"{'the first ' if result.is_truncated else ''}{pluralize(count, 'row')}"
    more = "; --rows, --csv or -o FILE gives more" if result.is_truncated else ""
    return f"{rows} in {result.seconds:.2f} s{more}"


def echo(result: QueryResult, fmt: str) -> None:
    """Print all rows in a format of ``cmsspark sql``."""
    click.echo(_TEXTS[fmt](result), nl=False)


def check_target(out: str, fmt: str | None) -> None:
    """Raise UsageError (2) for a file whose ending names no format, or another one."""
    suffix = Path(out).suffix
    if suffix not in _SUFFIXES:
        raise UsageError(
            f"the ending of -o {out} names no format",
            next_step=f"end it in {', '.join(_SUFFIXES)}",
        )
    if fmt and _SUFFIXES[suffix] != fmt:
        raise UsageError(
            f"--{fmt} and -o {out} exclude each other", next_step="leave out one of them"
        )


def write(result: QueryResult, out: str) -> None:
    """Write all rows to a file, in the format that its ending names. Raises OutputError (73)."""
    path = Path(out)
    part = path.with_name(f".{path.name}.part")
    fmt = _SUFFIXES[path.suffix]
    try:
        if fmt == "parquet":
            _write_parquet(result.table, part)
        else:
            part.write_text(_TEXTS[fmt](result), encoding="utf-8")
        part.replace(path)
    except OSError as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise OutputError(
            "the rows cannot be written", where=out, found=error.strerror or str(error)
        ) from None


def _write_parquet(rows: pa.Table, path: Path) -> None:
    """Raise UsageError (2) for a column whose type Parquet does not have."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        pq.write_table(rows, path, write_page_checksum=True)
    except pa.ArrowNotImplementedError as error:
        path.unlink(missing_ok=True)
        odd = next((field.name for field in rows.schema if pa.types.is_interval(field.type)), None)
        raise UsageError(
            "a column has a type that Parquet lacks",
            where=f"column {odd}" if odd else None,
            found=error,
            next_step=f"CAST({odd or 'COLUMN'} AS VARCHAR)",
        ) from None


def _as_csv(result: QueryResult) -> str:
    import csv
    import io

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(result.names)
    writer.writerows(
        [["" if value is None else to_text(value) for value in row] for row in result.rows]
    )
    return text.getvalue()


def _as_json(result: QueryResult) -> str:
    return json.dumps(to_json(result.dicts), ensure_ascii=False, indent=1) + "\n"


def _as_json_lines(result: QueryResult) -> str:
    lines = (json.dumps(to_json(row), ensure_ascii=False) for row in result.dicts)
    return "".join(f"{line}\n" for line in lines)


def _as_markdown(result: QueryResult) -> str:
    def line(cells: Sequence[str]) -> str:
        return f"| {' | '.join(cells)} |\n"

    rules = ["---:" if _is_number(field.type) else "---" for field in result.table.schema]
    rows = [[_markdown_cell(value) for value in row] for row in result.rows]
    return "".join(map(line, [[_markdown_cell(name) for name in result.names], rules, *rows]))


_TEXTS: Final[dict[str, Callable[[QueryResult], str]]] = {
    "csv": _as_csv,
    "json": _as_json,
    "jsonl": _as_json_lines,
    "markdown": _as_markdown,
}


def _markdown_cell(value: object) -> str:
    text = "" if value is None else readable(to_text(value), lines=False)
    return text.replace("\\", "\\\\").replace("|", "\\|")


def _is_number(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    )


_WORDS: Final = (
    "select from where group by order limit having join using on as and or not in between like distinct count sum avg "
    "min max date with describe summarize explain show tables desc interval case when then else end null is"
)
_HELP: Final = """\
  a statement ends with ;        .tables  the tables     .schema TABLE  its columns
  .rows N  maximum rows          .help  this text        exit or Ctrl-D  leave"""
#: Words that end the prompt, with and without a dot before and a semicolon behind.
_LEAVE: Final = ("exit", "quit", "q")
_HISTORY_LINES: Final = 1_000


class Prompt(msgspec.Struct):
    """Reads statements until the end of input, and prints each result or error."""

    database: Database
    history: Path
    rows: int
    time_limit: float | None = None
    _names: list[str] = msgspec.field(default_factory=list)

    def run(self) -> None:
        """Read and answer. An error of a statement does not end the prompt."""
        with suppress(ImportError, OSError):
            import readline

            self._names = sorted(
                {
                    *_WORDS.split(),
                    *(
                        name
                        for table in self.database.tables
                        for name in (table.name, *table.names)
                    ),
                }
            )
            readline.set_completer(self._completion)
            readline.set_completer_delims(" \t\n,;()=<>+-*/'\"")
            readline.parse_and_bind("tab: complete")
            readline.set_history_length(_HISTORY_LINES)
            readline.read_history_file(self.history)
        stored = self.database.days()
        count = pluralize(len(stored), "day")
        span = (
            f"{count}, {stored[0]} to {stored[-1]}"
            if stored
            else "no day of data_aggregation is stored"
        )
        click.echo(f"{self.database.fout}: {span}. `.help` explains the prompt.", err=True)
        try:
            while (statement := self._statement()) is not None:
                if statement.rstrip("; ").lower() in _LEAVE[:2]:
                    break
                if statement.startswith("."):
                    if not self._dot(statement.rstrip(";").split()):
                        break
                elif statement.strip("; \n"):
                    self._answer(statement, self.rows)
        finally:
            self._write_history()

    def _statement(self) -> str | None:
        """Read the next statement; None at the end of input. Ctrl-C drops what was typed of one."""
        lines: list[str] = []
        while True:
            try:
                line = input("cms> " if not lines else "...> ")
            except EOFError:
                click.echo("", err=True)
                return None
            except KeyboardInterrupt:
                click.echo("", err=True)
                lines.clear()
                continue
            lines.append(line)
            text = "\n".join(lines).strip()
            if not text:
                lines.clear()
            elif text.endswith(";") or (
                len(lines) == 1 and (text.startswith(".") or text.lower() in _LEAVE[:2])
            ):
                return text

    def _dot(self, words: list[str]) -> bool:
        """Answer a command of the prompt; return False where it ends the prompt."""
        if words[0].removeprefix(".") in _LEAVE:
            return False
        if words[0] == ".tables":
            self._answer("show tables", None)
        elif words[0] == ".schema" and len(words) <= 2:
            for name in words[1:] or [table.name for table in self.database.tables]:
                click.echo(f"{name}:")
                self._answer(f'describe "{name}"', None)
        elif words[0] == ".rows" and len(words) == 2 and words[1].isdecimal() and int(words[1]):
            self.rows = int(words[1])
        else:
            click.echo(_HELP)
        return True

    def _answer(self, statement: str, max_rows: int | None) -> None:
        began = time.monotonic()
        try:
            result = self.database.query(statement, max_rows=max_rows, max_seconds=self.time_limit)
            echo_result(result)
            click.echo(summary(result), err=True)
        except CmssparkError as error:
            reporting.report(error)
        except KeyboardInterrupt:
            click.echo(f"interrupted after {time.monotonic() - began:.1f} s", err=True)

    def _write_history(self) -> None:
        """Keep the history, readable for this user only: a query may name people's datasets."""
        with suppress(ImportError, OSError):
            import readline

            make_private(self.history.parent)
            os.close(os.open(self.history, os.O_CREAT | os.O_WRONLY, 0o600))
            readline.write_history_file(self.history)

    def _completion(self, text: str, state: int) -> str | None:
        matches = [name for name in self._names if name.startswith(text.lower())]
        return matches[state] if state < len(matches) else None
