"""The rows of a query as a table on a terminal, as CSV, JSON or Markdown, or as a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from cmsspark.base.errors import OutputError, UsageError
from cmsspark.base.text.readable import readable
from cmsspark.base.text.terminal import echo_table, pluralize
from cmsspark.store.query.cell_values import to_cell, to_json, to_text

if TYPE_CHECKING:
    import pyarrow as pa

    from cmsspark.store.query.database import QueryResult

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
            "Parquet has no such type",
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
