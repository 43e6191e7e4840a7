"""The rows of a query as a table on a terminal, as CSV, JSON or Markdown, or as a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from cmsspark.errors import OutputError, UsageError
from cmsspark.readable import readable
from cmsspark.reports.terminal import echo_table

if TYPE_CHECKING:
    import pyarrow as pa

    from cmsspark.query.database import QueryResult

_SUFFIXES: Final = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "jsonl", ".md": "markdown"}


def echo_result(result: QueryResult) -> None:
    """Print a table that fits the terminal."""
    texts = [number for number, field in enumerate(result.table.schema) if not _is_number(field.type)]
    if [*result.names] == ["explain_key", "explain_value"]:
        for _, plan in result.rows:
            click.echo(plan)
        return
    echo_table(
        result.names,
        [[_cell(value) for value in row] for row in result.rows],
        left=texts,
        optional=range(2, len(result.names)),
    )


def summary(result: QueryResult) -> str:
    """``12 rows in 0.05 s``, and whether there are more."""
    count = result.table.num_rows
    rows = f"{'the first ' if result.is_truncated else ''}{count:,} row{'s' if count != 1 else ''}"
    more = "; --rows, --csv or -o FILE gives more" if result.is_truncated else ""
    return f"{rows} in {result.seconds:.2f} s{more}"


def echo(result: QueryResult, fmt: str) -> None:
    """Print all rows in a format of ``cmsspark sql``."""
    click.echo(_TEXTS[fmt](result), nl=False)


def check_target(out: str, fmt: str | None) -> None:
    """Raises UsageError (2) for a file whose ending names no format, or another one."""
    suffix = Path(out).suffix
    if suffix not in _SUFFIXES:
        raise UsageError(f"-o must end in {', '.join(_SUFFIXES)}", found=out)
    if fmt and _SUFFIXES[suffix] != fmt:
        raise UsageError(f"--{fmt} and -o {out} exclude each other", next_step="leave out one of them")


def write(result: QueryResult, out: str) -> None:
    """Write all rows to a file, in the format that its ending names. Raises OutputError (73)."""
    path = Path(out)
    part = path.with_name(f".{path.name}.part")
    fmt = _SUFFIXES[path.suffix]
    try:
        if fmt == "parquet":
            import pyarrow.parquet as pq

            pq.write_table(result.table, part)
        else:
            part.write_text(_TEXTS[fmt](result), encoding="utf-8")
        part.replace(path)
    except OSError as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise OutputError("the rows cannot be written", where=out, found=error.strerror or str(error)) from None


def _as_csv(result: QueryResult) -> str:
    import csv
    import io

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(result.names)
    writer.writerows([["" if value is None else _text(value) for value in row] for row in result.rows])
    return text.getvalue()


def _as_json(result: QueryResult) -> str:
    return json.dumps(result.dicts, default=_json_value, ensure_ascii=False, indent=1) + "\n"


def _as_json_lines(result: QueryResult) -> str:
    lines = (json.dumps(row, default=_json_value, ensure_ascii=False) for row in result.dicts)
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
    text = "" if value is None else readable(_text(value), lines=False)
    return text.replace("\\", "\\\\").replace("|", "\\|")


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict | list):
        return json.dumps(value, default=_json_value, ensure_ascii=False)
    return str(value)


def _cell(value: object) -> object:
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    return float(value) if isinstance(value, Decimal) else _text(value)


def _json_value(value: object) -> object:
    if isinstance(value, date | datetime):
        return value.isoformat()
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return value.hex() if isinstance(value, bytes) else str(value)


def _is_number(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))
