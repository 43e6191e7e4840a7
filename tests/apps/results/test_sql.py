"""``cmsspark sql``: formats, files, exit codes, the prompt."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from click.testing import CliRunner, Result

from cmsspark.base.errors import CmssparkError, InputMissing, NotAllowed, NotReady, UsageError
from cmsspark.main import command
from tests.store.query.stores import make_store

TOP = Path(__file__).resolve().parents[3]
BY_STREAM = (
    "select stream, sum(coalesce(accesses, jobs)) as nacc, sum(read_bytes) as bytes"
    " from partials group by stream order by stream"
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_store(tmp_path_factory.mktemp("store"), 2)


def sql(store: str, *words: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(
        command, ["sql", *words, "--fout", store], input=stdin, standalone_mode=False
    )


def failed(store: str, *words: str, stdin: str | None = None) -> CmssparkError:
    error = sql(store, *words, stdin=stdin).exception
    assert isinstance(error, CmssparkError)
    return error


def test_every_format_has_the_same_rows(store: str, tmp_path: Path) -> None:
    rows = json.loads(sql(store, BY_STREAM, "--json").stdout)
    assert [row["stream"] for row in rows] == ["aaa", "cmssw", "condor", "eos"]
    assert rows[2]["bytes"] is None and all(isinstance(row["nacc"], int) for row in rows)
    as_csv = list(csv.DictReader(io.StringIO(sql(store, BY_STREAM, "--csv").stdout)))
    assert [(row["stream"], int(row["nacc"]), row["bytes"]) for row in as_csv] == [
        (row["stream"], row["nacc"], "" if row["bytes"] is None else str(row["bytes"]))
        for row in rows
    ]
    markdown = sql(store, BY_STREAM, "--markdown").stdout.splitlines()
    assert markdown[:2] == ["| stream | nacc | bytes |", "| --- | ---: | ---: |"]
    assert markdown[2] == f"| aaa | {rows[0]['nacc']} | {rows[0]['bytes']} |"
    for name, read in {
        "x.parquet": pl.read_parquet,
        "x.csv": pl.read_csv,
        "x.jsonl": pl.read_ndjson,
    }.items():
        ended = sql(store, BY_STREAM, "-o", str(tmp_path / name))
        assert ended.exception is None and not ended.stdout
        assert read(tmp_path / name).to_dicts() == rows
    assert f"{rows[0]['nacc']:,}" in sql(store, BY_STREAM).stdout


def test_a_table_has_a_hundred_rows_and_says_so(store: str) -> None:
    shown = sql(store, "select * from partials")
    assert len(shown.stdout.splitlines()) == 101
    assert "the first 100 rows" in shown.stderr and "--rows" in shown.stderr
    assert len(sql(store, "from partials", "--rows", "3").stdout.splitlines()) == 4
    assert len(sql(store, "from partials", "--csv").stdout.splitlines()) == 601


def test_cells_cannot_control_a_terminal_or_break_a_table(store: str) -> None:
    assert "\x1b" not in sql(store, "select chr(27) || '[31m' as x").stdout
    assert (
        sql(store, "select 'a|b' as x, chr(10) as y", "--markdown").stdout.splitlines()[2]
        == "| a\\|b | \\\\x0a |"
    )


def test_a_query_comes_from_a_file_or_a_pipe(store: str, tmp_path: Path) -> None:
    file = tmp_path / "q.sql"
    file.write_text("select 42 as n")
    assert sql(store, "-f", str(file), "--csv").stdout == "n\n42\n"
    assert sql(store, "--csv", stdin="select 42 as n;\n").stdout == "n\n42\n"
    assert sql(store, "-f", "-", "--csv", stdin="select 43 as n").stdout == "n\n43\n"


def test_errors_have_their_exit_codes_and_a_next_step(store: str, tmp_path: Path) -> None:
    cases: list[tuple[type[CmssparkError], tuple[str, ...], int]] = [
        (UsageError, ("select nac from partials",), 2),
        (UsageError, ("drop view partials",), 2),
        (NotAllowed, ("from read_csv('/etc/passwd')",), 77),
        (
            NotReady,
            (
                "select count(*) from range(10000000000000) t(i) where i % 7 = 3",
                "--time-limit",
                "0.2",
            ),
            75,
        ),
        (UsageError, ("select 1", "-o", "x.txt"), 2),
        (UsageError, ("select 1", "-o", "x.csv", "--json"), 2),
        (UsageError, ("select 1", "-f", "x.sql"), 2),
        (UsageError, ("-f", str(tmp_path / "none.sql")), 2),
    ]
    for kind, words, code in cases:
        error = failed(store, *words)
        assert (type(error), error.exit_code) == (kind, code), words
    assert failed(store, "select 1", "-o", str(tmp_path / "none" / "x.csv")).exit_code == 73
    assert failed(store, stdin="\n").exit_code == 2
    missing = failed(str(tmp_path / "none"), "show tables")
    assert isinstance(missing, InputMissing) and "run_spark" in str(missing.next_step)


def typed(store: str, state: Path, lines: list[str]) -> str:
    """What the prompt prints on a terminal for these lines."""
    ours, theirs = pty.openpty()
    environment = {
        **os.environ,
        "PYTHONPATH": str(TOP),
        "CMSSPARK_STATE_DIR": str(state),
        "TERM": "dumb",
    }
    program = [
        sys.executable,
        "-c",
        "from cmsspark.main import main; main()",
        "sql",
        "--fout",
        store,
    ]
    with subprocess.Popen(
        program, stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    ) as process:
        os.close(theirs)
        os.write(ours, "".join(f"{line}\n" for line in lines).encode())
        shown = b""
        while True:
            try:
                part = os.read(ours, 65_536)
            except OSError:  # the other side is closed
                break
            if not part:
                break
            shown += part
    os.close(ours)
    assert process.returncode == 0, shown
    return shown.decode()


def test_the_prompt_answers_goes_on_after_errors_and_keeps_its_history(
    store: str, tmp_path: Path
) -> None:
    lines = [
        "select count(*) as n",
        "from partials;",
        "select x;",
        ".rows 2",
        "from partials;",
        ".help",
        ".tables",
    ]
    lines += [".schema partials", "exit"]
    shown = typed(store, tmp_path, lines)
    assert "2 days, 2026-01-05 to 2026-01-06" in shown
    assert "partials:" in shown and "site_name" in shown.partition("partials:")[2]
    assert "600" in shown and "the query cannot be run" in shown and "the first 2 rows" in shown
    history = tmp_path / "sql_history"
    assert "select count(*) as n" in history.read_text()
    assert history.stat().st_mode & 0o077 == 0
