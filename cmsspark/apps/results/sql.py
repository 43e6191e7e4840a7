"""``cmsspark sql``: ask the stored tables in SQL, once or at a prompt."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cmsspark.base.errors import UsageError
from cmsspark.base.text import progress_line
from cmsspark.base.text.terminal import pluralize
from cmsspark.cli.options import DayType, require_store, store_options
from cmsspark.settings.settings import load_settings
from cmsspark.store.query import prompt

if TYPE_CHECKING:
    from cmsspark.settings.settings import Settings
    from cmsspark.store.query.database import Database
    from cmsspark.store.query.table_views import DumpView

#: Rows that are printed as a table unless --rows says otherwise.
_SHOWN = 100


@click.command("sql")
@click.argument("query", required=False)
@click.option("--csv", "fmt", flag_value="csv", help="Print all rows as CSV.")
@click.option(
    "--json", "fmt", flag_value="json", help="Print all rows as JSON: a list of objects."
)
@click.option(
    "--markdown", "fmt", flag_value="markdown", help="Print all rows as a Markdown table."
)
@click.option(
    "-o",
    "--out",
    metavar="FILE",
    help="Write all rows to FILE: .parquet, .csv, .json, .jsonl or .md.",
)
@click.option("-f", "--file", "file", metavar="FILE", help="Read the query from FILE; - is stdin.")
@click.option(
    "--rows",
    type=click.IntRange(1),
    default=_SHOWN,
    show_default=True,
    help="Maximum rows of a table.",
)
@click.option(
    "--time-limit",
    type=click.FloatRange(0.1),
    metavar="SECONDS",
    help="Stop a query after SECONDS.",
)
@click.option(
    "--memory",
    metavar="SIZE",
    help="Memory of a query, such as 2GB. [default: 80 % of this host's]",
)
@click.option(
    "--dumps",
    is_flag=False,
    flag_value="",
    metavar="[DATE]",
    help="Views of the dumps of DBS, PhEDEx and Rucio that belong to DATE, such as dbs.files. [default: today]",
)
@click.option("--root", metavar="URI", help="Root of the dumps' folders. [default: CMSSPARK_ROOT]")
@store_options
def command(
    query: str | None,
    fmt: str | None,
    out: str | None,
    file: str | None,
    rows: int,
    time_limit: float | None,
    memory: str | None,
    dumps: str | None,
    root: str | None,
    fout: str | None,
    settings_file: str | None,
) -> None:
    """Run the SQL statement QUERY over the stored tables, or open a prompt without QUERY.

    Each stored table is a view with the current result of all its days; `show tables`
    lists the views, `describe TABLE` its columns. Queries only read. With --dumps the
    tables of dumps are views, too, and no store is needed.
    """
    settings = load_settings(settings_file)
    if (
        dumps
        and query is None
        and not (re.fullmatch(r"\d{8}|\d{4}[-/]\d\d[-/]\d\d|today|yesterday", dumps) is not None)
    ):
        # `--dumps QUERY`: the query took the place of the date.
        dumps, query = "", dumps
    store = (
        str(settings.cache_dir / "no-store")
        if dumps is not None and not (fout or settings.store)
        else None
    )
    store = store or require_store(fout, settings)
    text = _query_text(query, file)
    if out:
        prompt.check_target(out, fmt)
    tables = () if dumps is None else _dump_tables(dumps, root, settings)
    with _open(store, memory, settings, tables) as database:
        if text is None:
            from cmsspark.store.query.prompt import Prompt

            Prompt(database, settings.state_dir / "sql_history", rows, time_limit).run()
            return
        result = database.query(
            text, max_seconds=time_limit, max_rows=None if fmt or out else rows
        )
        if out:
            prompt.write(result, out)
            click.echo(
                f"{pluralize(result.table.num_rows, 'row')} in {result.seconds:.2f} s: {out}",
                err=True,
            )
        elif fmt:
            prompt.echo(result, fmt)
        else:
            prompt.echo_result(result)
            click.echo(prompt.summary(result), err=True)


def _open(
    store: str, memory: str | None, settings: Settings, tables: Sequence[DumpView]
) -> Database:
    from cmsspark.store.query.database import Database
    from cmsspark.store.stored_columns import existing_store, open_store

    files = open_store(store, "cmsspark sql", settings)
    return Database(
        store, files=files if tables else existing_store(files, store), memory=memory, dumps=tables
    )


def _dump_tables(text: str, root: str | None, settings: Settings) -> list[DumpView]:
    """Return the tables of the dumps of a day, by default today, with a note on each folder."""
    from cmsspark.sources.layout import Layout
    from cmsspark.store.query.table_views import find_tables
    from cmsspark.store.stored_columns import open_store

    day = DayType().convert(text or "today", None, None)
    layout = Layout.from_settings(settings, root)
    tables, notes = find_tables(
        open_store(layout.locations["dbs"][0].folder, "cmsspark sql", settings), layout, day
    )
    for note in notes:
        progress_line.log(note)
    return tables


def _query_text(query: str | None, file: str | None) -> str | None:
    """Return the query of the command line, a file or a pipe; None for the prompt.
    Raises UsageError (2).
    """
    if query is not None and file is not None:
        raise UsageError("QUERY and --file exclude each other", next_step="give only one of them")
    if file == "-" or (query is None and file is None and not sys.stdin.isatty()):
        text = sys.stdin.read()
        if not text.strip():
            raise UsageError(
                "no query", found="nothing on stdin", next_step='cmsspark sql "show tables"'
            )
        return text
    if file is None:
        return query
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError("the file of the query cannot be read", where=file, found=error) from None
