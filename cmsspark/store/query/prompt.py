"""The prompt of ``cmsspark sql``: statements over several lines, a history, and
completion of names.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import click

from cmsspark.base import reporting
from cmsspark.base.errors import CmssparkError
from cmsspark.base.private_folders import make_private
from cmsspark.base.text.terminal import pluralize
from cmsspark.store.query import output
from cmsspark.store.query.database import Database

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


@dataclass
class Prompt:
    """Reads statements until the end of input, and prints each result or error."""

    database: Database
    history: Path
    rows: int
    time_limit: float | None = None
    _names: list[str] = field(default_factory=list)

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
            self._schema(words[1:] or [table.name for table in self.database.tables])
        elif words[0] == ".rows" and len(words) == 2 and words[1].isdecimal() and int(words[1]):
            self.rows = int(words[1])
        else:
            click.echo(_HELP)
        return True

    def _schema(self, tables: list[str]) -> None:
        """Print the columns of tables."""
        for table in tables:
            click.echo(f"{table}:")
            self._answer(f'describe "{table}"', None)

    def _answer(self, statement: str, max_rows: int | None) -> None:
        began = time.monotonic()
        try:
            result = self.database.query(statement, max_rows=max_rows, max_seconds=self.time_limit)
            output.echo_result(result)
            click.echo(output.summary(result), err=True)
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
