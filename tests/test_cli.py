"""The ``cmsspark`` command: help without a JVM, commands loaded when they are used."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from cmsspark import __version__
from cmsspark.base.errors import Exit, UsageError
from cmsspark.main import COMMANDS, GROUPS, LAB, command, lab

DOCS = Path(__file__).resolve().parent.parent / "docs"


def run(*arguments: str) -> str:
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_help_names_every_command_with_a_line() -> None:
    for flag in ("--help", "-h"):
        output = run(flag)
        assert max(map(len, output.splitlines())) <= 80
        names = [name for entries in GROUPS.values() for name in entries]
        assert len(names) == len(set(names)) <= 20
        for heading, entries in GROUPS.items():
            listed = output.partition(f"\n{heading}:\n")[2].partition("\n\n")[0].splitlines()
            assert [line.split(maxsplit=1) for line in listed] == [
                [n, entry[2]] for n, entry in entries.items()
            ]


def test_what_few_people_need_is_listed_by_lab_only() -> None:
    output = run("lab", "--help")
    assert max(map(len, output.splitlines())) <= 80
    for name, (_, _, about) in LAB.items():
        assert name not in COMMANDS and f"  {name} " in output and about in output
        assert "Usage:" in run("lab", name, "--help")
        alone = CliRunner().invoke(command, [name, "--help"])
        assert alone.exit_code == 2 and f"Type: cmsspark lab {name}" in alone.output


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_help(name: str) -> None:
    assert "Usage:" in run(name, "--help")


def test_version_prints_the_version() -> None:
    assert __version__ in run("--version")


def test_a_command_of_no_known_name_ends_in_2() -> None:
    result = CliRunner().invoke(command, ["nothing"])
    assert result.exit_code == 2
    assert "nothing" in result.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("sttus",), "Did you mean status?"),
        (("dbs_aaa.py", "--date", "20260115"), "It is a job: run_spark dbs_aaa"),
        (("dbs_jm",), "It is a job: run_spark dbs_jm"),
    ],
)
def test_an_unknown_command_names_the_nearest_one_or_the_job_that_was_meant(
    words: tuple[str, ...], said: str
) -> None:
    result = CliRunner().invoke(command, words)
    assert result.exit_code == 2
    assert said in result.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("help", "exit-code"), "did you mean exit-codes?"),
        (("help", "ask", "who-read"), "did you mean who-reads?"),
        (("help", "nothing"), "cmsspark help lists the topics and commands"),
        (("show", "data_agregation", "--date", "20260115"), "did you mean data_aggregation?"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_one(
    words: tuple[str, ...], said: str
) -> None:
    with pytest.raises(UsageError) as error:
        CliRunner().invoke(command, words, catch_exceptions=False)
    assert error.value.next_step == said
    names = str(error.value.found).split(", ")
    assert len(names) == len(set(names))


def test_help_imports_neither_pyspark_nor_any_job() -> None:
    check = "sys.exit(any(m.startswith(('pyspark', 'cmsspark.apps.')) for m in sys.modules))"
    code = f"import sys; from cmsspark.main import command; command.main(['--help'], standalone_mode=False); {check}"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], check=False, stdout=subprocess.DEVNULL
        ).returncode
        == 0
    )


def test_every_command_is_a_click_command() -> None:
    context = click.Context(command)
    assert all(isinstance(command.get_command(context, name), click.Command) for name in COMMANDS)


def test_help_on_exit_codes_prints_each_code_with_its_meaning_and_the_next_step() -> None:
    text = run("help", "exit-codes")
    for code in Exit:
        assert re.search(
            rf"^ +{int(code)}  {re.escape(code.meaning)}\n +next: {re.escape(code.next_step)}$",
            text,
            re.M,
        )


def test_the_exit_codes_of_the_operations_page_are_those_of_the_code() -> None:
    section = (
        (DOCS / "operations.md")
        .read_text(encoding="utf-8")
        .partition("## Exit codes")[2]
        .partition("\n## ")[0]
    )
    rows = re.findall(r"^\| (\d+) \| (.+?) \| (.+?) \|$", section, re.MULTILINE)
    assert rows == [(str(int(code)), code.meaning, code.next_step) for code in Exit]


def test_every_exit_code_says_what_it_means_and_what_to_do() -> None:
    assert all(code.meaning and code.next_step for code in Exit)
    assert [int(code) for code in Exit] == [0, 2, 3, 65, 66, 70, 73, 75, 77, 78]


def test_help_on_a_command_is_that_commands_help() -> None:
    assert run("help", "diff") == run("diff", "--help")
    assert run("help", "outbox", "retry") == run("outbox", "retry", "--help")


def test_help_alone_lists_commands_and_topics() -> None:
    text = run("help")
    assert text.startswith(run("--help"))
    assert "exit-codes" in text.partition("Topics")[2]


@pytest.mark.parametrize(
    "names", [("nothing",), ("diff", "nothing"), ("exit-codes", "65"), ("outbox", "nothing")]
)
def test_help_on_an_unknown_name_says_what_there_is(names: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="there is no help on") as error:
        CliRunner().invoke(command, ["help", *names], catch_exceptions=False)
    assert error.value.found


def test_help_loads_no_other_command_and_no_spark() -> None:
    check = (
        "prefixes = ('cmsspark.apps.', 'pyspark'); "
        "sys.exit(str(sorted(m for m in sys.modules if m.startswith(prefixes))))"
    )
    code = (
        "import sys; from cmsspark.main import command; "
        f"command.main(['help', 'exit-codes'], standalone_mode=False); {check}"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True
    )
    assert ended.stderr.strip() == "['cmsspark.apps.results', 'cmsspark.apps.results.help']"


def test_groups_show_the_whole_first_sentence_of_each_command_in_80_columns() -> None:
    context = click.Context(command, terminal_width=80)
    loaded = {
        **{name: command.get_command(context, name) for name in COMMANDS if name != "lab"},
        **{f"lab {name}": lab.get_command(context, name) for name in LAB},
    }
    groups = {name: entry for name, entry in loaded.items() if isinstance(entry, click.Group)}
    assert len(groups) > 10
    for name, group in groups.items():
        inner = click.Context(group, info_name=name, parent=context, terminal_width=80)
        _, _, listed = group.get_help(inner).partition("Commands:\n")
        assert listed and "..." not in listed
        assert max(map(len, listed.splitlines())) <= 80
        for one in group.commands.values():
            assert one.get_short_help_str(10_000) in " ".join(listed.split())
